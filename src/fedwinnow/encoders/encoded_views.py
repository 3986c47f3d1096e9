"""Random views of images, encoded: so many of each image and kind, kept as rows beside that of the plain image.

An encoder sees every image once, so a new random view for every batch is not to be had. Instead, a few views are
drawn and encoded before the run, and training draws one of them. Their random numbers come from the content of the
image, the kind and the number of the view: so they are the same in every order, subset and run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.dataset import Features, Rows
from fedwinnow.encoders.encoded import Encoded
from fedwinnow.encoders.encoder import Matrix
from fedwinnow.encoders.feature_cache import KEY, Keys, content_key, keys_of
from fedwinnow.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

DrawView = Callable[["Tensor", "torch.Generator"], "Tensor"]  # uint8 images (n, height, width, channels) -> the same
TRIALS = 32  # views of the test picture that tell one function from another


@dataclass(frozen=True)
class ViewKind:
    """A kind of random views, and the function that draws them."""

    name: str
    draw: DrawView
    alike: bool = False  # view number k of every image has the same random numbers

    def view(self, image: NDArray[Any], number: int) -> NDArray[Any]:
        """View number so and so of one image."""
        import torch

        content = f"{self.name}\0{number}\0".encode() + (b"" if self.alike else content_key(image))
        seed = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") & (2**63 - 1)
        stored = torch.from_numpy(np.array(image)[None])
        found = self.draw(stored, torch.Generator().manual_seed(seed))
        if found.shape != stored.shape or found.dtype != stored.dtype:
            raise UsageError(
                f"the view '{self.name}' of an image has the shape {tuple(found.shape[1:])} and the type "
                f"{found.dtype}; needed: those of the image, {tuple(image.shape)} and {stored.dtype}."
            )
        return found[0].numpy()

    def fingerprint(self, shape: tuple[int, ...]) -> str:
        """A hash of some views of a test picture: another function does not find the views of this one."""
        picture = (np.arange(int(np.prod(shape))) * 37 % 251).astype(np.uint8).reshape(shape)
        digest = hashlib.sha256(f"{self.name}/{self.alike}".encode())
        for number in range(TRIALS):
            digest.update(self.view(picture, number).tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class ImageViews:
    """Views of images as samples to encode: those of the first image, then those of the second, and so on."""

    images: Features
    kind: ViewKind
    count: int  # of each image

    def __len__(self) -> int:
        return len(self.images) * self.count

    def take(self, rows: Rows) -> NDArray[Any]:
        """These views; an image of which several are taken is read once."""
        whose, place = np.unique(rows // self.count, return_inverse=True)
        images = self.images.take(whose)
        pairs = zip(place.tolist(), (rows % self.count).tolist(), strict=True)
        return np.stack([self.kind.view(images[image], number) for image, number in pairs])

    def keys(self) -> Keys:
        """A key per view, from that of the image: with more views the first ones keep theirs."""
        return [
            hashlib.blake2b(key + number.to_bytes(4, "little"), digest_size=KEY).digest()
            for key in keys_of(self.images)
            for number in range(self.count)
        ]


@dataclass(frozen=True, eq=False)
class Viewed:
    """Rows of an encoder with the rows of their views; wherever nobody asks for a view, they are the plain rows."""

    plain: Features
    views: dict[str, Encoded]  # by kind; `count` rows per sample
    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.plain.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.plain.dtype

    def __len__(self) -> int:
        return len(self.plain)

    def take(self, rows: Rows) -> NDArray[Any]:
        return self.plain.take(rows)

    def stream(self, batches: Iterable[Rows]) -> Iterator[NDArray[Any]]:
        return self.plain.stream(batches)

    def subset(self, rows: Rows) -> Viewed:
        """The views are copied in half precision, so that those of other samples cannot be reached."""
        places = (np.asarray(rows)[:, None] * self.count + np.arange(self.count)).ravel()
        views = {kind: encoded.copied(places) for kind, encoded in self.views.items()}
        return Viewed(self.plain.subset(rows), views, self.count)

    def view(self, kind: str, rows: Rows, numbers: Rows) -> Matrix:
        """The view of each of these samples that has this number, as a head gets it."""
        if kind not in self.views:
            raise UsageError(
                f"a view of the kind '{kind}' was asked for, but only {', '.join(self.views)} were encoded; let "
                f"view_kinds of the method name it."
            )
        return self.views[kind].take(rows * self.count + numbers)


def without_views(features: Features) -> Features:
    """The plain rows alone, for samples that are only scored."""
    return features.plain if isinstance(features, Viewed) else features
