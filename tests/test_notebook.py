"""What a notebook shows: tables, pictures as figures, and a line of progress."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import fedwinnow
import stages
from fedwinnow.errors import MissingExtraError, UsageError
from fedwinnow.notebook import html_table, in_notebook
from fedwinnow.testing import toy_data

SMALL = {"data": toy_data(), "clients": 4, "rounds": 2, "epochs": 1, "model": "linear"}


@pytest.fixture
def played(tmp_path):
    return stages.run(tmp_path / "run", noise="constant:rate=0.3")


def test_a_table_is_escaped_cut_and_may_have_bold_cells():
    shown = html_table(("a<b",), [["**1**"], ["<script>"], *[["x"]] * 25], "many & more", ["a note"])
    assert "<th>a&lt;b</th>" in shown
    assert "<b>1</b>" in shown
    assert "<script>" not in shown
    assert "many &amp; more" in shown
    assert "... and 7 more" in shown


def test_results_scenes_and_audits_show_themselves(played):
    shown = played._repr_html_()
    assert f"{100 * played.summary['last']['accuracy']:.2f} %" in shown
    assert "fedavg: finished" in shown
    scene = played.scene._repr_html_()
    assert scene.count("<tr>") == 5
    assert f"{100 * played.scene.realised[0]:.2f} %" in scene
    rows = toy_data().train.features.take(np.arange(60))
    found = fedwinnow.audit(rows, toy_data().train.labels[:60], clients=2, rounds=2, encoder=None, model="linear")
    assert "client-1" in found._repr_html_()


def test_a_sweep_shows_its_table_and_what_failed(tmp_path):
    swept = fedwinnow.sweep(["fedavg", "fair"], **SMALL, seeds=1, out=tmp_path)
    shown = swept._repr_html_()
    assert "add trusted=0.2" in shown
    assert ">FedAvg<" in shown
    assert repr(swept).endswith("1 finished, 1 failed)") or repr(swept).endswith("1 failed, 1 finished)")


def test_pictures_are_figures(played, tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure
    before = {path.name for path in tmp_path.rglob("*")}
    drawn = played.plot(column="macro_f1")
    assert isinstance(drawn, figure)
    line = drawn.axes[0].lines[0]
    assert line.get_ydata() == pytest.approx(100 * played.curve("macro_f1")[1]) or line.get_ydata() == pytest.approx(
        played.curve("macro_f1")[1]
    )
    for name in ("partition", "rates", "transitions"):
        assert isinstance(played.scene.plot(name), figure)
    assert drawn._repr_png_().startswith(b"\x89PNG")
    assert before == {path.name for path in tmp_path.rglob("*")}  # no file was written
    fedwinnow.figure("curves", played, out=tmp_path / "curves.pdf")
    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")


def test_pictures_that_cannot_be(played, monkeypatch):
    with pytest.raises(UsageError, match=r"unknown figure 'curve'\. Did you mean 'curves'"):
        played.plot("curve")
    with pytest.raises(UsageError, match="unknown figure of a scene 'curves'"):
        played.scene.plot("curves")
    with pytest.raises(UsageError, match="was given 0 things"):
        fedwinnow.figure("curves")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match="needs the extra 'figures'"):
        played.scene.plot()


class Handle:
    """What `display` gives back: it notes what is shown."""

    def __init__(self, shown):
        self.update = shown.append


@pytest.fixture
def notebook(monkeypatch):
    """A notebook, as far as it is asked; what it shows."""
    shown: list[str] = []
    display = SimpleNamespace(HTML=str, display=lambda text, display_id: Handle(shown))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object())))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_a_notebook_shows_how_far_a_run_is(tmp_path, notebook):
    assert in_notebook()
    stages.run(tmp_path, noise="constant:rate=0.3")
    assert "round 3 of 3, accuracy " in notebook[-1]
    assert "fedavg on toy" in notebook[-1]
    fedwinnow.sweep(["fedavg", "gce"], **SMALL, seeds=1, out=tmp_path / "sweep")
    assert "run 2 of 2 finished: gce, seed 0" in notebook[-1]
    count = len(notebook)
    stages.run(tmp_path / "quiet", progress=False)
    assert len(notebook) == count


def test_a_terminal_shows_it_only_when_asked(tmp_path, capsys):
    assert not in_notebook()
    stages.run(tmp_path / "a")
    assert capsys.readouterr().err == ""
    stages.run(tmp_path / "b", progress=True)
    assert "\rfedavg on toy: round 3 of 3" in capsys.readouterr().err
