"""`fedwinnow.audit(...)`: an audit in one line of Python, from arrays, a pandas frame, files or a run."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, cast, overload

import numpy as np
from numpy.typing import NDArray

from fedwinnow.auditing.audit import (
    AuditOutcome,
    AuditSettings,
    choices_of,
    is_audited,
    perform,
    settings_asked,
    settings_of_run,
)
from fedwinnow.auditing.audit_folder import read_audit
from fedwinnow.auditing.audit_settings import AuditAsked
from fedwinnow.auditing.update import update_audit
from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.data_frames import source_of
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.frame_cells import is_frame
from fedwinnow.data.from_program import splits_in, understood_data
from fedwinnow.data.table_reading import TextTable
from fedwinnow.errors import UsageError, all_speak_python
from fedwinnow.experiment.play import Execution, Watcher
from fedwinnow.experiment.prepare import scene_of
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.told_progress import progress_told
from fedwinnow.mathematics.torch_optimizers import understood_optimizer
from fedwinnow.notebook import html_table
from fedwinnow.options import Part
from fedwinnow.scene.scene import Scene
from fedwinnow.setting import keywords_of, setting, settings_in, taken

if TYPE_CHECKING:
    import pandas

Of = ParamSpec("Of")
OfFrame = ParamSpec("OfFrame")


class PandasFrame(Protocol):
    """What a pandas frame has and an array has not; to know it, pandas need not be installed."""

    @property
    def columns(self) -> Any: ...

    @property
    def index(self) -> Any: ...


@dataclass(frozen=True)
class AuditedSamples:
    """What is audited, where it is not named by `data`."""

    x: Any = setting(
        None, "The samples: an array, or a pandas frame whose label and site columns are named by `labels` and `sites`."
    )


@dataclass(frozen=True)
class FrameKeywords(AuditAsked):
    """The settings of an audit as a program gives them, without the samples."""

    labels: Any = setting(None, "The given labels: one per sample, or the name of a column of the frame.")
    _: KW_ONLY
    sites: Any = setting(None, "The site of each sample: one per sample, or the name of a column of the frame.")
    ids: Any = setting(None, "A name of each sample: one per sample, or the name of a column of the frame.")
    groups: Any = setting(
        None, "Which samples belong together (a patient): one value per sample, or the name of a column of the frame."
    )
    run: str | Path | None = setting(None, "The folder of a finished run whose model judges, instead of training.")
    progress: bool | None = setting(None, "Show a line of text with the progress; None: in notebooks only.")
    self_test: bool | None = setting(None, "Withdrawn, without effect: there is no self-test any more.")


@dataclass(frozen=True)
class AuditKeywords(FrameKeywords, AuditedSamples):
    """All that a program may give."""


class AuditFunction(Protocol[Of, OfFrame]):
    """A frame in gives a frame out; anything else gives an `AuditResult`."""

    @overload
    def __call__(self, x: PandasFrame, *values: OfFrame.args, **keywords: OfFrame.kwargs) -> pandas.DataFrame: ...

    @overload
    def __call__(self, *values: Of.args, **keywords: Of.kwargs) -> AuditResult: ...


@all_speak_python
class AuditResult:
    """What an audit found, a value per sample in the order in which the samples were given."""

    def __init__(self, outcome: AuditOutcome, samples: int, index: Any = None, folder: Path | None = None) -> None:
        self.folder = folder  # None where no folder was asked for
        self.facts = outcome.facts
        self.sites = outcome.counts()
        self._index = index
        names = np.array(outcome.sites[0].class_names, dtype=object)
        self.columns: dict[str, NDArray[Any]] = {
            "site": np.full(samples, "", dtype=object),
            "id": np.full(samples, "", dtype=object),
            "given": np.full(samples, "", dtype=object),
            "suggested": np.full(samples, "", dtype=object),
            "score": np.full(samples, np.nan),
            "p_wrong": np.full(samples, np.nan),
            "decision": np.full(samples, "", dtype=object),
        }
        for verdict in outcome.sites:
            values = (verdict.site, verdict.ids, names[verdict.given], names[verdict.suggested])
            for name, value in zip(
                self.columns, (*values, verdict.score, verdict.p_wrong, verdict.decision), strict=True
            ):
                self.columns[name][verdict.rows] = value

    def __repr__(self) -> str:
        return (
            f"AuditResult({len(self.p_wrong)} labels at {len(self.sites)} sites, {int(self.flagged.sum())} to review)"
        )

    @property
    def p_wrong(self) -> NDArray[np.float64]:
        """How likely each label is wrong, at least; NaN where that cannot be told, or with too few samples to judge."""
        return self.columns["p_wrong"]

    @property
    def score(self) -> NDArray[np.float64]:
        """What puts the labels in order: the log-odds that the models give against each."""
        return self.columns["score"]

    @property
    def suggested(self) -> NDArray[Any]:
        """What the models would have said where a label is called or cannot be told, else the given label; by name."""
        return self.columns["suggested"]

    @property
    def flagged(self) -> NDArray[np.bool_]:
        """Which labels a person should look at."""
        return np.asarray(self.columns["decision"] == "review")

    def update(self, **options: Any) -> dict[str, Any]:
        """Take what people said of labels drawn by lot (`fedwinnow review --anchor 30`) into p_wrong and the decisions.

        Returns the figures; the options are those of `fedwinnow.update_audit`.
        """
        if self.folder is None:
            raise UsageError("there is no audit folder, so nobody can have looked; give out= to fedwinnow.audit.")
        updated = update_audit(self.folder, **options)
        self.sites = updated.sites
        self.read_decisions()
        return updated.looks

    def read_decisions(self) -> None:
        """Take p_wrong, suggestions and decisions from the folder, where they may be newer."""
        assert self.folder is not None
        names = zip(self.columns["site"], map(str, self.columns["id"]), strict=True)
        places = {pair: place for place, pair in enumerate(names)}
        for line in self.sites:
            for row in read_audit(self.folder / line["folder"]):
                place = places[row["site"], row["id"]]
                self.columns["p_wrong"][place] = float(row["p_wrong"] or "nan")
                for name in ("suggested", "decision"):
                    self.columns[name][place] = row[name]

    def _repr_html_(self) -> str:
        """A small table for notebooks: each site, and the labels to look at first."""
        names = {"site": "site", "samples": "samples", "to_review": "to review", "said": "said"}
        rows = [["–" if line.get(key) is None else line[key] for key in names] for line in self.sites]
        sites = html_table(
            tuple(names.values()), rows, f"{len(self.p_wrong)} labels, {int(self.flagged.sum())} to review"
        )
        first = [place for place in np.argsort(-self.score, kind="stable") if self.flagged[place]][:10]
        shown = ("site", "id", "given", "suggested")
        called = [[*(self.columns[name][place] for name in shown), f"{self.p_wrong[place]:.2f}"] for place in first]
        return sites + (html_table((*shown, "p_wrong"), called, "First to look at") if called else "")

    def frame(self) -> pandas.DataFrame:
        """The same as a pandas frame, with the index of the frame that was given."""
        try:
            import pandas
        except ImportError:
            raise UsageError("a data frame needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.columns, index=self._index)


TRAINING = tuple(settings_in(Experiment))
PER_SAMPLE = ("labels", "sites", "ids", "groups")
GROUPS = {
    "What is audited, and how:": tuple(
        name for name in inspect.signature(AuditKeywords).parameters if name not in TRAINING
    ),
    "How the judging models are trained:": TRAINING,
}


def frame_in_frame_out(
    declared: Callable[Of, Any], of_frame: Callable[OfFrame, Any]
) -> Callable[[Callable[Of, AuditResult | pandas.DataFrame]], AuditFunction[Of, OfFrame]]:
    """Tell type checkers what the function gives back for what."""
    return lambda function: cast("AuditFunction[Of, OfFrame]", function)


@frame_in_frame_out(AuditKeywords, FrameKeywords)
@keywords_of(AuditKeywords, GROUPS)
def audit(asked: AuditKeywords, given: Mapping[str, Any]) -> AuditResult | pandas.DataFrame:
    """Find labels worth a look: of `x` and `labels` with `sites`, of files named by `data`, of a `scene` or of a `run`.

    `x` may be an array, or a pandas frame whose label and site columns are named by `labels` and `sites`; a frame in
    gives a frame out. It may also be all that `fedwinnow.run` takes as data: a pair (x, y), a data set of torch or of
    Hugging Face. Without `out` nothing is left on disk; with it an interrupted audit goes on, unless `redo` starts it
    anew, and a finished one is given back with the decisions that people have written since. `self_test` is withdrawn.
    """
    with progress_told(asked.progress) as told:
        return audited(asked, given, told)


def audited(
    asked: AuditKeywords, given: Mapping[str, Any], watchers: tuple[Watcher, ...]
) -> AuditResult | pandas.DataFrame:
    """What `audit` gives back; the watchers are told of the training."""
    choices = choices_of(asked.threshold, asked.expected_false_alarms, asked.self_test, asked.budget)
    execution = taken(Execution, asked)
    if asked.run is not None:
        trained = ("x", "site", "group", *PER_SAMPLE, *TRAINING)
        if beside := [name for name in trained if given.get(name) is not None]:
            raise UsageError(f"{beside[0]}= was given with run=, whose model is trained already; leave it out.")
        return carried_out(settings_of_run(Path(asked.run), asked.judge, choices), asked.out, execution, watchers)
    if asked.sites is not None and asked.clients is not None:
        raise UsageError("sites= and clients= exclude each other: you say who holds what, or chance does.")
    if asked.x is not None and asked.data is not None:
        raise UsageError("samples were given twice, as the first argument and as data=; leave one of them out.")
    named = isinstance(asked.data, str | Path | dict | Part | None)  # not a pair (training, test)
    data, x, about = asked.data, asked.x if named else asked.data, None
    who, together = one_of(asked, "sites", "site"), one_of(asked, "groups", "group")
    if is_frame(x) and splits_in(x) is None:
        data, *about = from_frame(x, asked.labels, who, asked.ids, together)
    elif x is not None and (asked.labels is not None or not has_labels(x)):
        data = from_arrays(x, asked.labels, sites=who, ids=asked.ids, groups=together)
    elif x is not None:
        refuse_values(asked, ("ids",), "beside data that has its labels with it; leave it out.")
        data = understood_data(x, label=asked.labels, site=who, group=together)
    else:
        where = "beside a scene" if asked.scene is not None else f"beside data={data}"
        refuse_values(asked, PER_SAMPLE, f"{where}, which has its own; leave it out.")
    if data is None and asked.scene is None:
        raise UsageError("nothing to audit was given; allowed: x and labels, data=, scene=, or run=.")
    if asked.scene is not None and not isinstance(asked.scene, str | Path | Scene):
        kind = type(asked.scene).__name__
        raise UsageError(f"scene= was given an object of the type {kind}; allowed: a Scene, or a saved one's folder.")
    asked = replace(asked, optimizer=understood_optimizer(asked.optimizer))
    made = settings_asked(asked, data, choices)
    found = carried_out(made, asked.out, execution, watchers, *(about or ()))
    return found.frame() if about else found


def carried_out(
    made: AuditSettings,
    out: str | Path | None,
    execution: Execution,
    watchers: tuple[Watcher, ...] = (),
    table: TextTable | None = None,
    columns: tuple[str, ...] = (),
    index: Any = None,
) -> AuditResult:
    """The audit in its folder, or in one that is gone afterwards."""
    if out is not None:
        done = is_audited(Path(out))
        outcome = perform(made, Path(out), replace(execution, again=True), watchers, table, columns)
        found = AuditResult(outcome, sample_count(made, outcome), index, Path(out))
        if done:
            found.read_decisions()
        return found
    with tempfile.TemporaryDirectory() as folder:
        outcome = perform(made, Path(folder), execution, watchers, table, columns)
    return AuditResult(outcome, sample_count(made, outcome), index)


def sample_count(made: AuditSettings, outcome: AuditOutcome) -> int:
    """How many samples the data has, also those that no site holds."""
    data = made.experiment.data
    if made.experiment.scene is not None:
        return scene_of(made.experiment.scene).data.samples
    if isinstance(data, Dataset):
        return len(data.train)
    return 1 + max(int(verdict.rows.max()) for verdict in outcome.sites)


def has_labels(x: Any) -> bool:
    """Whether a program gave samples and labels in one: a tuple, or a data set of torch or of Hugging Face."""
    return isinstance(x, tuple) or not (isinstance(x, list) or hasattr(x, "__array__") or hasattr(x, "detach"))


def refuse_values(asked: AuditKeywords, names: tuple[str, ...], why: str) -> None:
    """Refuse values per sample that would not be used."""
    for name in names:
        if getattr(asked, name) is not None:
            raise UsageError(f"{name}= was given {why}")


def one_of(asked: AuditKeywords, name: str, other: str) -> Any:
    """What was given by one of two names."""
    value, beside = getattr(asked, name), getattr(asked, other)
    if value is not None and beside is not None:
        raise UsageError(f"{name}= and {other}= say the same; give one of them.")
    return value if beside is None else beside


def from_frame(
    frame: Any, labels: Any, sites: Any, ids: Any, groups: Any
) -> tuple[Dataset, TextTable, tuple[str, ...], Any]:
    """A data set from a frame, with the cells to show people, the names of the features, and the index."""
    if labels is None:
        raise UsageError("labels= is missing; allowed: the name of a column of the frame, or one label per row.")
    source = source_of(frame, label=labels, site=sites, id=ids, group=groups, classes="any")
    table, data = source.read(source.path), source.load()
    if ids is None:  # as those of arrays
        data = replace(data, train=replace(data.train, ids=np.arange(len(data.train))))
    return data, table, tuple(source.feature_names(table)), getattr(frame, "index", None)
