"""fedrn: its equations by hand, and the shared tester."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch

from by_hand import identity, one_client, one_server
from fedwinnow.mathematics.two_gaussians import fit_two_gaussians
from fedwinnow.methods.fedrn import FedRn, tune_head
from fedwinnow.steps.site_labels import sample_losses
from fedwinnow.testing import MethodTester, toy_data


class TestFedrn(MethodTester):
    method: ClassVar[str] = "fedrn"
    rounds: ClassVar[int] = 8

    def test_models_of_clients_are_kept_on_disk(self, tmp_path):
        folder = self.play(tmp_path, data=toy_data()).folder
        assert len(list(folder.glob("server/*.safetensors"))) > 1


class TestFedrnCode(MethodTester):
    method: ClassVar[str] = "fedrn:preset=code"
    rounds: ClassVar[int] = 8


# --- the server -----------------------------------------------------------------------------------------------------


def rated(folder, method, **more):
    """Four clients: three were seen, the last was not."""
    server = one_server(folder, clients=4, rounds=10, **more)
    method.start(server)
    server.round = 5
    server.state["accuracy"][:3] = torch.tensor([0.5, 0.9, 0.7]).double()
    # cosines with client 0: 1, 0.6, 0
    server.state["output"][:3] = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    return server


def test_reliability_by_hand_eqs_3_to_5_and_7(tmp_path):
    server = rated(tmp_path, FedRn())
    # Exp = 0, 1, 0.5; Sim = 1, 0.6, 0; R = 0.6 Exp + 0.4 Sim
    members, weights = FedRn().reliable(server, 0)
    scores = [0.4, 0.6 + 0.24, 0.3]
    assert members == [1, 2]
    assert weights.tolist() == pytest.approx([score / sum(scores) for score in scores], rel=1e-6)
    members, weights = FedRn(neighbours=1).reliable(server, 0)
    assert members == [1]
    assert weights.tolist() == pytest.approx([0.4 / 1.24, 0.84 / 1.24], rel=1e-6)


def test_similarity_is_normalised_over_the_client_and_all_others(tmp_path):
    server = rated(tmp_path, FedRn())
    server.state["output"][:3] = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]])
    # cosines 1, 0.8, 0.6 become 1, 0.5, 0: the most similar neighbour is not as similar as the client itself
    assert FedRn(alpha=0.0).reliable(server, 0)[1].tolist() == pytest.approx([1 / 1.5, 0.5 / 1.5, 0.0], abs=1e-6)


@pytest.mark.parametrize(("alpha", "best"), [(0.0, 1), (1.0, 1), (0.2, 1)])
def test_the_weight_of_expertise(tmp_path, alpha, best):
    assert FedRn(alpha=alpha, neighbours=1).reliable(rated(tmp_path, FedRn()), 0)[0] == [best]


def test_from_the_other_side(tmp_path):
    # for client 2: Exp(0) = 0, Sim = 0; Exp(1) = 1, cosine 0.8
    assert FedRn(neighbours=1).reliable(rated(tmp_path, FedRn()), 2)[0] == [1]


def test_who_was_never_seen_is_no_neighbour_and_k_may_be_too_large(tmp_path):
    members, weights = FedRn(neighbours=9).reliable(rated(tmp_path, FedRn()), 0)
    assert members == [1, 2]
    assert len(weights) == 3
    assert FedRn(neighbours=0).reliable(rated(tmp_path, FedRn()), 0)[1].tolist() == [1.0]


def test_everybody_equal(tmp_path):
    server = rated(tmp_path, FedRn())
    server.state["accuracy"][:3] = 0.5
    server.state["output"][:3] = 1.0
    assert FedRn().reliable(server, 0)[1].tolist() == pytest.approx([1 / 3] * 3)


def test_a_client_alone(tmp_path):
    server = rated(tmp_path, FedRn())
    server.state["accuracy"][1:] = torch.nan
    members, weights = FedRn().reliable(server, 0)
    assert (members, weights.tolist()) == ([], [1.0])


def test_no_reliability_at_all_is_shared_equally(tmp_path):
    # alpha = 1 and the two with accuracy 0 are left
    server = rated(tmp_path, FedRn())
    server.state["accuracy"][:3] = torch.tensor([0.0, 0.0, 1.0]).double()
    method = FedRn(alpha=1.0, neighbours=1, choose_by="random")
    for server.round in range(5, 40):
        members, weights = method.reliable(server, 0)
        expected = [0.5, 0.5] if members == [1] else [0.0, 1.0]
        assert weights.tolist() == pytest.approx(expected)


def test_random_neighbours_follow_the_seed(tmp_path):
    method = FedRn(neighbours=1, choose_by="random", ensemble="uniform")
    server = rated(tmp_path, method)
    chosen = []
    for server.round in range(5, 25):
        members, weights = method.reliable(server, 0)
        assert members == method.reliable(server, 0)[0]
        assert weights.tolist() == [0.5, 0.5]
        chosen += members
    assert set(chosen) == {1, 2}


def test_what_a_client_is_sent(tmp_path):
    method = FedRn(warm_up=3)
    server = rated(tmp_path, method)
    for client in range(3):
        server.remember(client, {"weights": torch.full((6,), float(client))})
    server.settle()
    sent = method.send(server, 0)
    assert set(sent) == {"weights", "input_seed", "neighbour0.weights", "neighbour1.weights", "reliability"}
    assert (sent["neighbour0.weights"][0], sent["neighbour1.weights"][0]) == (1, 2)
    assert set(method.send(server, 3)) == {"weights", "input_seed"}  # never seen
    server.round = 3
    assert set(method.send(server, 0)) == {"weights", "input_seed"}  # still warming up
    assert list(tmp_path.glob("*.safetensors"))


@pytest.mark.parametrize(("rounds", "warm_up", "expected"), [(500, None, 100), (40, None, 8), (40, 3, 3)])
def test_length_of_the_warm_up(tmp_path, rounds, warm_up, expected):
    method, server = FedRn(warm_up=warm_up), one_server(tmp_path, rounds=rounds)
    server.round = expected
    assert method.question(server) == ("warm_up", "train_plainly")
    server.round += 1
    assert method.question(server) == ("neighbours", "train")


# --- the client -----------------------------------------------------------------------------------------------------

ROWS = [[2.0, 0.0], [1.9, 0.0], [0.0, 2.0], [0.0, 1.8], [2.0, 0.0], [0.0, 2.0]]
LABELS = [0, 0, 1, 1, 1, 0]  # the last two are wrong
SEED = {"input_seed": torch.tensor([7])}


def posterior_of(weights):
    client = one_client(ROWS, LABELS)
    client.model.load(weights)
    losses = sample_losses(client.predict(), client.given)
    return fit_two_gaussians(losses).p_low(losses)


def test_the_own_last_model_judges_and_before_there_is_one_the_global_model():
    client = one_client(ROWS, LABELS)
    assert torch.equal(FedRn().p_clean(client, identity(scale=3.0)), posterior_of(identity(scale=3.0)))
    client.state["last"] = identity()["weights"]
    assert torch.equal(FedRn().p_clean(client, identity(scale=3.0)), posterior_of(identity()))
    of_global = FedRn(target_model="global").p_clean(client, identity(scale=3.0))
    assert torch.equal(of_global, posterior_of(identity(scale=3.0)))


def with_neighbour():
    client = one_client(ROWS, LABELS, lr=0.5)
    client.state["last"] = identity()["weights"]
    neighbour = identity(scale=0.5)["weights"]
    sent = identity() | {"neighbour0.weights": neighbour, "reliability": torch.tensor([0.7, 0.3]).double()}
    return client, sent, neighbour


def test_the_ensemble_is_the_weighted_mean_eq_7():
    client, sent, neighbour = with_neighbour()
    expected = 0.7 * posterior_of(identity()) + 0.3 * posterior_of({"weights": neighbour})
    assert FedRn(fine_tune=False).p_clean(client, sent).tolist() == pytest.approx(expected.tolist())


def test_neighbours_are_tuned_on_the_auxiliary_set_eq_9():
    client, sent, neighbour = with_neighbour()
    auxiliary = (posterior_of(identity()) > 0.5).nonzero().flatten()
    assert auxiliary.tolist() == [0, 1, 2, 3]
    tuned = one_client(ROWS, LABELS, lr=0.5)
    tuned.model.load({"weights": neighbour})
    tune_head(tuned, tuned.model, auxiliary)
    expected = 0.7 * posterior_of(identity()) + 0.3 * posterior_of(tuned.model.payload())
    assert FedRn().p_clean(client, sent).tolist() == pytest.approx(expected.tolist())


def test_an_empty_auxiliary_set_is_everything(monkeypatch):
    client, sent, _ = with_neighbour()
    monkeypatch.setattr(FedRn, "posterior", lambda self, client, model: torch.zeros(len(client)).double())
    rows = []
    monkeypatch.setattr("fedwinnow.methods.fedrn.tune_head", lambda client, model, chosen, **_: rows.append(chosen))
    FedRn().p_clean(client, sent)
    assert rows[0].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("p_clean", "rows"), [([0.9, 0.5, 0.6, 0.1, 0.2, 0.3], {0, 2}), ([0.1] * 6, set(range(6)))])
def test_training_on_the_clean_set_eq_8_or_on_everything(monkeypatch, p_clean, rows):
    client = one_client(ROWS, LABELS)
    monkeypatch.setattr(FedRn, "p_clean", lambda self, client, got: torch.tensor(p_clean))
    seen = set()
    original = FedRn.objective
    monkeypatch.setattr(
        FedRn, "objective", lambda self, c, batch, *rest: seen.update(batch.tolist()) or original(self, c, batch, *rest)
    )
    FedRn().train(client, identity() | SEED)
    assert seen == rows


def test_it_is_the_global_model_that_is_trained():
    client, sent, _ = with_neighbour()
    client.training = client.training.__class__(epochs=0)
    assert torch.equal(FedRn().train(client, sent | SEED)["weights"], identity()["weights"])


def test_what_a_client_reports():
    client = one_client(ROWS, LABELS, epochs=0)
    reply = FedRn().train_plainly(client, identity() | SEED)
    assert reply["accuracy"].item() == pytest.approx(4 / 6)  # on the labels as given
    assert reply["samples"].item() == 6
    noise = torch.randn(1, 2, generator=torch.Generator().manual_seed(7))  # the logits of the identity are its input
    assert torch.allclose(reply["output"], noise[0].softmax(0))
    assert torch.allclose(FedRn(similarity="logits").train_plainly(client, identity() | SEED)["output"], noise[0])
    assert torch.equal(client.state["last"], identity()["weights"])


def test_the_mixtures_of_paper_and_code():
    client = one_client(ROWS, LABELS)
    client.model.load(identity())
    losses = sample_losses(client.predict(), client.given)
    code = fit_two_gaussians(losses, tolerance=0.01, variance_floor=0.0005, normalise=True).p_low(losses)
    assert torch.equal(FedRn(preset="code").posterior(client, client.model), code)
    assert torch.equal(FedRn().posterior(client, client.model), posterior_of(identity()))


def test_one_sample_and_equal_losses_are_clean():
    for rows, labels in (([[1.0, 0.0]], [0]), ([[1.0, 0.0]] * 3, [1] * 3)):
        client = one_client(rows, labels)
        assert FedRn(preset="code").p_clean(client, identity()).tolist() == [1.0] * len(labels)


# --- tuning a head ----------------------------------------------------------------------------------------------------


def test_one_step_by_hand():
    # logits 0, so p = 1/2: the slope of the bias is p - onehot, that of the weights is this times the input
    client = one_client([[2.0, 0.0]], [0], lr=0.5)
    client.model.load({"weights": torch.zeros(6)})
    tune_head(client, client.model, torch.tensor([0]))
    assert client.model.weights.tolist() == pytest.approx([0.5, 0, -0.5, 0, 0.25, -0.25])
    assert (client.forward_samples, client.backward_samples) == (1, 1)


def test_only_the_rows_that_are_named_and_momentum_over_the_batches():
    # two equal samples in two batches: step 1 moves the bias by 0.1 / 2, the second also by momentum
    rows = [[0.0, 0.0], [0.0, 0.0], [100.0, 100.0]]
    client = one_client(rows, [0, 0, 1], lr=0.1, momentum=0.5, batch_size=1)
    client.model.load({"weights": torch.zeros(6)})
    tune_head(client, client.model, torch.tensor([0, 1]))
    first = 0.5
    after = torch.tensor([0.05, -0.05]).softmax(0)[1].item()
    assert client.model.weights[:4].tolist() == [0, 0, 0, 0]
    assert client.model.weights[4].item() == pytest.approx(0.1 * first + 0.1 * (0.5 * first + after))
    assert (client.forward_samples, client.backward_samples) == (2, 2)


def test_the_body_stands_still():
    client = one_client([[1.0, -1.0], [0.5, 2.0], [-1.0, 1.0]], [0, 1, 1], model="mlp:hidden=4", lr=0.5)
    before = client.model.weights.clone()
    tune_head(client, client.model, torch.arange(3))
    moved = {
        slot.name for slot in client.model.slots if not torch.equal(slot.view(before), slot.view(client.model.weights))
    }
    assert moved == {"fc.weight", "fc.bias"}


def test_a_model_without_bias_in_its_head():
    client = one_client([[1.0, 0.0]], [0], lr=1.0)
    client.model.module.fc.bias = None
    client.model.load(identity())
    tune_head(client, client.model, torch.tensor([0]))
    wrong = torch.tensor([1.0, 0.0]).softmax(0)[1].item()
    assert client.model.weights[:4].tolist() == pytest.approx([1 + wrong, 0, -wrong, 1])


def test_the_runs_clip_holds_for_the_head_too():
    # the slope of the bias is (-1/2, 1/2), of the weights nothing: its length is sqrt(1/2), cut to a tenth of that
    client = one_client([[0.0, 0.0]], [0], lr=1.0, clip=math.sqrt(0.5) / 10)
    client.model.load({"weights": torch.zeros(6)})
    tune_head(client, client.model, torch.tensor([0]))
    assert client.model.weights.tolist() == pytest.approx([0, 0, 0, 0, 0.05, -0.05], rel=1e-4)


def test_a_batch_that_is_not_full_is_left_out_where_the_run_says_so():
    client = one_client([[0.0, 0.0]] * 3, [0, 0, 0], batch_size=2, drop_last=True)
    tune_head(client, client.model, torch.arange(3))
    assert (client.forward_samples, client.backward_samples) == (3, 2)
