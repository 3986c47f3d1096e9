"""An encoder between organisations: the same weights everywhere, and sums that are checked, before the first round."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoded_pictures import OWN, pictures
from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.dataset import Dataset
from fedwinnow.deployment.agreed_encoder import agreed_scaling, early_encoding, fitted, sums_from, unpacked
from fedwinnow.deployment.agreement import describe_run, hello_of
from fedwinnow.deployment.real_sites import real_stage, task_data
from fedwinnow.deployment.site import Site
from fedwinnow.deployment.site_data import OwnData
from fedwinnow.encoders.head_input import Scaling, Sums
from fedwinnow.errors import DataError
from fedwinnow.experiment.prepare import prepare, setup_of
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import Host
from fedwinnow.federation.memory import Memory

EXPERIMENT = Experiment(rounds=2, epochs=1, encoder="rows", least_count=5)


def rows(seed: int, count: int = 30) -> Dataset:
    luck = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    return from_arrays(luck.normal(size=(count, 3)) + 5 * labels[:, None] * [1, 0, 2], labels, name=f"rows{seed}")


@pytest.fixture
def sites(tmp_path: Path) -> dict[str, Site]:
    return {name: Site(name, OwnData(rows(seed)), tmp_path / name, print) for seed, name in enumerate("ab")}


def hello(own: Dataset) -> tuple[Any, dict[str, Any]]:
    encoding = early_encoding("rows", own)
    return encoding, hello_of(real_stage(EXPERIMENT, own, {"anybody": 1}, encoding), simulated=False)


def test_the_sums_of_the_sites_give_the_scaling_of_a_simulation(sites: dict[str, Site], tmp_path: Path) -> None:
    own = task_data(rows(9))
    early, first = hello(own)
    found: dict[str, Sums] = {}
    for name, site in sites.items():
        said, _ = site.answer(first, {})
        assert said == {"site": name, "samples": 30}
        said, sent = site.answer(first | {"kind": "sums"}, {})
        assert "error" not in said
        told = sums_from(sent["reply.encoder_sums"], "std_l2", 3, 30)
        assert isinstance(told, Sums)
        found[name] = told
        (line,) = [
            one
            for text in (tmp_path / name / "ledger.jsonl").read_text().splitlines()
            if (one := json.loads(text))["kind"] == "sums"
        ]
        assert line["sent"]["encoder_sums"]["exposes"] == "client"
    encoding = fitted(early, found, ("a", "b"))
    both = np.concatenate([rows(0).train.features.array, rows(1).train.features.array]).astype(np.float16)
    assert encoding.scaling.mean == pytest.approx(both.astype(float).mean(axis=0), rel=1e-5)
    assert encoding.told == (0, 1)
    stage = real_stage(EXPERIMENT, own, {"a": 30, "b": 30}, encoding)
    assert stage.experiment.model == "linear"
    assert stage.parts["test"].shape == (3,)
    run = describe_run(stage, simulated=False)
    question = {"kind": "ask", "run": run, "number": 0, "client": 0, "ask": "train", "round": 1, "exchange": 0}
    setup = setup_of(stage.experiment, "cpu")
    host = Host(stage.sites, stage.judged, stage.parts, stage.method, setup, Memory(tmp_path))
    said, sent = sites["a"].answer(question, host.model.payload())
    assert "error" not in said
    assert int(sent["reply.samples"]) == 30
    assert sites["a"].ready is not None
    visit = sites["a"].ready[1].sites.features.take(np.arange(4))
    assert np.array_equal(
        visit, encoding.scaling.applied(rows(0).train.features.array[:4].astype(np.float16).astype(np.float32))
    )


def test_other_weights_are_refused_with_both_hashes(sites: dict[str, Site]) -> None:
    early, first = hello(task_data(rows(9)))
    ours = early.data_encoder.opened.hash[:12]
    said, _ = sites["a"].answer(first | {"encoder": {"hash": "f" * 64}}, {})
    assert said["error"] == "encoder"
    assert f"the hash {ours} here and ffffffffffff at the coordinator" in str(sites["a"].failure)
    said, _ = sites["a"].answer({key: value for key, value in first.items() if key != "encoder"}, {})
    assert said["error"] == "encoder"
    assert "other weights or settings" in str(sites["a"].failure)


def test_a_site_tells_no_sums_beyond_its_limit_or_below_its_least_count(tmp_path: Path) -> None:
    _, first = hello(task_data(rows(9)))
    strict = Site("strict", OwnData(rows(0)), tmp_path / "strict", print, allowed="model")
    said, sent = strict.answer(first | {"kind": "sums"}, {})
    assert (said, sent) == ({"error": "refused"}, {})
    assert "this site lets others learn about the model at most" in str(strict.failure)
    small = Site("small", OwnData(rows(0), least_count=31), tmp_path / "small", print)
    said, sent = small.answer(first | {"kind": "sums"}, {})
    assert said["absent"] is True
    assert sent == {}


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([30.0, 1, 1, 1, 9, 9], "not the 7 numbers"),
        ([30.0, 1, 1, np.inf, 9, 9, 9], "not finite"),
        ([29.0, 1, 1, 1, 9, 9, 9], "of 29 samples, but the site stated 30"),
        ([30.0, 1, 1, 90, 9, 9, 9], "no values have such sums"),  # 90 * 90 > 30 * 9
        ([30.0, 1e200, 0, 0, 1e308, 0, 0], "sums of values above 1e+06"),
    ],
)
def test_sums_that_cannot_be_are_not_used(numbers: list[float], words: str) -> None:
    found = sums_from(torch.tensor(numbers, dtype=torch.float64), "std_l2", 3, 30)
    assert isinstance(found, str)
    assert words in found
    assert isinstance(sums_from(None, "std_l2", 3, 30), str)
    counts = torch.tensor([30.0, 31.0, 0, 0], dtype=torch.float64)
    assert sums_from(counts, "idf_l2", 3, 30) == "a count is below 0 or above the samples"


def test_a_scaling_of_another_width_is_refused() -> None:
    early, _ = hello(task_data(rows(9)))
    with pytest.raises(DataError, match="does not fit the encoder"):
        agreed_scaling({"encoder": {"mean": "AAAA", "factor": "no base64!"}}, early.data_encoder)
    with pytest.raises(DataError, match="does not fit the encoder"):
        unpacked("no base64!", 3)


def test_the_folder_of_a_simulation_has_the_same_sums() -> None:
    """What is exchanged over a network is what a simulation computes."""
    both = from_arrays(
        np.concatenate([rows(0).train.features.array, rows(1).train.features.array]),
        np.arange(60) % 2,
        sites=["a"] * 30 + ["b"] * 30,
    )
    stage = prepare(Experiment(data=both, partition="column", encoder="rows", test=0.0))
    assert stage.encoding is not None
    parts = [rows(seed).train.features.array.astype(np.float16).astype(np.float32) for seed in (0, 1)]
    wanted = Scaling.fitted("std_l2", [Sums.of([part], 3, "std_l2") for part in parts], 3)
    assert np.array_equal(stage.encoding.scaling.mean, wanted.mean)
    assert np.array_equal(stage.encoding.scaling.factor, wanted.factor)


# --- an encoder with files -----------------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """The same encoder in two places, and another one."""
    found = {}
    for name, factor in (("centre", 2.0), ("site", 2.0), ("other", 3.0)):
        found[name] = tmp_path / name / f"{name}.py"
        found[name].parent.mkdir()
        found[name].write_text(OWN.format(factor=factor))
    return found


def hello_with(spec: str) -> dict[str, Any]:
    own = task_data(pictures())
    experiment = Experiment(rounds=2, epochs=1, encoder=spec, least_count=5)
    return hello_of(real_stage(experiment, own, {"anybody": 1}, early_encoding(spec, own)), simulated=False)


def joined(tmp_path: Path, encoder: Any) -> Site:
    return Site("s", OwnData(pictures(), encoder=encoder), tmp_path / "s", print)


def test_a_site_names_the_files_of_an_encoder_itself(places: dict[str, Path], tmp_path: Path) -> None:
    hello = hello_with(f"{places['centre']}:build")
    assert hello["experiment"]["encoder"] == "own"
    assert str(tmp_path) not in json.dumps(hello)
    said, _ = joined(tmp_path, f"{places['site']}:build").answer(hello, {})
    assert said == {"site": "s", "samples": 60}


@pytest.mark.parametrize(
    ("encoder", "words"),
    [
        (
            None,
            r"the coordinator's encoder is own, whose files every machine names for itself.* \./my_encoder\.py:build",
        ),
        ("other", r"encoder .*other\.py:build has the hash [0-9a-f]{12} here and [0-9a-f]{12} at the coordinator"),
        ("lite", r"--encoder lite was given; allowed: 'own' with its files here, because that is agreed"),
    ],
)
def test_a_site_without_the_files_or_with_others_is_told(
    encoder: str | None, words: str, places: dict[str, Path], tmp_path: Path
) -> None:
    site = joined(tmp_path, str(places[encoder]) if encoder in places else encoder)
    said, _ = site.answer(hello_with(f"{places['centre']}:build"), {})
    assert said == {"error": "encoder", "site": "s"}
    assert re.search(words, str(site.failure))


def test_an_encoder_that_is_not_asked_for_is_told(tmp_path: Path) -> None:
    own = task_data(pictures())
    hello = hello_of(real_stage(Experiment(rounds=2, epochs=1), own, {"anybody": 1}), simulated=False)
    site = joined(tmp_path, "lite")
    assert site.answer(hello, {})[0]["error"] == "encoder"
    assert "the coordinator's run has no encoder. Leave it out" in str(site.failure)
