"""From labels that nobody trusts to a better model: the story that docs/deploy.md tells, with its commands.

Three sites with an image folder and a table each, one that takes no part, and a coordinator with few samples. A script
plays the people who look at labels; it knows the truth.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedwinnow.auditing.audit_folder import read_audit
from fedwinnow.auditing.decisions import Decision, save_decision
from fedwinnow.auditing.looks import Survey, draw_looks, read_looks
from fedwinnow.cli import main
from fedwinnow.data.load import load
from over_network import Cast, free_port

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install '.[flower]'")

ROOT = Path(__file__).parents[2]
SITES = ("site-a", "site-b", "site-c")
SAMPLES = {"own": 60, "site-a": 280, "site-b": 240, "site-c": 180, "site-d": 300}  # site-d takes no part
WRONG = {"site-a": 0.2, "site-b": 0.4, "site-c": 0.3}
CLASSES = 8
QUICK = ["--rounds", "8", "--epochs", "3", "--model", "mlp:hidden=48", "--optimizer", "sgd:lr=0.1,momentum=0.5"]
TRUTH: dict[str, str] = {}  # id -> finding, which the script knows


def commands(section: str) -> list[list[str]]:
    """The commands of a section of docs/deploy.md, in order."""
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    text = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    rows = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(row, comments=True)[1:] for row in rows if row.startswith("fedwinnow ")]


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def write_sites(folder: Path) -> None:
    """Handwritten digits as pictures; the labels of three sites are partly wrong."""
    digits = load("digits")
    luck = np.random.RandomState(5)
    pool = np.flatnonzero(digits.train.labels < CLASSES)
    pool, start = pool[luck.permutation(len(pool))], 0
    for site, many in SAMPLES.items():
        (folder / "pictures" / site).mkdir(parents=True)
        with (folder / f"{site}.csv").open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["id", "picture", "finding"])
            for number, row in enumerate(pool[start : start + many].tolist()):
                name, true = f"{site}-{number}", int(digits.train.labels[row])
                pixels = digits.train.features.take(np.array([row]))[0]
                Image.fromarray(pixels.reshape(8, 8)).save(folder / "pictures" / site / f"{number}.png")
                given = true if luck.rand() >= WRONG.get(site, 0) else (true + 1) % CLASSES
                TRUTH[name] = f"type {true}"
                writer.writerow([name, f"pictures/{site}/{number}.png", f"type {given}"])
        start += many


def done(words: list[str], code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == code, words


def together(folder: Path, serve: list[str], join: list[str], *more: str) -> str:
    """A command at the coordinator and one at each site; returns what the coordinator said."""
    port = str(free_port())
    with Cast(folder) as cast:
        cast.start("serve", *(port if word == "8443" else word for word in serve), *more)
        for name in SITES:
            words = [word.replace("site-a", name).replace("8443", port) for word in join]
            cast.start(name, *words, "--heartbeat", "1800")
        for name in ("serve", *SITES):
            cast.ended(name)
        return cast.said("serve")


def look(folder: Path, looks: int) -> None:
    """What `review --anchor` shows, answered by somebody who sees the truth."""
    while draw_looks(Survey(folder), looks):
        given = {row["id"]: row["given"] for row in read_audit(folder)}
        for name in read_looks(folder):
            decide(folder, name, given[name])


def decide(folder: Path, name: str, given: str) -> None:
    answer = "keep" if TRUTH[name] == given else "other"
    save_decision(folder, name, "anna", Decision.now(name, "anna", answer, TRUTH[name]))


def accuracy(run: str, words: list[str]) -> float:
    """Of `fedwinnow predict` at the site that took no part, whose labels are right."""
    done([run if word == "runs/second" else word for word in words])
    found = lines(Path(words[words.index("--out") + 1]))
    Path(words[words.index("--out") + 1]).unlink()
    return float(np.mean([row["class"] == TRUTH[row["id"]] for row in found]))


def test_from_labels_that_nobody_trusts_to_a_better_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sites(tmp_path)
    keys, policy, *story = commands("The whole story")
    first, join, audit, again, review, update, apply, second, predict = story
    order = ("serve", "join", "serve", "join", "review", "serve", "apply", "serve", "predict")
    assert tuple(words[0] for words in story) == order
    done(keys)
    done(policy)
    together(tmp_path, first, join, *QUICK)

    said = together(tmp_path, audit, again, *QUICK)
    assert "every site has its report in its own folder" in said
    counts = {row["site"]: row for row in lines(tmp_path / "audits" / "labels" / "sites.csv")}
    assert set(counts) == set(SITES)
    for name in SITES:
        assert review[:2] == ["review", "sites/site-a"]
        look(tmp_path / "sites" / name, int(review[review.index("--anchor") + 1]))
    said = together(tmp_path, update, again)
    check_figures(tmp_path, said)

    for name in SITES:
        for row in lines(tmp_path / "sites" / name / "audit.csv"):
            if row["decision"] == "review":  # the script goes through all that is called now
                decide(tmp_path / "sites" / name, row["id"], row["given"])
        done([word.replace("site-a", name) for word in apply])
        mine = [row["finding"] == TRUTH[row["id"]] for row in lines(tmp_path / f"{name}-corrected.csv")]
        assert np.mean(mine) > 1 - WRONG[name] / 2  # more than half of the wrong labels are right now
    corrected = [word.replace("site-a.csv", "site-a-corrected.csv") for word in join]
    together(tmp_path, second, corrected, *QUICK)
    before, after = (accuracy(run, predict) for run in ("runs/first", "runs/second"))
    print(f"accuracy at a site that took no part: {before:.3f} before, {after:.3f} after")
    assert after > before + 0.02
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8").replace("\n", " ")
    told = re.search(r"right for ([\d.]+) % of the pictures of `site-d`, the second for ([\d.]+) %", page)
    assert told is not None
    assert [float(share) / 100 for share in told.groups()] == pytest.approx([before, after], abs=0.03)


def check_figures(folder: Path, said: str) -> None:
    """What the coordinator and the sites know after the looks, and what has left the sites for it."""
    content = json.loads((folder / "audits" / "labels" / "audit.json").read_text(encoding="utf-8"))
    looks = content["looks"]
    assert looks["of"] == "all sites"
    assert looks["looked"] <= 90
    assert looks["settled"] == "a list", said
    for name in SITES:
        site = folder / "sites" / name
        rows = lines(site / "audit.csv")
        called = [row for row in rows if row["decision"] == "review"]
        right = [TRUTH[row["id"]] != row["given"] for row in called]
        assert np.mean(right) > 0.5
        ledger = [json.loads(line) for line in (site / "ledger.jsonl").read_text().splitlines()]
        asked = [line for line in ledger if line["kind"] in ("count", "looks", "looked")]
        assert {key for line in asked for key in line["sent"]} >= {"given", "samples", "decoys", "found"} - {"decoys"}
        assert {part["exposes"] for line in asked for part in line["sent"].values()} == {"client"}
