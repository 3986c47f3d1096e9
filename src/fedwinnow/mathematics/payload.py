"""What travels: named tensors, what a reply must look like, and models whose weights are one vector."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedwinnow.errors import RunError, UsageError
from fedwinnow.mathematics.heads import Head, as_head

Payload = dict[str, Tensor]
# What the receiver can learn about: nothing (only the sum over sites tells something), the model, the site, a sample.
Exposure = Literal["masked", "model", "client", "sample"]
Summing = Literal["mean", "sum"]  # over sites: the mean weighted by their samples, or the plain sum


class Received(Payload):
    """A reply as a method reads it; the error for a missing key names the sender."""

    def __init__(self, content: Payload, sender: str) -> None:
        super().__init__(content)
        self.sender = sender

    def __missing__(self, key: str) -> Tensor:
        raise RunError(f"{self.sender}: its reply has no '{key}', which the method needs; it has {sorted(self)}.")

    def __or__(self, more: Payload) -> Received:  # type: ignore[override]
        return Received({**self, **more}, self.sender)


def check_state(state: Payload, place: str, method: str) -> None:
    """Refuse a state that holds anything but tensors, because only tensors are written to disk."""
    for key, value in state.items():
        if not isinstance(key, str):
            raise RunError(f"method '{method}': {place} has the key {key!r}, which is not a text; allowed: texts.")
        if not isinstance(value, Tensor):
            kind, shown = type(value).__name__, repr(value)[:60]
            raise RunError(
                f"method '{method}': {place}['{key}'] is not a tensor but of the type {kind}: {shown}. Only tensors "
                f"are kept between rounds: wrap it in torch.tensor(...), and read a number back with .item()."
            )


def size_in_bytes(payload: Payload) -> int:
    """The size of the payload as it is sent, without the names."""
    return sum(value.numel() * value.element_size() for value in payload.values())


def problem_with(payload: object, exposes: dict[str, Exposure]) -> str | None:
    """Why a reply cannot be accepted, or None."""
    if not isinstance(payload, dict) or not payload:
        return "it returned nothing"
    for key, value in payload.items():
        if key not in exposes:
            return f"its reply has the key '{key}', which the method does not declare in `exposes`"
        if not isinstance(value, Tensor):
            return f"'{key}' in its reply is a {type(value).__name__}, not a tensor"
        if not is_finite(value):
            return f"'{key}' in its reply is not finite (NaN or infinity)"
    return None


def is_finite(value: Tensor) -> bool:
    """Whether there is no NaN and no infinity: both show in the minimum and maximum, which take one pass."""
    if value.is_complex():
        value = torch.view_as_real(value)
    if not value.is_floating_point() or not value.numel():
        return True
    if value.element_size() == 1:  # torch finds no minimum of such numbers
        value = value.float()
    return bool(torch.isfinite(torch.stack(value.detach().aminmax())).all())


# --- what a reply must look like: it comes from another machine, so nothing is taken from it before it was compared ---

SAMPLES: Literal["samples"] = "samples"  # in a shape or as the largest value: the number of samples that the site has
Length = int | None | Literal["samples"]  # None: any

NUMBERS = (torch.float32, torch.float64)
WHOLE = (torch.int64, torch.int32)
TRUTH = (torch.bool,)

LARGEST = 1e12  # the largest number that a site tells: its square is still finite
FARTHEST = 1e6  # trained weights may be larger than all that were sent by this factor, and weights below 1 up to it
# An update that is larger than the usual one of its round by the first factor, and than the model by the second, is no
# result of training: with the mean it would end the training of all others.
BEYOND_OTHERS, BEYOND_MODEL = 100.0, 10.0
ROUNDING = 1e-6


@dataclass(frozen=True)
class ReplyForm:
    """What one tensor of a reply must look like.

    The shape `()` is one number, alone or in a vector of length 1; None is any shape.
    """

    shape: tuple[Length, ...] | None = ()
    dtypes: tuple[torch.dtype, ...] | None = NUMBERS
    least: float = -LARGEST
    most: float | Literal["samples"] | None = LARGEST  # None: the values are not compared
    whole: bool = False  # whole numbers of any type
    needed: bool = True
    check: Callable[[Tensor], str | None] | None = None  # why a tensor of the right form is still no valid one


MODEL = ReplyForm(None, None)  # compared with the model that was sent, see `problem_with_model`
COUNT = ReplyForm((), (*WHOLE, *NUMBERS), least=0, most=SAMPLES, whole=True)
SHARE = ReplyForm((), least=0, most=1)


def maybe(forms: Mapping[str, ReplyForm]) -> dict[str, ReplyForm]:
    """The same forms for keys that may also be missing."""
    return {key: replace(form, needed=False) for key, form in forms.items()}


def problem_with_forms(reply: Payload, forms: Mapping[str, ReplyForm], samples: int) -> str | None:
    """Why a reply of finite tensors does not have these forms; None if it has. `samples`: how many the site has."""
    for key, form in forms.items():
        if key in reply:
            if (problem := problem_with_form(reply[key], form, samples)) is not None:
                return f"'{key}' in its reply {problem}"
        elif form.needed:
            return f"its reply has no '{key}', which the method needs; it has {sorted(reply)}"
    return None


def problem_with_form(value: Tensor, form: ReplyForm, samples: int) -> str | None:
    """Why one tensor does not have its form; None if it has."""
    if form.dtypes is not None and value.dtype not in form.dtypes:
        return f"is {value.dtype}, not {' or '.join(map(str, form.dtypes))}"
    if form.shape is not None and not fits(tuple(value.shape), form.shape, samples):
        wanted = tuple(samples if side == SAMPLES else side for side in form.shape)
        shown = ", ".join("any" if side is None else str(side) for side in wanted)
        return f"has the shape {tuple(value.shape)}, not ({shown})"
    if form.dtypes is not None and form.most is not None and value.numel():
        least, most = form.least, float(samples) if form.most == SAMPLES else float(form.most)
        numbers = value if value.is_floating_point() else value.double()
        low, high = (float(end) for end in torch.aminmax(numbers))
        slack = 0.0 if form.whole else ROUNDING * max(1.0, most if math.isfinite(most) else 1.0)
        if not (low >= least - slack and high <= most + slack):
            return f"has values from {low:g} to {high:g}; allowed: {least:g} to {most:g}"
        if form.whole and not bool((numbers == numbers.round()).all()):
            return "has numbers that are not whole"
    return None if form.check is None else form.check(value)


def fits(shape: tuple[int, ...], form: tuple[Length, ...], samples: int) -> bool:
    """Whether a shape is of this form."""
    if not form:
        return shape in ((), (1,))
    wanted = tuple(samples if side == SAMPLES else side for side in form)
    return len(shape) == len(wanted) and all(side in (None, one) for one, side in zip(shape, wanted, strict=True))


def problem_with_model(reply: Payload, weights: Payload, trainable: int) -> str | None:
    """Why a reply does not fit the model that was sent; None if it fits.

    It may have another shape, another type of numbers, or values so large that training must have failed.
    """
    for key, value in weights.items():
        if key not in reply:
            continue
        if reply[key].shape != value.shape:
            return f"'{key}' in its reply has the shape {tuple(reply[key].shape)}, not {tuple(value.shape)}"
        if reply[key].dtype != value.dtype:
            return f"'{key}' in its reply is {reply[key].dtype}, not {value.dtype}"
        if not value.is_floating_point():
            if value.numel() and not 0 <= int(reply[key].min()) <= int(reply[key].max()) <= LARGEST:
                return f"'{key}' in its reply has counts outside 0 to {LARGEST:g}"
        elif (high := magnitude(reply[key])) > FARTHEST:  # most replies need no second look
            limit = FARTHEST * max(1.0, magnitude(value[:trainable]))
            if high > LARGEST or magnitude(reply[key][:trainable]) > limit:
                return f"'{key}' in its reply has values up to {high:g}: the training has diverged"
    return None


def far_away(updates: Sequence[float], model: float) -> list[int]:
    """Which of these updates, by their largest number, are far from what the others make of this model."""
    if len(updates) < 3:
        return []  # of two, neither can be called the usual one
    limit = max(BEYOND_OTHERS * median(updates), BEYOND_MODEL * max(1.0, model))
    return [place for place, size in enumerate(updates) if size > limit]


def magnitude(value: Tensor) -> float:
    """The largest absolute value; 0 of an empty tensor."""
    if not value.numel():
        return 0.0
    low, high = torch.aminmax(value.detach())
    return max(-float(low), float(high))


# --- models whose weights are one vector -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Slot:
    """Where one tensor of the module lies in the vector."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    channels_last: bool

    def view(self, vector: Tensor) -> Tensor:
        """The tensor as a view of the vector; convolutions keep the layout in which they are fastest."""
        piece = vector[self.start : self.stop]
        if not self.channels_last:
            return piece.view(self.shape)
        out, channels, height, width = self.shape
        return piece.view(out, height, width, channels).permute(0, 3, 1, 2)


class FlatModel:
    """A module, and the vector that its parameters, buffers and gradients live in.

    What is frozen is not in the vector: parameters that need no gradient (`requires_grad` is False), and the buffers of
    layers without any other. It stays in the module, and neither travels nor changes.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu", *, fast_heads: bool = False) -> None:
        self.module = module.to(device)
        self.device = torch.device(device)
        still = frozen_layers(module)
        fixed = {id(value) for layer in still for value in layer.buffers(recurse=False)}
        named = list(module.named_parameters())
        parameters = [(name, value) for name, value in named if value.requires_grad]
        all_buffers = list(module.named_buffers())
        moving = [(name, value) for name, value in all_buffers if id(value) not in fixed]
        buffers = [(name, value) for name, value in moving if value.is_floating_point()]
        counters = [(name, value) for name, value in moving if not value.is_floating_point()]
        if named and not parameters:
            raise UsageError(
                f"all {len(named)} parameters of the model are frozen (requires_grad is False), so there is nothing to "
                f"train; allowed: at least one that is not."
            )
        if odd := [name for name, value in [*parameters, *buffers] if value.dtype != torch.float32]:
            raise UsageError(f"the model's '{odd[0]}' is not float32; convert the model with .float().")
        self.slots = layout([*parameters, *buffers])
        self.counter_slots = layout(counters)
        self.convolutional = any(value.dim() == 4 for _, value in [*named, *buffers])
        self.parameters = [value for _, value in parameters]
        self.trainable = sum(value.numel() for value in self.parameters)
        self.weights = torch.empty(sum(value.numel() for _, value in [*parameters, *buffers]), device=device)
        self.counters = torch.empty(sum(value.numel() for _, value in counters), dtype=torch.int64, device=device)
        self.gradient = torch.zeros(self.trainable, device=device)
        # Running statistics that stay on a site: if set, `load` uses these instead of those that were sent.
        self.own_statistics: Tensor | None = None
        self._bind(parameters, buffers, counters)
        self.still = [layer for layer in still if any(True for _ in layer.buffers(recurse=False))]
        self.frozen = frozen_tensors(named, all_buffers, fixed)
        # A small model that is trained by hand where the objective allows it; None: by automatic differentiation.
        self.head: Head | None = as_head(module, self.places()) if fast_heads else None

    def places(self) -> list[tuple[Tensor, Tensor]]:
        """The values and the gradient of every tensor that is trained, as views of the vectors."""
        trained = self.slots[: len(self.parameters)]
        return [(slot.view(self.weights), slot.view(self.gradient)) for slot in trained]

    def train(self) -> None:
        """Set the module to training; a frozen layer that keeps statistics goes on using them as they are."""
        self.module.train()
        for layer in self.still:
            layer.training = False

    @cached_property
    def frozen_hash(self) -> str:
        """The hash of everything that is frozen; empty where nothing is."""
        if not self.frozen:
            return ""
        digest = hashlib.sha256()
        for name, value in self.frozen.items():
            plain = value.detach().cpu().contiguous()
            digest.update(f"{name} {plain.dtype} {tuple(plain.shape)} ".encode())
            digest.update(plain.flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def __call__(self, x: Tensor) -> Tensor:
        """The logits of a batch: the module's forward pass."""
        logits: Tensor = self.module(x)
        return logits

    def _bind(self, parameters: list[Any], buffers: list[Any], counters: list[Any]) -> None:
        """Make every tensor of the module a view of the vectors."""
        for slot, (_, parameter) in zip(self.slots, parameters, strict=False):
            view = slot.view(self.weights)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = slot.view(self.gradient)
        for slot, (name, value) in zip(self.slots[len(parameters) :], buffers, strict=True):
            replace_buffer(self.module, name, slot.view(self.weights), value)
        for slot, (name, value) in zip(self.counter_slots, counters, strict=True):
            replace_buffer(self.module, name, slot.view(self.counters), value)

    def load(self, payload: Payload, prefix: str = "") -> None:
        """Set the weights from a message."""
        with torch.no_grad():
            self.weights.copy_(payload[f"{prefix}weights"])
            if self.own_statistics is not None:
                self.statistics.copy_(self.own_statistics)
            if len(self.counters):
                self.counters.copy_(payload[f"{prefix}counters"])

    @property
    def statistics(self) -> Tensor:
        """The part of the vector that is not trained: running means and variances."""
        return self.weights[self.trainable :]

    def payload(self, prefix: str = "") -> Payload:
        """The weights as they are now, as a message."""
        found = {f"{prefix}weights": self.weights.detach().clone()}
        if len(self.counters):
            found[f"{prefix}counters"] = self.counters.clone()
        return found

    def named(self, payload: Payload) -> dict[str, Tensor]:
        """The tensors of a payload by their names in the module, for saving or for looking at single layers."""
        found = {slot.name: slot.view(payload["weights"]) for slot in self.slots}
        if len(self.counters):
            found |= {slot.name: slot.view(payload["counters"]) for slot in self.counter_slots}
        return found


def frozen_layers(module: nn.Module) -> list[nn.Module]:
    """The layers of which no parameter is trained.

    A layer without parameters, such as batch normalisation without scale and shift, counts as the smallest part around
    it that has some.
    """
    if all(parameter.requires_grad for parameter in module.parameters()):
        return []
    return [layer for name, layer in module.named_modules() if is_frozen(module, name)]


def is_frozen(module: nn.Module, name: str) -> bool:
    """Whether a layer of the module is frozen."""
    while not (parameters := list(module.get_submodule(name).parameters())) and name:
        name = name.rpartition(".")[0]
    return not any(parameter.requires_grad for parameter in parameters)


def frozen_tensors(parameters: list[Any], buffers: list[Any], fixed: set[int]) -> Payload:
    """The tensors of a module that are not trained and do not travel, by name; convolutions in their fastest layout."""
    for _, value in parameters:
        if not value.requires_grad and value.dim() == 4:
            value.data = value.data.contiguous(memory_format=torch.channels_last)
    found = {name: value.data for name, value in parameters if not value.requires_grad}
    return found | {name: value for name, value in buffers if id(value) in fixed}


def layout(tensors: list[tuple[str, Any]]) -> list[Slot]:
    """The slots of these tensors, one after the other in the vector."""
    slots, start = [], 0
    for name, value in tensors:
        stop = start + value.numel()
        slots.append(Slot(name, start, stop, tuple(value.shape), value.dim() == 4))
        start = stop
    return slots


def replace_buffer(module: nn.Module, name: str, view: Tensor, value: Tensor) -> None:
    """Replace a buffer of the module by a view that has its values."""
    view.copy_(value)
    owner, _, last = name.rpartition(".")
    module.get_submodule(owner)._buffers[last] = view
