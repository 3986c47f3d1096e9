"""Pictures of a scene: the bubble plot of the papers, the transition heat map, the bars of the rates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedwinnow.scene.scene import Scene
from fedwinnow.study.figures.style import BLUE, GREY, ORANGE, legend, picture
from fedwinnow.study.scene_words import scene_in_words

MOST_LABELS = 30


def draw_scene(scene: Scene, folder: Path, suffix: str = "png") -> list[Path]:
    """All pictures of a scene; the transitions only if the true labels are known."""
    made = [draw_bubbles(scene, folder / f"partition.{suffix}"), draw_rates(scene, folder / f"rates.{suffix}")]
    if scene.true is not None:
        made.append(draw_transitions(scene, folder / f"transitions.{suffix}"))
    return made


def draw_bubbles(scene: Scene, path: Path) -> Path:
    """Who holds which class: the area of a bubble is the number of samples, given labels."""
    counts = scene.counts()
    client, label = np.nonzero(counts)
    width, height = min(3 + 0.22 * scene.clients, 14), min(1.6 + 0.24 * scene.classes, 12)
    with picture(path, width, height) as (_, axes):
        # The largest bubble just fills its cell.
        cell = 72 * min((width - 1.5) / scene.clients, (height - 1) / scene.classes)
        axes.scatter(client, label, s=counts[client, label] / counts.max() * cell**2 * 0.9, color=BLUE, linewidths=0)
        axes.set(xlabel="client", ylabel="given class", title=f"Who holds what: {scene_in_words(str(scene.partition))}")
        axes.set_xlim(-0.7, scene.clients - 0.3)
        axes.set_ylim(scene.classes - 0.3, -0.7)
        if scene.classes <= MOST_LABELS:
            axes.set_yticks(range(scene.classes), scene.data.class_names)
        if scene.clients <= MOST_LABELS:
            axes.set_xticks(range(scene.clients))
        axes.grid(alpha=0.2)
    return path


def draw_rates(scene: Scene, path: Path) -> Path:
    """How wrong each client is: realised as bars, nominal as marks."""
    who = np.arange(scene.clients)
    with picture(path, min(4 + 0.18 * scene.clients, 14), 3.2) as (figure, axes):
        axes.bar(who, np.nan_to_num(100 * scene.realised), color=ORANGE, width=0.8, label="realised")
        if not np.isnan(scene.nominal).all():
            axes.plot(who, 100 * scene.nominal, "_", color="black", markersize=8, label="nominal")
        if np.isnan(scene.realised_rate):
            axes.text(0.5, 0.5, "the truth is unknown", transform=axes.transAxes, ha="center", color=GREY)
        else:
            overall = 100 * scene.realised_rate
            axes.axhline(overall, color=GREY, linestyle="--", linewidth=1, label=f"overall {overall:.1f} %")
        axes.set(
            xlabel="client",
            ylabel="wrong labels (%)",
            ylim=(0, 100),
            title=f"How wrong: {scene_in_words(str(scene.noise))}",
        )
        axes.set_xlim(-0.7, scene.clients - 0.3)
        if scene.clients <= MOST_LABELS:
            axes.set_xticks(who)
        legend(figure)
    return path


def draw_transitions(scene: Scene, path: Path) -> Path:
    """What the wrong labels became: of each true class (row), the share given each label (column)."""
    counts = scene.transitions()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = min(2.6 + 0.36 * scene.classes, 12)
    with picture(path, size + 0.8, size, square=True) as (figure, axes):
        image = axes.imshow(100 * shares, cmap="cividis", vmin=0, vmax=100)
        axes.set(xlabel="given", ylabel="true", title=f"True against given: {100 * scene.realised_rate:.1f} % wrong")
        if scene.classes <= MOST_LABELS:
            long = max(map(len, scene.data.class_names)) > 3
            axes.set_xticks(
                range(scene.classes), scene.data.class_names, rotation=45 * long, ha="right" if long else "center"
            )
            axes.set_yticks(range(scene.classes), scene.data.class_names)
        if scene.classes <= 12:
            for (row, column), share in np.ndenumerate(shares):
                if share >= 0.005:
                    colour = "black" if share > 0.5 else "white"
                    style: dict[str, Any] = {"ha": "center", "va": "center", "color": colour, "fontsize": "x-small"}
                    axes.text(column, row, f"{100 * share:.0f}", **style)
        figure.colorbar(image, ax=axes, label="share of the true class (%)", shrink=0.8)
    return path
