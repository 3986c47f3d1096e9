"""RHFL: each client keeps its own model and learns from the others' predictions on public samples.

Fang and Ye: Robust Federated Learning with Noisy and Heterogeneous Clients, CVPR 2022.

| symbol | field or state | | symbol | field or state |
|---|---|---|---|---|
| D_0 | the run's public samples | | T_c | rounds of the run |
| η (β in the code) | confidence | | L_k | server.state["loss"] |
| SL | loss | | w_k | weights |

Models are never sent, so they may differ: `--model lenet+mlp` gives them to the clients in turn. In a round every
client sends its probabilities on the public samples and moves towards those of the others, each weighted by how well
that client's training goes (client confidence re-weighting, CCR). Then it trains on its own samples with symmetric
cross-entropy.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Exchange, Method, Replies
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.payload import COUNT, Exposure, Payload, ReplyForm, Summing
from fedwinnow.mathematics.two_gaussians import exact
from fedwinnow.options import option


@dataclass(frozen=True)
class Rhfl(Method):
    """Each client has its own model, perhaps of another kind, and learns from the others' answers on public samples."""

    name: ClassVar[str] = "rhfl"
    sums: ClassVar[dict[str, Summing]] = {}
    citation: ClassVar[str] = "Fang and Ye, Robust Federated Learning with Noisy and Heterogeneous Clients, CVPR 2022"
    stages: ClassVar[tuple[str, ...]] = ("pre_train", "collaborate")
    needs: ClassVar[tuple[str, ...]] = ("public_data",)
    own_models: ClassVar[bool] = True
    own_aggregation: ClassVar[bool] = True
    exposes: ClassVar[dict[str, Exposure]] = {"probabilities": "model", "loss": "client", "samples": "client"}
    forwards: ClassVar[dict[str, str]] = {
        "probabilities": "with two participants: each gets the answers of the other",
    }
    asks: ClassVar[str] = "all sites at once before the first round"

    preset: Literal["paper", "code"] = option("paper", "Follow the paper, or its released code where they differ.")
    loss: str = option("sce", "The loss on a client's own samples.", symbol="SL")
    pre_train: int | None = option(
        None, "Epochs on its own samples before the first round; none: one per round, as 40 of 40.", at_least=0
    )
    public_epochs: int = option(1, "Passes over the public samples in a round.", at_least=0)
    exchange: Literal["round", "batch"] = option(
        None,
        "Answer once a round, or for every batch of public samples, each time with a new optimiser.",
        presets={"paper": "round", "code": "batch"},
    )
    reweight: bool = option(True, "Weigh the others' answers by their confidence (ablation).")
    confidence: float = option(0.5, "How much confidence moves the weights.", symbol="η", at_least=0)
    negative: Literal["clamp", "keep"] = option(
        None,
        "Clients whose loss has risen have confidence 0, or a negative one, which may reverse all weights.",
        presets={"paper": "clamp", "code": "keep"},
    )

    # --- the server's half -----------------------------------------------------------------------------------------

    def start(self, server: Server) -> None:
        server.state["loss"] = torch.full((server.clients,), torch.nan, dtype=torch.float64)

    def send(self, server: Server, client: int) -> Payload:
        return {}  # there is no global model

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        if "next" not in sent and ask in ("prepare", "align", "train"):
            return {"samples": COUNT}
        start, stop = sent["next"].tolist()
        told = {"probabilities": ReplyForm((stop - start, server.classes), least=0, most=1)}
        return told | ({"loss": ReplyForm()} if ask == "answer" else {})

    def exchanges(self, server: Server) -> Generator[Exchange, Replies, None]:
        assert server.public is not None  # declared in `needs`
        server.note(stage="pre_train" if server.round == 1 else "collaborate")
        if server.round == 1 and self.pre_train != 0:
            yield Exchange("prepare", server.available, lambda client: {})
        pieces = self.pieces(len(server.public), server.public.training.batch_size)
        replies = yield Exchange("answer", self.choose(server), lambda client: {"next": pieces[0]})
        answers = dict(replies)
        weights = self.weights(server, {client: float(reply["loss"]) for client, reply in answers.items()})
        members = list(answers)
        for place, piece in enumerate(pieces if len(members) > 1 else []):
            following = {"next": pieces[place + 1]} if place + 1 < len(pieces) else {}
            towards = others_answers(answers, weights)
            sent = {client: {"piece": piece, "target": towards[client], **following} for client in members}
            replies = yield Exchange("align", members, sent.__getitem__)
            answers = dict(replies)
            members = list(answers)
        yield Exchange("train", members, lambda client: {})

    def pieces(self, count: int, batch_size: int) -> list[Tensor]:
        """The ranges of public samples that are answered together: the start and the end of each."""
        size = count if self.exchange == "round" else batch_size
        return [torch.tensor([start, min(start + size, count)]) for start in range(0, count, size)]

    def weights(self, server: Server, losses: dict[int, float]) -> dict[int, float]:
        """CCR, eqs. (9)-(12): softmax of 1/(K-1) + η F_k / ΣF, where F_k is the relative fall of the client's loss."""
        members, now = list(losses), torch.tensor(list(losses.values()), dtype=torch.float64)
        before = server.state["loss"][members]
        server.state["loss"][members] = now
        even = torch.full_like(now, 1.0 / max(len(members) - 1, 1))
        if not self.reweight or bool(before.isnan().all()):
            return dict(zip(members, even.tolist(), strict=True))
        fall = torch.nan_to_num((before - now) / now.clamp(min=1e-12))  # 0 for a client that was not seen before
        fall = fall.clamp(min=0) if self.negative == "clamp" else fall
        total = float(fall.sum())
        shares = fall / total if abs(total) > 1e-12 else torch.zeros_like(fall)
        found = (even + self.confidence * shares).softmax(0).tolist()
        server.note(confidence=dict(zip(members, found, strict=True)))
        return dict(zip(members, found, strict=True))

    # --- the client's half -----------------------------------------------------------------------------------------

    def prepare(self, client: Client, got: Payload) -> Payload:
        """Before the first round: train on the own samples."""
        epochs = client.rounds if self.pre_train is None else self.pre_train
        client.fit(
            lambda rows, x, y: self.objective(client, rows, x, y, got),
            epochs=epochs,
            by_hand=self.by_hand(client, got),
        )
        return {"samples": torch.tensor(len(client))}

    def answer(self, client: Client, got: Payload) -> Payload:
        """The mean loss on the own samples, and the probabilities of public samples."""
        losses = self.criterion(client.predict(), client.given, client.class_counts)
        return {"loss": exact(losses).mean().cpu().reshape(1), **self.said(client, got)}

    def said(self, client: Client, got: Payload) -> Payload:
        """The probabilities of the public samples that come next."""
        assert client.public is not None
        rows = torch.arange(*got["next"].tolist())
        return {"probabilities": client.public.predict(rows=rows).softmax(1).cpu()}

    def align(self, client: Client, got: Payload) -> Payload:
        """Eq. (6): lower Σ w_i KL(p_i || p_k) over the others i, which is -Σ (Σ w_i p_i) log p_k and a constant."""
        public = client.public
        assert public is not None
        start, stop = got["piece"].tolist()
        target = torch.zeros(len(public), client.classes)
        target[start:stop] = got["target"]
        public.fit(
            lambda rows, x, towards: -(towards * client.model.module(x).log_softmax(1)).sum(1).mean(),
            rows=torch.arange(start, stop),
            labels=target.to(client.model.device),
            epochs=self.public_epochs,
        )
        return self.said(client, got) if "next" in got else {"samples": torch.tensor(len(client))}

    def train(self, client: Client, got: Payload) -> Payload:
        """Eq. (8): train on the own samples with the robust loss."""
        client.fit(
            lambda rows, x, y: self.objective(client, rows, x, y, got),
            by_hand=self.by_hand(client, got),
        )
        return {"samples": torch.tensor(len(client))}


def others_answers(answers: dict[int, Payload], weights: dict[int, float]) -> dict[int, Tensor]:
    """For every client, Σ w_i p_i over the others; the weights are not rescaled after the client is left out."""
    weighted = {client: weights[client] * reply["probabilities"].double() for client, reply in answers.items()}
    whole = torch.stack(list(weighted.values())).sum(0)
    return {client: (whole - own).clamp(min=0).float() for client, own in weighted.items()}
