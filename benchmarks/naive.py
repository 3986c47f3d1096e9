"""The rival: a federated round as published code does it, in a process of its own.

What is modelled is the loop of FedRN's published code (github.com/ElvinKim/FedRN): one client after the other; per
client a deep copy of the model, a loader that transforms sample by sample and collates, SGD with the loss read back at
every step, the client's last model kept beside; an average key by key; scoring with gradients on at batch 128. It runs
with torch's defaults: channels first, as many threads as there are cores. That code logs the accuracy on all training
images after every round too; this is left out here.

Where a choice was left, it was made in the rival's favour. Samples are loaded in the same process (that code starts
four loader processes anew in every epoch). Views are a few array operations per sample instead of torchvision's. Freed
memory is kept, as our own workers do; otherwise the layout of the heap decides whether a step takes a sixth longer.

How it was checked: beside a script of the published structure with the transforms of torchvision 0.29, both on one
thread, 2 clients with 500 images and 1,000 test images, the rival took about 0.9 of the processor time for training and
0.6 for scoring.

As a program it holds the data of a job and plays a round for every line on its input: `train` or `evaluate`; it answers
with the seconds of wall time that took.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from fedwinnow.device import keep_freed_memory

Images = np.ndarray[Any, np.dtype[np.uint8]]
SCORING_BATCH = 128
PADDING = 4


@dataclass(frozen=True)
class Job:
    """The work of one round, whoever does it."""

    model: str  # cnn4 or mlp
    clients: int
    participants: int
    epochs: int
    batch_size: int
    crop_and_flip: bool
    lr: float = 0.01
    momentum: float = 0.5


class Transformed(TorchDataset[tuple[Tensor, int]]):
    """Images that are cropped, flipped and normalised one by one, when they are asked for."""

    def __init__(self, images: Images, labels: np.ndarray[Any, Any], rows: list[int], *, views: bool) -> None:
        self.images, self.labels, self.rows, self.views = images, labels, rows, views
        self.mean = torch.full((images.shape[3], 1, 1), 0.5)
        self.std = torch.full((images.shape[3], 1, 1), 0.25)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        image = self.images[self.rows[place]]
        if self.views:
            height, width, channels = image.shape
            padded = np.zeros((height + 2 * PADDING, width + 2 * PADDING, channels), np.uint8)
            padded[PADDING:-PADDING, PADDING:-PADDING] = image
            top, left = torch.randint(0, 2 * PADDING + 1, (2,)).tolist()
            image = padded[top : top + height, left : left + width]
            if torch.rand(1).item() < 0.5:
                image = image[:, ::-1]
        pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float().div_(255)
        return pixels.sub_(self.mean).div_(self.std), int(self.labels[self.rows[place]])


class Cnn4(nn.Module):
    """FedRN's network: convolution, batch norm without running statistics, ReLU, pooling, four times."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 64, 64, 64, 64)
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm2d(64, track_running_stats=False) for _ in range(4))
        self.last = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = functional.max_pool2d(functional.relu(norm(convolution(x))), 2)
        logits: Tensor = self.last(x.flatten(1))
        return logits


def build(model: str) -> nn.Module:
    """The model of a job."""
    return Cnn4() if model == "cnn4" else nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


class Federation:
    """Everything that lasts from round to round."""

    def __init__(self, job: Job, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        self.job, self.model = job, build(job.model)
        images, labels = arrays["train_images"], arrays["train_labels"]
        order = torch.randperm(len(labels)).numpy()
        self.loaders = [
            DataLoader(
                Transformed(images, labels, share.tolist(), views=job.crop_and_flip),
                batch_size=job.batch_size,
                shuffle=True,
            )
            for share in np.array_split(order, job.clients)
        ]
        self.sizes = [len(share) for share in np.array_split(order, job.clients)]
        self.last_models = [build(job.model) for _ in range(job.clients)]
        images, labels = arrays["test_images"], arrays["test_labels"]
        self.test = Transformed(images, labels, list(range(len(labels))), views=False)

    def train_round(self) -> None:
        """Some clients train, one after the other; then the server averages."""
        chosen = torch.randperm(self.job.clients)[: self.job.participants].tolist()
        states = [copy.deepcopy(self.train_client(client)) for client in chosen]
        sizes = [self.sizes[client] for client in chosen]
        average = copy.deepcopy(states[0])
        for key in average:
            average[key] *= sizes[0]
            for state, size in zip(states[1:], sizes[1:], strict=True):
                average[key] += state[key] * size
            average[key] = torch.div(average[key], sum(sizes))
        self.model.load_state_dict(average)

    def train_client(self, client: int) -> dict[str, Tensor]:
        """What a client sends back."""
        local = copy.deepcopy(self.model)
        local.train()
        optimizer = torch.optim.SGD(local.parameters(), lr=self.job.lr, momentum=self.job.momentum)
        losses = []
        for _ in range(self.job.epochs):
            for x, y in self.loaders[client]:
                local.zero_grad()
                loss = functional.cross_entropy(local(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(loss.item())
        self.last_models[client].load_state_dict(local.state_dict())
        return local.state_dict()

    def evaluate(self) -> float:
        """Accuracy on the test images."""
        self.model.eval()
        loss, right = 0.0, 0
        for x, y in DataLoader(self.test, batch_size=SCORING_BATCH):
            logits = self.model(x)
            loss += functional.cross_entropy(logits, y, reduction="sum").item()
            right += int((logits.argmax(1) == y).sum())
        return right / len(self.test)


def serve(job: Job, data: Path) -> None:
    """Answer every line of the input with the seconds that its work took."""
    keep_freed_memory()
    with np.load(data) as stored:
        federation = Federation(job, {name: stored[name] for name in stored.files})
    for line in sys.stdin:
        start = time.perf_counter()
        if line.strip() == "train":
            federation.train_round()
        else:
            federation.evaluate()
        print(time.perf_counter() - start, flush=True)


class Naive:
    """The rival in a process of its own, so that neither side's settings reach the other."""

    def __init__(self, job: Job, data: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.naive", json.dumps(asdict(job)), str(data)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds_of(self, work: str) -> float:
        """Let it do one piece of work."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(work + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def __enter__(self) -> Naive:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job")
    parser.add_argument("data", type=Path)
    given = parser.parse_args()
    serve(Job(**json.loads(given.job)), given.data)
