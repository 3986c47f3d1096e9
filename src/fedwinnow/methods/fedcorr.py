"""FedCorr: find the noisy clients by the dimensionality of their outputs, correct their labels, then train as usual.

Xu, Chen, Quek, Chong: FedCorr: Multi-Stage Federated Learning for Label Noise Correction, CVPR 2022.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| T1 (passes) | passes | | π | relabel_ratio |
| T2 (rounds) | fine_tune_rounds | | θ | confidence |
| β | beta | | κ | clean_rate |
| k | lid_neighbours | | α (MixUp) | mixup |

Stage 1 visits every client once per pass. After a pass the server splits the clients by their accumulated LID; the
noisy ones estimate their rate and correct confident, high-loss labels for good. Stage 2 trains on clean clients only
and relabels the noisy ones. Stage 3 is FedAvg on everybody.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.errors import UsageError
from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Exchange, Method, Replies, Verdict
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.intrinsic_dimension import local_intrinsic_dimensionality
from fedwinnow.mathematics.payload import Exposure, Payload
from fedwinnow.mathematics.proximal import distance_to
from fedwinnow.mathematics.small_loss import estimated_rate
from fedwinnow.mathematics.two_gaussians import fit_two_gaussians
from fedwinnow.options import option
from fedwinnow.steps.passes_over_clients import rounds_of_passes, steps_of_turn
from fedwinnow.steps.relabel import confident_labels, current_labels, largest, leaning
from fedwinnow.steps.sample_losses import sample_losses
from fedwinnow.steps.watched_replies import noted


@dataclass(frozen=True)
class FedCorr(Method):
    """Three stages: correct labels while passing the model around, fine-tune on clean clients, train as usual."""

    name: ClassVar[str] = "fedcorr"
    citation: ClassVar[str] = "Xu et al., FedCorr: Multi-Stage Federated Learning for Label Noise Correction, CVPR 2022"
    stages: ClassVar[tuple[str, ...]] = ("correct", "fine_tune", "usual")
    exposes: ClassVar[dict[str, Exposure]] = {
        **Method.exposes,
        "lid": "client",
        "rate": "client",
        "relabelled": "client",
    }
    forwards: ClassVar[dict[str, str]] = {
        "weights": "stage 1 with group=1: the next site in turn starts from its model as it is",
        "counters": "with it",
    }
    asks: ClassVar[str] = "all sites in turn in stage 1; after each pass and after stage 2 all that seem noisy, at once"

    preset: Literal["paper", "code"] = option("paper", "Follow the paper, or its released code where they differ.")
    passes: int | None = option(
        None, "Passes of stage 1; none: a twentieth of all client trainings, at least 2.", symbol="T1", at_least=0
    )
    fine_tune_rounds: int | None = option(
        None, "Rounds of stage 2; none: 10/19 of what stage 1 leaves.", symbol="T2", at_least=0
    )
    group: int = option(1, "Clients per step of stage 1: 1 passes the model on from client to client.", at_least=1)
    relabel_ratio: float = option(0.5, "Share of the suspected labels to correct.", symbol="π", at_least=0, at_most=1)
    confidence: float = option(0.5, "Probability from which a prediction corrects.", symbol="θ", at_least=0, at_most=1)
    beta: float = option(5.0, "Weight of the proximal term, times the client's rate.", symbol="β", at_least=0)
    clean_rate: float = option(0.1, "Clients up to this rate are in stage 2.", symbol="κ", at_least=0, at_most=1)
    lid_neighbours: int = option(20, "Neighbours for the LID.", symbol="k", at_least=1)
    mixup: float = option(1.0, "Mix with a share from Beta(mixup, mixup); 0: no mixing.", symbol="α", at_least=0)
    correct: bool = option(True, "Correct labels at all (ablation).")
    fine_tune: bool = option(True, "Have stage 2 (ablation); its rounds go to stage 3.")
    usual: bool = option(True, "Have stage 3 (ablation); its rounds go to stage 2.")
    sample_loss: Literal["cross_entropy", "double_softmax"] | None = option(
        None,
        "The loss by which suspected samples are found.",
        presets={"paper": "cross_entropy", "code": "double_softmax"},
    )
    prox: Literal["squared", "norm"] | None = option(
        None, "The proximal term: squared distance, or the distance.", presets={"paper": "squared", "code": "norm"}
    )
    prox_first_batch: bool | None = option(
        None, "Have the proximal term in the first batch of an epoch too.", presets={"paper": True, "code": False}
    )
    scoring_views: bool | None = option(
        None, "Score samples on random views, as in training.", presets={"paper": False, "code": True}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.fine_tune and not self.usual:
            raise UsageError(
                "fedcorr: fine_tune=false and usual=false were given, so nothing is left to do after stage 1; allowed: "
                "one of them. For stage 1 alone give as many passes as fill the run, for example passes=100."
            )

    # --- the server's half -----------------------------------------------------------------------------------------

    def start(self, server: Server) -> None:
        server.state["lid"] = torch.zeros(server.clients, dtype=torch.float64)  # summed over the passes
        server.state["rate"] = torch.zeros(server.clients, dtype=torch.float64)
        server.state["noisy"] = torch.zeros(server.clients, dtype=torch.bool)

    def lengths(self, server: Server) -> tuple[int, int]:
        """Rounds of stages 1 and 2; stage 3 has the rest."""
        first = rounds_of_passes(server, self.passes)
        left = server.rounds - first
        if not self.usual or not self.fine_tune:
            return first, left if self.fine_tune else 0
        second = round(left * 500 / 950) if self.fine_tune_rounds is None else self.fine_tune_rounds
        return first, min(second, left)

    def exchanges(self, server: Server) -> Generator[Exchange, Replies, None]:
        first, second = self.lengths(server)
        if server.round <= first:
            server.note(stage="correct")
            yield from self.correction_round(server, server.round - 1)
        elif server.round <= first + second:
            server.note(stage="fine_tune")
            yield from self.fine_tuning_round(server, last=server.round == first + second)
        else:
            server.note(stage="usual")
            replies = yield Exchange("train", server.sample(), lambda client: self.send(server, client))
            self.merge(server, replies)

    def correction_round(self, server: Server, index: int) -> Generator[Exchange, Replies, None]:
        """Stage 1: pass the model on; when everybody was visited, find the noisy clients and let them correct."""
        for clients in steps_of_turn(server, index, self.group):
            replies = yield Exchange("train_and_measure", clients, lambda client: self.send(server, client))
            self.merge(server, replies)
        if (index + 1) % server.rounds_per_pass == 0:
            noisy = self.split_clients(server)
            server.note(noisy_clients=len(noisy))
            server.state["rate"].zero_()
            if noisy:
                replies = yield Exchange("correct_labels", noisy, lambda client: self.send(server, client))
                self.merge_rates(server, replies)

    def fine_tuning_round(self, server: Server, *, last: bool) -> Generator[Exchange, Replies, None]:
        """Stage 2: FedAvg on the clean pool; at its end the noisy clients relabel what the model is sure of."""
        pool = self.clean_pool(server)
        server.note(clean_pool=len(pool))
        replies = yield Exchange("train", server.sample(among=pool), lambda client: self.send(server, client))
        self.merge(server, replies)
        noisy = [client for client in server.available if server.state["noisy"][client]]
        if last and self.correct and noisy:
            replies = yield Exchange("relabel_all", noisy, lambda client: self.send(server, client))
            server.note(relabelled=sum(int(reply["relabelled"]) for _, reply in replies))

    def split_clients(self, server: Server) -> list[int]:
        """Two Gaussians on the accumulated LID: the upper one holds the noisy clients."""
        members = torch.tensor(server.available)
        scores = server.state["lid"][members]
        noisy = fit_two_gaussians(scores).p_low(scores) < 0.5
        server.state["noisy"].zero_()
        server.state["noisy"][members[noisy]] = True
        return [int(client) for client in members[noisy]]

    def clean_pool(self, server: Server) -> list[int]:
        """Clients with a rate up to kappa; where there is none, those with the lowest rates."""
        rates = server.state["rate"]
        pool = [client for client in server.available if float(rates[client]) <= self.clean_rate]
        return pool or sorted(server.available, key=lambda client: float(rates[client]))[: server.per_round]

    def send(self, server: Server, client: int) -> Payload:
        leash = self.beta * server.state["rate"][client] if server.round <= self.lengths(server)[0] else torch.zeros(())
        return {**server.weights, "leash": leash.float().reshape(1)}

    def merge(self, server: Server, replies: Replies) -> None:
        replies, news = noted(replies, maybe=("lid",))
        super().merge(server, replies)
        for client, said in news.items():
            if "lid" in said:
                server.state["lid"][client] += said["lid"].double().item()

    def merge_rates(self, server: Server, replies: Replies) -> None:
        """Take in the noisy clients' own estimates."""
        changed = 0
        for client, reply in replies:
            server.state["rate"][client] = reply["rate"].double().item()
            changed += int(reply["relabelled"])
        server.note(relabelled=changed)

    # --- the client's half -----------------------------------------------------------------------------------------

    def train(self, client: Client, got: Payload) -> Payload:
        client.model.load(got)
        leash, batches = float(got["leash"]), 0

        def rows_of_epoch() -> Tensor:
            nonlocal batches
            batches = 0
            return torch.arange(len(client))

        def objective(rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
            nonlocal batches
            batches += 1
            loss = self.objective(client, rows, x, y, got)
            if leash == 0 or (batches == 1 and not self.prox_first_batch):
                return loss
            # L + beta mu_k |w - w_global|^2: the noisier a client is, the shorter its leash
            return loss + leash * distance_to(got["weights"], client.model, squared=self.prox == "squared")

        client.fit(objective, rows=rows_of_epoch, labels=current_labels(client))
        return self.reply(client)

    def train_and_measure(self, client: Client, got: Payload) -> Payload:
        """Stage 1: train, then look at the own outputs: losses stay here, the mean LID is sent."""
        reply = self.train(client, got)
        logits = client.predict(views=self.scoring_views)
        client.state["losses"] = sample_losses(logits, current_labels(client), self.sample_loss)
        lid = local_intrinsic_dimensionality(logits.softmax(1), self.lid_neighbours)
        return reply | {"lid": lid.mean().reshape(1)}

    def correct_labels(self, client: Client, got: Payload) -> Payload:
        """Estimate the own rate; correct the largest losses where the global model is confident."""
        losses = client.state["losses"].to(client.given.device)
        rate = estimated_rate(losses)
        suspected = largest(losses, int(len(client) * rate * self.relabel_ratio + 1e-9))
        return {
            "rate": torch.tensor([rate], dtype=torch.float64),
            "relabelled": self.change_labels(client, got, suspected),
        }

    def relabel_all(self, client: Client, got: Payload) -> Payload:
        """End of stage 2: every sample of which the fine-tuned model is confident."""
        everything = torch.ones(len(client), dtype=torch.bool, device=client.given.device)
        return {"relabelled": self.change_labels(client, got, everything)}

    def change_labels(self, client: Client, got: Payload, among: Tensor) -> Tensor:
        """Correct labels for good; how many have changed is returned."""
        if not self.correct:
            return torch.zeros(1, dtype=torch.int64)
        before = current_labels(client)
        client.model.load(got)
        after = confident_labels(client.predict(views=self.scoring_views), before, self.confidence, among)
        client.state["labels"] = after
        client.note(relabelled=after)
        changed = (after != before).sum().cpu().reshape(1)
        return changed if int(changed) >= client.least_count else torch.zeros_like(changed)

    def verdict(self, client: Client, got: Payload) -> Verdict:
        """A label that was corrected is wrong; among the others the losses of the global model decide."""
        verdict = super().verdict(client, got)
        corrected = client.given.clone()
        if "labels" in client.state:
            corrected = client.for_all(client.state["labels"], client.given)
        changed = corrected != client.given
        return Verdict(leaning(verdict.p_wrong, changed), torch.where(changed, corrected, verdict.suggested))
