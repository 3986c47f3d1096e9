"""fedsir: likeness, spectra, references, relabelling and the loss by hand; its cost, and the shared tester."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.by_hand import identity, one_client, one_server
from torch import nn

from fedwinnow.api import run
from fedwinnow.errors import UsageError
from fedwinnow.experiment.result import Result
from fedwinnow.methods.fedsir import (
    FedSir,
    agreeing,
    likeness_of_classes,
    noisy_by_likeness,
    relabelled,
    scores,
    spectrum_of,
)
from fedwinnow.steps.noisy_sites import CLEAN, NOISY
from fedwinnow.testing import MethodTester, toy_data


class TestFedsir(MethodTester):
    method: ClassVar[str] = "fedsir:first_refresh=0,refresh_every=1"


class TestFedsirLater(MethodTester):
    method: ClassVar[str] = "fedsir:steady=0.5"


# --- stage 1: identification ------------------------------------------------------------------------------------------


def test_how_much_classes_are_alike():
    held = [torch.tensor(rows) for rows in ([[2.0, 0, 0], [1, 0, 0]], [[0, 3.0, 0]], [[3.0, 4, 0]])]
    # v = e1, e2 and (0.6, 0.8, 0): |v·v'| = 0, 0.6, 0.8
    assert likeness_of_classes(held).tolist() == pytest.approx([1.4 / 3, (0.36 + 0.64) / 3])
    assert likeness_of_classes([-held[0], held[2]]).tolist() == pytest.approx([0.6, 0.36])  # signs are free


def test_identification_uses_large_classes_if_there_are_two():
    rows = [[2.0, 0], [1, 0], [0, 3.0], [0, 1.0], [3.0, 4.0]]
    for least, wanted in ((2, [0, 0]), (3, [1.4 / 3, 1 / 3])):  # no class has three samples, so all are used
        client = one_client(rows, [0, 0, 1, 1, 2], classes=3)
        got = {"weights": torch.zeros(9)}
        reply = FedSir(identify_epochs=0, min_class=least).identify(client, got)
        assert reply["likeness"].tolist() == pytest.approx(wanted, abs=1e-12)
    # With a least count of 2 the third class, one sample, must not be heard of.
    client = one_client(rows, [0, 0, 1, 1, 2], classes=3)
    client.least_count = 2
    reply = FedSir(identify_epochs=0, min_class=3).identify(client, got)
    assert reply["likeness"].tolist() == pytest.approx([0, 0], abs=1e-12)


def test_a_client_with_one_class_tells_no_likeness():
    reply = FedSir(identify_epochs=0).identify(one_client([[1.0, 0], [2.0, 1.0]], [1, 1]), identity())
    assert set(reply) == {"weights", "samples"}


def test_identification_is_plain_cross_entropy():
    client = one_client([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]], [0, 1, 1], lr=0.5)
    reply = FedSir(identify_epochs=1).identify(client, {"weights": torch.zeros(6)})
    # All logits are 0, p = 1/2: the slope of a row is (1/2 - e_y) / 3, without the log frequencies of classes.
    slope = (0.5 - np.eye(2)[[0, 1, 1]]) / 3
    weight = -0.5 * slope.T @ np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
    assert reply["weights"].tolist() == pytest.approx([*weight.flatten(), *(-0.5 * slope.sum(0))], abs=1e-6)


LIKENESS = torch.tensor([(0.20, 0.05), (0.22, 0.06), (0.80, 0.66), (0.82, 0.69), (0.78, 0.63)]).double()


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_clean_clients_are_those_whose_classes_are_less_alike(covariance):
    for seed in range(3):
        assert noisy_by_likeness(LIKENESS, seed, covariance).tolist() == [False, False, True, True, True]
    assert noisy_by_likeness(LIKENESS[:1], 0, covariance).tolist() == [False]
    assert noisy_by_likeness(LIKENESS[:1].repeat(4, 1), 0, covariance).tolist() == [False] * 4  # nothing to tell apart


def test_a_point_at_zero_would_take_the_clean_component_alone():
    points = [(0.55, 0.33), (0.57, 0.36), (0.66, 0.47), (0.67, 0.48), (0.68, 0.49), (0.69, 0.50), (0.0, 0.0)]
    noisy = noisy_by_likeness(torch.tensor(points).double(), 42, "full")
    assert noisy.tolist() == [True] * 6 + [False]  # which is why clients with one class are left out


@pytest.mark.parametrize("lone", ["noisy", "clean"])
def test_the_split_and_the_first_global_model(tmp_path, lone):
    method, server = FedSir(lone_client=lone), one_server(tmp_path, clients=6)
    method.start(server)
    replies = {
        client: {"weights": torch.full((6,), float(client)), "samples": torch.tensor(client + 1), "likeness": row}
        for client, row in enumerate(LIKENESS)
    }
    replies[5] = {"weights": torch.full((6,), 50.0), "samples": torch.tensor(1)}
    method.split_clients(server, replies)
    last = NOISY if lone == "noisy" else CLEAN
    assert server.state["role"].tolist() == [CLEAN, CLEAN, NOISY, NOISY, NOISY, last]
    wanted = (0 * 1 + 1 * 2) / 3 if lone == "noisy" else (0 * 1 + 1 * 2 + 50) / 4
    assert server.weights["weights"].tolist() == pytest.approx([wanted] * 6)
    assert server.state["clean.weights"].tolist() == server.weights["weights"].tolist()


# --- a refresh: spectra, references, new labels -----------------------------------------------------------------------


def with_values(*values: float) -> torch.Tensor:
    """Rows with these singular values; the right singular vectors are the axes."""
    return torch.diag(torch.tensor(values))


@pytest.mark.parametrize(
    ("values", "rank", "gap", "first"),
    [
        ((10, 2, 0.5, 0.3, 0.2), 2, 0.8, 10 / 13),  # 10/11 of 13 is 11.818: 10 + 2 reach it
        ((20, 0.5, 0.5, 0.5), 1, 19.5 / 20, 20 / 21.5),
        ((3, 1), 2, 2 / 3, 0.75),
        ((5,), 1, 1.0, 1.0),
    ],
)
def test_the_spectrum_of_a_class(values, rank, gap, first):
    direction, residuals, found_gap, found_first = spectrum_of(with_values(*map(float, values)), 10 / 11, "next")
    assert direction.abs().tolist() == pytest.approx([1.0] + [0.0] * (len(values) - 1), abs=1e-6)
    assert len(residuals) == len(values) - rank
    assert (found_gap, found_first) == pytest.approx((gap, first))


def test_which_residuals_are_sent():
    rows = with_values(100.0, *np.linspace(1, 0.1, 20).tolist())
    kept = {kind: spectrum_of(rows, 0.5, kind)[1].abs().argmax(1).tolist() for kind in ("next", "last", "all")}
    assert kept == {"next": list(range(1, 13)), "last": list(range(9, 21)), "all": list(range(1, 21))}
    nothing = spectrum_of(torch.zeros(0, 3), 0.5, "next")
    assert (nothing[0].tolist(), len(nothing[1]), nothing[2:]) == ([0, 0, 0], 0, (0.0, 0.0))


def said(n: float, gap: float, first: float, direction: Any, residuals: Any) -> dict[str, torch.Tensor]:
    return {
        "spectra": torch.tensor([n, gap, first]).double(),
        "directions": torch.tensor(direction).double(),
        "residuals": torch.tensor(residuals).double(),
    }


def test_the_reference_of_a_class():
    a = said(100, 0.5, 0.6, [1.0, 0, 0], [[0, 1.0, 0], [0, 0, 1.0]])
    b = said(200, 0.2, 0.5, [0.6, 0.8, 0], [[0, 0, 1.0], [0, 0, 0]])  # the last row is padding
    # w = 30, 20. M_r = [[0.744, 0.192], [0.192, 0.256]]: 0.810483 and 0.189517, the larger one's vector is
    values, vectors = np.linalg.eigh(np.array([[0.744, 0.192], [0.192, 0.256]]))
    assert values == pytest.approx([0.189517, 0.810483], abs=1e-6)
    direction, residuals = FedSir().reference([a, b])
    assert direction.abs().tolist() == pytest.approx([*np.abs(vectors[:, 1]), 0])
    assert direction.abs().tolist() == pytest.approx([0.944953, 0.327207, 0], abs=1e-6)
    # M_n = diag(0, 0.6, 1): e3 before e2, and no e1
    assert residuals.abs().numpy() == pytest.approx(np.array([[0, 0, 1], [0, 1, 0]]), abs=1e-9)
    by_size, _ = FedSir(reference_weight="n").reference([a, b])
    values, vectors = np.linalg.eigh((100 * np.outer([1, 0], [1, 0]) + 200 * np.outer([0.6, 0.8], [0.6, 0.8])) / 300)
    assert by_size.abs().tolist() == pytest.approx([*np.abs(vectors[:, 1]), 0])


def test_where_a_mean_says_nothing_the_largest_client_speaks():
    a = said(100, 0.5, 0.5, [1.0, 0], [[0, 1.0]])
    b = said(100, 0.5, 0.5, [0, 1.0], [[1.0, 0]])
    c = said(99, 0.9, 0.9, [0.6, 0.8], [[0.8, -0.6]])
    assert FedSir().reference([a, b, c])[0].tolist() == [1, 0]  # eigenvalues 1/2 and 1/2: strength 0
    assert FedSir().reference([c])[0].tolist() == pytest.approx([0.6, 0.8])  # nobody has 100 samples
    assert FedSir(merge_class=50).reference([c])[0].abs().tolist() == pytest.approx([0.6, 0.8])


V = torch.tensor([[1.0, 0, 0], [0, 1, 0]])
RESIDUALS = torch.tensor([[[0.0, 0, 1], [0, 0, 0]], [[1.0, 0, 0], [0, 0, 0]]])  # one vector each, and padding
Z = torch.tensor([[2, 1, 0.5], [-2, -1, -0.5], [0.6, 0.8, 0], [0, 3, 1], [0, 0, 0]])


def test_scores_and_labels():
    main, residual = scores(Z, V, RESIDUALS)
    rows = [[0.872872, 0.436436], [0.872872, 0.436436], [0.6, 0.8], [0, 0.948683], [0, 0]]
    assert main.numpy() == pytest.approx(np.array(rows), abs=1e-6)
    assert (-residual).numpy() == pytest.approx(np.array([[0.5, 2], [0.5, 2], [0, 0.6], [1, 0], [0, 0]]), abs=1e-6)
    assert agreeing(main, residual).tolist() == [True, True, False, True, False]  # no features: not agreeing
    before = torch.tensor([1, 1, 1, 0, 1])
    assert relabelled(main, residual, before, "agree").tolist() == [0, 0, 1, 1, 1]
    wanted = {
        "none": [1, 1, 1, 0, 1],
        "sr": [0, 0, 1, 1, 1],
        "sn": [0, 0, 0, 1, 1],
        "ratio": [0, 0, 0, 1, 1],  # sample 2: 0 / 0.6 against 0.6 / 0.8
        "agree_then_sr": [0, 0, 1, 1, 1],
        "agree_then_sn": [0, 0, 0, 1, 1],
        "agree_then_ratio": [0, 0, 0, 1, 1],
        "agree_then_ratio_margin": [0, 0, 0, 1, 1],
        "agree_then_margin": [0, 0, 0, 1, 1],  # sample 2: SR is ahead by 0.2 less rounding, so SN decides
    }
    main[2] = torch.tensor([0.6, 0.799])
    assert {rule: relabelled(main, residual, before, rule).tolist() for rule in wanted} == wanted
    main[2] = torch.tensor([0.5, 0.8])
    assert relabelled(main, residual, before, "agree_then_margin").tolist() == [0, 0, 1, 1, 1]
    tied = torch.tensor([[0.5, 0.6]]), torch.tensor([[-0.5 - 0.5e-6, -0.6 - 0.6e-6]])
    assert relabelled(tied[0], torch.zeros(1, 2), torch.tensor([1]), "agree_then_ratio_margin").tolist() == [1]


def test_a_class_without_residuals_counts_by_its_direction_alone():
    left = RESIDUALS.clone()
    left[1] = 0
    main, residual = scores(Z, V, left)
    assert residual[:, 1].tolist() == [-torch.inf] * 5
    assert agreeing(main, residual).tolist() == [True, True, False, False, False]
    main, residual = scores(Z, V, 0 * left)
    assert not agreeing(main, residual).any()
    assert relabelled(main, residual, torch.tensor([1, 1, 0, 0, 1]), "sn").tolist() == [1, 1, 0, 0, 1]
    unknown = V.clone()
    unknown[0] = 0  # no clean client holds class 0
    main, residual = scores(Z, unknown, RESIDUALS)
    assert main[:, 0].tolist() == [-1] * 5
    assert relabelled(main, residual, torch.zeros(5, dtype=torch.int64), "sr").tolist() == [1, 1, 1, 1, 0]


def test_a_refresh_from_clean_clients_to_noisy_ones(tmp_path):
    """One clean client with two classes on the axes; the noisy client's labels are turned round and come back."""
    method, server = FedSir(merge_class=1, rank_share=0.5), one_server(tmp_path, clients=2)
    rows = [[3.0, 0], [2.0, 0.1], [0, 1.0], [0.1, 2.0]]
    clean, noisy = one_client(rows, [0, 0, 1, 1]), one_client(rows, [1, 1, 0, 1])
    told = method.describe(clean, identity())
    assert told["spectra"][:, 0].tolist() == [2, 2]
    assert told["residuals"].shape == (2, 1, 2)
    for number, part in enumerate((rows[:2], rows[2:])):
        _, values, vectors = np.linalg.svd(np.array(part))
        assert told["directions"][number].abs().tolist() == pytest.approx(np.abs(vectors[0]).tolist(), abs=1e-6)
        assert told["residuals"][number, 0].abs().tolist() == pytest.approx(np.abs(vectors[1]).tolist(), abs=1e-6)
        facts = [2, (values[0] - values[1]) / values[0], values[0] / values.sum()]
        assert told["spectra"][number].tolist() == pytest.approx(facts, abs=1e-6)
    reference = method.references(server, {0: told})
    assert server.notes["classes_without_reference"] == []
    reply = method.relabel_samples(noisy, identity() | reference)
    assert list(reply) == ["samples"]
    assert noisy.state["labels"].tolist() == [0, 0, 1, 1]
    assert noisy.state["doubtful"].tolist() == [False] * 4
    found = method.verdict(noisy, identity() | {"role": torch.tensor([NOISY])})
    assert (found.p_wrong > 0.5).tolist() == [True, True, True, False]
    assert found.suggested.tolist()[:3] == [0, 0, 1]
    calm = method.verdict(noisy, identity() | {"role": torch.tensor([CLEAN])})
    assert float(calm.p_wrong.max()) <= 0.5
    own = FedSir(relabel="argmax").relabel_samples(noisy, identity() | reference)
    assert list(own) == ["samples"]
    assert noisy.state["labels"].tolist() == [0, 0, 1, 1]  # the logits of the identity are the rows


def test_a_small_class_does_not_even_shape_the_reply(tmp_path):
    """Class 0 has a flat spectrum and so no residual; class 1, with two samples, would have one."""
    rows = [[3.0, 0], [0, 3.0], [3.0, 0], [5.0, 0], [4.9, 0.1]]
    usual, client = (one_client(rows, [0, 0, 0, 1, 1]) for _ in range(2))
    assert FedSir().describe(usual, identity())["residuals"].shape == (2, 1, 2)
    client.least_count = 3
    told = FedSir().describe(client, identity())
    assert told["residuals"].shape == (2, 0, 2)
    assert not told["directions"][1].any()
    assert not told["spectra"][1].any()
    reference = FedSir(merge_class=1).references(one_server(tmp_path), {0: told})
    assert reference["directions"].abs().numpy() == pytest.approx(np.array([[1, 0], [0, 0]]), abs=1e-6)
    assert not reference["residuals"].any()


def test_labels_start_from_the_given_ones_or_the_last():
    reference = {"directions": V[:, :2], "residuals": torch.zeros(2, 1, 2)}  # without residuals nothing agrees
    for start, wanted in (("given", [0, 0]), ("last", [1, 0])):
        client = one_client([[1.0, 0], [0, 1.0]], [0, 0])
        client.state["labels"] = torch.tensor([1, 0])
        FedSir(restart_labels=start).relabel_samples(client, identity() | reference)
        assert client.state["labels"].tolist() == wanted
        assert client.state["doubtful"].all()


def test_when_labels_are_refreshed(tmp_path):
    def rounds(method: FedSir, total: int = 101) -> list[int]:
        server = one_server(tmp_path, rounds=total)
        found = []
        for number in range(2, total + 1):
            server.round = number
            found += [number - 2] if method.refreshes(server) else []
        return found

    assert rounds(FedSir(refresh_every=20)) == [20, 40, 60, 80]
    assert rounds(FedSir(refresh_every=20, first_refresh=0)) == [0, 20, 40, 60, 80]
    assert rounds(FedSir(), total=50) == [10, 20, 30, 40]


# --- training ---------------------------------------------------------------------------------------------------------


def test_the_ramp_of_distillation(tmp_path):
    server = one_server(tmp_path, rounds=100)
    method, found = FedSir(), []
    for r in (0, 2, 10, 20, 40, 49, 98):
        server.round = r + 2
        found.append(method.share(server))
    assert found == pytest.approx([0.001348, 0.001348, 0.006395, 0.029807, 0.166497, 0.2, 0.2], abs=1e-6)
    server.round = 2
    assert FedSir(constant_share=True).share(server) == 0.2


@pytest.mark.parametrize(("temperature", "wanted"), [(0.8, (0.230553, 1.109443)), (1.0, (0.230334, 1.109224))])
def test_the_loss_of_a_noisy_client(temperature, wanted):
    method = FedSir(temperature=temperature)
    teacher: Any = SimpleNamespace(module=lambda x: torch.tensor([[1.0, 0.0]] * len(x)))
    client = one_client([[0.0, 0.0]] * 4, [0, 0, 0, 1])
    client.model.load({"weights": torch.zeros(6)})
    log_p = np.log([0.75, 0.25])
    q = np.exp(np.array([1, 0]) / temperature) / np.exp(np.array([1, 0]) / temperature).sum()
    divergence = (q * (np.log(q) - log_p)).sum()
    by_hand = [0.2 * divergence - 0.8 * log_p[0], 0.2 * divergence - 0.8 * log_p[1]]
    assert by_hand == pytest.approx(list(wanted), abs=1e-6)
    x = torch.zeros(1, 2)
    for label in (0, 1):
        loss = method.distilled(client, teacher, torch.tensor([0.2]), x, torch.tensor([label]))
        assert loss.item() == pytest.approx(by_hand[label], abs=1e-6)
    assert client.forward_samples == 2  # the teacher's
    # Of two samples one is distilled: half of that loss, half of plain cross-entropy with adjustment.
    loss = method.distilled(client, teacher, torch.tensor([0.2, 0.0]), torch.zeros(2, 2), torch.tensor([0, 1]))
    assert loss.item() == pytest.approx((by_hand[0] - log_p[1]) / 2, abs=1e-6)


def test_a_class_that_a_site_lacks_counts_once():
    client = one_client([[0.0, 0.0]] * 3, [0, 0, 0], classes=3)
    assert FedSir().counts(client).tolist() == [3, 1, 1]
    client.state["labels"] = torch.tensor([0, 1, 1])
    assert FedSir(prior="current").counts(client).tolist() == [1, 2, 1]
    assert FedSir().counts(client).tolist() == [3, 1, 1]


def test_which_samples_are_distilled():
    client = one_client([[0.0, 0.0]] * 3, [0, 0, 1])
    noisy, clean = ({"share": torch.tensor([0.5]), "role": torch.tensor([role])} for role in (NOISY, CLEAN))
    assert FedSir().shares(client, noisy).tolist() == [0.5] * 3  # before the first refresh
    client.state["doubtful"] = torch.tensor([True, False, False])
    assert FedSir().shares(client, noisy).tolist() == [0.5, 0, 0]
    assert FedSir(distil="all").shares(client, noisy).tolist() == [0.5] * 3
    assert FedSir(distil="none").shares(client, noisy).tolist() == [0] * 3
    assert FedSir().shares(client, clean).tolist() == [0] * 3


def test_a_clean_client_learns_its_given_labels_by_logit_adjustment():
    client = one_client([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]], [0, 1, 1], lr=0.5)
    got = {"weights": torch.zeros(6), "role": torch.tensor([CLEAN]), "share": torch.tensor([0.2])}
    reply = FedSir().train(client, got)
    slope = (np.array([1 / 3, 2 / 3]) - np.eye(2)[[0, 1, 1]]) / 3
    weight = -0.5 * slope.T @ np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
    assert reply["weights"].tolist() == pytest.approx([*weight.flatten(), *(-0.5 * slope.sum(0))], abs=1e-6)
    assert client.forward_samples == client.backward_samples == 3


def test_a_visit_of_a_noisy_client():
    """One batch of three, labels refreshed before, one of them distilled: the whole step in plain NumPy."""
    rows, given, labels = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]]), [0, 0, 1], [0, 1, 1]
    client = one_client(rows, given, lr=0.5)
    client.state |= {"labels": torch.tensor(labels), "doubtful": torch.tensor([False, False, True])}
    got = identity() | {"role": torch.tensor([NOISY]), "share": torch.tensor([0.2])}
    reply = FedSir().train(client, got)
    powers = np.exp(rows + np.log([2 / 3, 1 / 3]))  # the identity's logits, adjusted by the given labels' frequencies
    p = powers / powers.sum(1, keepdims=True)
    q = np.exp(rows / 0.8) / np.exp(rows / 0.8).sum(1, keepdims=True)  # the received model, not adjusted
    w = np.array([[0.0], [0.0], [0.2]])
    slope = (w * (p - q) + (1 - w) * (p - np.eye(2)[labels])) / 3
    wanted = [*(np.eye(2) - 0.5 * slope.T @ rows).flatten(), *(-0.5 * slope.sum(0))]
    assert reply["weights"].tolist() == pytest.approx(wanted, abs=1e-6)
    assert (client.forward_samples, client.backward_samples) == (3 + 3, 3)


@pytest.mark.parametrize("aggregation", ["distance", "mean"])
def test_distant_noisy_models_weigh_less(tmp_path, aggregation):
    server = one_server(tmp_path, clients=4)
    server.state["role"] = torch.tensor([CLEAN, CLEAN, NOISY, NOISY])
    models = [[0, 0], [9, 0], [0, 2], [9, 4]]  # d = 0, 0, 2, 4
    sizes = np.array([100, 100, 200, 400])
    replies = [
        (client, {"weights": torch.tensor([*map(float, model), 0, 0, 0, 0]), "samples": torch.tensor(size)})
        for client, (model, size) in enumerate(zip(models, sizes.tolist(), strict=True))
    ]
    FedSir(aggregation=aggregation).merge(server, iter(replies))
    weights = sizes * (np.exp([0, 0, -0.5, -1]) if aggregation == "distance" else 1.0)
    if aggregation == "distance":
        assert weights / weights.sum() == pytest.approx([0.213466, 0.213466, 0.258948, 0.314120], abs=1e-6)
    wanted = weights @ np.array(models) / weights.sum()
    assert server.weights["weights"][:2].tolist() == pytest.approx(wanted.tolist(), abs=1e-5)
    assert server.state["clean.weights"][:2].tolist() == [4.5, 0]
    FedSir().merge(server, iter(replies[2:]))  # a round without a clean client: the last mean stays
    assert server.state["clean.weights"][:2].tolist() == [4.5, 0]
    assert server.weights["weights"][:2].tolist() == pytest.approx([6, 10 / 3])


def test_its_own_aggregation_cannot_be_replaced():
    with pytest.raises(UsageError, match="part of this method"):
        FedSir(aggregate="median")


# --- whole runs -------------------------------------------------------------------------------------------------------


def play(folder: Path, **changes: Any) -> Result:
    settings: dict[str, Any] = {
        "data": toy_data(samples=300, spread=0.3),
        "clients": 6,
        "participation": 1.0,
        "rounds": 5,
        "epochs": 1,
        "batch_size": 10,
        "optimizer": "sgd:lr=0.1",
        "noise": "uniform:share=0.5,low=0.6,high=0.6",
        "method": "fedsir:refresh_every=2",
    }
    return run(out=folder, **(settings | changes))


def test_what_it_costs(tmp_path):
    result = play(tmp_path, model="linear")
    first, usual, refreshed = result.rounds[0], result.rounds[1], result.rounds[3]
    assert [row["stage"] for row in result.rounds] == ["identify"] + ["train"] * 4
    samples, clients, classes, width = 300, 6, 3, 2
    model = 4 * (width * classes + classes)
    noisy = first["noisy_clients"]
    held = sum(int(result.scene.holdings.sizes[client]) for client in noisy)
    assert (first["forward_samples"], first["backward_samples"]) == (5 * samples + samples, 5 * samples)
    assert first["bytes_up"] == clients * (model + 8 + 2 * 8)  # a model, the number of samples, two numbers
    assert first["bytes_down"] == clients * model
    assert (usual["forward_samples"], usual["backward_samples"]) == (samples + held, samples)  # and the teacher's pass
    assert usual["bytes_down"] == clients * (model + 8 + 4)  # a role and a weight
    assert usual["bytes_up"] == clients * (model + 8)
    # A refresh: one pass everywhere; then fewer samples of noisy clients may need the teacher, but all are shown to it.
    assert refreshed["backward_samples"] == samples
    assert refreshed["forward_samples"] in (2 * samples, 2 * samples + held)
    told = (clients - len(noisy)) * (classes * width * 4 + classes * 3 * 4)  # directions and three numbers per class
    assert refreshed["bytes_up"] - usual["bytes_up"] - told - len(noisy) * 8 in range(
        (clients - len(noisy)) * classes * width * 4 + 1
    )  # residuals: at most one vector per class, as there are two features


def test_everybody_is_asked_at_first_and_at_a_refresh(tmp_path):
    result = play(tmp_path, participation=0.34)
    assert [len(row["participants"]) for row in result.rounds] == [6, 2, 2, 6, 2]


@pytest.mark.parametrize(
    "options",
    [
        "relabel=argmax,reference_model=global,residual_rows=all,reference_weight=n,aggregation=mean",
        "relabel=agree_then_ratio_margin,residual_rows=last,distil=all,restart_labels=last,prior=current,mixup=1",
        "loss=cross_entropy,covariance=diagonal,distance=parameters,lone_client=clean,constant_share=true",
    ],
)
def test_every_option_runs(tmp_path, options):
    result = play(tmp_path, rounds=4, model=Three, method=f"fedsir:first_refresh=0,refresh_every=1,{options}")
    assert result.summary["status"] == "finished"


class Three(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


def test_it_works_on_frozen_features(tmp_path):
    result = play(tmp_path, encoder="rows", model="linear")
    assert result.rounds[-1]["accuracy"] > 0.8
    assert math.isfinite(result.summary["detection"]["samples"]["auroc"])
