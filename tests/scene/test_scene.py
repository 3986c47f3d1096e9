"""The scene as a value: frozen, hashed, saved and read back without loss, exported and imported."""

from __future__ import annotations

import csv
import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.errors import DataError, FedwinnowWarning, UsageError
from fedwinnow.scene.scene import Scene, describe_scene, export_scene, import_scene


def toy(samples: int = 200, classes: int = 4, trusted: bool = True, **more) -> Dataset:
    rows = np.arange(samples * 3, dtype=np.float32).reshape(samples, 3)
    labels = np.arange(samples) % classes
    return Dataset(
        name="toy",
        kind="rows",
        class_names=tuple("abcdefgh"[:classes]),
        train=Samples(Resident(rows), labels, np.arange(samples), **more),
        test=Samples(Resident(rows[:8]), labels[:8], np.arange(8)),
        labels_trusted=trusted,
    )


def make(**more) -> Scene:
    settings = {"clients": 5, "partition": "dirichlet:alpha=1", "noise": "uniform:share=0.6,low=0.3,high=0.6"}
    return Scene.make(toy(), **(settings | more))


def test_the_hash_is_what_it_always_was():
    """Written down once: a change here means that every published scene has changed."""
    assert make().hash[:32] == "30b4776f9cbb5030fd605ebf3530706b"


def test_the_hash_is_the_same_in_another_process():
    command = (
        "from fedwinnow.scene.scene import Scene;"
        "print(Scene.make('digits', partition='shards', noise='fedcorr:rho=1,tau=0.5', seed=3).hash)"
    )
    hashes = {
        subprocess.run([sys.executable, "-c", command], check=True, capture_output=True, text=True).stdout.strip()
        for _ in range(2)
    }
    hashes.add(Scene.make("digits", partition="shards", noise="fedcorr:rho=1,tau=0.5", seed=3).hash)
    assert len(hashes) == 1


@pytest.mark.parametrize("change", [{"seed": 1}, {"clients": 6}, {"partition": "iid"}, {"noise": "none"}])
def test_every_part_of_the_definition_changes_the_hash(change):
    assert make(**change).hash != make().hash


def test_a_scene_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().seed = 3


def test_rates_by_hand():
    scene = Scene.make(toy(samples=100), clients=2, noise="linear:low=0.1,high=0.5", seed=0)
    assert scene.nominal.tolist() == [0.1, 0.5]
    assert scene.realised.tolist() == [0.1, 0.5]
    assert scene.realised_rate == pytest.approx(0.3)
    assert scene.nominal_rate == pytest.approx(0.3)
    assert scene.transitions().sum() == 100
    assert np.trace(scene.transitions()) == 70
    assert scene.transitions(0).sum() == 50
    assert scene.counts("true").sum(axis=0).tolist() == [25, 25, 25, 25]


def test_the_realised_rate_of_redrawn_labels_is_below_the_nominal_one():
    scene = Scene.make(toy(samples=4000), clients=2, noise="fedcorr:rho=1,tau=1", seed=0)
    assert scene.nominal_rate == 1
    assert scene.realised_rate == pytest.approx(0.75, abs=0.03)


def test_data_that_is_not_trusted_keeps_its_labels_and_has_no_truth():
    scene = Scene.make(toy(trusted=False), clients=4)
    assert scene.noise == "given"
    assert scene.true is None
    assert np.isnan(scene.realised_rate)
    assert scene.counts().sum() == 200
    with pytest.raises(DataError, match="unknown"):
        scene.transitions()


def test_known_truth_is_measured_against():
    truth = np.arange(200) % 4
    truth[:20] = (truth[:20] + 1) % 4
    scene = Scene.make(toy(trusted=False, true=truth), clients=4)
    assert scene.realised_rate == pytest.approx(0.1)


def test_saved_and_read_back_without_loss(tmp_path):
    scene = make()
    scene.save(tmp_path)
    again = Scene.load(tmp_path)
    assert again.hash == scene.hash
    for field in dataclasses.fields(Scene):
        if field.name in ("holdings", "_dataset"):
            continue
        first, second = getattr(scene, field.name), getattr(again, field.name)
        assert np.array_equal(first, second, equal_nan=True) if isinstance(first, np.ndarray) else first == second
    text = json.loads((tmp_path / "scene.json").read_text())
    assert text["realised_rate"] == pytest.approx(scene.realised_rate)
    assert "clients" not in text
    lines = list(csv.DictReader((tmp_path / "scene.csv").open(newline="")))
    assert [line["site"] for line in lines] == list(scene.site_names)
    assert [int(line["samples"]) for line in lines] == scene.holdings.sizes.tolist()
    assert [float(line["realised"]) for line in lines] == scene.realised.tolist()
    again.attach(toy())
    assert (again.site(2).given == scene.site(2).given).all()


def test_a_scene_with_its_clients_in_the_description_is_read_as_before(tmp_path):
    """Scenes of version 0.1 have no scene.csv."""
    scene = make()
    scene.save(tmp_path)
    (tmp_path / "scene.csv").unlink()
    with pytest.raises(DataError, match=r"scene\.csv"):
        Scene.load(tmp_path)
    (tmp_path / "scene.json").write_text(json.dumps(describe_scene(scene)))
    again = Scene.load(tmp_path)
    assert (again.hash, again.site_names, again.kinds) == (scene.hash, scene.site_names, scene.kinds)
    assert np.array_equal(again.nominal, scene.nominal, equal_nan=True)


@pytest.mark.parametrize("table", ["", "site,samples\na,1\n", "site,samples,kind,nominal,realised\na,1\n", "\xff"])
def test_a_damaged_table_of_clients_is_named(tmp_path, table):
    make().save(tmp_path)
    (tmp_path / "scene.csv").write_bytes(table.encode("latin-1"))
    with pytest.raises(DataError, match=r"scene\.csv"):
        Scene.load(tmp_path)


def test_a_scene_that_names_its_data_loads_it_again(tmp_path):
    scene = Scene.make("digits", clients=3, noise="constant:rate=0.2")
    scene.save(tmp_path)
    again = Scene.load(tmp_path)
    assert (again.site(1).features.take(np.arange(5)) == scene.site(1).features.take(np.arange(5))).all()


def test_data_from_memory_must_be_handed_over_again(tmp_path):
    make().save(tmp_path)
    with pytest.raises(DataError, match=r"data in memory \(toy\).*scene\.attach"):
        _ = Scene.load(tmp_path).dataset


def test_any_byte_of_the_arrays_may_be_wrong(tmp_path):
    scene = make()
    scene.save(tmp_path)
    whole = (tmp_path / "scene.npz").read_bytes()
    refused = 0
    for place in range(0, len(whole), 5):
        (tmp_path / "scene.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        try:
            assert Scene.load(tmp_path).hash == scene.hash  # the byte meant nothing, such as a date
        except DataError:
            refused += 1
    assert refused > len(whole) / 10


def test_other_data_is_refused(tmp_path):
    make().save(tmp_path)
    with pytest.raises(DataError, match="other data"):
        Scene.load(tmp_path).attach(toy(samples=204))


@pytest.mark.parametrize("damage", ["arrays", "json", "other", "format", "list"])
def test_a_damaged_scene_is_refused(tmp_path, damage):
    make().save(tmp_path)
    if damage == "arrays":
        (tmp_path / "scene.npz").write_bytes((tmp_path / "scene.npz").read_bytes()[:100])
    elif damage == "json":
        (tmp_path / "scene.json").write_text("{")
    elif damage == "list":
        (tmp_path / "scene.json").write_text("[]")
    elif damage == "format":
        text = json.loads((tmp_path / "scene.json").read_text())
        (tmp_path / "scene.json").write_text(json.dumps({**text, "format": 99}))
    else:
        make(seed=1).save(tmp_path / "b")
        (tmp_path / "b" / "scene.npz").rename(tmp_path / "scene.npz")
    with pytest.raises(DataError):
        Scene.load(tmp_path)


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_export_and_import(tmp_path, suffix):
    scene = make()
    export_scene(scene, tmp_path / f"out.{suffix}")
    if suffix == "csv":
        table = np.genfromtxt(tmp_path / "out.csv", delimiter=",", names=True, dtype=int)
        assert (table["client"][scene.holdings.rows] == scene.holdings.client).all()
        return
    again = import_scene(toy(), tmp_path / "out.npz", seed=0, test_share=0)
    assert again.hash == scene.hash


def test_import_takes_samples_held_by_nobody_and_checks_everything(tmp_path):
    path = tmp_path / "made.npz"
    client, labels = np.arange(200) % 3, np.arange(200) % 4
    client[:50] = -1
    np.savez(path, client=client, given=labels)
    scene = import_scene(toy(), path, seed=0, test_share=0)
    assert scene.holdings.sizes.sum() == 150
    assert scene.realised_rate == 0
    for change in (
        {"client": client[:-1]},
        {"given": labels + 2},
        {"client": np.full(200, -1)},
        {"client": client * 2},
        {"given": labels / 2},
        {"given": np.array(["a"] * 200)},
    ):
        np.savez(path, **({"client": client, "given": labels} | change))
        with pytest.raises(DataError, match=r"made\.npz"):
            import_scene(toy(), path, seed=0, test_share=0)
    np.savez(path, client=client)
    with pytest.raises(DataError, match="given"):
        import_scene(toy(), path, seed=0, test_share=0)


def test_overlapping_scenes_have_no_export(tmp_path):
    scene = make(partition="rhfl:size=80", noise="constant:rate=0.5")
    assert scene.realised.tolist() == [0.5] * 5
    with pytest.raises(DataError, match="several clients"):
        export_scene(scene, tmp_path / "x.npz")


def test_the_test_part_is_never_noised():
    scene = Scene.make("digits", noise="constant:rate=1", clients=4, test=0.25)
    test = scene.dataset.test
    assert test is not None
    assert len(test) == pytest.approx(1797 / 4, abs=6)
    assert test.true is None or (test.true == test.labels).all()
    assert set(test.ids.tolist()).isdisjoint(scene.dataset.train.ids.tolist())
    assert scene.realised_rate == 1


def test_sites_carry_the_names_of_the_data():
    data = toy(trusted=False, sites=np.array(["north", "south"] * 100))
    scene = Scene.make(data, partition="column")
    assert scene.site_names == ("north", "south")
    assert scene.site(0).name == "north"
    assert len(scene.site(1)) == 100


def test_sites_that_look_alike_stay_apart_with_a_warning():
    data = toy(sites=np.array(["North", "north", " North ", "south"] * 50))
    with pytest.warns(FedwinnowWarning, match=r"' North ' \(n=50\) and 'North' \(n=50\) and 'north'") as told:
        scene = Scene.make(data, partition="column")
    assert scene.site_names == (" North ", "North", "north", "south")
    assert len(told) == 1
    assert "south" not in str(told[0].message)


@pytest.mark.parametrize(("sites", "partition"), [(["north", "south"], "column"), (["North", "north"], "iid")])
def test_sites_that_differ_or_are_not_used_need_no_warning(recwarn, sites, partition):
    Scene.make(toy(sites=np.array(sites * 100)), partition=partition)
    assert not recwarn.list


def test_clients_are_counted_from_zero():
    with pytest.raises(UsageError, match="0 to 4"):
        make().site(5)
