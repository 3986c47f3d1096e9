"""fedwinnow.audit in one line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import fedwinnow
from auditing_material import QUICK, lines
from fedwinnow.auditing.reviewing.review_queue import ReviewQueue
from fedwinnow.cli import main
from fedwinnow.errors import UsageError
from fedwinnow.testing import toy_data


def toy(wrong=10):
    samples = toy_data(spread=0.4).train
    labels = samples.labels.copy()
    labels[:wrong] = (labels[:wrong] + 1) % 3
    return samples.features.array, labels, np.arange(len(labels)) // 40


def test_arrays_in_a_value_per_sample_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, labels, sites = toy()
    found = fedwinnow.audit(x, labels, sites=sites, **QUICK)
    assert set(np.argsort(-found.score)[:10]) == set(range(10))  # the order is right
    assert not found.flagged[10:].any()
    right = ((labels - 1) % 3).astype(str)
    told = found.suggested[:10] != found.columns["given"][:10]
    assert (found.suggested[:10] == right[:10])[told].all()
    assert len(found.p_wrong) == 120
    assert list(tmp_path.iterdir()) == []
    assert "120 labels at 3 sites" in repr(found)


def test_images_get_previews(tmp_path):
    x = np.zeros((60, 8, 8), np.uint8)
    labels = np.arange(60) % 2
    x[labels == 1, 2:6, 2:6] = 200
    x += np.random.RandomState(0).randint(0, 40, x.shape).astype(np.uint8)
    labels[:4] = 1 - labels[:4]
    fedwinnow.audit(x, labels, sites=np.arange(60) // 30, out=tmp_path / "x", **QUICK)
    assert len(list((tmp_path / "x" / "0" / "previews").glob("*.png"))) == 30
    assert "data:image/png;base64," in (tmp_path / "x" / "0" / "report.html").read_text()


def test_large_images_open_in_their_own_size(tmp_path):
    x = np.random.RandomState(0).randint(0, 255, (40, 300, 270), dtype=np.uint8)
    fedwinnow.audit(x, np.arange(40) % 2, sites=np.arange(40) // 20, out=tmp_path, model="linear", **QUICK)
    site = tmp_path / "0"
    facts = json.loads((site / "site.json").read_text())
    assert set(facts["whole"]) == set(facts["pictures"])
    sizes = {name: Image.open(site / name / facts["pictures"]["0"]).size for name in ("previews", "whole")}
    assert sizes == {"previews": (230, 256), "whole": (270, 300)}
    assert 'data-whole="whole/' in (site / "report.html").read_text()
    queue = ReviewQueue(site, "anna")
    assert queue.picture("0", whole=True) == site / "whole" / facts["whole"]["0"]
    assert queue.picture("0") == site / "previews" / facts["pictures"]["0"]
    facts["whole"]["0"] = "../site.json"
    queue.facts = {site: facts}
    assert queue.picture("0", whole=True) is None  # a site.json that somebody has changed


def test_a_frame_in_a_frame_out(patients):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(lines(patients)).set_index("patient")
    found = fedwinnow.audit(
        frame[["age", "pressure", "diagnosis", "hospital"]].astype({"age": float, "pressure": float}),
        "diagnosis",
        sites="hospital",
        **QUICK,
    )
    assert (found.index == frame.index).all()
    assert (found["given"] == frame["diagnosis"]).all()
    wrong = frame["diagnosis"] != frame["truth"]
    assert ((found["decision"] == "review") == wrong).mean() > 0.9


def test_a_frame_may_have_missing_values_and_categories(patients):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(lines(patients))[["age", "pressure", "diagnosis", "hospital"]]
    frame = frame.astype({"age": float, "pressure": float, "hospital": "category"})
    frame["age"] = frame["age"].astype("Float64")
    frame["grade"] = pandas.cut(frame["pressure"], 3, labels=["low", "middle", "high"])
    frame.loc[3, "age"] = pandas.NA
    frame.loc[4, "pressure"] = None
    found = fedwinnow.audit(frame, "diagnosis", sites="hospital", **QUICK)
    assert (found["site"] == frame["hospital"].astype(str)).all()
    by_data = fedwinnow.audit(data=frame, labels="diagnosis", site="hospital", **QUICK)
    assert found.equals(by_data.frame() if hasattr(by_data, "frame") else by_data)


def test_a_scene_is_audited_as_it_is(tmp_path):
    scene = fedwinnow.Scene.make("digits:train=120", clients=2, noise="constant:rate=0.2", seed=3)
    found = fedwinnow.audit(scene=scene, out=tmp_path / "a", encoder="none", **QUICK)
    assert found.facts["truth"]["wrong"] == int(scene.wrong.sum())
    assert sorted(found.columns["given"]) == sorted(str(label) for label in scene.given)
    scene.save(tmp_path / "scene")
    saved = fedwinnow.audit(scene=tmp_path / "scene", encoder="none", **QUICK)
    assert saved.score.tolist() == found.score.tolist()
    assert (
        fedwinnow.audit(scene=scene, out=tmp_path / "a", encoder="none", **QUICK).score.tolist() == found.score.tolist()
    )
    out = str(tmp_path / "c")
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK.items()]
    with pytest.raises(SystemExit, match="0"):
        main(["audit", "--scene", str(tmp_path / "scene"), "--encoder", "none", "--out", out, "--quiet", *flags])
    assert (tmp_path / "c" / "sites.csv").read_bytes() == (tmp_path / "a" / "sites.csv").read_bytes()
    for name, value in {
        "data": "digits",
        "noise": "constant:rate=0.1",
        "clients": 3,
        "labels": [0],
        "ids": [1],
    }.items():
        with pytest.raises(UsageError, match=f"^{name}=.* was given beside a"):
            fedwinnow.audit(scene=scene, **{name: value})
    with pytest.raises(UsageError, match="scene= was given an object of the type int"):
        fedwinnow.audit(scene=3)


@pytest.mark.parametrize("name", ["labels", "sites", "ids", "groups"])
def test_what_would_not_be_used_is_refused(name, tmp_path):
    with pytest.raises(UsageError, match=f"^{name}= was given beside data=digits, which has its own"):
        fedwinnow.audit(data="digits", clients=None if name == "sites" else 2, **{name: [0]})
    with pytest.raises(UsageError, match=f"^{name}= was given with run=, whose model is trained already"):
        fedwinnow.audit(run=tmp_path, **{name: [0]})
    with pytest.raises(UsageError, match="ids= was given beside data that has its labels with it"):
        fedwinnow.audit((np.zeros((4, 2)), [0, 1, 0, 1]), clients=2, ids=[1, 2, 3, 4])
    with pytest.raises(UsageError, match="samples were given twice"):
        fedwinnow.audit(np.zeros((4, 2)), [0, 1, 0, 1], data="digits", clients=2)


def test_nothing_to_audit_is_an_error():
    with pytest.raises(UsageError, match="nothing to audit"):
        fedwinnow.audit()


def test_who_holds_what_is_said_once():
    x, labels = np.zeros((6, 2), np.float32), np.array([0, 1, 0, 1, 0, 1])
    with pytest.raises(UsageError, match="sites= and clients= exclude each other"):
        fedwinnow.audit(x, labels, sites=["a", "b"] * 3, clients=2)
    with pytest.raises(UsageError, match="clients=0 was given"):
        fedwinnow.audit(x, labels, clients=0)


def test_a_misspelt_setting_is_told_apart():
    with pytest.raises(UsageError, match=r"unknown setting 'round'\. Did you mean 'rounds'"):
        fedwinnow.audit([[1.0, 2.0]] * 4, [0, 1, 0, 1], sites=[0, 0, 1, 1], round=3)
