"""From what a user writes to a module: defaults, seeds, errors."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from fedwinnow.catalogue import entries
from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.errors import DataError, UsageError
from fedwinnow.models.make_model import in_turn, make_model, model_for
from fedwinnow.models.mlp import Mlp
from fedwinnow.models.model import Shape

ROWS = Shape("rows", (6,), 3)
DIGITS = Shape("images", (8, 8, 1), 10)


def test_shape_of_a_data_set() -> None:
    labels = np.array([0, 1])
    images = Resident(np.zeros((2, 28, 20, 3), dtype=np.uint8))
    dataset = Dataset("tiny", "images", ("cat", "dog"), Samples(images, labels, ids=np.arange(2)))
    shape = Shape.of(dataset)
    assert shape == Shape("images", (28, 20, 3), 2)
    assert (shape.channels, shape.smaller_side, shape.numbers) == (3, 20, 1680)
    assert shape.example().shape == (2, 3, 28, 20)


@pytest.mark.parametrize(
    ("kind", "sample_shape"), [("images", (28, 28)), ("rows", (2, 3)), ("rows", (0,)), ("tokens", ())]
)
def test_a_shape_that_is_none(kind: str, sample_shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="allowed"):
        Shape(kind, sample_shape, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (ROWS, "mlp"),
        (Shape("images", (3, 3, 1), 2), "mlp"),
        (DIGITS, "lenet"),
        (Shape("images", (32, 32, 3), 10), "lenet"),
        (Shape("images", (33, 33, 3), 10), "resnet18"),
        (Shape("images", (224, 224, 3), 10), "resnet18"),
        (Shape("images", (8, 500, 1), 10), "lenet"),
        (Shape("tokens", (20,), 4, 1000), "text"),
    ],
)
def test_the_model_follows_the_data(shape: Shape, name: str) -> None:
    assert model_for(shape) == name
    assert make_model(None, shape)(shape.example()).shape == (2, shape.classes)


@pytest.mark.parametrize(
    ("spec", "models"),
    [
        ("lenet + mlp:width=3", ["lenet", "mlp:width=3"]),
        ("lenet+./mine.py:build+mlp", ["lenet", "./mine.py:build", "mlp"]),
        ("lenet:weights=/a+b/w.safetensors", ["lenet:weights=/a+b/w.safetensors"]),
        ("mlp:weights=/c++/w.safetensors+lenet", ["mlp:weights=/c++/w.safetensors", "lenet"]),
        ('mlp:weights="/b+mlp"+lenet', ['mlp:weights="/b+mlp"', "lenet"]),
        ("mlp:scale=1e+05", ["mlp:scale=1e+05"]),
    ],
)
def test_a_plus_separates_models_and_leaves_paths_whole(spec: str, models: list[str]) -> None:
    assert in_turn(spec) == models


def same(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return list(first) == list(second) and all(torch.equal(first[key], second[key]) for key in first)


def test_every_form_of_a_spec_gives_the_same_module() -> None:
    made = make_model("mlp:hidden=7", ROWS, seed=3)
    assert same(made, make_model({"kind": "mlp", "hidden": 7}, ROWS, seed=3))
    assert same(made, make_model(Mlp(hidden=7), ROWS, seed=3))
    assert same(made, make_model(lambda: Mlp(hidden=7).build(ROWS), ROWS, seed=3))


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = make_model("lenet", DIGITS, seed=5)
    torch.manual_seed(2)
    torch.rand(10)
    assert same(first, make_model("lenet", DIGITS, seed=5))
    assert not same(first, make_model("lenet", DIGITS, seed=6))


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    make_model("lenet", DIGITS, seed=5)
    assert torch.equal(torch.rand(3), expected)


def test_a_module_is_copied_with_its_weights() -> None:
    given = nn.Linear(6, 3)
    made = make_model(given, ROWS, seed=9)
    assert same(made, given)
    with torch.no_grad():
        made.weight.zero_()
    assert given.weight.abs().sum() > 0


def test_too_small_images_name_the_smallest_size_and_the_models_that_fit() -> None:
    with pytest.raises(UsageError) as caught:
        make_model("cnn4", DIGITS)
    assert str(caught.value) == (
        "model 'cnn4' was given images of 8 x 8 pixels; allowed: at least 16 x 16. "
        "Models that fit this data: lenet, linear, mlp."
    )


def test_each_smallest_size_is_exact() -> None:
    for entry in entries("models").values():
        smallest = entry.facts.get("smallest_image", 1)
        if "images" in entry.facts["kinds"]:
            shape = Shape("images", (smallest, smallest, 1), 2)
            assert make_model(entry.name, shape)(shape.example(1)).shape == (1, 2)
        if smallest > 1:
            with pytest.raises(UsageError, match=f"at least {smallest} x {smallest}"):
                make_model(entry.name, Shape("images", (smallest - 1, smallest, 1), 2))


def test_the_large_stem_needs_larger_images() -> None:
    with pytest.raises(UsageError, match=r"stem=large and images of 32 pixels.*stem=small"):
        make_model("resnet18:stem=large", Shape("images", (32, 32, 3), 2))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("lenett", "Did you mean 'lenet'"),
        ("mlp:hiden=3", "Did you mean 'hidden'"),
        ("mlp:hidden=0", "at least 1"),
        ("resnet18:norm=none", "batch, batch_statistics, group"),
        ("lenet", r"was given rows; allowed: images\. Models that fit this data: linear, mlp\."),
        ("text", "allowed: tokens"),
        (3, "3 was given as model"),
        ({"hidden": 3}, "a table with a kind"),
    ],
)
def test_a_wrong_spec(spec: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_model(spec, ROWS)  # type: ignore[arg-type]


def test_text_needs_a_vocabulary() -> None:
    with pytest.raises(DataError, match="vocabulary of 0"):
        make_model("text", Shape("tokens", (5,), 2))


def test_catalogue_and_choice_do_not_import_torch() -> None:
    code = (
        "import sys; from fedwinnow.catalogue import entries; import fedwinnow.device; "
        "from fedwinnow.models.make_model import model_for; from fedwinnow.models.model import Shape; "
        "entries('models'); model_for(Shape('rows', (3,), 2)); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
