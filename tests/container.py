"""The steps of a Dockerfile without Docker: in a folder that stands for the image, with a virtual environment."""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
AS_ROOT = "useradd "  # what only an image needs: its own user


def steps(path: Path = ROOT / "Dockerfile") -> list[tuple[str, str]]:
    """The instructions and their words."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def let_in(name: str) -> bool:
    """Whether .dockerignore lets a file or folder at the top into the image."""
    found = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").split():
        if fnmatch.fnmatch(name, line.removeprefix("!")):
            found = line.startswith("!")
    return found


def open_to_all(path: Path) -> bool:
    """Whether every user of this machine can reach a file."""
    return all(folder.stat().st_mode & 0o001 for folder in path.parents)


def interpreter() -> Path:
    """A Python of the image's version; best one that a user without rights can start, too."""
    mine = Path(sys.executable).resolve()
    found = [path for path in (mine, Path("/usr/local/bin/python3.11"), Path("/usr/bin/python3.11")) if path.exists()]
    return next((path for path in found if open_to_all(path) and "3.11" in path.name), mine)


@dataclass
class Image:
    """A folder with what the steps so far have made."""

    root: Path
    place: str = "/"
    environment: dict[str, str] = field(default_factory=dict)
    user: str = ""
    entry: list[str] = field(default_factory=list)
    usual: list[str] = field(default_factory=list)

    @property
    def programs(self) -> Path:
        return self.root / "venv" / "bin"

    def here(self, path: str) -> Path:
        """Where a path of the image is in the folder."""
        return self.root / os.path.normpath(os.path.join(self.place, path)).lstrip("/")

    def build(self, **arguments: str) -> None:
        """Carry all steps out; one that is not known is an error."""
        self.environment = {"PATH": f"{self.programs}:{os.environ['PATH']}", "LANG": "C.UTF-8"}
        self.environment |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        for word, rest in steps():
            getattr(self, f"do_{word.lower()}")(rest, arguments)

    def do_from(self, rest: str, arguments: dict[str, str]) -> None:
        assert rest == "python:3.11-slim"
        subprocess.run([interpreter(), "-m", "venv", self.root / "venv"], check=True)

    def do_workdir(self, rest: str, arguments: dict[str, str]) -> None:
        self.place = rest
        self.here("").mkdir(parents=True, exist_ok=True)

    def do_copy(self, rest: str, arguments: dict[str, str]) -> None:
        *sources, target = rest.split()
        for name in sources:
            assert let_in(name), f".dockerignore keeps {name} out"
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.here(target), ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, self.here(target))

    def do_arg(self, rest: str, arguments: dict[str, str]) -> None:
        name, _, value = rest.partition("=")
        self.environment[name] = arguments.get(name, value.strip('"'))

    def do_env(self, rest: str, arguments: dict[str, str]) -> None:
        self.environment |= dict(pair.split("=", 1) for pair in shlex.split(rest))

    def do_run(self, rest: str, arguments: dict[str, str]) -> None:
        if rest.startswith(AS_ROOT):
            return
        subprocess.run(["sh", "-c", rest], cwd=self.here(""), env=self.environment, check=True)

    def do_user(self, rest: str, arguments: dict[str, str]) -> None:
        self.user = rest

    def do_entrypoint(self, rest: str, arguments: dict[str, str]) -> None:
        self.entry = eval(rest)

    def do_cmd(self, rest: str, arguments: dict[str, str]) -> None:
        self.usual = eval(rest)

    def start(self, words: list[str], folder: Path, log: Path) -> subprocess.Popen[bytes]:
        """Start a container: the entry point with these words in a folder, as the user of the image where possible."""
        command = [*self.entry, *(words or self.usual)]
        rights: dict[str, int] = {}
        if os.geteuid() == 0 and open_to_all(interpreter()):
            user, group = map(int, self.user.split(":"))
            rights = {"user": user, "group": group}
        with log.open("wb") as stream:
            return subprocess.Popen(
                [str(self.programs / command[0]), *command[1:]],
                cwd=folder,
                env=self.environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                extra_groups=[] if rights else None,
                **rights,
            )
