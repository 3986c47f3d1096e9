"""Write requirements-deploy.txt: everything that `serve` and `join` need, pinned, with hashes.

pip resolves `.[flower]` and the build back end with constraints.txt; the hashes are those that the package index lists
for all wheels of that version which Python 3.11 on Linux can use (x86_64 and aarch64). torch is left out: its builds
(for processors, for each CUDA version) come from different indexes with different hashes, so that the Dockerfile
installs it in a step of its own, pinned by its version. A file that pip took from a folder of this machine and whose
hash the index does not list ends the tool with an error.
"""

from __future__ import annotations

import html.parser
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pip._internal.models.index import PyPI

ROOT = Path(__file__).parent.parent
WRITTEN = ROOT / "requirements-deploy.txt"
APART = {"torch", "fedwinnow"}
PYTHON = "3.11"
FITTING = re.compile(
    r"-(py3|py2\.py3|cp311|cp3\d\.[^-]*|cp3(?:[6-9]|10|11))-(none|cp311|abi3)"
    r"-(any|(?:manylinux|linux)[^-]*(?:x86_64|aarch64)[^-]*)\.whl$"
)
HEAD = f"""\
# Written by tools/write_requirements.py: what serve and join need and the build back end, for Python {PYTHON} on Linux.
# The hashes are those that the Python package index lists. torch is installed apart, by its version (see Dockerfile).
"""


class Links(html.parser.HTMLParser):
    """The files of a page of a package index, and their hashes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        parts = urlsplit(dict(attrs).get("href") or "")
        if tag == "a" and parts.fragment.startswith("sha256="):
            self.found[unquote(parts.path.rpartition("/")[2])] = parts.fragment.removeprefix("sha256=")


def index() -> str:
    """The package index that pip uses here; it is asked, and written nowhere."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    return (os.environ.get("PIP_INDEX_URL") or told.stdout.strip() or PyPI.simple_url).rstrip("/")


def listed(name: str) -> dict[str, str]:
    """The files of a project in the index, with their hashes."""
    wish = urllib.request.Request(f"{index()}/{name}/", headers={"Accept": "text/html"})
    with urllib.request.urlopen(wish, timeout=120) as answer:
        page = Links()
        page.feed(answer.read().decode())
    return page.found


def resolved() -> list[dict[str, Any]]:
    """What pip would install into an empty environment."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    wanted = ["--constraint", str(ROOT / "constraints.txt"), f"{ROOT}[flower]", "hatchling"]
    told = subprocess.run([*command, *wanted], capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(told.stdout)["install"]
    return found


def plain(name: str) -> str:
    """A project's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def hashes_of(name: str, version: str, taken: str) -> list[str]:
    """The hashes of all wheels of this version that fit; an error if the one that pip took is not among them."""
    found = {
        digest
        for file, digest in listed(name).items()
        if FITTING.search(file) and plain(file.split("-")[0]) == name and file.split("-")[1] == version
    }
    if taken not in found:
        raise SystemExit(f"{name} {version}: the index does not list the file that pip took ({taken[:16]}...)")
    return sorted(found)


def main() -> None:
    """Write the file."""
    if sys.version_info[:2] != tuple(map(int, PYTHON.split("."))):
        raise SystemExit(f"start this with Python {PYTHON}: what is needed depends on it")
    lines = [HEAD]
    for one in sorted(resolved(), key=lambda one: plain(one["metadata"]["name"])):
        name, version = plain(one["metadata"]["name"]), one["metadata"]["version"]
        if name in APART:
            continue
        taken = one["download_info"]["archive_info"]["hashes"]["sha256"]
        hashes = hashes_of(name, version, taken)
        lines.append(" \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{digest}" for digest in hashes)]) + "\n")
    WRITTEN.write_text("".join(lines), encoding="utf-8")
    print(f"{WRITTEN.name}: {len(lines) - 1} packages")


if __name__ == "__main__":
    main()
