"""The small data sets of results/PROTOCOL.md as CSV files: `python -m benchmarks.protocol_data --out protocol-data`.

Tables come from the folder `tables` of a data folder (FEDWINNOW_DATA), breast cancer and digits from scikit-learn, and
the texts from installed packages: what eight of them say about their functions; the class is the package.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.battery_cases import MOST, OTHER_PACKAGES, PACKAGES, docstrings
from fedwinnow.data.published_files import data_folders
from fedwinnow.errors import DataError

TABLES = ("segment", "hypothyroid", "dermatology", "soybean")


def main(words: list[str] | None = None) -> None:
    """Write every set and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("protocol-data"))
    parser.add_argument("--smallest", action="store_true", help="one set alone, into a folder that is deleted")
    asked = parser.parse_args(words)
    print("| file | samples |\n|---|---:|")
    if asked.smallest:
        with tempfile.TemporaryDirectory() as folder:
            print(f"| cancer | {of_scikit(Path(folder), 'cancer', 'breast_cancer')} |")
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, theirs in (("cancer", "breast_cancer"), ("digits-development", "digits")):
        print(f"| {name} | {of_scikit(asked.out, name, theirs)} |")
    for name, packages in (("texts-development", PACKAGES), ("texts-study", OTHER_PACKAGES)):
        print(f"| {name} | {texts(asked.out / f'{name}.csv', packages)} |")
    for name in TABLES:
        print(f"| {name} | {table(asked.out, name)} |")


def of_scikit(out: Path, name: str, theirs: str) -> int:
    """A set that scikit-learn brings along, as a table."""
    from sklearn import datasets

    found = getattr(datasets, f"load_{theirs}")()
    rows = ([*values, int(label)] for values, label in zip(found.data.tolist(), found.target, strict=True))
    return written(out / f"{name}.csv", [*(f"x{place}" for place in range(found.data.shape[1])), "label"], rows)


def texts(path: Path, packages: tuple[str, ...]) -> int:
    """Docstrings, as in the battery of audits."""
    rows = ([text, package] for package in packages for text in sorted(docstrings(package))[: MOST // 4])
    return written(path, ["text", "label"], rows)


def table(out: Path, name: str) -> int:
    """A copy of a table."""
    path = next((found for folder in data_folders() if (found := folder / "tables" / f"{name}.csv").exists()), None)
    if path is None:
        raise DataError(f"{name}.csv is in no folder `tables` of a data folder. Name its folder in FEDWINNOW_DATA.")
    text = path.read_text(encoding="utf-8")
    (out / f"{name}.csv").write_text(text, encoding="utf-8")
    return len(text.splitlines()) - 1


def written(path: Path, head: list[str], rows: Iterable[list[Any]]) -> int:
    """Write a table; how many rows it has."""
    held = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(held)
    return len(held)


if __name__ == "__main__":
    main()
