"""Play an experiment: rounds, measurements and checkpoints.

A checkpoint is on the disk before the next round begins, so a kill or a power cut loses at most the current round. If
rounds are shorter than a second, a checkpoint is written once a second, because writing may take longer than a round;
then up to a second of rounds is lost, and played again with the same result.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedwinnow import catalogue
from fedwinnow.all_settings import ExecutionSettings
from fedwinnow.backends.make_backend import Serial, make_backend
from fedwinnow.data.input_form import FILE as INPUT
from fedwinnow.device import choose_device, peak_memory
from fedwinnow.encoders.head_input import needs_sums
from fedwinnow.errors import DataError, FedwinnowError, FedwinnowWarning, RunError, UsageError, memory_in_words
from fedwinnow.experiment.encoding import SUMS, book_encoder_sums, book_sums, write_encoding
from fedwinnow.experiment.evaluation import Evaluation
from fedwinnow.experiment.identity import FILE as IDENTITY
from fedwinnow.experiment.identity import Identity, admit, identity_of, is_finished
from fedwinnow.experiment.prepare import Stage, input_form, prepare, setup_of
from fedwinnow.experiment.private_plan import refuse_overspending
from fedwinnow.experiment.private_run import budget_of, warn_of_privacy
from fedwinnow.experiment.report.run_report import write_report
from fedwinnow.experiment.run_folder import OWN_TEST, RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.summary import (
    clients_table,
    config_of,
    environment,
    own_test_means,
    own_test_table,
    summarise,
)
from fedwinnow.experiment.summing import exposed_in_sums, refuse_unsummable, secure_sums_here
from fedwinnow.experiment.time_estimate import backend_for
from fedwinnow.experiment.trusted_and_public import bench_of
from fedwinnow.federation.backend import Backend
from fedwinnow.federation.host import Host, Setup, new_model
from fedwinnow.federation.ledger import Ledger
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.rounds import Federation, Tally
from fedwinnow.federation.server import Server, keep_average
from fedwinnow.mathematics.optimizers import Optimizer
from fedwinnow.mathematics.payload import Exposure, FlatModel, Payload
from fedwinnow.models.model import Shape
from fedwinnow.options import Part
from fedwinnow.randomness import stream_key
from fedwinnow.scene.scene import save_arrays, save_description

if TYPE_CHECKING:
    from fedwinnow.experiment.watched_model import WatchedModel

Checkpoint = tuple[Payload, Payload, dict[str, Any]]  # global weights, server memory, facts
HELD_BYTES = 1 << 28  # of memories that become files at checkpoints only
APART = 1.0  # the shortest time between two checkpoints, in seconds
VERSIONS = ("memory", "vault")  # which file is the last of each client
COSTS = ("bytes_up", "bytes_down", "forward_samples", "backward_samples")


class Stop(Exception):  # a wish, not an error
    """Returned or raised by a watcher's `round`: the run ends after this round. The text says why."""


class Watcher:
    """Is called during a run; progress bars and trackers derive from it."""

    def started(self, stage: Stage, done: int, rounds: int) -> None:
        """Before the first round of this process."""

    if TYPE_CHECKING:
        round: Callable[..., Any]  # a watcher may take the row alone
    else:

        def round(self, row: dict[str, Any], model: Any = None) -> Any:
            """After each round, with its line of rounds.jsonl, and with the model if the function takes two arguments.

            The model is a copy, as `Result.model` gives it. `Stop("why")`, returned or raised, ends the run here.
            """

    def finished(self, summary: dict[str, Any]) -> None:
        """After the last round."""

    def stopped(self, status: str) -> None:
        """When the run ended before its last round: `failed` or `interrupted`."""


@dataclass(frozen=True, kw_only=True)
class Execution(ExecutionSettings):
    """How a run is carried out; none of these settings changes its result."""

    judge: str | Part = ""  # of an audit, for which the sites make notes while they train
    # Asked again, as a cell of a notebook is: a finished run is given back, and `redo` replaces one of other settings.
    again: bool = False
    reach: Callable[[Host], Backend] | None = None  # makes the backend for sites on other machines
    sums: Callable[[Backend], Any] | None = None  # how it takes secure sums to them


def play(experiment: Experiment, out: Path, execution: Execution, watchers: tuple[Watcher, ...] = ()) -> dict[str, Any]:
    """Run an experiment, or the rest of it, and return its summary."""
    folder = RunFolder(out)
    with memory_in_words(), folder.locked():
        return play_stage(prepare(experiment), folder, execution, watchers)


def play_stage(
    stage: Stage, folder: RunFolder, execution: Execution, watchers: tuple[Watcher, ...] = ()
) -> dict[str, Any]:
    """Play a prepared stage in a locked folder, and return the summary."""
    claim = claimed(stage, folder, execution)
    done = folder.read_json("summary.json")
    if done is not None and done["status"] == "finished":
        refuse_fewer_rounds(stage.experiment.rounds, done["rounds"])
        if done["rounds"] == stage.experiment.rounds or (not execution.resume and ended_early(done)):
            folder.rounds_until(done["rounds"])
            return dict(done)
    # The player comes first: an unknown model or optimiser must not leave a folder behind.
    player = Player(stage, folder, execution, watchers)
    claim.take(folder)
    return player.play()


def refuse_fewer_rounds(asked: int, played: int) -> None:
    """Refuse fewer rounds than the run has: it cannot go back."""
    if asked < played:
        raise UsageError(
            f"--rounds {asked} was given, but this run has played {played} already; allowed: {played} or more, another "
            f"folder, or --redo to start again."
        )


def ended_early(summary: dict[str, Any]) -> bool:
    """Whether a watcher has ended a run before its last round."""
    return "stopped_early" in summary


@dataclass(frozen=True)
class Claim:
    """The settings of a run, and the code and data that it is made of, before they are written to its folder."""

    config: dict[str, Any]
    identity: Identity

    def take(self, folder: RunFolder) -> None:
        """Write them to the folder; config.toml comes last, because it marks a folder as a run."""
        folder.write_json(IDENTITY, self.identity)
        folder.take(self.config)


def claimed(stage: Stage, folder: RunFolder, execution: Execution) -> Claim:
    """Check that this run may use the folder, and clear it for a run that is redone."""
    claim = Claim(config_of(stage), identity_of(stage, execution.judge))
    replace = execution.again and execution.anew == "all"
    admit(folder, claim.config, claim.identity, stage.experiment.rounds, execution.anew, replace)
    if stage.experiment.privacy is not None:
        refuse_overspending(folder, stage.experiment, stage.sites.holdings.sizes.tolist())
    known = execution.again and is_finished(folder, stage.experiment.rounds)
    folder.check(claim.config, stage.scene.hash, resume=execution.resume or known, replaceable=execution.again)
    refuse_stretched_schedule(stage.experiment, folder)
    return claim


def refuse_stretched_schedule(experiment: Experiment, folder: RunFolder) -> None:
    """Refuse more rounds for a run whose earlier rounds would have had other learning rates."""
    optimizer = cast(Optimizer, catalogue.make("optimizers", experiment.optimizer))
    before = folder.settings()["rounds"] if folder.holds_run else experiment.rounds
    if optimizer.counts_rounds and before != experiment.rounds:
        raise UsageError(
            f"--rounds {experiment.rounds} was given, but this run was begun with {before} rounds, and the schedule of "
            f"{optimizer} depends on them; allowed: {before}, another folder, or --redo to start again."
        )


def further_models(shape: Shape, setup: Setup) -> Callable[[int], Payload]:
    """A function that draws initial weights for further models; made here, so that it cannot reach any sample."""

    def fresh(number: int) -> Payload:
        seed = stream_key(setup.settings.seed, "further model", number) & (2**62 - 1)
        settings = dataclasses.replace(setup.settings, seed=seed)
        return new_model(shape, dataclasses.replace(setup, settings=settings)).payload()

    return fresh


def exposed_in(stage: Stage) -> dict[str, Exposure]:
    """What sites may send: the method's keys, and the sums that the scaling of an encoder is fitted from."""
    if stage.experiment.secure_sums:
        return exposed_in_sums()
    tells = stage.encoding is not None and needs_sums(stage.encoding.scaling.scale)
    return {**stage.method.exposes, SUMS: "client"} if tells else stage.method.exposes


def trained_weights(stage: Stage, model: FlatModel) -> Payload:
    """With --start: the weights of another run's model instead of new ones."""
    start = stage.experiment.start
    assert start is not None
    if stage.method.own_models:
        raise UsageError(
            f"--start {start} was given, but with the method '{stage.method.name}' every site has its own model; "
            "allowed: a method with one model for all."
        )
    from fedwinnow.experiment.trained.starting import starting_weights

    return starting_weights(start, model, input_form(stage), stage.sites.shape, stage.encoding)


def probe_of(stage: Stage) -> tuple[str, int] | None:
    """The part on which a merged model is tried before it is kept, and its length; None if there is none."""
    found = [(name, len(part)) for name, part in stage.parts.items() if len(part)]
    return found[0] if found else None


def warn_of_absent(stage: Stage) -> None:
    """Warn of sites with too few samples to take part; over a network the coordinator has done that already."""
    if stage.absent and stage.simulated:
        names = stage.absent
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        warnings.warn(
            f"absent from the run, with fewer samples to train on than --least-count {stage.experiment.least_count}: "
            f"{shown}.",
            FedwinnowWarning,
            stacklevel=2,
        )


def takes_model(watcher: Watcher) -> bool:
    """Whether a watcher's `round` takes the model besides the row."""
    if getattr(type(watcher), "round", None) is Watcher.round:
        return False
    try:
        inspect.signature(watcher.round).bind({}, None)
    except TypeError:
        return False
    return True


def refuse_wavering(host: Host, model: FlatModel) -> None:
    """Refuse a model whose frozen part is another one each time it is built: it is not sent, so models would differ."""
    if host.model.frozen_hash != model.frozen_hash:
        raise UsageError(
            "the frozen part of the model has other values each time the model is built; allowed: values that are read "
            "from a file or drawn from torch's generator, which the seed sets."
        )


def server_of(stage: Stage, folder: RunFolder, model: FlatModel, setup: Setup) -> Server:
    """The server's half before the first round."""
    experiment = stage.experiment
    begun = (folder.path / "state.safetensors").exists()
    return Server(
        clients=stage.sites.holdings.clients,
        available=stage.available,
        participation=experiment.participation,
        rounds=experiment.rounds,
        seed=experiment.seed,
        classes=stage.sites.shape.classes,
        weights=model.payload() if experiment.start is None or begun else trained_weights(stage, model),
        model=model,
        trusted=bench_of("trusted", stage.aside, stage.sites, setup),
        public=bench_of("public", stage.aside, stage.sites, setup),
        vault=Memory(folder.vault, hold=HELD_BYTES),
        fresh=further_models(stage.sites.shape, dataclasses.replace(setup, device="cpu")),
    )


class Player:
    """Plays one run in this process."""

    def __init__(self, stage: Stage, folder: RunFolder, execution: Execution, watchers: tuple[Watcher, ...]) -> None:
        if execution.backend == "auto":
            execution = dataclasses.replace(execution, backend=backend_for(stage, execution.device))
        self.stage, self.folder, self.execution, self.watchers = stage, folder, execution, watchers
        experiment = stage.experiment
        if experiment.secure_sums:
            refuse_unsummable(stage)
        # Over a network, every site checks its own device.
        halved = experiment.mixed_precision and execution.reach is None
        device = choose_device(execution.device, mixed_precision=halved)
        setup = setup_of(experiment, str(device), execution.judge)
        model = new_model(stage.sites.shape, dataclasses.replace(setup, device="cpu"))
        self.server = server_of(stage, folder, model, setup)
        self.costs = dict.fromkeys(COSTS, 0.0)
        self.done = 0
        self.saved = -math.inf  # when the last checkpoint was written
        self.on_disk = 0  # the round of the last checkpoint
        self.unsaved: Checkpoint | None = None  # the checkpoint of the last round, if it is not on disk yet
        memory = Memory(folder.memory)
        host = Host(stage.sites, stage.judged, stage.parts, stage.method, setup, memory)
        refuse_wavering(host, model)
        self.host_models, self.frozen = host.models, host.frozen
        self.setup = setup
        self.stopped: Stop | None = None  # what a watcher wished for
        backend = make_backend(execution.backend, host) if execution.reach is None else execution.reach(host)
        if isinstance(backend, Serial):
            memory.hold = HELD_BYTES
        self.federation = Federation(
            stage.method,
            self.server,
            backend,
            memory,
            Ledger(exposed_in(stage), stage.method.forwarded()),
            stage.site_names,
            execution,
            stage.sites.holdings.sizes.tolist(),
            probe_of(stage),
        )
        self.budget = None if experiment.privacy is None else budget_of(stage, self.federation, folder.path)
        self.federation.budget = self.budget
        if experiment.secure_sums:
            backend, over_network = self.federation.backend, execution.sums
            self.federation.sums = secure_sums_here(backend, stage) if over_network is None else over_network(backend)
        self.evaluation = Evaluation(
            stage.scene,
            stage.labels,
            stage.sites.holdings,
            stage.places,
            simulated=stage.simulated,
            test_sites=stage.aside.test_sites,
        )

    def play(self) -> dict[str, Any]:
        """All rounds that are left, then the summary."""
        try:
            self.restore()  # outside `play_on`, so that a refused folder keeps its summary
            return self.play_on()
        finally:
            self.federation.backend.close()

    def play_on(self) -> dict[str, Any]:
        """Play to the end; an interruption saves the rounds so far."""
        told: list[Watcher] = []
        try:
            self.folder.forget_gain()  # it is about the run as it was before
            for watcher in self.watchers:
                watcher.started(self.stage, self.done, self.stage.experiment.rounds)
                told.append(watcher)
            if not self.server.available and self.done < self.stage.experiment.rounds:
                few = f" and as many of them as --least-count {self.stage.experiment.least_count} asks for"
                raise RunError(f"no client has a sample to train on{few if self.stage.absent else ''}.")
            warn_of_absent(self.stage)
            if self.budget is not None:
                warn_of_privacy(self.budget, self.server)
            while self.done < self.stage.experiment.rounds and self.stopped is None:
                with memory_in_words():  # the evaluation needs some too
                    self.one_round(self.done + 1)
            if self.done < self.stage.experiment.rounds:
                keep_average(self.server)
                self.write(self.checkpoint())
            with memory_in_words():
                return self.finish()
        except (KeyboardInterrupt, FedwinnowError) as problem:
            status = "interrupted" if isinstance(problem, KeyboardInterrupt) else "failed"
            if self.unsaved is not None:
                self.write(self.unsaved)
            self.folder.keep_rounds(self.on_disk)  # a round without a checkpoint will be played again
            self.folder.write_json("summary.json", self.summarised(status))
            for watcher in told:
                watcher.stopped(status)
            raise

    def restore(self) -> None:
        """Load the last checkpoint, or start at the beginning."""
        stored = self.folder.load_state(self.server.model)
        if not (self.folder.path / INPUT).exists():
            self.folder.write_json(INPUT, input_form(self.stage).to_dict())
        if stored is None:
            if self.frozen:
                self.folder.save_frozen(self.host_models)
            save_description(
                self.stage.scene, self.folder.path
            )  # the true labels are written at the end, out of the method's reach
            self.folder.write_json(
                "environment.json", environment(self.stage, self.execution.backend, self.execution.device)
            )
            if self.stage.encoding is not None:
                write_encoding(self.folder, self.stage.encoding)
                if len(self.stage.site_names) == self.stage.scene.clients:  # not where all data is pooled
                    book = book_encoder_sums if self.stage.experiment.secure_sums else book_sums
                    book(self.federation.ledger, self.stage.encoding, self.stage.site_names)
            if self.budget is not None:
                self.budget.restore({})
            self.federation.start()
            self.folder.keep_rounds(0)
            return
        self.server.weights, self.server.state, facts = stored
        self.done = self.on_disk = facts["round"]
        refuse_fewer_rounds(self.stage.experiment.rounds, self.done)
        self.folder.refuse_other_frozen(facts, self.frozen)
        if facts["set_aside"] != self.stage.aside.facts:
            raise DataError(
                f"{self.folder.path}: this run set aside {facts['set_aside']}, now it would be "
                f"{self.stage.aside.facts}. Restore the data of --public, or start again with --redo."
            )
        self.costs |= facts["costs"]
        self.federation.memory.versions = {int(client): name for client, name in facts["memory"].items()}
        self.server.vault.versions = {int(client): name for client, name in facts["vault"].items()}
        for memory in self.memories_here:
            memory.check()
        self.folder.keep_rounds(self.done)
        self.folder.show_facts(facts)
        self.prune(facts)
        self.federation.ledger.entries = facts["ledger"]
        if self.budget is not None:
            self.budget.restore(facts.get("visits"))
        self.federation.violations = facts.get("violations", {})

    @property
    def memories_here(self) -> tuple[Memory, ...]:
        """The memories whose files are in the run folder; over a network, sites keep their own."""
        return (self.server.vault,) if self.execution.reach is not None else (self.federation.memory, self.server.vault)

    def one_round(self, number: int) -> None:
        """Play, measure, write the line, save the checkpoint."""
        tally = self.federation.play_round(number)
        began = time.perf_counter()
        # Also true of the last round, because a run may be continued; the summary has its scores anyway.
        measured = self.evaluation.round(self.federation) if number % self.stage.experiment.eval_every == 0 else {}
        if self.stage.experiment.memorisation_every and number % self.stage.experiment.memorisation_every == 0:
            measured |= self.evaluation.memorised(self.federation) or {}
        row = self.line(number, tally, measured, time.perf_counter() - began)
        for key in COSTS:
            self.costs[key] += row[key]
        self.folder.append_round(row)
        self.done = number
        if self.due(number):
            self.write(self.checkpoint())
        else:
            self.unsaved = self.checkpoint(copied=True)
        for watcher in self.watchers:
            self.tell(watcher, row)

    @functools.cached_property
    def watched_model(self) -> WatchedModel:
        """The model for watchers that want one."""
        from fedwinnow.experiment.watched_model import WatchedModel

        return WatchedModel(self.stage, self.setup, self.server)

    def tell(self, watcher: Watcher, row: dict[str, Any]) -> None:
        """Tell a watcher of a round, and note if it wishes to stop."""
        try:
            answer = watcher.round(row, self.watched_model.now()) if takes_model(watcher) else watcher.round(row)
        except Stop as wish:
            answer = wish
        if isinstance(answer, Stop) or answer is Stop:
            self.stopped = self.stopped or (answer if isinstance(answer, Stop) else Stop())

    def due(self, number: int) -> bool:
        """Whether a checkpoint is written after this round; always after the last."""
        if number == self.stage.experiment.rounds:
            return True
        rested = self.execution.reach is not None or time.monotonic() - self.saved >= APART
        return rested and number % self.execution.checkpoint_every == 0

    def line(self, number: int, tally: Tally, measured: dict[str, Any], evaluation: float) -> dict[str, Any]:
        """The line of rounds.jsonl."""
        quality = self.evaluation.quality([self.server.notes])
        return {
            "round": number,
            **self.server.notes,
            "participants": tally.participants,
            "dropped": tally.dropped,
            **({"ended": tally.ended} if tally.ended else {}),
            **({"absent": tally.absent} if tally.absent else {}),
            **({} if self.budget is None else {"epsilon": round(self.budget.spent(), 4)}),
            **measured,
            **self.evaluation.remarks(tally),
            **({} if quality is None else {"quality_correlation": quality["pearson"]}),
            "bytes_up": tally.bytes_up,
            "bytes_down": tally.bytes_down,
            "forward_samples": tally.forward_samples,
            "backward_samples": tally.backward_samples,
            "seconds": round(tally.seconds, 6),
            "evaluation_seconds": round(evaluation, 6),
            "memory_mb": peak_memory(),
        }

    def checkpoint(self, *, copied: bool = False) -> Checkpoint:
        """Everything that the next round needs; `copied` if that round begins before it is written."""
        facts = {
            "round": self.done,
            "costs": dict(self.costs),
            "memory": dict(self.federation.memory.versions),
            "vault": dict(self.server.vault.versions),
            "ledger": dict(self.federation.ledger.entries),
            "set_aside": self.stage.aside.facts,
            **({} if self.budget is None else {"visits": dict(sorted(self.budget.asked.items()))}),
            **({"frozen": self.frozen} if self.frozen else {}),
            **({"violations": dict(self.federation.violations)} if self.federation.violations else {}),
        }
        if not copied:
            return self.server.weights, self.server.state, facts
        weights, state = ({k: v.clone() for k, v in part.items()} for part in (self.server.weights, self.server.state))
        return weights, state, facts

    def write(self, checkpoint: Checkpoint) -> None:
        """Save the memories that a checkpoint needs, then the checkpoint, then delete other memories."""
        weights, state, facts = checkpoint
        for memory in self.memories_here:
            memory.settle(facts["vault" if memory is self.server.vault else "memory"].values())
        written = {key: {str(client): facts[key][client] for client in sorted(facts[key])} for key in VERSIONS}
        self.folder.save_state(self.server.model, weights, state, facts | written)
        self.unsaved, self.saved, self.on_disk = None, time.monotonic(), facts["round"]
        self.prune(facts)

    def prune(self, facts: dict[str, Any]) -> None:
        """Delete memories that no checkpoint needs."""
        self.federation.memory.prune(facts["memory"].values())
        self.server.vault.prune(facts["vault"].values())

    def summarised(self, status: str, final: dict[str, Any] | None = None) -> dict[str, Any]:
        """summary.json, with what was spent of a budget of privacy."""
        summary = summarise(self.stage, self.folder.rounds(), self.costs, status, final)
        return summary if self.budget is None else {**summary, "privacy": self.budget.summary()}

    def finish(self) -> dict[str, Any]:
        """The verdicts, the summary and the tables."""
        if self.done == 0:
            self.write(self.checkpoint())
        predicted, losses = self.evaluation.predictions(self.federation)
        p_wrong, suggested = self.evaluation.verdicts(self.federation, predicted, losses)
        self.folder.write_arrays("verdicts.npz", p_wrong=p_wrong, suggested=suggested, loss=losses.astype(np.float32))
        final = {
            "test": self.evaluation.scores(self.federation, "test"),
            "detection": self.evaluation.detection(p_wrong, suggested, self.folder.rounds()),
            "memorisation": self.evaluation.memorisation_of(predicted),
            "silent": self.federation.silent,
        }
        own_test = self.evaluation.own_test(self.federation)
        if own_test is not None:
            final["own_test"] = own_test_means(self.stage, own_test)
            self.folder.write_text(OWN_TEST, own_test_table(self.stage, own_test))
        save_arrays(self.stage.scene, self.folder.path)
        if self.stopped is not None and self.done < self.stage.experiment.rounds:
            final["stopped_early"] = {"of": self.stage.experiment.rounds, "why": str(self.stopped)}
        summary = self.summarised("finished", final)
        rates = self.evaluation.estimated_rates(p_wrong)
        self.folder.write_text("clients.csv", clients_table(self.stage, rates, self.folder.rounds()))
        private = {} if self.budget is None else {"privacy": self.budget.by_site()}
        self.folder.write_json("ledger.json", {**self.federation.ledger.as_json(), **private})
        write_report(self.folder, summary)
        self.folder.write_json("summary.json", summary)  # the last file: it marks the folder as complete
        for watcher in self.watchers:
            watcher.finished(summary)
        return summary
