"""fedgr: its equations by hand, its variants, and the shared tester."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from fedwinnow.all_settings import Training
from fedwinnow.api import run
from fedwinnow.data.dataset import InputStep, Resident
from fedwinnow.federation.client import Client
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import find_method
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.distillation import divergence
from fedwinnow.mathematics.optimizers import Sgd
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.methods import fedgr
from fedwinnow.methods.fedgr import CodeMovingAverage, FedGr, GlobalReviser, MovingAverage, Sieved
from fedwinnow.testing import MethodTester, toy_data


class TestFedGr(MethodTester):
    method: ClassVar[str] = "fedgr:warm_up=4"
    rounds: ClassVar[int] = 8


class TestFedGrCode(MethodTester):
    method: ClassVar[str] = "fedgr:preset=code,warm_up=4"
    rounds: ClassVar[int] = 8


def linear(scale: float = 1.0) -> FlatModel:
    """Logits are the two input numbers times a scale."""
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(scale * torch.eye(2))
    return FlatModel(model)


def site(rows: list[list[float]], given: list[int], epochs: int = 0) -> Client:
    return Client(
        id=0,
        round=1,
        rounds=10,
        features=Resident(torch.tensor(rows).numpy()),
        given=torch.tensor(given),
        classes=2,
        model=linear(),
        training=Training(epochs=epochs),
        optimizer=Sgd(lr=0.1),
        input_step=InputStep("rows", (), ()),
        generator=torch.Generator().manual_seed(0),
        spare=linear,
    )


def sieved(q: list[float], clean_from: float = 0.5) -> Sieved:
    values = torch.tensor(q)
    clean = values >= clean_from
    return Sieved(values, clean, 1 - float(clean.double().mean()), known=True)


def cross_entropy(margin: float) -> float:
    """Of two logits, when that of the label is larger by `margin`."""
    return math.log(1 + math.exp(-margin))


# --- sieving --------------------------------------------------------------------------------------------------------


def test_losses_are_running_means_over_the_visits():  # eqs. 9-10
    client = site([[2.0, 0.0], [0.0, 1.0]], [0, 0])
    method = FedGr()
    method.observe(client)
    assert client.state["mean_loss"].tolist() == pytest.approx([cross_entropy(2), cross_entropy(-1)])
    client.model = linear(3.0)
    method.observe(client)
    expected = [(cross_entropy(2) + cross_entropy(6)) / 2, (cross_entropy(-1) + cross_entropy(-3)) / 2]
    assert client.state["mean_loss"].tolist() == pytest.approx(expected)
    assert client.state["visits"].item() == 2


def server(folder: Path, clients: int = 6, rounds: int = 20) -> Server:
    return Server(
        clients=clients,
        available=tuple(range(clients)),
        participation=0.5,
        rounds=rounds,
        seed=0,
        classes=2,
        weights={"weights": torch.zeros(4)},
        model=linear(),
        vault=Memory(folder),
    )


def answer(losses: list[float]) -> dict[str, torch.Tensor]:
    return {
        "weights": torch.zeros(4),
        "samples": torch.tensor(len(losses)),
        "sample_loss": torch.tensor(losses),
    }


def test_one_mixture_for_the_round_and_its_own_part_for_each_client(tmp_path):
    low, high = [0.1, 0.11, 0.12, 0.13], [5.0, 5.1, 5.2]
    method, host = FedGr(), server(tmp_path)
    method.merge(host, iter([(1, answer([*low, high[0]])), (4, answer(high))]))
    host.settle()
    first, other = method.send(host, 1), method.send(host, 4)
    assert first["clean_probability"].round().tolist() == [1, 1, 1, 1, 0]
    # By itself client 4 would look like a site with two kinds of samples; among the others all of them are noisy.
    assert other["clean_probability"].round().tolist() == [0, 0, 0]
    assert host.notes["noisy_share"] == 0.5
    assert "clean_probability" not in method.send(host, 0)


def test_equal_losses_are_all_clean(tmp_path):
    method, host = FedGr(), server(tmp_path)
    method.merge(host, iter([(0, answer([0.7, 0.7])), (1, answer([0.7]))]))
    host.settle()
    assert method.send(host, 0)["clean_probability"].tolist() == [1, 1]
    assert host.notes["noisy_share"] == 0


@pytest.mark.parametrize("gmm_scope", ["server", "client"])
def test_a_site_that_was_never_sieved_trusts_its_labels(gmm_scope):
    client = site([[1.0, 0.0]], [0])
    found = FedGr(gmm_scope=gmm_scope).sieved(client, {})
    assert found.q.tolist() == [1]
    assert found.rate == 0
    assert not found.known


def test_everybody_is_visited_equally_often_in_the_warm_up(tmp_path):
    host, method = server(tmp_path, clients=6, rounds=20), FedGr()
    assert method.warm_up_rounds(host) == 4  # a fifth of 20, in passes of two rounds
    visits: Counter[int] = Counter()
    for host.round in range(1, 5):
        visits.update(method.choose(host))
    assert visits == dict.fromkeys(range(6), 2)
    host.round = 5
    assert method.choose(host) == host.sample()
    host.round = 1
    assert FedGr(warm_up_sampling="ordinary").choose(host) == host.sample()


# --- refining -------------------------------------------------------------------------------------------------------

# Probability of the larger logit at a margin of 3: 0.953; of 1: 0.731.
SURE, UNSURE = [3.0, 0.0], [1.0, 0.0]


def test_only_sure_predictions_become_pseudo_labels():
    client = site([SURE, UNSURE], [1, 1])
    logits = torch.tensor([SURE, UNSURE])
    assert FedGr().pseudo_labels(client, logits, sieved([0.1, 0.1])).tolist() == [0, -1]
    assert FedGr(confidence=0.7).pseudo_labels(client, logits, sieved([0.1, 0.1])).tolist() == [0, 0]


def refined_loss(method: FedGr, q: list[float], logits: list[list[float]], given: list[int]) -> float:
    """The loss of a batch that is the whole site, predicted with these logits by global and local model alike."""
    client = site(logits, given)
    found, scores = sieved(q), torch.tensor(logits)
    targets = method.refined_targets(client, method.pseudo_labels(client, scores, found), found)
    return float(method.refined_loss(client, targets.pseudo, targets.share, scores, client.given))


def test_labels_are_refined_sample_by_sample():  # eq. 11, r_k = 2/3 < beta
    # Clean: its label 1. Noisy and sure: 0.2 of label 1 and 0.8 of label 0. Noisy and unsure: 0.4 of label 1.
    loss = refined_loss(FedGr(), [0.9, 0.2, 0.4], [UNSURE, SURE, UNSURE], [1, 1, 1])
    by_hand = cross_entropy(-1) + 0.2 * cross_entropy(-3) + 0.8 * cross_entropy(3) + 0.4 * cross_entropy(-1)
    assert loss == pytest.approx(by_hand / 3)


def test_on_a_noisy_client_only_pseudo_labels_count():  # eq. 11, r_k = 4/5 >= beta
    q, logits = [0.9, 0.2, 0.4, 0.1, 0.1], [SURE, SURE, UNSURE, UNSURE, UNSURE]
    assert refined_loss(FedGr(), q, logits, [1] * 5) == pytest.approx(2 * cross_entropy(3) / 5)
    dropped = refined_loss(FedGr(pseudo_missing="drop"), q, logits, [1] * 5)
    assert dropped == pytest.approx(cross_entropy(3))
    kept = refined_loss(FedGr(keep_clean=True), q, logits, [1] * 5)
    assert kept == pytest.approx((cross_entropy(-3) + cross_entropy(3)) / 5)


def test_a_dropped_sample_leaves_the_mean():
    loss = refined_loss(FedGr(pseudo_missing="drop"), [0.9, 0.2, 0.4], [UNSURE, SURE, UNSURE], [1, 1, 1])
    assert loss == pytest.approx((cross_entropy(-1) + 0.2 * cross_entropy(-3) + 0.8 * cross_entropy(3)) / 2)


def test_the_code_weighs_whole_batches():
    loss = refined_loss(FedGr(weighting="batch"), [0.9, 0.2, 0.4], [UNSURE, SURE, UNSURE], [1, 1, 1])
    of_given = (cross_entropy(-1) + cross_entropy(-3) + cross_entropy(-1)) / 3
    of_pseudo = (cross_entropy(-1) + cross_entropy(3) + 0) / 3  # a clean sample's pseudo-label is its own
    assert loss == pytest.approx(0.5 * of_given + 0.5 * of_pseudo)


@pytest.mark.parametrize("missing", ["zero", "drop"])
def test_a_batch_without_any_target_still_has_a_slope(missing):
    client, method = site([UNSURE] * 2, [1, 1]), FedGr(pseudo_missing=missing)
    logits = torch.tensor([UNSURE] * 2, requires_grad=True)
    nothing = torch.tensor([-1, -1])
    loss = method.refined_loss(client, nothing, torch.zeros(2), logits, client.given)
    loss.backward()
    assert float(loss.detach()) == 0
    assert logits.grad is not None
    assert logits.grad.abs().sum() == 0


def test_pseudo_labels_of_the_code_outlive_the_confidence():
    client = site([SURE, UNSURE], [1, 1])
    method = FedGr(persistent_pseudo=True, keep_clean=True)
    assert method.pseudo_labels(client, torch.tensor([SURE, UNSURE]), sieved([0.1, 0.9])).tolist() == [0, 1]
    # Unsure now, and the second one is no longer clean: both keep what they had.
    assert method.pseudo_labels(client, torch.tensor([UNSURE, UNSURE]), sieved([0.1, 0.1])).tolist() == [0, 1]
    fresh = FedGr(keep_clean=True)
    assert fresh.pseudo_labels(client, torch.tensor([UNSURE, UNSURE]), sieved([0.1, 0.1])).tolist() == [-1, -1]


def test_reliable_samples_accumulate():  # eq. 16
    client, method = site([UNSURE] * 3, [1] * 3), FedGr()
    method.refined_labels(client, torch.tensor([SURE, UNSURE, UNSURE]), sieved([0.1, 0.1, 0.1]))
    assert client.state["reliable"].tolist() == [True, False, False]
    method.refined_labels(client, torch.tensor([UNSURE] * 3), sieved([0.1, 0.9, 0.1]))
    assert client.state["reliable"].tolist() == [True, True, False]
    unknown = Sieved(torch.ones(3), torch.ones(3, dtype=torch.bool), 0.0, known=False)
    method.refined_labels(client, torch.tensor([UNSURE] * 3), unknown)
    assert client.state["reliable"].tolist() == [True, True, False]


# Three of five samples are clear to a model of scale 3 (0.953 at a margin of 3) and none is to one of scale 1.
CLEAR, UNCLEAR = [1.0, 0.0], [0.1, 0.0]


def said_to(scale: float, q: list[float]) -> dict[str, torch.Tensor]:
    return {"weights": linear(scale).weights.clone(), "clean_probability": torch.tensor(q)}


def teacher_after(method: FedGr, *visits: tuple[bool, float, list[float]]) -> float:
    """The teacher's scale after visits (warm-up or not, scale of the global model, q), without a local step."""
    client = site([CLEAR] * 3 + [UNCLEAR] * 2, [1] * 5)
    for early, scale, q in visits:
        (method.train_early if early else method.train)(client, said_to(scale, q))
    return float(client.state["teacher"][0])


NOISY, CLEAN = [0.1] * 5, [0.9] * 5


def test_the_warm_up_makes_no_label_reliable():  # eqs. 15-16: D_r is empty when label refining begins
    # In the warm-up the sieve finds all five clean and the global model is sure of three. Then every sample is noisy
    # and none is sure: |D_r| / |D| = 0 < mu, so the teacher becomes the global model. Had the warm-up filled D_r, the
    # teacher would keep 0.9 of what it was.
    assert teacher_after(FedGr(), (True, 3.0, CLEAN), (False, 1.0, NOISY)) == 1.0
    assert teacher_after(FedGr(preset="code"), (True, 3.0, CLEAN), (False, 1.0, NOISY)) == 1.0
    # A visit after the warm-up does count: three of five are enough from then on.
    later = teacher_after(FedGr(), (True, 3.0, CLEAN), (False, 3.0, NOISY), (False, 1.0, NOISY))
    assert later == pytest.approx(0.9 * 3.0 + 0.1 * 1.0)


def test_a_label_of_the_warm_up_is_no_pseudo_label_of_later():
    client, method = site([CLEAR] * 3 + [UNCLEAR] * 2, [1] * 5), FedGr(persistent_pseudo=True)
    method.train_early(client, said_to(3.0, NOISY))
    assert "pseudo" not in client.state
    method.train(client, said_to(3.0, NOISY))
    assert client.state["pseudo"].tolist() == [0, 0, 0, -1, -1]


def test_whether_this_visit_counts_before_the_teacher_is_revised():
    # The first visit after the warm-up finds three pseudo-labels: in the paper they come before the revision (Algorithm
    # 2, lines 4 and 5), in the code after it.
    visits = ((True, 1.0, NOISY), (False, 3.0, NOISY))
    assert teacher_after(FedGr(), *visits) == pytest.approx(0.9 * 1.0 + 0.1 * 3.0)
    assert teacher_after(FedGr(reset_by="last_visit"), *visits) == 3.0


def test_without_refining_only_clean_samples_are_trained_on():
    client, found = site([UNSURE] * 3, [1] * 3), sieved([0.9, 0.1, 0.8])
    targets = FedGr(refine=False).refined_targets(client, torch.tensor([-1, 0, -1]), found)
    assert targets.rows is not None
    assert targets.rows.tolist() == [0, 2]
    assert targets.share.tolist() == [1, 1, 1]


# --- teacher and anchor ---------------------------------------------------------------------------------------------


def test_the_teacher_is_revised_and_follows():  # eq. 12
    average = MovingAverage(linear(), torch.full((4,), 10.0))
    average.move(torch.zeros(4), 0.9)
    assert average.weights.tolist() == pytest.approx([9.0] * 4)
    average.follow(torch.full((4,), 109.0), 0.99)
    assert average.weights.tolist() == pytest.approx([10.0] * 4)
    average.move(torch.full((4,), 5.0), 0.0)
    assert average.weights.tolist() == [5.0] * 4


def test_the_code_makes_every_update_twice_and_starts_with_copies():
    twice = CodeMovingAverage(linear(), torch.zeros(4), repeats=2)
    twice.follow(torch.ones(4), 0.99)
    assert twice.weights.tolist() == pytest.approx([1 - 0.99**2] * 4)
    rising = CodeMovingAverage(linear(), torch.zeros(4), rising=True)
    rising.follow(torch.full((4,), 8.0), 0.99)  # keeps 0
    rising.follow(torch.full((4,), 4.0), 0.99)  # keeps 1/2
    assert rising.weights.tolist() == pytest.approx([6.0] * 4)
    assert rising.steps == 2


@pytest.mark.parametrize(
    ("rate", "reliable", "strict", "kept"),
    [
        (0.6, 0.0, False, 0.9),  # not noisy enough
        (0.8, 0.4, False, 0.0),  # 0.8 >= beta and 2/5 < mu
        (0.8, 0.6, False, 0.9),  # enough reliable labels
        (0.8, 0.5, False, 0.9),  # exactly mu is enough
        (0.8, 0.4, True, 0.9),  # exactly beta is not above it
        (1.0, 0.4, True, 0.0),
    ],
)
def test_when_the_global_model_replaces_the_teacher(rate, reliable, strict, kept):  # eq. 15
    assert FedGr(strict_reset=strict).kept_by_revision(rate, reliable) == kept


def test_in_the_warm_up_the_teacher_is_the_global_model():  # eq. 15, t < alpha
    assert teacher_after(FedGr(), (True, 3.0, CLEAN), (True, 2.0, CLEAN)) == 2.0


def test_the_divergence_is_from_teacher_to_student():  # eqs. 13, 17
    # At temperature 0.5 logits double: (ln 3 / 2, 0) is (3/4, 1/4), and (0, 0) is (1/2, 1/2).
    teacher, student = torch.tensor([[math.log(3) / 2, 0.0]]), torch.zeros(1, 2)
    expected = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert float(divergence(teacher, student, 0.5)) == pytest.approx(expected)
    both = torch.cat([teacher, student])
    assert float(divergence(both, torch.zeros(2, 2), 0.5)) == pytest.approx(expected / 2)


def test_the_teacher_answers_before_training_and_follows_after():
    client = site([SURE, [0.0, 3.0]], [0, 1], epochs=1)
    method = FedGr()
    client.state["teacher"] = torch.zeros(4)
    got = {"weights": linear().weights.clone(), "clean_probability": torch.ones(2)}
    method.train(client, got)
    # One step: 0.99 (0.9 * 0 + 0.1 * global) + 0.01 trained.
    expected = 0.99 * 0.1 * got["weights"] + 0.01 * client.model.weights
    torch.testing.assert_close(client.state["teacher"], expected)
    assert client.state["teacher_steps"].item() == 1


@pytest.mark.parametrize("terms", ["none", "b", "r"])
def test_the_loss_is_the_sum_of_its_terms(terms):  # eq. 4
    rows = [SURE, [0.0, 1.0]]
    client = site(rows, [0, 1])
    method = FedGr(lambda_b=2.0, lambda_r=3.0)
    targets = method.refined_targets(client, torch.tensor([0, 1]), sieved([1.0, 1.0]))
    x, every = torch.tensor(rows), torch.arange(2)
    expected = (cross_entropy(3) + cross_entropy(1)) / 2
    if terms == "b":
        targets.teacher = torch.zeros(2, 2)
        expected += 2 * float(divergence(torch.zeros(2, 2), x, 0.5))  # logits are the input itself
    if terms == "r":
        targets.anchor = torch.ones(2, 2)
        expected += 3 * float(divergence(torch.ones(2, 2), x, 0.5))  # so are the features
    assert float(method.loss_of(client, targets, every, x, client.given).detach()) == pytest.approx(expected)


# --- whole runs -----------------------------------------------------------------------------------------------------


def play(folder: Path, method: Any, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "data": toy_data(),
        "clients": 6,
        "participation": 0.5,
        "rounds": 6,
        "epochs": 2,
        "batch_size": 8,
        "noise": "uniform:low=0.3,high=0.5",
    }
    return run(out=folder, method=method, **(settings | changes))


def test_the_cost_is_that_of_the_paper(tmp_path):
    ours, plain = play(tmp_path / "a", "fedgr:warm_up=4"), play(tmp_path / "b", "fedavg")
    participants = [3 * 20] * 6  # samples per round: 120 over 6 clients
    for number, (row, bare, n) in enumerate(zip(ours.rounds, plain.rounds, participants, strict=True)):
        passes = 2 + 2 if number < 4 else 2 + 3  # E + 3 forward passes, one less while there is no teacher
        assert row["forward_samples"] == passes * n
        assert row["backward_samples"] == 2 * n
        assert row["bytes_up"] == bare["bytes_up"] + 4 * n
        sieved_before = number >= 2  # the first pass has nothing to tell yet
        assert row["bytes_down"] == bare["bytes_down"] + 4 * n * sieved_before


def test_the_code_computes_the_anchor_at_every_step(tmp_path):
    rows = play(tmp_path, "fedgr:anchor=online,warm_up=4").rounds
    assert rows[-1]["forward_samples"] == (2 + 3 + 2) * 60


def test_no_loss_of_a_sample_leaves_a_site_that_sieves_itself(tmp_path):
    folder = play(tmp_path, "fedgr:gmm_scope=client").folder
    sent = json.loads((folder / "ledger.json").read_text())["sites"]
    assert all(set(site) == {"weights", "samples"} for site in sent.values())


def test_a_frozen_sieve_asks_for_no_losses_after_the_warm_up(tmp_path):
    rows = play(tmp_path, "fedgr:freeze_sieve=true,warm_up=4").rounds
    assert rows[3]["bytes_up"] - rows[5]["bytes_up"] == 4 * 60
    assert rows[5]["forward_samples"] == (2 + 2) * 60


@pytest.mark.parametrize(
    "options",
    [
        "sieve=local,gmm_scope=client",
        "sieve=local",
        "refine=false",
        "lambda_b=0",
        "lambda_r=0",
        "teacher=online",
        "weak=strong",
        "strong=crop_flip",
        "warm_up_sampling=ordinary",
        "pseudo_missing=drop",
        "clean_from=1",  # nothing is clean
    ],
)
def test_every_variant_plays(tmp_path, options):
    assert play(tmp_path, f"fedgr:warm_up=2,{options}").summary["status"] == "finished"


def test_a_copy_of_the_file_is_a_method_of_ones_own(tmp_path):
    copy = tmp_path / "mine.py"
    copy.write_text(Path(fedgr.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    assert find_method(f"{copy}:preset=code").values() == FedGr(preset="code").values()


@dataclass(frozen=True)
class PaperAlone(GlobalReviser):
    """The class of the paper without the variants."""

    name: ClassVar[str] = "paper_alone"


def test_the_class_of_the_paper_is_the_whole_method_of_the_paper(tmp_path):
    alone, usual = (
        play(tmp_path / name, method, rounds=6).folder / "state.safetensors"
        for name, method in {"a": PaperAlone(warm_up=2, confidence=0.4), "b": "fedgr:warm_up=2,confidence=0.4"}.items()
    )
    assert alone.read_bytes() == usual.read_bytes()


def test_variants_differ(tmp_path):
    variants = ("", ",lambda_r=0", ",lambda_b=0", ",teacher=online", ",refine=false", ",preset=code")
    models = {
        (play(tmp_path / str(place), f"fedgr:warm_up=2{more}").folder / "state.safetensors").read_bytes()
        for place, more in enumerate(variants)
    }
    assert len(models) == len(variants)


def test_held_out_samples_are_judged_too(tmp_path):
    result = play(tmp_path, "fedgr:warm_up=2", validation=0.25)
    assert 0 <= result.summary["detection"]["samples"]["auroc"] <= 1
    assert "label_precision" in result.rounds[-1]


def test_pseudo_labels_are_counted(tmp_path):
    rows = play(tmp_path, "fedgr:warm_up=2,confidence=0", rounds=4).rounds
    assert "pseudo_labels" not in rows[0]
    assert rows[3]["pseudo_labels"] > 0
    assert 0 <= rows[3]["pseudo_label_precision"] <= 1
