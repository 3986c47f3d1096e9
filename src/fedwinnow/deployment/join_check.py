"""`join --check`: everything that a site can find out before the day of the run, as lines with what to do."""

from __future__ import annotations

import os
import shutil
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from fedwinnow.deployment.agreement import columns_hash, experiment_of
from fedwinnow.deployment.asked import SUMS_EXPOSE, what_is_asked
from fedwinnow.deployment.asked_in_words import leaves_in_words, models_in_words
from fedwinnow.deployment.check_visit import ask_hello
from fedwinnow.deployment.error_codes import REFUSED, for_others
from fedwinnow.deployment.expiry import SITE, check_expiry
from fedwinnow.deployment.exposure_limit import Declined, refuse_beyond
from fedwinnow.deployment.keys import SiteFiles
from fedwinnow.deployment.model_size import parameters_of, with_size
from fedwinnow.deployment.objections import objections
from fedwinnow.deployment.policy import shipped
from fedwinnow.deployment.reach import Reached, check_clock, reach
from fedwinnow.deployment.site import Site, claim
from fedwinnow.deployment.site_data import OwnData, SceneShare
from fedwinnow.errors import DataError, FedwinnowError, FedwinnowWarning, UsageError
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.method import find_method
from fedwinnow.models.make_model import in_turn, make_model
from fedwinnow.version import __version__

ROOM = 200 * 2**20  # bytes that a site's files need besides models
COPIES = 6  # of a model, at most, that a site keeps: its memory of two rounds and the verdict
State = Literal["ok", "note", "wrong", "open"]


@dataclass(frozen=True)
class Checked:
    """One line: what was checked, and what was found; `open`: it cannot be known yet, `note`: look at it."""

    what: str
    state: State
    text: str
    exit_code: int = 0


@dataclass
class Preparation:
    """The checks of one site, in the order in which one repairs: first what is here, then what others have to do."""

    server: str
    files: SiteFiles | None
    folder: Path
    name: str
    read: Callable[[], OwnData | SceneShare]  # reads the site's data
    make_site: Callable[[OwnData | SceneShare], Site]
    kept: ExitStack  # what to leave at the end: the lock of the folder
    by_person: bool = False  # whether a person is asked when this site joins, so that the default policy only advises
    site: Site | None = None
    ready: bool = False  # whether the folder is this process's own, so that its ledger can be written
    reached: Reached | None = None
    hello: dict[str, Any] | None = None  # what the coordinator will ask
    experiment: Experiment | None = None
    done: list[Checked] = field(default_factory=list)

    def lines(self) -> Iterator[Checked]:
        """All checks, each as soon as it is known; later ones are open where an earlier one failed."""
        for what, check, needs in self.steps():
            if needs is not None and not needs():
                yield self.noted(Checked(what, "open", "not known before the lines above are right"))
                continue
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always", FedwinnowWarning)
                line = self.outcome(what, check)
            yield self.noted(line)
            for one in heard:
                if issubclass(one.category, FedwinnowWarning):
                    yield self.noted(Checked(what, "note", str(one.message)))

    def steps(self) -> list[tuple[str, Callable[[], str], Callable[[], bool] | None]]:
        """Every check with its name, and what must be known before it."""
        data, link, both = self.has_data, self.has_link, self.has_agreement
        return [
            ("program", programs, None),
            ("keys", self.keys, None),
            ("data", self.data, None),
            ("disk", self.disk, None),
            ("coordinator", self.coordinator, None),
            ("clock", self.clock, link),
            ("admission", self.admission, lambda: data() and link() and self.ready),
            ("task", self.task, lambda: self.hello is not None),
            ("exposure", self.exposure, both),
            ("policy", self.policy, both),
            ("classes", self.classes, both),
            ("schema", self.schema, both),
            ("encoder", self.encoder, both),
            ("model", self.model, both),
        ]

    def outcome(self, what: str, check: Callable[[], str]) -> Checked:
        """One check as a line; its error says what is wrong and what to do."""
        try:
            return Checked(what, "ok", check())
        except FedwinnowError as problem:
            return Checked(what, "wrong", str(problem), problem.exit_code)

    def noted(self, line: Checked) -> Checked:
        self.done.append(line)
        return line

    @property
    def exit_code(self) -> int:
        """0, or the kind of the first thing that is wrong."""
        return next((line.exit_code for line in self.done if line.state == "wrong"), 0)

    def in_words(self) -> str:
        """The last line: whether this site is ready, and what is not known yet."""
        wrong = sum(line.state == "wrong" for line in self.done)
        unknown = [line.what for line in self.done if line.state == "open"]
        if not wrong:
            return "this site is ready to join"
        later = f"; not known before that: {', '.join(unknown)}" if unknown else ""
        return f"{wrong} to repair{later}"

    def has_data(self) -> bool:
        return self.site is not None

    def has_link(self) -> bool:
        return self.reached is not None

    def has_agreement(self) -> bool:
        return self.has_data() and self.experiment is not None

    # --- what is here ----------------------------------------------------------------------------------------------

    def keys(self) -> str:
        """The site's key and the authority's certificate."""
        from fedwinnow.deployment.flower_visit import load_pair

        if self.files is None:
            return "none: --insecure, everything travels as plain text"
        soon: list[str] = []
        check_expiry(self.files.folder, SITE, soon.append)
        load_pair(self.files)
        for line in soon:
            warnings.warn(line, FedwinnowWarning, stacklevel=1)
        if os.name != "nt" and stat.S_IMODE(self.files.key.stat().st_mode) & 0o077:
            warnings.warn(
                f"others on this machine can read {self.files.key}, and whoever has it can act as this site. Type: "
                f"chmod 600 {self.files.key}",
                FedwinnowWarning,
                stacklevel=1,
            )
        return f"{self.files.folder} is complete, and its certificate is valid"

    def data(self) -> str:
        """Read the data as `join` will."""
        holding = self.read()
        self.site = self.make_site(holding)
        if isinstance(holding, SceneShare):
            return f"{len(holding.numbers)} clients of the scene {holding.scene.hash[:12]}"
        dataset = holding.dataset
        samples, least = len(dataset.train), holding.least_count
        if samples < least:
            warnings.warn(
                f"{samples} samples are fewer than the least count ({least}): this site will take no part in training.",
                FedwinnowWarning,
                stacklevel=1,
            )
        return f"{samples} samples, {len(dataset.class_names)} classes ({dataset.kind})"

    def disk(self) -> str:
        """Whether the site's folder can be written, is used by no other process, and has room."""
        self.kept.enter_context(RunFolder(self.folder).locked())
        claim(self.folder, self.name)
        self.ready = True
        return self.room_for(ROOM)

    def room_for(self, needed: int) -> str:
        """The free space of the folder's disk; an error if it is too little."""
        try:
            free = shutil.disk_usage(self.folder).free
        except OSError as problem:
            raise DataError(f"{self.folder}: cannot be looked at ({problem.strerror}). Choose another --out.") from None
        if free < needed:
            raise DataError(
                f"{self.folder}: {free / 1e6:.0f} MB are free, and up to {needed / 1e6:.0f} MB are needed. Free some "
                f"space, or choose another --out."
            )
        return f"{free / 1e9:.1f} GB free in {self.folder}"

    # --- the coordinator -------------------------------------------------------------------------------------------

    def coordinator(self) -> str:
        """Reach the coordinator, without a key of this site."""
        self.reached = reach(self.server, self.files)
        return f"{self.server} answers after {self.reached.seconds:.2f} seconds"

    def clock(self) -> str:
        """The difference of the two clocks."""
        assert self.reached is not None
        return check_clock(self.reached.ahead)

    def admission(self) -> str:
        """Connect with this site's key and hear what will be asked."""
        assert self.site is not None
        self.hello = ask_hello(self.site, self.server, self.files)
        return "the key is known, and this site may come in" if self.files else f"this site may come in as {self.name}"

    # --- what will be asked ----------------------------------------------------------------------------------------

    def task(self) -> str:
        """The method and its settings, as this site's own version understands them."""
        assert self.hello is not None
        experiment = experiment_of(self.hello)
        method = find_method(experiment.method)
        self.experiment = experiment
        return f"{method.name}, {experiment.rounds} rounds, fedwinnow {self.hello.get('fedwinnow')} there"

    def exposure(self) -> str:
        """What may leave this site, against what it allows."""
        hello, site = self.agreed()
        method = find_method(self.settings.method)
        exposed = {**method.exposed(), **(SUMS_EXPOSE if hello.get("encoder") else {})}
        refuse_beyond(method, exposed, site.allowed)
        return f"may leave this site: {leaves_in_words(exposed, method.forwarded())}"

    def policy(self) -> str:
        """What the site's policy, or the default one, has against what is asked."""
        hello, site = self.agreed()
        asked = with_size(what_is_asked(hello, site.holding.samples, site.coordinator), hello, site.holding)
        found = [] if site.holding.simulated else objections(site.consent.policy, asked)
        if found and not self.by_person:
            raise for_others(
                Declined(f"{'; '.join(found)}. Talk to the coordinator's people, or change {site.consent.by}."), REFUSED
            )
        for one in found:
            warnings.warn(f"the default policy objects: {one}", FedwinnowWarning, stacklevel=1)
        if self.by_person:
            return "none was given, so a person is asked when this site joins"
        return f"nothing is asked that {site.consent.by} does not allow"

    def classes(self) -> str:
        """The data against the coordinator's task: its classes and the form of its samples."""
        hello, site = self.agreed()
        said = site.holding.introduction(hello.get("task"), self.settings.least_count)
        if "scene" in said:
            return f"the scene is {said['scene'][:12]}; the coordinator compares it when this site joins"
        if "few" in said:
            warnings.warn(
                f"the coordinator's least count is {self.settings.least_count}: this site has fewer samples and will "
                f"take no part in training.",
                FedwinnowWarning,
                stacklevel=1,
            )
        return f"those of the coordinator: {', '.join(hello['task']['class_names'])}"

    def schema(self) -> str:
        """Whether both sides turn a table into numbers in the same way."""
        hello, site = self.agreed()
        theirs = hello.get("columns")
        if not isinstance(site.holding, OwnData) or theirs is None:
            return "not needed: the samples are no table"
        if columns_hash(site.holding.dataset) != theirs:
            raise for_others(
                DataError(
                    "the columns become numbers in another way than at the coordinator, so the same number would mean "
                    "something else. Use the coordinator's schema: --data csv:path=...,schema=FILE."
                ),
                "samples",
            )
        return "that of the coordinator"

    def encoder(self) -> str:
        """The weights of the encoder."""
        hello, site = self.agreed()
        encoder = site.holding.agree_on_encoder(hello)
        return "none is used" if encoder is None else f"{encoder.encoder} has the coordinator's weights"

    def model(self) -> str:
        """Build the model, and see that its copies fit on the disk."""
        hello, site = self.agreed()
        shape = site.holding.shape_of_model(hello)
        sizes, weights = [], 0
        for spec in in_turn(self.settings.model):
            weights = max(weights, parameters_of(spec, shape))
            if weights > shipped().parameters:
                raise UsageError(f"the model has {weights:,} weights, more than this check builds.")
            module = make_model(spec, shape, self.settings.seed)
            sizes.append(sum(value.numel() * value.element_size() for value in module.state_dict().values()))
        self.room_for(ROOM + COPIES * max(sizes))
        return f"{models_in_words(self.settings.model)}, {weights:,} weights, can be built here and fits on the disk"

    def agreed(self) -> tuple[dict[str, Any], Site]:
        """What was heard, and the site that would answer it."""
        assert self.hello is not None
        assert self.site is not None
        return self.hello, self.site

    @property
    def settings(self) -> Experiment:
        assert self.experiment is not None
        return self.experiment


def programs() -> str:
    """The versions of this site."""
    return f"fedwinnow {__version__}, Flower {version('flwr')}, torch {version('torch')}"
