"""How the letters of a text file are stored: UTF-8, UTF-16, Latin-1 or a code page of DOS, found out and said."""

from __future__ import annotations

import codecs
import re
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Literal

from fedwinnow.errors import DataError, FedwinnowWarning

Asked = Literal["auto", "utf-8", "utf-16", "latin-1", "cp850", "cp437"]

BLOCK = 1 << 22  # bytes that are looked at together
BEGINNING = 4096  # bytes in which zeros at every second place tell UTF-16 without a mark
CONTROL = re.compile(rb"[\x00-\x08\x0e-\x19\x1b-\x1f\x7f]")  # 1a ends a file of DOS
SEVERAL_BYTES = re.compile(rb"[\xc3-\xdf][\x80-\xbf]|[\xe1-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
FOREIGN = re.compile(rb"[\x80-\xff]")
UNUSED = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")  # bytes that Windows-1252 has no letter for
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# Letters of DOS that Windows has signs or nothing for (ü ä ö é å in place of „ ” † ‚), between two letters; a few signs
# that do stand between letters (’ – … and a space that does not break) are left out.
OF_DOS = re.compile(
    rb"(?<=[A-Za-z])[\x80-\x82\x84\x86-\x89\x8b\x8d\x8f-\x91\x93-\x95\x98\x99\x9b\x9d\xa1-\xa5](?=[A-Za-z\xe1])"
    rb"|(?<=[a-z])[\x8a\x8c](?=[a-z])"
    rb"|(?<=[A-Za-z])[\x81\x8d\x8f\x90\x9d]|[\x81\x8d\x8f\x90\x9d](?=[A-Za-z])"
)
# Letters of Windows that are lines, blocks and signs in DOS.
OF_WINDOWS = re.compile(rb"(?<=[A-Za-z])[\xc0-\xc5\xc8-\xcf\xd9-\xdc\xdf\xee-\xf6\xf8-\xfe](?=[A-Za-z])")
SHOWN = 12  # letters

WEB_PAGE = "a web page, as some systems write in place of a spreadsheet. Open it in a spreadsheet and save it as .xlsx"
OTHER_KINDS = {
    b"PK\x03\x04": "a spreadsheet (.xlsx) or another archive. Read an .xlsx file with excel:path=FILE",
    b"PAR1": "a Parquet file. Read it with parquet:path=FILE",
    b"\xd0\xcf\x11\xe0": "an old spreadsheet (.xls). Save it as .xlsx and read it with excel:path=FILE",
    b"\x89HDF": "an HDF5 file. A folder of them is read with h5:path=FOLDER,labels=TABLE",
    b"%PDF": "a PDF. Export the table as CSV",
    b"{\\rtf": "a text document (.rtf). Export the table as CSV",
    **dict.fromkeys((b"<html", b"<table", b"<!doctype"), WEB_PAGE),
    b"<?xml": "XML. Open it in a spreadsheet and save it as .xlsx",
}
WINDOWS = "Latin-1 (Windows-1252)"
ADVICE = "Save it again as UTF-8 CSV."


def codec_of(path: Path, asked: Asked = "auto") -> str:
    """The name that Python has for the encoding of a file; another one than UTF-8 is said in a warning."""
    with path.open("rb") as stream:
        beginning = stream.read(BEGINNING)
    refuse_other_kinds(path, beginning)
    codec = next((codec for mark, codec in MARKS.items() if beginning.startswith(mark)), "")
    if codec == "utf-16" or asked == "utf-16":
        return checked(path, codec or without_mark(beginning) or "utf-16-le", said=asked == "auto")
    if asked in ("cp850", "cp437"):
        return asked
    if asked == "latin-1":
        return western(path)
    if not codec and asked == "auto" and (codec := without_mark(beginning)):
        return checked(path, codec, said=True)
    fault = first_fault(path)
    if fault is None:
        return codec or "utf-8"
    place, line, zero = fault
    if zero:
        raise DataError(f"{path}, line {line}: a zero byte, so this is not a text file. {ADVICE}")
    if asked == "utf-8" or codec or not looks_western(path):
        raise DataError(f"{path}, line {line}: not UTF-8 text (byte {place + 1} of the file). {ADVICE}")
    found, spoken = ("cp850", "a text of DOS (code page 850)") if is_of_dos(path) else (western(path), WINDOWS)
    tell(path, f"{spoken}, with the letters {foreign_letters(path, found)}")
    return found


def refuse_other_kinds(path: Path, beginning: bytes) -> None:
    """Refuse a file that is no table in text, whatever its name says, with the way to read it."""
    start = beginning.removeprefix(codecs.BOM_UTF8).lstrip().lower()
    said = next(
        (said for mark, said in OTHER_KINDS.items() if beginning.startswith(mark) or start.startswith(mark)), ""
    )
    if said:
        raise DataError(f"{path}: not a text file with a table, but {said}.")


def without_mark(beginning: bytes) -> str:
    """UTF-16 by its zeros, which western letters have in every second byte; empty for other text."""
    pairs = len(beginning) // 2
    high, low = beginning[: 2 * pairs : 2].count(0), beginning[1 : 2 * pairs : 2].count(0)
    if pairs >= 4 and low >= 0.6 * pairs and high == 0:
        return "utf-16-le"
    return "utf-16-be" if pairs >= 4 and high >= 0.6 * pairs and low == 0 else ""


def checked(path: Path, codec: str, *, said: bool) -> str:
    """UTF-16 that can be read whole."""
    decoder, line = codecs.getincrementaldecoder(codec)(), 1
    for block in chain(blocks_of(path), [None]):
        try:
            text = decoder.decode(b"" if block is None else block, final=block is None)
        except UnicodeError:
            raise DataError(f"{path}, after line {line}: not UTF-16 text. {ADVICE}") from None
        if "\0" in text:
            line += text[: text.index("\0")].count("\n")
            raise DataError(f"{path}, line {line}: a zero character, so this is not a text file. {ADVICE}")
        line += text.count("\n")
    if said:
        tell(path, "UTF-16")
    return codec


def first_fault(path: Path) -> tuple[int, int, bool] | None:
    """The first byte that is no UTF-8: its place, its line, and whether it is a zero; None where all is well."""
    decoder, before, lines = codecs.getincrementaldecoder("utf-8")(), 0, 0
    held = b""  # the bytes of a letter that the end of a block cut
    for block in chain(blocks_of(path), [None]):
        content = held + (block or b"")
        zero = content.find(b"\0")
        try:
            decoder.decode(block or b"", final=block is None)
        except UnicodeDecodeError as problem:
            if zero < 0 or problem.start < zero:
                return before + problem.start, lines + content[: problem.start].count(b"\n") + 1, False
        if zero >= 0:
            return before + zero, lines + content[:zero].count(b"\n") + 1, True
        held = decoder.getstate()[0]
        done = len(content) - len(held)
        before, lines = before + done, lines + content[:done].count(b"\n")
    return None


def looks_western(path: Path) -> bool:
    """Whether bytes that are no UTF-8 may be letters of Latin-1: no control bytes, and nothing that is UTF-8 after all.

    A file with letters in UTF-8 besides is a mixture, which would be misread either way.
    """
    return not any(CONTROL.search(block) or SEVERAL_BYTES.search(block) for block in blocks_of(path))


def is_of_dos(path: Path) -> bool:
    """Whether words have letters of DOS inside and none of Windows."""
    found = [(OF_DOS.search(block), OF_WINDOWS.search(block)) for block in blocks_of(path)]
    return any(dos for dos, _ in found) and not any(windows for _, windows in found)


def western(path: Path) -> str:
    """Windows-1252, which has letters where Latin-1 has none; Latin-1 where a byte has no letter there."""
    return "latin-1" if any(UNUSED.search(block) for block in blocks_of(path)) else "cp1252"


def foreign_letters(path: Path, codec: str) -> str:
    """Which letters the file has besides those of ASCII, so that a person sees whether they are right."""
    found = {one for block in blocks_of(path) for one in FOREIGN.findall(block)}
    letters = sorted(b"".join(found).decode(codec))
    return " ".join(letters[:SHOWN]) + (" ..." if len(letters) > SHOWN else "")


def blocks_of(path: Path) -> Iterator[bytes]:
    """The bytes of a file in pieces."""
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            yield block


def tell(path: Path, encoding: str) -> None:
    """Say how a file was read."""
    warnings.warn(
        f"{path} is not UTF-8; it was read as {encoding}. If letters are wrong, save it again as UTF-8.",
        FedwinnowWarning,
        stacklevel=4,
    )
