"""A folder that was damaged is refused in a sentence; none ever gives another result."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
import torch

import fedwinnow.experiment.play
from fedwinnow import files
from fedwinnow.api import run as play
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.federation.memory import Memory, seal, unseal
from fedwinnow.testing import comparable, toy_data
from remembering import REMEMBERING, At, interrupt

HIDDEN = {"rounds": 4, "clients": 4, "participation": 0.5, "epochs": 1, "batch_size": 16}


@pytest.fixture
def method(tmp_path):
    """A method that remembers at the clients, on the server and in the vault."""
    text = REMEMBERING.replace(
        "        super().merge(server, replies)",
        "        super().merge(server, self.kept(server, replies))\n\n"
        "    def kept(self, server, replies):\n"
        "        for client, reply in replies:\n"
        "            server.remember(client, {'last': reply['weights']})\n"
        "            yield client, reply",
    )
    path = tmp_path / "method.py"
    path.write_text(text)
    return str(path)


def run(folder: Path, method: str, **changes):
    settings = {"data": toy_data(), "method": method, "noise": "constant:rate=0.3", **HIDDEN}
    return play(out=folder, **(settings | changes))


def broken_off(folder: Path, method: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(folder, method, watchers=(At(2, interrupt),))


def flipped(content: bytes, place: int, bit: int) -> bytes:
    return content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]


# --- one bit ---------------------------------------------------------------------------------------------------------


def test_no_bit_of_a_sealed_file_can_change_unnoticed(tmp_path):
    path = tmp_path / "one.safetensors"
    whole = b"".join(seal({"a": torch.arange(3.0), "b": torch.zeros(2, dtype=torch.int64)}, {"round": 3}))
    path.write_bytes(whole)
    tensors, facts = unseal(path)
    assert facts == {"round": 3}
    assert tensors["a"].tolist() == [0, 1, 2]
    for place in range(len(whole)):
        for bit in {0, place % 8, 5}:  # 5 turns letters into capitals
            path.write_bytes(flipped(whole, place, bit))
            with pytest.raises(DataError, match=r"one\.safetensors: (damaged|the format|made by a newer)"):
                unseal(path)
    for length in (0, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match="damaged"):
            unseal(path)


@pytest.mark.parametrize("faults", [{}, {"on_client_error": "drop", "quorum": 0.0}])
@pytest.mark.parametrize("place", ["state.safetensors", "clients", "server"])
def test_a_flipped_bit_in_a_checkpoint_or_a_memory_is_refused(tmp_path, method, place, faults):
    folder = tmp_path / "run"
    broken_off(folder, method)
    luck = random.Random(5)
    path = folder / place
    files = [path] if path.is_file() else sorted(path.iterdir())
    assert files
    before = (folder / "summary.json").read_bytes()
    for file in files:
        whole = file.read_bytes()
        file.write_bytes(flipped(whole, luck.randrange(len(whole)), luck.randrange(8)))
        with pytest.raises(DataError, match=rf"{file.name}: damaged .*redo=True\.$") as refused:
            run(folder, method, resume=True, **faults)
        assert str(refused.value).count("\n") == 0
        file.write_bytes(whole)
    assert (folder / "summary.json").read_bytes() == before
    run(folder, method, resume=True)
    run(tmp_path / "straight", method)
    assert comparable(folder) == comparable(tmp_path / "straight")


def test_a_memory_that_is_gone_is_refused(tmp_path, method):
    broken_off(tmp_path / "run", method)
    next(iter((tmp_path / "run" / "clients").iterdir())).unlink()
    with pytest.raises(DataError, match="No such file"):
        run(tmp_path / "run", method, resume=True, on_client_error="drop", quorum=0.0)


# --- rounds.jsonl ----------------------------------------------------------------------------------------------------


def lines_of(content: bytes) -> list[bytes]:
    return content.splitlines(keepends=True)


DAMAGES = {
    "emptied": lambda content: b"",
    "halved": lambda content: content[: len(content) // 2],
    "last line cut short": lambda content: content[:-5],
    "first line gone": lambda content: b"".join(lines_of(content)[1:]),
    "a line twice": lambda content: lines_of(content)[0] + content,
    "deleted": None,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("finished", [True, False])
def test_rounds_that_do_not_reach_the_checkpoint_are_refused(tmp_path, method, damage, finished):
    folder = tmp_path / "run"
    run(folder, method) if finished else broken_off(folder, method)
    path = folder / "rounds.jsonl"
    if DAMAGES[damage] is None:
        path.unlink()
    else:
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    for rounds in (4, 5):
        with pytest.raises(DataError, match=r"rounds\.jsonl: it has \d rounds? up to round \d.*redo=True\.$"):
            run(folder, method, resume=True, rounds=rounds)


def test_a_line_cut_short_after_the_checkpoint_is_played_again(tmp_path, method):
    broken_off(tmp_path / "run", method)
    with (tmp_path / "run" / "rounds.jsonl").open("a") as stream:
        stream.write('{"round": 3, "par')
    run(tmp_path / "run", method, resume=True)
    run(tmp_path / "straight", method)
    assert comparable(tmp_path / "run") == comparable(tmp_path / "straight")


# --- the end ---------------------------------------------------------------------------------------------------------


def test_a_finished_run_cannot_have_fewer_rounds(tmp_path, method):
    run(tmp_path / "run", method)
    with pytest.raises(UsageError, match="rounds=3 was given, but this run has played 4 already; allowed: 4 or more"):
        run(tmp_path / "run", method, resume=True, rounds=3)


def test_a_run_that_dies_before_its_summary_gets_its_report_when_it_is_resumed(tmp_path, method, monkeypatch):
    class Died(BaseException):
        pass

    def die(source, target):
        if Path(target).name == "summary.json":
            raise Died
        replace(source, target)

    replace = os.replace
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        with pytest.raises(Died):
            run(tmp_path / "run", method)
    assert not (tmp_path / "run" / "summary.json").exists()
    assert "</html>" in (tmp_path / "run" / "report.html").read_text()  # it says what the summary will
    run(tmp_path / "run", method, resume=True)
    run(tmp_path / "straight", method)
    assert comparable(tmp_path / "run") == comparable(tmp_path / "straight")
    assert "</html>" in (tmp_path / "run" / "report.html").read_text()


# --- what is on the disk when -----------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """What the program asks of the disk, in order."""
    found: list[tuple[str, str]] = []
    fsync, replace, unlink = os.fsync, os.replace, Path.unlink

    def name_of(handle: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{handle}")).name

    monkeypatch.setattr(os, "fsync", lambda handle: (found.append(("fsync", name_of(handle))), fsync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (replace(a, b), found.append(("replace", Path(b).name)))[0])
    monkeypatch.setattr(
        Path, "unlink", lambda p, missing_ok=False: (found.append(("unlink", p.name)), unlink(p, missing_ok))[1]
    )
    return found


linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the names of open files")


@linux
def test_a_durable_write_is_on_the_disk_before_its_name_and_the_name_before_it_returns(tmp_path, calls):
    files.write_text(tmp_path / "new" / "deep" / "one.txt", "text")
    temporary = next(name for what, name in calls if what == "fsync" and name.startswith(".one.txt."))
    assert calls == [
        ("fsync", "new"),
        ("fsync", tmp_path.name),
        ("fsync", temporary),
        ("replace", "one.txt"),
        ("fsync", "deep"),
    ]
    calls.clear()
    files.write_text(tmp_path / "two.txt", "text", durable=False)
    assert calls == [("replace", "two.txt")]


@linux
def test_a_checkpoint_follows_all_it_needs_and_old_memories_go_after_it(tmp_path, method, calls, monkeypatch):
    monkeypatch.setattr(fedwinnow.experiment.play, "APART", 0.0)
    run(tmp_path / "run", method, participation=1.0, rounds=3)
    saved = [number for number, call in enumerate(calls) if call == ("replace", "state.safetensors")]
    assert len(saved) == 3
    for round_number, (begin, end) in enumerate(zip([0, *saved], saved, strict=False), start=1):
        before = calls[begin:end]
        for client in range(4):
            assert before.count(("fsync", f"{client:06d}-{round_number}-0.safetensors")) == 2  # its own, the vault's
        for name in ("clients", "server", "rounds.jsonl"):
            assert ("fsync", name) in before
        assert before[-1][1].startswith(".state.safetensors.")
        assert calls[end + 1] == ("fsync", "run")
        gone = [
            number for number, call in enumerate(calls) if call == ("unlink", f"000000-{round_number}-0.safetensors")
        ]
        assert all(number > saved[round_number] for number in gone[:2])
        assert len(gone) == (2 if round_number < 3 else 0)


@pytest.mark.parametrize(("apart", "saved"), [(0.0, [1, 2, 3, 4]), (3600.0, [1, 4])])
def test_short_rounds_share_a_checkpoint_and_none_is_lost_by_control_c(tmp_path, method, monkeypatch, apart, saved):
    monkeypatch.setattr(fedwinnow.experiment.play, "APART", apart)
    found: list[int] = []
    save = RunFolder.save_state
    monkeypatch.setattr(RunFolder, "save_state", lambda self, *a: (save(self, *a), found.append(a[-1]["round"]))[0])
    run(tmp_path / "run", method)
    assert found == saved
    found.clear()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "other", method, watchers=(At(3, interrupt),))
    assert found[-1] == 3
    run(tmp_path / "other", method, resume=True)
    assert comparable(tmp_path / "other") == comparable(tmp_path / "run")


def test_memories_are_pruned_only_after_the_checkpoint_is_saved(tmp_path, method, monkeypatch):
    """A run that dies while it saves the checkpoint still has what the last one needs."""
    order: list[str] = []
    prune, save = Memory.prune, RunFolder.save_state
    monkeypatch.setattr(Memory, "prune", lambda self, needed: (order.append("prune"), prune(self, needed))[1])
    monkeypatch.setattr(RunFolder, "save_state", lambda self, *a: (save(self, *a), order.append("saved"))[0])
    monkeypatch.setattr(fedwinnow.experiment.play, "APART", 0.0)
    run(tmp_path / "run", method, rounds=2)
    assert order == ["saved", "prune", "prune"] * 2
    kept = json.loads((tmp_path / "run" / "state.json").read_text())["memory"].values()
    assert {path.name for path in (tmp_path / "run" / "clients").iterdir()} == set(kept)
