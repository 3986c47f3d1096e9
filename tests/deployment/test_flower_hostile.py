"""Sites that want the place of another, and coordinators that want too much: over TLS and keys, on the real link."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwinnow.errors import UsageError
from over_network import Cast, free_port

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install 'fedwinnow[flower]'")

from flwr.app import Message
from flwr.proto import fleet_pb2 as fleet
from flwr.proto.node_pb2 import Node

from fedwinnow.data.load import load
from fedwinnow.deployment import certificates as making
from fedwinnow.deployment import flower_visit
from fedwinnow.deployment.agreement import hello_of
from fedwinnow.deployment.certificates import make_certificates
from fedwinnow.deployment.exposure_limit import Declined
from fedwinnow.deployment.flower_backend import Letter, exchange
from fedwinnow.deployment.flower_link import Link
from fedwinnow.deployment.flower_records import from_records, to_records
from fedwinnow.deployment.flower_visit import JoinRefused, Unreachable, Visit, answer_messages, certificate_problem
from fedwinnow.deployment.keys import ServerFiles, SiteFiles
from fedwinnow.deployment.real_sites import real_stage, task_data
from fedwinnow.deployment.site import Site
from fedwinnow.deployment.site_data import OwnData
from fedwinnow.experiment.settings import Experiment

SITES = ("site-a", "site-b", "site-c")
DATA = ("--data", "digits:train=60")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_certificates(folder, ("localhost", "127.0.0.1"), SITES)
    return folder


@dataclasses.dataclass
class Trial:
    """A coordinator whose sites have data of their own."""

    cast: Cast
    keys: Path
    port: int

    def serve(self, *more: Any) -> None:
        flags = ("--model", "linear", "--epochs", 1, "--tls", self.keys, "--port", self.port, "--out", "run")
        self.cast.start("serve", "serve", *DATA, *flags, *more)

    def join(self, site: str, *more: Any, tamper: str | None = None) -> None:
        flags = ("--server", f"localhost:{self.port}", "--tls", self.keys / site, "--heartbeat", 300)
        self.cast.start(site, "join", *DATA, "--yes", *flags, *more, tamper=tamper)

    def ledger(self, site: str) -> list[dict[str, Any]]:
        """What a site wrote down, of all runs."""
        paths = (self.cast.folder / "sites" / site).rglob("ledger.jsonl")
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@pytest.fixture
def trial(tmp_path: Path, keys: Path) -> Iterator[Trial]:
    with Cast(tmp_path) as cast:
        yield Trial(cast, keys, free_port())


def test_a_site_that_claims_the_place_of_all_others_gets_its_own(trial: Trial, tmp_path: Path) -> None:
    trial.serve("--rounds", 2, "--sites", 3, "--on-client-error", "stop")
    for site in SITES[:2]:
        trial.join(site)
    trial.cast.wait_for("serve", "2 of 3 sites are there: site-a, site-b")
    printed = f"coordinator's key: {ServerFiles(trial.keys).fingerprint()}"  # the same on both sides
    assert f"this {printed}" in trial.cast.said("serve")
    assert printed in trial.cast.said("site-a")
    trial.join("site-c", tamper="claims everybody")
    trial.cast.wait_for("serve", "site site-c cannot take part: it says which clients it has")
    for name in ("serve", *SITES):  # it was asked again, and claimed no more than another name
        trial.cast.ended(name)
    told = json.loads((tmp_path / "run" / "ledger.json").read_text())["sites"]
    assert {site: sent["weights"]["count"] for site, sent in told.items()} == dict.fromkeys(SITES, 2)
    for number, site in enumerate(SITES):
        asked = [line["said"]["client"] for line in trial.ledger(site) if line["kind"] == "ask"]
        assert asked == [number, number]


def test_a_site_does_not_send_a_value_per_sample_unless_its_people_allow_it(trial: Trial, tmp_path: Path) -> None:
    trial.serve("--method", "fedgr", "--rounds", 1, "--sites", 2)
    trial.join("site-b")
    trial.cast.ended("site-b", code=2)
    said = trial.cast.said("site-b")
    assert said.count("method 'fedgr' sends 'sample_loss' (about single samples)") == 1
    assert "join --allow-exposure sample" in said
    line, heard = trial.ledger("site-b")
    assert (heard["kind"], heard["sent"]) == ("refused", {})
    assert (line["kind"], line["sent"]) == ("hello", {})
    assert line["said"] == {"error": "refused", "site": "site-b"}
    assert "site site-b cannot take part: the site refused (code refused)" in trial.cast.said("serve")
    assert "sample_loss" not in trial.cast.said("serve")
    trial.join("site-a", "--allow-exposure", "sample")
    for name in ("serve", "site-a"):
        trial.cast.ended(name)
    assert "the run begins without site-b" in trial.cast.said("serve")
    assert any(line["sent"].get("sample_loss", {}).get("exposes") == "sample" for line in trial.ledger("site-a"))
    assert list(json.loads((tmp_path / "run" / "ledger.json").read_text())["sites"]) == ["site-a"]


def test_without_the_quorum_a_site_that_refuses_ends_the_run(trial: Trial) -> None:
    trial.serve("--method", "fedgr", "--rounds", 1, "--sites", 1, "--quorum", 1)
    trial.join("site-a")
    trial.cast.ended("site-a", code=2)
    trial.cast.ended("serve", code=4)
    assert "only 0 of 1 sites take part; the quorum is 1. The site site-a cannot take part" in trial.cast.said("serve")


# --- the link itself, in this process ------------------------------------------------------------------------------


@pytest.fixture
def link(keys: Path) -> Iterator[Link]:
    made = Link("127.0.0.1", free_port(), ServerFiles(keys), 60.0, lambda text: None)
    yield made
    made.close()


def visitor(link: Link, keys: Path, site: str) -> Visit:
    return Visit(f"localhost:{link.server.config.port}", SiteFiles(keys / site), 300)


def test_of_two_processes_with_one_key_the_second_waits_until_the_first_has_left(link: Link, keys: Path) -> None:
    first, second = visitor(link, keys, "site-a"), visitor(link, keys, "site-a")
    first.enter()
    with pytest.raises(JoinRefused, match="still waits for an earlier start of this site"):
        second.enter()
    first.leave()
    second.enter()
    assert second.node.node_id == first.node.node_id
    assert link.name_of(second.node.node_id) == "site-a"


def test_a_coordinator_with_another_key_than_the_policy_names_hears_nothing(link: Link, keys: Path) -> None:
    """The authority has signed it all the same: whoever has the authority's key could sign another."""
    kept = ServerFiles(keys).fingerprint()
    address, files = f"localhost:{link.server.config.port}", SiteFiles(keys / "site-a")
    for named, found in ((kept, kept), (None, kept)):
        visit = Visit(address, files, 300, named)
        visit.enter()
        assert visit.tls is not None
        assert visit.tls.found == found
        visit.leave()
    other = Visit(address, files, 300, "sha256:" + "0" * 64)
    for _ in range(2):
        with pytest.raises(UsageError, match=f"has the key {kept}, and the policy names sha256:0000.*nothing was sent"):
            other.enter()
    assert link.name_of(other.node.node_id) is None


def test_a_renewed_certificate_has_the_same_fingerprint(tmp_path: Path) -> None:
    make_certificates(tmp_path, ("localhost",), ("a",), b"a passphrase")
    before, certificate = ServerFiles(tmp_path).fingerprint(), (tmp_path / "server.crt").read_bytes()
    making.renew_server(tmp_path, b"a passphrase")
    assert (tmp_path / "server.crt").read_bytes() != certificate
    assert ServerFiles(tmp_path).fingerprint() == before


def test_nobody_answers_in_the_name_of_another(link: Link, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, rogue = visitor(link, keys, "site-a"), visitor(link, keys, "site-b")
    honest.enter()
    rogue.enter()
    questions: list[Message] = []

    def reply_of(site: Any, message: Message) -> Message:
        questions.append(message)
        forged = Message(to_records({"from": "rogue"}, {"reply.weights": torch.zeros(1)}, {}), reply_to=message)
        with pytest.raises(
            JoinRefused, match="403"
        ):  # it knows the question and both node ids, and signs with its own key
            rogue.push(forged, message.metadata.run_id, 0.0)
        return Message(to_records({"from": "honest"}, {}, {}), reply_to=message)

    monkeypatch.setattr(flower_visit, "reply_of", reply_of)
    letter = Letter(0, honest.node.node_id, to_records({"kind": "ask"}, {}, {}))
    replies = exchange(link.grid, [letter], 60.0)
    pulled = link.grid.pull_messages

    def pull(names: list[str]) -> Any:
        while not questions:
            honest.one(None)  # type: ignore[arg-type]
        return pulled(names)

    monkeypatch.setattr(link.grid, "pull_messages", pull)
    ((_, content),) = replies
    facts, _ = from_records(content)  # type: ignore[arg-type]
    assert facts == {"from": "honest"}


def test_nobody_pulls_the_questions_of_another(link: Link, keys: Path) -> None:
    rogue = visitor(link, keys, "site-b")
    rogue.enter()
    (other,) = [node for node, name in link.names.items() if name == "site-a"]
    with pytest.raises(JoinRefused, match="401"):
        rogue.call("PullMessages", fleet.PullMessagesRequest(node=Node(node_id=other)))


def test_a_certificate_that_has_expired_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "DAYS_OF_SERVER", 0)  # it began an hour ago and ends now
    make_certificates(tmp_path, ("localhost",), ("a",))
    link = Link("127.0.0.1", free_port(), ServerFiles(tmp_path), 60.0, lambda text: None)
    try:
        with pytest.raises(UsageError, match=r"has expired .*Look at the clock of this machine") as refusal:
            visitor(link, tmp_path, "a").enter()
        assert "not signed" not in str(refusal.value)
    finally:
        link.close()


def test_every_reason_to_distrust_a_certificate_has_its_own_words() -> None:
    assert "is not valid yet" in certificate_problem("x:1", "certificate verify failed: certificate is not yet valid")
    assert "is not signed" in certificate_problem("x:1", "certificate verify failed: self-signed certificate in chain")
    assert "not for this name" in certificate_problem("x:1", "Hostname mismatch, certificate is not valid for 'x'")


@pytest.mark.parametrize("end", ["heard", "away"])
def test_a_site_that_refuses_stays_until_it_was_heard(tmp_path: Path, end: str) -> None:
    """Flower throws the reply of a node away that has left before the coordinator took it."""
    data = load("digits:train=60")
    stage = real_stage(Experiment(method="fedgr", rounds=1), task_data(data), {"site-a": 60})
    site = Site("site-a", OwnData(data, "cpu"), tmp_path, lambda text: None)
    script: list[Any] = [hello_of(stage, simulated=False), None, None, {"kind": "refused", "reason": "as it says"}]
    looks: list[str] = []

    class Slow:
        """A coordinator that takes its time."""

        def one(self, site: Site) -> bool:
            message = script.pop(0)
            looks.append("message" if message else "nothing")
            if message and message["kind"] == "refused" and end == "away":
                raise Unreachable("gone")
            if message:
                site.answer(message, {})
            return message is not None

        def beat(self, stop: Any) -> None:
            stop.wait()

        def leave(self) -> None:
            looks.append("left")

    with pytest.raises(Declined, match="sample_loss"):
        answer_messages(Slow(), site)  # type: ignore[arg-type]
    assert looks == ["message", "nothing", "nothing", "message", "left"]
