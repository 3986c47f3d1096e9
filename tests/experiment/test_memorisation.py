"""What models know by heart, round by round: only where asked for, and without moving a result."""

from __future__ import annotations

from typing import Any

import pytest

from fedwinnow.api import run
from fedwinnow.errors import UsageError
from fedwinnow.testing import toy_data


def play(folder, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "data": toy_data(),
        "clients": 4,
        "participation": 0.5,
        "rounds": 4,
        "epochs": 2,
        "noise": "constant:rate=0.4",
    }
    return run(out=folder, **(settings | changes))


def test_every_second_round(tmp_path):
    result = play(tmp_path, memorisation_every=2)
    assert ["memorised" in row for row in result.rounds] == [False, True, False, True]
    last = result.rounds[-1]
    final = result.summary["memorisation"]
    assert {name: last[name] for name in final} == final
    assert last["memorised_by_site"].keys() == {str(client) for client in last["participants"]}
    for name in ("global", "local"):
        figures = [site[name] for site in last["memorised_by_site"].values()]
        assert last[f"{name}_memorised"] == pytest.approx(sum(figures) / 2)


def test_the_only_clients_model_is_the_global_one(tmp_path):
    result = play(tmp_path, memorisation_every=1, clients=1, participation=1)
    for row in result.rounds:
        assert row["accuracy_by_site"] == {"0": row["accuracy"]}
        assert row["local_accuracy"] == row["accuracy"]


def test_looking_changes_nothing(tmp_path):
    looked, plain = play(tmp_path / "a", memorisation_every=1), play(tmp_path / "b")
    assert "memorised" not in plain.rounds[-1]
    for name in ("last10", "memorisation", "detection"):
        assert looked.summary[name] == plain.summary[name]
    assert looked.rounds[-1]["forward_samples"] == plain.rounds[-1]["forward_samples"]


def test_a_model_that_trains_long_on_site_knows_more_by_heart(tmp_path):
    row = play(tmp_path, rounds=1, epochs=60, memorisation_every=1, model="mlp", optimizer="adam:lr=0.01").rounds[0]
    assert row["local_memorised"] > row["global_memorised"]


def test_pooled_data_has_no_sites_to_compare(tmp_path):
    row = play(tmp_path, method="centralised", memorisation_every=1).rounds[-1]
    assert "memorised" in row
    assert "local_memorised" not in row


def test_a_hold_out_is_part_of_it(tmp_path):
    row = play(tmp_path, validation=0.25, memorisation_every=1).rounds[-1]
    assert row["local_memorised"] is not None


def test_a_number_below_zero_is_refused(tmp_path):
    with pytest.raises(UsageError, match="memorisation_every"):
        play(tmp_path, memorisation_every=-1)
