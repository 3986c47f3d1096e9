"""One client sends replies that are wrong in every way: the run ends well, and its models are finite."""

from __future__ import annotations

import json
import zlib

import pytest
import torch
from safetensors.torch import load_file

from fedwinnow import run
from mutated_replies import METHODS, Mutations, settings_of


def play(folder, method, monkeypatch, seed):
    """A run with a client whose replies are wrong; returns what was wrong with them."""
    settings = settings_of(method)
    with monkeypatch.context() as patch:
        mutations = Mutations(patch, seed)
        try:
            result = run(out=folder, on_client_error="drop", **settings)
        except BaseException as problem:
            raise AssertionError(f"{method}, seed {seed}, after {mutations.done[-8:]}") from problem
    assert result.summary["status"] == "finished"
    for row in result.rounds:
        assert set(row["dropped"]) <= {"client-1"}, (mutations.done, row["dropped"])
    state = load_file(folder / "state.safetensors")
    kept = {key: value for key, value in state.items() if key.startswith(("model.", "payload."))}
    assert all(bool(torch.isfinite(value).all()) for value in kept.values() if value.is_floating_point())
    return mutations.done


@pytest.mark.parametrize("method", METHODS)
def test_no_reply_ends_a_run_or_makes_a_model_that_is_not_finite(tmp_path, monkeypatch, method):
    assert play(tmp_path / "run", method, monkeypatch, zlib.crc32(method.encode()) % 1000)


@pytest.mark.slow
def test_thousands_of_replies_over_all_methods(tmp_path, monkeypatch):
    done = []
    for method in METHODS:
        for seed in range(8):
            done += play(tmp_path / f"{len(done)}", method, monkeypatch, seed)
    print(json.dumps({"replies": len(done), "different": len(set(done))}))
    assert len(done) >= 2000
