"""The judges of an audit on the battery: average precision of wrong labels, and the log loss by which `auto` chooses.

    python -m benchmarks.battery --out FOLDER
    python -m benchmarks.battery_judges --out FOLDER [--seeds 0 1 2] [--collect]

Nothing is trained: the opinions of `mean` are those that the battery kept, `margin` follows from them, and `knn` and
`both` from the samples of each site and their given labels. Cases without wrong labels are left out. `--collect`
writes results/battery-judges.csv and .md.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from benchmarks.audits import keep
from benchmarks.battery import RESULTS, Saved, lines_of, play_smallest, saved_in, settings_of, shown
from benchmarks.battery_cases import Case
from benchmarks.results import machine
from fedwinnow.auditing.judges import CANDIDATES, TINY, against, margin
from fedwinnow.auditing.judging_models import find_judge, prepare_audit
from fedwinnow.files import package_source
from fedwinnow.mathematics.neighbours import nearest, votes
from fedwinnow.metrics.detection import auroc, average_precision

JUDGES = ("mean", "margin", "knn", "both", "auto")


def main(words: list[str] | None = None) -> None:
    """Measure what is not measured yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the folder of the battery; none: one that is deleted")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--collect", action="store_true", help="write the tables into results/")
    parser.add_argument("--smallest", action="store_true", help="the least work: does it run? Its numbers mean nothing")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        out = asked.out or Path(folder)
        if asked.smallest:
            play_smallest(out)
        path = out / "judges.csv"
        done = {(line["case"], line["seed"]) for line in lines_of(path)}
        for line in lines_of(out / "battery.csv"):
            wanted = line["wrong"] != "0" and int(line["seed"]) in asked.seeds
            if wanted and (line["case"], line["seed"]) not in done:
                case, seed = Case(*line["case"].split("/")), int(line["seed"])
                keep(path, line_of(case, seed, saved_in(out, case.name, seed)))
        print(text := page(lines_of(path)))
        if asked.collect:
            (RESULTS / "battery-judges.csv").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
            (RESULTS / "battery-judges.md").write_text(text, encoding="utf-8")


def line_of(case: Case, seed: int, saved: Saved) -> dict[str, Any]:
    """The figures of one audit."""
    given = torch.from_numpy(saved.given)
    models = torch.from_numpy(saved.classes).double().clamp(min=TINY).log().log_softmax(1)
    near = by_neighbours(case, seed, saved)
    believed = dict(zip(CANDIDATES, (models, near, ((models + near) / 2).log_softmax(1)), strict=True))
    loss = {name: -float(one.gather(1, given[:, None]).mean()) for name, one in believed.items()}
    scores = {name: against(one, given).numpy() for name, one in believed.items()}
    other = torch.from_numpy(saved.classes).scatter(1, given[:, None], -1.0).argmax(1)
    scores |= {"mean": saved.score, "margin": margin(torch.from_numpy(saved.classes), given, other).numpy()}
    taken = min(loss, key=loss.__getitem__)
    scores["auto"] = scores[taken]
    line = {"case": case.name, "seed": seed, "taken": taken} | {f"loss_{name}": loss[name] for name in CANDIDATES}
    line |= {f"precision_{name}": average_precision(scores[name], saved.wrong) for name in JUDGES}
    line |= {f"auroc_{name}": auroc(scores[name], saved.wrong) for name in JUDGES}
    return {name: shown(value) for name, value in line.items()}


def by_neighbours(case: Case, seed: int, saved: Saved) -> torch.Tensor:
    """Log-probabilities of the classes by the nearest samples of the same site, as the judge `knn` has them."""
    stage = prepare_audit(settings_of(case, seed, None).experiment, find_judge("mean"))
    holdings, classes = stage.scene.holdings, saved.classes.shape[1]
    assert np.array_equal(stage.scene.given, saved.given)
    if stage.sites.shape.kind == "tokens":  # which texts are alike is not known from words alone
        return torch.from_numpy(saved.classes).double().clamp(min=TINY).log().log_softmax(1)
    found = torch.zeros(saved.classes.shape, dtype=torch.float64)
    for mine in saved.sites():
        samples = stage.judged.features.take(holdings.rows[mine]).reshape(len(mine), -1)
        given = torch.from_numpy(saved.given[mine])
        found[mine] = votes(nearest(torch.from_numpy(samples).float()), given, classes).log()
    return found


def page(lines: list[dict[str, str]]) -> str:
    """Means, and a line per case with means over seeds."""
    seeds = sorted({line["seed"] for line in lines})
    names = [*(f"loss_{name}" for name in CANDIDATES), *(f"precision_{name}" for name in JUDGES)]
    heads = [*(f"log loss: {name}" for name in CANDIDATES), *(f"average precision: {name}" for name in JUDGES)]
    text = [
        "# Judges on the battery",
        "",
        f"Command: `python -m benchmarks.battery_judges --out FOLDER --seeds {' '.join(seeds)}`, after the battery. "
        f"Source: {package_source()[:16]}. Machine: {machine()}.",
        "",
        f"{len(lines)} audits with wrong labels, {len({line['case'] for line in lines})} cases. `mean` is the default; "
        "`knn` are ten neighbours at the site; `both` is the geometric mean of the two; `auto` takes the one with the "
        "smallest log loss of the given labels that it has not seen. Means over seeds.",
        "",
        f"| case | `auto` takes | {' | '.join(heads)} |",
        f"|---|---|{'---:|' * len(heads)}",
    ]
    for case in [*dict.fromkeys(line["case"] for line in lines), None]:
        mine = [line for line in lines if case in (None, line["case"])]
        taken = [line["taken"] for line in mine]
        counted = ", ".join(f"{name} {taken.count(name)}" for name in dict.fromkeys(taken))
        cells = (f"{mean(float(line[name]) for line in mine):.3f}" for name in names)
        text.append(f"| {case or '**mean**'} | {counted} | {' | '.join(cells)} |")
    return "\n".join([*text, "", verdict(lines)]) + "\n"


def verdict(lines: list[dict[str, str]]) -> str:
    """Which judge puts the labels in the best order on average."""
    order = {name: mean(float(line[f"precision_{name}"]) for line in lines) for name in JUDGES}
    areas = ", ".join(f"{name} {mean(float(line[f'auroc_{name}']) for line in lines):.4f}" for name in JUDGES)
    best = max(order, key=order.__getitem__)
    gains = [float(line["precision_auto"]) - float(line["precision_mean"]) for line in lines]
    return (
        f"AUROC: {areas}. The best average precision is that of `{best}` ({order[best]:.3f}); `mean` has "
        f"{order['mean']:.3f}. `auto` is better than `mean` in {sum(gain > 0 for gain in gains)} of {len(gains)} "
        f"audits, worse in {sum(gain < 0 for gain in gains)}, {mean(gains):+.3f} on average."
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
