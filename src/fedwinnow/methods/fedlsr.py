"""FedLSR: local training regularises itself: predictions of two views are mixed, sharpened and kept similar.

Jiang, Sun, Wang, Liu: Towards Federated Learning against Noisy Labels via Local Self-Regularization, CIKM 2022.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| γ | gamma | | T_s | sharpening |
| t_w | ramp | | 1/T_d | distil_scale |
| λ_e | lambda_e | | μ ~ Beta(a, a) | mixing (a) |

The server is that of FedAvg. With sharpened predictions a wrong label changes little where the model is sure; the
divergence between the views keeps the model from being sure too early. FedLSR+ adds the entropy of the predictions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.encoders.encoded_views import ViewKind
from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Method, beta_draw
from fedwinnow.mathematics.distillation import jensen_shannon
from fedwinnow.mathematics.payload import Payload
from fedwinnow.mathematics.strong_views import MOVES, luma, moved
from fedwinnow.options import option

SMALLEST = 1e-6  # smaller probabilities count as this


@dataclass(frozen=True)
class FedLsr(Method):
    """FedAvg whose local loss mixes and sharpens the predictions of two views of a sample, and keeps them similar."""

    name: ClassVar[str] = "fedlsr"
    citation: ClassVar[str] = "Jiang et al., Towards Federated Learning against Noisy Labels, CIKM 2022"

    preset: Literal["paper", "code"] = option("paper", "Follow the paper, or its released code where they differ.")
    gamma: float = option(0.4, "Weight of the divergence between the views.", symbol="γ", at_least=0)
    ramp: int | None = option(
        None, "Rounds until the divergence has its full weight; none: a fifth of all.", symbol="t_w", at_least=0
    )
    sharpening: float = option(0.5, "Temperature of the mixed prediction.", symbol="T_s", above=0)
    distil_scale: float = option(
        3.0, "Logits times this are compared between the views.", symbol="1/T_d", source="the authors", above=0
    )
    mixing: float = option(1.0, "The two predictions are mixed with a share from Beta(mixing, mixing).", above=0)
    lambda_e: float = option(
        None,
        "Weight of the entropy of predictions: above 0 it is FedLSR+.",
        symbol="λ_e",
        at_least=0,
        presets={"paper": 0.0, "code": 0.6},
    )
    sharpened_loss: Literal["cross_entropy", "double_softmax"] = option(
        None,
        "The loss of the sharpened prediction; double_softmax takes it for logits.",
        presets={"paper": "cross_entropy", "code": "double_softmax"},
    )
    divergence: Literal["samples", "entries"] = option(
        None,
        "The divergence as a mean over samples, or also over the classes.",
        presets={"paper": "samples", "code": "entries"},
    )
    entropy: Literal["views", "first_twice"] = option(
        None,
        "The entropy of both views' predictions, or of the softmax of the first one's.",
        presets={"paper": "views", "code": "first_twice"},
    )
    one_draw: bool = option(
        None, "The second view changes a whole batch in the same way.", presets={"paper": False, "code": True}
    )

    @property
    def needs_views(self) -> bool:
        return True

    @property
    def view_kinds(self) -> tuple[ViewKind, ...]:
        return (ALIKE,) if self.one_draw else (MILD,)

    def objective(self, client: Client, rows: Tensor, x: Tensor, y: Tensor, got: Payload) -> Tensor:
        first, second = client.model.module(x), client.model.module(self.second_view(client, rows))
        client.forward_samples += len(x)
        client.backward_samples += len(x)
        share = beta_draw(self.mixing, client.generator)
        loss = self.sharpened(client, share, first, second, y)
        alike = [(self.distil_scale * logits).softmax(1).clamp(min=SMALLEST) for logits in (first, second)]
        away = jensen_shannon(*alike) / (client.classes if self.divergence == "entries" else 1)
        loss = loss + self.weight(client) * away
        return loss + self.lambda_e * self.unsureness(*alike) if self.lambda_e else loss

    def second_view(self, client: Client, rows: Tensor) -> Tensor:
        """A mild random view of these samples; samples that are not images stay the same."""
        stored = next(client.stored([rows]))
        if client.encoded_views is not None:
            return client.encoded_view(stored, self.view_kinds[0].name, together=self.one_draw)
        if client.input_step.kind == "images":
            stored = mild_view(stored, client.generator, together=self.one_draw)
        return client.plain(stored)

    def sharpened(self, client: Client, share: float, first: Tensor, second: Tensor, y: Tensor) -> Tensor:
        """The loss of p_s, which is proportional to (mu p_1 + (1 - mu) p_2)^(1 / T_s)."""
        mixed = torch.logaddexp(
            first.log_softmax(1) + math.log(max(share, SMALLEST)),
            second.log_softmax(1) + math.log(max(1 - share, SMALLEST)),
        )
        scores = mixed / self.sharpening  # their softmax is p_s
        if self.sharpened_loss == "double_softmax":
            scores = scores.softmax(1)
        return self.criterion.mean(scores, y, client.class_counts)

    def weight(self, client: Client) -> float:
        """gamma_t: from 0 in the first round to gamma after t_w rounds."""
        length = client.rounds / 5 if self.ramp is None else self.ramp
        return self.gamma * min((client.round - 1) / length, 1.0) if length else self.gamma

    def unsureness(self, first: Tensor, second: Tensor) -> Tensor:
        """L_e of FedLSR+."""
        if self.entropy == "first_twice":
            first = second = first.softmax(1)
        return -(first * first.log() + second * second.log()).sum(1).mean() / 2


# --- mild views of images: a grey one is turned, a coloured one recoloured --------------------------------------------
#
# Images are uint8 (n, height, width, channels) before and after. Colours change as in SimCLR's jitter: brightness,
# contrast and saturation by up to 80 %, the hue by up to a fifth of the circle, four times in five; one image in five
# is grey.

JITTERED, GREY, FLIPPED = 0.8, 0.2, 0.5  # how often
STRENGTH = 0.8
HUE = 0.2  # of the circle
# Brightness and two axes of colour: saturation and hue are a stretch and a turn in the plane of the latter.
YIQ = ((0.299, 0.587, 0.114), (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))


def mild_view(images: Tensor, generator: torch.Generator, *, together: bool = False) -> Tensor:
    """A random view of each image, or (together) the same random change for the whole batch."""
    luck = torch.rand(7, 1 if together else len(images), generator=generator)
    luck = luck.to(images.device).expand(7, len(images))
    if images.shape[-1] != 3:
        turn = torch.full((len(images),), MOVES.index("rotate"), device=images.device)
        return moved(images, turn, luck[0])  # by up to 30 degrees
    flipped = torch.where((luck[0] < FLIPPED).view(-1, 1, 1, 1), images.flip(2), images)
    return recoloured(flipped, luck[1:])


# As an encoder encodes them. For `one_draw`, view number k is the same change of every image.
MILD, ALIKE = ViewKind("mild", mild_view), ViewKind("mild_alike", mild_view, alike=True)


def recoloured(images: Tensor, luck: Tensor) -> Tensor:
    """Colours changed by six numbers from 0 to 1 per image: whether, brightness, contrast, saturation, hue, grey."""
    changed = luck[0] < JITTERED
    scale = torch.where(changed, 1 - STRENGTH + 2 * STRENGTH * luck[1:4], 1.0)
    brightness, contrast, saturation = scale.view(3, -1, 1, 1, 1)
    angle = torch.where(changed, 2 * math.pi * HUE * (2 * luck[4] - 1), 0.0)
    saturation = torch.where((luck[5] < GREY).view(-1, 1, 1, 1), 0.0, saturation)
    exact = images.float() * brightness
    middle = luma(exact).mean((1, 2)).view(-1, 1, 1, 1)
    exact = middle + (exact - middle) * contrast
    axes = torch.tensor(YIQ, device=images.device)
    light, *plane = (exact @ axes.T).unbind(-1)
    colour = torch.stack(plane, -1) * saturation
    cosine, sine = angle.cos().view(-1, 1, 1), angle.sin().view(-1, 1, 1)
    first, second = colour.unbind(-1)
    turned = torch.stack([light, cosine * first - sine * second, sine * first + cosine * second], -1)
    back: Tensor = torch.linalg.inv(axes)
    return (turned @ back.T).round().clamp(0, 255).to(torch.uint8)
