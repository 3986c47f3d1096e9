"""What an audit must not say where nobody knows the truth: how many calls are right, how many labels are wrong."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

# Words that say how many labels are wrong, or how good the calls are; the sentences that deny it have none of them.
PHRASES = re.compile(
    r"expected to be|probabl[ye]|likely|off by|right after all|false alarms?\b|estimated|expects?\b|should be|calibrat"
    r"|self-?test|\b(?:precision|recall)\b|planted|observed|will be (?:right|wrong)|how bad",
    re.IGNORECASE,
)
PERCENTAGE = re.compile(r"\d\s*(?:%|per ?cent\b)")
# Keys and columns that would hold such a figure.
KEYS = re.compile(
    r"precision|recall|expected|estimated|calibrat|self_test|planted|found|rate$|share|f1$|auroc", re.IGNORECASE
)
# Keys of the training that are settings: how it was told to train, not what was found.
SETTINGS = {"mixed_precision", "learning_rate", "nominal_rate", "test_share"}
CODE = re.compile(r"<(style|script)\b.*?</\1>|<[^>]+>", re.DOTALL)


def promises_in_text(text: str) -> list[str]:
    """Sentences that promise something."""
    flat = " ".join(text.split())
    return [
        flat[max(0, found.start() - 40) : found.end() + 40]
        for pattern in (PHRASES, PERCENTAGE)
        for found in pattern.finditer(flat)
    ]


def promises_in_json(value: Any, path: str = "") -> list[str]:
    """Keys that hold a figure nobody knows, and texts that promise one."""
    if isinstance(value, dict):
        held = [
            f"{path}/{key} = {inner!r}"
            for key, inner in value.items()
            if KEYS.search(str(key)) and key not in SETTINGS and not unknown(inner)
        ]
        return held + [line for key, inner in value.items() for line in promises_in_json(inner, f"{path}/{key}")]
    if isinstance(value, list):
        return [line for number, inner in enumerate(value) for line in promises_in_json(inner, f"{path}/{number}")]
    return [f"{path}: {line}" for line in promises_in_text(value)] if isinstance(value, str) else []


def unknown(value: Any) -> bool:
    """Whether there is no figure in it, however deep."""
    if isinstance(value, dict):
        return all(unknown(inner) for inner in value.values())
    return value is None or value is False or value in ("", [])


def promises_in_table(text: str) -> list[str]:
    """Columns that hold a figure nobody knows, and cells that promise one."""
    rows = list(csv.DictReader(io.StringIO(text)))
    held = [f"{name} = {row[name]}" for row in rows for name in row if KEYS.search(name) and row[name] != ""]
    return held + [line for row in rows for cell in row.values() for line in promises_in_text(cell)]


def promises_in(folder: Path) -> list[str]:
    """All promises in all texts below a folder, each with its file."""
    found, read = [], set()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        ending = path.suffix
        if ending in (".safetensors", ".npz", ".lock", ".png", ".jpg") or path.name.startswith(".") or not ending:
            continue
        text = path.read_text(encoding="utf-8")
        if ending == ".json":
            lines = promises_in_json(json.loads(text))
        elif ending == ".jsonl":
            lines = promises_in_json([json.loads(line) for line in text.splitlines()])
        elif ending == ".csv":
            lines = promises_in_table(text)
        elif ending == ".html":
            lines = promises_in_text(CODE.sub(" ", text))
        else:
            lines = promises_in_text(text)
        found += [f"{path.relative_to(folder)}: {line}" for line in lines]
        read.add(ending)
    assert {".json", ".csv", ".html"} <= read, "there was nothing to look at"
    return found
