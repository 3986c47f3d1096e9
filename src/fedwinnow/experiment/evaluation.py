"""The evaluation, the only part of a run that knows test labels and true labels; it turns them into numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwinnow.errors import RunError
from fedwinnow.federation.host import BY_LOSS, SCORE
from fedwinnow.federation.method import Method
from fedwinnow.federation.rounds import Federation, Tally
from fedwinnow.mathematics.payload import Payload
from fedwinnow.metrics import detection, task
from fedwinnow.metrics.site_scores import site_scores
from fedwinnow.metrics.task import count, mean_of, share
from fedwinnow.options import parse_spec
from fedwinnow.randomness import Floats, Integers
from fedwinnow.scene.holdings import Holdings
from fedwinnow.scene.scene import Scene

LEAST_ROWS = 20  # below so many test rows of a site no share is stated
OWN_ROWS, OWN_MIXTURE = "own rows", "own mixture of classes"  # what a site is measured on
SCORES = ("accuracy", "balanced_accuracy", "macro_f1")
NOBODY = -1  # instead of a prediction, where a site did not answer
NOISY_CLIENT = 0.1  # a client counts as noisy above this share of wrong labels


@dataclass(frozen=True, eq=False)
class OwnTest:
    """How good the model that each site would use is on the site's own test part; NaN where it is not stated."""

    part: str  # OWN_ROWS or OWN_MIXTURE
    rows: Integers  # per site: how many test rows the figures are worth
    accuracy: Floats
    balanced: Floats
    asked: tuple[int, ...]  # the sites that hold samples; the others have no figure


class Evaluation:
    """Measures a federation against the truth."""

    def __init__(
        self,
        scene: Scene,
        labels: dict[str, Integers],
        trained: Holdings,
        places: Integers,
        *,
        simulated: bool = True,
        test_sites: NDArray[np.str_] | None = None,
    ) -> None:
        self.scene = scene
        self.labels = labels
        self.trained = trained  # who trains on what
        self.places = places  # where each of those holdings is in the scene
        self.simulated = simulated  # real sites get no questions besides those of the method
        self.test_sites = test_sites  # the names of the sites of the test rows, where the data has them

    @property
    def everybody(self) -> tuple[int, ...]:
        """All clients that hold samples; no one if the sites are real."""
        return () if not self.simulated else tuple(np.flatnonzero(self.scene.holdings.sizes).tolist())

    def scores(self, federation: Federation, part: str) -> dict[str, Any] | None:
        """Task scores of the method on the test part or the noisy hold-out; None if there is no such part.

        If every client has its own model, the scores are means over their models.
        """
        labels = self.labels.get(part)
        if labels is None or not len(labels):
            return None
        if federation.method.own_models:
            replies = self.own_answers(federation, part)
            return task.of_several([logits for _, logits in replies], labels)
        answers = self.answers(federation, part)
        scores = task.from_logits(federation.method.joined(answers).numpy(), labels)
        if len(answers) > 1:
            scores["each_accuracy"] = [
                share(count(answer.argmax(1).numpy() == labels), len(labels)) for answer in answers
            ]
        return scores

    def answers(self, federation: Federation, part: str) -> list[Tensor]:
        """The logits of each global model for a part."""
        return [federation.backend.score(part, model, len(self.labels[part])) for model in federation.models()]

    def own_answers(self, federation: Federation, part: str) -> Iterator[tuple[int, NDArray[Any]]]:
        """The logits of the clients' own models for a part; an absent client's model was never trained."""
        trained = set(federation.server.available)
        asked = tuple(client for client in self.everybody if client in trained)
        for client, reply in federation.ask_all(f"{SCORE}{part}", asked):
            yield client, reply["logits"].numpy()

    def round(self, federation: Federation) -> dict[str, Any]:
        """The measurements after a round: test scores, and the accuracy on the noisy hold-out."""
        test = self.scores(federation, "test")
        row = {name: None if test is None else test[name] for name in (*SCORES, "loss")}
        if test is not None:
            row |= {name: test[name] for name in ("top5", "each_accuracy", "ensemble_accuracy") if name in test}
        held_out = self.scores(federation, "validation")
        if held_out is not None:
            row["validation_accuracy"] = held_out["accuracy"]
        return row

    def remarks(self, tally: Tally) -> dict[str, Any]:
        """Measurements of the clients' notes of one round: selected samples, pseudo-labels, memorised labels."""
        said: dict[str, dict[int, Any]] = {}
        for client, notes in tally.notes.items():
            for name, value in notes.items():
                said.setdefault(name, {})[client] = value.numpy()
        row: dict[str, Any] = {"stability": mean_of(tally.distances)} if tally.distances else {}
        if "selected" in said:
            row |= self.selection(said["selected"])
        if "pseudo_labels" in said:
            row |= self.pseudo_labels(said["pseudo_labels"])
        if "local_predicted" in said:
            row |= self.memorised_on_site(said["global_predicted"], said["local_predicted"])
        if "local_tested" in said:
            row |= self.tested_on_site(said["local_tested"])
        return row

    def mine(self, client: int) -> Integers:
        """The holdings on which a client trains."""
        return self.places[self.trained.of(client)]

    def selection(self, chosen: dict[int, Any]) -> dict[str, Any]:
        """Label precision and recall of the samples that clients selected as clean."""
        if self.scene.wrong is None:
            return {}
        wrong = [self.scene.wrong[self.mine(client)] for client in chosen]
        found = detection.selection([mask.astype(bool) for mask in chosen.values()], wrong)
        return {"label_precision": found["precision"], "label_recall": found["recall"]}

    def quality(self, notes: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
        """The method's last estimate of its clients' data quality against the truth; None without either."""
        stated = [note["quality"] for note in notes if "quality" in note]
        if not stated or self.scene.wrong is None:
            return None
        return detection.quality_errors(np.array(stated[-1], np.float64), self.scene.realised)

    def pseudo_labels(self, labels: dict[int, Any]) -> dict[str, Any]:
        """How many samples got a pseudo-label (the others have -1), and how many of these labels are right."""
        every = np.concatenate(list(labels.values()))
        row: dict[str, Any] = {"pseudo_labels": int((every >= 0).sum())}
        if self.scene.true is not None:
            true = np.concatenate([self.scene.true[self.mine(client)] for client in labels])
            row["pseudo_label_precision"] = share(count(every == true), count(every >= 0))
        return row

    def memorised_on_site(self, by_global: dict[int, Any], by_local: dict[int, Any]) -> dict[str, Any]:
        """The shares of a site's wrong labels that the global and the local model have memorised, by site."""
        if self.scene.true is None:
            return {}
        sites: dict[str, dict[str, Any]] = {}
        for client in by_local:
            mine = self.scene.holdings.of(client)
            given, true = self.scene.given[mine], self.scene.true[mine]
            of_client = {"global": by_global[client], "local": by_local[client]}
            figures = {name: task.memorisation(said, given, true) for name, said in of_client.items()}
            sites[str(client)] = {name: figure["memorised"] for name, figure in figures.items()}
        means = {f"{name}_memorised": mean_of(site[name] for site in sites.values()) for name in ("global", "local")}
        return {**means, "memorised_by_site": sites}

    def tested_on_site(self, predicted: dict[int, Any]) -> dict[str, Any]:
        """The test accuracy of the models that the round's clients trained, one by one."""
        labels = self.labels["test"]
        sites = {str(client): share(count(said == labels), len(labels)) for client, said in predicted.items()}
        return {"local_accuracy": mean_of(sites.values()), "accuracy_by_site": sites}

    # --- after the last round --------------------------------------------------------------------------------------

    def verdicts(
        self, federation: Federation, predicted: Integers | None = None, losses: Floats | None = None
    ) -> tuple[Floats, Integers]:
        """Every site's verdict on its labels, in the order of the holdings.

        With what `predictions` gives, the verdicts by losses are computed for all sites together: by itself, that of a
        small site costs more than its forward pass. The numbers are the same.
        """
        if predicted is None or losses is None or not begins_with_losses(type(federation.method)):
            return self.asked_verdicts(federation, self.everybody, None)
        from fedwinnow.mathematics.wrong_by_loss import wrong_by_losses

        sites = [site for site in self.everybody if self.answered(predicted, site)]
        p_wrong = np.full(len(self.scene.given), np.nan)
        suggested = np.where(predicted == NOBODY, self.scene.given, predicted)
        for site, found in zip(sites, wrong_by_losses([self.part(losses, site) for site in sites]), strict=True):
            p_wrong[self.scene.holdings.of(site)] = found.numpy()
        if type(federation.method).verdict is Method.verdict:
            return p_wrong, suggested
        by_loss = {"p_wrong": p_wrong, "suggested": suggested}

        def more(site: int) -> Payload:
            return {f"{BY_LOSS}{key}": self.part(values, site) for key, values in by_loss.items()}

        return self.asked_verdicts(federation, tuple(sites), more)

    def part(self, values: NDArray[Any], site: int) -> Tensor:
        """One site's part of values per holding."""
        return torch.from_numpy(values[self.scene.holdings.of(site)].copy())

    def answered(self, predicted: Integers, site: int) -> bool:
        """Whether a site has predicted its labels."""
        return bool((predicted[self.scene.holdings.of(site)] != NOBODY).all())

    def asked_verdicts(
        self, federation: Federation, sites: tuple[int, ...], more: Callable[[int], Payload] | None
    ) -> tuple[Floats, Integers]:
        """The verdicts of these sites as they state them."""
        p_wrong = np.full(len(self.scene.given), np.nan)
        suggested = self.scene.given.copy()
        for client, verdict in federation.ask_all("judge", sites, more):
            mine = self.scene.holdings.of(client)
            held, judged = mine.stop - mine.start, {len(verdict["p_wrong"]), len(verdict["suggested"])}
            if judged != {held}:
                raise RunError(f"client {client}, judge: it holds {held} samples, its verdict is on {sorted(judged)}.")
            p_wrong[mine] = verdict["p_wrong"].double().numpy()
            suggested[mine] = verdict["suggested"].numpy()
        return p_wrong, suggested

    def detection(self, p_wrong: Floats, suggested: Integers, rounds: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """How good verdicts and estimates are against the truth; None everywhere if the truth is unknown."""
        scene = self.scene
        if scene.wrong is None or scene.true is None:
            return dict.fromkeys(("samples", "clients", "rates", "quality", "relabelled"))
        estimated = self.estimated_rates(p_wrong)
        held, judged = ~np.isnan(estimated), ~np.isnan(p_wrong)
        calls = p_wrong > 0.5
        after = np.where(calls, suggested, scene.given)
        return {
            "samples": detection.sample_detection(p_wrong[judged], scene.wrong[judged]),
            "clients": detection.client_detection(noisy_ones(estimated), noisy_ones(scene.realised)),
            "rates": detection.rate_errors(estimated[held], scene.realised[held]),
            "quality": self.quality(rounds),
            "relabelled": detection.relabelling(scene.given, after, scene.true),
        }

    def estimated_rates(self, p_wrong: Floats) -> Floats:
        """The share of each client's judged samples that were called wrong.

        NaN if the truth is unknown: samples that are hard to predict are called wrong too, and nobody can count them.
        """
        holdings = self.scene.holdings
        if self.scene.wrong is None:
            return np.full(holdings.clients, np.nan)
        called = np.bincount(holdings.client, weights=p_wrong > 0.5, minlength=holdings.clients)
        judged = np.bincount(holdings.client, weights=~np.isnan(p_wrong), minlength=holdings.clients)
        return np.where(judged > 0, called / np.maximum(judged, 1), np.nan)

    def own_test(self, federation: Federation) -> OwnTest | None:
        """The model that each site would use, on the site's own test part; None without a test part or for real sites.

        Where the data says which test rows are a site's, these are its part; else the common test part is weighted, so
        that classes count as often as among the site's labels: the true ones where they are known.
        """
        labels = self.labels.get("test")
        if labels is None or not len(labels) or not self.everybody:
            return None
        homes = self.homes_of_test_rows()
        mixture = self.scene.counts("given" if self.scene.true is None else "true")
        tested = tallied(labels, self.scene.classes) if homes is None else cross_tallied(homes, labels, mixture.shape)
        if homes is not None:
            mixture = tested
        right, answered = self.right_of_sites(federation, labels, homes)
        found = site_scores(mixture, tested, right)
        stated = answered & (found.rows >= LEAST_ROWS)
        return OwnTest(
            part=OWN_MIXTURE if homes is None else OWN_ROWS,
            rows=found.rows,
            accuracy=np.where(stated, found.accuracy, np.nan),
            balanced=np.where(stated, found.balanced, np.nan),
            asked=self.everybody,
        )

    def right_of_sites(
        self, federation: Federation, labels: Integers, homes: Integers | None
    ) -> tuple[Integers, NDArray[np.bool_]]:
        """How many test rows of each class (column) the model of each site (row) gets right, and which sites answered.

        `homes` has the site of every row, so that a site counts its own rows only.
        """
        shape = (self.scene.clients, self.scene.classes)
        right, answered = np.zeros(shape, np.int64), np.ones(shape[0], bool)
        if federation.method.own_models:
            answered[:] = False
            for client, logits in self.own_answers(federation, "test"):
                hit = logits.argmax(1) == labels
                mine = hit if homes is None else hit & (homes == client)
                right[client], answered[client] = tallied(labels[mine], shape[1]), True
            return right, answered
        hit = federation.method.joined(self.answers(federation, "test")).numpy().argmax(1) == labels
        if homes is None:
            right[:] = tallied(labels[hit], shape[1])
        else:
            right = cross_tallied(homes[hit], labels[hit], shape)
        return right, answered

    def homes_of_test_rows(self) -> Integers | None:
        """The site of every test row, by number; None if the data does not say whose rows they are.

        -1 stands for a site without training samples.
        """
        if self.test_sites is None or parse_spec(self.scene.partition)[0] != "column":
            return None
        numbers = {name: number for number, name in enumerate(self.scene.site_names)}
        names, places = np.unique(self.test_sites, return_inverse=True)
        return np.asarray([numbers.get(str(name), NOBODY) for name in names], np.int64)[places.reshape(-1)]

    def memorised(self, federation: Federation) -> dict[str, Any] | None:
        """How many wrong labels the global model has memorised; None if the truth is unknown."""
        if self.scene.true is None:
            return None
        return self.memorisation_of(self.predictions(federation)[0])

    def memorisation_of(self, predicted: Integers) -> dict[str, Any] | None:
        """How many wrong labels these predictions repeat; None if the truth is unknown."""
        if self.scene.true is None:
            return None
        asked = predicted != NOBODY
        return task.memorisation(predicted[asked], self.scene.given[asked], self.scene.true[asked])

    def predictions(self, federation: Federation) -> tuple[Integers, Floats]:
        """The global model's prediction for every training sample, and its loss on the given label.

        Samples of a site that could not answer have -1 and NaN.
        """
        predicted, losses = np.full_like(self.scene.given, NOBODY), np.full(len(self.scene.given), np.nan)
        for client, reply in federation.ask_all("predict", self.everybody):
            mine = self.scene.holdings.of(client)
            predicted[mine], losses[mine] = reply["predicted"].numpy(), reply["loss"].numpy()
        return predicted, losses


def begins_with_losses(method: type[Method]) -> bool:
    """Whether the verdict begins with the losses that `predict` tells, so that these need not be computed again.

    Another program's method may do anything in functions of its own, so these are called for every site.
    """
    functions = (method.verdict, method.logits, method.load)
    ours = all(function.__module__.startswith("fedwinnow.") for function in functions)
    begins = method.verdict is Method.verdict or "super" in method.verdict.__code__.co_names
    return ours and begins and method.predict is Method.predict


def tallied(labels: Integers, classes: int) -> Integers:
    """How many labels there are of each class."""
    return np.bincount(labels, minlength=classes)


def cross_tallied(homes: Integers, labels: Integers, shape: tuple[int, ...]) -> Integers:
    """How many labels of each class (column) every site (row) has; rows of no site do not count."""
    clients, classes = shape
    flat = (homes * classes + labels)[homes >= 0]
    return np.bincount(flat, minlength=clients * classes).reshape(clients, classes)


def noisy_ones(rates: Floats) -> list[int]:
    """The clients whose noise rate is above the limit; a client without a rate does not count."""
    found: list[int] = np.flatnonzero(rates > NOISY_CLIENT).tolist()
    return found
