"""Runs with --privacy: what is refused, how much noise there is, what leaves, and that nobody overspends."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy.stats import beta

pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed: pip install '.[privacy]'")

from benchmarks.exposure import Crafted, Membership, summed

import fedwinnow
from by_hand import one_client, one_server
from fedwinnow import catalogue
from fedwinnow.errors import FedwinnowWarning, RunError, UsageError
from fedwinnow.experiment.private_plan import planned
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.client import Client
from fedwinnow.federation.ledger import Ledger
from fedwinnow.federation.method import Method, find_method
from fedwinnow.federation.noisy_mean import clipped_reply, noisy_means
from fedwinnow.federation.privacy_budget import PrivacyBudget
from fedwinnow.federation.privacy_rules import refuse_unaccounted
from fedwinnow.federation.private_training import PrivateTraining, mechanism_of
from fedwinnow.federation.server import drawn
from fedwinnow.mathematics.accountant import most_advantage
from fedwinnow.mathematics.payload import Payload
from fedwinnow.mathematics.privacy import ClientPrivacy, SamplePrivacy, find_privacy
from fedwinnow.mathematics.private_noise import FromSeed
from fedwinnow.methods.fedavg import FedAvg
from stages import TINY, ready, run
from wire import Wire

pytestmark = pytest.mark.filterwarnings("ignore:--privacy:fedwinnow.errors.FedwinnowWarning")
TRAINING = Experiment(**{key: value for key, value in TINY.items() if key in ("rounds", "epochs", "batch_size")})
MERGED_OTHERWISE = {
    "median",
    "trimmed_mean",
    "krum",
    "multi_krum",
    "geometric_median",
    "norm_clipping",
    "arfl",
    "s_fedavg",
}
PLAIN = {"fedavg", "fedprox", "gce", "sce", "oracle", "centralised"}  # their sites train alike, on what they may


# --- what is refused -------------------------------------------------------------------------------------------------


def allowed(kind: str) -> set[str]:
    return {name for name in catalogue.entries("methods") if not refused(name, kind)}


def refused(name: str, kind: str) -> bool:
    try:
        refuse_unaccounted(find_method(name), find_privacy(kind), TRAINING)
    except UsageError:
        return True
    return False


def test_methods_whose_samples_are_alone_with_the_loss_may_protect_samples():
    # logit_adjustment looks at the frequencies of all labels, mixup at pairs; others send more or train otherwise.
    assert allowed("sample") == PLAIN | MERGED_OTHERWISE


def test_methods_that_average_may_protect_sites_however_these_train():
    own_training = {"cdr", "fedlsr", "logit_adjustment", "mixup"}
    assert allowed("client") == PLAIN | own_training


@dataclass(frozen=True)
class Chatty(FedAvg):
    """Sends the mean loss besides."""

    name: ClassVar[str] = "chatty"
    exposes: ClassVar[dict[str, Any]] = {**FedAvg.exposes, "loss_here": "client"}


@dataclass(frozen=True)
class Batchwise(FedAvg):
    """Has a loss that nobody can take apart."""

    name: ClassVar[str] = "batchwise"

    def objective(self, client: Client, rows: Any, x: Any, y: Any, got: Payload) -> torch.Tensor:
        return client.model.module(x).std()


@dataclass(frozen=True)
class Peeking(FedAvg):
    """Trains as usual, and hides a sample in the weights."""

    name: ClassVar[str] = "peeking"

    def reply(self, client: Client, model: str = "") -> Payload:
        return super().reply(client, model)


@dataclass(frozen=True)
class Kept(FedAvg):
    """Merges by itself."""

    name: ClassVar[str] = "kept"

    def merge(self, server: Any, replies: Any) -> None:
        super().merge(server, replies)


@pytest.mark.parametrize(
    ("kind", "method", "words"),
    [
        ("sample", Chatty(), "'loss_here'"),
        ("client", Chatty(), "'loss_here'"),
        ("sample", Batchwise(), "by_hand"),
        ("sample", Peeking(), "its own reply"),
        ("client", Kept(), "its own merge"),
        ("sample", FedAvg(mixup=0.5), "mixup=0"),
        ("sample", FedAvg(loss="logit_adjustment"), "labels of others"),
        ("client", FedAvg(aggregate="median"), "allowed: mean"),
    ],
)
def test_a_method_of_ones_own_is_held_to_the_same_rules(kind, method, words):
    with pytest.raises(UsageError, match=words):
        refuse_unaccounted(method, find_privacy(kind), TRAINING)


@pytest.mark.parametrize("kind", ["sample", "client"])
def test_batch_normalisation_is_refused_with_advice(tmp_path, kind):
    with pytest.raises(UsageError, match=r"normalises over batches.*norm=group"):
        run(tmp_path, data="digits:train=60", model="lenet:norm=batch", privacy=kind)


@pytest.mark.parametrize("kind", ["sample", "client"])
def test_exact_sums_for_scaling_are_refused_with_advice(tmp_path, kind):
    with pytest.raises(UsageError, match=r"scaled by sums.*rows:scale=l2"):
        run(tmp_path, encoder="rows", privacy=kind)
    assert run(tmp_path / "l2", encoder="rows:scale=l2", privacy=kind, rounds=1).summary["privacy"]["kind"] == kind


def test_an_audit_is_refused():
    with pytest.raises(UsageError, match="counts and opinions"):
        fedwinnow.audit(data="digits:train=60", clients=2, privacy="sample")


# --- samples ---------------------------------------------------------------------------------------------------------


def private_client(noise: float, seed: int = 0, *, clip: float = 0.5, rows: int = 40, **training: Any) -> Client:
    """A client that trains privately on rows of two classes."""
    chance = np.random.RandomState(0)
    client = one_client(chance.normal(size=(rows, 3)), [0, 1] * (rows // 2), **training)
    client.private = PrivateTraining(SamplePrivacy(clip=clip).planned(1, 1), noise, FromSeed(seed))
    return client


def trained(client: Client, loss: str = "cross_entropy") -> torch.Tensor:
    start = client.model.payload()
    return FedAvg(loss=loss).train(client, start)["weights"] - start["weights"]


def test_a_step_has_the_noise_that_is_stated():
    # One step over all 40 samples: minus lr times (clipped sum + noise * clip * normal) / 40. 200 runs of 8 weights.
    still = trained(private_client(0.0))
    moves = torch.stack([trained(private_client(3.0, seed)) - still for seed in range(200)])
    expected = 0.1 * 3.0 * 0.5 / 40
    assert float(moves.std()) == pytest.approx(expected, rel=0.09)  # five standard errors
    assert abs(float(moves.mean())) < 5 * expected / math.sqrt(moves.numel())


def test_a_step_without_noise_is_the_clipped_mean():
    # Far apart: every gradient is longer than the clip, so their mean is not, and the step has at most lr * clip.
    moved = float(trained(private_client(0.0, clip=0.01)).norm())
    assert 0 < moved <= 0.1 * 0.01


def test_a_visit_has_as_many_steps_as_ordinary_training_and_draws_each_sample_by_itself():
    terms = private_client(1.0, batch_size=10, epochs=3).private
    assert terms is not None
    batches = list(terms.batches(one_client([[0.0]], [0], batch_size=10, epochs=3).training, 40))
    assert len(batches) == 12
    assert len({len(batch) for batch in batches}) > 2  # the sizes are chance, too
    shuffled = PrivateTraining(SamplePrivacy(sampling="shuffled").planned(1, 1), 1.0, FromSeed(0))
    epoch = list(shuffled.batches(one_client([[0.0]], [0], batch_size=10).training, 35))
    assert [len(batch) for batch in epoch] == [10, 10, 10, 5]
    assert sorted(torch.cat(epoch).tolist()) == list(range(35))


def test_what_leaves_does_not_tell_how_many_samples_were_drawn():
    counts = set()
    for seed in range(5):
        client = private_client(1.0, seed, batch_size=10, epochs=2)
        reply = FedAvg().train(client, client.model.payload())
        assert reply.keys() == {"weights", "samples"}
        counts.add((int(reply["samples"]), client.forward_samples, client.backward_samples))
    assert counts == {(40, 80, 80)}


def test_the_page_names_the_methods_that_are_allowed():
    page = (Path(fedwinnow.__file__).parents[2] / "docs" / "privacy.md").read_text()
    for kind in ("sample", "client"):
        line = next(line for line in page.splitlines() if line.startswith(f"| `{kind}` allows |"))
        assert set(re.findall(r"\w+", line.split("|")[2])) == allowed(kind)


def test_the_loss_of_one_sample_does_not_know_the_other_labels():
    # Twice the frequencies of a class change nothing, although a loss is handed frequencies.
    client = private_client(0.0)
    moved = trained(client)
    other = private_client(0.0)
    other.__dict__["class_counts"] = torch.tensor([1, 1000])
    assert torch.equal(moved, trained(other))


def test_training_in_another_way_is_refused_on_site_too():
    client = private_client(1.0)
    loss = FedAvg().by_hand(client, {})
    with pytest.raises(RunError, match="in its own way"):
        client.fit(lambda *_: None, rows=torch.arange(3), by_hand=loss)
    with pytest.raises(RunError, match="one loss for each sample"):
        client.fit(lambda *_: None)
    client.fit(lambda *_: None, by_hand=loss)
    with pytest.raises(RunError, match="twice"):
        client.fit(lambda *_: None, by_hand=loss)


def test_noise_depends_on_the_size_of_a_site_alone():
    privacy = SamplePrivacy(epsilon=8).planned(3, 3)
    small, large = (mechanism_of(privacy, TRAINING, size) for size in (20, 200))
    assert small.rate == 8 / 20
    assert large.rate == 8 / 200
    assert (small.steps, large.steps) == (3, 25)
    assert small.noise > large.noise
    shuffled = mechanism_of(SamplePrivacy(epsilon=8, sampling="shuffled").planned(3, 3), TRAINING, 200)
    assert (shuffled.rate, shuffled.steps) == (1.0, 1)


# --- the promise itself, attacked ------------------------------------------------------------------------------------


def least_epsilon(hits: int, alarms: int, trials: int, delta: float) -> float:
    """A lower bound of epsilon from a test of membership, right with 97.5 % for each of the two rates."""
    true = beta.ppf(0.025, hits, trials - hits + 1) if hits else 0.0
    false = beta.ppf(0.975, alarms + 1, trials - alarms)
    return math.log(max((true - delta) / false, 1e-9))


def seen_epsilon(noise: float, trials: int = 400) -> float:
    """What the sharpest test sees of one step: how far it went in the direction of a canary's gradient."""
    rows, labels = [[0.0, 0.0, 0.0]] * 20, [0, 1] * 10
    scores = {}
    for member in (True, False):
        client = one_client([*rows, [50.0, 0.0, 0.0]] if member else [*rows, [0.0, 0.0, 0.0]], [*labels, 1])
        start = client.model.payload()
        found = []
        for seed in range(trials):
            client.private = PrivateTraining(SamplePrivacy().planned(1, 1), noise, FromSeed(2 * seed + member))
            client.generator.manual_seed(0)
            moved = FedAvg().train(client, start)["weights"] - start["weights"]
            found.append(float(moved[3] - moved[0]))  # the canary's first number, in the row of its class
        scores[member] = np.sort(found)
    places = np.quantile(scores[False], [0.9, 0.95, 0.98, 0.99])
    pairs = [(int((scores[True] > place).sum()), int((scores[False] > place).sum())) for place in places]
    return max(least_epsilon(hits, alarms, trials, 1e-5) for hits, alarms in pairs)


def test_a_canary_stays_under_the_bound_and_would_not_with_too_little_noise():
    noise = mechanism_of(SamplePrivacy(epsilon=2).planned(1, 1), Experiment(epochs=1, batch_size=100), 21).noise
    assert seen_epsilon(noise) <= 2
    assert seen_epsilon(noise / 4) > 2  # so the test can see it


def test_a_crafted_first_layer_gives_back_no_row_of_a_private_reply():
    # docs/exposure.md has the figures of more neurons and sites: python -m benchmarks exposure.
    pytest.importorskip("cryptography")
    crafted = Crafted(neurons=400, sites=3)
    plain, rows = crafted.replies()
    assert crafted.given_back(plain[0]["weights"], rows[0]) >= 50
    start = crafted.model().payload()["weights"]
    assert crafted.given_back(summed(plain, start), np.concatenate(rows)) >= 50  # a secure sum alone does not help
    private, _ = crafted.replies(SamplePrivacy(epsilon=8).planned(1, 1))
    assert crafted.given_back(private[0]["weights"], rows[0]) == 0


def test_membership_shows_in_a_plain_reply_less_in_the_sum_and_not_beyond_the_bound_in_a_private_one():
    # docs/exposure.md has the figures of more sites, rounds and seeds: python -m benchmarks exposure.
    plain = Membership(rounds=8, sites=20, privacy=None, seed=0).figures()
    private = Membership(rounds=8, sites=20, privacy="sample:epsilon=1", seed=0).figures()
    assert plain["reply"][1] > 0.2
    assert plain["model"][1] < plain["reply"][1]
    assert max(private["reply"][1], private["model"][1]) < plain["reply"][1] / 2
    assert max(private["reply"][1], private["model"][1]) < most_advantage(1.0, 1e-5)


# --- sites -----------------------------------------------------------------------------------------------------------


def test_a_site_moves_the_mean_by_no_more_than_its_share_and_all_count_alike(tmp_path):
    server = one_server(tmp_path, clients=4, participation=1.0)
    server.round = 1
    start, size = server.weights["weights"].clone(), len(server.weights["weights"])
    far = {"weights": start + 1000.0, "samples": torch.tensor(10**6)}
    near = {"weights": start + torch.eye(size)[0] * 0.1, "samples": torch.tensor(1)}
    mean = noisy_means(server, 0.4, 0.0, simulated=True)()
    mean.add(far, 1e6)
    mean.add(near, 1.0)
    moved = mean.result()["weights"] - start
    expected = torch.full((size,), 0.4 / math.sqrt(size)) + torch.eye(size)[0] * 0.1
    assert torch.allclose(moved, expected / 4, atol=1e-4)  # over four asked sites, of which two answered


def test_the_noise_of_the_server_is_that_of_the_plan(tmp_path):
    server = one_server(tmp_path, clients=4, participation=1.0)
    begin, moves = noisy_means(server, 0.5, 3.0, simulated=True), []
    for number in range(1, 501):
        server.round = number
        moves.append(begin().result()["weights"] - server.weights["weights"])
    assert float(torch.stack(moves).std()) == pytest.approx(3.0 * 0.5 / 4, rel=0.06)
    server.round = 1
    assert torch.equal(begin().result()["weights"] - server.weights["weights"], moves[0])
    earnest = noisy_means(server, 0.5, 3.0, simulated=False)
    assert not torch.equal(earnest().result()["weights"], earnest().result()["weights"])


def test_a_site_clips_before_it_sends():
    sent = {"weights": torch.zeros(5)}
    reply = {"weights": torch.tensor([3.0, 4.0, 0.0, 0.0, 9.0]), "samples": torch.tensor(3)}
    clipped = clipped_reply(reply, sent, 4, 1.0)
    assert torch.allclose(clipped["weights"], torch.tensor([0.6, 0.8, 0.0, 0.0, 0.0]), atol=1e-3)
    assert float(clipped["weights"].norm()) <= 1.0
    assert clipped["samples"] == 3


def test_what_a_site_sends_in_a_run_is_clipped(tmp_path, monkeypatch):
    wire = Wire(monkeypatch)
    run(tmp_path, privacy="client:clip=0.01", epochs=3)
    sent = wire.of_the_method
    assert len(sent) == 12
    for task, answer in sent:
        assert float((answer.reply["weights"] - task.payload["weights"]).norm()) <= 0.01 * (1 + 1e-3)


# --- the budget of a run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sample", "client"])
def test_what_is_spent_is_in_every_place(tmp_path, kind):
    with pytest.warns(FedwinnowWarning, match="simulated noise"):
        result = run(tmp_path, privacy=f"{kind}:epsilon=5")
    spent = [row["epsilon"] for row in result.rounds]
    assert 0 < spent[0] < spent[1] < spent[2] <= 5
    assert spent[2] > 4.9
    told = result.summary["privacy"]
    assert (told["epsilon"], told["spent"], told["planned_visits"]) == (5, spent[2], 3)
    assert told["noise"].startswith("simulated")
    ledger = json.loads((tmp_path / "ledger.json").read_text())
    assert {site["visits"] for site in ledger["privacy"].values()} == {3}
    assert max(site["epsilon"] for site in ledger["privacy"].values()) == spent[2]
    assert all(set(sent) == {"weights", "samples"} for sent in ledger["sites"].values())
    assert ("stability" in result.rounds[0]) == (kind == "sample")  # a distance of a site's update is not private


def test_a_finished_run_is_not_continued_beyond_its_plan(tmp_path):
    run(tmp_path, privacy="sample:epsilon=5", rounds=2)
    with pytest.raises(UsageError, match=r"rounds.4 was given.*epsilon 5 for 2 rounds; 4 would cost ([\d.]+)") as told:
        run(tmp_path, privacy="sample:epsilon=5", rounds=4, resume=True)
    assert 5 < float(str(told.value).split("would cost ")[1].split(".  ")[0].split(". A")[0]) < 15
    run(tmp_path / "long", privacy="sample:epsilon=5,rounds=4", rounds=2)
    longer = run(tmp_path / "long", privacy="sample:epsilon=5,rounds=4", rounds=4, resume=True)
    assert longer.summary["privacy"]["spent"] <= 5
    at_once = run(tmp_path / "once", privacy="sample:epsilon=5", rounds=4)
    assert longer.rounds[-1]["epsilon"] == at_once.rounds[-1]["epsilon"]
    assert longer.rounds[-1]["accuracy"] == at_once.rounds[-1]["accuracy"]


def test_a_run_that_is_longer_than_its_plan_does_not_begin(tmp_path):
    for plan in ("visits=2", "rounds=2"):
        with pytest.raises(UsageError, match=r"rounds.3 .*up to 3 times.*epsilon 5 is .*would cost [5-9]"):
            run(tmp_path, privacy=f"sample:epsilon=5,{plan}")
    assert not (tmp_path / "config.toml").exists()


def test_a_run_ends_before_a_site_overspends_whatever_was_planned(tmp_path):
    player = ready(tmp_path, privacy="sample:epsilon=5", rounds=3)
    budget = player.federation.budget
    budget.privacy = SamplePrivacy(epsilon=5).planned(2, 2)  # as if the draw had been counted wrongly
    with pytest.raises(RunError, match=r"round 3: .* has taken part 2 times.*epsilon 5.*ends before"):
        player.play()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("failed", 2)
    assert summary["privacy"]["spent"] <= 5


def failing(monkeypatch: pytest.MonkeyPatch, site: int, number: int) -> None:
    """This site fails in this round, after it has trained."""
    usual = Method.train

    def train(self: Method, client: Client, got: Payload) -> Payload:
        reply = usual(self, client, got)
        if (client.id, client.round) == (site, number):
            raise RunError("lost")
        return reply

    monkeypatch.setattr(Method, "train", train)


def test_a_visit_that_fails_costs_too_and_so_does_a_resumed_run(tmp_path, monkeypatch):
    failing(monkeypatch, 1, 2)
    whole = run(tmp_path / "whole", privacy="sample:epsilon=5", on_client_error="drop")
    assert "client-1" in whole.rounds[1]["dropped"]
    ledger = json.loads((tmp_path / "whole" / "ledger.json").read_text())
    assert {site["visits"] for site in ledger["privacy"].values()} == {3}
    assert ledger["sites"]["client-1"]["weights"]["count"] == 2
    run(tmp_path / "parts", privacy="sample:epsilon=5,rounds=3", on_client_error="drop", rounds=2)
    parts = run(tmp_path / "parts", privacy="sample:epsilon=5,rounds=3", on_client_error="drop", resume=True)
    assert [row["epsilon"] for row in parts.rounds] == [row["epsilon"] for row in whole.rounds]
    assert json.loads((tmp_path / "parts" / "ledger.json").read_text())["privacy"] == ledger["privacy"]


def budget_in(folder: Path, **more: Any) -> PrivacyBudget:
    """A budget of three real sites for three visits."""
    promise = SamplePrivacy(epsilon=5).planned(3, 3)
    return PrivacyBudget(promise, TRAINING, [20] * 3, "abc", Ledger({}), simulated=False, place=folder, **more)


def test_between_real_sites_a_count_survives_whatever_happens(tmp_path):
    first = budget_in(tmp_path)
    first.restore({})
    for _ in range(2):  # asked, and killed before any checkpoint
        first.check([0, 1], 1)
        first.book(0)
    first.book(1)
    first.book(1, -1)  # it had too few samples
    second = budget_in(tmp_path)
    second.restore({"a": 1})  # the checkpoint knows less
    assert [second.visits(site) for site in range(3)] == [2, 0, 0]
    assert second.spent() == second.epsilon(0, 2) > second.epsilon(0, 1) > 0
    second.book(0)
    with pytest.raises(RunError, match="a has taken part 3 times"):
        second.check([0, 1], 2)
    simulated = PrivacyBudget(first.privacy, TRAINING, [20], "a", Ledger({}), simulated=True, place=tmp_path)
    simulated.restore({})
    assert simulated.visits(0) == 0  # a round that is played again has the same noise


def test_a_checkpoint_of_an_older_version_counts_models(tmp_path):
    budget = budget_in(tmp_path)
    budget.ledger.entries = {"b": {"weights": [2, 80], "samples": [2, 16]}}
    budget.restore(None)
    assert [budget.visits(site) for site in range(3)] == [0, 2, 0]


def test_visits_are_counted_beforehand():
    experiment = Experiment(clients=10, participation=0.3, rounds=12, seed=4, privacy="sample")
    plan = planned(experiment, FedAvg(), [9] * 10).privacy
    counts = np.bincount([client for number in range(1, 13) for client in drawn(4, number, list(range(10)), 3)])
    assert (plan.rounds, plan.visits) == (12, counts.max())
    assert counts.max() < 12
    whole = planned(Experiment(participation=1.0, rounds=12, privacy="sample"), FedAvg(), [9] * 10).privacy
    assert (whole.rounds, whole.visits) == (12, 12)


@pytest.mark.slow
def test_two_processes_give_the_same_model(tmp_path):
    here = run(tmp_path / "one", privacy="sample", rounds=2)
    there = run(tmp_path / "two", privacy="sample", rounds=2, backend="processes:workers=2")
    assert here.summary["last"] == there.summary["last"]
    same = [(tmp_path / name / "state.safetensors").read_bytes() for name in ("one", "two")]
    assert same[0] == same[1]


def test_a_run_without_privacy_has_none_of_it(tmp_path):
    result = run(tmp_path, rounds=1)
    assert "epsilon" not in result.rounds[0]
    assert "privacy" not in result.summary
    assert ready(tmp_path / "ready").federation.budget is None


def test_only_the_question_to_train_is_answered(tmp_path):
    federation = ready(tmp_path, privacy="sample").federation
    host = federation.backend.host
    from fedwinnow.federation.host import Task

    answer = host.answer(Task(0, "reply", 1, 0, dict(federation.server.weights)))
    assert "allowed: train" in answer.error


def test_own_methods_keep_the_contract_without_privacy():
    assert not any(getattr(Method, name) is None for name in ("train", "reply", "mix", "merge", "choose", "send"))
    assert ClientPrivacy().without_plan() == ClientPrivacy().planned(3, 2).without_plan()
