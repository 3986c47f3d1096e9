"""docs/own-method.md, followed from top to bottom: whatever code it shows is written into files and run."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file

import fedwinnow
from fedwinnow.backends.make_backend import Serial
from fedwinnow.errors import UsageError
from fedwinnow.federation.method import find_method
from fedwinnow.testing import MethodTester, toy_data

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-method.md").read_text(encoding="utf-8")
TRIM, CONVERSATION, WEIGHTY, EXPOSES, FORMS, BY_CLASS, TEST = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FOLDER = tempfile.TemporaryDirectory()  # as long as the tests of this file run
FILE = Path(FOLDER.name) / "weighty.py"
FILE.write_text(WEIGHTY, encoding="utf-8")
SMALL = {"data": toy_data(), "model": "linear", "clients": 4, "participation": 1.0, "epochs": 1, "rounds": 3}
NOISE = "uniform:share=0.5,low=0.5,high=0.6"


class TestWeighty(MethodTester):
    method: ClassVar[str] = f"{FILE}:memory=0.3"


def test_the_first_method_is_the_example(tmp_path):
    (tmp_path / "trim.py").write_text(TRIM, encoding="utf-8")
    shown, shipped = (
        fedwinnow.run(out=tmp_path / name, method=f"{path}:warm_up=1", noise=NOISE, **SMALL).folder
        for name, path in (("a", tmp_path / "trim.py"), ("b", ROOT / "examples" / "my_method.py"))
    )
    for name in ("state.safetensors", "clients.csv", "ledger.json"):
        assert (shown / name).read_bytes() == (shipped / name).read_bytes()


def test_the_second_method_does_what_the_page_says(tmp_path):
    result = fedwinnow.run(out=tmp_path, method=f"{FILE}:steady=0.5", noise=NOISE, **SMALL)
    state = load_file(tmp_path / "state.safetensors")
    assert state["server.visits"].tolist() == [3, 3, 3, 3]
    assert torch.equal(state["server.losses"].double(), torch.tensor(result.rounds[-1]["losses"]).double())
    assert "server.steady.weights" in state
    noisy = result.scene.realised > 0.2
    losses = state["server.losses"].numpy()
    assert losses[noisy].min() > losses[~noisy].max()  # so noisy sites count for less
    assert len(list((tmp_path / "clients").glob("*.safetensors"))) == 4


@pytest.mark.parametrize("option", ["loss=gce", "mixup=1", "aggregate=median"])
def test_it_does_not_have_what_the_page_says_it_has_not(option):
    with pytest.raises(UsageError, match="does not use it"):
        find_method(f"{FILE}:{option}")


def test_the_conversation_and_what_it_exposes(tmp_path, monkeypatch):
    """The fragments in between, put together as a reader would."""
    lines = "\n".join((EXPOSES, FORMS, BY_CLASS, CONVERSATION)).splitlines()
    inside = "".join(f"    {line}\n" if line else "\n" for line in lines)
    head = TRIM[: TRIM.index("@dataclass")] + "from fedwinnow.federation.method import Exchange, model_forms\n"
    head += "from fedwinnow.mathematics.payload import ReplyForm\n\n"
    body = (
        '@dataclass(frozen=True)\nclass Talk(Method):\n    """Asks twice."""\n\n    name: ClassVar[str] = "talk"\n'
        '    stages: ClassVar[tuple[str, ...]] = ("ask", "train")\n'
    )
    answer = (
        "\n    def class_losses(self, client, got):\n        client.model.load(got)\n"
        "        losses = cross_entropy(client.predict(), client.given, reduction='none')\n"
        "        return {'class_losses': torch.zeros(client.classes).index_add_(0, client.given, losses)}\n"
    )
    (tmp_path / "talk.py").write_text(head + body + inside + answer, encoding="utf-8")
    result = fedwinnow.run(out=tmp_path / "run", method=str(tmp_path / "talk.py"), least_count=5, **SMALL)
    assert result.summary["status"] == "finished"
    assert find_method(str(tmp_path / "talk.py")).by_class() == {"class_losses": 0}
    assert '"class_losses"' in (tmp_path / "run" / "ledger.json").read_text()
    usual = Serial.exchange

    def negative(backend, tasks):
        for answer in usual(backend, tasks):
            if "class_losses" in answer.reply:
                answer.reply["class_losses"] -= 1e9 * (answer.client == 2)
            yield answer

    monkeypatch.setattr(Serial, "exchange", negative)
    result = fedwinnow.run(out=tmp_path / "two", method=str(tmp_path / "talk.py"), on_client_error="drop", **SMALL)
    assert all("'class_losses' in its reply has values from" in row["dropped"]["client-2"] for row in result.rounds)


def test_the_test_file_is_a_test_file():
    made: dict[str, type] = {"__name__": "test_trim"}
    exec(TEST, made)
    assert issubclass(made["TestTrim"], MethodTester)
    assert find_method(str(ROOT / made["TestTrim"].method)).name == "trim"
