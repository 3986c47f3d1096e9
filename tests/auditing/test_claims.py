"""From held-out opinions to claims: each step by hand, then on made data with known truth."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest

from fedwinnow.auditing.claims import (
    EDGES,
    ODDS,
    ClassCounts,
    Decoys,
    Odds,
    Opinions,
    counts_of,
    joined,
    p_wrong_of,
    skill_of,
    where_errors_go,
)
from fedwinnow.auditing.server_half import AuditWishes, bare_sites, claims_of
from fedwinnow.auditing.site_half import ANSWERS
from fedwinnow.mathematics.disagreement import Counts

ALL = np.ones(3, bool)


def test_sureness_does_not_know_the_given_label():
    classes = np.array([[0.7, 0.2, 0.1], [1 / 3, 1 / 3, 1 / 3]], np.float32)
    for given in ([0, 0], [1, 2]):
        found = Opinions(np.array(given), classes)
        assert found.predicted.tolist() == [0, 0]
        assert found.bin.tolist() == [int((math.log(7 / 3) + 3) / 0.5), int((math.log(1 / 2) + 3) / 0.5)]
    assert found.differs.tolist() == [True, True]


def test_sureness_near_one_is_not_rounded_away():
    found = Opinions(np.array([0]), np.array([[1.0, 3e-7, 0.0]], np.float32))
    assert found.bin.tolist() == [len(EDGES) - 2]  # ln(1 / 3e-7) = 15.02


def test_counts_of_a_site():
    classes = np.array([[0.7, 0.2, 0.1]] * 4 + [[0.1, 0.1, 0.8]], np.float32)
    found = Opinions(np.array([0, 0, 1, 2, 2]), classes)
    by_class = ClassCounts.of(found, 3)
    assert (by_class.given.tolist(), by_class.predicted.tolist(), by_class.agreed.tolist()) == (
        [2, 1, 2],
        [4, 0, 1],
        [2, 0, 1],
    )
    assert by_class.recognised.tolist() == [1, 0, 0.5]
    assert by_class.known.tolist() == [True, False, True]
    counts = counts_of(found, by_class.known)
    assert (counts.samples.sum(), counts.differing.sum()) == (4, 1)  # the label of the unknown class does not count
    told = ClassCounts.of(found, 3, least=2)
    assert (told.given.tolist(), told.agreed.tolist()) == ([2, 0, 2], [2, 0, 0])


def test_small_counts_are_joined_until_none_stands_for_few_samples():
    samples, differing = joined(np.array([9.0, 1, 6, 4]), np.array([4.0, 1, 1, 2]), 3)
    # From the surest: 4 with 2 differing is too few; with the next 10 with 3; then 1 and 9 with 5.
    assert samples.tolist() == [10, 0, 10, 0]
    assert differing.tolist() == [5, 0, 3, 0]


def test_skill_is_what_the_surest_know_beyond_the_commonest_class():
    counts = Counts(np.array([[80.0, 20]]), np.array([[40.0, 2]]), 3)
    # Of the surest fifth 10 % differ; "always the commonest" differs in 40 %.
    assert skill_of(counts, 0.6) == pytest.approx(1 - 0.1 / 0.4)
    assert skill_of(counts, 1.0) == 0


def test_knowing_the_site_is_no_skill():
    """Every site has one class, and the models know which: that says nothing about single labels."""
    luck = np.random.default_rng(0)
    sites = []
    for own in range(3):
        classes = luck.dirichlet(np.ones(3), 200).astype(np.float32) * 0.01
        classes[:, own] += 0.99
        sites.append(Opinions(np.full(200, own), classes))
    claims, p_wrong = claims_of(sites, 3)
    assert claims.finding.skill == 0
    assert np.isnan(np.concatenate(p_wrong)).all()


def test_without_a_known_class_there_is_no_skill():
    luck = np.random.default_rng(0)
    sites = [Opinions(luck.integers(0, 5, 300), np.tile(np.eye(5, dtype=np.float32)[0], (300, 1))) for _ in range(2)]
    assert claims_of(sites, 5)[0].finding.skill == 0


def test_where_errors_go_by_hand():
    found = where_errors_go(np.array([[0.0, 3, 0], [0, 0, 0], [1, 1, 0]]))
    assert found[0].tolist() == pytest.approx([0, 3.5 / 4, 0.5 / 4])
    assert found[1].tolist() == pytest.approx([0.5, 0, 0.5])
    assert found[2].tolist() == pytest.approx([0.5, 0.5, 0])


def test_the_odds_by_hand():
    found = Opinions(np.array([1]), np.array([[0.7, 0.2, 0.1]], np.float32))
    hard = np.full(len(EDGES) - 1, 0.06)
    going = where_errors_go(np.zeros((3, 3)))  # one half each
    odds = Odds.of(found, hard, 0.1, going)
    # The posterior of the true class: 15 of 100 hard samples may be of any of the two other classes.
    true = np.array([0.94, 0.06 * (0.85 * 0.2 / 0.3 + 0.15 / 2), 0.06 * (0.85 * 0.1 / 0.3 + 0.15 / 2)])
    wrong = 0.1 * np.array([(true[1] + true[2]) / 2, (true[0] + true[2]) / 2, (true[0] + true[1]) / 2])
    assert odds.wrong[0] == pytest.approx(wrong, rel=1e-5)
    assert odds.given(np.array([1]))[0] == pytest.approx(math.log(wrong[1] / (0.9 * true[1])), rel=1e-5)
    assert odds.wrong.sum() == pytest.approx(0.1)  # the expected wrong labels are the rate


def test_a_hard_sample_may_be_of_a_class_that_the_models_think_impossible():
    """Of two labels where the models are sure of another class, the unlikelier is no proof of an error."""
    found = Opinions(np.array([2]), np.array([[0.989999, 0.01, 1e-6]], np.float32))
    hard = np.full(len(EDGES) - 1, 0.01)
    odds = Odds.of(found, hard, 0.02, where_errors_go(np.zeros((3, 3)))).given(np.array([2]))[0]
    true = np.array([0.99, 0.01 * (0.85 + 0.075), 0.01 * 0.075])
    assert odds == pytest.approx(math.log(0.02 * (true[0] + true[1]) / 2 / (0.98 * true[2])), rel=1e-2)
    assert odds < 3  # 1e-6 alone would make it 11


def test_p_wrong_is_at_most_what_the_labels_that_are_there_allow():
    found = np.zeros(len(ODDS) - 1)
    expected = found.copy()
    found[-1], expected[-1] = 9, 3  # nine labels where three wrong ones are expected
    limits = Decoys(expected, found).limits
    assert limits[-1] == pytest.approx(3 / 9 * 9 / 10)
    assert p_wrong_of(np.array([20.0]), limits)[0] == limits[-1]
    assert p_wrong_of(np.array([-20.0]), limits)[0] == 0


def made(sites, labels, wrong_rate, skill, seed=0, classes=5):
    """Opinions with samples from hard to easy; `wrong_rate` per site, `skill` scales how sure the models are."""
    luck = np.random.default_rng(seed)
    found, truth = [], []
    for rate in wrong_rate[:sites]:
        true = luck.integers(0, classes, labels)
        clear = luck.uniform(0, 8, labels) * skill  # how much the logit of the true class stands out, on average
        logits = luck.normal(size=(labels, classes)) * 0.7
        logits[np.arange(labels), true] += clear
        believed = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        wrong = luck.random(labels) < rate
        given = np.where(wrong, (true + luck.integers(1, classes, labels)) % classes, true)
        found.append(Opinions(given, believed.astype(np.float32)))
        truth.append(wrong)
    return found, truth


def test_wrong_labels_are_found_and_no_more_is_claimed_than_is_true():
    sites, truth = made(4, 500, [0.1] * 4, 1.0)
    claims, p_wrong = claims_of(sites, 5)
    called = np.concatenate(p_wrong) >= 0.5
    wrong = np.concatenate(truth)
    assert wrong[called].mean() > 0.9
    assert called[wrong].mean() > 0.6
    assert np.concatenate(p_wrong)[called].mean() <= wrong[called].mean() + 0.05
    assert 0.04 <= claims.finding.explanation.common <= 0.11


def test_without_a_wrong_label_nothing_is_called():
    sites, _ = made(4, 500, [0.0] * 4, 1.0)
    claims, p_wrong = claims_of(sites, 5)
    assert all(claims.finding.at(site).nothing_found for site in range(4))
    assert np.concatenate(p_wrong).max() == 0


def test_without_skill_nothing_is_told():
    sites, _ = made(4, 500, [0.1] * 4, 0.02)
    claims, p_wrong = claims_of(sites, 5)
    assert not claims.finding.skilled
    assert np.isnan(np.concatenate(p_wrong)).all()


def test_a_clean_site_beside_a_sloppy_one_is_told_apart():
    sites, truth = made(4, 500, [0.0, 0.4, 0.0, 0.0], 1.0)
    finding = claims_of(sites, 5)[0].finding
    assert 0.3 <= finding.rates[1] <= 0.42
    assert finding.rates[[0, 2, 3]].max() <= 0.02
    assert finding.rates[1] <= np.mean(truth[1]) <= finding.most_rates[1] <= 0.55


def test_labels_of_a_class_that_nobody_recognises_are_not_called():
    """A class that looks like another one is right and rare; it must neither be called nor raise the common rate."""
    sites, _ = made(3, 600, [0.0] * 3, 1.0)
    luck = np.random.default_rng(1)
    hidden = []
    for site in sites:
        given = np.where((site.given == 0) & (luck.random(600) < 0.2), 5, site.given)
        hidden.append(Opinions(given, np.concatenate([site.classes, np.full((600, 1), 1e-6, np.float32)], 1)))
    claims, p_wrong = claims_of(hidden, 6)
    assert claims.known.tolist() == [True] * 5 + [False]
    found, given = np.concatenate(p_wrong), np.concatenate([site.given for site in hidden])
    assert np.isnan(found[given == 5]).all()
    assert (found[given != 5] < 0.5).all()


@pytest.mark.parametrize("least", [0, 5])
def test_what_is_found_under_a_least_count_is_no_more(least):
    sites, truth = made(4, 500, [0.15] * 4, 1.0)
    _, p_wrong = claims_of(sites, 5, least)
    called, wrong = np.nan_to_num(np.concatenate(p_wrong)) >= 0.5, np.concatenate(truth)
    assert called.sum() > 50
    assert np.concatenate(p_wrong)[called].mean() <= wrong[called].mean() + 0.05


def test_small_sites_count_as_one():
    sites, _ = made(4, 500, [0.0] * 4, 1.0)
    small = [Opinions(site.given[:6], site.classes[:6]) for site in sites[:2]]
    finding = claims_of([*sites[2:], *small], 5)[0].finding
    assert len(finding.rates) == 4
    assert finding.rates[2] == finding.rates[3]


@pytest.mark.parametrize("labels", [40, 500])
def test_no_answer_counts_fewer_labels_than_the_least_count(labels):
    """Every number that leaves a site is none, or at least five; what is no count stands for at least five labels."""
    sites, _ = made(4, labels, [0.15] * 4, 1.0)
    server, halves = bare_sites(sites, 5, least=5)
    rng = np.random.default_rng(0)
    for half in halves.values():
        score = rng.normal(-4, 3, labels)
        half.opinions = dataclasses.replace(half.opinions, score=score)
    answers, asked = [], server.sites.ask
    server.sites = SimpleNamespace(ask=lambda ask, told: answers.append((ask, asked(ask, told))) or answers[-1][1])
    conclusion = server.conclude(AuditWishes(0.5, false_alarms=0.2, budget=30))
    assert [ask for ask, _ in answers] == list(ANSWERS)
    for ask, by_site in answers:
        for sums in by_site.values():
            for name, values in sums.items():
                if name in ("expected", "called_p", "unknown", "losses"):
                    continue
                assert ((values == 0) | (values >= 5)).all(), (ask, name, values)
            if ask == "decoys":
                assert ((sums["expected"] == 0) | (sums["found"] >= 5)).all()
            if ask == "figures":
                assert (sums["called_p"] > 0) == (sums["called"] >= 5)
            if ask in ("sureness", "scores"):
                assert sum(sums[name].sum() for name in sums if name != "differing") <= labels
    assert conclusion.claims is not None
    assert labels < 100 or sum(one.called for one in conclusion.figures.values()) > 50


def test_a_few_calls_are_told_as_none_and_the_words_say_so():
    sites, _ = made(4, 500, [0.15] * 4, 1.0)
    called = claims_of(sites, 5)[1][0] >= 0.5
    kept = np.concatenate([np.flatnonzero(~called)[:40], np.flatnonzero(called)[:4]])
    small = Opinions(sites[0].given[kept], sites[0].classes[kept])
    server, halves = bare_sites([small, *sites[1:]], 5, least=5)
    conclusion = server.conclude(AuditWishes(0.5))
    assert int(halves[0].verdict(conclusion.told[0]).flagged.sum()) == 4
    assert conclusion.figures[0].called == 0
    assert conclusion.line(0, "a", 44)["to_review"] is None
    assert conclusion.statements[0].reason.endswith("Fewer than 5 of them stand out enough to be called.")
    assert conclusion.line(1, "b", 500)["to_review"] > 20
