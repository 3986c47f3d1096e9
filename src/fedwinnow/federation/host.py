"""Where clients live: their samples and labels, one scratch model, and the method's client half.

A backend has one host per process. A host answers questions; it knows nothing of rounds, servers or the truth.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedwinnow import catalogue
from fedwinnow.data.dataset import Features, InputStep
from fedwinnow.device import keep_freed_memory
from fedwinnow.errors import FedwinnowError, memory_shortage
from fedwinnow.federation.client import Client, pieces, score, scoring_batch
from fedwinnow.federation.judge import Judge
from fedwinnow.federation.least_count import TooFew, without_small_classes
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import Method, Verdict
from fedwinnow.federation.server_samples import NOBODY
from fedwinnow.federation.traces import frames_of_method
from fedwinnow.federation.training_settings import Training
from fedwinnow.federation.verdict_check import verdict_of
from fedwinnow.mathematics.flat_model import FlatModel
from fedwinnow.mathematics.optimizers import Optimizer
from fedwinnow.mathematics.payload import Payload, check_state
from fedwinnow.models.make_model import ModelSpec, make_model
from fedwinnow.models.model import Shape
from fedwinnow.options import Part
from fedwinnow.randomness import Integers, stream_key
from fedwinnow.scene.holdings import Holdings


@dataclass(frozen=True, eq=False)
class Sites:
    """What the sites hold, all of them together: stored samples, who holds which, labels as given."""

    features: Features
    holdings: Holdings
    given: Integers  # per holding
    shape: Shape
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Setup:
    """Everything besides the data that every host of a run must agree on."""

    model: ModelSpec
    training: Training
    seed: int
    rounds: int
    device: str = "cpu"
    memorisation_every: int = 0  # in such rounds the models that leave a site are looked at before they go
    judge: str | Part = ""  # how sites judge their labels in an audit; empty: nobody asks them to
    other_models: tuple[ModelSpec, ...] = ()  # where clients have different models: they take them in turn
    least_count: int = 0  # what concerns fewer samples does not leave a site


# Questions of the evaluation: they concern every sample of a site, and leave no trace in its memory.
MEASURING = ("judge", "predict", "audit")
SCORE = "score "  # and the name of a part: what a client's own model says about samples that belong to no client
OWN = "own."  # a client's own model, among what it remembers
KEPT = "judgement."  # in a site's memory: what its judge keeps, apart from what its method does


@dataclass
class Task:
    """One question to one client."""

    client: int
    ask: str
    round: int
    exchange: int  # the first, second, ... question of the round
    payload: Payload
    memory: str | None = None  # the version of the client's memory to start from

    @property
    def measures(self) -> bool:
        """Whether it is a question of the evaluation."""
        return self.ask in MEASURING or self.ask.startswith(SCORE)

    def trains(self, reply: object) -> bool:
        """Whether a model was sent and another comes back; what is no payload is left for others to refuse."""
        return isinstance(reply, dict) and "weights" in reply and "weights" in self.payload


@dataclass
class Answer:
    """What came of a task: a reply, or the reason why there is none."""

    client: int
    reply: Payload = field(default_factory=dict)
    memory: str | None = None
    notes: Payload = field(default_factory=dict)
    forward_samples: int = 0
    backward_samples: int = 0
    seconds: float = 0.0
    error: str | None = None
    trace: str = ""
    absent: bool = False  # too few samples to say anything: neither a reply nor a failure


class Host:
    """Answers tasks for all clients whose data is here."""

    def __init__(
        self, sites: Sites, judged: Sites, parts: dict[str, Features], method: Method, setup: Setup, memory: Memory
    ) -> None:
        self.sites = sites
        self.judged = judged  # every sample of every site, also those that a run keeps out of training
        self.parts = parts  # samples to be scored that belong to no client: the test part
        self.method = method
        self.setup = setup
        self.memory = memory
        self.input_step = InputStep(sites.shape.kind, sites.mean, sites.std, setup.device)
        self.optimizer = cast(Optimizer, catalogue.make("optimizers", setup.training.optimizer))
        self.judge = cast(Judge, catalogue.make("judges", setup.judge)) if setup.judge else None
        setups = [replace(setup, model=model) for model in (setup.model, *setup.other_models)]
        self.models = [new_model(sites.shape, one) for one in setups]
        self.spare_models = [SpareModels(sites.shape, one) for one in setups]
        self.first = [model.payload() for model in self.models] if method.own_models else []
        torch.set_num_threads(1)  # another number of threads would move the last bits
        keep_freed_memory()

    @property
    def model(self) -> FlatModel:
        """The model of the run; where clients have different ones, the first."""
        return self.models[0]

    def answer(self, task: Task) -> Answer:
        """Let one client answer one question; whatever goes wrong there is an answer too.

        Memory that runs out is not the client's fault: it is this machine's, and the others would fare no better.
        """
        began = time.perf_counter()
        try:
            client = self.client(task)
            client.enough(len(client))
            reply = as_it_leaves(self.reply(client, task))
            if client.least_count:
                reply = without_small_classes(reply, self.method.by_class(), client.few.cpu())
            memory = task.memory if task.measures else self.remember(task, client, reply)
            notes = client.notes | self.predictions_to_measure(task, reply)
        except TooFew:
            return Answer(task.client, memory=task.memory, absent=True)
        except FedwinnowError as problem:
            return Answer(task.client, error=str(problem))
        except Exception as problem:
            if (shortage := memory_shortage(problem)) is not None:
                raise shortage from None
            return Answer(task.client, error=f"{type(problem).__name__}: {problem}", trace=frames_of_method(problem))
        return Answer(
            client=task.client,
            reply=reply,
            memory=memory,
            notes=notes,
            forward_samples=client.forward_samples + (client.public.forward_samples if client.public else 0),
            backward_samples=client.backward_samples + (client.public.backward_samples if client.public else 0),
            seconds=time.perf_counter() - began,
        )

    def reply(self, client: Client, task: Task) -> Any:
        """What the method answers, or the judge where an audit asks; scores neither need know about."""
        if task.ask == "audit" and self.judge is not None:
            return self.judge.opinions(self.method, client, task.payload)
        if task.ask == "judge":
            return verdict_of(self.method, client, task.payload)
        if not task.ask.startswith(SCORE):
            return getattr(self.method, task.ask)(client, task.payload)
        self.method.load(client, task.payload)
        part = self.parts[task.ask.removeprefix(SCORE)]
        return {"logits": self.logits(client.model, part, 0, len(part))}

    def remember(self, task: Task, client: Client, reply: Payload) -> str | None:
        """Store what the client wants to know next time, and what stays with it: running statistics, or its model."""
        check_state(client.state, "client.state", self.method.name)
        if self.method.own_models:
            client.state |= client.model.payload(OWN)
        elif self.setup.training.batch_norm == "local" and len(client.model.statistics):
            client.state["batch_norm"] = client.model.statistics.clone()
        kept = self.observed(task, client, reply)
        return self.memory.write(task.client, task.round, task.exchange, client.state | kept)

    def observed(self, task: Task, client: Client, reply: Payload) -> Payload:
        """What the judge keeps of the site after it looked at the models of this exchange."""
        if self.judge is None:
            return {}
        own, watcher = self.method.own_models and task.ask == "train", client
        if own or task.trains(reply):
            watcher = self.client(replace(task, ask="audit"))
            trained = {key.removeprefix(OWN): value for key, value in client.state.items() if key.startswith(OWN)}
            before, after = (watcher.model.payload(), trained) if own else (task.payload, reply)
            self.judge.observe(self.method, watcher, before, after)
            client.forward_samples += watcher.forward_samples
        return {KEPT + key: value for key, value in watcher.kept.items()}

    def client(self, task: Task) -> Client:
        """The client of a task, with its memory and a generator of its own."""
        sites, kind = self.judged if task.measures else self.sites, task.client % len(self.models)
        model = self.models[kind]
        mine = sites.holdings.of(task.client)
        key = stream_key(self.setup.seed, f"client {task.ask} {task.exchange}", task.client, task.round) & (2**63 - 1)
        seed_layers(key, model.device)
        stored = self.memory.read(task.memory)
        state = {key: value for key, value in stored.items() if not key.startswith(KEPT)}
        model.own_statistics = state.get("batch_norm")
        if self.method.own_models:
            own = {key.removeprefix(OWN): state.pop(key) for key in list(state) if key.startswith(OWN)}
            model.load(own or self.first[kind])
        client = Client(
            id=task.client,
            round=task.round,
            rounds=self.setup.rounds,
            features=sites.features.subset(sites.holdings.rows[mine]),
            given=torch.from_numpy(sites.given[mine].copy()).to(model.device),
            classes=sites.shape.classes,
            model=model,
            training=self.setup.training,
            optimizer=self.optimizer,
            input_step=self.input_step,
            generator=torch.Generator().manual_seed(key),
            state=state,
            kept={key.removeprefix(KEPT): value for key, value in stored.items() if key.startswith(KEPT)},
            trained=self.used_for_training(task.client) if sites is self.judged else None,
            spare=self.spare_models[kind].fresh(model.own_statistics),
            least_count=0 if task.measures else self.setup.least_count,  # what is measured does not leave
        )
        if "public" in self.parts:
            nothing = torch.full((len(self.parts["public"]),), NOBODY, device=model.device)
            client.public = replace(
                client, features=self.parts["public"], given=nothing, state={}, trained=None, least_count=0
            )
        return client

    def predictions_to_measure(self, task: Task, reply: Payload) -> Payload:
        """For measuring only: what the global and the trained model say of a site, and the latter of the test part."""
        every = self.setup.memorisation_every
        if not every or task.round % every or not task.trains(reply) or self.pooled:
            return {}
        client = self.client(replace(task, ask="predict"))
        client.model.load(task.payload)
        by_global = client.predict().argmax(1).cpu()
        client.model.own_statistics = None  # the trained model comes with its own
        client.model.load(reply)
        said = {"global_predicted": by_global, "local_predicted": client.predict().argmax(1).cpu()}
        if "test" in self.parts:
            said["local_tested"] = self.logits(client.model, self.parts["test"], 0, len(self.parts["test"])).argmax(1)
        return said

    @property
    def pooled(self) -> bool:
        """Whether training has the samples of all sites at one place."""
        return self.sites.holdings.clients != self.judged.holdings.clients

    def used_for_training(self, client: int) -> Tensor | None:
        """Which samples of a site that is judged training may use; None for all."""
        if self.pooled or len(self.sites.given) == len(self.judged.given):
            return None
        rows, used = self.judged.holdings.rows, self.sites.holdings.rows
        return torch.from_numpy(np.isin(rows[self.judged.holdings.of(client)], used[self.sites.holdings.of(client)]))

    def score(self, part: str, weights: Payload, start: int, stop: int) -> Tensor:
        """Logits of samples that belong to no client; `start` must be a multiple of the scoring batch."""
        self.model.own_statistics = None
        self.model.load(weights)
        return self.logits(self.model, self.parts[part], start, stop)

    def logits(self, model: FlatModel, features: Features, start: int, stop: int) -> Tensor:
        """Logits of these samples under a model."""
        batches = pieces(torch.arange(start, stop), scoring_batch(model))
        stored = (torch.from_numpy(array) for array in features.stream(rows.numpy() for rows in batches))
        return score(model, stored, self.input_step, self.sites.shape.classes).cpu()


def as_it_leaves(reply: Any) -> Any:
    """A reply on the processor, where the server works; what is no payload is left for others to refuse."""
    if isinstance(reply, Verdict):
        return {"p_wrong": reply.p_wrong.detach().cpu(), "suggested": reply.suggested.detach().cpu()}
    if not isinstance(reply, dict):
        return reply
    return {key: value.cpu() if isinstance(value, Tensor) else value for key, value in reply.items()}


class SpareModels:
    """Further scratch models, made once and used again; apart from the host, so that no client can reach others."""

    def __init__(self, shape: Shape, setup: Setup) -> None:
        self.shape, self.setup = shape, setup
        self.models: list[FlatModel] = []

    def fresh(self, own_statistics: Tensor | None) -> Callable[[], FlatModel]:
        """A function that gives another one at every call; statistics that stay on the site are in each of them."""
        numbers = itertools.count()
        return lambda: self.get(next(numbers), own_statistics)

    def get(self, number: int, own_statistics: Tensor | None) -> FlatModel:
        """The model of this number."""
        while len(self.models) <= number:
            self.models.append(new_model(self.shape, self.setup))
        self.models[number].own_statistics = own_statistics
        return self.models[number]


def new_model(shape: Shape, setup: Setup) -> FlatModel:
    """The model of a run, with the initial weights that its seed gives."""
    module = make_model(setup.model, shape, setup.seed)
    if setup.training.batch_norm == "batch_statistics":
        use_batch_statistics(module)
    return FlatModel(module, setup.device)


def seed_layers(key: int, device: torch.device) -> None:
    """Seed the generators that layers such as dropout draw from.

    `torch.manual_seed` would also note the call, with its whole stack, for GPUs that may be used one day.
    """
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        torch.cuda.manual_seed(key)
    elif device.type == "mps":
        torch.mps.manual_seed(key)


def use_batch_statistics(module: nn.Module) -> None:
    """Make every batch normalisation forget its running statistics and use those of the batch, also in scoring."""
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
