"""What a site does in an audit, message by message; `site.py` hands these messages on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from fedwinnow.deployment.agreed_audit import AgreedAudit, audit_in
from fedwinnow.deployment.agreement import experiment_of
from fedwinnow.deployment.asked import COUNTS
from fedwinnow.deployment.asked_before import MOST, AskedBefore, LooksTold
from fedwinnow.deployment.error_codes import for_others
from fedwinnow.deployment.exposure_limit import refuse_beyond
from fedwinnow.errors import DataError, UsageError
from fedwinnow.federation.host import Answer, Host, Task
from fedwinnow.files import folder_names, json_of

if TYPE_CHECKING:
    from pathlib import Path

    from fedwinnow.auditing.site_half import SiteHalf
    from fedwinnow.deployment.held_agreement import HeldAgreement
    from fedwinnow.deployment.holding import Holding, Letter
    from fedwinnow.deployment.site_audit import AuditedHere
    from fedwinnow.federation.method import Method
    from fedwinnow.mathematics.payload import Exposure, Payload
    from fedwinnow.mathematics.strata import Strata

OPINIONS = "audit"  # the question after the last round: what does the model think of the labels? The answer stays here
REPLY = "reply."


class AuditedSite(Protocol):
    """What an audit needs of its site."""

    name: str
    folder: Path
    holding: Holding

    @property
    def allowed(self) -> Exposure:
        """The most that others may learn from a reply."""

    def say(self, text: str) -> None:
        """Print text for the people at the site."""

    def agreed(self, message: dict[str, Any]) -> HeldAgreement:
        """The agreement that a message belongs to; refused if it asks for something else."""

    def prepared(self, facts: dict[str, Any]) -> tuple[dict[str, Any], Host]:
        """The run of a message, and the host that answers for it."""

    def booked(
        self,
        facts: dict[str, Any],
        said: dict[str, Any],
        sent: Payload,
        run: dict[str, Any] | None = None,
        method: Method | None = None,
        more: dict[str, Exposure] | None = None,
    ) -> Letter:
        """Record in the ledger what is about to leave."""


class InAudit:
    """The audit of a site, between two messages."""

    def __init__(self, site: AuditedSite) -> None:
        self.site = site
        self.halves: dict[int, tuple[str, SiteHalf]] = {}  # by client, with the name of the audit
        self.concluded: set[int] = set()  # the clients whose folder is written

    def introduced(self, facts: dict[str, Any]) -> None:
        """Before the first round: tell the people here what an audit sends, and refuse other groups."""
        agreed = audit_in(facts)
        if agreed is None:
            return
        self.site.holding.agree_on_audit(agreed)
        least = max(experiment_of(facts).least_count, self.site.holding.least_count)
        few = f", none of them of fewer than {least} labels" if least > 1 else ""
        self.site.say(
            f"the coordinator audits labels (judge {agreed.judge}): this site judges its own, and also sends counts of "
            f"them{few}"
        )

    def keep(self, run: dict[str, Any], host: Host, task: Task, answer: Answer) -> None:
        """Store what the models of one federation think of the labels; nothing of it leaves."""
        agreed = must_audit(run)
        held = self.site.holding.judged
        assert held is not None
        here = self.here(run, host, task.client)
        self.note(here.kept, task.client, f"opinions {agreed.part}", None, task.payload)
        here.keep(agreed.part, held[host.judged.holdings.of(task.client)], answer.reply)
        self.halves.pop(task.client, None)
        answer.reply, answer.notes = {}, {}

    def count(self, facts: dict[str, Any], payload: Payload) -> Letter:
        """Answer one question of the audit with counts."""
        run, host, client = self.asked(facts)
        here, half = self.half(run, host, client)
        ask = str(facts.get("ask"))
        sums = here.answer(half, ask, facts, payload)
        self.note(here.kept, client, ask, facts.get("told"), payload)
        exposes: dict[str, Exposure] = dict.fromkeys(sums, "client")
        refuse_beyond(host.method, COUNTS, self.site.allowed)
        return self.site.booked(facts, {"client": client}, named(sums), run, more=exposes)

    def note(self, folder: Path, client: int, what: str, facts: Any, payload: Payload, most: int = MOST) -> None:
        """Refuse another question in the place of one that was answered; a simulation has nothing to hide."""
        if not self.site.holding.simulated:
            AskedBefore(folder, client).note(what, facts, payload, most)

    def conclude(self, facts: dict[str, Any], payload: Payload) -> Letter:
        """The last message about a client: write its folder."""
        run, host, client = self.asked(facts)
        here, half = self.half(run, host, client)
        agreed = must_audit(run)
        if agreed.name != name_of_audit(here.folder):  # otherwise it is written, and people may work on it
            self.make_room(here.folder)
            here.write(half, here.told(facts, payload), agreed, run, facts.get("conclusion"))
        self.concluded.add(client)
        return self.site.booked(facts, {"client": client}, {}, run)

    def looks(self, facts: dict[str, Any], payload: Payload) -> Letter:
        """How many labels people here have looked at, and how many they found wrong, per stratum of all sites."""
        from fedwinnow.auditing.looks_over_sites import LooksHere
        from fedwinnow.auditing.wire_values import sums_as_payload

        run, client, folder = self.audited(facts)
        least = max(experiment_of(run).least_count, self.site.holding.least_count)
        refuse_beyond(self.site.agreed(run).asked.method, COUNTS, self.site.allowed)
        here = LooksHere.of(folder, strata_of(folder))
        told = LooksTold(self.kept(run), client).told(here, least)
        if told["looked"].sum() < here.looked.sum():
            self.site.say("too few new looks to tell by themselves: the coordinator gets what it was told before")
        sums = sums_as_payload(told)
        exposes: dict[str, Exposure] = dict.fromkeys(sums, "client")
        return self.site.booked(facts, {"client": client}, named(sums), run, more=exposes)

    def looked(self, facts: dict[str, Any], payload: Payload) -> Letter:
        """What the looks at all sites say: write it into the folder, and tell how many labels are called now."""
        from fedwinnow.auditing.looks_over_sites import called_now, checked_figures, update_from

        run, client, folder = self.audited(facts)
        strata = strata_of(folder)
        values, p_wrong, threshold = checked_figures(facts, payload, strata)
        times = len(LooksTold(self.kept(run), client).states())
        self.note(self.kept(run), client, "looked", [facts["values"], threshold], payload, MOST + times)
        counts = update_from(folder, strata, p_wrong, values, threshold)
        self.concluded.add(client)
        self.site.say(f"the looks of all sites are in {folder}: {values['said']}")
        least = max(experiment_of(run).least_count, self.site.holding.least_count)
        called = called_now(counts, least)
        return self.site.booked(facts, {"client": client}, named(called), run, more={"called": "client"})

    def audited(self, facts: dict[str, Any]) -> tuple[dict[str, Any], int, Path]:
        """The run, the client and its folder; refused if that holds another audit."""
        run = facts.get("run")
        if not isinstance(run, dict):
            raise for_others(DataError("the coordinator's message does not say which run it belongs to."), "message")
        self.site.agreed(run)
        agreed, client = must_audit(run), facts.get("client")
        if type(client) is not int or client not in self.site.holding.clients(run, facts.get("number")):
            raise for_others(UsageError(f"client {client!r} was asked, which is not here."), "question")
        folder = self.folder_of(run, client)
        if name_of_audit(folder) != agreed.name:
            raise for_others(
                DataError(f"the coordinator asked about looks at its audit, but {folder} holds another one, or none."),
                "changed",
            )
        return run, client, folder

    def make_room(self, folder: Path) -> None:
        """Move away what people have done with an earlier audit."""
        from fedwinnow.deployment.site_audit import set_aside_earlier

        if (moved := set_aside_earlier(folder)) is not None:
            self.site.say(f"an earlier audit, whose labels people looked at, was moved to {moved}")

    def asked(self, facts: dict[str, Any]) -> tuple[dict[str, Any], Host, int]:
        """The run, the host and the client of a message; refused if the client is not here."""
        run, host = self.site.prepared(facts)
        must_audit(run)
        client = facts.get("client")
        if type(client) is not int or client not in self.site.holding.clients(run, facts.get("number")):
            raise for_others(UsageError(f"client {client!r} was asked, which is not here."), "question")
        return run, host, client

    def half(self, run: dict[str, Any], host: Host, client: int) -> tuple[AuditedHere, SiteHalf]:
        """The half of the audit of this client; kept from one question to the next."""
        agreed, here = must_audit(run), self.here(run, host, client)
        if client not in self.halves or self.halves[client][0] != agreed.name:
            self.halves[client] = agreed.name, here.half(agreed.parts)
        return here, self.halves[client][1]

    def here(self, run: dict[str, Any], host: Host, client: int) -> AuditedHere:
        """A client of this machine; where there are several, each has a folder in that of the site."""
        from fedwinnow.deployment.site_audit import AuditedHere

        site, holding = self.site, self.site.holding
        return AuditedHere(
            dataset=holding.dataset,
            host=host,
            client=client,
            name=holding.name_of(client, site.name),
            class_names=holding.class_names(run),
            folder=self.folder_of(run, client),
            kept=self.kept(run),
            least=host.setup.settings.least_count,
            encoded=experiment_of(run).encoder is not None,
        )

    def kept(self, run: dict[str, Any]) -> Path:
        """Where what belongs to one audit is kept between its messages."""
        audit = audit_in(run)
        return self.site.folder / f"audit-{'' if audit is None else audit.name}"

    def folder_of(self, run: dict[str, Any], client: int) -> Path:
        """That of the site, or where it has several clients one inside for each."""
        site, holding = self.site, self.site.holding
        clients = holding.clients(run, client)
        if len(clients) == 1:
            return site.folder
        return site.folder / folder_names([holding.name_of(one, site.name) for one in clients])[clients.index(client)]


def strata_of(folder: Path) -> Strata:
    """The strata of all sites, as the coordinator has told them at the end of the audit."""
    from fedwinnow.auditing.looks_over_sites import STRATA, strata_from

    return strata_from(json_of(folder / "site.json", {"strata": STRATA})["strata"])


def named(sums: Payload) -> Payload:
    """Numbers under the names that they travel with."""
    return {REPLY + key: value for key, value in sums.items()}


def name_of_audit(folder: Path) -> str | None:
    """The name of the audit that is in a folder; None if there is none from a network."""
    path = folder / "site.json"
    found = json_of(path).get("audit") if path.exists() else None
    return found if isinstance(found, str) else None


def must_audit(run: dict[str, Any]) -> AgreedAudit:
    """The audit of a run; refused where there is none."""
    agreed = audit_in(run)
    if agreed is None or not agreed.name:
        raise for_others(DataError("the coordinator asked for a part of an audit, but its run is none."), "question")
    return agreed


def nothing_to_train_on(run: dict[str, Any], host: Host, task: Task) -> bool:
    """Whether all samples of a client are in the fold that its federation leaves out."""
    return audit_in(run) is not None and not task.measures and not host.sites.holdings.sizes[task.client]
