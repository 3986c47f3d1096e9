"""`python -m benchmarks [NAME] [--write]`: run one benchmark or all, print Markdown, keep it if asked."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from pathlib import Path
from typing import Any

from benchmarks.results import machine, write_section


def benchmarks() -> dict[str, Any]:
    """The modules of this folder that have a `run`, by name."""
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.name != "__main__"]
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "run")}


def main(words: list[str] | None = None) -> None:
    """Run what was asked for."""
    found = benchmarks()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=found, help="one benchmark; without it, all")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/RESULTS.md")
    parser.add_argument("--smallest", action="store_true", help="the least work: does it run? Its numbers mean nothing")
    chosen = parser.parse_args(words)
    if chosen.write and chosen.smallest:
        parser.error("--write and --smallest exclude each other: the numbers of the least work mean nothing")
    for name in [chosen.name] if chosen.name else found:
        option = " --smallest" * chosen.smallest
        text = f"Machine: {machine()}.\nCommand: `python -m benchmarks {name}{option}`.\n\n"
        text += found[name].run(smallest=chosen.smallest)
        print(text, flush=True)
        if chosen.write:
            write_section(name, text, found)


if __name__ == "__main__":
    main()
