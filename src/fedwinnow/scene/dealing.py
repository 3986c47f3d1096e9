"""Dealing samples out to sites: one by one, or in groups that stay together (a patient goes to one hospital)."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.groups import commonest_labels, group_numbers
from fedwinnow.errors import FedwinnowWarning, UsageError
from fedwinnow.scene.folds import at_several_sites
from fedwinnow.scene.holdings import Holdings
from fedwinnow.scene.partition import Partition, Population

TOGETHER = "Groups are dealt out whole, each as one sample with its commonest label."


def deal(rule: Partition, population: Population, groups: NDArray[Any] | None) -> Holdings:
    """Who holds what; with groups the rule deals groups, each with its commonest label."""
    if groups is None or rule.by_data:
        return rule.split(population)
    group = group_numbers(groups)
    sizes = np.bincount(group)
    dealt = rule.split(
        dataclasses.replace(
            population, labels=commonest_labels(group, population.labels, population.classes), sites=None, sizes=sizes
        )
    )
    if dealt.overlap():
        raise UsageError(
            f"{rule} gives the same samples to several clients, but the data has groups, which stay at one client "
            "each; allowed: a partition without shared samples such as iid or dirichlet, or data without group=."
        )
    owner = np.full(len(sizes), -1)
    owner[dealt.rows] = dealt.client
    return Holdings.from_clients(owner[group], dealt.clients)


def warn_of_groups_at_several_sites(name: str, holdings: Holdings, groups: NDArray[Any], sites: Sequence[str]) -> None:
    """Warn of a group at two sites that the data itself names; they are left where they are."""
    mine = groups[holdings.rows]
    several = at_several_sites(group_numbers(mine), holdings.client)
    if not several.any():
        return
    first = mine[np.flatnonzero(several)[0]]
    where = [sites[number] for number in np.unique(holdings.client[mine == first])[:2].tolist()]
    count = len(np.unique(mine[several]))
    warnings.warn(
        f"{name}: {count} {'group has' if count == 1 else 'groups have'} samples at more than one site ('{first}' at "
        f"{where[0]} and {where[1]}), so a model of one site may know samples of another. If the same name means "
        "different patients, put the name of the site before it.",
        FedwinnowWarning,
        stacklevel=3,
    )
