"""Tensors in files that notice when they are damaged: safetensors with a checksum of the whole file in its header.

The checksum is that of the file in which its own 64 digits are zeros, so no bit of the file is outside of it. Any
program that reads safetensors reads these files.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from fedwinnow.errors import DataError
from fedwinnow.folder_format import FORMAT, check_format
from fedwinnow.mathematics.payload import Payload

KEY = "fedwinnow"  # the one key of the metadata: with more of them, safetensors would write them in any order
BLANK = "0" * 64
MARK = b'{\\"checksum\\": \\"'  # how the metadata begins, as JSON within JSON
REMEDY = "Restore the file from a copy, or start the run anew with --redo"


def seal(tensors: Payload, facts: dict[str, Any] | None = None) -> list[bytes | memoryview]:
    """Tensors and facts as the content of a file, in pieces: a large model is not copied once more."""
    text = json.dumps({"checksum": BLANK, "format": FORMAT, "facts": facts or {}}, sort_keys=True)
    ready = {name: value.detach().cpu().contiguous() for name, value in sorted(tensors.items())}
    content = save(ready, metadata={KEY: text})
    place = content.index(MARK) + len(MARK)
    return [content[:place], checksum_of(content).encode(), memoryview(content)[place + len(BLANK) :]]


def unseal(path: Path, remedy: str = REMEDY) -> tuple[Payload, dict[str, Any]]:
    """The tensors and facts of a file, after a look at its checksum; files of format 1 have none."""
    try:
        content = path.read_bytes()
        facts = metadata_of(content)
        if "checksum" in facts or "format" in facts:
            check_format(path, facts["format"])
            if facts["checksum"] != checksum_of(content):
                raise ValueError("its checksum does not agree with its content")
            facts = facts["facts"]
        return load(content), facts
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as problem:
        reason = f"it has no {problem}" if isinstance(problem, KeyError) else problem
        raise DataError(f"{path}: damaged ({reason}). {remedy}.") from None


def metadata_of(content: bytes) -> dict[str, Any]:
    """What we wrote into the header of a safetensors file; nothing in a memory of format 1."""
    length = int.from_bytes(content[:8], "little")
    if not 2 <= length <= len(content) - 8:
        raise ValueError("it is cut short")
    metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    found = json.loads(metadata[KEY]) if metadata else {}
    if not isinstance(found, dict):
        raise ValueError("its header has no facts")
    return found


def checksum_of(content: bytes) -> str:
    """The checksum that a file should state."""
    place = content.index(MARK) + len(MARK)
    digest = hashlib.sha256(content[:place])
    digest.update(BLANK.encode())
    digest.update(memoryview(content)[place + len(BLANK) :])
    return digest.hexdigest()
