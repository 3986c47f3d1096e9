"""Dates and times in cells: as numbers, and as the parts that may matter (month, weekday, hour).

A date is the days since 1970-01-01 with the time as a fraction, as written: an offset from UTC is not applied, because
what happens at night happens at night wherever the hospital is.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.column import Part
from fedwinnow.errors import FedwinnowWarning

Dates = Literal["auto", "day-first", "month-first", "text"]
Style = Literal["iso", "day-first", "month-first", "time"]
Numbers = NDArray[np.float64]

TIME = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,]\d{1,9})?)?(?: ?(?P<half>[AaPp])\.?[Mm]\.?)?"
LATER = rf"(?:(?:T| {{1,2}}|, ){TIME} ?(?:Z|UTC|[+-]\d{{2}}:?\d{{2}})?)?"
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
YEAR_FIRST = re.compile(rf"(?P<year>\d{{4}})(?P<between>[-/.])(?P<one>\d{{1,2}})(?P=between)(?P<two>\d{{1,2}}){LATER}")
YEAR_LAST = re.compile(rf"(?P<one>\d{{1,2}})(?P<between>[-/.])(?P<two>\d{{1,2}})(?P=between)(?P<year>\d{{4}}){LATER}")
NAMED = re.compile(
    rf"(?P<two>\d{{1,2}})[-. ]?(?P<name>{'|'.join(MONTHS)})[a-z]*[-. ]?(?P<year>\d{{4}}){LATER}", re.IGNORECASE
)
SHORT_YEAR = re.compile(rf"\d{{1,2}}(?P<between>[-/.])\d{{1,2}}(?P=between)\d{{2}}{LATER}")
TIME_ALONE = re.compile(TIME)
EPOCH = date(1970, 1, 1).toordinal()
PARTS: tuple[Part, ...] = ("day", "month", "weekday", "hour")


def style_of(path: Path, name: str, distinct: Iterable[str], asked: Dates) -> Style | None:
    """How the cells of a column write dates; None where one of them is no date. `distinct` has no missing cell."""
    cells = list(distinct)
    if asked == "text" or not cells:
        return None
    if all(TIME_ALONE.fullmatch(cell) for cell in cells):
        hours = [number_of(cell, "time") for cell in cells]
        # 1:20 and 1:40 are dilutions, not times; 13:20 and 08:40 are times.
        clock = any(cell[:2].isdigit() or cell.count(":") == 2 for cell in cells)
        return "time" if clock and None not in hours else None
    found = []
    for cell in cells:
        if match := YEAR_LAST.fullmatch(cell):
            found.append(match)
        elif not YEAR_FIRST.fullmatch(cell) and not NAMED.fullmatch(cell):
            return None
    if not found:
        return "iso" if all(number_of(cell, "iso") is not None for cell in cells) else None
    ones, twos = ({int(match[key]) for match in found} for key in ("one", "two"))
    dotted = all(match["between"] == "." for match in found)
    if asked in ("day-first", "month-first"):
        style: Style = "day-first" if asked == "day-first" else "month-first"
    elif dotted or max(ones) > 12 or max(twos) > 12:
        style = "month-first" if max(twos) > 12 and max(ones) <= 12 else "day-first"
    else:
        style = "day-first"
        warnings.warn(
            f"{path}: column '{name}' has dates such as {'03/04/2021'} that can be read in two ways; the day is taken "
            "to come first. Write dates=month-first if the month does, and dates=day-first to be rid of this line.",
            FedwinnowWarning,
            stacklevel=2,
        )
    return style if all(number_of(cell, style) is not None for cell in cells) else None


def why_no_dates(cells: Sequence[str]) -> str:
    """What makes a column one of texts although it looks like dates; empty for other texts."""
    short = [cell for cell in cells if SHORT_YEAR.fullmatch(cell)]
    if len(short) >= 2 and 2 * len(short) >= len(cells):
        return (
            f"has dates with two digits for the year ('{short[0]}'), which may be of two centuries. Write four digits"
        )
    dates = [
        cell for cell in cells if any(number_of(cell, style) is not None for style in ("day-first", "month-first"))
    ]
    other = sorted(set(cells) - set(dates))
    if len(dates) == len(cells) and len(cells) > 1:
        first = next((cell for cell in dates if number_of(cell, "day-first") is None), None)
        second = next((cell for cell in dates if number_of(cell, "month-first") is None), None)
        if first and second:
            return f"has dates of two kinds: '{first}' has the month first, and '{second}' the day. Write them alike"
    if other and len(dates) >= 5 and len(dates) >= 2 * len(other):
        shown = ", ".join(f"'{cell:.40}'" for cell in other[:3]) + (
            f" and {len(other) - 3} more" if len(other) > 3 else ""
        )
        return (
            f"has dates, but also {shown}. If they mean that the date is missing, write "
            f"missing_values='{'|'.join(other[:3])}'; else correct them"
        )
    return ""


def number_of(cell: str, style: Style) -> float | None:
    """The days of a date since 1970, or the hours of a time; None where the cell is neither."""
    if style == "time":
        match = TIME_ALONE.fullmatch(cell)
        return None if match is None else hours_of(match)
    last = None if style == "iso" else YEAR_LAST.fullmatch(cell)
    match = last or YEAR_FIRST.fullmatch(cell) or NAMED.fullmatch(cell)
    if match is None:
        return None
    groups = match.groupdict()
    if groups.get("name"):
        month, day = MONTHS.index(groups["name"].lower()) + 1, int(groups["two"])
    else:
        one, two = int(groups["one"]), int(groups["two"])
        month, day = (two, one) if last and style == "day-first" else (one, two)
    hours = 0.0 if groups["hour"] is None else hours_of(match)
    try:
        days = date(int(groups["year"]), month, day).toordinal() - EPOCH
    except ValueError:  # the 31st of February
        return None
    return None if hours is None else days + hours / 24


def hours_of(match: re.Match[str]) -> float | None:
    """The time of a match in hours; None where it is no time of day."""
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
    if match["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match["half"] in "pP" else 0)
    return hour + minute / 60 + second / 3600 if hour < 24 and minute < 60 and second < 61 else None


def part_of(days: Numbers, part: Part) -> Numbers:
    """The month (1 to 12), the weekday (Monday is 1) or the hour of dates; NaN stays."""
    gone = np.isnan(days)
    whole = np.floor(np.where(gone, 0, days))
    if part == "day":
        return days
    if part == "weekday":
        found = (whole + 3) % 7 + 1  # 1970-01-01 was a Thursday
    elif part == "hour":
        found = np.round((np.where(gone, 0, days) - whole) * 86400) / 3600
    else:
        found = (whole.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12 + 1).astype(np.float64)
    return np.where(gone, np.nan, found)


def as_date(days: float) -> str:
    """A number of days as a date, for people; empty where there is no such date."""
    ordinal = round(days) + EPOCH
    return date.fromordinal(ordinal).isoformat() if 1 <= ordinal <= date.max.toordinal() else ""
