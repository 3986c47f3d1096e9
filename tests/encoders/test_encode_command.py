"""`fedwinnow encode`: a folder of features that is data by itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fedwinnow.cli import main
from fedwinnow.data.load import load
from fedwinnow.encoders.make_encoder import DataEncoder
from fedwinnow.errors import DataError


def called(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(str(ended.value.code))


@pytest.fixture
def letters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = ["text,label,site,nr"]
    for number in range(40):
        good = number % 2 == 0
        lines.append(f"{'good' if good else 'bad'} word{number % 7},{'a' if good else 'b'},s{number % 3},n{number}")
    (tmp_path / "letters.csv").write_text("\n".join(lines) + "\n")
    return "csv:path=letters.csv,label=label,text=text,site=site,id=nr"


def test_the_folder_is_data_by_itself(letters, tmp_path, capsys):
    assert called("encode", "--data", letters, "--encoder", "tfidf:width=64", "--out", "made", "--json") == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["samples"], about["width"], about["encoder"]) == (40, 64, "tfidf:width=64")
    data, back = load(letters), load("made")
    assert back.source == "features:path=made"
    assert back.class_names == data.class_names
    assert np.array_equal(back.train.labels, data.train.labels)
    assert np.array_equal(back.train.ids, data.train.ids)
    assert np.array_equal(back.train.sites, data.train.sites)
    wanted = DataEncoder.for_data("tfidf:width=64", data).features(data.train).raw(np.arange(40))
    assert np.array_equal(back.train.features.array, wanted)
    assert np.load("made/x.npy").dtype == np.float16
    assert called("run", "--data", "made", "--encoder", "rows", "--clients", "2", "--rounds", "2", "--out", "run") == 0
    assert called("audit", "--data", "made", "--encoder", "rows", "--rounds", "2", "--out", "audited") == 0
    assert json.loads((tmp_path / "audited" / "audit.json").read_text())["encoder"] == "rows"


def test_a_folder_of_something_else_is_kept(letters, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x.npy").write_text("precious")
    assert called("encode", "--data", letters, "--encoder", "tfidf", "--out", "mine") == 2
    assert "holds no features" in capsys.readouterr().err
    assert (tmp_path / "mine" / "x.npy").read_text() == "precious"
    assert called("encode", "--encoder", "tfidf") == 2
    assert called("encode", "--data", letters) == 2
    assert "--encoder is missing" in capsys.readouterr().err


def test_damaged_features_are_refused(letters):
    assert called("encode", "--data", letters, "--encoder", "tfidf:width=64", "--out", "made") == 0
    os.truncate("made/x.npy", 300)
    with pytest.raises(DataError, match=r"made/x.npy: not a readable array"):
        load("made")
    np.save("made/x.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"made/x.npy: not a readable array"):
        load("made")
    os.unlink("made/y.npy")
    with pytest.raises(DataError, match=r"has no file y.npy"):
        load("made")


def test_a_folder_of_another_format_is_refused(letters):
    assert called("encode", "--data", letters, "--encoder", "tfidf:width=64", "--out", "made") == 0
    about = Path("made/encoder.json")
    about.write_text(about.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(DataError, match=r"encoder.json: the format of this folder is 2; this version reads 1"):
        load("made")
    assert called("encode", "--data", letters, "--encoder", "tfidf:width=64", "--out", "made") == 0  # written again
    assert len(load("made").train) == 40
    about.unlink()  # arrays of another program
    assert len(load("made").train) == 40


@pytest.mark.parametrize(
    ("encoder", "data", "status", "words"),
    [
        ("lite", "rows.npz", 2, "encoder 'lite' needs images, but rows has rows"),
        ("words", "rows.npz", 2, "encoder 'words' needs texts, but rows has rows"),
        ("transformers:path=nowhere", "rows.npz", 2, "needs images or texts, but rows has rows"),
        ("transformers:path=nowhere", "pictures.npz", 3, "there is no folder nowhere. Nothing is downloaded"),
        ("transformers:path=empty", "pictures.npz", 3, "has no config.json, so there is no model in it"),
        ("model:kind=lenet,weights=w.pth", "pictures.npz", 3, "w.pth: there is no such file"),
        ("./nan.py:build", "pictures.npz", 3, "the features of sample 1 (index 0) are not finite numbers"),
        ("rows", "nan.npz", 3, "the value is nan; allowed: finite numbers"),
        ("rows", "pictures.npz", 2, "encoder 'rows' needs rows, but pictures has images"),
    ],
)
def test_what_does_not_fit_is_told_in_one_sentence(encoder, data, status, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    luck, labels = np.random.default_rng(0), np.arange(40) % 2
    np.savez("rows.npz", x=luck.normal(size=(40, 5)), y=labels)
    np.savez("nan.npz", x=np.full((40, 5), np.nan), y=labels)
    np.savez("pictures.npz", x=luck.integers(0, 256, (40, 16, 16, 3), dtype=np.uint8), y=labels)
    (tmp_path / "empty").mkdir()
    (tmp_path / "nan.py").write_text(
        "import torch\nclass Bad(torch.nn.Module):\n"
        "    def forward(self, x): return torch.full((len(x), 4), float('nan'))\ndef build(): return Bad()\n"
    )
    flags = ["--data", data, "--encoder", encoder, "--clients", "2", "--rounds", "1", "--out", "run"]
    assert called("run", *flags) == status
    told = capsys.readouterr().err.strip()
    assert words in " ".join(told.split())
    assert "Traceback" not in told
    assert not (tmp_path / "run" / "summary.json").exists()


def test_the_sites_of_an_npz_file_may_have_another_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", x=np.eye(4), y=[0, 1, 0, 1], hospital=["n", "n", "s", "s"])
    assert load("npz:path=a.npz").train.sites is None
    sites = load("npz:path=a.npz,site=hospital").train.sites
    assert sites is not None
    assert sites.tolist() == ["n", "n", "s", "s"]
    with pytest.raises(DataError, match=r"has no array 'clinic', which site=clinic names"):
        load("npz:path=a.npz,site=clinic")
