"""20,000 clients of which ten take part: a round and its checkpoint do not look at the others."""

from __future__ import annotations

import json

import numpy as np

import fedwinnow
from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.scene.scene import Scene
from stages import ready

CLIENTS = 20_000


def data():
    """One sample for each client."""
    rows = np.random.default_rng(0).normal(size=(CLIENTS + 50, 2)).astype(np.float32)
    samples = Samples(Resident(rows), np.arange(len(rows)) % 3, np.arange(len(rows)))
    train, test = samples.subset(np.arange(CLIENTS)), samples.subset(np.arange(CLIENTS, len(rows)))
    return Dataset("many", "rows", tuple("abc"), train, test)


def test_twenty_thousand_clients(tmp_path, monkeypatch):
    settings = {"data": data(), "clients": CLIENTS, "participation": 10 / CLIENTS, "batch_size": 8, "epochs": 1}
    player = ready(tmp_path / "run", rounds=3, **settings)
    player.restore()
    # Nobody sorts all clients, and no line of the ledger is copied that did not change.
    monkeypatch.setattr(np, "argsort", None)
    for number in (1, 2, 3):
        before = player.federation.ledger.entries.copy()
        player.one_round(number)
        after = player.federation.ledger.entries
        changed = [site for site in after if after[site] is not before.get(site)]
        assert len(changed) == 10
    assert len(player.folder.rounds()) == 3
    assert (tmp_path / "run" / "scene.json").stat().st_size < 10_000
    assert len((tmp_path / "run" / "scene.csv").read_text().splitlines()) == CLIENTS + 1
    stored = json.loads((tmp_path / "run" / "state.json").read_text())
    assert len(json.dumps(stored)) < 10_000


def test_its_end_has_a_line_for_every_client(tmp_path):
    clients = CLIENTS // 10
    settings = {"data": data(), "clients": clients, "participation": 10 / clients, "batch_size": 8, "epochs": 1}
    result = fedwinnow.run(out=tmp_path, rounds=1, backend="serial", **settings)
    assert len((tmp_path / "clients.csv").read_text().splitlines()) == clients + 1
    assert np.isfinite(np.load(tmp_path / "verdicts.npz")["p_wrong"]).all()
    assert Scene.load(tmp_path).hash == result.summary["scene"]["hash"]
