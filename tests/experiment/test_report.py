"""The report of a run: one file that needs nothing else, says what it must, and trusts no text of a user."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

import fedwinnow
from fedwinnow.errors import DataError
from fedwinnow.experiment.report import templates
from fedwinnow.experiment.report.run_report import curve_of, report_of
from fedwinnow.testing import toy_data
from html_page import Page
from run_folders import write_run

SETTINGS = {
    "clients": 4,
    "rounds": 3,
    "epochs": 1,
    "optimizer": "sgd:lr=0.1",
    "noise": "uniform:share=0.5,low=0.3,high=0.5",
}


def page_of(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    fedwinnow.run(data=toy_data(), out=folder, **SETTINGS)
    return folder


def test_a_run_leaves_a_report_that_loads_nothing(plain_run: Path) -> None:
    source = (plain_run / "report.html").read_text(encoding="utf-8")
    page = page_of(plain_run)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert not any({"src", "href", "xlink:href"} & attributes.keys() for _, attributes in page.tags)
    assert "http:" not in source
    assert "https:" not in source
    assert "url(" not in source
    assert "@import" not in source
    assert "prefers-color-scheme: dark" in source


def test_it_says_what_was_run_what_it_gave_and_what_left(plain_run: Path) -> None:
    text = page_of(plain_run).text
    summary = json.loads((plain_run / "summary.json").read_text())
    assert "McMahan" in text
    assert templates.percent(summary["last10"]["accuracy"]) in text
    assert templates.percent(summary["detection"]["samples"]["precision"]) in text
    assert templates.percent(summary["memorisation"]["memorised"]) in text
    assert templates.LEARNS["client"] in text
    assert "batch_size" in text
    assert "CHEATS" not in text
    for number in range(4):
        assert f"client-{number}" in text


def test_references_carry_a_banner(tmp_path: Path) -> None:
    fedwinnow.run(data=toy_data(), out=tmp_path / "a", method="oracle", **SETTINGS)
    fedwinnow.run(data=toy_data(), out=tmp_path / "b", method="centralised", **SETTINGS)
    assert "CHEATS." in page_of(tmp_path / "a").text
    assert "NOT FEDERATED." in page_of(tmp_path / "b").text


def test_texts_of_users_are_escaped(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    data = dataclasses.replace(toy_data(), name=bad, class_names=(bad, '" onclick="x', "{{ 7 * 7 }}"))
    fedwinnow.run(data=data, out=tmp_path, **SETTINGS)
    page = page_of(tmp_path)
    assert bad in page.text
    assert "{{ 7 * 7 }}" in page.text
    assert "script" not in {tag for tag, _ in page.tags}
    assert not any("onclick" in attributes for _, attributes in page.tags)


def test_a_run_without_rounds_or_truth_has_a_report(tmp_path: Path) -> None:
    settings = SETTINGS | {"rounds": 0, "noise": "given"}
    fedwinnow.run(data=dataclasses.replace(toy_data(), labels_trusted=False), out=tmp_path, **settings)
    text = page_of(tmp_path).text
    assert "Nothing was measured" in text
    assert "It is not known which labels are wrong" in text


def test_it_can_be_made_again_from_the_folder_alone(plain_run: Path) -> None:
    before = (plain_run / "report.html").read_bytes()
    (plain_run / "report.html").unlink()
    assert report_of(plain_run).read_bytes() == before


def test_only_run_folders_have_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a run folder \(it has no config\.toml\).* such as runs/fedavg-digits-0"):
        report_of(tmp_path)
    with pytest.raises(DataError, match=r"not a run folder \(there is nothing there"):
        report_of(tmp_path / "none")
    inner = write_run(tmp_path / "fedavg-0", "fedavg", 0, 0.5)
    with pytest.raises(DataError, match=re.escape(f"such as {inner}, which is in it")):
        report_of(tmp_path)
    with pytest.raises(DataError, match=r"not a run folder \(it is a file"):
        report_of(inner / "summary.json")


def test_the_curve_marks_last_best_and_the_mean_of_ten() -> None:
    rounds = [{"round": number, "accuracy": 0.05 * number} for number in range(1, 12)]
    rounds.append({"round": 12, "accuracy": 0.3})
    rounds.append({"round": 13, "accuracy": None})
    curve = curve_of(rounds, {})
    assert curve is not None
    best, last = curve.marks
    assert (best.round, best.value) == (11, pytest.approx(0.55))
    assert (last.round, last.value, last.x) == (12, 0.3, 100)
    assert curve.mean == pytest.approx((0.15 + 0.2 + 0.25 + 0.3 + 0.35 + 0.4 + 0.45 + 0.5 + 0.55 + 0.3) / 10)
    assert curve.points.split()[0] == "0.00,95.00"
    assert curve_of(rounds[-1:], {}) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (templates.percent(0.1234), "12.3 %"),
        (templates.percent(None), "–"),
        (templates.percent(float("nan")), "–"),
        (templates.size(999), "999 bytes"),
        (templates.size(1_500_000), "1.5 MB"),
        (templates.duration(30), "30.0 s"),
        (templates.duration(600), "10.0 min"),
        (templates.duration(7200), "2.0 h"),
        (templates.whole(12345), "12\u202f345"),
    ],
)
def test_numbers_for_people(text: str, expected: str) -> None:
    assert text == expected
