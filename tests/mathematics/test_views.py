"""Random views: the right pixels, the client's own luck, nothing lost."""

from __future__ import annotations

import torch

from fedwinnow.mathematics.views import PADDING, random_view


def images(count: int = 40) -> torch.Tensor:
    return torch.randint(1, 255, (count, 8, 9, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def view(kind: str, seed: int = 0) -> torch.Tensor:
    return random_view(images(), kind, torch.Generator().manual_seed(seed))


def test_no_view_is_the_image_itself():
    assert torch.equal(view("none"), images())


def test_a_flip_is_the_image_or_its_mirror():
    flipped = 0
    for seen, image in zip(view("flip"), images(), strict=True):
        mirrored = torch.equal(seen, image.flip(1))
        assert mirrored or torch.equal(seen, image)
        flipped += mirrored
    assert 8 < flipped < 32


def test_a_crop_is_a_window_of_the_padded_image():
    padded = torch.nn.functional.pad(images(), (0, 0, PADDING, PADDING, PADDING, PADDING))
    shifts = set()
    for seen, image in zip(view("crop_flip"), padded, strict=True):
        found = [
            (down, right)
            for down in range(2 * PADDING + 1)
            for right in range(2 * PADDING + 1)
            for window in [image[down : down + 8, right : right + 9]]
            if torch.equal(seen, window) or torch.equal(seen, window.flip(1))
        ]
        assert found
        shifts.add(found[0])
    assert len(shifts) > 15


def test_the_generator_decides():
    assert torch.equal(view("crop_flip", 1), view("crop_flip", 1))
    assert not torch.equal(view("crop_flip", 1), view("crop_flip", 2))
    assert view("crop_flip").dtype == torch.uint8
