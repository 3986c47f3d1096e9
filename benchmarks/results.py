"""Measuring fairly, describing the machine, and keeping tables in RESULTS.md."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "RESULTS.md"


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


def write_section(name: str, text: str) -> None:
    """Put the text under its heading, in place of what stood there before."""
    sections: dict[str, str] = {}
    old = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    for block in old.split("\n## ")[1:]:
        heading, _, body = block.partition("\n")
        sections[heading] = body.strip()
    sections[name] = text.strip()
    whole = "# Benchmark results\n" + "".join(f"\n## {heading}\n\n{body}\n" for heading, body in sections.items())
    RESULTS.write_text(whole, encoding="utf-8")
