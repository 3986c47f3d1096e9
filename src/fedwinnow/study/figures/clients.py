"""Pictures of a run's clients: noise rates, data quality, similar models, memorised labels."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedwinnow.errors import DataError
from fedwinnow.metrics.detection import pearson
from fedwinnow.randomness import Floats
from fedwinnow.study.figures.run_view import Group, View, groups, on_one_scene
from fedwinnow.study.figures.style import GREY, MOST_IN_ONE, legend, name_panel, picture, small_pictures

Points = list[tuple[Group, tuple[Floats, Floats]]]  # of every method, two numbers per client


def draw_estimates(views: Sequence[View], path: Path) -> Path:
    """Estimated against realised noise rate of every client, with Pearson's correlation."""
    points = [(group, rates_of(group)) for group in groups(views)]
    if len(points) > MOST_IN_ONE:
        return draw_many(points, path, "How wrong is each client?", "realised noise rate (%)", "estimated (%)")
    with picture(path, 4.6, 4.6, square=True) as (figure, axes):
        axes.plot([0, 100], [0, 100], color=GREY, linestyle="--", linewidth=1)
        for group, (realised, estimated) in points:
            label = f"{group.label}: {correlation(realised, estimated)}"
            axes.plot(100 * realised, 100 * estimated, markersize=5, alpha=0.8, label=label, **group.marks)
        axes.set(xlabel="realised noise rate (%)", ylabel="estimated noise rate (%)", xlim=(-3, 103), ylim=(-3, 103))
        axes.set(title="How wrong is each client?", aspect="equal")
        legend(figure)
    return path


def draw_many(points: Points, path: Path, title: str, across: str, up: str) -> Path:
    """A small picture per method, all of one scale; the diagonal is where both are equal."""
    with picture(path, 7.2, 3) as (figure, _):
        frames = small_pictures(figure, len(points), least=1.05)
        for frame, (group, (x, y)) in zip(frames, points, strict=True):
            frame.plot([0, 100], [0, 100], color=GREY, linestyle="--", linewidth=1)
            frame.plot(100 * x, 100 * y, markersize=4, alpha=0.8, **group.marks)
            frame.set(xlim=(-5, 105), ylim=(-5, 105), aspect="equal", xticks=(0, 50, 100), yticks=(0, 50, 100))
            name_panel(frame, f"{group.label}\n{correlation(x, y)}")
        figure.suptitle(title)
        figure.supxlabel(across, fontsize="medium")
        figure.supylabel(up, fontsize="medium")
    return path


def correlation(first: Floats, second: Floats) -> str:
    """Pearson's correlation for a legend."""
    r = pearson(second, first)
    return f"r = {'undefined' if r is None else f'{r:.2f}'}"


def rates_of(group: Group) -> tuple[Floats, Floats]:
    """Realised and estimated rates of the clients of all runs of a method."""
    found = [rates(view) for view in group.views]
    return np.concatenate([one for one, _ in found]), np.concatenate([one for _, one in found])


def rates(view: View) -> tuple[Floats, Floats]:
    """Realised and estimated rates of the clients that have both."""
    path = view.record.folder / "clients.csv"
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = [(row["realised_rate"], row["estimated_rate"]) for row in csv.DictReader(stream)]
        pairs = np.array([(float(real), float(guess)) for real, guess in rows if real and guess]).reshape(-1, 2)
    except (OSError, KeyError, ValueError) as problem:
        raise DataError(f"{path}: not the clients of a run ({type(problem).__name__}: {problem}).") from None
    if not len(pairs):
        raise DataError(f"{path}: no client has both a realised and an estimated rate.")
    return pairs[:, 0], pairs[:, 1]


def draw_quality(views: Sequence[View], path: Path) -> Path:
    """True data quality of every client (1 minus its realised rate) as bars, the estimates of the runs as marks."""
    views = on_one_scene(views)
    true = 1 - views[0].realised
    with picture(path, min(4 + 0.2 * len(true), 14), 3.6) as (figure, axes):
        axes.bar(np.arange(len(true)), true, color=GREY, alpha=0.35, width=0.8, label="true")
        for kind in groups(views):
            (view,) = kind.views  # one scene means one seed
            stated = [row["quality"] for row in view.rounds if "quality" in row]
            if not stated:
                raise DataError(f"{view.record.folder}: {view.name} does not estimate data quality; fedes does.")
            values = np.array(stated[-1], float)
            error = float(np.nanmean((values - true) ** 2))
            axes.plot(values, markersize=5, label=f"{view.label}: MSE {error:.3f}", **kind.marks)
        axes.set(xlabel="client", ylabel="data quality", ylim=(0, 1.05), title="Data quality, true and estimated")
        legend(figure)
    return path


def draw_similarity(views: Sequence[View], path: Path) -> Path:
    """Cosine of the outputs of the clients' models for one noise image; clients in the order of their noise rates."""
    from safetensors import SafetensorError, safe_open

    view = views[0]
    place = view.record.folder / "state.safetensors"
    try:
        with safe_open(place, framework="np") as stored:
            outputs = np.asarray(stored.get_tensor("server.output"), np.float64)
    except (OSError, SafetensorError):
        raise DataError(f"{place}: no outputs of the clients' models in there; only fedrn asks for them.") from None
    order = np.argsort(view.scene.realised, kind="stable")
    outputs = outputs[order]
    sizes = np.linalg.norm(outputs, axis=1, keepdims=True)
    if not (sizes > 0).any():
        raise DataError(f"{place}: no client has been asked for its output yet.")
    unit = np.where(sizes > 0, outputs / np.maximum(sizes, 1e-12), np.nan)
    with picture(path, 5.2, 4.6, square=True) as (figure, axes):
        image = axes.imshow(unit @ unit.T, cmap="cividis", vmin=-1 if outputs.min() < 0 else 0, vmax=1)
        axes.set(xlabel="client, cleanest first", ylabel="client, cleanest first")
        axes.set_title(f"{view.label}: similarity of the clients' models")
        if len(order) <= 30:
            axes.set_xticks(range(len(order)), order, fontsize="x-small")
            axes.set_yticks(range(len(order)), order, fontsize="x-small")
        figure.colorbar(image, ax=axes, label="cosine", shrink=0.8)
    return path


def draw_memorised_map(views: Sequence[View], path: Path) -> Path:
    """By client and round: the wrong labels that the local model has memorised, minus those of the global model."""
    view = views[0]
    rows = [row for row in view.rounds if "memorised_by_site" in row]
    if not rows:
        raise lacks_local_models(view)
    grid = np.full((view.scene.clients, len(rows)), np.nan)
    for column, row in enumerate(rows):
        for client, shares in row["memorised_by_site"].items():
            if shares["local"] is not None and shares["global"] is not None:
                grid[int(client), column] = 100 * (shares["local"] - shares["global"])
    limit = max(1.0, float(np.nanmax(np.abs(grid), initial=0)))
    with picture(path, min(4 + 0.14 * len(rows), 12), min(2 + 0.16 * len(grid), 9)) as (figure, axes):
        axes.set_facecolor("#dddddd")
        image = axes.imshow(grid, cmap="PuOr", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
        step = max(1, len(rows) // 10)
        axes.set_xticks(range(0, len(rows), step), [row["round"] for row in rows[::step]])
        axes.set(xlabel="round", ylabel="client", title=f"{view.label}: memorised by local beyond global model")
        figure.colorbar(image, ax=axes, label="points (grey: not measured)", shrink=0.8)
        axes.spines[:].set_visible(False)
    return path


def lacks_local_models(view: View) -> DataError:
    """The error for a run without measurements of the clients' models."""
    return DataError(
        f"{view.record.folder}: the clients' models were not measured in any round. Play the run again with "
        "--memorisation-every 1, into another folder."
    )


def draw_local_accuracy(views: Sequence[View], path: Path) -> Path:
    """Test accuracy of each client's model when it was last measured; clients in the order of their noise rates."""
    views = on_one_scene(views)
    order = np.argsort(views[0].scene.realised, kind="stable")
    with picture(path, min(4 + 0.14 * len(order), 12), 3.8) as (figure, axes):
        for group in groups(views):
            (view,) = group.views  # one scene means one seed
            last: dict[str, float] = {}
            for row in view.rounds:
                last |= row.get("accuracy_by_site", {})
            if not last:
                raise lacks_local_models(view)
            values = 100 * np.array([last.get(str(client), np.nan) for client in order])
            label = f"{group.label}: {np.nanmin(values):.0f} to {np.nanmax(values):.0f} %"
            axes.plot(values, markersize=5, linewidth=0.8, label=label, **group.line)
        axes.set_xticks(range(len(order)), order, fontsize="x-small")
        axes.set(xlabel="client, cleanest first", ylabel="test accuracy of its model (%)")
        axes.set_title("How much do the clients' models differ?")
        axes.grid(alpha=0.2)
        legend(figure)
    return path


def draw_expertise(views: Sequence[View], path: Path) -> Path:
    """Share of a client's given labels that the global model predicts with p > 1/2, against the client's noise rate."""
    points = [(group, fitted_by(group)) for group in groups(views)]
    if len(points) > MOST_IN_ONE:
        words = ("Does the model fit the given labels?", "realised noise rate (%)", "given labels predicted (%)")
        return draw_many(points, path, *words)
    with picture(path, 4.8, 4.2) as (figure, axes):
        for group, (realised, fitted) in points:
            label = f"{group.label}: {correlation(realised, fitted)}"
            axes.plot(100 * realised, 100 * fitted, markersize=5, label=label, **group.marks)
        axes.set(xlabel="realised noise rate (%)", ylabel="given labels predicted (p > 1/2) (%)", ylim=(0, 103))
        axes.set_title("Does the model fit the given labels?")
        axes.grid(alpha=0.2)
        legend(figure)
    return path


def fitted_by(group: Group) -> tuple[Floats, Floats]:
    """Realised noise rates, and the shares of given labels that the model predicts, of the clients of all runs."""
    rates, shares = [], []
    for view in group.views:
        held = np.flatnonzero(view.scene.holdings.sizes).tolist()
        rates.append(view.realised[held])
        shares.append(np.array([float((view.verdicts["loss"][view.of(one)] < np.log(2)).mean()) for one in held]))
    return np.concatenate(rates), np.concatenate(shares)
