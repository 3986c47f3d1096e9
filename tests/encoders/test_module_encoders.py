"""Encoders that are torch modules: fedwinnow's models without their last layer, and a user's own file."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedwinnow.data.arrays import from_arrays
from fedwinnow.encoders.make_encoder import DataEncoder, find_encoder
from fedwinnow.encoders.module_encoder import ModelEncoder
from fedwinnow.errors import DataError, UsageError
from fedwinnow.models.features import logits_and_features
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 12, 12, 3), dtype=np.uint8)


def pictures(channels=3):
    return from_arrays(IMAGES[..., :channels], ["a", "b", "c"] * 2)


def saved(path, kind, shape):
    module = make_model(kind, shape, seed=3)
    save_file({key: value.contiguous() for key, value in module.state_dict().items()}, path)
    return module.eval()


def test_a_model_without_its_last_layer(tmp_path):
    module = saved(tmp_path / "w.safetensors", "cnn4", Shape("images", (16, 16, 3), 7))  # seven classes, not two
    spec = f"model:kind=cnn4,weights={tmp_path / 'w.safetensors'},size=16,pixels=unit"
    found = DataEncoder.for_data(spec, pictures()).opened.encode(IMAGES)
    plain = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float()
    scaled = torch.nn.functional.interpolate(plain, size=(16, 16), mode="bicubic") / 255
    with torch.inference_mode():
        _, features = logits_and_features(module, scaled)
    assert found == pytest.approx(features.numpy(), abs=1e-5)


def test_pixels_as_for_imagenet_and_grey_pictures_in_a_coloured_network(tmp_path):
    module = saved(tmp_path / "w.safetensors", "resnet18", Shape("images", (12, 12, 3), 5))
    spec = f"model:kind=resnet18,weights={tmp_path / 'w.safetensors'}"
    found = DataEncoder.for_data(spec, pictures(channels=1)).opened.encode(IMAGES[..., :1])
    grey = torch.from_numpy(IMAGES[..., :1]).permute(0, 3, 1, 2).float().expand(-1, 3, -1, -1) / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    with torch.inference_mode():
        _, features = logits_and_features(module, (grey - mean.view(1, 3, 1, 1)) / std.view(1, 3, 1, 1))
    assert found == pytest.approx(features.numpy(), abs=1e-4)


def test_other_weights_are_another_hash_and_wrong_ones_are_refused(tmp_path):
    shape = Shape("rows", (3,), 2)
    saved(tmp_path / "a.safetensors", "mlp", shape)
    opened = ModelEncoder(kind="mlp", weights=tmp_path / "a.safetensors").open(shape)
    changed = make_model("mlp", shape, seed=4).state_dict()
    save_file(changed, tmp_path / "b.safetensors")
    assert opened.hash != ModelEncoder(kind="mlp", weights=tmp_path / "b.safetensors").open(shape).hash
    with pytest.raises(DataError, match="weights have another shape"):
        ModelEncoder(kind="mlp", weights=tmp_path / "a.safetensors").open(Shape("rows", (4,), 2))
    with pytest.raises(DataError, match="there is no such file"):
        ModelEncoder(kind="mlp", weights=tmp_path / "c.safetensors").open(shape)


OWN = """
import torch
from torch import nn
from types import SimpleNamespace

class Mean(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form = form
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        if isinstance(x, list):
            return torch.tensor([[float(len(text))] for text in x])
        rows = self.factor * x.mean((2, 3))
        if self.form == "hidden":
            return SimpleNamespace(last_hidden_state=torch.stack([rows, 3 * rows], dim=1))
        if self.form == "logits":
            return SimpleNamespace(logits=rows)
        if self.form == "pooled":
            return SimpleNamespace(last_hidden_state=rows[:, None], pooler_output=5 * rows)
        return rows[:, :, None] if self.form == "cube" else rows

def build(): return Mean("plain")
def hidden(): return Mean("hidden")
def logits(): return Mean("logits")
def pooled(): return Mean("pooled")
def cube(): return Mean("cube")
def nothing(): return 3
def breaks(): raise ValueError("no weights here")
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    return tmp_path / "mine.py"


@pytest.mark.parametrize(("function", "times"), [("build", 2), ("hidden", 4), ("logits", 2), ("pooled", 10)])
def test_your_own_module_in_its_forms(own, function, times):
    encoder = DataEncoder.for_data(f"{own}:{function}", pictures())
    assert str(encoder.encoder) == f"{own}:{function}"
    assert str(find_encoder(str(encoder.encoder))) == str(encoder.encoder)
    wanted = times * (IMAGES / 255).mean(axis=(1, 2))
    assert encoder.opened.encode(IMAGES) == pytest.approx(wanted, abs=1e-5)
    assert encoder.opened.width == 3


def test_your_own_module_with_options_and_its_mistakes(own):
    scaled = find_encoder({"kind": f"{own}:build", "scale": "none"})
    assert (scaled.name, scaled.scale) == ("own", "none")
    assert str(find_encoder(str(scaled))) == str(scaled)
    for function, words in (
        ("cube", r"gives \(2, 3, 1\) for 2 samples; allowed: a tensor \(2, width\)"),
        ("nothing", "gave a int; allowed: a torch.nn.Module"),
        ("breaks", r"cannot be made: ValueError: no weights here \(line \d+\)"),
        ("absent", "there is no function 'absent'"),
    ):
        with pytest.raises(UsageError, match=words):
            DataEncoder.for_data(f"{own}:{function}", pictures())
    with pytest.raises(UsageError, match="was given as encoder; allowed: a text"):
        find_encoder(3)
    with pytest.raises(UsageError, match=r"unknown encoder 'lit'. Did you mean 'lite'"):
        find_encoder("lit")


def test_a_change_of_the_file_is_another_hash(own):
    before = DataEncoder.for_data(f"{own}:build", pictures()).opened.hash
    own.write_text(OWN.replace("tensor(2.0)", "tensor(2.5)"))
    assert DataEncoder.for_data(f"{own}:build", pictures()).opened.hash != before
