"""How the cells of a column write numbers: with which decimal sign, in groups of thousands, and with which unit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Decimal = Literal["auto", "point", "comma"]
Usual = Literal[".", ",", "either"]  # between commas, semicolons, tabs

GAPS = " \u00a0\u202f\u2009'\u2019"  # what else may stand between thousands
MINUS = "\u2212"  # the sign of mathematics
UNIT_LETTER = "A-Za-zµμ°%‰Ω"


def pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    """Numbers with this decimal sign."""
    groups = "|".join(rf"[1-9]\d{{0,2}}(?:{re.escape(gap)}\d{{3}})+" for gap in (thousands, *GAPS))
    return re.compile(rf"[-+]?(?=[.,]?\d)(?:{groups}|\d+)?(?:{re.escape(decimal)}\d*)?(?:[eE][-+]?\d{{1,3}})?")


POINT, COMMA = pattern(".", ","), pattern(",", ".")
WITH_UNIT = re.compile(
    rf"([-+]?[\d.,{GAPS}]*\d[.,]?)\s*((?:[{UNIT_LETTER}]|/(?=[a-z]))[{UNIT_LETTER}0-9²³/^*·(). -]{{0,19}})"
)
KNOWN_UNIT = re.compile(
    r"%|‰|°\s?[CF]?|mm ?Hg|cm ?H2O|bpm|/min|h|min|sec|(?:day|week|month|year|hour)s?|"
    r"Tage?|Wochen?|Monate?|Jahre?|jours?|ans?|"
    r"(?:[munpkdc]|mc|µ)?(?:g|l|L|m|mol|U|IU|IE|Pa|Gy|Sv|eq|Eq|V|osm|cal)(?:/[A-Za-z0-9µ².]{1,6})*"
)
# Whole columns of numbers are searched for one that can be read in one way only.
SURE_COMMA = re.compile(
    rb"(?:\A|\0)[-+]?(?:\d+,(?:\d\d?|\d{4,})|0,\d+|[1-9]\d{0,2}(?:\.\d{3})+,\d*|\d{1,3}(?:\.\d{3}){2,})\0"
)
SURE_POINT = re.compile(
    rb"(?:\A|\0)[-+]?(?:\d+\.(?:\d\d?|\d{4,})|0\.\d+|[1-9]\d{0,2}(?:,\d{3})+\.\d*|\d{1,3}(?:,\d{3}){2,})\0"
)
GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:\.\d{3})+")  # with points, or with decimals
TWO_NUMBERS = re.compile(r"\d{1,4}\s?[/-]\s?\d{1,4}")


@dataclass(frozen=True)
class NumberForm:
    """How a column writes numbers."""

    decimal: Literal[".", ",", "either"] = "."
    unit: str = ""
    doubtful: str = ""  # the sign that may be the decimal one or separate thousands

    def number(self, cell: str) -> float | None:
        """The number in a cell; None where it is a text."""
        text = cell
        if self.unit and (parts := number_and_unit(cell.replace(MINUS, "-"))) and parts[1] == self.unit:
            text = parts[0]
        return number_in(text, self.decimal)


def number_and_unit(cell: str) -> tuple[str, str] | None:
    """The number of a cell and the unit behind it; None where it is something else."""
    found = WITH_UNIT.fullmatch(cell)
    if found is None or not is_number(number := found[1].strip()):
        return None
    unit = " ".join(found[2].replace("μ", "µ").split())  # there are two letters for micro
    if len(unit) == 1 and cell[-2].isdigit() and not KNOWN_UNIT.fullmatch(unit):
        return None  # 1a and 2a are stages, and 101A may be an id
    return number, unit


def number_in(cell: str, decimal: str) -> float | None:
    """A cell as a number, None where it is a text."""
    text = cell.replace(MINUS, "-")
    if decimal == "either":
        decimal = "." if POINT.fullmatch(text) else ","
    if (POINT if decimal == "." else COMMA).fullmatch(text):
        for gap in ("," if decimal == "." else ".", *GAPS):
            text = text.replace(gap, "")
        return float(text.replace(",", "."))
    try:
        return None if "_" in text or "." in text or "," in text else float(text)  # inf, and digits of other scripts
    except ValueError:
        return None


def form_of(cells: Iterable[str], usual: Usual, asked: Decimal) -> NumberForm | None:
    """How different cells, none of them missing, write numbers; None where one of them is a text.

    `usual` is the decimal sign that the file allows.
    """
    units: set[str] = set()
    texts: list[str] = []
    bare = False
    for cell in cells:
        plain = cell.replace(MINUS, "-")
        if POINT.fullmatch(plain) or COMMA.fullmatch(plain):
            texts.append(plain)
            bare = True
        elif number_in(cell, ".") is not None:
            bare = True
        elif parts := number_and_unit(plain):
            texts.append(parts[0])
            units.add(parts[1])
            if len(units) > 1:
                return None
        else:
            return None
    unit = next(iter(units), "")
    if unit and bare and not KNOWN_UNIT.fullmatch(unit):
        return None
    decimal, doubtful = decimal_of(texts, usual, asked)
    return NumberForm(decimal, unit, doubtful) if decimal else None


def is_number(text: str) -> bool:
    """Whether a text is a number in one of the two ways."""
    return bool(POINT.fullmatch(text) or COMMA.fullmatch(text))


def decimal_of(texts: list[str], usual: Usual, asked: Decimal) -> tuple[Literal[".", ",", "either", ""], str]:
    """The decimal sign of numbers, empty where there is none for all of them, and the sign that leaves a doubt."""
    point = comma = False  # whether a number can be read in this way only
    signs: set[str] = set()  # the signs of numbers that can be read in both
    for text in texts:
        reads_point, reads_comma = bool(POINT.fullmatch(text)), bool(COMMA.fullmatch(text))
        point |= reads_point and not reads_comma
        comma |= reads_comma and not reads_point
        if reads_point and reads_comma:
            signs |= {sign for sign in ".," if sign in text}
    if asked != "auto":
        return ("", "") if (point if asked == "comma" else comma) else ("." if asked == "point" else ",", "")
    if point and comma:
        return ("", "") if signs or usual == "." else ("either", "")
    if point or comma:
        return ("." if point else ","), ""
    if len(signs) == 2:
        return "", ""
    sign = next(iter(signs), "")
    return ("," if usual != "." and sign == "," else "."), "" if usual == sign == "." else sign


def decimal_in(columns: Iterable[bytes]) -> Literal[".", ",", ""]:
    """The decimal sign of a file, from columns whose cells a zero byte ends; empty where nothing or both is said."""
    comma = point = False
    for content in columns:
        comma = comma or SURE_COMMA.search(content) is not None
        point = point or SURE_POINT.search(content) is not None
        if comma and point:
            return ""
    return "," if comma else "." if point else ""


# --- what is said of columns that are nearly numbers ----------------------------------------------------------------


def why_no_numbers(counts: Counter[str]) -> str:
    """What makes a column one of texts although it looks like numbers; empty for other texts."""
    forms = {cell: unit_in(cell) for cell in counts}
    numbers = {cell: unit for cell, unit in forms.items() if unit is not None}
    known: Counter[str] = Counter()
    for cell, unit in numbers.items():
        known[unit] += counts[cell] if not unit or KNOWN_UNIT.fullmatch(unit) else 0
    several = {unit: count for unit, count in known.items() if unit and count}
    if len(numbers) == len(forms) and len(several) > 1 and sum(known.values()) == counts.total():
        shown = ", ".join(f"{unit} ({count} rows)" for unit, count in Counter(several).most_common(4))
        return f"has numbers in several units: {shown}. Convert them to one"
    pairs = [cell for cell in counts if TWO_NUMBERS.fullmatch(cell)]
    if len(pairs) >= 5 and 2 * len(pairs) > len(counts):
        return f"has two numbers in a cell, such as '{pairs[0]:.40}'. Make two columns of it"
    strange = [cell for cell in counts if cell not in numbers]
    if len(numbers) < 5 or len(numbers) < 2 * len(strange) or not strange:
        return ""
    shown = ", ".join(
        f"'{cell:.40}' ({counts[cell]} rows)" for cell in sorted(strange, key=lambda c: (-counts[c], c))[:3]
    )
    more = f" and {len(strange) - 3} more" if len(strange) > 3 else ""
    return (
        f"has numbers, but also {shown}{more}. If they mean that the value is missing, write "
        f"missing_values='{'|'.join(strange[:3])}'; else correct them"
    )


def unit_in(cell: str) -> str | None:
    """The unit behind a number, empty where there is none; None where the cell is a text."""
    plain = cell.replace(MINUS, "-")
    if is_number(plain):
        return ""
    found = number_and_unit(plain)
    return None if found is None else found[1]
