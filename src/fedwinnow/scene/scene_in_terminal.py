"""A scene in the terminal: who holds which classes, and the share of wrong labels of each client."""

from __future__ import annotations

import math

import numpy as np
from rich.console import Console
from rich.markup import escape

from fedwinnow.scene.scene import Scene
from fedwinnow.terminal import Grid

SHADES = " ░▒▓█"
BAR = 20


def show_scene(scene: Scene, console: Console, *, limit: int = 40) -> None:
    """Print the scene as text."""
    data = scene.data
    console.print(f"[bold]{escape(data.name)}[/], {data.samples} training samples, {scene.classes} classes")
    console.print(escape(scene.definition))
    client_table(scene, limit).show(console)
    if scene.clients > limit:
        console.print(f"[dim]... and {scene.clients - limit} more clients (--limit shows more)[/]")
    if scene.classes > columns_shown(scene):
        console.print(f"[dim]the class map shows the first {columns_shown(scene)} of {scene.classes} classes[/]")
    console.print(f"overall: nominal {percent(scene.nominal_rate)}, realised [bold]{percent(scene.realised_rate)}[/]")
    console.print(f"[dim]hash {scene.hash[:16]}, seed {scene.seed}[/]")


def columns_shown(scene: Scene) -> int:
    """How many classes fit beside the other columns."""
    return min(scene.classes, 30)


def client_table(scene: Scene, limit: int) -> Grid:
    """One line per client: size, class map, rates, and a bar of the realised rate."""
    shown = columns_shown(scene)
    counts = scene.counts()
    darkest = max(int(counts.max()), 1)
    rows = []
    for client in range(min(scene.clients, limit)):
        realised = float(scene.realised[client])
        row = (
            escape(scene.site_names[client]),
            str(int(scene.holdings.sizes[client])),
            class_map(counts[client, :shown] / darkest),
            percent(float(scene.nominal[client])),
            percent(realised),
            "" if math.isnan(realised) else f"[red]{'█' * round(realised * BAR)}[/]",
        )
        rows.append(row)
    return Grid("tnwnnw", ("site", "samples", "given classes 0..", "nominal", "realised", "share wrong"), rows)


def class_map(shares: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
    """One letter per class: the darker, the more samples; blank means none."""
    levels = np.where(shares > 0, 1 + np.minimum((shares * 4).astype(int), 3), 0)
    return "".join(SHADES[level] for level in levels) + "|"


def percent(share: float) -> str:
    """A share in percent; a dash where it is unknown."""
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"
