"""Base of the sources that read a table with named columns."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.content_hash import Contents, contents_of_files
from fedwinnow.data.dataset import Dataset, Features, FieldRows, Resident, Samples, Texts
from fedwinnow.data.groups import warn_of_groups_in_both_parts
from fedwinnow.data.images import BrokenImage, ImageFrame, channel_statistics, common_frame, load_images
from fedwinnow.data.input_form import InputForm
from fedwinnow.data.labels import warn_of_alike_classes
from fedwinnow.data.new_samples import NewSamples, of_image_files, of_table, of_texts
from fedwinnow.data.number_forms import Decimal
from fedwinnow.data.schema import TableSchema, encode_labels, encode_rows, read_schema
from fedwinnow.data.schema_check import tell_differences
from fedwinnow.data.schema_fitting import Wishes, fit
from fedwinnow.data.source import Source
from fedwinnow.data.source_files import existing_file, hash_of_files
from fedwinnow.data.table_reading import TextTable
from fedwinnow.data.tokens import token_ids
from fedwinnow.errors import DataError, UsageError
from fedwinnow.options import option

# What a run has decided for the samples that its model is asked about.
SET_BY_RUN = (
    *("schema", "size", "length", "vocabulary", "max_categories", "test_path", "ignore"),
    *("keep", "ordered", "notes", "notes_encoder"),
)
ROLES = ("label", "id", "site", "group", "true", "image", "text")
ONLY_WITH = {"size": "image", "lazy": "image", "length": "text", "vocabulary": "text"}  # option -> the role it is for


@dataclass(frozen=True)
class TableSource(Source):
    """A table in a file: one row per sample, one column with the label."""

    path: Path = option(..., "The file.")
    label: str = option(..., "The column with the labels.")
    id: str | None = option(None, "The column with an id per row; without it the row's number is its id.")
    site: str | None = option(None, "The column with the site that holds the row.")
    group: str | None = option(
        None, "The column that says which rows belong together (a patient): they stay in one part, site and fold."
    )
    true: str | None = option(None, "The column with labels that are known to be true, used to score, never to train.")
    image: str | None = option(None, "The column with paths of images, relative to the file; other columns are unused.")
    text: str | None = option(None, "The column with a text, which is cut into words; other columns are unused.")
    test_path: Path | None = option(None, "A second file with the test rows.")
    ignore: str | None = option(None, "Columns to leave out, separated by |.")
    max_categories: int = option(100, "How many different texts a column may have before it is refused.", at_least=2)
    missing_values: str | None = option(
        None, "Texts that mean a missing value besides empty, NA, nan and null, separated by |."
    )
    keep: str | None = option(None, "Columns to train on although they look like ids, separated by |.")
    dates: Literal["auto", "day-first", "month-first", "text"] = option(
        "auto", "Whether 03/04/2021 is in April or in March; auto finds out; text leaves dates as they are."
    )
    decimal: Decimal = option(
        "auto", "The decimal sign of numbers; the other one separates thousands. auto finds out, and says so in doubt."
    )
    ordered: str | None = option(None, "Columns with ordered values: grade:low<middle<high, several separated by |.")
    notes: str | None = option(None, "Columns of free text that an encoder reads, separated by |.")
    notes_encoder: str = option("words", "The encoder that reads them (`fedwinnow encoders`).")
    classes: Literal["checked", "any"] = option(
        "checked", "Refuse labels that look like measurements, ids or several labels in one cell, or take any."
    )
    schema: Path | None = option(None, "A JSON file with a schema that another site fitted, instead of fitting one.")
    size: int | None = option(
        None, "Height and width of the images; without it the most common size.", at_least=1, at_most=10000
    )
    lazy: Literal["auto", "true", "false"] = option(
        "auto", "Decode images batch by batch; auto does so above 4 GB of pixels."
    )
    length: int = option(128, "How many words of a text are kept.", at_least=1, at_most=100000)
    vocabulary: int = option(30000, "How many token ids words are hashed to.", at_least=2, at_most=10000000)

    def __post_init__(self) -> None:
        super().__post_init__()
        roles = list(self.roles().values())
        if len(set(roles)) < len(roles):
            twice = next(name for name in roles if roles.count(name) > 1)
            raise UsageError(
                f"{self.name}: the column '{twice}' is given two roles; each of label, id, ... needs its own."
            )
        if self.image is not None and self.text is not None:
            raise UsageError(f"{self.name}: image={self.image} and text={self.text} exclude each other; choose one.")
        for field in dataclasses.fields(self):
            role, value = ONLY_WITH.get(field.name), getattr(self, field.name)
            if role is not None and getattr(self, role) is None and value != field.default:
                raise UsageError(
                    f"{self.name}: {field.name}={value} was given without {role}=..., the column of {role}s that it is "
                    "for. Name the column, or leave it out."
                )

    def roles(self) -> dict[str, str]:
        """Which column has which role."""
        found = {role: getattr(self, role) for role in ROLES}
        return {role: column for role, column in found.items() if column is not None}

    @abstractmethod
    def read_file(self, path: Path) -> TextTable:
        """The table in a file."""

    def read(self, path: Path) -> TextTable:
        """The table in a file, with its missing values and dates as the user says."""
        table = self.read_file(path).without(names_in(self.missing_values))
        return dataclasses.replace(table, dates=self.dates, asked_decimal=self.decimal)

    def load(self) -> Dataset:
        """Read the tables, fit the schema or read it, and encode the rows."""
        paths = [self.path] if self.test_path is None else [self.path, self.test_path]
        tables = [self.read(path) for path in paths]
        schema = self.schema_of(tables[0])
        try:
            frame = self.frame_of(tables)
            # Test rows belong to no site, so their file needs no site column.
            sites = (self.site, None)
            parts = [self.samples(table, schema, frame, site) for table, site in zip(tables, sites, strict=False)]
            mean, std = channel_statistics(parts[0].features) if frame is not None else ((), ())
        except BrokenImage as problem:
            raise DataError(f"{self.place_of(tables, problem.path)}: {problem}") from None
        dataset = Dataset(
            name=self.path.stem,
            kind="images" if frame is not None else "rows" if self.text is None else "tokens",
            class_names=schema.class_names,
            train=parts[0],
            test=None if self.test_path is None else parts[1],
            labels_trusted=False,
            agreed_classes=self.schema is not None,
            mean=mean,
            std=std,
            vocabulary=0 if self.text is None else self.vocabulary,
            hashed_words=self.text is not None,
            columns=schema.columns,
            roles=self.roles(),
            source_hash=self.hash_of(paths),
            contents=self.contents_of(tables),
        )
        warn_of_alike_classes(dataset)
        warn_of_groups_in_both_parts(dataset)
        return dataset

    def load_new(self, form: InputForm) -> NewSamples:
        """The rows for a trained model; a column that only training needed (label, id, site) may be missing."""
        for name in SET_BY_RUN:
            if getattr(self, name) != self.__dataclass_fields__[name].default:
                raise UsageError(f"{self.name}: {name}= was given, but the run has decided it; leave it out.")
        table = self.read(self.path)
        columns = {role: self.column_for(role, table, form) for role in ROLES}
        schema = TableSchema(form.columns, form.class_names)
        labels = {
            role: None if columns[role] is None else encode_labels(table, str(columns[role]), purpose, schema)
            for role, purpose in (("label", "label"), ("true", "true label"))
        }
        try:
            features = self.new_features(table, form, columns)
        except BrokenImage as problem:
            raise DataError(f"{self.place_of([table], problem.path)}: {problem}") from None
        return NewSamples(
            name=self.path.stem,
            features=features,
            ids=np.arange(1, len(table) + 1) if columns["id"] is None else table.id_column(columns["id"]),
            labels=labels["label"],
            true=labels["true"],
            sites=None if columns["site"] is None else table.name_column(columns["site"], "site"),
        )

    def column_for(self, role: str, table: TextTable, form: InputForm) -> str | None:
        """The column with a role in new data; None where only the training data had it."""
        column: str | None = getattr(self, role)
        needed = role in ("image", "text") or column != form.roles.get(role, "label")
        return column if column is None or column in table.names or needed else None

    def new_features(self, table: TextTable, form: InputForm, columns: dict[str, str | None]) -> Features:
        """Rows, images or token ids in the form of the training."""
        if form.columns:
            return of_table(table, form)
        if columns["image"] is not None and form.kind == "images":
            names = table.filled(columns["image"], "image")
            return of_image_files(image_paths(table, columns["image"]), names, form, self.lazy)
        if columns["text"] is not None and form.hashed_words:
            return of_texts(table.column(columns["text"]), form)
        hint = {"images": "image=COLUMN names the column with their paths", "tokens": "text=COLUMN names their column"}
        advice = hint.get(form.kind, "write the rows to an .npz file as the array x")
        raise DataError(f"{self.path} was given, but a sample of this model is {form.described()}: {advice}.")

    def hash_of(self, paths: list[Path]) -> str:
        """The hash of the files."""
        return hash_of_files(paths)

    def contents_of(self, tables: list[TextTable]) -> Contents:
        """The hash of the tables, of the given schema, and of the images that the tables name."""
        images = [] if self.image is None else [path for table in tables for path in image_paths(table, self.image)]
        schema = [] if self.schema is None else [self.schema]
        return contents_of_files(self.path.name, [*(table.path for table in tables), *schema, *images])

    def fitted_schema(self) -> TableSchema:
        """The schema of this file, which other sites can use with schema=."""
        return self.schema_of(self.read(self.path))

    def schema_of(self, table: TextTable) -> TableSchema:
        """The given schema, or one fitted on the training rows."""
        features = self.feature_names(table)
        if self.schema is None:
            return fit(table, features, self.label, self.wishes(table, features))
        schema = read_schema(self.schema)
        if bool(schema.columns) != bool(features):
            raise DataError(
                f"{self.schema} was fitted for other samples: a schema of rows cannot be used for images or texts."
            )
        lacking = [
            f"'{name}'" for name in dict.fromkeys(column.name for column in schema.columns) if name not in table.names
        ]
        if lacking:
            raise DataError(
                f"{table.path} lacks {'columns' if len(lacking) > 1 else 'the column'} that {self.schema} has: "
                f"{', '.join(lacking)}. Its columns: {', '.join(table.names)}. Names must be written alike."
            )
        for column in schema.columns:
            table.column(column.name)
            if column.name not in features:
                raise DataError(f"{self.schema} has the feature '{column.name}', which has another role here.")
        tell_differences(table, schema.columns, f"the data that {self.schema.name} was made from")
        return schema

    def wishes(self, table: TextTable, features: list[str]) -> Wishes:
        """What the options say of columns, each of which must be there."""
        ordered = orders_in(self.name, self.ordered)
        keep, notes = names_in(self.keep), names_in(self.notes)
        for name in (*keep, *notes, *ordered):
            if name not in features:
                table.column(name)  # raises an error that lists the columns
                raise UsageError(f"{self.name}: the column '{name}' is named as a feature, but has another role.")
        return Wishes(self.max_categories, self.classes == "any", keep, ordered, notes, self.notes_encoder)

    def ignored(self) -> list[str]:
        """The columns that are left out by request."""
        return list(names_in(self.ignore))

    def feature_names(self, table: TextTable) -> list[str]:
        """The columns that become features: those without another role."""
        ignored = self.ignored()
        for name in ignored:
            if name not in table.names:
                table.column(name)  # raises an error that lists the columns
        if self.image is not None or self.text is not None:
            return []
        other = {self.label, self.id, self.site, self.group, self.true, *ignored}
        found = [name for name in table.names if name not in other]
        if not found:
            raise DataError(
                f"{self.path}: no column is left to learn from besides label, id, site, group, true and ignored ones. "
                f"Its columns: {', '.join(table.names)}."
            )
        return found

    def samples(self, table: TextTable, schema: TableSchema, frame: ImageFrame | None, site: str | None) -> Samples:
        """One part of the data set; labels first, because a mistake in them is found quickest."""
        labels = encode_labels(table, self.label, "label", schema)
        true = None if self.true is None else encode_labels(table, self.true, "true label", schema)
        ids = np.arange(1, len(table) + 1) if self.id is None else table.id_column(self.id)
        sites = None if site is None else table.name_column(site, "site")
        texts = None if self.text is None else Texts(table.column(self.text))
        groups = self.groups_of(table, needed=table.path == self.path)
        features = self.features(table, schema, frame)
        return Samples(features, labels, ids, true=true, sites=sites, texts=texts, groups=groups)

    def groups_of(self, table: TextTable, needed: bool) -> NDArray[np.str_] | None:
        """The group of each row; a second file with test rows may do without the column."""
        if self.group is None or (not needed and self.group not in table.names):
            return None
        return table.name_column(self.group, "group")

    def features(self, table: TextTable, schema: TableSchema, frame: ImageFrame | None) -> Features:
        """Images, token ids or rows of numbers."""
        if frame is not None and self.image is not None:
            names = table.filled(self.image, "image")
            return load_images(
                image_paths(table, self.image), (frame.height, frame.width), self.lazy, names, frame.channels
            )
        if self.text is not None:
            return Resident(token_ids(table.column(self.text), self.length, self.vocabulary))
        return FieldRows(encode_rows(table, schema), schema.columns)

    def frame_of(self, tables: list[TextTable]) -> ImageFrame | None:
        """The shape of all images, or None where there are none."""
        if self.image is None:
            return None
        return common_frame([path for table in tables for path in image_paths(table, self.image)], self.size)

    def place_of(self, tables: list[TextTable], image: str) -> str:
        """The first row that names an image."""
        assert self.image is not None
        found = ((table, list(map(str, image_paths(table, self.image)))) for table in tables)
        return next(table.place(paths.index(image)) for table, paths in found if image in paths)


def names_in(option: str | None) -> tuple[str, ...]:
    """The names in an option, which a bar separates."""
    return () if option is None else tuple(name.strip() for name in option.split("|"))


def orders_in(source: str, option: str | None) -> dict[str, tuple[str, ...]]:
    """The order of the values of each column that the option names."""
    found = {}
    for one in names_in(option):
        name, colon, values = one[: one.find("<")].rpartition(":")
        order = tuple(value.strip() for value in (values + one[one.find("<") :]).split("<"))
        if not colon or "<" not in one or "" in order or len(set(order)) < len(order) or not name.strip():
            raise UsageError(
                f"{source}: ordered={one} was given; allowed: a column and its values in order, "
                "for example grade:low<middle<high; several are separated by |."
            )
        found[name.strip()] = order
    return found


def image_paths(table: TextTable, column: str) -> list[Path]:
    """The image files of a table; a missing file is refused."""
    paths = [table.path.parent / cell.replace("\\", "/") for cell in table.filled(column, "image")]
    for row, path in enumerate(paths):
        try:
            existing_file(path)
        except DataError as problem:
            raise DataError(f"{table.place(row)}, column '{column}': {problem}") from None
    return paths
