"""Samples that are token ids: every method trains on them, or is refused before anything is written."""

from __future__ import annotations

import numpy as np
import pytest

from fedwinnow import catalogue, run
from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.errors import UsageError
from fedwinnow.federation.method import find_method

NEEDS = {"trusted_data": {"trusted": 0.3}, "public_data": {"public": 0.3}}
MIXING = {"mixup", "fedcorr", "feddiv", "dividemix"}
OPTIONS = {"fedgr": "weak=none,strong=none"}  # random views are for images


def texts(samples: int = 48) -> Dataset:
    """Five words of six for each class, and padding."""
    luck = np.random.RandomState(0)
    labels = np.arange(samples) % 2
    tokens = luck.randint(1, 7, (samples, 5)) + 6 * labels[:, None]
    tokens[::3, -2:] = 0

    def part(where: slice) -> Samples:
        return Samples(Resident(tokens[where]), labels[where], np.arange(samples)[where])

    third = samples // 3
    return Dataset("texts", "tokens", ("a", "b"), part(slice(third, None)), part(slice(0, third)), vocabulary=13)


def settings(method: str) -> dict[str, object]:
    found = {"data": texts(), "method": method, "clients": 4, "participation": 0.5, "rounds": 4, "epochs": 1}
    found |= {"noise": "constant:rate=0.3", "batch_size": 4}
    for need in catalogue.find("methods", method.partition(":")[0]).facts["needs"]:
        found |= NEEDS.get(need, {})
    return found


@pytest.mark.parametrize("name", sorted(catalogue.entries("methods")))
def test_every_method_finishes_on_tokens_or_is_refused_before_the_first_round(name, tmp_path):
    method = f"{name}:{OPTIONS[name]}" if name in OPTIONS else name
    if name in MIXING:
        with pytest.raises(UsageError, match=rf"method '{name}' mixes samples.*tokens.*allowed: "):
            run(out=tmp_path / "run", **settings(method))
        assert {path.name for path in (tmp_path / "run").rglob("*")} <= {".lock"}
    else:
        assert run(out=tmp_path / "run", **settings(method)).summary["status"] == "finished"


@pytest.mark.parametrize("method", ["mixup", "dividemix"])
def test_only_what_works_is_advised(method, tmp_path):
    """MixUp and DivideMix cannot go without."""
    with pytest.raises(UsageError, match=r"allowed: a method that does not mix"):
        run(out=tmp_path, **settings(method))


@pytest.mark.parametrize("method", ["fedcorr:mixup=0", "feddiv:mixup=0"])
def test_what_the_error_allows_works(method, tmp_path):
    assert run(out=tmp_path, **settings(method)).summary["status"] == "finished"


@pytest.mark.parametrize("name", sorted(set(catalogue.entries("methods")) - MIXING))
def test_mixup_is_refused_wherever_it_can_be_asked_for(name, tmp_path):
    try:
        find_method(f"{name}:mixup=0.5")
    except UsageError:
        return  # it is no option of this method
    with pytest.raises(UsageError, match=rf"allowed: {name} without it \({name}:mixup=0\)"):
        run(out=tmp_path, **settings(f"{name}:mixup=0.5"))
