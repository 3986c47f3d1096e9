"""Models of transformers and sentence-transformers in a local folder; tiny ones, made here."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from fedwinnow.encoders.folders import SentenceTransformers, Transformers, offline
from fedwinnow.errors import DataError, MissingExtraError, UsageError
from fedwinnow.models.model import Shape

IMAGES = Shape("images", (30, 30, 3), 2)
TEXTS = Shape("tokens", (8,), 2, 100)


def test_a_missing_folder_is_told_where_to_get_one(tmp_path):
    with pytest.raises(DataError, match=r"there is no folder facebook/dinov2-small. Nothing is downloaded"):
        Transformers(path="facebook/dinov2-small").open(IMAGES)
    with pytest.raises(DataError, match=r"has no config.json"):
        Transformers(path=tmp_path).open(IMAGES)


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(MissingExtraError, match="needs the extra 'transformers'"):
        Transformers(path=tmp_path).open(IMAGES)


def test_the_environment_is_left_as_it_was(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    with offline():
        assert os.environ["TRANSFORMERS_OFFLINE"] == "1"
    assert os.environ["HF_HUB_OFFLINE"] == "0"
    assert "TRANSFORMERS_OFFLINE" not in os.environ


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("vision")
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8
    )
    transformers.ViTModel(config).save_pretrained(folder)
    return folder


def test_images_by_their_own_processor(vision):
    import transformers

    with pytest.raises(DataError, match=r"an image processor .* cannot be read from this folder"):
        Transformers(path=vision).open(IMAGES)
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(vision)
    first, mean = (Transformers(path=vision, pool=pool).open(IMAGES) for pool in ("cls", "mean"))
    assert (first.width, mean.width) == (8, 8)
    assert first.hash != mean.hash
    batch = np.random.default_rng(0).integers(0, 256, (3, 30, 30, 3), dtype=np.uint8)
    rows = first.encode(batch)
    assert rows.shape == (3, 8)
    assert rows[1] == pytest.approx(first.encode(batch[1:2])[0], abs=1e-5)
    assert not np.allclose(rows, mean.encode(batch))
    assert first.encode(batch[..., :1]).shape == (3, 8)  # grey


def test_half_a_model_is_refused(vision, tmp_path):
    """The package would fill the rest at random, in every process anew."""
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(vision, tmp_path / "half")
    weights = load_file(folder / "model.safetensors")
    unused = {name: value for name, value in weights.items() if not name.startswith("pooler.")}
    save_file(unused, folder / "model.safetensors", {"format": "pt"})
    assert Transformers(path=folder).open(IMAGES).width == 8
    other = {name: value for name, value in unused.items() if "layernorm" not in name}
    save_file(other, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=r"model.safetensors lacks \d+ of the model's \d+ weights, .*layernorm"):
        Transformers(path=folder).open(IMAGES)
    os.truncate(folder / "model.safetensors", 100)
    with pytest.raises(DataError, match=r"weights in model.safetensors cannot be read from this folder"):
        Transformers(path=folder).open(IMAGES)


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("language")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "day"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    transformers.BertTokenizer(vocab={word: place for place, word in enumerate(words)}).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def test_texts_by_their_own_tokenizer(language):
    opened = Transformers(path=language, pool="mean", length=8).open(TEXTS)
    rows = opened.encode(["good day", "bad day", "good day"])
    assert rows.shape == (3, 8)
    assert np.array_equal(rows[0], rows[2])
    assert not np.allclose(rows[0], rows[1])
    assert opened.encode(["good day"])[0] == pytest.approx(rows[0], abs=1e-6)  # whatever else is in the batch
    with pytest.raises((DataError, UsageError), match="image processor"):
        Transformers(path=language).open(IMAGES)


def test_sentences(language):
    pytest.importorskip("sentence_transformers")
    opened = SentenceTransformers(path=language).open(TEXTS)
    rows = opened.encode(["good day", "bad day"])
    assert rows.shape == (2, 8)
    assert rows.dtype == np.float32
