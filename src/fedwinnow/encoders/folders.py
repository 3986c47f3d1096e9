"""Encoders in a local folder, as transformers and sentence-transformers save them; nothing is downloaded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fedwinnow.data.content_hash import hash_of_file
from fedwinnow.encoders.encoder import Batch, Encoder, ImageEncoder, Matrix, OpenEncoder, hash_of
from fedwinnow.errors import DataError, UsageError, missing_extra
from fedwinnow.models.model import Shape
from fedwinnow.options import option

UNUSED = "pooler."  # the names of weights that no feature depends on
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")


@dataclass(frozen=True)
class Transformers(ImageEncoder):
    """A model of the package transformers in a local folder, with its own image processor or tokenizer.

    Nothing is downloaded: the folder has config.json, model.safetensors and the files of the processor or tokenizer
    (needs the extra `transformers`).
    """

    name: ClassVar[str] = "transformers"
    kinds: ClassVar[tuple[str, ...]] = ("images", "texts")

    path: Path = option(..., "The folder of the model.")
    pool: Literal["cls", "mean"] = option("cls", "The features: those of the first place, or the mean over all places.")
    length: int = option(256, "How many word pieces of a text are used.", at_least=2, at_most=100000)

    def open(self, shape: Shape, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()) -> OpenEncoder:
        folder = existing_model(self.path, self.name)
        with offline():
            transformers = imported("transformers", "transformers", self.name)
            hush(transformers)
            import torch

            if shape.kind == "images":
                prepare = self.image_step(transformers, folder)
            else:
                prepare = self.text_step(transformers, folder)
            try:
                module, loaded = transformers.AutoModel.from_pretrained(
                    str(folder),
                    local_files_only=True,
                    use_safetensors=True,
                    trust_remote_code=False,
                    output_loading_info=True,
                )
            except Exception as problem:  # the package raises nearly anything on a folder that it cannot read
                raise unreadable(folder, "a model with weights in model.safetensors", problem) from None
            refuse_half(folder, loaded["missing_keys"], len(module.state_dict()))
            module.eval()

        def encode(batch: Batch) -> Matrix:
            with torch.inference_mode():
                inputs = prepare(batch)
                said = module(**inputs)
                rows: Matrix = self.pooled(said, inputs, len(batch)).float().numpy()
            return rows

        example: Any = np.zeros((1, *shape.sample_shape), np.uint8) if shape.kind == "images" else ["an example"]
        try:
            width = encode(example).shape[1]
        except (ValueError, RuntimeError, TypeError) as problem:
            raise UsageError(
                f"encoder '{self.name}': the model in {folder} does not take these {shape.kind}: {first_line(problem)}."
            ) from None
        weights = hash_of_folder(folder)
        return OpenEncoder(
            width,
            hash_of({"pool": self.pool, "length": self.length}, [weights]),
            encode,
            f"torch {torch.__version__}, transformers {transformers.__version__}",
            batch=16,
        )

    def image_step(self, transformers: Any, folder: Path) -> Any:
        """The folder's own image processor."""
        from PIL import Image

        try:
            processor = transformers.AutoImageProcessor.from_pretrained(str(folder), local_files_only=True)
        except Exception as problem:
            raise unreadable(folder, "an image processor (preprocessor_config.json)", problem) from None

        def prepare(batch: Batch) -> Any:
            colours = [np.repeat(one, 3, axis=2) if one.shape[2] == 1 else one for one in np.asarray(batch)]
            return processor(images=[Image.fromarray(one) for one in colours], return_tensors="pt")

        return prepare

    def text_step(self, transformers: Any, folder: Path) -> Any:
        """The folder's own tokenizer."""
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except Exception as problem:
            raise unreadable(folder, "a tokenizer (tokenizer.json)", problem) from None

        def prepare(batch: Batch) -> Any:
            # Filled up to one length, so that a text's features do not depend on the others in its batch.
            return tokenizer(
                list(batch), padding="max_length", truncation=True, max_length=self.length, return_tensors="pt"
            )

        return prepare

    def pooled(self, said: Any, inputs: Any, count: int) -> Any:
        """One row per sample of what the model says."""
        hidden = getattr(said, "last_hidden_state", None)
        if hidden is None:
            from fedwinnow.encoders.module_encoder import features_in

            return features_in(said, self.name, count)
        if hidden.ndim == 4:
            return hidden.mean((2, 3))  # a convolutional network: the mean over the image
        if self.pool == "cls":
            return hidden[:, 0]
        mask = inputs.get("attention_mask") if hasattr(inputs, "get") else None
        if mask is None:
            return hidden.mean(1)
        weight = mask.unsqueeze(2).to(hidden.dtype)
        return (hidden * weight).sum(1) / weight.sum(1).clamp(min=1)


@dataclass(frozen=True)
class SentenceTransformers(Encoder):
    """A model of the package sentence-transformers in a local folder, for texts (extra `sentence-transformers`)."""

    name: ClassVar[str] = "sentence_transformers"
    kinds: ClassVar[tuple[str, ...]] = ("texts",)

    path: Path = option(..., "The folder of the model.")

    def open(self, shape: Shape, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()) -> OpenEncoder:
        folder = existing_model(self.path, self.name)
        with offline():
            package = imported("sentence_transformers", "sentence-transformers", self.name)
            import torch

            try:
                model = package.SentenceTransformer(
                    str(folder), device="cpu", local_files_only=True, trust_remote_code=False
                )
            except Exception as problem:
                raise unreadable(folder, "a model of sentence-transformers", problem) from None

        def encode(batch: Batch) -> Matrix:
            found = model.encode(list(batch), batch_size=len(batch), show_progress_bar=False, convert_to_numpy=True)
            return np.asarray(found, np.float32)

        width = encode(["an example"]).shape[1]
        engine = f"torch {torch.__version__}, sentence-transformers {package.__version__}"
        return OpenEncoder(width, hash_of({}, [hash_of_folder(folder)]), encode, engine, batch=32)


def refuse_half(folder: Path, missing: Iterable[str], count: int) -> None:
    """Refuse weights that fill only a part of the model, because the package draws the others at random.

    The last pooling layer is often missing, and is not used.
    """
    if absent := sorted(name for name in missing if not name.startswith(UNUSED)):
        raise DataError(
            f"{folder}: model.safetensors lacks {len(absent)} of the model's {count} weights, {absent[0]} for one, so "
            f"it belongs to another model than config.json. Save both together with save_pretrained."
        )


def existing_model(path: Path, name: str) -> Path:
    """The folder of a model; a name of the Hub is told where to get the folder."""
    if not path.is_dir():
        raise DataError(
            f"encoder '{name}': there is no folder {path}. Nothing is downloaded; save the model into a folder on a "
            f"machine with internet (docs/encoders.md says how), copy it here and give its path."
        )
    if not (path / "config.json").is_file() and not (path / "modules.json").is_file():
        raise DataError(f"encoder '{name}': the folder {path} has no config.json, so there is no model in it.")
    return path


def hash_of_folder(folder: Path) -> str:
    """The hash of all files of a model."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{hash_of_file(path)}\n".encode())
    return digest.hexdigest()


def imported(module: str, extra: str, name: str) -> Any:
    """The package, or an error that names the extra."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise missing_extra(extra, f"the encoder `{name}`") from None


def hush(transformers: Any) -> None:
    """Turn off the package's bars and reports; what matters in them is an error of ours."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


@contextmanager
def offline() -> Iterator[None]:
    """Forbid downloads while a model is loaded; the variables have their old values afterwards."""
    before = {name: os.environ.get(name) for name in OFFLINE}
    os.environ.update(dict.fromkeys(OFFLINE, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def unreadable(folder: Path, what: str, problem: Exception) -> DataError:
    """The error for a folder without something that is needed."""
    return DataError(f"{folder}: {what} cannot be read from this folder ({first_line(problem)}). Save it there.")


def first_line(problem: Exception) -> str:
    """The first line of an error's message."""
    return next(iter(str(problem).splitlines()), type(problem).__name__)[:200].rstrip(".")
