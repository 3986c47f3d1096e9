"""What a site holds, as the rest of a site sees it."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from fedwinnow.data.content_hash import Contents
from fedwinnow.data.dataset import Dataset
from fedwinnow.deployment.agreed_audit import AgreedAudit
from fedwinnow.experiment.prepare import Mask
from fedwinnow.federation.host import Host
from fedwinnow.federation.memory import Memory
from fedwinnow.mathematics.payload import Payload
from fedwinnow.models.model import Shape

Letter = tuple[dict[str, Any], Payload]  # the facts and tensors of a message


class Holding(Protocol):
    """What a site holds: its own data, or some clients of a scene in a simulation on several machines."""

    simulated: bool  # whether it may answer questions of the evaluation: never with real data

    @property
    def samples(self) -> int:
        """How many samples are here."""

    least_count: int  # this site's own; where the coordinator's is larger, that one holds
    judged: Mask | None  # in an audit, per holding: what the models of the last host judge

    @property
    def dataset(self) -> Dataset:
        """The data."""

    def introduction(self, task: dict[str, Any] | None, least_count: int = 0) -> dict[str, Any]:
        """What the site tells the coordinator about itself; an error if the task does not fit its data."""

    def clients(self, run: dict[str, Any], number: int | None) -> tuple[int, ...]:
        """The numbers of the clients that live here."""

    def host(self, run: dict[str, Any], number: int | None, memory: Memory) -> Host:
        """The host that answers for these clients."""

    def agree_on_encoder(self, run: dict[str, Any]) -> Any:
        """The encoder of a run, if it has one; an error if its weights are not those of the coordinator."""

    def shape_of_model(self, run: dict[str, Any]) -> Shape:
        """The shape of what the model is shown."""

    def sums(self, run: dict[str, Any]) -> Tensor | None:
        """The sums of the encoder's columns over the samples here; None if there are too few."""

    def contents(self) -> Contents:
        """The hash of the data."""

    def agree_on_audit(self, agreed: AgreedAudit) -> None:
        """An error if the data cannot be audited as the coordinator says."""

    def name_of(self, client: int, name: str) -> str:
        """The name of a client in its audit; `name` is that of the site."""

    def class_names(self, run: dict[str, Any]) -> tuple[str, ...]:
        """The classes, in the order of the run."""
