"""docs/deploy.md is run as it stands, with a process for each machine."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import fedwinnow
from fedwinnow.cli import main
from over_network import Cast, free_port

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install '.[flower]'")

ROOT = Path(__file__).parents[2]
SITES = ("site-a", "site-b", "site-c")


def shown(word: str) -> list[list[str]]:
    """The commands that begin with this word; those of the whole story are run by a test of their own."""
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    text = re.sub(r"\n## The whole story\n.*?(?=\n## )", "", text, flags=re.DOTALL)
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith(f"fedwinnow {word} ")]


def write_tables(folder: Path) -> None:
    """Patients whose age and pressure say what they have, a tenth of them with the wrong diagnosis."""
    draw = np.random.default_rng(3)
    for name in ("own", *SITES):
        lines = ["age,pressure,sex,diagnosis"]
        for row in range(80):
            ill = row % 2
            found = ill if name == "own" or row % 10 else 1 - ill
            age, pressure = draw.normal(40 + 30 * ill, 5), draw.normal(120 + 30 * ill, 8)
            lines.append(f"{age:.1f},{pressure:.1f},{'fm'[row % 3 == 0]},{('well', 'ill')[found]}")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    strange = (folder / "site-c.csv").read_text(encoding="utf-8").replace("ill\n", "unwell\n", 1)
    (folder / "strange.csv").write_text(strange, encoding="utf-8")


def prepared(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0, words


def test_three_hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path)
    for words in (shown("certificates")[0], *shown("schema")):  # keys are changed over the years by other tests
        prepared(words)
    port = str(free_port())
    # A long heartbeat besides what is shown, so that no site is lost because the machine is busy; and no terminal.
    serve, join = shown("serve")[0], " ".join([*shown("join")[0], "--heartbeat", "1800", "--yes"])
    with Cast(tmp_path) as cast:
        cast.start("serve", *(port if word == "8443" else word for word in serve))
        cast.wait_for("serve", "listening")
        strange = f"join --server localhost:{port} --tls certs/site-c --data csv:path=strange.csv,label=diagnosis --yes"
        cast.start("strange", *strange.split(), "--out", "strange")
        for name in SITES[:2]:
            cast.start(name, *join.replace("site-a", name).replace("8443", port).split())
        cast.ended("strange", code=3)
        cast.wait_for("serve", "site site-c cannot take part: its data has classes that are not among")
        assert "unwell" not in cast.said("serve")
        assert cast.said("strange").count("the data here has the class 'unwell'") == 1
        cast.start("site-c", *join.replace("site-a", "site-c").replace("8443", port).split())
        for name in ("serve", *SITES):
            cast.ended(name)
    check_coordinator(tmp_path / "runs" / "hospitals")
    for name in SITES:
        check_site(tmp_path / "sites" / name)


def check_coordinator(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["last"]["accuracy"] > 0.8
    assert (folder / "report.html").exists()
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [row["participants"] for row in rounds] == [[0, 1, 2]] * 5
    # The coordinator can use the model that the sites have trained.
    trained = fedwinnow.load(folder)
    row = {column.name: column.categories[0] if column.categories else "1" for column in trained.trained.form.columns}
    assert trained.predict([row])[0] in trained.class_names
    # input.json has the columns of the schema, which the coordinator shares with the sites.
    others = [path for path in folder.rglob("*") if path.is_file() and path.name != "input.json"]
    assert b"pressure" not in b"".join(path.read_bytes() for path in others)  # a column of the sites' tables


def check_site(folder: Path) -> None:
    with (folder / "audit.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 80
    assert "</html>" in (folder / "report.html").read_text(encoding="utf-8")
    (ledger,) = folder.rglob("ledger.jsonl")
    first, *lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert first["kind"] == "hello"
    assert {line["kind"] for line in lines[:-1]} == {"ask"}
    assert lines[-1]["kind"] == "finish"
    sent = {key for line in lines for key in line["sent"]}
    assert {"weights", "samples"} <= sent <= {"weights", "counters", "samples", "statistics"}
    assert all(line["sent"]["weights"]["bytes"] > 0 for line in lines if "weights" in line["sent"])
    assert lines[0]["time"].endswith("Z")
    assert lines[-1]["sent"] == {}


def test_the_commands_that_are_shown_are_those_that_other_tests_run() -> None:
    """The simulation on several machines is run, with fewer clients, by the test of same results."""
    assert len(shown("serve")) == 2
    assert shown("serve")[1][:5] == ["serve", "--scene", "scene", "--sites", "2"]
    assert [words[-4:] for words in shown("join")[1:]] == [
        ["--scene", "scene", "--clients", "0-49"],
        ["--scene", "scene", "--clients", "50-99"],
    ]
