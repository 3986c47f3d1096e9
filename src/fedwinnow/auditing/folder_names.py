"""Folder names for sites: with their letters, safe as a path on every system, and different on every system."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

RESERVED = ("training", "audit.json", "sites.csv", "index.html")  # what else is in an audit folder
DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}
LONGEST = 60  # letters
MOST_BYTES = 120  # in UTF-8, with room for a number behind it


def folder_names(sites: Sequence[str], taken: Iterable[str] = RESERVED) -> list[str]:
    """A folder name for each site, unique even if capitals or the forms of a letter are the same."""
    used, names = {same_key(name) for name in taken}, []
    for site in sites:
        plain = safe_name(site) or "site"
        name, number = plain, 2
        while same_key(name) in used:
            name, number = f"{plain}-{number}", number + 1
        used.add(same_key(name))
        names.append(name)
    return names


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
