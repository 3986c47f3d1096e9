"""Write the tables of the pages again: `python tools/write_method_tables.py`.

Options and exposure come from the methods' source text, measured figures from the tables in results/.
"""

from __future__ import annotations

import csv
import re
import statistics
from pathlib import Path

from fedwinnow import catalogue
from fedwinnow.commands.methods import beyond_the_model, received_by, to_other_sites
from fedwinnow.experiment.report.templates import LEARNS

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "methods"
OTHERS = [ROOT / "docs" / "results.md", ROOT / "README.md"]
DUEL = re.compile(r"^\S.* against (.+): (\S+) on average, better in (\d+ of \d+); p = ([\d.]+)\.$", re.MULTILINE)
MARKED = re.compile(r"(<!-- generated: (\w+)((?: [\w:=.,-]+)*) -->\n).*?(<!-- end -->)", re.DOTALL)
PERCENT = {"last10": "last-10", "last": "last", "best": "best"}
SHARES = {"auroc": "AUROC", "memorised": "memorised"}
# Methods with a verdict of their own. Runs of others that name no source are from version 0.1.0, whose usual verdict
# ordered labels otherwise: how well they told wrong labels apart is left out until they are run again.
OWN_VERDICT = ("dividemix", "feddiv", "fedfixer", "fedrn", "winnow")


def main() -> None:
    """Bring every page up to date."""
    for path in [*sorted(PAGES.glob("*.md")), *OTHERS]:
        path.write_text(current(path), encoding="utf-8")


def current(path: Path) -> str:
    """A page as it should be."""

    def fill(found: re.Match[str]) -> str:
        kind, arguments = found[2], found[3].split()
        measures = {
            "measured": measured,
            "ground": lambda file: common_ground(file, path.stem),
            "file": stored,
            "duels": duels,
        }
        text = measures[kind](*arguments) if kind in measures else table(kind, path.stem)
        return found[1] + text + found[4]

    return MARKED.sub(fill, path.read_text(encoding="utf-8"))


def table(kind: str, name: str) -> str:
    """One of the three kinds of tables."""
    if kind == "methods":
        rows = [overview_row(entry) for entry in catalogue.entries("methods").values()]
        return markdown(["method", "what it does", "beyond the model it reveals", "to other sites too"], rows)
    entry = catalogue.find("methods", name)
    if kind == "exposure":
        exposes, forwards = entry.facts["exposes"].items(), entry.facts["forwards"]
        rows = [
            [f"`{k}`", v, LEARNS[v], f"{received_by(entry, k)}{receives_when(forwards.get(k))}"] for k, v in exposes
        ]
        return markdown(["key", "exposes", "the receiver can learn", "who receives it"], rows)
    return markdown(["option", "default", "allowed", "meaning"], [option_row(option) for option in entry.options])


def receives_when(when: str | None) -> str:
    """When other sites receive a key, in brackets."""
    return "" if when is None else f" ({when})"


def overview_row(entry: catalogue.Entry) -> list[str]:
    """A line of the overview; with a link where there is a page."""
    linked = f"[{entry.name}]({entry.name}.md)" if (PAGES / f"{entry.name}.md").exists() else entry.name
    return [linked, entry.summary, beyond_the_model(entry), to_other_sites(entry) or "-"]


def common_ground(file: str, name: str) -> str:
    """A method between FedAvg and the oracle on every scene of one study: last-10, the mean gain, the mean AUROC."""
    runs = read_runs(file)
    scenes = list(dict.fromkeys(run["scene"] for run in runs))
    usual = {(run["scene"], run["seed"]): float(run["last10"]) for run in runs if run["method"] == "fedavg"}
    methods = dict.fromkeys(run["method"] for run in runs if run["method"].partition(":")[0] == name)
    rows = []
    for method in dict.fromkeys(["fedavg", *methods, "oracle"]):
        mine = [run for run in runs if run["method"] == method]
        if not mine:
            continue
        cells = [spread([float(run["last10"]) for run in mine if run["scene"] == scene], 100, 1) for scene in scenes]
        gains = [100 * (float(run["last10"]) - usual[run["scene"], run["seed"]]) for run in mine]
        found = [float(run["auroc"]) for run in mine if run["auroc"]]
        gain = "-" if method == "fedavg" else f"{statistics.fmean(gains):+.1f}"
        rows.append([f"`{method}`", *cells, gain, f"{statistics.fmean(found):.3f}" if found else "-"])
    return markdown(["method", *scenes, "over FedAvg", "AUROC"], rows)


def stored(file: str) -> str:
    """A table in results/ as `fedwinnow table` wrote it, without what stands under it."""
    lines = (ROOT / "results" / f"{file}.md").read_text(encoding="utf-8").splitlines()
    return "".join(f"{line}\n" for line in lines if line.startswith("|"))


def duels(accuracy: str, auroc: str) -> str:
    """What `fedwinnow table --against` wrote under two tables in results/, a line per opponent."""
    columns = [
        {found[1]: found.groups()[1:] for found in DUEL.finditer((ROOT / "results" / f"{file}.md").read_text("utf-8"))}
        for file in (accuracy, auroc)
    ]
    rows = [[f"`{name}`", *columns[0][name], *columns[1].get(name, ("-", "-", "-"))] for name in columns[0]]
    return markdown(["against", "accuracy", "better in", "p", "AUROC", "better in", "p"], rows)


def read_runs(file: str) -> list[dict[str, str]]:
    """The lines of a table in results/."""
    with (ROOT / "results" / f"{file}.csv").open(newline="", encoding="utf-8") as lines:
        runs = list(csv.DictReader(lines))
    for run in runs:
        if not run.get("source") and run["method"].partition(":")[0] not in OWN_VERDICT:
            run["auroc"] = ""
    return runs


def measured(file: str, scene: str) -> str:
    """The figures of one scene: mean and sample standard deviation over seeds, and the gain over FedAvg, paired."""
    runs = [run for run in read_runs(file) if run["scene"] == scene]
    usual = {run["seed"]: float(run["last10"]) for run in runs if run["method"] == "fedavg"}
    rows = []
    for method in dict.fromkeys(run["method"] for run in runs):
        mine = [run for run in runs if run["method"] == method]
        paired = [run for run in mine if run["seed"] in usual and method != "fedavg"]
        gains = [float(run["last10"]) - usual[run["seed"]] for run in paired]
        cells = [spread([float(run[name]) for run in mine], 100, 1) for name in PERCENT]
        cells += [spread([float(run[name]) for run in mine if run[name]], 1, 3) for name in SHARES]
        rows.append([f"`{method}`", *cells, spread(gains, 100, 1, "+"), str(len(mine))])
    return markdown(["method", *PERCENT.values(), *SHARES.values(), "over FedAvg", "seeds"], rows)


def spread(values: list[float], times: float, digits: int, sign: str = "") -> str:
    """Mean and sample standard deviation; one value has no spread."""
    if not values:
        return "-"
    scaled = [times * value for value in values]
    middle = f"{statistics.fmean(scaled):{sign}.{digits}f}"
    return middle if len(scaled) == 1 else f"{middle} ± {statistics.stdev(scaled):.{digits}f}"


def option_row(option: catalogue.OptionText) -> list[str]:
    """A line of a method's options."""
    presets = ", ".join(f"{name}: {value}" for name, value in (option.presets or {}).items())
    notes = ", ".join(filter(None, [option.symbol, option.source]))
    meaning = option.sentence + (f" ({notes})" if notes else "")
    return [f"`{option.name}`", f"`{presets or option.default}`", option.type, meaning]


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table; a bar inside a cell would end it."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    main()
