"""The forms in which CIFAR-10 and CIFAR-100 are published: archives, folders, members and checksums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedwinnow.data.published_files import PublishedFile, missing_line


@dataclass(frozen=True)
class Form:
    """One way in which the data is published: an archive and the folder it unpacks to."""

    kind: Literal["binary", "python", "pack"]
    archive: PublishedFile
    folder: PublishedFile | None
    train: tuple[str, ...] = ()  # members, in order
    test: tuple[str, ...] = ()


@dataclass(frozen=True)
class CifarLayout:
    """The differences between CIFAR-10 and CIFAR-100."""

    name: str
    classes: int
    label_bytes: int  # before the pixels of a binary record; the last one is the label
    label_key: str  # in the Python form
    forms: tuple[Form, ...]  # the one to download first

    def files(self) -> list[PublishedFile]:
        """Every file or folder that holds the data, unpacked ones first."""
        folders = [form.folder for form in self.forms if form.folder is not None]
        return [*folders, *(form.archive for form in self.forms)]

    def missing(self) -> list[str]:
        """A line if none of the forms is there."""
        if any(file.find() is not None for file in self.files()):
            return []
        wanted = self.forms[0].archive
        return [missing_line(wanted, [file.name for file in self.files() if file != wanted])]


KRIZ = "https://www.cs.toronto.edu/~kriz"
PUBLISHER = f"Alex Krizhevsky, University of Toronto, {KRIZ}/cifar.html"


def archive_and_folder(name: str, md5: str, size: int, unpacked: str) -> tuple[PublishedFile, PublishedFile]:
    """A published archive and the folder it unpacks to; both may be in a folder with the name of the data set."""
    number = name.split("-")[1]
    folders = ("", f"cifar{number}", f"cifar-{number}")
    return (
        PublishedFile(name, f"{KRIZ}/{name}", PUBLISHER, f"md5:{md5}", size, folders),
        PublishedFile(unpacked, None, PUBLISHER, None, None, folders),
    )


BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
PACK = PublishedFile("cifar10.zip", None, "the maker of this lossless WebP pack", folders=("", "cifar10"))

CIFAR10 = CifarLayout(
    name="cifar10",
    classes=10,
    label_bytes=1,
    label_key="labels",
    forms=(
        Form(
            "binary",
            *archive_and_folder(
                "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170052171, "cifar-10-batches-bin"
            ),
            train=tuple(f"{batch}.bin" for batch in BATCHES),
            test=("test_batch.bin",),
        ),
        Form(
            "python",
            *archive_and_folder(
                "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170498071, "cifar-10-batches-py"
            ),
            train=BATCHES,
            test=("test_batch",),
        ),
        Form("pack", PACK, None),
    ),
)
CIFAR100 = CifarLayout(
    name="cifar100",
    classes=100,
    label_bytes=2,
    label_key="fine_labels",
    forms=(
        Form(
            "binary",
            *archive_and_folder(
                "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 168513733, "cifar-100-binary"
            ),
            train=("train.bin",),
            test=("test.bin",),
        ),
        Form(
            "python",
            *archive_and_folder(
                "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169001437, "cifar-100-python"
            ),
            train=("train",),
            test=("test",),
        ),
    ),
)
