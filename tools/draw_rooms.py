"""Write the table of the rooms in docs/design.md again: `python tools/draw_rooms.py`.

The arrows are read from the import statements of the source text; nothing is imported. A room may use those that stand
before it in ROOMS, and no other.
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

# From the ground up: a room, and what is in it.
ROOMS = {
    "ground": "errors, options, the catalogue, randomness, writing files whole, tables in the terminal",
    "data": "where samples come from",
    "models": "the models, and yours",
    "scene": "who holds what, and which labels are wrong",
    "payload": "what travels: a flat dictionary of tensors",
    "parts": "mathematics: losses, optimisers, aggregators, mixtures, views",
    "metrics": "scores, as functions of numbers",
    "federation": "client, server, host, the contract of a method, the only loop, the ledger",
    "steps": "parts that work on a client: what several methods do on site",
    "methods": "one paper, one file",
    "backends": "where clients run",
    "store": "the run folder",
    "report": "the page of a run",
    "experiment": "from settings to the run folder, and the evaluation side of the wall",
    "trackers": "who else is told",
    "api": "`fedwinnow.run`",
    "study": "sweeps and tables",
    "figures": "pictures",
    "auditing": "the label audit",
    "network": "sites on machines of their own",
    "flower": "the backend that reaches them",
    "commands": "what the command line can do",
    "doors": "`fedwinnow`, `import fedwinnow`, `fedwinnow.testing`",
}
GROUND = {
    "atomic",
    "catalogue",
    "config",
    "device",
    "errors",
    "flags",
    "formats",
    "heap",
    "options",
    "randomness",
    "reach",
    "reading",
    "source",
    "terminal",
    "version",
}
DOORS = {"__init__", "__main__", "cli", "testing", "backends/flower_app"}


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


def room_of(name: str, graph: dict[str, set[str]]) -> str:
    """The room of a module. Two folders have two shelves: `parts`, by whether it knows a client, and `backends`."""
    if name in DOORS:
        return "doors"
    if name in GROUND:
        return "ground"
    if name == "federation/payload":
        return "payload"
    if name.startswith("backends/flower"):
        return "flower"
    if name.startswith("parts/") and knows_clients(name, graph):
        return "steps"
    return name.partition("/")[0]


def knows_clients(name: str, graph: dict[str, set[str]]) -> bool:
    """Whether a part uses the federation, by itself or through another part."""
    used = graph[name] - {"federation/payload"}
    return any(
        one.startswith("federation/") or (one.startswith("parts/") and knows_clients(one, graph)) for one in used
    )


def arrows(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Every room with the rooms it uses."""
    found: dict[str, set[str]] = {}
    for name, used in graph.items():
        room = room_of(name, graph)
        found.setdefault(room, set()).update({room_of(one, graph) for one in used} - {room})
    return found


def table() -> str:
    """The rooms that exist, from the ground up; the ground is used by all and not named again."""
    found, order = arrows(modules()), list(ROOMS)
    lines = ["| room | what is in it | uses |\n", "| --- | --- | --- |\n"]
    for room in order:
        if room in found:
            used = ", ".join(sorted(found[room] - {"ground"}, key=order.index)) or "-"
            lines.append(f"| {room} | {ROOMS[room]} | {used} |\n")
    return "".join(lines)


def current() -> str:
    """The page as it should be."""
    return MARKED.sub(lambda found: found[1] + table() + found[2], PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(current(), encoding="utf-8")
