"""Malformed config files and flags: every one ends in a message and an exit code, never in a traceback."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import pytest

from fedwinnow.cli import main

BASE = """data = "npz:path=small.npz"
clients = 4
seed = 3
test = 0.25
out = "made"

[partition]
kind = "dirichlet"
alpha = 0.5
minimum = 1

[noise]
kind = "uniform"
share = 0.6
low = 0.2
high = 0.4
flip = "pair"
step = -1
"""

HUGE = "9" * 400
LONG = "9" * 5000


def strange(words: str, *more: str) -> list[str]:
    """The words of a text, with the marks for long numbers filled in, and what cannot be written as a word."""
    return [word.replace("HUGE_MARK", HUGE).replace("LONG_MARK", LONG) for word in words.split()] + [*more]


SHARP = strange(
    """= [ ] { } " ' , : # - nan inf 1e999 ☃ true [] [[]] {} 1979-05-27T07:32:00Z -1 kind \\u0000 HUGE_MARK""",
    "",
    "\0",
    "\n",
    "\u202e",
    "\ufeff",
    '"""',
    "0x" + "f" * 4000,
)

VALUES = {
    "--clients": strange(
        """
        0 -1 1.5 1e3 many None ☃ HUGE_MARK LONG_MARK 1000000000000 0x10 [4]
        """,
        "",
        "\0",
        " ",
    ),
    "--seed": strange(
        """
        -1 1.5 nan ٣ HUGE_MARK LONG_MARK 18446744073709551616 -- none
        """,
        "",
        "\0",
    ),
    "--test": strange(
        """
        -0.1 1 1.5 nan inf -inf 1e-300 0.9999999 half 0 HUGE_MARK
        """,
        "",
        "\0",
    ),
    "--data": strange(
        """
        : = npz npz: npz:path npz:path= npz:path=. npz:path=none.npz npz:path=broken.npz
        npz:path=small.npz,train=0 npz:path=small.npz,train=-3 npz:path=small.npz,train=HUGE_MARK
        npz:path=small.npz,kind=tokens npz:path=small.npz,kind=films npz:path=small.npz,path=small.npz
        csv:path=small.npz,label=y csv:path=broken.npz,label=y csv:label=y folder:path=small.npz folder:path=.
        parquet:path=small.npz,label=y digits:train=3 digits:test=1 ☃.csv ~nobody-of-this-name/x.csv / .
        none.parquet mnist cifar10n:train=1 clothing1m DIGITS
        """,
        "",
        "\0",
        "a\0b.csv",
        "\udcff",
        "x" * 5000,
    ),
    "--partition": strange(
        """
        : iid: iid:a iid:= iid:a=1 shards:per_client=0 shards:per_client=HUGE_MARK
        shards:per_client=9223372036854775807 shards:per_client=none dirichlet:alpha=-1 dirichlet:alpha=nan
        dirichlet:alpha=1e308 dirichlet:alpha=1e-320 dirichlet:alpha=0,cap=maybe dirichlet:alpha='1
        dirichlet:minimum=9223372036854775807 dirichlet:empty=drop bernoulli_dirichlet:p=0
        bernoulli_dirichlet:p=2 bernoulli_dirichlet:p=1e-300 bernoulli_dirichlet:p=0.1,exact=false,alpha=1e-9
        quantity:alpha=1e-300 quantity:alpha=0 quantity:minimum=0,alpha=1e-300 fedlsr:classes=99
        fedlsr:size=9223372036854775807 rhfl:size=0 rhfl:size=9223372036854775807 classes:per_client=4 column
        fedrn_dirichlet_compat ☃ iid:☃=☃ None
        """,
        "",
        "iid" * 3000,
        "\0",
    ),
    "--noise": strange(
        """
        : none: None none:a=1 constant:rate=-1 constant:rate=2 constant:rate=nan constant:rate=HUGE_MARK
        constant:flip= constant:flip=none constant:flip=constant constant:flip=pair,step=0 constant:step=1
        constant:flip=pair:step=-1 constant:flip='pair:step=2' constant:flip=mixed,asymmetric=mixed
        constant:flip=mixed,asymmetric=instance constant:flip=mixed,reading=thirds constant:flip=matrix
        constant:flip=matrix,file=. constant:flip=matrix,file=broken.npz constant:flip=matrix,file=zip.npy
        constant:flip=matrix,file=small.csv constant:flip=asymmetric constant:flip=asymmetric,map=cifar100
        constant:flip=asymmetric_cyclic,block=1 constant:flip=asymmetric_cyclic,block=9223372036854775807
        constant:flip=instance,lr=1e300 constant:flip=instance,lr=nan constant:flip=instance,annotator=none.py
        constant:flip=instance,select=independent constant:select=some linear:select=pooled linear:low=none
        gaussian:std=1e308 gaussian:std=inf,mean=0 gaussian:std=-1 uniform:low=1,high=0 per_client
        per_client:path=. per_client:path=broken.npz per_client:path=small.csv human:column=worse human
        given:x=1 fedcorr:rho=2 ☃:☃=☃
        """,
        "",
        "\0",
    ),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a small data set and some broken files."""
    monkeypatch.chdir(tmp_path)
    labels = np.arange(60) % 3
    np.savez("small.npz", x=np.arange(120, dtype=np.float32).reshape(60, 2), y=labels)
    (tmp_path / "broken.npz").write_bytes((tmp_path / "small.npz").read_bytes()[:90])
    (tmp_path / "zip.npy").write_bytes((tmp_path / "small.npz").read_bytes())
    (tmp_path / "small.csv").write_text('0.1\n"' + "a" * 200_000 + "\n")
    return tmp_path


class Ending(NamedTuple):
    """How a command ended: its exit code, and what is wrong with the way it ended, where anything is."""

    code: object
    fault: str


def ending(words: list[str], capsys: pytest.CaptureFixture[str]) -> Ending:
    """Run a command; an exception that it lets out comes through, so that the test fails."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    told, code = capsys.readouterr(), ended.value.code
    faults = {
        "an exit code that no wrong input has": code not in (0, 2, 3),
        "a traceback": "Traceback" in told.err,
        "no word about the error": bool(code) and "error: " not in told.err,
        "an error, and something on stdout": bool(code) and told.out != "",
    }
    return Ending(code, "; ".join(f"{words}: {fault}" for fault, found in faults.items() if found))


def faults_of(ends: list[Ending]) -> list[str]:
    """What is wrong with any of them."""
    return [end.fault for end in ends if end.fault]


@pytest.mark.parametrize("flag", VALUES)
def test_strange_flags(folder, capsys, flag):
    ends = []
    for value in VALUES[flag]:
        flags = {"--data": "npz:path=small.npz", "--clients": "4"} | {flag: value}
        words = [word for pair in flags.items() for word in pair]
        ends.append(ending(["scene", "make", "--quiet", *words], capsys))
    assert faults_of(ends) == []
    assert 2 in {end.code for end in ends}


def mutated(text: str, dice: random.Random) -> str:
    """The text with a few pieces cut out, doubled, swapped, or replaced by something sharp."""
    for _ in range(dice.randint(1, 4)):
        first, second = sorted(dice.sample(range(len(text) + 1), 2))
        second = min(second, first + dice.choice([1, 3, 10, 40]))
        piece = text[first:second]
        text = text[:first] + dice.choice(["", piece * 2, piece[::-1], dice.choice(SHARP)]) + text[second:]
    return text


def replaced(text: str, dice: random.Random) -> str:
    """The text with one value replaced by something of another type."""
    lines = text.splitlines()
    place = dice.choice([number for number, line in enumerate(lines) if "=" in line])
    lines[place] = (
        lines[place].partition("=")[0] + "= " + dice.choice([*SHARP, '"☃"', "[1, 2]", "{kind = 3}", "0", "1.5"])
    )
    return "\n".join(lines)


@pytest.mark.parametrize("change", [mutated, replaced])
def test_strange_config_files(folder, capsys, change):
    dice, ends = random.Random(20_24), []
    for _ in range(150):
        (folder / "file.toml").write_text(change(BASE, dice), encoding="utf-8", newline="")
        ends.append(ending(["scene", "make", "--quiet", "--config", "file.toml"], capsys))
    assert faults_of(ends) == []
    assert {end.code for end in ends} == {0, 2, 3}


def test_strange_bytes_as_config_files(folder, capsys):
    dice, ends = random.Random(7), []
    for size in range(60):
        content = bytearray(BASE.encode())
        for _ in range(1 + size // 10):
            content[dice.randrange(len(content))] = dice.randrange(256)
        (folder / "file.toml").write_bytes(content[: dice.randrange(1, len(content))])
        ends.append(ending(["scene", "make", "--quiet", "--config", "file.toml"], capsys))
    assert faults_of(ends) == []
    assert 3 in {end.code for end in ends}


def test_strange_scenes(folder, capsys):
    """A scene folder whose JSON was edited by hand is refused in words, or read."""
    made = ["scene", "make", "--data", "npz:path=small.npz", "--clients", "3", "--out", "made", "--quiet"]
    assert ending(made, capsys) == (0, "")
    whole = (folder / "made" / "scene.json").read_text()
    dice, ends = random.Random(11), []
    for _ in range(100):
        (folder / "made" / "scene.json").write_text(mutated(whole, dice), encoding="utf-8", newline="")
        ends.append(ending(["scene", "show", "made", "--quiet"], capsys))
    assert faults_of(ends) == []
    assert 3 in {end.code for end in ends}
