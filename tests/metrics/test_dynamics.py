"""Memorisation and training stability, by hand; and what importing the figures costs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fedwinnow.metrics.task import memorisation, training_stability


def test_memorisation_by_hand():
    scores = memorisation(
        #          wrong labels: memorised, corrected, neither, memorised; right labels: right, right, other
        predicted=[1, 0, 2, 1, 2, 2, 0],
        given=[1, 1, 1, 1, 2, 2, 2],
        true=[0, 0, 0, 0, 2, 2, 2],
    )
    assert scores == {"memorised": 0.5, "corrected": 0.25, "clean_correct": pytest.approx(2 / 3)}


def test_memorisation_without_wrong_or_without_right_labels():
    assert memorisation([0, 1], [0, 0], [0, 0]) == {"memorised": None, "corrected": None, "clean_correct": 0.5}
    assert memorisation([0, 1], [1, 1], [0, 0]) == {"memorised": 0.5, "corrected": 0.5, "clean_correct": None}
    assert set(memorisation([], [], []).values()) == {None}


def test_stability_by_hand():
    # Squared distances 1 + 4 = 5 and 9.
    local = (np.array(weights, np.float32) for weights in ([2.0, 0.0], [1.0, 5.0]))
    assert training_stability(local, np.array([1.0, 2.0], np.float32)) == 7.0


def test_stability_is_undefined_for_nobody_and_for_a_broken_client():
    assert training_stability([], [1.0]) is None
    assert training_stability([[1.0], [np.nan]], [1.0]) is None
    assert training_stability([[1.0], [np.inf]], [1.0]) is None


def test_importing_the_figures_is_cheap():
    modules = "task, detection"
    program = f"""
import sys
from fedwinnow.metrics import {modules}
print([name for name in ("torch", "sklearn", "scipy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
