"""The model of a run: loaded without its data, equal to what the run measured, for tables, images, texts and arrays."""

from __future__ import annotations

import csv
import json
import shutil
import warnings

import numpy as np
import pytest
import torch

import fedwinnow
import stages
from fedwinnow.cli import main
from fedwinnow.data.input_form import InputForm
from fedwinnow.errors import DataError, FedwinnowWarning, StaleError, UsageError
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.settings import Experiment

SMALL = {"clients": 3, "rounds": 1, "epochs": 1, "participation": 1.0}
HEADER = ["patient", "hospital", "age", "sex", "pressure", "diagnosis"]


def command(*words):
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return end.value.code


def write_table(path, rows, header=HEADER):
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path


def patients(count, seed=0):
    luck = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        age, sex, pressure = luck.normal(50, 12), luck.choice(["f", "m"]), luck.normal(120, 15)
        ill = (age - 50) / 12 + (sex == "m") + (pressure - 120) / 15 > 0.5
        cell = "" if number % 10 == 0 else f"{pressure:.0f}"
        rows.append([f"p{number}", f"h{number % 3}", f"{age:.1f}", sex, cell, "ill" if ill else "well"])
    return rows


@pytest.fixture(scope="module")
def hospital(tmp_path_factory):
    """A run on a table that is not there any more."""
    home = tmp_path_factory.mktemp("hospital")
    table = write_table(home / "train.csv", patients(200))
    source = f"csv:path={table},label=diagnosis,site=hospital,id=patient"
    fedwinnow.run(data=source, partition="column", out=home / "run", **SMALL | {"rounds": 4, "epochs": 5})
    table.unlink()
    return home / "run"


# --- the same answers as the run ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", {}),
        ("coteaching", {}),
        ("coteaching:answer=logits", {}),
        ("gce:steady=0.8", {"rounds": 3}),
        ("fedavg", {"model": "linear"}),
    ],
)
def test_the_model_scores_what_the_run_scored(tmp_path, method, settings):
    result = fedwinnow.run(method=method, data="digits:train=200", out=tmp_path, **SMALL | settings)
    test = result.scene.dataset.test
    pixels = test.features.take(np.arange(len(test)))
    right = result.predict(pixels) == np.array(result.class_names)[test.labels]
    assert right.mean() == result.summary["last"]["accuracy"]
    scores = result.trained.logits(test.features)
    assert torch.allclose(result.model(torch.as_tensor(pixels)), scores, atol=1e-5)
    as_torch_has_them = torch.as_tensor(pixels).permute(0, 3, 1, 2) / 255
    assert torch.allclose(result.model(as_torch_has_them), scores, atol=1e-5)
    assert np.allclose(result.predict_proba(as_torch_has_them), result.predict_proba(pixels), atol=1e-5)
    assert not result.model.training
    assert not any(weight.requires_grad for weight in result.model.parameters())


def test_running_statistics_of_one_site(tmp_path):
    def normed(classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.BatchNorm2d(1), torch.nn.Flatten(), torch.nn.Linear(64, classes))

    result = fedwinnow.run(data="digits:train=200", model=normed, batch_norm="local", out=tmp_path, **SMALL)
    one, other = (fedwinnow.load(tmp_path, site=f"client-{number}", model=normed).model for number in (0, 1))
    assert not torch.equal(one.models[0][0].running_mean, other.models[0][0].running_mean)
    assert torch.equal(one.models[0][2].weight, result.model.models[0][2].weight)


def test_every_site_has_its_own_model(tmp_path):
    settings = {**SMALL, "method": "rhfl:pre_train=1", "public": 0.2, "model": "linear+mlp"}
    result = fedwinnow.run(data="digits:train=200", out=tmp_path, **settings)
    with pytest.raises(UsageError, match="every site of this run has its own model; choose one with site=: client-0"):
        _ = result.model
    first, second = (fedwinnow.load(tmp_path, site=f"client-{number}") for number in (0, 1))
    assert len(list(first.model.parameters())) < len(list(second.model.parameters()))  # linear, mlp
    stage = prepare(Experiment(data="digits:train=200", **settings))  # public samples are not tested
    truth = np.array(result.scene.data.class_names)[stage.labels["test"]]
    pixels = stage.parts["test"].take(np.arange(len(truth)))
    every = [fedwinnow.load(tmp_path, site=f"client-{number}").predict(pixels) for number in range(3)]
    assert np.mean([said == truth for said in every]) == pytest.approx(result.summary["last"]["accuracy"])
    with pytest.raises(UsageError, match="unknown site 'client-9'"):
        _ = fedwinnow.load(tmp_path, site="client-9").model


def test_a_model_of_a_program_must_be_given_again(tmp_path):
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    result = fedwinnow.run(data="digits:train=200", model=net, out=tmp_path, **SMALL)
    said = result.predict("digits:train=200")
    with pytest.raises(UsageError, match="its model was made by a program"):
        fedwinnow.load(tmp_path).predict("digits:train=200")
    assert (fedwinnow.load(tmp_path, model=net).predict("digits:train=200") == said).all()


def test_a_model_whose_code_has_changed_is_refused(tmp_path):
    file = tmp_path / "net.py"
    text = "from torch import nn\ndef build(classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    file.write_text(text)
    run = tmp_path / "run"
    fedwinnow.run(data="digits:train=200", model=f"{file}:build", out=run, **SMALL)
    fedwinnow.load(run).predict("digits:train=200")
    file.write_text(text.replace("nn.Linear(64, classes)", "nn.Linear(64, classes), nn.Softmax(1)"))
    with pytest.raises(StaleError, match=r"net\.py has changed since this run was made"):
        _ = fedwinnow.load(run).model


# --- tables ---------------------------------------------------------------------------------------------------------


def test_a_table_in_every_form(hospital, tmp_path):
    rows = patients(40, seed=5)
    table = write_table(
        tmp_path / "new.csv", [[row[0], row[4], row[3], row[2]] for row in rows], ["patient", "pressure", "sex", "age"]
    )
    result = fedwinnow.load(hospital)
    by_file = result.predict_proba(str(table))
    records = [dict(zip(HEADER, row, strict=True)) for row in rows]
    columns = {name: [row[name] for row in records] for name in ("age", "sex", "pressure")}
    typed = {**columns, "age": [float(cell) for cell in columns["age"]]}
    typed["pressure"] = [float(cell) if cell else None for cell in columns["pressure"]]
    assert (result.predict_proba(records) == by_file).all()
    assert (result.predict_proba(columns) == by_file).all()
    assert (result.predict_proba(typed) == by_file).all()
    codes = {"f": 0.0, "m": 1.0}
    raw = [[float(row["age"]), codes[row["sex"]], float(row["pressure"] or "nan")] for row in records]
    for given in (records, torch.tensor(raw, dtype=torch.float64)):
        assert np.array_equal(result.model(given).double().softmax(1).numpy(), by_file)
    truth = np.array([row[-1] for row in rows])
    assert (result.predict(records) == truth).mean() > 0.75


def test_predictions_are_written(hospital, tmp_path, capsys):
    rows = patients(30, seed=6)
    table = write_table(tmp_path / "new.csv", [row[:5] for row in rows], HEADER[:5])
    out = tmp_path / "said.csv"
    assert command("predict", hospital, "--data", table, "--out", out) == 0
    written = list(csv.DictReader(out.open()))
    assert [row["id"] for row in written] == [row[0] for row in rows]
    probabilities = fedwinnow.load(hospital).predict_proba(table)
    for row, (ill, well) in zip(written, probabilities.tolist(), strict=True):
        assert row["class"] == ("ill" if ill > well else "well")
        assert (row["p_ill"], row["p_well"], row["probability"]) == (
            f"{ill:.6f}",
            f"{well:.6f}",
            f"{max(ill, well):.6f}",
        )
    assert "30 samples" in capsys.readouterr().out
    # The row's number is the id where the new file has no such column.
    write_table(table, [row[2:5] for row in rows], HEADER[2:5])
    assert command("predict", hospital, "--data", table, "--out", out) == 0
    assert [row["id"] for row in csv.DictReader(out.open())] == [str(number) for number in range(1, 31)]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda rows: ([row[2:4] for row in rows], HEADER[2:4]), 3, "the column pressure is missing, which the model"),
        (
            lambda rows: ([[*row[:2], "old", *row[3:]] for row in rows], HEADER),
            3,
            "'age' has 'old', which is not a number",
        ),
        (lambda rows: ([], HEADER), 3, "no row below it"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(hospital, tmp_path, capsys, change, code, words):
    table = write_table(tmp_path / "new.csv", *change(patients(5)))
    assert command("predict", hospital, "--data", table, "--out", tmp_path / "o.csv") == code
    assert words in capsys.readouterr().err
    assert not (tmp_path / "o.csv").exists()


def test_an_unknown_category_is_told_and_is_none_of_the_known(hospital, tmp_path):
    rows = [[*row[:3], "x", *row[4:]] for row in patients(5, seed=7)]
    table = write_table(tmp_path / "new.csv", rows)
    with pytest.warns(
        FedwinnowWarning, match=r"column 'sex' has values that the training data did not have: 'x' \(5 r"
    ):
        said = fedwinnow.load(hospital).predict_proba(table)
    raw = [[float(row[2]), -1.0, float(row[4] or "nan")] for row in rows]
    model = fedwinnow.load(hospital).model
    assert np.array_equal(model(torch.tensor(raw, dtype=torch.float64)).double().softmax(1).numpy(), said)
    assert model.preprocess(torch.tensor(raw, dtype=torch.float64))[:, 1:3].eq(0).all()  # neither f nor m
    records = [dict(zip(HEADER, row, strict=True)) for row in rows]
    assert np.array_equal(model(records).double().softmax(1).numpy(), said)


def test_a_missing_value_where_training_had_none_is_told(hospital, tmp_path):
    rows = [[*row[:2], "", *row[3:]] for row in patients(5, seed=7)]
    table = write_table(tmp_path / "new.csv", rows)
    with pytest.warns(FedwinnowWarning, match="column 'age' has no value in 5 rows"):
        fedwinnow.load(hospital).predict(table)


def test_what_the_run_has_decided_cannot_be_given(hospital, tmp_path, capsys):
    table = write_table(tmp_path / "new.csv", patients(5))
    assert (
        command("predict", hospital, "--data", f"csv:path={table},max_categories=5", "--out", tmp_path / "o.csv") == 2
    )
    assert "max_categories= was given, but the run has decided it" in capsys.readouterr().err
    assert command("predict", hospital, "--data", f"csv:path={table},id=diagnosi", "--out", tmp_path / "o.csv") == 3
    assert "unknown column 'diagnosi'" in capsys.readouterr().err
    # Another column may be the id in the new file.
    assert command("predict", hospital, "--data", f"csv:path={table},id=hospital", "--out", tmp_path / "o.csv") == 3
    assert "the id 'h0' (column 'hospital') was given before" in capsys.readouterr().err


# --- images, texts, arrays -----------------------------------------------------------------------------------------


def test_image_files_in_a_folder_or_alone(tmp_path):
    from PIL import Image

    luck = np.random.default_rng(0)
    for name, shade in (("dark", 40), ("light", 200)):
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(12):
            pixels = luck.normal(shade, 20, (10, 10)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "train" / name / f"{number}.png")
    result = fedwinnow.run(data=str(tmp_path / "train"), model="mlp", out=tmp_path / "run", **SMALL | {"rounds": 5})
    (tmp_path / "new").mkdir()
    colours = np.full((20, 30, 3), 210, np.uint8)  # another size, and colour
    Image.fromarray(colours).save(tmp_path / "new" / "a.png")
    Image.fromarray(np.full((10, 10), 30, np.uint8)).save(tmp_path / "new" / "b.png")
    assert result.predict(tmp_path / "new").tolist() == ["light", "dark"]
    assert result.predict(tmp_path / "new" / "b.png").tolist() == ["dark"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no image in it"):
        result.predict(tmp_path / "empty")


def test_texts(tmp_path):
    rows = [
        [f"{'rain and wind' if number % 2 else 'goal and match'} number {number}", "weather" if number % 2 else "sport"]
        for number in range(60)
    ]
    table = write_table(tmp_path / "train.csv", rows, ["text", "label"])
    source = f"csv:path={table},label=label,text=text,length=8,vocabulary=500"
    result = fedwinnow.run(
        data=source, out=tmp_path / "run", optimizer="sgd:lr=0.5", **SMALL | {"rounds": 8, "epochs": 5}
    )
    table.unlink()
    new = write_table(tmp_path / "new.csv", [["wind and rain"], ["the match had a goal"]], ["text"])
    assert result.predict(new).tolist() == ["weather", "sport"]
    assert result.predict(["wind and rain", "the match had a goal"]).tolist() == ["weather", "sport"]
    scores = result.model(["wind and rain", "the match had a goal"])
    assert scores.argmax(1).tolist() == [1, 0]
    with pytest.raises(DataError, match="there is no file"):
        result.predict("wind and rain.csv")


def test_arrays_with_other_shapes_or_classes_are_refused(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32), np.arange(60) % 3
    np.savez(tmp_path / "train.npz", x=x, y=y)
    run = tmp_path / "run"
    result = fedwinnow.run(data=str(tmp_path / "train.npz"), out=run, **SMALL)
    np.savez(tmp_path / "new.npz", x=x[:7], id=np.arange(100, 107))
    assert result.predict(tmp_path / "new.npz").tolist() == result.predict(x[:7]).tolist()
    assert command("predict", run, "--data", tmp_path / "new.npz", "--out", tmp_path / "o.csv") == 0
    assert [row["id"] for row in csv.DictReader((tmp_path / "o.csv").open())] == [str(one) for one in range(100, 107)]
    with pytest.raises(DataError, match=r"a sample has the shape \(4,\); a sample of this model is a row of 5 numbers"):
        result.predict(x[:, :4])
    np.savez(tmp_path / "new.npz", x=x[:7], y=y[:7], class_names=["a", "b", "c"])
    with pytest.raises(DataError, match="has the classes a, b, c; those of the model are 0, 1, 2"):
        result.predict(tmp_path / "new.npz")
    with pytest.raises(DataError, match="a sample is an image of 8 x 8 pixels"):
        result.predict("digits")
    with pytest.raises(DataError, match=r"allowed: \(n, 5\)"):
        result.model(torch.zeros(3, 4))


# --- runs that cannot be used ---------------------------------------------------------------------------------------


def test_an_unfinished_run_has_no_model(tmp_path, capsys):
    shutil.copytree(stages.run(tmp_path / "whole").folder, tmp_path / "broken")
    summary = json.loads((tmp_path / "broken" / "summary.json").read_text())
    (tmp_path / "broken" / "summary.json").write_text(json.dumps(summary | {"status": "interrupted", "rounds": 2}))
    assert command("predict", tmp_path / "broken", "--data", "digits") == 3
    assert "this run was interrupted after round 2. Continue it with --resume" in capsys.readouterr().err
    (tmp_path / "broken" / "summary.json").unlink()
    assert command("predict", tmp_path / "broken", "--data", "digits") == 3
    assert command("predict", tmp_path, "--data", "digits") == 3
    assert command("predict", "--data", "digits") == 2
    assert command("predict", tmp_path / "whole") == 2
    assert command("predict", tmp_path / "whole", "--data", "digits", "--out", "said.txt") == 2


@pytest.mark.parametrize("name", ["state.safetensors", "input.json"])
def test_a_damaged_file_is_named(hospital, tmp_path, capsys, name):
    shutil.copytree(hospital, tmp_path / "run")
    path = tmp_path / "run" / name
    whole = path.read_bytes()
    table = write_table(tmp_path / "new.csv", patients(5))
    for content in (whole[: len(whole) // 2], b"", whole.replace(b"0", b"7", 3)[:-1] + b"}"):
        path.write_bytes(content)
        assert command("predict", tmp_path / "run", "--data", table, "--out", tmp_path / "o.csv") == 3
        assert name in capsys.readouterr().err


def test_an_older_run_needs_its_data(tmp_path):
    result = fedwinnow.run(data="digits:train=200", out=tmp_path / "run", **SMALL)
    said = result.predict("digits:train=200")
    (tmp_path / "run" / "input.json").unlink()
    assert (fedwinnow.load(tmp_path / "run").predict("digits:train=200") == said).all()
    result = stages.run(tmp_path / "memory")
    (tmp_path / "memory" / "input.json").unlink()
    with pytest.raises(DataError, match=r"a version that did not write input.json, so its training data is needed"):
        _ = fedwinnow.load(tmp_path / "memory").model


def test_the_form_is_read_as_it_was_written(hospital):
    form = fedwinnow.load(hospital).trained.form
    assert InputForm.from_dict(form.to_dict(), "here") == form
    assert form.column_names == ("age", "sex", "pressure")
    for change in (
        {"kind": "sounds"},
        {"sample_shape": [4]},
        {"class_names": ["one"]},
        {"mean": [1.0]},
        {"version": 2},
    ):
        with pytest.raises(DataError, match="here"):
            InputForm.from_dict(form.to_dict() | change, "here")


def test_the_verdicts(tmp_path):
    result = stages.run(tmp_path, noise="constant:rate=0.3")
    verdicts, scene = result.verdicts, result.scene
    assert len(verdicts) == len(scene.given)
    names = np.array(scene.data.class_names)
    assert (verdicts.given == names[scene.given]).all()
    assert set(verdicts.site) == set(scene.site_names)
    stored = np.load(tmp_path / "verdicts.npz")
    assert np.array_equal(verdicts.p_wrong, stored["p_wrong"])
    assert (verdicts.suggested == names[stored["suggested"]]).all()


# --- --start --------------------------------------------------------------------------------------------------------


def test_a_run_starts_with_a_trained_model(tmp_path):
    first = fedwinnow.run(data="digits:train=200", model="mlp", out=tmp_path / "first", **SMALL | {"rounds": 3})
    again = fedwinnow.run(
        data="digits:train=150", model="mlp", start=tmp_path / "first", out=tmp_path / "again", **SMALL | {"rounds": 0}
    )
    for one, other in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    # A run with rounds differs from one that started anew, and repeats itself.
    ends = [
        fedwinnow.run(data="digits:train=150", model="mlp", out=tmp_path / str(n), **SMALL, **more).model
        for n, more in enumerate([{"start": tmp_path / "first"}, {"start": tmp_path / "first"}, {}])
    ]
    same = [torch.equal(ends[0].models[0][-1].weight, end.models[0][-1].weight) for end in ends]
    assert same == [True, True, False]


def test_other_classes_get_a_new_last_layer(tmp_path):
    first = fedwinnow.run(data="digits:train=200", model="mlp", out=tmp_path / "first", **SMALL)
    train = first.scene.dataset.train
    x, y = train.features.take(np.arange(len(train))), np.array(["even", "odd"])[train.labels % 2]
    np.savez(tmp_path / "parity.npz", x=x, y=y)
    with pytest.warns(FedwinnowWarning, match=r"so the last layer \(.*bias, .*weight\) begins anew"):
        again = fedwinnow.run(
            data=str(tmp_path / "parity.npz"), model="mlp", start=tmp_path / "first", out=tmp_path / "again",
            **SMALL | {"rounds": 0},
        )  # fmt: skip
    one, other = (dict(result.model.models[0].named_parameters()) for result in (first, again))
    equal = {name: one[name].shape == other[name].shape and torch.equal(one[name], other[name]) for name in one}
    assert sum(not same for same in equal.values()) == 2
    assert len(list(again.class_names)) == 2


def test_as_many_other_classes_get_a_new_last_layer(tmp_path):
    """Ten letters are not the ten digits, although the last layer has the same shape."""
    first = fedwinnow.run(data="digits:train=200", model="mlp", out=tmp_path / "first", **SMALL)
    train = first.scene.dataset.train
    names = np.array(list("abcdefghij"))
    np.savez(tmp_path / "letters.npz", x=train.features.take(np.arange(len(train))), y=names[train.labels])
    settings = {"data": str(tmp_path / "letters.npz"), "model": "mlp", **SMALL, "rounds": 0}
    with pytest.warns(FedwinnowWarning, match="begins anew"):
        again = fedwinnow.run(start=tmp_path / "first", out=tmp_path / "again", **settings)
    anew = fedwinnow.run(out=tmp_path / "anew", **settings)
    heads = [list(result.model.parameters())[-2] for result in (first, again, anew)]
    assert [torch.equal(heads[1], other) for other in heads] == [False, True, True]


def test_a_start_that_does_not_fit_is_refused(tmp_path, hospital, capsys):
    words = ["run", "--rounds", "1", "--clients", "3", "--out", tmp_path / "run"]
    assert command(*words, "--data", "digits:train=150", "--start", hospital) == 3
    assert "a sample of that model is a row of a table" in capsys.readouterr().err
    fedwinnow.run(data="digits:train=200", model="mlp", out=tmp_path / "first", **SMALL)
    assert command(*words, "--data", "digits:train=150", "--model", "lenet", "--start", tmp_path / "first") == 3
    assert "its model does not fit" in capsys.readouterr().err
    rhfl = ["--method", "rhfl", "--public", "0.2", "--model", "mlp"]
    assert command(*words, "--data", "digits:train=150", *rhfl, "--start", tmp_path / "first") == 2
    assert "every site has its own model" in capsys.readouterr().err
    assert command(*words, "--data", "digits:train=150", "--start", tmp_path / "nothing") == 3
    table = write_table(
        tmp_path / "other.csv", [[*row[:3], *row[4:]] for row in patients(60)], [*HEADER[:3], *HEADER[4:]]
    )
    source = f"csv:path={table},label=diagnosis,site=hospital,id=patient"
    assert command(*words, "--data", source, "--partition", "column", "--start", hospital) == 3
    assert "that model was trained on other columns (sex)" in capsys.readouterr().err


def test_a_changed_start_is_noticed(tmp_path):
    for seed, name in enumerate(("first", "other")):
        fedwinnow.run(data="digits:train=200", model="mlp", seed=seed, out=tmp_path / name, **SMALL)
    settings = {
        "data": "digits:train=150",
        "model": "mlp",
        "start": tmp_path / "first",
        "out": tmp_path / "run",
        **SMALL,
    }
    fedwinnow.run(**settings)
    shutil.copy(tmp_path / "other" / "state.safetensors", tmp_path / "first" / "state.safetensors")
    with pytest.raises(StaleError, match="the values of the model in first have changed"):
        fedwinnow.run(**settings, resume=True)


def test_answers_that_depend_on_the_batch_are_told(tmp_path):
    def normed(classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.BatchNorm2d(1), torch.nn.Flatten(), torch.nn.Linear(64, classes))

    settings = {"data": "digits:train=200", "model": normed, "batch_norm": "batch_statistics", **SMALL}
    result = fedwinnow.run(out=tmp_path, **settings)
    with pytest.warns(FedwinnowWarning, match="depends on the samples that are asked with it"):
        _ = result.trained
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test = result.scene.dataset.test
        right = result.predict(test.features.take(np.arange(len(test)))) == np.array(result.class_names)[test.labels]
    assert right.mean() == result.summary["last"]["accuracy"]
