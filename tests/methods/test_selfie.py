"""selfie: who is clean, who is refurbished, by hand, and the shared tester."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch.nn.functional import cross_entropy

from by_hand import conversation, identity, one_client, one_server
from fedwinnow.methods.selfie import Selfie
from fedwinnow.steps.site_labels import NOTHING
from fedwinnow.testing import MethodTester


class TestSelfie(MethodTester):
    method: ClassVar[str] = "selfie:history=2,warm_up=1"


class TestSelfieCode(MethodTester):
    method: ClassVar[str] = "selfie:preset=code,rate_from=estimated"


# Logits are the rows: the losses of label 0 grow from row to row.
ROWS = [[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 2.0]]
LABELS = [0, 0, 0, 0]


def client_after(histories: list[list[int]], length: int):
    """A client whose samples have been predicted like this, and the method that remembers so many."""
    client, method = one_client(ROWS, LABELS), Selfie(history=length, forget_rate=0.5)
    history = method.predictions(client)
    for sample, said in enumerate(histories):
        for label in said:
            history.add(torch.tensor([sample]), torch.tensor([label]))
    return client, method


def stepped(rows: list[int], labels: list[int], lr: float = 0.1) -> torch.Tensor:
    """The identity after one step on these rows with these labels."""
    weights = identity()["weights"].requires_grad_()
    logits = torch.tensor(ROWS)[rows] @ weights[:4].view(2, 2).T + weights[4:]
    cross_entropy(logits, torch.tensor(labels)).backward()
    return (weights - lr * weights.grad).detach()


def test_clean_and_refurbished_samples_are_learned_and_the_rest_is_left_out():
    # half of four are clean: rows 0 and 1; row 3 was always called 1; row 2 is undecided
    client, method = client_after([[0, 1], [1, 0], [0, 1], [1, 1]], length=2)
    reply = method.train(client, identity())
    assert torch.allclose(reply["weights"], stepped([0, 1, 3], [0, 0, 1]), atol=1e-6)
    assert client.notes["selected"].tolist() == [True, True, False, False]
    assert client.notes["pseudo_labels"].tolist() == [NOTHING, NOTHING, NOTHING, 1]
    assert (client.forward_samples, client.backward_samples) == (4, 4)  # E F + E B


def test_a_clean_sample_that_the_model_always_called_otherwise_gets_that_label():
    client, method = client_after([[1, 1], [1, 0], [0, 1], [0, 1]], length=2)
    reply = method.train(client, identity())
    assert torch.allclose(reply["weights"], stepped([0, 1], [1, 0]), atol=1e-6)


def test_the_rounding_of_the_clean_share_is_upwards():
    client, _ = client_after([[0, 1]] * 4, length=2)
    Selfie(history=2, forget_rate=0.6).train(client, identity())  # 1.6 of 4
    assert client.notes["selected"].tolist() == [True, True, False, False]
    client, _ = client_after([[0, 1]] * 4, length=2)
    Selfie(history=2, forget_rate=1.0).train(client, identity())
    assert client.notes["selected"].tolist() == [True, False, False, False]


def test_a_history_that_is_not_full_waits_in_the_paper_and_is_full_of_class_0_in_the_code():
    client, method = client_after([[1], [0], [], [1]], length=2)
    rows = torch.arange(4)
    new = method.refurbished(client)
    method.refurbish(client, method.predictions(client), new, rows)
    assert new.tolist() == [NOTHING] * 4
    code = Selfie(preset="code", history=2)
    code.refurbish(client, code.predictions(client), new, rows)
    assert new.tolist() == [NOTHING, 0, 0, NOTHING]


def test_the_threshold_is_a_normalised_entropy():
    # 7 of 8 the same: entropy 0.377 of ln 2 = 0.5436
    client, _ = client_after([[1] * 7 + [0]] * 4, length=8)
    new = torch.full((4,), NOTHING)
    for limit, expected in ((0.54, NOTHING), (0.55, 1)):
        method = Selfie(history=8, uncertainty=limit)
        method.refurbish(client, method.predictions(client), new, torch.arange(4))
        assert new.tolist() == [expected] * 4


def test_a_label_once_refurbished_goes_again_in_the_paper_and_stays_in_the_code():
    for preset, expected in (("paper", NOTHING), ("code", 1)):
        client, _ = client_after([[1, 1]] * 4, length=2)
        method = Selfie(preset=preset, history=2)
        history, new = method.predictions(client), method.refurbished(client)
        method.refurbish(client, history, new, torch.arange(4))
        assert new.tolist() == [1] * 4
        history.add(torch.arange(4), torch.zeros(4))
        method.refurbish(client, history, new, torch.arange(4))
        assert new.tolist() == [expected] * 4


def test_the_code_passes_what_is_kept_twice():
    client, _ = client_after([[0, 1]] * 4, length=2)
    method = Selfie(preset="code", history=2, forget_rate=0.5)
    reply = method.train(client, identity())
    assert torch.allclose(reply["weights"], stepped([0, 1], [0, 0]), atol=1e-6)
    assert (client.forward_samples, client.backward_samples) == (4 + 2, 4)


def test_the_warm_up_trains_on_all_and_writes_down(tmp_path):
    client, method = client_after([[], [], [], []], length=2)
    reply = method.train_plainly(client, identity())
    assert torch.allclose(reply["weights"], stepped([0, 1, 2, 3], LABELS), atol=1e-6)
    assert client.state["predictions"][:, 0].tolist() == [0, 0, 1, 1]
    server = one_server(tmp_path, rounds=10)
    asked = []
    for server.round in (1, 2, 3):
        asked += conversation(method, server, lambda *_: identity() | {"samples": torch.tensor(1)})
        assert server.notes["stage"] == ("refurbish" if server.round == 3 else "warm_up")
    assert [ask for ask, _ in asked] == ["train_plainly", "train_plainly", "train"]


def test_the_verdict_believes_refurbished_labels():
    client, method = client_after([[]] * 4, length=2)
    client.state["labels"] = torch.tensor([0, 1, NOTHING, 1])
    verdict = method.verdict(client, identity())
    assert verdict.p_wrong[0] <= 0.5 <= verdict.p_wrong[1]
    assert verdict.suggested.tolist() == [0, 1, 1, 1]
    del client.state["labels"]
    assert method.verdict(client, identity()).p_wrong[2] == pytest.approx(float(verdict.p_wrong[2]))
