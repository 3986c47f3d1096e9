"""The command line as a process of its own: what it imports, prints and ends with."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fedwinnow.cli import COMMANDS
from fedwinnow.version import __version__

SMALL = ["--data", "digits:train=100", "--clients", "4"]


def process(*words: str, code: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "fedwinnow"] if code is None else [sys.executable, "-c", code]
    return subprocess.run(
        [*start, *words], capture_output=True, text=True, encoding="utf-8", env={**os.environ, **environment}
    )


def test_as_a_module():
    assert process("--version").stdout == f"fedwinnow {__version__}\n"
    wrong = process("nonsense")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: unknown command")


def test_a_terminal_without_the_letters_is_no_reason_to_stop(tmp_path):
    made = process("scene", "make", *SMALL, "--out", str(tmp_path), PYTHONIOENCODING="ascii")
    assert made.returncode == 0
    assert r"\u2588" in made.stdout


LOOK = """
import contextlib, io, sys
from fedwinnow.cli import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as printed:
    main(sys.argv[1:])
assert printed.getvalue()
print([name for name in ("torch", "sklearn", "scipy") if name in sys.modules])
"""


@pytest.mark.parametrize(
    "words",
    ["--help", "data", "data cifar10n", "partitions shards", "noises", "flips", "models resnet18"]
    + [f"{name} --help" for name in COMMANDS],
)
def test_what_computes_nothing_imports_nothing_heavy(words):
    looked = process(*words.split(), code=LOOK)
    assert looked.stdout == "[]\n", looked.stderr


def test_a_reader_that_goes_away_is_no_error():
    with subprocess.Popen([sys.executable, "-m", "fedwinnow", "data", "--json"], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.close()
    assert running.returncode == 0
