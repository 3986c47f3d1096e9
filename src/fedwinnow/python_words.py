"""Messages are written for the command line; to a program they speak of keywords: `rounds=3` instead of `--rounds 3`.

This happens where an error leaves a function of `import fedwinnow`, so who writes a message need not think of it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re

# Flags that are keywords of some function, besides the settings of a run. Other flags belong to commands only.
FURTHER = {
    *("against", "alpha", "budget", "calibrated", "client", "column", "columns", "engine", "expected-false-alarms"),
    *("fits", "format", "group", "jobs", "judge", "label", "look-cost", "methods", "option", "out", "rows", "run"),
    *("schema", "score", "seeds", "show", "site", "threshold", "track"),
}
OTHERWISE = {"no-self-test": "self_test=", "partitions": "scenes=", "noises": "scenes="}
ALONE = {"resume", "redo", "mixed-precision", "drop-last", "calibrated"}  # true where they stand without a value
WORDS = (
    r"cifar100?n?|drop|stop|serial|processes|torch|onnx|safetensors|dask|ray|auto|none|stale|cpu|cuda|flower|strong|"
    r"crop_flip"
)
# What is a value after a flag: a number, a placeholder, one of these words, or something with a sign of a path or spec.
VALUE = (
    r"(?:-?[\d.]+(?:e-?\d+)?(?![\w.])|[A-Z]{1,12}\b(?![a-z])|"
    rf"(?:{WORDS})\b(?!-)|[^\s`,;]*[/.:=\\][^\s`,;]*[^\s`,;.:)])"
)
NAMES = (
    r"apply|audit|board|certificates|demo|doctor|encode|encoders|evaluate|export|figure|gain|join|judges|ledger|losses|"
    r"methods|models|paper|predict|review|run|scene|schema|serve|sweep|table"
)
WORD = r"[^\s`]*[^\s`.,;:)]"  # of a command; a sign of punctuation ends it
COMMAND = re.compile(
    rf"(?:\bfedwinnow (?:{NAMES})\b|docker run|pip install)(?:{WORD})?(?: (?:{WORD})(?=[ `]))*(?: [^\s`]+)?"
)
ASKED = re.compile(r"--([a-z][a-z-]*) ((?:(?!--| was given).){1,300}?)(?= was given)", re.DOTALL)
NAMED = re.compile(r"--([a-z][a-z-]*) (\S+?)(?=:(?: |$))")
FOLDER = re.compile(r"--(out) (\S+)(?= (?:already |is |has |holds |needs |cannot ))")
WITH_VALUE = re.compile(r"(--[a-z][a-z-]*)=(?=\S)")  # --trusted=nan
FLAG = re.compile(rf"--([a-z][a-z-]*)(?:[ =]({VALUE}))?(?![a-z])")


def in_python(text: str) -> str:
    """A message with the keywords of Python instead of flags; commands in it stay commands."""
    pieces, place = [], 0
    for command in COMMAND.finditer(text):
        pieces += [reworded(text[place : command.start()]), command[0]]
        place = command.end()
    return "".join([*pieces, reworded(text[place:])])


@functools.cache
def keywords() -> frozenset[str]:
    """The flags that a program writes as keywords."""
    all_settings = importlib.import_module("fedwinnow.all_settings")  # by its name: it is made with the errors
    kinds = (all_settings.TaskSettings, all_settings.SiteSettings, all_settings.ExecutionSettings)
    names = {one.name.replace("_", "-") for kind in kinds for one in dataclasses.fields(kind)}
    return frozenset(names | FURTHER | OTHERWISE.keys())


def reworded(text: str) -> str:
    """A piece of a message without commands."""
    text = WITH_VALUE.sub(r"\1 ", text)
    for pattern in (ASKED, NAMED, FOLDER, FLAG):
        text = pattern.sub(keyword, text)
    return text


def keyword(found: re.Match[str]) -> str:
    """A flag as a keyword, with the value that follows it."""
    name, value = found[1], found[2]
    if name not in keywords():
        return found[0]
    if value is None:
        return OTHERWISE.get(name) or name.replace("-", "_") + ("=True" if name in ALONE else "=")
    return f"{name.replace('-', '_')}={'None' if value == 'none' else repr(value) if value == 'stale' else value}"
