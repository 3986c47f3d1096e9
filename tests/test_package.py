"""Ready to publish: the citation, the metadata, and a wheel and an sdist that install and work elsewhere."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from fedwinnow.version import __version__

ROOT = Path(__file__).parents[1]
TABLE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel and an sdist, as the build back end makes them."""
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install --group dev")
    folder = tmp_path_factory.mktemp("dist")
    code = "import sys; from hatchling import build; build.build_wheel(sys.argv[1]); build.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True, capture_output=True)
    return {"wheel": next(folder.glob("*.whl")), "sdist": next(folder.glob("*.tar.gz"))}


def test_the_citation_is_of_this_version() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == __version__
    assert cited["license"] == TABLE["project"]["license"]
    assert {"cff-version", "message", "title", "authors", "abstract", "type"} <= cited.keys()
    assert cited["keywords"] == TABLE["project"]["keywords"]


def test_a_version_that_is_not_released_has_no_date() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    (head,) = [line for line in changes if line.startswith(f"## [{__version__}] - ")]
    released = head.rpartition(" - ")[2]
    assert str(cited.get("date-released", "unreleased")) == released


def test_only_versions_of_python_and_systems_that_were_seen_to_work_are_named() -> None:
    """More are in the workflow; they are named here when it has run there."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    tested = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    versions = tested["jobs"]["test"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: 3."
    named = [one.removeprefix("Programming Language :: Python :: ") for one in classifiers(prefix)]
    assert set(named) <= set(versions)
    assert named == ["3.11"]
    assert classifiers("Operating System ::") == ["Operating System :: POSIX :: Linux"]
    assert TABLE["project"]["requires-python"] == f">={versions[0]}"


def classifiers(prefix: str) -> list[str]:
    return [one for one in TABLE["project"]["classifiers"] if one.startswith(prefix)]


def test_every_classifier_is_one_that_indexes_know() -> None:
    known = pytest.importorskip("trove_classifiers").classifiers
    assert not [one for one in TABLE["project"]["classifiers"] if one not in known]
    assert not classifiers("License ::")  # the licence is an expression; indexes refuse both


def test_the_wheel_has_everything_that_the_source_has_and_no_more(built: dict[str, Path]) -> None:
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "fedwinnow").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(built["wheel"]) as wheel:
        found = {name for name in wheel.namelist() if ".dist-info/" not in name}
        (entry,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
        assert "fedwinnow = fedwinnow.cli:main" in wheel.read(entry).decode()
        (facts,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
        metadata = email.message_from_bytes(wheel.read(facts))
        assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
    assert found == expected
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("Project-URL") is None  # no public address is known; none is made up


def test_the_sdist_has_what_is_needed_to_test_it(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    needed = {"pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "constraints.txt", "Makefile", "Dockerfile"}
    assert needed | {"src/fedwinnow/cli.py", "tests/test_package.py", "docs/index.md"} <= names
    assert not [name for name in names if name.startswith(("runs/", ".git/", ".venv/")) or "__pycache__" in name]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_installs_and_works_in_a_clean_environment(kind: str, built: dict[str, Path], tmp_path: Path) -> None:
    venv.create(tmp_path / "clean", with_pip=True)
    programs = tmp_path / "clean" / ("Scripts" if os.name == "nt" else "bin")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def ended(*words: object) -> str:
        done = subprocess.run(
            list(map(str, words)), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    ended(programs / "python", "-m", "pip", "install", "--constraint", ROOT / "constraints.txt", built[kind])
    assert "usage: fedwinnow" in ended(programs / "fedwinnow", "--help")
    assert __version__ in ended(programs / "fedwinnow", "--version")
    ended(programs / "fedwinnow", "run", "--data", "digits:train=200", "--rounds", 2, "--clients", 4, "--out", "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"
    assert (tmp_path / "run" / "report.html").is_file()
    assert "fedcorr" in ended(programs / "fedwinnow", "methods")
    place = ended(programs / "python", "-c", "import fedwinnow; print(fedwinnow.__file__)")
    assert str(tmp_path / "clean") in place
