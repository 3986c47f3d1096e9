"""FedES: estimate each client's data quality from one round of FedAvg; then freeze parameters by that quality.

Zeng, Yang, Chen, Shen, Yu, Zhang: FedES: Federated Early-Stopping for Hindering Memorizing Heterogeneous Label Noise,
IJCAI 2024.

| symbol | field or state | | symbol | field or state |
|---|---|---|---|---|
| s1 | s1 | | ρ_n | server.state["quality"] |
| g_n, g_s | criticality of client and aggregate | | M_n | mask (sent once) |
| d_n | estimator, reference | | SeGD, NaAgg | stage2 |

Stage 1 is FedAvg. In its last pass every client starts from the same model; its quality is the difference between its
criticality and that of the aggregate. Stage 2 scales a client's steps and its weight by the quality and freezes the
parameters that are not critical to it. No code was published and the paper leaves much open: where it does, an option
has the readings.

FederatedEarlyStopping is the algorithm of the paper, in its order: Algorithm 1, then the equations of Sections 4.1 and
4.2. FedES, at the end, adds the readings with which it works well, and the rows of the paper's ablations.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedwinnow.federation.client import Client, Step, StepWrapper
from fedwinnow.federation.method import Exchange, Method, Replies, model_forms
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.aggregators import WeightedMean
from fedwinnow.mathematics.payload import FlatModel, Payload, ReplyForm, Summing
from fedwinnow.mathematics.scaling import zero_to_one
from fedwinnow.options import option
from fedwinnow.steps.contributions import loss_drops, shapley_values
from fedwinnow.steps.criticality import (
    chosen_parameters,
    critical_factor,
    masked_factor,
    most_critical,
    scaled_steps,
)

MOST_POINTS = 2**22  # of a larger model only every second, third, ... parameter is used
PENDING = "pending."  # the unfinished mean of the last pass of stage 1
TRUSTING = ("loss_drop", "shapley")  # estimators of other papers, which use trusted samples, not criticality


# --- the paper ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FederatedEarlyStopping(Method):
    """FedES as the paper describes it, with the options of every reading.

    Where the paper is open: a client's mean criticality stands for its Gaussian, stage 2 continues with the model of
    stage 1, and momentum and decay do not move frozen parameters.
    """

    sums: ClassVar[dict[str, Summing]] = {}
    stages: ClassVar[tuple[str, ...]] = ("pre_train", "measure", "adaptive")
    own_aggregation: ClassVar[bool] = True
    forwards: ClassVar[dict[str, str]] = {
        "weights": "if all others of a round have quality 0 (preset=literal): its model becomes the global one",
        "counters": "with it",
    }
    asks: ClassVar[str] = "all sites in turn in stage 1"

    preset: Literal["literal", "sensible"] = option(
        "literal", "Follow the paper literally, or use the readings with which it works well."
    )
    s1: int | None = option(
        None,
        "Rounds of stage 1, whole passes over all clients; 0: one pass with one local epoch; none: a twentieth of all.",
        symbol="s_1",
        at_least=0,
        presets={"literal": None, "sensible": 1},
    )

    # Rows of Tables 4 and 5, and readings of what the paper leaves open: they have an effect in FedES, at the end of
    # this file.
    estimator: Literal["mean", "emd", "signed_emd", "loss_drop", "shapley"] = option(
        "signed_emd",
        "Quality from the mean criticality, from the distance to the reference, or with its sign; with trusted samples "
        "from how much the loss fell (FAIR) or from Shapley values (S-FedAvg): the rows of Table 4.",
    )
    reference: Literal["aggregate", "mean_local"] = option(
        None,
        "Compare a client with the averaged update (eq. 7), or with the average of the clients' distributions.",
        presets={"literal": "aggregate", "sensible": "mean_local"},
    )
    orientation: Literal["paper", "auto"] = option(
        None,
        "Large distances mean high quality (paper), or the direction is chosen by how well updates agree (auto).",
        presets={"literal": "paper", "sensible": "auto"},
    )
    rho_floor: float = option(
        None,
        "The least quality of a client; at 0 the client that ranks last never counts again, however good it is.",
        at_least=0,
        at_most=1,
        presets={"literal": 0.0, "sensible": 0.1},
    )
    start_from: Literal["continue", "scratch"] = option("continue", "Stage 2 goes on from stage 1, or starts anew.")
    stage2: Literal["none", "select", "segd", "naagg", "both"] = option(
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

    # --- Algorithm 1 -----------------------------------------------------------------------------------------------

    def start(self, server: Server) -> None:
        server.state["samples"] = torch.zeros(server.clients, dtype=torch.float64)  # of those that were measured
        server.state["has_mask"] = torch.zeros(server.clients, dtype=torch.bool)

    def first_stage(self, server: Server) -> int:
        """Rounds of stage 1: whole passes; the last one is measured."""
        rounds = round(server.rounds / 20) if self.s1 is None else self.s1
        return -(-max(rounds, 1) // server.rounds_per_pass) * server.rounds_per_pass

    def question(self, server: Server) -> tuple[str, str]:
        if "quality" in server.state:
            return "adaptive", "train_selectively"
        return "measure" if server.round > self.before_measuring(server) else "pre_train", "train"

    def before_measuring(self, server: Server) -> int:
        """Rounds before the last pass of stage 1."""
        return self.first_stage(server) - server.rounds_per_pass

    def exchanges(self, server: Server) -> Generator[Exchange, Replies, None]:
        """One round of pre-training, of its last pass, or of stage 2, before which the quality is estimated."""
        if "pooled" in server.state:
            self.estimate(server)
        stage, ask = self.question(server)
        server.note(stage=stage)
        if stage == "pre_train":
            members = sorted(server.turn(server.round - 1))
            replies = yield Exchange(ask, members, lambda client: dict(server.weights))
            super().merge(server, replies)  # eq. (6)
        elif stage == "measure":
            place = int(server.state.get("place", torch.zeros(1)))
            members = sorted(server.turn(self.before_measuring(server) + place))
            replies = yield Exchange(ask, members, lambda client: dict(server.weights))
            self.measure(server, replies, place + 1)
        else:
            replies = yield Exchange(ask, self.choose(server), lambda client: self.send(server, client))
            self.merge(server, replies)

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        return model_forms(server)

    # --- Section 4.1: federated noise estimation -------------------------------------------------------------------

    def measure(self, server: Server, replies: Replies, done: int) -> None:
        """One round of the last pass: all clients start from the same W(s1), so the model changes after the pass."""
        mean, before = self.pending(server), server.weights["weights"]
        parameters = self.parameters(server.model)
        for client, reply in replies:
            mean.add(reply, float(reply["samples"]))
            server.state["samples"][client] = reply["samples"].double()
            product = signed_criticality(reply["weights"], before, parameters)  # eq. (8), with its sign
            server.remember(client, {"product": product})
        server.state["place"] = torch.tensor([done])
        if done < server.rounds_per_pass:
            server.state |= {PENDING + key: value for key, value in mean.mean.items()}
            return
        for key in [key for key in server.state if key.startswith(PENDING)]:
            del server.state[key]
        new = mean.result()
        server.state["pooled"] = signed_criticality(new["weights"], before, parameters)  # eq. (7), with its sign
        server.weights = new

    def pending(self, server: Server) -> WeightedMean:
        """The mean of the last pass so far, as the round before left it."""
        mean = WeightedMean(server.weights)
        mean.total = float(server.state["samples"].sum())
        mean.mean = {key[len(PENDING) :]: value for key, value in server.state.items() if key.startswith(PENDING)}
        return mean

    def parameters(self, model: FlatModel) -> Tensor:
        """The parameters that are compared: all m."""
        return chosen_parameters(model, weights_only=False)

    def estimate(self, server: Server) -> None:
        """The quality of every client, and its mask: once, before the first round of stage 2."""
        pooled = server.state.pop("pooled")
        members = [client for client in server.available if float(server.state["samples"][client]) > 0]
        quality = self.quality_of(self.distances(server, members, pooled))
        # A client that failed in the last pass of stage 1 gets the mean quality of the others.
        server.state["quality"] = torch.full((server.clients,), float(quality.mean()), dtype=torch.float64)
        server.state["quality"][members] = quality
        shown = {client: round(float(server.state["quality"][client]), 6) for client in server.available}
        server.note(quality=[shown.get(client) for client in range(server.clients)])
        for client in server.available:
            server.remember(client, self.mask_for(server, client, pooled))

    def distances(self, server: Server, members: list[int], pooled: Tensor) -> Tensor:
        """d_n of every client; clients are read from disk one by one."""
        reference = self.reference_curve(server, members, pooled)
        found = [self.distance(self.curve(server, client), reference) for client in members]
        return torch.tensor(found, dtype=torch.float64)

    def curve(self, server: Server, client: int) -> Tensor:
        """The distribution of g_n."""
        return ascending(server.recall(client)["product"].abs())

    def reference_curve(self, server: Server, members: list[int], pooled: Tensor) -> Tensor:
        """The distribution of g_s."""
        return ascending(pooled.abs())

    def distance(self, curve: Tensor, reference: Tensor) -> float:
        """d_n, eq. (9): the earth mover's distance with the sign, eq. (10), of mu_n - mu_s."""
        sign = torch.sign(mean_of(curve) - reference.mean(dtype=torch.float64))
        return float(sign) * earth_movers_distance(curve, reference)

    def quality_of(self, distances: Tensor) -> Tensor:
        """rho_n, eq. (11): min-max; if all distances are equal, every quality is 1."""
        return zero_to_one(distances)

    # --- Section 4.2: parameter-adaptive updating ------------------------------------------------------------------

    def mask_for(self, server: Server, client: int, pooled: Tensor) -> Payload:
        """M_n, eqs. (12) to (15), packed: the rho_n m most critical parameters; by g_s if the client has no g_n."""
        product = server.recall(client).get("product", pooled)
        mask = most_critical(product.abs(), float(server.state["quality"][client]))
        return {"mask": packed(mask)}

    def send(self, server: Server, client: int) -> Payload:
        """The model; at the first visit of stage 2 also the quality and the mask."""
        if "quality" not in server.state or bool(server.state["has_mask"][client]):
            return dict(server.weights)
        quality = server.state["quality"][client].float().reshape(1)
        return {**server.weights, **server.recall(client), "quality": quality}

    def train_selectively(self, client: Client, got: Payload) -> Payload:
        """Local training by SeGD; the site keeps the quality and the mask, which are sent once."""
        client.state |= {key: got[key] for key in ("quality", "mask") if key in got}
        client.model.load(got)
        steps = self.selective_steps(client, got)
        client.fit(
            lambda rows, x, y: self.objective(client, rows, x, y, got),
            wrap_step=steps,
            by_hand=self.by_hand(client, got),
        )
        return self.reply(client)

    def selective_steps(self, client: Client, got: Payload) -> StepWrapper:
        """SeGD, eq. (16): every step, including momentum and decay, is multiplied by rho_n M_n."""
        return scaled_steps(self.step_factor(client, got), gradient=False)

    def step_factor(self, client: Client, got: Payload) -> Callable[[FlatModel], Tensor]:
        """rho_n M_n, the same at every step."""
        parameters = self.parameters(client.model)
        mask = unpacked(client.state["mask"], int(parameters.sum()))
        factor = masked_factor(mask, float(client.state["quality"]), parameters)
        return lambda model: factor

    def merge(self, server: Server, replies: Replies) -> None:
        """NaAgg, eq. (18): models are weighted by |D_n| rho_n."""
        mean, answered = WeightedMean(server.weights), []
        for client, reply in replies:
            answered.append(client)
            mean.add(reply, float(reply["samples"]) * self.importance(server, client))
        server.state["has_mask"][answered] = True
        if mean.total > 0:  # if all participants have quality 0, the model stays the same
            server.weights = mean.result()

    def importance(self, server: Server, client: int) -> float:
        """rho_n."""
        return float(server.state["quality"][client])


def signed_criticality(after: Tensor, before: Tensor, parameters: Tensor) -> Tensor:
    """(after - before) times before, of these parameters: its size is their criticality, eqs. (7) and (8).

    That is eq. (1) with the update in place of the gradient.
    """
    weights = before[: len(parameters)]
    product = (after[: len(parameters)] - weights) * weights
    return torch.nan_to_num(product[parameters])  # a product of huge weights may overflow


def ascending(criticality: Tensor) -> Tensor:
    """The distribution of a vector of criticalities: its values in order."""
    step = -(-len(criticality) // MOST_POINTS)
    return criticality[::step].sort().values


def earth_movers_distance(first: Tensor, second: Tensor) -> float:
    """In one dimension and for equally many values: the mean distance of values of equal rank."""
    return float((first - second).abs().mean(dtype=torch.float64))


def mean_of(curve: Tensor) -> float:
    """mu_n: the paper takes it from a mixture with one Gaussian per client, which is read as the mean criticality."""
    return float(curve.mean(dtype=torch.float64))


def packed(mask: Tensor) -> Tensor:
    """A mask with one bit per parameter, as it is sent."""
    return torch.from_numpy(np.packbits(mask.cpu().numpy()))


def unpacked(bits: Tensor, count: int) -> Tensor:
    """The mask from its bits."""
    return torch.from_numpy(np.unpackbits(bits.cpu().numpy(), count=count)).bool()


# --- sensible readings, and the paper's ablations -------------------------------------------------------------------


@dataclass(frozen=True)
class FedES(FederatedEarlyStopping):
    """Early stopping by a client's estimated noise: masked, scaled steps and noise-aware averaging."""

    name: ClassVar[str] = "fedes"
    citation: ClassVar[str] = "Zeng et al., FedES: Federated Early-Stopping, IJCAI 2024"

    def needed(self) -> tuple[str, ...]:
        return ("trusted_data",) if self.estimator in TRUSTING else self.needs

    def start(self, server: Server) -> None:
        super().start(server)
        if self.estimator in TRUSTING:
            server.state["gain"] = torch.zeros(server.clients, dtype=torch.float64)
        if self.start_from == "scratch":
            server.state |= {f"first.{key}": value.clone() for key, value in server.weights.items()}

    def question(self, server: Server) -> tuple[str, str]:
        """s1=0 measures one local epoch; a stage 2 without SeGD trains as usual."""
        stage, ask = super().question(server)
        if stage == "measure" and self.s1 == 0:
            return stage, "train_one_epoch"
        return stage, "train" if stage == "adaptive" and not self.selective else ask

    @property
    def selective(self) -> bool:
        """Whether clients make masked, scaled steps."""
        return self.stage2 in ("segd", "both")

    # --- other estimates of quality --------------------------------------------------------------------------------

    def train_one_epoch(self, client: Client, got: Payload) -> Payload:
        """The shortest stage 1: criticality of one local epoch."""
        client.model.load(got)
        client.fit(
            lambda rows, x, y: self.objective(client, rows, x, y, got),
            epochs=1,
            by_hand=self.by_hand(client, got),
        )
        return self.reply(client)

    def measure(self, server: Server, replies: Replies, done: int) -> None:
        """The estimators of FAIR and S-FedAvg use the same models."""
        if self.estimator not in TRUSTING:
            super().measure(server, replies, done)
            return
        before, models = server.weights, dict(replies)
        super().measure(server, iter(models.items()), done)
        if models:
            server.state["gain"][list(models)] = self.gains(server, before, list(models.values()))

    def gains(self, server: Server, before: Payload, models: list[Payload]) -> Tensor:
        """The quality of trained models by FAIR or S-FedAvg."""
        assert server.trusted is not None  # see `needed`
        if self.estimator == "loss_drop":
            return loss_drops(server.trusted, before, models)
        orders = server.generator("orders")
        return shapley_values(server.trusted, before, models, permutations=5, generator=orders)

    def parameters(self, model: FlatModel) -> Tensor:
        """weights_only: only those of linear and convolutional layers."""
        return chosen_parameters(model, weights_only=self.weights_only)

    def estimate(self, server: Server) -> None:
        """start_from=scratch: stage 2 starts from the initial weights of the run."""
        super().estimate(server)
        if self.start_from == "scratch":
            server.start_anew({key: server.state.pop(f"first.{key}") for key in server.weights})

    def distances(self, server: Server, members: list[int], pooled: Tensor) -> Tensor:
        """orientation=auto reverses the ranking if it is opposed to how well updates agree."""
        if self.estimator in TRUSTING:
            return server.state["gain"][members]
        distances = super().distances(server, members, pooled)
        turns = self.orientation == "auto" and opposed(distances, self.agreement(server, members, pooled))
        return -distances if turns else distances

    def reference_curve(self, server: Server, members: list[int], pooled: Tensor) -> Tensor:
        """reference=mean_local: the mean of the clients' distributions."""
        if self.reference == "aggregate":
            return super().reference_curve(server, members, pooled)
        mean = WeightedMean(keys=("curve",))
        for client in members:
            mean.add({"curve": self.curve(server, client)}, 1.0)
        return mean.result()["curve"]

    def distance(self, curve: Tensor, reference: Tensor) -> float:
        """The rows of Table 4 that leave out the sign, or the distance."""
        if self.estimator == "mean":
            return mean_of(curve)
        if self.estimator == "emd":
            return earth_movers_distance(curve, reference)
        return super().distance(curve, reference)

    def agreement(self, server: Server, members: list[int], pooled: Tensor) -> Tensor:
        """The cosine of each client's update with the sum of all others."""
        shares = server.state["samples"][members] / server.state["samples"].sum()
        found = []
        for client, share in zip(members, shares.tolist(), strict=True):
            own = server.recall(client)["product"]
            found.append(torch.cosine_similarity(own, pooled - share * own, dim=0).double())
        return torch.stack(found)

    def quality_of(self, distances: Tensor) -> Tensor:
        """rho_floor: no client has a lower quality."""
        return super().quality_of(distances).clamp(min=self.rho_floor)

    # --- other second stages ---------------------------------------------------------------------------------------

    def choose(self, server: Server) -> Sequence[int]:
        """stage2=select leaves out clients of quality below 0.5."""
        if self.stage2 != "select":
            return super().choose(server)
        kept = [client for client in server.available if float(server.state["quality"][client]) >= 0.5]
        return server.sample(among=kept)

    def mask_for(self, server: Server, client: int, pooled: Tensor) -> Payload:
        """Nothing if no mask of stage 1 is needed."""
        return super().mask_for(server, client, pooled) if self.selective and self.mask == "static" else {}

    def send(self, server: Server, client: int) -> Payload:
        return super().send(server, client) if self.selective else dict(server.weights)

    def selective_steps(self, client: Client, got: Payload) -> StepWrapper:
        """frozen=gradient: momentum and decay still move frozen parameters."""
        return scaled_steps(self.step_factor(client, got), gradient=self.frozen == "gradient")

    def step_factor(self, client: Client, got: Payload) -> Callable[[FlatModel], Tensor]:
        """mask=per_step and mask=per_round: by a gradient, eq. (1), in place of the update of stage 1."""
        if self.mask == "static":
            return super().step_factor(client, got)
        factor = critical_factor(float(client.state["quality"]), self.parameters(client.model))
        if self.mask == "per_step":
            return lambda model: factor(model, model.gradient)
        of_round = factor(client.model, self.whole_gradient(client, got))
        return lambda model: of_round

    def whole_gradient(self, client: Client, got: Payload) -> Tensor:
        """The gradient over all samples at the global model, without a mask, so that frozen parameters can return."""
        total = torch.zeros_like(client.model.gradient)
        adding = summing_into(total)
        client.fit(
            lambda rows, x, y: self.objective(client, rows, x, y, got),
            epochs=1,
            wrap_step=adding,
            by_hand=self.by_hand(client, got),
        )
        client.model.load(got)  # running statistics have changed
        return total

    def importance(self, server: Server, client: int) -> float:
        """A stage 2 without NaAgg weights models by their samples alone."""
        return super().importance(server, client) if self.stage2 in ("naagg", "both") else 1.0


def opposed(first: Tensor, second: Tensor) -> bool:
    """Whether two rankings of clients tend to be opposite."""
    first, second = first - first.mean(), second - second.mean()
    return float(first @ second) < 0


def summing_into(total: Tensor) -> StepWrapper:
    """Replace steps: gradients are added up, and the model does not move."""

    def wrap(step: Step, model: FlatModel) -> Step:
        def add() -> None:
            total.add_(model.gradient)

        return add

    return wrap
