"""Weights from a user's file: what loads, and what each wrong file says."""

import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedwinnow.errors import DataError
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape

SMALL = Shape("images", (16, 16, 3), 4)
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def state() -> State:
    """A trained-looking ResNet-18: its running averages are not those of a fresh one."""
    module = make_model("resnet18", SMALL, seed=1).train()
    with torch.no_grad():
        module(torch.randn(2, 3, 16, 16))
    return module.state_dict()


def write(path: Path, content: object) -> Path:
    if path.suffix == ".safetensors":
        save_file(content, path)  # type: ignore[arg-type]
    else:
        torch.save(content, path)
    return path


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth", "w.pt", "W.PTH"])
def test_round_trip(tmp_path: Path, state: State, name: str) -> None:
    path = write(tmp_path / name, state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = make_model({"kind": "resnet18", "weights": str(path)}, SMALL, seed=2).state_dict()
    assert all(torch.equal(loaded[key], state[key]) for key in state)


def test_a_head_for_other_classes_keeps_its_initial_values(tmp_path: Path, state: State) -> None:
    path = write(tmp_path / "w.safetensors", state)
    seven = Shape("images", (16, 16, 3), 7)
    with pytest.warns(UserWarning, match=r"fc\.weight, fc\.bias.*file has 4 classes and the data has 7"):
        loaded = make_model(f"resnet18:weights={path}", seven, seed=2).state_dict()
    fresh = make_model("resnet18", seven, seed=2).state_dict()
    for key, value in loaded.items():
        assert torch.equal(value, fresh[key] if key.startswith("fc.") else state[key])


def test_a_file_without_a_head(tmp_path: Path, state: State) -> None:
    path = write(tmp_path / "w.pth", {key: value for key, value in state.items() if not key.startswith("fc.")})
    with pytest.warns(UserWarning, match=r"file has no fc\.weight"):
        loaded = make_model(f"resnet18:weights={path}", SMALL).state_dict()
    assert torch.equal(loaded["conv1.weight"], state["conv1.weight"])


def test_a_file_without_batch_counts_loads(tmp_path: Path, state: State) -> None:
    path = write(tmp_path / "w.pth", {key: value for key, value in state.items() if "num_batches" not in key})
    loaded = make_model(f"resnet18:weights={path}", SMALL).state_dict()
    assert torch.equal(loaded["bn1.running_mean"], state["bn1.running_mean"])


def test_running_averages_are_left_out_where_the_model_keeps_none(tmp_path: Path, state: State) -> None:
    path = write(tmp_path / "w.safetensors", state)
    loaded = make_model(f"resnet18:norm=batch_statistics,weights={path}", SMALL).state_dict()
    assert torch.equal(loaded["layer4.1.conv2.weight"], state["layer4.1.conv2.weight"])


def failure(path: Path, model: str = "resnet18") -> str:
    with pytest.raises(DataError) as caught:
        make_model(f"{model}:weights={path}", SMALL)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_missing_weights(tmp_path: Path, state: State) -> None:
    path = write(tmp_path / "w.pth", {key: value for key, value in state.items() if not key.startswith("layer1.0.c")})
    assert "2 of 122 weights are missing: layer1.0.conv1.weight, layer1.0.conv2.weight. The file has" in failure(path)


def test_the_wrong_network(tmp_path: Path, state: State) -> None:
    path = write(tmp_path / "w.safetensors", state)
    message = failure(path, "resnet34")
    assert "are missing: layer1.2.conv1.weight, layer1.2.bn1.weight, layer1.2.bn1.bias and" in message
    assert "Choose the model" in message


def test_weights_of_another_shape(tmp_path: Path, state: State) -> None:
    path = write(tmp_path / "w.pth", state | {"conv1.weight": torch.zeros(64, 3, 7, 7)})
    message = failure(path)
    assert "conv1.weight (64, 3, 7, 7), needed (64, 3, 3, 3)" in message
    assert "stem=large" in message


def test_weights_without_a_place(tmp_path: Path, state: State) -> None:
    path = write(tmp_path / "w.pth", state | {"extra.weight": torch.zeros(1)})
    assert "no place in the model: extra.weight" in failure(path)


class Payload:
    """Runs code when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.target,))


def test_a_file_with_code_is_refused_and_not_run(tmp_path: Path) -> None:
    path = write(tmp_path / "w.pth", {"conv1.weight": Payload(tmp_path / "ran")})
    assert "objects that would run code are refused" in failure(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
@pytest.mark.parametrize("length", [0, 5, 1000, -100])
def test_a_truncated_file(tmp_path: Path, state: State, name: str, length: int) -> None:
    path = write(tmp_path / name, {"fc.bias": state["fc.bias"], "conv1.weight": state["conv1.weight"]})
    path.write_bytes(path.read_bytes()[:length])
    assert "cut short" in failure(path)


@pytest.mark.parametrize("content", [[1, 2], {"state_dict": {"a": 1}, "epoch": 3}, {0: torch.zeros(1)}])
def test_a_file_that_holds_something_else(tmp_path: Path, content: object) -> None:
    assert "a table of tensors by name is needed" in failure(write(tmp_path / "w.pt", content))


def test_no_such_file_and_unknown_kind(tmp_path: Path) -> None:
    assert "no such file" in failure(tmp_path / "none.pth")
    assert "no such file" in failure(tmp_path / "none.safetensors")
    assert ".safetensors, .pth or .pt" in failure(tmp_path / "weights.h5")
