"""The backend `processes` against a backend of joblib's loky executor with memory-mapped arrays.

The prototype here keeps the contract of a backend and gives the same answers, bit for bit. It lacks what the other one
has besides: errors that say which client a worker was busy with, workers that end with a killed program, methods from
files, and element types that NumPy does not know.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch
from joblib.externals.loky import ProcessPoolExecutor
from torch import Tensor

from benchmarks.contest import ENOUGH_ROUNDS, LastRow, player_of
from fedwinnow.backends.processes import AHEAD, STRETCHES, Processes
from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.experiment.play import Player
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.client import scoring_batch
from fedwinnow.federation.host import Answer, Host, Task
from fedwinnow.federation.memory import Memory
from fedwinnow.mathematics.payload import Payload

TURNS = 9
STARTS = 5
WORKERS = 2
MAPPED = 1 << 20  # bytes; smaller tensors travel with the message, as in joblib
RAM_DISK = "/dev/shm" if os.path.isdir("/dev/shm") else None
FAULTS = """What happened when something went wrong, with the prototype in place of `processes`, Linux, 2 workers:

- A worker was killed: the run ends with a traceback that names the signal. Ours names the signal and the client.
- Ctrl-C: exit code 130, it says how to resume, and nothing is left. Ours does the same.
- The program itself was killed: the workers train on, and their files stay in `/dev/shm`. Ours end and leave nothing.

`processes` stays: loky would have to be within 5 % in every line and to do the same in these three cases
(`tests/backends/test_faults.py`)."""

# --- the prototype ---------------------------------------------------------------------------------------------------


class Loky:
    """Runs clients in the workers of a loky executor; large arrays lie in files of a RAM disk, which all map."""

    def __init__(self, host: Host, workers: int) -> None:
        self.host, self.workers = host, workers
        self.folder = Path(tempfile.mkdtemp(prefix="loky-", dir=RAM_DISK))
        parts = (host.sites, host.judged, host.parts, host.method, host.setup, host.memory.folder.resolve())
        joblib.dump(parts, self.folder / "host")
        self.pool = ProcessPoolExecutor(workers, initializer=prepare, initargs=(self.folder,))

    def exchange(self, tasks: Iterable[Task]) -> Iterator[Answer]:
        """Answers in the order of the tasks; at most `AHEAD` tasks per worker are open."""
        written: dict[int, tuple[Tensor, Any]] = {}
        for answer in self.in_order(partial(answer_task, self.packed(task, written)) for task in tasks):
            yield replace(answer, reply=unpack(answer.reply, keep=False), notes=unpack(answer.notes, keep=False))

    def packed(self, task: Task, written: dict[int, tuple[Tensor, Any]]) -> Task:
        """The task with its large tensors in files; one that was sent before in this exchange is not written again."""
        for value in task.payload.values():
            if id(value) not in written:
                written[id(value)] = value, pack({"": value}, self.folder)[""]
        return replace(task, payload={key: written[id(value)][1] for key, value in task.payload.items()})

    def score(self, part: str, weights: Payload, count: int) -> Tensor:
        """Logits of a part, each worker a stretch of it; the batches are those of one process."""
        batch = scoring_batch(self.host.model)
        batches = -(-count // batch)
        length = batch * max(1, -(-batches // (STRETCHES * self.workers)))
        sent = pack(weights, self.folder)
        ends = [(start, min(start + length, count)) for start in range(0, count, length)]
        return torch.cat(list(self.in_order(partial(score_part, part, sent, *stretch) for stretch in ends)))

    def in_order(self, calls: Iterable[Callable[[], Any]]) -> Iterator[Any]:
        """What the calls give, in order."""
        waiting: deque[Any] = deque()
        for call in calls:
            waiting.append(self.pool.submit(call))
            if len(waiting) >= AHEAD * self.workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
        for file in self.folder.glob("*.npy"):  # the exchange is over
            file.unlink()

    def close(self) -> None:
        """End the workers and remove the files."""
        self.pool.shutdown(kill_workers=True)
        shutil.rmtree(self.folder, ignore_errors=True)


HERE: dict[str, Any] = {}  # of a worker: its host, and the folder of files


def prepare(folder: Path) -> None:
    """Make the host of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    *parts, memory = joblib.load(folder / "host", mmap_mode="r")
    HERE.update(host=Host(*parts, Memory(memory)), folder=folder)


def answer_task(task: Task) -> Answer:
    """Let a client answer, in a worker."""
    answer: Answer = HERE["host"].answer(replace(task, payload=unpack(task.payload)))
    return replace(answer, reply=pack(answer.reply, HERE["folder"]), notes=pack(answer.notes, HERE["folder"]))


def score_part(part: str, weights: dict[str, Any], start: int, stop: int) -> Tensor:
    """Logits of a stretch, in a worker."""
    return HERE["host"].score(part, unpack(weights), start, stop)


def pack(payload: Payload, folder: Path) -> dict[str, Any]:
    """Arrays in place of small tensors, paths of files in place of large ones."""
    packed: dict[str, Any] = {}
    for key, value in payload.items():
        packed[key] = array = value.detach().cpu().numpy()
        if array.nbytes >= MAPPED:
            handle, path = tempfile.mkstemp(".npy", dir=folder)
            with os.fdopen(handle, "wb") as file:
                np.save(file, array)
            packed[key] = path
    return packed


def unpack(packed: dict[str, Any], *, keep: bool = True) -> Payload:
    """The tensors again; a file that nobody else reads loses its name as soon as it is mapped."""
    found: Payload = {}
    for key, value in packed.items():
        found[key] = torch.from_numpy(np.load(value, mmap_mode="c") if isinstance(value, str) else value)
        if isinstance(value, str) and not keep:
            os.unlink(value)
    return found


# --- the comparison --------------------------------------------------------------------------------------------------


@dataclass
class Side:
    """One backend and how long its rounds took."""

    player: Player
    last: LastRow
    seconds: list[float] = field(default_factory=list)

    def turn(self) -> None:
        """One round: training and scoring, without the log and the checkpoint."""
        self.player.one_round(self.player.done + 1)
        self.seconds.append(self.last.row["seconds"] + self.last.row["evaluation_seconds"])


def random_images(count: int) -> Dataset:
    """Random images of the size of Fashion-MNIST."""
    images = np.random.default_rng(0).integers(0, 256, (count, 28, 28, 1), np.uint8)
    labels, names = np.arange(count) % 10, tuple(map(str, range(10)))
    train, test = (Samples(Resident(images), labels, np.arange(count)) for _ in range(2))
    return Dataset("random", "images", names, train, test, mean=(0.5,), std=(0.25,))


def cases(*, smallest: bool) -> dict[str, Experiment]:
    """What is played."""
    shared: dict[str, Any] = {"rounds": ENOUGH_ROUNDS, "epochs": 1, "participation": 1.0}
    small = Experiment(data="digits:train=100", clients=2, model="mlp:hidden=4", **shared)
    if smallest:
        return {"the smallest": small}
    few = random_images(200)
    return {
        "MLP 64-128-10 on digits, 20 clients": Experiment(data="digits", clients=20, model="mlp", **shared),
        "ResNet-18 with 11 M parameters, 10 clients with 20 images": Experiment(
            data=few, clients=10, model="resnet18", **shared
        ),
        "MLP with 11 M parameters, 10 clients with 20 images": Experiment(
            data=few, clients=10, model="mlp:hidden=2968,layers=2", **shared
        ),
        "CNN4 on 2,000 images, 10 clients": Experiment(data=random_images(2000), clients=10, model="cnn4", **shared),
    }


def started(stack: ExitStack, experiment: Experiment, backend: Callable[[Host, int], Any]) -> tuple[Side, float]:
    """A side after its first round, and how long its start and that round took."""
    last = LastRow()
    player = stack.enter_context(player_of(experiment, "serial", last))
    host = player.federation.backend.host  # type: ignore[attr-defined]
    began = time.perf_counter()
    player.federation.backend = backend(host, WORKERS)
    side = Side(player, last)
    side.turn()
    side.seconds.clear()
    return side, time.perf_counter() - began


def compare(experiment: Experiment, turns: int) -> tuple[list[float], list[float], bool]:
    """Seconds of the rounds of both, taken in turns, and whether both came to the same model."""
    with ExitStack() as stack:
        ours, theirs = (started(stack, experiment, backend)[0] for backend in (Processes, Loky))
        for turn in range(turns):
            for side in (ours, theirs) if turn % 2 else (theirs, ours):
                side.turn()
        models = [side.player.server.weights for side in (ours, theirs)]
        same = all(torch.equal(models[0][key], models[1][key]) for key in models[0])
        return ours.seconds, theirs.seconds, same


def run(*, smallest: bool = False) -> str:
    """Ratios of rounds and of starts, as Markdown."""
    turns, starts = (1, 1) if smallest else (TURNS, STARTS)
    lines = [
        f"The backend `processes` against loky (joblib {joblib.__version__}) with arrays in mapped files, {WORKERS} "
        "workers each.",
        f"Training and scoring of a round; medians of {turns} rounds taken in turns, all clients, 1 epoch.",
        "A ratio above 1: ours is faster. In brackets: the quickest round of each.",
        "",
        "| what | ours, ms | loky, ms | ratio | same model |",
        "|---|---:|---:|---:|---|",
    ]
    found = cases(smallest=smallest)
    for name, experiment in found.items():
        ours, theirs, same = compare(experiment, turns)
        first, second = statistics.median(ours), statistics.median(theirs)
        lines.append(
            f"| {name} | {first * 1e3:.1f} ({min(ours) * 1e3:.1f}) | {second * 1e3:.1f} ({min(theirs) * 1e3:.1f}) "
            f"| {second / first:.2f} ({min(theirs) / min(ours):.2f}) | {'yes' if same else 'NO'} |"
        )
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(starts):
        for place, backend in enumerate((Processes, Loky)):
            with ExitStack() as stack:
                times[place].append(started(stack, next(iter(found.values())), backend)[1])
    first, second = map(statistics.median, times)
    lines.append(
        f"| start and first round of the first of these | {first * 1e3:.0f} | {second * 1e3:.0f} "
        f"| {second / first:.2f} | |"
    )
    return "\n".join([*lines, "", FAULTS])
