"""The format of the folders that we write: one number for runs, audits, sites, sweeps and scenes alike.

1 is what version 0.1.0 wrote; it is read. 2 has checksums in checkpoints and memories. See docs/upgrading.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedwinnow.errors import DataError

FORMAT = 2
FIRST = 1  # also where a file says nothing: the first version wrote no number into runs and sweeps


def check_format(path: Path, found: Any) -> int:
    """The format that a file says it has; one that we do not know is refused."""
    if isinstance(found, bool) or not isinstance(found, int) or found < FIRST:
        raise DataError(
            f"{path}: the format is {found!r}; allowed: {FIRST} to {FORMAT}. The file is damaged: restore it."
        )
    if found > FORMAT:
        raise DataError(
            f"{path}: made by a newer fedwinnow (format {found}; this version reads up to {FORMAT}). Upgrade fedwinnow."
        )
    return found
