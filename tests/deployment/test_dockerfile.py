"""Docker does not run in these tests: its steps are carried out in a clean virtual environment elsewhere."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from container import AS_ROOT, ROOT, Image, interpreter, let_in, open_to_all, steps
from over_network import free_port

LIST = ROOT / "requirements-deploy.txt"
SITES = ("site-a", "site-b", "site-c")
APART = {"torch", "fedwinnow"}


def pins() -> dict[str, tuple[str, list[str]]]:
    """The version and the hashes of every package of the list."""
    text = re.sub(r"^#.*\n", "", LIST.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        pin, *hashes = line.split()
        name, version = pin.split("==")
        found[name] = (version, hashes)
    return found


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {plain(name): version for name, _, version in (line.partition("==") for line in lines) if version}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_line_has_one_version_that_is_tested_and_hashes() -> None:
    tested = constraints()
    assert len(pins()) > 50
    for name, (version, hashes) in pins().items():
        assert hashes, name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), name
        assert tested.get(name, version) == version, f"{name}: constraints.txt has another version"
    assert not re.search(r"https?:|index", LIST.read_text(encoding="utf-8").partition("alembic")[2])


def test_everything_that_serve_and_join_need_is_in_the_list() -> None:
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install '.[flower]'")
    listed, seen = set(pins()), set[str]()
    wanted = [Requirement(line) for line in importlib.metadata.requires("fedwinnow") or ()]
    left = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": "flower"})]
    while left:
        one = left.pop()
        for extra in ("", *one.extras):
            if (plain(one.name), extra) in seen:
                continue
            seen.add((plain(one.name), extra))
            assert plain(one.name) in listed | APART, f"{one.name}: start tools/write_requirements.py"
            needs = [Requirement(line) for line in importlib.metadata.requires(one.name) or ()]
            left += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
    assert {"flwr", "cryptography", "numpy", "hatchling"} <= listed


def test_the_image_has_a_user_without_rights_and_nothing_unpinned() -> None:
    words = steps()
    runs = [rest for word, rest in words if word == "RUN"]
    assert "--no-deps --require-hashes --only-binary=:all: --requirement requirements-deploy.txt" in runs[0]
    assert runs[1].endswith(f"$TORCH_FLAGS torch=={constraints()['torch']}")
    assert "--no-deps --no-build-isolation ." in runs[2]
    assert runs[3].startswith(AS_ROOT)
    assert len(runs) == 4
    order = [word for word, _ in words]
    assert dict(words)["USER"] == "10001:10001"
    assert order.index("USER") > max(place for place, word in enumerate(order) if word in ("RUN", "COPY"))
    for word, rest in words:
        for name in rest.split()[:-1] if word == "COPY" else ():
            assert (ROOT / name).exists()
            assert let_in(name)
    assert not any(let_in(name) for name in (".git", "certs", "runs", ".venv", "tests", "docs"))


def services() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    whole = yaml.safe_load((ROOT / "examples" / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
    found: dict[str, Any] = whole["services"]
    return found


def test_the_services_have_no_rights_and_only_their_own_keys() -> None:
    assert list(services()) == ["coordinator", *SITES]
    for name, service in services().items():
        assert (ROOT / "examples" / "deploy" / service["build"]["context"] / "Dockerfile").resolve().is_file()
        assert service["user"].startswith("${FEDWINNOW_USER:-10001:")
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        if name != "coordinator":
            assert service["volumes"] == [f"./{name}:/federation", f"./certs/{name}:/federation/key:ro"]
    assert len(list((ROOT / "examples").rglob("*compose*"))) == 1


# --- the steps themselves --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    if "3.11" not in interpreter().name:
        pytest.skip("needs Python 3.11, which the image has")
    folder = Path(tempfile.mkdtemp(prefix="image-"))  # not pytest's: the user without rights must be able to read it
    folder.chmod(0o755)
    made = Image(folder)
    made.build()
    yield made
    shutil.rmtree(folder)


def own(folder: Path, user: str) -> None:
    """Give a folder to the user of the containers, as `docker compose` expects it."""
    if os.geteuid() == 0:
        number, group = map(int, user.split(":"))
        for path in (folder, *folder.rglob("*")):
            os.chown(path, number, group)


def table(folder: Path, name: str, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [(30 + (7 * row * seed) % 50, row % 2) for row in range(60)]
    lines = [f"{age + 20 * ill},{100 + 30 * ill + age % 9},{('well', 'ill')[ill]}\n" for age, ill in rows]
    (folder / name).write_text("age,pressure,diagnosis\n" + "".join(lines))


@pytest.mark.slow
def test_the_image_does_what_the_compose_file_says(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps of the Dockerfile, then the commands of compose.yaml as processes of a user without rights."""
    home, port = image.root / "deploy", free_port()
    table(home / "coordinator", "own.csv", 1)
    for number, site in enumerate(SITES, 2):
        table(home / site, "data.csv", number)
    log = image.root / "log"

    def ended(words: list[str], folder: Path) -> str:
        code = image.start(words, folder, log).wait(300)
        assert code == 0, log.read_text()
        return log.read_text()

    home.chmod(0o755)
    own(home, image.user)
    assert "usage" in ended([], home)  # CMD
    names = ["localhost", "coordinator"]
    ended(["certificates", "--host", *names, "--sites", *SITES, "--out", "certs"], home)
    given = ["--data", "csv:path=own.csv,label=diagnosis"]
    ended(["schema", *given, "--out", "schema.json"], home / "coordinator")
    config = 'data = "csv:path=own.csv,label=diagnosis,schema=schema.json"\nmethod = "winnow"\nrounds = 2\n'
    (home / "coordinator" / "run.toml").write_text(config)
    processes = {}
    for name, service in services().items():
        folder = home / name
        if name != "coordinator":
            shutil.copy(home / "coordinator" / "schema.json", folder)
            ended(["join", "--write-policy", "site.toml"], folder)
        for volume in service["volumes"]:
            source, target, *_ = volume.split(":")
            if target != "/federation":
                (folder / target.removeprefix("/federation/")).symlink_to((home / source).resolve())
        words = service["command"].replace("coordinator:8443", f"localhost:{port}").replace("0.0.0.0", "127.0.0.1")
        own(folder, image.user)
        processes[name] = image.start(words.replace("--port 8443", f"--port {port}").split(), folder, folder / "log")
    for name, process in processes.items():
        assert process.wait(300) == 0, (home / name / "log").read_text()
    summary = json.loads((home / "coordinator" / "runs" / "hospitals" / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("finished", 2)
    for site in SITES:
        assert (home / site / "kept" / "report.html").is_file()
        if os.geteuid() == 0 and open_to_all(interpreter()):
            assert (home / site / "kept" / "report.html").stat().st_uid == int(image.user.split(":")[0])
    assert list((image.root / "checkout").glob("runs")) == []
