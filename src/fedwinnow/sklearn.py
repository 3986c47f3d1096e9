"""`fedwinnow.sklearn.FederatedClassifier`: federated training as a scikit-learn estimator (extra `sklearn`)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedwinnow.api import run
from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.dataset import Dataset
from fedwinnow.errors import UsageError, missing_extra

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:  # pragma: no cover - the extra is part of the test environment
    raise missing_extra("sklearn", "the scikit-learn estimator") from None

if TYPE_CHECKING:
    from fedwinnow.experiment.result import Result

SET_HERE = ("data", "clients", "partition", "noise", "scene", "test", "seed", "out", "method", "model", "rounds")
BATCH = 500


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier that several sites train together without showing each other their samples, on this machine.

        found = FederatedClassifier(method="winnow", rounds=20).fit(X, y, sites=hospital)
        found.predict(X_new)
        X[found.label_issues_]

    `method` and `model` are written as on the command line (`fedwinnow methods`, `fedwinnow models`); `settings` has
    any other keyword of `fedwinnow.run`. `standardise` brings every column of X to mean 0 and deviation 1, by sums over
    all sites. `clients` is how many sites the samples are dealt to where `fit` gets no sites. `out` keeps the run
    folder; without it nothing is left on the disk.

    After `fit`: `classes_`, `label_issues_` (which labels the method calls wrong), `label_scores_` (0 to 1, how much
    speaks against each label; not a probability, NaN for a site that gave no verdict), `suggested_labels_`, `summary_`.
    """

    def __init__(
        self,
        method: str = "winnow",
        model: Any = None,
        rounds: int = 20,
        *,
        clients: int = 1,
        standardise: bool = True,
        settings: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
        random_state: Any = None,
    ) -> None:
        self.method = method
        self.model = model
        self.rounds = rounds
        self.clients = clients
        self.standardise = standardise
        self.settings = settings
        self.out = out
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sites: Any = None) -> FederatedClassifier:
        """Train on samples X with labels y; `sites` names the site of each sample."""
        X, y = validate_data(self, X, y, allow_nd=True, dtype=None)
        check_classification_targets(y)
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"one class was given ({self.classes_[0]}); a classifier needs at least two classes.")
        if X.ndim == 2:
            X = self.standardised(X, fit=True)
        data = from_arrays(
            X, places, sites=sites, class_names=[str(number) for number in range(len(self.classes_))], name="X"
        )
        if self.out is None:
            with tempfile.TemporaryDirectory(prefix="fedwinnow-") as place:
                self.learn(data, Path(place) / "run")
        else:
            self.learn(data, Path(self.out))
        return self

    def learn(self, data: Dataset, folder: Path) -> None:
        """Train in a folder, and keep what is needed of it."""
        chosen = dict(self.settings or {})
        if wrong := [name for name in SET_HERE if name in chosen]:
            raise UsageError(f"settings has '{wrong[0]}', which is decided by fit or by an argument of its own.")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        partition = "iid" if data.train.sites is None else "column"
        result = run(
            data=data,
            clients=self.clients,
            partition=partition,
            test=0.0,
            method=self.method,
            model=self.model,
            rounds=self.rounds,
            seed=seed,
            out=folder,
            **{"participation": 1.0, **chosen},
        )
        self.keep(result, len(data.train))

    def keep(self, result: Result, samples: int) -> None:
        """The model, the summary and the verdicts, in the order of X."""
        self.model_ = result.model
        self.summary_ = result.summary
        verdicts = result.verdicts
        scores, suggested = np.full(samples, np.nan), np.empty(samples, dtype=np.int64)
        scores[verdicts.row] = verdicts.p_wrong
        suggested[verdicts.row] = verdicts.suggested.astype(np.int64)
        self.label_scores_ = scores
        self.label_issues_ = scores > 0.5
        self.suggested_labels_ = self.classes_[suggested]

    def standardised(self, X: NDArray[Any], *, fit: bool = False) -> NDArray[np.float64]:
        """Columns with mean 0 and deviation 1, as the training samples have them; a constant column becomes 0."""
        X = X.astype(np.float64)
        if not self.standardise:
            return X
        if fit:
            self.mean_, spread = X.mean(0), X.std(0)
            self.scale_ = np.where(spread > 0, spread, 1.0)
        return np.asarray((X - self.mean_) / self.scale_)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class (column, as in `classes_`) for each sample."""
        check_is_fitted(self, "model_")
        X = validate_data(self, X, allow_nd=True, dtype=None, reset=False)
        ready = torch.as_tensor(self.standardised(X) if X.ndim == 2 else X)
        with torch.inference_mode():
            scores = [self.model_(piece) for piece in torch.split(ready, BATCH)]
        return np.asarray(torch.cat(scores).double().softmax(1).cpu())

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class of each sample."""
        likeliest = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[likeliest])
