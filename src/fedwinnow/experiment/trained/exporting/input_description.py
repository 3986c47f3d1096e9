"""preprocessing.json: what the exported model takes and gives, for programs that have no fedwinnow."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedwinnow.data.column import Column
from fedwinnow.data.input_form import InputForm
from fedwinnow.data.tokens import PADDING, WORD
from fedwinnow.encoders.encoder import Encoder, ImageEncoder
from fedwinnow.experiment.trained.exporting.bare_names import bare
from fedwinnow.experiment.trained.trained_model import TrainedModel

FILE = "preprocessing.json"
PARTS = {
    "day": "days since 1970-01-01, the time as a fraction of a day",
    "month": "1 to 12",
    "weekday": "1 to 7, Monday is 1",
    "hour": "the time of day in hours, 0 to 24",
}
FORMULAS = {
    "numeric": "(value - mean) / std; 0 if missing",
    "ordered": "(position - mean) / std; 0 if missing",
    "text": "(number - mean) / std; 0 if missing",
}
TASKS = {"images": "image-classification", "rows": "tabular-classification", "tokens": "text-classification"}


def without_views(encoder: Encoder) -> Encoder:
    """The same encoder; how many views training had says nothing about new samples."""
    return dataclasses.replace(encoder, views=0) if isinstance(encoder, ImageEncoder) else encoder


def encoder_facts(trained: TrainedModel) -> dict[str, Any] | None:
    """The frozen encoder of a run: its name, the hash of its weights, and whether it is inside the file."""
    if trained.encoding is None:
        return None
    data_encoder = trained.encoding.data_encoder
    return {
        "name": bare(str(without_views(data_encoder.encoder))),
        "hash": data_encoder.opened.hash,
        "width": data_encoder.opened.width,
        "reads": data_encoder.kind,
        "scale": trained.encoding.scaling.scale,
        "inside": trained.has_whole_module,
        "licence": str(getattr(data_encoder.encoder, "licence", "") or ""),
    }


def described_input(form: InputForm, encoder: dict[str, Any] | None = None) -> dict[str, Any]:
    """The input, how a sample becomes it, and the output."""
    output = {
        "name": "logits",
        "type": "float32",
        "shape": ["n", form.classes],
        "meaning": "one score per class; softmax over a row gives the probabilities",
        "classes": list(form.class_names),
    }
    steps = steps_of(form)
    if encoder is not None:
        steps["encoder"] = encoder
        if form.kind == "images":
            for key in ("mean", "std"):
                del steps["image"][key]
            steps["image"]["formula"] = "the encoder inside the model scales and normalises the pixels itself"
    return {"version": 1, "input": tensor_of(form, encoder), **steps, "output": output}


def tensor_of(form: InputForm, encoder: dict[str, Any] | None = None) -> dict[str, Any]:
    """The one tensor that a model of this form takes."""
    if encoder is not None and not encoder["inside"]:
        meaning = (
            f"the {encoder['width']} numbers that the encoder {encoder['name']} (hash {encoder['hash'][:12]}) gives "
            f"for a sample, not scaled; never the {encoder['reads']} themselves"
        )
        return {"name": "x", "type": "float32", "shape": ["n", *form.sample_shape], "meaning": meaning}
    if form.columns:
        meaning = (
            "the columns in their order: a number as it is, a category as its position, -1 for a category that is not "
            "in the list, NaN for a missing value; standardising and one column per category are inside the model"
        )
        if any(column.kind == "text" for column in form.columns):
            meaning += "; a text as the numbers that its encoder gives, all NaN for a missing text"
        return {"name": "x", "type": "float64", "shape": ["n", form.raw_place(len(form.columns))], "meaning": meaning}
    kinds = {
        "images": ("uint8", "pixels from 0 to 255 as (height, width, channels); normalising is inside the model"),
        "rows": ("float32", "numbers, used as they are"),
        "tokens": ("int64", "token ids; a short text is filled up with the padding id"),
    }
    kind, meaning = kinds[form.kind]
    return {"name": "x", "type": kind, "shape": ["n", *form.sample_shape], "meaning": meaning}


def steps_of(form: InputForm) -> dict[str, Any]:
    """How a sample becomes the tensor."""
    if form.columns:
        columns = enumerate(form.columns)
        return {"columns": [described_column(form.raw_place(number), column) for number, column in columns]}
    if form.kind == "images":
        return {"image": described_image(form)}
    if form.kind == "tokens":
        return {"text": described_text(form)}
    return {}


def described_column(place: int, column: Column) -> dict[str, Any]:
    """One column of a table; the categories by name with their position."""
    found: dict[str, Any] = {"position": place, "name": column.name, "kind": column.kind}
    if column.part:
        found |= {"part": column.part, "meaning": PARTS[column.part]}
    if column.kind == "text":
        found |= {"numbers": column.size, "encoder": bare(column.encoder), "encoder_hash": column.hash}
    if column.categories:
        found |= {"categories": {name: code for code, name in enumerate(column.categories)}}
    if column.kind != "categorical":
        found |= {"mean": column.mean, "std": column.std, "formula": FORMULAS[column.kind]}
    return found | {"missing_has_own_input": column.missing}


def described_image(form: InputForm) -> dict[str, Any]:
    """Size, channels and normalisation."""
    height, width, channels = form.sample_shape
    return {
        "height": height,
        "width": width,
        "channels": channels,
        "colours": {1: "grey", 3: "RGB"}.get(channels, "as in the training data"),
        "resize": "bilinear, where a file has another size",
        "mean": list(form.mean),
        "std": list(form.std),
        "formula": "(pixel / 255 - mean) / std per channel" if form.mean else "pixel / 255",
    }


def described_text(form: InputForm) -> dict[str, Any]:
    """The tokenizer, or that there is none."""
    found: dict[str, Any] = {"length": form.sample_shape[0], "vocabulary": form.vocabulary, "padding": PADDING}
    if not form.hashed_words:
        return found | {
            "tokenizer": None,
            "note": "the training data had token ids; use the tokenizer it was made with",
        }
    return found | {
        "tokenizer": {
            "lower_case": True,
            "word": WORD.pattern,
            "id": f"1 + crc32(word in UTF-8) % {form.vocabulary - 1}",
            "longer_text": f"the first {form.sample_shape[0]} words",
            "text_without_a_word": "the empty word, once",
        }
    }
