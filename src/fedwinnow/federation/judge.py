"""The contract of a judge: it says which labels of a site are worth a look, beside any method, and sends nothing."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Method
from fedwinnow.mathematics.payload import Payload
from fedwinnow.options import Part, option


@dataclass(frozen=True)
class Judge(Part):
    """Base of every judge. What it keeps of a site is in `client.kept`, apart from the method's memory."""

    federations: ClassVar[int] = 1  # 2: two halves of the sites train apart, and each judges the other
    trains: ClassVar[bool] = True  # False: the samples alone tell, and no model is trained
    remembers: ClassVar[bool] = False  # whether it needs what it kept while the federation trained

    prior: bool = option(
        True, "Add the log of the site's own label frequencies to the logits, in training and in judging alike."
    )

    def observe(self, method: Method, client: Client, got: Payload, reply: Payload) -> None:
        """After a site has trained: compare the model before and after, and keep what is needed in `client.kept`."""

    @abstractmethod
    def opinions(self, method: Method, client: Client, got: Payload) -> Payload:
        """After the last round: `score`, the log-odds that each label is wrong, and `other`, the likeliest other class.

        This stays on the site; only in a simulation the coordinating process receives it.
        """
