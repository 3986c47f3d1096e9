"""Images in folders."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedwinnow.data.content_hash import contents_of_files
from fedwinnow.data.dataset import Dataset, Samples
from fedwinnow.data.images import SUFFIXES, ImageFrame, channel_statistics, common_frame, load_images
from fedwinnow.data.input_form import InputForm
from fedwinnow.data.labels import class_numbers, warn_of_alike_classes
from fedwinnow.data.new_samples import NewSamples, of_image_files
from fedwinnow.data.source import Source
from fedwinnow.data.source_files import existing_folder, hash_of_names
from fedwinnow.errors import DataError
from fedwinnow.options import option


@dataclass(frozen=True)
class Folder(Source):
    """A folder of images with a folder per class, or with train/ and test/ that each have a folder per class.

    The id of a sample is its path within the folder. Images of unequal size are brought to one size.
    """

    name: ClassVar[str] = "folder"

    path: Path = option(..., "The folder.")
    size: int | None = option(
        None, "Height and width of the images; without it the most common size.", at_least=1, at_most=10000
    )
    lazy: Literal["auto", "true", "false"] = option(
        "auto", "Decode images batch by batch; auto does so above 4 GB of pixels."
    )

    def load(self) -> Dataset:
        """List the files, agree on one size and decode."""
        training, test = self.parts()
        class_names = tuple(sorted(folder.name for folder in class_folders(training)))
        listed = [list_images(training, class_names)]
        if test is not None:
            listed.append(list_images(test, class_names))
        every = [path for paths, _ in listed for path in paths]
        frame = common_frame(every, self.size)
        parts = [self.samples(paths, labels, frame) for paths, labels in listed]
        mean, std = channel_statistics(parts[0].features)
        dataset = Dataset(
            name=self.path.resolve().name or "folder",
            kind="images",
            class_names=class_names,
            train=parts[0],
            test=None if test is None else parts[1],
            labels_trusted=False,
            mean=mean,
            std=std,
            source_hash=hash_of_names(every, [id_of(self.path, path) for path in every]),
            contents=contents_of_files(self.path.resolve().name, every),
        )
        warn_of_alike_classes(dataset)
        return dataset

    def load_new(self, form: InputForm) -> NewSamples:
        """Every image below the folder (below its test/ if it has train/ and test/), in the size of the training.

        An image has a label if it is in a folder that is named after a class.
        """
        root = existing_folder(self.path)
        if all((root / part).is_dir() and class_folders(root / part) for part in ("train", "test")):
            root = root / "test"
        paths = images_below(root)
        if not paths:
            raise DataError(
                f"{root} has no image in it (files that end in {', '.join(sorted(SUFFIXES))}).{other_source(root)}"
            )
        ids = [id_of(root, path) for path in paths]
        labels = class_numbers([name.partition("/")[0] if "/" in name else "" for name in ids], form.class_names)
        return NewSamples(
            name=root.resolve().name or "folder",
            features=of_image_files(paths, ids, form, self.lazy),
            ids=np.array(ids, dtype=np.str_),
            labels=labels if (labels >= 0).all() else None,
        )

    def parts(self) -> tuple[Path, Path | None]:
        """The folder with the training classes, and the one with the test classes or None."""
        existing_folder(self.path)
        training, test = self.path / "train", self.path / "test"
        if not training.is_dir() or not class_folders(training):
            return self.path, None
        if not test.is_dir() or not class_folders(test):
            raise DataError(
                f"{self.path} has train/ with a folder per class, but no such test/. Rename the folder of the test "
                f"images to test/, or give path={training} to split a test part off."
            )
        return training, test

    def samples(self, paths: list[Path], labels: list[int], frame: ImageFrame) -> Samples:
        """One part of the data set."""
        ids = [id_of(self.path, path) for path in paths]
        features = load_images(paths, (frame.height, frame.width), self.lazy, ids, frame.channels)
        return Samples(features, np.array(labels, dtype=np.int64), np.array(ids, dtype=np.str_))


def class_folders(folder: Path) -> list[Path]:
    """The folders in a folder, without the hidden ones."""
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def list_images(folder: Path, class_names: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    """Every image below the class folders, in the order of their names, with its class."""
    folders = class_folders(folder)
    if not folders:
        raise DataError(
            f"{folder} has no folder in it; one folder per class is needed, named after the class."
            f"{other_source(folder)}"
        )
    paths: list[Path] = []
    labels: list[int] = []
    for child in folders:
        if child.name not in class_names:
            raise DataError(
                f"{child}: no training folder has the name '{child.name}'; allowed: {', '.join(class_names)}."
            )
        found = images_below(child)
        if not found:
            endings = ", ".join(sorted(SUFFIXES))
            raise DataError(
                f"{child} has no image in it (files that end in {endings}). Add images or remove the folder."
                f"{other_source(child)}"
            )
        paths += found
        labels += [class_names.index(child.name)] * len(found)
    return paths, labels


OTHERS = {
    ".dcm": "DICOM files in it, which dicom:path=FOLDER,labels=TABLE reads",
    ".h5": "HDF5 files in it, which h5:path=FOLDER,labels=TABLE reads",
}


def other_source(folder: Path) -> str:
    """What is said of a folder whose files another source reads."""
    endings = {os.path.splitext(name)[1].lower() for _, _, files in os.walk(folder) for name in files}
    return "".join(f" There are {told}." for ending, told in OTHERS.items() if ending in endings)


def images_below(folder: Path) -> list[Path]:
    """The image files in a folder and its folders, hidden ones left out."""
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            Path(parent, name)
            for name in files
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES
        ]
    return sorted(found)


def id_of(root: Path, path: Path) -> str:
    """The path of an image within the data, the same text on every system."""
    text = path.relative_to(root).as_posix()
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(f"{text!r} in {root}: the name is not UTF-8. Rename the file.") from None
    return text
