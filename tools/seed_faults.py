"""Put faults into a copy of the project, one at a time, and see that a test fails: `python tools/seed_faults.py`.

The faults are in tools/faults.toml. A fault names its file below src/fedwinnow, the text that it replaces (which must
be there exactly once) and the tests that must catch it. The tool ends with 1 where a fault survives or has lost its
place, and where a named test fails without any fault. The report is tools/FAULTS.md.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import hashlib
import importlib
import os
import py_compile
import re
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIST = ROOT / "tools" / "faults.toml"
REPORT = ROOT / "tools" / "FAULTS.md"
PACKAGE = Path("src", "fedwinnow")
COPIED = ("src", "tests", "tools", "examples", "benchmarks", "pyproject.toml")
PROCESSES = 2
PATIENCE = 300.0  # seconds for the tests of one fault
SURVIVED, CAUGHT = 0, 1  # what pytest ends with
PRELOADED = (
    *("torch", "numpy", "scipy.special", "scipy.stats", "sklearn.metrics", "PIL.Image", "safetensors.torch"),
    *("pytest", "hypothesis", "hypothesis.strategies", "tyro", "rich.console", "jinja2"),
)


@dataclass(frozen=True)
class Fault:
    """One thing that somebody could get wrong."""

    name: str
    breaks: str  # what no longer holds, in words
    file: str  # below src/fedwinnow
    old: str
    new: str
    tests: tuple[str, ...]  # files, or file::test

    def put_into(self, root: Path) -> None:
        """Replace the text; it is there once, see `problems`."""
        path = root / PACKAGE / self.file
        path.write_text(path.read_text(encoding="utf-8").replace(self.old, self.new), encoding="utf-8")


@dataclass(frozen=True)
class Outcome:
    """What came of a fault."""

    fault: Fault
    caught_by: str  # the first test that failed; empty where none did
    problem: str  # why the fault is not caught; empty where it is
    seconds: float


# --- the list ------------------------------------------------------------------------------------------------------


def read_faults(path: Path = LIST) -> list[Fault]:
    """The declared faults, in their order."""
    declared = tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    return [Fault(**one | {"tests": tuple(one["tests"])}) for one in declared]


def problems(faults: Sequence[Fault], root: Path = ROOT) -> list[str]:
    """What is wrong with the list itself: a place that is gone, a test that is gone, a name that is there twice."""
    found = [f"{name}: two faults have this name" for name in {one.name for one in faults if names(faults, one) > 1}]
    for fault in faults:
        found += [f"{fault.name}: {problem}" for problem in (problem_with_place(fault, root),) if problem]
        found += [f"{fault.name}: there is no {test}" for test in fault.tests if not is_there(test, root)]
        if not fault.tests:
            found.append(f"{fault.name}: it names no test")
    return sorted(found)


def names(faults: Sequence[Fault], fault: Fault) -> int:
    """How many faults have the name of this one."""
    return sum(other.name == fault.name for other in faults)


def problem_with_place(fault: Fault, root: Path) -> str:
    """Why a fault cannot be put into the source; empty where it can."""
    path = root / PACKAGE / fault.file
    if not path.is_file():
        return f"there is no {PACKAGE / fault.file}"
    count = path.read_text(encoding="utf-8").count(fault.old)
    if count != 1:
        return f"its text is in {PACKAGE / fault.file} {count} times; needed: once"
    return "it changes nothing" if fault.old == fault.new else ""


def is_there(test: str, root: Path) -> bool:
    """Whether a test, or a file of tests, exists."""
    file, _, name = test.partition("::")
    path = root / file
    if not path.is_file():
        return False
    wanted = name.partition("[")[0].rpartition("::")[2]
    return not name or re.search(rf"^ *def {wanted}\(", path.read_text(encoding="utf-8"), re.MULTILINE) is not None


# --- copies --------------------------------------------------------------------------------------------------------


def make_base(place: Path) -> Path:
    """A copy of what tests need, compiled such that a changed file is noticed by its content, not by its time."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis"))
        else:
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place / name)
    by_content = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(place / "src", quiet=1, invalidation_mode=by_content)
    return place


@dataclass
class Trial:
    """pytest at work on a copy, in a process of its own."""

    name: str
    copy: Path
    process: int
    until: float
    began: float

    @property
    def notes(self) -> Path:
        """Where the probe writes down which tests fail."""
        return self.copy.with_name(f"{self.copy.name}.failed")

    @property
    def printed(self) -> Path:
        """Where everything goes that pytest prints."""
        return self.copy.with_name(f"{self.copy.name}.printed")

    def ended(self) -> tuple[bool, int | None]:
        """Whether it has ended, and the exit code; None where it took too long."""
        done, status = os.waitpid(self.process, os.WNOHANG)
        if done:
            return True, os.waitstatus_to_exitcode(status)
        if time.monotonic() < self.until:
            return False, None
        os.killpg(self.process, signal.SIGKILL)  # its own session, with whatever its tests have started
        os.waitpid(self.process, 0)
        return True, None


def begin_trial(name: str, copy: Path, tests: Sequence[str], patience: float) -> Trial:
    """Start pytest in a new process that imports the package from the copy.

    It is a fork of this process, which has imported torch and the like but nothing of fedwinnow: importing them anew
    for every fault would take longer than the tests.
    """
    now = time.monotonic()
    trial = Trial(name, copy, 0, now + patience, now)
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        code = 70
        try:
            code = work(trial, tests)
        finally:
            os._exit(code)
    return replace(trial, process=process)


def work(trial: Trial, tests: Sequence[str]) -> int:
    """What the new process does; the exit code of pytest."""
    import pytest

    os.setsid()
    os.chdir(trial.copy)
    places = [str(trial.copy / "src"), str(trial.copy / "tools")]
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(places),  # for programs that tests start
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(trial.copy / ".hypothesis"),
        "FAULT_COPY": str(trial.copy),
        "FAULT_NOTES": str(trial.notes),
    }
    sys.dont_write_bytecode = True
    sys.path[:0] = [*places, str(trial.copy)]
    sys.argv = ["pytest"]
    output = os.open(trial.printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "fault_probe", *tests]))


def preload() -> None:
    """Import what most tests need, once; never the package itself, which is to come from a copy."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert not any(name.partition(".")[0] == "fedwinnow" for name in sys.modules)


def first_note(notes: Path) -> str:
    """The first test that failed."""
    return notes.read_text(encoding="utf-8").partition("\n")[0] if notes.exists() else ""


def text_of(path: Path) -> str:
    """What a process printed."""
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def in_turn(starts: Sequence[Callable[[], Trial]]) -> Iterator[tuple[Trial, int | None]]:
    """Start trials, so many at a time, and give each back with its exit code when it has ended."""
    waiting, running = list(reversed(starts)), list[Trial]()
    while waiting or running:
        while waiting and len(running) < PROCESSES:
            running.append(waiting.pop()())
        for trial in list(running):
            done, code = trial.ended()
            if done:
                running.remove(trial)
                yield trial, code
        time.sleep(0.05)


def fault_trial(fault: Fault, base: Path) -> Trial:
    """Put one fault into a fresh copy, and start its tests."""
    copy = base.with_name(fault.name)
    shutil.copytree(base, copy)
    fault.put_into(copy)
    return begin_trial(fault.name, copy, fault.tests, PATIENCE)


def outcome_of(fault: Fault, trial: Trial, code: int | None) -> Outcome:
    """What a trial that has ended says about its fault; its copy goes."""
    caught_by = first_note(trial.notes)
    problem = problem_with_end(code, caught_by, text_of(trial.printed))
    shutil.rmtree(trial.copy)
    return Outcome(fault, caught_by, problem, time.monotonic() - trial.began)


def problem_with_end(code: int | None, caught_by: str, printed: str) -> str:
    """Why the end of pytest does not mean that a test has caught the fault; empty where it does."""
    if code == SURVIVED:
        return "it survives: every named test passes"
    if code is None:
        return f"its tests were not done within {PATIENCE:g} seconds"
    if code == CAUGHT and caught_by:
        return ""
    return f"pytest ended with {code}: {' '.join(printed.split())[-300:]}"


def without_faults(faults: Sequence[Fault], base: Path) -> list[str]:
    """Run every named test on the source as it is: a test that fails anyway would catch everything."""
    tests = sorted({test for fault in faults for test in fault.tests})
    whole = {test for test in tests if "::" not in test}
    tests = [test for test in tests if test in whole or test.partition("::")[0] not in whole]
    starts = []
    for number in range(PROCESSES):
        copy = base.with_name(f"without a fault {number}")
        if pile := tests[number::PROCESSES]:
            shutil.copytree(base, copy)
            starts.append(partial(begin_trial, copy.name, copy, pile, PATIENCE * len(pile)))
    return [
        f"{trial.name}, pytest ended with {code}: {first_note(trial.notes) or text_of(trial.printed)[-300:]}"
        for trial, code in in_turn(starts)
        if code != SURVIVED
    ]


# --- the report ----------------------------------------------------------------------------------------------------


def source_hash(root: Path = ROOT) -> str:
    """sha256 of the package's source, as runs note it."""
    digest = hashlib.sha256()
    package = root / PACKAGE
    for name, path in sorted((path.relative_to(package).as_posix(), path) for path in package.rglob("*.py")):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def row_of(one: Outcome) -> str:
    """The line of the report for one fault."""
    by = f"`{one.caught_by.removeprefix('tests/')}`" if not one.problem else f"**{one.problem}**"
    cells = (f"`{one.fault.name}`", one.fault.breaks, by)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} | {one.seconds:.1f} |"


def report_of(rows: Sequence[str], source: str) -> str:
    """The report as Markdown."""
    caught = sum("| **" not in row for row in rows)
    lines = [
        "# Seeded faults",
        "",
        "Written by `make faults` (`python tools/seed_faults.py`): every fault of `tools/faults.toml` was put into a",
        "copy of the project by itself, and the tests that it names ran in a new process. They pass without a fault.",
        f"Seconds are those of copying and testing one fault, with {PROCESSES} at a time.",
        "",
        f"- package source: `{source}`",
        f"- caught: {caught} of {len(rows)}",
        "",
        "| fault | what it breaks | caught by | seconds |",
        "|---|---|---|---:|",
    ]
    return "\n".join([*lines, *rows]) + "\n"


def rows_in(report: str, source: str) -> dict[str, str]:
    """The rows of a report by fault, where it is about this source; none where it is about another one."""
    if f"`{source}`" not in report:
        return {}
    return {line.split("`")[1]: line for line in report.splitlines() if line.startswith("| `")}


def renew_report(outcomes: Sequence[Outcome], source: str) -> None:
    """Write the report anew; of faults that were not tried now it keeps what it says, if about the same source."""
    before = REPORT.read_text(encoding="utf-8") if REPORT.exists() else ""
    rows = rows_in(before, source) | {one.fault.name: row_of(one) for one in outcomes}
    order = [fault.name for fault in read_faults()]
    if set(rows) >= set(order):
        REPORT.write_text(report_of([rows[name] for name in order], source), encoding="utf-8")


def in_words(seconds: float) -> str:
    """A duration for people."""
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


# --- the command ---------------------------------------------------------------------------------------------------


def try_all(faults: Sequence[Fault]) -> tuple[list[Outcome], list[str]]:
    """Every fault on its own, two at a time; and what makes the outcomes worthless."""
    with tempfile.TemporaryDirectory(prefix="fedwinnow-faults-") as folder:
        preload()
        base = make_base(Path(folder).resolve() / "base")
        print("the named tests without a fault ...", flush=True)
        if failing := without_faults(faults, base):
            return [], failing
        began, outcomes = time.monotonic(), dict[str, Outcome]()
        known = {fault.name: fault for fault in faults}
        for trial, code in in_turn([partial(fault_trial, fault, base) for fault in faults]):
            one = outcomes[trial.name] = outcome_of(known[trial.name], trial, code)
            left = (time.monotonic() - began) / len(outcomes) * (len(faults) - len(outcomes))
            said = one.problem or f"caught by {one.caught_by}"
            print(f"{len(outcomes)}/{len(faults)} ({in_words(left)} left) {trial.name}: {said}", flush=True)
        return [outcomes[name] for name in known], []


def main(words: Sequence[str] | None = None) -> int:
    """The command; 0 where every fault is caught."""
    parser = argparse.ArgumentParser(description="Put faults into a copy of the project; a test must catch each.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these faults; their rows of the report are renewed")
    parser.add_argument("--list", action="store_true", help="list the faults, and say which have lost their place")
    flags = parser.parse_args(words)
    faults = read_faults()
    if flags.only:
        if strange := sorted(set(flags.only) - {fault.name for fault in faults}):
            parser.error(f"there is no fault {strange[0]}; --list names all")
        faults = [fault for fault in faults if fault.name in flags.only]
    if flags.list:
        for fault in faults:
            print(f"{fault.name}: {fault.breaks} ({fault.file}; {', '.join(fault.tests)})")
    wrong = problems(faults)
    if flags.list or wrong:
        for problem in wrong:
            print(f"error: {problem}", file=sys.stderr)
        return 1 if wrong else 0
    source = source_hash()
    outcomes, failing = try_all(faults)
    if outcomes:
        renew_report(outcomes, source)
    wrong = [*failing, *(f"{one.fault.name}: {one.problem}" for one in outcomes if one.problem)]
    for problem in wrong:
        print(f"error: {problem}", file=sys.stderr)
    print(f"{len(outcomes) - len(wrong)} of {len(faults)} faults are caught" if outcomes else "no fault was tried")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
