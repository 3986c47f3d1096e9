"""Small heads, whose gradient is written out by hand: one linear layer, or two with ReLU between them.

For models this small, automatic differentiation takes longer than the arithmetic. The sums are those of torch, but
perhaps in another order, so the last bits may differ. Hence it is for runs with an encoder alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Layer:
    """The weights of a linear layer and the places of their gradients."""

    def __init__(self, weight: Tensor, bias: Tensor | None, weight_slope: Tensor, bias_slope: Tensor | None) -> None:
        self.weight, self.turned, self.bias = weight, weight.t(), bias
        self.weight_slope, self.bias_slope = weight_slope, bias_slope

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.turned) if self.bias is None else torch.addmm(self.bias, x, self.turned)

    def differentiate(self, x: Tensor, slope: Tensor, kept: float) -> None:
        """Write the gradient of the weights, given that of the output; add it to what is kept of the last one."""
        # With kept = 0 the old values are not even read, so that a number in them that is not one does no harm.
        self.weight_slope.addmm_(slope.t(), x, beta=kept)
        if self.bias_slope is not None and kept:
            self.bias_slope.mul_(kept).add_(slope.sum(0))
        elif self.bias_slope is not None:
            torch.sum(slope, 0, out=self.bias_slope)


class Head:
    """One linear layer, or two with ReLU between them."""

    def __init__(self, layers: list[Layer]) -> None:
        self.first, self.last = layers[0], layers[-1]
        self.hidden = len(layers) == 2

    def logits(self, x: Tensor) -> Tensor:
        """The scores of these samples."""
        return self.forward(x)[0]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The scores, and the input of the last layer."""
        inputs = self.first(x).relu_() if self.hidden else x
        return self.last(inputs), inputs

    def backward(self, x: Tensor, inputs: Tensor, slope: Tensor, kept: float = 0.0) -> None:
        """Write the gradient of all weights, given that of the scores; add it to what is kept of the last one."""
        self.last.differentiate(inputs, slope, kept)
        if self.hidden:
            before = torch.mm(slope, self.last.weight)
            # 0 where ReLU gave 0. A value that is not a number passes its gradient on, so that it is noticed.
            self.first.differentiate(x, torch.ops.aten.threshold_backward(before, inputs, 0), kept)


def as_head(module: nn.Module, places: list[tuple[Tensor, Tensor]]) -> Head | None:
    """The module as a head; None where it is anything else, or where somebody listens to its layers.

    `places` are the values and the gradients of all its tensors that are trained, in their order.
    """
    steps = list(module) if type(module) is nn.Sequential else [module]
    if steps and is_flattening(steps[0]):
        steps = steps[1:]
    shown = [type(step) for step in steps] in ([nn.Linear], [nn.Linear, nn.ReLU, nn.Linear])
    if not shown or any(map(is_hooked, module.modules())):
        return None
    linears = [step for step in steps if isinstance(step, nn.Linear)]
    if len(places) != sum(1 + (layer.bias is not None) for layer in linears):
        return None  # a part that is not trained, or one weight in two places
    following, layers = iter(places), []
    for linear in linears:
        weight, weight_slope = next(following)
        bias, bias_slope = (None, None) if linear.bias is None else next(following)
        layers.append(Layer(weight, bias, weight_slope, bias_slope))
    return Head(layers)


def is_flattening(step: nn.Module) -> bool:
    """Whether a layer makes one row of each sample and does nothing else."""
    return type(step) is nn.Flatten and step.start_dim == 1 and step.end_dim == -1


def is_hooked(layer: nn.Module) -> bool:
    """Whether something is called before or after this layer, or in its place."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return any(hooks) or "forward" in vars(layer)
