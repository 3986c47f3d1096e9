"""`fedwinnow methods`: every method with what it needs, what its clients reveal, its stages, options and citation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fedwinnow import catalogue
from fedwinnow.commands.catalogues import Catalogue, as_json, show_options
from fedwinnow.commands.common import escaped
from fedwinnow.experiment.report.templates import LEARNS, RECEIVERS

if TYPE_CHECKING:
    from rich.console import Console

# what a method needs -> the words of the catalogue
NEEDS = {
    "truth": "CHEATS: it trains only on samples whose labels are really right; an upper reference, not a method",
    "pooled_data": "NOT FEDERATED: all samples are in one place; a reference",
    "trusted_data": "trusted samples on the server (--trusted)",
    "public_data": "samples without labels that every site and the server have (--public)",
}
MARKS = {"truth": "the truth ([red]CHEATS[/])", "pooled_data": "all data in one place ([red]NOT FEDERATED[/])"}


@dataclass(frozen=True)
class Methods(Catalogue):
    """The methods: what each needs, what its clients reveal, its stages, options and citation.

    NAME may also be a file with your own method: ./my_method.py
    """

    family: ClassVar[str] = "methods"

    def find(self, name: str) -> catalogue.Entry:
        """The method of this name, from fedwinnow, an installed package or a user's file."""
        return catalogue.in_file("methods", Path(name)) if name.endswith(".py") else super().find(name)

    def list_all(self) -> None:
        """Two lines each: a summary, and what it needs and reveals beyond FedAvg."""
        from fedwinnow.terminal import Grid

        entries = catalogue.entries(self.family)
        self.emit([as_json(entry) for entry in entries.values()])
        rows = []
        for name, entry in entries.items():
            marks = [MARKS.get(need, need.replace("_", " ")) for need in entry.facts.get("needs", ())]
            needs = f"needs {', '.join(marks)}; " if marks else ""
            others = f"; to other sites: {to_other_sites(entry)}" if to_other_sites(entry) else ""
            secure = f"; with --secure-sums: {under_secure_sums(entry)}"
            line = f"[dim]{needs}beyond the model it reveals: {escaped(beyond_the_model(entry) + others + secure)}[/]"
            rows.append((f"[bold]{name}[/]", f"{escaped(entry.summary)}\n{line}"))
        console = self.console()
        Grid("wt", (), rows).show(console)
        console.print("\n[dim]fedwinnow methods NAME shows every option; ./my_method.py works as a NAME.[/]")

    def show(self, entry: catalogue.Entry) -> None:
        """Everything about one method."""
        self.emit(as_json(entry))
        console = self.console()
        console.print(f"[bold]{escaped(entry.name)}[/]: {escaped(entry.summary)}")
        if entry.details:
            console.print("\n" + escaped(" ".join(entry.details.split())))
        facts = entry.facts
        if facts.get("citation"):
            console.print(f"[dim]from:[/] {escaped(facts['citation'])}")
        needs = [NEEDS.get(need, need.replace("_", " ")) for need in facts.get("needs", ())]
        console.print(f"[dim]needs:[/] {escaped('; '.join(needs) or 'nothing beyond the sites and their labels')}")
        if facts.get("asks"):
            console.print(f"[dim]must also answer:[/] {escaped(facts['asks'])}")
        if "stages" in facts:
            console.print(f"[dim]stages:[/] {escaped(', then '.join(facts['stages']))}")
        show_exposure(entry, console)
        console.print()
        show_options(entry, console)


def show_exposure(entry: catalogue.Entry, console: Console) -> None:
    """Which keys may leave a site, what can be learned from each, and who receives it."""
    from fedwinnow.terminal import Grid

    exposes = entry.facts.get("exposes")
    if not isinstance(exposes, dict):
        console.print("[dim]leaves a site:[/] computed in the method's code; ledger.json of a run lists it")
        return
    rows = [
        (f"[bold]{escaped(key)}[/]", str(kind), LEARNS.get(kind, ""), received_by(entry, key))
        for key, kind in exposes.items()
    ]
    console.print()
    Grid("tttt", ("may leave a site", "exposes", "the receiver can learn", "who receives it"), rows).show(console)
    console.print(f"[dim]with --secure-sums:[/] {escaped(under_secure_sums(entry))}")
    for key, when in entry.facts.get("forwards", {}).items():
        console.print(f"[dim]other sites receive[/] {escaped(key)}[dim]:[/] {escaped(when)}")


def received_by(entry: catalogue.Entry, key: str) -> str:
    """Who receives the values that a site sends under a key, in words."""
    return RECEIVERS["server", "sites"] if key in entry.facts.get("forwards", {}) else RECEIVERS["server",]


def to_other_sites(entry: catalogue.Entry) -> str:
    """The keys that the server may forward to other sites unchanged."""
    return ", ".join(entry.facts.get("forwards", {}))


def under_secure_sums(entry: catalogue.Entry) -> str:
    """Whether sums over sites are enough for a method, or which keys it must see of single sites."""
    exposes, sums = entry.facts.get("exposes"), entry.facts.get("sums")
    if not isinstance(exposes, dict) or not isinstance(sums, dict):
        return "see its code"
    if "pooled_data" in entry.facts.get("needs", ()):
        return "refused, it is not federated"
    singles = [key for key in exposes if key not in sums]
    return f"refused, it must see single {', '.join(singles)}" if singles else "sums only"


def beyond_the_model(entry: catalogue.Entry) -> str:
    """The keys from which a receiver learns more than from a model, by what they expose."""
    exposes = entry.facts.get("exposes")
    if not isinstance(exposes, dict):
        return "see its code"
    return ", ".join(f"{key} ({kind})" for key, kind in exposes.items() if kind != "model") or "nothing"
