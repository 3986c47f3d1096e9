"""The probability that a label is wrong, from the losses of a site: the larger the loss, the likelier.

It is the mean of two probabilities. The first depends on the site: the probability of the high component of two
Gaussians over the site's losses. Alone it is not enough: it falls again far from the means where the components differ
in width, it is exactly 0 or 1 for most samples, and it cannot be compared between sites, because a site without a wrong
label has a high component too. The second is the model's probability of all other classes, 1 - exp(-loss): it means the
same at every site, but does not know how large losses usually are. Where the first is near 0 or 1, it decides;
elsewhere, and in the order of the samples, the second counts too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from fedwinnow.mathematics.two_gaussians import TwoGaussians, each_row, exact, fit_many

EVEN = 0.5  # a label is called wrong above this
AT_ONCE = 1 << 16  # so many losses are computed together: more would leave the cache of a processor
SMALLEST, LARGEST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max


def wrong_by_loss(losses: Tensor) -> Tensor:
    """One probability per loss, in float64: equal for equal losses, larger for larger ones; above 1/2 means wrong."""
    return wrong_by_losses([losses])[0]


def wrong_by_losses(losses: Sequence[Tensor]) -> list[Tensor]:
    """The same for the losses of many sites: those with equally many are computed together, with the same bits."""
    found = [exact(one) for one in losses]  # what a site without losses has
    for places in together([len(one) for one in losses]):
        of_sites = wrong_in_rows(torch.stack([losses[place] for place in places]))
        for place, values in zip(places, of_sites, strict=True):
            there = losses[place].device
            found[place] = values if values.device == there else values.float().to(there)
    return found


def together(lengths: Sequence[int]) -> list[list[int]]:
    """Places with the same length, in groups that are not too large; places of length 0 are left out."""
    same: dict[int, list[int]] = defaultdict(list)
    for place, length in enumerate(lengths):
        same[length].append(place)
    groups = []
    for length in sorted(same.keys() - {0}):
        size = max(1, AT_ONCE // length)
        groups += [same[length][start : start + size] for start in range(0, len(same[length]), size)]
    return groups


def wrong_in_rows(losses: Tensor) -> Tensor:
    """The probabilities of sites (rows) that have equally many losses."""
    mixtures = fit_many(losses)
    ascending, order = exact(losses).nan_to_num(nan=torch.inf, posinf=torch.inf).sort(dim=-1, stable=True)
    rank = torch.nn.functional.pad((ascending[:, 1:] != ascending[:, :-1]).cumsum(-1), (1, 0))  # among different ones
    values = torch.zeros_like(ascending).scatter_(-1, rank, ascending)  # the different ones, then zeros
    different = (rank[:, -1] + 1).tolist()
    for places in together(different):
        rows, count = torch.tensor(places, device=values.device), different[places[0]]
        chosen = values[rows, :count]
        of_sites, of_model = p_high(mixtures[rows], chosen), -each_row(torch.expm1, -chosen)
        values[rows, :count] = strictly_rising((of_sites + of_model).div(2).cummax(-1).values)
    return torch.empty_like(values).scatter_(-1, order, values.gather(-1, rank))


def p_high(mixture: TwoGaussians, values: Tensor) -> Tensor:
    """The posterior of the high component, made to rise with the value.

    Its log-odds are a parabola that rises between the two means. Its vertex is below the low mean where the low
    component is the narrower one, and above the high mean otherwise: a value beyond the vertex gets the posterior of
    the vertex.
    """
    low, high = mixture.means.to(values).unsqueeze(-1).unbind(-2)
    narrow, wide = mixture.variances.to(values).unsqueeze(-1).unbind(-2)
    vertex = (low * wide - high * narrow) / (wide - narrow)
    values = torch.where(narrow < wide, values.maximum(vertex), values)
    values = torch.where(wide < narrow, values.minimum(vertex), values)
    return torch.where(mixture.collapsed.to(values.device).unsqueeze(-1), 0.0, 1.0 - mixture.p_low(values))


def strictly_rising(ascending: Tensor) -> Tensor:
    """Make ascending probabilities strictly ascending: equal ones get different last bits, and none crosses 1/2."""
    # The bits of non-negative floats, read as whole numbers, have the same order as the floats.
    bits, steps = ascending.view(torch.int64), torch.arange(ascending.shape[-1], device=ascending.device)
    right = (ascending <= EVEN).sum(-1, keepdim=True)
    is_right = steps < right
    lowered = torch.where(is_right, bits - steps, LARGEST).flip(-1).cummin(-1).values.flip(-1)
    up, one = steps - right, torch.ones((), dtype=torch.float64, device=bits.device).view(torch.int64)
    raised = torch.where(is_right, SMALLEST, bits - up).cummax(-1).values
    lowered, raised = (lowered + steps).maximum(steps), (raised + up).minimum(one - (len(steps) - 1 - steps))
    return torch.where(is_right, lowered, raised).view(torch.float64)
