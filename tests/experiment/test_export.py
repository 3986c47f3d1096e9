"""`fedwinnow export`: the file answers like the run's model, the card keeps its promises, nothing private leaks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fedwinnow
from fedwinnow.cli import main
from fedwinnow.data.column import Column
from fedwinnow.data.input_form import InputForm
from fedwinnow.errors import DataError, RunError, UsageError
from fedwinnow.experiment.trained.exporting import export_folder, onnx_file, safetensors_file, torch_file
from fedwinnow.experiment.trained.exporting.bare_names import bare, refuse_folders
from fedwinnow.experiment.trained.exporting.front_matter import yaml_lines
from fedwinnow.experiment.trained.exporting.probe import Probe, make_probe, questions
from fedwinnow.experiment.trained.trained_model import load_model

SMALL = {"rounds": 2, "participation": 1.0, "epochs": 1}
SITES = ("Sundsvall-Nord", "Karlskrona-Ost", "Trelleborg-Syd")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of a run by name; each is played once, when a test first asks for it."""
    place = tmp_path_factory.mktemp("very-private-folder")
    makers = {"table": table_run, "texts": text_run, "rows": rows_run, "two": two_models_run, "batches": batches_run}

    def get(name):
        if not (place / name).exists():
            makers[name](place)
        return place / name

    return get


@pytest.fixture(scope="module")
def exports(runs):
    """The export of a run by name and format, for tests that only read it."""

    def get(name, format):
        out = runs(name).parent / f"{name}-{format}"
        if format == "onnx":
            pytest.importorskip("onnxscript")
        if not out.exists():
            fedwinnow.load(runs(name)).export(out, format=format)
        return out

    return get


def table_run(place: Path) -> None:
    """Three hospitals; ages and scans are sometimes missing, and a code has a comma in it."""
    lines = ["pid,hospital,age,scan,label"]
    for row in range(120):
        sick = row % 2
        age = "" if row % 11 == 0 else f"{50 + 10 * sick + row % 7}.5"
        scan = "" if row % 13 == 0 else ('"grey, soft"' if sick else "white")
        lines.append(f"patient-{row:04d},{SITES[row % 3]},{age},{scan},{'sick' if sick else 'well'}")
    (place / "hospitals.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = f'csv:path="{place}/hospitals.csv",label=label,id=pid,site=hospital'
    fedwinnow.run(data=data, partition="column", test=0.2, out=place / "table", **SMALL)


def text_run(place: Path) -> None:
    words = [["fine", "great", "sun"], ["poor", "awful", "rain"]]
    rows = [f"{' '.join(words[row % 2][: 1 + row % 3])} the day,{'good' if row % 2 else 'bad'}" for row in range(60)]
    (place / "texts.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    data = f'csv:path="{place}/texts.csv",text=text,label=label,length=12,vocabulary=500'
    fedwinnow.run(data=data, clients=2, test=0.2, out=place / "texts", **SMALL)


def rows_run(place: Path) -> None:
    x = np.arange(360, dtype=np.float32).reshape(60, 6) % 7
    np.savez(place / "rows.npz", x=x, y=np.arange(60) % 3)
    fedwinnow.run(data=f'npz:path="{place}/rows.npz"', clients=2, test=0.2, out=place / "rows", **SMALL)


def two_models_run(place: Path) -> None:
    fedwinnow.run(
        data="digits",
        clients=3,
        model="lenet:norm=batch",
        method="coteaching",
        out=place / "two",
        **SMALL | {"rounds": 1},
    )


def batches_run(place: Path) -> None:
    fedwinnow.run(
        data="digits",
        clients=2,
        model="lenet:norm=batch",
        batch_norm="batch_statistics",
        out=place / "batches",
        **SMALL | {"rounds": 1},
    )


def command(capsys, *words) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code, capsys.readouterr().err


# --- the same answers ------------------------------------------------------------------------------------------------

ROWS = [
    {"age": 61.5, "scan": "grey, soft"},
    {"age": None, "scan": "white"},
    {"age": 44.0, "scan": None},
    {"age": -3.25, "scan": "purple"},  # a category that training did not have
]
RAW = np.array([[61.5, 0.0], [np.nan, 1.0], [44.0, np.nan], [-3.25, -1.0]])
TEXTS = ["The sun is GREAT", "rain, rain!", "", "poor day " * 20]


def expected(folder: Path, x) -> torch.Tensor:
    with torch.inference_mode():
        return fedwinnow.load(folder).model(x)


def in_torch(folder: Path, x: np.ndarray) -> np.ndarray:
    return torch.export.load(folder / "model.pt2").module()(torch.from_numpy(x)).detach().numpy()


def in_onnx(folder: Path, x: np.ndarray) -> np.ndarray:
    onnxruntime = pytest.importorskip("onnxruntime")
    return onnxruntime.InferenceSession(folder / "model.onnx").run(None, {"x": x})[0]


def tokens_of(texts: list[str], length: int, vocabulary: int) -> np.ndarray:
    """The lines of the model card."""
    import re
    import zlib

    found = []
    for text in texts:
        words = re.findall(r"\w+", text.lower())[:length] or [""]
        ids = [1 + zlib.crc32(word.encode()) % (vocabulary - 1) for word in words]
        found.append(ids + [0] * (length - len(ids)))
    return np.array(found, dtype=np.int64)


@pytest.mark.parametrize(("format", "ask"), [("torch", in_torch), ("onnx", in_onnx)])
@pytest.mark.filterwarnings("ignore:.*the training data did not have")
def test_a_table_is_standardised_inside_the_file(runs, exports, format, ask):
    model = exports("table", format)
    wanted = np.log(fedwinnow.load(runs("table")).predict_proba(ROWS))
    found = torch.from_numpy(ask(model, RAW)).double().log_softmax(1).numpy()
    assert np.allclose(found, wanted, atol=1e-5)
    assert np.allclose(ask(model, RAW[1:2]), ask(model, RAW)[1:2], atol=1e-5)  # alone
    assert not np.allclose(found[0], found[1], atol=1e-3)  # the answers do depend on the row


@pytest.mark.parametrize(
    ("format", "ask"), [("torch", in_torch), pytest.param("onnx", in_onnx, marks=pytest.mark.slow)]
)
def test_two_models_on_images_are_joined_inside_the_file(runs, exports, format, ask):
    images = (np.arange(7 * 64).reshape(7, 8, 8, 1) * 37 % 256).astype(np.uint8)
    trained = load_model(runs("two"))
    assert len(trained.models) == 2
    assert np.allclose(ask(exports("two", format), images), expected(runs("two"), images), atol=1e-4)


@pytest.mark.slow
def test_texts_in_onnx_follow_the_tokenizer_of_the_card(runs, exports):
    model = exports("texts", "onnx")
    said = json.loads((model / "preprocessing.json").read_text())["text"]
    assert (said["length"], said["vocabulary"], said["padding"]) == (12, 500, 0)
    assert said["tokenizer"]["id"] == "1 + crc32(word in UTF-8) % 499"
    ids = tokens_of(TEXTS, 12, 500)
    assert np.allclose(in_onnx(model, ids), expected(runs("texts"), TEXTS), atol=1e-5)


@pytest.mark.slow
def test_the_torch_file_loads_where_there_is_no_fedwinnow(runs, exports, tmp_path):
    program = (
        "import sys; sys.modules['fedwinnow'] = None\n"
        "import torch\n"
        f"model = torch.export.load({os.fspath(exports('rows', 'torch') / 'model.pt2')!r}).module()\n"
        "print(model(torch.arange(12.0).reshape(2, 6)).flatten().tolist())"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    assert np.allclose(json.loads(said.stdout), expected(runs("rows"), x).flatten(), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "x"),
    [
        ("table", ROWS),
        ("texts", TEXTS),
        ("rows", np.arange(12, dtype=np.float32).reshape(2, 6)),
        ("two", (np.arange(3 * 64).reshape(3, 8, 8, 1) % 256).astype(np.uint8)),
        ("batches", (np.arange(3 * 64).reshape(3, 8, 8, 1) * 7 % 256).astype(np.uint8)),
    ],
)
@pytest.mark.filterwarnings("ignore:.*(the training data did not have|batch_statistics)")
def test_an_export_of_weights_is_read_like_a_run(runs, exports, name, x):
    result, again = fedwinnow.load(runs(name)), fedwinnow.load(exports(name, "safetensors"))
    assert "an exported model" in repr(again)
    assert again.class_names == result.class_names
    assert np.array_equal(again.predict_proba(x), result.predict_proba(x))


def test_predict_takes_an_export_of_weights_and_no_other(runs, exports, tmp_path, capsys):
    weights, data = exports("table", "safetensors"), runs("table").parent / "hospitals.csv"
    assert command(capsys, "predict", runs("table"), "--data", data, "--out", tmp_path / "a.csv")[0] == 0
    assert command(capsys, "predict", weights, "--data", data, "--out", tmp_path / "b.csv")[0] == 0
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    code, said = command(capsys, "predict", exports("table", "torch"), "--data", data)
    assert code == 2
    assert "an export in the format torch, which fedwinnow does not read" in said


def test_a_model_of_the_users_own_file_is_exported_and_loaded_with_that_file(runs, tmp_path):
    net = tmp_path / "net.py"
    net.write_text("from torch import nn\ndef build(classes):\n    return nn.Sequential(nn.Linear(6, classes))\n")
    data = f'npz:path="{runs("rows").parent}/rows.npz"'
    result = fedwinnow.run(data=data, clients=2, test=0.2, model=f"{net}:build", out=tmp_path / "run", **SMALL)
    result.export(tmp_path / "model", format="safetensors")
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    again = fedwinnow.load(tmp_path / "model", model=f"{net}:build")
    assert np.array_equal(again.predict_proba(x), result.predict_proba(x))
    with pytest.raises(UsageError, match=r"its model was the user's own \('net\.py:build'\)"):
        fedwinnow.load(tmp_path / "model").predict_proba(x)


# --- a wrong file is noticed -----------------------------------------------------------------------------------------


def test_a_file_with_other_weights_is_refused_and_nothing_is_left(runs, tmp_path, monkeypatch):
    def slightly_wrong(trained, path):
        honest(trained, path)
        tensors = load_file(path)
        name = next(iter(tensors))
        tensors[name] = tensors[name] * 1.05
        save_file(tensors, path)

    honest = safetensors_file.write
    monkeypatch.setattr(safetensors_file, "write", slightly_wrong)
    with pytest.raises(
        RunError, match=r"does not answer like the model of the run: its logits differ by up to .*Nothing"
    ):
        fedwinnow.load(runs("rows")).export(tmp_path / "model", format="safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_weight_in_the_torch_file_is_refused(runs, tmp_path, monkeypatch):
    def spoiled(trained, example, file):
        program = honest(trained, example, file)
        with torch.no_grad():
            next(iter(program.state_dict.values())).add_(1e-7)
        return program

    honest = torch_file.exported_program
    monkeypatch.setattr(torch_file, "exported_program", spoiled)
    with pytest.raises(RunError, match="was not written right: its 'models"):
        fedwinnow.load(runs("rows")).export(tmp_path / "model", format="torch")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:.*the training data did not have")
def test_a_mistake_in_the_preprocessing_is_refused(runs, tmp_path, monkeypatch):
    """The run's model gets its table another way than the file, so a wrong mean shows."""
    honest = torch_file.standalone

    def shifted(trained):
        module = honest(trained)
        module.preprocess.centre += 1.0
        return module

    monkeypatch.setattr(torch_file, "standalone", shifted)
    with pytest.raises(RunError, match="does not answer like the model of the run"):
        fedwinnow.load(runs("table")).export(tmp_path / "model", format="torch")


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, 0.01])
def test_a_probe_refuses_numbers_that_differ_or_are_not_finite(wrong):
    right = torch.zeros(4, 3)
    probe = Probe(torch.zeros(4, 2), right, torch.zeros(1, 2), right[:1])
    assert probe.bound == 1e-4
    assert probe.check(lambda x: torch.full((len(x), 3), 1e-5), "file") == pytest.approx(1e-5)

    def ask(x):
        found = torch.zeros(len(x), 3)
        found[-1, -1] = wrong
        return found

    with pytest.raises(RunError, match=r"allowed: 0\.0001"):
        probe.check(ask, "file")
    with pytest.raises(RunError, match="differ by up to inf"):
        probe.check(lambda x: torch.zeros(len(x), 4), "file")
    # only a batch of one sample is answered wrongly
    with pytest.raises(RunError, match="differ by up to 1,"):
        probe.check(lambda x: torch.full((len(x), 3), float(len(x) == 1)), "file")


def test_the_questions_have_missing_and_unknown_values_and_every_category():
    columns = (Column("age", "numeric", True, 60.0, 5.0), Column("scan", "categorical", False, categories=("a", "b")))
    batch, features = questions(InputForm("rows", (4,), ("no", "yes"), columns=columns))
    codes = batch[:, 1]
    assert set(codes[~codes.isnan()].tolist()) == {-1.0, 0.0, 1.0}
    assert batch.isnan().any(0).tolist() == [True, True]
    stored = torch.from_numpy(features.take(np.arange(len(features))))
    assert torch.equal(stored[:, 1] == 1, batch[:, 0].isnan())
    unknown = (codes == -1) | codes.isnan()
    assert torch.equal(stored[:, 2:].sum(1) == 0, unknown)


def test_the_questions_to_a_text_model_have_every_token(runs):
    ids = make_probe(load_model(runs("texts"))).batch
    assert set(ids.flatten().tolist()) == set(range(500))
    assert (ids[-1] == 0).all()


def test_a_damaged_export_is_refused(runs, tmp_path):
    fedwinnow.load(runs("rows")).export(tmp_path / "model", format="safetensors")
    weights = tmp_path / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(DataError, match="it has changed since the export"):
        fedwinnow.load(tmp_path / "model").model  # noqa: B018
    fedwinnow.load(runs("rows")).export(tmp_path / "model", format="safetensors")  # replaces it
    said = json.loads((tmp_path / "model" / "preprocessing.json").read_text())
    said["output"]["classes"].reverse()
    (tmp_path / "model" / "preprocessing.json").write_text(json.dumps(said))
    with pytest.raises(DataError, match=r"it does not fit config\.json"):
        fedwinnow.load(tmp_path / "model").model  # noqa: B018


# --- nothing private -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["torch", "onnx", "safetensors"])
def test_no_id_no_site_and_no_folder_is_in_an_export(exports, format):
    out = exports("table", format)
    assert {path.name for path in out.iterdir()} == {
        "README.md",
        "config.json",
        "preprocessing.json",
        export_folder.FILES[format],
    }
    private = [*SITES, "patient-", "very-private-folder", os.fspath(Path(fedwinnow.__file__).parent), "site-packages"]
    for path in out.iterdir():
        content = path.read_bytes()
        assert not [word for word in private if word.encode() in content], path.name


def test_a_folder_of_this_machine_in_a_file_is_refused(tmp_path):
    (tmp_path / "README.md").write_text("trained on /srv/secret/patients.csv", encoding="utf-8")
    with pytest.raises(RunError, match=r"README\.md would have the path of a folder of this machine in it"):
        refuse_folders([tmp_path / "README.md"], {Path("/srv/secret")})
    refuse_folders([tmp_path / "README.md"], {Path("/srv/other"), Path("/")})


@pytest.mark.parametrize(
    ("word", "left"),
    [
        ("digits", "digits"),
        ("/home/me/my data/x.csv", "x.csv"),
        ('csv:path="/home/a, b/x.csv",label=y', "csv:path=x.csv,label=y"),
        ("csv:path=C:\\Users\\me\\x.csv,label=y", "csv:path=x.csv,label=y"),
        ("--out=runs/here", "--out=here"),
        ("/home/me/net.py:build", "net.py:build"),
    ],
)
def test_only_the_last_name_of_a_path_stays(word, left):
    assert bare(word) == left


# --- the card --------------------------------------------------------------------------------------------------------


def test_the_card_has_what_is_promised(runs, exports):
    yaml = pytest.importorskip("yaml")
    result = fedwinnow.load(runs("table"))
    text = (exports("table", "safetensors") / "README.md").read_text(encoding="utf-8")
    _, front, body = text.split("---\n", 2)
    said = yaml.safe_load(front)
    assert said["library_name"] == "fedwinnow"
    assert said["pipeline_tag"] == "tabular-classification"
    metrics = said["model-index"][0]["results"][0]["metrics"]
    assert metrics[0] == {
        "type": "accuracy",
        "name": "accuracy, last round",
        "value": round(result.summary["last"]["accuracy"], 6),
    }
    assert "license" not in said
    for promise in (
        "The owner of the model has to choose one",
        "`hospitals`: 96 training samples at 3 sites",
        result.summary["scene"]["hash"],
        "`sick`, `well`",
        "McMahan et al.",
        "The verdicts are not calibrated",
        "How many labels are really wrong is not known",
        "Measured on 24 test samples",
        "(2 rounds)",
        "One seed",
        "| `weights` | the server |",
        "without a person who looks at the case",
        "fedwinnow.load",
        "made-up samples, with missing values and unknown categories",
        "`grey, soft` = 0, `white` = 1",
        f"fedwinnow {fedwinnow.__version__}",
    ):
        assert promise in body, promise
    calls = result.verdicts.p_wrong > 0.5
    shares = [calls[result.verdicts.site == site].mean() for site in SITES]
    told = f"called {100 * calls.mean():.1f} % of the training labels wrong, between {100 * min(shares):.1f} % and "
    assert told + f"{100 * max(shares):.1f} % at a site" in body


def test_the_card_says_that_answers_depend_on_the_batch(runs, tmp_path):
    with pytest.warns(UserWarning, match="batch_statistics"):
        fedwinnow.load(runs("batches")).export(tmp_path / "model", format="safetensors")
    assert "An answer depends on the samples that are asked with it" in (tmp_path / "model" / "README.md").read_text()


def test_runs_of_a_sweep_that_differ_in_the_seed_give_a_deviation(runs, tmp_path):
    for seed, accuracy in ((0, 0.5), (1, 0.7), (2, 0.9)):
        folder = tmp_path / "sweep" / f"rows-{seed}"
        shutil.copytree(runs("rows"), folder)
        config = (folder / "config.toml").read_text().replace("\nseed = 0\n", f"\nseed = {seed}\n")
        (folder / "config.toml").write_text(config.replace("epochs = 1\n", "epochs = 2\n") if seed == 2 else config)
        summary = json.loads((folder / "summary.json").read_text())
        summary |= {"seed": seed, "last10": {"accuracy": accuracy}}
        (folder / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "sweep" / "sweep.json").write_text("{}")
    fedwinnow.load(tmp_path / "sweep" / "rows-0").export(tmp_path / "model", format="safetensors")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    # 0.5 and 0.7: mean 0.6, deviation 0.2 / sqrt(2); the third run has other settings
    assert "Over the 2 seeds of its sweep" in card
    assert "is 60.0 % with a deviation of 14.1 %" in card


def test_yaml_of_lists_in_tables():
    lines = yaml_lines({"a": "x: y", "b": [{"c": 1, "d": [None, True]}, "e"]})
    assert lines == ['a: "x: y"', "b:", "  - c: 1", "    d:", "      - null", "      - true", '  - "e"']


# --- wrong use -------------------------------------------------------------------------------------------------------


def test_an_export_replaces_an_earlier_one_and_nothing_else(runs, tmp_path, capsys):
    out = tmp_path / "model"
    assert command(capsys, "export", runs("rows"), "--format", "safetensors", "--out", out)[0] == 0
    assert command(capsys, "export", runs("rows"), "--out", out)[0] == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "config.json",
        "model.pt2",
        "preprocessing.json",
    ]
    (out / "thesis.txt").write_text("years of work")
    code, said = command(capsys, "export", runs("rows"), "--out", out)
    assert code == 2
    assert "holds other things (thesis.txt)" in said
    assert (out / "model.pt2").exists()
    code, said = command(capsys, "export", runs("rows"), "--out", runs("rows"))
    assert code == 2
    assert "holds other things" in said
    code, said = command(capsys, "export", runs("rows"), "--out", out / "thesis.txt")
    assert code == 2
    assert "it is a file" in said


def test_wrong_runs_are_refused_in_a_sentence(runs, tmp_path, capsys):
    out = tmp_path / "model"
    broken = tmp_path / "run"
    shutil.copytree(runs("rows"), broken)
    state = bytearray((broken / "state.safetensors").read_bytes())
    state[-3] ^= 1
    (broken / "state.safetensors").write_bytes(state)
    code, said = command(capsys, "export", broken, "--out", out)
    assert code == 3
    assert "damaged (its checksum does not match its content)" in said
    summary = json.loads((broken / "summary.json").read_text())
    (broken / "summary.json").write_text(json.dumps(summary | {"status": "interrupted"}))
    code, said = command(capsys, "export", broken, "--out", out)
    assert code == 3
    assert "this run was interrupted after round 2" in said
    code, said = command(capsys, "export", tmp_path, "--out", out)
    assert code == 3
    assert "not a run folder" in said
    assert command(capsys, "export")[0] == 2
    code, said = command(capsys, "export", runs("rows"), "--site", "client-0", "--out", out)
    assert code == 2
    assert "has one model for all sites" in said
    assert not out.exists()
    with pytest.raises(UsageError, match="unknown format 'onx'"):
        fedwinnow.load(runs("rows")).export(out, format="onx")  # type: ignore[arg-type]


def test_a_missing_extra_is_named(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"format=onnx needs the extra 'onnx'"):
        fedwinnow.load(runs("rows")).export(tmp_path / "model", format="onnx")


def test_a_killed_export_leaves_the_old_one_and_the_next_cleans_up(runs, tmp_path, monkeypatch):
    out = tmp_path / "model"
    result = fedwinnow.load(runs("rows"))
    result.export(out, format="safetensors")
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(export_folder, "card", killed)
        patch.setattr(export_folder.shutil, "rmtree", lambda *_, **__: None)  # a killed process cleans nothing
        with pytest.raises(KeyboardInterrupt):
            result.export(out, format="torch")
    assert len(list(tmp_path.iterdir())) == 2  # the old export, and a hidden half of the new one
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    # killed between the two renames: the old export has its hidden name, and comes back
    out.rename(tmp_path / ".model.0123456789abcdef")
    export_folder.clear_left_overs(out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    result.export(out, format="torch")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (out / "model.pt2").exists()
