"""CIFAR-10 with the labels that people really gave: about 40 % of those used here are wrong, and nobody simulated them.

FEDWINNOW_DATA=folder-with-the-files python examples/cifar10n/people.py

Without the files (about 170 MB, not downloaded by an example) it says what is missing, and stops.
"""

from __future__ import annotations

import argparse
import os

import fedwinnow
from fedwinnow.data.load import load
from fedwinnow.errors import DataError

METHODS = ("fedavg", "feddiv")


def main() -> None:
    """Two methods on a piece of the data, on the same scene."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, default=2000, help="training samples to take")
    parser.add_argument("--rounds", type=int, default=5, help="more, if you have the time")
    asked = parser.parse_args()
    data = f"cifar10n:train={asked.train},test=500"
    os.environ.setdefault("FEDWINNOW_OFFLINE", "1")
    try:
        load(data)
    except DataError as problem:
        print(f"This example needs CIFAR-10 and CIFAR-10N, and stops here.\n{problem}")
        return
    for method in METHODS:
        result = fedwinnow.run(
            data=data,
            noise="human:column=worse",
            partition="dirichlet:alpha=1",
            clients=10,
            method=method,
            rounds=asked.rounds,
            epochs=1,
            out=f"cifar10n-example/{method}",
        )
        print(result)


if __name__ == "__main__":
    main()
