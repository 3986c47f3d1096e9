"""Write docs/reference.md and the table of docs/exposure.md again: `python tools/write_reference.py`.

The reference comes from signatures and docstrings, the exposure table from the methods' source text.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedwinnow import catalogue
from fedwinnow.commands.methods import NEEDS

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference.md"
EXPOSURE = ROOT / "docs" / "exposure.md"
MARKED = re.compile(r"(<!-- generated: exposure -->\n).*?(<!-- end -->)", re.DOTALL)

# Chapters: a heading, a sentence, and what is described.
CHAPTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "To use it": (
        "What a program calls. After `import fedwinnow` there are `fedwinnow.run`, `sweep`, `table`, `audit`, "
        "`Experiment`, `Result`, `Scene` and `Method`; the others come from the module that is named.",
        (
            "fedwinnow.api:run",
            "fedwinnow.experiment.settings:Experiment",
            "fedwinnow.experiment.result:Result",
            "fedwinnow.study.study_from_python:sweep",
            "fedwinnow.study.sweep:Swept",
            "fedwinnow.study.study_from_python:table",
            "fedwinnow.study.table:Table",
            "fedwinnow.auditing.audit_from_python:audit",
            "fedwinnow.auditing.audit_from_python:AuditResult",
            "fedwinnow.scene.scene:Scene",
            "fedwinnow.data.load:load",
            "fedwinnow.data.arrays:from_arrays",
        ),
    ),
    "To write a method": (
        "What a method overrides and what it meets; [your own method](own-method.md) explains it with an example.",
        (
            "fedwinnow.federation.method:Method",
            "fedwinnow.federation.method:Exchange",
            "fedwinnow.federation.method:Verdict",
            "fedwinnow.federation.client:Client",
            "fedwinnow.federation.server:Server",
            "fedwinnow.options:option",
            "fedwinnow.testing:MethodTester",
        ),
    ),
    "To watch": (
        "Who is told what happens during a run.",
        ("fedwinnow.experiment.play:Watcher", "fedwinnow.experiment.trackers.tracker:Tracker"),
    ),
    "Errors": (
        "Everything foreseen is one of these; `exit_code` is that of the command line. A warning ends nothing.",
        (
            "fedwinnow.errors:FedwinnowError",
            "fedwinnow.errors:UsageError",
            "fedwinnow.errors:DataError",
            "fedwinnow.errors:RunError",
            "fedwinnow.errors:FedwinnowWarning",
        ),
    ),
}


def reference() -> str:
    """The whole page."""
    pieces = ["# Reference\n\nWritten by `python tools/write_reference.py` from the docstrings.\n"]
    for heading, (sentence, places) in CHAPTERS.items():
        pieces.append(f"\n## {heading}\n\n{sentence}\n")
        for place in places:
            module, _, name = place.partition(":")
            pieces += [f"\n{piece}" for piece in described(module, name)]
    return "".join(pieces)


def described(module: str, name: str) -> Iterator[str]:
    """A function, or a class with what it offers: the heading, the signature, the docstring."""
    thing = getattr(importlib.import_module(module), name)
    yield f"### {name}\n\n`{module}.{name}`\n"
    if not inspect.isclass(thing):
        yield f"```python\n{signature(name, thing)}\n```\n"
        yield prose(thing)
        return
    yield prose(thing)
    rows = [row for key, value in vars(thing).items() if not key.startswith("_") and (row := member(key, value))]
    if rows:
        yield "| name | what for |\n| --- | --- |\n" + "".join(rows)


def prose(thing: Any) -> str:
    """A docstring as Markdown: what is indented is shown as it is."""
    paragraphs = (inspect.getdoc(thing) or "").split("\n\n")
    shown = [f"```text\n{inspect.cleandoc(text)}\n```" if text.startswith("    ") else text for text in paragraphs]
    return "\n\n".join(shown) + "\n"


def signature(name: str, function: Any) -> str:
    """How it is called, one parameter per line where there are many."""
    found = inspect.signature(function)
    pieces, starred = [], False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            pieces.append("*")
        starred = starred or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        pieces.append(written(parameter))
    result = f" -> {found.return_annotation}"
    text = f"{name}({', '.join(pieces)}){result}"
    return text if len(text) <= 110 else f"{name}(\n{''.join(f'    {piece},{chr(10)}' for piece in pieces)}){result}"


def written(parameter: inspect.Parameter) -> str:
    """A parameter as the source has it; its annotation is text already."""
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{star}{parameter.name}: {parameter.annotation}{default}"


def member(key: str, value: Any) -> str:
    """A line for a method or a property with a docstring; what a base class says is not repeated."""
    inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    text = inspect.getdoc(inner) if inspect.isfunction(inner) else None
    if not text:
        return ""
    sentence = " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")
    names = [] if isinstance(value, property) else [one for one in inspect.signature(inner).parameters if one != "self"]
    shown = key if isinstance(value, property) else f"{key}({', '.join(names)})"
    return f"| `{shown}` | {sentence} |\n"


def exposure() -> str:
    """One row per method: what may leave a site, by what can be learned, for whom, and what the method needs."""
    lines = [
        "| method | about the model | about the site | about single samples | to other sites too | it also needs |\n",
        "| --- | --- | --- | --- | --- | --- |\n",
    ]
    for name, entry in catalogue.entries("methods").items():
        exposes: dict[str, str] = entry.facts["exposes"]
        cells = [
            ", ".join(f"`{key}`" for key, kind in exposes.items() if kind == about) or "-"
            for about in ("model", "client", "sample")
        ]
        cells.append(", ".join(f"`{key}`" for key in entry.facts["forwards"]) or "-")
        needs = "; ".join(needs_of(entry)) or "-"
        page = ROOT / "docs" / "methods" / f"{name}.md"
        linked = f"[{name}](methods/{name}.md)" if page.exists() else name
        lines.append(f"| {linked} | {' | '.join(cells)} | {needs} |\n")
    return "".join(lines)


def needs_of(entry: catalogue.Entry) -> Iterator[str]:
    """What a run must provide, and who must answer besides those who train in a round."""
    yield from (NEEDS.get(need, need) for need in entry.facts.get("needs", ()))
    if entry.facts["asks"]:
        yield f"answers of {entry.facts['asks']}"


def exposure_page() -> str:
    """The page with its table as it should be."""
    return MARKED.sub(lambda found: found[1] + exposure() + found[2], EXPOSURE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    REFERENCE.write_text(reference(), encoding="utf-8")
    EXPOSURE.write_text(exposure_page(), encoding="utf-8")
