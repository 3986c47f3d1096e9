"""Noisy clients found by many mixtures: the function and the command."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedwinnow.api import run
from fedwinnow.cli import main
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.detection_study import Fitting, study_detection
from fedwinnow.metrics.detection import repeated_detection
from fedwinnow.testing import toy_data


def play(folder, **changes):
    settings = {
        "data": toy_data(samples=300),
        "clients": 6,
        "participation": 1.0,
        "rounds": 3,
        "epochs": 2,
        "optimizer": "sgd:lr=0.1",
        "noise": "uniform:share=0.5,low=0.6,high=0.7",
        "method": "fednoro:warm_up=3,measure_every=2",
    }
    return run(out=folder, **(settings | changes))


def test_figures_by_hand():
    flagged = np.array([[1, 1, 0], [1, 0, 0], [0, 1, 1], [0, 0, 0]], bool)
    figures = repeated_detection(flagged, [0, 1])
    assert figures["recall"] == (1 + 0.5 + 0.5 + 0) / 4
    assert figures["precision"] == pytest.approx((1 + 1 + 0.5) / 3)  # the last flags nobody
    assert figures["matching_ratio"] == 0.25


def test_without_noisy_clients_there_is_no_recall():
    figures = repeated_detection(np.array([[False, False], [True, False]]), [])
    assert figures == {"recall": None, "precision": 0.0, "matching_ratio": 0.5}


def test_a_study_has_a_row_for_each_measured_round(tmp_path):
    play(tmp_path)
    rows = study_detection(tmp_path, Fitting(fits=500, covariance="diagonal"))
    assert [row["round"] for row in rows] == [2, 3]
    assert rows[1]["matching_ratio"] == rows[1]["recall"] == rows[1]["precision"] == 1.0
    assert rows == study_detection(tmp_path, Fitting(fits=500, covariance="diagonal"))


def test_studies_that_cannot_be(tmp_path):
    play(tmp_path / "other", method="fedavg")
    with pytest.raises(DataError, match="no round has client indicators"):
        study_detection(tmp_path / "other")
    play(tmp_path / "unknown", noise="given")
    with pytest.raises(DataError, match="true labels are unknown"):
        study_detection(tmp_path / "unknown")
    with pytest.raises(UsageError, match="--fits 0"):
        Fitting(fits=0)


def test_the_command(tmp_path, capsys):
    play(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        main(["detection", str(tmp_path), "--fits", "50", "--json"])
    assert [row["fits"] for row in json.loads(capsys.readouterr().out)] == [50, 50]
    with pytest.raises(SystemExit, match="0"):
        main(["detection", str(tmp_path), "--fits", "50", "--raw", "--covariance", "diagonal"])
    assert "matching ratio" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["detection"])
