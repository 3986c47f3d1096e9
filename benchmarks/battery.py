"""What the audit claims against what is true: about a hundred cases with known truth, in the real federation.

    python -m benchmarks.battery --out FOLDER [--only digits] [--seeds 0 1 2] [--jobs 2]
    python -m benchmarks.battery --out FOLDER --again
    python -m benchmarks.battery --out OTHER --development --seeds 100 101
    python -m benchmarks.battery --out FOLDER --collect

Every case is an audit with the defaults: five sites, at most 2,000 samples. A finished case is a line of
FOLDER/battery.csv and a file in FOLDER/opinions with the opinion of every label, so that rules can be compared without
training again: `--again` asks today's rule about them. A new rule is tried on the cases of `--development`, in a folder
of their own, before the battery judges it. An interrupted battery goes on where it stopped. `--collect`
writes results/battery.csv and results/battery.md. `--first FILE` is a table of earlier AUROCs (case, seed, auroc) to
compare the order of labels with; results/battery-first.csv is that of version 0.1. The tables are looked for in the
folder `tables` of the folders of FEDWINNOW_DATA.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.audits import keep
from benchmarks.battery_cases import Case, all_cases, development_cases, made
from benchmarks.results import machine
from fedwinnow.auditing.audit import DEFAULT_THRESHOLD, AuditSettings, ask_judge, chosen_in, halves_of, settings_asked
from fedwinnow.auditing.audit_folder import REVIEW, TOO_FEW
from fedwinnow.auditing.audit_settings import AuditAsked
from fedwinnow.auditing.claims import Opinions
from fedwinnow.auditing.server_half import AuditWishes, bare_sites
from fedwinnow.auditing.statements import CALLS, CANNOT, NOTHING
from fedwinnow.experiment.play import Execution
from fedwinnow.files import package_source, replacing
from fedwinnow.metrics.detection import auroc, average_precision

RESULTS = Path(__file__).parent.parent / "results"
SMALLEST = ("iris/uniform10/lot",)
SLOWEST = ("six", "hypothyroid", "words", "digits", "tfidf")  # these come last, so that an early stop loses least
FEW = 20  # below so many calls no percentage is stated
FEW_OF_SITE = 10
SIGNAL = 0.6  # of the skill: the gate of the rule
# What a prototype of the same rule said on 114 cases with errors: calls 56, a range from 0 on 20, gate closed 38.
PROTOTYPE_CANNOT_TELL, PROTOTYPE_RECALL = 58 / 114, 0.43


@dataclass(frozen=True, eq=False)
class Saved:
    """What the models of an audit think of every label, with the truth beside it; all that a rule may need."""

    score: NDArray[np.float64]
    classes: NDArray[np.float32]
    given: NDArray[np.int64]
    true: NDArray[np.int64]
    site: NDArray[np.int64]

    @property
    def wrong(self) -> NDArray[np.bool_]:
        return np.asarray(self.given != self.true)

    def sites(self) -> list[NDArray[np.int64]]:
        """The places of every site's labels."""
        return [np.flatnonzero(self.site == number) for number in np.unique(self.site).tolist()]


@dataclass(frozen=True, eq=False)
class Said:
    """What the audit says about these labels."""

    p_wrong: NDArray[np.float64]  # NaN where it cannot be told
    decision: NDArray[np.str_]
    words: str
    skill: float
    wrong_at_least: int
    wrong_at_most: int | None

    @property
    def called(self) -> NDArray[np.bool_]:
        return np.asarray(self.decision == REVIEW)


# --- one case ------------------------------------------------------------------------------------------------------


def settings_of(case: Case, seed: int, judge: str | None) -> AuditSettings:
    """The audit of a case, with the defaults of the command."""
    asked = dataclasses.replace(AuditAsked(), encoder=case.encoder, seed=seed, judge=judge)
    return settings_asked(asked, made(case, seed), {})


def trained(case: Case, seed: int, folder: Path, judge: str | None = None) -> Saved:
    """The opinions of the federations of one audit."""
    return opinions_of(settings_of(case, seed, judge), folder)


def opinions_of(settings: AuditSettings, folder: Path) -> Saved:
    """The same of any audit."""
    judged = ask_judge(settings, folder, Execution(checkpoint_every=1000), ())
    server, halves = halves_of(judged)
    server.chosen_judge()
    judged = chosen_in(judged, halves, server.told)
    scene = judged.stage.scene
    assert judged.classes is not None
    assert scene.true is not None
    return Saved(judged.score, judged.classes, scene.given, scene.true, scene.holdings.client)


def said_of(saved: Saved, threshold: float = DEFAULT_THRESHOLD) -> Said:
    """What the audit makes of opinions, as `perform` does it, without its files."""
    mine = saved.sites()
    opinions = [Opinions(saved.given[places], saved.classes[places]) for places in mine]
    server, halves = bare_sites(opinions, saved.classes.shape[1])
    conclusion = server.conclude(AuditWishes(threshold))
    assert conclusion.claims is not None
    p_wrong, decision = np.full(len(saved.given), np.nan), np.full(len(saved.given), TOO_FEW, dtype="<U12")
    for number, places in enumerate(mine):
        verdict = halves[number].verdict(conclusion.told[number])
        p_wrong[places[verdict.rows]], decision[places[verdict.rows]] = verdict.p_wrong, verdict.decision
    statements, finding = list(conclusion.statements.values()), conclusion.claims.finding
    words = next((word for word in (CALLS, CANNOT, NOTHING) if any(one.said == word for one in statements)), CANNOT)
    most = [one.wrong_at_most for one in statements]
    at_most = sum(one or 0 for one in most) if finding.skilled else None
    at_least = sum(one.wrong_at_least or 0 for one in statements)
    return Said(p_wrong, decision, words, finding.skill, at_least, at_most)


def figures(saved: Saved, said: Said) -> dict[str, Any]:
    """What the audit claims beside what is true."""
    wrong, called = saved.wrong, said.called
    claimed = said.p_wrong[called].mean() if called.any() else None
    precision = wrong[called].mean() if called.any() else None
    return {
        "samples": len(wrong),
        "wrong": int(wrong.sum()),
        "said": said.words,
        "skill": said.skill,
        "calls": int(called.sum()),
        "claimed": claimed,
        "precision": precision,
        "over": None if claimed is None or precision is None else claimed - precision,
        "recall": called[wrong].mean() if wrong.any() else None,
        "site_over": worst_site(saved, said),
        "wrong_at_least": said.wrong_at_least,
        "wrong_at_most": said.wrong_at_most,
        "auroc": auroc(saved.score, wrong),
        "average_precision": average_precision(saved.score, wrong),
    }


def worst_site(saved: Saved, said: Said) -> float | None:
    """The largest excess of claimed over true precision at a site with enough calls."""
    chosen = [places[said.called[places]] for places in saved.sites()]
    return max(
        (float(said.p_wrong[mine].mean() - saved.wrong[mine].mean()) for mine in chosen if len(mine) >= FEW_OF_SITE),
        default=None,
    )


def file_of(out: Path, case: str, seed: int) -> Path:
    """Where the opinions of a case are kept."""
    return out / "opinions" / f"{case.replace('/', '_')}_{seed}.npz"


def saved_in(out: Path, case: str, seed: int) -> Saved:
    """The opinions of a case that was audited before."""
    with np.load(file_of(out, case, seed), allow_pickle=False) as kept:
        return Saved(*(kept[field.name] for field in dataclasses.fields(Saved)))


def measured(case: Case, seed: int, out: Path) -> dict[str, Any]:
    """One audit, its opinions kept in a file."""
    import torch

    torch.set_num_threads(1)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        saved = trained(case, seed, Path(folder))
    seconds = time.perf_counter() - began
    place = file_of(out, case.name, seed)
    place.parent.mkdir(exist_ok=True)
    said = said_of(saved)
    with replacing(place) as stream:
        np.savez_compressed(stream, **vars(saved), p_wrong=said.p_wrong, decision=said.decision)
    return line_of(case.name, seed, saved, said) | {"seconds": f"{seconds:.1f}", "source": package_source()[:16]}


def line_of(case: str, seed: int, saved: Saved, said: Said) -> dict[str, Any]:
    """A line of the table."""
    line = {"case": case, "seed": seed, **figures(saved, said)}
    return {name: shown(value) for name, value in line.items()}


def shown(value: Any) -> Any:
    """A number with four digits; nothing for None."""
    return "" if value is None else f"{value:.4f}" if isinstance(value, float | np.floating) else value


def claimed_again(line: dict[str, str], out: Path) -> dict[str, Any]:
    """The same line with what today's rule says about the opinions that were kept."""
    saved = saved_in(out, line["case"], int(line["seed"]))
    return line | line_of(line["case"], int(line["seed"]), saved, said_of(saved))


# --- all cases -----------------------------------------------------------------------------------------------------


def main(words: list[str] | None = None) -> None:
    """Audit what is not audited yet, and print the table and the goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where lines and opinions are kept; none: a folder that is deleted")
    parser.add_argument("--only", nargs="+", default=[], help="cases whose names contain one of these texts")
    parser.add_argument("--development", action="store_true", help="the cases that rules are chosen by, none of these")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--first", type=Path, help="a table of AUROCs to compare with: case, seed, auroc")
    parser.add_argument("--again", action="store_true", help="train nothing, let today's rule judge the kept opinions")
    parser.add_argument("--collect", action="store_true", help="audit nothing, write results/battery.csv and .md")
    parser.add_argument("--smallest", action="store_true", help="the least work: does it run? Its numbers mean nothing")
    asked = parser.parse_args(words)
    if asked.smallest:
        vars(asked).update(only=list(SMALLEST), seeds=[0])
    if asked.out is None:
        with tempfile.TemporaryDirectory() as folder:
            asked.out = Path(folder)
            battery(asked)
    else:
        asked.out.mkdir(parents=True, exist_ok=True)
        battery(asked)


def battery(asked: argparse.Namespace) -> None:
    """Audit case after case; print what was found."""
    path = asked.out / "battery.csv"
    if asked.again:
        lines = [claimed_again(line, asked.out) for line in lines_of(path)]
        path.unlink(missing_ok=True)
        for line in lines:
            keep(path, line)
    elif not asked.collect:
        done = {(line["case"], int(line["seed"])) for line in lines_of(path)}
        cases = development_cases() if asked.development else all_cases()
        wanted = [case for case in cases if not asked.only or any(text in case.name for text in asked.only)]
        wanted.sort(key=lambda case: SLOWEST.index(case.data) if case.data in SLOWEST else -1)
        todo = [(case, seed) for case in wanted for seed in asked.seeds if (case.name, seed) not in done]
        for line in worked_off(todo, asked.out, asked.jobs):
            keep(path, line)
            print(f"<!-- {line['case']} {line['seed']}: {line['said']}, {line['calls']} calls -->", flush=True)
    text = page(lines_of(path), lines_of(asked.first))
    print(text)
    if asked.collect:
        (RESULTS / "battery.csv").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        (RESULTS / "battery.md").write_text(text, encoding="utf-8")


def play_smallest(out: Path) -> None:
    """The least battery, for what is measured after one."""
    asked = argparse.Namespace(development=False, out=out, only=SMALLEST, seeds=[0], jobs=1, first=None)
    asked.again = asked.collect = False
    battery(asked)


def worked_off(todo: list[tuple[Case, int]], out: Path, jobs: int) -> Any:
    """The lines of these cases, in the order in which they are ready."""
    if jobs < 2:
        yield from (measured(case, seed, out) for case, seed in todo)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for future in [pool.submit(measured, case, seed, out) for case, seed in todo]:
            yield future.result()


def lines_of(path: Path | None) -> list[dict[str, str]]:
    """The lines of a table; none where there is no file."""
    if path is None or not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


# --- the page ------------------------------------------------------------------------------------------------------


def number(line: dict[str, str], name: str) -> float | None:
    """A figure of a line, None where it has none."""
    return float(line[name]) if line.get(name) else None


def values(lines: list[dict[str, str]], name: str) -> list[float]:
    """A figure of all lines that have it."""
    return [found for line in lines if (found := number(line, name)) is not None]


def average(found: list[float]) -> float | None:
    """The mean; None of nothing."""
    return mean(found) if found else None


def goals(lines: list[dict[str, str]], first: list[dict[str, str]]) -> list[tuple[str, str, str, bool | None]]:
    """Every goal: what was wanted, what was found, and whether it is reached (None: not measured)."""
    spoken = [line for line in lines if int(line["calls"]) >= FEW]
    clean = [line for line in lines if line["wrong"] == "0"]
    faulty = [line for line in lines if line["wrong"] != "0"]
    signal = [line for line in faulty if (number(line, "skill") or 0) >= SIGNAL]
    digits = [line for line in faulty if line["case"] == "digits/uniform10/lot"]
    rates = [int(line["calls"]) / int(line["samples"]) for line in clean]
    below = [-over for over in values([line for line in signal if int(line["calls"]) >= FEW], "over")]
    unsaid = sum(line["calls"] == "0" for line in faulty) / len(faulty) if faulty else None
    before = {(line["case"], line["seed"]): number(line, "auroc") for line in first}
    pairs = [(number(line, "auroc"), before.get((line["case"], line["seed"]))) for line in faulty]
    known = [(now, then) for now, then in pairs if now is not None and then is not None]
    now, then = average([one for one, _ in known]), average([one for _, one in known])
    rows: list[tuple[str, float | None, float | None, bool]] = [
        (
            "claimed minus true precision, 20 calls or more: worst",
            max(values(spoken, "over"), default=None),
            0.10,
            False,
        ),
        ("the same: mean", average(values(spoken, "over")), 0.03, False),
        ("calls per label without errors: worst case", max(rates, default=None), 1 / 200, False),
        ("recall, skill of 0.6 or more and errors: mean", average(values(signal, "recall")), PROTOTYPE_RECALL, True),
        ("true minus claimed precision there: mean", average(below), 0.20, False),
        ("cases with errors without a call: share", unsaid, PROTOTYPE_CANNOT_TELL, False),
        ("digits, one label in ten wrong: recall", average(values(digits, "recall")), 0.80, True),
        (f"AUROC of the order, {len(known)} audits: mean", now, then, True),
    ]
    return [
        (
            name,
            "–" if aim is None else f"{'at least' if least else 'at most'} {aim:.3f}",
            "–" if found is None else f"{found:.3f}",
            None if found is None or aim is None else found >= aim if least else found <= aim,
        )
        for name, found, aim, least in rows
    ]


COLUMNS = (
    "wrong",
    "skill",
    "calls",
    "claimed",
    "precision",
    "over",
    "site_over",
    "recall",
    "auroc",
    "average_precision",
)


def limits(lines: list[dict[str, str]]) -> list[str]:
    """What the goals do not ask, and a reader should know."""
    few = [line for line in lines if FEW_OF_SITE <= int(line["calls"]) < FEW]
    kinds = [
        (f"Audits with {FEW} calls or more", "over", [line for line in lines if int(line["calls"]) >= FEW]),
        (f"Audits with {FEW_OF_SITE} to {FEW - 1} calls, of which no percentage is stated", "over", few),
        (f"The worst site with {FEW_OF_SITE} calls of each audit that has one", "site_over", lines),
    ]
    text = []
    for words, name, mine in kinds:
        known = sorted(((found, line) for line in mine if (found := number(line, name)) is not None), key=itemgetter(0))
        above = [f"{line['case']} (seed {line['seed']}) {found:+.2f}" for found, line in known[::-1] if found > 0.1]
        text.append(
            f"- {words}: {len(known)}. More than 0.10 is claimed above the truth in {len(above)}"
            + (f": {', '.join(above)}." if above else ".")
        )
    return text


def page(lines: list[dict[str, str]], first: list[dict[str, str]]) -> str:
    """The goals, and a line per case with means over seeds."""
    seeds, sources = ({line[name] for line in lines} for name in ("seed", "source"))
    text = [
        "# The battery: what the audit claims, and what is true",
        "",
        f"Command: `python -m benchmarks.battery --out FOLDER --seeds {' '.join(sorted(seeds))}"
        f"{' --first results/battery-first.csv' if first else ''}`. "
        f"Source of the training: {', '.join(sorted(sources))}; of the rule: {package_source()[:16]}. "
        f"Machine: {machine()}.",
        "",
        f'{len(lines)} audits, {len({line["case"] for line in lines})} cases. `claimed` is what the audit calls "at '
        'least" so many of the calls; below 20 calls it states no percentage. `site_over` is the worst site with 10 '
        "calls. Means over seeds; `said` counts seeds.",
        "",
        "| goal | wanted | found | |",
        "|---|---:|---:|---|",
    ]
    words = {True: "reached", False: "missed", None: "not measured"}
    text += [f"| {name} | {wanted} | {found} | {words[met]} |" for name, wanted, found, met in goals(lines, first)]
    text += ["", *limits(lines)]
    text += ["", f"| case (seeds: {len(seeds)}) | said | {' | '.join(COLUMNS)} |", f"|---|---|{'---:|' * len(COLUMNS)}"]
    for case in dict.fromkeys(line["case"] for line in lines):
        mine = [line for line in lines if line["case"] == case]
        said = ", ".join(
            f"{word} {count}" if len(mine) > 1 else word
            for word in dict.fromkeys(line["said"] for line in mine)
            if (count := sum(line["said"] == word for line in mine))
        )
        cells = ("–" if (found := average(values(mine, name))) is None else f"{found:.3g}" for name in COLUMNS)
        text.append(f"| {case} | {said} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    main()
