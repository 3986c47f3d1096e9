"""Strong views: each operation against Pillow or by hand, a batch at once, the client's own luck."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from fedwinnow.mathematics.strong_views import OPERATIONS, changed, patched, strong_view
from fedwinnow.mathematics.views import random_view


def photographs(count: int = 6, channels: int = 3) -> torch.Tensor:
    """Smooth images with some noise, so that histograms are neither flat nor full."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, channels, 4, 4, generator=generator) * 150 + 40
    fine = torch.nn.functional.interpolate(coarse, (16, 18), mode="bilinear")
    return (fine + torch.randint(0, 30, fine.shape, generator=generator)).byte().permute(0, 2, 3, 1).contiguous()


def one(name: str, strength: float, images: torch.Tensor) -> torch.Tensor:
    kinds = torch.full((len(images),), OPERATIONS.index(name))
    return changed(images, kinds, torch.full((len(images),), strength))


PILLOW = {
    "autocontrast": lambda image: ImageOps.autocontrast(image),
    "equalize": lambda image: ImageOps.equalize(image),
    "brightness": lambda image: ImageEnhance.Brightness(image).enhance(0.5),
    "contrast": lambda image: ImageEnhance.Contrast(image).enhance(0.5),
    "posterize": lambda image: ImageOps.posterize(image, 6),
    "solarize": lambda image: ImageOps.solarize(image, 128),
    "saturation": lambda image: ImageEnhance.Color(image).enhance(0.5),
    "sharpness": lambda image: ImageEnhance.Sharpness(image).enhance(0.5),
}


@pytest.mark.parametrize("name", PILLOW)
def test_tones_and_blends_are_those_of_pillow(name):
    images = photographs()
    expected = np.stack([np.asarray(PILLOW[name](Image.fromarray(image.numpy()))) for image in images])
    got = one(name, 0.5, images).numpy()
    assert np.abs(got.astype(int) - expected.astype(int)).max() <= 1  # Pillow cuts where we round
    assert (got != images.numpy()).any()


def test_there_are_fourteen_and_one_changes_nothing():
    assert len(OPERATIONS) == len(set(OPERATIONS)) == 14
    assert torch.equal(one("identity", 1.0, photographs()), photographs())


def test_a_shift_moves_by_up_to_three_tenths_and_is_black_behind():
    image = torch.arange(1, 101, dtype=torch.uint8).view(1, 10, 10, 1)
    left = one("translate_x", 1.0, image)  # each pixel comes from 0.3 * 10 = 3 to its right
    assert torch.equal(left[:, :, :7], image[:, :, 3:])
    assert (left[:, :, 7:] == 0).all()
    down = one("translate_y", 0.0, image)
    assert torch.equal(down[:, 3:], image[:, :7])
    assert (down[:, :3] == 0).all()


def test_a_shear_moves_rows_by_their_distance_from_the_middle():
    image = torch.zeros(1, 21, 21, 1, dtype=torch.uint8)
    image[:, :, 10] = 200  # an upright line
    sheared = one("shear_x", 1.0, image)
    columns = sheared[0, :, :, 0].argmax(1)
    assert columns[10] == 10
    assert columns[0] == 13  # 10 rows above the middle: 0.3 * 10 to the right
    assert columns[20] == 7


def test_a_turn_is_by_up_to_thirty_degrees_around_the_middle():
    image = torch.zeros(1, 41, 41, 1, dtype=torch.uint8)
    image[:, 20, :] = 200  # a level line
    turned = one("rotate", 1.0, image)[0, :, :, 0]
    assert turned[20, 20] == 200
    # 12 to the right of the middle the line is 12 * tan(30 degrees) = 6.9 pixels higher or lower.
    assert int((turned[:, 32] > 0).nonzero().float().mean().round()) in (13, 27)
    assert torch.equal(one("rotate", 0.5, image), image)


def test_grey_images_have_no_saturation_to_lose():
    images = photographs(channels=1)
    assert torch.equal(one("saturation", 0.0, images), images)


def test_an_image_of_one_value_survives_every_operation():
    image = torch.full((1, 2, 2, 1), 90, dtype=torch.uint8)
    for name in OPERATIONS:
        assert one(name, 0.3, image).shape == image.shape
    assert torch.equal(one("equalize", 0.5, image), image)
    assert torch.equal(one("autocontrast", 0.5, image), image)


def test_the_patch_is_a_grey_square_of_up_to_half_the_width():
    images = torch.zeros(2, 20, 20, 3, dtype=torch.uint8)
    luck = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
    seen = patched(images, luck)
    assert (seen[0, :, :, 0] == 127).sum() == 100  # 10 x 10 in the middle
    assert (seen[0, 5:15, 5:15] == 127).all()
    assert (seen[1] == 0).all()


def test_each_image_has_its_own_luck_and_the_generator_decides():
    images = photographs(1).expand(40, -1, -1, -1)
    first = strong_view(images, torch.Generator().manual_seed(1))
    assert torch.equal(first, strong_view(images, torch.Generator().manual_seed(1)))
    assert len({image.numpy().tobytes() for image in first}) == 40
    assert first.dtype == torch.uint8
    assert first.shape == images.shape


def test_the_view_of_a_run_also_crops_and_flips():
    images = photographs()
    generator = torch.Generator().manual_seed(3)
    expected = strong_view(random_view(images, "crop_flip", generator), generator)
    assert torch.equal(random_view(images, "strong", torch.Generator().manual_seed(3)), expected)
