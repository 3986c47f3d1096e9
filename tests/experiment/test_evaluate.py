"""`fedwinnow evaluate`: figures worked out by hand, hostile data, the files, the page and the kept temperature."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedwinnow
from fedwinnow.cli import main
from fedwinnow.data.input_form import InputForm
from fedwinnow.errors import DataError, FedwinnowWarning, UsageError
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.trained.predictions import finite
from fedwinnow.experiment.trained.scoring import Evaluated, Labelled
from fedwinnow.experiment.trained.temperature import fit_temperature, halves
from fedwinnow.experiment.trained.trained_model import TrainedModel
from fedwinnow.experiment.trusted_and_public import measuring_rows
from fedwinnow.federation.method import find_method
from fedwinnow.testing import toy_data
from html_page import Page
from stages import TINY

HEAD = "id,height,weight,hospital,diagnosis,truth\n"


def evaluated(
    logits: Any, labels: Any, names: tuple[str, ...] = (), sites: Any = None, given: bool = False, folder: str = "run"
) -> Evaluated:
    """An evaluation of these scores, without a run."""
    logits = np.asarray(logits, np.float64)
    names = names or tuple(f"class {number}" for number in range(logits.shape[1]))
    model = TrainedModel(Path(folder), InputForm("rows", (2,), names), find_method("fedavg"), (), None)
    data = Labelled(
        "data",
        "data.csv",
        np.arange(len(logits)),
        logits,
        np.asarray(labels, np.int64),
        "given" if given else "true",
        None if sites is None else np.array(sites),
    )
    return Evaluated(model, data)


def page_of(found: Evaluated, folder: Path) -> Page:
    return Page((found.write(folder) / "report.html").read_text(encoding="utf-8"))


# --- figures -------------------------------------------------------------------------------------------------------


def test_the_scores_of_five_samples() -> None:
    # labels 0 0 0 1 1, answers 0 0 1 1 0; the scores are 2 for the answer and 0 for the other class.
    found = evaluated([[2, 0], [2, 0], [0, 2], [0, 2], [2, 0]], [0, 0, 0, 1, 1])
    scores = found.scores
    assert found.accuracy == 0.6
    assert found.confusion.tolist() == [[2, 1], [1, 1]]
    assert scores["balanced_accuracy"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert scores["macro_f1"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert scores["log_loss"] == pytest.approx(math.log(1 + math.exp(-2)) + 2 * 2 / 5)
    # Of the 6 pairs (0, 1): 2 in order, 1 backwards, 3 ties; the other class has the same.
    assert scores["auroc"] == pytest.approx((2 + 3 / 2) / 6)
    assert scores["top5"] is None
    assert scores["commonest_class"] == {"class": "class 0", "share": 0.6}
    assert found.by_class[0] == {
        "class": "class 0",
        "samples": 3,
        "predicted": 3,
        "precision": pytest.approx(2 / 3),
        "recall": pytest.approx(2 / 3),
        "f1": pytest.approx(2 / 3),
    }
    assert found.temperature is None
    assert "needs 100 labelled samples, and there are 5" in scores["temperature"]["reason"]
    assert scores["calibration_error"] is None


def test_the_label_among_the_best_five_of_six_classes() -> None:
    found = evaluated([[6, 5, 4, 3, 2, 1], [6, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6]], [4, 5, 4])
    assert found.scores["top5"] == pytest.approx(2 / 3)
    assert evaluated(np.eye(5), range(5)).scores["top5"] is None


def test_sites_have_intervals_and_small_ones_only_a_number() -> None:
    sites = ["big"] * 100 + ["bad"] * 20 + ["small"] * 19
    right = [True] * 90 + [False] * 10 + [True] * 4 + [False] * 16 + [False] * 19
    found = evaluated([[1, 0] if hit else [0, 1] for hit in right], [0] * 139, sites=sites)
    bad, big, small = found.by_site
    assert (bad["site"], bad["samples"], bad["accuracy"]) == ("bad", 20, 0.2)
    assert (bad["low"], bad["high"]) == pytest.approx((0.080658, 0.416018), abs=1e-6)
    assert (big["accuracy"], small) == (
        0.9,
        {"site": "small", "samples": 19, "accuracy": None, "low": None, "high": None},
    )
    assert found.scores["worst_site"]["site"] == "bad"
    assert found.scores["worst_site"]["below_overall"]
    assert evaluated([[1, 0]] * 40, [0] * 40, sites=["one"] * 40).scores["worst_site"] is None


def test_the_worst_of_equal_sites_is_said_to_be_chance(tmp_path: Path) -> None:
    right = ([True] * 30 + [False] * 10) * 2
    right[0] = False
    found = evaluated([[1, 0] if hit else [0, 1] for hit in right], [0] * 80, sites=["a"] * 40 + ["b"] * 40)
    assert not found.scores["worst_site"]["below_overall"]
    assert "the difference may be chance" in page_of(found, tmp_path / "page").text


def test_a_class_that_is_absent_does_not_count_in_balanced_accuracy(tmp_path: Path) -> None:
    found = evaluated([[3, 0, 0], [3, 0, 0], [0, 3, 0], [0, 0, 3]], [0, 0, 1, 1])
    assert found.scores["balanced_accuracy"] == 0.75
    assert found.scores["macro_f1"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert found.scores["absent_classes"] == ["class 2"]
    text = page_of(found, tmp_path / "page").text
    assert "1 of 3 classes is absent from this data (class 2)" in text
    assert "mean recall of 2 classes" in text


# --- the temperature -----------------------------------------------------------------------------------------------


def test_the_best_temperature_by_hand() -> None:
    # Three of four are right by a margin of 1: sigmoid(1 / T) = 3/4, so T = 1 / ln 3.
    value, reason = fit_temperature(np.array([[1.0, 0.0]] * 4), np.array([0, 0, 0, 1]))
    assert value == pytest.approx(1 / math.log(3), rel=1e-9)
    assert reason == ""


def test_no_temperature_where_there_is_none() -> None:
    right, reason = fit_temperature(np.array([[1.0, 0.0]] * 4), np.zeros(4, np.int64))
    assert right is None
    assert "smaller temperature" in reason
    backwards, reason = fit_temperature(np.array([[1.0, 0.0]] * 4), np.array([0, 1, 1, 1]))
    assert backwards is None
    assert "larger temperature" in reason
    assert fit_temperature(np.zeros((4, 2)), np.array([0, 1, 1, 0]))[0] is None


def test_halves_share_every_class_and_no_sample() -> None:
    labels = np.array([0] * 50 + [1] * 41 + [2])
    first, second = halves(labels, 3, seed=0)
    assert sorted([*first, *second]) == list(range(92))
    assert np.bincount(labels[first], minlength=3).tolist() in ([25, 21, 0], [25, 20, 1])
    assert first.tolist() != halves(labels, 3, seed=1)[0].tolist()
    assert first.tolist() == halves(labels, 3, seed=0)[0].tolist()


def unsure_model(samples: int = 400) -> tuple[Any, Any]:
    """Scores whose best temperature is 1/2: the labels are drawn from the softmax of twice the scores."""
    random = np.random.RandomState(0)
    logits = random.normal(size=(samples, 3))
    chances = np.exp(2 * logits) / np.exp(2 * logits).sum(1, keepdims=True)
    return logits, (random.rand(samples, 1) > chances.cumsum(1)).sum(1)


def test_nothing_is_fitted_and_scored_on_the_same_samples() -> None:
    logits, labels = unsure_model()
    plain = evaluated(logits, labels)
    assert plain.temperature == pytest.approx(0.5, abs=0.1)
    facts = plain.scores["temperature"]
    assert (facts["fitted_on"], facts["scored_on"]) == (200, 200)
    assert facts["after"]["calibration_error"] < facts["before"]["calibration_error"]
    assert facts["helps"]
    fitted, scored = halves(labels, 3, seed=0)
    shuffled = logits.copy()
    shuffled[fitted] *= 5
    other = evaluated(shuffled, labels)
    assert other.scores["temperature"]["before"] == facts["before"]
    assert other.temperature == pytest.approx(5 * (plain.temperature or 0))
    shuffled = logits.copy()
    shuffled[scored] *= 5
    assert evaluated(shuffled, labels).temperature == plain.temperature


def test_wrong_labels_make_the_temperature_larger() -> None:
    logits, labels = unsure_model(1000)
    wrong = np.where(np.arange(1000) % 10 < 3, (labels + 1) % 3, labels)
    clean, noisy = (evaluated(logits, kind).temperature for kind in (labels, wrong))
    assert clean is not None
    assert noisy is not None
    assert noisy > 1.5 * clean


# --- hostile data --------------------------------------------------------------------------------------------------


def test_a_model_that_answers_at_random_is_seen_to_do_so() -> None:
    random = np.random.RandomState(0)
    found = evaluated(random.normal(size=(2000, 4)), random.randint(0, 4, 2000))
    low, high = found.interval
    assert low < 0.25 < high
    assert found.scores["auroc"] == pytest.approx(0.5, abs=0.03)
    assert found.temperature is None or found.temperature > 5


def test_labels_of_one_class_only(tmp_path: Path) -> None:
    found = evaluated(np.random.RandomState(0).normal(size=(150, 3)), np.zeros(150), given=True)
    assert found.scores["auroc"] is None
    assert found.scores["balanced_accuracy"] == found.accuracy
    page = page_of(found, tmp_path / "page")
    assert "the labels have one class only" in page.text
    assert "LABELS AS GIVEN." in page.text


def test_two_samples_give_a_page(tmp_path: Path) -> None:
    found = evaluated([[1, 0], [0, 1]], [0, 1])
    assert found.interval == pytest.approx((0.342380, 1), abs=1e-6)
    text = page_of(found, tmp_path / "page").text
    assert "Not known: calibration needs 100 labelled samples, and there are 2." in text
    assert "Nothing: every answer is right." in text
    with pytest.raises(UsageError, match="no temperature to keep: calibration needs 100"):
        found.keep_temperature()


def test_answers_that_are_not_finite_are_refused() -> None:
    model = evaluated([[1, 0]], [0]).model
    with pytest.raises(DataError, match="answer to sample 2 is not finite"):
        finite(model, np.array([[1.0, 0.0], [np.nan, 0.0]]))


def test_two_hundred_classes_with_long_and_hostile_names(tmp_path: Path) -> None:
    bad = ("<script>alert(1)</script>", '" onclick="x', "{{ 7 * 7 }}", "a" * 300)
    names = (*bad, *(f"class number {number}" for number in range(196)))
    random = np.random.RandomState(0)
    labels = np.arange(600) % 200
    logits = random.normal(size=(600, 200)) + 2 * np.eye(200)[labels]
    found = evaluated(logits, labels, names, sites=np.array(bad)[np.arange(600) % 4])
    page = page_of(found, tmp_path / "page")
    assert bad[0] in page.text
    assert "{{ 7 * 7 }}" in page.text
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert not any({"onclick", "src", "href"} & attributes.keys() for _, attributes in page.tags)
    assert "200 classes are too many for a picture" in page.text
    assert "The 20 classes with the lowest recall, of 200" in page.text
    source = (tmp_path / "page" / "report.html").read_text(encoding="utf-8")
    assert len(source) < 100_000
    assert "http" not in source
    with (tmp_path / "page" / "confusion.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows[0] == ["label", *names]
    assert [int(cell) for cell in rows[1][1:]] == found.confusion[0].tolist()


# --- a run, a table and the command --------------------------------------------------------------------------------


def table(rows: int, seed: int, wrong: float = 0.0) -> str:
    """Two classes that two columns tell apart, on two hospitals."""
    random = np.random.RandomState(seed)
    lines = []
    for number in range(rows):
        ill = number % 2
        height, weight = random.normal(ill * 2, 1), random.normal(-ill, 1)
        given = 1 - ill if random.rand() < wrong else ill
        site = "north" if number % 5 else "south"
        names = ("well", "ill")
        lines.append(f"{number},{height:.3f},{weight:.3f},{site},{names[given]},{names[ill]}\n")
    return HEAD + "".join(lines)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table, and tables to evaluate it on."""
    folder = tmp_path_factory.mktemp("evaluate")
    for name, seed, wrong in (("train", 0, 0.0), ("new", 1, 0.2)):
        (folder / f"{name}.csv").write_text(table(200, seed, wrong))
    (folder / "given.csv").write_text(table(200, 1, 0.2).replace("truth", "remark"))
    (folder / "bare.csv").write_text("height,weight\n1,2\n")
    (folder / "other.csv").write_text("height,weight,diagnosis\n1,2,dead\n")
    (folder / "short.csv").write_text("height,diagnosis\n1,ill\n")
    source = f"csv:path={folder / 'train.csv'},label=diagnosis,site=hospital,id=id,true=truth"
    settings = {"partition": "column", "participation": 1.0, "rounds": 2, "epochs": 2, "model": "linear", "test": 0.25}
    fedwinnow.run(data=source, out=folder / "run", **settings)
    return folder


@pytest.fixture
def call(material: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command beside the material: its exit code, what it printed and what it complained about."""
    monkeypatch.chdir(material)

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*words])
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


def test_the_command_writes_a_folder_and_prints_a_table(call: Any, material: Path) -> None:
    code, out, err = call("evaluate", "run", "--data", "new.csv")
    assert (code, err) == (0, "")
    place = material / "run" / "evaluation" / "new"
    assert sorted(path.name for path in place.iterdir()) == [
        "by_site.csv",
        "confusion.csv",
        "predictions.csv",
        "report.html",
        "scores.json",
    ]
    scores = json.loads((place / "scores.json").read_text())
    assert f"{100 * scores['accuracy']:.1f} %" in out
    assert scores["labels"] == "true"
    assert scores["samples"] == 200
    assert [row["site"] for row in scores["by_site"]] == ["north", "south"]
    with (place / "predictions.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["id", "label", "site", "class", "probability", "p_ill", "p_well"]
    assert sum(row["label"] == row["class"] for row in rows) / 200 == pytest.approx(scores["accuracy"])
    code, out, _ = call("evaluate", "run", "--data", "csv:path=new.csv", "--json")  # the same data, so the same folder
    assert code == 0
    found = json.loads(out)
    assert {key: found[key] for key in scores if key != "source"} == {
        key: value for key, value in scores.items() if key != "source"
    }


def test_given_labels_are_said_to_be_given(call: Any, material: Path) -> None:
    code, out, err = call("evaluate", "run", "--data", "given.csv")
    assert (code, err) == (0, "")
    assert "not how often it is right" in out
    given = json.loads((material / "run/evaluation/given/scores.json").read_text())
    assert given["labels"] == "given"
    true = fedwinnow.load(material / "run").evaluate(material / "new.csv")
    assert given["accuracy"] < true.accuracy - 0.05  # the same samples, a fifth of the labels wrong
    text = Page((material / "run/evaluation/given/report.html").read_text()).text
    assert "if one label in ten were wrong" in text
    assert "agreement with the given labels" in text


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("run --data bare.csv", 3, "bare has no labels ... label=COLUMN ... one folder per class ... the array y"),
        ("run --data other.csv", 3, "'dead', which is not a class; allowed: ill, well"),
        ("run --data short.csv", 3, "the column weight is missing"),
        ("run --data csv:path=new.csv,site=city", 3, "city"),
        ("run --data digits", 3, "an image of 8 x 8 pixels ... a row of a table"),
        ("run", 2, "needed: --data"),
        ("", 2, "no run was given"),
        ("nowhere --data new.csv", 3, "not a run folder"),
        ("run --data new.csv --site north", 2, "one model for all sites"),
        ("run --data new.csv --out run", 2, "has other files in it"),
        ("run --data new.csv --out train.csv", 2, "is a file; give a folder"),
        ("run --data new.csv --seed -1", 2, "--seed -1"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(call: Any, words: str, code: int, said: str) -> None:
    found, out, err = call("evaluate", *words.split())
    assert (found, out) == (code, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    for piece in said.split(" ... "):
        assert piece in err


def test_a_folder_of_another_evaluation_is_not_overwritten(call: Any) -> None:
    assert call("evaluate", "run", "--data", "new.csv", "--out", "page", "--quiet")[0] == 0
    code, _, err = call("evaluate", "run", "--data", "given.csv", "--out", "page")
    assert code == 2
    assert "the evaluation of other data (new.csv)" in err


def test_of_its_own_data_the_test_part_is_scored(call: Any, material: Path) -> None:
    result = fedwinnow.load(material / "run")
    found = result.evaluate(material / "train.csv")
    assert found.scores["part"] == "test part of the run"
    assert found.scores["samples"] == 50
    assert found.accuracy == result.summary["last"]["accuracy"]
    assert found.by_site != []


def test_own_data_that_has_changed_is_scored_whole_with_a_warning(material: Path, tmp_path: Path) -> None:
    result = fedwinnow.load(material / "run")
    before = (material / "train.csv").read_text()
    try:
        (material / "train.csv").write_text(before.replace(",ill,", ",well,", 5))
        with pytest.warns(FedwinnowWarning, match="better than on new data"):
            found = result.evaluate(str(material / "train.csv"))
    finally:
        (material / "train.csv").write_text(before)
    assert found.scores["part"] == "training data"
    assert "TRAINING DATA." in page_of(found, tmp_path / "page").text


@pytest.mark.parametrize(("trusted", "public"), [(0.0, None), (0.25, None), (7.0, "0.2"), (0.0, 10)])
def test_samples_that_trained_the_server_do_not_measure(trusted: float, public: Any) -> None:
    data = toy_data()
    stage = prepare(Experiment(data=data, **TINY | {"trusted": trusted, "public": public}))
    assert data.test is not None
    rows = measuring_rows(trusted, public, len(data.test), stage.experiment.seed)
    assert np.array_equal(data.test.subset(rows).features.take(np.arange(len(rows))), stage.aside.test.array)


def test_python_has_the_same_figures(material: Path) -> None:
    result = fedwinnow.load(material / "run")
    with (material / "new.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    truth, sites = [row["truth"] for row in rows], [row["hospital"] for row in rows]
    from_file = result.evaluate(material / "new.csv")
    from_values = result.evaluate(rows, true=truth, sites=sites)
    for key in ("accuracy", "accuracy_interval", "by_site", "by_class", "log_loss", "temperature", "labels"):
        assert from_values.scores[key] == from_file.scores[key]
    assert result.evaluate(rows, truth).scores["labels"] == "given"
    numbers = [result.class_names.index(name) for name in truth]
    assert result.evaluate(rows, np.array(truth, dtype=object)).accuracy == result.evaluate(rows, numbers).accuracy
    with pytest.raises(UsageError, match="no labels were given"):
        result.evaluate(rows)
    with pytest.raises(DataError, match="200 samples but 3 entries in y"):
        result.evaluate(rows, ["ill"] * 3)
    with pytest.raises(DataError, match="entries in sites"):
        result.evaluate(rows, truth, sites=["north"])
    with pytest.raises(UsageError, match="has its own"):
        result.evaluate(material / "new.csv", truth)


def test_a_kept_temperature_is_used_by_predict(call: Any, material: Path) -> None:
    kept = material / "run" / "calibration.json"
    code, _, err = call("predict", "run", "--data", "new.csv", "--calibrated")
    assert code == 2
    assert "has no kept temperature" in err
    assert call("evaluate", "run", "--data", "new.csv", "--quiet")[0] == 0
    assert not kept.exists()
    code, out, _ = call("evaluate", "run", "--data", "new.csv", "--keep-temperature", "--json")
    assert code == 0
    (entry,) = json.loads(kept.read_text())["models"].values()
    value = json.loads(out)["temperature"]["value"]
    assert entry == {"temperature": value, "data": "new", "samples": 100, "labels": "true", "site": None}
    assert call("predict", "run", "--data", "new.csv", "--out", "plain.csv", "--quiet")[0] == 0
    assert call("predict", "run", "--data", "new.csv", "--out", "calm.csv", "--calibrated", "--quiet")[0] == 0
    chances = {}
    for name in ("plain", "calm"):
        with (material / f"{name}.csv").open(newline="") as stream:
            chances[name] = np.array([float(row["p_ill"]) for row in csv.DictReader(stream)])
    odds = {name: np.log(values / (1 - values)) for name, values in chances.items()}
    assert odds["calm"] == pytest.approx(odds["plain"] / value, rel=1e-3, abs=1e-3)
    result = fedwinnow.load(material / "run")
    assert result.predict_proba(material / "new.csv", calibrated=True)[:, 0] == pytest.approx(chances["calm"], abs=1e-6)
    damaged = json.loads(kept.read_text())
    damaged["models"] = {"0" * 64: entry}
    kept.write_text(json.dumps(damaged))
    code, _, err = call("predict", "run", "--data", "new.csv", "--calibrated")
    assert code == 2
    assert "temperature of another model" in err
    kept.write_text("{")
    code, _, err = call("predict", "run", "--data", "new.csv", "--calibrated")
    assert code == 3
    assert "Restore the file" in err
    kept.unlink()


def test_a_run_that_starts_anew_forgets_its_temperature(tmp_path: Path) -> None:
    settings = {"data": "digits:train=300", "model": "linear", "clients": 2, "rounds": 1, "epochs": 1, "test": 0.5}
    result = fedwinnow.run(out=tmp_path, **settings)
    result.evaluate("digits").keep_temperature()
    assert (tmp_path / "calibration.json").exists()
    fedwinnow.run(out=tmp_path, redo=True, **settings)
    assert not (tmp_path / "calibration.json").exists()


def test_a_hundred_samples_are_calibrated_on_fifty(tmp_path: Path) -> None:
    logits, labels = unsure_model(100)
    found = evaluated(logits, labels)
    temperature = found.scores["temperature"]
    assert (temperature["fitted_on"], temperature["scored_on"]) == (50, 50)
    assert temperature["before"]["calibration_error"] is not None
    assert "Not known" not in page_of(found, tmp_path / "page").text
