"""Which device is chosen, on machines with and without accelerators."""

import pytest
import torch

from fedwinnow.device import choose_device
from fedwinnow.errors import UsageError


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Pretend to be a machine with this many CUDA cards, with or without Apple's device."""

    def pretend(cards: int = 0, apple: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: apple)

    monkeypatch.delenv("FEDWINNOW_DEVICE", raising=False)
    return pretend


@pytest.mark.parametrize(
    ("cards", "apple", "expected"), [(0, False, "cpu"), (0, True, "mps"), (2, False, "cuda"), (1, True, "cuda")]
)
def test_the_fastest_is_the_default(machine, cards: int, apple: bool, expected: str) -> None:
    machine(cards, apple)
    assert choose_device() == choose_device("auto") == torch.device(expected)


def test_a_name_goes_before_the_environment_and_that_before_the_default(machine, monkeypatch) -> None:
    machine(cards=2)
    monkeypatch.setenv("FEDWINNOW_DEVICE", "cuda:1")
    assert choose_device() == torch.device("cuda:1")
    assert choose_device("CPU") == torch.device("cpu")
    monkeypatch.setenv("FEDWINNOW_DEVICE", "")
    assert choose_device() == torch.device("cuda")


@pytest.mark.parametrize("name", ["cuda", "mps", "gpu"])
def test_a_device_that_is_absent(machine, name: str) -> None:
    machine()
    with pytest.raises(UsageError, match=f"'{name}' was given as --device; this machine has: cpu"):
        choose_device(name)


def test_a_card_too_many_and_where_the_name_came_from(machine, monkeypatch) -> None:
    machine(cards=2)
    monkeypatch.setenv("FEDWINNOW_DEVICE", "cuda:2")
    with pytest.raises(
        UsageError, match="'cuda:2' was given by FEDWINNOW_DEVICE; this machine has: cuda, cuda:0, cuda:1"
    ):
        choose_device()


@pytest.mark.parametrize(("cards", "apple", "name"), [(0, False, None), (0, True, None), (1, False, "cpu")])
def test_mixed_precision_wants_a_cuda_device(machine, cards: int, apple: bool, name: str | None) -> None:
    machine(cards, apple)
    with pytest.raises(UsageError, match=r"--mixed-precision was given.*allowed: with a CUDA device"):
        choose_device(name, mixed_precision=True)


def test_mixed_precision_on_a_cuda_device(machine) -> None:
    machine(cards=2)
    assert choose_device(mixed_precision=True) == torch.device("cuda")
    assert choose_device("cuda:1", mixed_precision=True) == torch.device("cuda:1")
