"""Three hospitals with easy patients, some of whose labels are wrong; one audit for all tests that only look."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from auditing_material import QUICK, SPEC, lines, write_patients
from fedwinnow.auditing.audit import perform, settings_for
from fedwinnow.experiment.play import Execution


@pytest.fixture(scope="session")
def patients(tmp_path_factory) -> Path:
    return write_patients(tmp_path_factory.mktemp("patients") / "patients.csv")


@pytest.fixture(scope="session")
def truth(patients) -> dict[str, str]:
    return {row["patient"]: row["truth"] for row in lines(patients)}


@pytest.fixture(scope="session")
def finished(tmp_path_factory, patients) -> Path:
    """The folder of an audit; not to be changed."""
    folder = tmp_path_factory.mktemp("audits") / "x"
    settings = settings_for(SPEC.format(path=patients), site="hospital", **QUICK)
    perform(settings, folder, Execution())
    return folder


@pytest.fixture
def audited(finished, tmp_path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(finished, tmp_path / "audit"))
