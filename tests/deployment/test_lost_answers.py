"""Connections that break before the answer comes: a site asks again, and nothing is lost or counts twice."""

from __future__ import annotations

import threading
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from over_network import free_port

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install 'fedwinnow[flower]'")

from flwr.proto import fleet_pb2 as fleet

from fedwinnow.deployment import flower_visit
from fedwinnow.deployment.certificates import make_certificates
from fedwinnow.deployment.flower_again import MOST_TIMES
from fedwinnow.deployment.flower_backend import Letter, exchange
from fedwinnow.deployment.flower_link import Link
from fedwinnow.deployment.flower_records import from_records, to_records
from fedwinnow.deployment.flower_visit import JoinRefused, Unreachable, Visit
from fedwinnow.deployment.front import Body, FleetOnly
from fedwinnow.deployment.keys import ServerFiles, SiteFiles

WAIT = 600.0  # seconds; nothing may take longer, or it hangs
MODEL = torch.arange(3 * 2**20, dtype=torch.float32)  # 12 MiB: three parts


class Answering:
    """A site that counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.ledger = types.SimpleNamespace(told=dict)

    def answer(self, facts: dict[str, Any], payload: dict[str, torch.Tensor]) -> Any:
        self.asked.append(facts["number"])
        return {"number": facts["number"]}, {"reply.weights": payload["weights"] + 1}


class Unlucky:
    """Requests are carried out, but the connection breaks before their answer: the first so many of each kind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, many: int) -> None:
        self.many, self.lost, let = many, Counter[str](), FleetOnly.passed

        async def passed(only: FleetOnly, scope: Any, body: Body, send: Any, who: str) -> None:
            kind = scope["path"].rpartition("/")[2]
            if kind in ("activate-node", "deactivate-node") or self.lost[kind] >= self.many:
                return await let(only, scope, body, send, who)
            self.lost[kind] += 1
            caller = only.gate.caller(scope["client"])
            assert caller is not None
            await let(only, scope, body, nobody, who)
            caller.cut()
            return None

        monkeypatch.setattr(FleetOnly, "passed", passed)


async def nobody(message: Any) -> None:
    """Where an answer goes that never comes."""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Link, Visit]]:
    """A coordinator and a site that has come; both wait for a moment only."""
    monkeypatch.setattr(flower_visit, "BROKEN", (0.01,) * 4)
    make_certificates(tmp_path, ("localhost",), ("site-a",))
    link = Link("127.0.0.1", free_port(), ServerFiles(tmp_path), WAIT, lambda text: None)
    visit = Visit(f"localhost:{link.server.config.port}", SiteFiles(tmp_path / "site-a"), 1800)
    visit.enter()
    yield link, visit
    link.close()


def sent(link: Link, visit: Visit, many: int) -> list[Any]:
    """Letters to the site."""
    packed: Any = {}
    return [
        Letter(number, visit.node.node_id, to_records({"number": number}, {"weights": MODEL + number}, packed))
        for number in range(many)
    ]


@pytest.mark.parametrize("times", [1, 3])
def test_every_answer_may_be_lost_and_everything_counts_once(
    pair: tuple[Link, Visit], monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    link, visit = pair
    unlucky, site, stop = Unlucky(monkeypatch, times), Answering(), threading.Event()

    def play() -> None:
        while not stop.is_set():
            visit.one(site)  # type: ignore[arg-type]

    playing = threading.Thread(target=play, daemon=True)
    playing.start()
    letters = sent(link, visit, 3)
    found = {letter.number: from_records(content) for letter, content in exchange(link.grid, letters, WAIT)}
    stop.set()
    playing.join(WAIT)
    assert not playing.is_alive()
    assert site.asked == [0, 1, 2]
    for number, (facts, payload) in found.items():
        assert facts == {"number": number}
        assert torch.equal(payload["reply.weights"], MODEL + number + 1)
    kinds = ("pull-messages", "pull-object", "confirm-message-received", "push-messages", "push-object")
    assert {kind: unlucky.lost[kind] for kind in kinds} == dict.fromkeys(kinds, times)
    assert len(link.state.object_store) == 0  # nothing of a repeated reply stays in memory


def test_a_site_that_never_confirms_gets_the_next_message_all_the_same(pair: tuple[Link, Visit]) -> None:
    link, visit = pair
    letters = exchange(link.grid, sent(link, visit, 1), WAIT)
    threading.Thread(target=lambda: list(letters), daemon=True).start()
    request, seen = fleet.PullMessagesRequest(node=visit.node), list[str]()
    while len(seen) < MOST_TIMES:
        seen += [message.metadata.message_id for message in visit.call("PullMessages", request).messages_list]
    assert len(set(seen)) == 1
    assert not visit.call("PullMessages", request).messages_list


def test_a_new_visit_does_not_get_what_an_earlier_one_left_behind(pair: tuple[Link, Visit]) -> None:
    """The coordinator takes it for lost, and asks anew."""
    link, visit = pair
    letters = exchange(link.grid, sent(link, visit, 1), WAIT)
    threading.Thread(target=lambda: list(letters), daemon=True).start()
    request = fleet.PullMessagesRequest(node=visit.node)
    while not visit.call("PullMessages", request).messages_list:
        pass
    visit.leave()
    visit.enter()
    assert not visit.call("PullMessages", request).messages_list


def test_a_site_gives_up_when_nobody_answers_any_more(
    pair: tuple[Link, Visit], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, visit = pair
    unlucky = Unlucky(monkeypatch, 10**6)
    with pytest.raises(Unreachable, match="no answer from localhost") as problem:
        visit.call("PullMessages", fleet.PullMessagesRequest(node=visit.node))
    assert not isinstance(problem.value, JoinRefused)
    assert unlucky.lost["pull-messages"] == 5
