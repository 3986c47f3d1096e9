"""The review page in a real browser, with the keyboard alone; kill -9 loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from auditing_material import SCRIPT, lines
from browser import Browser, browser_or_skip
from looks_material import make_audit

SIZES = [(1280, 900, False), (400, 860, True)]
PICTURES = os.environ.get("FEDWINNOW_PICTURES")  # a folder, to look at what the tests see


class Program:
    """`fedwinnow review` as a user starts it."""

    def __init__(self, folder: Path, reviewer: str, *more: str) -> None:
        words = ["review", str(folder), "--reviewer", reviewer, "--no-browser", "--json", *more]
        self.process = subprocess.Popen([sys.executable, "-m", "fedwinnow", *words], stdout=subprocess.PIPE, text=True)
        text = ""
        while not text.rstrip().endswith("}"):
            line = self.process.stdout.readline()
            assert line, "it ended before it said its address"
            text += line
        self.url = json.loads(text)["url"]
        self.labels = json.loads(text)["to_review"]

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *problem: object) -> None:
        self.process.kill()
        self.process.wait()


def decided(browser: Browser, count: int) -> None:
    browser.wait(
        f"document.getElementById('progress').innerText.startsWith('{count} of') && "
        "document.getElementById('main').getAttribute('aria-busy') === 'false'"
    )


def look(browser: Browser, name: str) -> None:
    if PICTURES:
        browser.wait("[...document.images].every((image) => image.complete)")
        browser.picture(Path(PICTURES) / f"{name}.png")


@pytest.mark.parametrize(("width", "height", "dark"), SIZES)
def test_a_person_decides_with_keys_alone(audited, width, height, dark):
    browser_or_skip()
    site, name = audited / "north", f"{width}-{'dark' if dark else 'light'}"
    with Program(site, "anna") as program, Browser(width, height, dark=dark) as browser:
        browser.open(program.url)
        browser.wait("document.querySelector('.one')")
        look(browser, f"one-{name}")
        assert SCRIPT in browser.text("main")
        assert browser.script("return document.documentElement.scrollWidth") <= width
        first = lines(site / "audit.csv")[0]
        browser.keys("a")
        decided(browser, 1)
        assert [(row["id"], row["label"]) for row in lines(site / "decisions.csv")] == [
            (first["id"], first["suggested"])
        ]
        browser.keys("u")
        decided(browser, 0)
        assert lines(site / "decisions.csv") == []
        browser.keys("k")
        decided(browser, 1)
        browser.keys("o")
        browser.wait("document.querySelector('#labels[open]')")
        look(browser, f"other-{name}")
        browser.keys("enter")
        decided(browser, 2)
        browser.keys("s")
        decided(browser, 3)
        browser.keys("?")
        browser.wait("document.querySelector('#keys[open]')")
        look(browser, f"keys-{name}")
        browser.keys("escape", "g")
        browser.wait("document.querySelector('.grid')")
        look(browser, f"grid-{name}")
        browser.keys("right", "a")
        decided(browser, 4)
        assert [row["decision"] for row in lines(site / "decisions.csv")] == ["keep", "other", "skip", "accept"]
        assert browser.complaints() == []


def test_nobody_decides_on_a_sample_that_is_not_in_sight_yet(audited):
    browser_or_skip()
    site = audited / "north"
    press = "document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))"
    with Program(site, "anna") as program, Browser() as browser:
        browser.open(program.url)
        decided(browser, 0)
        browser.script(f"for (const key of ['a', 'k']) {press}")  # faster than the first can be saved
        decided(browser, 1)
        browser.script(f"for (const key of ['ArrowRight', 'k']) {press}")  # faster than the next can be shown
        decided(browser, 1)  # and the next is in sight
        browser.keys("s")
        decided(browser, 2)
        assert [row["decision"] for row in lines(site / "decisions.csv")] == ["accept", "skip"]


def test_nothing_is_lost_when_the_program_is_killed(audited):
    browser_or_skip()
    site = audited / "north"
    with Browser() as browser:
        with Program(site, "anna") as program:
            browser.open(program.url)
            browser.wait("document.querySelector('.one')")
            for count in (1, 2, 3):
                browser.keys("a")
                decided(browser, count)
        assert len(lines(site / "decisions.csv")) == 3  # it was killed with SIGKILL
        browser.keys("a")
        browser.wait("!document.getElementById('problem').hidden")
        look(browser, "gone")
        assert "does not answer" in browser.text("#problem")
        with Program(site, "anna") as program:
            browser.open(program.url)
            decided(browser, 3)


def test_two_reviewers_see_how_far_they_agree_and_the_end_is_an_end(audited):
    browser_or_skip()
    site = audited / "south"
    to_review = sum(row["decision"] == "review" for row in lines(site / "audit.csv"))
    with Browser() as browser:
        for reviewer, key in (("anna", "a"), ("ben <b>", "k")):
            with Program(site, reviewer) as program:
                browser.open(program.url)
                browser.wait("document.querySelector('.one')")
                for count in range(1, to_review + 1):
                    browser.keys("a" if count > 1 else key)
                    decided(browser, count)
                browser.wait("document.querySelector('.empty')")
                look(browser, f"end-{key}")
        share = round(100 * (to_review - 1) / to_review)
        assert f"anna and ben <b> agree on {share} % of {to_review} labels" in browser.text("#agreement")
        assert browser.complaints() == []


@pytest.mark.parametrize(("width", "height", "dark"), SIZES)
def test_labels_by_lot_are_shown_blind_and_the_figures_follow(tmp_path, width, height, dark):
    """16 looks with keys alone: right, wrong or cannot say; the second half is drawn when the first is done."""
    browser_or_skip()
    truth = make_audit(tmp_path / "audit")
    name = f"{width}-{'dark' if dark else 'light'}"
    with Program(tmp_path / "audit", "anna", "--anchor", "16") as program, Browser(width, height, dark=dark) as browser:
        assert program.labels == 8
        browser.open(program.url)
        browser.wait("document.querySelector('.one.blind')")
        page = browser.script("return document.documentElement.innerHTML")
        assert "suggested" not in browser.text("main").lower()
        assert "p_wrong" not in browser.text("body")
        assert "Accept" not in page
        assert "of at least 10 looks" in browser.text("#said")
        look(browser, f"anchor-start-{name}")
        browser.keys("a", "g")  # neither is a key here
        for count in range(1, 17):
            sample = browser.script("return current")
            site, _, number = sample.partition("/")
            given = browser.text(".labels strong")
            if count == 5:
                browser.keys("s")
            elif truth[site, number] == given:
                browser.keys("k")
            else:
                browser.keys("o")
                browser.wait("document.querySelector('#labels[open]')")
                browser.keys(*truth[site, number], "enter")
            decided(browser, count)
        browser.wait("document.querySelector('.empty')")
        assert "audit --update" in browser.text("main")
        assert "15 looks" in browser.text("#said")
        assert "90 % interval" in browser.text("#said")
        assert "worth it" in browser.text("#worth")
        assert browser.script("return document.querySelectorAll('#looks svg polyline').length") == 1
        assert browser.script("return document.documentElement.scrollWidth") <= width
        look(browser, f"anchor-end-{name}")
        said = [row["decision"] for folder in ("north", "south", "east") for row in lines_if(folder, tmp_path)]
        assert len(said) == 16
        assert said.count("skip") == 1
        assert "accept" not in said
        browser.keys("u")
        decided(browser, 15)
        assert browser.complaints() == []


def lines_if(folder: str, place: Path) -> list[dict[str, str]]:
    path = place / "audit" / folder / "decisions.csv"
    return lines(path) if path.exists() else []


def test_the_report_filters_and_sorts_a_hundred_thousand_labels(audited):
    browser_or_skip()
    from fedwinnow.auditing.audit_report import write_report

    site = audited / "north"
    with (site / "audit.csv").open("a", encoding="utf-8") as stream:
        stream.writelines(f"north,s{number},well,well,-9.2,0.000100,keep,well,,\n" for number in range(100_000))
    with Browser() as browser:
        browser.open(write_report(site).as_uri())
        assert browser.text("#count") == "100100 of 100100"
        look(browser, "report")
        assert browser.script("return document.querySelectorAll('#window .line').length") < 100
        browser.script(
            "const s = document.getElementById('search'); s.value = 's99999'; s.dispatchEvent(new Event('input'))"
        )
        assert browser.text("#count") == "1 of 100100"
        assert "s99999" in browser.text("#window")
        browser.script("const s = document.getElementById('search'); s.value = ''; s.dispatchEvent(new Event('input'))")
        browser.script("document.querySelectorAll('#head button')[3].click()")
        assert "0.000" in browser.text("#window")
        assert browser.complaints() == []
