"""Encoders: samples per second by encoder and size, and the memory of mapped features."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from fedwinnow.data.dataset import Resident, Texts
from fedwinnow.encoders.encoder import Encoder
from fedwinnow.encoders.feature_cache import FeatureCache, cores
from fedwinnow.encoders.lite import Lite
from fedwinnow.encoders.tfidf import TfIdf
from fedwinnow.encoders.words import Words
from fedwinnow.errors import MissingExtraError
from fedwinnow.models.model import Shape

ROWS, WIDTH = 50_000, 1280
VISIT = 500  # samples of a client
VISITS = 100


def run(*, smallest: bool = False) -> str:
    """Samples per second, and what the features of 50,000 images take, as Markdown."""
    count, rows, visits = (16, 2_000, 2) if smallest else (1_024, ROWS, VISITS)
    lines = [
        f"From nothing to files in the cache, {cores()} threads, each with whole batches; one measurement each.",
        "",
        "| encoder | samples | samples per second |",
        "|---|---:|---:|",
    ]
    for name, encoder, samples, shape in cases(count, sizes=(32,) if smallest else (32, 128, 224)):
        try:
            speed = f"{len(samples) / seconds_to_encode(encoder, samples, shape):,.0f}"
        except MissingExtraError:
            speed = "not installed"
        lines.append(f"| {name} | {len(samples):,} | {speed} |")
    return "\n".join([*lines, "", *memory(rows, visits)])


def cases(count: int, sizes: tuple[int, ...]) -> list[tuple[str, Encoder, Any, Shape]]:
    """Random images of several sizes, and texts of 40 random words."""
    luck = np.random.default_rng(0)
    found: list[tuple[str, Encoder, Any, Shape]] = []
    for size in sizes:
        number = count if size <= 32 else count // 4
        images = Resident(luck.integers(0, 256, (number, size, size, 3), dtype=np.uint8))
        found.append((f"`lite`, images of {size} pixels", Lite(), images, Shape("images", (size, size, 3), 2)))
    words = [f"word{number}" for number in range(5_000)]
    texts = Texts([" ".join(luck.choice(words, 40)) for _ in range(count)])
    shape = Shape("tokens", (64,), 2, 100)
    return [*found, ("`words`", Words(), texts, shape), ("`tfidf`", TfIdf(), texts, shape)]


def seconds_to_encode(encoder: Encoder, samples: Any, shape: Shape) -> float:
    """How long an empty cache takes to fill; opening the weights does not count."""
    opened = encoder.open(shape)
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, FEDWINNOW_CACHE=folder):
        cache = FeatureCache(opened, encoder.name, "samples", shape.sample_shape)
        began = time.perf_counter()
        cache.encoded(samples)
        return time.perf_counter() - began


def memory(rows: int, visits: int) -> list[str]:
    """The memory of a process that maps features and visits clients, and how long a visit takes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        luck = np.random.default_rng(0)
        mapped = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(rows, WIDTH))
        for start in range(0, rows, 1000):
            mapped[start : start + 1000] = luck.random((min(1000, rows - start), WIDTH), dtype=np.float32)
        mapped.flush()
        size = path.stat().st_size / 1e6
        command = [sys.executable, "-c", VISITING, str(path), str(visits), str(VISIT)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    before, own, mapping, milliseconds = map(float, said)
    return [
        f"Features of {rows:,} x {WIDTH:,} numbers in a mapped file of half precision, {visits} visits of {VISIT} "
        "random samples each, cast to single precision and scaled:",
        "",
        f"- file: {size:,.0f} MB",
        f"- memory before the first visit: {before:,.0f} MB",
        f"- memory that the process took itself by its visits: {own:,.0f} MB",
        f"- pages of the file in memory, which the system takes back when it needs room: {mapping:,.0f} MB",
        f"- one visit: {milliseconds:.2f} ms",
    ]


# In a process of its own, so that nothing else is in its memory.
VISITING = """
import sys, time
import numpy as np
from fedwinnow.encoders.encoded import Encoded
from fedwinnow.encoders.head_input import Scaling

def used(kind):
    lines = [line.split() for line in open("/proc/self/status")] if sys.platform == "linux" else []
    return sum(int(line[1]) for line in lines if line[0] in kind) / 1000

mapped = np.load(sys.argv[1], mmap_mode="r")
features = Encoded((mapped,), np.arange(len(mapped)), Scaling.plain(mapped.shape[1], "std_l2"))
luck, visits, size = np.random.default_rng(1), int(sys.argv[2]), int(sys.argv[3])
before, file = used(("VmRSS:",)), used(("RssFile:",))
own = used(("RssAnon:",))
began = time.perf_counter()
for _ in range(visits):
    features.subset(luck.integers(0, len(mapped), size))
seconds = time.perf_counter() - began
print(before, used(("RssAnon:",)) - own, used(("RssFile:",)) - file, 1000 * seconds / visits)
"""
