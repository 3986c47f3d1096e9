"""The status page of `serve --page`: what it shows of a run, in a real browser, and whom it refuses."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from browser import Browser
from fedwinnow.deployment.flower_run import AuditStep
from fedwinnow.deployment.status import status as watching
from fedwinnow.deployment.status.status import Status
from fedwinnow.deployment.status.status_server import StatusServer
from fedwinnow.errors import UsageError

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
def status() -> Status:
    """Three sites are expected, one of them has gone, and one was refused."""
    made = Status(3)
    known = {1: {"site": "site-a", "samples": 120}, 2: {"site": "site-b", "samples": 80}}
    made.meet(SimpleNamespace(known=known, refused={9: (f"site x cannot take part: {HOSTILE}\x1b[31m", 0.0)}))
    return made


@pytest.fixture
def server(status: Status) -> Iterator[StatusServer]:
    made = StatusServer(status, 0)
    yield made
    made.shutdown()
    made.server_close()


def begin(status: Status, rounds: int = 10) -> None:
    stage: Any = SimpleNamespace(
        method=SimpleNamespace(name="winnow"), simulated=False, site_names=("site-a", "site-b", "site-c")
    )
    status.started(stage, 0, rounds)


def row(number: int, accuracy: float | None, dropped: dict[str, str] | None = None) -> dict[str, Any]:
    return {"round": number, "accuracy": accuracy, "dropped": dropped or {}}


def fetched(server: StatusServer, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_time_left_is_that_of_the_recent_rounds(status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, *(100.0 + 2 * number for number in range(20))])
    monkeypatch.setattr(watching.time, "monotonic", lambda: next(clock))
    begin(status, rounds=20)
    assert status.state()["seconds_left"] is None
    status.round(row(1, 0.5))
    assert status.state()["seconds_left"] == 100 * 19  # one slow round is all that is known
    for number in range(2, 13):
        status.round(row(number, 0.5))
    assert status.state()["seconds_left"] == 2 * 8  # the slow one is more than ten rounds ago
    status.finished({})
    assert status.state()["seconds_left"] is None


def test_sites_that_have_gone_and_rounds_without_them_are_counted(status: Status) -> None:
    begin(status)
    status.round(row(1, 0.5, {"site-c": "no reply within 600 seconds"}))
    status.round(row(2, None, {"site-c": "the site is not connected", "site-a": "NaN"}))
    state = status.state()
    assert [(site["name"], site["there"], site["dropped"]) for site in state["sites"]] == [
        ("site-a", True, 1),
        ("site-b", True, 0),
        ("site-c", False, 2),
    ]
    assert state["sites"][2]["last_drop"] == {"when": "round 2", "reason": "the site is not connected"}
    assert state["accuracy"] == [(1, 0.5)]
    assert "\\u001b" not in json.dumps(state)


def in_audit(status: Status, rounds: int = 10) -> None:
    """The second of three trainings, without a site that was lost after the first."""
    status.step(AuditStep("training", 1, 3))
    begin(status, rounds)
    for number in range(1, rounds + 1):
        status.round(row(number, 0.5))
    status.finished({})
    status.step(AuditStep("judging", 1, 3))
    status.step(AuditStep("lost", site="site-c", detail=f"it did not answer after the training of fold-1{HOSTILE}"))
    status.step(AuditStep("training", 2, 3))
    begin(status, rounds)


def test_an_audit_is_finished_when_it_is_over_and_not_after_its_first_training(status: Status) -> None:
    in_audit(status)
    status.round(row(1, 0.5, {"site-a": "NaN"}))
    state = status.state()
    assert (state["phase"], state["training"], state["trainings"], state["round"]) == ("running", 2, 3, 1)
    assert state["progress"] == pytest.approx(11 / 30)
    assert state["accuracy"] == [(1, 0.5)]  # of this training's model
    assert state["sites"][0]["last_drop"] == {"when": "training 2, round 1", "reason": "NaN"}
    assert "it did not answer" in state["sites"][2]["lost"]
    status.finished({})
    assert status.state()["phase"] == "judging"
    status.step(AuditStep("counting", detail="figures"))
    assert (status.state()["phase"], status.state()["question"], status.state()["progress"]) == (
        "counting",
        "figures",
        1.0,
    )
    status.step(AuditStep("over"))
    assert status.state()["phase"] == "finished"


def test_the_time_left_counts_the_trainings_to_come(status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(3.0 * number for number in range(100))
    monkeypatch.setattr(watching.time, "monotonic", lambda: next(clock))
    in_audit(status)
    assert status.state()["seconds_left"] is None  # the first round of this training is not over
    status.round(row(1, 0.5))
    assert status.state()["seconds_left"] == 3 * (9 + 10)


def test_strangers_and_other_pages_are_refused(server: StatusServer) -> None:
    port, token = server.server_port, server.token
    assert fetched(server, f"/state?token={token}")[0] == 200
    assert fetched(server, "/state")[0] == 403
    assert fetched(server, "/")[0] == 403
    assert fetched(server, "/state?token=guess")[0] == 403
    assert fetched(server, f"/state?token={token}", Host=f"evil.example:{port}")[0] == 421
    assert fetched(server, f"/state?token={token}", **{"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert fetched(server, f"/../status_server.py?token={token}")[0] == 404
    with pytest.raises(urllib.error.HTTPError, match="501"):
        urllib.request.urlopen(urllib.request.Request(server.url, data=b"x", method="POST"))


def test_a_port_that_is_taken_is_named(server: StatusServer, status: Status) -> None:
    with pytest.raises(UsageError, match=f"--page {server.server_port} cannot be used"):
        StatusServer(status, server.server_port)


def test_the_page_during_an_audit_in_a_browser(server: StatusServer, status: Status, tmp_path: Path) -> None:
    heading = "document.getElementById('phase').textContent"
    with Browser() as browser:
        browser.open(server.url)
        in_audit(status)
        for number in range(1, 5):
            status.round(row(number, 0.2 * number, {"site-a": "no reply within 600 seconds"} if number == 2 else None))
        browser.wait(f"{heading} === 'Audit: training 2 of 3'")
        browser.wait("document.getElementById('facts').textContent.includes('winnow, round 4 of 10')")
        text = browser.text()
        assert "2 of 3 sites are connected" in text
        assert "of training left" in text
        assert "training 2, round 2: no reply within 600 seconds" in text
        assert f"left out of the audit: it did not answer after the training of fold-1{HOSTILE}" in text  # as text
        assert browser.script("return document.getElementById('progress').value") == pytest.approx(14 / 30)
        browser.picture(tmp_path / "status.png")
        status.step(AuditStep("counting", detail="sureness"))
        browser.wait(f"{heading} === 'Audit: sites count labels by how sure the models are'")
        status.step(AuditStep("counting", detail=HOSTILE))
        browser.wait(f"{heading}.includes('<img')")
        status.step(AuditStep("writing"))
        browser.wait(f"{heading} === 'Audit: sites write their reports'")
        status.step(AuditStep("over"))
        browser.wait(f"{heading} === 'Finished'")
        assert browser.script("return document.images.length") == 0
        assert browser.complaints() == []


def test_the_page_in_a_browser(server: StatusServer, status: Status, tmp_path: Path) -> None:
    with Browser() as browser:
        browser.open(server.url)
        browser.wait("document.getElementById('phase').textContent === 'Waiting for the sites'")
        begin(status)
        for number in range(1, 6):
            status.round(row(number, 0.1 * number, {"site-c": HOSTILE} if number == 3 else None))
        browser.wait("document.getElementById('facts').textContent.includes('round 5 of 10')")
        text = browser.text()
        assert "2 of 3 sites are connected" in text
        assert "50.0 %" in text
        assert f"round 3: {HOSTILE}" in text  # shown as text
        assert browser.script("return document.title") == "fedwinnow: status of the run"
        assert browser.script("return document.images.length") == 0
        status.finished({})
        browser.wait("document.getElementById('phase').textContent === 'Finished'")
        browser.picture(tmp_path / "status.png")
        assert browser.complaints() == []
        server.shutdown()
        server.server_close()
        browser.wait("!document.getElementById('lost').hidden")
