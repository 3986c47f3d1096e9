"""rofl: its losses and centroids by hand, its edge cases, its cost, and the shared tester."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch

from by_hand import identity, one_client, one_server
from fedwinnow.api import run
from fedwinnow.federation.client import Client
from fedwinnow.methods.rofl import CentroidGuide, RobustFl, class_means, likeness, nearest
from fedwinnow.steps.site_labels import NOTHING
from fedwinnow.testing import MethodTester, toy_data


class TestRofl(MethodTester):
    method: ClassVar[str] = "rofl"


class TestRoflCode(MethodTester):
    method: ClassVar[str] = "rofl:preset=code,forget=0.4"


# --- the server -----------------------------------------------------------------------------------------------------


def averaged(folder, method, before, *local):
    server = one_server(folder, round=1)
    method.start(server)
    if before is not None:
        server.state["centroids"] = torch.tensor(before)
    return method.averaged(server, torch.tensor(local))


def test_centroids_are_averaged_by_their_likeness(tmp_path):
    # cosines with (1, 0): 1, 0.6, 0 and -1, which counts as 0
    found = averaged(tmp_path, RobustFl(), [[1.0, 0.0]], [[2.0, 0.0]], [[3.0, 4.0]], [[0.0, 9.0]], [[-5.0, 0.0]])
    assert found[0].tolist() == pytest.approx([(2 + 0.6 * 3) / 1.6, 0.6 * 4 / 1.6])


def test_first_centroids_are_the_mean_of_those_who_hold_the_class(tmp_path):
    local = [[[1.0, 0.0], [0.0, 0.0]], [[3.0, 2.0], [0.0, 5.0]]]
    assert averaged(tmp_path, RobustFl(), None, *local).tolist() == [[2, 1], [0, 5]]


def test_first_centroids_of_the_code_are_weighted_by_likeness_to_random_vectors(tmp_path):
    local = [[[1.0, 0.0], [0.0, 0.0]], [[3.0, 2.0], [0.0, 5.0]]]
    found = averaged(tmp_path, RobustFl(preset="code"), None, *local)
    luck = torch.randn(2, 2, generator=one_server(tmp_path, round=1).generator("centroids"))
    shares = [max(0.0, float(torch.cosine_similarity(luck[0], torch.tensor(one[0]), dim=0))) for one in local]
    expected = (
        luck[0] if sum(shares) == 0 else sum(s * torch.tensor(one[0]) for s, one in zip(shares, local, strict=True))
    )
    assert found[0].tolist() == pytest.approx((expected / (sum(shares) or 1)).tolist(), rel=1e-5)


def test_a_class_that_nobody_is_like_stays(tmp_path):
    assert averaged(tmp_path, RobustFl(), [[1.0, 0.0]], [[0.0, 0.0]], [[0.0, 3.0]]).tolist() == [[1, 0]]


@pytest.mark.parametrize(("preset", "expected"), [("paper", 3.0), ("code", 2.0)])
def test_models_are_averaged_by_samples_or_equally(tmp_path, preset, expected):
    server = one_server(tmp_path, round=1)
    method = RobustFl(preset=preset)
    method.start(server)
    sent = [(0.0, 10), (4.0, 30)]
    replies = [
        (n, {"weights": torch.full((6,), w), "samples": torch.tensor(s), "centroids": torch.ones(2, 2)})
        for n, (w, s) in enumerate(sent)
    ]
    method.merge(server, iter(replies))
    assert server.weights["weights"].tolist() == [expected] * 6
    assert server.weights.keys() == {"weights"}


# --- the client -----------------------------------------------------------------------------------------------------

# Features are the rows themselves. The fourth label is wrong, and so is the last one, which has the largest loss.
ROWS = [[2.0, 0.0], [0.0, 2.0], [1.5, 0.0], [0.0, 1.0], [3.0, 0.0]]
LABELS = [0, 1, 0, 0, 1]
CENTROIDS = {"centroids": torch.tensor([[1.0, 0.0], [0.0, 1.0]])}


def loss_in_round(number, method, centroids=CENTROIDS):
    client = one_client(ROWS, LABELS)
    client.round = number
    client.model.load(identity())
    guide = method.guide(client, centroids)
    loss = method.loss_of(client, guide, torch.arange(5), torch.tensor(ROWS), torch.tensor(LABELS))
    return loss.item(), guide


def cross_entropy(margin):
    return math.log1p(math.exp(-margin))


def entropy(margin):
    p = 1 / (1 + math.exp(-margin))
    return -p * math.log(p) - (1 - p) * math.log(1 - p)


def test_the_loss_by_hand():
    # Of five samples one is left out; the nearest centroid denies the fourth label, so it gets the model's guess: 1.
    loss, guide = loss_in_round(6, RobustFl())
    of_labels = (2 * cross_entropy(2) + cross_entropy(1.5) + cross_entropy(1)) / 4
    of_centroids = (1 + 1 + 0.25 + 0) / 4 / 2  # over samples and features
    of_entropy = (2 * entropy(2) + entropy(1.5) + entropy(1)) / 4
    assert loss == pytest.approx(of_labels + 1.0 * of_centroids + 0.8 * of_entropy, rel=1e-5)
    assert guide.kept.tolist() == [True, True, True, False, False]
    assert guide.replaced.tolist() == [NOTHING, NOTHING, NOTHING, 1, NOTHING]
    without, _ = loss_in_round(6, RobustFl(lambda_cen=0.5, lambda_e=0.0, centroid_loss="sum"))
    assert without == pytest.approx(of_labels + 0.5 * 2.25, rel=1e-5)
    distance, _ = loss_in_round(6, RobustFl(lambda_e=0.0, centroid_loss="distance"))
    assert distance == pytest.approx(of_labels + 2.25 / 4, rel=1e-5)
    code, _ = loss_in_round(6, RobustFl(preset="code"))
    assert code == pytest.approx(of_labels + 0.8 * of_entropy, rel=1e-5)


def test_the_first_round_leaves_nothing_out_and_trusts_every_label():
    loss, guide = loss_in_round(1, RobustFl(given_rounds=4, lambda_e=0.0))
    of_labels = (2 * cross_entropy(2) + cross_entropy(1.5) + cross_entropy(-1) + cross_entropy(-3)) / 5
    assert loss == pytest.approx(of_labels + 1 / 4 * 2.25 / 10, rel=1e-5)  # lambda_cen has a quarter of its weight
    assert guide.kept.tolist() == [True, True, True, False, False]


def test_the_share_that_is_left_out_grows():
    client = one_client(ROWS, LABELS)
    client.rounds = 1000
    shares = []
    for client.round in (1, 4, 10, 11, 900):
        shares.append(RobustFl(forget=0.9).forgotten(client))
    assert shares == pytest.approx([0, 0.3, 0.9, 0.9, 0.9])
    client.rounds, client.round = 20, 4  # a fifth of all
    assert RobustFl(forget=0.9).forgotten(client) == pytest.approx(0.9)
    assert RobustFl(forget=0.9, forget_rounds=7).forgotten(client) == pytest.approx(0.45)


def test_a_share_of_everything_leaves_one_sample():
    _, guide = loss_in_round(9, RobustFl(forget=1.0))
    assert int(guide.kept.sum()) == 1


def test_centroids_follow_a_batch():
    guide = CentroidGuide(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), *[torch.zeros(0)] * 3)
    guide.follow(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))  # cosine sqrt(1/2), and a class that is not in the batch
    assert guide.centroids.flatten().tolist() == pytest.approx([1, 0.5, 0, 2])


def test_before_there_are_centroids_the_own_class_means_are_taken():
    client = one_client(ROWS, LABELS)
    client.model.load(identity())
    own = RobustFl().guide(client, {"centroids": torch.zeros(2, 0)}).centroids
    assert own.flatten().tolist() == pytest.approx([3.5 / 3, 1 / 3, 1.5, 1.0])
    shared = {"centroids": torch.tensor([[0.0, 0.0], [7.0, 7.0]])}  # nobody has sent the first class yet
    assert RobustFl().guide(client, shared).centroids.flatten().tolist() == pytest.approx([3.5 / 3, 1 / 3, 7, 7])


def test_the_gradient_of_the_centroid_term_reaches_the_features():
    weights = {}
    for kind in ("mean", "constant"):
        client = one_client(ROWS, LABELS, model="mlp", classes=2)
        sent = client.model.payload() | {"centroids": torch.zeros(2, 0)}
        weights[kind] = RobustFl(centroid_loss=kind).train(client, sent)["weights"]
    assert not torch.equal(weights["mean"], weights["constant"])


def test_a_label_that_its_centroid_denies_is_judged_wrong():
    client = one_client(ROWS, LABELS)
    verdict = RobustFl().verdict(client, identity() | CENTROIDS)
    assert (verdict.p_wrong >= 0.5).tolist() == [False, False, False, True, True]
    assert verdict.suggested.tolist() == [0, 1, 0, 1, 0]


def test_what_is_counted(tmp_path):
    # (E + 1)F + EB; the centroids (3 classes, 2 features) travel with the model, down from the second round on
    settings = {"data": toy_data(120), "model": "linear", "clients": 4, "rounds": 2, "epochs": 3, "participation": 1.0}
    first, second = run(out=tmp_path, method="rofl", **settings).rounds
    model, count, centroids = 36, 8, 24
    for row in (first, second):
        assert (row["forward_samples"], row["backward_samples"]) == (4 * 120, 3 * 120)
        assert row["bytes_up"] == 4 * (model + count + centroids)
    assert (first["bytes_down"], second["bytes_down"]) == (4 * model, 4 * (model + centroids))
    assert {"label_precision", "pseudo_labels"} <= second.keys()


def test_labels_can_be_judged_before_anybody_has_sent_centroids():
    client = one_client([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    verdict = RobustFl().verdict(client, identity() | {"centroids": torch.zeros(2, 0)})
    assert verdict.suggested.tolist() == [0, 1]


def test_centroids_follow_features_of_half_precision(monkeypatch):
    monkeypatch.setattr(Client, "half_precision", True)  # also without a GPU
    client = one_client([[1.0, 0.0], [0.0, 1.0]], [0, 1], model="mlp")
    reply = RobustFl().train(client, client.model.payload() | {"centroids": torch.zeros(2, 0)})
    assert reply["centroids"].dtype == torch.float32


# --- centroids --------------------------------------------------------------------------------------------------------


def test_means_per_class_and_zeros_for_a_class_that_is_absent():
    features = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    assert class_means(features, torch.tensor([0, 0, 2]), 3).tolist() == [[2, 0], [0, 0], [0, 2]]


def test_the_nearest_is_that_of_the_largest_cosine_and_never_an_unseen_class():
    centroids = torch.tensor([[0.0, 0.0], [10.0, 0.0], [1.0, 1.0]])
    features = torch.tensor([[3.0, 1.0], [3.0, 2.0], [-1.0, -1.0]])
    # cosines with the second and third: .949 and .894; .832 and .981; -.707 and -1
    assert nearest(centroids, features).tolist() == [1, 2, 1]


def test_likeness_is_a_cosine_and_a_new_class_is_welcome():
    before = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    now = torch.tensor([[2.0, 2.0], [0.0, 0.0], [3.0, 4.0], [0.0, 0.0]])
    assert likeness(before, now).tolist() == pytest.approx([0.5**0.5, 0, 1, 0])
