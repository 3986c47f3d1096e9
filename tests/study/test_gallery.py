"""Every picture of runs by name, drawn from two small runs; what cannot be drawn says why."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from matplotlib.figure import Figure

import fedwinnow
from fedwinnow.cli import main
from fedwinnow.errors import DataError, UsageError
from fedwinnow.metrics.detection import auroc
from fedwinnow.study.figures.clients import rates
from fedwinnow.study.figures.gallery import PICTURES, draw
from fedwinnow.study.figures.run_view import View, by_name, on_one_scene
from fedwinnow.study.figures.samples import counted
from fedwinnow.study.figures.style import count_rounds, line_style
from fedwinnow.study.run_records import read_records
from run_folders import write_run

SMALL = {
    "data": "digits:train=200",
    "model": "linear",
    "clients": 6,
    "participation": 1.0,
    "rounds": 4,
    "epochs": 1,
    "memorisation_every": 2,
    "noise": "uniform:share=0.5,low=0.5,high=0.7",
}
# picture -> the method whose runs have what it shows
NEEDS = {"quality": "fedes", "similarity": "fedrn", "sensitivity": "fedrn", "detection": "fednoro"}
METHODS = {
    "fedavg": ["fedavg"],
    "fedes": ["fedes:s1=1"],
    "fedrn": ["fedrn:warm_up=1,neighbours=1", "fedrn:warm_up=1,neighbours=2"],
    "fednoro": ["fednoro:warm_up=2,measure_every=1"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One folder per kind of method."""
    place = tmp_path_factory.mktemp("runs")
    for name, methods in METHODS.items():
        seeds = 2 if name == "fedavg" else 1
        swept = fedwinnow.sweep(methods, seeds=seeds, out=place / name, **SMALL)
        assert not swept.failed
    return place


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture(name, runs, tmp_path):
    options = {"option": "neighbours"} if name == "sensitivity" else {}
    path = draw(name, [runs / NEEDS.get(name, "fedavg")], tmp_path / f"{name}.svg", **options)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<?xml")
    assert text.count("<path") > 5
    again = draw(name, [runs / NEEDS.get(name, "fedavg")], tmp_path / "again.svg", **options)
    assert again.read_bytes() == path.read_bytes()  # the same runs, the same file


def test_one_client(runs, tmp_path):
    for name in ("losses", "clean-probability", "confusion"):
        assert draw(name, [runs / "fedavg"], tmp_path / f"{name}.png", client=1).stat().st_size > 5000
    with pytest.raises(UsageError, match="--client 6 was given; allowed: 0 to 5"):
        draw("losses", [runs / "fedavg"], tmp_path / "x.png", client=6)


def test_a_client_without_samples_has_no_picture(tmp_path):
    settings = SMALL | {"partition": "quantity:alpha=0.05,minimum=0", "clients": 12, "rounds": 1}
    fedwinnow.run(out=tmp_path / "run", **settings)
    empty = View(read_records([tmp_path / "run"])[0]).scene.holdings.sizes.argmin()
    with pytest.raises(UsageError, match="holds no samples"):
        draw("losses", [tmp_path / "run"], tmp_path / "x.png", client=int(empty))


def test_only_runs_on_one_scene_are_compared_client_by_client(runs):
    views = [View(record) for record in read_records([runs / "fedavg", runs / "fedrn"])]
    assert [view.record.seed for view in views] == [0, 1, 0, 0]
    assert [view.record.seed for view in on_one_scene(views)] == [0, 0, 0]


def test_seeds_are_one_line_and_methods_several(runs):
    views = [View(record) for record in read_records([runs / "fedavg", runs / "fedrn"])]
    assert {name: len(group) for name, group in by_name(views).items()} == {
        "fedavg": 2,
        "fedrn:neighbours=1,warm_up=1": 1,
        "fedrn:warm_up=1": 1,
    }


def test_verdicts_are_those_of_the_summary(runs):
    view = View(read_records([runs / "fedavg"])[0])
    found = auroc(view.verdicts["p_wrong"], view.wrong)
    assert found == pytest.approx(view.record.summary["detection"]["samples"]["auroc"])
    assert np.isfinite(view.verdicts["loss"]).all()
    counts = counted(view.true, view.scene.given, view)
    assert counts.trace() / counts.sum() == pytest.approx(1 - view.record.summary["scene"]["realised_rate"])
    realised, _ = rates(view)
    assert realised == pytest.approx(view.scene.realised, abs=1e-5)


@pytest.mark.parametrize("kind", ["no zip", "damaged", "other arrays"])
def test_verdicts_that_cannot_be_read(tmp_path, kind):
    folder = write_run(tmp_path / "run", "fedavg", 0, 0.5)
    names = ("p_wrong",) if kind == "other arrays" else ("p_wrong", "suggested", "loss")
    np.savez_compressed(folder / "verdicts.npz", **{name: np.random.RandomState(0).rand(99) for name in names})
    content = (folder / "verdicts.npz").read_bytes()
    if kind == "damaged":
        content = content[:100] + b"\xff" * 100 + content[200:]  # the list of contents, at the end, stays whole
    (folder / "verdicts.npz").write_bytes(b"PK\x03\x04 no" if kind == "no zip" else content)
    with pytest.raises(DataError, match=r"verdicts\.npz: not the verdicts of a run"):
        _ = View(read_records([tmp_path])[0]).verdicts


def test_clients_that_cannot_be_read(tmp_path):
    folder = write_run(tmp_path / "run", "fedavg", 0, 0.5)
    (folder / "clients.csv").write_text("realised_rate,estimated_rate\n0.1,many\n")
    with pytest.raises(DataError, match=r"clients\.csv: not the clients of a run .*many"):
        rates(View(read_records([tmp_path])[0]))


def test_stability_is_written_every_round(runs):
    view = View(read_records([runs / "fedavg"])[0])
    rounds, values = view.column("stability")
    assert rounds.tolist() == [1, 2, 3, 4]
    assert (values > 0).all()


@pytest.mark.parametrize(
    ("name", "kind", "options", "message"),
    [
        ("quality", "fedavg", {}, "does not estimate data quality"),
        ("similarity", "fedavg", {}, "only fedrn asks"),
        ("detection", "fedavg", {}, "no round has client indicators"),
        ("sensitivity", "fedrn", {}, "needs --option"),
        ("sensitivity", "fedrn", {"option": "neighbour"}, "no number neighbour; its numbers: .*neighbours"),
        ("sensitivity", "fedavg", {"option": "mu"}, "no number mu; its numbers: .*Give runs of one method"),
        ("curves", "fedavg", {"column": "acuracy"}, "Did you mean 'accuracy'"),
        ("curves", "fedavg", {"client": 1}, "--client 1 was given, but figure curves takes --column"),
        ("curve", "fedavg", {}, "Did you mean 'curves'"),
    ],
)
def test_what_cannot_be_drawn(runs, tmp_path, name, kind, options, message):
    with pytest.raises((UsageError, DataError), match=message):
        draw(name, [runs / kind], tmp_path / "x.png", **options)
    assert not (tmp_path / "x.png").exists()


def test_an_option_that_is_no_number(tmp_path):
    write_run(tmp_path / "run", "fedavg:loss=sce", 0, 0.5)
    with pytest.raises(DataError, match="no number loss"):
        draw("sensitivity", [tmp_path], tmp_path / "x.png", option="loss")


def test_the_command(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["figure", "curves", str(runs / "fedavg"), "--json"])
    assert end.value.code == 0
    assert json.loads(capsys.readouterr().out)["files"] == ["figures/curves.png", "figures/curves.svg"]
    with pytest.raises(SystemExit) as end:
        main(["figure"])
    assert "memorised-map" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["figure", "curves", str(runs / "fedavg"), "--out", "curves.gif"])
    assert end.value.code == 2


@pytest.mark.parametrize("lines", [1, 7, 8, 14, 40])
def test_no_two_lines_share_a_colour(lines):
    colours = [line_style(place, lines)["color"] for place in range(lines)]
    assert len(set(colours)) == lines


@pytest.mark.parametrize("last", [1, 2, 3, 7, 40, 1000])
def test_rounds_are_whole_numbers(last):
    axes = Figure().add_subplot()
    axes.plot([1, last], [0, 1])
    count_rounds(axes)
    ticks = axes.get_xticks()
    assert len(ticks)
    assert all(float(tick).is_integer() for tick in ticks)


@pytest.mark.parametrize("name", ["curves", "memorisation"])
def test_pictures_by_round_have_whole_rounds(name, runs, tmp_path):
    page = draw(name, [runs / "fedavg"], tmp_path / "picture.svg").read_text(encoding="utf-8")
    ticks = re.findall(r">([0-9.]+)</text>", page.split(">round</text>")[0])  # the upright axis comes after its name
    assert ticks
    assert all(tick.isdigit() for tick in ticks)
