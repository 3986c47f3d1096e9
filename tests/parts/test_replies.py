"""Replies that are looked at while they stream by."""

from __future__ import annotations

import torch

from fedwinnow.parts.replies import noted


def test_news_grow_as_replies_are_taken_and_hold_only_what_was_asked_for():
    replies = [(3, {"weights": torch.zeros(2), "rate": torch.ones(1)}), (1, {"weights": torch.zeros(2)})]
    passing, news = noted(iter(replies), "rate", "size")
    assert news == {}
    assert next(passing)[0] == 3
    assert news == {3: {"rate": torch.ones(1)}}
    assert next(passing) is not None
    assert news[1] == {}
    assert list(passing) == []
