"""The model of a finished run, loaded from its folder alone: the training data need not be there."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedwinnow import catalogue
from fedwinnow.data.dataset import Features, InputStep
from fedwinnow.data.input_form import FILE, InputForm
from fedwinnow.device import choose_device
from fedwinnow.encoders.make_encoder import DataEncoder
from fedwinnow.errors import DataError, FedwinnowWarning, StaleError, UsageError, unknown
from fedwinnow.experiment.encoding import Encoding, saved_encoding
from fedwinnow.experiment.identity import changes, code_in, stored_identity
from fedwinnow.experiment.prepare import setup_of
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.trained.answering_module import AnsweringModule, encoding_front
from fedwinnow.federation.client import pieces, score, scoring_batch
from fedwinnow.federation.host import OWN, Setup, frozen_in, new_model
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import Method, find_method
from fedwinnow.federation.rounds import answering_models
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.payload import FlatModel, Payload
from fedwinnow.models.make_model import in_turn, is_own
from fedwinnow.models.model import Shape
from fedwinnow.options import parse_spec
from fedwinnow.randomness import Floats
from fedwinnow.scene.scene import TABLE, Scene, read_clients


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """The model (or the models whose answers are joined) that a run has trained, for one site or for all."""

    folder: Path
    form: InputForm
    method: Method
    models: tuple[FlatModel, ...]
    site: str | None  # whose model it is; None: of all sites
    by_batch: bool = False  # whether an answer depends on the samples beside it (batch_norm=batch_statistics)
    spec: Any = None  # what the models were built from
    encoding: Encoding | None = None  # the frozen encoder that the samples go through first

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.form.class_names

    def logits(self, features: Features) -> Tensor:
        """One score per class for each sample, computed as the run measures its test part."""
        torch.set_num_threads(1)  # another number of threads would change the last bits
        answers = [self.answers(model, features) for model in self.models]
        return self.method.joined(answers)

    def answers(self, model: FlatModel, features: Features) -> Tensor:
        """The logits of one model."""
        step = InputStep(self.form.kind, self.form.mean, self.form.std, model.device)
        if self.encoding is not None:
            features, step = self.encoding.rows(features), InputStep("rows", (), (), model.device)
        batches = pieces(torch.arange(len(features)), scoring_batch(model))
        stored = (torch.from_numpy(array) for array in features.stream(rows.numpy() for rows in batches))
        return score(model, stored, step, self.form.classes).cpu()

    def probabilities(self, features: Features, temperature: float = 1.0) -> Floats:
        """The probability of each class for each sample; the scores are divided by the temperature first."""
        found: Floats = (self.logits(features).double() / temperature).softmax(1).numpy()
        return found

    @property
    def has_whole_module(self) -> bool:
        """Whether one torch module can do everything, the encoder's part too."""
        return self.encoding is None or self.encoding.data_encoder.opened.network is not None

    def on_rows(self) -> TrainedModel:
        """The same model without its encoder: its samples are the encoder's rows, before they are scaled."""
        assert self.encoding is not None
        shape = self.encoding.data_encoder.head_shape
        form = InputForm(kind="rows", sample_shape=shape.sample_shape, class_names=self.form.class_names)
        rows = DataEncoder.for_kind("rows", "rows", shape, (), ())
        encoding = dataclasses.replace(self.encoding, data_encoder=rows)
        return dataclasses.replace(self, form=form, encoding=encoding)

    @cached_property
    def module(self) -> AnsweringModule:
        """The same as one torch module that takes what a user has."""
        modules: list[nn.Module] = [model.module for model in self.models]
        if self.encoding is None:
            return AnsweringModule(self.form, modules, self.method)
        if not self.has_whole_module:
            raise UsageError(
                f"{self.folder}: this run has the encoder {self.encoding.data_encoder.encoder}, which cannot be part "
                f"of one torch module; allowed: fedwinnow predict, or predict in Python, with samples as they are "
                f"stored (images of bytes); or fedwinnow export, which writes the head alone."
            )
        front = encoding_front(self.form, self.encoding.data_encoder.opened.network, self.encoding.scaling)
        return AnsweringModule(self.form, modules, self.method, front.to(self.models[0].device))


def load_model(
    folder: Path,
    *,
    site: str | None = None,
    device: str | None = None,
    model: Any = None,
    method: Any = None,
    encoder: Any = None,
) -> TrainedModel:
    """The trained model in a run folder.

    `site` chooses one where every site has its own. `model` is the module or function that a program gave to the run,
    `method` a method that was defined there; a run folder has only their names. `encoder` names the files of the run's
    encoder where they lie elsewhere.
    """
    run = RunFolder.existing(folder)
    refuse_unfinished(run)
    experiment = experiment_of_run(run, model)
    method = method_of_run(run, experiment) if method is None else find_method(method)
    refuse_changed_code(run, experiment, method)
    form = form_of_run(run)
    setup = setup_of(experiment, str(choose_device(device)))
    shape = Shape(form.kind, form.sample_shape, form.classes, form.vocabulary)
    encoding = saved_encoding(folder, shape, form.mean, form.std, encoder)
    shape = shape if encoding is None else encoding.data_encoder.head_shape
    warn_of_batches(experiment)
    server, memory = restored(run, shape, setup)
    personal = method.own_models or experiment.batch_norm == "local"
    if site is not None and not personal:
        raise UsageError(f"--site {site} was given, but {folder} has one model for all sites; leave it out.")
    kept: Payload = {}  # what a site has kept for itself
    number = 0
    if method.own_models or site is not None:
        number = site_number(run, memory, site)
        kept = memory.read(memory.versions[number])
    kinds = (setup.model, *setup.other_models)
    build = dataclasses.replace(setup, model=kinds[number % len(kinds)])
    own = {key.removeprefix(OWN): value for key, value in kept.items() if key.startswith(OWN)}
    loaded = []
    for payload in [own] if method.own_models else answering_models(method, server):
        one = new_model(shape, build)
        one.own_statistics = kept.get("batch_norm")
        one.load(payload)
        loaded.append(one)
    by_batch = experiment.batch_norm == "batch_statistics"
    return TrainedModel(folder, form, method, tuple(loaded), site, by_batch, build.model, encoding)


def refuse_unfinished(run: RunFolder) -> None:
    """Refuse a run that has not been played to its end."""
    summary = run.read_json("summary.json")
    if summary is None or summary["status"] != "finished":
        status = "has not finished" if summary is None else f"was {summary['status']}"
        done = "" if summary is None else f" after round {summary.get('rounds', 0)}"
        raise DataError(f"{run.path}: this run {status}{done}. Continue it with --resume, then use its model.")


def experiment_of_run(run: RunFolder, model: Any = None) -> Experiment:
    """The settings of the run; `model` replaces what is only a name there."""
    table = run.settings()
    try:
        experiment = Experiment(**{**table, "scene": None})
    except (ValueError, TypeError) as problem:
        raise DataError(f"{run.path / 'config.toml'}: not the settings of a run ({problem}).") from None
    if model is None:
        for spec in in_turn(experiment.model):
            refuse_unnamed(run, str(spec))
    return experiment if model is None else dataclasses.replace(experiment, model=model)


def method_of_run(run: RunFolder, experiment: Experiment) -> Method:
    """The method of the run, unless only the program that played it can make it."""
    try:
        return find_method(experiment.method)
    except UsageError as problem:
        raise UsageError(
            f"{run.path}: {problem} If the method, or its loss, was made by a program, give it again: "
            "fedwinnow.load(RUN, method=...)."
        ) from None


def refuse_unnamed(run: RunFolder, spec: str) -> None:
    """Refuse a model that only the program which trained it can make."""
    if not is_own(spec) and parse_spec(spec)[0] not in catalogue.entries("models"):
        told = " ".join(spec.split())[:40]
        raise UsageError(
            f"{run.path}: its model was made by a program ('{told}'), and the folder has only its weights. Give the "
            "same module or function again: fedwinnow.load(RUN, model=...)."
        )


def refuse_changed_code(run: RunFolder, experiment: Experiment, method: Method) -> None:
    """Refuse a run whose model or method was made by code that has changed since."""
    before = stored_identity(run)
    if before is None:
        return
    code = {part: pieces for part, pieces in before["code"].items() if part in ("method", "model")}
    now = {part: pieces for part, pieces in code_in(experiment, method).items() if part in ("method", "model")}
    if found := changes({"code": code}, {"code": now, "data": {}}):
        raise StaleError(
            f"{run.path}: {' and '.join(found)} since this run was made, so its model cannot be built again. Restore "
            "the old code, or play the run again with --redo."
        )


def form_of_run(run: RunFolder) -> InputForm:
    """How samples become the model's input: input.json; for an older run, from the data that it was trained on."""
    path = run.path / FILE
    if path.exists():
        return InputForm.from_dict(run.read_json(FILE), str(path))
    try:
        return InputForm.of(Scene.load(run.path).dataset)
    except DataError as problem:
        raise DataError(
            f"{run.path}: this run is of a version that did not write {FILE}, so its training data is needed: {problem}"
        ) from None


def warn_of_batches(experiment: Experiment) -> None:
    """Warn where answers depend on the batch."""
    if experiment.batch_norm == "batch_statistics":
        warnings.warn(
            "this run normalises by the samples of a batch (batch_norm=batch_statistics): the answer for a sample "
            "depends on the samples that are asked with it.",
            FedwinnowWarning,
            stacklevel=3,
        )


def restored(run: RunFolder, shape: Shape, setup: Setup) -> tuple[Server, Memory]:
    """The server and the memory of the sites as the last checkpoint has them."""
    scratch = new_model(shape, dataclasses.replace(setup, device="cpu"))
    stored = run.load_state(scratch)
    if stored is None:
        raise DataError(f"{run.path}: it has no state.safetensors, in which the model is. Restore the file.")
    weights, state, facts = stored
    if scratch.frozen or "frozen" in facts:
        kinds = (dataclasses.replace(setup, device="cpu", model=model) for model in (setup.model, *setup.other_models))
        run.refuse_other_frozen(facts, frozen_in([new_model(shape, kind) for kind in kinds]))
    memory = Memory(run.memory, {int(client): name for client, name in facts["memory"].items()})
    vault = Memory(run.vault, {int(client): name for client, name in facts["vault"].items()})
    settings = setup.settings
    server = Server(
        clients=0,
        available=(),
        participation=1.0,
        rounds=settings.rounds,
        seed=settings.seed,
        classes=shape.classes,
        weights=weights,
        model=scratch,
        round=facts["round"],
        state=state,
        vault=vault,
    )
    return server, memory


def site_names(run: RunFolder) -> list[str]:
    """The names of the sites, in their order."""
    described = run.read_json("scene.json")
    return [] if described is None else list(read_clients(run.path / TABLE, described.get("clients"))[0])


def site_number(run: RunFolder, memory: Memory, site: str | None) -> int:
    """The number of a site that has a model in the folder."""
    names = site_names(run)
    there = [names[number] for number in sorted(memory.versions) if number < len(names)]
    if site is None:
        shown = ", ".join(there[:5]) + (f" and {len(there) - 5} more" if len(there) > 5 else "")
        raise UsageError(f"{run.path}: every site of this run has its own model; choose one with --site: {shown}.")
    if site not in names:
        raise unknown("site", site, there)
    number = names.index(site)
    if number not in memory.versions:
        raise DataError(f"{run.path}: the site {site} took no part in this run, so it has no model of its own.")
    return number
