"""What reading large data costs: a table of a million rows and 50 columns, and 100,000 images.

Each is read in a process of its own, because peak memory belongs to a process; a hundredth of it is read in the same
way, so that what the program itself takes is seen. The files are made first, in a temporary folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

ROWS, COLUMNS, IMAGES, SIDE = 1_000_000, 50, 100_000, 64
LIMIT = 4_000.0  # MB
PIECE = 10_000


def run(*, smallest: bool = False) -> str:
    """Seconds and peak memory of reading, as Markdown."""
    shares = (0.002,) if smallest else (0.01, 1.0)
    lines = [
        f"Reading to the first batch, each in a process of its own. Aim: at most {LIMIT:,.0f} MB.",
        "",
        "| data | on disk, MB | seconds | peak memory, MB | against the aim | said how far it is, times |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for share in shares:
            rows, images = max(int(ROWS * share), 100), max(int(IMAGES * share), 100)
            table, pictures = Path(folder, f"{rows}.csv"), Path(folder, f"images-{images}")
            make_table(table, rows)
            name = f"{rows:,} rows x {COLUMNS} columns, `csv`"
            lines.append(line(name, [table], f"csv:path={table},label=label", folder))
            table.unlink()
            make_images(pictures, images)
            lines.append(
                line(f"{images:,} images of {SIDE} x {SIDE}, `folder`", pictures.rglob("*.png"), str(pictures), folder)
            )
    return "\n".join(lines)


def line(name: str, files: Iterable[Path], spec: str, folder: str) -> str:
    """One measurement as a row of the table."""
    size = sum(path.stat().st_size for path in files) / 1e6
    environment = os.environ | {"FEDWINNOW_CACHE": str(Path(folder, "cache"))}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.data", spec], env=environment, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return (
        f"| {name} | {size:,.0f} | {found['seconds']:.1f} | {found['memory']:,.0f} | {found['memory'] / LIMIT:.2f} | "
        f"{found['told']} |"
    )


def make_table(path: Path, rows: int) -> None:
    """A table of 40 columns of numbers, 9 of texts and the label, written in pieces."""
    dice = np.random.default_rng(0)
    numbers, texts = [f"n{place}" for place in range(COLUMNS - 10)], [f"t{place}" for place in range(9)]
    with path.open("w") as stream:
        stream.write(",".join([*numbers, *texts, "label"]) + "\n")
        for start in range(0, rows, PIECE):
            count = min(PIECE, rows - start)
            values = np.char.mod("%.3f", dice.normal(50, 10, (count, len(numbers))))
            words = np.array(["low", "middle", "high", "unknown"])[dice.integers(0, 4, (count, len(texts)))]
            labels = np.array(["healthy", "ill"])[dice.integers(0, 2, (count, 1))]
            block = np.concatenate([values, words, labels], axis=1)
            stream.write("\n".join(map(",".join, block.tolist())) + "\n")


def make_images(folder: Path, images: int) -> None:
    """Pictures of noise in two classes."""
    from PIL import Image

    dice = np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    for place in range(images):
        pixels = dice.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "ab"[place % 2] / f"{place:06}.png", compress_level=1)


def measure(spec: str) -> None:
    """Read, take a batch, and print what it cost."""
    from fedwinnow.data.load import load
    from fedwinnow.data.pace import Progressed, watched
    from fedwinnow.experiment.summary import peak_memory

    told: list[Progressed] = []
    began = time.perf_counter()
    with watched(told.append):
        dataset = load(spec)
    dataset.train.features.take(np.arange(min(64, len(dataset.train))))
    print(json.dumps({"seconds": time.perf_counter() - began, "memory": peak_memory(), "told": len(told)}))


if __name__ == "__main__":
    measure(sys.argv[1])
