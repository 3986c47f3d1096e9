"""What a site is told about its labels, in words: calls, nothing found, or that it cannot be told, and why."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.auditing.claims import Claims, CommonFinding
from fedwinnow.randomness import Floats, Integers

CALLS, RANGE, NOTHING, CANNOT = "calls", "range", "nothing found", "cannot tell"
FEWEST_CALLS = 20  # below this there is a number and no percentage
SEEN = (
    "The models have seen these labels in training, so they cannot say how many are wrong. The labels are in order, "
    "the most suspicious first."
)
HELP = (
    "What would help: an encoder that knows such data, more rounds of training, a column that tells the classes apart, "
    "or a person who looks at thirty labels."
)
ASSUMPTIONS = (
    "Where the models are sure, labels that are right agree with them more and more; wrong labels do not.",
    "Sites differ in their samples and in how often each class occurs, not in how a sample of a class looks.",
    "A mistake that all sites make in the same way is learnt by the models and not found.",
)


@dataclass(frozen=True)
class Statement:
    """What is said of one site; numbers are None where nothing is known."""

    said: str
    reason: str
    wrong_at_least: int | None = None
    wrong_at_most: int | None = None
    precision_at_least: float | None = None  # of the labels that are called
    unknown_classes: tuple[str, ...] = ()  # with labels here, but not recognised by the models

    def as_value(self) -> dict[str, Any]:
        """The values that an audit writes down."""
        return dataclasses.asdict(self) | {"unknown_classes": list(self.unknown_classes)}


def statement_of(
    claims: Claims | None,
    site: int,
    class_names: tuple[str, ...],
    given: Integers,
    p_wrong: Floats,
    called: NDArray[np.bool_],
    enough: NDArray[np.bool_],
) -> Statement:
    """The statement for one site, the `site`th in the claims."""
    if not enough.any():
        return Statement(CANNOT, "There are too few samples to judge.")
    if claims is None:
        return Statement(CANNOT, SEEN)
    finding = claims.finding
    here = enough & claims.known[given]
    unknown = tuple(class_names[number] for number in np.unique(given[enough & ~claims.known[given]]).tolist())
    most = round(float(finding.most_rates[site]) * int(here.sum())) if finding.skilled else None
    if not here.any():
        return Statement(CANNOT, "The models know none of the classes of this site.", unknown_classes=unknown)
    if finding.nothing_found(site):
        return Statement(NOTHING, nothing_found(finding), 0, None, unknown_classes=unknown)
    if not finding.can_tell(site):
        return Statement(CANNOT, cannot_tell(finding, most), None, most, unknown_classes=unknown)
    least = at_least(int(here.sum()), float(finding.rates[site]))
    precision = float(p_wrong[called].mean()) if int(called.sum()) >= FEWEST_CALLS else None
    reason = some_wrong(finding, site, least, most)
    if not called.any():
        return Statement(RANGE, f"{reason} None of them stands out enough to be called.", least, most, None, unknown)
    return Statement(CALLS, reason, least, most, precision, unknown)


def at_least(labels: int, rate: float) -> int:
    """So many wrong labels a site has at least, with 95 %, if each is wrong at this rate: small sites may be lucky."""
    from scipy.stats import binom

    return int(binom.ppf(0.05, labels, rate))


def nothing_found(finding: CommonFinding) -> str:
    """Where it may be said."""
    beside = bool((finding.rates > 0).any())
    return (
        ("This site looks clean, unlike others: " if beside else "Nothing points to wrong labels: ")
        + "where the models are sure, its labels agree with them. A few wrong labels among hard samples, and mistakes "
        "that all sites make alike, would not show."
    )


def cannot_tell(finding: CommonFinding, most: int | None) -> str:
    """Why nothing may be said."""
    if not finding.skilled:
        return (
            "The models hardly tell these classes apart: a label that they would not have given may be wrong, or right "
            "and hard to predict. The order may still help. " + HELP
        )
    return (
        "Hard samples alone explain how often labels differ from what the models say; from none to about "
        f"{most} wrong labels would look the same. " + HELP
    )


def some_wrong(finding: CommonFinding, site: int, least: int, most: int | None) -> str:
    """That there are wrong labels, and how many at least."""
    more = bool(finding.rates[site] > finding.explanation.common)
    why = (
        "Labels of this site differ from what the models say more often than those of other sites, at samples that are "
        "equally easy. If its samples are not harder in some other way, such as another scanner, "
        if more
        else "Even where the models are sure, some labels differ from what they say, so "
    )
    bound = "" if most is None or most <= max(least, 1) else f", and up to about {most} are possible"
    return f"{why}at least about {max(least, 1)} of its labels are wrong{bound}."
