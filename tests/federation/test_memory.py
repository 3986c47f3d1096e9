"""What a run costs: memory that does not grow, and bytes and samples that are counted right."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

import pytest

import fedwinnow
from fedwinnow.experiment.play import Watcher
from fedwinnow.testing import toy_data
from stages import TINY, ready

SELF = Path("/proc/self")


class Gauge(Watcher):
    """Memory and open files of this process after every so many rounds."""

    def __init__(self):
        self.resident, self.files, self.objects = [], [], []

    def round(self, row):
        if row["round"] % 50 == 0:
            gc.collect()
            if SELF.exists():
                self.resident.append(int((SELF / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
                self.files.append(len(list((SELF / "fd").iterdir())))
            self.objects.append(len(gc.get_objects()))


def test_two_hundred_rounds_with_flat_memory(tmp_path):
    gauge = Gauge()
    settings = {**TINY, "rounds": 200, "participation": 0.5, "batch_size": 20, "batch_norm": "local", "eval_every": 10}
    fedwinnow.run(out=tmp_path, data="digits:train=60", model="lenet:norm=batch", watchers=(gauge,), **settings)
    # The log of rounds is on disk, not in memory: what Python holds after 200 rounds is what it held after 50.
    assert len(gauge.objects) == 4
    assert gauge.objects[-1] - gauge.objects[0] < 500
    if gauge.resident:
        assert gauge.resident[-1] - gauge.resident[0] < 4
        assert gauge.files[-1] == gauge.files[0]
    assert len(list((tmp_path / "clients").iterdir())) == 4  # old versions of memories are gone
    assert (tmp_path / "rounds.jsonl").read_text().count("\n") == 200


@pytest.mark.parametrize(("epochs", "drop_last", "steps"), [(1, False, 30), (3, False, 90), (2, True, 48)])
def test_cost_of_fedavg_by_hand(tmp_path, epochs, drop_last, steps):
    """4 clients of 30 samples, all take part; an MLP of 2 x 5 + 5 + 5 x 3 + 3 = 33 weights of 4 bytes.

    Down goes the model (132 bytes), up comes the model and a count (8 bytes). An epoch is 30 samples forward and
    backward, of which a last batch of 6 may be dropped.
    """
    settings = {**TINY, "epochs": epochs, "drop_last": drop_last}
    result = fedwinnow.run(out=tmp_path, data=toy_data(), model="mlp:hidden=5", **settings)
    for row in result.rounds:
        assert row["bytes_down"] == 4 * 132
        assert row["bytes_up"] == 4 * (132 + 8)
        assert row["forward_samples"] == row["backward_samples"] == 4 * steps
    cost = result.summary["cost"]
    assert (cost["bytes_down"], cost["bytes_up"]) == (2 * 4 * 132, 2 * 4 * 140)
    assert (cost["forward_samples"], cost["backward_samples"]) == (2 * 4 * steps, 2 * 4 * steps)
    ledger = json.loads((tmp_path / "ledger.json").read_text())
    assert ledger["sites"]["client-0"] == {
        "samples": {"exposes": "client", "count": 2, "bytes": 16},
        "weights": {"exposes": "model", "count": 2, "bytes": 264},
    }
    assert sum(line["bytes"] for site in ledger["sites"].values() for line in site.values()) == cost["bytes_up"]


def test_scoring_counts_as_forward_only(tmp_path):
    from fedwinnow.federation.host import Task

    client = ready(tmp_path).federation.backend.host.client(Task(0, "train", 1, 0, {}))
    client.predict()
    client.predict(rows=client.given.new_tensor([1, 2, 3]))
    assert (client.forward_samples, client.backward_samples) == (33, 0)


def test_only_those_who_take_part_cost_anything(tmp_path):
    player = ready(tmp_path, clients=40, participation=0.1)
    tally = player.federation.play_round(1)
    assert len(tally.participants) == 4
    assert tally.forward_samples == 4 * 3
    assert len(player.federation.ledger.entries) == 4
