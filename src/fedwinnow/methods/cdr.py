"""CDR: only the parameters that are critical to the loss follow its gradient; the others only decay.

Xia, Liu, Han, Gong, Wang, Ge, Chang: Robust Early-Learning: Hindering the Memorization of Noisy Labels, ICLR 2021.
Federated by averaging: like FedES, but without an estimate of each client's quality.

| symbol | field |
|---|---|
| τ | noise_rate |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Method
from fedwinnow.mathematics.payload import Payload
from fedwinnow.mathematics.small_loss import estimated_rate, forgotten_share
from fedwinnow.options import option
from fedwinnow.steps.criticality import chosen_parameters, critical_factor, scaled_steps
from fedwinnow.steps.site_labels import sample_losses


@dataclass(frozen=True)
class Cdr(Method):
    """FedAvg whose local steps use only the gradient of the most critical parameters, scaled down."""

    name: ClassVar[str] = "cdr"
    citation: ClassVar[str] = "Xia et al., Robust Early-Learning: Hindering the Memorization of Noisy Labels, ICLR 2021"

    noise_rate: float = option(
        0.2,
        "Share of parameters without a gradient; the rest is scaled by 1 minus it.",
        symbol="τ",
        at_least=0,
        at_most=1,
    )
    rate_from: Literal["given", "estimated"] = option(
        "given", "Use the given rate, or the share of wrong labels by each client's mixture of losses."
    )
    ramp: int = option(
        0, "Rounds over which the rate grows from 0; 0: it holds from the start, as in the released code.", at_least=0
    )
    frozen: Literal["gradient", "update"] = option(
        "gradient", "What is masked: the gradient, so that momentum and decay still move the rest, or the whole update."
    )
    weights_only: bool = option(True, "Only weights of linear and convolutional layers are masked.", source="code")

    def train(self, client: Client, got: Payload) -> Payload:
        client.model.load(got)
        share = 1.0 - forgotten_share(client.round, self.rate(client), self.ramp, of_rate=True)
        factor = critical_factor(share, chosen_parameters(client.model, weights_only=self.weights_only))
        # criticality is |w times gradient| of the current batch, compared over all layers together
        steps = scaled_steps(lambda model: factor(model, model.gradient), gradient=self.frozen == "gradient")
        client.fit(
            lambda rows, x, y: self.objective(client, rows, x, y, got),
            wrap_step=steps,
            by_hand=self.by_hand(client, got),
        )
        return self.reply(client)

    def rate(self, client: Client) -> float:
        """tau: given, or estimated with the received model."""
        if self.rate_from == "given":
            return self.noise_rate
        return estimated_rate(sample_losses(client.predict(), client.given))
