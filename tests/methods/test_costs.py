"""What is counted in a run is what the papers' cost tables say: forward and backward samples, and bytes."""

from __future__ import annotations

import pytest
import torch

from fedwinnow.api import run
from fedwinnow.testing import toy_data

CLIENTS, SAMPLES, EPOCHS = 4, 120, 3
MODEL = 4 * (2 * 3 + 3)  # a linear model from 2 numbers to 3 classes, in bytes
COUNT = 8  # the number of samples travels with every model


@pytest.fixture
def rounds(tmp_path):
    def play(method: str, **more):
        settings = {"clients": CLIENTS, "participation": 1.0, "rounds": 4, "epochs": EPOCHS, "batch_size": 8}
        settings |= {"noise": "uniform:share=0.5,low=0.4,high=0.4", "optimizer": "sgd:lr=0.1"} | more
        return run(out=tmp_path / "run", data=toy_data(SAMPLES), model="linear", method=method, **settings).rounds

    return play


def cost(row):
    return row["forward_samples"], row["backward_samples"], row["bytes_down"], row["bytes_up"]


def test_fedavg(rounds):
    # 2M, EF + EB
    for row in rounds("fedavg"):
        assert cost(row) == (EPOCHS * SAMPLES, EPOCHS * SAMPLES, CLIENTS * MODEL, CLIENTS * (MODEL + COUNT))


def test_fedrn(rounds, monkeypatch):
    # (k + 2)M; (E + 2k + 1)F + (E + k)B where everything is clean. Beyond the table: one F for the training accuracy,
    # and one sample per client for the shared input.
    monkeypatch.setattr("fedwinnow.methods.fedrn.FedRn.posterior", lambda self, client, model: all_clean(client, model))
    k = 2
    warm_up, row = rounds(f"fedrn:warm_up=1,neighbours={k}", rounds=2)
    assert cost(warm_up)[:2] == ((EPOCHS + 1) * SAMPLES + CLIENTS, EPOCHS * SAMPLES)
    assert cost(row)[:2] == ((EPOCHS + 2 * k + 1 + 1) * SAMPLES + CLIENTS, (EPOCHS + k) * SAMPLES)
    seed, scores, facts = 8, 8 * (k + 1), 8 + 4 * 3
    assert cost(row)[2:] == (CLIENTS * ((k + 1) * MODEL + seed + scores), CLIENTS * (MODEL + COUNT + facts))


def all_clean(client, model):
    """The cost of scoring, without its result."""
    return torch.ones_like(client.predict(model=model)[:, 0])


def test_feddiv(rounds):
    # 2M + 12 numbers; (2E + 2)F + EB where every sample is selected. With noisy_client=0 even a client without a
    # noisy sample re-selects; in the first round after the warm-up there is no filter, so everything is clean.
    found = rounds("feddiv:passes=1,noisy_client=0,reselect=false", rounds=2)
    filter_, model = 6 * 8, (CLIENTS * MODEL, CLIENTS * (MODEL + COUNT))
    assert cost(found[0]) == (EPOCHS * SAMPLES, EPOCHS * SAMPLES, *model)
    assert cost(found[1])[0:2] == ((EPOCHS + 2) * SAMPLES, EPOCHS * SAMPLES)
    assert cost(found[1])[2:] == (model[0] + CLIENTS * filter_, model[1] + CLIENTS * filter_)


def test_feddiv_with_reselection(rounds):
    # E more F for the re-selection; what it leaves out is neither passed forward nor back
    row = rounds("feddiv:passes=1,noisy_client=0", rounds=2)[1]
    left_out = EPOCHS * SAMPLES - row["backward_samples"]
    assert row["forward_samples"] == (2 * EPOCHS + 2) * SAMPLES - left_out
    assert 0 <= left_out < EPOCHS * SAMPLES


def test_fedcorr(rounds):
    # stage 1: (E + 1)F + EB, and one F more for each noisy client that corrects; 2M and one number (the mean LID)
    first, second, tuned, usual = rounds("fedcorr:passes=2,fine_tune_rounds=1")
    leash, lid, rate, changed = 4, 8, 8, 8
    for row in (first, second):
        noisy, each = row["noisy_clients"], SAMPLES // CLIENTS
        assert cost(row)[:2] == ((EPOCHS + 1) * SAMPLES + noisy * each, EPOCHS * SAMPLES)
        assert row["bytes_down"] == (CLIENTS + noisy) * (MODEL + leash)
        assert row["bytes_up"] == CLIENTS * (MODEL + COUNT + lid) + noisy * (rate + changed)
    pool = tuned["clean_pool"] * SAMPLES // CLIENTS
    assert cost(tuned)[:2] == (EPOCHS * pool + second["noisy_clients"] * SAMPLES // CLIENTS, EPOCHS * pool)
    assert cost(usual)[:2] == (EPOCHS * SAMPLES, EPOCHS * SAMPLES)
    assert cost(usual)[2:] == (CLIENTS * (MODEL + leash), CLIENTS * (MODEL + COUNT))


@pytest.mark.parametrize("method", ["jointopt:warm_up=1", "selfie:warm_up=1", "cdr"])
def test_methods_that_cost_what_fedavg_costs(rounds, method):
    for row in rounds(method, rounds=2):
        assert cost(row) == (EPOCHS * SAMPLES, EPOCHS * SAMPLES, CLIENTS * MODEL, CLIENTS * (MODEL + COUNT))


def test_coteaching(rounds):
    # 4M, 2EF + 2EB
    for row in rounds("coteaching", rounds=2):
        assert cost(row)[:2] == (2 * EPOCHS * SAMPLES, 2 * EPOCHS * SAMPLES)
        assert cost(row)[2:] == (CLIENTS * 2 * MODEL, CLIENTS * (2 * MODEL + COUNT))


def test_dividemix(rounds, monkeypatch):
    # 4M; (4m + 2)EF with m = 2 views where everything is clean; both views are trained on
    clean = "fedwinnow.methods.dividemix.DivideMix.p_clean"
    monkeypatch.setattr(clean, lambda self, client, model, name: all_clean(client, model))
    warm_up, row = rounds("dividemix:warm_up=1", rounds=2)
    assert cost(warm_up)[:2] == (2 * EPOCHS * SAMPLES, 2 * EPOCHS * SAMPLES)
    assert cost(row)[:2] == ((4 * 2 + 2) * EPOCHS * SAMPLES, 2 * 2 * EPOCHS * SAMPLES)
    assert cost(row)[2:] == (CLIENTS * 2 * MODEL, CLIENTS * (2 * MODEL + COUNT))
