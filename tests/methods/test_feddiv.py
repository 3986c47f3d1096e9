"""feddiv: its equations by hand, and the shared tester."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch

from by_hand import conversation, identity, one_client, one_server
from fedwinnow.federation.method import find_method
from fedwinnow.mathematics.two_gaussians import TwoGaussians
from fedwinnow.methods.feddiv import MIDDLE, FedDiv
from fedwinnow.steps.site_labels import sample_losses
from fedwinnow.testing import MethodTester


class TestFeddiv(MethodTester):
    method: ClassVar[str] = "feddiv"
    rounds: ClassVar[int] = 8


class TestFeddivCode(MethodTester):
    method: ClassVar[str] = "feddiv:preset=code"
    rounds: ClassVar[int] = 8


# A linear client whose logits are its rows: A and D are right, B is wrong and the model is sure of it, C is wrong too
ROWS = [[3.0, 0.0], [3.0, 0.0], [0.0, 0.8], [0.0, 3.0]]
LABELS = [0, 1, 0, 1]
# Two equally wide and heavy components at losses 0 and 2: the border is 1
FILTER = torch.tensor([0.0, 2.0, 0.25, 0.25, 0.5, 0.5], dtype=torch.float64)
NO_FILTER = torch.full((6,), torch.nan, dtype=torch.float64)


def client_and_guess(**more):
    client = one_client(ROWS, LABELS, **more)
    client.model.load(identity())
    return client, torch.tensor(ROWS)


def update_state(method, client, flat):
    """What a client does after its last epoch; the mixture is what it sends."""
    predicted = method.predicted(client)
    method.update_bias(client, predicted)
    return method.local_filter(client, predicted, flat)


# --- the filter -----------------------------------------------------------------------------------------------------


def test_posterior_eq_3_and_6():
    loss = math.log(1 + math.exp(-3))
    flat = torch.tensor([0.1, 2.0, 0.2, 0.5, 0.7, 0.3], dtype=torch.float64)

    def density(mean, variance):
        return math.exp(-((loss - mean) ** 2) / (2 * variance)) / math.sqrt(variance)

    expected = 0.7 * density(0.1, 0.2) / (0.7 * density(0.1, 0.2) + 0.3 * density(2.0, 0.5))
    found = FedDiv().p_clean(torch.tensor(ROWS[:1]), torch.tensor(LABELS[:1]), flat)
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_the_split_at_one_half_eq_7():
    # losses 0.05, 3.05, 1.17 and 0.05 against the border 1
    found = FedDiv().p_clean(torch.tensor(ROWS), torch.tensor(LABELS), FILTER) >= 0.5
    assert found.tolist() == [True, False, False, True]


def test_a_client_takes_one_half_for_clean_eq_7(monkeypatch):
    client, _ = client_and_guess()
    monkeypatch.setattr(FedDiv, "p_clean", lambda *_: torch.tensor([0.5, 0.4999, 0.0, 1.0]))
    FedDiv().train(client, identity() | {"filter": FILTER})
    assert client.notes["selected"].tolist() == [True, False, False, True]


def test_before_there_is_a_filter_everything_is_clean():
    assert FedDiv().p_clean(torch.tensor(ROWS), torch.tensor(LABELS), NO_FILTER).tolist() == [1.0] * 4


def test_equal_losses_are_clean_when_they_are_normalised():
    # 0 would be called noisy: the clean component is narrow and stands at 0.4
    odd = torch.tensor([0.4, 0.6, 0.0001, 0.5, 0.5, 0.5], dtype=torch.float64)
    logits, labels = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0])
    assert FedDiv(normalise=True).p_clean(logits, labels, odd).tolist() == [1.0, 1.0]
    assert FedDiv(normalise=True).p_clean(logits[:1], labels[:1], odd).tolist() == [1.0]


def test_the_double_softmax_is_in_a_band_of_width_one():
    p = torch.tensor([3.0, 0.0]).softmax(0)
    expected = -p[1] + torch.logsumexp(p, 0)
    found = sample_losses(torch.tensor(ROWS[1:2]), torch.tensor([1]), "double_softmax")
    assert found.item() == pytest.approx(expected.item())


def test_algorithm_2_starts_at_the_filter_that_was_sent():
    client, _ = client_and_guess()
    one_step = FedDiv(em_steps=1, em_tolerance=0.0)
    mixture = update_state(one_step, client, FILTER)["mixture"]
    losses = sample_losses(torch.tensor(ROWS), client.given).double()
    clean = one_step.p_clean(torch.tensor(ROWS), client.given, FILTER)  # the E step
    mean = (clean * losses).sum() / clean.sum()  # the M step
    assert mixture[0].item() == pytest.approx(mean.item(), rel=1e-6)
    assert mixture[2].item() == pytest.approx(((clean * (losses - mean) ** 2).sum() / clean.sum()).item(), rel=1e-5)
    assert mixture[4].item() == pytest.approx((clean.sum() / 4).item(), rel=1e-6)


def test_the_local_filter_has_converged():  # Algorithm 2, line 2
    # The losses of a client without wrong labels, evenly along their distribution: one skewed heap, split slowly.
    heights = torch.special.ndtri(torch.linspace(0.002, 0.998, 250, dtype=torch.float64))
    losses = torch.nn.functional.softplus(-(2 + 2 * heights))
    start = TwoGaussians.from_flat(torch.tensor([0.3, 2.8, 0.1, 1.0, 0.6, 0.4], dtype=torch.float64))

    def noisy_share(mixture):
        return float((mixture.p_low(losses) < 0.5).double().mean())

    endless = FedDiv(em_steps=600, em_tolerance=0.0).fit_filter(losses, start)
    found = FedDiv().fit_filter(losses, start)
    torch.testing.assert_close(found.flat, endless.flat, rtol=1e-4, atol=0.0)
    assert noisy_share(found) == noisy_share(endless) == pytest.approx(94 / 250)
    # One that stops at a gain of 0.001 is not there yet.
    assert noisy_share(FedDiv(em_tolerance=1e-3).fit_filter(losses, start)) == pytest.approx(87 / 250)


def test_the_floor_of_the_variance():
    client, _ = client_and_guess()
    assert (update_state(FedDiv(variance_floor=0.3), client, FILTER)["mixture"][2:4] >= 0.3).all()


# --- what is trained on ---------------------------------------------------------------------------------------------


def selected(method, client, logits, clean):
    rows, target = method.training_set(client, logits, clean)
    return rows().tolist(), target.tolist(), method.labels(client).tolist()


CLEAN = torch.tensor([True, False, False, True])


def test_relabelling_at_zeta_eq_8():
    client, logits = client_and_guess()
    assert selected(FedDiv(), client, logits, CLEAN) == ([0, 1, 3], [0, 0, 0, 1], LABELS)  # B becomes 0, C is dropped
    assert selected(FedDiv(confidence=0.6), client, logits, CLEAN)[:2] == ([0, 1, 2, 3], [0, 0, 1, 1])
    assert selected(FedDiv(relabel=False), client, logits, CLEAN)[0] == [0, 3]
    assert selected(FedDiv(relabel_from=0.6), client, logits, CLEAN)[0] == [0, 3]


def test_consistency_with_the_debiased_local_model_eq_9_and_10():
    client, logits = client_and_guess()
    client.model.load({"weights": torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 0.3])})  # the local model now always says 1
    assert selected(FedDiv(), client, logits, CLEAN)[0] == [3]
    # F = (0 - 0.5 log 0.2, 0.3 - 0.5 log 0.8) = (0.80, 0.41): without its bias it says 0
    client.state["bias"] = torch.tensor([0.2, 0.8], dtype=torch.float64)
    assert FedDiv().debiased(client, torch.tensor([[0.0, 0.3]]))[0].tolist() == pytest.approx(
        [-0.5 * math.log(0.2), 0.3 - 0.5 * math.log(0.8)]
    )
    assert selected(FedDiv(), client, logits, CLEAN)[0] == [0, 1]
    assert selected(FedDiv(debias=0.0), client, logits, CLEAN)[0] == [3]
    assert selected(FedDiv(reselect=False), client, logits, CLEAN)[0] == [0, 1, 3]


def test_a_class_that_was_never_predicted_has_a_bias_all_the_same():
    client, logits = client_and_guess()
    client.state["bias"] = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert FedDiv().debiased(client, logits).isfinite().all()


def test_reselection_happens_before_each_epoch():
    client, logits = client_and_guess()
    rows, _ = FedDiv().training_set(client, logits, CLEAN)
    assert rows().tolist() == [0, 1, 3]
    client.model.load({"weights": torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 0.3])})
    assert rows().tolist() == [3]


@pytest.mark.parametrize("views", [False, True])
def test_reselection_looks_at_random_views_where_scoring_does(monkeypatch, views):
    client, logits = client_and_guess()
    asked = []
    monkeypatch.setattr(client, "predict", lambda rows, views: asked.append(views) or logits[rows])
    selected(FedDiv(scoring_views=views), client, logits, CLEAN)
    assert asked == [views]


def trained_on(method, client, logits, clean):
    """The labels of the samples that a session trains on, by row."""
    seen = {}
    original = method.objective

    def spy(client, rows, x, y, got):
        seen.update(zip(rows.tolist(), y.tolist(), strict=True))
        return original(client, rows, x, y, got)

    object.__setattr__(method, "objective", spy)
    method.fit_selected(client, identity(), logits, clean)
    return seen


def test_a_clean_client_uses_everything_eq_11():
    client, logits = client_and_guess()
    one_wrong = torch.tensor([True, False, True, True])
    assert trained_on(FedDiv(noisy_client=0.3), client, logits, one_wrong) == dict(enumerate(LABELS))
    client, logits = client_and_guess()
    assert trained_on(FedDiv(noisy_client=0.25), client, logits, one_wrong).keys() == {0, 1, 2, 3}


@pytest.mark.parametrize("noisy_client", [0.0, 1.0])
def test_no_more_than_one_batch_is_no_training_in_the_code(noisy_client):
    client, logits = client_and_guess(batch_size=4)
    assert trained_on(FedDiv(full_batch=True, noisy_client=noisy_client), client, logits, CLEAN) == {}
    assert torch.equal(client.model.weights, identity()["weights"])


def test_nothing_selected_leaves_the_model_as_it_was():
    client, logits = client_and_guess()
    nothing = torch.zeros(4, dtype=torch.bool)
    assert trained_on(FedDiv(confidence=1.0), client, logits, nothing) == {}
    assert torch.equal(client.model.weights, identity()["weights"])


def test_momentum_is_kept_over_the_epochs_of_a_session():
    # one sample, logits 0, rate 0.1: the bias moves by 0.05, then by momentum and the next slope
    client = one_client([[0.0, 0.0]], [0], momentum=0.5, epochs=2)
    client.model.load({"weights": torch.zeros(6)})
    FedDiv(eta=0.0).fit_selected(client, {}, torch.zeros(1, 2), torch.ones(1, dtype=torch.bool))
    second = torch.tensor([0.05, -0.05]).softmax(0)[1].item()
    assert client.model.weights[4].item() == pytest.approx(0.05 + 0.1 * (0.25 + second))


# --- the objective --------------------------------------------------------------------------------------------------


def test_l_reg_is_the_divergence_of_the_mean_prediction_from_uniform_eq_14():
    client, _ = client_and_guess()
    x, y = torch.tensor(ROWS[:2]), torch.tensor([0, 0])
    q = torch.tensor([3.0, 0.0]).softmax(0).tolist()
    entropy = -math.log(q[0])
    divergence = 0.5 * math.log(0.5 / q[0]) + 0.5 * math.log(0.5 / q[1])
    found = FedDiv(mixup=0.0, eta=2.0).objective(client, torch.arange(2), x, y, {})
    assert found.item() == pytest.approx(entropy + 2 * divergence, rel=1e-6)
    assert FedDiv(mixup=0.0, eta=0.0).objective(client, torch.arange(2), x, y, {}).item() == pytest.approx(entropy)


@pytest.mark.parametrize("regularise", [False, True])
def test_the_warm_up_has_l_reg_only_in_the_code(regularise):
    client = one_client([[0.0, 0.0]], [0], lr=1.0)
    method = FedDiv(regularise_warm_up=regularise, eta=1.0)
    method.warm_up(client, {"weights": torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 0.0])})
    p = torch.tensor([1.0, 0.0]).softmax(0)[0].item()
    # the slope of the cross-entropy is p - 1, that of KL(uniform || p) is p - 1/2
    slope = p - 1 + (p - 0.5) * regularise
    assert client.model.weights[4].item() == pytest.approx(1 - slope, abs=1e-6)


def test_the_unmixed_pass_costs_a_forward_pass_and_moves_no_weight():
    ends = []
    for unmixed in (False, True):
        client, _ = client_and_guess()
        FedDiv(unmixed_pass=unmixed, mixup=0.0).warm_up(client, identity())
        ends.append(client.model.weights.clone())
        assert (client.forward_samples, client.backward_samples) == (8 if unmixed else 4, 4)
    assert torch.equal(*ends)


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_the_class_bias_eq_12():
    client, logits = client_and_guess()
    client.state["bias"] = torch.tensor([0.9, 0.1], dtype=torch.float64)
    update_state(FedDiv(), client, NO_FILTER)
    mean = logits.softmax(1).double().mean(0)
    assert client.state["bias"].tolist() == pytest.approx((0.2 * torch.tensor([0.9, 0.1]) + 0.8 * mean).tolist())
    assert "debiased" not in client.state


def test_in_the_code_only_the_sure_enter_the_bias_and_sure_means_debiased():
    client, logits = client_and_guess()
    method = FedDiv(bias_confidence=0.85, momentum=0.5, debias=1.0, reselect_timing="cached")
    client.state["bias"] = torch.tensor([0.5, 0.5], dtype=torch.float64)
    update_state(method, client, NO_FILTER)  # C has 0.69
    sure = logits.softmax(1).double()[[0, 1, 3]].mean(0)
    assert client.state["bias"].tolist() == pytest.approx((0.25 + 0.5 * sure).tolist())
    # against a bias of 0.9 for class 0, A and B fall to 0.69 and D rises
    client.state["bias"] = torch.tensor([0.9, 0.1], dtype=torch.float64)
    update_state(method, client, NO_FILTER)
    some = logits.softmax(1).double()[[2, 3]].mean(0)
    assert client.state["bias"].tolist() == pytest.approx((0.5 * torch.tensor([0.9, 0.1]) + 0.5 * some).tolist())
    assert client.state["debiased"].tolist() == [0, 0, 1, 1]


def test_cached_reselection_from_the_sixth_visit_on():
    method = FedDiv(preset="code")
    client, logits = client_and_guess(batch_size=1)  # two samples are enough to train
    client.state["debiased"] = torch.tensor([0, 0, 0, 0])  # of the last visit; C and D are now 1
    for visits, expected in ((4, [0, 3]), (5, [0, 1])):
        client.state["visits"] = torch.tensor([visits])
        assert selected(method, client, logits, CLEAN)[0] == expected


def test_the_first_visit_caches_nothing_to_disagree_with():
    method = FedDiv(preset="code", reselect_from_visit=1)
    client, logits = client_and_guess(batch_size=1)
    assert selected(method, client, logits, CLEAN)[0] == [0, 1, 2, 3]  # zeta is 0 in the code


def test_visits_are_counted():
    client, _ = client_and_guess()
    for _ in range(3):
        FedDiv().train(client, identity() | {"filter": FILTER})
    assert int(client.state["visits"]) == 3


def test_in_the_code_labels_change_for_good_also_on_early_visits():
    client, logits = client_and_guess(batch_size=1)
    client.state["debiased"] = torch.tensor([0, 0, 0, 1])  # disagrees about C
    rows, target, believed = selected(FedDiv(preset="code"), client, logits, CLEAN)
    assert (rows, target, believed) == ([0, 3], LABELS, [0, 0, 0, 1])
    assert client.state["labels"].tolist() == believed
    client, logits = client_and_guess()
    selected(FedDiv(), client, logits, CLEAN)
    assert "labels" not in client.state


# --- the server -----------------------------------------------------------------------------------------------------


def played(method, folder, rounds):
    """A federation of two clients, one per round, whose filters are known."""
    server = one_server(folder, clients=2, rounds=9)
    method.start(server)

    def answer(ask, client, sent):
        mixture = torch.tensor([0.0, 4.0, 1.0, 2.0, 0.5, 0.5]) + client
        return {**sent, "samples": torch.tensor(10 + 20 * client), "mixture": mixture.double()}

    order = []
    for server.round in range(1, rounds + 1):
        order += [clients for _, clients in conversation(method, server, answer)]
    return server, order


def test_the_federated_filter_remembers_the_degraded_does_not(tmp_path):
    server, order = played(FedDiv(passes=0), tmp_path, 9)
    assert {client for clients in order for client in clients} == {0, 1}
    # eq. (5): shares 1/4 and 3/4
    assert server.state["filter"].tolist() == pytest.approx([0.75, 4.75, 1.75, 2.75, 1.25, 1.25])
    server, order = played(FedDiv(passes=0, filter="degraded"), tmp_path, 9)
    last = order[-1][0]
    assert server.state["filter"].tolist() == pytest.approx(
        [0.0 + last, 4 + last, 1 + last, 2 + last, 0.5 + last, 0.5 + last]
    )


def test_a_collapsed_filter_has_no_say_and_is_counted(tmp_path):
    server, method = one_server(tmp_path, clients=4, rounds=9), FedDiv(passes=0)
    method.start(server)

    def merged(*said):
        """The global filter after clients with ten samples each have sent these."""
        weights = server.weights
        answers = [(n, {**weights, "samples": torch.tensor(10), "mixture": torch.tensor(m).double()}) for n, m in said]
        method.merge(server, iter(answers))
        return server.state["filter"].tolist(), server.notes["collapsed_filters"]

    sound, other = [0.0, 4.0, 1.0, 2.0, 0.5, 0.5], [2.0, 6.0, 1.0, 2.0, 0.5, 0.5]
    collapsed = [1.0, 1.0, 0.3, 0.3, 1.0, 0.0]  # as two equal components, of which the first has all
    first, count = merged((0, collapsed), (1, collapsed))
    assert all(math.isnan(number) for number in first)  # nobody has one yet: no filter, everything is clean
    assert count == 2
    assert merged((0, sound), (1, collapsed)) == (pytest.approx(sound), 1)
    assert merged((2, other), (3, collapsed)) == (pytest.approx([1.0, 5.0, 1.0, 2.0, 0.5, 0.5]), 1)
    # A filter that collapses later takes its owner's old one out of the average; with none left the global one stays.
    assert merged((0, collapsed)) == (pytest.approx(other), 1)
    assert merged((2, collapsed)) == (pytest.approx(other), 1)
    assert merged((3, sound)) == (pytest.approx(sound), 0)


# two sites of 10 and 30 samples: shares 1/4 and 3/4
MIXTURES = torch.tensor([[0.0, 4.0, 1.0, 2.0, 0.5, 0.5], [2.0, 8.0, 3.0, 6.0, 0.9, 0.1]], dtype=torch.float64)
SIZES = torch.tensor([10.0, 30.0], dtype=torch.float64)


def average_mixtures(mixtures, sizes, weighting):
    return FedDiv(variance_weighting=weighting).federated_filter(mixtures, sizes)


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("linear", [1.5, 7.0, 2.5, 5.0, 0.8, 0.2]),  # eq. (5)
        ("squared", [1.5, 7.0, 1 / 16 + 27 / 16, 2 / 16 + 54 / 16, 0.8, 0.2]),
        # mass of the first component: .125 and .675 of .8, of the second .125 and .075 of .2
        (
            "moment",
            [
                0.675 / 0.8 * 2,
                (0.125 * 4 + 0.075 * 8) / 0.2,
                (0.125 * 1 + 0.675 * (3 + 4)) / 0.8 - (0.675 / 0.8 * 2) ** 2,
                (0.125 * (2 + 16) + 0.075 * (6 + 64)) / 0.2 - 5.5**2,
                0.8,
                0.2,
            ],
        ),
    ],
)
def test_one_filter_from_those_of_two_sites(weighting, expected):
    assert average_mixtures(MIXTURES, SIZES, weighting).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("weighting", ["linear", "moment"])
def test_the_filter_of_one_site_is_itself(weighting):
    assert average_mixtures(MIXTURES[:1], SIZES[:1], weighting).tolist() == pytest.approx(MIXTURES[0].tolist())


def test_equal_sites_have_a_narrower_variance_with_squared_weights():
    four = average_mixtures(MIXTURES[:1].repeat(4, 1), torch.ones(4).double(), "squared")
    assert four[2:4].tolist() == pytest.approx([1 / 4, 2 / 4])


def test_a_component_that_nobody_has_gives_numbers():
    nobody = torch.tensor([[1.0, 1.0, 0.1, 0.1, 1.0, 0.0]], dtype=torch.float64)
    assert average_mixtures(nobody, SIZES[:1], "moment").isfinite().all()


def test_where_all_of_a_degraded_round_collapse_the_filter_stays(tmp_path):
    server, method = one_server(tmp_path, clients=2, rounds=9), FedDiv(passes=0, filter="degraded")
    method.start(server)
    for mixture in ([0.0, 4.0, 1.0, 2.0, 0.5, 0.5], [1.0, 1.0, 0.3, 0.3, 1.0, 0.0]):
        reply = {**server.weights, "samples": torch.tensor(10), "mixture": torch.tensor(mixture).double()}
        method.merge(server, iter([(0, reply)]))
    assert server.state["filter"].tolist() == [0.0, 4.0, 1.0, 2.0, 0.5, 0.5]


def test_equal_losses_make_a_collapsed_filter():
    client = one_client([[1.0, 0.0]] * 3, [0, 0, 0])
    client.model.load(identity())
    mixture = update_state(FedDiv(), client, FILTER)["mixture"]
    assert bool(TwoGaussians.from_flat(mixture).collapsed)


def test_a_client_that_was_never_seen_has_no_say(tmp_path):
    server, order = played(FedDiv(passes=0), tmp_path, 1)
    seen = order[0][0]
    assert server.state["filter"][0].item() == seen


def test_the_local_filter_stays_at_home(tmp_path):
    client, logits = client_and_guess()
    method = FedDiv(filter="local")
    assert set(method.train(client, identity() | {"filter": NO_FILTER})) == {"weights", "samples"}
    server, _ = played(FedDiv(passes=0, filter="local"), tmp_path, 2)
    assert server.state["filter"].isnan().all()
    # four losses in two heaps: the client's own mixture finds them whatever the others have
    assert (method.p_clean(logits, client.given, FILTER + 100) >= 0.5).tolist() == [True, False, False, True]


def test_the_first_filter(tmp_path):
    assert played(FedDiv(), tmp_path, 0)[0].state["filter"].isnan().all()
    assert played(FedDiv(preset="code"), tmp_path, 0)[0].state["filter"].tolist() == list(MIDDLE)
    chosen = find_method("feddiv:preset=code,first_filter=absent")
    assert played(chosen, tmp_path, 0)[0].state["filter"].isnan().all()


def test_a_warm_up_pass_hands_the_model_on_to_everybody_once(tmp_path):
    server = one_server(tmp_path, clients=4)
    method = FedDiv(passes=1)
    method.start(server)
    trained = []

    def answer(ask, client, sent):
        assert float(sent["weights"][0]) == len(trained) + 1  # what the one before has made
        trained.append(client)
        return {"weights": sent["weights"] + 1, "samples": torch.tensor(7)}

    for server.round in (1, 2):
        asked = conversation(method, server, answer)
        assert [ask for ask, _ in asked] == ["warm_up"] * 2
    assert sorted(trained) == [0, 1, 2, 3]
