"""A real site in secure sums: it answers nothing alone, trusts no key of the coordinator, opens no sum twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives.asymmetric import ec

from fedwinnow.data.load import load
from fedwinnow.deployment.agreement import describe_run, hello_of, identity
from fedwinnow.deployment.real_sites import real_stage, task_data
from fedwinnow.deployment.site import Site
from fedwinnow.deployment.site_data import OwnData
from fedwinnow.deployment.site_sums import GOT
from fedwinnow.deployment.sum_identity import OwnIdentity
from fedwinnow.experiment.prepare import setup_of
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import Host
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.summing.secure_sums import Session
from fedwinnow.federation.summing.sum_messages import SumFailed, hash_of
from fedwinnow.federation.summing.sum_server import SecureSum
from fedwinnow.federation.summing.summed_form import from_sum

NAMES = ("a", "b", "c", "d")


class Hospitals:
    """Four real sites in this process, and what a coordinator needs to ask them."""

    def __init__(self, folder: Path, limited: bool = False, **settings: Any) -> None:
        self.data = load("digits:train=60")
        self.round = 1
        self.settings = {"rounds": 4, "epochs": 1, "secure_sums": True, **settings}
        self.stage = real_stage(Experiment(**self.settings), task_data(self.data), dict.fromkeys(NAMES, 60))
        self.run = describe_run(self.stage, simulated=False)
        self.said: dict[str, list[str]] = {name: [] for name in NAMES}
        keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in NAMES}
        self.public = {name: key.public_key() for name, key in keys.items()}
        allowed = "masked" if self.settings["secure_sums"] or limited else "client"
        self.sites = {
            number: Site(
                name,
                OwnData(self.data, "cpu"),
                folder / name,
                self.said[name].append,
                allowed,
                identities=OwnIdentity(name, keys[name], dict(self.public)),
            )
            for number, name in enumerate(NAMES)
        }
        parts = (self.stage.sites, self.stage.sites, self.stage.parts, self.stage.method)
        self.model = Host(*parts, setup_of(self.stage.experiment, "cpu"), Memory(folder)).model.payload()
        self.lost: set[tuple[str, int]] = set()
        self.models: dict[int, Any] = {}  # what a site is sent, if not the model of all

    def facts(self, **more: Any) -> dict[str, Any]:
        about = {"run": self.run, "ask": "train", "round": self.round, "exchange": 0, "memory": None, "kind": "sum"}
        return about | more

    def ask(self, phase: Any, letters: Any, exchange: int = 0) -> Iterator[tuple[int, Any]]:
        for number, letter in letters.items():
            model = self.models.get(number, self.model)
            more = {GOT + key: value for key, value in model.items()} if phase == "masked" else {}
            facts = self.facts(phase=phase, client=number, number=number, exchange=exchange)
            if (phase, number) in self.lost:
                yield number, "lost"
                continue
            said, sent = self.sites[number].answer(facts, letter | more)
            reply = {key.removeprefix("reply."): value for key, value in sent.items()}
            yield number, said.get("error", reply)

    def sum(self, *numbers: int, exchange: int = 0) -> SecureSum:
        session = Session(identity(self.run), "train", self.round, exchange, self.stage.experiment.secure_threshold)
        names = {number: NAMES[number] for number in numbers}
        ask = lambda phase, letters: self.ask(phase, letters, exchange)  # noqa: E731
        found = SecureSum(names, self.public.get, session.name, session.share, ask)
        found.question = hash_of(self.model)
        return found


@pytest.fixture
def hospitals(tmp_path: Path) -> Hospitals:
    return Hospitals(tmp_path)


def test_the_mean_of_real_sites(hospitals: Hospitals, tmp_path: Path) -> None:
    plain = Hospitals(tmp_path / "plain", secure_sums=False)
    models = []
    for number, site in plain.sites.items():
        _, sent = site.answer(plain.facts(kind="ask", client=number, number=number), plain.model)
        models.append(sent["reply.weights"])
    total = hospitals.sum(0, 1, 2, 3).result()
    reply, clipped = from_sum(total.form, total.ring, hospitals.stage.method.summed())
    assert (int(reply["samples"]), clipped) == (240, 0)
    assert torch.allclose(reply["weights"], torch.stack(models).mean(0), atol=1e-6)
    lines = [json.loads(line) for line in (tmp_path / "a" / "ledger.jsonl").read_text().splitlines()]
    assert [line["phase"] for line in lines] == ["keys", "shares", "masked", "agree", "unmask"]
    assert {one["exposes"] for line in lines for one in line["sent"].values()} == {"masked"}
    assert not {"forward_samples", "backward_samples"} & lines[2]["said"].keys()  # they say what a site trained on


def test_a_single_reply_is_refused(hospitals: Hospitals) -> None:
    said, sent = hospitals.sites[1].answer(hospitals.facts(kind="ask", client=1, number=1), hospitals.model)
    assert (said["error"], sent) == ("question", {})
    assert "asked for a single reply" in hospitals.said["b"][-1]


def test_asked_again_with_one_site_less(hospitals: Hospitals) -> None:
    """A coordinator asks a round again without site 3, also as another exchange: the difference would be site 3's."""
    assert hospitals.sum(0, 1, 2, 3).result().members == (0, 1, 2, 3)
    for exchange in (0, 1):
        again = hospitals.sum(0, 1, 2, exchange=exchange)
        with pytest.raises(Exception, match="only 0 of 3 sites are left of a secure sum after 'masked'"):
            again.result()
        assert set(again.dropped.values()) == {"departed"}  # the agreement is one model in a round
    for site in hospitals.sites.values():
        site.held = None
        site.secure.memories.clear()  # started again: what a site has opened is in its folder
    again = hospitals.sum(0, 1, 2)
    with pytest.raises(Exception, match="only 0 of 3 sites are left of a secure sum after 'agree'"):
        again.result()
    assert set(again.dropped.values()) == {"sum"}
    assert "was answered before in a sum over other sites (then a, b, c, d; now a, b, c)" in hospitals.said["a"][-1]
    for site in hospitals.sites.values():
        site.held = None
    assert hospitals.sum(0, 1, 2, 3).result().members == (0, 1, 2, 3)  # the same sum again, after a resume


def test_a_coordinator_that_sends_one_site_another_model_gets_noise(hospitals: Hospitals) -> None:
    """In a later round, because the first model follows from the seed and sites know it."""
    crafted = {key: value.clone() for key, value in hospitals.model.items()}
    crafted["weights"][0] += 2.0**-20  # the least change will do
    hospitals.round = 2
    assert hospitals.sum(0, 1, 2, 3).result().members == (0, 1, 2, 3)
    hospitals.round, hospitals.models = 3, {2: crafted}
    total = hospitals.sum(0, 1, 2, 3).result()
    with pytest.raises(SumFailed, match="outside what sites can send"):
        from_sum(total.form, total.ring, hospitals.stage.method.summed())
    hospitals.round, hospitals.models = 4, {2: crafted, 3: crafted}
    with pytest.raises(SumFailed, match="after 'agree'; 3 must stay"):
        hospitals.sum(0, 1, 2, 3).result()


def test_a_site_leaves_after_its_answer(hospitals: Hospitals) -> None:
    hospitals.lost = {("agree", 2)}
    total = hospitals.sum(0, 1, 2, 3).result()
    assert total.members == (0, 1, 2, 3)
    hospitals.lost = {("masked", 2)}
    assert Hospitals.sum(hospitals, 0, 1, 3).names == {0: "a", 1: "b", 3: "d"}


def test_masks_from_the_seed_are_declined(hospitals: Hospitals) -> None:
    hello = hello_of(hospitals.stage, simulated=False)
    said, _ = hospitals.sites[0].answer(hello, {})
    assert "error" not in said
    said, _ = hospitals.sites[0].answer(hello | {"masks_from": "the seed"}, {})
    assert said["error"] == "refused"
    assert "Only a simulation" in str(hospitals.sites[0].failure)


def test_without_the_keys_of_the_others_a_site_declines(hospitals: Hospitals) -> None:
    site = hospitals.sites[0]
    own = site.secure.identities
    assert isinstance(own, OwnIdentity)
    for identities in (None, OwnIdentity("a", own.key, {})):
        site.secure.identities = identities
        said, _ = site.answer(hello_of(hospitals.stage, simulated=False), {})
        assert said["error"] == "refused"
    assert "does not know the public keys of the other sites" in str(site.failure)


def test_a_site_that_joined_for_sums_only_declines_a_plain_run(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path, limited=True, secure_sums=False)
    said, _ = hospitals.sites[0].answer(hello_of(hospitals.stage, simulated=False), {})
    assert said["error"] == "refused"
    assert "lets others learn about sums over sites at most" in str(hospitals.sites[0].failure)


def test_an_invented_site_is_refused(hospitals: Hospitals) -> None:
    """The coordinator's own site, with a key that no site knows."""
    stranger = ec.generate_private_key(ec.SECP384R1())
    hospitals.sites[1].secure.identities = OwnIdentity("b", stranger, dict(hospitals.public))
    one = hospitals.sum(0, 1, 2, 3)
    one.peers = (hospitals.public | {"b": stranger.public_key()}).get
    with pytest.raises(Exception, match="only 0 of 4 sites are left of a secure sum after 'shares'"):
        one.result()
    assert "were not signed by b" in hospitals.said["a"][-1]


@pytest.mark.parametrize(
    "change", [{"phase": "open"}, {"phase": None}, {"client": "a"}, {"round": 1.5}, {"ask": 3}, {"exchange": None}]
)
def test_messages_that_are_none(hospitals: Hospitals, change: dict[str, Any]) -> None:
    facts = hospitals.facts(phase="keys", client=0, number=0) | change
    said, sent = hospitals.sites[0].answer(facts, {})
    assert said["error"] in ("message", "question")
    assert not sent


def test_phases_that_did_not_begin(hospitals: Hospitals) -> None:
    for phase in ("shares", "masked", "agree", "unmask"):
        said, sent = hospitals.sites[0].answer(hospitals.facts(phase=phase, client=0, number=0), hospitals.model)
        assert (said["error"], sent) == ("question", {})


def test_a_question_of_the_evaluation_is_not_summed(hospitals: Hospitals) -> None:
    said, _ = hospitals.sites[0].answer(hospitals.facts(phase="keys", client=0, number=0, ask="judge"), {})
    assert said["error"] == "question"
