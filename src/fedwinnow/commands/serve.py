"""`fedwinnow serve`: the coordinator of a run over a network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedwinnow.commands.run import Run
from fedwinnow.commands.serve_and_join import refuse_unless_protected, tell
from fedwinnow.deployment.serve_settings import ServeSettings
from fedwinnow.errors import UsageError
from fedwinnow.setting import check_setting, flag_of, settings_in

if TYPE_CHECKING:
    from fedwinnow.deployment.flower_link import Link
    from fedwinnow.deployment.flower_run import Terms
    from fedwinnow.deployment.status.status import Status


@dataclass(frozen=True)
class Serve(ServeSettings, Run):
    """Coordinate a run whose sites are other machines, each with `fedwinnow join`.

    With --audit nothing but judging models is trained, and every site gets an audit of its labels.
    With --scene the sites simulate clients of that scene. Without it they have data of their own, and --data is the
    coordinator's: it says what the task is and measures the model. No sample is sent; models say something about them.
    """

    def run(self) -> int:
        """Open the link, wait for the sites, play."""
        from fedwinnow.deployment.expiry import COORDINATOR, check_expiry
        from fedwinnow.deployment.flower_environment import prepare
        from fedwinnow.deployment.keys import ServerFiles

        self.check()
        prepare("serve")
        from fedwinnow.deployment.flower_link import Link
        from fedwinnow.deployment.front import PortLimits

        files = None if self.tls is None else ServerFiles(self.tls)
        if files is not None:
            check_expiry(files.folder, COORDINATOR, self.say)
        link = Link(self.host, self.port, files, self.timeout, self.say, PortLimits.of(self.sites))
        try:
            if files is not None:
                self.say(f"this coordinator's key: {files.fingerprint()}")
            self.say(f"listening on {self.host}:{self.port}{'' if files else ', insecure'}")
            return self.play(link)
        finally:
            link.close()

    def check(self) -> None:
        """What is needed besides what every run needs."""
        for name in ("sites", "port", "page"):
            check_setting(ServeSettings, name, getattr(self, name))
        if self.checkpoint_every != 1:
            raise UsageError(
                f"--checkpoint-every {self.checkpoint_every} was given; allowed: 1, because sites keep what they "
                f"remember for one round back only."
            )
        if not self.data and self.scene is None and self.update is None:
            raise UsageError("neither --data nor --scene was given; give the coordinator's own samples, or a scene.")
        for name in ("judge", "threshold", "expected_false_alarms", "group", "budget", "update"):
            check_setting(ServeSettings, name, getattr(self, name))
            if not self.audit and getattr(self, name) is not None:
                raise UsageError(f"{flag_of(name)} was given without --audit, which it belongs to.")
        check_setting(ServeSettings, "look_cost", self.look_cost)
        for name in ("data", "scene", "judge", "expected_false_alarms", "group", "budget", "out", "resume"):
            if self.update is not None and getattr(self, name) != settings_in(ServeSettings)[name].default:
                raise UsageError(f"{flag_of(name)} was given with --update, which trains nothing; leave it out.")
        if self.audit and self.encoder == "auto":
            raise UsageError(
                "--encoder auto was given; over a network nobody sees the samples of all sites, which it needs to "
                "choose. Name one that all sites have (--encoder lite, see `fedwinnow encoders`), or leave it out."
            )
        if self.secure_sums and self.tls is None and self.scene is None:
            raise UsageError("--secure-sums was given without --tls: sites know each other by their keys. Give --tls.")
        if self.secure_sums and (self.audit or self.update is not None):
            raise UsageError(
                "--secure-sums was given with an audit, which must see answers of every single site ('sureness', "
                "'figures'); leave one of them out."
            )
        refuse_unless_protected(self.tls, self.insecure, self.say)

    def play(self, link: Link) -> int:
        """The run itself."""
        from fedwinnow.deployment.flower_run import Terms, coordinate
        from fedwinnow.deployment.status.status import Status
        from fedwinnow.deployment.status.status_server import StatusServer
        from fedwinnow.deployment.sum_identity import public_keys_in

        names = None if self.tls is None else link.name_of
        status = Status(self.sites)
        peers = None if self.tls is None or not self.secure_sums else public_keys_in(self.tls / "sites").get
        terms = Terms(
            self.sites,
            self.timeout,
            self.patience,
            self.say,
            names,
            meet=status.meet,
            agree=link.agree,
            step=status.step,
            peers=peers,
        )
        if self.page is not None:
            self.say(f"the state of the run: {StatusServer(status, self.page).url}")
        if self.update is not None:
            return self.sum_looks(link, terms, self.update)
        if self.audit:
            return self.play_audit(link, terms, status)
        return self.carried_out(
            lambda experiment, folder, execution, watchers: coordinate(
                link.grid, experiment, folder, execution, terms, (*watchers, status)
            )
        )

    def play_audit(self, link: Link, terms: Terms, status: Status) -> int:
        """An audit in the place of a run."""
        from fedwinnow.auditing.audit import DEFAULT_JUDGE, AuditSettings, choices_of
        from fedwinnow.commands.audit import default_folder, show_outcome
        from fedwinnow.commands.progress import Bar
        from fedwinnow.deployment.flower_audit import coordinate_audit

        choices = choices_of(self.threshold, self.expected_false_alarms, None, self.budget)
        settings = AuditSettings(self.experiment(), self.judge or DEFAULT_JUDGE, **choices)
        folder = Path(self.out or default_folder(self.scene or self.data))
        execution, console = self.execution(), self.console()
        try:
            with Bar(console, execution.backend, execution.device) as bar:
                outcome = coordinate_audit(
                    link.grid, settings, folder, execution, terms, (bar, status), group=self.group
                )
        except KeyboardInterrupt:
            console.print(f"\ninterrupted; continue with the same command and --resume (folder {folder})", markup=False)
            return 130
        self.emit({"folder": str(folder), **outcome.facts, "counts": outcome.counts()})
        show_outcome(outcome, console)
        return 0

    def sum_looks(self, link: Link, terms: Terms, folder: Path) -> int:
        """Figures from the looks at all sites."""
        from fedwinnow.commands.audit import show_update
        from fedwinnow.deployment.flower_looks import LooksAsked, coordinate_looks

        asked = LooksAsked(self.threshold, self.look_cost)
        updated = coordinate_looks(link.grid, folder, self.execution(), terms, asked)
        self.emit({"folder": str(folder), "looks": updated.looks, "counts": updated.sites})
        show_update(updated, self.console())
        return 0

    def say(self, text: str) -> None:
        """A line for the operator, without control characters: it may quote a site."""
        from fedwinnow.deployment.foreign_text import harmless

        tell(harmless(text), quiet=self.quiet)
