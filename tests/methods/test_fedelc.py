"""fedelc and preset=masked: losses, gradients, label steps and merges by hand, its cost, and the shared tester."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.by_hand import identity, one_client
from torch import nn

from fedwinnow.api import run
from fedwinnow.errors import UsageError
from fedwinnow.experiment.result import Result
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.methods.fedelc import FedElc, LearnedLabels, geometric_median
from fedwinnow.steps.noisy_sites import CLEAN, NOISY, UNKNOWN
from fedwinnow.testing import MethodTester, toy_data


class TestFedelc(MethodTester):
    method: ClassVar[str] = "fedelc:warm_up=1"


class TestFedelcMasked(MethodTester):
    method: ClassVar[str] = "fedelc:preset=masked,warm_up=1,steady=0.5"


def softmax(values: Any) -> np.ndarray:
    powers = np.exp(np.asarray(values, float) - np.max(values))
    return np.asarray(powers / powers.sum())


# --- one loss for the network and for the labels ----------------------------------------------------------------------

Z = (0.0, 2.0, 1.0)  # logits of the network
Y = (10.0, 0.0, 0.0)  # label logits; the given class is 0


def learned(method: FedElc, labels: Any = Y, given: int = 0, length: float = 1000.0) -> LearnedLabels:
    return LearnedLabels(method, torch.tensor([given]), torch.tensor([labels]), length)


def terms() -> tuple[np.ndarray, np.ndarray, float, float, float]:
    """p, q, and L_c, L_o, L_e of the one sample above, in plain NumPy."""
    p, q = softmax(Z), softmax(Y)
    return p, q, float((p * np.log(p / q)).sum()), float(-np.log(q[0])), float(-(p * np.log(p)).sum())


def test_the_three_terms_of_the_loss():
    p, _, compatible, original, entropy = terms()
    assert p == pytest.approx([0.09003, 0.66524, 0.24473], abs=1e-5)
    assert (compatible, original, entropy) == pytest.approx((8.26739, 9.0796e-5, 0.832396), abs=1e-5)
    # What the network minimises is L_c / C + β L_e / C; with α L_o, which it cannot change, L is 2.811335.
    found = learned(FedElc()).mean(torch.tensor([Z]), torch.tensor([0]), torch.ones(3))
    assert float(found) == pytest.approx((compatible + 0.2 * entropy) / 3, abs=1e-6)
    assert float(found) + 0.5 * original == pytest.approx(2.811335, abs=1e-5)
    plain = learned(FedElc(class_scaled=False)).mean(torch.tensor([Z]), torch.tensor([0]), torch.ones(3))
    assert float(plain) == pytest.approx(compatible + 0.2 * entropy, abs=1e-5)


@pytest.mark.parametrize("options", [{}, {"class_scaled": False, "beta": 0.7}], ids=["code", "unscaled"])
def test_the_gradient_of_the_network(options):
    method, scale = FedElc(**options), 1.0 if options else 3.0
    p, q, _, _, entropy = terms()
    divergence = (p * np.log(p / q)).sum()
    wanted = (p * (np.log(p / q) - divergence) - method.beta * p * (np.log(p) + entropy)) / scale
    if not options:
        assert wanted == pytest.approx([-0.310901, 0.274997, 0.035905], abs=1e-5)
    by_hand = learned(method).slope(torch.tensor([Z]), torch.tensor([0]), torch.ones(3))
    assert by_hand[0].tolist() == pytest.approx(wanted.tolist(), abs=1e-5)
    leaf = torch.tensor([Z], requires_grad=True)
    learned(method).mean(leaf, torch.tensor([0]), torch.ones(3)).backward()
    assert leaf.grad is not None
    assert leaf.grad[0].tolist() == pytest.approx(wanted.tolist(), abs=1e-5)


def test_the_gradient_and_the_step_of_a_label():
    p, q, *_ = terms()
    wanted = (q - p) / 3 + 0.5 * (q - [1, 0, 0])
    assert wanted == pytest.approx([0.303247, -0.221709, -0.081538], abs=1e-5)
    labels = learned(FedElc(), length=1000 / 64)  # the batch has one sample, so this is the step at a batch of 64
    labels.slope(torch.tensor([Z]), torch.tensor([0]), torch.ones(3))
    assert labels.gradient[0].tolist() == pytest.approx(wanted.tolist(), abs=1e-5)
    labels.step()
    assert labels.logits[0].tolist() == pytest.approx([5.26176, 3.46421, 1.27404], abs=1e-4)
    labels.step()  # an epoch in which it was in no batch
    assert labels.logits[0].tolist() == pytest.approx([5.26176, 3.46421, 1.27404], abs=1e-4)


def test_the_gradient_is_that_of_the_batchs_mean_or_of_the_sample():
    rows, logits = torch.tensor([1, 0]), torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    for kind, divisor in (("batch_mean", 2), ("per_sample", 1)):
        labels = LearnedLabels(FedElc(label_gradient=kind), torch.tensor([0, 1]), torch.zeros(2, 2), 1.0)
        labels.mean(logits, rows, torch.ones(2))
        # p = q = 1/2: what is left is α (q - e_y); row 0 of the batch is sample 1, whose label is 1.
        assert (labels.gradient * divisor).tolist() == [[-0.25, 0.25], [0.25, -0.25]]


def test_five_epochs_and_the_merge():
    """A label that the model doubts falls in five epochs and is flipped by the merge, then flips back."""
    predicted = torch.full((1, 10), 1e-30)
    predicted[0, 0], predicted[0, 3] = 0.1, 0.9
    method, given = FedElc(), torch.tensor([0])
    logits = 10 * torch.eye(10)[:1]
    client: Any = SimpleNamespace(predict=lambda views: predicted.log())
    ends = []
    for visit in range(4):
        labels, shares = LearnedLabels(method, given, logits.clone(), 1000 / 64), []
        for _ in range(5):
            labels.slope(predicted.log(), torch.tensor([0]), torch.ones(10))
            labels.step()
            shares.append(float(labels.logits.softmax(1)[0, 0]))
        if visit == 0:
            assert shares == pytest.approx([0.9978, 0.9822, 0.8519, 0.8283, 0.8607], abs=1e-4)
        logits = method.merged(client, labels.logits)
        ends.append(float(logits[0, 0]) / 10)
        assert int(logits.argmax()) == (0 if ends[-1] > 0.5 else 3)
    assert ends == pytest.approx([0.4804, 0.5096, 0.4228, 0.4269], abs=2e-4)
    assert FedElc(label_merge="none").merged(client, logits) is logits


def test_the_mask_of_the_successor():
    # p of the given class 0, so that the losses are 0.1, 3, 0.2, 0.4, 2.5
    losses = np.array([0.1, 3.0, 0.2, 0.4, 2.5])
    logits = torch.tensor(np.stack([-losses, np.log(1 - np.exp(-losses))], 1)).float()
    given = torch.zeros(5, dtype=torch.int64)
    masked = LearnedLabels(FedElc(preset="masked"), given, torch.zeros(5, 2), 1.0)
    assert masked.mask(logits, given).tolist() == [1, 0, 1, 1, 1]  # int(0.8 * 5) = 4
    assert masked.mask(torch.zeros(64, 2), torch.zeros(64, dtype=torch.int64)).sum() == 51
    assert learned(FedElc()).mask(logits, given).tolist() == [1, 1, 1, 1, 1]
    p, q, *_ = terms()
    without = learned(FedElc(preset="masked", mask_keep=0))
    without.slope(torch.tensor([Z]), torch.tensor([0]), torch.ones(3))
    assert without.gradient[0].tolist() == pytest.approx(((q - p) / 3).tolist(), abs=1e-6)
    assert without.gradient[0].tolist() == pytest.approx([0.303293, -0.221732, -0.081561], abs=1e-5)


# --- a visit of a noisy client ----------------------------------------------------------------------------------------


def visited(method: FedElc, **training: Any) -> tuple[np.ndarray, np.ndarray, Any, Any]:
    """Two samples, a linear model that is the identity: weights and label logits after a visit by plain NumPy."""
    rows, given, rate = np.array([[1.0, 0.0], [0.0, 2.0]]), [0, 0], 0.5
    client = one_client(rows, given, lr=rate, epochs=2, **training)
    got = identity() | {"role": torch.tensor([NOISY])}
    reply = method.train(client, got)
    weight, bias = np.eye(2), np.zeros(2)
    labels, step = 10.0 * np.eye(2)[given], 1000 / 64 * 100  # the batch size is 100
    for _ in range(2):
        p, q = (np.array([softmax(row) for row in table]) for table in (rows @ weight.T + bias, labels))
        divergence = (p * np.log(p / q)).sum(1, keepdims=True)
        entropy = -(p * np.log(p)).sum(1, keepdims=True)
        slope = (p * (np.log(p / q) - divergence) - method.beta * p * (np.log(p) + entropy)) / 2 / 2
        held = np.ones((2, 1)) if method.compat_mask == "none" else np.array([[1.0], [0.0]])  # int(0.8 * 2) = 1
        gradient = ((q - p) / 2 + 0.5 * held * (q - np.eye(2)[given])) / 2
        weight, bias = weight - rate * slope.T @ rows, bias - rate * slope.sum(0)
        labels = labels - step * gradient
    predicted = np.array([softmax(row) for row in rows @ weight.T + bias])
    merged = 10 * (np.array([softmax(row) for row in labels]) + predicted) / 2
    kept = method.keep_received
    returned = (1 - kept) * np.concatenate([weight.flatten(), bias]) + kept * np.array([1, 0, 0, 1, 0, 0])
    return returned, merged, client, reply


@pytest.mark.parametrize("preset", ["fedelc", "masked"])
def test_a_visit_of_a_noisy_client(preset):
    returned, merged, client, reply = visited(FedElc(preset=preset))
    assert reply["weights"].tolist() == pytest.approx(returned.tolist(), abs=1e-5)
    assert client.state["label_logits"].numpy() == pytest.approx(merged, abs=1e-4)
    assert int(reply["samples"]) == 2
    assert (client.forward_samples, client.backward_samples) == (2 * 2 + 2, 2 * 2)


def test_gradients_by_hand_end_where_automatic_ones_do():
    method, ends = FedElc(label_step=3.0), []
    rows = np.random.RandomState(0).normal(size=(12, 2))
    for fast in (False, True):
        client = one_client(rows, [0, 1, 1] * 4, batch_size=5, epochs=3, lr=0.5)
        client.model = FlatModel(client.model.module, fast_heads=fast)
        assert (client.model.head is not None) == fast
        reply = method.train(client, identity() | {"role": torch.tensor([NOISY])})
        ends.append((reply["weights"], client.state["label_logits"]))
    for slow, fast in zip(*ends, strict=True):
        assert slow.numpy() == pytest.approx(fast.numpy(), abs=1e-5)


def test_the_next_visit_goes_on_from_the_labels_that_were_kept():
    client = one_client([[1.0, 0.0]], [0])
    client.state["label_logits"] = torch.tensor([[2.0, 8.0]])
    assert FedElc().label_logits(client).tolist() == [[2.0, 8.0]]
    del client.state["label_logits"]
    assert FedElc().label_logits(client).tolist() == [[10.0, 0.0]]  # lost memory: the given label
    assert FedElc().step_of_labels(client) == 1000 / 64 * 100
    assert FedElc(label_step=7).step_of_labels(client) == 7


def test_the_returned_model_of_the_successor():
    client = one_client([[1.0, 0.0]], [0])
    client.model.load({"weights": torch.tensor([2.0, 0, 0, 0, 0, 0])})
    FedElc(preset="masked").mix_in_received(client, {"weights": torch.tensor([1.0, 2, 0, 0, 0, 0])})
    assert client.model.weights[:2].tolist() == pytest.approx([1.8, 0.4])


def test_a_clean_client_trains_as_before():
    first, second = (one_client([[1.0, 0.0], [0.0, 1.0]], [0, 0]) for _ in range(2))
    one = FedElc().train(first, identity() | {"role": torch.tensor([CLEAN])})
    two = FedElc().train(second, identity() | {"role": torch.tensor([UNKNOWN])})
    assert one["weights"].tolist() == two["weights"].tolist()
    assert not first.state


class Normalised(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def test_predictions_in_training_mode_leave_the_model_alone():
    client = one_client([[1.0, 0.0], [0.0, 1.0], [3.0, 1.0]], [0, 1, 0], batch_size=2)
    torch.manual_seed(0)
    client.model = FlatModel(Normalised())
    before = client.model.payload()
    found = FedElc(merge_mode="train").training_mode_logits(client)
    assert all(torch.equal(before[key], client.model.payload()[key]) for key in before)
    module = client.model.module.train()
    with torch.no_grad():
        wanted = module(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))  # the statistics of this batch
    assert found[:2].numpy() == pytest.approx(wanted.numpy(), abs=1e-6)
    # One sample has no statistics of its own: it gets the running ones, as the first batch has left them.
    assert found[2:].numpy() == pytest.approx(client.predict()[2:].numpy(), abs=1e-6)
    assert client.forward_samples == 3 + 3


# --- the server's half ------------------------------------------------------------------------------------------------


def a_server(**more: Any) -> Server:
    model = FlatModel(nn.Linear(2, 1))  # two tensors: two numbers and one number
    return Server(4, (0, 1, 2, 3), 1.0, 120, 0, 3, model.payload(), model, **more)


def replies() -> Any:
    models = ([0, 0, 0], [1, 0, 0], [0, 3, 4], [4, 0, 1])
    for client, (model, size) in enumerate(zip(models, (100, 200, 100, 100), strict=True)):
        yield client, {"weights": torch.tensor(model).float(), "samples": torch.tensor(size)}


@pytest.mark.parametrize(("distance", "away"), [("per_tensor", (0, 0, 7, 4)), ("parameters", (0, 0, 5, math.sqrt(10)))])
def test_distance_aware_aggregation(distance, away):
    server = a_server(round=21)
    server.state["role"] = torch.tensor([CLEAN, CLEAN, NOISY, NOISY])
    FedElc(distance=distance).merge(server, replies())
    weights = np.array([100, 200, 100, 100]) * np.exp(-np.array(away) / max(away))
    wanted = weights @ np.array([[0, 0, 0], [1, 0, 0], [0, 3, 4], [4, 0, 1]]) / weights.sum()
    assert server.weights["weights"].tolist() == pytest.approx(wanted.tolist(), abs=1e-5)
    if distance == "per_tensor":
        assert wanted.tolist() == pytest.approx([1.083, 0.2806, 0.5178], abs=1e-3)


@pytest.mark.parametrize(("options", "number"), [({}, 20), ({"aggregation": "mean"}, 21)])
def test_the_warm_up_and_the_ablation_average_by_size(options, number):
    server = a_server(round=number)
    server.state["role"] = torch.tensor([CLEAN, CLEAN, NOISY, NOISY])
    FedElc(**options).merge(server, replies())
    assert server.weights["weights"].tolist() == pytest.approx([600 / 500, 300 / 500, 500 / 500])


def test_geometric_median_by_hand():
    points = [torch.tensor(point) for point in ([0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [10.0, 10.0])]
    vectors = np.array([point.tolist() for point in points])
    place, path = vectors.mean(0), []
    for _ in range(10):
        pull = 1 / np.linalg.norm(vectors - place, axis=1)
        place = pull @ vectors / pull.sum()
        path.append(place[0])
    assert path[:2] == pytest.approx([1.3242, 0.7436], abs=1e-4)
    assert geometric_median(points).tolist() == pytest.approx(place.tolist(), abs=1e-5)
    assert path[-1] == pytest.approx(0.5, abs=1e-2)
    assert geometric_median([torch.ones(2)] * 3).tolist() == [1, 1]  # no distance at all


def test_the_median_is_of_every_tensor_or_of_models():
    for over in ("tensor", "model"):
        server = a_server(round=1)
        FedElc(preset="masked", median_over=over).merge(server, replies())
        every = [reply["weights"] for _, reply in replies()]
        parts = [slice(0, 2), slice(2, 3)] if over == "tensor" else [slice(0, 3)]
        wanted = torch.cat([geometric_median([model[part] for model in every]) for part in parts])
        assert server.weights["weights"].tolist() == wanted.tolist()


def test_the_stages_have_the_lengths_of_the_code():
    assert FedElc().warm_up_rounds(120) == 20
    assert FedElc(preset="masked").warm_up_rounds(120) == 30
    assert FedElc(warm_up=3).warm_up_rounds(120) == 3


def test_the_verdict_is_above_a_half_where_the_soft_label_has_another_class():
    client = one_client([[1.0, 0.0], [0.0, 1.0], [0.0, 3.0]], [0, 0, 0])
    got = identity() | {"role": torch.tensor([NOISY])}
    client.state["label_logits"] = torch.tensor([[9.0, 1.0], [6.0, 4.0], [1.0, 9.0]])
    found = FedElc().verdict(client, got)
    assert (found.p_wrong > 0.5).tolist() == [False, False, True]
    assert found.p_wrong[1] > found.p_wrong[0]
    assert int(found.suggested[2]) == 1
    clean = FedElc().verdict(client, identity() | {"role": torch.tensor([CLEAN])})
    assert float(clean.p_wrong.max()) <= 0.5


def test_its_own_aggregation_cannot_be_replaced():
    with pytest.raises(UsageError, match="part of this method"):
        FedElc(aggregate="median")


# --- whole runs -------------------------------------------------------------------------------------------------------


def play(folder: Path, **changes: Any) -> Result:
    settings: dict[str, Any] = {
        "data": toy_data(samples=300),
        "clients": 6,
        "participation": 1.0,
        "rounds": 6,
        "epochs": 2,
        "batch_size": 10,
        "optimizer": "sgd:lr=0.1",
        "noise": "uniform:share=0.5,low=0.6,high=0.7",
        "method": "fedelc:warm_up=3",
    }
    return run(out=folder, **(settings | changes))


def test_what_it_costs_and_whom_it_finds(tmp_path):
    result = play(tmp_path)
    noisy = [client for client, rate in enumerate(result.scene.realised) if rate > 0]
    assert [row["stage"] for row in result.rounds] == ["warm_up"] * 3 + ["correct"] * 3
    assert result.rounds[2]["noisy_clients"] == noisy
    usual, detection, later = result.rounds[0], result.rounds[2], result.rounds[3]
    samples, clients, classes = 300, 6, 3
    held = sum(int(result.scene.holdings.sizes[client]) for client in noisy)
    model = (usual["bytes_up"] - clients * 8) // clients
    assert detection["bytes_up"] == usual["bytes_up"] + clients * (4 + 1) * classes  # C numbers and a mask, once
    assert usual["bytes_down"] == later["bytes_down"] == clients * (model + 8)  # a role
    assert usual["forward_samples"] == usual["backward_samples"] == later["backward_samples"] == 2 * samples
    assert detection["forward_samples"] == 3 * samples
    assert later["forward_samples"] == 2 * samples + held  # the predictions for the merge
    assert later["bytes_up"] == usual["bytes_up"]  # soft labels stay at the site


@pytest.mark.parametrize(
    "options",
    [
        "label_merge=none,label_gradient=per_sample,class_scaled=false",
        "merge_mode=train,scoring_views=true,aggregation=mean,detect=single",
        "preset=masked,median_over=model,mixup=1,loss=cross_entropy,detect=careful,covariance=full",
    ],
)
def test_every_option_runs(tmp_path, options):
    result = play(tmp_path, rounds=3, epochs=1, model=Three, method=f"fedelc:warm_up=1,{options}")
    assert result.summary["status"] == "finished"


class Three(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


def test_it_works_on_frozen_features(tmp_path):
    result = play(tmp_path, rounds=4, encoder="rows", model="linear")
    assert [row["stage"] for row in result.rounds][-1] == "correct"
    assert result.rounds[-1]["accuracy"] > 0.8
