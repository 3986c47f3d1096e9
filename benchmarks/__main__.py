"""`python -m benchmarks [NAME] [--write]`: run one benchmark or all, print Markdown, keep it if asked."""

from __future__ import annotations

import argparse

from benchmarks import scenes
from benchmarks.results import machine, write_section

BENCHMARKS = {"scenes": scenes.run}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=BENCHMARKS, help="one benchmark; without it, all")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/RESULTS.md")
    chosen = parser.parse_args()
    for name in [chosen.name] if chosen.name else BENCHMARKS:
        text = f"Machine: {machine()}.\nCommand: `python -m benchmarks {name}`.\n\n{BENCHMARKS[name]()}"
        print(text)
        if chosen.write:
            write_section(name, text)


if __name__ == "__main__":
    main()
