"""Does an audit help? The accuracy on a clean test part before it, after looks and corrections, and after perfect ones.

    python -m benchmarks.does_it_help [--sets digits segment fashion soybean] [--errors uniform10 conf10] [--csv FILE]
    python -m benchmarks.does_it_help --csv FILE --collect

Seven samples in ten are at five sites and have wrong labels; three in ten are the test part, whose labels are right.
The audit has its defaults, and somebody who knows the truth looks: at 30 labels drawn by lot (`review --anchor 30`),
then `apply --accept-above 0.8`; and at 170 more, the first in order (`review --first`), then the same.
FedAvg is trained on every stage of the labels, with the audit's settings. `--collect` writes
results/does-it-help.csv and results/does-it-help.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from benchmarks.audits import keep
from benchmarks.battery import RESULTS, lines_of
from benchmarks.battery_cases import Case, Ints, Luck, made
from benchmarks.results import machine
from fedwinnow.auditing.applying.changes import plan_for
from fedwinnow.auditing.audit import AuditOutcome, AuditSettings, perform, settings_asked
from fedwinnow.auditing.audit_settings import AuditAsked
from fedwinnow.auditing.decisions import KEEP, OTHER, Decision, read_decisions, save_decision
from fedwinnow.auditing.looks import Survey, draw_looks, read_looks
from fedwinnow.auditing.update import marked, update_audit
from fedwinnow.data.dataset import Dataset
from fedwinnow.experiment.play import Execution, play_stage
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.files import package_source

SETS = ("digits", "segment", "fashion", "soybean")
ERRORS = ("uniform10", "conf10")
LOOKS, MORE, ACCEPTED = 30, 170, 0.8
TEST = 0.3
STAGES = ("before", "after 30 looks", "after 200 looks", "perfect")
REVIEWER = "truth"


def main(words: list[str] | None = None) -> None:
    """Audit, correct and train what is not in the file yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--errors", nargs="+", default=list(ERRORS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--csv", type=Path, help="where lines are kept; none: a file that is deleted")
    parser.add_argument("--collect", action="store_true", help="measure nothing, write the tables into results/")
    parser.add_argument("--smallest", action="store_true", help="the least work: does it run? Its numbers mean nothing")
    asked = parser.parse_args(words)
    if asked.smallest:
        asked.sets, asked.errors, asked.seeds = ["iris"], ["uniform10"], [0]
    with tempfile.TemporaryDirectory() as folder:
        path = asked.csv or Path(folder) / "lines.csv"
        done = {(line["case"], line["seed"]) for line in lines_of(path)}
        cases = [Case(data, errors) for data in asked.sets for errors in asked.errors]
        todo = [(case, seed) for case in cases for seed in asked.seeds if (case.name, str(seed)) not in done]
        for case, seed in [] if asked.collect else todo:
            for line in measured(case, seed):
                keep(path, line)
        print(text := page(lines_of(path)))
        if asked.collect:
            (RESULTS / "does-it-help.csv").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
            (RESULTS / "does-it-help.md").write_text(text, encoding="utf-8")


# --- one audit -----------------------------------------------------------------------------------------------------


def measured(case: Case, seed: int) -> list[dict[str, Any]]:
    """A line per stage of the labels."""
    dataset = with_test_part(made(case, seed), seed)
    asked = dataclasses.replace(AuditAsked(), encoder=case.encoder, seed=seed)
    settings = settings_asked(asked, dataset, {})
    given, true = dataset.train.labels, dataset.train.true
    assert true is not None
    with tempfile.TemporaryDirectory() as folder:
        audited = Audited.of(settings, dataset, Path(folder) / "audit")
        audited.look(LOOKS)
        labels = [given, audited.corrected(), audited.look_at_first(MORE).corrected(), true]
        found = []
        for stage, now in zip(STAGES, labels, strict=True):
            accuracy = accuracy_of(settings, dataset, now, Path(folder) / stage)
            counts = {"wrong": int((now != true).sum()), "changed": int((now != given).sum())}
            line = {"case": case.name, "seed": seed, "stage": stage, "accuracy": f"{accuracy:.4f}", **counts}
            found.append(line | {"samples": len(true), "source": package_source()[:16]})
    return found


def with_test_part(dataset: Dataset, seed: int) -> Dataset:
    """The same data with a part set aside whose labels are right."""
    train = dataset.train
    assert train.true is not None
    order = Luck(seed + 300).permutation(len(train))
    aside, rest = (np.sort(part) for part in np.split(order, [round(TEST * len(train))]))
    test = train.subset(aside)
    test = dataclasses.replace(test, labels=train.true[aside], true=None, sites=None)
    return dataclasses.replace(dataset, train=train.subset(rest), test=test)


@dataclasses.dataclass(frozen=True, eq=False)
class Audited:
    """An audit folder, and the truth about the labels in it."""

    folder: Path
    dataset: Dataset
    row: dict[str, int]  # of every id

    @classmethod
    def of(cls, settings: AuditSettings, dataset: Dataset, folder: Path) -> Audited:
        """Audit."""
        outcome: AuditOutcome = perform(settings, folder, Execution(checkpoint_every=1000))
        ids = [
            pair
            for site in outcome.sites
            for pair in zip(map(str, site.ids), map(int, site.rows.tolist()), strict=True)
        ]
        assert len(dict(ids)) == len(ids), "ids must be different at all sites"
        return cls(folder, dataset, dict(ids))

    def answer(self, folder: Path, names: set[str]) -> None:
        """Decide about labels of a site as the truth says."""
        classes, train = self.dataset.class_names, self.dataset.train
        assert train.true is not None
        for name in sorted(names - {sample for sample, _ in read_decisions(folder)}):
            row = self.row[name]
            word = KEEP if train.labels[row] == train.true[row] else OTHER
            save_decision(folder, name, REVIEWER, Decision.now(name, REVIEWER, word, classes[train.true[row]]))

    def look(self, total: int) -> None:
        """Look at labels drawn by lot, in two steps, and take the answers into the audit."""
        while draw_looks(survey := Survey(self.folder), total):
            for site in survey.sites:
                self.answer(site.folder, set(read_looks(site.folder)))
        update_audit(self.folder)

    def look_at_first(self, more: int) -> Audited:
        """Look at the first labels in order that nobody has looked at."""
        survey = Survey(self.folder)
        seen = sum(len(read_decisions(site.folder)) for site in survey.sites)
        budget = more
        while True:  # some of the first are among those drawn by lot
            chosen = marked(survey, budget)
            decided = [{name for name, _ in read_decisions(site.folder)} for site in survey.sites]
            new = sum(len(names - known) for names, known in zip(chosen, decided, strict=True))
            if new >= more or budget >= min(len(self.row), more + seen):
                break
            budget += more - new
        for site, names in zip(survey.sites, chosen, strict=True):
            self.answer(site.folder, names)
        return self

    def corrected(self) -> Ints:
        """The labels after the decisions, and after suggestions from the limit on."""
        labels = self.dataset.train.labels.copy()
        places = {name: number for number, name in enumerate(self.dataset.class_names)}
        for name, change in plan_for(self.folder, ACCEPTED).changes.items():
            labels[self.row[name]] = places[change.label]
        return labels


def accuracy_of(settings: AuditSettings, dataset: Dataset, labels: Ints, folder: Path) -> float:
    """The accuracy of FedAvg on the test part, trained on these labels."""
    train = dataclasses.replace(dataset.train, labels=labels)
    experiment = dataclasses.replace(
        settings.experiment, data=dataclasses.replace(dataset, train=train), method="fedavg", eval_every=1000
    )
    place = RunFolder(folder)
    with place.locked():
        summary = play_stage(prepare(experiment), place, Execution(checkpoint_every=1000))
    return float(summary["last"]["accuracy"])


# --- the page ------------------------------------------------------------------------------------------------------


def page(lines: list[dict[str, str]]) -> str:
    """A line per case: accuracy and wrong labels at every stage, means over seeds."""
    seeds, sources = ({line[name] for line in lines} for name in ("seed", "source"))
    text = [
        "# Does it help?",
        "",
        f"Command: `python -m benchmarks.does_it_help --seeds {' '.join(sorted(seeds))} --csv FILE`. "
        f"Source: {', '.join(sorted(sources))}. Machine: {machine()}.",
        "",
        f"Accuracy of FedAvg on a clean test part (three samples in ten), and how many labels are wrong; {len(seeds)} "
        "seeds, means. Looks are answered by the truth; after them suggestions with a p_wrong of 0.8 or more are "
        "accepted. `share` is the part of the way from before to perfect.",
        "",
        f"| case | samples | {' | '.join(STAGES)} | share, 30 looks | share, 200 looks | "
        "wrong: before, 30 looks, 200 looks |",
        f"|---|---:|{'---:|' * (len(STAGES) + 3)}",
    ]
    for case in [*dict.fromkeys(line["case"] for line in lines), None]:
        mine = [line for line in lines if case in (None, line["case"])]
        found = [[line for line in mine if line["stage"] == stage] for stage in STAGES]
        accuracy, wrong = (
            [mean(float(line[name]) for line in part) for part in found] for name in ("accuracy", "wrong")
        )
        whole = accuracy[3] - accuracy[0]
        shares = [f"{(accuracy[place] - accuracy[0]) / whole:.2f}" if whole > 0 else "–" for place in (1, 2)]
        cells = [f"{mean(int(line['samples']) for line in mine):.0f}", *(f"{100 * value:.1f}" for value in accuracy)]
        cells += [*shares, ", ".join(f"{value:.0f}" for value in wrong[:3])]
        text.append(f"| {case or 'mean'} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
