"""The report of a site: what it says first, what it never says, and how it works in a browser."""

from __future__ import annotations

import html
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from browser import Browser
from fedwinnow.auditing.audit_report import fields_of, skill_sentence, write_report
from fedwinnow.auditing.reviewing.review_queue import ReviewQueue
from fedwinnow.auditing.reviewing.review_server import ReviewServer
from fedwinnow.auditing.spreadsheet_files import table_text

HEADER = ("site", "id", "given", "suggested", "score", "p_wrong", "decision")
CALLS = {
    "said": "calls",
    "reason": "Even where the models are sure, some labels differ.",
    "wrong_at_least": 21,
    "wrong_at_most": 26,
    "precision_at_least": 0.61,
    "unknown_classes": [],
}
CANNOT = CALLS | {"said": "cannot tell", "reason": "Hard samples alone explain it.", "wrong_at_least": None}
CANNOT |= {"wrong_at_most": 3, "precision_at_least": None}
NOTHING = CANNOT | {"said": "nothing found", "reason": "Nothing points to wrong labels.", "wrong_at_most": None}
SKILLED = {
    "said": "calls",
    "skill": 0.95,
    "skilled": True,
    "unknown_classes": [],
    "recognised": {"ill": 0.9, "well": 0.4},
}


def site_folder(
    folder: Path,
    rows: list[tuple[Any, ...]],
    said: dict[str, Any],
    header: tuple[str, ...] = HEADER,
    claims: dict[str, Any] | None = None,
    **more: Any,
) -> Path:
    """A site's folder, as an audit writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    review = sum(row[6] == "review" for row in rows)
    site = {
        "format": 1,
        "site": "Charité",
        "class_names": ["ill", "well"],
        "data": {"name": "patients", "kind": "rows", "source": ""},
        "counts": {"site": "Charité", "samples": len(rows), "judged": len(rows), "to_review": review, **said},
        "claims": SKILLED if claims is None else claims,
        "assumptions": ["Where the models are sure, right labels agree.", "Sites differ in their samples."],
        "method": "winnow:loss=logit_adjustment,warm_up=0.5",
        "judge": "mean",
        "rounds": 20,
        "sites": 5,
        "seed": 0,
        "threshold": 0.5,
        "p_wrong": "",
        "pictures": {},
        "texts": {},
        "compared": {},
        **more,
    }
    (folder / "site.json").write_text(json.dumps(site), encoding="utf-8")
    (folder / "audit.csv").write_text(table_text(header, rows), encoding="utf-8")
    write_report(folder)
    return folder / "report.html"


def patients(count: int = 30, decision: str = "review") -> list[tuple[Any, ...]]:
    p = "0.61" if decision in ("review", "keep") else ""
    return [("Charité", f"p{row}", "ill", "well", 5.0 - row / 10, p, decision) for row in range(count)]


def words(page: Path) -> str:
    """What a person reads, in one line."""
    text = re.sub(r"(?s)<(script|style|title).*?</\1>|<option.*?</option>", " ", page.read_text(encoding="utf-8"))
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def test_it_begins_with_what_is_known_then_what_was_found_then_the_assumptions(tmp_path):
    text = words(site_folder(tmp_path, patients(), CALLS))
    order = [
        "The models tell these classes apart well",
        "ill 30 well",
        "Even where the models are sure",
        "30 are called",
    ]
    order += ["At least 61 % of the calls", "What is assumed", "Sites differ", "The labels that are called"]
    places = [text.index(words_) for words_ in order]
    assert places == sorted(places)


def test_no_spec_and_no_python_before_the_last_section(tmp_path):
    text = words(site_folder(tmp_path, patients(), CALLS))
    before = text[: text.index("How the labels were judged")]
    assert "winnow:" not in before
    assert "None" not in text
    assert "logit_adjustment" in text  # it is there for those who ask


def test_few_calls_are_a_number_and_no_percentage(tmp_path):
    text = words(site_folder(tmp_path, patients(7), CALLS | {"precision_at_least": None}))
    assert "7 are called" in text
    assert "too few for a percentage" in text
    assert "%" not in text


def test_cannot_tell_has_the_order_a_range_and_no_percentage(tmp_path):
    page = site_folder(tmp_path, patients(40, "cannot tell"), CANNOT, claims=SKILLED | {"said": "cannot tell"})
    text = words(page)
    assert "cannot tell" in text
    assert "from none to about 3" in text
    assert "Hard samples alone explain it." in text
    assert "none is called" in text
    assert "%" not in text
    assert "looks clean" not in text


def test_a_clean_site_beside_a_sloppy_one_is_told_that_it_looks_clean(tmp_path):
    text = words(site_folder(tmp_path, patients(74, "cannot tell"), CANNOT))
    assert "This site looks clean beside others" in text
    assert "at most about 3 of its 74 labels" in text
    many = CANNOT | {"wrong_at_most": 20}
    assert "looks clean" not in words(site_folder(tmp_path / "many", patients(74, "cannot tell"), many))
    found = words(site_folder(tmp_path / "nothing", patients(74, "keep"), NOTHING))
    assert "none found" in found
    assert "Nothing points to wrong labels." in found


def test_models_that_know_little_are_said_to_know_little(tmp_path):
    weak = {"said": "cannot tell", "skill": 0.1, "skilled": False, "recognised": {"ill": 0.2, "well": 1.0}}
    text = words(site_folder(tmp_path, patients(40, "cannot tell"), CANNOT | {"wrong_at_most": None}, claims=weak))
    assert "The models hardly tell these classes apart" in text
    assert "ill 40 hardly" in text
    assert "until a person has looked" in text
    assert "How well the models tell these classes apart is not known" in skill_sentence(None, {})


def test_fields_that_speak_against_the_label_come_first_and_ignored_ones_last():
    texts = {"note": "x", "age": "70", "sex": "m", "dose": "3"}
    against = {"age": (0.1, "50"), "sex": (2.0, "f"), "dose": (-1.0, "3")}
    near = [{"texts": {"age": "71", "sex": "m"}}]
    lines = fields_of(texts, against, near, ["note"])
    assert [line["name"] for line in lines] == ["sex", "age", "dose", "note"]
    assert [line["against"] for line in lines] == [True, False, False, False]
    assert lines[0]["typical"] == "f"
    assert lines[2]["near"] == [""]
    assert lines[3]["ignored"]


def table_of_fields(tmp_path: Path) -> Path:
    rows = [(*row, f"person {number // 2}") for number, row in enumerate(patients())]
    cells = {f"field {number}": str(number) for number in range(12)} | {"note": "by hand"}
    ids = [row[1] for row in rows]
    return site_folder(
        tmp_path,
        rows,
        CALLS,
        (*HEADER, "group"),
        texts=dict.fromkeys(ids, cells),
        compared={name: [["p1", "p2"], ["p3", "p4"]] for name in ids},
        against={name: {"field 5": [3.0, "1"], "field 7": [0.9, "2"]} for name in ids},
        ignored=["note"],
    )


def test_labels_of_one_group_are_shown_together(tmp_path):
    page = table_of_fields(tmp_path).read_text(encoding="utf-8")
    assert page.count("labels of one group") == 15
    first = page[page.index("labels of one group") :]
    assert first.index("person 0") < first.index("person 1")
    assert re.search(r'<tr class="against"><th>field 5', page)
    assert page.index("<th>field 5") < page.index("<th>field 0")
    assert "similar, labelled ill" in page
    assert "not used in training" in page


def saved(browser: Browser, name: str) -> None:
    if folder := os.environ.get("FEDWINNOW_PICTURES"):
        browser.picture(Path(folder) / f"report-{name}.png")


def test_the_page_of_a_table_in_a_browser(tmp_path):
    page = table_of_fields(tmp_path)
    with Browser(1200, 1600) as browser:
        browser.open(page.as_uri())
        assert browser.text("#count") == "30 of 30"
        assert "group" in browser.text("#head")
        saved(browser, "table")
        before = browser.script("return document.querySelectorAll('figure')[0].innerText")
        assert "field 11" not in before
        browser.script("document.querySelector('.unfold').click()")
        after = browser.script("return document.querySelectorAll('figure')[0].innerText")
        assert "field 11" in after
        assert "not used in training" in after
        browser.script(
            "const box = document.getElementById('search'); box.value = 'person 3';"
            "box.dispatchEvent(new Event('input'))"
        )
        assert browser.text("#count") == "2 of 30"
        browser.script("document.querySelector('figure').scrollIntoView()")
        saved(browser, "table-cards")
        assert browser.complaints() == []


def test_a_picture_is_shown_large_on_a_click(tmp_path):
    (tmp_path / "previews").mkdir()
    (tmp_path / "whole").mkdir()
    Image.effect_noise((120, 90), 80).save(tmp_path / "previews" / "000000.png")
    Image.effect_noise((1200, 900), 80).save(tmp_path / "whole" / "000000.png")
    rows, data = patients(25), {"name": "x", "kind": "images", "source": ""}
    names = {"p0": "000000.png"}
    page = site_folder(tmp_path, rows, CALLS, data=data, pictures=names, whole=names)
    with Browser(1200, 1000) as browser:
        browser.open(page.as_uri())
        small = browser.script("return document.querySelector('.enlarge img').getBoundingClientRect().width")
        browser.script("document.querySelector('.enlarge').click()")
        assert browser.script("return document.getElementById('large').open")
        browser.wait("document.querySelector('#large img').naturalWidth === 1200", 60)
        large = browser.script("return document.querySelector('#large img').getBoundingClientRect().width")
        assert large > 3 * small
        saved(browser, "picture")
        browser.keys("escape")
        assert not browser.script("return document.getElementById('large').open")
        assert browser.complaints() == []


@pytest.mark.parametrize("width", [360, 1200])
def test_a_text_can_be_read_at_every_width(tmp_path, width):
    rows = patients(25, "cannot tell")
    texts = {row[1]: {"note": f"patient {row[1]} has a long history of " + "words " * 30} for row in rows}
    data = {"name": "notes", "kind": "tokens", "source": ""}
    page = site_folder(tmp_path, rows, CANNOT, data=data, texts=texts)
    with Browser(width, 1400) as browser:
        browser.open(page.as_uri())
        assert "patient p0 has a long history" in browser.text(".gallery")
        assert browser.script("return document.documentElement.scrollWidth <= window.innerWidth")
        saved(browser, f"text-{width}")


def test_the_review_page_has_the_fields_beside_those_of_similar_samples(tmp_path):
    table_of_fields(tmp_path)
    server = ReviewServer(ReviewQueue(tmp_path, "anna"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with Browser(1300, 1000) as browser:
            browser.open(server.url)
            browser.wait("document.querySelector('.aligned') !== null")
            first = browser.script("return document.querySelector('.aligned tbody tr').innerText")
            last = browser.script("return [...document.querySelectorAll('.aligned tbody tr')].pop().innerText")
            assert first.split() == [
                "field",
                "5",
                "5",
                "1",
                "5",
                "5",
                "5",
                "5",
            ]  # this, usual, four similar ones
            assert last.startswith("note (not used in training)")
            assert "p3" in browser.text(".aligned thead")
            saved(browser, "review-table")
            assert browser.complaints() == []
    finally:
        server.shutdown()
        server.server_close()
