"""Errors a user may meet. Each says what was given, what is allowed and what to do, and has an exit code."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar


class FedwinnowError(Exception):
    """An expected error; the command line prints its text without a traceback."""

    exit_code = 4
    code: str | None = None  # what another machine is told instead of the text; None: only that something failed


class UsageError(FedwinnowError):
    """The request itself is wrong: an unknown name, a value out of range, flags that exclude each other."""

    exit_code = 2


class StaleError(UsageError):
    """A folder holds a run that was made with other code or data than the present ones."""


class TakenError(UsageError):
    """Another process is working in the folder."""


class DataError(FedwinnowError):
    """The request is fine but the data is not: a missing or broken file, a bad row, a class without samples."""

    exit_code = 3


class RunError(FedwinnowError):
    """The data and the request are fine, but the run could not be finished."""

    exit_code = 4


class MemoryShortage(RunError):
    """The machine or its device has not enough memory for what was asked."""


# How the text of a warning is worded for who reads it; errors are worded where they leave (below).
WORDING: ContextVar[Callable[[str], str] | None] = ContextVar("wording", default=None)


class FedwinnowWarning(UserWarning):
    """Something that a user should know while the work goes on; the command line prints only its text."""

    def __init__(self, text: str = "") -> None:
        wording = WORDING.get()
        super().__init__(text if wording is None else wording(text))


def memory_shortage(problem: BaseException) -> MemoryShortage | None:
    """A MemoryShortage for an error of Python, NumPy or torch that says that memory ran out; None for other errors.

    torch has a special class for devices, and a plain RuntimeError for the processor; torch is not imported here.
    """
    text = str(problem).strip()
    ran_out = "can't allocate memory" in text or "out of memory" in text
    ran_out = ran_out or type(problem).__name__ == "OutOfMemoryError"
    if not isinstance(problem, MemoryError) and not (isinstance(problem, RuntimeError) and ran_out):
        return None
    reason = text.partition("\n")[0].rpartition("DefaultCPUAllocator: ")[2][:200].rstrip(". ")
    return MemoryShortage(
        f"the memory of this machine is not enough{f' ({reason})' if reason else ''}. Use a smaller --batch-size or "
        f"--model, fewer samples, clients or classes, or fewer --jobs and workers."
    )


@contextmanager
def memory_in_words() -> Iterator[None]:
    """Turn an error that says that memory ran out into a MemoryShortage, which has advice and no traceback."""
    try:
        yield
    except (MemoryError, RuntimeError) as problem:
        if (shortage := memory_shortage(problem)) is None:
            raise
        raise shortage from None


def unknown(what: str, given: str, allowed: Iterable[str]) -> UsageError:
    """The error for an unknown name: it guesses what was meant and lists what is allowed."""
    names = sorted(allowed)
    listing = ", ".join(names) if names else "none"
    return UsageError(f"unknown {what} '{given}'.{guess(given, names)} Allowed: {listing}.")


def guess(given: str, names: Iterable[str]) -> str:
    """` Did you mean 'name'?`, or an empty text if no name is similar."""
    close = difflib.get_close_matches(given, list(names), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""


class MissingExtraError(UsageError):
    """A feature needs an optional dependency that is not installed."""


def missing_extra(extra: str, purpose: str) -> MissingExtraError:
    """The error for a missing extra, with the command that installs it."""
    return MissingExtraError(f"{purpose} needs the extra '{extra}': {how_to_get(extra)}")


def how_to_get(extra: str) -> str:
    """How to install an extra from the checkout, because the project is not on a package index."""
    return f"in the folder that fedwinnow was installed from (its checkout), pip install '.[{extra}]'"


# --- messages for programs -----------------------------------------------------------------------------------------

COMMAND_LINE: ContextVar[bool] = ContextVar("command line", default=False)  # whether a command is running

Given = ParamSpec("Given")
Returned = TypeVar("Returned")
Kind = TypeVar("Kind", bound=type)


def worded(text: str) -> str:
    """A message as a program reads it; how it is made is read only when there is one."""
    from fedwinnow.python_words import in_python

    return in_python(text)


@contextmanager
def speaking_python() -> Iterator[None]:
    """Errors and warnings of the block speak Python, unless a command is running."""
    if COMMAND_LINE.get():
        yield
        return
    before = WORDING.set(worded)
    try:
        yield
    except FedwinnowError as problem:
        problem.args = (worded(str(problem)), *problem.args[1:])
        raise
    finally:
        WORDING.reset(before)


def speaks_python(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """A function for programs: its messages speak Python."""

    @functools.wraps(function)
    def called(*values: Given.args, **keywords: Given.kwargs) -> Returned:
        with speaking_python():
            return function(*values, **keywords)

    return called


def all_speak_python(kind: Kind) -> Kind:
    """A class for programs: the messages of its functions and properties speak Python."""
    for name, value in list(vars(kind).items()):
        if name.startswith("__") and name != "__init__":
            continue
        if isinstance(value, property):
            setattr(kind, name, property(speaks_python(value.fget), doc=value.__doc__) if value.fget else value)
        elif isinstance(value, functools.cached_property):
            made: Any = functools.cached_property(speaks_python(value.func))
            made.__set_name__(kind, name)
            setattr(kind, name, made)
        elif callable(value) and not isinstance(value, type):
            setattr(kind, name, speaks_python(value))
    return kind
