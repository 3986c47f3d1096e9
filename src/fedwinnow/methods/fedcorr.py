"""FedCorr: find the noisy clients by the dimensionality of their outputs, correct their labels, then train as usual.

Xu, Chen, Quek, Chong: FedCorr: Multi-Stage Federated Learning for Label Noise Correction, CVPR 2022.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| T1 (passes) | passes | | π | relabel_ratio |
| T2 (rounds) | fine_tune_rounds | | θ | confidence |
| β | beta | | κ | clean_rate |
| k | lid_neighbours | | α (MixUp) | mixup |

Stage 1 visits every client once per pass. After a pass the server splits the clients by their accumulated LID (local
intrinsic dimensionality); the noisy ones estimate their rate and correct high-loss labels for which the model is
confident. Stage 2 trains on clean clients only and then relabels the noisy ones. Stage 3 is FedAvg on all clients.

`PaperFedCorr` is the paper, stage by stage. `FedCorr`, the class that runs, adds ablations and the differences of the
released code.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.errors import FedwinnowWarning, UsageError
from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Exchange, Method, Replies, Verdict, model_forms
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.intrinsic_dimension import local_intrinsic_dimensionality
from fedwinnow.mathematics.payload import COUNT, SHARE, Exposure, Payload, ReplyForm, Summing
from fedwinnow.mathematics.proximal import distance_to
from fedwinnow.mathematics.small_loss import estimated_rate
from fedwinnow.mathematics.two_gaussians import fit_two_gaussians
from fedwinnow.options import option
from fedwinnow.steps.site_labels import confident_labels, current_labels, largest, sample_losses, upper_half_where_wrong
from fedwinnow.steps.stages import if_any, rounds_of_passes, steps_of_turn, watch_replies

NO_USUAL = "no round fine-tunes on clean sites or trains on all corrected labels"


@dataclass(frozen=True)
class PaperFedCorr(Method):
    """The three stages of the paper."""

    sums: ClassVar[dict[str, Summing]] = {}
    citation: ClassVar[str] = "Xu et al., FedCorr: Multi-Stage Federated Learning for Label Noise Correction, CVPR 2022"
    stages: ClassVar[tuple[str, ...]] = ("correct", "fine_tune", "usual")
    exposes: ClassVar[dict[str, Exposure]] = {
        **Method.exposes,
        "lid": "client",
        "rate": "client",
        "relabelled": "client",
    }
    forwards: ClassVar[dict[str, str]] = {
        "weights": "stage 1 with group=1: the next site in turn starts from its model",
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

    # --- the stages, as the server plays them ----------------------------------------------------------------------

    def start(self, server: Server) -> None:
        warn_of_stage_1_alone(server, self.lengths(server)[0], by_default=self.passes is None)
        server.state["lid"] = torch.zeros(server.clients, dtype=torch.float64)
        server.state["rate"] = torch.zeros(server.clients, dtype=torch.float64)
        server.state["noisy"] = torch.zeros(server.clients, dtype=torch.bool)

    def lengths(self, server: Server) -> tuple[int, int]:
        """Rounds of stages 1 and 2; stage 3 has the rest."""
        first = rounds_of_passes(server, self.passes)
        left = server.rounds - first
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
            yield from self.usual_round(server)

    def send(self, server: Server, client: int) -> Payload:
        """The global model, and the leash β μ̂_k: the weight of the proximal term in stage 1."""
        leash = self.beta * server.state["rate"][client] if server.round <= self.lengths(server)[0] else torch.zeros(())
        return {**server.weights, "leash": leash.float().reshape(1)}

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        if ask in ("correct_labels", "relabel_all"):
            changed = {"relabelled": COUNT}
            return changed | {"rate": SHARE} if ask == "correct_labels" else changed
        return model_forms(server) | ({"lid": ReplyForm()} if ask == "train_and_measure" else {})

    def merge(self, server: Server, replies: Replies) -> None:
        """FedAvg; the LID of a client is summed over the passes."""
        replies, news = watch_replies(replies, maybe=("lid",))
        super().merge(server, replies)
        for client, said in news.items():
            if "lid" in said:
                server.state["lid"][client] += said["lid"].double().item()

    # --- local training, in all stages -----------------------------------------------------------------------------

    def train(self, client: Client, got: Payload) -> Payload:
        """MixUp training on the labels as corrected so far."""
        client.model.load(got)
        leash = float(got["leash"])
        client.fit(
            lambda rows, x, y: self.leashed(client, rows, x, y, got, leash),
            rows=torch.arange(len(client)),
            labels=current_labels(client),
        )
        return self.reply(client)

    def leashed(self, client: Client, rows: Tensor, x: Tensor, y: Tensor, got: Payload, leash: float) -> Tensor:
        """L + β μ̂_k |w - w_global|²; the leash is 0 for a clean client and after stage 1."""
        loss = self.objective(client, rows, x, y, got)
        return loss + leash * self.moved(client, got) if leash else loss

    def moved(self, client: Client, got: Payload) -> Tensor:
        """|w - w_global|²."""
        return distance_to(got["weights"], client.model)

    # --- stage 1: find the noisy clients and correct their labels --------------------------------------------------

    def correction_round(self, server: Server, index: int) -> Generator[Exchange, Replies, None]:
        """Stage 1: train the clients in turn; after each pass, find the noisy ones and let them correct labels."""
        for clients in steps_of_turn(server, index, self.group):
            replies = yield Exchange("train_and_measure", clients, lambda client: self.send(server, client), turn=True)
            if (answered := if_any(replies)) is not None:
                self.merge(server, answered)
        if (index + 1) % server.rounds_per_pass == 0:
            noisy = self.split_clients(server)
            server.note(noisy_clients=len(noisy))
            server.state["rate"].zero_()
            if noisy:
                replies = yield Exchange("correct_labels", noisy, lambda client: self.send(server, client))
                self.merge_rates(server, replies)

    def train_and_measure(self, client: Client, got: Payload) -> Payload:
        """Train, then score the samples: the losses stay on the site, the mean LID is sent.

        LID(x) = -k / Σ_i log(r_i / (r_k + ε)), r_i the distance of x from its i-th nearest neighbour among the outputs.
        """
        reply = self.train(client, got)
        predicted = self.predicted(client)
        client.state["losses"] = self.losses(predicted, current_labels(client))
        lid = local_intrinsic_dimensionality(predicted.softmax(1), self.lid_neighbours)
        return reply | {"lid": lid.mean().reshape(1)}

    def predicted(self, client: Client) -> Tensor:
        """The logits of all samples."""
        return client.predict()

    def losses(self, predicted: Tensor, labels: Tensor) -> Tensor:
        """The cross-entropy of each sample."""
        return sample_losses(predicted, labels)

    def split_clients(self, server: Server) -> list[int]:
        """Two Gaussians on the accumulated LID: the upper one holds the noisy clients."""
        members = torch.tensor(server.available)
        scores = server.state["lid"][members]
        noisy = fit_two_gaussians(scores).p_low(scores) < 0.5
        server.state["noisy"].zero_()
        server.state["noisy"][members[noisy]] = True
        return [int(client) for client in members[noisy]]

    def correct_labels(self, client: Client, got: Payload) -> Payload:
        """Estimate the own rate μ̂_k; correct the ⌊n_k μ̂_k π⌋ largest losses where the global model is confident."""
        losses = client.state["losses"].to(client.given.device)
        rate = estimated_rate(losses)
        suspected = largest(losses, int(len(client) * rate * self.relabel_ratio + 1e-9))
        return {
            "rate": torch.tensor([rate], dtype=torch.float64),
            "relabelled": self.change_labels(client, got, suspected),
        }

    def change_labels(self, client: Client, got: Payload, among: Tensor) -> Tensor:
        """Correct labels and keep them; returns how many have changed."""
        before = current_labels(client)
        client.model.load(got)
        after = confident_labels(self.predicted(client), before, self.confidence, among)
        client.state["labels"] = after
        client.note(relabelled=after)
        changed = (after != before).sum().cpu().reshape(1)
        return changed if int(changed) >= client.least_count else torch.zeros_like(changed)

    def merge_rates(self, server: Server, replies: Replies) -> None:
        """Record the rates that the noisy clients estimated."""
        changed = 0
        for client, reply in replies:
            server.state["rate"][client] = reply["rate"].double().item()
            changed += int(reply["relabelled"])
        server.note(relabelled=changed)

    # --- stage 2: fine-tune on clean clients, then relabel the noisy ones ------------------------------------------

    def fine_tuning_round(self, server: Server, *, last: bool) -> Generator[Exchange, Replies, None]:
        """Stage 2: FedAvg on the clean pool; at its end the noisy clients relabel samples the model is sure of."""
        pool = self.clean_pool(server)
        server.note(clean_pool=len(pool))
        replies = yield Exchange("train", server.sample(among=pool), lambda client: self.send(server, client))
        self.merge(server, replies)
        noisy = self.noisy_clients(server)
        if last and noisy:
            replies = yield Exchange("relabel_all", noisy, lambda client: self.send(server, client))
            server.note(relabelled=sum(int(reply["relabelled"]) for _, reply in replies))

    def clean_pool(self, server: Server) -> list[int]:
        """Clients with a rate up to kappa; if there are none, those with the lowest rates."""
        rates = server.state["rate"]
        pool = [client for client in server.available if float(rates[client]) <= self.clean_rate]
        return pool or sorted(server.available, key=lambda client: float(rates[client]))[: server.per_round]

    def noisy_clients(self, server: Server) -> list[int]:
        """The noisy set of the last pass."""
        return [client for client in server.available if server.state["noisy"][client]]

    def relabel_all(self, client: Client, got: Payload) -> Payload:
        """End of stage 2: relabel every sample for which the fine-tuned model is confident."""
        everything = torch.ones(len(client), dtype=torch.bool, device=client.given.device)
        return {"relabelled": self.change_labels(client, got, everything)}

    # --- stage 3: train as usual -----------------------------------------------------------------------------------

    def usual_round(self, server: Server) -> Generator[Exchange, Replies, None]:
        """FedAvg on all clients."""
        replies = yield Exchange("train", server.sample(), lambda client: self.send(server, client))
        self.merge(server, replies)

    # --- the verdict on labels -------------------------------------------------------------------------------------

    def verdict(self, client: Client, got: Payload) -> Verdict:
        """By the losses of the global model; p_wrong is in the upper half for labels that were corrected."""
        verdict = super().verdict(client, got)
        corrected = client.given.clone()
        if "labels" in client.state:
            corrected = client.for_all(client.state["labels"], client.given)
        changed = corrected != client.given
        return Verdict(
            upper_half_where_wrong(verdict.p_wrong, changed), torch.where(changed, corrected, verdict.suggested)
        )


def warn_of_stage_1_alone(server: Server, first: int, *, by_default: bool) -> None:
    """Warn of a run that ends before its first pass, or that nobody asked to end with stage 1."""
    no_pass = 0 < first < server.rounds_per_pass
    if no_pass or (by_default and 0 < server.rounds <= first):
        missing = "no site corrects a label, because none is asked before a pass is over" if no_pass else NO_USUAL
        warnings.warn(
            f"fedcorr: all {server.rounds} rounds of this run are stage 1, so {missing}; one pass over all clients "
            f"takes {server.rounds_per_pass}. Give --rounds {8 * server.rounds_per_pass} or more, or a larger "
            "--participation.",
            FedwinnowWarning,
            stacklevel=2,
        )


# --- Ablations, and what the released code does differently --------------------------------------------------------


@dataclass(frozen=True)
class FedCorr(PaperFedCorr):
    """Three stages: correct labels as the model goes from site to site, fine-tune on clean sites, train as usual."""

    name: ClassVar[str] = "fedcorr"

    correct: bool = option(True, "Correct labels at all (ablation).")
    fine_tune: bool = option(True, "Have stage 2 (ablation); its rounds go to stage 3.")
    usual: bool = option(True, "Have stage 3 (ablation); its rounds go to stage 2.")
    sample_loss: Literal["cross_entropy", "double_softmax"] = option(
        None,
        "The loss by which suspected samples are found.",
        presets={"paper": "cross_entropy", "code": "double_softmax"},
    )
    prox: Literal["squared", "norm"] = option(
        None, "The proximal term: squared distance, or the distance.", presets={"paper": "squared", "code": "norm"}
    )
    prox_first_batch: bool = option(
        None, "Have the proximal term in the first batch of an epoch too.", presets={"paper": True, "code": False}
    )
    scoring_views: bool = option(
        None, "Score samples on random views, as in training.", presets={"paper": False, "code": True}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.fine_tune and not self.usual:
            raise UsageError(
                "fedcorr: fine_tune=false and usual=false were given, so nothing is left to do after stage 1; allowed: "
                "one of them. For stage 1 alone give as many passes as fill the run, for example passes=100."
            )

    # --- ablations: correct, fine_tune, usual ----------------------------------------------------------------------

    def lengths(self, server: Server) -> tuple[int, int]:
        """The rounds of a stage that is left out go to the other one."""
        first, second = super().lengths(server)
        if not self.usual:
            return first, server.rounds - first
        return first, second if self.fine_tune else 0

    def change_labels(self, client: Client, got: Payload, among: Tensor) -> Tensor:
        return super().change_labels(client, got, among) if self.correct else torch.zeros(1, dtype=torch.int64)

    def noisy_clients(self, server: Server) -> list[int]:
        """No client relabels if labels are not corrected."""
        return super().noisy_clients(server) if self.correct else []

    # --- the released code: sample_loss, scoring_views, prox, prox_first_batch -------------------------------------

    def losses(self, predicted: Tensor, labels: Tensor) -> Tensor:
        """The code takes the cross-entropy of outputs that are already probabilities."""
        return sample_losses(predicted, labels, self.sample_loss)

    def predicted(self, client: Client) -> Tensor:
        """The code scores random views."""
        return client.predict(views=self.scoring_views)

    def moved(self, client: Client, got: Payload) -> Tensor:
        """The code uses the distance, not its square."""
        if self.prox == "norm":
            return distance_to(got["weights"], client.model, squared=False)
        return super().moved(client, got)

    def train(self, client: Client, got: Payload) -> Payload:
        return super().train(client, got) if self.prox_first_batch else self.train_sparing_first_batches(client, got)

    def train_sparing_first_batches(self, client: Client, got: Payload) -> Payload:
        """Like `train`, but without the proximal term in the first batch of each epoch."""
        client.model.load(got)
        leash, first = float(got["leash"]), True

        def rows_of_epoch() -> Tensor:
            nonlocal first
            first = True
            return torch.arange(len(client))

        def objective(rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
            nonlocal first
            spared, first = first, False
            return self.leashed(client, rows, x, y, got, 0.0 if spared else leash)

        client.fit(objective, rows=rows_of_epoch, labels=current_labels(client))
        return self.reply(client)
