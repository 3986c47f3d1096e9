"""Labels that are no classes: measurements, ids, and several labels in one cell. A classifier of them means nothing.

The limits are wide on purpose: a set that is refused although its labels are classes costs a user one option, but
ought to be rare. Digits, letters, a hundred numbered classes and codes of diseases pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

from fedwinnow.data.labels import name_some, number_of
from fedwinnow.errors import DataError

FEW_WHOLE = 20  # so many different whole numbers may always be classes: scores, grades, digits
FEW_DECIMALS = 10
RARE = 2  # a value that appears so often at most is hardly a class
DENSE = 0.5  # measurements fill the range between the least and the largest value
DENSE_DECIMALS = 0.3
SEPARATORS = (";", "|", ",")
REUSED = 0.7  # share of the parts of combined labels that also stand alone or at another place
FEWEST_ROWS = 10  # in fewer rows every label may be different


def refuse_no_classes(where: str, counts: Mapping[str, int], insist: str) -> None:
    """Refuse labels that are no classes; `counts` is how often each appears, `insist` how to use them all the same."""
    reason = why_no_classes(counts)
    if reason:
        raise DataError(f"{where} {reason} {insist}")


def why_no_classes(counts: Mapping[str, int]) -> str:
    """What is wrong with labels that are no classes; empty for classes."""
    rows, several = sum(counts.values()), len(counts)
    if rows >= FEWEST_ROWS and several == rows:
        return (
            f"has {several} different values in {rows} rows, one in each, so it does not look like a class but like an "
            "id or a measurement."
        )
    if several > max(FEW_WHOLE, rows // 2):
        return f"has {several} different values in {rows} rows, so it does not look like a class."
    numbers = [number_of(text) for text in counts]
    if all(number is not None for number in numbers):
        return why_a_measurement([number for number in numbers if number is not None], list(counts.values()))
    return why_several_labels(counts)


# --- measurements --------------------------------------------------------------------------------------------------


def why_a_measurement(numbers: list[Decimal], counts: list[int]) -> str:
    """What is wrong with numbers that look measured; empty for numbered classes."""
    several = len(set(numbers))
    whole = all(number == number.to_integral_value() for number in numbers)
    if several <= (FEW_WHOLE if whole else FEW_DECIMALS):
        return ""
    rare = sum(count <= RARE for count in counts)
    kind = "whole numbers" if whole else "numbers with decimals"
    found = f"has {several} different {kind} from {min(numbers):f} to {max(numbers):f}"
    if 2 * rare >= several:
        return f"{found}, {rare} of them in one or two rows only, so it looks like a measurement and not like a class."
    if not are_codes(numbers) and density(numbers) >= (DENSE if whole else DENSE_DECIMALS):
        return f"{found}, nearly without gaps, so it looks like a measurement and not like a class."
    return ""


def are_codes(numbers: list[Decimal]) -> bool:
    """Whether the numbers are 0, 1, 2, ... or 1, 2, 3, ..., as classes are numbered."""
    least, most = min(numbers), max(numbers)
    return least in (0, 1) and most - least + 1 == len(set(numbers))


def density(numbers: list[Decimal]) -> float:
    """The share of the values between the least and the largest that appear, at the precision they are written in."""
    places = max(max(-int(number.normalize().as_tuple().exponent), 0) for number in numbers)
    steps = (max(numbers) - min(numbers)) * 10**places + 1
    return len(set(numbers)) / float(steps)


# --- several labels in one cell ------------------------------------------------------------------------------------


def why_several_labels(labels: Iterable[str]) -> str:
    """What is wrong with labels that are combined of others; empty for single ones."""
    distinct = list(labels)
    for separator in SEPARATORS:
        combined = {label: parts for label in distinct if len(parts := parts_of(label, separator)) > 1}
        if len(combined) < 2:
            continue
        places: dict[str, set[int]] = {}  # part -> where it stands in a combined label; -1: alone
        for parts in combined.values():
            for place, part in enumerate(parts):
                places.setdefault(part, set()).add(place)
        for label in distinct:
            if label not in combined and label.strip() in places:
                places[label.strip()].add(-1)
        reused = sum(len(where) > 1 for where in places.values())
        if reused >= 2 and reused >= REUSED * len(places):
            shown = name_some([f"'{label:.60}'" for label in combined], 2)
            return (
                f"has several labels in one cell, separated by '{separator}': {shown} "
                f"({len(combined)} such combinations). Every sample needs exactly one class: keep one of them, or make "
                "a column per label and audit one column at a time."
            )
    return ""


def parts_of(label: str, separator: str) -> list[str]:
    """The parts of a label; a label with an empty part, or a number as a part, is a single one."""
    parts = [part.strip() for part in label.split(separator)]
    return [label] if any(not part or number_of(part) is not None for part in parts) else parts
