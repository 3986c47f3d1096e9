"""A user's own module: from a file, a function or a class."""

from pathlib import Path

import pytest
import torch
from torch import nn

import fedwinnow
from fedwinnow.errors import UsageError
from fedwinnow.models.features import logits_and_features, through_head
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape

IMAGES = Shape("images", (8, 6, 3), 5)
HEADER = "from __future__ import annotations\nimport torch\nfrom torch import nn\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "my_model.py"
    path.write_text(HEADER + text)
    return path


def test_a_function_gets_the_arguments_it_names(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "def build(classes, sample_shape, width=7):\n"
        "    height, wide, channels = sample_shape\n"
        "    body = nn.Linear(height * wide * channels, width)\n"
        "    return nn.Sequential(nn.Flatten(), body, nn.Linear(width, classes))\n",
    )
    module = make_model(f"{path}:build", IMAGES, seed=1)
    logits, features = logits_and_features(module, torch.zeros(2, 3, 8, 6))
    assert logits.shape == (2, 5)
    assert features.shape == (2, 7)


def test_the_function_is_build_when_not_named_and_the_seed_counts(tmp_path: Path) -> None:
    path = write(tmp_path, "def build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(144, 5))\n")
    first, again, other = (
        make_model(spec, IMAGES, seed) for spec, seed in ((str(path), 1), (f"{path}:", 1), (str(path), 2))
    )
    assert torch.equal(first[1].weight, again[1].weight)
    assert not torch.equal(first[1].weight, other[1].weight)
    assert torch.equal(first[1].weight, make_model({"kind": f"{path}:build"}, IMAGES, 1)[1].weight)


def test_a_class_in_a_file_with_a_dataclass(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Settings:\n"
        "    width: int = 3\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, kind, vocabulary, classes, settings=Settings()):\n"
        "        super().__init__()\n"
        "        assert (kind, vocabulary) == ('tokens', 9)\n"
        "        self.words = nn.EmbeddingBag(vocabulary, settings.width)\n"
        "        self.fc = nn.Linear(settings.width, classes)\n"
        "    def forward(self, x):\n"
        "        return self.fc(self.words(x))\n",
    )
    shape = Shape("tokens", (4,), 2, vocabulary=9)
    assert make_model(f"{path}:Net", shape)(shape.example()).shape == (2, 2)


def test_a_function_from_python() -> None:
    def build(classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))

    first, again = make_model(build, IMAGES, seed=4), make_model(build, IMAGES, seed=4)
    assert first[1].weight.shape == (5, 144)
    assert torch.equal(first[1].weight, again[1].weight)


def test_trying_out_leaves_the_running_averages_and_the_mode() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.BatchNorm2d(3, momentum=None), nn.Flatten(), nn.Linear(144, 5))

    module = make_model(build, IMAGES)
    assert module[0].num_batches_tracked == 0
    assert all(layer.training for layer in module.modules())


GOOD = "nn.Sequential(nn.Flatten(), nn.Linear(144, 5))"


@pytest.mark.parametrize(
    ("text", "function", "words"),
    [
        (f"def net(): return {GOOD}", "build", r"no function 'build' in the file; it has: net\. Give the model as"),
        ("x = 1", "x", r"no function 'x' in the file; it has: none"),
        ("def build(:", "build", r"cannot be run: SyntaxError: .*\(line 4\)"),
        ("import no_such_module_here", "build", r"ModuleNotFoundError.*\(line 4\)"),
        (f"def build(depth): return {GOOD}", "build", "asks for an argument 'depth'; allowed: kind, sample_shape"),
        ("def build():\n    return nn.Linear(3, -1)", "build", r"cannot be made: RuntimeError.*\(line 5\)"),
        ("def build(): return 3", "build", r"gave a int; allowed: a torch\.nn\.Module"),
        ("def build(): return nn.Linear(7, 5)", "build", r"fails on a batch of the shape \(2, 3, 8, 6\)"),
        ("def build(): return nn.Sequential(nn.Flatten(), nn.Linear(144, 4))", "build", r"gives \(2, 4\).*\(2, 5\)"),
        ("def build(): return nn.LSTM(6, 5)", "build", "fails on a batch|gives tuple"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, function: str, words: str) -> None:
    path = write(tmp_path, text + "\n")
    with pytest.raises(UsageError, match=words):
        make_model(f"{path}:{function}", IMAGES)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        make_model(f"{tmp_path}/other.py:build", IMAGES)


def test_a_module_that_does_not_fit_the_data() -> None:
    with pytest.raises(UsageError, match=r"'Linear' fails on a batch of the shape \(2, 3, 8, 6\)"):
        make_model(nn.Linear(9, 5), IMAGES)


OBJECT = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Output:
    logits: torch.Tensor
    loss: None = None

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.head = nn.Linear(144, 4), nn.Linear(4, classes)

    def forward(self, x):
        logits = self.head(self.body(x.flatten(1)).relu())
        return {output}

def build(classes):
    return Net(classes)
"""


@pytest.mark.parametrize("output", ["Output(logits)", "{'logits': logits, 'loss': None}"])
def test_an_output_that_has_logits(tmp_path: Path, output: str) -> None:
    path = write(tmp_path, OBJECT.replace("{output}", output))
    module = make_model(f"{path}:build", IMAGES)
    x = torch.randn(3, 3, 8, 6)
    scores = module(x)
    assert scores.shape == (3, 5)
    assert sorted(module.state_dict()) == ["body.bias", "body.weight", "head.bias", "head.weight"]
    logits, head, features = through_head(module, x)
    assert torch.equal(logits, scores)
    assert head is module.head
    assert torch.equal(features, module.body(x.flatten(1)).relu())
    again = make_model(module, IMAGES)  # a module that was made so may be given as a model itself
    assert torch.equal(again(x), scores)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("(logits, None)", "gives tuple for a batch"),
        ("{'scores': logits}", r"gives dict .*or an object or dictionary that has this as `logits`"),
        ("Output(None)", "gives Output"),
        ("Output(logits[:, :2])", r"gives \(2, 2\)"),
        ("Output('much')", "gives str"),
    ],
)
def test_an_output_without_logits(tmp_path: Path, output: str, words: str) -> None:
    path = write(tmp_path, OBJECT.replace("{output}", output))
    with pytest.raises(UsageError, match=words):
        make_model(f"{path}:build", IMAGES)


def test_a_run_with_an_output_that_has_logits(tmp_path: Path) -> None:
    path = write(tmp_path, OBJECT.replace("{output}", "Output(logits)").replace("144", "64"))
    small = {"data": "digits:train=100", "clients": 2, "participation": 1.0, "rounds": 2, "epochs": 1}
    for method in ("fedavg", "fedgr"):  # one that needs scores, and one that needs features
        result = fedwinnow.run(**small, method=method, model=f"{path}:build", out=tmp_path / method)
        assert result.summary["status"] == "finished"
