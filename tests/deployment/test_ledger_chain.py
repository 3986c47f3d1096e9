"""A ledger that was changed, cut or put in another order is found: by its own hashes, or by a head sent before."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from fedwinnow.cli import dispatch
from fedwinnow.deployment.ledger_chain import LINES, SUMS, UNCHAINED, Broken, LedgerHead, SiteLedger, read_chain, sealed
from fedwinnow.deployment.ledger_heads import HEADS, Heads, heads_in
from fedwinnow.deployment.ledger_proof import verify
from fedwinnow.errors import DataError, UsageError

WEIGHTS = {"exposes": "model", "receivers": ["server"], "shape": [3], "bytes": 12}


def line(number: int) -> dict[str, Any]:
    return {"time": "2026-01-01T00:00:00Z", "kind": "ask", "said": {"client": number}, "sent": {"weights": WEIGHTS}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of site b with six lines; the coordinator was sent the head after lines 2, 4 and 6."""
    ledger, heads = SiteLedger(tmp_path / "b", "b"), Heads(tmp_path, print)
    for number in range(6):
        ledger.book({**line(number), "said": {"error": "failed"}} if number == 5 else line(number))
        if number % 2:
            heads.note("b", number // 2 + 1, ledger.told())
            heads.write()
    return tmp_path / "b"


def told(folder: Path) -> list[dict[str, Any]]:
    return heads_in(folder.parent / HEADS, "b")


def test_what_a_line_and_its_hash_are(tmp_path: Path) -> None:
    text, head = sealed({"said": {}, "sent": {}}, LedgerHead())
    body = '{"line":1,"before":"' + "0" * 64 + '","said":{},"sent":{}}'
    by_hand = hashlib.sha256(body.encode()).hexdigest()
    assert (head.lines, head.hash) == (1, by_hand)
    assert text.decode() == body[:-1] + f',"hash":"{by_hand}"}}\n'
    assert json.loads(text)["before"] == "0" * 64


def test_a_whole_ledger_is_proven_by_heads_and_without_them_consistent(folder: Path) -> None:
    proof = verify(folder, told(folder), None)
    assert (proof.said, proof.lines, proof.proven) == ("proven", 6, 6)
    assert verify(folder, [], None).said == "consistent, unproven"
    second = told(folder)[1]["head"]
    assert verify(folder, [], f" {second.upper()}\n").proven == 4
    sums = json.loads((folder / SUMS).read_text())
    assert sums["sites"] == {"b": {"weights": {"exposes": "model", "count": 6, "bytes": 72}}}
    assert sums["errors"] == {"failed": 1}
    assert (sums["lines"], sums["head"]) == (6, told(folder)[2]["head"])


def edited(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b'"bytes":12', b'"bytes":13'), *lines[2:]]


def hidden_in_a_second_key(lines: list[bytes]) -> list[bytes]:
    return [lines[0], b'{"sent":{},' + lines[1][1:], *lines[2:]]


FAULTS = {
    "edited": (edited, "line 2 was changed"),
    "a key twice": (hidden_in_a_second_key, "line 2 was changed"),
    "blank added": (
        lambda lines: [lines[0], lines[1].replace(b',"kind"', b', "kind"'), *lines[2:]],
        "line 2 was changed",
    ),
    "first dropped": (lambda lines: lines[1:], "line 1 does not follow"),
    "dropped": (lambda lines: lines[:2] + lines[3:], "line 3 does not follow"),
    "reordered": (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "line 2 does not follow"),
    "repeated": (lambda lines: [*lines[:3], lines[2], *lines[3:]], "line 4 does not follow"),
    "emptied": (lambda lines: [*lines[:3], b"", *lines[3:]], "line 4 does not end with a hash"),
    "cut in a line": (lambda lines: [*lines[:5], lines[5][:-9]], "line 6 does not end with a hash"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_changed_ledger_is_found_without_a_head(folder: Path, fault: str) -> None:
    change, words = FAULTS[fault]
    path = folder / LINES
    (folder / SUMS).unlink()
    path.write_bytes(b"".join(one + b"\n" for one in change(path.read_bytes().splitlines())))
    with pytest.raises(DataError, match=words):
        verify(folder, [], None)


def rewrite(folder: Path, kept: int, *, change: int | None = None) -> None:
    """Make a ledger anew with hashes that fit: what whoever owns the folder can do."""
    old = read_chain(folder / LINES).lines
    for name in (LINES, SUMS):
        (folder / name).unlink()
    ledger = SiteLedger(folder, "b")
    for number, one in enumerate(old[:kept]):
        plain = {key: value for key, value in one.items() if key not in ("line", "before")}
        ledger.book(plain | ({"sent": {}} if number == change else {}))


def test_a_cut_tail_is_found_by_a_head_only(folder: Path) -> None:
    rewrite(folder, 5)
    assert verify(folder, [], None).said == "consistent, unproven"
    with pytest.raises(DataError, match=r"has 5 lines, but in round 3 the coordinator was told of 6: the end was cut"):
        verify(folder, told(folder), None)
    with pytest.raises(DataError, match="no line has the hash"):
        verify(folder, [], told(folder)[2]["head"])
    assert verify(folder, told(folder)[:2], None).proven == 4


def test_a_cut_file_beside_the_old_sums_is_found_at_once(folder: Path) -> None:
    lines = (folder / LINES).read_bytes().splitlines(keepends=True)
    (folder / LINES).write_bytes(b"".join(lines[:4]))
    with pytest.raises(DataError, match=r"counts 6 lines, but ledger.jsonl has 4: the end was cut off"):
        verify(folder, [], None)
    (folder / LINES).write_bytes(b"")
    with pytest.raises(DataError, match="has 0: the end was cut off"):
        verify(folder, [], None)


def test_a_rewritten_line_is_found_by_a_head_only(folder: Path) -> None:
    rewrite(folder, 6, change=2)
    assert verify(folder, [], None).said == "consistent, unproven"
    with pytest.raises(DataError, match="line 4 is another than in round 2"):
        verify(folder, told(folder), None)
    assert verify(folder, told(folder)[:1], None).proven == 2  # what came before it is as it was


def test_sums_that_the_lines_do_not_add_up_to_are_found(folder: Path) -> None:
    sums = json.loads((folder / SUMS).read_text())
    sums["sites"]["b"]["weights"]["count"] = 5
    (folder / SUMS).write_text(json.dumps(sums))
    with pytest.raises(DataError, match="does not say what the lines"):
        verify(folder, told(folder), None)


def test_sums_that_a_power_cut_left_behind_are_no_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = (folder / SUMS).read_text()
    SiteLedger(folder, "b").book(line(6))
    (folder / SUMS).write_text(old)
    proof = verify(folder, told(folder), None)
    assert (proof.proven, proof.lines) == (6, 7)


def test_a_ledger_goes_on_after_a_restart_and_drops_a_half_written_line(folder: Path) -> None:
    with (folder / LINES).open("ab") as stream:
        stream.write(b'{"line":7,"before":"')  # a power cut: what it describes has not left
    SiteLedger(folder, "b").book(line(6))
    assert verify(folder, told(folder), None).lines == 7
    assert json.loads((folder / SUMS).read_text())["sites"]["b"]["weights"]["count"] == 7


def test_a_changed_ledger_is_not_continued(folder: Path) -> None:
    lines = (folder / LINES).read_bytes().splitlines(keepends=True)
    (folder / LINES).write_bytes(b"".join(lines[1:]))
    with pytest.raises(Broken, match=r"cannot be continued; keep it as it is, and choose another --out"):
        SiteLedger(folder, "b").book(line(6))


def test_a_line_is_on_the_disk_before_the_answer_leaves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: seen.append(os.fstat(handle).st_size))
    before = (folder / LINES).stat().st_size
    SiteLedger(folder, "b").book(line(6))
    assert any(size > before for size in seen)


def test_a_ledger_of_the_first_version_is_set_aside(tmp_path: Path) -> None:
    old = '{"time": "2026-01-01T00:00:00Z", "kind": "hello", "said": {}, "sent": {}}\n'
    (tmp_path / LINES).write_text(old)
    SiteLedger(tmp_path, "b").book(line(0))
    assert (tmp_path / UNCHAINED).read_text() == old
    assert verify(tmp_path, [], None).lines == 1


# --- the coordinator's side ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"ledger": "x"},
        {"ledger": {"lines": 0, "head": "0" * 64}},
        {"ledger": {"lines": True, "head": "0" * 64}},
        {"ledger": {"lines": 10**400, "head": "0" * 64}},
        {"ledger": {"lines": 3, "head": "\x1b[2J"}},
        {"ledger": {"lines": 3, "head": "0" * 65}},
        {"ledger": {"lines": 3}},
    ],
)
def test_what_is_no_head_is_not_stored(facts: dict[str, Any], tmp_path: Path) -> None:
    heads = Heads(tmp_path, print)
    heads.note("b", 1, facts)
    heads.write()
    assert not (tmp_path / HEADS).exists()


def test_a_ledger_with_fewer_lines_than_before_is_reported(tmp_path: Path) -> None:
    said: list[str] = []
    heads = Heads(tmp_path, said.append)
    for lines in (3, 4, 4):
        heads.note("b", 1, {"ledger": {"lines": lines, "head": "a" * 64}})
    assert said == ["the ledger of b has fewer lines than before: it was begun anew, or cut"]


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_says_what_is_known(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder.parent
    assert dispatch(["ledger", "verify", str(folder)]) == 0
    assert "consistent, unproven: 6 lines" in capsys.readouterr().out
    assert dispatch(["ledger", "verify", str(folder), "--heads", str(run)]) == 0  # the coordinator's run folder
    assert "proven: lines 1 to 6 of 6" in capsys.readouterr().out
    second = told(folder)[1]["head"]
    assert dispatch(["ledger", "verify", str(folder / LINES), "--head", second, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["said"], found["proven"], found["lines"]) == ("proven", 4, 6)
    assert dispatch(["ledger", "verify", str(folder), "--head", second]) == 0
    assert "consistent, unproven: 2 later lines" in capsys.readouterr().out


def test_the_command_refuses_what_it_cannot_use(folder: Path) -> None:
    for words, error in (
        ([], "no folder was given"),
        ([str(folder.parent)], "there is no ledger.jsonl"),
        ([str(folder), "--head", "abc"], "allowed: the 64 figures"),
        ([str(folder), "--heads", str(folder.parent), "--site", "c"], "there is no head of site 'c'; it has: b"),
        ([str(folder), "--heads", str(folder)], "cannot be read"),
    ):
        with pytest.raises((UsageError, DataError), match=error):
            dispatch(["ledger", "verify", *words])


@pytest.mark.parametrize("how", ["full disk", "no fsync"])
def test_a_line_that_could_not_be_written_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Else the next line would stand behind half a line, and the ledger could not be continued."""
    ledger, before = SiteLedger(folder, "b"), (folder / LINES).read_bytes()

    def full(*_: Any) -> None:
        if how == "full disk":  # half of the line has reached the disk
            os.truncate(folder / LINES, len((folder / LINES).read_bytes()) - 30)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DataError, match="cannot be written"):
            ledger.book(line(6))
    assert (folder / LINES).read_bytes() == before
    ledger.book(line(6))
    assert verify(folder, told(folder), None).lines == 7
