"""No method waits for a graphics card in every batch: nothing that is computed there is asked for in between.

Without a card, the operations that would wait are counted where they are called: a number that Python reads, the places
of a mask, and what torch itself reads to do its work.
"""

from __future__ import annotations

import traceback
from collections import Counter
from typing import ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fedwinnow
from fedwinnow import catalogue
from fedwinnow.federation.client import Client
from fedwinnow.testing import toy_data

WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "bincount"}
BY_INDEX = {"index", "index_put", "index_put_", "_index_put_impl_"}
# These read numbers of the processor: a draw of mixup, and a check of `one_hot` that is left out on a card.
HARMLESS = ("beta_draw", "gammas", "one_hot(")
SPECS = {
    "coteaching": ("coteaching", "coteaching:disagree_from=1"),
    "fedes": ("fedes", "fedes:mask=per_step"),
    "fedfixer": ("fedfixer", "fedfixer:select=small_loss"),
    # The second pass of the released code is over the kept samples alone, so it must be known how many they are.
    "selfie": ("selfie:second_pass=false",),
}


class Waits(TorchDispatchMode):
    """Counts operations that would wait, by the line of the method."""

    found: ClassVar[Counter[str]] = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        masked = name in BY_INDEX and any(one is not None and one.dtype == torch.bool for one in args[1])
        if name in WAITING or masked:
            ours = [one for one in traceback.extract_stack() if "/fedwinnow/" in one.filename.replace("\\", "/")]
            if not any(word in (ours[-1].line or "") for word in HARMLESS):
                self.found[f"{name}, {ours[-1].filename}:{ours[-1].lineno}"] += 1
        return operation(*args, **(kwargs or {}))


def waits_of(method, folder, monkeypatch):
    """The operations that wait within `fit`, and the number of batches."""
    batches, waits, original = [], Waits(), Client.fit
    Waits.found.clear()

    def fit(self, objective, *, rows=None, **more):
        def counted(*samples):
            batches.append(1)
            return objective(*samples)

        def of_epoch():  # called once an epoch, where waiting is allowed
            with torch.utils._python_dispatch._disable_current_modes():
                return rows()

        with waits:
            return original(self, counted, rows=of_epoch if callable(rows) else rows, **more)

    monkeypatch.setattr(Client, "fit", fit)
    settings = {"clients": 2, "rounds": 6, "epochs": 1, "batch_size": 4, "participation": 1.0, "model": "mlp"}
    data = toy_data(60)
    fedwinnow.run(data=data, method=method, noise="constant:rate=0.3", trusted=10, public=10, out=folder, **settings)
    return Waits.found, len(batches)


@pytest.mark.parametrize(
    "spec", [spec for name in sorted(catalogue.entries("methods")) for spec in SPECS.get(name, (name,))]
)
def test_a_method_waits_less_than_once_in_a_batch(spec, tmp_path, monkeypatch):
    found, batches = waits_of(spec, tmp_path, monkeypatch)
    assert batches > 60
    # Once a visit is allowed, and there are twelve of them with seven batches each.
    assert not [line for line, count in found.items() if count > 24], dict(found)


def test_what_waits_is_seen(tmp_path, monkeypatch):
    found, batches = waits_of("selfie:second_pass=true", tmp_path, monkeypatch)
    assert [line for line, count in found.items() if count >= batches - 24 and line.startswith("nonzero")]
