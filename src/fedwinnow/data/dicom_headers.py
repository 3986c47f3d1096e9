"""What stands in the headers of DICOM files: what is needed, and what identifies a person and must stay there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.dicom_pixels import open_file, quietly
from fedwinnow.data.pace import Pace
from fedwinnow.data.table_reading import TextTable
from fedwinnow.errors import DataError

# Tags that the standard's basic profile for de-identification (PS3.15, table E.1-1) removes or replaces, as far as they
# name a person or a place. Dates of examinations and UIDs are left out: nearly every pseudonymous file has them.
IDENTIFYING = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientBirthTime", "PatientBirthName", "PatientMotherBirthName"),
    *("OtherPatientIDs", "OtherPatientNames", "PatientAddress", "PatientTelephoneNumbers", "PatientComments"),
    *("PatientInsurancePlanCodeSequence", "MilitaryRank", "EthnicGroup", "Occupation", "PatientReligiousPreference"),
    *("AccessionNumber", "StudyID", "AdmissionID", "InstitutionName", "InstitutionAddress", "StationName"),
    *("InstitutionalDepartmentName", "ReferringPhysicianName", "ReferringPhysicianAddress", "PhysiciansOfRecord"),
    *("ReferringPhysicianTelephoneNumbers", "PerformingPhysicianName", "NameOfPhysiciansReadingStudy", "OperatorsName"),
    *("RequestingPhysician", "ResponsiblePerson", "IssuerOfPatientID", "DeviceSerialNumber", "CountryOfResidence"),
)
NEEDED = ("SOPInstanceUID", "StudyInstanceUID", "Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation")
# Whose values would give a patient away in the name of a file.
NAMES = ("PatientName", "OtherPatientNames", "PatientBirthName")
NUMBERS = ("PatientID", "OtherPatientIDs", "AccessionNumber")


@dataclass(frozen=True)
class Header:
    """The header of one file."""

    uid: str
    patient: str
    study: str
    height: int
    width: int
    coloured: bool
    identifying: tuple[str, ...]  # names of tags that have a value
    names: frozenset[str]  # the words of names, in lower case
    numbers: frozenset[str]  # ids, in lower case, with a blank for what separates their parts
    burned_in: bool

    @property
    def private(self) -> frozenset[str]:
        """The words of names and ids, and whole ids."""
        return self.names.union(*map(str.split, self.numbers), (number.replace(" ", "") for number in self.numbers))


def headers_of(
    paths: Sequence[Path], table: TextTable | None = None, rows: NDArray[np.int64] | None = None
) -> list[Header]:
    """The headers of files; the row of the table that names a broken file is in the error."""
    found, pace = [], Pace(len(paths), "headers", "read")
    for place, path in enumerate(paths):
        try:
            found.append(header_of(path))
        except DataError as problem:
            where = "" if table is None or rows is None else f"{table.place(int(rows[place]))}: "
            raise DataError(f"{where}{problem}") from None
        pace.add(1)
    return found


def header_of(path: Path) -> Header:
    """The header of a file."""
    with quietly(path):
        content = open_file(path, [*NEEDED, *IDENTIFYING, "BurnedInAnnotation"])
        height, width = int(content.get("Rows") or 0), int(content.get("Columns") or 0)
        if height < 1 or width < 1:
            raise DataError(f"{path}: holds no image, or does not say how large it is. Remove it from the labels.")
        said = {tag: text for tag in IDENTIFYING if (text := as_text(content.get(tag)))}
        colour = str(content.get("PhotometricInterpretation", ""))
        return Header(
            uid=as_text(content.get("SOPInstanceUID")),
            patient=said.get("PatientID", ""),
            study=as_text(content.get("StudyInstanceUID")),
            height=height,
            width=width,
            coloured=int(content.get("SamplesPerPixel") or 1) > 1 or colour == "PALETTE COLOR",
            identifying=tuple(said),
            names=frozenset(word for tag in NAMES for word in words_of(said.get(tag, ""))),
            numbers=frozenset(" ".join(words_of(said[tag])) for tag in NUMBERS if tag in said),
            burned_in=as_text(content.get("BurnedInAnnotation")).upper() == "YES",
        )


def as_text(value: Any) -> str:
    """The value of a tag as one text; empty where there is none."""
    return "" if value is None else str(value).strip()


def words_of(text: str) -> list[str]:
    """The words of a name or an id, in lower case, without what separates them."""
    return re.sub(r"[\W_]+", " ", text.casefold()).split()


def groups_in(headers: Sequence[Header], *, by_study: bool) -> tuple[NDArray[np.int64], int]:
    """The patient or study of each file as a number, and how many files name none.

    A file without a patient is grouped by its study, one without a study stays by itself.
    """
    keys = [header.study if by_study else header.patient for header in headers]
    whole = zip(keys, headers, strict=True)
    return numbered([key or header.study or f"\0{place}" for place, (key, header) in enumerate(whole)]), keys.count("")


def numbered(keys: Sequence[str]) -> NDArray[np.int64]:
    """Names as numbers from 1 in the order in which they first appear, so that no name is written."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(key, len(numbers) + 1) for key in keys], np.int64)
