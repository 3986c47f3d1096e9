"""EfficientNet-Lite0: the network of the published weights, and what is refused."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedwinnow.encoders import lite, package_file
from fedwinnow.encoders.lite import Lite
from fedwinnow.encoders.lite0 import SameConvolution, missing_pixels
from fedwinnow.encoders.pixels import scaled
from fedwinnow.errors import DataError, MissingExtraError, UsageError
from fedwinnow.models.model import Shape

SMALL = Shape("images", (32, 32, 3), 10)
pytest.importorskip(lite.PACKAGE)


def picture() -> np.ndarray:
    """A picture that grows brighter to the right (red), downwards (green) and to both (blue)."""
    down, right = np.mgrid[0:32, 0:32]
    return np.stack([8 * right, 8 * down, 4 * (down + right)], axis=-1).astype(np.uint8)


def test_the_network_is_that_of_the_published_weights():
    # The expected numbers were computed with the package efficientnet_lite_pytorch, by other code.
    (found,) = Lite().open(SMALL).encode(picture()[None])
    assert found.shape == (1280,)
    assert np.argsort(-found)[:6].tolist() == [423, 897, 71, 755, 115, 425]
    assert found[[423, 897, 71]] == pytest.approx([5.6092, 4.8740, 4.3688], abs=2e-4)
    assert found.mean() == pytest.approx(0.132239, abs=1e-5)


def test_padding_puts_the_odd_pixel_at_the_end():
    assert missing_pixels(96, 3, 2) == 1  # (48 - 1) * 2 + 3 - 96
    assert missing_pixels(7, 3, 1) == 2
    assert missing_pixels(6, 5, 2) == 3
    line = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4).expand(1, 1, 4, 4)
    ones = SameConvolution(torch.ones(1, 1, 3, 3), torch.zeros(1), 2, depthwise=False, bounded=False)
    # Rows 0-2 and 2-4 (row 4 is padding), columns 0-2 and 2-4: three or two rows of 1 + 2 + 3, or of 3 + 4.
    assert ones(line)[0, 0].tolist() == [[18.0, 21.0], [12.0, 14.0]]


def test_scaling_is_bicubic_and_a_grey_picture_has_three_equal_channels():
    image = picture()[None]
    wanted = functional.interpolate(torch.from_numpy(image).permute(0, 3, 1, 2).float(), size=(96, 96), mode="bicubic")
    assert torch.allclose(scaled(image, 96), wanted, atol=1e-3)
    grey = scaled(image[..., :1], 96)
    assert grey.shape == (1, 3, 96, 96)
    assert torch.equal(grey[:, 0], grey[:, 2])


def test_size_follows_the_images_and_changes_the_hash():
    small, large = Lite().open(SMALL), Lite().open(Shape("images", (100, 80, 1), 2))
    assert small.hash == Lite(size=96).open(SMALL).hash
    assert large.hash == Lite(size=224).open(SMALL).hash != small.hash


def test_other_channels_are_refused():
    with pytest.raises(UsageError, match="images of 4 channels; allowed: 1"):
        Lite().open(Shape("images", (32, 32, 4), 10))


class Evil:
    """An object that would run a command when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch should-not-exist",)


def test_a_pickled_or_damaged_or_foreign_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evil = tmp_path / "evil.pth"
    evil.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(DataError, match="objects that would run code are refused"):
        Lite(weights=evil).open(SMALL)
    assert not (tmp_path / "should-not-exist").exists()
    cut = tmp_path / "cut.pth"
    cut.write_bytes(lite.weights_file().read_bytes()[:100_000])
    with pytest.raises(DataError, match=r"not a readable file of weights \(100,000 bytes\): it is cut short, damaged"):
        Lite(weights=cut).open(SMALL)
    foreign = tmp_path / "foreign.pth"
    torch.save({"conv1.weight": torch.zeros(4, 3, 3, 3)}, foreign)
    with pytest.raises(DataError, match=r"not the weights of EfficientNet-Lite0: _conv_stem.weight is missing"):
        Lite(weights=foreign).open(SMALL)
    more = tmp_path / "more.pth"
    torch.save(torch.load(lite.weights_file(), weights_only=True) | {"_blocks.16.x": torch.zeros(1)}, more)
    with pytest.raises(DataError, match=r"1 weights have no place in it: _blocks\.16\.x"):
        Lite(weights=more).open(SMALL)


def test_a_package_whose_file_has_changed_since_it_was_installed_is_refused(monkeypatch):
    monkeypatch.setattr(package_file, "hash_of_file", lambda path: "0" * 64)
    with pytest.raises(DataError, match=r"damaged or changed since it was installed .* begins with 000000000000, in"):
        Lite().open(SMALL)
    monkeypatch.setattr(package_file, "distribution", lambda name: SimpleNamespace(files=None))
    assert lite.weights_file().suffix == ".pth"  # no list, nothing to compare


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(lite, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(MissingExtraError, match=r"needs the extra 'encoders'"):
        Lite().open(SMALL)


def test_openvino_computes_the_same_features_up_to_the_last_bits():
    pytest.importorskip("openvino", reason="needs the extra 'openvino'")
    ours, theirs = Lite().open(SMALL), Lite(engine="openvino").open(SMALL)
    images = np.stack([picture(), picture()[::-1], picture()[:, ::-1]])
    assert theirs.encode(images) == pytest.approx(ours.encode(images), abs=1e-5)
    assert (theirs.encode(images) == theirs.encode(images)).all()
    assert theirs.hash != ours.hash  # sites agree on the engine, too
    assert theirs.engine != ours.engine  # the cache keeps their features apart


def test_openvino_is_loaded_without_the_package_that_reports_its_use():
    pytest.importorskip("openvino", reason="needs the extra 'openvino'")
    code = (
        "import sys; from fedwinnow.encoders.lite import Lite; from fedwinnow.models.model import Shape;"
        "Lite(engine='openvino').open(Shape('images', (32, 32, 3), 10));"
        "print([name for name in sys.modules if name.startswith('openvino_telemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_openvino_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingExtraError, match=r"engine=openvino needs the extra 'openvino'"):
        Lite(engine="openvino").open(SMALL)
