"""The probability that a label is wrong, from the losses of a site: the larger the loss, the likelier.

It is the mean of two probabilities. The first depends on the site: the probability of the high component of two
Gaussians over the site's losses. Alone it is not enough: it falls again far from the means where the components differ
in width, it is exactly 0 or 1 for most samples, and it cannot be compared between sites, because a site without a wrong
label has a high component too. The second is the model's probability of all other classes, 1 - exp(-loss): it means the
same at every site, but does not know how large losses usually are. Where the first is near 0 or 1, it decides;
elsewhere, and in the order of the samples, the second counts too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedwinnow.mathematics.two_gaussians import TwoGaussians, exact, fit_two_gaussians

EVEN = 0.5  # a label is called wrong above this


def wrong_by_loss(losses: Tensor) -> Tensor:
    """One probability per loss, in float64: equal for equal losses, larger for larger ones; above 1/2 means wrong."""
    if losses.numel() == 0:
        return exact(losses)
    numbers = exact(losses).nan_to_num(nan=torch.inf, posinf=torch.inf)
    values, place = torch.unique(numbers, return_inverse=True)  # ascending
    of_site = p_high(fit_two_gaussians(losses), values)
    of_model = -torch.expm1(-values)
    found = strictly_rising((of_site + of_model).div(2).cummax(0).values)[place]
    return found if found.device == losses.device else found.float().to(losses.device)


def p_high(mixture: TwoGaussians, values: Tensor) -> Tensor:
    """The posterior of the high component, made to rise with the value.

    Its log-odds are a parabola that rises between the two means. Its vertex is below the low mean where the low
    component is the narrower one, and above the high mean otherwise: a value beyond the vertex gets the posterior of
    the vertex.
    """
    if mixture.collapsed:
        return torch.zeros_like(values)
    low, high = mixture.means.to(values)
    narrow, wide = mixture.variances.to(values)
    vertex = (low * wide - high * narrow) / (wide - narrow)
    if narrow < wide:
        values = values.clamp(min=vertex)
    elif wide < narrow:
        values = values.clamp(max=vertex)
    return 1.0 - mixture.p_low(values)


def strictly_rising(ascending: Tensor) -> Tensor:
    """Make ascending probabilities strictly ascending: equal ones get different last bits, and none crosses 1/2."""
    # The bits of non-negative floats, read as whole numbers, have the same order as the floats.
    right = int((ascending <= EVEN).sum())
    bits = ascending.view(torch.int64)
    below, above = bits[:right], bits[right:]
    steps = torch.arange(len(bits), device=bits.device)
    lowered = ((below - steps[:right]).flip(0).cummin(0).values.flip(0) + steps[:right]).maximum(steps[:right])
    up, one = steps[: len(above)], torch.ones((), dtype=torch.float64, device=bits.device).view(torch.int64)
    raised = ((above - up).cummax(0).values + up).minimum(one - up.flip(0))
    return torch.cat([lowered, raised]).view(torch.float64)
