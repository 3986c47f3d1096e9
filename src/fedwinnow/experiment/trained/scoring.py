"""How good a trained model is on labelled samples: scores, mix-ups, every class, every site, and its probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.arrays import labels_of, sites_of
from fedwinnow.data.dataset import Labels
from fedwinnow.data.labels import name_some, number_of
from fedwinnow.data.load import load_new
from fedwinnow.data.new_samples import NewSamples
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.trained.evaluation_report import SITE_LEAST, default_place, write_evaluation
from fedwinnow.experiment.trained.own_test_part import is_training_data, own_test_part
from fedwinnow.experiment.trained.predictions import Predictions, finite, logits_for
from fedwinnow.experiment.trained.temperature import (
    LEAST_SAMPLES,
    KeptTemperature,
    LabelKind,
    fingerprint,
    fit_temperature,
    halves,
    keep_temperature,
)
from fedwinnow.experiment.trained.trained_model import TrainedModel
from fedwinnow.metrics.detection import auroc
from fedwinnow.metrics.reliability import calibration_error, calibration_error_by_chance, reliability, wilson
from fedwinnow.metrics.task import Figure, among_best, count, mean_loss, mean_of, share, softmax, task_scores
from fedwinnow.randomness import Floats

PLACES = 5  # of the score that asks whether the label is among the best so many classes


# Which samples of the data are scored: all; of the data that the run was trained on, the part that it has held back; or
# all of that data, where nothing was held back.
Part = Literal["all", "test part of the run", "training data"]
ALL: Part = "all"


@dataclass(frozen=True, eq=False)
class Labelled:
    """Samples with the labels that a model is scored on, and the model's scores (logits) for them."""

    name: str
    source: str  # how the user named the data; empty for what a program handed over
    ids: NDArray[Any]
    logits: Floats
    labels: Labels
    labels_are: LabelKind
    sites: NDArray[np.str_] | None
    part: Part = ALL


@dataclass(frozen=True, eq=False)
class Evaluated:
    """How good a model is on labelled data; `scores` has every figure, as in scores.json."""

    model: TrainedModel
    data: Labelled
    seed: int = 0  # of the halves of the data on which the temperature is fitted and scored

    @property
    def accuracy(self) -> float:
        """The share of samples whose likeliest class is the label."""
        found: float = self.scores["accuracy"]
        return found

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the accuracy (Wilson)."""
        low, high = self.scores["accuracy_interval"]
        return low, high

    @property
    def confusion(self) -> NDArray[np.int64]:
        """Samples by label (row) and predicted class (column)."""
        return np.array(self.scores["confusion"], np.int64)

    @property
    def by_class(self) -> list[dict[str, Any]]:
        """Samples, predictions, precision, recall and F1 of every class."""
        found: list[dict[str, Any]] = self.scores["by_class"]
        return found

    @property
    def by_site(self) -> list[dict[str, Any]]:
        """Samples and accuracy with its interval of every site; empty where the data names no sites."""
        found: list[dict[str, Any]] = self.scores["by_site"]
        return found

    @property
    def temperature(self) -> float | None:
        """The temperature that was fitted on half of the samples; None where there is none."""
        found: float | None = self.scores["temperature"]["value"]
        return found

    @cached_property
    def predictions(self) -> Predictions:
        """The probabilities, as the model gives them."""
        return Predictions(self.data.ids, self.model.class_names, softmax(self.data.logits))

    @cached_property
    def scores(self) -> dict[str, Any]:
        """Every figure."""
        data, names = self.data, self.model.class_names
        predicted = data.logits.argmax(1)
        top = among_best(data.logits, data.labels, PLACES) if len(names) > PLACES else None
        task = task_scores(predicted, data.labels, len(names), top)
        counts = np.bincount(data.labels, minlength=len(names))
        right = predicted == data.labels
        return {
            "run": str(self.model.folder),
            "site": self.model.site,
            "model": fingerprint(self.model),
            "data": data.name,
            "source": data.source,
            "samples": len(data.labels),
            "labels": data.labels_are,
            "part": data.part,
            "class_names": list(names),
            "absent_classes": [name for name, size in zip(names, counts, strict=True) if not size],
            "accuracy": task["accuracy"],
            "accuracy_interval": wilson(count(right), len(right)),
            "commonest_class": {"class": names[int(counts.argmax())], "share": share(int(counts.max()), len(right))},
            "balanced_accuracy": task["balanced_accuracy"],
            "macro_f1": task["macro_f1"],
            "top5": task["top5"],
            "auroc": one_against_rest(data.logits, data.labels),
            **probability_scores(data.logits, data.labels),
            "by_class": class_rows(names, np.array(task["confusion"])),
            "by_site": site_rows(data.sites, right),
            "worst_site": worst_site(site_rows(data.sites, right), float(task["accuracy"])),
            "confusion": task["confusion"],
            "temperature": temperature_scores(data.logits, data.labels, self.seed),
        }

    def write(self, folder: str | Path | None = None) -> Path:
        """Write scores.json, confusion.csv, by_site.csv, predictions.csv and report.html to a folder.

        None is the folder evaluation/<name of the data> in the run folder.
        """
        place = default_place(self.model.folder, self.data.name, self.model.site) if folder is None else Path(folder)
        added = {"label": np.array(self.model.class_names)[self.data.labels].tolist()}
        if self.data.sites is not None:
            added["site"] = self.data.sites.tolist()
        return write_evaluation(place, self.scores, self.predictions, added)

    def keep_temperature(self) -> Path:
        """Store the fitted temperature in the run folder, for `fedwinnow predict --calibrated`."""
        facts = self.scores["temperature"]
        if facts["value"] is None:
            raise UsageError(f"there is no temperature to keep: {facts['reason']}.")
        kept = KeptTemperature(
            facts["value"], self.data.name, facts["fitted_on"], self.data.labels_are, self.model.site
        )
        return keep_temperature(self.model, kept)


# --- the samples ---------------------------------------------------------------------------------------------------


def evaluate_data(model: TrainedModel, spec: str | Path, seed: int = 0) -> Evaluated:
    """The model on labelled data that a spec or a path names; of the run's own data, on its test part."""
    run = RunFolder(model.folder)
    samples, part = None, ALL
    if is_training_data(run, spec):
        samples = own_test_part(run)
        part = "training data" if samples is None else "test part of the run"
    return Evaluated(model, labelled(model, samples or load_new(spec, model.form), str(spec), part), seed)


def labelled(model: TrainedModel, samples: NewSamples, source: str, part: Part) -> Labelled:
    """Samples with their labels: the true ones where they are known, otherwise the given ones."""
    chosen = samples.labels if samples.true is None else samples.true
    if chosen is None:
        raise DataError(
            f"{samples.name} has no labels, and an evaluation needs one per sample: a table has them in a column "
            f"(csv:path=FILE,label=COLUMN), a folder has one folder per class (named "
            f"{name_some(model.class_names, 5)}), an .npz file has the array y."
        )
    return Labelled(
        name=samples.name,
        source=source,
        ids=samples.ids,
        logits=finite(model, model.logits(samples.features).double().numpy()),
        labels=chosen,
        labels_are="given" if samples.true is None else "true",
        sites=samples.sites,
        part=part,
    )


def evaluate_values(
    model: TrainedModel, x: Any, y: Any = None, true: Any = None, sites: Any = None, seed: int = 0
) -> Evaluated:
    """The model on samples and labels that a program has."""
    what, chosen = ("y", y) if true is None else ("true", true)
    if chosen is None:
        raise UsageError("no labels were given; needed: y, one class name or number per sample (or true=...).")
    logits, names = logits_for(model, x), model.class_names
    # A whole number is a position among class names that are words, and else a name itself.
    indexed = not all(number_of(name) is not None for name in names)
    made = Labelled(
        name="x",
        source="",
        ids=np.arange(len(logits)),
        logits=logits,
        labels=labels_of("x", what, plain(chosen), names, len(logits), indexed),
        labels_are="given" if true is None else "true",
        sites=None if sites is None else sites_of("x", plain(sites), len(logits)),
    )
    return Evaluated(model, made, seed)


def plain(values: Any) -> Any:
    """Texts that pandas has as Python objects, as NumPy has texts; anything else as it is."""
    array = values.to_numpy() if hasattr(values, "to_numpy") else values
    if isinstance(array, np.ndarray) and array.dtype.kind == "O" and all(isinstance(one, str) for one in array.flat):
        return np.array(array.tolist(), dtype=np.str_)
    return array


# --- figures -------------------------------------------------------------------------------------------------------


def one_against_rest(logits: Floats, labels: Labels) -> Figure:
    """The mean AUROC of telling each class from all others, over the classes that the labels have."""
    chances = softmax(logits)
    return mean_of(auroc(chances[:, one], labels == one) for one in np.unique(labels).tolist())


def probability_scores(logits: Floats, labels: Labels, least: int = LEAST_SAMPLES) -> dict[str, Any]:
    """What the probabilities are worth; with fewer samples than the least there is no calibration error."""
    chances = softmax(logits)
    sure, right = chances.max(1), chances.argmax(1) == labels
    enough = len(labels) >= least
    return {
        "log_loss": mean_loss(logits, labels),
        "calibration_error": calibration_error(sure, right) if enough else None,
        "calibration_error_by_chance": calibration_error_by_chance(sure) if enough else None,
        "mean_confidence": float(sure.mean()),
        "reliability": [asdict(one) for one in reliability(sure, right)] if enough else [],
    }


def temperature_scores(logits: Floats, labels: Labels, seed: int) -> dict[str, Any]:
    """A temperature fitted on one half of the samples, and the other half's figures before and after."""
    nothing = {"value": None, "helps": False, "fitted_on": 0, "scored_on": 0, "before": None, "after": None}
    if len(labels) < LEAST_SAMPLES:
        return {
            **nothing,
            "reason": f"calibration needs {LEAST_SAMPLES} labelled samples, and there are {len(labels)}",
        }
    fitted, scored = halves(labels, logits.shape[1], seed)
    value, reason = fit_temperature(logits[fitted], labels[fitted])
    if value is None:
        return {**nothing, "reason": reason}
    before = probability_scores(logits[scored], labels[scored], least=0)
    after = probability_scores(logits[scored] / value, labels[scored], least=0)
    return {
        "value": value,
        "reason": "",
        "helps": after["log_loss"] < before["log_loss"],
        "fitted_on": len(fitted),
        "scored_on": len(scored),
        "before": before,
        "after": after,
    }


def class_rows(names: Sequence[str], confusion: NDArray[np.int64]) -> list[dict[str, Any]]:
    """One row per class."""
    hits, present, called = confusion.diagonal().tolist(), confusion.sum(1).tolist(), confusion.sum(0).tolist()
    return [
        {
            "class": name,
            "samples": there,
            "predicted": said,
            "precision": share(hit, said),
            "recall": share(hit, there),
            "f1": share(2 * hit, said + there) if there else None,
        }
        for name, hit, there, said in zip(names, hits, present, called, strict=True)
    ]


def site_rows(sites: NDArray[np.str_] | None, right: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """One row per site, by name; a small site has its number of samples only."""
    if sites is None:
        return []
    names, place = np.unique(sites, return_inverse=True)
    sizes = np.bincount(place, minlength=len(names)).tolist()
    hits = np.bincount(place, weights=right, minlength=len(names)).astype(int).tolist()
    rows = []
    for name, size, hit in zip(names.tolist(), sizes, hits, strict=True):
        enough = size >= SITE_LEAST
        low, high = (wilson(hit, size) if enough else None) or (None, None)
        accuracy = share(hit, size) if enough else None
        rows.append({"site": name, "samples": size, "accuracy": accuracy, "low": low, "high": high})
    return rows


def worst_site(rows: list[dict[str, Any]], overall: float) -> dict[str, Any] | None:
    """The site with the lowest accuracy, where at least two have one."""
    known = [row for row in rows if row["accuracy"] is not None]
    if len(known) < 2:
        return None
    worst = min(known, key=lambda row: row["accuracy"])
    return {**worst, "below_overall": worst["high"] < overall}
