"""A client's training loop: what it keeps ready changes the time, never the numbers."""

from __future__ import annotations

import pytest
import torch

from by_hand import identity, one_client
from fedwinnow.all_settings import Training
from fedwinnow.data.dataset import InputStep, Resident
from fedwinnow.federation import client as module
from fedwinnow.federation.client import Client
from fedwinnow.mathematics.optimizers import Sgd
from fedwinnow.mathematics.payload import FlatModel, is_finite
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape


def trained(*, views: str = "none", rows: torch.Tensor | None = None) -> torch.Tensor:
    """The weights after three epochs of a convolutional network on 23 random images."""
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (23, 16, 16, 3), dtype=torch.uint8, generator=generator).numpy()
    model = FlatModel(make_model("cnn4:width=8", Shape("images", (16, 16, 3), 4)))
    client = Client(
        id=0,
        round=1,
        rounds=1,
        features=Resident(images),
        given=torch.arange(23) % 4,
        classes=4,
        model=model,
        training=Training(epochs=3, batch_size=10, views=views),
        optimizer=Sgd(lr=0.1, momentum=0.5),
        input_step=InputStep("images", (0.5,) * 3, (0.25,) * 3),
        generator=torch.Generator().manual_seed(7),
    )
    client.fit(lambda rows, x, y: torch.nn.functional.cross_entropy(model.module(x), y), rows=rows)
    assert client.backward_samples == 3 * (23 if rows is None else len(rows))
    return model.weights.clone()


@pytest.mark.parametrize("rows", [None, torch.tensor([4, 1, 20, 7, 9, 2, 11, 16, 3, 0, 22, 5])], ids=["all", "some"])
def test_inputs_kept_ready_are_those_of_each_batch(monkeypatch, rows):
    kept = trained(rows=rows)
    monkeypatch.setattr(module, "FEW", 0)
    assert torch.equal(kept, trained(rows=rows))


def test_random_views_are_drawn_anew():
    assert not torch.equal(trained(views="crop_flip"), trained())
    assert torch.equal(trained(views="crop_flip"), trained(views="crop_flip"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 500, 999])
def test_a_single_bad_number_is_found(bad, place):
    value = torch.linspace(-1, 1, 1000)
    assert is_finite(value)
    value[place] = bad
    assert not is_finite(value)
    assert not is_finite(torch.full((), bad))


def test_nothing_and_whole_numbers_are_finite():
    assert is_finite(torch.zeros(0))
    assert is_finite(torch.tensor([1, 2]))
    assert is_finite(torch.full((3,), torch.finfo().max))


def test_in_half_precision_a_pass_without_gradients_takes_none_from_the_next(monkeypatch):
    monkeypatch.setattr(Client, "half_precision", True)  # also without a GPU
    client = one_client([[1.0, 0.0], [0.0, 1.0]], [1, 0])
    client.model.load(identity())

    def objective(rows: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            assert client.model.module(x).dtype == torch.bfloat16
        return torch.nn.functional.cross_entropy(client.model.module(x), y)

    client.fit(objective)
    # The slope of the mean over two samples is (softmax - label) / 2 for each: 0.73 - 0 and 0.27 - 1, over 2.
    moved = client.model.weights - identity()["weights"]
    assert moved[:4].tolist() == pytest.approx([-0.0366, 0.0366, 0.0366, -0.0366], abs=1e-3)


def test_in_half_precision_a_batch_of_one_is_no_lesson_for_batch_normalisation(monkeypatch):
    monkeypatch.setattr(Client, "half_precision", True)  # also without a GPU
    client = one_client([[1.0, 0.0]], [1])
    client.model = FlatModel(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
    kinds = []

    def objective(rows: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kinds.append(client.model.module[0](x).dtype)
        return torch.nn.functional.cross_entropy(client.model.module(x), y)

    client.fit(objective)
    assert kinds == [torch.bfloat16]
    assert client.model.statistics.tolist() == [0, 0, 1, 1]
