"""The papers' tables as recipes: whole, playable, and one made again from scratch, cell by cell."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from fedwinnow import catalogue
from fedwinnow.cli import main
from fedwinnow.errors import UsageError
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.method import find_method
from fedwinnow.study.plan_cost import estimated_hours, samples_trained
from fedwinnow.study.recipes import FIGURES, FOLDER, Setting, find_recipe, recipes

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
@pytest.mark.parametrize("scale", ["paper", "laptop"])
def test_every_run_of_a_recipe_could_be_played(name, scale, tmp_path):
    recipe = find_recipe(name)
    plan = recipe.plan(tmp_path, scale)
    assert len({job.folder for job in plan.jobs}) == len(plan.jobs)
    for job in {(job.row, job.scene): job for job in plan.jobs}.values():
        experiment = job.experiment
        needs = find_method(experiment.method).needed()
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
    assert 0 < estimated_hours(plan) < 1000


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
