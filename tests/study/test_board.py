"""The board: every run of a folder on one page, whatever state it is in, and the page itself in a real browser."""

from __future__ import annotations

import json
import os
import re
from urllib.parse import unquote

import pytest

import fedwinnow
from browser import Browser
from fedwinnow.cli import main
from fedwinnow.errors import DataError
from fedwinnow.study.board.page import write_board
from fedwinnow.study.board.runs_found import thinned
from run_folders import write_run

EVIL = "</script><script>document.title='caught'</script><img src=x onerror=alert(1)>"


def add_rounds(folder, values):
    rows = [{"round": number, "accuracy": value} for number, value in enumerate(values, 1)]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "report.html").write_text("<title>report</title>")


@pytest.fixture
def folder(tmp_path):
    """Two methods on two scenes with two seeds."""
    place = tmp_path / "my runs & more"
    for method, lead in (("fedavg", 0.0), ("feddiv", 0.2)):
        for noise in ("constant:rate=0.2", "constant:rate=0.4"):
            for seed in (0, 1):
                name = f"{method} #{noise[-3:]}"
                run = write_run(place / name / f"seed-{seed}", method, seed, 0.5 + lead + seed / 10, noise=noise)
                add_rounds(run, [0.1 + lead, 0.3 + lead, 0.5 + lead + seed / 10])
    return place


def content(board):
    page = board.path.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def states(board):
    return {run["folder"]: run["status"] for run in content(board)["runs"]}


def test_what_a_run_says(folder):
    board = write_board(folder)
    run = next(run for run in content(board)["runs"] if run["folder"] == "feddiv #0.4/seed-1")
    assert run["title"] == "FedDiv"
    assert run["scene"] == "symmetric 40 %, IID sites"
    assert run["curves"]["accuracy"] == [[1, 0.3], [2, 0.5], [3, 0.8]]
    assert run["numbers"]["last round"] == pytest.approx(0.8)
    assert unquote(run["report"]) == "./feddiv #0.4/seed-1/report.html"
    assert board.counts == {"finished": 8}


def test_the_same_runs_give_the_same_file(folder):
    first = write_board(folder).path.read_bytes()
    assert write_board(folder).path.read_bytes() == first
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == ["board.html"]


def test_runs_in_any_state(folder):
    write_run(folder / "stopped", "sce", 0, 0.5, status="interrupted")
    (write_run(folder / "crashed", "sce", 1, 0.5, status="failed") / "error.txt").write_text("Traceback\nboom: no\n")
    (write_run(folder / "young", "sce", 2, 0.5) / "summary.json").unlink()
    (write_run(folder / "cut", "sce", 3, 0.5) / "summary.json").write_text('{"status": "fin')
    (write_run(folder / "odd", "sce", 4, 0.5) / "summary.json").write_text("[1]")
    (write_run(folder / "rounds", "sce", 5, 0.5) / "rounds.jsonl").write_text('{"round": 1}\n[]\n{"round": 3}\n')
    (write_run(folder / "empty", "sce", 6, 0.5) / "config.toml").write_bytes(b"\xff\xfe\x00")
    (write_run(folder / "scene", "sce", 7, 0.5) / "config.toml").write_text('method = "sce"\nseed = "x"\n')
    (write_run(folder / "config", "sce", 8, 0.5) / "summary.json").unlink()
    (folder / "config" / "config.toml").write_text('method = 3\nseed = "x"\n')
    (folder / "sweep.json").write_text("{nonsense")
    board = write_board(folder)
    found = states(board)
    assert found["stopped"] == "unfinished"
    assert found["crashed"] == "failed"
    assert found["young"] == "unfinished"
    assert [found[name] for name in ("cut", "odd", "rounds", "empty", "config")] == ["broken"] * 5
    assert board.counts["finished"] >= 8
    assert len(found) == 17
    notes = {run["folder"]: run["note"] for run in content(board)["runs"]}
    assert notes["crashed"] == "boom: no"
    assert str(folder) not in json.dumps(notes)  # the page may be given to others


def test_a_changed_file_of_the_user_makes_a_run_stale(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("x = 1\n")
    run = write_run(folder / "own", "./mine.py", 0, 0.5)
    identity = json.loads((run / "identity.json").read_text())
    identity["code"] = {"method": {"mine.py": "another hash"}}
    (run / "identity.json").write_text(json.dumps(identity))
    found = next(one for one in content(write_board(folder))["runs"] if one["folder"] == "own")
    assert (found["status"], found["note"]) == ("stale", "made before mine.py was changed")


def test_runs_of_a_sweep_that_are_not_there_yet(tmp_path):
    settings = {"data": "digits:train=60", "model": "linear", "clients": 2, "rounds": 1}
    assert not fedwinnow.sweep(["fedavg", "sce"], seeds=1, out=tmp_path / "sweep", **settings).failed
    assert write_board(tmp_path).counts == {"finished": 2}
    for path in sorted((tmp_path / "sweep").rglob("seed-0/*"), reverse=True):
        if "sce" in path.parts and path.is_file():
            path.unlink()
    board = write_board(tmp_path)
    assert board.counts == {"finished": 1, "not started": 1}
    assert [(run["title"], run["seed"]) for run in board.runs if run["status"] == "not started"] == [("SCE", 0)]


def test_runs_that_differ_in_something_else_are_no_seeds_of_each_other(tmp_path):
    for rounds in (3, 9):
        write_run(tmp_path / f"a{rounds}", "fedavg", 0, 0.5, rounds=rounds)
    write_run(tmp_path / "copy", "fedavg", 0, 0.5, rounds=9)
    scenes = {run["folder"]: run["scene"] for run in content(write_board(tmp_path))["runs"]}
    assert len(set(scenes.values())) == 3
    assert scenes["a3"] == "no noise, IID sites, rounds 3, in a3"


def test_names_cannot_become_code(folder):
    run = write_run(folder / "evil<b>&'", EVIL, 0, 0.5, data=EVIL, noise=EVIL)
    add_rounds(run, [0.1, 0.2])
    page = write_board(folder).path.read_text(encoding="utf-8")
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=\"?http", page)


@pytest.mark.skipif(os.name == "nt", reason="names of files are texts there")
def test_a_folder_whose_name_is_no_text(tmp_path):
    place = os.fsdecode(os.fsencode(tmp_path) + b"/runs-\xff")
    try:
        write_run(type(tmp_path)(place) / "a", "fedavg", 0, 0.5)
    except OSError:
        pytest.skip("this file system takes no such names")
    (type(tmp_path)(place) / "a" / "report.html").write_text("x")
    assert write_board(place).counts == {"finished": 1}
    assert content(write_board(tmp_path))["runs"][0]["report"] == "./runs-%FF/a/report.html"


def test_long_curves_are_thinned_to_their_last_point():
    points = [[float(number), 0.0] for number in range(1, 1002)]
    kept = thinned(points)
    assert len(kept) <= 252
    assert kept[-1] == [1001.0, 0.0]


def test_the_command(folder, tmp_path, capsys):
    def command(*words):
        with pytest.raises(SystemExit) as end:
            main(["board", *map(str, words)])
        return end.value.code

    assert command(folder, "--json") == 0
    assert json.loads(capsys.readouterr().out)["states"] == {"finished": 8}
    assert command() == 2
    (tmp_path / "nothing").mkdir()
    assert command(tmp_path / "nothing") == 3
    assert "no run in there" in capsys.readouterr().err
    assert command(tmp_path / "absent") == 3
    with pytest.raises(DataError, match="it is a file"):
        write_board(folder / "feddiv #0.4" / "seed-1" / "config.toml")
    assert fedwinnow.board(folder) == folder / "board.html"


# --- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture
def page(folder):
    add_rounds(write_run(folder / "evil", EVIL, 0, 0.5, noise=EVIL), [0.2, 0.2])
    (write_run(folder / "cut", "sce", 3, 0.5) / "summary.json").write_text("{")
    path = write_board(folder).path
    with Browser(1280, 1000) as browser:
        browser.open(path.resolve().as_uri())
        yield browser


def uncheck(page, key, label):
    page.script(
        f"const l = [...document.querySelectorAll('#filter-{key} label')].find(l => l.innerText.startsWith('{label}'));"
        "if (!l) throw new Error('no such choice'); l.querySelector('input').click()"
    )


def rows(page, table):
    return page.script(f"return [...document.querySelectorAll('#{table} tbody tr')].map(r => r.innerText)")


def test_the_page_in_a_browser(page):
    assert page.text("#counts") == "10 runs: 1 broken, 9 finished; 10 shown"
    assert page.script("return document.title") == "my runs & more: fedwinnow board"  # no name became code
    assert page.script("return document.querySelectorAll('img, body script:not([type])').length") == 1
    lines = "return document.querySelectorAll('.curve').length"
    assert page.script(lines) == 5  # two methods on two scenes, and the evil one
    assert "70.00 ± 7.07 (n=2)" not in page.text("#means")
    assert page.text("#means").count("75.00 ± 7.07 (n=2)") == 2  # of 0.7 and 0.8
    # Filters change curves, means and runs.
    uncheck(page, "title", "FedDiv")
    assert page.script(lines) == 3
    assert "FedDiv" not in page.text("#means")
    assert len(rows(page, "runs")) == 6
    uncheck(page, "scene", "symmetric 20 %")
    assert page.script(lines) == 2
    assert len(rows(page, "runs")) == 4
    uncheck(page, "seed", "1")
    assert "55.00" not in page.text("#means")
    assert "50.00 (n=1)" in page.text("#means")
    uncheck(page, "status", "broken")
    assert page.text("#counts").endswith("2 shown")
    page.script("document.querySelector('#filter-title .all').click()")
    assert len(rows(page, "runs")) == 3
    page.script("document.querySelector('#filter-title .all').click()")
    assert page.text("#plot") == "No run that is shown has this curve."
    # Rounds are whole numbers.
    page.script("document.querySelector('#filter-title .all').click()")
    assert page.script("return [...document.querySelectorAll('.round')].map(t => t.textContent)") == ["1", "2", "3"]
    assert page.complaints() == []


def test_links_and_keys(page, folder):
    addresses = page.script("return [...document.querySelectorAll('#runs a')].map(a => a.href)")
    assert len(addresses) == 9
    for address in addresses:
        page.open(address)
        assert page.script("return document.title") == "report"
    page.open((folder / "board.html").resolve().as_uri())
    page.script("document.querySelector('#legend button').focus()")
    assert "in round" in page.text("#tip")
    assert page.script("return document.querySelectorAll('.curve.strong').length") == 1
    before = page.script("return document.querySelectorAll('.curve').length")
    page.keys("enter")
    assert page.script("return document.querySelectorAll('.curve').length") == before - 1
    assert page.script("return document.activeElement.getAttribute('aria-pressed')") == "false"
    page.keys("enter")
    assert page.script("return document.querySelectorAll('.curve').length") == before
    page.script("document.querySelectorAll('#runs thead button')[3].focus()")
    page.keys("enter", "enter")
    assert page.script("return document.querySelector('[aria-sort]').getAttribute('aria-sort')") == "descending"
    page.script("document.getElementById('seeds').click()")
    assert page.script("return document.querySelectorAll('.curve').length") == 9
    assert page.complaints() == []


def test_letters_keep_their_size_on_a_telephone(folder):
    path = write_board(folder).path
    with Browser(420, 900) as browser:
        browser.open(path.resolve().as_uri())
        browser.script("window.svg = document.querySelector('#plot svg')")
        assert browser.script("return svg.getBoundingClientRect().width / svg.viewBox.baseVal.width") > 0.95
        assert browser.script("return document.documentElement.scrollWidth <= window.innerWidth")
