"""`python -m benchmarks [NAME] [--write]`: run one benchmark or all, print Markdown, keep it if asked."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from benchmarks import engine, growth, network, scenes, small, start
from benchmarks.results import machine, write_section

BENCHMARKS = {
    "scenes": scenes.run,
    "engine": engine.run,
    "small": small.run,
    "growth": growth.run,
    "start": start.run,
    "network": network.run,
}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=BENCHMARKS, help="one benchmark; without it, all")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/RESULTS.md")
    parser.add_argument("--epochs", type=int, default=engine.EPOCHS, help="local epochs of `engine`; 1: a quick look")
    chosen = parser.parse_args()
    runs = BENCHMARKS | {"engine": partial(engine.run, chosen.epochs)}
    for name in [chosen.name] if chosen.name else BENCHMARKS:
        options = "".join(f" {word}" for word in sys.argv[1:] if word not in (name, "--write"))
        text = f"Machine: {machine()}.\nCommand: `python -m benchmarks {name}{options}`.\n\n{runs[name]()}"
        print(text)
        if chosen.write:
            write_section(name, text)


if __name__ == "__main__":
    main()
