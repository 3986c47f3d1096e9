"""How wrong each client is: the rate rules of the papers."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedwinnow.errors import DataError, UsageError
from fedwinnow.options import option
from fedwinnow.randomness import Floats, uniforms
from fedwinnow.scene.noise import RateNoise


@dataclass(frozen=True)
class FedCorrNoise(RateNoise):
    """Each client is noisy with probability rho; a noisy one has a rate from U(tau, 1)."""

    name: ClassVar[str] = "fedcorr"
    source: ClassVar[str] = "FedCorr and FedDiv: rho 0.4, 0.6, 0.8, 1; tau 0, 0.5"
    default_flip: ClassVar[str] = "symmetric_all"
    default_select: ClassVar[str] = "independent"
    rho: float = option(0.6, "Probability that a client is noisy.", symbol="ρ", source="FedDiv", at_least=0, at_most=1)
    tau: float = option(0.5, "Lowest rate of a noisy client.", symbol="τ", source="FedDiv", at_least=0, at_most=1)

    def rates(self, clients: int, seed: int) -> Floats:
        who = np.arange(clients)
        noisy = uniforms(seed, "noise client", who) < self.rho
        return np.where(noisy, (1 - self.tau) * uniforms(seed, "noise rate", who) + self.tau, 0.0)

    def rule(self) -> str:
        return f"each client is noisy with probability {self.rho:g}, its rate then from U({self.tau:g}, 1)"


@dataclass(frozen=True)
class Uniform(RateNoise):
    """A fixed share of the clients is noisy, each with a rate from U(low, high)."""

    name: ClassVar[str] = "uniform"
    source: ClassVar[str] = (
        "FedGR: share 0.6, 1; U(0.5, 1), U(0.2, 0.4). FedNoRo: share 0.2 to 0.6; U(0.3, 0.5), U(0.5, 0.7)"
    )
    share: float = option(1.0, "Share of noisy clients, rounded down.", symbol="φ, ρ", at_least=0, at_most=1)
    low: float = option(0.5, "Lowest rate of a noisy client.", symbol="ρ_min, η_l", at_least=0, at_most=1)
    high: float = option(1.0, "Highest rate of a noisy client.", symbol="ρ_max, η_u", at_least=0, at_most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise UsageError(f"{self}: low={self.low:g} is above high={self.high:g}; allowed: low of at most high.")

    def rates(self, clients: int, seed: int) -> Floats:
        who = np.arange(clients)
        order = np.argsort(uniforms(seed, "noise client", who), kind="stable")
        rates = np.zeros(clients)
        noisy = order[: int(np.floor(self.share * clients + 1e-9))]
        rates[noisy] = self.low + (self.high - self.low) * uniforms(seed, "noise rate", noisy)
        return rates

    def rule(self) -> str:
        return f"{100 * self.share:g} % of the clients are noisy, their rates from U({self.low:g}, {self.high:g})"


@dataclass(frozen=True)
class Linear(RateNoise):
    """The rate grows linearly with the number of the client."""

    name: ClassVar[str] = "linear"
    source: ClassVar[str] = "FedRN: 0 to 0.4, 0 to 0.8"
    low: float = option(0.0, "Rate of the first client.", source="FedRN", at_least=0, at_most=1)
    high: float = option(0.4, "Rate of the last client.", source="FedRN", at_least=0, at_most=1)
    reach: bool = option(True, "The last client has the highest rate (paper); false: one step less (FedRN's code).")

    def rates(self, clients: int, seed: int) -> Floats:
        steps = max(clients - 1, 1) if self.reach else clients
        return self.low + (self.high - self.low) * np.arange(clients) / steps

    def rule(self) -> str:
        return f"rates grow linearly from {self.low:g} (first client) to {self.high:g} (last client)"


@dataclass(frozen=True)
class Gaussian(RateNoise):
    """Each client's rate is a normal draw, clipped to 0..1."""

    name: ClassVar[str] = "gaussian"
    source: ClassVar[str] = "FedES: mean 0.3, 0.5; standard deviation 0.2 (eq. 4)"
    default_select: ClassVar[str] = "independent"
    mean: float = option(0.3, "Mean of the draw before clipping.", symbol="μ", source="FedES", at_least=0, at_most=1)
    std: float = option(0.2, "Standard deviation of the draw.", symbol="σ", source="FedES", at_least=0)

    def rates(self, clients: int, seed: int) -> Floats:
        who = np.arange(clients)
        # Box-Muller: two uniform draws make one normal draw.
        radius = np.sqrt(-2 * np.log(1 - uniforms(seed, "noise client", who)))
        normal = radius * np.cos(2 * np.pi * uniforms(seed, "noise rate", who))
        return np.asarray(np.clip(self.mean + self.std * normal, 0.0, 1.0))

    def rule(self) -> str:
        return f"rates from a normal distribution (mean {self.mean:g}, standard deviation {self.std:g}) clipped to 0..1"


@dataclass(frozen=True)
class Constant(RateNoise):
    """Every client has the same rate."""

    name: ClassVar[str] = "constant"
    source: ClassVar[str] = "FedLSR (with select=per_class), FedNoisy (globalised, with select=pooled)"
    rate: float = option(0.4, "The rate.", at_least=0, at_most=1)

    def rates(self, clients: int, seed: int) -> Floats:
        return np.full(clients, self.rate)

    def rule(self) -> str:
        return f"every client has the rate {self.rate:g}"


@dataclass(frozen=True)
class PerClient(RateNoise):
    """The rate of every client, from a file."""

    name: ClassVar[str] = "per_client"
    path: Path = option(..., "A file with one rate a line, or a CSV file with the columns client and rate.")

    def rates(self, clients: int, seed: int) -> Floats:
        rates = self.read(clients)
        outside = np.flatnonzero(~((rates >= 0) & (rates <= 1)))
        if len(outside):
            raise DataError(f"{self.path}: client {outside[0]} has the rate {rates[outside[0]]:g}; allowed: 0 to 1.")
        return rates

    def read(self, clients: int) -> Floats:
        """The rates in the order of the clients; each client once."""
        try:
            reader = csv.reader(self.path.read_text(encoding="utf-8-sig").splitlines())
            table = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if "".join(row).strip()]
        except (OSError, UnicodeDecodeError, csv.Error) as problem:
            raise DataError(f"{self.path}: the rates cannot be read: {problem}") from None
        if table and table[0][1] == ["client", "rate"]:
            table = table[1:]
        elif all(len(row) == 1 for _, row in table):
            table = [(line, [str(number), row[0]]) for number, (line, row) in enumerate(table)]
        rates = np.full(clients, np.nan)
        for line, row in table:
            try:
                number, rate = row
                rates[range(clients)[int(number)] if int(number) >= 0 else clients] = float(rate)
            except (ValueError, IndexError):
                raise DataError(
                    f"{self.path}, line {line}: '{','.join(row)}' is not the rate of a client; "
                    f"allowed: a client from 0 to {clients - 1} and a number from 0 to 1."
                ) from None
        if len(table) != clients or np.isnan(rates).any():
            raise DataError(f"{self.path}: {len(table)} rates for {clients} clients; every client needs exactly one.")
        return rates

    def rule(self) -> str:
        return f"rates from the file {self.path.name}"
