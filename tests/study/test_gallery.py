"""Every picture of runs by name, drawn from two small runs; what cannot be drawn says why."""

from __future__ import annotations

import json
import re
import warnings

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

import fedwinnow
from fedwinnow.cli import main
from fedwinnow.errors import DataError, FedwinnowWarning, UsageError
from fedwinnow.metrics.detection import auroc
from fedwinnow.study.figures.clients import rates
from fedwinnow.study.figures.gallery import PICTURES, draw
from fedwinnow.study.figures.run_view import View, groups, in_order, on_one_scene
from fedwinnow.study.figures.samples import counted
from fedwinnow.study.figures.style import WIDTHS, count_rounds
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


def test_a_picture_of_one_run_says_which_of_several(runs, tmp_path):
    with pytest.warns(
        FedwinnowWarning, match=r"losses shows one run, the first of 2: FedAvg, seed 0, in .*seed-0\. Name"
    ):
        draw("losses", [runs / "fedavg"], tmp_path / "a.png")
    with pytest.warns(FedwinnowWarning, match="rates shows one scene, the first of 2"):
        draw("rates", [runs / "fedavg"], tmp_path / "b.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw("losses", sorted((runs / "fedavg").rglob("seed-0")), tmp_path / "c.png")


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
    found = groups(views)
    assert {group.label: len(group.views) for group in found} == {
        "FedAvg": 2,
        "FedRN (warm_up=1, neighbours=1)": 1,
        "FedRN (warm_up=1, neighbours=2)": 1,
    }
    assert len({group.style.colour for group in found}) == 3
    assert found[0].style == groups(views[:1])[0].style  # alone or not


def test_scenes_differ_in_dashes_and_not_in_colour(tmp_path):
    for noise in ("constant:rate=0.2", "constant:rate=0.4"):
        write_run(tmp_path / noise[-3:], "gce", 0, 0.5, noise=noise)
    first, second = groups([View(record) for record in read_records([tmp_path])])
    assert (first.label, second.label) == ("GCE, symmetric 20 %", "GCE, symmetric 40 %")
    assert first.style.colour == second.style.colour
    assert first.style.dashes != second.style.dashes


def test_order(runs):
    views = [View(record) for record in read_records([runs / "fedavg", runs / "fedrn"])]
    turned = in_order(views, ["FedRN (warm_up=1, neighbours=2)", "fedavg"])
    assert [view.row for view in turned] == ["fedrn:warm_up=1,neighbours=2", "fedavg", "fedavg", views[2].row]
    with pytest.raises(UsageError, match=r"unknown method for --order 'fedag'\. Did you mean 'fedavg'"):
        in_order(views, ["fedag"])


@pytest.mark.parametrize("width", ["column", "page"])
def test_a_width_is_kept_to_the_pixel(width, runs, tmp_path):
    for name in ("curves", "confusion", "estimates"):
        path = draw(name, [runs / "fedavg"], tmp_path / f"{name}.png", width=width)
        assert Image.open(path).width == int(160 * WIDTHS[width])
    with pytest.raises(UsageError, match="--font-size 90 was given; allowed: 4 to 24"):
        draw("curves", [runs / "fedavg"], tmp_path / "x.png", font_size=90)


def test_letters_have_the_size_that_was_asked_for(runs, tmp_path):
    text = draw("curves", [runs / "fedavg"], tmp_path / "a.svg", font_size=12.0).read_text(encoding="utf-8")
    assert re.search(r"12px[^>]*>round<", text)


@pytest.mark.parametrize("name", ["estimates", "expertise", "clean-probability", "identification", "memorisation"])
def test_many_methods_in_one_picture(name, many, tmp_path):
    text = draw(name, [many], tmp_path / "x.svg").read_text(encoding="utf-8")
    for title in ("FedAvg", "GCE", "SCE", "MixUp", "FedProx", "Median"):
        assert text.count(f">{title}") == 1
    narrow = draw(name, [many], tmp_path / "y.svg", width="column").read_text(encoding="utf-8")
    title = "Probability of a right label (all clients; below: the wrong labels)"
    assert f">{title}<" not in narrow  # two lines, because it is wider than a column
    assert (">Probability of a right label" in narrow) == (name == "clean-probability")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Six methods on one scene."""
    place = tmp_path_factory.mktemp("many")
    methods = ["fedavg", "gce", "sce", "mixup", "fedprox", "median"]
    assert not fedwinnow.sweep(methods, seeds=1, out=place, **(SMALL | {"rounds": 2})).failed
    return place


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
