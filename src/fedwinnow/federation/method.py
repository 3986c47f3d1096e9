"""The contract of a method: one paper, one file. Override only what the paper changes; the rest is FedAvg.

A method has two halves in one class. The server's half plays a round as a conversation (`exchanges`); the client's half
answers on site (`train` and any other function that an exchange names). What a client returns is all that leaves it.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedwinnow import catalogue
from fedwinnow.catalogue import said_in_code, unused
from fedwinnow.encoders.encoded_views import ViewKind
from fedwinnow.errors import RunError, UsageError
from fedwinnow.federation.client import Client
from fedwinnow.federation.server import Server
from fedwinnow.federation.view_kinds import view_kind
from fedwinnow.mathematics.aggregators import Aggregator
from fedwinnow.mathematics.loss_of_logits import LossOfLogits
from fedwinnow.mathematics.losses import Loss, loss_of, soft
from fedwinnow.mathematics.payload import COUNT, MODEL, Exposure, Payload, ReplyForm, Summing, maybe
from fedwinnow.old_names import warn_of_old_name
from fedwinnow.options import Part, build, option
from fedwinnow.randomness import stream_key

Replies = Iterator[tuple[int, Payload]]


class RepliesInOrder:
    """The replies that a method receives, one by one; a method cannot reach the federation through them."""

    __slots__ = ("_source",)

    def __init__(self, source: Replies) -> None:
        # A weak reference, because the generator's frame refers to the backend and so to the data of every site.
        self._source = weakref.ref(source)

    def __iter__(self) -> Replies:
        return self

    def __next__(self) -> tuple[int, Payload]:
        source = self._source()
        if source is None:  # the exchange is over
            raise StopIteration
        return next(source)


@dataclass(frozen=True)
class Exchange:
    """One question to some clients: `ask` names the method's function that answers it on site.

    Clients answer at the same time, so what `send` returns must not depend on replies to the same question: a method
    that learns from replies changes its state after the last one.
    """

    ask: str
    clients: Sequence[int]
    send: Callable[[int], Payload]
    optional: bool = False  # the round goes on even if nobody answers
    turn: bool = False  # one of several questions that go to the sites in turn: the quorum is over all of the round


@dataclass(frozen=True)
class Verdict:
    """What a method thinks of a site's labels: how much speaks against each (0 to 1), and which class it may be."""

    p_wrong: Tensor
    suggested: Tensor


@dataclass(frozen=True)
class Method(Part):
    """Base of every method."""

    # Every key that a client may send, and what its receiver can learn from it. Any other key stops the run.
    exposes: ClassVar[dict[str, Exposure]] = {"weights": "model", "counters": "model", "samples": "client"}
    # The keys that the server also passes on to other sites unchanged, each with when and why.
    forwards: ClassVar[dict[str, str]] = {}
    # The keys of which the server needs only the sum over sites, or the mean weighted by `samples`; --secure-sums lets
    # it see no other. A class with `merge` or `exchanges` of its own declares them again.
    sums: ClassVar[dict[str, Summing]] = {"weights": "mean", "counters": "mean", "samples": "sum"}
    # Who must answer besides the clients that train in a round; empty: nobody.
    asks: ClassVar[str] = ""
    # What a run must provide: "trusted_data", "public_data", "truth" (cheats), "pooled_data" (not federated).
    needs: ClassVar[tuple[str, ...]] = ()
    # Whether the paper says how models are merged; then `aggregate` cannot be set.
    own_aggregation: ClassVar[bool] = False
    # Whether every client keeps its own model, perhaps of another architecture, and there is no global model.
    own_models: ClassVar[bool] = False
    # Inherited options (loss, mixup, aggregate) that the method uses although its code does not show it.
    uses: ClassVar[tuple[str, ...]] = ()
    stages: ClassVar[tuple[str, ...]] = ("train",)
    citation: ClassVar[str] = ""

    loss: Any = option("cross_entropy", "The loss of local training, for example gce:q=0.7 (see `fedwinnow losses`).")
    mixup: float = option(0.0, "Mix pairs of samples with a share from Beta(mixup, mixup); 0: no mixing.", at_least=0)
    aggregate: str = option(
        "mean", "How models are merged, for example trimmed_mean:share=0.2 (see `fedwinnow aggregators`)."
    )

    steady: float = option(
        0.0,
        "What stays of the answering model, an average of global models, in a round; 0: the last global model answers.",
        at_least=0,
        at_most=1,
    )

    def __init_subclass__(cls, **more: Any) -> None:
        """`verdict` was called `judge` in 0.1; methods that define `judge` still work."""
        super().__init_subclass__(**more)
        if "judge" in vars(cls) and "verdict" not in vars(cls):
            warn_of_old_name(f"{cls.__name__}.judge", "verdict")
            cls.verdict = vars(cls)["judge"]  # type: ignore[method-assign]
        elif "verdict" in vars(cls):
            cls.judge = vars(cls)["verdict"]  # for `super().judge(...)`
        if {"merge", "exchanges"} & vars(cls).keys() and "sums" not in vars(cls):
            cls.sums = {}  # what the base says of its own merging need not hold here
        if "objective" in vars(cls) and "by_hand" not in vars(cls):
            cls.by_hand = differentiated  # type: ignore[method-assign]  # that of the base is of another objective

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", loss_of(self.loss))  # in Python it may be a function
        super().__post_init__()
        _ = self.criterion  # so that an unknown loss is an error here and not on a client
        if self.aggregator.name != "mean" and self.own_aggregation:
            raise UsageError(
                f"{self.name}: aggregate={self.aggregate} was given, but how models are merged is part of this method; "
                f"allowed: mean. fedavg:aggregate={self.aggregate} is that rule by itself."
            )
        if self.steady and self.own_models:
            raise UsageError(
                f"{self.name}: steady={self.steady:g} was given, but every client has its own model here and there is "
                f"no global one to average; allowed: 0."
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in self.unused() and value != field.default:
                raise UsageError(
                    f"{self.name}: {field.name}={value} was given, but this method does not use it; allowed: "
                    f"{field.default}. A method that uses it although its code does not show it declares: "
                    f'uses = ("{field.name}",).'
                )

    @property
    def needs_views(self) -> bool:
        """Whether the method is nothing without random views of images; an encoder then needs `views=4`."""
        return False

    @property
    def view_kinds(self) -> tuple[ViewKind, ...]:
        """The random views that the method looks at besides those of `--views`, for an encoder that encodes some.

        A method with views of its own overrides it; if it needs views, they are `crop_flip` and `strong`.
        """
        return (view_kind("crop_flip"), view_kind("strong")) if self.needs_views else ()

    @classmethod
    @cache
    def unused(cls) -> tuple[str, ...]:
        """The inherited options that have no effect in this method."""
        lineage = [part for part in cls.__mro__ if issubclass(part, Method)]
        facts = {name: getattr(cls, name) for name in ("uses", "own_aggregation", "own_models")}
        return unused([said_in_code(part) for part in lineage], facts)

    @property
    def mixes(self) -> str:
        """The setting by which samples are mixed, or empty; a run on texts is then refused."""
        return f"mixup={self.mixup:g}" if self.mixup else ""

    def needed(self) -> tuple[str, ...]:
        """What a run must provide with these options; override it where an option needs more than `needs`."""
        return self.needs

    def exposed(self) -> dict[str, Exposure]:
        """Every key that may leave a site with these options; override it where an option sends less than `exposes`."""
        return dict(self.exposes)

    def forwarded(self) -> dict[str, str]:
        """What other sites may receive with these options: `forwards`, and models if the aggregator picks one."""
        chosen = self.aggregator.chooses()
        return {**(dict.fromkeys(("weights", "counters"), chosen) if chosen else {}), **self.forwards}

    def summed(self) -> dict[str, Summing]:
        """The keys of which sums over sites are enough with these options."""
        found: dict[str, Summing] = {key: kind for key, kind in self.sums.items() if key in self.exposed()}
        if self.aggregator.name != "mean":
            found = {key: kind for key, kind in found.items() if kind != "mean"}
        return found

    def singles(self) -> tuple[str, ...]:
        """The keys that the server must see of every single site with these options."""
        return tuple(key for key in self.exposed() if key not in self.summed())

    def by_class(self) -> dict[str, int]:
        """The keys with values per class of a site, and the axis of the classes; 0 must mean "no such class"."""
        return {}

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        """What the keys of a reply must look like; one that does not costs the site its part in the round.

        Models are compared with the one that was sent in any case. A key without a form may have any shape.
        """
        forms = model_forms(server)
        return (
            forms if type(self).merge is Method.merge and ask in ("train", self.question(server)[1]) else maybe(forms)
        )

    # --- the server's half -----------------------------------------------------------------------------------------

    def start(self, server: Server) -> None:
        """Before the first round: fill `server.state`."""

    def exchanges(self, server: Server) -> Generator[Exchange, Replies, None]:
        """One round: yield a question, receive the replies, ask again or return."""
        stage, ask = self.question(server)
        server.note(stage=stage)
        replies = yield Exchange(ask, self.choose(server), lambda client: self.send(server, client))
        self.merge(server, replies)

    def question(self, server: Server) -> tuple[str, str]:
        """The stage of this round and the function that answers on site; enough for many methods with stages."""
        return "train", "train"

    def choose(self, server: Server) -> Sequence[int]:
        """The clients that take part in this round."""
        return server.sample()

    def send(self, server: Server, client: int) -> Payload:
        """What one client receives, for training and for judging its labels.

        For judging, and in `models`, `server.weights` holds the answering model: with `steady`, the average.
        """
        return dict(server.weights)

    def merge(self, server: Server, replies: Replies) -> None:
        """Make the new global model; replies come one by one, in the order of `choose`."""
        begin = server.release or (lambda: self.aggregator.collect(server.weights, server.model.trainable))
        merged = begin()
        for _, reply in replies:
            merged.add(reply, float(reply["samples"]))
        server.weights = merged.result()

    def models(self, server: Server) -> Sequence[Payload]:
        """The models that are tested: the global one, or several whose answers are joined."""
        return [server.weights]

    def joined(self, answers: Sequence[Tensor]) -> Tensor:
        """One set of logits from those of several models: the logarithm of their mean probabilities."""
        if len(answers) == 1:
            return answers[0]
        stacked = torch.stack([answer.log_softmax(1) for answer in answers])
        return torch.logsumexp(stacked, 0) - math.log(len(answers))

    # --- the client's half, on site --------------------------------------------------------------------------------

    def train(self, client: Client, got: Payload) -> Payload:
        """Train the received model on the site's samples; what this returns leaves the site."""
        client.model.load(got)
        client.fit(lambda rows, x, y: self.objective(client, rows, x, y, got), by_hand=self.by_hand(client, got))
        return self.reply(client)

    def load(self, client: Client, got: Payload) -> None:
        """Put the model that is judged and measured into `client.model`: the global one, or the client's own."""
        if not self.own_models:  # a client's own model is loaded already
            client.model.load(got)

    def objective(self, client: Client, rows: Tensor, x: Tensor, y: Tensor, got: Payload) -> Tensor:
        """The loss of one batch; a method that changes only the loss overrides only this."""
        x, target = self.mix(client, x, y)
        return self.criterion.mean(client.model.module(x), target, client.class_counts)

    def by_hand(self, client: Client, got: Payload) -> LossOfLogits | None:
        """`objective` once more, in the form in which small heads train fastest; None: by automatic differentiation.

        A class that overrides `objective` alone has None, so this is never the form of another objective.
        """
        return LossOfLogits(self.criterion, client.class_counts, lambda x, y: self.mix(client, x, y))

    def reply(self, client: Client, model: str = "") -> Payload:
        """The trained model and the number of samples it was trained on."""
        return client.model.payload(model) | {"samples": torch.tensor(len(client))}

    def verdict(self, client: Client, got: Payload) -> Verdict:
        """Which labels are probably wrong: by default those for which the answering model has a large loss."""
        from fedwinnow.mathematics.wrong_by_loss import wrong_by_loss

        if client.by_loss is not None:
            self.load(client, got)
            return Verdict(**client.by_loss)
        logits = self.logits(client, got)
        losses = torch.nn.functional.cross_entropy(logits, client.given, reduction="none")
        return Verdict(p_wrong=wrong_by_loss(losses), suggested=logits.argmax(1))

    judge = verdict  # its old name

    def predict(self, client: Client, got: Payload) -> Payload:
        """The predictions and losses of the model on the site's samples, for measuring memorisation in a simulation."""
        logits = self.logits(client, got)
        losses = torch.nn.functional.cross_entropy(logits, client.given, reduction="none")
        return {"predicted": logits.argmax(1).cpu(), "loss": losses.float().cpu()}

    def logits(self, client: Client, got: Payload) -> Tensor:
        """The logits of the received model, or of the client's own, for all samples of the site."""
        self.load(client, got)
        return client.predict()

    # --- shared by many --------------------------------------------------------------------------------------------

    @cached_property
    def criterion(self) -> Loss:
        """The loss that the option names."""
        made = catalogue.make("losses", self.loss)
        assert isinstance(made, Loss)
        return made

    @cached_property
    def aggregator(self) -> Aggregator:
        """The aggregator that the option names."""
        made = catalogue.make("aggregators", self.aggregate)
        assert isinstance(made, Aggregator)
        return made

    def mix(self, client: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mixed samples and soft labels if `mixup` is set, else the batch itself."""
        if self.mixup == 0 or len(x) < 2:
            return x, y
        share = beta_draw(self.mixup, client.generator)
        partner = torch.randperm(len(x), generator=client.generator).to(x.device)
        target = soft(y, x.new_zeros(1, client.classes))
        return share * x + (1 - share) * x[partner], share * target + (1 - share) * target[partner]


def model_forms(server: Server) -> dict[str, ReplyForm]:
    """A reply with the trained model, or with several, and the number of samples."""
    return {**dict.fromkeys(server.weights, MODEL), "samples": COUNT}


def differentiated(self: Method, client: Client, got: Payload) -> LossOfLogits | None:
    """The answer of `by_hand` for an objective that is known by its values alone."""
    return None


def beta_draw(alpha: float, generator: torch.Generator) -> float:
    """One draw from Beta(alpha, alpha), from an explicit generator: two gamma draws make one."""
    gammas = torch._standard_gamma(torch.full((2,), alpha, dtype=torch.float64), generator=generator)
    return float(gammas[0] / gammas.sum())


WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def verdict_of(method: Method, client: Client, got: Payload) -> Verdict:
    """The method's verdict on the site's labels, checked; the caller adds the client to an error."""
    found = method.verdict(client, got)
    problem = problem_with_verdict(found, len(client), client.classes)
    if problem is not None:
        raise RunError(f"the verdict of method '{method.name}' is invalid: {problem}.")
    return found


def problem_with_verdict(found: object, samples: int, classes: int) -> str | None:
    """What is wrong with a verdict on this many samples and classes; None if it is valid."""
    if not isinstance(found, Verdict):
        return f"`verdict` returned a {type(found).__name__}; allowed: Verdict(p_wrong, suggested)"
    for name, value in (("p_wrong", found.p_wrong), ("suggested", found.suggested)):
        if not isinstance(value, Tensor):
            return f"{name} is a {type(value).__name__}; allowed: a tensor with one number per sample"
        if value.shape != (samples,):
            return f"{name} has the shape {tuple(value.shape)}; allowed: ({samples},), the site's samples"
    return problem_with_chances(found.p_wrong) or problem_with_classes(found.suggested, classes)


def problem_with_chances(p_wrong: Tensor) -> str | None:
    """Why these are not probabilities; None if they are."""
    if not p_wrong.is_floating_point():
        return f"p_wrong is {p_wrong.dtype}; allowed: floating-point numbers from 0 to 1"
    if bad := first(p_wrong, ~((p_wrong >= 0) & (p_wrong <= 1))):  # written so that NaN is bad, too
        return f"p_wrong is {bad[1]:g} for sample {bad[0]}; allowed: 0 to 1"
    return None


def problem_with_classes(suggested: Tensor, classes: int) -> str | None:
    """Why these are not classes; None if they are."""
    if suggested.dtype not in WHOLE:
        return f"suggested is {suggested.dtype}; allowed: whole numbers, the classes"
    if bad := first(suggested, (suggested < 0) | (suggested >= classes)):
        return f"suggested is {bad[1]:g} for sample {bad[0]}; allowed: the classes 0 to {classes - 1}"
    return None


def first(values: Tensor, bad: Tensor) -> tuple[int, float] | None:
    """The place and the value of the first bad one; None if there is none."""
    places = bad.nonzero().flatten()
    return (int(places[0]), float(values[places[0]])) if len(places) else None


OWN_METHOD = "fedwinnow_own_method_"  # the modules of users' files are named so


def find_method(spec: str | dict[str, Any] | Part | type) -> Method:
    """The method of this spec; `./my_method.py:key=value` takes it from a file. In Python it may be a class."""
    if isinstance(spec, type):
        if not issubclass(spec, Method):
            raise UsageError(f"the class {spec.__name__} was given as the method, but does not derive from Method.")
        return made_from(spec)
    name, values = catalogue.split("methods", spec) if isinstance(spec, str | dict) else ("", {})
    if name.endswith(".py"):  # in a run folder, a table may name a file too
        return build("method", method_in(Path(name)), values)
    made = catalogue.make("methods", spec)
    if not isinstance(made, Method):
        raise UsageError(
            f"{spec} was given as the method, but is a {type(made).__name__}; allowed: a method, by name (`fedwinnow "
            "methods` lists them), by its file, or made in Python."
        )
    return made


def made_from(kind: type[Method]) -> Method:
    """A method from its class, which says how it is called."""
    if not kind.name:
        raise UsageError(f'{kind.__name__} has no name; add `name: ClassVar[str] = "..."`.')
    return build("method", kind, {})


def method_in(path: Path) -> type[Method]:
    """The one method class that a file defines."""
    if not path.is_file():
        raise UsageError(f"--method {path}: there is no such file.")
    name = f"{OWN_METHOD}{stream_key(0, str(path.resolve())):x}"
    module_spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses in the file look their module up
    try:
        module_spec.loader.exec_module(module)
    except Exception as problem:
        del sys.modules[name]
        raise UsageError(f"--method {path}: the file does not import: {type(problem).__name__}: {problem}") from problem
    found = [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, Method) and thing.__module__ == module.__name__
    ]
    # A class that another class in the file derives from does not count.
    found = [thing for thing in found if not any(thing in other.__mro__[1:] for other in found)]
    if len(found) != 1:
        names = ", ".join(thing.__name__ for thing in found) or "none"
        raise UsageError(f"--method {path}: the file must define one class that derives from Method; found: {names}.")
    if not found[0].name:
        raise UsageError(f'--method {path}: {found[0].__name__} has no name; add `name: ClassVar[str] = "..."`.')
    return found[0]
