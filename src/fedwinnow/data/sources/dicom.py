"""Images in DICOM files, as a hospital's archive exports them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.content_hash import contents_of_files
from fedwinnow.data.dataset import Dataset, Samples
from fedwinnow.data.dicom_headers import Header, groups_in, header_of, headers_of, numbered, words_of
from fedwinnow.data.dicom_pixels import OWN, VIEW, view_text, windows_in
from fedwinnow.data.images import BrokenImage, ImageFrame, channel_statistics, load_images
from fedwinnow.data.input_form import InputForm
from fedwinnow.data.labels import warn_of_alike_classes
from fedwinnow.data.new_samples import NewSamples
from fedwinnow.data.pace import Pace
from fedwinnow.data.source_files import hash_of_files, hash_of_names
from fedwinnow.data.sources.labelled_files import LabelledFiles, LabelTable, by_name, chosen
from fedwinnow.errors import DataError, UsageError
from fedwinnow.options import option

ENDINGS = (".dcm", ".dicom", ".dic", ".ima", "")
LONG_ENOUGH = 5  # letters of a name or an id from which on they are also found inside a word


@dataclass(frozen=True)
class Dicom(LabelledFiles):
    """DICOM files below a folder, with a table of labels (needs the extra `dicom`).

    Grey values are rescaled to their unit and seen through windows; each window becomes a channel. What identifies a
    patient is named in a warning and written nowhere: patients become numbers.
    """

    name: ClassVar[str] = "dicom"

    id: str = option(
        "id", "The column that names the file of a row: its path in the folder, its name, or its SOP Instance UID."
    )
    window: str = option(
        "file",
        "Windows for grey images: brain, subdural, stroke, bone, lung, mediastinum, abdomen, liver, angio, spine, "
        "CENTER/WIDTH, or file for the one in the file; several are joined by +.",
    )
    frame: str | None = option(None, "The frame of files with several: first, middle, last, or a number from 1.")
    group: str = option(
        "patient", "What stays together: the images of a patient, of a study, none, or a column of the table."
    )
    size: int | None = option(
        None, "Height and width of the images; without it the most common size.", at_least=1, at_most=10000
    )
    lazy: Literal["auto", "true", "false"] = option(
        "auto", "Decode images batch by batch; auto does so above 4 GB of pixels."
    )
    deidentified: bool = option(
        False, "The files hold pseudonyms and no real names: no warning, and ids may contain a patient's id."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        view_text(self.window, self.frame)

    def columns(self) -> dict[str, str | None]:
        group = None if self.group in ("patient", "study", "none") else self.group
        return {**super().columns(), "group": group}

    def load(self) -> Dataset:
        """Read the labels, then the headers, then the pixels."""
        labels = self.read_labels()
        rows, paths, headers = self.found(labels)
        frame = self.common_frame(headers)
        ids = self.ids_of(labels.ids[rows].tolist(), headers, [f"row {row + 1}" for row in rows])
        try:
            features = load_images(
                paths, (frame.height, frame.width), self.lazy, list(map(str, ids)), frame.channels, frame.view
            )
            samples = Samples(
                features,
                labels.labels[rows],
                ids,
                true=chosen(labels.true, rows),
                sites=chosen(labels.sites, rows),
                groups=self.groups_of(labels, rows, headers),
            )
            mean, std = channel_statistics(features)
        except BrokenImage as problem:
            row = rows[list(map(str, paths)).index(problem.path)]
            raise DataError(f"{labels.table.place(int(row))}: {problem}") from None
        dataset = Dataset(
            name=self.path.resolve().name or "dicom",
            kind="images",
            class_names=labels.class_names,
            train=samples,
            labels_trusted=False,
            agreed_classes=self.partial,
            mean=mean,
            std=std,
            roles={VIEW: frame.view},
            source_hash=hash_of_names([labels.path, *paths], [hash_of_files([labels.path]), *map(str, ids)]),
            contents=contents_of_files(self.path.resolve().name, [labels.path, *paths]),
        )
        warn_of_alike_classes(dataset)
        return dataset

    def load_new(self, form: InputForm) -> NewSamples:
        """The files below the folder, or those of the table, seen as the model's training images were."""
        trained = form.roles.get(VIEW, "")
        asked = view_text(self.window, self.frame)
        if form.kind != "images":
            raise DataError(f"{self.path}: DICOM files were given, but a sample of this model is {form.described()}.")
        if trained and (self.window, self.frame) != (OWN, None) and asked != trained:
            raise UsageError(
                f"{self.name}: window= and frame= give '{asked}', but the model was trained with '{trained}'. "
                "Leave them out, and they are taken from the training."
            )
        labels = None if self.labels is None else self.read_labels()
        if labels is None:
            paths = self.files(ENDINGS)
            headers = headers_of(paths)
            plain = [path.relative_to(self.path).as_posix() for path in paths]
            ids = self.ids_of(plain, headers, [f"file {place + 1}" for place in range(len(paths))])
        else:
            rows, paths, headers = self.found(labels)
            ids = self.ids_of(labels.ids[rows].tolist(), headers, [f"row {row + 1}" for row in rows])
        height, width, channels = form.sample_shape
        features = load_images(paths, (height, width), self.lazy, list(map(str, ids)), channels, trained or asked)
        known = labels is not None and set(labels.class_names) <= set(form.class_names)
        if labels is None or not known:
            return NewSamples(self.path.resolve().name, features, ids)
        places = np.array([form.class_names.index(name) for name in labels.class_names])
        true = chosen(labels.true, rows)
        return NewSamples(
            name=self.path.resolve().name,
            features=features,
            ids=ids,
            labels=places[labels.labels[rows]],
            true=None if true is None else places[true],
            sites=chosen(labels.sites, rows),
        )

    def found(self, labels: LabelTable) -> tuple[NDArray[np.int64], list[Path], list[Header]]:
        """The rows that have a file, their files, and what their headers say."""
        files = self.files(ENDINGS)
        named = by_name(self.path, files)
        headers: dict[Path, Header] = {}
        if any(name.replace("\\", "/") not in named for name in labels.ids.tolist()):
            headers = self.readable(files)
            for path, header in headers.items():
                if path not in named.setdefault(header.uid, []):
                    named[header.uid].append(path)
        hint = f"A file is named by its path in the folder, its name, or its SOP Instance UID (id={self.id})."
        rows, paths = self.matched(labels, named, hint)
        known = [headers[path] for path in paths] if headers else headers_of(paths, labels.table, rows)
        return rows, paths, known

    def readable(self, files: Sequence[Path]) -> dict[Path, Header]:
        """The headers of those files that are DICOM; others may lie beside them."""
        found: dict[Path, Header] = {}
        pace = Pace(len(files), "headers", "read")
        for path in files:
            with suppress(DataError):
                found[path] = header_of(path)
            pace.add(1)
        return found

    def common_frame(self, headers: Sequence[Header]) -> ImageFrame:
        """The size and the channels of all images."""
        sizes = Counter((header.height, header.width) for header in headers)
        most = max(sizes, key=lambda pair: (sizes[pair], pair))
        height, width = most if self.size is None else (self.size, self.size)
        windows = len(windows_in(self.window))
        channels = 3 if windows == 1 and any(header.coloured for header in headers) else windows
        return ImageFrame(height, width, channels, view_text(self.window, self.frame))

    def groups_of(self, labels: LabelTable, rows: NDArray[np.int64], headers: Sequence[Header]) -> NDArray[Any] | None:
        """Patients or studies as numbers in the order in which they come, because their ids must not be written."""
        if self.group == "none":
            return None
        if self.group in ("patient", "study"):
            groups, lacking = groups_in(headers, by_study=self.group == "study")
            if lacking:
                what = "study" if self.group == "patient" else "file"
                self.tell(f"{lacking} files name no {self.group}; their {what} is their group")
            return groups
        named = labels.table.name_column(self.group, "group")[rows]
        return named if self.deidentified or not self.any_tells(named.tolist(), headers) else numbered(named.tolist())

    def ids_of(self, names: Sequence[str], headers: Sequence[Header], instead: Sequence[str]) -> NDArray[np.str_]:
        """The ids of the samples; where they contain what identifies a patient, places in the table instead."""
        told = Counter(tag for header in headers for tag in header.identifying)
        if self.deidentified or not told:
            return np.array(names, dtype=np.str_)
        self.refuse_telling_paths(headers)
        telling = self.any_tells(names, headers)
        shown = ", ".join(f"{tag} ({count} files)" for tag, count in told.most_common())
        text = f"the files identify people: {shown}. None of this is written anywhere; patients are numbers in results"
        if burned := sum(header.burned_in for header in headers):
            text += f". {burned} files say that letters are drawn into their pictures, which previews would show"
        if telling:
            text += ". Ids contain a name or an id of a patient, so samples are named by their row instead"
        self.tell(text)
        return np.array(instead if telling else names, dtype=np.str_)

    def refuse_telling_paths(self, headers: Sequence[Header]) -> None:
        """Refuse a folder or a table that is named after a patient, because results say where their data is."""
        names = frozenset(word for header in headers for word in header.names if not word.isdigit())
        numbers = frozenset(number for header in headers for number in header.numbers if len(number) > 2)
        named = {"path": f"{self.path} {self.path.resolve().name}", "labels": str(self.labels or "")}
        for which, text in named.items():
            words = f" {' '.join(words_of(text))} "
            if tells(text, names) or any(f" {number} " in words for number in numbers):
                raise DataError(
                    f"{self.name}: {which}= contains a name or an id of a patient, and results say where their data "
                    "is. Rename the folder or the table; deidentified=true says that it is no real name."
                )

    def any_tells(self, names: Sequence[str], headers: Sequence[Header]) -> bool:
        """Whether one of the names contains what identifies its patient."""
        return any(tells(name, header.private) for name, header in zip(names, headers, strict=True))


def tells(name: str, private: frozenset[str]) -> bool:
    """Whether a file name or an id contains what identifies a patient."""
    whole = words_of(name)
    plain = "".join(whole)
    return any(word in (plain if len(word) >= LONG_ENOUGH else whole) for word in private if len(word) > 2)
