"""report.html of a site: one file with everything in it, made from the files in the site's folder."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedwinnow.auditing.audit_folder import CANNOT_TELL, KEEP, REVIEW, TOO_FEW, read_audit, read_site
from fedwinnow.auditing.look_figures import SHORTEST_CURVE, worth_in_words
from fedwinnow.experiment.report.templates import render
from fedwinnow.files import write_text

TEMPLATE = Path(__file__).with_name("report.html")
INDEX = Path(__file__).with_name("index.html")
GALLERY = 60  # samples that are shown, the worst first
CONFUSIONS = 12
ODD = 20  # near-duplicates and outliers that are listed
HARDLY = 0.2  # of p_wrong; below it a look finds little
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
        "looks": site.get("looks"),
        "looks_worth": worth_in_words(site["looks"]) if "looks" in site else "",
        "budget": budget_chart(site, rows),
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


def budget_chart(site: dict[str, Any], rows: list[dict[str, str]]) -> dict[str, Any] | None:
    """How many wrong labels so many looks from the top find: by what people saw, else at least by p_wrong."""
    looks = site.get("looks")
    if looks is not None:
        points, least = looks["budget"], ""
        words = (
            f"Expected after so many looks from the top of the order, from {looks['looked']} looks at {looks['of']}."
        )
    elif site.get("claims", {}).get("said") != "calls":
        return None
    else:
        points, least = at_least_found([float(row["p_wrong"]) for row in rows if row["p_wrong"]]), " at least"
        words = "At least, after so many looks from the top of the order, if the assumptions of the audit hold."
    labels, most = points[-1] if points else (0, 0)
    if not most:
        return None
    line = " ".join(f"{40 + 580 * n / labels:.1f},{180 - 160 * found / most:.1f}" for n, found in points)
    label = f"{most:.0f} wrong labels{least} in the first {labels}"
    return {"points": line, "labels": labels, "most": round(most), "least": least, "words": words, "label": label}


def at_least_found(p_wrong: list[float]) -> list[tuple[int, float]]:
    """Points of the budget curve from p_wrong in order, down to where hardly anything is found any more."""
    sums = [0.0, *accumulate(sorted(p_wrong, reverse=True))]
    last = max(min(SHORTEST_CURVE, len(p_wrong)), 2 * sum(value >= HARDLY for value in p_wrong))
    last = min(last, len(p_wrong))
    return [(place, sums[place]) for place in sorted({*range(0, last, max(1, last // 50)), last})]


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
    words = [*DECISIONS, *sorted({row["decision"] for row in rows} - set(DECISIONS))]  # some may be a person's
    lines = [
        [row["id"], place[row["given"]], place[row["suggested"]], row["p_wrong"], words.index(row["decision"])]
        for row in rows
    ]
    text = json.dumps({"classes": names, "decisions": words, "rows": lines}, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write_index(folder: Path, data: str, counts: Sequence[dict[str, Any]]) -> Path:
    """Write the page; `counts` are the lines of sites.csv."""
    lines = [{**line, "link": f"{quote(line['folder'])}/report.html"} for line in counts]
    write_text(folder / "index.html", render(INDEX, {"data": data, "lines": lines}))
    return folder / "index.html"
