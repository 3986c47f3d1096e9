"""The catalogue commands: list the parts and their options. They read source text and do not import torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

from fedwinnow import catalogue
from fedwinnow.commands.common import Flags, escaped

if TYPE_CHECKING:
    from rich.console import Console

    from fedwinnow.terminal import Grid


@dataclass(frozen=True)
class Catalogue(Flags):
    """The base of the catalogue commands."""

    family: ClassVar[str]
    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = None
    """Show this one with all its options; without a name, list them all."""

    def run(self) -> int:
        """List the family, or show one part of it."""
        if self.name is None:
            self.list_all()
        else:
            self.show(self.find(self.name))
        return 0

    def find(self, name: str) -> catalogue.Entry:
        """The part of this name."""
        return catalogue.find(self.family, name)

    def list_all(self) -> None:
        """Print one line for each part."""
        from fedwinnow.terminal import Grid

        entries = catalogue.entries(self.family)
        self.emit([as_json(entry) for entry in entries.values()])
        rows = [(f"[bold]{escaped(name)}[/]", escaped(entry.summary)) for name, entry in entries.items()]
        console = self.console()
        Grid("wt", (), rows).show(console)
        console.print(f"\n[dim]fedwinnow {self.family} NAME shows every option.[/]")

    def show(self, entry: catalogue.Entry) -> None:
        """Print one part: summary, source and options."""
        self.emit(as_json(entry))
        console = self.console()
        console.print(f"[bold]{escaped(entry.name)}[/]: {escaped(entry.summary)}")
        if entry.details:
            console.print("\n" + escaped(" ".join(entry.details.split())))
        for fact, value in entry.facts.items():
            if isinstance(value, str | int) and not isinstance(value, bool):
                console.print(f"[dim]{fact.replace('_', ' ')}:[/] {escaped(value)}")
        console.print()
        show_options(entry, console)


def show_options(entry: catalogue.Entry, console: Console) -> None:
    """The options, if there are any."""
    if entry.options:
        option_table(entry).show(console)
    else:
        console.print("no options")


def option_table(entry: catalogue.Entry) -> Grid:
    """Every option with its default, the allowed values, its meaning and its source."""
    from fedwinnow.terminal import Grid

    rows = []
    for option in entry.options:
        presets = ", ".join(f"{name}: {value}" for name, value in (option.presets or {}).items())
        notes = ", ".join(filter(None, [option.symbol and f"symbol {option.symbol}", option.source]))
        meaning = escaped(option.sentence) + (f" [dim]({escaped(notes)})[/]" if notes else "")
        rows.append((f"[bold]{option.name}[/]", escaped(presets or option.default), escaped(option.type), meaning))
    return Grid("tttt", ("option", "default", "allowed", "meaning"), rows)


def as_json(entry: catalogue.Entry) -> dict[str, object]:
    """An entry for JSON."""
    return {
        "name": entry.name,
        "summary": entry.summary,
        "details": entry.details,
        "facts": entry.facts,
        "options": [dataclasses.asdict(option) for option in entry.options],
    }


@dataclass(frozen=True)
class Data(Catalogue):
    """The data sources: your files and published data sets."""

    family: ClassVar[str] = "data"


@dataclass(frozen=True)
class Partitions(Catalogue):
    """The partitions: who holds which sample."""

    family: ClassVar[str] = "partitions"


@dataclass(frozen=True)
class Noises(Catalogue):
    """The noises: how many labels of each client are wrong. The option `flip` takes a name from `fedwinnow flips`."""

    family: ClassVar[str] = "noises"


@dataclass(frozen=True)
class Flips(Catalogue):
    """The flips: what a wrong label becomes. Used inside a noise: constant:rate=0.4,flip=pair."""

    family: ClassVar[str] = "flips"


@dataclass(frozen=True)
class Models(Catalogue):
    """The models."""

    family: ClassVar[str] = "models"


@dataclass(frozen=True)
class Encoders(Catalogue):
    """The encoders: frozen models that turn images or texts into rows once, so that only a small head is trained."""

    family: ClassVar[str] = "encoders"


@dataclass(frozen=True)
class Losses(Catalogue):
    """The losses: any method takes one with loss=NAME."""

    family: ClassVar[str] = "losses"


@dataclass(frozen=True)
class Aggregators(Catalogue):
    """The aggregators: any method that averages models takes one with aggregate=NAME."""

    family: ClassVar[str] = "aggregators"


@dataclass(frozen=True)
class Optimizers(Catalogue):
    """The optimisers of local training."""

    family: ClassVar[str] = "optimizers"


@dataclass(frozen=True)
class Judges(Catalogue):
    """The judges: the ways in which an audit scores labels."""

    family: ClassVar[str] = "judges"
