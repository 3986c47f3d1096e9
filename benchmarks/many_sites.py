"""Thirty sites at once on this machine: a run over TLS, one process for each site, as `serve` and `join` start it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedwinnow.deployment.certificates import make_certificates
from fedwinnow.errors import RunError, missing_extra
from fedwinnow.scene.scene import Scene

MODEL = "mlp:hidden=280,layers=2"  # 0.1 million parameters
EVERY = 0.5  # seconds between two looks
PATIENCE = 1800.0  # seconds for the whole run


@dataclass(frozen=True)
class Size:
    """How much work there is."""

    sites: int = 30
    rounds: int = 10


SMALLEST = Size(2, 2)


def run(*, smallest: bool = False) -> str:
    """How long the sites take to come and to play, and how much memory everybody needs, as Markdown."""
    if importlib.util.find_spec("flwr") is None:
        raise missing_extra("flower", "measuring many sites")
    size = SMALLEST if smallest else Size()
    with tempfile.TemporaryDirectory() as place:
        line = measured(size, Path(place))
    return "\n".join(
        [
            f"`fedwinnow serve` and {size.sites} times `fedwinnow join`, all started at once, over TLS with keys;",
            f"{size.rounds} rounds of FedAvg with 0.1 million parameters, 20 samples and one epoch at every site, all",
            "sites in every round. Memory is the most that a process has had. A reply that is missing is one of a site",
            "that was asked in a round and left out of it.",
            "",
            "| sites | all there, s | first round, s | later rounds, median s | replies missing | exit code |"
            " memory of a site, median MB | of the coordinator, MB |",
            "|---:|---:|---:|---:|---:|---:|---:|---:|",
            line,
        ]
    )


def measured(size: Size, folder: Path) -> str:
    """One line of the table."""
    names = tuple(f"site-{number:02d}" for number in range(size.sites))
    Scene.make(f"digits:train={20 * size.sites}", clients=size.sites, seed=1, test=0.2).save(folder / "scene")
    make_certificates(folder / "certs", ("localhost",), names)
    began = time.monotonic()
    with started(size, folder, names) as processes:
        there, memory = 0.0, dict[str, int]()
        while processes["serve"].poll() is None:
            if time.monotonic() - began > PATIENCE:
                raise RunError(f"no end after {PATIENCE:g} seconds:\n{(folder / 'serve.log').read_text()[-2000:]}")
            if not there and f"{size.sites} of {size.sites} sites are there" in (folder / "serve.log").read_text():
                there = time.monotonic() - began
            for name, process in processes.items():
                memory[name] = max(memory.get(name, 0), most_memory(process.pid))
            time.sleep(EVERY)
        code = processes["serve"].returncode
    path = folder / "run" / "rounds.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if not rows:
        raise RunError(f"no round was played:\n{(folder / 'serve.log').read_text()[-2000:]}")
    missing = sum(size.sites - len(row["participants"]) for row in rows) + (size.rounds - len(rows)) * size.sites
    later = statistics.median(row["seconds"] for row in rows[1:])
    of_sites = statistics.median(memory[name] for name in names)
    return (
        f"| {size.sites} | {there:.0f} | {rows[0]['seconds']:.1f} | {later:.2f} | {missing} of "
        f"{size.sites * size.rounds} | {code} | {of_sites:.0f} | {memory['serve']} |"
    )


@contextlib.contextmanager
def started(size: Size, folder: Path, names: tuple[str, ...]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """The coordinator and all sites; they end with the measurement."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    program, scene = [sys.executable, "-m", "fedwinnow"], ["--scene", str(folder / "scene")]
    serve = ["serve", *scene, "--sites", str(size.sites), "--rounds", str(size.rounds), "--model", MODEL]
    serve += ["--epochs", "1", "--tls", str(folder / "certs"), "--port", str(port), "--out", str(folder / "run")]
    words = {"serve": serve}
    for number, name in enumerate(names):
        keys = ["--tls", str(folder / "certs" / name), "--clients", str(number), "--out", str(folder / name)]
        words[name] = ["join", "--server", f"localhost:{port}", *scene, *keys]
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, given in words.items():
            with (folder / f"{name}.log").open("wb") as log:
                processes[name] = subprocess.Popen([*program, *given], stdout=log, stderr=log, cwd=folder)
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def most_memory(process: int) -> int:
    """The most memory that a process has had so far, in MB; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process}/status").read_text(encoding="utf-8"))
        return int(found[1]) // 1024 if found else 0
    return 0
