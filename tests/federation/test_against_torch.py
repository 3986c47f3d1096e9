"""The federation against plain torch and against numbers worked out by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedwinnow.data.dataset import Samples
from fedwinnow.federation.host import Task
from fedwinnow.federation.method import beta_draw, find_method
from fedwinnow.mathematics.proximal import distance_to
from fedwinnow.methods.fedprox import FedProx
from fedwinnow.models.make_model import make_model
from fedwinnow.randomness import stream_key
from fedwinnow.testing import toy_data
from stages import equal, played, ready, weights


def generator_of(client: int, round_number: int, seed: int = 0) -> torch.Generator:
    key = stream_key(seed, "client train 0", client, round_number)
    return torch.Generator().manual_seed(key & (2**63 - 1))


# --- one client is plain torch -------------------------------------------------------------------------------------

SGD = ("sgd:lr=0.05,momentum=0.9,weight_decay=0.01", lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.01))
ADAM = ("adam:lr=0.002", lambda p: torch.optim.Adam(p, 0.002))


@pytest.mark.parametrize("model", ["mlp", "lenet:norm=batch"])
@pytest.mark.parametrize(("spec", "optimizer"), [SGD, ADAM])
def test_one_client_equals_a_plain_torch_loop_bit_for_bit(tmp_path, model, spec, optimizer):
    settings = {"data": "digits:train=150", "noise": "constant:rate=0.3", "model": model, "rounds": 3, "epochs": 2}
    federation = played(tmp_path, **settings, clients=1, batch_size=32, optimizer=spec, seed=5)
    host = federation.backend.host
    net = make_model(model, host.sites.shape, 5).to(memory_format=torch.channels_last)
    stored, given = torch.from_numpy(host.sites.features.array), torch.from_numpy(host.sites.given)
    stored = stored[torch.from_numpy(host.sites.holdings.rows)]
    for number in (1, 2, 3):
        generator, steps = generator_of(0, number, seed=5), optimizer(net.parameters())
        for _ in range(2):
            for rows in torch.randperm(len(given), generator=generator).split(32):
                steps.zero_grad()
                functional.cross_entropy(net(host.input_step(stored[rows])), given[rows]).backward()
                steps.step()
    got = federation.server.model.named(federation.server.weights)
    assert got.keys() == net.state_dict().keys()
    for name, expected in net.state_dict().items():
        assert torch.equal(got[name], expected), name


# --- clients that are the same, methods that are the same ----------------------------------------------------------


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("optimizer", ["sgd:lr=0.1,momentum=0.9", "adam:lr=0.01"])
def test_identical_clients_give_the_model_of_one_of_them_bit_for_bit(tmp_path, times, optimizer):
    """Every client holds one and the same sample, so that the order in which its own stream puts it says nothing."""

    def model(clients: int) -> dict[str, torch.Tensor]:
        count = clients * times
        features = toy_data().train.features.subset(np.zeros(count + 1, np.int64))
        # Every class must have a sample; that of the second class is at a site which is never asked.
        sites = np.array([f"site {number // times}" for number in range(count)] + ["unasked"])
        train = Samples(features, np.array([0] * count + [1]), np.arange(count + 1), sites=sites)
        data = dataclasses.replace(toy_data(), class_names=("a", "b"), train=train, test=None)
        settings = {"partition": "column", "test": 0.0, "epochs": 4, "batch_size": 2, "optimizer": optimizer}
        player = ready(tmp_path, data=data, **settings)
        player.server.available = tuple(range(clients))
        for number in (1, 2, 3):
            assert len(player.federation.play_round(number).participants) == clients
        return player.server.weights

    alone = model(1)
    assert equal(model(2), alone)
    assert equal(model(7), alone)


def test_fedprox_without_a_leash_is_fedavg_bit_for_bit(tmp_path):
    settings = {"noise": "constant:rate=0.3", "epochs": 2, "optimizer": "sgd:lr=0.1,momentum=0.5"}
    fedavg = weights(tmp_path, method="fedavg", **settings)
    assert equal(weights(tmp_path, method="fedprox:mu=0", **settings), fedavg)
    assert equal(weights(tmp_path, method="fedprox:mu=0,prox=norm", **settings), fedavg)
    assert not equal(weights(tmp_path, method="fedprox:mu=1", **settings), fedavg)


def test_centralised_is_fedavg_with_one_client_that_holds_all_rows(tmp_path):
    data = toy_data()
    assert equal(
        weights(tmp_path, data=data, method="centralised", clients=5),
        weights(tmp_path, data=data, method="fedavg", clients=1, noise="none"),
    )


# --- methods by hand -----------------------------------------------------------------------------------------------


def client_of(tmp_path, method: str, **settings):
    """A client in the middle of training, and what it was sent."""
    player = ready(tmp_path, method=method, **settings)
    host = player.federation.backend.host
    got = dict(player.server.weights)
    client = host.client(Task(0, "train", 1, 0, got))
    client.model.load(got)
    return client, got


def test_the_leash_of_fedprox_by_hand(tmp_path):
    client, got = client_of(tmp_path, "fedprox:mu=0.5")
    with torch.no_grad():
        client.model.weights[:3] += torch.tensor([0.3, -0.4, 0.0])
    client.model.gradient.zero_()
    (0.5 / 2 * distance_to(got["weights"], client.model)).backward()
    # d/dw mu/2 ||w - g||^2 = mu (w - g)
    expected = torch.zeros(client.model.trainable)
    expected[:2] = torch.tensor([0.15, -0.2])
    torch.testing.assert_close(client.model.gradient, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(distance_to(got["weights"], client.model).item(), 0.25, atol=1e-6, rtol=0)
    torch.testing.assert_close(distance_to(got["weights"], client.model, squared=False).item(), 0.5, atol=1e-6, rtol=0)


def test_the_second_step_of_fedprox_is_pulled_back(tmp_path):
    """One sample, lr 0.1: the first step has no leash yet (w = g), the second one adds mu (w1 - g)."""
    data = dataclasses.replace(toy_data(samples=3), test=None)
    settings = {"data": data, "clients": 3, "test": 0.0, "optimizer": "sgd:lr=0.1,momentum=0", "epochs": 2}
    client, got = client_of(tmp_path, "fedprox:mu=2", **settings)
    assert len(client) == 1
    start = got["weights"].clone()

    def plain_gradient(at: torch.Tensor) -> torch.Tensor:
        client.model.load({"weights": at})
        client.model.gradient.zero_()
        functional.cross_entropy(client.model.module(client.plain(client.resident)), client.given).backward()
        return client.model.gradient.clone()

    first = start - 0.1 * plain_gradient(start)
    second = first - 0.1 * (plain_gradient(first) + 2 * (first - start))
    reply = FedProx(mu=2.0).train(client, got)
    torch.testing.assert_close(reply["weights"], second, atol=1e-6, rtol=0)


def test_the_plain_norm_has_no_slope_and_no_nan_at_the_start(tmp_path):
    client, got = client_of(tmp_path, "fedprox:prox=norm")
    client.model.gradient.zero_()
    distance = distance_to(got["weights"], client.model, squared=False)
    distance.backward()
    assert distance.item() == 0
    assert (client.model.gradient == 0).all()
    reply = FedProx(prox="norm").train(client, got)
    assert torch.isfinite(reply["weights"]).all()
    assert not torch.equal(reply["weights"], got["weights"])


def test_mixup_by_hand(tmp_path):
    client, got = client_of(tmp_path, "mixup:mixup=0.4")
    rows = torch.arange(6)
    x, y = client.plain(client.resident[rows]), client.given[rows]
    twin = torch.Generator()
    twin.set_state(client.generator.get_state())
    loss = find_method("mixup:mixup=0.4").objective(client, rows, x, y, got)
    share, partner = beta_draw(0.4, twin), torch.randperm(6, generator=twin)
    assert 0 < share < 1
    logits = client.model.module(share * x + (1 - share) * x[partner])
    # The loss is linear in the label, so mixing labels is mixing the losses of both.
    one = functional.cross_entropy(logits, y, reduction="none")
    other = functional.cross_entropy(logits, y[partner], reduction="none")
    torch.testing.assert_close(loss, (share * one + (1 - share) * other).mean())
    assert torch.equal(client.generator.get_state(), twin.get_state())


def test_beta_draws_have_the_right_mean_and_spread():
    generator = torch.Generator().manual_seed(0)
    draws = np.array([beta_draw(0.4, generator) for _ in range(4000)])
    assert abs(draws.mean() - 0.5) < 0.02
    assert abs(draws.var() - 1 / (4 * (2 * 0.4 + 1))) < 0.01  # Beta(a, a): 1 / (4 (2a + 1))


def test_the_oracle_trains_on_the_clean_samples_and_nothing_else(tmp_path):
    player = ready(tmp_path, method="oracle", noise="constant:rate=0.5")
    scene, host = player.stage.scene, player.federation.backend.host
    for number in range(4):
        mine = scene.holdings.of(number)
        clean = ~scene.wrong[mine]
        client = host.client(Task(number, "train", 1, 0, {}))
        assert 0 < len(client) < len(clean)
        expected = scene.dataset.train.features.take(scene.holdings.rows[mine][clean])
        assert np.array_equal(client.features.array, expected)
        assert np.array_equal(client.given.numpy(), scene.true[mine][clean])


# --- batch normalisation -------------------------------------------------------------------------------------------

NORMED = {"data": "digits:train=120", "model": "lenet:norm=batch", "clients": 2, "rounds": 1}


def test_averaged_statistics_are_the_mean_of_the_clients(tmp_path):
    federation = played(tmp_path, **NORMED, batch_norm="average")
    singles, sizes = [], []
    for number in (0, 1):
        player = ready(tmp_path, **NORMED, batch_norm="average")
        player.server.available = (number,)
        player.federation.play_round(1)
        singles.append(player.server.weights)
        sizes.append(player.stage.sites.holdings.sizes[number])
    share = sizes[1] / sum(sizes)
    statistics = slice(federation.server.model.trainable, None)
    expected = (1 - share) * singles[0]["weights"] + share * singles[1]["weights"]
    torch.testing.assert_close(federation.server.weights["weights"], expected, atol=1e-6, rtol=1e-5)
    assert federation.server.weights["weights"][statistics].std() > 0
    assert torch.equal(federation.server.weights["counters"], torch.maximum(*(one["counters"] for one in singles)))


def test_local_statistics_stay_with_their_client(tmp_path):
    player = ready(tmp_path, **NORMED, batch_norm="local")
    federation, host = player.federation, player.federation.backend.host
    federation.play_round(1)
    kept = [host.memory.read(federation.memory.versions[number])["batch_norm"] for number in (0, 1)]
    assert not torch.equal(*kept)
    for number in (0, 1):
        client = host.client(Task(number, "train", 2, 0, {}, federation.memory.versions[number]))
        client.model.load(player.server.weights)
        assert torch.equal(client.model.statistics, kept[number])
        trained = client.model.trainable
        assert torch.equal(client.model.weights[:trained], player.server.weights["weights"][:trained])


def test_batch_statistics_keep_nothing(tmp_path):
    federation = played(tmp_path, **NORMED, batch_norm="batch_statistics")
    model = federation.server.model
    assert len(model.statistics) == 0
    assert "counters" not in federation.server.weights
    assert not federation.memory.versions
    assert not any("running" in slot.name for slot in model.slots)
