"""The papers' tables as recipes: whole, playable, and one made again from scratch, cell by cell."""

from __future__ import annotations

import csv
import json
import statistics
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from fedwinnow import catalogue
from fedwinnow.cli import main
from fedwinnow.errors import UsageError
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.method import find_method
from fedwinnow.study.plan_cost import cost_of, samples_trained
from fedwinnow.study.recipe_table import published_table
from fedwinnow.study.recipes import FIGURES, FOLDER, Setting, find_recipe, recipes
from fedwinnow.study.sweep_data import without_data
from run_folders import write_run

EXPECTED = [
    *(f"feddiv-table-{number}" for number in range(1, 7)),
    *(f"fedgr-table-{number}" for number in (1, 2, 3, 4, 5, 6, 7, 14, 15, 16)),
    *(f"fedrn-table-{number}" for number in range(2, 10)),
    *(f"fednoro-table-{number}" for number in range(1, 5)),
    *(f"fedes-table-{number}" for number in range(1, 6)),
]


def command(*words):
    with pytest.raises(SystemExit) as end:
        main(["paper", *map(str, words)])
    return end.value.code


def test_every_table_is_there():
    assert list(recipes()) == EXPECTED
    with (FOLDER / "published.csv").open(encoding="utf-8", newline="") as stream:
        printed = list(csv.DictReader(stream))
    assert len(printed) == 1521
    assert {cell["table"] for cell in printed} == set(EXPECTED)
    assert {cell["metric"] for cell in printed} == set(FIGURES)


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("scale", ["paper", "features", "laptop"])
def test_every_run_of_a_recipe_could_be_played(name, scale, tmp_path):
    recipe = find_recipe(name)
    plan = recipe.plan(tmp_path, scale)
    assert len({job.folder for job in plan.jobs}) == len(plan.jobs)
    for job in {(job.row, job.scene): job for job in plan.jobs}.values():
        experiment = job.experiment
        needs = find_method(experiment.method).needed()
        if scale == "features":
            assert "views" not in needs, job.row
            assert (experiment.encoder, experiment.model, experiment.views) == ("lite", "linear", "none")
        assert ("trusted_data" in needs) <= bool(experiment.trusted), job.row
        assert ("public_data" in needs) <= (experiment.public is not None), job.row
        for family, spec in (("data", experiment.data), ("partitions", experiment.partition)):
            catalogue.make(family, spec)
        catalogue.make("noises", experiment.noise)
        catalogue.make("optimizers", experiment.optimizer)
        catalogue.find("models", experiment.model.partition(":")[0])


def test_words_of_the_paper_become_settings():
    settings = find_recipe("feddiv-table-6").job_settings(
        "feddiv[no-pcs]", Setting("cifar100", "iid", "uniform rho=0.8 tau=0.5"), "paper"
    )
    assert settings["method"] == "feddiv:passes=10,eta=0,reselect=false"
    assert settings["noise"] == "fedcorr:rho=0.8,tau=0.5,flip=fedcorr_compat"
    assert (settings["rounds"], settings["clients"], settings["model"]) == (1000, 50, "resnet34")
    assert Experiment(**settings).participation == 0.1
    real = find_recipe("fedes-table-3").job_settings("fedes", Setting("clothing1m", "not stated", "real"), "laptop")
    assert real["noise"] == "human:column=worse"


def test_the_papers_numbers():
    published = find_recipe("feddiv-table-1").published()
    assert published["feddiv", "uniform rho=0.8 tau=0.5", "best"] == (91.44, 0.25)
    assert published["fedavg", "uniform rho=0.4 tau=0.0", "best"] == (89.46, 0.39)
    twice = find_recipe("fedgr-table-6").published()
    assert twice["fedgr", "iid, mixed phi=1.0 U(0.2;0.4)", "last10"] == (92.27, 0.18)
    no_std = find_recipe("fedrn-table-2").published()
    assert no_std["fedrn[k=2]", "shard S=2, sym linear 0.0-0.8", "last"] == (62.94, None)


def test_only_printed_cells_are_played(tmp_path):
    jobs = find_recipe("feddiv-table-1").plan(tmp_path, "laptop").jobs
    hardest = {job.row for job in jobs if job.scene == "uniform rho=1.0 tau=0.5"}
    assert hardest == {"fedcorr", "feddiv"}


def test_samples_of_an_estimate_by_hand(tmp_path):
    job = find_recipe("fedgr-table-1").plan(tmp_path, "paper").jobs[0]
    assert samples_trained(job, 50_000) == 500 * 10 * 10 * 500  # rounds x clients x epochs x samples of a client


def test_an_estimate_needs_no_data(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDWINNOW_DATA", raising=False)
    plan = find_recipe("fedes-table-1").plan(tmp_path, "laptop", rows=["fedavg"], seeds=[0])
    cost = cost_of(plan)
    assert 0 < cost.seconds < 3600 * 1000
    (row,) = cost.rows
    assert (row.row, row.runs, row.source) == ("fedavg", len(plan.jobs), "as FedAvg")
    assert cost.seconds == pytest.approx(row.runs * row.seconds)
    assert cost.encoding == 0


def test_a_row_costs_what_its_finished_runs_took(tmp_path):
    recipe = find_recipe("feddiv-table-2")
    plan = recipe.plan(tmp_path, "laptop", rows=["fedavg", "dividemix"] if "dividemix" in recipe.rows else ["fedavg"])
    for job, seconds in zip(plan.jobs[:2], (10.0, 20.0), strict=True):
        run = write_run(job.folder, "fedavg", job.seed, 0.5, rounds=40)
        summary = json.loads((run / "summary.json").read_text()) | {"rounds": 40, "cost": {"seconds": seconds}}
        (run / "summary.json").write_text(json.dumps(summary))
    (row, *_) = cost_of(plan).rows
    assert row.seconds == 15
    assert row.source == "the mean of 2 finished"


def test_work_of_the_methods_is_that_of_our_runs():
    stated = tomllib.loads((FOLDER / "work.toml").read_text(encoding="utf-8"))
    ratios: dict[str, list[float]] = {}
    for file in sorted((Path(__file__).parents[2] / "results").glob("*.csv")):
        with file.open(encoding="utf-8", newline="") as stream:
            runs = [run for run in csv.DictReader(stream) if run.get("backward_samples") and "scene" in run]
        work = {
            (run["scene"], run["seed"], run["method"]): float(run["forward_samples"])
            + 2 * float(run["backward_samples"])
            for run in runs
        }
        for (scene, seed, method), amount in work.items():
            if plain := work.get((scene, seed, "fedavg")):
                ratios.setdefault(method.partition(":")[0], []).append(amount / plain)
    for method, factor in stated.items():
        assert statistics.median(ratios[method]) == pytest.approx(factor, abs=0.02), method


def test_settings_on_frozen_features():
    settings = find_recipe("feddiv-table-1").job_settings(
        "feddiv", Setting("cifar10", "iid", "uniform rho=0.8 tau=0.5"), "features"
    )
    assert settings["data"] == "cifar10"  # all of it
    assert (settings["encoder"], settings["model"]) == ("lite", "linear")
    assert (settings["clients"], settings["participation"], settings["epochs"], settings["batch_size"]) == (
        100,
        0.1,
        5,
        10,
    )
    assert settings["rounds"] == 100  # every site ten times, a tenth of them per round
    assert settings["method"] == "feddiv:eta=0"
    assert "views" not in settings
    assert "optimizer" not in settings
    fedgr = find_recipe("fedgr-table-4")
    column = fedgr.settings[0]
    assert fedgr.job_settings("fedgr[no-refining]", column, "features")["method"].endswith(
        "refine=false,weak=none,strong=none"
    )
    assert find_recipe("fedgr-table-5").lacking("features") == (
        "fedgr[no-weak-augmentation]",
        "fedgr[no-strong-augmentation]",
    )


def test_columns_in_words_are_as_many_as_columns():
    for recipe in recipes().values():
        words = recipe.column_words()
        assert len(set(words.values())) == len(words) == len(recipe.settings), recipe.name
    assert find_recipe("feddiv-table-1").column_words()["uniform rho=0.4 tau=0.5"] == "symmetric rho 0.4, tau 0.5"


def test_a_published_table_needs_no_run(capsys):
    made = published_table(find_recipe("feddiv-table-1"), ["feddiv", "fedavg"], ["rho=0.8"])
    assert made.rows == ("feddiv", "fedavg")
    line = next(line for line in str(made).splitlines() if line.startswith("| FedDiv"))
    assert line == "| FedDiv | 92.98 ± 0.60 | 91.44 ± 0.25 |"
    for name in recipes():
        assert len(published_table(find_recipe(name)).rows) == len(find_recipe(name).rows)
    assert command("show", "feddiv-table-1", "--format", "latex", "--rename", "feddiv=Best", "--label", "tab:f") == 0
    printed = capsys.readouterr().out
    assert r"Best & 94.42 $\pm$ 0.29" in printed
    assert r"\label{tab:f}" in printed
    assert command("show", "feddiv-table-1", "--json") == 0
    cells = json.loads(capsys.readouterr().out)["columns"][0]["cells"]
    assert cells["fedavg"]["paper"] == {"mean": 89.46, "std": 0.39}
    assert command("show", "feddiv-table-1", "--methods", "fedav") == 2
    assert command("show") == 2


def test_a_plan_has_rows_columns_and_times(capsys, tmp_path):
    words = ["feddiv-table-2", "--methods", "fedavg", "feddiv", *TINY, "--runs", tmp_path, "--plan"]
    assert command("run", *words) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "bernoulli-dirichlet p=0.7 alpha=10 Bernoulli(0.7) Dirichlet(10) sites digits:train=100 4 x 2" in printed
    assert "feddiv FedDiv 3 9" in printed
    assert "0.89 x FedAvg" in printed
    assert "a training step on empty samples was timed" in printed
    assert command("run", *words, "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert [row["row"] for row in plan["rows"]] == ["fedavg", "feddiv"]
    assert len(plan["runs"]) == 18
    assert len(plan["columns"]) == 3


def test_a_missing_data_set_is_one_message(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDWINNOW_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("FEDWINNOW_CACHE", str(tmp_path / "cache"))
    words = ["feddiv-table-5", "--scale", "paper", "--methods", "fedcorr", "feddiv", "--runs", tmp_path]
    assert command("run", *words) == 3
    errors = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(errors) == 1
    assert errors[0].startswith("error: 10 runs are left out: ")
    assert "clothing1m" in errors[0]
    assert not list(tmp_path.rglob("config.toml"))
    assert command("run", *words, "--plan") == 0
    assert capsys.readouterr().err.startswith("note: 10 runs are left out: ")


def test_runs_whose_data_is_there_are_played(capsys, tmp_path, monkeypatch):
    plan = find_recipe("feddiv-table-6").plan(tmp_path, "laptop", rows=["fedcorr", "feddiv"], seeds=[0])
    jobs = [
        replace(job, settings=job.settings | {"data": "digits:train=100" if "cifar10," in job.scene else "clothing1m"})
        for job in plan.jobs
    ]
    monkeypatch.setenv("FEDWINNOW_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("FEDWINNOW_CACHE", str(tmp_path / "cache"))
    playable, words = without_data(replace(plan, jobs=tuple(jobs)))
    missing = sum("cifar10," not in job.scene for job in jobs)
    assert 0 < missing < len(jobs)
    assert words.count("runs are left out") == 1
    assert words.startswith(f"{missing} runs are left out: ")
    assert {job.settings["data"] for job in playable.jobs} == {"digits:train=100"}


def test_a_plan_downloads_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDWINNOW_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("FEDWINNOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDWINNOW_OFFLINE", raising=False)
    monkeypatch.setattr("pooch.retrieve", None)  # calling it would fail
    monkeypatch.chdir(tmp_path)
    assert command("run", "feddiv-table-1", "--scale", "features", "--methods", "fedavg", "--plan") == 0
    said = capsys.readouterr().err
    assert said.startswith("note: cifar-10-binary.tar.gz (170 MB) is not here yet; it will be downloaded from https:")
    assert "left out" not in said


def test_wrong_names():
    with pytest.raises(UsageError, match="Did you mean 'feddiv-table-1'"):
        find_recipe("feddiv-tabel-1")
    assert command("run", "feddiv-table-1", "--methods", "fedaverage", "--plan") == 2
    assert command("run", "feddiv-table-1", "--set", "round=3", "--plan") == 2
    assert command("run", "feddiv-table-1", "--set", "rounds=many", "--plan") == 2
    assert command("run") == 2


# --- a table from scratch ------------------------------------------------------------------------------------------

TINY = ["--set", "data=digits:train=100", "model=linear", "clients=4", "rounds=2", "epochs=1"]
WORDS = ["feddiv-table-2", "--methods", "fedavg", "fedprox", "--seeds", "0", "1", *TINY]


def test_a_tiny_table_from_scratch(tmp_path, capsys):
    assert command("table", *WORDS, "--runs", tmp_path) == 3
    assert "no finished run" in capsys.readouterr().err
    assert command("run", *WORDS, "--runs", tmp_path) == 0
    assert "12 finished" in capsys.readouterr().out
    everything = [word for word in WORDS if word not in ("--methods", "fedavg", "fedprox")]
    assert command("table", *everything, "--runs", tmp_path, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    columns = {(column["setting"], column["figure"]): column["cells"] for column in made["columns"]}
    assert len(columns) == 3 * 2  # three partitions; best, which the paper prints, and last10
    summaries = {}
    for path in tmp_path.rglob("summary.json"):
        summary = json.loads(path.read_text())
        partition = json.loads((path.parent / "scene.json").read_text())["partition"]
        summaries[partition, summary["method"], summary["seed"]] = summary
    here = {"p=0.7 alpha=10": "p=0.7,alpha=10", "p=0.7 alpha=1": "p=0.7,alpha=1", "p=0.3 alpha=10": "p=0.3,alpha=10"}
    for (setting, figure), cells in columns.items():
        spec = f"bernoulli_dirichlet:{here[setting.removeprefix('bernoulli-dirichlet ')]}"
        runs = {key: value for key, value in summaries.items() if fits(key[0], spec)}
        for row in ("fedavg", "fedprox"):
            values = [run[figure.split(".")[0]]["accuracy"] for key, run in sorted(runs.items()) if key[1] == row]
            assert cells[row]["n"] == 2
            assert cells[row]["mean"] == pytest.approx(sum(values) / 2)
            assert cells[row]["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
        for row in ("rofl", "arfl", "fedcorr", "feddiv"):
            assert cells[row]["n"] == 0  # a missing cell is visible
    published = columns["bernoulli-dirichlet p=0.3 alpha=10", "best.accuracy"]
    assert published["feddiv"]["paper"] == {"mean": 85.31, "std": 2.28}
    assert published["fedavg"]["paper"] == {"mean": 67.75, "std": 4.38}
    assert any("MINIATURE" in note for note in made["notes"])
    assert made["notes"][0].startswith("CHANGED for every run: data=digits:train=100")


def test_a_table_of_chosen_rows_has_no_others(tmp_path, capsys):
    words = ["feddiv-table-2", "--columns", "p=0.3", "--seeds", "0", *TINY, "--runs", tmp_path]
    assert command("run", *words, "--methods", "fedavg", "fedprox") == 0
    capsys.readouterr()

    def rows(*more):
        assert command("table", *words, *more, "--json") == 0
        return [set(column["cells"]) for column in json.loads(capsys.readouterr().out)["columns"]]

    assert rows("--methods", "fedprox") == [{"fedprox"}] * 2
    # In the paper's order or not, with a row that has no run, and one that only --also names.
    chosen = rows("--methods", "feddiv", "fedavg", "--also", "oracle")
    assert chosen == [{"feddiv", "fedavg", "oracle"}] * 2
    assert rows() == [set(find_recipe("feddiv-table-2").rows)] * 2


def fits(partition, spec):
    """Whether two specs are the same part, whatever defaults they spell out."""
    return catalogue.make("partitions", partition) == catalogue.make("partitions", spec)


def test_a_row_that_the_paper_has_in_some_columns_only_can_be_filled_up():
    recipe = find_recipe("feddiv-table-1")
    words = {"rows": ["fedavg"], "columns": ["rho=0.6 tau=0.5", "rho=1.0 tau=0.5"], "seeds": [0]}
    printed = recipe.plan(Path("x"), "laptop", **words).jobs
    filled = recipe.plan(Path("x"), "laptop", also=["fedavg"], **words).jobs
    assert [job.scene for job in printed] == ["uniform rho=0.6 tau=0.5"]
    assert [job.scene for job in filled] == ["uniform rho=0.6 tau=0.5", "uniform rho=1.0 tau=0.5"]


def test_a_part_of_a_table_and_other_methods_beside_it(tmp_path, capsys):
    words = ["feddiv-table-2", "--methods", "fedavg", "--also", "oracle", "--columns", "p=0.3", "--seeds", "0", *TINY]
    assert command("run", *words, "--runs", tmp_path) == 0
    assert "2 finished" in capsys.readouterr().out
    assert command("table", *words, "--runs", tmp_path, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert {column["setting"] for column in made["columns"]} == {"bernoulli-dirichlet p=0.3 alpha=10"}
    cells = made["columns"][0]["cells"]
    assert cells["oracle"]["n"] == cells["fedavg"]["n"] == 1
    assert cells["oracle"].get("paper") is None
    assert command("run", "feddiv-table-2", "--columns", "p=0.5", "--plan") == 2
    assert "bernoulli-dirichlet p=0.7 alpha=10" in capsys.readouterr().err
