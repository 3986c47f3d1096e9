"""What a run promises with --privacy: who is protected, how much may be learned of them, and what is cut off before.

`client` protects every site as a whole, `sample` every sample of every site. docs/privacy.md says what that means.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from fedwinnow.errors import UsageError, unknown
from fedwinnow.options import Part, build, option, parse_spec


@dataclass(frozen=True)
class Privacy(Part):
    """What both kinds state."""

    epsilon: float = option(8.0, "The budget of the whole run.", symbol="ε", at_least=0.01, at_most=100)
    delta: float = option(
        1e-5,
        "The chance by which the promise may fail; below 1 by the number of those protected.",
        symbol="δ",
        above=0,
        at_most=0.1,
    )
    clip: float = option(1.0, "The longest contribution, in Euclidean length; a longer one is shortened.", above=0)
    rounds: int | None = option(None, "For how many rounds the budget is planned; none: those of the run.", at_least=1)
    visits: int | None = option(
        None, "In how many of these rounds a site takes part at most; none: counted beforehand.", at_least=1
    )

    def planned(self, rounds: int, visits: int) -> Privacy:
        """The same with the plan written out: for how many rounds, and how often a site takes part at most."""
        return replace(self, rounds=self.rounds or rounds, visits=self.visits or visits)

    @property
    def most_visits(self) -> int:
        """How often a site takes part at most; the plan must be written out."""
        assert self.visits is not None
        return self.visits

    def without_plan(self) -> Privacy:
        """The promise alone, for comparing."""
        return replace(self, rounds=None, visits=None)


@dataclass(frozen=True)
class SamplePrivacy(Privacy):
    """Each sample is protected from everybody else, the coordinator among them: its site adds the noise."""

    name: ClassVar[str] = "sample"
    sampling: Literal["poisson", "shuffled"] = option(
        "poisson",
        "How a step draws its samples: each with one chance (less noise is enough), or in shuffled epochs.",
    )


@dataclass(frozen=True)
class ClientPrivacy(Privacy):
    """Each site as a whole is protected from those who see the global models, but not from the coordinator."""

    name: ClassVar[str] = "client"


KINDS: dict[str, type[Privacy]] = {"client": ClientPrivacy, "sample": SamplePrivacy}


def find_privacy(spec: Any) -> Privacy | None:
    """The promise of a setting: None, a spec such as sample:epsilon=8, a table with `kind`, or the promise itself."""
    if spec is None or isinstance(spec, Privacy):
        return spec
    if not isinstance(spec, str | dict):
        raise UsageError(f"--privacy {spec!r} was given; allowed: client:epsilon=8,... or sample:epsilon=8,...")
    name, values = parse_spec(spec) if isinstance(spec, str) else split_table(spec)
    if name not in KINDS:
        raise unknown("kind of privacy", name, KINDS)
    return build("privacy", KINDS[name], values)


def split_table(table: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The kind and the options of a table."""
    values = dict(table)
    return str(values.pop("kind", "")), values
