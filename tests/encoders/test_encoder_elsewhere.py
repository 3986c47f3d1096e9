"""An encoder whose files lie elsewhere than where it was named: another path, the same content."""

from __future__ import annotations

import numpy as np
import pytest

import fedwinnow
from encoded_pictures import OWN, pictures
from fedwinnow.cli import main
from fedwinnow.encoders.elsewhere import as_here, example_of, has_files, needs_files, without_files
from fedwinnow.encoders.lite import Lite
from fedwinnow.errors import DataError, UsageError


def called(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def test_files_are_left_out_and_named_anew():
    assert without_files("transformers:path=there/dino,pool=mean") == "transformers:pool=mean"
    assert without_files("./mine.py:build") == without_files("mine.py") == "own"
    assert without_files({"kind": "./mine.py:make", "size": 8}) == "own:function=make,size=8"
    assert without_files("lite:weights=w.pth,size=64,views=2") == "lite:views=2,size=64"
    assert str(as_here("transformers:pool=mean", "transformers:path=here")) == "transformers:path=here,pool=mean"
    assert str(as_here("own:function=make", "a/my.py")) == "a/my.py:make"
    assert str(as_here("lite:weights=w.pth,size=64", "lite:weights=v.pth")) == "lite:size=64,weights=v.pth"
    assert str(as_here("lite:weights=w.pth", "lite")) == "lite"  # the package's
    assert as_here("lite", None) == Lite() == as_here("lite", Lite())


def test_what_has_and_what_needs_files():
    specs = ("lite", "lite:weights=w.pth", "./mine.py:build", "own", "transformers:pool=cls", "tfidf")
    assert [has_files(spec) for spec in specs] == [False, True, True, True, True, False]
    assert [needs_files(spec) for spec in specs] == [False, False, False, True, True, False]
    assert example_of("own") == "./my_encoder.py:build"
    assert example_of("transformers") == "transformers:path=FILE-OR-FOLDER"
    assert example_of("lite") == "lite:weights=FILE-OR-FOLDER"


def test_another_encoder_or_scaling_is_refused():
    with pytest.raises(UsageError, match="--encoder words was given; allowed: 'lite' with its files here"):
        as_here("lite", "words")
    with pytest.raises(UsageError, match="allowed: scale=std_l2, as it was agreed, or without scale"):
        as_here("lite", "lite:scale=none")
    with pytest.raises(UsageError, match="allowed: views=4"):
        as_here("lite:views=4", "lite:views=2")
    assert str(as_here("lite:scale=l2", "lite:scale=l2,weights=v.pth")) == "lite:scale=l2,weights=v.pth"


@pytest.fixture
def moved(tmp_path, monkeypatch):
    """A run whose encoder was moved to another place; and a set of pictures as a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN.format(factor=2.0))
    data = pictures()
    settings = {"clients": 3, "rounds": 2, "epochs": 1, "data": data, "encoder": "./mine.py:build"}
    result = fedwinnow.run(**settings, out="run")
    wanted = result.predict_proba(data.test.features.array)
    np.savez("new.npz", x=data.test.features.array, y=data.test.labels)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine.py").rename(tmp_path / "elsewhere" / "mine.py")
    return wanted


def test_predict_evaluate_and_export_with_moved_files(moved, tmp_path, capsys):
    asked = ("predict", "run", "--data", "new.npz")
    assert called(*asked) == 2
    assert "Or name its files where they lie now: --encoder ./my_encoder.py:build." in " ".join(
        capsys.readouterr().err.split()
    )
    here = ("--encoder", "elsewhere/mine.py:build")
    assert called(*asked, *here, "--out", "found.csv") == 0
    found = np.loadtxt("found.csv", delimiter=",", skiprows=1, usecols=range(3, 3 + moved.shape[1]))
    assert found == pytest.approx(moved, abs=1e-4)
    assert called("evaluate", "run", "--data", "new.npz", *here) == 0
    assert called("export", "run", "--out", "exported", *here) == 0
    assert (tmp_path / "exported" / "model.pt2").exists()
    assert str(tmp_path) not in (tmp_path / "exported" / "README.md").read_text()
    again = fedwinnow.load("run", encoder="elsewhere/mine.py:build")
    assert np.array_equal(again.predict_proba(pictures().test.features.array), moved)
    assert again.export("again").exists()


def test_other_content_is_refused_with_both_hashes(moved, tmp_path, capsys):
    (tmp_path / "other.py").write_text(OWN.format(factor=3.0))
    assert called("predict", "run", "--data", "new.npz", "--encoder", "./other.py:build") == 3
    told = " ".join(capsys.readouterr().err.split())
    assert "whose hash is" in told
    assert "and that of other.py:build is" in told
    assert "its weights or settings have changed or are others" in told
    with pytest.raises(DataError, match=r"other\.py:build"):
        _ = fedwinnow.load("run", encoder="./other.py:build").trained
    plain = fedwinnow.run(data="digits:train=60", clients=2, rounds=1, out="plain")
    with pytest.raises(UsageError, match="the run in plain has no encoder; leave it out"):
        _ = fedwinnow.load("plain", encoder="lite").trained
    plain.export("exported", format="safetensors")
    with pytest.raises(UsageError, match="the export in exported has no encoder; leave it out"):
        _ = fedwinnow.load("exported", encoder="lite").trained
