"""`join --check`: what it finds, what it says to do, and that it takes nobody's place."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install '.[flower]'")

from fedwinnow.cli import main
from fedwinnow.data.load import load
from fedwinnow.deployment import check_visit, flower_backend, join_check
from fedwinnow.deployment.agreement import columns_hash, hello_of
from fedwinnow.deployment.certificates import make_certificates
from fedwinnow.deployment.flower_backend import Roster
from fedwinnow.deployment.flower_link import Link
from fedwinnow.deployment.flower_run import no_samples
from fedwinnow.deployment.flower_visit import Visit
from fedwinnow.deployment.keys import ServerFiles, SiteFiles
from fedwinnow.deployment.reach import ahead_of, check_clock, reach
from fedwinnow.deployment.real_sites import real_stage, task_data
from fedwinnow.errors import RunError, UsageError
from fedwinnow.experiment.settings import Experiment
from over_network import free_port

ROWS = "".join(f"{20 + number},{number % 7},{'ill' if number % 3 else 'well'}\n" for number in range(40))


def run(words: list[str]) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys, tables and a schema."""
    folder = tmp_path_factory.mktemp("check")
    make_certificates(folder / "certs", ("localhost", "127.0.0.1"), ("a", "b"))
    (folder / "own.csv").write_text("age,dose,diagnosis\n" + ROWS)
    (folder / "site.csv").write_text("age,dose,diagnosis\n" + ROWS.replace("2", "3"))
    (folder / "odd.csv").write_text("age,dose,diagnosis\n" + ROWS.replace("well", "weird"))
    assert run(["schema", *table(folder, "own", schema=False), "--out", str(folder / "schema.json"), "--quiet"]) == 0
    return folder


def table(place: Path, name: str, *, schema: bool = True) -> list[str]:
    agreed = f",schema={place / 'schema.json'}" if schema else ""
    return ["--data", f"csv:path={place / name}.csv,label=diagnosis{agreed}"]


class Waiting:
    """A coordinator that waits for its sites, in this process."""

    def __init__(self, place: Path, method: str) -> None:
        self.said: list[str] = []
        self.link = Link("127.0.0.1", free_port(), ServerFiles(place / "certs"), 60.0, self.said.append)
        own = task_data(load(table(place, "own")[1]))
        hello = hello_of(real_stage(Experiment(method=method, rounds=4), own, {"anybody": 1}), simulated=False)
        self.roster = Roster(self.link.grid, hello, no_samples, self.link.name_of, self.said.append)
        self.address = f"localhost:{self.link.server.config.port}"
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self) -> None:
        while not self.stop.wait(0.1):
            self.roster.refresh()

    def close(self) -> None:
        self.stop.set()
        self.thread.join(30)
        self.link.close()


@pytest.fixture(scope="module")
def coordinator(place: Path) -> Iterator[Waiting]:
    with pytest.MonkeyPatch.context() as patched:
        for module, name in ((flower_backend, "ASKED_AGAIN"), (check_visit, "SECONDS"), (check_visit, "HEARD")):
            patched.setattr(module, name, 600.0)  # a busy machine may take long
        made = Waiting(place, "winnow")
        yield made
        made.close()


@pytest.fixture
def waiting(coordinator: Waiting) -> Waiting:
    """The coordinator, which has not heard of anybody."""
    coordinator.said.clear()
    coordinator.roster.checking.clear()
    return coordinator


def check(capsys: Any, place: Path, out: Path, address: str, *words: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit code, and of every check its state and words."""
    flags = ["--server", address, "--tls", str(place / "certs" / "a"), "--out", str(out), "--json"]
    code = run(["join", "--check", *flags, *words])
    found = json.loads(capsys.readouterr().out)
    return code, {line["what"]: (line["state"], line["text"]) for line in found}


def test_a_site_that_is_ready_learns_so_and_takes_no_place(
    capsys: Any, place: Path, waiting: Waiting, tmp_path: Path
) -> None:
    code, found = check(capsys, place, tmp_path / "a", waiting.address, *table(place, "site"))
    assert code == 0
    assert {state for state, _ in found.values()} == {"ok"}
    assert found["task"][1].startswith("winnow, 4 rounds")
    assert "about the model: weights, counters (for the server)" in found["exposure"][1]
    assert found["model"][1].endswith("weights, can be built here and fits on the disk")
    assert found["policy"][1] == "none was given, so a person is asked when this site joins"
    assert waiting.said == ["site a checks its setup (join --check); it takes no place"]
    assert waiting.roster.known == {}
    assert waiting.roster.refused == {}
    lines = [json.loads(line) for line in (tmp_path / "a" / "ledger.jsonl").read_text().splitlines()]
    assert [line["said"] for line in lines] == [{"site": "a", "checks": True}] * 2  # all that left
    assert all(line["sent"] == {} for line in lines)


@pytest.mark.parametrize(
    ("words", "what", "code", "said"),
    [
        (["odd"], "classes", 3, "'weird', which is not among the coordinator's: ill, well"),
        (["site", "no schema"], "schema", 3, "Use the coordinator's schema"),
        (["site", "--allow-exposure", "model"], "exposure", 2, "join --allow-exposure client"),
    ],
)
def test_what_does_not_suit_the_task_is_one_line_with_what_to_do(
    words: list[str], what: str, code: int, said: str, capsys: Any, place: Path, waiting: Waiting, tmp_path: Path
) -> None:
    given = table(place, words[0], schema="no schema" not in words and words[0] != "odd")
    more = [word for word in words[1:] if word != "no schema"]
    found_code, found = check(capsys, place, tmp_path / "a", waiting.address, *given, *more)
    assert (found_code, found[what][0]) == (code, "wrong")
    assert said in found[what][1]
    assert found["model"][0] == "ok"  # what does not depend on it is looked at all the same


def test_a_policy_that_objects_is_a_line_and_without_one_a_person_is_asked(
    capsys: Any, place: Path, waiting: Waiting, tmp_path: Path
) -> None:
    assert run(["join", "--write-policy", str(tmp_path / "site.toml"), "--quiet"]) == 0
    text = (tmp_path / "site.toml").read_text()
    (tmp_path / "site.toml").write_text(re.sub(r"(?m)^rounds = \d+", "rounds = 3", text))
    given = [*table(place, "site"), "--policy", str(tmp_path / "site.toml")]
    code, found = check(capsys, place, tmp_path / "a", waiting.address, *given)
    assert (code, found["policy"][0], found["exposure"][0], found["model"][0]) == (2, "wrong", "ok", "ok")
    assert "rounds 4 is asked for; the policy allows at most 3 (rounds)" in found["policy"][1]
    (tmp_path / "site.toml").write_text(text)
    waiting.roster.checking.clear()  # some seconds later
    code, found = check(capsys, place, tmp_path / "a", waiting.address, *given)
    assert (code, found["policy"][0]) == (0, "ok")
    assert "nothing is asked that the policy" in found["policy"][1]


def test_a_site_that_takes_part_already_is_told_so(capsys: Any, place: Path, waiting: Waiting, tmp_path: Path) -> None:
    visit = Visit(waiting.address, SiteFiles(place / "certs" / "a"), 300)
    visit.enter()
    try:
        code, found = check(capsys, place, tmp_path / "a", waiting.address, *table(place, "site"))
    finally:
        visit.leave()
    assert (code, found["admission"][0], found["task"][0]) == (4, "wrong", "open")
    assert "If `join` of this site runs already, all is well" in found["admission"][1]


def test_before_the_coordinator_is_up_all_that_is_here_is_checked(capsys: Any, place: Path, tmp_path: Path) -> None:
    code, found = check(capsys, place, tmp_path / "a", f"localhost:{free_port()}", *table(place, "site"))
    assert code == 4
    assert [found[what][0] for what in ("program", "keys", "data", "disk")] == ["ok"] * 4
    assert "is not up yet" in found["coordinator"][1]
    assert {found[what][0] for what in ("clock", "admission", "task", "model")} == {"open"}
    code, found = check(capsys, place, tmp_path / "a", f"localhost:{free_port()}", "--data", "absent.csv")
    assert code in (2, 3)  # what is wrong here comes before what others have to do
    assert (found["data"][0], found["coordinator"][0]) == ("wrong", "wrong")


def test_keys_that_others_can_read_and_a_full_disk(
    capsys: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(place / "certs" / "a", tmp_path / "a")
    (tmp_path / "a" / "site.key").chmod(0o644)
    monkeypatch.setattr(join_check.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 5, 1_000_000))
    flags = ["--server", f"localhost:{free_port()}", "--tls", str(tmp_path / "a"), "--out", str(tmp_path / "o")]
    assert run(["join", "--check", *flags, *table(place, "site")]) == 3
    said = capsys.readouterr().out
    assert "chmod 600" in said
    assert "1 MB are free, and up to 210 MB are needed" in said


# --- the coordinator's side ----------------------------------------------------------------------------------------


def test_a_site_that_checked_is_asked_again_when_it_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_backend, "exchange", lambda grid, letters, timeout: [])
    said: list[str] = []
    grid: Any = type("Grid", (), {"get_node_ids": lambda self: [7]})()
    roster = Roster(grid, {"task": {}}, no_samples, lambda node: "east", said.append)
    asked: list[int] = []

    def exchange(grid: Any, letters: list[Any], timeout: float) -> Any:
        for letter in letters:
            content = flower_backend.facts_in(letter.content)
            if content.get("kind") != "refused":
                asked.append(letter.node)
                yield letter, flower_backend.to_records({"site": "east", **claim}, {}, {})

    monkeypatch.setattr(flower_backend, "exchange", exchange)
    claim: dict[str, Any] = {"checks": True, "samples": 5}
    roster.refresh()
    roster.refresh()  # at once: it is left in peace
    assert asked == [7]
    assert roster.known == {}
    claim = {"samples": 5}
    now = time.monotonic()
    monkeypatch.setattr(flower_backend.time, "monotonic", lambda: now + flower_backend.ASKED_AGAIN + 1)
    roster.refresh()
    assert asked == [7, 7]
    assert roster.known == {7: {"site": "east", "samples": 5}}


def test_schemas_differ_where_a_mean_differs(place: Path) -> None:
    agreed, own, alone = (
        load(table(place, name, schema=schema)[1]) for name, schema in (("site", True), ("own", True), ("site", False))
    )
    assert columns_hash(agreed) == columns_hash(own) != columns_hash(alone)
    assert columns_hash(load("digits:train=20")) is None


# --- reaching ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("date", "asked", "answered", "expected"),
    [
        ("Thu, 01 Jan 1970 00:01:00 GMT", 60.0, 60.1, 0.0),
        ("Thu, 01 Jan 1970 00:01:00 GMT", 60.9, 61.0, 0.0),  # the second was cut
        ("Thu, 01 Jan 1970 00:01:00 GMT", 60.0, 360.0, 0.0),  # a slow answer says nothing about clocks
        ("Thu, 01 Jan 1970 00:01:00 GMT", 76.0, 76.1, 15.0),
        ("Thu, 01 Jan 1970 00:01:00 GMT", 9.0, 10.0, -50.0),
        ("soon", 10.0, 10.0, None),
        (None, 10.0, 10.0, None),
    ],
)
def test_the_difference_of_two_clocks(date: str | None, asked: float, answered: float, expected: float | None) -> None:
    assert ahead_of(date, asked, answered) == expected


def test_an_answer_has_the_time_at_which_it_was_made(waiting: Waiting, place: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fedwinnow.deployment.front.formatdate", lambda **more: "Thu, 01 Jan 1970 00:01:00 GMT")
        reached = reach(waiting.address, SiteFiles(place / "certs" / "a"))
    assert reached.ahead is not None
    assert reached.ahead > 10**9
    assert reach(waiting.address, SiteFiles(place / "certs" / "a")).ahead == 0


def test_clocks_that_flower_would_refuse() -> None:
    check_clock(4.0)
    check_clock(-300.0)
    with pytest.raises(RunError, match=r"15 seconds ahead of the coordinator's; allowed: 4 ahead, 300 behind. Set"):
        check_clock(15.0)
    with pytest.raises(RunError, match="301 seconds behind"):
        check_clock(-301.0)


class Stranger(http.server.BaseHTTPRequestHandler):
    """Another program on that port."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *words: Any) -> None:
        return


def test_what_answers_may_be_somebody_else(place: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        with pytest.raises(RunError, match="it is no fedwinnow serve"):
            reach(address, None)
        with pytest.raises(UsageError, match="speaks plain text"):
            reach(address, SiteFiles(place / "certs" / "a"))
        server.shutdown()


def test_another_authority_and_a_silent_port(place: Path, tmp_path: Path, waiting: Waiting, monkeypatch: Any) -> None:
    make_certificates(tmp_path / "certs", ("localhost",), ("a",))
    with pytest.raises(UsageError, match=r"is not signed by this site's ca\.crt"):
        reach(waiting.address, SiteFiles(tmp_path / "certs" / "a"))
    with pytest.raises(UsageError, match="give --tls"):
        reach(waiting.address, None)
    with pytest.raises(UsageError, match="is not known to this machine"):
        reach("nowhere.invalid:8443", None)
    monkeypatch.setattr("fedwinnow.deployment.reach.SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(RunError, match="a firewall is between"):
        reach(f"127.0.0.1:{silent.getsockname()[1]}", None)
    assert ssl.OPENSSL_VERSION  # the messages are matched against this library's
