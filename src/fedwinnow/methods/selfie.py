"""SELFIE: train on small losses, and give a new label to samples that the model keeps predicting the same way.

Song, Kim, Lee: SELFIE: Refurbishing Unclean Samples for Robust Deep Learning, ICML 2019. Federated as in FedRN: the
label history stays on the site, the warm-up counts rounds.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| q | history | | τ | forget_rate |
| ε | uncertainty | | γ (warm-up) | warm_up |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Method, Verdict
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.losses import mean_over
from fedwinnow.mathematics.payload import Payload
from fedwinnow.mathematics.small_loss import estimated_rate, kept_count, smallest
from fedwinnow.options import option
from fedwinnow.steps.site_labels import NOTHING, History, sample_losses, uncertainty, upper_half_where_wrong
from fedwinnow.steps.stages import after_warm_up


@dataclass(frozen=True)
class Selfie(Method):
    """Small losses keep their label, consistently predicted samples get a new one, the rest is left out."""

    name: ClassVar[str] = "selfie"
    citation: ClassVar[str] = "Song et al., SELFIE: Refurbishing Unclean Samples for Robust Deep Learning, ICML 2019"
    stages: ClassVar[tuple[str, ...]] = ("warm_up", "refurbish")

    preset: Literal["paper", "code"] = option("paper", "Follow the paper, or FedRN's code where they differ.")
    history: int = option(15, "Predictions of a sample that are remembered.", symbol="q", source="FedRN", at_least=1)
    uncertainty: float = option(
        0.05, "Up to this normalised entropy a sample is refurbished.", symbol="ε", at_least=0, at_most=1
    )
    forget_rate: float = option(
        0.2, "Share of every batch that is not clean.", symbol="τ", source="FedRN", at_least=0, at_most=1
    )
    rate_from: Literal["given", "estimated"] = option(
        "given", "Forget the given share, or the share of wrong labels by each client's mixture of losses."
    )
    warm_up: int | None = option(None, "Rounds on all samples first; none: a fifth of all, as 100 of 500.", at_least=0)
    half_full: Literal["wait", "zeros"] = option(
        None,
        "Refurbish only when the history is full, or count missing predictions as class 0.",
        presets={"paper": "wait", "code": "zeros"},
    )
    sticky: bool = option(
        None, "A label once refurbished stays until another takes its place.", presets={"paper": False, "code": True}
    )
    second_pass: bool = option(
        None, "Pass what is kept through the model once more.", presets={"paper": False, "code": True}
    )

    def question(self, server: Server) -> tuple[str, str]:
        return after_warm_up(server, self.warm_up, "refurbish")

    # --- the client's half -----------------------------------------------------------------------------------------

    def train_plainly(self, client: Client, got: Payload) -> Payload:
        """The usual training; predictions go into the history."""
        history = self.predictions(client)
        client.model.load(got)

        def objective(rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
            logits = client.model.module(x)
            history.add(rows, logits.argmax(1))
            return self.criterion.mean(logits, y, client.class_counts)

        client.fit(objective)
        return self.reply(client)

    def train(self, client: Client, got: Payload) -> Payload:
        history, new = self.predictions(client), self.refurbished(client)
        client.model.load(got)
        rate = self.forget_rate
        if self.rate_from == "estimated":
            rate = estimated_rate(sample_losses(client.predict(), client.given))
        clean = torch.zeros(len(client), dtype=torch.bool, device=new.device)

        def objective(rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
            rows = rows.to(y.device)
            logits = client.model.module(x)
            losses = self.criterion(logits, y, client.class_counts)
            clean[rows] = False
            clean[rows[smallest(losses, kept_count(len(rows), rate, up=True))]] = True
            self.refurbish(client, history, new, rows)
            history.add(rows, logits.argmax(1))
            # The mean over clean and refurbished samples; a sample that is both has its refurbished label.
            target = torch.where(new[rows] != NOTHING, new[rows], y)
            keep = clean[rows] | (new[rows] != NOTHING)
            if self.second_pass:
                kept = keep.nonzero().flatten()
                client.forward_samples += len(kept)
                return self.criterion.mean(client.model.module(x[kept]), target[kept], client.class_counts)
            return mean_over(self.criterion(logits, target, client.class_counts), keep)

        client.fit(objective)
        client.note(selected=clean, pseudo_labels=new)
        return self.reply(client)

    def refurbish(self, client: Client, history: History, new: Tensor, rows: Tensor) -> None:
        """New labels for the samples with a consistent history; others lose their new label, or keep it if `sticky`."""
        zeros = self.half_full == "zeros"
        frequencies = history.frequencies(rows, client.classes, whole=zeros)  # P(y | x; q)
        sure = uncertainty(frequencies) <= self.uncertainty  # F(x; q)
        sure &= history.full[rows] | zeros
        before = new[rows] if self.sticky else torch.full_like(rows, NOTHING)
        new[rows] = torch.where(sure, frequencies.argmax(1), before)

    def predictions(self, client: Client) -> History:
        """H(q): the last q predictions of every sample."""
        return History(client, "predictions", self.history, dtype=torch.int64)

    def refurbished(self, client: Client) -> Tensor:
        """The last new label of each sample, or NOTHING."""
        none = torch.full((len(client),), NOTHING, dtype=torch.int64)
        client.state["labels"] = client.state.get("labels", none).to(client.given.device)
        return client.state["labels"]

    def verdict(self, client: Client, got: Payload) -> Verdict:
        """By the losses; where a sample has a refurbished label, that label decides which half p_wrong is in."""
        verdict = super().verdict(client, got)
        if "labels" not in client.state:
            return verdict
        new = client.for_all(client.state["labels"], torch.full_like(client.given, NOTHING))
        wrong = upper_half_where_wrong(verdict.p_wrong, new != client.given)
        known = new != NOTHING
        return Verdict(torch.where(known, wrong, verdict.p_wrong), torch.where(known, new, verdict.suggested))
