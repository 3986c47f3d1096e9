"""A whole run over a Flower grid: wait for the sites, play the rounds, tell the sites that the run is over."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from flwr.serverapp import Grid

from fedwinnow.data.dataset import Dataset
from fedwinnow.data.load import load
from fedwinnow.deployment.agreed_encoder import asks_sums, early_encoding, fitted, sums_from
from fedwinnow.deployment.agreement import describe_run, hello_name, hello_of, identity
from fedwinnow.deployment.flower_backend import Flower, Letter, Names, Roster, Unfit, answer_of, exchange
from fedwinnow.deployment.flower_records import to_records
from fedwinnow.deployment.flower_sums import WARNING, SumsOverFlower, over_flower
from fedwinnow.deployment.ledger_heads import Heads
from fedwinnow.deployment.real_sites import real_stage, task_data
from fedwinnow.encoders.head_input import Scaling, Sums
from fedwinnow.errors import RunError, UsageError
from fedwinnow.experiment.encoder_sums import OF_ENCODER, from_row
from fedwinnow.experiment.encoding import SUMS, Encoding, saved_encoding
from fedwinnow.experiment.play import Execution, Player, Watcher, claimed
from fedwinnow.experiment.prepare import Stage, prepare
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.summing import refuse_single_replies
from fedwinnow.federation.host import Host
from fedwinnow.federation.method import find_method
from fedwinnow.federation.rounds import MOST_VIOLATIONS
from fedwinnow.federation.summing.summed_form import from_sum
from fedwinnow.mathematics.fixed_point import largest_error
from fedwinnow.mathematics.payload import size_in_bytes
from fedwinnow.models.model import Shape

LOOK = 0.2  # seconds between two looks for sites
LARGEST = 10**7  # samples of one site: the coordinator needs 32 bytes for each, so more could fill its memory


@dataclasses.dataclass(frozen=True)
class AuditStep:
    """How far an audit is: what is done now, of several trainings which one, and whom it goes on without."""

    what: Literal["training", "judging", "counting", "writing", "looks", "over", "lost"]
    number: int = 0
    of: int = 0
    detail: str = ""  # the question; of a site that is lost, the reason
    site: str = ""  # the one that is lost


@dataclasses.dataclass(frozen=True)
class Terms:
    """The settings of a run over a network that other runs do not have."""

    sites: int
    timeout: float = 600.0  # seconds for a site to answer one question
    patience: float = 3600.0  # seconds to wait for the sites
    say: Callable[[str], None] = print
    names: Names | None = None  # the name that a node's key belongs to; None where there are no keys
    quorum: float = 1.0  # the share of the sites that must take part, where others decline
    meet: Callable[[Roster], None] = lambda roster: None  # is given the roster, which knows who is there
    peers: Callable[[str], Any] | None = None  # the public key of a site, for secure sums with real sites
    step: Callable[[AuditStep], None] = lambda step: None  # is told how far an audit is
    agree: Callable[[int], None] = lambda size: None  # is given the size of the model in bytes, before the first round

    def under(self, execution: Execution) -> Terms:
        """The same with the quorum of a run, where sites may be left out."""
        return dataclasses.replace(self, quorum=execution.quorum) if execution.on_client_error == "drop" else self

    def __post_init__(self) -> None:
        for flag, value in (("sites", self.sites), ("timeout", self.timeout), ("patience", self.patience)):
            if not value > 0:
                raise UsageError(f"--{flag} {value} was given; allowed: above 0.")


@dataclasses.dataclass
class DroppedSites(Watcher):
    """Tells the operator after each round which sites were left out, and why."""

    say: Callable[[str], None]

    def round(self, row: dict[str, Any]) -> None:
        for site, reason in row["dropped"].items():
            self.say(f"round {row['round']}: {site} was left out: {reason}")
        for site in row.get("ended", ()):
            self.say(f"{site}: its part in this run is over, because {MOST_VIOLATIONS} of its replies broke the rules")


def coordinate(
    grid: Grid,
    experiment: Experiment,
    out: Path,
    execution: Execution,
    terms: Terms,
    watchers: tuple[Watcher, ...] = (),
) -> dict[str, Any]:
    """Play an experiment with the sites of a grid, and return its summary."""
    folder = RunFolder(out)
    with folder.locked():
        if (out / "config.toml").exists():  # an error here, before the sites are waited for
            folder.settings()  # refuses a folder of a newer version
            if not (execution.resume or execution.redo):
                raise UsageError(
                    f"--out {out} already holds a run. Add --resume to continue it, or choose another folder."
                )
        done = folder.played() if execution.anew is None else 0
        kept = out if execution.resume else None
        roster, stage = assembled(grid, experiment, terms.under(execution), {"done": done}, kept)
        return play_over(roster, stage, folder, execution, terms, watchers)


def assembled(
    grid: Grid, experiment: Experiment, terms: Terms, more: dict[str, Any], kept_in: Path | None
) -> tuple[Roster, Stage]:
    """Wait for the sites, and make the stage of a run with them.

    `more` is what they are told besides the settings; `kept_in` is the folder of a run that is continued.
    """
    if experiment.secure_sums:
        refuse_single_replies(find_method(experiment.method))
        terms.say(WARNING)
    if experiment.scene is not None:
        stage = prepare(experiment)
        roster = gather(grid, hello_of(stage, simulated=True) | more, other_scene(stage), terms)
        check_shares(roster, stage)
    else:
        own = task_data(load(experiment.data))
        encoding = early_encoding(experiment.encoder, own)
        # Finds errors in method and model before sites come.
        early = real_stage(experiment, own, {"anybody": 1}, encoding)
        roster = gather(grid, hello_of(early, simulated=False) | more, no_samples, terms)
        samples = {facts["site"]: 0 if too_few(facts) else facts["samples"] for facts in roster.known.values()}
        if encoding is not None and asks_sums(encoding):
            kept = None if kept_in is None else earlier(kept_in, experiment, own)
            encoding = kept or sums_fitted(roster, experiment, encoding, terms, tuple(sorted(samples)))
        stage = real_stage(experiment, own, samples, encoding)
        if stage.absent:
            terms.say(f"absent, with fewer samples than the least count: {', '.join(stage.absent)}")
    roster.begin(stage.site_names)
    return roster, stage


def earlier(folder: Path, experiment: Experiment, own: Dataset) -> Encoding | None:
    """The encoder of a run that is continued, with its scaling; its files may have been moved."""
    return saved_encoding(folder, Shape.of(own), own.mean, own.std, experiment.encoder)


def gather(grid: Grid, hello: dict[str, Any], unfit: Unfit, terms: Terms) -> Roster:
    """Wait until enough sites have connected, and print which ones."""
    roster = Roster(grid, hello, unfit, terms.names, terms.say)
    terms.meet(roster)
    until, shown = time.monotonic() + terms.patience, -1
    while True:
        roster.refresh()
        there = sorted(facts["site"] for facts in roster.known.values())
        if len(there) != shown:
            terms.say(f"{len(there)} of {terms.sites} sites are there: {', '.join(there) or 'none yet'}")
            shown = len(there)
        if len(there) >= terms.sites or goes_on_without(roster, terms):
            return roster
        if time.monotonic() > until:
            why = "".join(f" The {text}." for text, _ in roster.refused.values())
            raise RunError(f"only {len(there)} of {terms.sites} sites came within {terms.patience:g} seconds.{why}")
        time.sleep(LOOK)


def goes_on_without(roster: Roster, terms: Terms) -> bool:
    """Whether every expected site has come or declined, and enough have come; an error if too few have."""
    absent = sorted(set(roster.declined.values()) - {facts["site"] for facts in roster.known.values()})
    came, needed = len(roster.known), max(1, math.ceil(terms.quorum * terms.sites - 1e-9))
    if not absent or came + len(absent) < terms.sites:
        return False
    why = "".join(f" The {text}" for text, _ in roster.refused.values())
    if came < needed:
        raise RunError(f"only {came} of {terms.sites} sites take part; the quorum is {needed}.{why}")
    terms.say(f"the run begins without {', '.join(absent)}")
    return True


def sums_fitted(
    roster: Roster, experiment: Experiment, encoding: Encoding, terms: Terms, names: tuple[str, ...]
) -> Encoding:
    """The encoder with its scaling from the sums of the sites: of each, or with --secure-sums of all together."""
    if not experiment.secure_sums:
        return fitted(encoding, sums_of_sites(roster, encoding, terms), names)
    from fedwinnow.federation.summing.secure_sums import SecureSums, Session

    nodes = {names.index(facts["site"]): node for node, facts in roster.known.items() if not too_few(facts)}
    over = SumsOverFlower(
        lambda: nodes, lambda client: roster.hello, lambda letters, _: exchange(roster.grid, letters, terms.timeout)
    )
    assert terms.peers is not None
    run, share = hello_name(roster.hello), experiment.secure_threshold
    session = Session(run, SUMS, 0, 0, share)

    def ask(phase: Any, letters: dict[int, Any]) -> Any:
        return over.phase(phase, letters)

    scale, width = encoding.data_encoder.scale, encoding.data_encoder.opened.width
    one = SecureSums(over, names, terms.peers, run, share).sum(nodes, session, ask)
    total = one.result()
    for client, problem in one.dropped.items():
        terms.say(f"{names[client]}: its sums for the encoder are not used: {problem}")
    row = from_sum(total.form, total.ring, OF_ENCODER)[0][SUMS].numpy()
    if len(row) != 1 + width * (1 if scale == "idf_l2" else 2):
        raise RunError("the secure sum of the encoder's columns does not have the form that the encoder needs.")
    scaling = Scaling.fitted(scale, [from_row(row, scale, width)], width, rounding=largest_error(len(total.members)))
    return Encoding(encoding.data_encoder, scaling, total.members)


def sums_of_sites(roster: Roster, encoding: Encoding, terms: Terms) -> dict[str, Sums]:
    """The sums that the scaling of an encoder is fitted from; a site whose sums cannot be used is left out of them."""
    asked = {node: facts for node, facts in roster.known.items() if not too_few(facts)}
    letters = [
        Letter(place, node, to_records(roster.hello | {"kind": "sums"}, {}, {})) for place, node in enumerate(asked)
    ]
    scale, width = encoding.data_encoder.scale, encoding.data_encoder.opened.width
    found: dict[str, Sums] = {}
    for letter, outcome in exchange(roster.grid, letters, terms.timeout):
        assert letter.node is not None
        facts, answer = asked[letter.node], answer_of(letter.number, outcome)
        told = answer.error or sums_from(answer.reply.get(SUMS), scale, width, facts["samples"])
        if isinstance(told, str):
            terms.say(f"{facts['site']}: its sums for the encoder are not used: {told}")
        else:
            found[facts["site"]] = told
    return found


def no_samples(facts: dict[str, Any]) -> str | None:
    """Why a real site cannot take part: it states an impossible number of samples; None if it can."""
    samples = facts.get("samples")
    if too_few(facts) or (type(samples) is int and 0 < samples < LARGEST):
        return None
    return f"it says that it has {str(samples)[:80]} samples; allowed: a number from 1 to {LARGEST - 1}"


def too_few(facts: dict[str, Any]) -> bool:
    """Whether a site has fewer samples than the least count: it is connected, but absent from every round."""
    return facts.get("few") is True


def other_scene(stage: Stage) -> Unfit:
    """Why a site of a simulation cannot take part: another scene than the coordinator's, or no list of clients."""

    def unfit(facts: dict[str, Any]) -> str | None:
        if facts.get("scene") != stage.scene.hash:
            theirs, ours = str(facts.get("scene"))[:12], stage.scene.hash[:12]
            return f"it has the scene {theirs}, the coordinator {ours}. Copy the coordinator's scene folder to the site"
        return None if "clients" in facts else "it does not say which clients it has"

    return unfit


def check_shares(roster: Roster, stage: Stage) -> None:
    """Refuse to start while a client of the scene is at no site."""
    places = roster.places(stage.site_names)
    if absent := [client for client in range(stage.sites.holdings.clients) if client not in places]:
        raise UsageError(f"client {absent[0]} is at no site ({len(absent)} in all); give --clients at the sites.")


def play_over(
    roster: Roster, stage: Stage, folder: RunFolder, execution: Execution, terms: Terms, watchers: tuple[Watcher, ...]
) -> dict[str, Any]:
    """Play a run with the sites that have come."""
    run = describe_run(stage, simulated=stage.simulated)
    backends: list[Flower] = []

    def reach(host: Host) -> Flower:
        described = run | ({"frozen": host.frozen} if host.frozen else {})
        heads = Heads(folder.path, terms.say)
        backends.append(Flower(host, roster, described, stage.site_names, terms.timeout, heads))
        return backends[0]

    claim = claimed(stage, folder, execution)

    def sums(backend: Any) -> Any:
        from fedwinnow.federation.summing.secure_sums import SecureSums, simulated_peers
        from fedwinnow.federation.summing.summed_exchange import SummedExchanges

        peers = simulated_peers(stage.experiment.seed, stage.site_names) if stage.simulated else terms.peers
        assert peers is not None
        share = stage.experiment.secure_threshold
        sums = SecureSums(over_flower(backend), stage.site_names, peers, identity(backend.run), share)
        return SummedExchanges(sums)

    over_network = dataclasses.replace(execution, backend="flower", reach=reach, sums=sums)
    player = Player(stage, folder, over_network, (*watchers, DroppedSites(terms.say)))
    claim.take(folder)
    terms.agree(size_in_bytes(player.server.weights))
    summary = player.play()
    federation = player.federation
    last = {c: (federation.to_judge(c), federation.memory.versions.get(c)) for c in range(player.server.clients)}
    for reason, clients in backends[0].finish(player.done, last).items():
        names = ", ".join(stage.site_names[client] for client in clients)
        terms.say(f"{names}: not told that the run is over ({reason})")
    return summary
