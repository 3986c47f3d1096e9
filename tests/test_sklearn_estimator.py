"""The estimator keeps scikit-learn's rules, and is the federation that it says it is."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedwinnow
from fedwinnow.data.arrays import from_arrays
from fedwinnow.errors import UsageError
from fedwinnow.sklearn import FederatedClassifier

QUICK = {"settings": {"epochs": 5, "optimizer": "sgd:lr=0.1,momentum=0.9"}, "model": "linear", "random_state": 0}


@parametrize_with_checks([FederatedClassifier(rounds=3, **QUICK)])
def test_the_rules_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def cancer():
    """A table with a fifth of its labels wrong, at four sites."""
    x, y = load_breast_cancer(return_X_y=True)
    luck = np.random.default_rng(0)
    wrong = luck.random(len(y)) < 0.2
    names = np.array(["malignant", "benign"])
    return x, names[y], names[np.where(wrong, 1 - y, y)], wrong, luck.choice(["a", "b", "c", "d"], len(y))


def test_it_learns_and_finds_wrong_labels(cancer):
    x, true, given, wrong, sites = cancer
    found = FederatedClassifier(rounds=10, random_state=0).fit(x, given, sites=sites)
    assert found.classes_.tolist() == ["benign", "malignant"]
    assert (found.predict(x) == true).mean() > 0.9
    assert found.label_issues_.dtype == bool
    assert wrong[found.label_issues_].mean() > 0.6  # a fifth by chance
    assert (found.suggested_labels_[found.label_issues_] == true[found.label_issues_]).mean() > 0.6
    assert (found.label_scores_[found.label_issues_] > 0.5).all()


def test_it_is_the_run_of_the_library(cancer, tmp_path):
    x, _, given, _, sites = cancer
    found = FederatedClassifier(
        "fedavg", rounds=2, settings={"epochs": 1}, random_state=3, out=tmp_path / "by_estimator"
    ).fit(x, given, sites=sites)
    seed = int(np.random.RandomState(3).randint(2**31 - 1))
    classes, places = np.unique(given, return_inverse=True)
    rows = (x - x.mean(0)) / x.std(0)
    data = from_arrays(rows, places, sites=sites, class_names=["0", "1"])
    result = fedwinnow.run(
        data=data, partition="column", test=0.0, method="fedavg", rounds=2, epochs=1, participation=1.0, seed=seed,
        out=tmp_path / "by_hand",
    )  # fmt: skip
    assert np.array_equal(found.predict_proba(x), result.predict_proba(rows))
    assert fedwinnow.load(tmp_path / "by_estimator").scene.site_names == ("a", "b", "c", "d")
    assert (found.predict(x) == classes[result.predict_proba(rows).argmax(1)]).all()


def test_it_goes_into_pipelines_and_searches(cancer):
    x, _, given, _, _ = cancer
    pipeline = make_pipeline(MinMaxScaler(), FederatedClassifier("fedavg", rounds=2, clients=3, **QUICK))
    assert cross_val_score(pipeline, x, given, cv=2).mean() > 0.6
    copied = clone(FederatedClassifier(rounds=7))
    assert copied.get_params()["rounds"] == 7


def test_images(cancer):
    x = np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8)
    y = np.where(x.mean((1, 2)) > x.mean(), "light", "dark")
    found = FederatedClassifier("fedavg", rounds=1, **QUICK).fit(x, y)
    assert found.predict_proba(x).shape == (40, 2)


def test_what_fit_decides_is_no_setting(cancer):
    x, _, given, _, _ = cancer
    with pytest.raises(UsageError, match="settings has 'noise'"):
        FederatedClassifier(settings={"noise": "none"}).fit(x, given)
    with pytest.raises(ValueError, match="one class was given"):
        FederatedClassifier().fit(x, ["a"] * len(x))
