"""The kinds of random views that `--views` and methods name, in the form in which an encoder encodes some of them."""

from __future__ import annotations

from fedwinnow.encoders.encoded_views import ViewKind
from fedwinnow.mathematics.views import random_view


def view_kind(name: str) -> ViewKind:
    """A kind of views by its name: flip, crop_flip or strong."""
    return ViewKind(name, lambda images, generator: random_view(images, name, generator))
