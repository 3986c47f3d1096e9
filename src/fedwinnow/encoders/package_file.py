"""A file of weights in an installed package: it must still be what was installed."""

from __future__ import annotations

import base64
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from fedwinnow.data.content_hash import hash_of_file
from fedwinnow.errors import DataError


def checked_file(package: str, path: Path) -> Path:
    """The path, unless its content is not that of which the package's own list of files has the hash.

    Some formats of weights have no checksum, so that a damaged file would be read without a word.
    """
    try:
        listed = distribution(package).files or []
    except PackageNotFoundError:  # a copy of the package that was not installed has no list
        return path
    for one in listed:
        if one.name == path.name and one.hash is not None and one.hash.mode == "sha256":
            wanted = base64.urlsafe_b64decode(one.hash.value + "=" * (-len(one.hash.value) % 4)).hex()
            if Path(str(one.locate())).resolve() == path.resolve() and hash_of_file(path) != wanted:
                raise DataError(
                    f"{path}: damaged or changed since it was installed (its sha256 begins with "
                    f"{hash_of_file(path)[:12]}, in the package {package} with {wanted[:12]}). Install {package} again."
                )
    return path
