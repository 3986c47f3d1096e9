"""Measuring fairly, describing the machine, and keeping tables in RESULTS.md."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "RESULTS.md"
PREFACE = """# Benchmark results

Written by `python -m benchmarks --write`; every number, and every "reached" or "missed", was measured by the command of
its section. Compare ratios, not seconds: both sides of a ratio took turns on the same machine.
"""


def paired(work: Callable[[], object], unit: Callable[[], object], repeats: int = 5) -> tuple[float, float]:
    """The median seconds of the work and of the unit it is measured in.

    They take turns, so that whatever else the machine does meanwhile slows down both.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for place, action in enumerate((work, unit)):
            start = time.perf_counter()
            action()
            seconds[place].append(time.perf_counter() - start)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def machine() -> str:
    """What the numbers were measured on."""
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}, torch {version('torch')}"
    load = f"; load when it began: {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{os.cpu_count()} cores, {processor()}, {versions}{load}"


def processor() -> str:
    """The name of the processor, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def verdict(ratio: float, aim: float) -> str:
    """Whether an aim is reached, from the number itself."""
    return "reached" if ratio >= aim else "missed"


def write_section(name: str, text: str, known: Iterable[str]) -> None:
    """Put the text under its heading, in place of what stood there before; drop what is no benchmark any more."""
    sections: dict[str, str] = {}
    old = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    for block in old.split("\n## ")[1:]:
        heading, _, body = block.partition("\n")
        sections[heading] = body.strip()
    sections[name] = text.strip()
    kept = "".join(f"\n## {heading}\n\n{sections[heading]}\n" for heading in known if heading in sections)
    RESULTS.write_text(PREFACE + kept, encoding="utf-8")
