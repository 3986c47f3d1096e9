"""Runs on encoded samples: the same loop, a linear head, and a folder that says what was used."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fedwinnow
from encoded_pictures import OWN, pictures
from fedwinnow.cli import main
from fedwinnow.encoders.encoded import Encoded
from fedwinnow.errors import DataError, StaleError, UsageError
from fedwinnow.experiment.encoding import saved_encoding
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.trained.exporting.export_folder import export_model
from fedwinnow.models.model import Shape
from fedwinnow.scene.scene import Scene
from fedwinnow.testing import comparable
from stages import TINY


@pytest.fixture
def own(tmp_path):
    (tmp_path / "mine.py").write_text(OWN.format(factor=2.0))
    return tmp_path / "mine.py"


@pytest.fixture
def settings(own):
    return {**TINY, "data": pictures(), "encoder": f"{own}:build", "rounds": 4, "noise": "constant:rate=0.2"}


def test_the_model_sees_scaled_rows_and_the_scene_does_not_know_it(settings):
    stage = prepare(Experiment(**settings, validation=0.2, trusted=6, public=6))
    assert isinstance(stage.sites.features, Encoded)
    assert (stage.sites.shape.kind, stage.sites.shape.sample_shape) == ("rows", (19,))
    assert stage.experiment.model == "linear"
    assert stage.scene.hash == Scene.make(settings["data"], clients=4, noise="constant:rate=0.2").hash
    assert stage.scene.dataset.kind == "images"
    for features in (*stage.parts.values(), stage.aside.trusted, stage.judged.features.subset(np.arange(5))):
        assert features.array.dtype == np.float32
        assert np.linalg.norm(features.array, axis=1) == pytest.approx(8.0, rel=1e-5)
    assert set(stage.parts) == {"test", "validation", "public"}


def test_the_scaling_is_fitted_from_training_samples_of_large_enough_sites_only(settings):
    stage = prepare(Experiment(**settings, validation=0.2))
    rows = stage.sites.holdings.rows
    raw = stage.sites.features.raw(rows).astype(np.float64)
    assert stage.encoding.scaling.mean == pytest.approx(raw.mean(axis=0), rel=1e-5)
    assert 1 / stage.encoding.scaling.factor == pytest.approx(raw.std(axis=0), rel=1e-4)
    uneven = {**settings, "partition": "quantity:alpha=0.5"}
    few = prepare(Experiment(**uneven, least_count=15))
    assert few.absent
    kept = np.concatenate([few.sites.holdings.rows[few.sites.holdings.of(site)] for site in few.available])
    raw = few.sites.features.raw(kept).astype(np.float64)
    assert few.encoding.scaling.mean == pytest.approx(raw.mean(axis=0), rel=1e-5)
    assert few.encoding.told == few.available


def test_a_run_learns_and_its_folder_says_how(settings, tmp_path):
    result = fedwinnow.run(**settings, out=tmp_path / "run")
    assert result.summary["last"]["accuracy"] > 0.9
    facts = json.loads((tmp_path / "run" / "encoder.json").read_text())
    assert facts["encoder"].endswith("mine.py:build")
    assert (facts["width"], facts["scale"], facts["sites"]) == (19, "std_l2", 4)
    identity = json.loads((tmp_path / "run" / "identity.json").read_text())
    assert identity["encoder"]["hash"] == facts["hash"]
    sent = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert sent["keys"]["encoder_sums"]["exposes"] == "client"
    assert {tuple(site["encoder_sums"].values()) for site in sent["sites"].values()} == {("client", 1, 8 * 39)}
    again = saved_encoding(tmp_path / "run", Shape.of(settings["data"]))
    assert again is not None
    stage = prepare(Experiment(**settings))
    found = again.encoded(settings["data"]).test.features.take(np.arange(5))
    assert np.array_equal(found, stage.parts["test"].array[:5])
    assert saved_encoding(tmp_path, Shape.of(settings["data"])) is None


def test_the_trained_head_answers_for_new_samples(settings, own, tmp_path):
    result = fedwinnow.run(**settings, out=tmp_path / "run")
    test = settings["data"].test
    scores = result.predict_proba(test.features.array)
    assert (scores.argmax(axis=1) == test.labels).mean() == result.summary["last"]["accuracy"]
    with pytest.raises(UsageError, match="cannot be part of one torch module"):
        _ = result.model
    with pytest.raises(UsageError, match="cannot carry the scaling of its features; allowed: --format torch"):
        export_model(tmp_path / "run", tmp_path / "exported", "safetensors")
    assert not (tmp_path / "exported").exists()
    head = fedwinnow.run(**{**settings, "rounds": 0}, start=tmp_path / "run", out=tmp_path / "further")
    assert head.summary["last"]["accuracy"] == result.summary["last"]["accuracy"]
    with pytest.raises(DataError, match=r"trained with the encoder .*mine.py:build .*; here it is none"):
        fedwinnow.run(**{**settings, "encoder": None}, model="linear", start=tmp_path / "run", out=tmp_path / "other")
    own.write_text(OWN.format(factor=3.0))
    with pytest.raises(DataError, match="its weights or settings have changed"):
        fedwinnow.load(tmp_path / "run").predict_proba(test.features.array)
    (tmp_path / "run" / "encoder.npz").write_bytes(b"damaged")
    own.write_text(OWN.format(factor=2.0))
    with pytest.raises(DataError, match=r"encoder.npz"):
        fedwinnow.load(tmp_path / "run").predict_proba(test.features.array)


def test_new_texts_go_through_the_encoder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"{'good' if number % 2 else 'bad'} word{number % 5},{'ab'[number % 2]}" for number in range(60)]
    (tmp_path / "letters.csv").write_text("text,label\n" + "\n".join(lines) + "\n")
    data = "csv:path=letters.csv,label=label,text=text"
    result = fedwinnow.run(data=data, encoder="tfidf:width=256", clients=2, rounds=5, participation=1, out="run")
    assert result.predict(["good day", "bad day"]).tolist() == ["b", "a"]


def test_all_backends_and_a_resumed_run_give_the_same(settings, tmp_path):
    fedwinnow.run(**settings, out=tmp_path / "serial")
    fedwinnow.run(**settings, out=tmp_path / "two", backend="processes:workers=2")
    fedwinnow.run(**{**settings, "rounds": 2}, out=tmp_path / "resumed")
    fedwinnow.run(**settings, out=tmp_path / "resumed", resume=True)
    serial = comparable(tmp_path / "serial")
    assert serial == comparable(tmp_path / "two")
    assert serial == comparable(tmp_path / "resumed")


def test_other_weights_make_a_run_stale(settings, own, tmp_path):
    fedwinnow.run(**settings, out=tmp_path / "run")
    own.write_text(OWN.format(factor=3.0))
    with pytest.raises(StaleError, match="the weights or settings of the encoder have changed"):
        fedwinnow.run(**settings, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("method", "more", "words"),
    [
        ("fedlsr", {}, "method 'fedlsr', which compares random views of an image"),
        ("fedgr", {}, "method 'fedgr', which compares random views of an image, .*views=4"),
        ("fedavg", {"views": "flip"}, "--views flip was given with --encoder"),
    ],
)
def test_views_are_refused(settings, method, more, words):
    with pytest.raises(UsageError, match=words):
        prepare(Experiment(**{**settings, "method": method, **more}))
    prepare(Experiment(**{**settings, "method": "fedgr:weak=none,strong=none"}))


def test_public_samples_of_other_data_are_encoded_too(settings, tmp_path):
    other = pictures(40)
    path = tmp_path / "other.npz"
    np.savez(path, x=other.train.features.array, y=other.train.labels)
    stage = prepare(Experiment(**{**settings, "public": f"npz:path={path}"}))
    assert stage.parts["public"].shape == (19,)
    assert len(stage.parts["public"]) == 20


def test_the_command_line_and_toml(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = pictures()
    np.savez("pictures.npz", x=data.train.features.array, y=data.train.labels)
    (tmp_path / "mine.py").write_text(OWN.format(factor=2.0))
    (tmp_path / "run.toml").write_text('data = "pictures.npz"\nencoder = "./mine.py:build"\nrounds = 1\nclients = 2\n')
    for arguments in (
        ["run", "--config", "run.toml", "--out", "a", "--json"],
        [
            "run",
            "--data",
            "pictures.npz",
            "--encoder",
            "./mine.py:build",
            "--rounds",
            "1",
            "--clients",
            "2",
            "--out",
            "b",
        ],
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    assert 'encoder = "mine.py:build"' in (tmp_path / "a" / "config.toml").read_text()
    with pytest.raises(SystemExit) as ended:
        main(["encoders"])
    assert ended.value.code == 0
    assert "lite" in capsys.readouterr().out


def test_a_sweep_is_continued_and_other_weights_make_its_runs_stale(settings, own, tmp_path):
    settings |= {"out": tmp_path / "sweep", "seeds": 2, "rounds": 1}
    assert [one.status for one in fedwinnow.sweep(["fedavg"], **settings).outcomes] == ["finished"] * 2
    assert [one.status for one in fedwinnow.sweep(["fedavg"], **settings).outcomes] == ["skipped"] * 2
    own.write_text(OWN.format(factor=3.0))
    assert "the weights or settings of the encoder" in fedwinnow.sweep(["fedavg"], **settings).stale[1].message
