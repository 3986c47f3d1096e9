"""Errors a user may meet. Each says what was given, what is allowed and what to do, and carries its exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedwinnowError(Exception):
    """Anything that went wrong in a way we foresaw; the command line prints its text without a traceback."""

    exit_code = 4


class UsageError(FedwinnowError):
    """The request itself is wrong: an unknown name, a value out of range, flags that exclude each other."""

    exit_code = 2


class StaleError(UsageError):
    """A folder holds a run that was made of other code or data than there is now."""


class DataError(FedwinnowError):
    """The request is fine but the data is not: a missing or broken file, a bad row, a class without samples."""

    exit_code = 3


class RunError(FedwinnowError):
    """The data and the request are fine, but the run could not be finished."""

    exit_code = 4


class FedwinnowWarning(UserWarning):
    """Something that a user should know although the work goes on; the command line prints its text alone."""


def unknown(what: str, given: str, allowed: Iterable[str]) -> UsageError:
    """An unknown name: say it, guess what was meant, list what is allowed."""
    names = sorted(allowed)
    listing = ", ".join(names) if names else "none"
    return UsageError(f"unknown {what} '{given}'.{guess(given, names)} Allowed: {listing}.")


def guess(given: str, names: Iterable[str]) -> str:
    """` Did you mean 'name'?`, or nothing where no name is near."""
    close = difflib.get_close_matches(given, list(names), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""


def missing_extra(extra: str, purpose: str) -> UsageError:
    """A feature needs an optional dependency that is not installed."""
    return UsageError(f"{purpose} needs the extra '{extra}': pip install 'fedwinnow[{extra}]'")
