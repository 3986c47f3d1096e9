"""index.html of an audit folder: every site with its counts and a link to its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedwinnow.experiment.report.templates import render
from fedwinnow.files import write_text

TEMPLATE = Path(__file__).with_name("index.html")


def write_index(folder: Path, data: str, counts: Sequence[dict[str, Any]]) -> Path:
    """Write the page; `counts` are the lines of sites.csv."""
    lines = [{**line, "link": f"{quote(line['folder'])}/report.html"} for line in counts]
    write_text(folder / "index.html", render(TEMPLATE, {"data": data, "lines": lines}))
    return folder / "index.html"
