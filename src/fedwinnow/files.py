"""Files: written whole or not at all, read with suspicion, with a format number; and which source wrote them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

from fedwinnow.errors import DataError

LEFT_OVER = re.compile(r"\.(.+)\.[0-9a-f]{16}")  # the name of a temporary file, which a killed process leaves behind


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path`; it replaces `path` only after everything was written."""
    make_folder(path.parent, durable=durable)
    # `tempfile` is not used, because only the owner may read its files; scenes and reports are shared.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as stream:
            yield stream
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        settle(path.parent)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a whole text file at once."""
    with replacing(path, durable=durable) as stream:
        stream.write(text.encode("utf-8"))


def make_folder(folder: Path, *, durable: bool = True) -> None:
    """Make a folder and the missing folders above it."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()] if durable else []
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        settle(place.parent)


def settle(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path, *names: str) -> None:
    """Delete the temporary files that killed processes left behind: all, or those for files of these names.

    Call it only while no other process writes to this folder, or to files of these names.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        found = LEFT_OVER.fullmatch(path.name)
        if found is not None and (not names or found[1] in names):
            path.unlink(missing_ok=True)


def try_lock(handle: int) -> bool:
    """Take a lock that ends with this process; False when another process has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, 0, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# The form of a value: a type or several, [form] for a list, {"key": form} for a table in which a key that ends in ? may
# be missing, {"*": form} for a table with any keys, Maybe(form) for a value that may be null. `float` takes whole
# numbers too; neither `float` nor `int` takes true or false.
Form = Any
NAMES = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "a table",
    list: "a list",
}


@dataclass(frozen=True)
class Maybe:
    """A form, or null."""

    form: Form


def text_of(path: Path) -> str:
    """The text of a file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise DataError(f"{path}: not the text that was written here ({problem}). Restore the file.") from None
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror or problem}).") from None


def parsed(path: Path, text: str, form: Form = dict, where: str = "") -> Any:
    """JSON of the given form; `where` names the part of the file for an error message."""
    place = f"{path}{where}"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{place}: not the JSON that was written here ({problem}). Restore the file.") from None
    demand(place, found, form)
    return found


def json_of(path: Path, form: Form = dict) -> Any:
    """The JSON of a file."""
    return parsed(path, text_of(path), form)


def demand(place: str, value: Any, form: Form, key: str = "") -> None:
    """Refuse a value that does not have the form; the error names the first key that is wrong."""
    if isinstance(form, Maybe):
        if value is not None:
            demand(place, value, form.form, key)
        return
    if isinstance(form, dict):
        demand(place, value, dict, key)
        for name, inner in form.items():
            if name == "*":
                for each, one in value.items():
                    demand(place, one, inner, f"{key}.{each}")
            elif name.rstrip("?") in value:
                demand(place, value[name.rstrip("?")], inner, f"{key}.{name.rstrip('?')}")
            elif not name.endswith("?"):
                raise DataError(f"{place}: '{f'{key}.{name}'[1:][:60]}' is missing. Restore the file.")
        return
    if isinstance(form, list):
        demand(place, value, list, key)
        for number, one in enumerate(value):
            demand(place, one, form[0], f"{key}.{number}")
        return
    kinds = form if isinstance(form, tuple) else (form,)
    if not any(is_kind(value, kind) for kind in kinds):
        allowed = " or ".join(NAMES[kind] for kind in kinds)
        what = f"'{key[1:][:60]}'" if key else "what is in it"
        raise DataError(f"{place}: {what} is {repr(value)[:40]}; needed: {allowed}. Restore the file.")


def is_kind(value: Any, kind: type) -> bool:
    """Whether a value has a type; true and false are not numbers here."""
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)


FORMAT = 2
FIRST = 1  # also for a file without a number: version 0.1 wrote none into runs and sweeps


def check_format(path: Path, found: Any) -> int:
    """The format number of a file; an unknown number is refused."""
    if isinstance(found, bool) or not isinstance(found, int) or found < FIRST:
        raise DataError(
            f"{path}: the format is {found!r}; allowed: {FIRST} to {FORMAT}. The file is damaged: restore it."
        )
    if found > FORMAT:
        raise DataError(
            f"{path}: made by a newer fedwinnow (format {found}; this version reads up to {FORMAT}). Upgrade fedwinnow."
        )
    return found


ROOT = Path(__file__).parent


@cache
def package_source() -> str:
    """sha256 of the names and contents of all Python files; the same in a checkout and in an installed wheel.

    Templates, shipped configs and recipes are left out, because the config of every run has what they set.
    """
    digest = hashlib.sha256()
    for name, path in sorted((path.relative_to(ROOT).as_posix(), path) for path in ROOT.rglob("*.py")):
        content = as_written(path.read_bytes())
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def as_written(content: bytes) -> bytes:
    """Source text with the line ends of Linux; git may write others on Windows."""
    return content.replace(b"\r\n", b"\n")


def source_in(identity: Any) -> str | None:
    """The hash of the source in the identity.json of a run; None if it has none."""
    made = identity.get("fedwinnow") if isinstance(identity, dict) else None
    return str(made["source"]) if isinstance(made, dict) and "source" in made else None


def is_current(identity: Any) -> bool:
    """Whether a run was made by the present source; false for a run without a hash."""
    return source_in(identity) == package_source()


# --- names of folders: with their letters, safe and different on every system ---------------------------------------

DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}
LONGEST = 60  # letters
MOST_BYTES = 120  # in UTF-8, with room for a number behind it


def folder_names(names: Sequence[str], taken: Iterable[str] = ()) -> list[str]:
    """A folder name for each name, unique even if capitals or the forms of a letter are the same."""
    used, found = {same_key(name) for name in taken}, []
    for given in names:
        plain = safe_name(given) or "site"
        name, number = plain, 2
        while same_key(name) in used:
            name, number = f"{plain}-{number}", number + 1
        used.add(same_key(name))
        found.append(name)
    return found


def safe_name(text: str) -> str:
    """Letters and digits of all scripts, dots, underlines and dashes; runs of anything else become one dash."""
    marked = ""
    for letter in unicodedata.normalize("NFC", text):
        marked += letter if is_kept(letter, marked) else "/"
    kept = re.sub(r"/+|\.{2,}", "-", marked).strip(".-")[:LONGEST]
    while len(kept.encode()) > MOST_BYTES:
        kept = kept[:-1]
    kept = kept.rstrip(".-")
    # Windows takes the name of a device for the device, also with an ending behind it.
    return f"site-{kept}" if same_key(kept).partition(".")[0] in DEVICES else kept


def is_kept(letter: str, before: str) -> bool:
    """Whether a letter may stay: letters and digits of every script, marks behind these, and three signs."""
    kind = unicodedata.category(letter)[0]
    if kind == "M":
        return bool(before) and unicodedata.category(before[-1])[0] in "LMN"
    return letter in "._-" or kind in "LN"


def same_key(name: str) -> str:
    """What two names have in common if some system takes them for the same."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return unicodedata.normalize("NFKC", folded)
