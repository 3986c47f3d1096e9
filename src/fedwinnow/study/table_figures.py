"""The figures that a table can show: short names, units, and which direction is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedwinnow.errors import UsageError, guess
from fedwinnow.metrics.task import Figure

Score = Literal["accuracy", "balanced_accuracy", "macro_f1"]
PICKS = {
    "last10": "mean of the last ten measured rounds",
    "last": "the last round",
    "best": "the best round as chosen by the test part itself, so too good",
    "validation": "the round that does best on the noisy hold-out",
}
SHORT = {
    "auroc": "detection.samples.auroc",
    "precision": "detection.samples.precision",
    "recall": "detection.samples.recall",
    "f1": "detection.samples.f1",
    "pearson": "detection.rates.pearson",
    "quality_mse": "detection.quality.mse",
    "relabelled": "detection.relabelled.accuracy_after",
    "memorised": "memorisation.memorised",
    "top5": "test.top5",
    "seconds": "cost.seconds",
    "bytes_up": "cost.bytes_up",
    "forward_samples": "cost.forward_samples",
    "backward_samples": "cost.backward_samples",
}
MEANING = {
    "auroc": "AUROC of the scores that tell wrong labels from right ones",
    "pearson": "correlation of estimated and realised noise rates of the clients",
    "quality_mse": "mean squared error of the estimated data quality of the clients",
    "memorised": "share of the wrong labels that the final model predicts",
    "relabelled": "share of right labels if every suggestion were taken",
}
PLAIN = {"auroc", "average_precision", "pearson", "mse", "mae"}  # shown with three decimals, not in per cent
TITLES = {
    "last10": "last 10 rounds",
    "last": "last round",
    "best": "best round",
    "validation": "round by validation",
    "auroc": "AUROC",
    "f1": "F1",
    "pearson": "Pearson's r",
    "quality_mse": "quality, MSE",
    "relabelled": "right after relabelling",
    "top5": "top 5",
    "bytes_up": "bytes sent",
    "forward_samples": "samples forward",
    "backward_samples": "samples backward",
}
LOWER_IS_BETTER = {"mse", "mae", "memorised", "spoiled", "loss"}


@dataclass(frozen=True)
class Shown:
    """One figure of a table."""

    name: str  # as it was asked for
    path: str  # its place in summary.json

    @property
    def last(self) -> str:
        """The last part of the dotted name."""
        return self.path.rpartition(".")[2]

    @property
    def title(self) -> str:
        """The name in print."""
        return TITLES.get(self.name, self.name.replace("_", " "))

    @property
    def is_cost(self) -> bool:
        """Whether it is a count or a time, not a share."""
        return self.path.startswith("cost.")

    @property
    def scale(self) -> float:
        """100 for shares, which are shown in per cent; otherwise 1."""
        return 1.0 if self.is_cost or self.last in PLAIN else 100.0

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher value is better."""
        return not (self.is_cost or self.last in LOWER_IS_BETTER)

    def text(self, value: Figure) -> str:
        """A value as the table prints it; a dash for None."""
        if value is None:
            return "–"
        if self.is_cost:
            return f"{value:.4g}"
        return f"{value:.3f}" if self.last in PLAIN else f"{100 * value:.2f}"

    @property
    def meaning(self) -> str:
        """A few words for the caption."""
        if self.name in PICKS:
            return f"{self.title[0].upper()}{self.title[1:]}: {PICKS[self.name]}"
        words = MEANING.get(self.name)
        return f"{self.title[0].upper()}{self.title[1:]}: {words}" if words else ""


def shown_figures(names: str, score: Score) -> tuple[Shown, ...]:
    """The figures that `last10,best,auroc` asks for; a dotted name is a place in summary.json."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    known = [*PICKS, *SHORT]
    allowed = f"{', '.join(known)}, or a dotted name of summary.json such as detection.clients.recall"
    if not wanted:
        raise UsageError(f"--show is empty; allowed: {allowed}.")
    found = []
    for name in wanted:
        if name in PICKS:
            found.append(Shown(name, f"{name}.{score}"))
        elif name in SHORT or "." in name:
            found.append(Shown(name, SHORT.get(name, name)))
        else:
            raise UsageError(f"unknown figure for --show '{name}'.{guess(name, known)} Allowed: {allowed}.")
    return tuple(dict.fromkeys(found))
