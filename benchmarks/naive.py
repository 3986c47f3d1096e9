"""The yardstick: a federated round as published code usually does it, in a process of its own.

A loader that transforms sample by sample, a deep copy of the model per client, an average key by key, the default
layout and the default number of threads, and scoring with gradients on at batch 128.

As a program it holds the data of a job and plays a round for every line on its input: `train` or `evaluate`; it answers
with the seconds that took.
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

Images = np.ndarray[Any, np.dtype[np.uint8]]
Shares = list[list[int]]  # the rows of each client
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
            height, width, _ = image.shape
            padded = np.pad(image, ((PADDING, PADDING), (PADDING, PADDING), (0, 0)))
            top, left = torch.randint(0, 2 * PADDING + 1, (2,)).tolist()
            image = padded[top : top + height, left : left + width]
            if torch.rand(1).item() < 0.5:
                image = image[:, ::-1]
        pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float().div(255)
        return (pixels - self.mean) / self.std, int(self.labels[self.rows[place]])


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


def train_round(job: Job, model: nn.Module, images: Images, labels: np.ndarray[Any, Any], shares: Shares) -> None:
    """Some clients train, one after the other; then the server averages."""
    states, sizes = [], []
    for client in torch.randperm(job.clients)[: job.participants].tolist():
        local = copy.deepcopy(model)
        local.train()
        optimizer = torch.optim.SGD(local.parameters(), lr=job.lr, momentum=job.momentum)
        samples = Transformed(images, labels, shares[client], views=job.crop_and_flip)
        loader = DataLoader(samples, batch_size=job.batch_size, shuffle=True)
        losses = []
        for _ in range(job.epochs):
            for x, y in loader:
                optimizer.zero_grad()
                loss = functional.cross_entropy(local(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(loss.item())
        states.append(copy.deepcopy(local.state_dict()))
        sizes.append(len(samples))
    average = copy.deepcopy(states[0])
    for key in average:
        average[key] = sum(state[key] * (size / sum(sizes)) for state, size in zip(states, sizes, strict=True))
    model.load_state_dict(average)


def evaluate(model: nn.Module, images: Images, labels: np.ndarray[Any, Any]) -> float:
    """Accuracy on the test images."""
    model.eval()
    samples = Transformed(images, labels, list(range(len(labels))), views=False)
    loss, right = 0.0, 0
    for x, y in DataLoader(samples, batch_size=SCORING_BATCH):
        logits = model(x)
        loss += functional.cross_entropy(logits, y, reduction="sum").item()
        right += int((logits.argmax(1) == y).sum())
    return right / len(labels)


def serve(job: Job, data: Path) -> None:
    """Answer every line of the input with the seconds that its work took."""
    with np.load(data) as stored:
        arrays = {name: stored[name] for name in stored.files}
    model = build(job.model)
    order = torch.randperm(len(arrays["train_labels"])).numpy()
    shares = [share.tolist() for share in np.array_split(order, job.clients)]
    for line in sys.stdin:
        start = time.perf_counter()
        if line.strip() == "train":
            train_round(job, model, arrays["train_images"], arrays["train_labels"], shares)
        else:
            evaluate(model, arrays["test_images"], arrays["test_labels"])
        print(time.perf_counter() - start, flush=True)


class Naive:
    """The yardstick in a process of its own, so that neither side's settings reach the other."""

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
