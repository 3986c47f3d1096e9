"""`auto`, `knn` and `margin`: what they say, and that the truth has no say in the choice."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedwinnow
from fedwinnow.auditing.audit_folder import SiteLabels
from fedwinnow.auditing.judges import CANDIDATES, against, candidates, margin
from fedwinnow.auditing.judging_models import SiteOpinions
from fedwinnow.auditing.server_half import ServerHalf, SitesHere
from fedwinnow.auditing.site_half import SiteHalf
from fedwinnow.errors import UsageError
from fedwinnow.testing import toy_data


def test_the_margin_counts_the_likeliest_other_class_only():
    classes = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]])
    found = margin(classes, torch.tensor([0, 0]), torch.tensor([1, 2]))
    assert found.tolist() == pytest.approx([math.log(0.3 / 0.5), math.log(0.6 / 0.2)], abs=1e-6)


def test_log_odds_against_a_label():
    classes = torch.tensor([[0.5, 0.3, 0.2]]).double().log()
    assert against(classes, torch.tensor([1])).item() == pytest.approx(math.log(0.7 / 0.3))


def test_the_choice_falls_on_the_smallest_held_out_loss():
    """Two sites with one label each add up their losses, and both take the same opinions."""
    believed = np.array([[[0.6, 0.4], [0.4, 0.6]], [[0.9, 0.1], [0.5, 0.5]], [[0.8, 0.2], [0.2, 0.8]]], np.float32)
    scores, none = np.arange(6.0).reshape(3, 2), np.zeros(0, np.int64)
    halves = {}
    for site, given in enumerate(([0], [1])):
        part = slice(site, site + 1)
        opinions = SiteOpinions(scores[0, part], none, none, none, None, {}, believed[:, part], scores[:, part])
        labels = SiteLabels(str(site), ("a", "b"), np.array(given), np.arange(1), np.arange(1))
        halves[site] = SiteHalf(labels, opinions)
    server = ServerHalf(SitesHere(halves), [0, 1], ("a", "b"))
    losses = server.chosen_judge()
    # mean of -ln: 0.511; (0.105 + 0.693) / 2 = 0.399; 0.223
    assert [losses[name] for name in CANDIDATES] == pytest.approx([0.511, 0.399, 0.223], abs=1e-3)
    found = [halves[site].chosen_opinions(server.told[site]) for site in (0, 1)]
    assert [one.score.tolist() for one in found] == [[4.0], [5.0]]
    assert [one.other.tolist() for one in found] == [[1], [0]]
    assert np.array_equal(np.concatenate([one.classes for one in found]), believed[2])


def test_both_is_the_geometric_mean():
    rows = torch.randn(30, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(30) % 2
    client = SimpleNamespace(given=labels, classes=2, input_step=SimpleNamespace(kind="rows"))
    client.plain, client.stored = (lambda stored: stored), (lambda batches: [rows[batch] for batch in batches])
    client = WithLength(client)
    models = torch.full((30, 2), 0.5)
    models[0] = torch.tensor([0.9, 0.1])
    found = candidates(client, models).exp()
    assert found.sum(2).sub(1).abs().max() < 1e-6
    joined = (found[0] * found[1]).sqrt()
    assert torch.allclose(found[2], joined / joined.sum(1, keepdim=True), atol=1e-6)


class WithLength:
    """As much of a client as neighbours need."""

    def __init__(self, client):
        self.__dict__ |= vars(client)

    def __len__(self):
        return len(self.given)


def test_neighbours_need_no_training(tmp_path):
    found = fedwinnow.audit(data=toy_data(), clients=3, noise="constant:rate=0.1", judge="knn", out=tmp_path / "audit")
    assert found.facts["truth"]["auroc"] > 0.85
    assert not any(path.read_text(encoding="utf-8") for path in (tmp_path / "audit").rglob("rounds.jsonl"))


def test_neighbours_of_words_are_refused_with_a_way_out(tmp_path):
    path = tmp_path / "texts.csv"
    lines = [f"word{number} here,{'ab'[number % 2]},{'xy'[number % 3 % 2]}" for number in range(40)]
    path.write_text("text,label,site\n" + "\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match="give encoder="):
        fedwinnow.audit(data=f"csv:path={path},label=label,text=text", site="site", judge="knn", encoder="none")
