"""Runs with --secure-sums on one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cryptography")
from safetensors.torch import load_file

import fedwinnow
from fedwinnow import catalogue
from fedwinnow.errors import RunError, UsageError
from fedwinnow.federation.method import Method, find_method
from fedwinnow.federation.summing.secure_sums import PartiesHere
from fedwinnow.mathematics.fixed_point import UNIT

SMALL: dict[str, Any] = {
    "data": "digits:train=240",
    "clients": 6,
    "participation": 1,
    "rounds": 3,
    "epochs": 1,
    "model": "linear",
    "noise": "constant:rate=0.3",
}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {key: value for key, value in load_file(folder / "state.safetensors").items() if value.is_floating_point()}


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "winnow:warm_up=1", "coteaching", "sce"])
def test_the_result_is_that_of_the_plain_mean(method: str, tmp_path: Path) -> None:
    for name, secure in (("plain", False), ("secure", True)):
        fedwinnow.run(**{**SMALL, "participation": 0.7}, method=method, out=tmp_path / name, secure_sums=secure)
    plain, secure = weights(tmp_path / "plain"), weights(tmp_path / "secure")
    assert plain.keys() == secure.keys()
    for key, value in plain.items():
        assert torch.allclose(value, secure[key], atol=3e-6), key
    for one, other in zip(rows(tmp_path / "plain"), rows(tmp_path / "secure"), strict=True):
        assert one["participants"] == other["participants"]
        assert one["accuracy"] == pytest.approx(other["accuracy"], abs=0.006)
        assert "stability" not in other
    said = json.loads((tmp_path / "secure" / "summary.json").read_text())
    assert said["secure_sums"] == {"masks_from": "the seed", "threshold": 0.66, "clipped": 0, "skipped_rounds": 0}
    assert "secure_sums" not in json.loads((tmp_path / "plain" / "summary.json").read_text())
    ledger = json.loads((tmp_path / "secure" / "ledger.json").read_text())
    assert {line["exposes"] for line in ledger["keys"].values()} == {"masked"}
    assert all("weights" not in sent for sent in ledger["sites"].values())


def test_the_same_seed_gives_the_same_bytes_and_processes_too(tmp_path: Path) -> None:
    for name, backend in (("one", "serial"), ("again", "serial"), ("two", "processes:workers=2")):
        fedwinnow.run(**SMALL, out=tmp_path / name, secure_sums=True, backend=backend)
    states = {(tmp_path / name / "state.safetensors").read_bytes() for name in ("one", "again", "two")}
    assert len(states) == 1


def test_a_method_that_asks_sites_different_things_is_refused(tmp_path: Path) -> None:
    class Personal(find_method("fedavg").__class__):  # type: ignore[misc]
        name = "personal"

        def send(self, server: Any, client: int) -> Any:
            sent = dict(server.weights)
            return sent if client < 3 else {**sent, "weights": sent["weights"] + 1}

    with pytest.raises(UsageError, match="'personal' sends different sites different things"):
        fedwinnow.run(**SMALL, method=Personal(), out=tmp_path, secure_sums=True)


def lose(monkeypatch: pytest.MonkeyPatch, when: dict[str, set[int]], rounds: tuple[int, ...] = (2,)) -> None:
    """These clients do not answer in these phases."""
    usual = PartiesHere.phase

    def phase(self: PartiesHere, phase: Any, letters: Any) -> Any:
        lost = when.get(phase, set()) if self.session.round in rounds else set()
        yield from usual(self, phase, {site: letter for site, letter in letters.items() if site not in lost})
        yield from ((site, "lost") for site in lost if site in letters)

    monkeypatch.setattr(PartiesHere, "phase", phase)


def test_sites_that_leave_are_dropped_and_the_round_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lose(monkeypatch, {"shares": {1}, "agree": {4}})
    fedwinnow.run(**SMALL, out=tmp_path / "run", secure_sums=True, on_client_error="drop")
    second = rows(tmp_path / "run")[1]
    assert second["participants"] == [0, 2, 3, 4, 5]  # 4 had sent its masked answer
    assert second["dropped"] == {"client-1": "lost", "client-4": "lost"} or len(second["dropped"]) == 2


def test_a_round_without_a_sum_is_skipped_or_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lose(monkeypatch, {"agree": {1, 2, 3}})
    fedwinnow.run(**SMALL, out=tmp_path / "run", secure_sums=True, on_client_error="drop")
    first, second, third = rows(tmp_path / "run")
    assert "only 3 of 6 sites are left of a secure sum after 'agree'; 4 must stay to the end" in second["skipped"]
    assert second["participants"] == []
    assert second["accuracy"] == first["accuracy"]
    assert third["participants"] == [0, 1, 2, 3, 4, 5]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["secure_sums"]["skipped_rounds"] == 1
    with pytest.raises(RunError, match="lost"):
        fedwinnow.run(**SMALL, out=tmp_path / "stop", secure_sums=True)
    lose(monkeypatch, {"agree": {1, 2, 3}}, rounds=(1, 2, 3))
    with pytest.raises(RunError, match="round 3 in a row without a sum"):
        fedwinnow.run(**SMALL, out=tmp_path / "never", secure_sums=True, on_client_error="drop")


def test_an_impossible_sum_skips_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One site sends rubbish: nobody can tell which, but no model is made of it."""
    usual = PartiesHere.masked

    def masked(self: PartiesHere, letters: Any, tasks: Any) -> Any:
        for answer in usual(self, letters, tasks):
            if answer.client == 3 and self.session.round == 2:
                answer.reply["masked"] = answer.reply["masked"] + int(UNIT) * 2**36
            yield answer

    monkeypatch.setattr(PartiesHere, "masked", masked)
    fedwinnow.run(**SMALL, out=tmp_path / "run", secure_sums=True, on_client_error="drop")
    assert "is outside what sites can send" in rows(tmp_path / "run")[1]["skipped"]


def test_an_encoder_is_scaled_from_the_secure_sum(tmp_path: Path) -> None:
    import numpy as np

    table = "\n".join(["x,y,z,label", *(f"{i % 7},{i * 5 % 11 - 3},0.3,{'ab'[i % 2]}" for i in range(300))]) + "\n"
    (tmp_path / "table.csv").write_text(table)
    settings = {**SMALL, "data": f"csv:path={tmp_path / 'table.csv'},label=label", "encoder": "rows"}
    for name, secure in (("plain-rows", False), ("secure-rows", True)):
        fedwinnow.run(**settings, out=tmp_path / name, secure_sums=secure)
    plain, secure = (np.load(tmp_path / name / "encoder.npz") for name in ("plain-rows", "secure-rows"))
    for key in ("mean", "factor"):
        assert np.allclose(plain[key], secure[key], atol=1e-6)
    assert (secure["factor"] == 0).sum() == (plain["factor"] == 0).sum()  # the constant column is still one
    sent = json.loads((tmp_path / "secure-rows" / "ledger.json").read_text())["sites"]
    assert all("encoder_sums" not in keys for keys in sent.values())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"method": "fednoro"}, "'weights', 'counters', 'samples', 'indicator', 'present' of every single site"),
        ({"method": "fedrn"}, "'accuracy'"),
        ({"method": "krum"}, "must see 'weights', 'counters' of every single site"),
        ({"method": "fedavg:aggregate=median"}, "must see 'weights', 'counters' of every single site"),
        ({"method": "centralised"}, "is not federated"),
        ({"clients": 2}, "2 sites take part in a round; allowed: at least 3"),
        ({"participation": 0.3}, "1 sites take part in a round"),
        ({"secure_threshold": 0.4}, "at least 0.5"),
    ],
)
def test_what_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        fedwinnow.run(**{**SMALL, **change}, out=tmp_path / "run", secure_sums=True)
    assert not (tmp_path / "run" / "config.toml").exists()


def test_an_audit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'sureness', 'figures'"):
        fedwinnow.audit(data="digits:train=240", clients=4, encoder=None, out=tmp_path / "audit", secure_sums=True)


# --- what methods declare ------------------------------------------------------------------------------------------


def test_source_text_and_classes_declare_the_same() -> None:
    for name, entry in catalogue.entries("methods").items():
        assert entry.load().sums == entry.facts["sums"], name  # type: ignore[attr-defined]


def test_only_methods_that_average_plainly_are_summed() -> None:
    found = {name for name in catalogue.entries("methods") if not find_method(name).singles()}
    assert found == {
        *("cdr", "centralised", "coteaching", "dividemix", "fedavg", "fedfixer", "fedlsr", "fedprox", "gce"),
        *("jointopt", "local", "logit_adjustment", "mixup", "oracle", "sce", "selfie", "winnow"),
    }


def test_a_method_with_merging_of_its_own_must_declare_its_sums_again() -> None:
    class OwnMerge(Method):
        def merge(self, server: Any, replies: Any) -> None:
            """It looks at single replies."""

    class OnlyTraining(Method):
        def train(self, client: Any, got: Any) -> Any:
            """Everything else is FedAvg's."""

    assert OwnMerge.sums == {}
    assert OnlyTraining.sums == Method.sums
