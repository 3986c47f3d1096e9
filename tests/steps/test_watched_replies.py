"""Replies that are looked at while they stream by."""

from __future__ import annotations

import pytest
import torch

from fedwinnow.errors import RunError
from fedwinnow.mathematics.payload import Received
from fedwinnow.steps.stages import watch_replies


def test_news_grow_as_replies_are_taken_and_hold_only_what_was_asked_for():
    replies = [(3, {"weights": torch.zeros(2), "rate": torch.ones(1)}), (1, {"weights": torch.zeros(2)})]
    passing, news = watch_replies(iter(replies), maybe=("rate", "size"))
    assert news == {}
    assert next(passing)[0] == 3
    assert news == {3: {"rate": torch.ones(1)}}
    assert next(passing) is not None
    assert news[1] == {}
    assert list(passing) == []


def test_who_leaves_out_what_is_needed_is_named():
    reply = Received({"weights": torch.zeros(2)}, "client 3 (clinic), round 2, train")
    with pytest.raises(
        RunError, match=r"client 3 \(clinic\), round 2, train: its reply has no 'rate', .* \['weights'\]"
    ):
        next(watch_replies(iter([(3, reply)]), "rate")[0])
