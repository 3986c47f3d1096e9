"""fednoro: its equations by hand, its cost, its edge cases, and the shared tester."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from fedwinnow.api import run
from fedwinnow.experiment.result import Result
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.gaussian_mixture import fit_mixtures
from fedwinnow.mathematics.noisy_clients import prepared
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.methods.fednoro import FedNoRo
from fedwinnow.steps.noisy_sites import CLEAN, NOISY, UNKNOWN, nearness
from fedwinnow.testing import MethodTester, toy_data


class TestFednoro(MethodTester):
    method: ClassVar[str] = "fednoro"


class TestFednoroCode(MethodTester):
    method: ClassVar[str] = "fednoro:preset=code"


def a_server(rounds: int = 100, clients: int = 4, **more: Any) -> Server:
    model = FlatModel(nn.Linear(2, 1, bias=False))
    everybody = tuple(range(clients))
    made = Server(clients, everybody, 1.0, rounds, 0, 3, model.payload(), model, **more)
    FedNoRo().start(made)
    return made


def replies(*models: tuple[list[float], int]) -> Any:
    return iter(
        [
            (n, {"weights": torch.tensor(model).float(), "samples": torch.tensor(size)})
            for n, (model, size) in enumerate(models)
        ]
    )


# --- the server's half ------------------------------------------------------------------------------------------------


def test_stage_1_is_the_mean_by_size():
    server = a_server(round=1)
    FedNoRo().merge(server, replies(([0, 0], 1), ([4, 8], 3)))
    assert server.weights["weights"].tolist() == [3, 6]  # eq. (2)


def test_the_ramp_is_gaussian():
    method = FedNoRo()
    shares = {number: method.share(a_server(round=number)) for number in (11, 24, 50, 51, 100)}
    assert shares[11] == pytest.approx(0.8 * math.exp(-5))
    assert shares[24] == pytest.approx(0.8 * math.exp(-5 * (2 / 3) ** 2))  # 13 of 39 steps
    assert shares[50] == shares[51] == shares[100] == 0.8
    assert FedNoRo(ramp=1, largest_share=0.3).share(a_server(round=11)) == 0.3


def test_distance_aware_aggregation():
    server = a_server(round=50)
    server.state["role"] = torch.tensor([CLEAN, CLEAN, NOISY, NOISY])
    # Client 2 is 3 away from client 0, client 3 is 6 away from client 1: D = 1/2 and 1, eq. (6).
    FedNoRo().merge(server, replies(([0, 0], 10), ([20, 0], 10), ([0, 3], 10), ([20, 6], 20)))
    weights = [10, 10, 10 * math.exp(-0.5), 20 * math.exp(-1)]
    expected = [(20 * weights[1] + 20 * weights[3]) / sum(weights), (3 * weights[2] + 6 * weights[3]) / sum(weights)]
    assert server.weights["weights"].tolist() == pytest.approx(expected)  # eq. (7)


def test_distances_of_models_by_hand():
    # Slots: weight (1 x 2), bias (1); then the scale and shift of the normalisation, its running mean and variance.
    model = FlatModel(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)))
    first, second = torch.zeros(7), torch.tensor([3.0, 4.0, 12.0, 0.0, 0.0, 2.0, 5.0])
    # sqrt(9 + 16 + 144): statistics do not count
    assert float(FedNoRo().model_distance(first, second, model)) == 13.0
    assert float(FedNoRo(distance="per_tensor").model_distance(first, second, model)) == 5 + 12 + 0 + 0 + 2 + 5


def test_nearness_by_hand():
    assert nearness(torch.tensor([0.0, 1.0, 2.0])).tolist() == pytest.approx([1.0, math.exp(-0.5), math.exp(-1)])
    assert nearness(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("role", [NOISY, CLEAN], ids=["nobody is clean", "everybody is clean"])
def test_without_a_distance_the_mean_is_by_size(role):
    server = a_server(round=50)
    server.state["role"][:] = role
    FedNoRo().merge(server, replies(([0, 0], 1), ([4, 8], 3)))
    assert server.weights["weights"].tolist() == [3, 6]


def test_noisy_models_that_equal_a_clean_one_count_in_full():
    server = a_server(round=50)
    server.state["role"] = torch.tensor([CLEAN, NOISY, NOISY, CLEAN])
    FedNoRo().merge(server, replies(([1, 1], 1), ([1, 1], 1), ([1, 1], 2)))
    assert server.weights["weights"].tolist() == [1, 1]


def test_noisy_clients_can_be_left_out():
    server = a_server(round=50)
    assert list(FedNoRo(noisy="drop").choose(server)) == [0, 1, 2, 3]  # nobody is known yet
    server.state["role"] = torch.tensor([CLEAN, NOISY, NOISY, CLEAN])
    assert list(FedNoRo(noisy="drop").choose(server)) == [0, 3]
    assert list(FedNoRo().choose(server)) == [0, 1, 2, 3]


def measured(rows: dict[int, list[float | None]]) -> Any:
    for client, row in rows.items():
        yield (
            client,
            {
                "indicator": torch.tensor([value or 0.0 for value in row]),
                "present": torch.tensor([value is not None for value in row]),
            },
        )


def test_clients_are_split_by_their_rows_and_the_silent_one_is_noisy():
    server = a_server(clients=6, round=10)
    rows: dict[int, list[float | None]] = {0: [0.1, None], 1: [0.12, 0.3], 2: [0.1, 0.32], 3: [2.0, 2.2], 4: [2.1, 2.3]}
    FedNoRo().split_clients(server, measured(rows))
    assert server.state["role"].tolist() == [CLEAN, CLEAN, CLEAN, NOISY, NOISY, NOISY]
    assert server.notes["noisy_clients"] == [3, 4]
    assert server.notes["indicator"][0] == [0.1, None]


def test_the_paper_has_one_plain_mixture():  # Section 4.1: "a two-component Gaussian Mixture Model"
    method = FedNoRo()
    assert (method.detect, method.covariance, method.noisy_mean) == ("single", None, "norm")
    code = FedNoRo(preset="code")
    assert (code.detect, code.covariance, code.noisy_mean) == ("vote", None, "sum")
    assert FedNoRo(detect="careful").detect == "careful"


@pytest.mark.parametrize("seed", range(3))
def test_it_splits_as_one_mixture_of_the_runs_seed_does(seed):
    # 20 rows of 6 numbers that single mixtures of different seeds split differently and the careful fit splits rightly.
    generator = torch.Generator().manual_seed(2)
    table = 0.5 + 0.1 * torch.rand(20, 6, generator=generator)
    table[12:] += 0.2 + 3.0 * torch.rand(8, 1, generator=generator) * torch.rand(8, 6, generator=generator)
    server = a_server(clients=20, round=10)
    server.seed = seed
    FedNoRo().split_clients(server, measured(dict(enumerate(table.tolist()))))
    points = prepared(table, torch.ones(20, 6, dtype=torch.bool), normalise=True)
    expected = fit_mixtures(points, 1, seed, covariance="full").larger("norm")[0]
    assert server.state["role"].tolist() == torch.where(expected, NOISY, CLEAN).tolist()
    assert server.notes["agreement"] == 1.0
    FedNoRo(detect="careful").split_clients(server, measured(dict(enumerate(table.tolist()))))
    assert server.state["role"].tolist() == [CLEAN] * 12 + [NOISY] * 8


def test_a_measurement_for_a_study_decides_nothing():
    server = a_server(clients=4, round=5)
    FedNoRo().noisy_clients(server, measured({0: [0.1], 1: [0.2], 2: [5.0], 3: [5.1]}))
    assert server.state["role"].tolist() == [UNKNOWN] * 4
    assert server.notes["noisy_clients"] == [2, 3]


def test_equal_rows_leave_everybody_clean():
    server = a_server(clients=3, round=10)
    FedNoRo(preset="code").split_clients(server, measured({0: [0.5, None], 1: [0.5, None], 2: [0.5, None]}))
    assert server.state["role"].tolist() == [CLEAN] * 3


# --- the client's half ------------------------------------------------------------------------------------------------


def a_client(**more: Any) -> Any:
    model = SimpleNamespace(module=lambda x: x, load=lambda got: None)
    return SimpleNamespace(model=model, forward_samples=0, classes=2, **more)


def test_the_loss_of_a_noisy_client():
    # Student: logits (0, 0) plus log(1/4, 3/4). Teacher: logits (0.8 log 3, 0) / 0.8, that is (3/4, 1/4), eq. (4).
    teacher: Any = SimpleNamespace(module=lambda x: torch.tensor([[0.8 * math.log(3), 0.0]]))
    client = a_client(class_counts=torch.tensor([1, 3]))
    loss = FedNoRo().distilled(client, teacher, 0.25, torch.zeros(1, 2), torch.tensor([0]))
    divergence = 0.75 * math.log(3) + 0.25 * math.log(1 / 3)
    assert float(loss) == pytest.approx(0.25 * divergence + 0.75 * math.log(4))  # eq. (5)
    assert client.forward_samples == 1  # the teacher's


def test_without_logit_adjustment_the_student_is_plain():
    wanted = torch.tensor([[0.5, 0.5]]).log()
    found = FedNoRo(loss="cross_entropy").divergence(wanted, torch.tensor([[0.0, math.log(3)]]), torch.tensor([9, 1]))
    assert float(found) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))


def test_a_student_like_its_teacher_has_no_divergence_once_neither_is_adjusted():
    logits, counts = torch.tensor([[0.4, -1.0, 0.3]]), torch.tensor([9, 1, 5])
    wanted = logits.log_softmax(1)
    assert float(FedNoRo(adjust_student=False).divergence(wanted, logits, counts)) == pytest.approx(0.0, abs=1e-6)
    assert float(FedNoRo().divergence(wanted, logits, counts)) > 0.1


def test_an_absent_class_is_not_learned():
    wanted = torch.tensor([[0.25, 0.25, 0.5]]).log()
    counts = torch.tensor([1, 1, 0])
    logits = torch.zeros(1, 3, requires_grad=True)
    found = FedNoRo().divergence(wanted, logits, counts)
    # Present classes: 2 x 1/4 log(1/4 : 1/2); the absent one adds the constant 1/2 log 1/2.
    assert found.item() == pytest.approx(0.5 * math.log(0.5) + 0.5 * math.log(0.5), abs=1e-6)
    found.backward()
    assert logits.grad is not None
    assert logits.grad[0, 2].abs() < 1e-6
    assert FedNoRo(absent="floor").divergence(wanted, logits, counts).item() > 5  # against a frequency of 1e-8


def test_losses_per_class_by_hand():
    # p of the given label: 1/2, 1/2, 3/4; no sample of class 0.
    logits = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, math.log(3)]])
    given = torch.tensor([1, 1, 1])
    client = a_client(given=given, class_counts=torch.tensor([0, 3]), predict=lambda views: logits)
    reply = FedNoRo().measure(client, {})
    assert reply["indicator"].tolist() == pytest.approx([0.0, (2 * math.log(2) + math.log(4 / 3)) / 3])
    assert reply["present"].tolist() == [False, True]
    assert float(FedNoRo(indicator="confidence").measure(client, {})["indicator"]) == pytest.approx(
        (0.5 + 0.5 + 0.25) / 3
    )
    assert float(FedNoRo(indicator="loss").measure(client, {})["indicator"]) == pytest.approx(
        (2 * math.log(2) + math.log(4 / 3)) / 3
    )


# --- whole runs -------------------------------------------------------------------------------------------------------


def play(folder: Path, **changes: Any) -> Result:
    settings: dict[str, Any] = {
        "data": toy_data(samples=300),
        "clients": 6,
        "participation": 1.0,
        "rounds": 8,
        "epochs": 2,
        "batch_size": 10,
        "optimizer": "sgd:lr=0.1",
        "noise": "uniform:share=0.5,low=0.6,high=0.7",
        "method": "fednoro:warm_up=3",
    }
    return run(out=folder, **(settings | changes))


def test_it_finds_the_noisy_clients(tmp_path):
    result = play(tmp_path)
    noisy = [client for client, rate in enumerate(result.scene.realised) if rate > 0]
    assert result.rounds[2]["noisy_clients"] == noisy
    assert result.summary["detection"]["clients"] == {"precision": 1.0, "recall": 1.0, "exact": True}
    assert [row["stage"] for row in result.rounds] == ["warm_up"] * 3 + ["robust"] * 5


def test_what_it_costs(tmp_path):
    result = play(tmp_path)
    usual, detection, later = result.rounds[0], result.rounds[2], result.rounds[3]
    samples, clients, classes = 300, 6, 3
    noisy = sum(int(result.scene.holdings.sizes[client]) for client in detection["noisy_clients"])
    model = (usual["bytes_up"] - clients * 8) // clients  # a reply is a model and the number of samples
    assert detection["bytes_up"] == usual["bytes_up"] + clients * (4 + 1) * classes  # C numbers and a mask, once
    assert usual["bytes_down"] == later["bytes_down"] == clients * (model + 8 + 4)  # a role and a share
    assert usual["forward_samples"] == usual["backward_samples"] == later["backward_samples"] == 2 * samples
    assert detection["forward_samples"] == 3 * samples
    assert later["forward_samples"] == 2 * (samples + noisy)  # the teacher's passes on noisy clients


def test_with_few_clients_per_round_everybody_is_measured(tmp_path):
    result = play(tmp_path, participation=0.34)
    assert [len(row["participants"]) for row in result.rounds] == [2, 2, 6, 2, 2, 2, 2, 2]
    assert result.rounds[2]["measured"] == [0, 1, 2, 3, 4, 5]


def test_a_study_measures_every_round_of_stage_1(tmp_path):
    result = play(tmp_path, method="fednoro:warm_up=3,measure_every=1")
    assert [row["round"] for row in result.rounds if "indicator" in row] == [1, 2, 3]


@pytest.mark.parametrize(
    "options",
    [
        *(f"noisy={word}" for word in ("drop", "aggregate", "distil", "none")),
        *(f"indicator={word}" for word in ("loss", "confidence", "lid")),
        "loss=cross_entropy,normalise=false,absent=floor,distance=per_tensor",
        "mixup=1,detect=vote,covariance=diagonal",
    ],
)
def test_every_ablation_runs(tmp_path, options):
    result = play(tmp_path, rounds=4, epochs=1, method=f"fednoro:warm_up=2,{options}")
    assert result.summary["status"] == "finished"


def test_no_distillation_is_no_distillation(tmp_path):
    # Without noisy clients' special treatment it is FedAvg with logit adjustment, bit for bit.
    ours = play(tmp_path / "ours", method="fednoro:warm_up=3,noisy=none", rounds=5)
    theirs = play(tmp_path / "theirs", method="logit_adjustment", rounds=5)
    assert ours.curve("loss")[1].tolist() == theirs.curve("loss")[1].tolist()


class Normalised(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


def test_statistics_that_stay_on_site_also_serve_the_teacher(tmp_path):
    seen = []

    class Watching(FedNoRo):
        def distilled(self, client, teacher, share, x, y):  # type: ignore[no-untyped-def]
            seen.append(torch.equal(teacher.statistics, client.state["batch_norm"]))
            return super().distilled(client, teacher, share, x, y)

    play(tmp_path, rounds=4, batch_norm="local", model=Normalised, method=Watching(warm_up=3))
    assert seen
    assert all(seen)
