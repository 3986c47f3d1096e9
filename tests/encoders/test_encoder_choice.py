"""`audit --encoder auto`: the encoder that tells the given labels best, or none."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedwinnow.auditing import encoder_choice
from fedwinnow.auditing.encoder_choice import choose_encoder, held_out_loss
from fedwinnow.cli import main
from fedwinnow.data.arrays import from_arrays
from fedwinnow.errors import UsageError
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.settings import Experiment
from fedwinnow.scene.scene import Scene


def test_a_regression_that_knows_nothing_has_the_loss_of_guessing():
    generator = np.random.default_rng(0)
    labels = generator.permutation(np.arange(300) % 3)
    noise = generator.normal(size=(300, 5)).astype(np.float32)
    assert held_out_loss(noise, labels, 3) == pytest.approx(np.log(3), abs=0.1)
    telling = np.eye(3, dtype=np.float32)[labels] + 0.1 * noise[:, :3]
    assert held_out_loss(telling, labels, 3) < 0.1


def test_small_images_and_rows_get_none():
    tiny = from_arrays(np.zeros((6, 8, 8), np.uint8), [0, 1] * 3)
    choice = choose_encoder(Scene.make(tiny, clients=2, test=0.0), 0)
    assert (choice.encoder, choice.losses) == (None, {})
    assert choice.reason == "the images have fewer than 16 pixels a side"
    rows = from_arrays(np.zeros((6, 3)), [0, 1] * 3)
    assert choose_encoder(Scene.make(rows, clients=2, test=0.0), 0).reason == "no installed encoder is for rows"


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
        main(["audit", "--data", data, "--site", "site", "--encoder", "auto", "--rounds", "2"])
    assert ended.value.code == 0
    (written,) = (tmp_path / "audits").glob("*/audit.json")
    facts = json.loads(written.read_text())
    assert facts["encoder"] == facts["encoder_choice"]["chosen"] in ("tfidf", "words")
    assert facts["encoder_choice"]["losses"]["none"] == pytest.approx(np.log(2), abs=0.02)
    page = (written.parent / "s0" / "report.html").read_text()
    assert f"encoder {facts['encoder']}" in page
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
    monkeypatch.setattr(encoder_choice, "fitting_encoders", lambda dataset: ["rows"])
    monkeypatch.setattr(
        encoder_choice, "held_out_loss", lambda x, given, classes: seen.setdefault("folds", given[::3]) is None
    )
    with pytest.raises(UsageError):  # `rows` does not take images; the first regression was without encoder
        choose_encoder(Scene.make(from_arrays(images, labels), clients=2, test=0.0), 0)
    assert set(seen["folds"].tolist()) == {0, 1, 2}
