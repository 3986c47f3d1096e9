"""The least count: of fewer samples nothing leaves a site, whatever the method; and 0 asks for nothing."""

from __future__ import annotations

import dataclasses
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from by_hand import identity, one_client, one_server
from fedwinnow import catalogue
from fedwinnow.backends.host_as_text import build_host, describe_host
from fedwinnow.backends.shared_memory import OpenedArrays, SharedArrays
from fedwinnow.backends.worker_process import Worker
from fedwinnow.commands.serve import Serve
from fedwinnow.commands.sweep import Sweep
from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.deployment.site_data import holding_of
from fedwinnow.errors import FedwinnowWarning, RunError, UsageError
from fedwinnow.experiment.prepare import prepare, setup_of
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import Answer, Host, Task
from fedwinnow.federation.ledger import TooFew, whole_passes
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import Method, find_method
from fedwinnow.flags import read_config
from fedwinnow.methods.feddiv import FedDiv
from fedwinnow.methods.winnow import TOLD, Confusions, Winnow
from fedwinnow.scene.scene import Scene
from fedwinnow.testing import toy_data
from stages import TINY, ready, run
from wire import Wire

LEAST = 5
# Samples of the classes 0, 1 and 2 at four sites: enough of all; a small class; two small ones; a small site.
HELD = ((8, 8, 8), (9, 8, 2), (12, 1, 4), (1, 2, 1))
SMALL = {1: [2], 2: [1, 2]}  # the small classes of the sites that take part
NAMES = tuple(f"site {number}" for number in range(len(HELD)))
EVERY = sorted(catalogue.entries("methods"))
NEEDED = {"trusted_data": {"trusted": 0.3}, "public_data": {"public": 0.3}}
PER_SAMPLE = {"fedgr": "fedgr:gmm_scope=client"}  # as it stands it sends a value per sample, and is refused


def small_data(moved: float = 0.0) -> Dataset:
    """Blobs with small classes, and where asked for with the samples of small classes (and of the small site) moved."""
    usual = toy_data(samples=sum(map(sum, HELD)))
    labels = np.concatenate([np.repeat(np.arange(3), counts) for counts in HELD])
    site = np.repeat(np.arange(len(HELD)), [sum(counts) for counts in HELD])
    few = np.array([counts[label] < LEAST for label, counts in zip(labels, np.array(HELD)[site], strict=True)])
    angle, chance = 2 * np.pi * labels / 3, np.random.RandomState(1)
    rows = 2 * np.stack([np.cos(angle), np.sin(angle)], 1) + 0.7 * chance.normal(size=(len(labels), 2))
    rows += moved * few[:, None] * np.array([1.0, -2.0])
    names = np.array(NAMES)[site]
    train = Samples(Resident(rows.astype(np.float32)), labels, np.arange(len(labels)), sites=names)
    return dataclasses.replace(usual, train=train)


SECOND = "winnow:preset=second"


def settings_for(method: str, **changes: Any) -> dict[str, Any]:
    needs = find_method(method).needs
    more = {key: value for need in needs for key, value in NEEDED.get(need, {}).items()}
    return {**TINY, "data": small_data(), "partition": "column", "noise": "given", "rounds": 3, **more, **changes}


# --- every method ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*(name for name in EVERY if name != "oracle"), SECOND])  # nobody knows the truth here
def test_small_sites_are_absent_and_small_classes_are_not_spoken_of(name, tmp_path, monkeypatch):
    method, wire = PER_SAMPLE.get(name, name), Wire(monkeypatch)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = run(tmp_path, method=method, least_count=LEAST, **settings_for(method))
    assert result.summary["status"] == "finished"
    if name == "centralised":  # one place with the samples of all
        return
    assert [str(one.message) for one in said if one.category is FedwinnowWarning] == [
        f"absent from the run, with fewer samples to train on than least_count={LEAST}: site 3."
    ]
    assert result.summary["absent"] == ["site 3"]
    assert "site 3" not in json.loads((tmp_path / "ledger.json").read_text())["sites"]
    asked = {task.client for task, _ in wire.of_the_method}
    assert asked == {0, 1, 2}  # not even asked
    axes = find_method(method).by_class()
    for task, answer in wire.of_the_method:
        assert answer.error is None
        assert not any(find_method(method).exposes[key] == "sample" for key in answer.reply)
        for key, axis in axes.items():
            if key in answer.reply and task.client in SMALL:
                entries = answer.reply[key].index_select(axis, torch.tensor(SMALL[task.client]))
                assert not entries.any(), (key, entries)


def test_every_key_with_something_per_class_is_known():
    declared = {name: set(find_method(name).by_class()) for name in EVERY if find_method(name).by_class()}
    assert declared == {
        "winnow": {"statistics"},
        "fednoro": {"indicator", "present"},
        "fedelc": {"indicator", "present"},
        "fedsir": {"directions", "residuals", "spectra"},
        "rofl": {"centroids"},
    }
    assert find_method("fednoro:indicator=lid").by_class() == {}
    assert find_method("winnow:filter=relative").by_class() == {}


@pytest.mark.parametrize("name", ["winnow", SECOND, "fednoro", "fedelc", "fedsir:rank_share=0.1", "rofl"])
def test_without_a_least_count_small_classes_are_spoken_of(name, tmp_path, monkeypatch):
    wire = Wire(monkeypatch)
    run(tmp_path, method=name, **settings_for(name))
    axes, spoken = find_method(name).by_class(), set()
    for task, answer in wire.of_the_method:
        for key, axis in axes.items():
            if key in answer.reply and task.client in SMALL:
                entries = answer.reply[key].index_select(axis, torch.tensor(SMALL[task.client]))
                spoken |= {key} if bool(entries.any()) else set()
    assert spoken == set(axes)


def host_of(folder: Path, method: str, data: Dataset, least: int) -> Host:
    stage = prepare(Experiment(**settings_for(method, data=data), method=method, least_count=least))
    return Host(stage.sites, stage.judged, stage.parts, stage.method, setup_of(stage.experiment, "cpu"), Memory(folder))


MEASURED_BY = {"fednoro": "measure", "fedelc": "measure", "fedsir": "describe"}  # what asks for values per class


def conversation_with(folder: Path, method: str, data: Dataset, least: int, client: int) -> list[Any]:
    """What a site says that is not a model, when it is visited twice with given models and asked for its values."""
    host = host_of(folder, method, data, least)
    sent = host.model.payload()
    seed = torch.Generator().manual_seed(3)
    other = {**sent, "weights": sent["weights"] + 0.3 * torch.randn(sent["weights"].shape, generator=seed)}
    if method in MEASURED_BY:
        questions = [(MEASURED_BY[method], sent), (MEASURED_BY[method], other)]
    else:
        shared = {"filter": host.method.filter_of({"filter": Confusions.start(3).flat}).flat}
        if "filter" in method:
            shared = {"filter": torch.tensor([0.2, 0.8, 0.05], dtype=torch.float64)}
        questions = [
            ("train_plainly", sent | shared),
            ("expect", shared),
            ("train", other | shared),
            ("expect", shared),
            ("expect", shared),
        ]
    memory, said = None, []
    for place, (ask, payload) in enumerate(questions):
        answer = host.answer(Task(client, ask, 2, place, payload, memory))
        assert answer.error is None, answer.error
        memory = answer.memory
        said += [answer.reply[key] for key in host.method.by_class() or ("statistics",) if key in answer.reply]
    return said


@pytest.mark.parametrize("client", sorted(SMALL))
@pytest.mark.parametrize("method", ["winnow", "winnow:filter=relative", *MEASURED_BY])
def test_no_value_of_a_site_depends_on_samples_of_its_small_classes(method, client, tmp_path):
    usual = conversation_with(tmp_path / "a", method, small_data(), LEAST, client)
    moved = conversation_with(tmp_path / "b", method, small_data(moved=1.5), LEAST, client)
    assert len(usual) >= 3
    assert all(torch.equal(one, other) for one, other in zip(usual, moved, strict=True))
    # and it would notice: without a least count the same change shows
    usual = conversation_with(tmp_path / "c", method, small_data(), 0, client)
    moved = conversation_with(tmp_path / "d", method, small_data(moved=1.5), 0, client)
    assert not all(torch.equal(one, other) for one, other in zip(usual, moved, strict=True))


def test_nor_on_which_of_its_small_classes_a_sample_is_in(tmp_path):
    usual, data = small_data(), small_data()
    place = sum(map(sum, HELD[:2])) + 12  # the one sample of class 1 at site 2
    assert data.train.labels[place] == 1
    data.train.labels[place] = 2  # now five of class 2 would be enough, so one of them goes to class 1
    data.train.labels[place + 1] = 1
    for method in ("winnow", *MEASURED_BY):
        pair = [conversation_with(tmp_path / f"{method}{i}", method, d, LEAST, 2) for i, d in enumerate((usual, data))]
        assert all(torch.equal(one, other) for one, other in zip(*pair, strict=True))


# --- what the pages say of winnow -----------------------------------------------------------------------------------


def test_columns_of_winnows_counts_are_the_expected_wrong_labels_of_each_class():
    client, method = one_client(np.eye(2)[[0, 0, 1, 1, 0]], [0, 0, 1, 1, 1]), Winnow()
    client.state["mean"] = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.2, 0.8], [0.1, 0.9], [0.9, 0.1]])
    for _ in range(20):
        told = method.expect(client, {"filter": Confusions.start(2).flat})["statistics"]
    # r_kc = (the site's expected wrong labels of c + κ r_k) / (n_kc + κ), and r_k is their sum over all n
    counts, rates = torch.tensor([2.0, 3.0], dtype=torch.float64), client.state["rates"]
    assert torch.allclose(told.sum(0), rates * (counts + 5) - 5 * told.sum() / 5, atol=1e-6)
    assert float(told.sum(0)[1]) == pytest.approx(1.0, abs=0.15)  # one label of class 1 is wrong, as the server sees


def test_the_server_can_read_off_how_many_labels_of_each_class_are_wrong(tmp_path, monkeypatch):
    wire = Wire(monkeypatch)
    easy = {"data": toy_data(samples=480, classes=4, spread=0.4), "rounds": 10, "epochs": 2}
    run(tmp_path, method="winnow", noise="constant:rate=0.3", **easy)
    told = {task.client: answer.reply["statistics"].sum(0) for task, answer in wire.answers if task.ask == "expect"}
    scene = Scene.load(tmp_path)
    for client, columns in told.items():
        mine = scene.holdings.of(client)
        wrong = np.bincount(scene.given[mine][scene.wrong[mine]], minlength=4)
        assert np.abs(columns.numpy() - wrong).max() < 0.5


def test_a_class_of_one_sample_sends_that_samples_own_answer():
    client, method = one_client(np.eye(3)[[0, 1]], [0, 1], classes=3), Winnow(sharpen=1.0)
    client.state["mean"] = torch.tensor([[0.8, 0.1, 0.1], [0.6, 0.1, 0.3]])
    told = method.expect(client, {"filter": Confusions.start(3).flat})["statistics"]
    column = told[:, 1] / told[:, 1].sum()  # all that is said about class 1
    answer = torch.tensor([0.6, 0.0, 0.3], dtype=torch.float64) / 0.9
    assert torch.allclose(column, answer, atol=1e-6)
    client = one_client(np.eye(3)[[0, 1]], [0, 1], classes=3)
    client.least_count = LEAST
    told = client.told()
    assert len(told) == 0


def test_winnow_keeps_what_it_tells_apart_from_what_it_uses(tmp_path):
    host = host_of(tmp_path, "winnow", small_data(), LEAST)
    sent = host.model.payload() | {"filter": Confusions.start(3).flat}
    for client, small in ((0, False), (1, True)):
        answer = host.answer(Task(client, "train", 2, 0, sent))
        kept = host.memory.read(answer.memory)
        assert any(key.startswith(TOLD) for key in kept) == small
        assert len(kept["mean"]) == sum(HELD[client])


# --- models of few samples, and other values over a part of a site --------------------------------------------------


def test_a_model_of_too_few_selected_samples_does_not_leave():
    def objective(rows: Any, x: Any, y: Any) -> Any:
        return client.model.module(x).sum()

    client = one_client(np.eye(2)[[0] * 8], [0] * 8)
    client.fit(objective, rows=torch.arange(3))
    client.least_count = 4
    client.fit(objective, rows=torch.arange(4))
    client.fit(objective, rows=torch.arange(0))  # nothing was learned from any sample
    with pytest.raises(TooFew):
        client.fit(objective, rows=torch.arange(3))
    with pytest.raises(TooFew):
        client.fit(objective, rows=lambda: torch.arange(1))


@dataclass(frozen=True)
class Picky(Method):
    """Trains on two samples in odd rounds, and remembers how often it began."""

    name: ClassVar[str] = "picky"

    def train(self, client, got):
        client.state["begun"] = client.state.get("begun", torch.zeros(1)) + 1
        client.model.load(got)
        rows = torch.arange(2 if client.round % 2 and client.id != 1 else len(client))
        client.fit(lambda rows, x, y: self.objective(client, rows, x, y, got), rows=rows)
        return self.reply(client)


def test_who_says_nothing_is_no_failure_and_the_others_go_on(tmp_path):
    player = ready(tmp_path, method=Picky(), least_count=LEAST)
    player.federation.method.start(player.server)
    tally = player.federation.play_round(1)
    assert tally.participants == [1]
    assert (tally.absent, tally.dropped) == (["client-0", "client-2", "client-3"], {})
    assert sorted(player.federation.memory.versions) == [1]
    assert list(player.federation.ledger.entries) == ["client-1"]
    assert player.federation.play_round(2).participants == [0, 1, 2, 3]


def test_a_round_in_which_nobody_may_speak_changes_nothing(tmp_path):
    player = ready(tmp_path, method=Picky(), least_count=LEAST)
    player.federation.method.start(player.server)
    player.server.available = (0, 2)
    before = player.server.weights["weights"].clone()
    tally = player.federation.play_round(1)
    assert (tally.participants, len(tally.absent)) == ([], 2)
    assert torch.equal(player.server.weights["weights"], before)
    player.federation.play_round(2)
    assert not torch.equal(player.server.weights["weights"], before)


def test_a_run_says_in_every_round_who_said_nothing(tmp_path):
    rows = run(tmp_path, method=Picky(), least_count=LEAST).rounds
    silent = ["client-0", "client-2", "client-3"]
    assert [row.get("absent") for row in rows] == [silent, None, silent]


def test_a_component_of_feddivs_mixture_that_holds_too_few_is_not_sent(tmp_path):
    client = one_client(np.array([[3.0, 0.0]] * 20 + [[-3.0, 0.0]] * 3), [0] * 23)
    client.model.load(identity())
    flat = torch.full((6,), torch.nan, dtype=torch.float64)
    found = FedDiv().local_filter(client, client.predict(), flat)["mixture"]
    assert float(found[4:].min()) * 23 == pytest.approx(3, abs=0.5)
    client.least_count = LEAST
    assert not FedDiv().local_filter(client, client.predict(), flat)["mixture"].any()
    client.least_count = 2
    assert torch.equal(FedDiv().local_filter(client, client.predict(), flat)["mixture"], found)


def test_feddivs_server_leaves_out_who_has_no_mixture(tmp_path):
    server, method = one_server(tmp_path, clients=3), FedDiv(passes=0)
    method.start(server)
    server.begin(1)
    before = server.state["filter"].clone()
    some = torch.tensor([0.1, 0.9, 0.01, 0.01, 0.6, 0.4], dtype=torch.float64)

    def reply(mixture: torch.Tensor) -> dict[str, torch.Tensor]:
        return {**identity(), "samples": torch.tensor(30), "mixture": mixture}

    method.merge(server, iter([(0, reply(torch.zeros(6)))]))
    assert torch.equal(server.state["filter"].nan_to_num(-1), before.nan_to_num(-1))
    method.merge(server, iter([(0, reply(torch.zeros(6))), (1, reply(some))]))
    assert torch.equal(server.state["filter"], some)
    assert server.state["sizes"].tolist() == [0, 30, 0]


# --- what cannot be -------------------------------------------------------------------------------------------------


def test_a_value_per_sample_and_a_least_count_exclude_each_other(tmp_path):
    with pytest.raises(UsageError, match=r"'sample_loss', a value for every single sample.*gmm_scope=client"):
        run(tmp_path / "a", method="fedgr", least_count=2)
    assert not (tmp_path / "a").exists() or not list((tmp_path / "a").glob("config.toml"))
    run(tmp_path / "b", method="fedgr", least_count=1)  # one sample is enough
    run(tmp_path / "c", method="fedgr:gmm_scope=client", least_count=2)


def test_where_all_sites_are_too_small_the_run_says_so(tmp_path):
    with pytest.raises(RunError, match="no client has a sample to train on and as many of them as least_count=500"):
        run(tmp_path, least_count=500)


def test_a_least_count_below_nothing_is_refused():
    with pytest.raises(UsageError, match="least_count=-1 was given"):
        Experiment(least_count=-1)


def test_nobody_has_enough_of_any_class(tmp_path):
    for method in ("fednoro", "fedelc", "fedsir", "winnow", "rofl"):
        result = run(tmp_path / method, method=method, least_count=25)  # 30 samples a site, ten of each class
        assert result.summary["status"] == "finished"


def test_other_processes_know_the_least_count(tmp_path):
    host, shared, opened = host_of(tmp_path, "winnow", small_data(), LEAST), SharedArrays(), OpenedArrays()
    try:
        twin = build_host(json.loads(json.dumps(describe_host(host, shared))), "cpu", opened)
        assert twin.setup.settings.least_count == LEAST
        assert twin.answer(Task(3, "train", 1, 0, host.model.payload())).absent
        worker = Worker(None)
        worker.host, worker.pack, worker.unpack = twin, lambda *_: {}, lambda _: host.model.payload()
        said = worker.answer({"client": 3, "ask": "train", "round": 1, "exchange": 0}, [], [])
        assert Answer(client=3, **said).absent
        del twin, worker
    finally:
        opened.close()
        shared.close()


@pytest.mark.parametrize(("count", "samples", "told"), [(0, 7, 0), (1, 7, 7), (7, 7, 7), (8, 7, 14), (5, 0, 5)])
def test_what_was_computed_is_told_in_whole_passes(count, samples, told):
    assert whole_passes(count, samples) == told


def test_the_usual_least_count_is_five_where_sites_are_real_and_none_elsewhere(tmp_path):
    assert Experiment().least_count == 0
    assert Serve(data="digits").experiment().least_count == 5
    assert Serve(data="digits", least_count=0).experiment().least_count == 0
    assert Serve(data="digits", least_count=12).experiment().least_count == 12
    assert Serve(scene=tmp_path).experiment().least_count == 0
    assert holding_of("digits:train=60", None, None, "cpu").least_count == 5
    assert holding_of("digits:train=60", None, None, "cpu", 0).least_count == 0
    with pytest.raises(UsageError, match="--least-count -2"):
        holding_of("digits:train=60", None, None, "cpu", -2)


def test_a_sweep_takes_it_from_its_file(tmp_path):
    (tmp_path / "sweep.toml").write_text("least_count = 5\nseeds = [0]\nmethods = ['fedavg']\n", encoding="utf-8")
    sweep = Sweep(**read_config(tmp_path / "sweep.toml", Sweep), config=tmp_path / "sweep.toml")
    assert [job.experiment.least_count for job in sweep.make_plan().jobs] == [5]
