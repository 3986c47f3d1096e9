"""report.html of a site: one file with everything in it, made from the files in the site's folder; and index.html."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedwinnow.auditing.audit_folder import CANNOT_TELL, GROUP, KEEP, REVIEW, TOO_FEW, WHOLE, read_audit, read_site
from fedwinnow.auditing.look_figures import SHORTEST_CURVE, worth_in_words
from fedwinnow.auditing.statements import CALLS, NOTHING, RANGE
from fedwinnow.experiment.report.templates import render
from fedwinnow.files import write_text

TEMPLATE = Path(__file__).with_name("report.html")
INDEX = Path(__file__).with_name("index.html")
GALLERY = 60  # samples that are shown, the worst first
CONFUSIONS = 12
FIRST_FIELDS = 8  # fields of a table that are shown at once
NEAR = 2  # samples of each class that a row of a table is compared with
ODD = 20  # near-duplicates and outliers that are listed
HARDLY = 0.2  # of p_wrong; below it a look finds little
DECISIONS = (REVIEW, KEEP, TOO_FEW, CANNOT_TELL)
WELL, PARTLY, KNOWN = 0.8, 0.55, 0.3  # shares of labels that the models recognise, for words
MOST_IF_CLEAN = 0.05  # the share of labels that may be wrong at a site that looks clean
SPEAKS = 0.5  # from this change of the log-odds on, a field speaks against a label

Row = dict[str, str]


def write_report(folder: Path) -> Path:
    """Make the report of a site from its files, and write it into the same folder."""
    site, rows = read_site(folder), read_audit(folder)
    write_text(folder / "report.html", render(TEMPLATE, collect(folder, site, rows)))
    return folder / "report.html"


def collect(folder: Path, site: dict[str, Any], rows: list[Row]) -> dict[str, Any]:
    """The values that the template shows."""
    flagged = [row for row in rows if row["decision"] == REVIEW]
    first = flagged or [row for row in rows if row["decision"] != TOO_FEW]
    cards = [card(folder, site, row) for row in first[:GALLERY]]
    return {
        "site": {"assumptions": [], "claims": {}, "ignored": [], **site},
        "counts": {"said": "", "reason": "", "precision_at_least": None, **site["counts"]},
        "figure": figure_of(site["counts"], site.get("looks")),
        "known": known(site, rows, flagged),
        "confusions": [
            (pair, times)
            for pair, times in Counter((row["given"], row["suggested"]) for row in flagged).most_common(CONFUSIONS)
            if times > 1
        ],
        "clean": looks_clean(site),
        "bunches": bunched(cards) if flagged else [{"group": "", "cards": [one]} for one in cards],
        "shown": len(cards),
        "left_out": len(first) > len(cards),
        "with_fields": any(one["table"] for one in cards),
        "grouped": bool(rows) and GROUP in rows[0],
        "flagged": len(flagged),
        "too_few": sum(row["decision"] == TOO_FEW for row in rows),
        "odd": odd_samples(site, rows),
        "copies": copies_sentences(site.get("copies")),
        "looks": site.get("looks"),
        "looks_worth": worth_in_words(site["looks"]) if "looks" in site else "",
        "budget": budget_chart(site, rows),
        "rows": as_data(site["class_names"], rows),
    }


# --- what is known -------------------------------------------------------------------------------------------------


def figure_of(counts: dict[str, Any], looks: dict[str, Any] | None) -> dict[str, str]:
    """How many labels are wrong, as far as it can be known, in a word or two."""
    said, least, most = counts.get("said"), counts.get("wrong_at_least"), counts.get("wrong_at_most")
    if looks is not None and least is None:
        return {"value": "not known", "note": "too few looks here; figures of all sites are below"}
    if looks is not None:
        return {"value": f"{least} to {most}", "note": f"90 % interval, from {looks['looked']} looks"}
    if said in (CALLS, RANGE):
        more = most is not None and least is not None and most > least
        return {
            "value": f"at least about {max(least or 0, 1)}",
            "note": f"up to about {most} are possible" if more else "more are possible",
        }
    if said == NOTHING:
        return {"value": "none found", "note": "single ones may be there"}
    note = "until a person has looked" if most is None else f"from none to about {most}"
    return {"value": "cannot tell", "note": note}


def looks_clean(site: dict[str, Any]) -> str:
    """That a site looks clean where others do not, although a few wrong labels cannot be excluded; empty if not so."""
    counts, claims = site["counts"], site.get("claims") or {}
    most, judged = counts.get("wrong_at_most"), counts["judged"]
    if counts.get("said") in (CALLS, RANGE, NOTHING) or claims.get("said") != CALLS or most is None:
        return ""
    if most > MOST_IF_CLEAN * judged:
        return ""
    return (
        f"This site looks clean beside others: nothing points to wrong labels here, and at most about {most} of its "
        f"{judged} labels could be wrong without showing."
    )


def known(site: dict[str, Any], rows: list[Row], flagged: list[Row]) -> dict[str, Any]:
    """How well the models tell the classes apart: one sentence, and a line per class of this site."""
    claims = site.get("claims") or {}
    skill, recognised = claims.get("skill"), claims.get("recognised") or {}
    samples, review = (Counter(row["given"] for row in group) for group in (rows, flagged))
    lines = [
        {
            "name": name,
            "samples": samples[name],
            "review": review[name],
            "share": recognised.get(name) or 0.0,
            "word": recognised_word(recognised.get(name)),
        }
        for name in site["class_names"]
        if samples[name]
    ]
    return {"sentence": skill_sentence(skill, claims), "classes": lines if recognised else []}


def skill_sentence(skill: float | None, claims: dict[str, Any]) -> str:
    """How well the models tell the classes apart."""
    if skill is None:
        return "How well the models tell these classes apart is not known: they have seen the labels that they judge."
    how = (
        "The models tell these classes apart well"
        if skill >= WELL and claims.get("skilled", True)
        else "The models tell these classes apart, with some doubt"
        if claims.get("skilled", False)
        else "The models hardly tell these classes apart"
    )
    unknown = claims.get("unknown_classes") or []
    but = f" They hardly know {named(unknown)}." if unknown and claims.get("skilled") else ""
    return f"{how} (measured on labels that they had not seen).{but}"


def recognised_word(share: float | None) -> str:
    """How well a class is recognised."""
    if share is None:
        return "not known"
    return "well" if share >= WELL else "mostly" if share >= PARTLY else "partly" if share >= KNOWN else "hardly"


def named(names: list[str], most: int = 5) -> str:
    """Names in a sentence."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


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


def copies_sentences(copies: dict[str, int] | None) -> list[str]:
    """Samples that are the same to the last bit, and what that means for their labels; empty where there are none."""
    if copies is None:
        return []
    text = []
    if copies["sets"]:
        text.append(
            f"{copies['samples']} samples are exactly the same as another sample here. Such copies were judged by "
            "models that had seen none of them: otherwise they would give each other's labels away."
        )
    if copies["two_labels"]:
        one = copies["two_labels"] == 1
        text.append(
            f"{copies['two_labels']} {'set' if one else 'sets'} of copies {'has' if one else 'have'} different labels: "
            "either one of them is wrong, or what is recorded does not tell these classes apart."
        )
    if copies["everywhere"]:
        text.append(
            f"{copies['everywhere']} samples have the same content as many others here. They are taken for different "
            "samples that too few columns describe."
        )
    return text


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


# --- single samples ------------------------------------------------------------------------------------------------


def card(folder: Path, site: dict[str, Any], row: Row) -> dict[str, Any]:
    """One sample as the page shows it."""
    texts = site["texts"].get(row["id"], {})
    against = site.get("against", {}).get(row["id"], {})
    table = len(texts) > 1 and site["data"]["kind"] == "rows"
    near = compared_with(site, row) if table else []
    return {
        **row,
        "group": row.get(GROUP, ""),
        "p": f"{float(row['p_wrong']):.2f}" if row["p_wrong"] else "",
        "picture": picture(folder, site["pictures"].get(row["id"])),
        "whole": f"{WHOLE}/{name}" if (name := site.get(WHOLE, {}).get(row["id"])) else None,
        "texts": texts,
        "near": near,
        "sides": [{"label": label, "count": count} for label, count in Counter(one["label"] for one in near).items()],
        "typical": bool(against),
        "table": fields_of(texts, against, near, site.get("ignored", [])) if table else [],
        "first": FIRST_FIELDS,
    }


def picture(folder: Path, name: str | None) -> str | None:
    """A preview as a part of the page."""
    if name is None:
        return None
    kind = "png" if name.endswith("png") else "jpeg"
    content = base64.b64encode((folder / "previews" / name).read_bytes()).decode()
    return f"data:image/{kind};base64,{content}"


def compared_with(site: dict[str, Any], row: Row) -> list[dict[str, Any]]:
    """The samples that a row of a table is compared with: of the given class, then of the suggested one."""
    sides = site["compared"].get(row["id"], [[], []])
    labels = (row["given"], row["suggested"])
    pairs = [(label, name) for label, side in zip(labels, sides, strict=False) for name in side[:NEAR]]
    chosen = [(label, name) for label, name in pairs if name in site["texts"]]
    if row["given"] == row["suggested"]:
        chosen = chosen[:NEAR]
    return [{"label": label, "id": name, "texts": site["texts"][name]} for label, name in chosen]


def fields_of(
    texts: dict[str, str], against: dict[str, list[Any]], near: list[dict[str, Any]], ignored: Iterable[str]
) -> list[dict[str, Any]]:
    """The fields of a row beside those of the samples it is compared with; what speaks against the label first."""
    unused = set(ignored)

    def line(name: str) -> dict[str, Any]:
        change, typical = against.get(name, (0.0, ""))
        return {
            "name": name,
            "value": texts[name],
            "typical": typical,
            "change": change,
            "against": change >= SPEAKS,
            "ignored": name in unused,
            "near": [one["texts"].get(name, "") for one in near],
        }

    lines = [line(name) for name in texts]
    return sorted(lines, key=lambda one: (one["ignored"], -one["change"]))


def bunched(cards: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cards of one group together, at the place of its worst one."""
    bunches: dict[str, list[dict[str, Any]]] = {}
    for place, one in enumerate(cards):
        bunches.setdefault(f"group {one['group']}" if one["group"] else f"single {place}", []).append(one)
    return [{"group": cards_of_one[0]["group"], "cards": cards_of_one} for cards_of_one in bunches.values()]


def as_data(names: list[str], rows: list[Row]) -> str:
    """All rows for the table as JSON, escaped so that a user's text cannot end the script element."""
    place = {name: number for number, name in enumerate(names)}
    words = [*DECISIONS, *sorted({row["decision"] for row in rows} - set(DECISIONS))]  # some may be a person's
    lines = [
        [
            row["id"],
            place[row["given"]],
            place[row["suggested"]],
            row.get("score", ""),
            row["p_wrong"],
            words.index(row["decision"]),
            *([row[GROUP]] if GROUP in row else []),
        ]
        for row in rows
    ]
    text = json.dumps({"classes": names, "decisions": words, "rows": lines}, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write_index(folder: Path, data: str, counts: Sequence[dict[str, Any]]) -> Path:
    """Write the page; `counts` are the lines of sites.csv."""
    lines = [{**line, "link": f"{quote(line['folder'])}/report.html" if line["folder"] else ""} for line in counts]
    write_text(folder / "index.html", render(INDEX, {"data": data, "lines": lines}))
    return folder / "index.html"
