"""FedSIR: clean clients are known by how little the main feature directions of their classes are alike.

Gholami, Ali, Haghighi, Arafa, Alam: FedSIR: Spectral Client Identification and Relabeling for Federated Learning with
Noisy Labels, arXiv 2604.20825, 2026. Only the abstract and the released code were seen.

| symbol | field or state | | symbol | field or state |
|---|---|---|---|---|
| E1 | identify_epochs | | v_{k,c} | directions: the first right singular vector |
| R | refresh_every | | V_{k,c} | residuals: the vectors after the main ones |
| a, b, e | largest_share, ramp_start, ramp_end | | θ_clean | server.state["clean.weights"] |
| T | temperature | | ŷ | client.state["labels"] |

Stage 1, the first round: every client trains alone; wrong labels make each given class the same mixture of true ones,
so on a noisy client the directions of classes are alike. Then, every R rounds, clean clients tell the server their
directions, and noisy ones relabel a sample where its main direction and its residual point to the same class. In
between, all train as in the second stage of FedNoRo: logit adjustment, distillation, distance-aware aggregation.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Exchange, Method, Replies, Verdict, model_forms
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.aggregators import WeightedMean
from fedwinnow.mathematics.gaussian_mixture import Covariance, fit_mixtures
from fedwinnow.mathematics.loss_of_logits import LossOfLogits
from fedwinnow.mathematics.losses import CrossEntropy, LogitAdjustment
from fedwinnow.mathematics.payload import (
    COUNT,
    SAMPLES,
    Exposure,
    FlatModel,
    Payload,
    ReplyForm,
    Summing,
    is_finite,
    maybe,
)
from fedwinnow.models.features import length_of_features
from fedwinnow.options import option
from fedwinnow.steps.noisy_sites import (
    CLEAN,
    NOISY,
    UNKNOWN,
    distance_of_parameters,
    distance_per_tensor,
    give_roles,
    mean_by_nearness,
    to_nearest_clean,
    verdict_by_role,
)
from fedwinnow.steps.second_model import second_model
from fedwinnow.steps.site_labels import current_labels

CLEAN_MODEL = "clean."  # before the keys of θ_clean in the server's memory
STARTS, EM_STEPS = 30, 2000
RESIDUALS = 12  # residual vectors per class
WEAK = 0.03  # a smaller gap between the two largest eigenvalues of the mean: the clean clients do not agree
NOTHING_LEFT = 1e-9  # an eigenvalue of the residuals' mean that counts as 0

Relabel = Literal[
    "agree",
    "sr",
    "sn",
    "ratio",
    "agree_then_sr",
    "agree_then_sn",
    "agree_then_ratio",
    "agree_then_ratio_margin",
    "agree_then_margin",
    "argmax",
    "none",
]


@dataclass(frozen=True)
class FedSir(Method):
    """Clean clients, found by the spectra of their features, show noisy ones what a class looks like, to relabel by.

    `directions` and `residuals` have vectors of features per class; of a class with few samples they span these
    samples' features. --least-count leaves small classes out.
    """

    name: ClassVar[str] = "fedsir"
    sums: ClassVar[dict[str, Summing]] = {}
    citation: ClassVar[str] = "Gholami et al., FedSIR: Spectral Client Identification and Relabeling, arXiv 2604.20825"
    stages: ClassVar[tuple[str, ...]] = ("identify", "train")
    own_aggregation: ClassVar[bool] = True
    exposes: ClassVar[dict[str, Exposure]] = {
        **Method.exposes,
        "likeness": "client",
        "directions": "client",
        "residuals": "client",
        "spectra": "client",
    }
    forwards: ClassVar[dict[str, str]] = {
        "directions": "of a class that only one clean site has often enough, or on which clean sites do not agree",
        "residuals": "with them",
        "weights": "if one site alone is found clean: the model of its first round, and later the one for features",
        "counters": "with it",
    }
    asks: ClassVar[str] = "all sites at once in the first round, and later all of them whenever labels are refreshed"

    loss: str = option("logit_adjustment", "The loss of local training; cross_entropy: no logit adjustment.")
    identify_epochs: int = option(5, "Epochs that each client trains alone first.", symbol="E1", at_least=0)
    identify_views: bool = option(True, "Identify by features of random views, as in training (code).")
    min_class: int = option(20, "Identify by classes with so many samples, if there are two.", at_least=1)
    covariance: Covariance = option("full", "Form of the components that split the clients.")
    lone_client: Literal["noisy", "clean"] = option("noisy", "What a client with one class is; the code has no rule.")
    refresh_every: int | None = option(
        None, "Rounds between refreshes of the labels; none: a fifth of all, as 20 of 100.", symbol="R", at_least=1
    )
    first_refresh: int | None = option(
        None, "Rounds of training before the first refresh; none: as between refreshes.", at_least=0
    )
    reference_model: Literal["clean_mean", "global"] = option(
        "clean_mean", "Features by the mean of the clean clients' last models (code), or by the global model."
    )
    rank_share: float = option(
        0.9090909090909091,
        "Main directions have this share (10/11) of the singular values; the residuals follow.",
        above=0,
        at_most=1,
    )
    residual_rows: Literal["next", "last", "all"] = option(
        "next", "Residuals: the 12 vectors after the main ones (code), the 12 smallest, or all."
    )
    reference_weight: Literal["n_gap_s1", "n"] = option(
        "n_gap_s1", "Clean clients weigh by samples, gap and share of the first singular value (code), or by samples."
    )
    merge_class: int = option(100, "Average a class over clean clients with so many samples of it.", at_least=1)
    relabel: Relabel = option(
        "agree", "Which samples get which label; argmax (the reference model's prediction) is not in the code."
    )
    restart_labels: Literal["given", "last"] = option("given", "What a refresh starts from.")
    distil: Literal["disagree", "all", "none"] = option(
        "disagree", "Distil samples on which the two scores disagree, all samples of noisy clients, or none."
    )
    largest_share: float = option(0.2, "Weight of distillation after the ramp-up.", symbol="a", at_least=0, at_most=1)
    constant_share: bool = option(False, "Have that weight from the beginning; the code has a ramp-up.")
    ramp_start: int | None = option(None, "Round where the ramp-up begins; none: 2 % of all.", symbol="b", at_least=0)
    ramp_end: int | None = option(None, "Round where it ends; none: 49 % of all.", symbol="e", at_least=0)
    temperature: float = option(0.8, "Divides the teacher's logits; 1 in a setting that the code never reads.", above=0)
    prior: Literal["given", "current"] = option("given", "Logit adjustment by the given labels (code), or the current.")
    aggregation: Literal["distance", "mean"] = option("distance", "Distant models of noisy clients weigh less, or not.")
    distance: Literal["per_tensor", "parameters"] = option(
        "per_tensor",
        "Distance of models: the sum over tensors, with running statistics (code), or over all trainable parameters.",
    )

    def by_class(self) -> dict[str, int]:
        return {"directions": 0, "residuals": 0, "spectra": 0}

    # --- the stages, as the server plays them ----------------------------------------------------------------------

    def start(self, server: Server) -> None:
        server.state["role"] = torch.full((server.clients,), UNKNOWN)

    def exchanges(self, server: Server) -> Generator[Exchange, Replies, None]:
        if server.round == 1:
            server.note(stage="identify")
            replies = yield Exchange("identify", server.available, lambda client: dict(server.weights))
            self.split_clients(server, dict(replies))
            return
        server.note(stage="train")
        if self.refreshes(server):
            yield from self.refresh(server)
        replies = yield Exchange("train", self.choose(server), lambda client: self.send(server, client))
        self.merge(server, replies)

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        if ask == "relabel_samples":
            return {"samples": COUNT}
        if ask == "describe":
            length, classes = length_of_features(server.model.module, server.classes), server.classes
            vectors = {"directions": (classes, length), "residuals": (classes, None, length)}
            spectra = ReplyForm((classes, 3), least=0, most=SAMPLES, check=problem_with_shares)
            return {key: ReplyForm(shape, least=-1, most=1) for key, shape in vectors.items()} | {"spectra": spectra}
        return model_forms(server) | (
            maybe({"likeness": ReplyForm((2,), least=0, most=1)}) if ask == "identify" else {}
        )

    def send(self, server: Server, client: int) -> Payload:
        """The global model, whether the client is noisy, and the weight of distillation."""
        role, share = server.state["role"][client], self.share(server)
        return {**server.weights, "role": role.reshape(1), "share": torch.tensor([share])}

    def refreshes(self, server: Server) -> bool:
        """Whether labels are refreshed before this round; r = 0, 1, ... counts the rounds of training."""
        every = max(1, round(server.rounds / 5)) if self.refresh_every is None else self.refresh_every
        since = server.round - 2 - (every if self.first_refresh is None else self.first_refresh)
        return since >= 0 and since % every == 0

    def share(self, server: Server) -> float:
        """w = a exp(-5 (1 - (r - b) / (e - b))²), r held between b and e."""
        begin = round(0.02 * server.rounds) if self.ramp_start is None else self.ramp_start
        end = round(0.49 * server.rounds) if self.ramp_end is None else self.ramp_end
        if self.constant_share or end <= begin:
            return self.largest_share
        progress = (min(max(server.round - 2, begin), end) - begin) / (end - begin)
        return self.largest_share * math.exp(-5 * (1 - progress) ** 2)

    def merge(self, server: Server, replies: Replies) -> None:
        """Distance-aware aggregation as in FedNoRo; the clean models' mean is kept for the next refresh."""
        models = dict(replies)  # all together, because every noisy one is compared with every clean one
        distance = distance_per_tensor if self.distance == "per_tensor" else distance_of_parameters
        away = to_nearest_clean(server, models, distance)
        self.keep_clean_mean(server, models)
        server.weights = mean_by_nearness(server, models, away if self.aggregation == "distance" else 0 * away)

    def keep_clean_mean(self, server: Server, models: dict[int, Payload]) -> None:
        """θ_clean: the mean of these clients' models that are clean; without one the last stays."""
        mean = WeightedMean(server.weights)
        for client, reply in models.items():
            if server.state["role"][client] == CLEAN:
                mean.add(reply, float(reply["samples"]))
        if mean.total:
            server.state |= {CLEAN_MODEL + key: value for key, value in mean.result().items()}

    def clean_mean(self, server: Server) -> Payload:
        """θ_clean as a model."""
        return {key: server.state[CLEAN_MODEL + key].clone() for key in server.weights}

    # --- stage 1: which clients are clean --------------------------------------------------------------------------

    def identify(self, client: Client, got: Payload) -> Payload:
        """Train alone on the given labels; tell how much the directions of the classes are alike, if there are two."""
        client.model.load(got)
        usual = LossOfLogits(CrossEntropy(), client.class_counts)
        client.fit(
            lambda rows, x, y: usual.criterion.mean(client.model.module(x), y, client.class_counts),
            epochs=self.identify_epochs,
            by_hand=usual,
        )
        _, features = client.predict_with_features(views=self.identify_views)
        counts = torch.where(client.few, 0, client.class_counts)  # a class with too few samples tells nothing
        used = (counts >= self.min_class).nonzero().flatten()
        used = used if len(used) >= 2 else counts.nonzero().flatten()
        if len(used) < 2:
            return self.reply(client)
        alike = likeness_of_classes([features[client.given == number] for number in used.tolist()])
        return self.reply(client) | {"likeness": alike}

    def split_clients(self, server: Server, replies: dict[int, Payload]) -> None:
        """Clean clients by a mixture over their numbers; the global model becomes the mean of their models."""
        told = [client for client, reply in replies.items() if "likeness" in reply]
        noisy = torch.full((len(replies),), self.lone_client == "noisy" and bool(told))
        if told:
            points = torch.stack([replies[client]["likeness"] for client in told]).double()
            places = [client in told for client in replies]
            noisy[torch.tensor(places)] = noisy_by_likeness(points, server.seed, self.covariance)
            server.note(likeness=dict(zip(told, points.tolist(), strict=True)))
        found = [client for client, bad in zip(replies, noisy.tolist(), strict=True) if bad]
        server.note(noisy_clients=found, measured=list(replies))
        give_roles(server, list(replies), noisy)
        self.keep_clean_mean(server, replies)
        server.weights = self.clean_mean(server)

    # --- refresh: clean clients tell what classes look like, noisy ones relabel -------------------------------------

    def refresh(self, server: Server) -> Generator[Exchange, Replies, None]:
        """All features are those of θ_clean; the references are the same for all noisy clients."""
        role = server.state["role"]
        clean, noisy = ([client for client in server.available if role[client] == kind] for kind in (CLEAN, NOISY))
        if not clean or not noisy:
            return
        model = self.clean_mean(server) if self.reference_model == "clean_mean" else dict(server.weights)
        replies = yield Exchange("describe", clean, lambda client: model)
        described = {client: {key: reply[key] for key in self.by_class()} for client, reply in replies}
        references = self.references(server, described)
        yield Exchange("relabel_samples", noisy, lambda client: model | references)

    def describe(self, client: Client, got: Payload) -> Payload:
        """Of every class: v, V, and the numbers by which the server weighs them (samples, gap, share of the first)."""
        client.model.load(got)
        _, features = client.predict_with_features()
        told = ~client.few[client.given]  # not even the number of a small class's residuals may be told
        held = [features[told & (client.given == number)] for number in range(client.classes)]
        spectra = [spectrum_of(rows, self.rank_share, self.residual_rows) for rows in held]
        most = max(len(residuals) for _, residuals, *_ in spectra)
        padded = features.new_zeros(client.classes, most, features.shape[1])
        for number, (_, residuals, *_) in enumerate(spectra):
            padded[number, : len(residuals)] = residuals
        facts = [[float(len(rows)), gap, first] for rows, (*_, gap, first) in zip(held, spectra, strict=True)]
        return {
            "directions": torch.stack([direction for direction, *_ in spectra]).cpu(),
            "residuals": padded.cpu(),
            "spectra": torch.tensor(facts),
        }

    def references(self, server: Server, described: dict[int, Payload]) -> Payload:
        """v̄ and V̄ of every class; rows of zeros for a class that no clean client holds."""
        directions = next(iter(described.values()))["directions"]
        found = directions.new_zeros(server.classes, directions.shape[1])
        residuals = directions.new_zeros(server.classes, RESIDUALS, directions.shape[1])
        missing = []
        for number in range(server.classes):
            known = [{key: value[number].double() for key, value in said.items()} for said in described.values()]
            known = [said for said in known if float(said["spectra"][0]) > 0]
            if not known:
                missing.append(number)
                continue
            found[number], rows = self.reference(known)
            residuals[number, : len(rows)] = rows
        server.note(classes_without_reference=missing)
        return {"directions": found, "residuals": residuals}

    def reference(self, known: list[Payload]) -> tuple[Tensor, Tensor]:
        """v̄ and V̄ of one class: the main directions of the clean clients' means, or what the largest client sent."""
        often = [said for said in known if float(said["spectra"][0]) >= self.merge_class]
        factors = torch.stack([said["spectra"] for said in often]) if often else torch.zeros(0, 3)
        weights = factors.prod(1) if self.reference_weight == "n_gap_s1" else factors[:, 0]
        if float(weights.sum()) > 0:
            shares = (weights / weights.sum()).sqrt()
            # M = Σ w v v^T / Σ w has the squared singular values of the rows √w v, and their right singular vectors.
            strengths, main = squared_spectrum(
                torch.stack([share * said["directions"] for share, said in zip(shares, often, strict=True)])
            )
            left = torch.cat([share * rows_of(said["residuals"]) for share, said in zip(shares, often, strict=True)])
            if float(strengths[0] - (strengths[1] if len(strengths) > 1 else 0.0)) >= WEAK:
                values, vectors = squared_spectrum(left)
                return main[0], vectors[values > NOTHING_LEFT][:RESIDUALS]
        largest = max(known, key=lambda said: float(said["spectra"][0]))
        return largest["directions"], rows_of(largest["residuals"])[:RESIDUALS]

    def relabel_samples(self, client: Client, got: Payload) -> Payload:
        """New labels, and which samples are distilled; nothing about them leaves the site."""
        client.model.load(got)
        logits, features = client.predict_with_features()
        main, residual = scores(features, got["directions"].to(features), got["residuals"].to(features))
        before = current_labels(client) if self.restart_labels == "last" else client.given
        client.state["labels"] = (
            logits.argmax(1) if self.relabel == "argmax" else relabelled(main, residual, before, self.relabel)
        )
        client.state["doubtful"] = ~agreeing(main, residual)
        client.note(pseudo_labels=client.state["labels"])
        return {"samples": torch.tensor(len(client))}

    # --- local training --------------------------------------------------------------------------------------------

    def train(self, client: Client, got: Payload) -> Payload:
        """Logit adjustment on the current labels; a noisy client distils the global model's predictions besides."""
        client.model.load(got)
        shares = self.shares(client, got)
        labels = current_labels(client)
        if not bool(shares.any()):
            client.fit(
                lambda rows, x, y: self.objective(client, rows, x, y, got),
                labels=labels,
                by_hand=self.by_hand(client, got),
            )
            return self.reply(client)
        teacher = second_model(client, client.model.weights)
        teacher.module.eval()
        client.fit(lambda rows, x, y: self.distilled(client, teacher, shares[rows.to(y.device)], x, y), labels=labels)
        return self.reply(client)

    def shares(self, client: Client, got: Payload) -> Tensor:
        """The weight of distillation of every sample; before the first refresh all samples are distilled."""
        share = float(got["share"]) if int(got["role"]) == NOISY and self.distil != "none" else 0.0
        every = torch.ones(len(client), dtype=torch.bool)
        chosen = client.state.get("doubtful", every) if self.distil == "disagree" else every
        return share * chosen.to(client.given.device).float()

    def objective(self, client: Client, rows: Tensor, x: Tensor, y: Tensor, got: Payload) -> Tensor:
        """CE(f(x) + m_k, ŷ), the mean over a batch."""
        x, target = self.mix(client, x, y)
        return self.criterion.mean(client.model.module(x), target, self.counts(client))

    def by_hand(self, client: Client, got: Payload) -> LossOfLogits | None:
        return LossOfLogits(self.criterion, self.counts(client), lambda x, y: self.mix(client, x, y))

    def counts(self, client: Client) -> Tensor:
        """What m_k = log p_k is made of: how often the site has each class, but at least once."""
        labels = client.given if self.prior == "given" else current_labels(client)
        # Not bincount, which waits for a card, because this is asked for in every batch.
        counts = labels.new_zeros(client.classes).scatter_add_(0, labels, torch.ones_like(labels))
        return counts.clamp(min=1)

    def distilled(self, client: Client, teacher: FlatModel, shares: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """w KL(q || p) + (1 - w) CE(p, ŷ) with w = 0 for samples that are not distilled, the mean over a batch."""
        counts = self.counts(client)
        x, target = self.mix(client, x, y)
        logits = client.model.module(x)
        with torch.no_grad():
            client.forward_samples += len(x)
            wanted = (teacher.module(x) / self.temperature).log_softmax(1)
        loss_of = self.criterion
        student = loss_of.adjusted(logits, counts) if isinstance(loss_of, LogitAdjustment) else logits
        divergence = (wanted.exp() * (wanted - student.log_softmax(1))).sum(1)
        loss: Tensor = shares * divergence + (1 - shares) * loss_of(logits, target, counts)
        return loss.mean()

    # --- the verdict on labels -------------------------------------------------------------------------------------

    def verdict(self, client: Client, got: Payload) -> Verdict:
        """By the losses of the global model; in the upper half where a noisy client has relabelled the sample."""
        return verdict_by_role(super().verdict(client, got), client, got, client.state.get("labels"))


# --- spectra of features, in float64 ----------------------------------------------------------------------------------


def problem_with_shares(facts: Tensor) -> str | None:
    """Why the gap and the first share of every class are none, beside its number of samples; None if they are."""
    return None if bool((facts[:, 1:] <= 1 + 1e-5).all()) else "has a share above 1"


def squared_spectrum(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The squared singular values of these rows, largest first, and the right singular vectors."""
    _, values, vectors = torch.linalg.svd(rows.double(), full_matrices=False)
    return values.square(), vectors


def likeness_of_classes(held: list[Tensor]) -> Tensor:
    """Mean and mean square of |v_c · v_c'| over the pairs of classes, v_c the main direction of a class's features."""
    if not all(is_finite(rows) for rows in held):
        return torch.full((2,), math.nan)  # the training has failed, which the check of replies says
    main = torch.stack([squared_spectrum(rows)[1][0] for rows in held])
    pairs = torch.triu_indices(len(main), len(main), offset=1)
    alike = (main @ main.T).abs()[pairs[0], pairs[1]]
    return torch.stack([alike.mean(), alike.square().mean()]).cpu()


def noisy_by_likeness(points: Tensor, seed: int, covariance: Covariance) -> Tensor:
    """The component with the larger likeness, of the likeliest of 30 mixtures; nobody if it has told nothing apart."""
    centred = points - points.mean(0)
    spread = points.std(0, correction=0)
    if len(points) < 2 or float(spread.max()) < NOTHING_LEFT:
        return torch.zeros(len(points), dtype=torch.bool)
    fitted = fit_mixtures(centred / (spread + 1e-12), STARTS, seed, covariance=covariance, steps=EM_STEPS)
    best = int(fitted.likelihood.argmax())
    first, second = fitted.means[best, :, 0].tolist()
    noisy = fitted.second[best] if second > first else ~fitted.second[best]
    return noisy & ~noisy.all()


def spectrum_of(rows: Tensor, rank_share: float, kind: str) -> tuple[Tensor, Tensor, float, float]:
    """v, V, (s_1 - s_2) / s_1 and s_1 / Σ s of a class's features; zeros for a class without samples."""
    if not len(rows) or not rows.any():
        nothing = rows.new_zeros(rows.shape[1])
        return nothing, nothing[None, :][:0], 0.0, 0.0
    squares, vectors = squared_spectrum(rows)
    values = squares.sqrt()
    # The smallest k whose first k singular values have this share; the small number is for rounding.
    rank = int((values.cumsum(0) < rank_share * values.sum() * (1 - 1e-12)).sum()) + 1
    left = vectors[rank:]
    left = {"next": left[:RESIDUALS], "last": left[-RESIDUALS:], "all": left}[kind]
    second = float(values[1]) if len(values) > 1 else 0.0
    first = float(values[0])
    return vectors[0].to(rows), left.to(rows), (first - second) / first, first / float(values.sum())


def rows_of(padded: Tensor) -> Tensor:
    """The rows that are not zero: vectors of length 1 were padded with zeros."""
    return padded[padded.any(1)]


def scores(features: Tensor, directions: Tensor, residuals: Tensor) -> tuple[Tensor, Tensor]:
    """SR = |z · v̄| / (|z| |v̄|) and SN = |V̄ z| / √rows of every sample and class, both larger where likelier.

    SN is returned with a minus sign. A class without a reference is the least likely of all; so is, by SN alone, one
    without residuals.
    """
    z = features.double()
    known, count = directions.any(1), residuals.any(2).sum(1)
    lengths = z.norm(dim=1, keepdim=True).clamp(min=1e-12) * directions.double().norm(dim=1).clamp(min=1e-12)
    main = (z @ directions.double().T).abs() / lengths
    left = torch.einsum("crd,nd->ncr", residuals.double(), z).norm(dim=2) / count.clamp(min=1).sqrt()
    return torch.where(known, main, -1.0), torch.where(known & (count > 0), -left, -torch.inf)


def agreeing(main: Tensor, residual: Tensor) -> Tensor:
    """Which samples both scores give the same class; not one without residuals, nor a sample without features."""
    chosen = main.argmax(1)
    sure = residual.gather(1, chosen.unsqueeze(1)).squeeze(1).isfinite() & (main.amax(1) > 0)
    return sure & (chosen == residual.argmax(1))


def relabelled(main: Tensor, residual: Tensor, before: Tensor, rule: str) -> Tensor:
    """The labels after a refresh; `before` stays where a rule has no answer."""
    ratio = residual / (main.clamp(min=0) + 1e-6)
    by_main, by_residual, by_ratio = (table.argmax(1) for table in (main, residual, ratio))
    by_residual, by_ratio = (
        torch.where(table.amax(1).isfinite(), found, before)
        for table, found in ((residual, by_residual), (ratio, by_ratio))
    )
    otherwise = {
        "sr": by_main,
        "sn": by_residual,
        "ratio": by_ratio,
        "ratio_margin": torch.where(margin(ratio) > 0, by_ratio, before),
        "margin": torch.where(margin(main) > 0.2, by_main, by_residual),
    }
    found = before if rule in ("none", "agree") else otherwise[rule.removeprefix("agree_then_")]
    if rule.startswith("agree"):
        found = torch.where(agreeing(main, residual), by_main, found)
    return torch.where(main.amax(1) > 0, found, before)


def margin(table: Tensor) -> Tensor:
    """By how much the best class of every sample is ahead of the second."""
    if table.shape[1] < 2:
        return torch.full((len(table),), torch.inf, device=table.device)
    best = table.topk(2, dim=1).values
    return (best[:, 0] - best[:, 1]).nan_to_num(nan=0.0)
