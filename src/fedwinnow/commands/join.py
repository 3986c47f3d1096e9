"""`fedwinnow join`: a site of a run over a network."""

from __future__ import annotations

import dataclasses
import re
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedwinnow.all_settings import PlaceSettings
from fedwinnow.commands.common import Flags
from fedwinnow.commands.serve_and_join import refuse_unless_protected, tell
from fedwinnow.errors import UsageError
from fedwinnow.setting import same

if TYPE_CHECKING:
    from fedwinnow.deployment.consent import Consent

MARKS = {"ok": "ok", "note": "note", "wrong": "WRONG"}


@dataclass(frozen=True)
class Join(Flags):
    """Take part in a run: train on this site's data, send what the ledger lists, keep the verdict on the labels.

    The folder gets ledger.jsonl (what left this site, when, how many bytes), the site's memory, and at the end
    audit.csv and report.html.
    """

    server: str = "127.0.0.1:8443"
    """The coordinator: host:port."""
    tls: Path | None = None
    """This site's folder from `fedwinnow certificates`, with ca.crt and site.key."""
    insecure: bool = False
    """Plain text without keys, for trials on one machine."""
    data: str | None = None
    """The site's data: a name with options (csv:path=a.csv,label=diagnosis,schema=schema.json), or a path."""
    scene: Path | None = None
    """Instead of --data: a saved scene, some of whose clients run on this machine."""
    clients: str | None = None
    """With --scene: which clients, for example 0-49 or 0,2,5-9; none: all."""
    least_count: int | None = None
    """Numbers about fewer samples do not leave this site; none: 5, or 0 with --scene. A coordinator may raise it."""
    encoder: str | None = None
    """Where the files of the run's encoder are here: transformers:path=FOLDER; the coordinator says the rest.

    Needed only for an encoder whose options name files. It must have the coordinator's hash."""
    name: str | None = None
    """The site's name; none: that of its --tls folder, or of this machine. With keys, the key decides."""
    out: Path | None = None
    """The site's folder; none: sites/<name>."""
    allow_exposure: Literal["masked", "model", "client", "sample"] | None = None
    """With --data: the most that others may learn about: the model, the site as a whole (client), or single samples.

    A method that sends more is refused. masked: nothing of this site alone, that is only runs with --secure-sums.
    none: client."""
    policy: Path | None = None
    """The site's policy, a file: what may be asked of this site. It decides in place of a person."""
    yes: bool = False
    """Take part without a question in whatever the default policy allows (--write-policy shows it)."""
    write_policy: Path | None = None
    """Write the default policy with comments into this file, to be changed and given as --policy; does not join."""
    device: str | None = same(PlaceSettings, "device")
    patience: float = 600.0
    """Seconds to wait for a coordinator that cannot be reached."""
    heartbeat: float = 30.0
    """Seconds between signs of life; after two without one, the coordinator counts this site as lost."""
    check: bool = False
    """Only check, before the day of the run: keys, data, disk, the coordinator, clock and task; sends no result."""

    def run(self) -> int:
        """Answer until the run is over."""
        from fedwinnow.deployment.consent import demanded_least_count
        from fedwinnow.deployment.expiry import SITE, check_expiry
        from fedwinnow.deployment.flower_environment import prepare
        from fedwinnow.deployment.keys import SiteFiles
        from fedwinnow.deployment.site import Site, claim
        from fedwinnow.deployment.site_data import holding_of
        from fedwinnow.deployment.sum_identity import identities_of
        from fedwinnow.experiment.run_folder import RunFolder

        if self.write_policy is not None:
            return self.written_policy(self.write_policy)
        self.refuse_wrong_flags()
        if self.check:
            prepare("join")
            return self.checked()
        consent = self.consent()
        refuse_unless_protected(self.tls, self.insecure, self.say)
        prepare("join")
        from fedwinnow.deployment import flower_visit

        files = None if self.tls is None else SiteFiles(self.tls)
        if files is not None:
            check_expiry(files.folder, SITE, self.say)
        name, folder = self.place()
        least = demanded_least_count(self.least_count, consent)
        holding = holding_of(self.data, self.scene, self.clients, self.device, least, self.encoder)
        with RunFolder(folder).locked():
            claim(folder, name)
            who = identities_of(holding, files, name)
            site = Site(name, holding, folder, self.say, consent=consent, identities=who)
            try:
                flower_visit.join(site, self.server, files, self.patience, self.heartbeat)
            except KeyboardInterrupt:
                self.say("interrupted; the same command takes part again")
                return 130
        self.say(f"the run is over; this site's files are in {folder}")
        if (folder / "report.html").exists():
            self.say(f"its labels in order: {folder / 'report.html'}; to look: fedwinnow review {folder} --anchor 30")
        self.emit({"folder": str(folder), "site": name})
        return 0

    def place(self) -> tuple[str, Path]:
        """The site's name and its folder."""
        name = self.name or (self.tls.resolve().name if self.tls else socket.gethostname())
        return name, self.out or Path("sites") / name

    def checked(self) -> int:
        """Print a line for every check; returns 0, or the exit code of the first thing that is wrong."""
        from contextlib import ExitStack

        from fedwinnow.deployment.consent import demanded_least_count
        from fedwinnow.deployment.join_check import Preparation
        from fedwinnow.deployment.keys import SiteFiles
        from fedwinnow.deployment.site import Site
        from fedwinnow.deployment.site_data import holding_of

        files = None if self.tls is None else SiteFiles(self.tls)
        name, folder = self.place()
        consent, console = self.decided(), self.console()
        least = demanded_least_count(self.least_count, consent)
        with ExitStack() as kept:
            preparation = Preparation(
                self.server,
                files,
                folder,
                name,
                lambda: holding_of(self.data, self.scene, self.clients, self.device, least, self.encoder),
                lambda holding: Site(name, holding, folder, self.say, consent=consent),
                kept,
                by_person=self.policy is None and self.scene is None and not self.yes,
            )
            for line in preparation.lines():
                if line.state != "open":
                    console.print(f"{MARKS[line.state]:<7}{line.what:<12} {line.text}", markup=False, soft_wrap=True)
        self.emit([asdict(line) for line in preparation.done])
        console.print(preparation.in_words(), markup=False)
        return preparation.exit_code

    def refuse_wrong_flags(self) -> None:
        """Refuse wrong flags before any file is read."""
        found = re.fullmatch(r"[A-Za-z0-9._-]+:(\d{1,5})", self.server)
        if found is None or not 1 <= int(found[1]) <= 65535:
            raise UsageError(
                f"--server {self.server} was given; allowed: host:port, for example hospital.org:8443 (a host with "
                f"other letters in its xn-- form)."
            )
        if not 10 <= self.heartbeat <= 1800:
            raise UsageError(f"--heartbeat {self.heartbeat:g} was given; allowed: 10 to 1800 seconds.")
        if not self.patience >= 0:
            raise UsageError(f"--patience {self.patience:g} was given; allowed: 0 seconds or more.")
        if self.allow_exposure is not None and self.scene is not None:
            raise UsageError(
                f"--allow-exposure {self.allow_exposure} was given with --scene; allowed: with --data. The coordinator "
                f"has the samples of a scene too."
            )
        if self.yes and self.policy is not None:
            raise UsageError("--yes and --policy exclude each other: --yes takes the default policy. Give one of them.")
        if self.allow_exposure is not None and self.policy is not None:
            raise UsageError(
                f"--allow-exposure {self.allow_exposure} was given with --policy, which says this itself "
                f"(exposure). Give one of them."
            )
        refuse_unless_protected(self.tls, self.insecure, lambda text: None)

    def consent(self) -> Consent:
        """Who says yes for this site; an error if nobody can."""
        from fedwinnow.deployment.consent import ByPerson, ByPolicy

        if self.policy is not None or self.scene is not None:
            return self.decided()
        default = self.decided().policy
        if self.yes:
            rules = "; ".join(f"{name} = {value}" for name, value in default.rules().items())
            self.say(f"--yes: this site takes part in what the default policy allows: {rules}")
            return ByPolicy(default, "--yes, the default policy")
        if self.quiet:
            raise UsageError(
                "--quiet was given, but a person must see what is asked of this site; give --policy FILE or --yes with "
                "it, or leave it out."
            )
        if not sys.stdin.isatty():
            raise UsageError(
                "nobody can be asked here whether this site takes part, because there is no terminal; give --policy "
                "FILE (fedwinnow join --write-policy FILE writes one to change), or --yes for the default policy."
            )
        return ByPerson(default, input, self.say)

    def decided(self) -> Consent:
        """What holds without a question: the policy that was given, or the default one with the flags."""
        from fedwinnow.deployment.consent import ByPolicy, Trial
        from fedwinnow.deployment.exposure_limit import USUAL
        from fedwinnow.deployment.policy import read_policy, shipped

        if self.policy is not None:
            return ByPolicy(read_policy(self.policy), f"the policy {self.policy}")
        if self.scene is not None:
            return Trial()
        default = shipped(exposure=self.allow_exposure or USUAL)
        if self.least_count is not None:
            default = dataclasses.replace(default, least_count=self.least_count)
        return ByPolicy(default, "the default policy")

    def written_policy(self, path: Path) -> int:
        """Write the default policy."""
        from fedwinnow.deployment.policy import write_policy

        write_policy(path)
        self.say(f"{path} has the default policy. Change it, then: fedwinnow join --policy {path} ...")
        self.emit({"policy": str(path)})
        return 0

    def say(self, text: str) -> None:
        """Print a line for the operator."""
        tell(text, quiet=self.quiet)
