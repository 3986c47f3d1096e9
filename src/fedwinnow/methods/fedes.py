"""FedES: estimate each client's data quality from one round of FedAvg; then freeze what is not critical to it.

Zeng, Yang, Chen, Shen, Yu, Zhang: FedES: Federated Early-Stopping for Hindering Memorizing Heterogeneous Label Noise,
IJCAI 2024.

| symbol | field or state | | symbol | field or state |
|---|---|---|---|---|
| s1 | s1 | | ρ_n | server.state["quality"] |
| g_n, g_s | criticality of client and aggregate | | M_n | mask (sent once) |
| d_n | estimator, reference | | SeGD, NaAgg | stage2 |

Stage 1 is FedAvg. In its last pass every client starts from the same model; how its criticality differs from that of
the aggregate becomes its quality. Stage 2 scales a client's steps and its weight by the quality and freezes parameters
that are not critical to it. No code was published and the paper leaves much open: every reading is an option.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.federation.client import Around, Client
from fedwinnow.federation.method import Exchange, Method, Replies
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.payload import Payload
from fedwinnow.mathematics.scaling import zero_to_one
from fedwinnow.mathematics.weighted_mean import WeightedMean
from fedwinnow.options import option
from fedwinnow.steps import criticality
from fedwinnow.steps.contributions import loss_drops, shapley_values
from fedwinnow.steps.criticality import ascending, chosen_parameters, most_critical

PENDING = "pending."  # the mean of the last pass of stage 1, as far as it has come
TRUSTING = ("loss_drop", "shapley")  # estimators of others, which look at trusted samples instead of criticality


@dataclass(frozen=True)
class FedES(Method):
    """Early stopping to the degree of a client's estimated noise: masked, scaled steps and noise-aware averaging."""

    name: ClassVar[str] = "fedes"
    citation: ClassVar[str] = "Zeng et al., FedES: Federated Early-Stopping, IJCAI 2024"
    stages: ClassVar[tuple[str, ...]] = ("pre_train", "measure", "adaptive")
    own_aggregation: ClassVar[bool] = True
    forwards: ClassVar[dict[str, str]] = {
        "weights": "where all others of a round have quality 0 (preset=literal): its model becomes the global one",
        "counters": "with it",
    }
    asks: ClassVar[str] = "all sites in turn in stage 1"

    preset: Literal["literal", "sensible"] = option(
        "literal", "Follow the paper to the letter, or take the readings under which it works."
    )
    s1: int | None = option(
        None,
        "Rounds of stage 1, whole passes over all clients; 0: one pass with one local epoch; none: a twentieth of all.",
        symbol="s_1",
        at_least=0,
        presets={"literal": None, "sensible": 1},
    )
    estimator: Literal["mean", "emd", "signed_emd", "loss_drop", "shapley"] = option(
        "signed_emd",
        "Quality from the mean criticality, from the distance to the reference, or with its sign; with trusted samples "
        "from how much the loss fell (FAIR) or from Shapley values (S-FedAvg): the rows of Table 4.",
    )
    reference: Literal["aggregate", "mean_local"] | None = option(
        None,
        "Compare a client with the averaged update (eq. 7), or with the average of the clients' distributions.",
        presets={"literal": "aggregate", "sensible": "mean_local"},
    )
    orientation: Literal["paper", "auto"] | None = option(
        None,
        "Large distances mean quality (paper), or whatever agrees with how well updates agree with each other.",
        presets={"literal": "paper", "sensible": "auto"},
    )
    rho_floor: float | None = option(
        None,
        "The least quality of a client; at 0 the worst client is silenced for good, however good it is.",
        at_least=0,
        at_most=1,
        presets={"literal": 0.0, "sensible": 0.1},
    )
    start_from: Literal["continue", "scratch"] = option("continue", "Stage 2 goes on from stage 1, or starts anew.")
    stage2: Literal["none", "select", "segd", "naagg", "both"] | None = option(
        None,
        "Plain FedAvg, without clients of quality below 0.5, masked steps, noise-aware averaging, or both (Table 5).",
        presets={"literal": "both", "sensible": "segd"},
    )
    mask: Literal["static", "per_round", "per_step"] = option(
        "static", "Masks from stage 1 (paper), from a gradient over all samples each round, or from every batch (CDR)."
    )
    frozen: Literal["update", "gradient"] = option(
        "update", "Mask the whole update, or only the gradient: momentum and decay then move frozen parameters (CDR)."
    )
    weights_only: bool = option(False, "Only weights of linear and convolutional layers are masked (CDR).")

    def needed(self) -> tuple[str, ...]:
        return ("trusted_data",) if self.estimator in TRUSTING else self.needs

    # --- the server's half -----------------------------------------------------------------------------------------

    def start(self, server: Server) -> None:
        server.state["samples"] = torch.zeros(server.clients, dtype=torch.float64)  # of those that were measured
        server.state["has_mask"] = torch.zeros(server.clients, dtype=torch.bool)
        if self.estimator in TRUSTING:
            server.state["gain"] = torch.zeros(server.clients, dtype=torch.float64)
        if self.start_from == "scratch":
            server.state |= {f"first.{key}": value.clone() for key, value in server.weights.items()}

    def first_stage(self, server: Server) -> int:
        """Rounds of stage 1: whole passes, of which the last one is measured."""
        rounds = round(server.rounds / 20) if self.s1 is None else self.s1
        return -(-max(rounds, 1) // server.rounds_per_pass) * server.rounds_per_pass

    def exchanges(self, server: Server) -> Generator[Exchange, Replies, None]:
        if "pooled" in server.state:
            self.estimate(server)
        measured = self.first_stage(server) - server.rounds_per_pass
        if "quality" in server.state:
            server.note(stage="adaptive")
            ask = "train_selectively" if self.selective else "train"
            replies = yield Exchange(ask, self.choose(server), lambda client: self.send(server, client))
            self.merge(server, replies)
        elif server.round > measured:
            server.note(stage="measure")
            ask = "train_one_epoch" if self.s1 == 0 else "train"
            place = int(server.state.get("place", torch.zeros(1)))
            members = sorted(server.turn(measured + place))
            replies = yield Exchange(ask, members, lambda client: dict(server.weights))
            self.measure(server, replies, place + 1)
        else:
            server.note(stage="pre_train")
            members = sorted(server.turn(server.round - 1))
            replies = yield Exchange("train", members, lambda client: dict(server.weights))
            super().merge(server, replies)

    @property
    def selective(self) -> bool:
        """Whether clients make masked, scaled steps."""
        return self.stage2 in ("segd", "both")

    def measure(self, server: Server, replies: Replies, done: int) -> None:
        """One round of the last pass: everybody starts from the same W(s1), so the new model waits for the last."""
        mean, before = self.pending(server), server.weights["weights"]
        chosen = chosen_parameters(server.model, weights_only=self.weights_only)
        models: dict[int, Payload] = {}
        for client, reply in replies:
            mean.add(reply, float(reply["samples"]))
            if self.estimator in TRUSTING:
                models[client] = reply
            server.state["samples"][client] = reply["samples"].double()
            product = criticality.signed_criticality(reply["weights"], before, chosen)  # eq. (8), with its sign
            server.remember(client, {"product": product})
        if models:
            server.state["gain"][list(models)] = self.gains(server, list(models.values()))
        server.state["place"] = torch.tensor([done])
        if done < server.rounds_per_pass:
            server.state |= {PENDING + key: value for key, value in mean.mean.items()}
            return
        for key in [key for key in server.state if key.startswith(PENDING)]:
            del server.state[key]
        # eq. (7), with its sign
        server.state["pooled"] = criticality.signed_criticality(mean.result()["weights"], before, chosen)
        server.weights = mean.result()

    def gains(self, server: Server, models: list[Payload]) -> Tensor:
        """What FAIR and S-FedAvg make of the same models."""
        assert server.trusted is not None  # see `needed`
        if self.estimator == "loss_drop":
            return loss_drops(server.trusted, server.weights, models)
        orders = server.generator("orders")
        return shapley_values(server.trusted, server.weights, models, permutations=5, generator=orders)

    def pending(self, server: Server) -> WeightedMean:
        """The mean of the last pass, as far as it had come in the round before."""
        mean = WeightedMean(server.weights)
        mean.total = float(server.state["samples"].sum())
        mean.mean = {key[len(PENDING) :]: value for key, value in server.state.items() if key.startswith(PENDING)}
        return mean

    def estimate(self, server: Server) -> None:
        """Eqs. (9)-(11): once, before the first round of stage 2."""
        pooled = server.state.pop("pooled")
        members = [client for client in server.available if float(server.state["samples"][client]) > 0]
        distances = self.distances(server, members, pooled)
        turns = self.orientation == "auto" and self.estimator not in TRUSTING
        if turns and criticality.opposed(distances, self.agreement(server, members, pooled)):
            distances = -distances
        quality = zero_to_one(distances).clamp(min=self.rho_floor)  # eq. (11)
        # A client that failed in the last pass of stage 1 is taken to be as good as the others are on average.
        server.state["quality"] = torch.full((server.clients,), float(quality.mean()), dtype=torch.float64)
        server.state["quality"][members] = quality
        shown = {client: round(float(server.state["quality"][client]), 6) for client in server.available}
        server.note(quality=[shown.get(client) for client in range(server.clients)])
        for client in server.available:
            server.remember(client, self.mask_for(server, client, pooled))
        if self.start_from == "scratch":
            server.start_anew({key: server.state.pop(f"first.{key}") for key in server.weights})

    def distances(self, server: Server, members: list[int], pooled: Tensor) -> Tensor:
        """d_n of eq. (9), or what stands for it; clients are read from disk one by one."""
        if self.estimator in TRUSTING:
            return server.state["gain"][members]
        reference = ascending(pooled.abs())
        if self.reference == "mean_local":
            mean = WeightedMean(keys=("curve",))
            for client in members:
                mean.add({"curve": self.curve(server, client)}, 1.0)
            reference = mean.result()["curve"]
        found = [criticality.estimates(self.curve(server, client), reference)[self.estimator] for client in members]
        return torch.tensor(found, dtype=torch.float64)

    def curve(self, server: Server, client: int) -> Tensor:
        """The distribution of g_n."""
        return ascending(server.recall(client)["product"].abs())

    def agreement(self, server: Server, members: list[int], pooled: Tensor) -> Tensor:
        """How much a client's update points where those of all others point together."""
        shares = server.state["samples"][members] / server.state["samples"].sum()
        found = []
        for client, share in zip(members, shares.tolist(), strict=True):
            own = server.recall(client)["product"]
            found.append(torch.cosine_similarity(own, pooled - share * own, dim=0).double())
        return torch.stack(found)

    def mask_for(self, server: Server, client: int, pooled: Tensor) -> Payload:
        """Eqs. (12)-(15), packed; nothing where no mask of stage 1 is needed."""
        if not (self.selective and self.mask == "static"):
            return {}
        product = server.recall(client).get("product", pooled)
        mask = most_critical(product.abs(), float(server.state["quality"][client]))
        return {"mask": criticality.packed(mask)}

    def choose(self, server: Server) -> Sequence[int]:
        if self.stage2 != "select":
            return server.sample()
        kept = [client for client in server.available if float(server.state["quality"][client]) >= 0.5]
        return server.sample(among=kept)

    def send(self, server: Server, client: int) -> Payload:
        if not self.selective or "quality" not in server.state or bool(server.state["has_mask"][client]):
            return dict(server.weights)
        quality = server.state["quality"][client].float().reshape(1)
        return {**server.weights, **server.recall(client), "quality": quality}

    def merge(self, server: Server, replies: Replies) -> None:
        mean, answered = WeightedMean(server.weights), []
        for client, reply in replies:
            answered.append(client)
            aware = self.stage2 in ("naagg", "both")
            rho = float(server.state["quality"][client]) if aware else 1.0
            mean.add(reply, float(reply["samples"]) * rho)  # eq. (18)
        server.state["has_mask"][answered] = True
        if mean.total > 0:  # where all who took part have quality 0, the model stays as it is
            server.weights = mean.result()

    # --- the client's half -----------------------------------------------------------------------------------------

    def train_one_epoch(self, client: Client, got: Payload) -> Payload:
        """The shortest stage 1: criticality of one local epoch."""
        client.model.load(got)
        client.fit(lambda rows, x, y: self.objective(client, rows, x, y, got), epochs=1)
        return self.reply(client)

    def train_selectively(self, client: Client, got: Payload) -> Payload:
        """Stage 2 with SeGD; quality and mask came once and are kept."""
        client.state |= {key: got[key] for key in ("quality", "mask") if key in got}
        client.model.load(got)
        steps = self.selective_steps(client, got)
        client.fit(lambda rows, x, y: self.objective(client, rows, x, y, got), around=steps)
        return self.reply(client)

    def selective_steps(self, client: Client, got: Payload) -> Around:
        """eq. (16): every step is multiplied by rho_n M_n."""
        rho, model = float(client.state["quality"]), client.model
        chosen = chosen_parameters(model, weights_only=self.weights_only)

        def of_gradient(gradient: Tensor) -> Tensor:
            return criticality.critical_factor(model, gradient, rho, chosen)  # eq. (1)

        if self.mask == "per_step":
            return criticality.scaled_steps(lambda model: of_gradient(model.gradient), gradient=self.masks_gradient)
        if self.mask == "per_round":
            fixed = of_gradient(self.whole_gradient(client, got))
        else:
            mask = criticality.unpacked(client.state["mask"], int(chosen.sum()))
            fixed = criticality.masked_factor(mask, rho, chosen)
        return criticality.scaled_steps(lambda model: fixed, gradient=self.masks_gradient)

    @property
    def masks_gradient(self) -> bool:
        """Whether frozen means the gradient only."""
        return self.frozen == "gradient"

    def whole_gradient(self, client: Client, got: Payload) -> Tensor:
        """The gradient over all samples at the global model, without a mask: a frozen entry would never come back."""
        total = torch.zeros_like(client.model.gradient)
        adding = criticality.summing_into(total)
        client.fit(lambda rows, x, y: self.objective(client, rows, x, y, got), epochs=1, around=adding)
        client.model.load(got)  # running statistics have moved
        return total
