"""report.html of a site: one file with everything in it, made from the files in the site's folder."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path
from typing import Any

from fedwinnow.auditing.audit_folder import CANNOT_TELL, KEEP, REVIEW, TOO_FEW, read_audit, read_site
from fedwinnow.experiment.report.templates import render
from fedwinnow.files import write_text

TEMPLATE = Path(__file__).with_name("report.html")
GALLERY = 60  # samples that are shown, the worst first
CONFUSIONS = 12
ODD = 20  # near-duplicates and outliers that are listed
DECISIONS = (REVIEW, KEEP, TOO_FEW, CANNOT_TELL)


def write_report(folder: Path) -> Path:
    """Make the report of a site from its files, and write it into the same folder."""
    site, rows = read_site(folder), read_audit(folder)
    write_text(folder / "report.html", render(TEMPLATE, collect(folder, site, rows)))
    return folder / "report.html"


def collect(folder: Path, site: dict[str, Any], rows: list[dict[str, str]]) -> dict[str, Any]:
    """The values that the template shows."""
    flagged = [row for row in rows if row["decision"] == REVIEW]
    first = flagged or [row for row in rows if row["decision"] != TOO_FEW]
    return {
        "site": site,
        "counts": site["counts"],
        "classes": by_class(site["class_names"], rows, flagged),
        "confusions": Counter((row["given"], row["suggested"]) for row in flagged).most_common(CONFUSIONS),
        "gallery": [card(folder, site, row) for row in first[:GALLERY]],
        "flagged": len(flagged),
        "too_few": sum(row["decision"] == TOO_FEW for row in rows),
        "odd": odd_samples(site, rows),
        "rows": as_data(site["class_names"], rows),
    }


def odd_samples(site: dict[str, Any], rows: list[dict[str, str]]) -> dict[str, Any] | None:
    """Near-duplicates, those with two labels first, and outliers; None where they were not looked for."""
    if not site.get("oddities_known"):
        return None
    label = {row["id"]: row["given"] for row in rows}
    alike = {tuple(sorted((row["id"], row["near_duplicate"]))) for row in rows if row.get("near_duplicate") in label}
    pairs = [{"one": one, "two": two, "labels": (label[one], label[two])} for one, two in sorted(alike)]
    pairs.sort(key=lambda pair: pair["labels"][0] == pair["labels"][1])
    far = [row for row in rows if row.get("outlier") == "yes"]
    differing = sum(pair["labels"][0] != pair["labels"][1] for pair in pairs)
    return {
        "pairs": pairs[:ODD],
        "all_pairs": len(pairs),
        "differing": differing,
        "far": far[:ODD],
        "all_far": len(far),
    }


def by_class(names: list[str], rows: list[dict[str, str]], flagged: list[dict[str, str]]) -> list[dict[str, Any]]:
    """How many labels of each class are worth a look, the class with most of them first."""
    samples, review = (Counter(row["given"] for row in group) for group in (rows, flagged))
    lines = [{"name": name, "samples": samples[name], "review": review[name]} for name in names if samples[name]]
    return sorted(lines, key=lambda line: -line["review"])


def card(folder: Path, site: dict[str, Any], row: dict[str, str]) -> dict[str, Any]:
    """One sample as the page shows it."""
    name = site["pictures"].get(row["id"])
    picture = None
    if name is not None:
        kind = "png" if name.endswith("png") else "jpeg"
        content = base64.b64encode((folder / "previews" / name).read_bytes()).decode()
        picture = f"data:image/{kind};base64,{content}"
    return {
        **row,
        "p": row["p_wrong"] and float(row["p_wrong"]),
        "picture": picture,
        "texts": site["texts"].get(row["id"], {}),
    }


def as_data(names: list[str], rows: list[dict[str, str]]) -> str:
    """All rows for the table as JSON, escaped so that a user's text cannot end the script element."""
    place = {name: number for number, name in enumerate(names)}
    lines = [
        [row["id"], place[row["given"]], place[row["suggested"]], row["p_wrong"], DECISIONS.index(row["decision"])]
        for row in rows
    ]
    text = json.dumps({"classes": names, "decisions": DECISIONS, "rows": lines}, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
