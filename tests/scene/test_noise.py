"""Noise: realised rates equal what each rule promises, flips go where they should, streams are independent."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.errors import DataError, FedwinnowError, UsageError
from fedwinnow.scene.flips.maps import CIFAR100, targets_of
from fedwinnow.scene.holdings import Holdings
from fedwinnow.scene.noise import Ground, RateNoise, make_noise


def ground(
    samples: int = 2000, classes: int = 10, clients: int = 8, seed: int = 0, name: str = "toy", **more
) -> Ground:
    labels = np.arange(samples) % classes
    features = Resident(np.zeros((samples, 2), np.float32))
    data = Dataset(
        name=name,
        kind="rows",
        class_names=tuple(f"class {number}" for number in range(classes)),
        train=Samples(features, labels, np.arange(samples), **more),
    )
    holdings = Holdings.from_clients(np.arange(samples) // classes % clients, clients)
    return Ground(data, holdings, labels[holdings.rows], seed)


def rates_of(base: Ground, given_labels: np.ndarray) -> np.ndarray:
    wrong = np.bincount(base.holdings.client, weights=given_labels != base.true, minlength=base.holdings.clients)
    return wrong / base.holdings.sizes


EXACT = [
    "uniform:share=0.6,low=0.5,high=1",
    "uniform:share=1,low=0.2,high=0.4,flip=asymmetric_cyclic",
    "linear:low=0,high=0.8",
    "linear:low=0.1,high=0.4,reach=false,flip=pair,step=-1",
    "constant:rate=0.29",
    "gaussian:mean=0.3,std=0.2,select=exact",
    "fedcorr:rho=1,tau=0.5,flip=symmetric,select=exact",
    "uniform:share=1,low=0.2,high=0.4,flip=mixed",
    "constant:rate=1,flip=symmetric",
]


@pytest.mark.parametrize("spec", EXACT)
@settings(max_examples=10, deadline=None)
@given(
    samples=some.integers(100, 900), classes=some.integers(3, 12), clients=some.integers(1, 7), seed=some.integers(0, 9)
)
def test_exact_rules_realise_their_rate_rounded_down(spec, samples, classes, clients, seed):
    base = ground(samples, classes, clients, seed)
    noisy = make_noise(spec).apply(base)
    expected = np.floor(noisy.nominal * base.holdings.sizes + 1e-9) / base.holdings.sizes
    np.testing.assert_array_equal(rates_of(base, noisy.given), expected)


@pytest.mark.parametrize(
    ("spec", "factor"),
    [
        ("fedcorr:rho=1,tau=0.5", 0.9),  # one label in ten is redrawn as it was
        ("fedcorr:rho=1,tau=0,flip=symmetric", 1.0),
        ("fedcorr:rho=1,tau=0.3,flip=fedcorr_compat", 0.9),
        ("gaussian:mean=0.5,std=0.2", 1.0),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_independent_rules_stay_within_the_binomial_bound(spec, factor, seed):
    base = ground(samples=40_000, clients=8, seed=seed)
    noisy = make_noise(spec).apply(base)
    expected = factor * noisy.nominal
    spread = np.sqrt(expected * (1 - expected) / base.holdings.sizes)
    assert (np.abs(rates_of(base, noisy.given) - expected) <= 5 * spread + 1e-12).all()


def test_floating_point_does_not_steal_a_sample():
    base = ground(samples=100, clients=1)
    assert rates_of(base, make_noise("constant:rate=0.29").apply(base).given)[0] == 0.29


def test_fedcorr_rates_lie_above_tau_or_are_zero():
    noise = make_noise("fedcorr:rho=0.6,tau=0.5")
    assert isinstance(noise, RateNoise)
    rates = noise.rates(5000, seed=3)
    assert abs((rates > 0).mean() - 0.6) < 0.03
    assert rates[rates > 0].min() >= 0.5
    assert abs(rates[rates > 0].mean() - 0.75) < 0.01


def test_uniform_has_an_exact_number_of_noisy_clients():
    noise = make_noise("uniform:share=0.3,low=0.3,high=0.5")
    assert isinstance(noise, RateNoise)
    rates = noise.rates(20, seed=1)
    assert (rates > 0).sum() == 6
    assert ((rates == 0) | ((rates >= 0.3) & (rates <= 0.5))).all()


def test_linear_by_hand():
    reach, short = make_noise("linear:low=0,high=0.8"), make_noise("linear:low=0,high=0.8,reach=false")
    assert isinstance(reach, RateNoise)
    assert isinstance(short, RateNoise)
    np.testing.assert_allclose(reach.rates(5, 0), [0, 0.2, 0.4, 0.6, 0.8])
    np.testing.assert_allclose(short.rates(4, 0), [0, 0.2, 0.4, 0.6])
    assert reach.rates(1, 0).tolist() == [0]


def test_gaussian_is_clipped_and_centred():
    noise = make_noise("gaussian:mean=0.3,std=0.2")
    assert isinstance(noise, RateNoise)
    rates = noise.rates(20_000, seed=0)
    assert rates.min() == 0
    assert rates.max() <= 1
    # The mean of a normal(0.3, 0.2) clipped at 0 is 0.3 + 0.2 (phi(1.5) - 1.5 (1 - Phi(1.5))) = 0.3059.
    assert abs(rates.mean() - 0.3059) < 0.004


def test_another_clients_rate_does_not_change_mine(tmp_path):
    base = ground(clients=4)
    labels = []
    for number, rates in enumerate(([0.5, 0.5, 0.5, 0.5], [0.5, 0.0, 1.0, 0.1])):
        path = tmp_path / f"{number}.csv"
        path.write_text("client,rate\n" + "\n".join(f"{client},{rate}" for client, rate in enumerate(rates)))
        labels.append(make_noise(f"per_client:path={path}").apply(base).given)
    mine = base.holdings.of(0)
    np.testing.assert_array_equal(labels[0][mine], labels[1][mine])
    assert (labels[0] != labels[1]).any()


def test_the_seed_and_the_client_decide():
    base, other = ground(seed=0), ground(seed=1)
    noise = make_noise("constant:rate=0.5")
    assert (noise.apply(base).given == noise.apply(ground(seed=0)).given).all()
    assert (noise.apply(base).given != noise.apply(other).given).any()
    wrong = noise.apply(base).given != base.true
    assert (wrong[base.holdings.of(0)] != wrong[base.holdings.of(1)]).any()


# --- flips to the letter -------------------------------------------------------------------------------------------


def flipped(spec: str, base: Ground) -> dict[int, set[int]]:
    """For every true class, the set of labels that its wrong samples were given."""
    given_labels = make_noise(spec).apply(base).given
    wrong = given_labels != base.true
    return {label: set(given_labels[wrong & (base.true == label)].tolist()) for label in range(base.classes)}


def test_symmetric_reaches_every_other_class_evenly():
    base = ground(samples=30_000)
    given_labels = make_noise("constant:rate=0.9").apply(base).given
    counts = np.bincount(given_labels[(base.true == 3) & (given_labels != 3)], minlength=10)
    assert counts[3] == 0
    others = np.delete(counts, 3)
    assert np.abs(others - others.mean()).max() < 5 * math.sqrt(others.mean())
    everything_wrong = make_noise("constant:rate=1").apply(base).given
    assert (everything_wrong != base.true).all()


def test_pair_goes_up_or_down():
    assert flipped("constant:rate=1,flip=pair", ground()) == {label: {(label + 1) % 10} for label in range(10)}
    assert flipped("constant:rate=1,flip=pair,step=-1", ground()) == {label: {(label - 1) % 10} for label in range(10)}


def test_asymmetric_cifar10_to_the_letter():
    expected = {0: set(), 1: set(), 2: {0}, 3: {5}, 4: {7}, 5: {3}, 6: set(), 7: set(), 8: set(), 9: {1}}
    assert flipped("constant:rate=1,flip=asymmetric", ground(name="cifar10")) == expected
    base = ground(name="cifar10")
    assert (make_noise("constant:rate=0.4,flip=asymmetric").apply(base).given != base.true).mean() < 0.25


def test_asymmetric_mnist_to_the_letter():
    expected = {0: set(), 1: set(), 2: {7}, 3: {8}, 4: set(), 5: {6}, 6: {5}, 7: {1}, 8: set(), 9: set()}
    assert flipped("constant:rate=1,flip=asymmetric", ground(name="mnist")) == expected


def test_asymmetric_cifar100_stays_in_the_true_superclass():
    assert sorted(fine for group in CIFAR100 for fine in group) == list(range(100))
    targets = targets_of("cifar100")
    group_of = {fine: number for number, group in enumerate(CIFAR100) for fine in group}
    assert all(group_of[fine] == group_of[int(targets[fine])] and targets[fine] != fine for fine in range(100))
    assert targets[4] == 30  # beaver to dolphin
    assert targets[95] == 4  # whale back to beaver


def test_asymmetric_cyclic_uses_blocks_of_five_for_a_hundred_classes():
    found = flipped("constant:rate=1,flip=asymmetric_cyclic", ground(samples=2000, classes=100))
    assert found[0] == {1}
    assert found[4] == {0}
    assert found[99] == {95}
    assert flipped("constant:rate=1,flip=asymmetric_cyclic", ground())[9] == {0}
    assert flipped("constant:rate=1,flip=asymmetric_cyclic,block=4", ground())[9] == {8}


def test_asymmetric_without_a_map_says_what_else_there_is():
    with pytest.raises(UsageError, match="asymmetric_cyclic"):
        make_noise("constant:rate=1,flip=asymmetric").apply(ground(name="fashion-mnist"))
    with pytest.raises(UsageError, match="10 classes"):
        make_noise("constant:rate=1,flip=asymmetric,map=mnist").apply(ground(classes=5))


def test_fedcorr_compat_lands_in_the_first_ten_classes():
    base = ground(samples=5000, classes=100)
    given_labels = make_noise("fedcorr:rho=1,tau=0.9,flip=fedcorr_compat").apply(base).given
    assert given_labels[given_labels != base.true].max() == 9


def test_matrix_follows_its_rows(tmp_path):
    matrix = np.eye(4)
    matrix[0] = [0.5, 0.5, 0, 0]
    matrix[2] = [0, 0.25, 0, 0.75]
    np.savetxt(tmp_path / "t.csv", matrix, delimiter=",")
    np.save(tmp_path / "t.npy", matrix)
    base = ground(samples=8000, classes=4)
    for suffix in ("csv", "npy"):
        given_labels = make_noise(f"constant:rate=1,flip=matrix,file={tmp_path / 't'}.{suffix}").apply(base).given
        found = np.zeros((4, 4))
        np.add.at(found, (base.true, given_labels), 1 / 2000)
        assert (found[matrix == 0] == 0).all()
        assert np.abs(found - matrix).max() < 0.06


@pytest.mark.parametrize("content", ["1,0\n0,1\n", "a,b\n", "", "0.5,0.4,0\n0,1,0\n0,0,1\n", "1,0,0\n0,2,-1\n0,0,1\n"])
def test_a_bad_matrix_is_a_data_error(tmp_path, content):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(DataError, match=r"t\.csv"):
        make_noise(f"constant:rate=1,flip=matrix,file={tmp_path / 't.csv'}").apply(ground(classes=3))


def test_mixed_has_two_kinds_of_clients():
    base = ground(samples=4000, clients=10)
    halves = make_noise("constant:rate=0.5,flip=mixed,reading=halves,asymmetric=pair:step=-1").apply(base)
    assert halves.kinds == ("symmetric",) * 5 + ("pair",) * 5
    last = base.holdings.of(9)
    wrong = halves.given[last] != base.true[last]
    assert ((base.true[last][wrong] - halves.given[last][wrong]) % 10 == 1).all()
    drawn = make_noise("constant:rate=0.5,flip=mixed").apply(base)
    assert set(drawn.kinds) == {"symmetric", "asymmetric_cyclic"}


def two_class_ground() -> Ground:
    """Client k holds only the classes k and k + 2; client 3 holds only class 9."""
    labels = np.array([0, 2] * 20 + [1, 3] * 20 + [2, 4] * 20 + [9] * 40 + [5, 6, 7, 8])
    client = np.array([0] * 40 + [1] * 40 + [2] * 40 + [3] * 40 + [-1] * 4)
    data = Dataset(
        name="cifar10",
        kind="rows",
        class_names=tuple("abcdefghij"),
        train=Samples(Resident(np.zeros((len(labels), 1), np.float32)), labels, np.arange(len(labels))),
    )
    holdings = Holdings.from_clients(client, 4)
    return Ground(data, holdings, labels[holdings.rows], 0)


@pytest.mark.parametrize("flip", ["symmetric", "pair", "asymmetric_cyclic", "symmetric_all"])
def test_local_noise_stays_within_the_clients_classes(flip):
    base = two_class_ground()
    given_labels = make_noise(f"constant:rate=1,flip={flip},local=true").apply(base).given
    for client, classes in enumerate(({0, 2}, {1, 3}, {2, 4}, {9})):
        mine = base.holdings.of(client)
        assert set(given_labels[mine].tolist()) <= classes
        if len(classes) == 2 and flip != "symmetric_all":
            assert (given_labels[mine] != base.true[mine]).all()


def test_local_asymmetric_leaves_unmapped_classes_alone():
    base = two_class_ground()
    given_labels = make_noise("constant:rate=1,flip=asymmetric,local=true").apply(base).given
    # bird (2) becomes aeroplane (0) where that is held; aeroplane has no look-alike; deer (4) falls back to bird (2).
    assert set(given_labels[base.holdings.of(0)].tolist()) == {0}
    last = base.holdings.of(2)
    assert set(given_labels[last][base.true[last] == 4].tolist()) == {2}


@pytest.mark.parametrize(("select", "group"), [("per_class", "class"), ("pooled", "all")])
def test_pooled_selection_is_exact_over_all_clients(select, group):
    base = ground(samples=2000)
    wrong = make_noise(f"constant:rate=0.4,select={select}").apply(base).given != base.true
    assert wrong.sum() == 800
    if group == "class":
        assert (np.bincount(base.true, weights=wrong) == 80).all()
    with pytest.raises(UsageError, match="one rate"):
        make_noise(f"linear:select={select}").apply(base)


# --- labels as they come -------------------------------------------------------------------------------------------


def test_given_labels_are_kept_and_the_truth_is_unknown():
    base = ground(samples=100)
    noisy = make_noise("given").apply(base)
    assert (noisy.given == base.true).all()
    assert not noisy.truth_known
    assert np.isnan(noisy.nominal).all()


def test_human_columns_are_chosen_by_name():
    column = np.zeros(100, np.int64)
    base = ground(samples=100, true=np.arange(100) % 10, human={"worse": column})
    noisy = make_noise("human:column=worse").apply(base)
    assert noisy.truth_known
    assert (noisy.given == 0).all()
    with pytest.raises(UsageError, match="Did you mean 'worse'"):
        make_noise("human:column=wrose").apply(base)
    with pytest.raises(DataError, match="cifar10n"):
        make_noise("human:column=worse").apply(ground(samples=100))


@pytest.mark.parametrize(
    ("content", "message"),
    [("0.1\n0.2\n", "2 rates for 3"), ("0.1\nx\n0.2\n", "line 2"), ("0.1\n0.2\n1.2\n", "client 2"), ("", "0 rates")],
)
def test_a_bad_file_of_rates_is_a_data_error(tmp_path, content, message):
    (tmp_path / "rates.txt").write_text(content)
    with pytest.raises(DataError, match=message):
        make_noise(f"per_client:path={tmp_path / 'rates.txt'}").apply(ground(clients=3))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("uniform:low=0.8,high=0.2", "low of at most high"),
        ("fedcorr:rho=2", "at most 1"),
        ("constant:rate=0.1,flip=sym", "Did you mean|Allowed"),
        ("constant:rate=0.1,step=-1", "option of noise 'constant' with flip 'symmetric'"),
        ("constant:rate=0.1,flip=pair,step=2", "Allowed: -1, 1"),
        ("human", "needs column"),
        ("constnat", "Did you mean 'constant'"),
    ],
)
def test_a_wrong_noise_says_what_is_allowed(spec, message):
    with pytest.raises(FedwinnowError, match=message):
        make_noise(spec)


@pytest.mark.parametrize(
    "spec", [*EXACT, "fedcorr", "human:column=worse", "given", "none", "constant:flip=instance,epochs=3,lr=0.1"]
)
def test_a_noise_reads_back_from_its_own_text(spec):
    noise = make_noise(spec)
    assert str(make_noise(str(noise))) == str(noise)
