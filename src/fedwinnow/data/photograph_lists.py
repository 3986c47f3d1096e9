"""Text lists of photographs, which come with large data sets: a name per line, often with a label."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.dataset import Features, Samples
from fedwinnow.data.images import load_images
from fedwinnow.errors import DataError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def read_lines(path: Path) -> list[tuple[int, str]]:
    """The lines that are not empty, each with its number."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"{path} cannot be read ({problem}).") from problem
    return [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]


def read_labelled(path: Path, classes: int) -> tuple[list[str], NDArray[np.int64]]:
    """Names and labels of a list with lines such as `images/0/1.jpg 7`."""
    names, labels = [], []
    for number, line in read_lines(path):
        name, _, label = line.rpartition(" ")
        if not name or not label.isdecimal() or int(label) >= classes:
            raise DataError(
                f"{path}, line {number}: '{line}' was found; needed: a name and a label of 0 to {classes - 1}."
            )
        names.append(name.strip())
        labels.append(int(label))
    return names, np.array(labels, dtype=np.int64)


def read_csv(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """The chosen columns of a CSV file with a header, row by row, each with its line number."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.reader(stream)
            header = [title.strip() for title in next(rows, [])]
            if lacking := [column for column in columns if column not in header]:
                raise DataError(
                    f"{path} has no column {', '.join(lacking)}; its header is {', '.join(header) or 'empty'}."
                )
            places = [header.index(column) for column in columns]
            for row in rows:
                if not row:
                    continue
                if len(row) < len(header):
                    raise DataError(f"{path}, line {rows.line_num}: {len(row)} values; the header has {len(header)}.")
                yield rows.line_num, [row[place] for place in places]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise DataError(f"{path} cannot be read ({problem}).") from problem


def photographs(
    where: Path,
    paths: list[Path],
    names: list[str],
    labels: NDArray[np.int64],
    size: int,
    true: NDArray[np.int64] | None = None,
) -> Samples:
    """The samples of the photographs that the list `where` names."""
    if not paths:
        raise DataError(f"{where} names no photograph of the chosen classes.")
    if not paths[0].is_file():
        raise DataError(f"{paths[0]} is missing: the lists are there, but not the photographs that {where} names.")
    features: Features = load_images(paths, size, "auto", names, channels=3)
    return Samples(features, labels, np.array(names), true=true)
