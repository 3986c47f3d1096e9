"""FedRN: the models of k reliable neighbours judge, with the client's own, which of its samples are clean.

Kim, Shin, Jang, Song, Yun: FedRN: Exploiting k-Reliable Neighbors Towards Robust Federated Learning, CIKM 2022.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| k | neighbours | | α | alpha |
| warm-up rounds | warm_up | | | |

Reliability of a neighbour is its data expertise (training accuracy) and its similarity (outputs on one shared Gaussian
input). Each of the k + 1 models gives a mixture of two Gaussians over the client's losses; their weighted mean decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedwinnow.federation.client import Client, scoring_batch
from fedwinnow.federation.method import Method, Replies, Verdict, model_forms
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.payload import SHARE, Exposure, FlatModel, Payload, ReplyForm, Summing
from fedwinnow.mathematics.scaling import zero_to_one
from fedwinnow.mathematics.two_gaussians import exact, fit_two_gaussians
from fedwinnow.models.features import through_head
from fedwinnow.options import option
from fedwinnow.randomness import stream_key
from fedwinnow.steps.site_labels import sample_losses
from fedwinnow.steps.stages import after_warm_up, warm_up_rounds, watch_replies

SMALLEST_RANGE = 1e-12  # a smaller range of expertise or similarity counts as no difference


@dataclass(frozen=True)
class FedRn(Method):
    """Clean samples by an ensemble of the client's own last model and those of its k most reliable neighbours."""

    name: ClassVar[str] = "fedrn"
    sums: ClassVar[dict[str, Summing]] = {}
    citation: ClassVar[str] = "Kim et al., FedRN: Exploiting k-Reliable Neighbors, CIKM 2022"
    stages: ClassVar[tuple[str, ...]] = ("warm_up", "neighbours")
    exposes: ClassVar[dict[str, Exposure]] = {
        **Method.exposes,
        "accuracy": "client",
        "output": "model",
    }
    forwards: ClassVar[dict[str, str]] = {
        "weights": "after the warm-up: sites of which this one is a reliable neighbour get its last model unchanged",
        "counters": "with it",
    }

    preset: Literal["paper", "code"] = option("paper", "Follow the paper, or its released code where they differ.")
    neighbours: int = option(2, "Reliable neighbours.", symbol="k", at_least=0)
    alpha: float = option(0.6, "Weight of expertise against similarity.", symbol="α", at_least=0, at_most=1)
    warm_up: int | None = option(None, "Rounds of plain FedAvg first; none: a fifth of all, as 100 of 500.", at_least=0)
    target_model: Literal["last_local", "global"] = option(
        "last_local", "The client's own judge: its last local model, or the global model."
    )
    similarity: Literal["softmax", "logits"] = option(
        None, "Compare probabilities or logits.", presets={"paper": "softmax", "code": "logits"}
    )
    normalise: bool = option(None, "Map losses to 0..1 before the mixture.", presets={"paper": False, "code": True})
    em_tolerance: float = option(
        None,
        "EM has converged when the mean log-likelihood moves by less.",
        at_least=0,
        presets={"paper": 0.001, "code": 0.01},
    )
    variance_floor: float = option(
        None, "Smallest variance of a component.", above=0, presets={"paper": 0.000001, "code": 0.0005}
    )
    fine_tune: bool = option(True, "Tune the neighbours' heads on the auxiliary set (ablation).")
    choose_by: Literal["reliable", "random"] = option("reliable", "How neighbours are chosen (ablation).")
    ensemble: Literal["reliability", "uniform"] = option("reliability", "How the k + 1 judges are weighted.")
    scoring_views: bool = option(
        None, "Score samples and tune heads on random views, as in training.", presets={"paper": False, "code": True}
    )

    # --- the server's half -----------------------------------------------------------------------------------------

    def start(self, server: Server) -> None:
        server.state["accuracy"] = torch.full((server.clients,), torch.nan, dtype=torch.float64)
        server.state["output"] = torch.zeros(server.clients, server.classes)
        # The seed of one Gaussian input, which every site makes from it.
        server.state["input_seed"] = torch.tensor([stream_key(server.seed, "shared input") & (2**62 - 1)])

    def question(self, server: Server) -> tuple[str, str]:
        return after_warm_up(server, self.warm_up, "neighbours")

    def send(self, server: Server, client: int) -> Payload:
        payload = {**server.weights, "input_seed": server.state["input_seed"]}
        if server.round <= warm_up_rounds(server.rounds, self.warm_up) or torch.isnan(server.state["accuracy"][client]):
            return payload
        members, reliability = self.reliable(server, client)
        for place, neighbour in enumerate(members):
            payload |= {f"neighbour{place}.{key}": value for key, value in server.recall(neighbour).items()}
        return payload | {"reliability": reliability}

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        return model_forms(server) | {"accuracy": SHARE, "output": ReplyForm((server.classes,))}

    def reliable(self, server: Server, client: int) -> tuple[list[int], Tensor]:
        """The k most reliable neighbours and R'(c, n), the client itself first (eqs. 3-5, 7)."""
        accuracy = server.state["accuracy"]
        seen = (~torch.isnan(accuracy)).nonzero().flatten()
        expertise = zero_to_one(accuracy[seen], SMALLEST_RANGE)  # eq. (4)
        outputs = server.state["output"][seen].double()
        own = int((seen == client).nonzero())
        likeness = functional.cosine_similarity(outputs, outputs[own : own + 1])  # eq. (5)
        likeness[own] = 1.0  # Sim(c, c) = 1, also for an output of zeros
        similarity = zero_to_one(likeness, SMALLEST_RANGE)  # over the client and all others, like the expertise
        reliability = self.alpha * expertise + (1 - self.alpha) * similarity  # eq. (3)
        ranked = reliability.clone()
        if self.choose_by == "random":
            ranked = torch.rand(len(seen), generator=server.generator(f"neighbours {client}"), dtype=torch.float64)
        ranked[own] = -torch.inf
        best = ranked.argsort(descending=True, stable=True)[: min(self.neighbours, len(seen) - 1)]
        chosen = torch.cat([torch.tensor([own]), best])
        weights = reliability[chosen] if self.ensemble == "reliability" else torch.ones(len(chosen)).double()
        weights = weights if float(weights.sum()) > 0 else torch.ones_like(weights)
        return seen[best].tolist(), weights / weights.sum()

    def merge(self, server: Server, replies: Replies) -> None:
        def remembering() -> Replies:
            for client, reply in replies:
                server.remember(client, {key: reply[key] for key in ("weights", "counters") if key in reply})
                yield client, reply

        passing, news = watch_replies(remembering(), "accuracy", "output")
        super().merge(server, passing)
        for client, said in news.items():
            server.state["accuracy"][client] = said["accuracy"].double().item()
            server.state["output"][client] = said["output"]

    # --- the client's half -----------------------------------------------------------------------------------------

    def train_plainly(self, client: Client, got: Payload) -> Payload:
        """Warm-up: FedAvg; also send what the server needs to rate this client."""
        super().train(client, got)
        return self.report(client, got)

    def train(self, client: Client, got: Payload) -> Payload:
        clean = self.p_clean(client, got) > 0.5  # eq. (8), fixed for the round
        if not clean.any():
            clean = torch.ones_like(clean)
        client.note(selected=clean)
        client.model.load(got)
        rows = clean.nonzero().flatten().cpu()
        client.fit(
            lambda rows, x, y: self.objective(client, rows, x, y, got),
            rows=rows,
            by_hand=self.by_hand(client, got),
        )
        return self.report(client, got)

    def report(self, client: Client, got: Payload) -> Payload:
        """The trained model, its accuracy on the given labels and its output on the shared input."""
        reply = self.reply(client)
        client.state["last"] = reply["weights"]
        if "counters" in reply:
            client.state["last_counters"] = reply["counters"]
        accuracy = exact(client.predict(views=self.scoring_views).argmax(1) == client.given).mean()
        return reply | {"accuracy": accuracy.cpu().reshape(1), "output": self.output(client, got)}

    def output(self, client: Client, got: Payload) -> Tensor:
        """The model's answer to the one Gaussian input that all clients share (eq. 5)."""
        generator = torch.Generator().manual_seed(int(got["input_seed"]))
        example = torch.zeros_like(client.plain(client.example()))  # only its shape: no sample is used
        if example.is_floating_point():
            example = torch.randn(example.shape, generator=generator).to(example.device)
        client.model.module.eval()
        client.forward_samples += 1
        with torch.inference_mode():
            logits = client.model.module(example)[0].clone()
        output: Tensor = logits.softmax(0) if self.similarity == "softmax" else logits
        return output.cpu()

    def p_clean(self, client: Client, got: Payload) -> Tensor:
        """eq. (7): the clean probabilities of the own model and the neighbours, weighted by reliability."""
        own = self.own_model(client, got)
        own_clean = self.posterior(client, own)
        if "reliability" not in got:
            return own_clean  # not rated yet: no neighbours
        auxiliary = own_clean > 0.5  # eq. (9)
        rows = (auxiliary if auxiliary.any() else torch.ones_like(auxiliary)).nonzero().flatten().cpu()
        total = got["reliability"][0] * own_clean.cpu()
        for place in range(len(got["reliability"]) - 1):
            client.model.load(got, f"neighbour{place}.")
            if self.fine_tune:
                tune_head(client, client.model, rows, views=self.scoring_views)
            total += got["reliability"][place + 1] * self.posterior(client, client.model).cpu()
        return total.to(client.given.device)

    def own_model(self, client: Client, got: Payload) -> FlatModel:
        """The client's own model for judging: its last local one, if it has one."""
        last = {"weights": client.state["last"]} if "last" in client.state else {}
        if last and self.target_model == "last_local":
            client.model.load(last | {"counters": client.state.get("last_counters", torch.zeros(0))})
        else:
            client.model.load(got)
        return client.model

    def posterior(self, client: Client, model: FlatModel) -> Tensor:
        """eq. (6): the probability of the small-loss component under one model."""
        losses = sample_losses(client.predict(model=model, views=self.scoring_views), client.given)
        mixture = fit_two_gaussians(
            losses,
            tolerance=self.em_tolerance,
            variance_floor=self.variance_floor,
            normalise=self.normalise,
        )
        return mixture.p_low(losses)

    def verdict(self, client: Client, got: Payload) -> Verdict:
        """By the ensemble; the suggestion is the global model's."""
        p_wrong = (1.0 - self.p_clean(client, got)).clamp(0, 1)  # the weights add up to 1 except for rounding
        client.model.load(got)
        return Verdict(p_wrong, client.predict().argmax(1))


# --- the neighbours' heads ------------------------------------------------------------------------------------------


def tune_head(client: Client, model: FlatModel, rows: Tensor, *, views: bool = False) -> None:
    """Train the head of a model on these rows for one epoch; the body is fixed, so one pass through it is enough."""
    batches = list(torch.split(rows, scoring_batch(model)))
    model.module.eval()
    with torch.no_grad():
        passed = [
            through_head(model.module, (client.view if views else client.plain)(stored))
            for stored in client.stored(batches)
        ]
    features, labels = torch.cat([found for _, _, found in passed]), client.given[rows.to(client.given.device)]
    head = passed[0][1]
    parameters = [parameter for parameter in (head.weight, head.bias) if parameter is not None]
    if not all(parameter.requires_grad for parameter in parameters):
        return  # a frozen head stays as it is
    vector = torch.cat([parameter.detach().flatten() for parameter in parameters])
    gradient = torch.zeros_like(vector)
    step = client.clipped(client.optimizer.start(vector, gradient), gradient)
    sizes = [parameter.numel() for parameter in parameters]
    client.forward_samples += len(rows)
    for places in client.batches(torch.arange(len(rows))):
        client.backward_samples += len(places)
        batch = places.to(features.device)
        leaf = vector.clone().requires_grad_()
        pieces = [piece.view_as(p) for piece, p in zip(torch.split(leaf, sizes), parameters, strict=True)]
        loss = functional.cross_entropy(functional.linear(features[batch], *pieces), labels[batch])
        gradient.copy_(torch.autograd.grad(loss, leaf)[0])
        step()
    with torch.no_grad():
        for parameter, piece in zip(parameters, torch.split(vector, sizes), strict=True):
            parameter.copy_(piece.view_as(parameter))
