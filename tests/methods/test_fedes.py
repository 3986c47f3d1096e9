"""fedes: its equations by hand, its options, its cost, and the shared tester."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from rich.console import Console
from scipy.stats import wasserstein_distance
from torch import nn

from fedwinnow.api import run
from fedwinnow.commands.progress import Bar, show_summary
from fedwinnow.errors import UsageError
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import find_method
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.methods import fedes
from fedwinnow.methods.fedes import (
    FederatedEarlyStopping,
    FedES,
    ascending,
    earth_movers_distance,
    packed,
    signed_criticality,
    unpacked,
)
from fedwinnow.testing import MethodTester, toy_data

BEFORE = [1.0, 2.0, 0.5]
LOCAL = {0: [2.0, 2.0, 0.5], 1: [1.0, 3.0, 0.5], 2: [1.5, 1.5, 1.5]}
SAMPLES = {0: 10, 1: 10, 2: 20}


class TestFedes(MethodTester):
    method: ClassVar[str] = "fedes"


class TestFedesSensible(MethodTester):
    method: ClassVar[str] = "fedes:preset=sensible"


# --- by hand: three clients, three parameters -------------------------------------------------------------------------


def a_server(folder, participation: float = 1.0, rounds: int = 20) -> Server:
    model = FlatModel(nn.Linear(2, 1))
    weights = {"weights": torch.tensor(BEFORE)}
    return Server(3, (0, 1, 2), participation, rounds, 0, 2, weights, model, vault=Memory(folder))


def reply_of(client: int) -> dict[str, torch.Tensor]:
    return {"weights": torch.tensor(LOCAL[client]), "samples": torch.tensor(SAMPLES[client])}


def one_round(method: FedES, server: Server, silent: tuple[int, ...] = ()) -> Any:
    """Play a round in which every client answers with its model of above; what was asked is given back."""
    server.round += 1
    server.notes = {}
    talk = method.exchanges(server)
    exchange = next(talk)
    server.settle()
    sent = {client: exchange.send(client) for client in exchange.clients}
    with pytest.raises(StopIteration):
        talk.send(iter([(client, reply_of(client)) for client in exchange.clients if client not in silent]))
    server.settle()
    return exchange, sent


def estimated(folder, silent: tuple[int, ...] = (), **options: Any) -> Server:
    """The server after stage 1 and one round of stage 2."""
    method, server = FedES(s1=1, **options), a_server(folder)
    method.start(server)
    one_round(method, server, silent)
    one_round(method, server)
    return server


# g_1 = [1, 0, 0], g_2 = [0, 2, 0], g_3 = [.5, 1, .5]; the mean model is [1.5, 2, 1], so g_s = [.5, 0, .25].
# Earth mover's distances to g_s: (0 + .25 + .5) / 3, (0 + .25 + 1.5) / 3, (.5 + .25 + .5) / 3, all signs +.
# The mean of the sorted g_n is [1/6, 1/6, 4/3]; distances to it: -2/9, 1/3, 1/3.
# Agreement (cosine of a signed product with the others'): .71, -.67, -.55, so the distances are the wrong way round.
@pytest.mark.parametrize(
    ("options", "quality"),
    [
        ({}, [0, 1, 0.5]),
        ({"estimator": "emd"}, [0, 1, 0.5]),
        ({"estimator": "mean"}, [0, 1, 1]),
        ({"reference": "mean_local"}, [0, 1, 1]),
        ({"orientation": "auto"}, [1, 0, 0.5]),
        ({"rho_floor": 0.2}, [0.2, 1, 0.5]),
    ],
)
def test_quality_by_hand(options, quality, tmp_path):
    assert estimated(tmp_path, **options).state["quality"].tolist() == pytest.approx(quality)


def test_the_sign_and_the_distance_without_it(tmp_path):
    # With the mean of the local distributions as reference, distances without a sign are 2/9, 1/3, 1/3.
    server = estimated(tmp_path, estimator="emd", reference="mean_local")
    assert server.state["quality"].tolist() == pytest.approx([0, 1, 1])
    distances = FedES(reference="mean_local").distances
    method, server = FedES(s1=1, reference="mean_local"), a_server(tmp_path / "again")
    method.start(server)
    one_round(method, server)
    assert distances(server, [0, 1, 2], server.state["pooled"]).tolist() == pytest.approx([-2 / 9, 1 / 3, 1 / 3])


def test_masks_and_weights_by_hand(tmp_path):
    method, server = FedES(s1=1), a_server(tmp_path)
    method.start(server)
    exchange, sent = one_round(method, server)
    assert exchange.ask == "train"
    assert server.weights["weights"].tolist() == pytest.approx([1.5, 2.0, 1.0])  # FedAvg
    exchange, sent = one_round(method, server)
    assert exchange.ask == "train_selectively"
    assert server.notes["quality"] == [0, 1, 0.5]
    # eqs. (14)-(15): nothing, all three, and 1.5 of 3, that is the largest one
    masks = [unpacked(sent[client]["mask"], 3).int().tolist() for client in range(3)]
    assert masks == [[0, 0, 0], [1, 1, 1], [0, 1, 0]]
    # eq. (18): weights 10 * 0, 10 * 1 and 20 * 0.5
    assert server.weights["weights"].tolist() == pytest.approx([1.25, 2.25, 1.0])
    _, sent = one_round(method, server)
    assert all(set(payload) == {"weights"} for payload in sent.values())  # quality and mask were sent once


def test_where_only_quality_zero_answers_the_model_stays(tmp_path):
    method, server = FedES(s1=1), a_server(tmp_path)
    method.start(server)
    one_round(method, server)
    one_round(method, server, silent=(1, 2))
    assert server.weights["weights"].tolist() == pytest.approx([1.5, 2.0, 1.0])


def test_who_failed_when_it_mattered_is_average_and_gets_the_mask_of_the_aggregate(tmp_path):
    method, server = FedES(s1=1), a_server(tmp_path)
    method.start(server)
    one_round(method, server, silent=(2,))
    _, sent = one_round(method, server)
    # Without client 2 the mean model is [1.5, 2.5, .5]: g_s = [.5, 1, 0], distances 1/2 (1/3 + ...): min 0, max 1.
    assert server.state["quality"].tolist() == pytest.approx([0, 1, 0.5])
    assert unpacked(sent[2]["mask"], 3).int().tolist() == [0, 1, 0]


def test_with_few_clients_a_round_the_last_pass_is_one_round_of_all(tmp_path):
    method, server = FedES(s1=1), a_server(tmp_path, participation=1 / 3)
    method.start(server)
    visited = []
    for _ in range(3):
        assert server.weights["weights"].tolist() == BEFORE
        exchange, sent = one_round(method, server)
        visited += exchange.clients
        assert all(payload["weights"].tolist() == BEFORE for payload in sent.values())
    assert sorted(visited) == [0, 1, 2]
    assert server.weights["weights"].tolist() == pytest.approx([1.5, 2.0, 1.0])
    one_round(method, server)
    assert server.state["quality"].tolist() == pytest.approx([0, 1, 0.5])


@pytest.mark.parametrize(
    ("s1", "rounds", "participation", "length"),
    [(None, 200, 1.0, 10), (None, 5, 1.0, 1), (7, 200, 1.0, 7), (0, 200, 1.0, 1), (4, 200, 1 / 3, 6)],
)
def test_length_of_the_first_stage(s1, rounds, participation, length, tmp_path):
    assert FedES(s1=s1).first_stage(a_server(tmp_path, participation, rounds)) == length


def test_selecting_clients_keeps_those_of_quality_one_half_and_more(tmp_path):
    server = estimated(tmp_path, stage2="select")
    assert FedES(stage2="select").choose(server) == [1, 2]


def test_one_client_has_quality_one(tmp_path):
    method, server = FedES(s1=1), a_server(tmp_path)
    server.available = (0,)
    method.start(server)
    one_round(method, server)
    one_round(method, server)
    assert server.notes["quality"] == [1, None, None]


# --- criticality and masks -------------------------------------------------------------------------------------------

values = some.lists(some.floats(0, 100, width=32), min_size=1, max_size=40)


def test_criticality_is_update_times_weight():
    before, after = torch.tensor([1.0, 2.0, -3.0, 9.0]), torch.tensor([2.0, 1.0, -3.5, 0.0])
    everything = torch.tensor([True, True, True])  # the last number is no parameter
    assert signed_criticality(after, before, everything).tolist() == [1.0, -2.0, 1.5]
    assert signed_criticality(after, before, torch.tensor([True, False, True])).tolist() == [1.0, 1.5]


def test_huge_weights_give_a_number():
    huge = torch.tensor([1e30])
    assert signed_criticality(-huge, huge, torch.tensor([True])).isfinite().all()


@given(first=values, data=some.data())
def test_the_distance_is_that_of_scipy(first, data):
    second = data.draw(some.lists(some.floats(0, 100, width=32), min_size=len(first), max_size=len(first)))
    ours = earth_movers_distance(ascending(torch.tensor(first)), ascending(torch.tensor(second)))
    assert ours == pytest.approx(wasserstein_distance(first, second), abs=1e-4)


def test_of_large_models_every_so_manieth_parameter_is_taken(monkeypatch):
    monkeypatch.setattr(fedes, "MOST_POINTS", 4)
    assert ascending(torch.tensor([9.0, 1, 5, 1, 7, 1, 3, 1])).tolist() == [3, 5, 7, 9]


@given(mask=some.lists(some.booleans(), min_size=1, max_size=40))
def test_a_mask_travels_as_bits(mask):
    bits = packed(torch.tensor(mask))
    assert bits.dtype == torch.uint8
    assert len(bits) == -(-len(mask) // 8)
    assert unpacked(bits, len(mask)).tolist() == mask


# --- whole runs -------------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "clients": 6,
    "participation": 1.0,
    "rounds": 3,
    "epochs": 2,
    "batch_size": 8,
    "optimizer": "sgd:lr=0.1,momentum=0.9,weight_decay=0.0005",
    "noise": "gaussian:mean=0.4",
}


def play(folder, method: Any, **changes: Any):
    return run(out=folder, **({"data": toy_data(), "method": method} | SMALL | changes))


def model_of(result) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    found = load_file(result.folder / "state.safetensors")
    return {name: value for name, value in found.items() if name.startswith("model.")}


@pytest.mark.parametrize(
    "options",
    [
        "mask=per_round",
        "mask=per_step",
        "mask=per_step,frozen=gradient,weights_only=true",
        "weights_only=true",
        "start_from=scratch",
        "stage2=select",
        "stage2=segd",
        "stage2=naagg",
        "s1=0",
    ],
)
def test_every_reading_runs_and_differs_from_the_default(options, tmp_path):
    result = play(tmp_path / "other", f"fedes:{options}")
    assert result.summary["status"] == "finished"
    usual = model_of(play(tmp_path / "usual", "fedes"))
    assert any(not torch.equal(value, usual[name]) for name, value in model_of(result).items())


def test_a_copy_of_the_file_is_a_method_of_ones_own(tmp_path):
    copy = tmp_path / "mine.py"
    copy.write_text(Path(fedes.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    assert find_method(f"{copy}:preset=sensible").values() == FedES(preset="sensible").values()


@dataclass(frozen=True)
class PaperAlone(FederatedEarlyStopping):
    """The class of the paper without the other readings."""

    name: ClassVar[str] = "paper_alone"


def test_the_class_of_the_paper_is_the_whole_method_of_the_paper(tmp_path):
    alone, usual = (play(tmp_path / "a", PaperAlone(s1=1)), play(tmp_path / "b", "fedes:s1=1"))
    theirs = model_of(usual)
    assert all(torch.equal(value, theirs[name]) for name, value in model_of(alone).items())
    assert alone.rounds[1]["quality"] == usual.rounds[1]["quality"]


def test_without_a_second_stage_it_is_fedavg_to_the_last_bit(tmp_path):
    ours, theirs = model_of(play(tmp_path / "a", "fedes:stage2=none")), model_of(play(tmp_path / "b", "fedavg"))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_cost_is_that_of_fedavg_and_one_mask_per_client(tmp_path):
    result = play(tmp_path, "fedes")
    parameters = sum(value.numel() for value in model_of(result).values())
    model, visits = 4 * parameters, 6 * 3
    cost = result.summary["cost"]
    assert cost["bytes_up"] == visits * (model + 8)  # and the number of samples
    assert cost["bytes_down"] == visits * model + 6 * (4 + -(-parameters // 8))  # quality and mask, once
    assert cost["backward_samples"] == 3 * 2 * 120  # rounds, epochs, samples
    per_round = play(tmp_path / "per round", "fedes:mask=per_round").summary["cost"]
    assert per_round["bytes_down"] == visits * model + 6 * 4
    assert per_round["backward_samples"] == 3 * 2 * 120 + 2 * 120  # a gradient over everything per round of stage 2


def test_the_evaluation_compares_quality_with_the_truth_and_warns(tmp_path):
    result = play(tmp_path, "fedes:s1=1")
    stated = [row for row in result.rounds if "quality" in row]
    assert [row["round"] for row in stated] == [2]
    quality, true = torch.tensor(stated[0]["quality"]), 1 - torch.tensor(result.scene.realised)
    found = result.summary["detection"]["quality"]
    assert found["pearson"] == pytest.approx(
        float(torch.corrcoef(torch.stack([quality.double(), true]))[0, 1]), abs=1e-6
    )
    assert found["mse"] == pytest.approx(float((quality - true).square().mean()), abs=1e-6)
    assert stated[0]["quality_correlation"] == found["pearson"]
    assert play(tmp_path / "other", "fedavg").summary["detection"]["quality"] is None


@pytest.mark.parametrize(("correlation", "warned"), [(-0.4, True), (0.4, False), (None, False)])
def test_a_backward_ranking_is_said_aloud(correlation, warned, tmp_path):
    summary = json.loads(json.dumps(play(tmp_path, "fedes").summary))
    summary["detection"]["quality"] = {"pearson": correlation, "mse": 0.1}
    console = Console(file=io.StringIO(), width=200)
    show_summary(summary, tmp_path, console)
    assert ("BACKWARDS" in console.file.getvalue()) == warned
    console = Console(file=io.StringIO(), width=200)
    Bar(console).round({"round": 1, "seconds": 1.0, "accuracy": 0.5, "quality_correlation": correlation})
    assert ("BACKWARDS" in console.file.getvalue()) == warned


@pytest.mark.parametrize(
    ("estimator", "other", "note"),
    [("loss_drop", "fair", "loss_drop"), ("shapley", "s_fedavg:measure=accuracy", "shapley")],
)
def test_the_other_rows_of_table_4_are_what_those_methods_make_of_the_same_models(estimator, other, note, tmp_path):
    settings = {"data": toy_data(), "clients": 4, "participation": 1.0, "epochs": 1, "trusted": 0.4}
    settings |= {"noise": "uniform:share=0.5,low=0.6,high=0.9"}
    theirs = run(out=tmp_path / "theirs", method=other, rounds=1, **settings).rounds[0][note]
    ours = run(out=tmp_path / "ours", method=f"fedes:s1=1,estimator={estimator}", rounds=2, **settings).rounds[1]
    gains = torch.tensor([theirs[str(client)] for client in range(4)])
    assert ours["quality"] == pytest.approx(((gains - gains.min()) / (gains.max() - gains.min())).tolist(), abs=1e-5)


def test_estimators_on_trusted_samples_are_refused_without_them(tmp_path):
    with pytest.raises(UsageError, match=r"add trusted=0\.2"):
        run(out=tmp_path, data=toy_data(), method="fedes:estimator=shapley")


class TestFedesOnTrustedSamples(MethodTester):
    method: ClassVar[str] = "fedes:estimator=shapley,preset=sensible"
    settings: ClassVar[dict[str, Any]] = {"trusted": 0.2}
