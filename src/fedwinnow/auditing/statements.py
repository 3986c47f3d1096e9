"""What a site is told about its labels, in words: calls, nothing found, or that it cannot be told, and why."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from fedwinnow.auditing.claims import SiteFinding
from fedwinnow.data.dataset import Dataset
from fedwinnow.scene.scene import DataReference

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
P_WRONG = (
    "p_wrong is the probability that a label is wrong, at least: the smallest that the counts of all sites allow, if "
    "the assumptions hold. Where it cannot be known it is empty."
)
ASSUMPTIONS = (
    "Where the models are sure, labels that are right agree with them more and more; wrong labels do not.",
    "Sites differ in how often each class occurs and in how hard their samples are, but even at a site with harder "
    "samples labels agree again where the models are sure.",
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


@dataclass(frozen=True)
class SiteFigures:
    """What a statement is made of; the coordinator gets these numbers, where none concerns too few samples."""

    judged: int  # labels; the others have too few samples of their class, or are at a site with too few
    here: int  # of these, labels of classes that the models know
    called: int
    called_p: float  # the sum of their p_wrong
    unknown: tuple[str, ...] = ()  # classes with judged labels that the models do not know
    least: int = 0  # fewer calls than this are told as none


NO_FIGURES = SiteFigures(0, 0, 0, 0.0)


def statement_of(finding: SiteFinding | None, figures: SiteFigures) -> Statement:
    """The statement for one site."""
    if not figures.judged:
        return Statement(CANNOT, "There are too few samples to judge.")
    if finding is None:
        return Statement(CANNOT, SEEN)
    unknown = figures.unknown
    most = round(finding.most_rate * figures.here) if finding.skilled else None
    if not figures.here:
        return Statement(CANNOT, "The models know none of the classes of this site.", unknown_classes=unknown)
    if finding.nothing_found:
        return Statement(NOTHING, nothing_found(finding), 0, None, unknown_classes=unknown)
    if not finding.can_tell:
        return Statement(CANNOT, cannot_tell(finding, most), None, most, unknown_classes=unknown)
    least = at_least(figures.here, finding.rate)
    reason = some_wrong(finding, least, most)
    if not figures.called:
        few = f"Fewer than {figures.least}" if figures.least > 1 else "None"
        stand = "stand" if figures.least > 1 else "stands"
        return Statement(RANGE, f"{reason} {few} of them {stand} out enough to be called.", least, most, None, unknown)
    precision = figures.called_p / figures.called if figures.called >= FEWEST_CALLS else None
    return Statement(CALLS, reason, least, most, precision, unknown)


def at_least(labels: int, rate: float) -> int:
    """So many wrong labels a site has at least, with 95 %, if each is wrong at this rate: small sites may be lucky."""
    from scipy.stats import binom

    return int(binom.ppf(0.05, labels, rate))


def nothing_found(finding: SiteFinding) -> str:
    """Where it may be said."""
    return (
        ("This site looks clean, unlike others: " if finding.somewhere else "Nothing points to wrong labels: ")
        + "where the models are sure, its labels agree with them. A few wrong labels among hard samples, and mistakes "
        "that all sites make alike, would not show."
    )


def cannot_tell(finding: SiteFinding, most: int | None) -> str:
    """Why nothing may be said."""
    if finding.harder:
        return (
            "Labels of this site differ from what the models say more often than those of other sites, at samples that "
            "are equally easy. Wrong labels would do that, and so would samples that are harder here, as from another "
            "scanner; which of the two cannot be told. Thirty looks at this site would tell."
        )
    if not finding.skilled:
        return (
            "The models hardly tell these classes apart: a label that they would not have given may be wrong, or right "
            "and hard to predict. The order may still help. " + HELP
        )
    return (
        "Hard samples alone explain how often labels differ from what the models say; from none to about "
        f"{most} wrong labels would look the same. " + HELP
    )


def some_wrong(finding: SiteFinding, least: int, most: int | None) -> str:
    """That there are wrong labels, and how many at least."""
    more = finding.rate > finding.common
    why = (
        "Labels of this site differ from what the models say more often than those of other sites, also where the "
        "models are sure, so that somewhat harder samples do not explain it. Unless its samples were exchanged or are "
        "useless, "
        if more
        else "Even where the models are sure, some labels differ from what they say, so "
    )
    bound = "" if most is None or most <= max(least, 1) else f", and up to about {most} are possible"
    return f"{why}at least about {max(least, 1)} of its labels are wrong{bound}."


def facts_of(
    data: Dataset | DataReference,
    *,
    method: str,
    judge: str,
    rounds: int,
    seed: int,
    sites: int,
    threshold: float,
    losses: dict[str, float],
) -> dict[str, Any]:
    """How the labels were judged; every site gets this."""
    return {
        "data": {"name": data.name, "kind": data.kind, "source": data.source},
        "method": method,
        "judge": judge,
        **({"judge_choice": {"chosen": min(losses, key=losses.__getitem__), "losses": losses}} if losses else {}),
        "rounds": rounds,
        "seed": seed,
        "sites": sites,
        "threshold": threshold,
        "p_wrong": P_WRONG,
        "assumptions": list(ASSUMPTIONS),
    }
