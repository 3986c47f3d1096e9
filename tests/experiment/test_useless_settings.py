"""A setting that would change nothing is refused, instead of being left out without a word."""

from __future__ import annotations

import pytest

import fedwinnow
from fedwinnow.deployment.real_sites import real_stage
from fedwinnow.errors import UsageError
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.settings import Experiment
from fedwinnow.testing import toy_data

SMALL = {"clients": 2, "rounds": 1, "epochs": 1}


@pytest.mark.parametrize("views", ["flip", "crop_flip", "strong"])
def test_views_are_for_images(tmp_path, views):
    with pytest.raises(UsageError, match=f"views={views} was given, but the samples are rows; allowed: with images"):
        fedwinnow.run(data=toy_data(), views=views, out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run" / "config.toml").exists()


def test_views_are_for_images_at_real_sites_too():
    with pytest.raises(UsageError, match="--views flip"):
        real_stage(Experiment(views="flip"), toy_data(), {"a": 50, "b": 60})


def test_images_may_have_views():
    assert prepare(Experiment(data="digits:train=60", views="flip")).sites.shape.kind == "images"


def test_mixed_precision_is_for_cuda_devices(tmp_path):
    with pytest.raises(UsageError, match="mixed_precision=True was given, and the device is cpu; allowed: with a CUDA"):
        fedwinnow.run(data=toy_data(), mixed_precision=True, device="cpu", out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run" / "config.toml").exists()
