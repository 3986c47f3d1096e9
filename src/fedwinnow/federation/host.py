"""The host answers tasks for the clients whose data is in this process: their samples and labels, and a scratch model.

A backend has one host per process. A host does not know the server, the other rounds or the true labels.
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
from fedwinnow.all_settings import SiteSettings
from fedwinnow.data.dataset import Features, InputStep
from fedwinnow.device import Uploads, keep_freed_memory, on_cpu, settle
from fedwinnow.errors import FedwinnowError, RunError, memory_shortage
from fedwinnow.federation.client import Client, pieces, score, scoring_batch
from fedwinnow.federation.judge import Judge
from fedwinnow.federation.ledger import TooFew, without_small_classes
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import Method, Verdict, verdict_of
from fedwinnow.federation.noisy_mean import clipped_reply
from fedwinnow.federation.privacy_rules import refuse_mixing_layers, refuse_unaccounted
from fedwinnow.federation.private_training import PrivateTraining, mechanism_of
from fedwinnow.federation.server_samples import NOBODY
from fedwinnow.federation.traces import frames_of_method
from fedwinnow.mathematics.optimizers import Optimizer
from fedwinnow.mathematics.payload import FlatModel, Payload, check_state, frozen_layers
from fedwinnow.mathematics.privacy import ClientPrivacy, SamplePrivacy, find_privacy
from fedwinnow.mathematics.private_noise import FromSeed, FromSystem, Randomness
from fedwinnow.models.make_model import ModelSpec, make_model
from fedwinnow.models.model import Shape
from fedwinnow.options import Part
from fedwinnow.randomness import Integers, stream_key
from fedwinnow.scene.holdings import Holdings


@dataclass(frozen=True, eq=False)
class Sites:
    """The data of all sites: stored samples, who holds which, given labels."""

    features: Features
    holdings: Holdings
    given: Integers  # per holding
    shape: Shape
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Setup:
    """Everything besides the data that is the same for every host of a run."""

    model: ModelSpec
    settings: SiteSettings
    device: str = "cpu"
    judge: str | Part = ""  # how sites judge their labels in an audit; empty: no audit
    other_models: tuple[ModelSpec, ...] = ()  # where clients have different models, in turn
    # Small models get their gradient by hand, which is faster and may change the last bits: in a run with an encoder.
    fast_heads: bool = False
    # With --privacy: noise of the operating system, because the samples are those of real people; else of the seed.
    earnest: bool = False


# Questions of the evaluation: they concern every sample of a site and do not change its memory.
MEASURING = ("judge", "predict", "audit")
SCORE = "score "  # followed by the name of a part: score it with a client's own model
OWN = "own."  # in a site's memory: a client's own model
BY_LOSS = "by_loss."  # in the question to judge: the verdict by losses, which costs less for many sites together
KEPT = "judgement."  # in a site's memory: what its judge keeps


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
        """Whether a model was sent and another comes back; False for a reply that is not a dictionary."""
        return isinstance(reply, dict) and "weights" in reply and "weights" in self.payload


@dataclass
class Answer:
    """The result of a task: a reply, or the reason why there is none."""

    client: int
    reply: Payload = field(default_factory=dict)
    memory: str | None = None
    notes: Payload = field(default_factory=dict)
    forward_samples: int = 0
    backward_samples: int = 0
    seconds: float = 0.0
    error: str | None = None
    trace: str = ""
    broken: bool = False  # the error is that a reply came which nobody can read: the site did not keep to the rules
    absent: bool = False  # fewer samples than the least count: neither a reply nor a failure


class Host:
    """Answers tasks for all clients whose data is here."""

    def __init__(
        self, sites: Sites, judged: Sites, parts: dict[str, Features], method: Method, setup: Setup, memory: Memory
    ) -> None:
        self.sites = sites
        self.judged = judged  # all samples, including those that a run keeps out of training
        self.parts = parts  # samples that belong to no client: the test part, public samples
        self.method = method
        self.setup = setup
        self.memory = memory
        self.uploads = Uploads(torch.device(setup.device))
        self.input_step = InputStep(sites.shape.kind, sites.mean, sites.std, setup.device)
        self.optimizer = cast(Optimizer, catalogue.make("optimizers", setup.settings.optimizer))
        self.judge = cast(Judge, catalogue.make("judges", setup.judge)) if setup.judge else None
        self.privacy = None if setup.settings.privacy is None else find_privacy(setup.settings.privacy)
        if self.privacy is not None:
            refuse_unaccounted(method, self.privacy, setup.settings)
        setups = [replace(setup, model=model) for model in (setup.model, *setup.other_models)]
        self.models = [new_model(sites.shape, one) for one in setups]
        if self.privacy is not None:
            refuse_mixing_layers(self.models, self.privacy)
        self.spare_models = [SpareModels(sites.shape, one) for one in setups]
        self.first = [model.payload() for model in self.models] if method.own_models else []
        settle(torch.device(setup.device))
        torch.set_num_threads(1)  # another number of threads would change the last bits
        keep_freed_memory()

    @property
    def model(self) -> FlatModel:
        """The model of the run; where clients have different ones, the first."""
        return self.models[0]

    @property
    def frozen(self) -> list[str]:
        """The hashes of what is frozen in the models, the same on every machine; empty where nothing is."""
        return frozen_in(self.models)

    def answer(self, task: Task) -> Answer:
        """Let one client answer one question; an error is an answer, too.

        Only a shortage of memory ends the run, because the other clients of this machine would meet it as well.
        """
        began = time.perf_counter()
        try:
            client = self.client(task)
            client.enough(len(client))
            reply = reply_on_cpu(self.reply(client, task))
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
        """The reply of the method, of the judge in an audit, or the scores of a part."""
        if task.ask == "audit" and self.judge is not None:
            return self.judge.opinions(self.method, client, task.payload)
        if task.ask == "judge":
            return verdict_of(self.method, client, with_verdict_by_loss(client, task.payload))
        if not task.ask.startswith(SCORE):
            return self.answer_of_method(client, task)
        self.method.load(client, task.payload)
        part = self.parts[task.ask.removeprefix(SCORE)]
        return {"logits": self.logits(client.model, part, 0, len(part))}

    def answer_of_method(self, client: Client, task: Task) -> Any:
        """The reply of the method; with --privacy, only to the question to train."""
        if self.privacy is not None and not task.measures and task.ask != "train":
            raise RunError(f"--privacy {self.privacy.name}: '{task.ask}' was asked; allowed: train.")
        reply = getattr(self.method, task.ask)(client, task.payload)
        if isinstance(self.privacy, ClientPrivacy) and task.trains(reply):
            return clipped_reply(reply, task.payload, client.model.trainable, self.privacy.clip)
        return reply

    def private_training(self, task: Task, samples: int) -> PrivateTraining | None:
        """With --privacy sample: how the client trains; its noise is that of the plan for so many samples."""
        if not isinstance(self.privacy, SamplePrivacy) or task.measures:
            return None
        key = stream_key(self.setup.settings.seed, f"privacy {task.exchange}", task.client, task.round)
        randomness: Randomness = FromSystem() if self.setup.earnest else FromSeed(key)
        noise = mechanism_of(self.privacy, self.setup.settings, samples).noise
        return PrivateTraining(self.privacy, noise, randomness)

    def remember(self, task: Task, client: Client, reply: Payload) -> str | None:
        """Store the client's state, with its own model or running statistics where these stay on the site."""
        check_state(client.state, "client.state", self.method.name)
        if self.method.own_models:
            client.state |= client.model.payload(OWN)
        elif self.setup.settings.batch_norm == "local" and len(client.model.statistics):
            client.state["batch_norm"] = client.model.statistics.clone()
        kept = self.observed(task, client, reply)
        return self.memory.write(task.client, task.round, task.exchange, client.state | kept)

    def observed(self, task: Task, client: Client, reply: Payload) -> Payload:
        """What the judge keeps of the site after it has seen the models of this exchange."""
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
        """The client of a task, with its memory and its random generator."""
        sites, kind = self.judged if task.measures else self.sites, task.client % len(self.models)
        model = self.models[kind]
        mine = sites.holdings.of(task.client)
        seed = self.setup.settings.seed
        key = stream_key(seed, f"client {task.ask} {task.exchange}", task.client, task.round) & (2**63 - 1)
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
            rounds=self.setup.settings.rounds,
            features=sites.features.subset(sites.holdings.rows[mine]),
            given=torch.from_numpy(sites.given[mine].copy()).to(model.device),
            classes=sites.shape.classes,
            model=model,
            training=self.setup.settings,
            optimizer=self.optimizer.at_round(task.round, self.setup.settings.rounds),
            input_step=self.input_step,
            generator=torch.Generator().manual_seed(key),
            state=state,
            kept={key.removeprefix(KEPT): value for key, value in stored.items() if key.startswith(KEPT)},
            trained=self.used_for_training(task.client) if sites is self.judged else None,
            private=self.private_training(task, mine.stop - mine.start),
            spare=self.spare_models[kind].fresh(model.own_statistics),
            least_count=0 if task.measures else self.setup.settings.least_count,  # measurements do not leave the site
        )
        if self.uploads.useful and (samples := client.in_memory) is not None:
            client.ready = self.uploads.get(f"{'judged' if task.measures else 'trained'} {task.client}", samples)
        if "public" in self.parts:
            nothing = torch.full((len(self.parts["public"]),), NOBODY, device=model.device)
            client.public = replace(
                client,
                features=self.parts["public"],
                given=nothing,
                private=None,
                state={},
                trained=None,
                ready=None,
                least_count=0,
            )
        return client

    def predictions_to_measure(self, task: Task, reply: Payload) -> Payload:
        """For measuring memorisation: what the global and the trained model predict for the site's samples."""
        every = self.setup.settings.memorisation_every
        if not every or task.round % every or not task.trains(reply) or self.pooled:
            return {}
        client = self.client(replace(task, ask="predict"))
        client.model.load(task.payload)
        by_global = client.predict().argmax(1).cpu()
        client.model.own_statistics = None  # the trained model has its statistics in the reply
        client.model.load(reply)
        said = {"global_predicted": by_global, "local_predicted": client.predict().argmax(1).cpu()}
        if "test" in self.parts:
            said["local_tested"] = self.logits(client.model, self.parts["test"], 0, len(self.parts["test"])).argmax(1)
        return said

    @property
    def pooled(self) -> bool:
        """Whether one client trains on the samples of all sites."""
        return self.sites.holdings.clients != self.judged.holdings.clients

    def used_for_training(self, client: int) -> Tensor | None:
        """Which samples of a judged site training may use; None for all."""
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


def with_verdict_by_loss(client: Client, payload: Payload) -> Payload:
    """Give the client the verdict by its losses where the question brings it; returns the rest of the question."""
    brought = {key: value for key, value in payload.items() if key.startswith(BY_LOSS)}
    if brought:
        client.by_loss = {key.removeprefix(BY_LOSS): value.to(client.given.device) for key, value in brought.items()}
    return {key: value for key, value in payload.items() if key not in brought}


def reply_on_cpu(reply: Any) -> Any:
    """A reply with its tensors on the CPU; a reply that is not a dictionary is passed on, `problem_with` refuses it."""
    if isinstance(reply, Verdict):
        return {"p_wrong": reply.p_wrong.detach().cpu(), "suggested": reply.suggested.detach().cpu()}
    if not isinstance(reply, dict):
        return reply
    return reply | on_cpu({key: value for key, value in reply.items() if isinstance(value, Tensor)})


class SpareModels:
    """Further scratch models, made once and used again. A client gets these and not the host, which has all data."""

    def __init__(self, shape: Shape, setup: Setup) -> None:
        self.shape, self.setup = shape, setup
        self.models: list[FlatModel] = []

    def fresh(self, own_statistics: Tensor | None) -> Callable[[], FlatModel]:
        """A function that returns another model at every call; each has the statistics that stay on the site."""
        numbers = itertools.count()
        return lambda: self.get(next(numbers), own_statistics)

    def get(self, number: int, own_statistics: Tensor | None) -> FlatModel:
        """The model of this number."""
        while len(self.models) <= number:
            self.models.append(new_model(self.shape, self.setup))
        self.models[number].own_statistics = own_statistics
        return self.models[number]


def frozen_in(models: list[FlatModel]) -> list[str]:
    """The hashes of what is frozen in each model; empty where nothing is in any."""
    found = [model.frozen_hash for model in models]
    return found if any(found) else []


def new_model(shape: Shape, setup: Setup) -> FlatModel:
    """The model of a run, with the initial weights that its seed gives."""
    module = make_model(setup.model, shape, setup.settings.seed)
    if setup.settings.batch_norm == "batch_statistics":
        use_batch_statistics(module)
    return FlatModel(module, setup.device, fast_heads=setup.fast_heads)


def seed_layers(key: int, device: torch.device) -> None:
    """Seed the generators that layers such as dropout draw from.

    `torch.manual_seed` would be slower: it also records the call and its stack for GPUs not yet in use.
    """
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        torch.cuda.manual_seed(key)
    elif device.type == "mps":
        torch.mps.manual_seed(key)


def use_batch_statistics(module: nn.Module) -> None:
    """Let every batch normalisation use the statistics of the batch, also in scoring, and keep no running ones.

    A frozen layer stays as it is.
    """
    still = frozen_layers(module)
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer not in still:
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
