"""Write the tables of the method pages from the methods' source text: `python tools/write_method_tables.py`."""

from __future__ import annotations

import re
from pathlib import Path

from fedwinnow import catalogue
from fedwinnow.commands.methods import LEARNS, beyond_the_model

PAGES = Path(__file__).parent.parent / "docs" / "methods"
MARKED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Bring every page up to date."""
    for path in sorted(PAGES.glob("*.md")):
        path.write_text(current(path), encoding="utf-8")


def current(path: Path) -> str:
    """A page as it should be."""

    def fill(found: re.Match[str]) -> str:
        return found[1] + table(found[2], path.stem) + found[3]

    return MARKED.sub(fill, path.read_text(encoding="utf-8"))


def table(kind: str, name: str) -> str:
    """One of the three kinds of tables."""
    if kind == "methods":
        rows = [overview_row(entry) for entry in catalogue.entries("methods").values()]
        return markdown(["method", "what it does", "beyond the model it reveals"], rows)
    entry = catalogue.find("methods", name)
    if kind == "exposure":
        exposes = entry.facts["exposes"].items()
        return markdown(["key", "exposes", "the receiver can learn"], [[f"`{k}`", v, LEARNS[v]] for k, v in exposes])
    return markdown(["option", "default", "allowed", "meaning"], [option_row(option) for option in entry.options])


def overview_row(entry: catalogue.Entry) -> list[str]:
    """A line of the overview; with a link where there is a page."""
    linked = f"[{entry.name}]({entry.name}.md)" if (PAGES / f"{entry.name}.md").exists() else entry.name
    return [linked, entry.summary, beyond_the_model(entry)]


def option_row(option: catalogue.OptionText) -> list[str]:
    """A line of a method's options."""
    presets = ", ".join(f"{name}: {value}" for name, value in (option.presets or {}).items())
    notes = ", ".join(filter(None, [option.symbol, option.source]))
    meaning = option.sentence + (f" ({notes})" if notes else "")
    return [f"`{option.name}`", f"`{presets or option.default}`", option.type, meaning]


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table; a bar inside a cell would end it."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    main()
