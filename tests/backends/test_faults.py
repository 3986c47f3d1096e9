"""What goes wrong is said, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import fedwinnow
from fedwinnow.backends.make_backend import make_backend
from fedwinnow.backends.processes import Processes
from fedwinnow.errors import RunError, UsageError
from fedwinnow.federation.method import Method
from fedwinnow.testing import comparable

RUN = {"clients": 4, "participation": 1.0, "rounds": 2, "epochs": 1, "model": "mlp", "noise": "none"}
HANGS = 600  # seconds: nothing may take longer


@pytest.mark.parametrize("act", ["raise", "nothing", "number", "key without a text", "undeclared", "nan", "shape"])
def test_the_same_words_as_serial(act, material, tmp_path, lend):
    said = {}
    for workers in (0, 2):
        lend(workers)
        with pytest.raises(RunError, match=r"client 1 \(client-1\), round 1, train: ") as caught:
            fedwinnow.run(method=f"{material}/strange_replies.py:act={act}", out=tmp_path / str(workers), **RUN)
        said[workers] = str(caught.value).splitlines()[0]
    assert said[2] == said[0]


def test_a_dropped_client_is_dropped_everywhere(material, tmp_path, lend):
    found = {}
    for workers in (0, 2):
        lend(workers)
        out = tmp_path / str(workers)
        fedwinnow.run(method=f"{material}/strange_replies.py", out=out, on_client_error="drop", **RUN)
        found[workers] = comparable(out)
    assert found[0]["rounds.jsonl"][0]["dropped"] == {"client-1": "IndexError: list index out of range"}
    assert found[2] == found[0]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals are those of POSIX")
@pytest.mark.parametrize(
    ("act", "how", "workers"), [("die", "by SIGKILL", 2), ("leave", "with exit code 3", 1)], ids=["killed", "left"]
)
def test_a_worker_that_dies_ends_the_run(act, how, workers, material, tmp_path, nothing_left):
    with pytest.raises(RunError, match=rf"was ended {how} while it was busy with client 1 \(train, round 1\)"):
        fedwinnow.run(
            method=f"{material}/strange_replies.py:act={act}",
            out=tmp_path,
            backend=f"processes:workers={workers}",
            **RUN,
        )
    nothing_left()


def test_methods_that_nobody_else_can_import(make_host, crews, nothing_left):
    @dataclass(frozen=True)
    class Hidden(Method):
        name: ClassVar[str] = "hidden"

    host = make_host()
    host.method = Hidden()
    with pytest.raises(UsageError, match=r"Hidden cannot be found.*into a file.*--backend serial"):
        Processes(host, 1, crews[1])
    host.method = OnlyHere()
    with pytest.raises(UsageError, match=r"OnlyHere cannot be found.*into a file.*--backend serial"):
        Processes(host, 1, crews[1])
    nothing_left()
    Processes(make_host(), 1, crews[1]).close()


@dataclass(frozen=True)
class OnlyHere(Method):
    """Its module is one that no other process can import."""

    name: ClassVar[str] = "only_here"


OnlyHere.__module__ = "a_module_of_nowhere"


@pytest.mark.parametrize("model", [torch.nn.Flatten(), lambda classes: torch.nn.Flatten()])
def test_models_that_have_no_name(model, make_host, crews):
    host = make_host()
    host.setup = type(host.setup)(model, host.setup.settings)
    with pytest.raises(UsageError, match=r"the model .*cannot be found.*--backend serial"):
        Processes(host, 1, crews[1])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("processes:workers=0", "workers=1 or more"),
        ("processes:workers=two", "a whole number"),
        ("processes:threads=2", "unknown option of backend 'processes': 'threads'.*Allowed: workers"),
        ("serial:workers=2", "unknown option of backend 'serial'"),
        ("process", "Did you mean 'processes'"),
    ],
)
def test_wrong_specs(spec, words, make_host):
    with pytest.raises(UsageError, match=words):
        make_backend(spec, make_host())


# --- signals to the whole program ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Two programs with a worker each, started together because that takes seconds."""
    if sys.platform != "linux":
        pytest.skip("processes and shared memory are looked up in /proc and /dev/shm")
    material = Path(__file__).parent / "material"
    started = {}
    for name in ("kill", "interrupt"):
        out = tmp_path_factory.mktemp(name)
        words = ["--method", f"{material}/strange_replies.py:act=nothing,seconds=3600", "--out", str(out / "run")]
        words += ["--data", "digits", "--clients", "4", "--backend", "processes:workers=1"]
        started[name] = subprocess.Popen(
            [sys.executable, "-m", "fedwinnow", "run", *words],
            cwd=out,
            env=os.environ | {"PYTHONPATH": str(Path(fedwinnow.__file__).parent.parent)},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    yield started
    for program in started.values():
        program.kill()
        program.wait()


def workers_of(program: subprocess.Popen[str]) -> dict[int, set[str]]:
    """Its worker processes, and the shared memory they have opened, once they are at work."""
    until = time.monotonic() + HANGS
    while time.monotonic() < until:
        assert program.poll() is None, program.stdout.read()
        children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
        found = {int(child): segments_of(int(child)) for child in children}
        # A worker has arrays of its own to read, and one arena for the question and one for the answer.
        if any(len(names) >= 6 for names in found.values()):
            return found
        time.sleep(0.1)
    raise AssertionError("no worker came to work")


def segments_of(process: int) -> set[str]:
    """The names of our shared memory that a process has mapped."""
    try:
        lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    except OSError:  # it ended while we were looking
        lines = []
    return {line.rpartition("/")[2] for line in lines if "/dev/shm/fedwinnow_" in line}


def gone(workers: dict[int, set[str]]) -> bool:
    """Whether all those processes and all that memory are gone, after some patience."""
    names = set().union(*workers.values())
    until = time.monotonic() + HANGS
    while time.monotonic() < until:
        alive = [one for one in workers if Path(f"/proc/{one}").exists() and state_of(one) != "Z"]
        if not alive and not any(Path("/dev/shm", name).exists() for name in names):
            return True
        time.sleep(0.1)
    return False


def state_of(process: int) -> str:
    """R, S, Z, ... as the system says."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_killed_program_takes_its_workers_along(programs):
    workers = workers_of(programs["kill"])
    programs["kill"].kill()
    assert gone(workers)


def test_an_interrupted_program_says_how_to_resume(programs):
    workers = workers_of(programs["interrupt"])
    os.killpg(programs["interrupt"].pid, signal.SIGINT)  # as a terminal does: to the workers as well
    said, _ = programs["interrupt"].communicate(timeout=HANGS)
    assert programs["interrupt"].returncode == 130
    assert "--resume" in said
    assert "Traceback" not in said
    assert gone(workers)
