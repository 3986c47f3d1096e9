"""Medical images that need a registration: brain haemorrhages (RSNA) and skin lesions (ISIC 2019)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedwinnow.data.dataset import Dataset, Labels, Samples
from fedwinnow.data.dicom_headers import groups_in, headers_of
from fedwinnow.data.dicom_pixels import VIEW, view_text, windows_in
from fedwinnow.data.images import channel_statistics, load_images
from fedwinnow.data.photograph_lists import IMAGENET_MEAN, IMAGENET_STD, photographs, read_csv
from fedwinnow.data.published_files import PublishedFile, absent, missing_line
from fedwinnow.data.source import Source
from fedwinnow.data.source_files import hash_of_files
from fedwinnow.errors import DataError, UsageError
from fedwinnow.options import option

RSNA = "RSNA, https://www.kaggle.com/c/rsna-intracranial-hemorrhage-detection"
ICH_LABELS = PublishedFile("stage_2_train.csv", None, RSNA, folders=("ich", "rsna-intracranial-hemorrhage-detection"))
SLICES = "stage_2_train"
UNPACK = (
    "Unpack the published slices beside stage_2_train.csv, for example as stage_2_train/ID_000012eaf.dcm (extra "
    "`dicom`), or export them with a window of your choice as images/ID_000012eaf.png (or .jpg)"
)
ISIC = "ISIC, https://challenge.isic-archive.com/data/#2019"
ISIC_FOLDERS = ("isic2019", "ISIC2019", "isic_2019")
ISIC_LABELS = PublishedFile("ISIC_2019_Training_GroundTruth.csv", None, ISIC, folders=ISIC_FOLDERS)
ISIC_PHOTOGRAPHS = PublishedFile("ISIC_2019_Training_Input", None, ISIC, folders=ISIC_FOLDERS)


@dataclass(frozen=True)
class Haemorrhage(Source):
    """Slices of head CT scans with exactly one of five types of intracranial haemorrhage (RSNA 2019).

    Slices without a haemorrhage or with several types are left out. The published DICOM files are read through windows
    (stage_2_train/<ID>.dcm beside stage_2_train.csv, extra `dicom`), unless there are pictures that you exported
    yourself (images/<ID>.png or .jpg). There is no test part.
    """

    name: ClassVar[str] = "ich"
    citation: ClassVar[str] = (
        "A. E. Flanders and others: Construction of a Machine Learning Dataset through Collaboration: The RSNA 2019 "
        "Brain CT Hemorrhage Challenge. Radiology: Artificial Intelligence 2(3), 2020."
    )
    licence: ClassVar[str] = "non-commercial and academic use, under the rules of the challenge"
    classes: ClassVar[int] = 5
    test_samples: ClassVar[int] = 0
    types: ClassVar[tuple[str, ...]] = (
        "epidural",
        "intraparenchymal",
        "intraventricular",
        "subarachnoid",
        "subdural",
    )

    size: int = option(224, "Height and width to which every slice is brought, in pixels.", at_least=8)
    window: str = option(
        "brain+subdural+bone",
        "Windows for the published DICOM files, a channel each: names as in `dicom`, or CENTER/WIDTH, joined by +.",
        source="the papers name none",
    )
    group: Literal["none", "patient", "study"] = option(
        "none", "What stays together where DICOM files are read; FedNoRo's split is by slices, so none is the default."
    )
    partial: bool = option(False, "Use the slices that are there, even if some are not.")

    def __post_init__(self) -> None:
        super().__post_init__()
        windows_in(self.window)

    def missing(self) -> list[str]:
        path = ICH_LABELS.find()
        if path is None:
            return [missing_line(ICH_LABELS)]
        if any((path.parent / name).is_dir() for name in ("images", SLICES)):
            return []
        return [f"{path.parent / SLICES}: not there. {UNPACK}."]

    def load(self) -> Dataset:
        path = ICH_LABELS.fetch()
        labels = self.single_types(path)
        exported, slices = path.parent / "images", path.parent / SLICES
        published = not exported.is_dir()
        folder = slices if published else exported
        files = image_files(folder, (".dcm",) if published else (".png", ".jpg", ".jpeg"))
        lacking = [name for name in labels if name not in files]
        if lacking and (len(lacking) == len(labels) or not self.partial):
            raise DataError(
                f"{len(lacking)} of {len(labels)} slices with one type of haemorrhage are not in {folder}, the first "
                f"is {lacking[0]}. {UNPACK}. To use only what is there: ich:partial=true"
            )
        present = {name: label for name, label in labels.items() if name in files}
        paths = [files[name] for name in present]
        if not published:
            for name in ("window", "group"):
                if getattr(self, name) != self.__dataclass_fields__[name].default:
                    raise UsageError(
                        f"ich: {name}={getattr(self, name)} was given, which is for DICOM files, but the pictures in "
                        f"{folder} are read. Rename that folder to read {slices}."
                    )
            return photograph_set(self, self.types, path, paths, present, self.size)
        return self.slice_set(path, paths, present)

    def slice_set(self, path: Path, files: list[Path], labels: dict[str, int]) -> Dataset:
        """The published slices through their windows."""
        view, channels = view_text(self.window, None), len(windows_in(self.window))
        column: Labels = np.array(list(labels.values()), dtype=np.int64)
        features = load_images(files, (self.size, self.size), "auto", list(labels), channels, view)
        groups = None
        if self.group != "none":
            groups, _ = groups_in(headers_of(files), by_study=self.group == "study")
        photographic = channels == len(IMAGENET_MEAN)
        mean, std = (IMAGENET_MEAN, IMAGENET_STD) if photographic else channel_statistics(features)
        return Dataset(
            name=self.name,
            kind="images",
            class_names=self.types,
            train=Samples(features, column, np.array(list(labels)), true=column, groups=groups),
            mean=mean,
            std=std,
            roles={VIEW: view},
            source_hash=hash_of_files([path]),
        )

    def single_types(self, path: Path) -> dict[str, int]:
        """The type of every slice that has exactly one."""
        found: dict[str, set[int]] = {}
        places = {kind: place for place, kind in enumerate(self.types)}
        for number, (text, label) in read_csv(path, ("ID", "Label")):
            name, _, kind = text.rpartition("_")
            if label not in ("0", "1") or (kind not in places and kind != "any") or not name:
                raise DataError(
                    f"{path}, line {number}: '{text},{label}' was found; needed: ID_<number>_<type>,0 or 1."
                )
            if label == "1" and kind != "any":
                found.setdefault(name, set()).add(places[kind])
        return {name: min(kinds) for name, kinds in found.items() if len(kinds) == 1}


@dataclass(frozen=True)
class Isic2019(Source):
    """Photographs of skin lesions in eight diagnoses (ISIC 2019 challenge). There is no test part."""

    name: ClassVar[str] = "isic2019"
    citation: ClassVar[str] = (
        "P. Tschandl and others: The HAM10000 dataset, Scientific Data 5, 2018. N. C. F. Codella and others: Skin "
        "Lesion Analysis Toward Melanoma Detection, arXiv:1710.05006. M. Combalia and others: "
        "BCN20000, arXiv:1908.02288."
    )
    licence: ClassVar[str] = "CC BY-NC 4.0"
    classes: ClassVar[int] = 8
    train_samples: ClassVar[int] = 25331
    test_samples: ClassVar[int] = 0
    diagnoses: ClassVar[tuple[str, ...]] = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")

    size: int = option(224, "Height and width to which every photograph is brought, in pixels.", at_least=8)

    def missing(self) -> list[str]:
        return [missing_line(file) for file in (ISIC_LABELS, ISIC_PHOTOGRAPHS) if file.find() is None]

    def load(self) -> Dataset:
        path, folder = ISIC_LABELS.fetch(), ISIC_PHOTOGRAPHS.fetch()
        labels = self.read_diagnoses(path)
        files = image_files(folder, (".jpg", ".jpeg", ".png"))
        if lacking := [name for name in labels if name not in files]:
            raise absent(ISIC_PHOTOGRAPHS, f" {len(lacking)} photographs that {path} names, the first is {lacking[0]}")
        return photograph_set(self, self.diagnoses, path, [files[name] for name in labels], labels, self.size)

    def read_diagnoses(self, path: Path) -> dict[str, int]:
        """The diagnosis of every photograph; those of unknown diagnosis are left out."""
        labels = {}
        for number, (name, *marks) in read_csv(path, ("image", *self.diagnoses)):
            try:
                chosen = [place for place, mark in enumerate(marks) if float(mark) == 1]
            except ValueError:
                raise DataError(f"{path}, line {number}: '{','.join(marks)}' was found; needed: 0.0 or 1.0.") from None
            if len(chosen) > 1:
                raise DataError(f"{path}, line {number}: {name} has {len(chosen)} diagnoses; needed: one.")
            if chosen:
                labels[name] = chosen[0]
        return labels


def image_files(folder: Path, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """The image files of a folder by their name without suffix."""
    try:
        files = [Path(entry.path) for entry in os.scandir(folder)]
    except OSError:
        return {}
    return {path.stem: path for path in files if path.suffix.lower() in suffixes}


def photograph_set(
    source: Source, class_names: tuple[str, ...], path: Path, files: list[Path], labels: dict[str, int], size: int
) -> Dataset:
    """A data set without a test part, whose labels count as true."""
    column: Labels = np.array(list(labels.values()), dtype=np.int64)
    return Dataset(
        name=source.name,
        kind="images",
        class_names=class_names,
        train=photographs(path, files, list(labels), column, size, column),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        source_hash=hash_of_files([path]),
    )
