"""Audit folders with known truth, written by hand, for tests of looks; nothing is trained."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

from fedwinnow.auditing.decisions import Decision, save_decision
from fedwinnow.files import FORMAT

CLASSES = ["benign", "malign", "other"]
COLUMNS = ("site", "id", "given", "suggested", "score", "p_wrong", "decision", "other")
SITES = ("site", "folder", "samples", "judged", "to_review", "said", "wrong_at_least", "wrong_at_most",
         "precision_at_least", "reason")  # fmt: skip
COUNTS = {"to_review": 0, "said": "cannot tell", "reason": "Hard to say.", "wrong_at_least": None,
          "wrong_at_most": None, "precision_at_least": None, "unknown_classes": []}  # fmt: skip

Truth = dict[tuple[str, str], str]  # site and id -> true label


def write_table(path: Path, header, rows) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def make_audit(
    folder: Path, names=("north", "south", "east"), labels=400, rates=(0.15, 0.15, 0.15), apart=6.0, seed=0, told=False
) -> Truth:
    """An audit folder whose sites have so many wrong labels; the scores of wrong ones lie `apart` higher."""
    luck = np.random.RandomState(seed)
    truth: Truth = {}
    lines = []
    facts = {
        "format": FORMAT,
        "class_names": CLASSES,
        "data": {"name": "patients", "kind": "rows", "source": ""},
        "method": "winnow", "judge": "mean", "rounds": 20, "seed": 5, "sites": len(names), "threshold": 0.5,
        "p_wrong": "p_wrong is empty here.", "assumptions": [],
        "claims": {"said": "cannot tell", "reason": "Hard to say.", "skill": 0.4, "skilled": False, "calls": 0,
                   "unknown_classes": [], "precision_at_least": None, "recall": None},
    }  # fmt: skip
    for name, rate in zip(names, rates, strict=True):
        place = folder / name
        place.mkdir(parents=True)
        wrong = luck.rand(labels) < rate
        score = luck.normal(-4, 2, labels) + apart * wrong
        rows = []
        for number in np.argsort(-score).tolist():
            given = number % 3
            other = (given + 1) % 3
            truth[name, f"{name}{number}"] = CLASSES[other if wrong[number] else given]
            p = f"{1 / (1 + np.exp(-score[number])):.6f}" if told else ""
            word = ("review" if score[number] >= 0 else "keep") if told else "cannot tell"
            suggested = CLASSES[given if word == "keep" else other]
            rows.append(
                [name, f"{name}{number}", CLASSES[given], suggested, f"{score[number]:.6g}", p, word, CLASSES[other]]
            )
        write_table(place / "audit.csv", COLUMNS, rows)
        counts = COUNTS | {"site": name, "samples": labels, "judged": labels}
        texts = {row[1]: {"age": str(30 + place)} for place, row in enumerate(rows)}
        site = facts | {"site": name, "counts": counts, "pictures": {}, "texts": texts, "compared": {}}
        (place / "site.json").write_text(json.dumps(site), encoding="utf-8")
        lines.append([(counts | {"folder": name})[column] for column in SITES])
    (folder / "audit.json").write_text(json.dumps(facts | {"truth": None}), encoding="utf-8")
    write_table(folder / "sites.csv", SITES, [["" if cell is None else cell for cell in line] for line in lines])
    return truth


def answer(folder: Path, site: str, sample: str, truth: Truth, reviewer="anna", *, turned=False) -> None:
    """A person says the truth about a label, or with `turned` the opposite."""
    with (folder / "audit.csv").open(encoding="utf-8", newline="") as stream:
        row = next(row for row in csv.DictReader(stream) if row["id"] == sample)
    right = truth[site, sample] == row["given"]
    word = "keep" if right != turned else "other"
    label = row["given"] if word == "keep" else row["other"]
    save_decision(folder, sample, reviewer, Decision.now(sample, reviewer, word, label))
