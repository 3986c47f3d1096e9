"""Rules that make one model of many: by hand, and what must hold for any models."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from fedwinnow import catalogue
from fedwinnow.errors import RunError, UsageError
from fedwinnow.mathematics.aggregators import PIECE, middle_mean

RULES = sorted(catalogue.entries("aggregators"))
PATIENT = settings(max_examples=40, deadline=None)


def merged(spec: str, models: list[list[float]], weights: list[float] | None = None, **more) -> list[float]:
    """The rule's model; by default everybody weighs the same and started from zeros."""
    vectors = [torch.tensor(model) for model in models]
    before = torch.tensor(more.get("before", [0.0] * len(models[0])))
    rule = catalogue.make("aggregators", spec).collect({"weights": before}, more.get("trainable", len(before)))
    for vector, weight in zip(vectors, weights or [1.0] * len(models), strict=True):
        rule.add({"weights": vector}, weight)
    return rule.result()["weights"].tolist()


# --- by hand --------------------------------------------------------------------------------------------------------


def test_the_median_of_each_parameter():
    assert merged("median", [[1.0, 9.0], [2.0, -5.0], [100.0, 0.0]]) == [2.0, 0.0]


def test_the_median_of_an_even_number_is_between_the_two_in_the_middle():
    assert merged("median", [[1.0], [2.0], [4.0], [100.0]]) == [3.0]


def test_the_trimmed_mean_leaves_out_the_same_number_on_both_sides():
    models = [[0.0], [1.0], [2.0], [6.0], [1000.0]]
    assert merged("trimmed_mean:share=0.2", models) == [3.0]  # 1, 2 and 6
    assert merged("trimmed_mean:share=0.39", models) == [3.0]  # 1.95 is one
    assert merged("trimmed_mean:share=0.4", models) == [2.0]
    assert merged("trimmed_mean:share=0", models) == [pytest.approx(201.8)]


def test_a_share_that_would_trim_all_leaves_the_median():
    assert merged("trimmed_mean:share=0.5", [[0.0], [1.0], [3.0], [50.0]]) == [2.0]
    assert merged("trimmed_mean:share=0.5", [[0.0], [7.0]]) == [3.5]
    assert merged("trimmed_mean:share=0.5", [[7.0]]) == [7.0]


def test_krum_by_hand():
    # n = 5, f = 1: two nearest neighbours. Squared distances to them: 1 + 4, 1 + 1, 1 + 4, ...
    models = [[0.0], [1.0], [2.0], [50.0], [60.0]]
    assert merged("krum:faulty=0.2", models) == [1.0]
    # 0 and 2 have 5 each; 2 is nearer to all the others.
    assert merged("multi_krum:faulty=0.2,keep=2", models) == [1.5]
    assert merged("multi_krum:faulty=0.2,keep=3", models) == [1.0]
    # none: n - f = 4, so that only 60 stays out
    assert merged("multi_krum:faulty=0.2", models) == [pytest.approx(53 / 4)]
    assert merged("multi_krum:faulty=0.2,keep=99", models) == [pytest.approx(113 / 5)]


def test_krum_assumes_no_more_bad_models_than_so_few_can_stand():
    krum = catalogue.make("aggregators", "krum:faulty=0.5")
    # 2f + 2 < n
    assert [krum.assumed(count) for count in (1, 2, 3, 4, 5, 6, 7, 9)] == [0, 0, 0, 0, 1, 1, 2, 3]
    # Of three, two are each other's nearest; the one that is nearer to the third counts.
    assert merged("krum:faulty=0.5", [[0.0], [0.5], [9.0]]) == [0.5]


def test_of_two_models_krum_takes_the_weighted_mean():
    assert merged("krum", [[0.0], [4.0]], [1.0, 3.0]) == [3.0]
    assert merged("multi_krum", [[4.0]], [5.0]) == [4.0]


def test_the_geometric_median_of_three_on_a_line_is_the_one_in_the_middle():
    assert merged("geometric_median:steps=200", [[0.0], [1.0], [50.0]]) == [pytest.approx(1.0, abs=1e-3)]
    # as heavy as the others together: it is the point itself
    assert merged("geometric_median:steps=500", [[0.0], [1.0], [50.0]], [1, 1, 3]) == [pytest.approx(50.0, abs=1e-2)]


def test_one_step_of_weiszfeld_by_hand():
    # From the mean 3: distances 3, 2 and 5; (0/3 + 1/2 + 8/5) / (1/3 + 1/2 + 1/5) = 2.1 / (31/30)
    assert merged("geometric_median:steps=1", [[0.0], [1.0], [8.0]]) == [pytest.approx(63 / 31)]


def test_a_point_that_meets_a_model_is_no_division_by_zero():
    assert merged("geometric_median:steps=50", [[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]) == pytest.approx(
        [0.0, 0.0], abs=1e-5
    )


def test_long_updates_are_shortened_to_the_limit():
    # From (1, 1): updates (3, 4) of length 5 and (0, 1) of length 1.
    models = [[4.0, 5.0], [1.0, 2.0]]
    assert merged("norm_clipping:limit=1", models, before=[1.0, 1.0]) == pytest.approx([1.3, 1.9])
    assert merged("norm_clipping:limit=9", models, before=[1.0, 1.0]) == pytest.approx([2.5, 3.5])
    # none: the median of 5 and 1
    assert merged("norm_clipping", models, before=[1.0, 1.0]) == pytest.approx([1.9, 2.7])
    assert merged("norm_clipping:limit=1", models, [3.0, 1.0], before=[1.0, 1.0]) == pytest.approx([1.45, 1.85])


def test_clients_that_did_not_move_stay_where_they_are():
    assert merged("norm_clipping", [[1.0], [1.0]], before=[1.0]) == [1.0]


def test_running_statistics_follow_but_do_not_decide():
    # The second number is a statistic: by it the third model would be the odd one, by what is trained it is the middle.
    models = [[0.0, 1.0], [2.0, 2.0], [1.0, 900.0]]
    assert merged("krum", models) != [1.0, 900.0]
    assert merged("krum", models, trainable=1) == [1.0, 900.0]
    assert merged("norm_clipping:limit=1", models[1:2], trainable=1) == [1.0, 1.0]


def test_large_models_are_sorted_in_pieces():
    models = [torch.full((PIECE + 3,), value) for value in (5.0, 1.0, 3.0)]
    assert middle_mean(models, 1).unique().tolist() == [3.0]


# --- what holds for every rule --------------------------------------------------------------------------------------

number = some.floats(-100, 100, width=32)
populations = some.lists(some.tuples(number, number, some.integers(1, 50)), min_size=1, max_size=9)


@pytest.mark.parametrize("rule", sorted(set(RULES) - {"krum", "multi_krum"}))
@PATIENT
@given(rows=populations, luck=some.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(rule, rows, luck):
    def made(rows):
        return merged(rule, [[first, second] for first, second, _ in rows], [float(weight) for *_, weight in rows])

    shuffled = list(rows)
    luck.shuffle(shuffled)
    assert made(rows) == pytest.approx(made(shuffled), rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("rule", ["krum", "multi_krum"])
@PATIENT
@given(seed=some.integers(0, 10_000), count=some.integers(3, 12))
def test_the_order_does_not_matter_where_no_two_models_are_equally_good(rule, seed, count):
    generator = torch.Generator().manual_seed(seed)
    models = torch.randn(count, 6, generator=generator, dtype=torch.float32)
    order = torch.randperm(count, generator=generator)
    assert merged(rule, models.tolist()) == pytest.approx(merged(rule, models[order].tolist()), abs=1e-5)


@pytest.mark.parametrize("rule", RULES)
@PATIENT
@given(value=number, weights=some.lists(some.floats(0.01, 1e4), min_size=1, max_size=9))
def test_equal_models_give_exactly_that_model(rule, value, weights):
    model = torch.tensor([value, 1 / 3]).tolist()
    assert merged(rule, [model] * len(weights), weights) == model


@pytest.mark.parametrize("rule", RULES)
@PATIENT
@given(rows=populations)
def test_the_result_lies_within_the_models(rule, rows):
    """For norm clipping: within the models and where they started."""
    models = [[first, second] for first, second, _ in rows]
    start = [[0.0, 0.0]] if rule == "norm_clipping" else []
    found = merged(rule, models, [float(weight) for *_, weight in rows])
    for place, value in enumerate(found):
        column = [model[place] for model in models + start]
        assert min(column) - 1e-3 <= value <= max(column) + 1e-3


@pytest.mark.parametrize(
    "rule", ["median", "trimmed_mean:share=0.4", "krum", "multi_krum", "geometric_median:steps=99"]
)
@PATIENT
@given(far=some.floats(1e3, 1e6, width=32), good=some.lists(some.floats(-1, 1, width=32), min_size=4, max_size=4))
def test_one_outlier_hardly_moves_a_robust_rule(rule, far, good):
    models = [[value] for value in good]
    (value,) = merged(rule, [*models, [far]])
    assert -1.1 <= value <= 1.1


@PATIENT
@given(far=some.floats(1e3, 1e6, width=32))
def test_how_far_an_outlier_is_makes_no_difference_to_the_median(far):
    assert merged("median", [[0.0], [1.0], [far]]) == [1.0]


@PATIENT
@given(far=some.floats(10, 1e6, width=32))
def test_norm_clipping_bounds_what_one_client_can_do(far):
    assert abs(merged("norm_clipping:limit=1", [[0.0], [0.0], [far]])[0]) <= 1 / 3 + 1e-6


@PATIENT
@given(seed=some.integers(0, 1000))
def test_krum_picks_from_the_cluster(seed):
    generator = torch.Generator().manual_seed(seed)
    near = torch.randn(5, 8, generator=generator) * 0.1
    far = torch.randn(2, 8, generator=generator) * 5 + 20
    models = torch.cat([far[:1], near, far[1:]]).tolist()
    assert merged("krum:faulty=0.3", models) in near.tolist()
    assert merged("multi_krum:faulty=0.3", models) == pytest.approx(near.mean(0).tolist(), abs=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_counters_take_the_largest_and_weight_zero_is_left_out(rule):
    collected = catalogue.make("aggregators", rule).collect(
        {"weights": torch.zeros(1), "counters": torch.tensor([0, 0])}, 1
    )
    collected.add({"weights": torch.tensor([1.0]), "counters": torch.tensor([3, 9])}, 1)
    collected.add({"weights": torch.tensor([1.0]), "counters": torch.tensor([5, 2])}, 2)
    collected.add({"weights": torch.tensor([77.0]), "counters": torch.tensor([99, 99])}, 0)
    result = collected.result()
    assert result["weights"].tolist() == [1.0]
    assert result["counters"].tolist() == [5, 9]


@pytest.mark.parametrize("rule", RULES)
def test_the_clients_models_are_left_alone(rule):
    models = [torch.tensor([1.0]), torch.tensor([3.0]), torch.tensor([8.0])]
    before = torch.zeros(1)
    collected = catalogue.make("aggregators", rule).collect({"weights": before}, 1)
    for model in models:
        collected.add({"weights": model}, 1)
    collected.result()["weights"].add_(1)
    assert [float(model) for model in (*models, before)] == [1.0, 3.0, 8.0, 0.0]


@pytest.mark.parametrize("rule", RULES)
def test_a_second_model_is_merged_by_itself(rule):
    start = {"weights": torch.zeros(2), "second.weights": torch.zeros(2)}
    collected = catalogue.make("aggregators", rule).collect(start, 2)
    for first, second in (([1.0, 2.0], [9.0, 0.0]), ([1.5, 2.0], [7.0, 0.0]), ([4.0, 1.0], [9.0, 3.0])):
        collected.add({"weights": torch.tensor(first), "second.weights": torch.tensor(second)}, 1)
    both = collected.result()
    assert both["weights"].tolist() == merged(rule, [[1.0, 2.0], [1.5, 2.0], [4.0, 1.0]])
    assert both["second.weights"].tolist() == merged(rule, [[9.0, 0.0], [7.0, 0.0], [9.0, 3.0]])


@pytest.mark.parametrize("rule", RULES)
def test_nobody_with_a_weight_is_an_error(rule):
    with pytest.raises(RunError, match="nothing to"):
        merged(rule, [[1.0]], [0.0])
    with pytest.raises(RunError, match="0 or more"):
        merged(rule, [[1.0]], [-1.0])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mediam", "median"),
        ("trimmed_mean:share=0.6", "at most 0.5"),
        ("krum:faulty=-1", "at least 0"),
        ("multi_krum:keep=0", "at least 1"),
        ("geometric_median:steps=0", "at least 1"),
        ("norm_clipping:limit=0", "above 0"),
    ],
)
def test_what_a_user_may_get_wrong(spec, message):
    with pytest.raises(UsageError, match=message):
        catalogue.make("aggregators", spec)
