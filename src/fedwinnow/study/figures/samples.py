"""Pictures of a run's samples: losses, probability of a right label, confusion, verdicts by client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedwinnow.errors import DataError, UsageError
from fedwinnow.metrics.detection import identification_accuracy, selection
from fedwinnow.study.figures.run_view import View, groups, on_one_scene
from fedwinnow.study.figures.style import BLUE, GREY, MOST_IN_ONE, ORANGE, legend, name_panel, picture, small_pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LABELS = 20


def chosen(view: View, client: int | None) -> slice:
    """The samples of one client, or of all."""
    if client is None:
        return slice(None)
    if not 0 <= client < view.scene.clients:
        raise UsageError(f"--client {client} was given; allowed: 0 to {view.scene.clients - 1}.")
    mine = view.of(client)
    if mine.start == mine.stop:
        raise UsageError(f"--client {client} was given, but this client holds no samples; give another.")
    return mine


def where(client: int | None) -> str:
    """The client in words, for a title."""
    return "all clients" if client is None else f"client {client}"


def draw_losses(views: Sequence[View], path: Path, client: int | None = None) -> Path:
    """Losses of rightly and wrongly labelled samples, and the two Gaussians that a mixture finds in them."""
    import torch

    from fedwinnow.mathematics.two_gaussians import fit_two_gaussians

    view = views[0]
    mine = chosen(view, client)
    losses, wrong = view.verdicts["loss"][mine].astype(float), view.wrong[mine]
    known = ~np.isnan(losses)  # NaN: the site failed at the end
    losses, wrong = losses[known], wrong[known]
    if not len(losses):
        raise DataError(f"{view.record.folder}: {where(client)} could not be asked for losses.")
    edges = np.linspace(0, np.quantile(losses, 0.999), 60)
    fitted = fit_two_gaussians(torch.from_numpy(losses))
    means, variances, weights = (
        part.double().reshape(2, 1).numpy() for part in (fitted.means, fitted.variances, fitted.weights)
    )
    density = weights * np.exp(-((edges - means) ** 2) / (2 * variances)) / np.sqrt(2 * np.pi * variances)
    with picture(path, 6, 3.8) as (figure, axes):
        heights = len(losses) * (edges[1] - edges[0])
        for mask, colour, words in ((~wrong, BLUE, "right labels"), (wrong, ORANGE, "wrong labels")):
            axes.hist(losses[mask], edges.tolist(), color=colour, alpha=0.6, label=f"{words} ({int(mask.sum())})")
        for one, dashes, words in zip(density, ("-", "--"), ("low component", "high component"), strict=True):
            axes.plot(edges, one * heights, "k" + dashes, linewidth=1.4, label=words)
        axes.set_ylim(0, max(1.0, 1.1 * np.histogram(losses, edges)[0].max()))
        axes.set(xlabel="loss of the given label", ylabel="samples", title=f"{view.label}, {where(client)}")
        legend(figure)
    return path


def draw_clean_probability(views: Sequence[View], path: Path, client: int | None = None) -> Path:
    """Samples ranked by loss: each run's probability of a right label, and the labels that are really wrong."""
    views, first = on_one_scene(views), views[0]
    order = np.argsort(first.verdicts["loss"][chosen(first, client)], kind="stable")
    wrong = np.flatnonzero(first.wrong[chosen(first, client)][order])
    several = len(views) > MOST_IN_ONE
    with picture(path, 7.2 if several else 6, 3.8) as (figure, axes):
        frames = small_pictures(figure, len(views), least=1.4, height=1.5) if several else [axes] * len(views)
        for frame, group in zip(frames, groups(views), strict=True):
            (view,) = group.views  # one scene means one seed
            p_clean = 1 - view.verdicts["p_wrong"][chosen(view, client)][order]
            frame.plot(p_clean, ".", markersize=2.5, color=group.style.colour, label=view.label, rasterized=True)
            if several:
                name_panel(frame, view.name)
        for frame in dict.fromkeys(frames):
            frame.plot(wrong, np.full(len(wrong), -0.07), "|", color="black", markersize=4, label="wrong labels")
            frame.axhline(0.5, color=GREY, linestyle="--", linewidth=1)
            frame.set_ylim(-0.14, 1.05)
        if several:
            figure.suptitle(f"Probability of a right label ({where(client)}; below: the wrong labels)")
            figure.supxlabel("samples, ranked by loss", fontsize="medium")
        else:
            axes.set(xlabel="samples, ranked by loss", ylabel="probability of a right label")
            axes.set_title(f"Clean or not: {where(client)}")
            legend(figure, markerscale=3)
    return path


def draw_confusion(views: Sequence[View], path: Path, client: int | None = None) -> Path:
    """True classes against labels: as given, with the run's suggestions, and the predictions on the test part."""
    view = views[0]
    mine = chosen(view, client)
    given, true = view.scene.given[mine], view.true[mine]
    after = np.where(view.verdicts["p_wrong"][mine] > 0.5, view.verdicts["suggested"][mine], given)
    panels = [("labels as given", counted(true, given, view)), ("suggestions taken", counted(true, after, view))]
    test = view.record.summary.get("test")
    if test is not None:
        panels.append(("test: predicted", np.array(test["confusion"])))
    with picture(path, 3.6 * len(panels) + 0.8, 3.9, square=True) as (figure, axes):
        axes.remove()
        frames = small_pictures(figure, len(panels), least=1.7)
        image: Any = None
        for frame, (words, counts) in zip(frames, panels, strict=True):
            image = show_confusion(frame, counts, words, view.scene.data.class_names)
        frames[0].set_ylabel("true class")
        figure.suptitle(f"{view.label}, {where(client)}")
        figure.colorbar(image, ax=list(frames), label="share of the true class (%)", shrink=0.8)
    return path


def counted(true: Any, labels: Any, view: View) -> Any:
    """How many samples of each true class (row) have each label."""
    classes = view.scene.classes
    return np.bincount(true * classes + labels, minlength=classes**2).reshape(classes, classes)


def show_confusion(axes: Axes, counts: Any, words: str, names: Sequence[str]) -> Any:
    """One matrix in shares of its rows."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    image = axes.imshow(100 * shares, cmap="cividis", vmin=0, vmax=100)
    right = 100 * np.trace(counts) / max(counts.sum(), 1)
    axes.set(title=f"{words}: {right:.1f} % right", xlabel="label")
    if len(names) <= MOST_LABELS:
        axes.set_xticks(range(len(names)), names, rotation=90 if max(map(len, names)) > 2 else 0, fontsize="x-small")
        axes.set_yticks(range(len(names)), names, fontsize="x-small")
    return image


def draw_f_scores(views: Sequence[View], path: Path) -> Path:
    """How well right labels were found: a violin of the clients' F-scores (positive: a right label)."""
    found: dict[str, list[float]] = {}
    kinds = groups(views)
    for group in kinds:
        for view in group.views:
            masks = [(view.verdicts["p_wrong"][view.of(one)] <= 0.5, view.wrong[view.of(one)]) for one in holders(view)]
            clients = selection([mask for mask, _ in masks], [bad for _, bad in masks])["clients"]
            found.setdefault(group.label, []).extend(one["f_score"] for one in clients if one["f_score"] is not None)
    with picture(path, min(1.8 + 1.3 * len(found), 9), 3.8) as (_, axes):
        bodies: Any = axes.violinplot(list(found.values()), showmedians=True, widths=0.8)
        for group, body in zip(kinds, bodies["bodies"], strict=True):
            body.set(facecolor=group.style.colour, alpha=0.5)
        for key in ("cbars", "cmins", "cmaxes", "cmedians"):
            bodies[key].set(color="black", linewidth=1)
        for place, values in enumerate(found.values(), 1):
            axes.plot(np.full(len(values), place), values, "k.", markersize=2, alpha=0.5)
        axes.set_xticks(range(1, len(found) + 1), list(found), rotation=40 if len(found) > 4 else 20, ha="right")
        axes.set(ylabel="F-score of a client", ylim=(0, 1.03), title="Right labels found, by client")
    return path


def holders(view: View) -> list[int]:
    """The clients that hold samples."""
    found: list[int] = np.flatnonzero(view.scene.holdings.sizes).tolist()
    return found


def draw_identification(views: Sequence[View], path: Path) -> Path:
    """Per client: the share of labels rightly called right or wrong, and the true noise level."""
    views, first = on_one_scene(views), views[0]
    clients = holders(first)
    if len(views) > MOST_IN_ONE:
        return draw_identification_map(views, clients, path)
    with picture(path, min(4 + 0.2 * len(clients), 14), 3.6) as (figure, axes):
        width = 0.8 / len(views)
        for place, group in enumerate(groups(views)):
            (view,) = group.views  # one scene means one seed
            spots = np.arange(len(clients)) + (place - (len(views) - 1) / 2) * width
            axes.bar(spots, identified(view, clients), width, color=group.style.colour, label=view.label)
        axes.plot(100 * first.scene.realised[clients], "k_", markersize=9, markeredgewidth=2, label="true noise level")
        axes.set(
            xlabel="client",
            ylabel="rightly identified (%)",
            ylim=(0, 103),
            title="Labels rightly called right or wrong",
        )
        number_clients(axes, clients)
        legend(figure)
    return path


def number_clients(axes: Axes, clients: Sequence[int]) -> None:
    """The numbers of the clients below the axis, of at most about twenty."""
    step = max(1, len(clients) // 20)
    axes.set_xticks(range(0, len(clients), step), [str(client) for client in clients[::step]])


def identified(view: View, clients: Sequence[int]) -> list[float]:
    """The share of labels rightly called right or wrong, in per cent, by client."""
    calls = [view.verdicts["p_wrong"][view.of(one)] <= 0.5 for one in clients]
    values = identification_accuracy(calls, [view.wrong[view.of(one)] for one in clients])
    return [100 * (value or 0) for value in values]


def draw_identification_map(views: Sequence[View], clients: Sequence[int], path: Path) -> Path:
    """The same for many runs: a row per run, a column per client, the noise level in the last row."""
    grid = np.array([*(identified(view, clients) for view in views), 100 * views[0].scene.realised[list(clients)]])
    with picture(path, min(4 + 0.35 * len(clients), 12), 1.4 + 0.24 * len(grid)) as (figure, axes):
        image = axes.imshow(grid, cmap="cividis", vmin=0, vmax=100, aspect="auto")
        axes.set_yticks(range(len(grid)), [*(view.name for view in views), "true noise level"])
        number_clients(axes, clients)
        axes.axhline(len(grid) - 1.5, color="white", linewidth=3)
        axes.set(xlabel="client", title=f"Labels rightly called right or wrong, seed {views[0].record.seed}")
        if len(clients) <= 20:
            for (row, column), value in np.ndenumerate(grid):
                colour = "black" if value > 50 else "white"
                axes.text(column, row, f"{value:.0f}", ha="center", va="center", color=colour, fontsize="x-small")
        figure.colorbar(image, ax=axes, label="%", shrink=0.8)
    return path
