"""A client as a method sees it: its samples, its given labels, a model to train, and a memory that is not sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedwinnow.all_settings import Training, Views
from fedwinnow.data.dataset import Features, InputStep
from fedwinnow.device import uploaded
from fedwinnow.encoders.encoded_views import Viewed
from fedwinnow.errors import RunError
from fedwinnow.federation.ledger import TooFew
from fedwinnow.federation.private_training import Drawing, PrivateTraining
from fedwinnow.mathematics.loss_of_logits import LossOfLogits
from fedwinnow.mathematics.optimizers import Optimizer
from fedwinnow.mathematics.payload import FlatModel, Payload
from fedwinnow.mathematics.views import random_view
from fedwinnow.models.features import logits_and_features
from fedwinnow.old_names import warn_of_old_name

FEW = 2**20  # so many numbers are kept ready for the next epoch, or prepared at once
WIDE = 2**14  # a batch of so many numbers is gathered by itself
FULL_PRECISION: AbstractContextManager[None] = nullcontext()  # made once: it is entered for every batch
Objective = Callable[[Tensor, Tensor, Tensor], Tensor]  # rows, input, given labels -> loss
Step = Callable[[], None]  # moves the weights of a model by its gradient
StepWrapper = Callable[[Step, FlatModel], Step]  # takes the optimiser's step, returns the one that is made instead


@dataclass
class Client:
    """One site during one exchange."""

    id: int
    round: int
    rounds: int
    features: Features  # stored samples
    given: Tensor  # labels as delivered, possibly wrong
    classes: int
    model: FlatModel  # scratch: a method loads what it needs
    training: Training
    optimizer: Optimizer
    input_step: InputStep
    generator: torch.Generator  # from (seed, exchange, client, round): order never matters
    state: Payload = field(default_factory=dict)  # survives rounds; stays at the site
    kept: Payload = field(default_factory=dict)  # what the judge of an audit remembers, apart from the method
    trained: Tensor | None = None  # while judging: which samples training may use; None: all
    private: PrivateTraining | None = None  # with --privacy sample: how every step is made
    spare: Callable[[], FlatModel] | None = None  # a further model, for methods that need two
    public: Client | None = None  # the samples that every site has, with the same model; all labels are -1
    ready: Tensor | None = None  # the stored samples, where they have stayed on the device since an earlier visit
    least_count: int = 0  # a value that concerns fewer samples does not leave the site
    by_loss: Payload | None = None  # the usual verdict, where it was computed for many sites together
    notes: Payload = field(default_factory=dict)  # for the evaluation of a simulation; not part of a reply
    forward_samples: int = 0
    backward_samples: int = 0

    def __len__(self) -> int:
        return len(self.given)

    @cached_property
    def class_counts(self) -> Tensor:
        """How many samples of each class the site has, by its given labels."""
        return torch.bincount(self.given, minlength=self.classes)

    @cached_property
    def few(self) -> Tensor:
        """The classes of which the site has samples, but fewer than the least count."""
        return (self.class_counts > 0) & (self.class_counts < self.least_count)

    def told(self) -> Client:
        """The site without the samples of classes in `few` and with an empty memory; itself if there are none.

        For a value about one class that would otherwise depend on samples of a class that must stay hidden.
        """
        if not bool(self.few.any()):
            return self
        rows = (~self.few[self.given]).nonzero().flatten()
        features = self.features.subset(rows.cpu().numpy())
        given = self.given[rows]
        return replace(self, features=features, given=given, ready=None, state={}, notes={}, forward_samples=0)

    def enough(self, samples: int) -> None:
        """End the exchange without a reply if what is about to leave concerns fewer samples than the least count."""
        if samples < self.least_count:
            raise TooFew

    @cached_property
    def resident(self) -> Tensor | None:
        """The stored samples on the device; None where they are read from files."""
        samples = self.in_memory if self.ready is None else self.ready
        return None if samples is None else uploaded(samples, self.model.device)

    @property
    def in_memory(self) -> Tensor | None:
        """The stored samples on the CPU; None where they are read from files."""
        rows = self.features if self.encoded_views is None else self.encoded_views.plain
        array = getattr(rows, "array", None)
        return None if array is None else torch.from_numpy(np.ascontiguousarray(array))

    @cached_property
    def fixed(self) -> Tensor | None:
        """A model's input for all samples without random views; None where that would take much memory."""
        if self.resident is None or self.resident.numel() > FEW:
            return None
        return self.input_step(self.resident)

    @property
    def encoded_views(self) -> Viewed | None:
        """The samples as an encoder's rows with those of their random views; None where there are none."""
        return self.features if isinstance(self.features, Viewed) else None

    def note(self, **tensors: Tensor) -> None:
        """Give the evaluation a value per sample, for example which ones were selected."""
        self.notes.update({name: value.detach().cpu() for name, value in tensors.items()})

    def for_all(self, kept: Tensor, otherwise: Tensor) -> Tensor:
        """Values per training sample extended to all judged samples; those that did not train have `otherwise`."""
        kept = kept.to(otherwise.device)
        if self.trained is None:
            return kept
        result = otherwise.to(kept.dtype).clone()
        result[self.trained.to(otherwise.device)] = kept
        return result

    # --- samples ---------------------------------------------------------------------------------------------------

    def batches(self, rows: Tensor | None = None) -> Iterator[Tensor]:
        """The rows (all, or these) in random order, a batch at a time."""
        order = torch.randperm(len(self) if rows is None else len(rows), generator=self.generator)
        chosen = order if rows is None else rows.cpu()[order]
        size = self.training.batch_size
        for batch in pieces(chosen, size):
            if batch.numel() < size and self.training.drop_last and len(chosen) >= size:
                return
            yield batch

    def stored(self, batches: list[Tensor]) -> Iterator[Tensor]:
        """Stored samples batch by batch; files are decoded while the batch before is used.

        Where samples have encoded views, only their rows: `plain` and `view` decide which of its rows a sample is.
        """
        if self.encoded_views is not None:
            yield from batches
        elif self.resident is not None:
            for rows in batches:
                yield self.resident.index_select(0, rows.to(self.resident.device))
        else:
            for array in self.features.stream(rows.numpy() for rows in batches):
                yield torch.from_numpy(array)

    def example(self) -> Tensor:
        """One stored sample: the shape of what a model takes."""
        return next(iter(self.stored([torch.zeros(1, dtype=torch.int64)])))

    def plain(self, stored: Tensor) -> Tensor:
        """A model's input without any random view."""
        if self.encoded_views is None:
            return self.input_step(stored)
        if self.resident is None:
            return self.input_step(self.encoded_views.take(stored.cpu().numpy()))
        return self.input_step(self.resident.index_select(0, stored.to(self.resident.device)))

    def view(self, stored: Tensor, kind: Views | None = None) -> Tensor:
        """A model's input as a random view of this kind; None: of the run's kind."""
        kind = kind or self.training.views
        if self.encoded_views is not None and kind != "none":
            return self.encoded_view(stored, kind)
        if self.input_step.kind == "images":
            stored = random_view(stored, kind, self.generator)
        return self.plain(stored)

    def encoded_view(self, stored: Tensor, kind: str, *, together: bool = False) -> Tensor:
        """A model's input as one of the encoded views of each sample; together: of the same number for all."""
        assert self.encoded_views is not None
        count = self.encoded_views.count
        numbers = torch.randint(count, (1 if together else len(stored),), generator=self.generator)
        rows = stored.cpu().numpy()
        return self.input_step(self.encoded_views.view(kind, rows, numbers.expand(len(stored)).numpy()))

    def views(
        self, batches: list[Tensor], labels: Tensor | None = None, kind: Views | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """A model's input and the labels, batch by batch; several batches are made at once, which is faster."""
        labels = self.given if labels is None else labels
        possible = self.input_step.kind == "images" or self.encoded_views is not None
        random = possible and (kind or self.training.views) != "none"
        fixed = None if random else self.fixed
        ahead, size, stored = len(batches), self.training.batch_size, self.stored(batches)
        if fixed is None:  # files are decoded one batch ahead already
            ahead = 1 if self.resident is None else max(1, FEW // (size * self.resident[0].numel()))
        elif (numbers := size * fixed.shape[1:].numel()) >= WIDE and numbers % 16 == 0:
            ahead = 1  # faster from the cache; 16 floats are a line of it, so a batch lies there as it would in a group
        for start in range(0, len(batches), max(1, ahead)):
            group = batches[start : start + ahead]
            if fixed is not None and len(group) == 1:
                rows = group[0].to(labels.device)
                yield fixed.index_select(0, rows), labels.index_select(0, rows)
                continue
            order = (group[0] if len(group) == 1 else torch.cat(group)).to(labels.device)
            if fixed is None:
                inputs = self.view(torch.cat([next(stored) for _ in group]), kind)
            else:
                inputs = fixed.index_select(0, order)
            yield from zip(torch.split(inputs, size), torch.split(labels[order], size), strict=True)

    # --- training and scoring --------------------------------------------------------------------------------------

    def fit(
        self,
        objective: Objective,
        *,
        rows: Tensor | Callable[[], Tensor] | None = None,
        epochs: int | None = None,
        labels: Tensor | None = None,
        model: FlatModel | tuple[FlatModel, ...] | None = None,
        views: Views | None = None,
        wrap_step: StepWrapper | None = None,
        by_hand: LossOfLogits | None = None,
        around: StepWrapper | None = None,
    ) -> None:
        """Train on the given rows (all by default), with the given labels (or others): the only training loop.

        If `rows` is a function, it is called before each epoch. `views` replaces the run's kind of views. `wrap_step`
        is for methods that change the optimiser's step, or do something after it; `around` is its old name. Several
        models see the same batches, and each makes its own step from one loss. `by_hand` is the objective once more, in
        the form in which a head needs no automatic differentiation; other models do not use it.
        """
        if around is not None:
            warn_of_old_name("the argument around= of fit", "wrap_step=")
            wrap_step = around
        if self.private is not None:
            if not all(one is None for one in (rows, epochs, labels, model, wrap_step)):
                raise RunError("--privacy sample: the method trains in its own way, which is not accounted.")
            self.fit_privately(self.private, by_hand, views)
            return
        models = model if isinstance(model, tuple) else (self.model if model is None else model,)
        head = None if len(models) > 1 or by_hand is None or self.half_precision else models[0].head
        optimizer, kept = self.optimizer, 0.0
        if head is not None and wrap_step is None and self.training.clip is None:
            # Nobody looks at the gradient but the optimiser: it may hold the sum that momentum is.
            optimizer, kept = self.optimizer.without_momentum()
            models[0].gradient.zero_()
        one = torch.ones((), device=self.model.device)  # where backpropagation starts; made once instead of per batch
        whole = callable(rows) or wrap_step is not None or by_hand is None or by_hand.pull is not None
        with nullcontext(self) if whole else self.on_own_rows(models, optimizer) as shown:
            steps = [self.step_of(trained, wrap_step, optimizer) for trained in models]
            for _ in range(self.training.epochs if epochs is None else epochs):
                chosen = rows() if callable(rows) else rows
                if chosen is not None and len(
                    chosen
                ):  # without rows the model goes back unchanged, which tells nothing
                    self.enough(len(chosen))
                batches = list(self.batches(chosen))
                for trained in models:
                    trained.train()
                for batch, (x, target) in zip(batches, shown.views(batches, labels, views), strict=True):
                    if head is not None and by_hand is not None:
                        by_hand.differentiate(head, models[0], x, target, kept)
                    else:
                        for trained in models:
                            trained.gradient.zero_()
                        with self.training_modes(batch, models):
                            loss = objective(batch, x, target)
                        loss.backward(one)  # type: ignore[no-untyped-call]
                    for step in steps:
                        step()
                seen = len(models) * sum(batch.numel() for batch in batches)
                self.forward_samples += seen
                self.backward_samples += seen

    @contextmanager
    def on_own_rows(self, models: tuple[FlatModel, ...], optimizer: Optimizer) -> Iterator[Client]:
        """Let a model of texts train on the rows of its table that the site's tokens use; gives the site as it sees it.

        Only where this changes no bit, that is where a model is known by its logits for these samples alone.
        """
        plain = self.input_step.kind == "tokens" and optimizer.leaves_alone and self.training.clip is None
        if not plain or len(models) > 1 or self.encoded_views is not None or self.resident is None:
            yield self
            return
        from fedwinnow.mathematics.token_rows import only_rows, rows_of, table_of

        table = table_of(models[0])
        rows = None if table is None else rows_of(self.resident, table)
        if table is None or rows is None:
            yield self
            return
        with only_rows(models[0], table, rows) as numbers:
            yield replace(self, ready=numbers[self.resident.long()])

    def fit_privately(self, private: PrivateTraining, loss: LossOfLogits | None, views: Views | None) -> None:
        """Train as --privacy sample asks for."""
        step = self.step_of(self.model, None, self.optimizer)
        private.fit(self.model, step, loss, self.training, self.drawing(views))
        # How many samples were really drawn would tell about them.
        self.forward_samples += self.training.epochs * len(self)
        self.backward_samples += self.training.epochs * len(self)

    def drawing(self, views: Views | None) -> Drawing:
        """The samples of the site for steps that draw theirs by themselves."""

        def draw(rows: Tensor) -> tuple[Tensor, Tensor]:
            labels = self.given.index_select(0, rows.to(self.given.device))
            return self.view(next(iter(self.stored([rows]))), views), labels

        return Drawing(len(self), self.classes, draw)

    def step_of(self, model: FlatModel, wrap_step: StepWrapper | None, optimizer: Optimizer) -> Step:
        """What moves a model after each batch: the optimiser's step, wrapped if a method asks for it."""
        step = optimizer.start(model.weights[: model.trainable], model.gradient)
        return self.clipped(step if wrap_step is None else wrap_step(step, model), model.gradient)

    def clipped(self, step: Step, gradient: Tensor) -> Step:
        """The step with its gradient shortened first, where the run sets a largest length (`clip`)."""
        clip = self.training.clip
        if clip is None:
            return step

        def after_clipping() -> None:
            clip_norm(gradient, clip)
            step()

        return after_clipping

    def training_modes(self, batch: Tensor, models: tuple[FlatModel, ...]) -> AbstractContextManager[None]:
        """The context of a forward pass: half precision, and the special case of a batch with one sample."""
        halved = self.half_precision
        usual = torch.autocast(self.model.device.type, dtype=torch.bfloat16) if halved else FULL_PRECISION
        return one_sample_batch(models, usual) if batch.numel() == 1 else usual

    @property
    def half_precision(self) -> bool:
        """Whether to use mixed precision; it is faster on a GPU only."""
        return self.training.mixed_precision and self.model.device.type == "cuda"

    def predict(
        self, *, rows: Tensor | None = None, model: FlatModel | None = None, views: bool | Views | None = False
    ) -> Tensor:
        """The logits of the rows (all by default), in order and without gradients; random views only on request."""
        model = self.model if model is None else model
        return score(model, self.scored(rows, model), self.chosen_view(views), self.classes)

    def predict_with_features(
        self, *, model: FlatModel | None = None, views: bool | Views | None = False
    ) -> tuple[Tensor, Tensor]:
        """The logits of all samples and the input of the last linear layer, from one forward pass."""
        model, view = self.model if model is None else model, self.chosen_view(views)
        model.module.eval()
        with torch.inference_mode():
            pairs = [logits_and_features(model.module, view(batch)) for batch in self.scored(None, model)]
        logits, features = (torch.cat(chunks) for chunks in zip(*pairs, strict=True))
        return logits.float().clone(), features.float().clone()

    def scored(self, rows: Tensor | None, model: FlatModel) -> Iterator[Tensor]:
        """Stored samples in batches for a forward pass; adds them to `forward_samples`."""
        chosen = torch.arange(len(self)) if rows is None else rows.cpu()
        self.forward_samples += len(chosen)
        return self.stored(pieces(chosen, scoring_batch(model)))

    def chosen_view(self, views: bool | Views | None) -> Callable[[Tensor], Tensor]:
        """How stored samples become input: without views (False), with the run's views (True), or of this kind."""
        if not views:
            return self.plain
        return lambda stored: self.view(stored, None if views is True else views)


def pieces(rows: Tensor, size: int) -> list[Tensor]:
    """Rows split into batches; no batch for no rows, where torch would return an empty one."""
    return list(torch.split(rows, size)) if len(rows) else []


def score(model: FlatModel, stored: Iterator[Tensor], plain: Callable[[Tensor], Tensor], classes: int) -> Tensor:
    """Logits in inference mode; batches stay as they are, because some models look at the whole batch."""
    model.module.eval()
    with torch.inference_mode():
        chunks = [model.module(plain(batch)).float() for batch in stored]
    return torch.cat(chunks).clone() if chunks else torch.zeros((0, classes), device=model.device)


def scoring_batch(model: FlatModel) -> int:
    """The batch size for scoring; fixed per model and device, because another size would change the last bit."""
    return 50 if model.convolutional and model.device.type == "cpu" else 500  # small batches are faster on a CPU


@contextmanager
def one_sample_batch(models: tuple[FlatModel, ...], usual: AbstractContextManager[None]) -> Iterator[None]:
    """Batch normalisation cannot learn from one sample: its layers then use their running statistics."""
    kind, every = torch.nn.modules.batchnorm._BatchNorm, (layer for model in models for layer in model.module.modules())
    layers = [layer for layer in every if isinstance(layer, kind) and layer.training]
    for layer in layers:
        layer.eval()
    try:
        with usual:
            yield
    finally:
        for layer in layers:
            layer.train()


def clip_norm(gradient: Tensor, largest: float) -> None:
    """Shorten the gradient to this length if it is longer."""
    gradient.mul_((largest / (gradient.norm() + 1e-6)).clamp(max=1.0))
