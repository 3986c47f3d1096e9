"""Features are the input of the last linear layer, for any module."""

import threading

import pytest
import torch
from torch import nn

from fedwinnow.errors import UsageError
from fedwinnow.models.features import logits_and_features, through_head, undisturbed
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape

PATIENCE = 600  # seconds; only a thread that never comes takes so long
SHAPES = {
    "linear": Shape("rows", (5,), 3),
    "mlp": Shape("rows", (5,), 3),
    "lenet": Shape("images", (8, 8, 1), 3),
    "cnn4": Shape("images", (16, 16, 3), 3),
    "resnet18": Shape("images", (9, 9, 3), 3),
    "text": Shape("tokens", (6,), 3, vocabulary=9),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_head_maps_features_to_logits(name: str) -> None:
    shape = SHAPES[name]
    model = make_model(name, shape).eval()
    x = shape.example(4)
    x = torch.randint(0, 9, x.shape) if shape.kind == "tokens" else torch.randn(x.shape)
    logits, features = logits_and_features(model, x)
    head = through_head(model, x)[1]
    assert head is model.fc
    assert torch.allclose(features @ head.weight.T + head.bias, logits, atol=1e-6)
    assert torch.equal(logits, model(x))


def test_features_by_hand() -> None:
    model = make_model("mlp:hidden=2", Shape("rows", (2,), 2))
    with torch.no_grad():
        model.hidden1.weight.copy_(torch.tensor([[1.0, -1.0], [2.0, 0.0]]))
        model.hidden1.bias.copy_(torch.tensor([0.0, 1.0]))
        model.fc.weight.copy_(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
        model.fc.bias.copy_(torch.tensor([0.5, 0.0]))
    logits, features = logits_and_features(model, torch.tensor([[3.0, 1.0], [0.0, 4.0]]))
    assert features.tolist() == [[2.0, 7.0], [0.0, 1.0]]  # relu(x1 - x2), relu(2 x1 + 1)
    assert logits.tolist() == [[2.5, 9.0], [0.5, 1.0]]


def test_gradients_flow_through_the_features() -> None:
    model = make_model("mlp", Shape("rows", (2,), 2))
    logits_and_features(model, torch.ones(3, 2))[1].sum().backward()
    assert model.hidden1.weight.grad is not None
    assert model.fc.weight.grad is None


class Backwards(nn.Module):
    """Registers its head first, a spare layer last, and names the argument of its head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.body = nn.Linear(2, 4)
        self.spare = nn.Linear(7, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(input=torch.relu(self.body(x)))


def test_the_order_of_calls_counts_not_that_of_registration() -> None:
    model = Backwards()
    x = torch.randn(5, 2)
    assert through_head(model, x)[1] is model.head
    assert torch.equal(logits_and_features(model, x)[1], torch.relu(model.body(x)))


def test_no_hook_stays_even_after_an_error() -> None:
    model = make_model("mlp", Shape("rows", (2,), 2))
    logits_and_features(model, torch.ones(1, 2))
    with pytest.raises(RuntimeError):
        logits_and_features(model, torch.ones(1, 3))
    assert not any(module._forward_pre_hooks for module in model.modules())


class Nested(nn.Module):
    """Asks for the features of an inner module during its own forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3))
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(logits_and_features(self.inner, x)[1])


def test_a_call_within_a_call() -> None:
    model, x = Nested(), torch.randn(5, 2)
    assert torch.equal(logits_and_features(model, x)[1], model.inner[0](x))


class Meeting(nn.Module):
    """Both threads are inside the body before either reaches the head."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.barrier = threading.Barrier(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.barrier.wait(timeout=PATIENCE)
        scores = self.fc(x)
        self.barrier.wait(timeout=PATIENCE)
        return scores


def test_two_threads_may_share_a_module() -> None:
    model, found = Meeting(), {}

    def work(number: int) -> None:
        found[number] = logits_and_features(model, torch.full((1, 2), float(number)))[1]

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: features.tolist() for number, features in found.items()} == {1: [[1.0, 1.0]], 2: [[2.0, 2.0]]}


def test_undisturbed_changes_nothing_in_the_module() -> None:
    model = make_model("lenet:norm=batch", Shape("images", (8, 8, 1), 3)).train()
    model.norm1.eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with undisturbed(model):
        through_head(model, torch.randn(4, 1, 8, 8))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert model.training
    assert model.norm2.training
    assert not model.norm1.training


def test_a_module_without_a_linear_layer() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten())
    with pytest.raises(UsageError, match=r"uses no linear layer.*torch\.nn\.Linear"):
        logits_and_features(model, torch.zeros(2, 1, 8, 8))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (6, 1)), nn.Conv1d(6, 3, 1), nn.Flatten()),
        nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 3), nn.Flatten(), nn.Unflatten(1, (2, 3))),
        nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Flatten(0, 1), nn.Linear(2, 3)),
    ],
    ids=["a convolution is the head", "a table per sample", "two rows per sample"],
)
def test_a_linear_layer_that_is_not_the_head(model: nn.Module) -> None:
    with pytest.raises(UsageError, match="must end in a linear layer"):
        logits_and_features(model, torch.zeros(5, 4))
