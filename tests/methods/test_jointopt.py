"""jointopt: its loss and its labels by hand, and the shared tester."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch

from by_hand import conversation, identity, one_client, one_server
from fedwinnow.methods.jointopt import JointOpt
from fedwinnow.steps.site_labels import History
from fedwinnow.testing import MethodTester


class TestJointopt(MethodTester):
    method: ClassVar[str] = "jointopt"


class TestJointoptCode(MethodTester):
    method: ClassVar[str] = "jointopt:preset=code,labels=hard,prior=local,retrain=0.5,warm_up=1"


ROWS, LABELS = [[math.log(3.0), 0.0], [0.0, 0.0]], [0, 1]  # predictions 3/4, 1/4 and 1/2, 1/2
SAID = torch.tensor([[0.75, 0.25], [0.5, 0.5]])


def site(**training):
    return one_client(ROWS, LABELS, **training)


def test_the_loss_is_l_c_plus_alpha_l_p_plus_beta_l_e():
    client, uniform = site(), torch.tensor([0.5, 0.5])
    logits, labels = torch.tensor(ROWS), torch.tensor([[1.0, 0.0], [0.2, 0.8]])
    l_c = (-math.log(0.75) - math.log(0.5)) / 2
    l_p = 0.5 * math.log(0.5 / 0.625) + 0.5 * math.log(0.5 / 0.375)
    l_e = (-0.75 * math.log(0.75) - 0.25 * math.log(0.25) + math.log(2)) / 2
    found = JointOpt(alpha=1.2, beta=0.8).joint_loss(client, logits, labels, uniform)
    assert float(found) == pytest.approx(l_c + 1.2 * l_p + 0.8 * l_e, rel=1e-6)
    assert float(JointOpt(alpha=0, beta=0).joint_loss(client, logits, labels, uniform)) == pytest.approx(l_c)


def test_labels_become_the_mean_of_the_last_predictions():
    client = site(lr=1e-12, epochs=2)
    JointOpt(history=10).train(client, identity())
    assert torch.allclose(client.state["labels"], SAID)
    assert client.notes["pseudo_labels"].tolist() == [0, 0]
    assert client.state["predictions.seen"].tolist() == [2, 2]
    assert (client.forward_samples, client.backward_samples) == (4, 4)  # E F + E B


def test_the_second_epoch_learns_the_labels_that_the_first_one_left():
    seen = []

    class Watching(JointOpt):
        def joint_loss(self, client, logits, labels, prior):
            seen.append(labels.clone())
            return super().joint_loss(client, logits, labels, prior)

    Watching().train(site(lr=1e-12, epochs=2), identity())
    assert seen[0].sort(0).values.tolist() == [[0, 0], [1, 1]]  # as given, in any order
    assert torch.allclose(seen[1].sort(0).values, SAID.sort(0).values)


def test_the_warm_up_leaves_labels_alone_but_remembers():
    client = site()
    JointOpt().train_plainly(client, identity())
    assert "labels" not in client.state
    assert torch.allclose(client.state["predictions"][:, 0], SAID)


def test_missing_predictions_are_not_counted_in_the_paper_and_are_zeros_in_the_code():
    client = site()
    history = History(client, "predictions", 4, 2)
    history.add(torch.tensor([0]), SAID[:1])
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    JointOpt().correct(history, labels)
    assert labels.tolist() == [[0.75, 0.25], [0.0, 1.0]]  # never seen: as it was
    JointOpt(preset="code").correct(history, labels)
    assert labels.tolist() == [[0.1875, 0.0625], [0.0, 1.0]]
    JointOpt(labels="hard").correct(history, labels)
    assert labels.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_the_second_step_starts_anew_and_learns_final_labels(tmp_path):
    method = JointOpt(retrain=0.5, warm_up=1)
    server = one_server(tmp_path, rounds=4)
    method.start(server)
    stages, sent = [], []

    def answer(ask, client, payload):
        stages.append(server.notes["stage"])
        sent.append(payload["weights"].clone())
        return {"weights": payload["weights"] + 1, "samples": torch.tensor(1)}

    for server.round in (1, 2, 3, 4):
        conversation(method, server, answer)
    assert stages[::2] == ["warm_up", "correct", "retrain", "retrain"]
    first = identity()["weights"]
    assert [float((weights - first).mean()) for weights in sent[::2]] == [0, 1, 0, 1]
    assert not server.state


def test_final_labels_are_learned_without_penalties():
    client = site()
    client.state["labels"] = SAID.clone()
    reply = JointOpt().train_on_final_labels(client, identity())
    assert torch.allclose(reply["weights"], identity()["weights"], atol=1e-6)  # it says just that already


def test_the_verdict_is_what_the_labels_leave():
    client = site()
    assert JointOpt().verdict(client, identity()).p_wrong.tolist() == pytest.approx([0, 1], abs=0.5)
    client.state["labels"] = torch.tensor([[0.2, 0.3], [0.0, 0.0]])  # not whole, as in the code
    verdict = JointOpt().verdict(client, identity())
    assert verdict.p_wrong.tolist() == pytest.approx([0.6, 1.0])
    assert verdict.suggested.tolist() == [1, 0]
    client.trained = torch.tensor([False, True])  # the first sample is judged only
    client.state["labels"] = torch.tensor([[0.3, 0.7]])
    assert JointOpt().verdict(client, identity()).p_wrong.tolist()[1] == pytest.approx(0.3)


@pytest.mark.parametrize(("rows", "labels"), [([[1.0, 0.0]], [0]), ([[1.0, 0.0]] * 3, [1] * 3)])
def test_one_sample_and_one_class(rows, labels):
    for prior in ("uniform", "local"):
        reply = JointOpt(prior=prior).train(one_client(rows, labels), identity())
        assert bool(torch.isfinite(reply["weights"]).all())
