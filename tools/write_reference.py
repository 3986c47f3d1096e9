"""Write docs/reference.md and the table of docs/exposure.md again: `python tools/write_reference.py`.

The reference comes from signatures and docstrings, the exposure table from the methods' source text.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from fedwinnow import catalogue
from fedwinnow.commands.methods import NEEDS, under_secure_sums
from fedwinnow.experiment.run_settings import RunSettings, in_groups
from fedwinnow.setting import allowed_values, settings_in, shown, types_of, union_members

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference.md"
EXPOSURE = ROOT / "docs" / "exposure.md"
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}
MARKED = re.compile(r"(<!-- generated: exposure -->\n).*?(<!-- end -->)", re.DOTALL)

# Chapters: a heading, a sentence, and what is described.
CHAPTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "To use it": (
        "What a program calls. After `import fedwinnow` there are `fedwinnow.run`, `load`, `sweep`, `table`, `board`, "
        "`figure`, `audit`, `update_audit`, `Experiment`, `Result`, `Scene`, `Method`, `Watcher` and `Stop`; the "
        "others come from the module that is named.",
        (
            "fedwinnow.api:run",
            "fedwinnow.experiment.settings:Experiment",
            "fedwinnow.experiment.result:Result",
            "fedwinnow.experiment.trained.scoring:Evaluated",
            "fedwinnow.experiment.gain_table:Gain",
            "fedwinnow.study.study_from_python:sweep",
            "fedwinnow.study.sweep:Swept",
            "fedwinnow.study.study_from_python:table",
            "fedwinnow.study.study_from_python:board",
            "fedwinnow.study.table:Table",
            "fedwinnow.study.study_from_python:figure",
            "fedwinnow.experiment.play:Stop",
            "fedwinnow.auditing.audit_from_python:audit",
            "fedwinnow.auditing.audit_from_python:AuditResult",
            "fedwinnow.auditing.update:update_audit",
            "fedwinnow.auditing.update:Updated",
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
    pieces = ["# Reference\n\nWritten by `python tools/write_reference.py` from the docstrings and the settings.\n"]
    for heading, (sentence, places) in CHAPTERS.items():
        pieces.append(f"\n## {heading}\n\n{sentence}\n")
        for place in places:
            module, _, name = place.partition(":")
            pieces += [f"\n{piece}" for piece in described(module, name)]
    pieces.append(
        "\n## Settings\n\nEvery setting of a run is a flag of `fedwinnow run` (`--batch-size`), a key of a config "
        "file, a keyword of `fedwinnow.run`\nand, where it may change the result, a line of the run folder's "
        "config.toml. What is called none is None in Python.\n"
    )
    for heading, names in in_groups(RunSettings).items():
        pieces.append(f"\n{heading}\n\n{settings_table(RunSettings, names)}")
    return "".join(pieces)


def settings_table(declared: type[Any], names: Iterable[str]) -> str:
    """One row per setting."""
    rows = ["| setting | default | allowed | what for |\n", "| --- | --- | --- | --- |\n"]
    for name in names:
        one = settings_in(declared)[name]
        default = "none" if one.default is None else f"`{shown(one.default)}`"
        cells = (f"`{name}`", default, allowed(one, types_of(declared)[name]), one.metadata["help"])
        rows.append(f"| {' | '.join(cells)} |\n".replace("<", "&lt;"))
    return "".join(rows)


def allowed(one: dataclasses.Field[Any], hint: Any) -> str:
    """What a setting takes: its bounds or words, or else the kind of its value."""
    members = union_members(hint)
    words = [word for member in members if get_origin(member) is Literal for word in get_args(member)]
    kinds = [KINDS[member] for member in members if member in KINDS]
    return allowed_values(one) or ", ".join(f"`{word}`" for word in words) or "".join(kinds[-1:])


def described(module: str, name: str) -> Iterator[str]:
    """A function, or a class with what it offers: the heading, the signature, the docstring."""
    thing = getattr(importlib.import_module(module), name)
    yield f"### {name}\n\n`{module}.{name}`\n"
    if not inspect.isclass(thing):
        yield f"```python\n{signature(name, thing)}\n```\n"
        yield prose(inspect.unwrap(thing))
        if declared := getattr(thing, "declared", None):
            of_run, mine = settings_in(RunSettings), settings_in(declared)
            keys = inspect.signature(thing).parameters
            own = [key for key in keys if key not in of_run or facts(mine[key]) != facts(of_run[key])]
            yield f"Keywords that differ from the [settings of a run](#settings):\n\n{settings_table(declared, own)}"
        return
    yield prose(thing)
    rows = [row for key, value in vars(thing).items() if not key.startswith("_") and (row := member(key, value))]
    if rows:
        yield "| name | what for |\n| --- | --- |\n" + "".join(rows)


def facts(one: dataclasses.Field[Any]) -> tuple[Any, str]:
    """What a reader wants to know about a setting."""
    return one.default, one.metadata["help"]


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
    """A parameter as the source has it."""
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = "" if parameter.default is parameter.empty else f" = {shown(parameter.default)}"
    kind = parameter.annotation
    return f"{star}{parameter.name}: {kind if isinstance(kind, str) else inspect.formatannotation(kind)}{default}"


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
        "| method | about the model | about the site | about single samples | to other sites too | with secure sums "
        "| it also needs |\n",
        "| --- | --- | --- | --- | --- | --- | --- |\n",
    ]
    for name, entry in catalogue.entries("methods").items():
        exposes: dict[str, str] = entry.facts["exposes"]
        cells = [
            ", ".join(f"`{key}`" for key, kind in exposes.items() if kind == about) or "-"
            for about in ("model", "client", "sample")
        ]
        cells.append(", ".join(f"`{key}`" for key in entry.facts["forwards"]) or "-")
        cells.append(under_secure_sums(entry))
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
