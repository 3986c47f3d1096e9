"""Groups are dealt out whole by every partition, and stay where the data puts them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from fedwinnow import catalogue
from fedwinnow.data.arrays import from_arrays
from fedwinnow.errors import DataError, FedwinnowWarning, UsageError
from fedwinnow.experiment.prepare import hold_out
from fedwinnow.scene.scene import Scene, import_scene

DEALT = [
    "iid",
    "shards:per_client=2",
    "classes:per_client=2",
    "dirichlet:alpha=0.5,minimum=0",
    "dirichlet:alpha=0",
    "bernoulli_dirichlet:minimum=0",
    "bernoulli_dirichlet:exact=false,minimum=0",
    "quantity:alpha=2,minimum=5",
    "fedrn_dirichlet_compat:minimum=0",
]


def grouped(samples: int = 240, sites: bool = False):
    """Groups of 1, 2, 3, 4, 1, 2, ... samples; the label is that of the group, except for one in five samples."""
    sizes = []
    while sum(sizes) < samples:
        sizes.append(len(sizes) % 4 + 1)
    groups = np.repeat([f"p{number}" for number in range(len(sizes))], sizes)[:samples]
    labels = np.array([int(name[1:]) % 4 for name in groups.tolist()])
    labels[::5] = (labels[::5] + 1) % 4
    where = [f"s{number % 3}" for number in range(samples)] if sites else None
    return from_arrays(np.random.RandomState(0).rand(samples, 3), labels, groups=groups, sites=where)


@pytest.mark.parametrize("spec", DEALT)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_group_is_at_one_client(spec, seed):
    dataset = grouped()
    scene = Scene.make(dataset, clients=5, partition=spec, seed=seed, test=0)
    assert len(scene.holdings.rows) == 240
    assert scene.definition.endswith("Groups are dealt out whole, each as one sample with its commonest label.")
    owner = {}
    for row, client in zip(scene.holdings.rows.tolist(), scene.holdings.client.tolist(), strict=True):
        assert owner.setdefault(dataset.train.groups[row], client) == client


def test_iid_deals_equally_many_groups():
    dataset = grouped()
    scene = Scene.make(dataset, clients=5, partition="iid", test=0)
    counts = [len(set(scene.site(client).groups.tolist())) for client in range(5)]
    assert max(counts) - min(counts) <= 1


def test_the_minimum_counts_samples_not_groups():
    """Two groups of 10: with at least 10 samples each both clients are full, though each has one group."""
    dataset = from_arrays(np.zeros((20, 1)), [0] * 10 + [1] * 10, groups=[0] * 10 + [1] * 10)
    scene = Scene.make(dataset, clients=2, partition="dirichlet:alpha=5,minimum=10", test=0)
    assert scene.holdings.sizes.tolist() == [10, 10]


@pytest.mark.parametrize("name", ["rhfl", "fedlsr:classes=2"])
def test_partitions_that_share_samples_are_refused(name):
    with pytest.raises(UsageError, match="gives the same samples to several clients, but the data has groups"):
        Scene.make(grouped(), clients=5, partition=name, test=0)


def test_more_clients_than_groups_are_refused():
    dataset = from_arrays(np.zeros((20, 1)), [0, 1] * 10, groups=[0, 1, 2, 3] * 5)
    with pytest.raises(DataError, match="5 clients but only 4 training groups of samples"):
        Scene.make(dataset, clients=5, partition="iid", test=0)


def test_every_partition_was_tried():
    tried = {spec.partition(":")[0] for spec in DEALT} | {"rhfl", "fedlsr", "column"}
    assert tried == set(catalogue.entries("partitions"))


def test_given_sites_stay_and_a_group_at_two_of_them_is_told():
    dataset = grouped(sites=True)
    with pytest.warns(FedwinnowWarning, match=r"groups have samples at more than one site \('p2' at s0 and s1\)"):
        scene = Scene.make(dataset, partition="column", test=0)
    assert scene.site_names == ("s0", "s1", "s2")
    assert scene.site(0).ids.tolist() == list(range(0, 240, 3))
    assert "Groups" not in scene.definition
    apart = from_arrays(np.zeros((4, 1)), [0, 1, 0, 1], groups=[1, 1, 2, 3], sites=["a", "a", "b", "b"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Scene.make(apart, partition="column", test=0)


def test_an_imported_scene_tells_it_too(tmp_path):
    dataset = from_arrays(np.zeros((4, 1)), [0, 1, 0, 1], groups=[1, 2, 2, 3])
    np.savez(tmp_path / "x.npz", client=np.array([0, 0, 1, 1]), given=np.array([0, 1, 0, 1]))
    with pytest.warns(FedwinnowWarning, match=r"1 group has samples at more than one site \('2' at client-0"):
        import_scene(dataset, tmp_path / "x.npz", seed=0, test_share=0)


def test_validation_and_test_part_keep_groups_whole():
    dataset = grouped(600)
    scene = Scene.make(dataset, clients=3, partition="iid", test=0.2)
    train, test = scene.dataset.train, scene.dataset.test
    assert not set(train.groups.tolist()) & set(test.groups.tolist())
    held = hold_out(scene, 0.25, 0)
    inside = set(train.groups[scene.holdings.rows[held]].tolist())
    assert not inside & set(train.groups[scene.holdings.rows[~held]].tolist())
    for client in range(3):
        assert 0.2 < held[scene.holdings.of(client)].mean() < 0.3


def test_a_saved_scene_with_groups_is_the_same(tmp_path):
    lines = ["patient,age,label", *(f"p{row // 3},{20 + row % 50},{'ab'[row // 3 % 2]}" for row in range(60))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    scene = Scene.make(f"csv:path={tmp_path / 't.csv'},label=label,group=patient", clients=3, test=0.2)
    scene.save(tmp_path / "scene")
    again = Scene.load(tmp_path / "scene")
    assert again.hash == scene.hash
    assert again.site(1).groups.tolist() == scene.site(1).groups.tolist()
