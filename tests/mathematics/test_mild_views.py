"""Mild views: turned, flipped and recoloured images, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedwinnow.mathematics.mild_views import mild_view, recoloured

# Luck with which colours stay as they are: no jitter, not grey.
STAYS = (0.9, 0.5, 0.5, 0.5, 0.5, 0.9)


def coloured(*colour: int) -> torch.Tensor:
    return torch.tensor(colour, dtype=torch.uint8).view(1, 1, 1, 3)


def changed(colour, **luck):
    names = ("whether", "brightness", "contrast", "saturation", "hue", "grey")
    values = dict(zip(names, (0.1, 0.5, 0.5, 0.5, 0.5, 0.9), strict=True)) | luck
    return recoloured(coloured(*colour), torch.tensor(list(values.values())).unsqueeze(1)).flatten().tolist()


def test_nothing_changes_where_luck_says_so():
    assert changed((200, 100, 50)) == [200, 100, 50]  # jittered by nothing
    images = torch.randint(256, (5, 4, 4, 3), dtype=torch.uint8)
    assert torch.equal(recoloured(images, torch.tensor(STAYS).unsqueeze(1).expand(6, 5)), images)


def test_brightness_and_saturation():
    assert changed((200, 100, 50), brightness=0.0) == [40, 20, 10]  # a fifth
    assert changed((200, 100, 50), brightness=1.0) == [255, 180, 90]  # 1.8 times, cut off at white
    grey = 0.299 * 200 + 0.587 * 100 + 0.114 * 50
    expected = [round(grey + 0.2 * (value - grey)) for value in (200, 100, 50)]
    assert changed((200, 100, 50), saturation=0.0) == pytest.approx(expected, abs=1)
    assert changed((200, 100, 50), grey=0.1) == pytest.approx([round(grey)] * 3, abs=1)


def test_contrast_keeps_the_mean_brightness():
    image = torch.tensor([0, 0, 0, 100, 100, 100], dtype=torch.uint8).view(1, 1, 2, 3)
    luck = torch.tensor([0.1, 0.5, 0.0, 0.5, 0.5, 0.9]).unsqueeze(1)
    assert recoloured(image, luck).flatten().tolist() == [40, 40, 40, 60, 60, 60]


def test_hue_turns_colours_and_leaves_grey():
    assert changed((90, 90, 90), hue=1.0) == [90, 90, 90]
    one, other = changed((150, 100, 100), hue=0.0), changed((150, 100, 100), hue=1.0)
    assert one != other
    light = [0.299 * red + 0.587 * green + 0.114 * blue for red, green, blue in (one, other, (150, 100, 100))]
    assert light == pytest.approx([light[2]] * 3, abs=1.5)


def test_grey_images_are_turned_by_up_to_thirty_degrees():
    images = torch.zeros(40, 21, 21, 1, dtype=torch.uint8)
    images[:, 10, 18] = 255  # eight pixels to the right of the middle
    seen = mild_view(images, torch.Generator().manual_seed(0))
    assert seen.shape == images.shape
    places = seen[..., 0].float().nonzero()
    angles = torch.atan2(places[:, 1] - 10.0, places[:, 2] - 10.0)
    assert float(angles.abs().max()) <= math.radians(30) + 0.1
    assert float(angles.std()) > 0.2


def test_a_batch_is_changed_together_or_one_by_one():
    for channels in (1, 3):
        images = torch.randint(256, (1, 8, 8, channels), dtype=torch.uint8).expand(6, 8, 8, channels)
        alone = mild_view(images, torch.Generator().manual_seed(1))
        together = mild_view(images, torch.Generator().manual_seed(1), together=True)
        assert alone.dtype == torch.uint8
        assert (together == together[:1]).all()
        assert not (alone == alone[:1]).all()
        assert torch.equal(alone, mild_view(images, torch.Generator().manual_seed(1)))


def test_half_of_the_coloured_images_are_flipped():
    images = torch.zeros(200, 1, 2, 3, dtype=torch.uint8)
    images[:, :, 0] = 255
    seen = mild_view(images, torch.Generator().manual_seed(0)).float().sum(-1)[:, 0]
    assert 70 < int((seen[:, 0] < seen[:, 1]).sum()) < 130
