"""How long a user waits: for help, and for the first round of digits."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TURNS = 9
ROUNDS = 40
PATIENCE = 600  # seconds
COMMAND = [sys.executable, "-m", "fedwinnow"]


def run(*, smallest: bool = False) -> str:
    """Seconds from command to answer, as Markdown."""
    turns, rounds = (1, 1) if smallest else (TURNS, ROUNDS)
    found: dict[str, list[float]] = {"pass": [], "help": [], "torch": [], "round": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns):
            found["pass"].append(seconds_of([sys.executable, "-c", "pass"]))
            found["help"].append(seconds_of([*COMMAND, "--help"]))
            if turn % 3 == 0:
                found["torch"].append(seconds_of([sys.executable, "-c", "import torch"]))
                found["round"].append(seconds_to_first_round(Path(folder) / str(turn), rounds))
    bare, help_, torch, first = (statistics.median(times) for times in found.values())
    lines = [
        f"Medians of {turns} turns (of {len(found['torch'])} for the last two lines).",
        "",
        "| what | seconds | against `python -c pass` | aim |",
        "|---|---:|---:|---|",
        f"| `python -c pass` | {bare:.3f} | 1 | |",
        f"| `fedwinnow --help` | {help_:.3f} | {help_ / bare:.1f} | below 10, and below 0.3 s |",
        f"| `python -c 'import torch'` | {torch:.2f} | {torch / bare:.0f} | |",
        f"| `fedwinnow run --data digits` to the end of its first round | {first:.2f} | {first / bare:.0f} | |",
    ]
    return "\n".join(lines)


def seconds_of(command: list[str]) -> float:
    """How long a command takes."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE)
    return time.perf_counter() - began


def seconds_to_first_round(folder: Path, rounds: int) -> float:
    """From the command until the first line is in rounds.jsonl."""
    command = [*COMMAND, "run", "--data", "digits", "--rounds", str(rounds), "--out", str(folder)]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log = folder / "rounds.jsonl"
    while not (log.exists() and log.stat().st_size) and process.poll() is None:
        time.sleep(0.005)
    waited = time.perf_counter() - began
    if process.wait(PATIENCE):
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return waited
