"""A method that goes wrong once: at its second round, unless a file says that it already has."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from fedwinnow import Method
from fedwinnow.options import option


@dataclass(frozen=True)
class Stumbling(Method):
    """FedAvg that raises, is interrupted, or has its process killed."""

    name: ClassVar[str] = "stumbling"
    how: Literal["raise", "interrupt", "kill", "never"] = option("raise", "What goes wrong.")
    mark: Path = option(Path("mark"), "Once it has gone wrong, a file of this name and '.stumbled' is there.")

    @property
    def stumbled(self):
        """Not the option's own path: a file that an option names belongs to a run's identity."""
        return self.mark.with_name(f"{self.mark.name}.stumbled")

    def merge(self, server, replies):
        super().merge(server, replies)
        if server.round == 2 and self.how != "never" and not self.stumbled.exists():
            self.stumbled.touch()
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyboardInterrupt if self.how == "interrupt" else ValueError("a slip of the pen")
