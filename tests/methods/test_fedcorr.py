"""fedcorr: its equations by hand, and the shared tester."""

from __future__ import annotations

import re
import warnings
from typing import ClassVar

import pytest
import torch

from by_hand import conversation, identity, one_client, one_server
from fedwinnow.errors import UsageError
from fedwinnow.mathematics.intrinsic_dimension import local_intrinsic_dimensionality
from fedwinnow.methods.fedcorr import FedCorr
from fedwinnow.steps.site_labels import sample_losses
from fedwinnow.testing import MethodTester, toy_data


class TestFedcorr(MethodTester):
    method: ClassVar[str] = "fedcorr"
    rounds: ClassVar[int] = 8

    def test_a_hold_out_does_not_disturb_the_verdict(self, tmp_path):
        assert self.play(tmp_path, data=toy_data(), validation=0.2).summary["status"] == "finished"


class TestFedcorrCode(MethodTester):
    method: ClassVar[str] = "fedcorr:preset=code"
    rounds: ClassVar[int] = 8


class TestFedcorrWithLogitAdjustment(MethodTester):
    method: ClassVar[str] = "fedcorr:loss=logit_adjustment"
    rounds: ClassVar[int] = 8


# --- stages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        # CIFAR-10: 5 passes are 50 rounds, then 500, then 450
        (FedCorr(), (50, 500)),
        (FedCorr(passes=3, fine_tune_rounds=7), (30, 7)),
        (FedCorr(passes=3, fine_tune=False), (30, 0)),
        (FedCorr(passes=3, usual=False), (30, 970)),
        (FedCorr(passes=0), (0, 526)),
        (FedCorr(passes=200), (1000, 0)),
        (FedCorr(passes=5, fine_tune_rounds=2000), (50, 950)),
    ],
)
def test_lengths_of_the_stages(tmp_path, method, expected):
    assert method.lengths(one_server(tmp_path, clients=100, rounds=1000, participation=0.1)) == expected


def test_without_both_later_stages_there_is_nothing_to_do():
    with pytest.raises(UsageError, match=r"fine_tune=false and usual=false were given.*allowed: one of them"):
        FedCorr(fine_tune=False, usual=False)


class Federation:
    """Four clients, two per round, with answers that are known beforehand."""

    def __init__(self, folder, method, lid=(1.0, 1.1, 9.0, 9.2), rate=(0.0, 0.0, 0.4, 0.6), rounds=6):
        self.method, self.lid, self.rate = method, lid, rate
        self.server = one_server(folder, rounds=rounds)
        method.start(self.server)
        self.sent = []

    def answer(self, ask, client, sent):
        self.sent.append((self.server.round, ask, client, sent))
        if ask == "correct_labels":
            return {"rate": torch.tensor([self.rate[client]]), "relabelled": torch.tensor([1])}
        if ask == "relabel_all":
            return {"relabelled": torch.tensor([2])}
        reply = {"weights": sent["weights"] + 1 + client, "samples": torch.tensor(10)}
        return reply | ({"lid": torch.tensor([self.lid[client]])} if ask == "train_and_measure" else {})

    def play(self, *rounds):
        asked = []
        for self.server.round in rounds:
            asked += conversation(self.method, self.server, self.answer)
        return asked


def test_every_client_is_visited_exactly_once_per_pass(tmp_path):
    asked = Federation(tmp_path, FedCorr(passes=2)).play(1, 2, 3, 4)
    visits = [clients for ask, clients in asked if ask == "train_and_measure"]
    assert all(len(clients) == 1 for clients in visits)
    assert sorted(visits[:4]) == sorted(visits[4:]) == [[0], [1], [2], [3]]
    assert [ask for ask, _ in asked].count("correct_labels") == 2  # at the end of each pass


def test_one_at_a_time_the_model_is_handed_on(tmp_path):
    play = Federation(tmp_path, FedCorr(passes=1))
    play.play(1)
    (_, _, first, _), (_, _, second, sent) = play.sent
    assert float(sent["weights"][0]) == 1 + 1 + first
    assert float(play.server.weights["weights"][0]) == 1 + 1 + first + 1 + second


def test_in_groups_it_is_averaged(tmp_path):
    play = Federation(tmp_path, FedCorr(passes=1, group=2))
    play.play(1)
    (_, _, first, _), (_, _, second, sent) = play.sent
    assert float(sent["weights"][0]) == 1
    assert float(play.server.weights["weights"][0]) == pytest.approx(2 + (first + second) / 2)


def test_lid_is_summed_and_splits_the_clients(tmp_path):
    play = Federation(tmp_path, FedCorr(passes=2))
    asked = play.play(1, 2, 3, 4)
    assert play.server.state["lid"].tolist() == pytest.approx([2.0, 2.2, 18.0, 18.4], rel=1e-6)
    assert [clients for ask, clients in asked if ask == "correct_labels"] == [[2, 3], [2, 3]]
    assert play.server.state["rate"].tolist() == pytest.approx([0, 0, 0.4, 0.6])
    play.lid = (90.0, 1.0, 1.0, 1.0)  # a client that is no longer called noisy has rate 0 again
    play.method.split_clients(play.server)
    assert play.server.state["noisy"].tolist() == [False, False, True, True]


def test_equal_lid_makes_nobody_noisy(tmp_path):
    play = Federation(tmp_path, FedCorr(passes=1), lid=(2.0,) * 4)
    assert "correct_labels" not in [ask for ask, _ in play.play(1, 2)]
    assert play.server.state["rate"].tolist() == [0] * 4


def test_the_leash_is_beta_times_rate_and_only_in_stage_one(tmp_path):
    play = Federation(tmp_path, FedCorr(passes=2, fine_tune_rounds=1, beta=5.0))
    play.play(1, 2, 3, 4, 5, 6)
    leashes = {(turn, ask, client): float(sent["leash"]) for turn, ask, client, sent in play.sent}
    for (turn, ask, client), leash in leashes.items():
        expected = 5 * play.rate[client] if ask == "train_and_measure" and turn in (3, 4) else 0
        assert ask == "correct_labels" or leash == pytest.approx(expected)


def test_the_clean_pool_and_what_stands_in_for_it(tmp_path):
    play = Federation(tmp_path, FedCorr(passes=0))
    play.server.state["rate"][:] = torch.tensor([0.3, 0.1, 0.05, 0.9], dtype=torch.float64)
    assert play.method.clean_pool(play.server) == [1, 2]
    assert FedCorr(clean_rate=0.01).clean_pool(play.server) == [2, 1]  # as many as a round has, lowest rate first


def test_stage_two_trains_on_the_pool_and_relabels_the_noisy_at_its_end(tmp_path):
    play = Federation(tmp_path, FedCorr(passes=1, fine_tune_rounds=2), rounds=6)
    asked = play.play(1, 2, 3, 4, 5)
    later = asked[5:]
    assert later[:2] == [("train", [0, 1]), ("train", [0, 1])]
    assert later[2] == ("relabel_all", [2, 3])
    assert later[3][0] == "train"
    assert len(later) == 4
    without = Federation(tmp_path, FedCorr(passes=1, fine_tune_rounds=2, correct=False), rounds=6)
    assert "relabel_all" not in [ask for ask, _ in without.play(1, 2, 3, 4, 5)]


def test_a_pool_smaller_than_a_round(tmp_path):
    play = Federation(tmp_path, FedCorr(passes=0, fine_tune_rounds=1))
    play.server.state["rate"][:] = torch.tensor([0.3, 0.0, 0.5, 0.9])
    assert play.play(1) == [("train", [1])]


# --- the client -----------------------------------------------------------------------------------------------------


def noisy_client(count=10, **more):
    """The model says 0 for everything, with probability 0.88; the last four are labelled 1."""
    client = one_client([[2.0, 0.0]] * count, [0] * (count - 4) + [1] * 4, **more)
    client.state["losses"] = torch.tensor([0.1] * (count - 4) + [2.0, 2.1, 2.2, 2.3])
    return client


def test_the_rate_is_the_share_of_the_upper_component():
    assert FedCorr().correct_labels(noisy_client(), identity())["rate"].item() == pytest.approx(0.4)


def test_so_many_of_the_largest_losses_are_corrected():
    client = noisy_client()
    reply = FedCorr().correct_labels(client, identity())  # floor(10 * 0.4 * 0.5) = 2
    assert reply["relabelled"].item() == 2
    assert client.state["labels"].tolist() == [0] * 6 + [1, 1, 0, 0]
    assert client.given.tolist() == [0] * 6 + [1] * 4  # what was delivered stays
    client = noisy_client()
    assert FedCorr(relabel_ratio=0.2).correct_labels(client, identity())["relabelled"].item() == 0  # 0.8 is no sample
    assert FedCorr(relabel_ratio=1.0).correct_labels(client, identity())["relabelled"].item() == 4


def test_the_count_is_exact_where_floats_are_not():
    client = one_client([[2.0, 0.0]] * 100, [1] * 100)
    client.state["losses"] = torch.tensor([0.1, 0.2] * 35 + [0.1] + [2.0] * 29)  # 100 * 0.29 is 28.999...
    assert FedCorr(relabel_ratio=1.0).correct_labels(client, identity())["relabelled"].item() == 29


def test_a_rate_of_exactly_kappa_is_in_the_pool(tmp_path):
    client = one_client([[2.0, 0.0]] * 10, [0] * 9 + [1])
    client.state["losses"] = torch.tensor([0.1, 0.11, 0.12] * 3 + [3.0])
    rate = FedCorr().correct_labels(client, identity())["rate"]
    play = Federation(tmp_path, FedCorr(passes=0))
    play.server.state["rate"][0] = rate.item()
    assert rate.item() == 0.1
    assert 0 in play.method.clean_pool(play.server)


def test_only_where_the_global_model_is_confident():
    client = noisy_client()
    assert FedCorr(confidence=0.89).correct_labels(client, identity())["relabelled"].item() == 0
    assert FedCorr(confidence=0.87).correct_labels(client, identity())["relabelled"].item() == 2


def test_corrections_last_and_add_up():
    client = noisy_client()
    FedCorr().correct_labels(client, identity())
    assert FedCorr().relabel_all(client, identity())["relabelled"].item() == 2
    assert client.state["labels"].tolist() == [0] * 10


def test_without_correction_the_rate_is_estimated_all_the_same():
    client = noisy_client()
    reply = FedCorr(correct=False).correct_labels(client, identity())
    assert (reply["rate"].item(), reply["relabelled"].item()) == (pytest.approx(0.4), 0)
    assert "labels" not in client.state


@pytest.mark.parametrize("preset", ["paper", "code"])
def test_losses_and_lid_are_those_of_the_trained_model(preset):
    client = one_client([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.5]], [0, 1, 0])
    method = FedCorr(preset=preset, lid_neighbours=2)
    reply = method.train_and_measure(client, identity() | {"leash": torch.zeros(1)})
    logits = client.predict()
    kind = "double_softmax" if preset == "code" else "cross_entropy"
    assert torch.equal(client.state["losses"], sample_losses(logits, client.given, kind))
    assert reply["lid"].item() == local_intrinsic_dimensionality(logits.softmax(1), 2).mean().item()
    assert "losses" not in reply


def step_of_second_epoch(method, leash):
    """How far the second of two steps goes; the first starts where the distance has no slope."""
    ends = []
    for epochs in (1, 2):
        client = one_client([[1.0, 0.0]], [0], epochs=epochs)
        method.train(client, identity() | {"leash": torch.tensor([leash])})
        ends.append(client.model.weights.clone())
    return ends[0] - identity()["weights"], ends[1] - ends[0]


def test_the_proximal_term_by_hand():
    moved, free = step_of_second_epoch(FedCorr(), 0.0)
    assert torch.equal(step_of_second_epoch(FedCorr(), 2.0)[0], moved)
    # the slope of 2 |d|^2 is 4 d, that of 2 |d| is 2 d / |d|; the learning rate is 0.1
    squared = step_of_second_epoch(FedCorr(), 2.0)[1]
    assert (squared - free).tolist() == pytest.approx((-0.1 * 4 * moved).tolist(), abs=1e-6)
    norm = step_of_second_epoch(FedCorr(prox="norm"), 2.0)[1]
    assert (norm - free).tolist() == pytest.approx((-0.1 * 2 * moved / moved.norm()).tolist(), abs=1e-6)


def test_the_code_spares_the_first_batch_of_an_epoch():
    free = step_of_second_epoch(FedCorr(preset="code"), 0.0)[1]
    assert torch.equal(step_of_second_epoch(FedCorr(preset="code"), 2.0)[1], free)
    # with two batches per epoch the second one is held back
    ends = []
    for leash in (0.0, 2.0):
        client = one_client([[1.0, 0.0]] * 2, [0, 0], batch_size=1)
        FedCorr(preset="code", mixup=0.0).train(client, identity() | {"leash": torch.tensor([leash])})
        ends.append(client.model.weights.clone())
    assert not torch.equal(*ends)


def test_fewer_samples_than_neighbours():
    client = one_client([[1.0, 0.0]], [0])
    assert FedCorr().train_and_measure(client, identity() | {"leash": torch.zeros(1)})["lid"].item() == 0


def test_the_verdict_puts_corrected_labels_first():
    client = one_client([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [0.3, 0.0]], [0, 1, 1, 1])
    client.state["labels"] = torch.tensor([0, 1, 0, 1])
    verdict = FedCorr().verdict(client, identity())
    assert verdict.p_wrong.argmax() == 2
    assert verdict.p_wrong[2] >= 0.5
    assert (verdict.p_wrong[[0, 1, 3]] <= 0.5).all()
    assert verdict.suggested[2] == 0


class Remembered(torch.Tensor):
    """A tensor as it comes out of a client's memory: on the processor, wherever the client computes."""

    moved: ClassVar[list[torch.device]] = []

    def to(self, device):
        self.moved.append(device)
        return self.as_subclass(torch.Tensor)


def test_remembered_losses_go_to_where_the_client_computes():
    client = one_client([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    client.state["losses"] = torch.tensor([0.1, 2.0]).as_subclass(Remembered)
    FedCorr().correct_labels(client, identity())
    assert Remembered.moved == [client.given.device]


@pytest.mark.parametrize(
    ("rounds", "passes", "expected"),
    [
        (20, None, r"all 20 rounds .* no round fine-tunes .* clients takes 10\. Give --rounds 80"),  # two passes: 20
        (9, None, "no site corrects a label"),
        (9, 100, "no site corrects a label"),
        (21, None, None),
        (20, 1, None),
        (20, 100, None),  # stage 1 alone was asked for
        (9, 0, None),
        (0, None, None),
    ],
)
def test_a_run_that_is_all_stage_1_is_warned_of(rounds, passes, expected, tmp_path):
    server = one_server(tmp_path, clients=10, rounds=rounds, participation=0.1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        FedCorr(passes=passes).start(server)
    assert len(said) == (expected is not None)
    assert all(re.search(expected, str(one.message)) for one in said)
