"""Partitions: disjoint, complete, of the promised sizes, and the same for the same seed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from fedwinnow import catalogue
from fedwinnow.errors import DataError, FedwinnowError, UsageError
from fedwinnow.scene.holdings import Holdings, rank_within, smallest_within
from fedwinnow.scene.partition import Partition, Population
from fedwinnow.scene.partitions.skewed import number_texts

DISJOINT = [
    "iid",
    "shards:per_client=1",
    "shards:per_client=3",
    "classes:per_client=2",
    "dirichlet:alpha=0.5,minimum=0",
    "dirichlet:alpha=0.5,minimum=0,cap=false",
    "dirichlet:alpha=0",
    "dirichlet:alpha=inf,minimum=0",
    "dirichlet:alpha=1e-9,minimum=0",
    "bernoulli_dirichlet:p=0.4,alpha=1,minimum=0",
    "bernoulli_dirichlet:p=0.01,alpha=1,minimum=0",
    "bernoulli_dirichlet:exact=false,minimum=0",
    "quantity:alpha=0.7,minimum=0",
    "quantity:alpha=inf,minimum=0",
    "fedrn_dirichlet_compat:minimum=0",
]


def population(samples: int = 600, classes: int = 6, clients: int = 10, seed: int = 0) -> Population:
    labels = np.arange(samples) % classes
    return Population(np.random.RandomState(1).permutation(labels), classes, clients, seed)


def split(spec: str, people: Population) -> Holdings:
    rule = catalogue.make("partitions", spec)
    assert isinstance(rule, Partition)
    return rule.split(people)


def held_classes(holdings: Holdings, people: Population) -> np.ndarray:
    """How many samples of each class (column) each client (row) holds."""
    table = np.zeros((holdings.clients, people.classes), int)
    np.add.at(table, (holdings.client, people.labels[holdings.rows]), 1)
    return table


@pytest.mark.parametrize("spec", DISJOINT)
@settings(max_examples=15, deadline=None)
@given(
    samples=some.integers(40, 400), classes=some.integers(2, 8), clients=some.integers(1, 12), seed=some.integers(0, 5)
)
def test_every_sample_has_exactly_one_holder(spec, samples, classes, clients, seed):
    people = population(samples, classes, clients, seed)
    if spec == "classes:per_client=2" and clients * 2 < classes:
        with pytest.raises(UsageError, match="without a holder"):
            split(spec, people)
        return
    holdings = split(spec, people)
    assert holdings.clients == clients
    assert sorted(holdings.rows.tolist()) == list(range(samples))
    for client in range(clients):
        assert (np.diff(holdings.rows[holdings.of(client)]) > 0).all()


@pytest.mark.parametrize("spec", [*DISJOINT, "fedlsr:classes=2", "rhfl:size=30"])
def test_the_seed_decides(spec):
    first, again, other = (split(spec, population(seed=seed)) for seed in (0, 0, 1))
    assert (first.rows == again.rows).all()
    assert (first.offsets == again.offsets).all()
    assert len(first.rows) != len(other.rows) or (first.rows != other.rows).any()


def test_iid_sizes_differ_by_at_most_one():
    sizes = split("iid", population(samples=607)).sizes
    assert sizes.min() == 60
    assert sizes.max() == 61


def test_shards_give_equal_sizes_and_few_classes():
    people = population(samples=600, classes=6, clients=10)
    holdings = split("shards:per_client=2", people)
    assert set(holdings.sizes) == {60}
    # A shard of 30 lies inside a class of 100 or across one border, so two shards touch at most four classes.
    assert (held_classes(holdings, people) > 0).sum(axis=1).max() <= 4


def test_shards_that_fit_the_classes_hold_one_class_each():
    people = population(samples=600, classes=6, clients=6)
    holdings = split("shards:per_client=1", people)
    assert ((held_classes(holdings, people) > 0).sum(axis=1) == 1).all()


@pytest.mark.parametrize("wanted", [1, 3, 6])
def test_classes_holds_exactly_that_many(wanted):
    people = population(clients=9)
    table = held_classes(split(f"classes:per_client={wanted}", people), people)
    assert ((table > 0).sum(axis=1) == wanted).all()
    assert (table.sum(axis=0) == 100).all()


def test_dirichlet_of_infinity_cuts_every_class_evenly():
    people = population(samples=600, classes=6, clients=10)
    assert (held_classes(split("dirichlet:alpha=inf", people), people) == 10).all()


@pytest.mark.parametrize(("clients", "per_client"), [(6, {1}), (12, {1}), (3, {2}), (4, {1, 2})])
def test_dirichlet_of_zero_is_one_class_per_client(clients, per_client):
    people = population(clients=clients)
    table = held_classes(split("dirichlet:alpha=0", people), people)
    assert set((table > 0).sum(axis=1).tolist()) == per_client
    assert (table.sum(axis=0) == 100).all()


def test_dirichlet_of_zero_keeps_the_promised_minimum():
    people = Population(np.repeat([0, 1], [57, 3]), classes=2, clients=10, seed=0)  # five clients share three samples
    with pytest.raises(DataError, match=r"always had fewer than 1 of the 60 samples \(in the last draw 2 of 10\)"):
        split("dirichlet:alpha=0", people)
    assert sorted(split("dirichlet:alpha=0,empty=keep", people).sizes)[:3] == [0, 0, 1]
    assert split("dirichlet:alpha=0,minimum=0", people).sizes.min() == 0
    with pytest.raises(UsageError, match="minimum of at most 6"):
        split("dirichlet:alpha=0,minimum=7", people)


def test_smaller_alpha_is_more_skewed():
    people = population(samples=6000, clients=20)

    def largest_share(alpha: float) -> float:
        table = held_classes(split(f"dirichlet:alpha={alpha}", people), people)
        return float((table.max(axis=1) / table.sum(axis=1)).mean())

    assert largest_share(0.1) > largest_share(1) > largest_share(100)


def test_the_cap_keeps_clients_near_their_equal_share():
    people = population(samples=6000, clients=20)
    largest = {cap: split(f"dirichlet:alpha=0.1,cap={cap}", people).sizes.max() for cap in ("true", "false")}
    assert largest["true"] < largest["false"]


def test_dirichlet_keeps_the_promised_minimum():
    assert split("dirichlet:alpha=0.3,minimum=12", population(samples=2000)).sizes.min() >= 12


def test_a_minimum_out_of_reach_ends_with_values_that_work():
    people = population(samples=600, clients=40)
    with pytest.raises(DataError, match=r"alpha=[0-9.]+ works with this data") as caught:
        split("dirichlet:alpha=0.05,minimum=5", people)
    alpha = float(str(caught.value).split("alpha=")[2].split()[0])
    assert split(f"dirichlet:alpha={alpha},minimum=5", people).sizes.min() >= 5


def test_empty_clients_are_kept_on_request_only():
    people = population(samples=60, clients=40)
    with pytest.raises(DataError, match="empty=keep"):
        split("dirichlet:alpha=0.05", people)
    holdings = split("dirichlet:alpha=0.05,empty=keep", people)
    assert holdings.clients == 40
    assert holdings.sizes.min() == 0
    assert len(holdings.rows) == 60


def test_bernoulli_dirichlet_leaves_out_classes():
    people = population(samples=6000, clients=30)
    table = held_classes(split("bernoulli_dirichlet:p=0.3,alpha=10", people), people)
    assert 0.2 < (table > 0).mean() < 0.5
    assert (table.sum(axis=0) == 1000).all()


def test_quantity_keeps_the_class_mix():
    people = population(samples=6000, clients=5)
    holdings = split("quantity:alpha=1", people)
    table = held_classes(holdings, people)
    assert holdings.sizes.max() > 2 * holdings.sizes.min()
    assert np.abs(table / table.sum(axis=1, keepdims=True) - 1 / 6).max() < 0.06


def test_the_released_dirichlet_of_fedrn_ignores_labels():
    people = population(samples=20_000, clients=20)
    table = held_classes(split("fedrn_dirichlet_compat:alpha=0.5", people), people)
    shares = table / table.sum(axis=1, keepdims=True)
    assert np.abs(shares - 1 / 6).sum(axis=1).mean() / 2 < 0.08
    assert table.sum(axis=1).std() > 200


def test_fedlsr_draws_from_a_few_classes_with_overlap():
    people = population(samples=6000, clients=20)
    holdings = split("fedlsr:classes=2,size=300", people)
    assert ((held_classes(holdings, people) > 0).sum(axis=1) == 2).all()
    assert np.abs(holdings.sizes - 300).max() <= 1
    assert holdings.overlap()
    for client in range(20):
        mine = holdings.rows[holdings.of(client)]
        assert len(np.unique(mine)) == len(mine)


@pytest.mark.parametrize("size", [1, 50, 599, 600])
def test_rhfl_draws_without_repeat(size):
    holdings = split(f"rhfl:size={size}", population())
    assert set(holdings.sizes) == {size}
    for client in range(10):
        assert len(np.unique(holdings.rows[holdings.of(client)])) == size


def test_column_takes_clients_from_the_data():
    people = Population(np.array([0, 1, 0, 1]), 2, 99, 0, np.array(["north", "east", "north", "west"]))
    holdings = split("column", people)
    assert [holdings.rows[holdings.of(client)].tolist() for client in range(3)] == [[1], [0, 2], [3]]
    with pytest.raises(DataError, match="no site column"):
        split("column", population())


@pytest.mark.parametrize(
    ("spec", "clients", "message"),
    [
        ("iid", 601, "at most 600 clients"),
        ("iid", 0, "1 or more"),
        ("shards:per_client=61", 10, "per_client of at most 60"),
        ("classes:per_client=7", 10, "at most 6"),
        ("dirichlet:minimum=100", 10, "minimum of at most 60"),
        ("fedlsr:classes=7", 10, "only 6 classes"),
        ("rhfl:size=601", 10, "at most"),
        ("dirichlet:alpha=-1", 10, "at least 0"),
        ("dirichlet:alpha=nan", 10, "a number"),
        ("dirichlet:apha=1", 10, "Did you mean 'alpha'"),
        ("dirichlett", 10, "Did you mean 'dirichlet'"),
    ],
)
def test_errors_say_what_is_allowed(spec, clients, message):
    with pytest.raises(FedwinnowError, match=message):
        split(spec, population(clients=clients))


def test_rank_within_by_hand():
    ranks = rank_within(np.array([1, 0, 1, 0, 1]), np.array([0.3, 0.9, 0.1, 0.2, 0.2]))
    assert ranks.tolist() == [2, 1, 0, 0, 1]


def test_alpha_infinity_reads_back():
    rule = catalogue.make("partitions", "dirichlet:alpha=inf")
    assert math.isinf(catalogue.make("partitions", str(rule)).values()["alpha"])


@given(
    some.lists(some.text(some.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12), min_size=1)
)
def test_sites_are_numbered_in_alphabetical_order(texts):
    sites = np.array(texts)
    assert number_texts(sites).tolist() == np.unique(sites, return_inverse=True)[1].tolist()


@given(
    some.lists(some.tuples(some.integers(0, 5), some.integers(0, 9)), min_size=1, max_size=60),
    some.lists(some.floats(0, 1), min_size=6, max_size=6),
)
def test_the_smallest_of_each_group_are_found_whatever_the_ties(pairs, shares):
    groups = np.array([group for group, _ in pairs])
    luck = np.array([tenth / 10 for _, tenth in pairs])
    wanted = np.floor(np.bincount(groups, minlength=6) * np.array(shares)).astype(np.int64)
    chosen = smallest_within(groups, luck, wanted)
    assert chosen.tolist() == (rank_within(groups, luck) < wanted[groups]).tolist()
    assert np.bincount(groups[chosen], minlength=6).tolist() == wanted.tolist()
