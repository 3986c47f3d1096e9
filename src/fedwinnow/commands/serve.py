"""`fedwinnow serve`: the coordinator of a run over a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedwinnow.commands.run import Run
from fedwinnow.commands.serve_and_join import refuse_unless_protected, tell
from fedwinnow.deployment.serve_settings import ServeSettings
from fedwinnow.errors import UsageError
from fedwinnow.setting import check_setting

if TYPE_CHECKING:
    from fedwinnow.deployment.flower_link import Link


@dataclass(frozen=True)
class Serve(ServeSettings, Run):
    """Coordinate a run whose sites are other machines, each with `fedwinnow join`.

    With --scene the sites simulate clients of that scene. Without it they have data of their own, and --data is the
    coordinator's: it says what the task is and measures the model. No sample is sent; models say something about them.
    """

    def run(self) -> int:
        """Open the link, wait for the sites, play."""
        from fedwinnow.deployment.flower_environment import prepare
        from fedwinnow.deployment.keys import ServerFiles

        self.check()
        prepare("serve")
        from fedwinnow.deployment.flower_link import Link

        files = None if self.tls is None else ServerFiles(self.tls)
        link = Link(self.host, self.port, files, self.timeout, self.say)
        try:
            self.say(f"listening on {self.host}:{self.port}{'' if files else ', insecure'}")
            return self.play(link)
        finally:
            link.close()

    def check(self) -> None:
        """What is needed besides what every run needs."""
        for name in ("sites", "port"):
            check_setting(ServeSettings, name, getattr(self, name))
        if self.checkpoint_every != 1:
            raise UsageError(
                f"--checkpoint-every {self.checkpoint_every} was given; allowed: 1, because sites keep what they "
                f"remember for one round back only."
            )
        if not self.data and self.scene is None:
            raise UsageError("neither --data nor --scene was given; give the coordinator's own samples, or a scene.")
        refuse_unless_protected(self.tls, self.insecure, self.say)

    def play(self, link: Link) -> int:
        """The run itself."""
        from fedwinnow.deployment.flower_run import Terms, coordinate

        names = None if self.tls is None else link.name_of
        terms = Terms(self.sites, self.timeout, self.patience, self.say, names)
        return self.carried_out(
            lambda experiment, folder, execution, watchers: coordinate(
                link.grid, experiment, folder, execution, terms, watchers
            )
        )

    def say(self, text: str) -> None:
        """A line for the operator."""
        tell(text, quiet=self.quiet)
