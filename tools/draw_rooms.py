"""Write the table of the folders in docs/design.md again: `python tools/draw_rooms.py`.

The arrows are read from the import statements of the source text; nothing is imported. A folder may use those that
stand before it in FOLDERS, and no other. Files beside the folders are the ground, except the doors, which users open.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "fedwinnow"
PAGE = ROOT / "docs" / "design.md"
MARKED = re.compile(r"(<!-- generated: rooms -->\n).*?(<!-- end -->)", re.DOTALL)

GROUND, DOORS = "files beside the folders", "doors"

# From the ground up: a folder, and what is in it.
FOLDERS = {
    GROUND: "the ground: errors, options, the catalogue, randomness, writing files whole, tables in the terminal",
    "data": "where samples come from: files, tables, images, published sets",
    "models": "the models, and yours",
    "scene": "who holds what, and which labels are wrong",
    "mathematics": "what knows no client: payloads, losses, optimisers, aggregators, mixtures, views",
    "metrics": "scores, as functions of numbers",
    "federation": "client, server, host, the contract of a method, the only loop, the ledger",
    "steps": "what several methods do on a client or in a round",
    "methods": "one paper, one file",
    "backends": "where clients run on this machine",
    "experiment": "from settings to the run folder, the evaluation side of the wall, the report, trackers",
    "study": "sweeps, tables, tests, recipes, figures",
    "auditing": "the label audit: judges, report, review, corrected labels",
    "deployment": "sites on machines of their own, reached through Flower",
    "commands": "one file per command",
    DOORS: "`cli.py`, `api.py`, `sklearn.py`, `testing.py`: the command, `import fedwinnow`, an estimator, the tester",
}
DOOR_FILES = {"__init__", "__main__", "api", "cli", "sklearn", "testing"}


def module_name(path: Path) -> str:
    """`federation/host` for src/fedwinnow/federation/host.py."""
    return path.relative_to(SOURCE).with_suffix("").as_posix()


def imports(path: Path, known: set[str]) -> Iterator[str]:
    """The modules of ours that a file imports anywhere, also in functions and for types alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            place = name.removeprefix("fedwinnow.").replace(".", "/")
            if name.startswith("fedwinnow.") and place in known:
                yield place


def modules() -> dict[str, set[str]]:
    """Every module with those it imports."""
    paths = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
    return {name: set(imports(path, paths.keys())) - {name} for name, path in paths.items()}


def folder_of(name: str) -> str:
    """The folder that a module lies in; a file beside the folders is a door or belongs to the ground."""
    folder, slash, _ = name.partition("/")
    if slash:
        return folder
    return DOORS if name in DOOR_FILES else GROUND


def arrows(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Every folder with the folders it uses."""
    found: dict[str, set[str]] = {}
    for name, used in graph.items():
        folder = folder_of(name)
        found.setdefault(folder, set()).update({folder_of(one) for one in used} - {folder})
    return found


def table() -> str:
    """The folders from the ground up; the ground is used by all and not named again."""
    found, order = arrows(modules()), list(FOLDERS)
    lines = ["| folder | what is in it | uses |\n", "| --- | --- | --- |\n"]
    for folder in order:
        used = ", ".join(sorted(found[folder] - {GROUND}, key=order.index)) or "-"
        shown = f"`{folder}/`" if folder not in (GROUND, DOORS) else folder
        lines.append(f"| {shown} | {FOLDERS[folder]} | {used} |\n")
    return "".join(lines)


def current() -> str:
    """The page as it should be."""
    return MARKED.sub(lambda found: found[1] + table() + found[2], PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(current(), encoding="utf-8")
