"""FedAvg with another rule than the weighted mean, as methods under the names of the rules.

The rules are in `mathematics/aggregators.py`, with their papers; every method that averages takes one as `aggregate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedwinnow.federation.method import Method
from fedwinnow.mathematics.payload import Summing
from fedwinnow.options import option


@dataclass(frozen=True)
class CoordinateMedian(Method):
    """FedAvg with the median of every parameter in place of the mean."""

    name: ClassVar[str] = "median"
    sums: ClassVar[dict[str, Summing]] = {"samples": "sum"}
    citation: ClassVar[str] = "Yin et al., Byzantine-Robust Distributed Learning, ICML 2018"
    aggregate: str = option("median", "How models are merged.")


@dataclass(frozen=True)
class CoordinateTrimmedMean(Method):
    """FedAvg with a mean that leaves out the largest and smallest values of every parameter."""

    name: ClassVar[str] = "trimmed_mean"
    sums: ClassVar[dict[str, Summing]] = {"samples": "sum"}
    citation: ClassVar[str] = "Yin et al., Byzantine-Robust Distributed Learning, ICML 2018"
    aggregate: str = option("trimmed_mean", "How models are merged; another share: trimmed_mean:share=0.1.")


@dataclass(frozen=True)
class KrumChoice(Method):
    """FedAvg with the one model that is nearest to its neighbours in place of the mean."""

    name: ClassVar[str] = "krum"
    sums: ClassVar[dict[str, Summing]] = {"samples": "sum"}
    citation: ClassVar[str] = "Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017"
    forwards: ClassVar[dict[str, str]] = {
        "weights": "always: the model that is chosen becomes the global one",
        "counters": "with it",
    }
    aggregate: str = option("krum", "How models are merged; another share of bad models: krum:faulty=0.3.")


@dataclass(frozen=True)
class MultiKrumChoice(Method):
    """FedAvg with the mean of the models that are nearest to their neighbours."""

    name: ClassVar[str] = "multi_krum"
    sums: ClassVar[dict[str, Summing]] = {"samples": "sum"}
    citation: ClassVar[str] = "Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017"
    aggregate: str = option("multi_krum", "How models are merged; another number of models: multi_krum:keep=3.")


@dataclass(frozen=True)
class RobustFederatedAggregation(Method):
    """FedAvg with the geometric median of the models in place of the mean (RFA)."""

    name: ClassVar[str] = "geometric_median"
    sums: ClassVar[dict[str, Summing]] = {"samples": "sum"}
    citation: ClassVar[str] = "Pillutla et al., Robust Aggregation for Federated Learning, IEEE TSP 2022"
    aggregate: str = option("geometric_median", "How models are merged; to convergence: geometric_median:steps=100.")


@dataclass(frozen=True)
class ClippedMean(Method):
    """FedAvg with updates that are shortened to a limit before they are averaged."""

    name: ClassVar[str] = "norm_clipping"
    sums: ClassVar[dict[str, Summing]] = {"samples": "sum"}
    citation: ClassVar[str] = "Sun et al., Can You Really Backdoor Federated Learning?, 2019"
    aggregate: str = option("norm_clipping", "How models are merged; a fixed limit: norm_clipping:limit=1.")
