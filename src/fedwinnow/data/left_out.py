"""Columns that no model should learn from: empty ones, and those that tell who somebody is. Each is named."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Sequence
from typing import Literal

from fedwinnow.data.table_reading import TextTable, is_missing
from fedwinnow.errors import FedwinnowWarning

Kind = Literal["whole number", "text"]

# In fewer rows a column of measurements, or of texts, may have a different value in every row.
FEWEST_ROWS: dict[Kind, int] = {"whole number": 50, "text": 10}
PLAIN = re.compile(r"[-+]?\d+(?:\.0*)?(?:[eE][-+]?\d+)?|\d+\.\d*[eE]\+\d+")
FEWEST_PATIENTS = 5
MOST_VISITS = 50  # rows of a patient, on average
PATIENT = re.compile(
    r"(?:patient(?:en)?|pat|pt|subject|proband(?:en)?|mrn|pid)"
    r"[ _.-]*(?:id|nr|no|num|number|nummer|key|code|kennung)?\.?"
    r"|(?:person(?:en)?|case|fall|encounter|visit|admission|aufnahme|record)[ _.-]*(?:id|nr|no|num|number|nummer)\.?"
    r"|medical[ _-]record[ _-]number|nhs[ _-]number|ssn",
    re.IGNORECASE,
)
PERSON = re.compile(
    r"(?:sur|last|family|first|given|maiden|patient|birth)[ _.-]*names?|(?:nach|vor|familien|geburts)namen?|"
    r"nom de famille|pr[ée]noms?|apellidos?|cognome|e[ _-]?mails?|"
    r"(?:tele)?(?:phone|fon)[ _.-]*(?:number|no|nummer|nr)?\.?|(?:home[ _-]*)?address|adresse|"
    r"anschrift|street|stra(?:ss|ß)e",
    re.IGNORECASE,
)


def empty_columns(table: TextTable, features: Sequence[str]) -> list[str]:
    """The columns without a value in any row, which are named and left out."""
    empty = [name for name in features if all(map(is_missing, table.column(name)))]
    if empty:
        one = len(empty) == 1
        shown = ", ".join(f"'{name}'" for name in empty)
        warnings.warn(
            f"{table.path}: the column{'' if one else 's'} {shown} {'has' if one else 'have'} no value in any row and "
            f"{'is' if one else 'are'} left out. ignore='{'|'.join(empty)}' is rid of this line.",
            FedwinnowWarning,
            stacklevel=2,
        )
    return empty


def tells_who(table: TextTable, name: str, kind: Kind, keep: Collection[str]) -> bool:
    """Whether a column looks like the id of a row or of a patient; `keep` are columns that are used all the same."""
    if name in keep:
        return False
    several = len(set(table.column(name)))
    return (
        (kind == "text" and names_people(table, name))
        or is_id(table, name, kind, several)
        or is_patient(table, name, several)
    )


def names_people(table: TextTable, name: str) -> bool:
    """Whether a column has names or addresses of people, by what it is called, which is said."""
    if not PERSON.fullmatch(name):
        return False
    warnings.warn(
        f"{table.path}: column '{name}' looks like names or addresses of people, so it is left out, and its texts are "
        f"written nowhere. Better leave it out of the export; keep={name} trains on it, and ignore={name} is rid of "
        "this line.",
        FedwinnowWarning,
        stacklevel=2,
    )
    return True


def is_id(table: TextTable, name: str, kind: Kind, several: int) -> bool:
    """Whether a column looks like the id of a row, which is said: a model could only memorise rows by it."""
    if several < len(table) or len(table) < FEWEST_ROWS[kind]:
        return False
    if kind == "whole number" and not all(map(PLAIN.fullmatch, table.column(name))):
        return False  # nobody writes an id with thousands separated, or with a unit
    other = f"notes={name} reads it as free text, " if kind == "text" else ""
    warnings.warn(
        f"{table.path}: column '{name}' has a different {kind} in every row, so it is taken for an id and left out. To "
        f"have it as the id of the samples write id={name}; {other}keep={name} trains on it as it is, and "
        f"ignore={name} is rid of this line.",
        FedwinnowWarning,
        stacklevel=2,
    )
    return True


def is_patient(table: TextTable, name: str, several: int) -> bool:
    """Whether a column looks like the id of a patient with several rows, which is said."""
    if not PATIENT.fullmatch(name) or not max(FEWEST_PATIENTS, len(table) / MOST_VISITS) <= several < len(table):
        return False
    warnings.warn(
        f"{table.path}: column '{name}' looks like the number of a patient ({several} different ones in {len(table)} "
        f"rows), so it is left out. Write group={name}, or models are asked about patients whom they know already; "
        f"keep={name} trains on it, and ignore={name} is rid of this line.",
        FedwinnowWarning,
        stacklevel=2,
    )
    return True
