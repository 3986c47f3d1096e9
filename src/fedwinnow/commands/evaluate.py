"""`fedwinnow evaluate`: how good the model of a run is on labelled samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwinnow.all_settings import PlaceSettings
from fedwinnow.commands.common import Flags, escaped
from fedwinnow.commands.predict import Predict, RunPlace
from fedwinnow.errors import UsageError
from fedwinnow.setting import same, setting

if TYPE_CHECKING:
    from rich.console import Console

SITES_SHOWN = 12


@dataclass(frozen=True)
class Evaluate(Flags):
    """Score the model of a finished run on labelled samples: accuracy, mix-ups, classes, sites, probabilities.

    The labels are the true ones where the data has them, otherwise those that were given.
    """

    folder: RunPlace = setting(None, "The folder of a finished run, for example runs/winnow-digits-0.")
    data: str | None = setting(
        None,
        "The labelled samples: a table (its label column is that of the training, or label=COLUMN), a folder of images "
        "with one folder per class, an .npz file with x and y, or a source with options.",
    )
    out: Path | None = setting(None, "The folder to write; none: RUN/evaluation/<name of the data>.")
    keep_temperature: bool = setting(
        False, "Store the fitted temperature in the run folder, for `fedwinnow predict --calibrated`."
    )
    seed: int = setting(0, "Chooses the half of the samples on which the temperature is fitted.", at_least=0)
    site: str | None = setting(None, "Whose model, where every site has its own.")
    encoder: str | None = same(Predict, "encoder")
    device: str | None = same(PlaceSettings, "device")

    def run(self) -> int:
        """Evaluate and write."""
        if self.folder is None:
            raise UsageError("no run was given; needed: the folder of a finished run, such as runs/fedavg-digits-0.")
        if self.data is None:
            raise UsageError("no samples were given; needed: --data, for example --data labelled.csv.")
        from fedwinnow.experiment.trained.evaluation_report import check_place
        from fedwinnow.experiment.trained.scoring import evaluate_data
        from fedwinnow.experiment.trained.trained_model import load_model
        from fedwinnow.setting import check_settings

        check_settings(self)
        if self.out is not None:
            check_place(self.out, self.data)
        model = load_model(self.folder, site=self.site, device=self.device, encoder=self.encoder)
        found = evaluate_data(model, self.data, self.seed)
        folder = found.write(self.out)
        kept = found.keep_temperature() if self.keep_temperature else None
        self.emit({"folder": str(folder), "kept": None if kept is None else str(kept), **found.scores})
        console = self.console()
        show(found.scores, console)
        if kept is not None:
            console.print(f"temperature kept in {kept}; use it with fedwinnow predict --calibrated", markup=False)
        console.print(f"the page: {folder / 'report.html'}", markup=False)
        return 0


def show(scores: dict[str, Any], console: Console) -> None:
    """The main numbers in the terminal."""
    from fedwinnow.experiment.report.templates import number, percent
    from fedwinnow.terminal import Grid

    given = scores["labels"] == "given"
    low, high = scores["accuracy_interval"]
    commonest, temperature = scores["commonest_class"], scores["temperature"]
    present = len(scores["class_names"]) - len(scores["absent_classes"])
    rows = [
        ("samples", str(scores["samples"]), f"{scores['labels']} labels"),
        ("accuracy", percent(scores["accuracy"]), f"95 % interval {percent(low)} to {percent(high)}"),
        ("balanced accuracy", percent(scores["balanced_accuracy"]), f"over the {present} classes in the data"),
        ("commonest class", percent(commonest["share"]), f"always '{escaped(commonest['class'][:40])}' would get this"),
        ("macro F1", percent(scores["macro_f1"]), ""),
        *([("top 5", percent(scores["top5"]), "")] if scores["top5"] is not None else []),
        ("AUROC", number(scores["auroc"]), "one class against the rest"),
        ("log loss", number(scores["log_loss"]), ""),
        ("calibration error", percent(scores["calibration_error"]), by_chance(scores)),
        ("temperature", number(temperature["value"]), told(temperature)),
    ]
    Grid("tnt", (), rows).show(console)
    if scores["by_site"]:
        console.print()
        shown = sorted(scores["by_site"], key=lambda row: (row["accuracy"] is None, row["accuracy"]))[:SITES_SHOWN]
        Grid("tnnt", ("site, worst first", "samples", "accuracy", "95 % interval"), [cells(row) for row in shown]).show(
            console
        )
        if len(scores["by_site"]) > SITES_SHOWN:
            console.print(f"... and {len(scores['by_site']) - SITES_SHOWN} more sites in by_site.csv")
    console.print()
    if given:
        console.print(
            "The labels are as given and may be partly wrong: the numbers say how often the model agrees with them, "
            "not how often it is right."
        )


def by_chance(scores: dict[str, Any]) -> str:
    """What the calibration error of a perfect model would be."""
    from fedwinnow.experiment.report.templates import percent

    if scores["calibration_error"] is None:
        return "too few samples"
    return f"a perfectly calibrated model: about {percent(scores['calibration_error_by_chance'])}"


def told(temperature: dict[str, Any]) -> str:
    """What the temperature does to the calibration error, or why there is none."""
    from fedwinnow.experiment.report.templates import percent

    if temperature["value"] is None:
        return f"not fitted: {temperature['reason']}"
    before, after = (percent(temperature[kind]["calibration_error"]) for kind in ("before", "after"))
    fitted, scored = temperature["fitted_on"], temperature["scored_on"]
    helps = "" if temperature["helps"] else "; it does not help: the log loss is no lower"
    change = f"the calibration error goes from {before} to {after}{helps}"
    return f"fitted on {fitted} samples; on the {scored} others {change}"


def cells(row: dict[str, Any]) -> tuple[str, str, str, str]:
    """One site."""
    from fedwinnow.experiment.report.templates import percent

    if row["accuracy"] is None:
        return escaped(row["site"]), str(row["samples"]), "", "too few for a percentage"
    interval = f"{percent(row['low'])} to {percent(row['high'])}"
    return escaped(row["site"]), str(row["samples"]), percent(row["accuracy"]), interval
