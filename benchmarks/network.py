"""What a network costs: one exchange with three sites over TLS on this machine, against the same exchange in a loop."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.results import paired
from fedwinnow.backends.make_backend import Serial
from fedwinnow.deployment.agreement import describe_run, hello_of
from fedwinnow.deployment.certificates import make_certificates
from fedwinnow.deployment.flower_environment import prepare as keep_quiet
from fedwinnow.deployment.keys import ServerFiles
from fedwinnow.errors import RunError, missing_extra
from fedwinnow.experiment.prepare import prepare, setup_of
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import Host, Task
from fedwinnow.federation.memory import Memory
from fedwinnow.scene.scene import Scene

if TYPE_CHECKING:
    from fedwinnow.deployment.flower_backend import Flower

MODELS = {"0.1 M": "mlp:hidden=280,layers=2", "11 M": "mlp:hidden=3280,layers=2"}


@dataclass(frozen=True)
class Size:
    """How much work there is."""

    sites: tuple[str, ...] = ("site-a", "site-b", "site-c")
    models: tuple[str, ...] = tuple(MODELS)
    turns: int = 5


SMALLEST = Size(("site-a",), ("0.1 M",), 1)


def run(*, smallest: bool = False) -> str:
    """Seconds per exchange and where they go, as Markdown."""
    if importlib.util.find_spec("flwr") is None:
        raise missing_extra("flower", "measuring the network")
    size = SMALLEST if smallest else Size()
    keep_quiet("serve")
    lines = [
        f"{len(size.sites)} sites, one process each, one client of 20 samples per site, one epoch;",
        f"medians of {size.turns} exchanges in turns with the serial backend. Packing is tensors to bytes and back",
        "on both sides, measured apart; an empty message costs what every request costs, polling included; the rest is",
        "hashes, chunks and TLS.",
        "",
        "| parameters | serial, s | network, s | ratio | packing, s | empty message, s | the rest, s |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        Scene.make(f"digits:train={20 * len(size.sites)}", clients=len(size.sites), seed=1, test=0.0).save(
            folder / "scene"
        )
        make_certificates(folder / "certs", ("localhost",), size.sites)
        lines += [measured(name, size, folder) for name in size.models]
    return "\n".join(lines)


def measured(name: str, size: Size, folder: Path) -> str:
    """One line of the table."""
    experiment = Experiment(scene=folder / "scene", model=MODELS[name], epochs=1, participation=1.0)
    with reached(experiment, size.sites, folder) as backend:
        serial = Serial(backend.host)
        weights = backend.host.model.payload()
        turn = count(1)

        def exchange(way: Flower | Serial) -> None:
            number = next(turn)
            for answer in way.exchange(
                [Task(client, "train", number, 0, weights) for client in range(len(size.sites))]
            ):
                if answer.error is not None:
                    raise RunError(answer.error)

        exchange(backend)  # sites prepare at the first question
        over, here = paired(lambda: exchange(backend), lambda: exchange(serial), size.turns)
        packing, empty = packing_of(backend, size), empty_message(backend, size.turns)
    rest = max(over - here - packing - empty, 0.0)
    return f"| {name} | {here:.3f} | {over:.3f} | {over / here:.1f} | {packing:.3f} | {empty:.3f} | {rest:.3f} |"


@contextlib.contextmanager
def reached(experiment: Experiment, names: tuple[str, ...], folder: Path) -> Iterator[Flower]:
    """A backend whose clients are in other processes."""
    from fedwinnow.deployment.flower_backend import Flower
    from fedwinnow.deployment.flower_link import Link
    from fedwinnow.deployment.flower_run import Terms, gather, other_scene
    from fedwinnow.deployment.ledger_heads import Heads

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    stage = prepare(experiment)
    setup = setup_of(stage.experiment, "cpu")
    host = Host(stage.sites, stage.judged, stage.parts, stage.method, setup, Memory(folder / "memory"))
    link = Link("127.0.0.1", port, ServerFiles(folder / "certs"), 600.0, lambda text: None)
    join = [sys.executable, "-m", "fedwinnow", "join", "--server", f"localhost:{port}", "--scene", folder / "scene"]
    sites = [
        subprocess.Popen(
            [*join, "--tls", folder / "certs" / name, "--clients", str(number), "--out", folder / name, "--quiet"]
        )
        for number, name in enumerate(names)
    ]
    try:
        terms = Terms(len(names), say=lambda text: None, names=link.name_of)
        roster = gather(link.grid, hello_of(stage, simulated=True), other_scene(stage), terms)
        heads = Heads(folder, lambda text: None)
        yield Flower(host, roster, describe_run(stage, simulated=True), stage.site_names, terms.timeout, heads)
    finally:
        for site in sites:
            site.kill()
            site.wait()
        link.close()


def packing_of(backend: Flower, size: Size) -> float:
    """Seconds for the tensors of one exchange: packed once for everybody, unpacked and packed at every site."""
    from fedwinnow.deployment.flower_records import from_records, to_records

    weights, seconds = backend.host.model.payload(), []
    for _ in range(size.turns):
        began = time.perf_counter()
        letter = to_records({}, weights, {})
        for _ in size.sites:
            _, received = from_records(letter)
            from_records(to_records({}, received, {}))
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def empty_message(backend: Flower, turns: int) -> float:
    """Seconds for a question without tensors to every site."""
    from fedwinnow.deployment.flower_backend import Letter, exchange
    from fedwinnow.deployment.flower_records import to_records

    seconds = []
    for _ in range(turns):
        began = time.perf_counter()
        hello = to_records(backend.roster.hello, {}, {})
        letters = [Letter(place, node, hello) for place, node in enumerate(backend.roster.known)]
        for _ in exchange(backend.roster.grid, letters, backend.timeout):
            continue
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
