"""What a noise is: a rule for the labels that every client was given.

Most noises are a *rate rule* (how wrong is each client) with a *flip rule* (what does a wrong label become). One spec
has the options of both: `uniform:share=0.6,low=0.5,high=1,flip=pair,step=-1`.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fedwinnow import catalogue
from fedwinnow.data.dataset import Dataset, Samples
from fedwinnow.errors import UsageError, unknown
from fedwinnow.options import Part, build, format_spec, option
from fedwinnow.randomness import Floats, Integers, uniforms
from fedwinnow.scene.holdings import Holdings, rank_within, smallest_within

Flags = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True, eq=False)
class Ground:
    """What a noise starts from: who holds which sample, and the labels taken to be true."""

    dataset: Dataset
    holdings: Holdings
    true: Integers  # per holding; the data's labels where the truth is unknown
    seed: int

    @property
    def data_name(self) -> str:
        return self.dataset.name

    @property
    def samples(self) -> Samples:
        return self.dataset.train

    @property
    def classes(self) -> int:
        return self.dataset.classes

    def present(self) -> Flags:
        """Which client (row) holds which class (column)."""
        present = np.zeros((self.holdings.clients, self.classes), bool)
        present[self.holdings.client, self.true] = True
        return present


@dataclass(frozen=True, eq=False)
class NoisyLabels:
    """The result of a noise: labels per holding, and per client the rate it aimed at and the kind of noise."""

    given: Integers
    nominal: Floats  # NaN where the rule has no rate
    kinds: tuple[str, ...]  # per client: "clean", or how its wrong labels came about
    truth_known: bool = True


@dataclass(frozen=True)
class Noise(Part):
    """Base of every noise."""

    @abstractmethod
    def apply(self, ground: Ground) -> NoisyLabels:
        """The labels that the clients were given."""

    @abstractmethod
    def describe(self) -> str:
        """The rule in one sentence."""


@dataclass(frozen=True)
class RateNoise(Noise):
    """Base of noises that give every client a rate; a flip rule then says what a wrong label becomes."""

    default_flip: ClassVar[str] = "symmetric"
    default_select: ClassVar[str] = "exact"

    flip: str | None = option(None, "What a wrong label becomes (see `fedwinnow flips`); none: as in the rule's paper.")
    select: Literal["exact", "independent", "per_class", "pooled"] | None = option(
        None,
        "exact: the rate's share of each client's samples, rounded down; independent: every sample by itself; "
        "per_class, pooled: the exact share of each class, or of all samples, over all clients together.",
    )
    local: bool = option(False, "A wrong label is always a class that the client holds itself.", source="FedNoisy")

    @abstractmethod
    def rates(self, clients: int, seed: int) -> Floats:
        """The rate of every client; each is drawn from its own random stream."""

    def flip_rule(self) -> Flip:
        """The flip rule that the user named, or the one of the paper."""
        made = catalogue.make("flips", self.flip or self.default_flip)
        assert isinstance(made, Flip)
        return made

    def apply(self, ground: Ground) -> NoisyLabels:
        flip, rates = self.flip_rule(), self.rates(ground.holdings.clients, ground.seed)
        ground = flip.prepare(ground, rates)
        wrong = np.flatnonzero(self.choose(ground, rates, flip))
        given = ground.true.copy()
        client, position = ground.holdings.client[wrong], ground.holdings.position[wrong]
        luck = uniforms(ground.seed, "noise label", client, position)
        given[wrong] = flip.flip(ground, Wrong(wrong, client, ground.true[wrong], luck, self.local))
        kinds = flip.kinds(ground.holdings.clients, ground.seed)
        return NoisyLabels(
            given=given,
            nominal=rates,
            kinds=tuple(kind if rate > 0 else "clean" for kind, rate in zip(kinds, rates, strict=True)),
        )

    def choose(self, ground: Ground, rates: Floats, flip: Flip) -> Flags:
        """Which holdings get a wrong label."""
        select = self.select or self.default_select
        client, position = ground.holdings.client, ground.holdings.position
        luck = flip.keys(ground, uniforms(ground.seed, "noise choice", client, position))
        if select == "independent":
            if flip.weighs_samples:
                raise UsageError(f"{self}: flip '{flip.name}' prefers some samples, so it needs select=exact.")
            return np.asarray(luck < rates[client])
        if select == "exact":
            groups, share, sizes = client, rates, ground.holdings.sizes
        else:
            if len(np.unique(rates)) > 1:
                raise UsageError(f"{self}: select={select} needs one rate for all clients; use constant:rate=...")
            groups = ground.true if select == "per_class" else np.zeros_like(client)
            share, sizes = rates[:1], np.bincount(groups)
        # The small number makes 0.29 x 100 give 29, although floating point gives 28.999...
        wanted = np.floor(share * sizes + 1e-9).astype(np.int64)
        if flip.weighs_samples:
            return rank_within(groups, luck) < wanted[groups]
        return smallest_within(groups, luck, wanted)

    @abstractmethod
    def rule(self) -> str:
        """The rate rule in words."""

    def describe(self) -> str:
        how = {
            "exact": "exactly that share of each client's samples",
            "independent": "every sample by itself with that probability",
            "per_class": "exactly that share of each class over all clients together",
            "pooled": "exactly that share of all samples together",
        }[self.select or self.default_select]
        local = "; wrong labels stay within the classes a client holds" if self.local else ""
        return f"{self.rule()}; {how}; {self.flip_rule().describe()}{local}"


@dataclass(frozen=True, eq=False)
class Wrong:
    """The holdings that get a wrong label, and the random numbers that decide which label."""

    holding: Integers
    client: Integers
    true: Integers
    luck: Floats
    local: bool


@dataclass(frozen=True)
class Flip(Part):
    """Base of every flip rule."""

    weighs_samples: ClassVar[bool] = False  # whether some samples are more likely to be chosen than others

    @abstractmethod
    def flip(self, ground: Ground, wrong: Wrong) -> Integers:
        """The wrong label of each of these holdings."""

    def prepare(self, ground: Ground, rates: Floats) -> Ground:
        """Called once before samples are chosen, for what takes long to compute; a client of rate 0 can be left out."""
        return ground

    def keys(self, ground: Ground, luck: Floats) -> Floats:
        """A number per holding: those with the smallest are chosen. By default all holdings are equally likely."""
        return luck

    def kinds(self, clients: int, seed: int) -> tuple[str, ...]:
        """The kind of noise of each client."""
        return (self.name,) * clients

    @abstractmethod
    def describe(self) -> str:
        """The rule in one sentence."""


def make_noise(spec: str | dict[str, Any] | Part) -> Noise:
    """A noise from its spec, which has the options of the rate rule and of the flip rule."""
    if isinstance(spec, Noise):
        return spec
    if isinstance(spec, Part):
        raise UsageError(f"{spec} is not a noise.")
    name, values = catalogue.split("noises", spec)
    part = catalogue.find("noises", name).load()
    own = {field.name for field in dataclasses.fields(part)}
    if "flip" in own and any(key not in own for key in values):
        default = part.default_flip if issubclass(part, RateNoise) else ""
        values = gather_flip_options(name, values, own, default)
    made = build("noise", part, values)
    assert isinstance(made, Noise)
    if isinstance(made, RateNoise):
        made.flip_rule()  # an unknown flip is an error now, not when the scene is made
    return made


def gather_flip_options(name: str, values: dict[str, Any], own: set[str], default: str) -> dict[str, Any]:
    """Move the options that belong to the flip rule into its spec: flip=pair,step=-1 becomes flip=pair:step=-1."""
    flip_name, flip_values = catalogue.split("flips", str(values.get("flip") or default))
    allowed = {text.name for text in catalogue.find("flips", flip_name).options}
    for key in [key for key in values if key not in own]:
        if key not in allowed:
            raise unknown(f"option of noise '{name}' with flip '{flip_name}':", key, own | allowed)
        flip_values[key] = values.pop(key)
    return {**values, "flip": format_spec(flip_name, flip_values)}
