"""winnow: its rules by hand, and the shared tester."""

from __future__ import annotations

import json
import math
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from by_hand import conversation, identity, one_client, one_server
from fedwinnow.api import run
from fedwinnow.errors import UsageError
from fedwinnow.federation.ledger import TooFew
from fedwinnow.methods.winnow import (
    Confusions,
    SharedMixture,
    Winnow,
    posterior,
    rates_by_class,
    within_quota,
)
from fedwinnow.testing import MethodTester, comparable, toy_data


class TestWinnow(MethodTester):
    method: ClassVar[str] = "winnow"
    rounds: ClassVar[int] = 8


class TestWinnowWithEverythingElse(MethodTester):
    method: ClassVar[str] = (
        "winnow:filter=relative,fit=own,select=threshold,visits=last,prior=given,weigh=all,steady=0,confidence=1"
    )
    rounds: ClassVar[int] = 6


class TestTheSecondVersion(MethodTester):
    method: ClassVar[str] = "winnow:preset=second"
    rounds: ClassVar[int] = 8


class TestTheSecondVersionOtherwise(MethodTester):
    method: ClassVar[str] = "winnow:preset=second,filter=relative,floor=0,loss=gce,mixup=0.5,witness=0.5,steady=0"
    rounds: ClassVar[int] = 6


ROWS = [[2.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 1.0], [2.0, 0.0]]
LABELS = [0, 0, 1, 1, 1]  # the last one is wrong
FILTER = {"filter": Confusions.start(2).flat}


def sent(scale=1.0):
    return identity(scale=scale) | FILTER


# --- what a site thinks of its labels -------------------------------------------------------------------------------


def test_probabilities_have_the_sites_class_mix_in_them():
    # counts 2 and 3, half a sample added: 2.5 to 3.5; logits 2 and 0
    found = Winnow().look(one_client(ROWS, LABELS), sent())[0]
    right, wrong = 2.5 * math.exp(2), 3.5
    assert found.tolist() == pytest.approx([right / (right + wrong), wrong / (right + wrong)], rel=1e-6)


@pytest.mark.parametrize(("prior", "counts"), [("kept", (4, 1)), ("given", (2, 3)), ("none", (1, 1))])
def test_whose_class_mix(prior, counts):
    client = one_client(ROWS, LABELS)
    client.state["trained_on"] = torch.tensor([4, 1])
    first, second = Winnow(prior=prior).log_mix(client).tolist()
    half = 0.5 if prior != "none" else 0.0
    assert first - second == pytest.approx(math.log((counts[0] + half) / (counts[1] + half)))


def test_probabilities_are_averaged_over_visits():
    client, method = one_client(ROWS, LABELS), Winnow(prior="none")
    first = method.observe(client, sent(1.0))[0]
    second, mean = method.observe(client, sent(3.0))
    assert mean.tolist() == [pytest.approx(row, abs=1e-6) for row in ((first + second) / 2).tolist()]
    third, mean = method.observe(client, sent(0.0))
    assert float(mean[0, 0]) == pytest.approx(float((first + second + third)[0, 0]) / 3, abs=1e-6)
    assert int(client.state["visits"]) == 3


def test_or_only_the_last_visit_counts():
    client, method = one_client(ROWS, LABELS), Winnow(prior="none", visits="last")
    method.observe(client, sent(1.0))
    now, mean = method.observe(client, sent(3.0))
    assert torch.equal(now, mean)


def test_one_step_of_em_at_a_site_by_hand():
    client, method = one_client([[2.0, 0.0], [0.0, 2.0]], [0, 0]), Winnow(sharpen=2.0)
    client.state |= {"mean": torch.tensor([[0.8, 0.2], [0.2, 0.8]]), "rates": torch.tensor([0.25, 0.5]).double()}
    found = method.expect(client, {"filter": Confusions.start(2).flat})["statistics"]
    # squared and normalised: 16/17 and 1/17; with two classes a wrong 0 can only be a 1; weights 3 to 1
    first, second = 1 / (1 + 3 * 16), 16 / (16 + 3)
    assert found.tolist() == [[0.0, 0.0], [pytest.approx(first + second, rel=1e-5), 0.0]]
    overall = (first + second) / 2  # of the site and, as it has no other class, of class 0
    assert client.state["rates"].tolist() == pytest.approx([overall, overall], rel=1e-5)


def test_a_site_by_itself_finds_its_wrong_label():
    client, method = one_client(ROWS, LABELS), Winnow(fit="own", prior="none")
    p_wrong, rates = method.opinion(client, method.look(client, sent(3.0)), sent())
    assert (p_wrong > 0.5).tolist() == [False] * 4 + [True]
    assert float(rates[1]) > float(rates[0])


def test_the_verdict_suggests_another_class():
    verdict = Winnow(prior="none").verdict(one_client(ROWS, LABELS), sent(3.0))
    assert (verdict.p_wrong > 0.5).tolist() == [False] * 4 + [True]
    assert verdict.suggested.tolist() == [0, 0, 1, 1, 0]


# --- what a site trains on ------------------------------------------------------------------------------------------


def test_a_hard_class_does_not_die():
    # Every sample of class 1 is worse than any of class 0: a threshold drops them all, the quota keeps its share.
    client = one_client([[0.0, 0.0]] * 6, [0, 0, 0, 1, 1, 1])
    p_wrong = torch.tensor([0.1, 0.1, 0.1, 0.6, 0.7, 0.8])
    client.state["rates"] = torch.tensor([0.3, 0.4])
    assert Winnow().selected(client, p_wrong).tolist() == [1, 1, 0, 1, 1, 0]
    assert Winnow(select="threshold").selected(client, p_wrong).tolist() == [1, 1, 1, 0, 0, 0]


def test_a_site_that_seems_clean_uses_all_it_has():
    client = one_client([[0.0, 0.0]] * 4, [0, 0, 0, 1])
    client.state["rates"] = torch.tensor([0.34, 0.0])
    p_wrong = torch.tensor([0.0, 0.0, 0.6, 0.0])  # 0.15 on average
    assert Winnow(clean_rate=0.16).selected(client, p_wrong).all()
    assert Winnow(clean_rate=0.14).selected(client, p_wrong).tolist() == [True, True, False, True]


@pytest.mark.parametrize("select", ["quota", "threshold"])
def test_somebody_is_always_kept(select):
    client = one_client([[0.0, 0.0]] * 3, [0, 0, 1])
    client.state["rates"] = torch.tensor([0.99, 0.99])
    assert Winnow(select=select).selected(client, torch.tensor([0.9, 0.8, 0.95])).tolist() == [0, 1, 0]


def trained(method, scale=3.0):
    client = one_client(ROWS, LABELS)
    reply = method.train(client, sent(scale))
    return client, reply


def test_a_confident_pseudo_label_joins():
    # wrong by the mixture: only the last; the model is sure of class 0 there
    client, reply = trained(Winnow(prior="none", shrinkage=1.0, clean_rate=0, confidence=0.8))
    assert client.notes["pseudo_labels"].tolist() == [-1, -1, -1, -1, 0]
    assert client.notes["selected"].tolist() == [True] * 4 + [False]
    assert int(reply["samples"]) == 5
    assert client.state["trained_on"].tolist() == [3, 2]


def test_without_confidence_it_is_left_out_and_does_not_count():
    client, reply = trained(Winnow(prior="none", shrinkage=1.0, clean_rate=0))
    assert client.notes["pseudo_labels"].tolist() == [-1] * 5
    assert int(reply["samples"]) == 4
    assert int(trained(Winnow(prior="none", shrinkage=1.0, clean_rate=0, weigh="all"))[1]["samples"]) == 5


def test_the_class_mix_is_in_the_logits_of_training():
    # One sample with zero input: logits are 0, so only the bias learns. Classes 3 to 1 (with the half: 3.5 to 1.5).
    client = one_client([[0.0, 0.0]] * 4, [0, 0, 0, 1], lr=1.0)
    start = {"weights": torch.zeros(6)} | FILTER
    reply = Winnow(adjust=1.0, mixup=0.0).train_plainly(client, start)
    # the gradient of the bias of class 0 is p_0 - 3/4 with p_0 = 3.5 / 5
    assert float(reply["weights"][4]) == pytest.approx(0.75 - 0.7, abs=1e-6)
    plain = Winnow(adjust=0.0, mixup=0.0).train_plainly(one_client([[0.0, 0.0]] * 4, [0, 0, 0, 1], lr=1.0), start)
    assert float(plain["weights"][4]) == pytest.approx(0.75 - 0.5, abs=1e-6)


# --- the server -----------------------------------------------------------------------------------------------------


def answers(ask, client, payload):
    if ask == "expect":
        assert set(payload) == {"filter"}  # the model does not travel for a step of EM
        return {"statistics": torch.tensor([[3.0, 0.3, 0.06], [1.0, 0.9, 0.82]]).double()}
    return {"weights": torch.full((6,), float(client)), "samples": torch.tensor(2)}


def played(folder, method, rounds):
    server = one_server(folder, clients=4, rounds=10)
    method.start(server)
    asked = []
    for number in range(1, rounds + 1):
        server.begin(number)
        asked.append(conversation(method, server, answers))
    return server, asked


def test_half_a_round_is_refused():
    with pytest.raises(UsageError, match=r"warm_up=2\.5 was given; allowed: whole rounds, or a share below 1"):
        Winnow(warm_up=2.5)


def test_em_asks_everybody_who_was_seen_after_the_warm_up(tmp_path):
    server, asked = played(tmp_path, Winnow(warm_up=1, em_steps=2, filter="relative"), 2)
    (first,), second = asked
    assert first[0] == "train_plainly"
    assert [ask for ask, _ in second] == ["expect", "expect", "train"]
    assert second[0][1] == first[1]
    # per site 3 and 1 samples: means 0.1 and 0.9; squares 0.06 - 3 * 0.01 and 0.82 - 0.81, over 4
    assert server.state["filter"].tolist() == pytest.approx([0.1, 0.9, 0.01])


def test_every_site_by_itself_needs_no_em_at_the_server(tmp_path):
    _, asked = played(tmp_path, Winnow(warm_up=1, fit="own"), 2)
    assert [ask for ask, _ in asked[1]] == ["train"]


def test_a_site_is_sent_the_filter_beside_the_model(tmp_path):
    method, server = Winnow(), one_server(tmp_path)
    method.start(server)
    assert torch.equal(method.send(server, 0)["weights"], server.weights["weights"])
    assert torch.equal(method.send(server, 0)["filter"], server.state["filter"])


def test_a_run_that_goes_on_does_so_from_the_global_model(tmp_path):
    settings = {"data": toy_data(), "model": "linear", "method": "winnow:warm_up=2", "clients": 3, "epochs": 1}
    run(out=tmp_path / "a", rounds=3, **settings)
    longer = run(out=tmp_path / "a", rounds=5, resume=True, **settings)
    assert comparable(longer.folder) == comparable(run(out=tmp_path / "b", rounds=5, **settings).folder)


# --- cost -----------------------------------------------------------------------------------------------------------


def test_cost(tmp_path):
    # (E + 1) n forward and E n backward where everything is kept; per step of EM C x C numbers down and up
    clients, samples, epochs, steps, model = 4, 120, 3, 2, 4 * (2 * 3 + 3)
    first, second = run(
        out=tmp_path,
        data=toy_data(samples),
        model="linear",
        method=f"winnow:warm_up=1,em_steps={steps}",
        clients=clients,
        participation=1.0,
        rounds=2,
        epochs=epochs,
        noise="none",
        optimizer="sgd:lr=0.1",
    ).rounds
    table = 8 * 3 * 3
    down, up = clients * (model + table), clients * (model + 8)
    assert (first["forward_samples"], first["backward_samples"]) == ((epochs + 1) * samples, epochs * samples)
    assert (first["bytes_down"], first["bytes_up"]) == (down, up)
    left_out = epochs * samples - second["backward_samples"]
    assert 0 <= left_out < epochs * samples
    assert second["forward_samples"] == (epochs + 1) * samples - left_out
    assert second["bytes_down"] == down + steps * clients * table
    assert second["bytes_up"] == up + steps * clients * table


# --- which class is mistaken for which: the steps by hand, and equal to EM on everything pooled -----------------------

TABLE = torch.tensor([[0.0, 0.75, 0.25], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0]]).double()
ANSWERS = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]]).double()
GIVEN = torch.tensor([1, 0])


def test_at_first_any_other_class_is_as_likely():
    assert Confusions.start(3).flat.tolist() == [[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]


def test_the_evidence_by_hand():
    # first: 0.6 * 0.75 + 0.1 * 0 against 0.3; second: 0.2 * 0.5 + 0.6 * 1 against 0.2
    expected = [math.log(0.45 / 0.3), math.log(0.7 / 0.2)]
    assert Confusions(TABLE).log_ratio(ANSWERS, GIVEN).tolist() == pytest.approx(expected)


def test_expected_counts_by_hand():
    found = Confusions(TABLE).statistics(ANSWERS, GIVEN, torch.tensor([0.5, 0.7]).double())
    # the first label can only have been 0; the second was 1 or 2 as 0.1 to 0.6
    assert found.tolist() == [
        pytest.approx([0.0, 0.5, 0.0]),
        pytest.approx([0.1, 0.0, 0.0]),
        pytest.approx([0.6, 0.0, 0.0]),
    ]


def test_the_m_step_of_confusions_by_hand():
    counts = torch.tensor([[9.0, 3.0, 1.0], [0.0, 9.0, 0.0], [0.0, 2.0, 9.0]])
    # one is added to each; the diagonal is no confusion
    assert Confusions.start(3).maximised(counts).flat.tolist() == [
        pytest.approx([0.0, 4 / 6, 2 / 6]),
        pytest.approx([0.5, 0.0, 0.5]),
        pytest.approx([1 / 4, 3 / 4, 0.0]),
    ]


def test_certain_answers_and_a_single_class_give_numbers():
    sure = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    assert Confusions.start(2).log_ratio(sure, torch.tensor([0, 0])).isfinite().all()
    alone = Confusions.start(1)
    assert alone.statistics(torch.ones(2, 1).double(), torch.tensor([0, 0]), torch.zeros(2).double()).tolist() == [[0]]


def pooled_confusions(answers, labels, site, sites, classes, steps):
    """EM on everything in one place, sample by sample; no code is shared with the method's."""
    table = [[0.0 if t == c else 1 / (classes - 1) for c in range(classes)] for t in range(classes)]
    rates = [[0.5] * classes for _ in range(sites)]
    for _ in range(steps):
        counts = [[0.0] * classes for _ in range(classes)]
        wrongs = [[[] for _ in range(classes)] for _ in range(sites)]
        for p, c, k in zip(answers, labels, site, strict=True):
            wrong = sum(p[t] * table[t][c] for t in range(classes)) * rates[k][c]
            right = p[c] * (1 - rates[k][c])
            wrongs[k][c].append(wrong / (wrong + right))
            for t in range(classes):
                counts[t][c] += p[t] * table[t][c] * rates[k][c] / (wrong + right)
        for k, of_site in enumerate(wrongs):
            together = [value for of_class in of_site for value in of_class]
            overall = sum(together) / len(together)
            rates[k] = [(sum(values) + 2 * overall) / (len(values) + 2) for values in of_site]
        rows = [[0.0 if t == c else counts[t][c] + 1 for c in range(classes)] for t in range(classes)]
        table = [[value / sum(row) for value in row] for row in rows]
    return table, rates


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), sites=st.integers(1, 4), steps=st.integers(1, 6))
def test_sums_from_the_sites_give_em_on_everything_pooled(seed, sites, steps):
    luck, classes = torch.Generator().manual_seed(seed), 3
    lengths = torch.randint(3, 15, (sites,), generator=luck).tolist()
    answers = [torch.rand(length, classes, generator=luck).double().softmax(1) for length in lengths]
    labels = [torch.randint(0, classes, (length,), generator=luck) for length in lengths]
    confusions, rates = Confusions.start(classes), [torch.full((classes,), 0.5).double() for _ in range(sites)]
    for _ in range(steps):
        total = torch.zeros(classes, classes).double()
        for k in range(sites):  # at a site
            p_wrong = posterior(confusions.log_ratio(answers[k], labels[k]), labels[k], rates[k])
            rates[k] = rates_by_class(p_wrong, labels[k], classes, shrinkage=2.0)
            total += confusions.statistics(answers[k], labels[k], p_wrong)
        confusions = confusions.maximised(total)  # at the server
    place = [k for k, length in enumerate(lengths) for _ in range(length)]
    table, expected = pooled_confusions(
        torch.cat(answers).tolist(), torch.cat(labels).tolist(), place, sites, classes, steps
    )
    assert confusions.flat.flatten().tolist() == pytest.approx([value for row in table for value in row], rel=1e-6)
    assert torch.stack(rates).flatten().tolist() == pytest.approx([v for row in expected for v in row], rel=1e-6)


# --- a site's rates and what they leave of each class -----------------------------------------------------------------


def test_the_e_step_by_hand():
    # class 0: weights 3 to 1, evidence e^0.6 to 1; class 1: even weights, no evidence
    found = posterior(torch.tensor([0.6, 0.0]), torch.tensor([0, 1]), torch.tensor([0.25, 0.5]))
    odds = math.exp(0.6) / 3
    assert found.tolist() == pytest.approx([odds / (1 + odds), 0.5], rel=1e-6)


def test_rates_by_hand():
    # the site: 2.2 of 4 are wrong; class 0: (0.2 + 2 * 0.55) / (2 + 2); class 1: (2 + 2 * 0.55) / 4; class 2: 0.55
    found = rates_by_class(torch.tensor([0.2, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1]), 3, shrinkage=2.0)
    assert found.tolist() == pytest.approx([0.325, 0.775, 0.55], rel=1e-6)


def test_shrinkage_goes_from_each_class_by_itself_to_one_rate():
    p_wrong, labels = torch.tensor([0.2, 0.0, 1.0, 0.6]), torch.tensor([0, 0, 1, 1])
    assert rates_by_class(p_wrong, labels, 2, 0.0).tolist() == pytest.approx([0.1, 0.8])
    assert rates_by_class(p_wrong, labels, 2, 1e9).tolist() == pytest.approx([0.45, 0.45])


@pytest.mark.parametrize(("samples", "expected"), [(30, 5.0), (40, 5.0), (200, 25.0)])
def test_large_sites_are_shrunk_as_much_as_small_ones(samples, expected):
    # four classes: half of the 50 samples per class at a site with 200, the fixed five up to ten samples per class
    site = type("Site", (), {"classes": 4, "__len__": lambda self: samples})()
    assert Winnow().added(site) == expected
    assert Winnow(shrinkage_share=0).added(site) == 5.0
    assert Winnow(shrinkage=100).added(site) == 100.0


def test_no_rate_is_certain():
    assert rates_by_class(torch.zeros(3), torch.tensor([0, 0, 1]), 2, 1.0).tolist() == pytest.approx([1e-4, 1e-4])
    assert rates_by_class(torch.ones(3), torch.tensor([0, 0, 1]), 2, 1.0).tolist() == pytest.approx([1 - 1e-4] * 2)


def test_a_class_without_samples_has_a_rate_all_the_same():
    assert rates_by_class(torch.ones(1), torch.tensor([0]), 2, 0.0).isfinite().all()


def test_the_quota_by_hand():
    labels = torch.tensor([0, 1, 0, 0, 1, 0])
    p_wrong = torch.tensor([0.9, 0.2, 0.1, 0.6, 0.1, 0.8])
    # class 0: half of four; class 1: a fifth of two is 0.4, which is rounded to none
    assert within_quota(p_wrong, labels, torch.tensor([0.5, 0.8])).tolist() == [0, 0, 1, 1, 0, 0]
    # a quarter of four is one; 0.75 of two is 1.5, which is rounded up
    assert within_quota(p_wrong, labels, torch.tensor([0.75, 0.25])).tolist() == [0, 1, 1, 0, 1, 0]


def test_of_equals_the_first_are_kept_and_absent_classes_do_no_harm():
    labels = torch.tensor([2, 2, 2, 0])
    assert within_quota(torch.full((4,), 0.5), labels, torch.tensor([0.0, 0.0, 0.5])).tolist() == [1, 1, 0, 1]


# --- one mixture over all sites: the steps by hand, and equal to EM on pooled scores ----------------------------------


def mixture(low, high, variance, **more):
    return SharedMixture(torch.tensor([low, high, variance]).double(), **more)


def with_scores(scores):
    """Answers of two classes whose score is this for class 0 as the given label, and the labels."""
    scores = torch.as_tensor(scores).double()
    right = (1 - scores) / (2 - scores)
    return torch.stack([right, 1 - right], 1), torch.zeros(len(scores), dtype=torch.int64)


def test_scores_by_hand():
    answers = torch.tensor([[0.6, 0.3, 0.1]] * 3).double()
    labels = torch.tensor([0, 1, 2])
    assert SharedMixture.start().scores(answers, labels).tolist() == pytest.approx([0.0, 0.5, 1 - 1 / 6])
    plain = SharedMixture.start(relative=False)
    assert plain.scores(answers, labels).tolist() == pytest.approx([0.4, 0.7, 0.9])
    assert mixture(0, 1, 1).scores(*with_scores([0.0, 0.25, 0.9])).tolist() == pytest.approx([0.0, 0.25, 0.9])


def test_the_log_ratio_is_that_of_two_normal_densities():
    scores = torch.tensor([0.0, 0.3, 0.5, 1.0])
    low = torch.distributions.Normal(0.1, 0.2).log_prob(scores)
    high = torch.distributions.Normal(0.9, 0.2).log_prob(scores)
    found = mixture(0.1, 0.9, 0.04).log_ratio(*with_scores(scores))
    assert found.tolist() == pytest.approx((high - low).tolist(), abs=1e-5)


def test_six_numbers_by_hand():
    found = mixture(0, 1, 1).statistics(*with_scores([0.5, 1.0]), torch.tensor([0.25, 1.0]).double())
    assert found.tolist() == [pytest.approx([0.75, 0.375, 0.1875]), pytest.approx([1.25, 1.125, 1.0625])]


def test_the_m_step_of_the_mixture_by_hand():
    # low holds scores 0 and 0.2, high holds 0.8 twice: means 0.1 and 0.8, variance (2 * 0.01 + 0) / 4
    start = mixture(0.3, 0.6, 0.1)
    total = start.statistics(*with_scores([0.0, 0.2, 0.8, 0.8]), torch.tensor([0.0, 0.0, 1.0, 1.0]).double())
    assert start.maximised(total).flat.tolist() == pytest.approx([0.1, 0.8, 0.005])


def test_a_component_that_holds_nothing_stays_and_a_variance_has_a_floor():
    start = mixture(0.3, 0.6, 0.1)
    total = start.statistics(*with_scores([0.25] * 4), torch.zeros(4).double())
    assert start.maximised(total).flat.tolist() == pytest.approx([0.25, 0.6, 1e-4])


def test_wrong_labels_never_have_the_lower_scores():
    start = mixture(0.3, 0.6, 0.1)
    total = start.statistics(*with_scores([0.9, 0.1]), torch.tensor([0.0, 1.0]).double())
    assert start.maximised(total).flat[:2].tolist() == pytest.approx([0.3, 0.6])


def pooled_mixture(scores, site, rates, start, steps):
    """Textbook EM on all scores together, with one mixing weight per site; no code is shared with the method's."""
    low, high, variance = start
    for _ in range(steps):
        weight = torch.tensor(rates).double()[site]
        clean = (1 - weight) * torch.exp(-((scores - low) ** 2) / (2 * variance))
        wrong = weight * torch.exp(-((scores - high) ** 2) / (2 * variance))
        share = wrong / (clean + wrong)
        rates = [float(share[site == k].mean()) for k in range(len(rates))]
        low = float(((1 - share) * scores).sum() / (1 - share).sum())
        high = float((share * scores).sum() / share.sum())
        squares = (1 - share) * (scores - low) ** 2 + share * (scores - high) ** 2
        variance = float(squares.sum() / len(scores))
    return [low, high, variance], rates


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), sites=st.integers(1, 5), steps=st.integers(1, 12))
def test_sums_from_the_sites_give_em_on_pooled_scores(seed, sites, steps):
    luck = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, 40, (sites,), generator=luck)
    scores = []
    for length in lengths.tolist():
        bad = torch.rand(length, generator=luck) < 0.1 + 0.8 * torch.rand(1, generator=luck)
        noise = 0.1 * torch.randn(length, generator=luck)
        scores.append((torch.where(bad, 0.8, 0.2) + noise).clamp(0, 1).double())
    start = (0.3, 0.7, 0.05)
    shared, rates = mixture(*start), [torch.full((1,), 0.5).double() for _ in range(sites)]
    for _ in range(steps):
        total = torch.zeros(2, 3).double()
        for k, mine in enumerate(scores):  # at a site
            answers, labels = with_scores(mine)
            p_wrong = posterior(shared.log_ratio(answers, labels), labels, rates[k])
            rates[k] = rates_by_class(p_wrong, labels, 1, shrinkage=1.0)
            total += shared.statistics(answers, labels, p_wrong)
        shared = shared.maximised(total)  # at the server
    places = torch.repeat_interleave(torch.arange(sites), lengths)
    expected, weights = pooled_mixture(torch.cat(scores), places, [0.5] * sites, start, steps)
    assert shared.flat.tolist() == pytest.approx(expected, rel=1e-3)
    assert [float(rate) for rate in rates] == pytest.approx(weights, abs=1e-3)


# --- the second version -----------------------------------------------------------------------------------------------

SECOND = "winnow:preset=second"
# constant and factors of classes 0 and 1: log-likelihoods x - 0.5 and y
DISCRIMINANT = {"discriminant": torch.tensor([[-0.5, 1.0, 0.0], [0.0, 0.0, 1.0]]).double()}


def test_the_first_version_is_the_default_and_a_choice_of_options():
    first, second = Winnow(), Winnow(preset="second")
    names = ("loss", "discriminant", "ask", "sharpen", "select", "floor")
    assert [getattr(first, name) for name in names] == ["cross_entropy", "none", "visited", 3.0, "quota", 0.0]
    assert [getattr(second, name) for name in names] == ["sce", "sums", "participants", 2.0, "weights", 0.3]
    assert {"class_sums", "products"} & first.exposed().keys() == set()
    assert first.by_class() == {"statistics": 1}
    assert second.by_class() == {"statistics": 1, "class_sums": 0}


def test_the_first_version_by_options_gives_the_same_bits(tmp_path):
    settings = {
        "data": toy_data(),
        "model": "linear",
        "clients": 4,
        "epochs": 1,
        "rounds": 5,
        "noise": "constant:rate=0.3",
    }
    options = "discriminant=none,ask=visited,sharpen=3,select=quota,loss=cross_entropy"
    usual = run(out=tmp_path / "a", method="winnow", **settings)
    chosen = run(out=tmp_path / "b", method=f"{SECOND},{options}", **settings)
    one, other = (comparable(found.folder)["state.safetensors"] for found in (usual, chosen))
    assert one == other


def test_the_evidence_of_two_witnesses_by_hand():
    method, client = Winnow(preset="second", witness=0.5), one_client(ROWS, LABELS)
    answers = torch.tensor([[0.8, 0.2]] * 5).double()
    found = method.evidence(client, answers, sent() | DISCRIMINANT)[0]
    # first sample (2, 0): 0.8² e^(0.5 * 1.5) 2.5 against 0.2² e^0 3.5
    first, second = 0.64 * math.exp(0.75) * 2.5, 0.04 * 3.5
    assert found.tolist() == pytest.approx([first / (first + second), second / (first + second)], rel=1e-6)
    # without a discriminant, and without a second witness, the model alone
    alone = pytest.approx([16 / 17, 1 / 17])
    assert method.evidence(client, answers, sent())[0].tolist() == alone
    silent = Winnow(preset="second", witness=0)
    assert silent.evidence(client, answers, sent() | DISCRIMINANT)[0].tolist() == alone


def test_weights_of_samples():
    method = Winnow(preset="second", floor=0.25)
    assert method.weights(torch.tensor([0.1, 0.9, 0.5])).tolist() == pytest.approx([0.9, 0.25, 0.5])
    assert method.weights(torch.tensor([0.0, 0.5, 0.0])).tolist() == [1, 1, 1]  # 0.17 on average: it seems clean


def test_training_by_weight_by_hand():
    # Zero inputs: logits 0, p = 1/2; the gradient of the bias of class 0 is the mean of w (p - y).
    client = one_client([[0.0, 0.0]] * 4, [0, 0, 0, 1], lr=1.0)
    weights = torch.tensor([1.0, 0.5, 0.0, 1.0]).double()
    reply = Winnow(preset="second", loss="cross_entropy", adjust=0.0).learn_by_weight(
        client, {"weights": torch.zeros(6)}, weights
    )
    assert float(reply["weights"][4]) == pytest.approx((0.5 * 1.5 - 0.5) / 4, abs=1e-6)
    assert int(reply["samples"]) == 2  # 2.5, to the even number
    assert client.state["trained_on"].tolist() == [1.5, 1.0]
    every = Winnow(preset="second", weigh="all").learn_by_weight(client, {"weights": torch.zeros(6)}, weights)
    assert int(every["samples"]) == 4


def test_the_discriminant_teaches_the_first_rounds():
    client = one_client([[0.0, 0.0]] * 4, [0, 0, 0, 1], lr=1.0)
    start = {"weights": torch.zeros(6)} | FILTER | DISCRIMINANT
    reply = Winnow(preset="second", loss="cross_entropy", adjust=0.0).train_plainly(client, start)
    # log-likelihoods -0.5 and 0, three times; class mix 3.5 to 1.5
    taught = 3.5 * math.exp(-1.5) / (3.5 * math.exp(-1.5) + 1.5)
    assert float(reply["weights"][4]) == pytest.approx(taught - 0.5, abs=1e-6)
    assert client.state["trained_on"].tolist() == pytest.approx([4 * taught, 4 - 4 * taught])
    again = one_client([[0.0, 0.0]] * 4, [0, 0, 0, 1], lr=1.0)
    reply = Winnow(preset="second", loss="cross_entropy", adjust=0.0, teach=0).train_plainly(again, start)
    assert float(reply["weights"][4]) == pytest.approx(0.25, abs=1e-6)


def test_a_visit_tells_the_counts_with_the_model():
    client = one_client(ROWS, LABELS)
    reply = Winnow(preset="second").train(client, sent(3.0) | DISCRIMINANT)
    assert set(reply) == {"weights", "samples", "statistics"}
    # one of five is wrong: of the site's samples of class 1, one was a 0
    assert float(reply["statistics"][0, 1]) == pytest.approx(1, abs=0.15)
    own = Winnow(preset="second", fit="own").train(one_client(ROWS, LABELS), sent(3.0))
    assert "statistics" not in own


def test_sums_are_asked_once_and_of_three_sites_together(tmp_path):
    told = {
        "class_sums": torch.tensor([[2.0, 2.0, 0.0], [2.0, 0.0, 2.0]]).double(),
        "products": torch.tensor([2.0, 0.0, 2.0]),
    }

    def answering(ask, client, payload):
        if ask == "add_up":
            return told
        counts = {"statistics": torch.tensor([[0.0, 1.0], [0.5, 0.0]]).double()} if ask == "train" else {}
        assert "discriminant" in payload
        return {"weights": torch.full((6,), float(client)), "samples": torch.tensor(2)} | counts

    method, server = Winnow(preset="second", warm_up=1), one_server(tmp_path, clients=6, participation=0.5)
    method.start(server)
    asked = []
    for number in range(1, 9):
        server.begin(number)
        asked.append(conversation(method, server, answering))
    summed = [clients for talk in asked for ask, clients in talk if ask == "add_up"]
    assert all(len(clients) >= 3 for clients in summed)
    assert len({client for clients in summed for client in clients}) == sum(map(len, summed))
    assert all(ask in ("add_up", "train_plainly", "train") for talk in asked for ask, _ in talk)
    for talk in asked:  # nobody is asked who does not train in the round
        assert all(set(clients) <= set(talk[-1][1]) for _, clients in talk)
    # half of the sites take part: each round half of the older counts is left; 3 sites tell 1 and 0.5
    left = sum(0.5**age for age in range(7))
    assert server.state["counts"].tolist() == [pytest.approx([0, 3 * left]), pytest.approx([1.5 * left, 0])]
    assert float(server.state["class_sums"][:, 0].sum()) == 4 * sum(map(len, summed))


def test_a_model_that_does_not_begin_with_a_linear_layer_has_no_discriminant(tmp_path):
    result = run(
        out=tmp_path, data="digits", model="lenet", method=SECOND, clients=3, participation=1.0, rounds=2, epochs=1
    )
    sent_keys = {key for site in json.loads((tmp_path / "ledger.json").read_text())["sites"].values() for key in site}
    assert result.summary["status"] == "finished"
    assert {"class_sums", "products"} & sent_keys == set()


def test_sums_do_not_depend_on_classes_below_the_least_count():
    method, said = Winnow(preset="second"), []
    for moved in (0.0, 5.0):
        client = one_client([[1.0, 0.0], [2.0, 0.0], [moved, 1.0]], [0, 0, 1])
        client.least_count = 2
        said.append(method.add_up(client, {}))
    assert all(torch.equal(said[0][key], said[1][key]) for key in ("class_sums", "products"))
    assert said[0]["class_sums"].tolist() == [[2, 3, 0], [0, 0, 0]]
    client.least_count = 3
    with pytest.raises(TooFew):
        method.add_up(client, {})


def test_secure_sums_give_the_same_run(tmp_path):
    pytest.importorskip("cryptography")
    settings = {
        "data": toy_data(),
        "model": "linear",
        "method": SECOND,
        "clients": 6,
        "participation": 0.67,
        "rounds": 4,
        "epochs": 1,
        "noise": "constant:rate=0.3",
    }
    plain, summed = (
        run(out=tmp_path / name, secure_sums=name == "summed", **settings).summary for name in ("plain", "summed")
    )
    assert summed["last10"]["accuracy"] == pytest.approx(plain["last10"]["accuracy"], abs=0.02)
    assert summed["detection"]["samples"]["auroc"] == pytest.approx(plain["detection"]["samples"]["auroc"], abs=0.02)


@pytest.mark.parametrize("alone", [False, True])
def test_what_a_visit_tells_does_not_depend_on_classes_below_the_least_count(alone):
    said = []
    for moved in (0.0, 5.0):
        client = one_client([*ROWS, [moved, 1.0]], [0, 0, 1, 1, 0, 2], classes=3)
        client.least_count = 0 if alone else 2
        got = {"weights": torch.arange(9.0) / 9, "filter": Confusions.start(3).flat}
        got["discriminant"] = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 1.0]]).double()
        said.append(Winnow(preset="second").train(client, got)["statistics"])
    assert torch.equal(*said) == (not alone)
    assert bool(said[0][:, 2].any()) == alone


def test_a_site_without_a_class_of_the_least_count_tells_zeros():
    client = one_client([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]], [0, 1, 1])
    client.least_count = 3  # three samples, but no class with three
    reply = Winnow(preset="second").train(client, sent(3.0) | DISCRIMINANT)
    assert not bool(reply["statistics"].any())


def test_a_model_that_takes_samples_apart_has_no_discriminant(tmp_path):
    client, method = one_client(ROWS, LABELS), Winnow(preset="second", warm_up=0)
    client.model.module = torch.nn.Linear(5, 2)  # begins with a linear layer, but not with one over all two values
    told = method.add_up(client, {})
    assert told["class_sums"].shape == (2, 6)
    assert not any(bool(value.any()) for value in told.values())

    def answering(ask, client, payload):
        assert "discriminant" not in payload
        counts = {"statistics": torch.zeros(2, 2).double()}
        found = {"weights": torch.zeros(6), "samples": torch.tensor(2)} | counts
        nothing = {"class_sums": torch.zeros(2, 3).double(), "products": torch.zeros(3)}
        return nothing if ask == "add_up" else found

    server = one_server(tmp_path, clients=4, participation=1.0)
    method.start(server)
    for number in (1, 2):
        server.begin(number)
        assert conversation(method, server, answering)[-1][0] == "train"
