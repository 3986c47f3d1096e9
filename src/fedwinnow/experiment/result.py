"""The result of a run in Python: an object that reads the run folder, with the trained model in it."""

from __future__ import annotations

from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedwinnow.errors import UsageError, all_speak_python, unknown
from fedwinnow.experiment.gain_table import Gain, read_gain
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.trained.exporting.config_file import is_export
from fedwinnow.notebook import figure_of, html_table, percent
from fedwinnow.randomness import Floats
from fedwinnow.scene.scene import Scene

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from fedwinnow.experiment.trained.answering_module import AnsweringModule
    from fedwinnow.experiment.trained.scoring import Evaluated
    from fedwinnow.experiment.trained.trained_model import TrainedModel
    from fedwinnow.experiment.verdicts import Verdicts


@all_speak_python
class Result:
    """A finished (or broken) run; everything is read from its folder.

    `site` chooses a model where every site has its own. `model` and `method` are needed only where a program gave the
    run a module, a function or a method of its own, `encoder` where the files of its encoder lie elsewhere than then;
    `device` is where the model answers.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        site: str | None = None,
        device: str | None = None,
        model: Any = None,
        method: Any = None,
        encoder: Any = None,
    ) -> None:
        self.folder = Path(folder)
        self.site, self.device = site, device
        # An export in the format safetensors has a model, but no rounds and no summary.
        self._exported = is_export(self.folder)
        self._files = RunFolder(self.folder) if self._exported else RunFolder.existing(self.folder)
        self._given_model, self._given_method, self._given_encoder = model, method, encoder

    def __repr__(self) -> str:
        if self._exported:
            return f"Result({str(self.folder)!r}: an exported model)"
        last = self.summary.get("last10") or {}
        accuracy = last.get("accuracy")
        shown = "unknown" if accuracy is None else f"{100 * accuracy:.2f} %"
        return f"Result({str(self.folder)!r}: {self.how_it_ended}, last-10 accuracy {shown})"

    @property
    def how_it_ended(self) -> str:
        """The status in words, with the round in which a watcher ended the run early."""
        early = self.summary.get("stopped_early")
        if early is None:
            return str(self.summary.get("status"))
        why = f" ({early['why']})" if early["why"] else ""
        return f"stopped early after {self.summary['rounds']} of {early['of']} rounds{why}"

    def _repr_html_(self) -> str:
        """A small table for notebooks: the scores of the last round, of the last ten and of the best."""
        if self._exported:
            return f"<div>an exported model in {escape(str(self.folder))}</div>"
        summary = self.summary
        picks = [name for name in ("last", "last10", "best", "validation") if summary.get(name)]
        scores = ("accuracy", "balanced_accuracy", "macro_f1")
        rows = [[one.replace("_", " "), *(percent(summary[pick].get(one)) for pick in picks)] for one in scores]
        wrong = (summary.get("detection") or {}).get("samples")
        notes = [] if wrong is None else [f"wrong labels found: recall {percent(wrong['recall'])}"]
        heads = ("", *(pick.replace("last10", "last 10") for pick in picks))
        return html_table(heads, rows, f"{summary.get('method')}: {self.how_it_ended}", [*notes, str(self.folder)])

    @property
    def summary(self) -> dict[str, Any]:
        """summary.json."""
        return self._files.read_json("summary.json") or {}

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """One dictionary per round."""
        return self._files.rounds()

    @property
    def scene(self) -> Scene:
        """The scene it was played on."""
        return Scene.load(self.folder)

    @property
    def gain(self) -> Gain:
        """What the federation gives to each site, which `fedwinnow gain` has measured."""
        found = read_gain(self._files)
        if found is None:
            raise UsageError(f"{self.folder}: the gain was not measured yet. Do it with: fedwinnow gain {self.folder}")
        return found

    # --- the trained model -----------------------------------------------------------------------------------------

    @cached_property
    def trained(self) -> TrainedModel:
        """The trained model with everything that it needs; `predict` and `model` use it."""
        from fedwinnow.experiment.trained.load_trained import load_trained

        own = {"model": self._given_model, "method": self._given_method, "encoder": self._given_encoder}
        return load_trained(self.folder, site=self.site, device=self.device, **own)

    @property
    def model(self) -> AnsweringModule:
        """The trained model: a torch module in eval mode that gives one score (logit) per class.

        It takes what you have: a data frame or rows with the columns of the training, a list of texts, uint8 images
        (n, height, width, channels) or float images (n, channels, height, width) from 0 to 1, rows of numbers.
        """
        return self.trained.module

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes, in the order of the model's scores."""
        return self.trained.class_names

    def predict(self, x: Any) -> NDArray[np.str_]:
        """The likeliest class of each sample, by name; `x` may also be a path, as `fedwinnow predict --data` has it."""
        found: NDArray[np.str_] = np.array(self.class_names)[self.predict_proba(x).argmax(1)]
        return found

    def predict_proba(self, x: Any, calibrated: bool = False) -> Floats:
        """The probability of each class (column, as in `class_names`) for each sample.

        `calibrated` divides the scores by the temperature that an evaluation has stored (`keep_temperature`).
        """
        from fedwinnow.experiment.trained.predictions import asked_of
        from fedwinnow.experiment.trained.temperature import kept_temperature

        return asked_of(self.trained, x, kept_temperature(self.trained) if calibrated else 1.0)

    def evaluate(self, x: Any, y: Any = None, sites: Any = None, *, true: Any = None, seed: int = 0) -> Evaluated:
        """How good the model is on labelled samples, with the figures of `fedwinnow evaluate`.

        `x` is a path or spec of labelled data, or samples as `predict` takes them. Then `y` has one given label per
        sample (a class name, or a position in `class_names`), or `true` labels that are known to be right; `sites` has
        one site per sample. `seed` chooses the half of the samples on which the temperature is fitted.
        """
        from fedwinnow.experiment.trained.scoring import evaluate_data, evaluate_values

        if not isinstance(x, str | Path):
            return evaluate_values(self.trained, x, y, true, sites, seed)
        if not (y is None and true is None and sites is None):
            raise UsageError(f"labels or sites were given beside {x}, which has its own; give one or the other.")
        return evaluate_data(self.trained, x, seed)

    def export(self, out: str | Path, *, format: Literal["torch", "onnx", "safetensors"] = "torch") -> Path:
        """Write the trained model to the folder `out` in a format of other programs, with a model card."""
        from fedwinnow.experiment.trained.exporting.export_folder import export_model

        own = {"model": self._given_model, "encoder": self._given_encoder}
        return export_model(self.folder, Path(out), format, site=self.site, **own).file

    @property
    def verdicts(self) -> Verdicts:
        """What the method thinks of every training label: one row per sample of every site."""
        from fedwinnow.experiment.verdicts import verdicts_in

        return verdicts_in(self.folder, self.scene)

    # --- its curves ------------------------------------------------------------------------------------------------

    def curve(self, name: str = "accuracy") -> tuple[Floats, Floats]:
        """Round numbers and values of one column, of the rounds in which it was measured."""
        rows = [row for row in self.rounds if isinstance(row.get(name), int | float)]
        if not rows:
            known = {key for row in self.rounds for key, value in row.items() if isinstance(value, int | float)}
            raise unknown("curve", name, known)
        return np.array([row["round"] for row in rows], float), np.array([row[name] for row in rows], float)

    def plot(self, name: str = "curves", **options: Any) -> Figure:
        """A picture of this run as a figure of matplotlib; `fedwinnow figure` lists the names.

        `result.plot(column="macro_f1")` draws another column of `rounds`. Needs the extra `figures`.
        """
        made: Figure = figure_of(name, self.folder, **options)
        return made

    def frame(self) -> pandas.DataFrame:
        """The rounds as a pandas data frame."""
        try:
            import pandas
        except ImportError:
            raise UsageError("a data frame needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.rounds)
