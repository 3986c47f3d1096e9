"""Config files: the same names as the flags; a flag wins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedwinnow.cli import parse
from fedwinnow.commands.run import Run
from fedwinnow.commands.scene import SceneMake, SceneShow
from fedwinnow.errors import DataError, UsageError
from fedwinnow.flags import read_config

WHOLE = """
data = "digits:train=100"
clients = 7
seed = 3
test = 0.25
out = "somewhere"

[partition]
kind = "dirichlet"
alpha = inf
cap = false

[noise]
kind = "uniform"
share = 0.6
low = 0.2
high = 0.4
flip = "pair"
step = -1
"""


@pytest.fixture
def file(tmp_path):
    """Write a config file and give its path."""

    def write(text: str) -> Path:
        path = tmp_path / "file.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_every_field_from_a_file(file):
    command = parse(SceneMake, "scene make", ["--config", str(path := file(WHOLE))])
    assert command == SceneMake(
        data="digits:train=100",
        clients=7,
        seed=3,
        test=0.25,
        out=Path("somewhere"),
        partition="dirichlet:alpha=inf,cap=false",
        noise="uniform:share=0.6,low=0.2,high=0.4,flip=pair,step=-1",
        config=path,
    )


def test_flags_win_wherever_they_stand(file):
    path = file(WHOLE)
    for flags in (["--config", str(path), "--clients", "9"], ["--clients", "9", f"--config={path}"]):
        command = parse(SceneMake, "scene make", flags)
        assert isinstance(command, SceneMake)
        assert command.clients == 9
        assert command.seed == 3


def test_a_flag_may_replace_a_whole_table(file):
    command = parse(SceneMake, "scene make", ["--config", str(file(WHOLE)), "--partition", "shards", "--noise", "none"])
    assert isinstance(command, SceneMake)
    assert (command.partition, command.noise) == ("shards", "none")


def test_without_a_file_the_defaults_hold():
    assert parse(SceneMake, "scene make", []) == SceneMake()


def test_a_table_and_a_text_are_the_same(file):
    assert read_config(file('partition = "shards:per_client=3"'), SceneMake) == read_config(
        file('[partition]\nkind = "shards"\nper-client = 3'), SceneMake
    )


def test_values_with_commas_survive(file):
    found = read_config(file('[data]\nkind = "csv"\npath = "a, b.csv"\nlabel = "y"'), SceneMake)
    assert found == {"data": 'csv:path="a, b.csv",label=y'}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cleints = 3", "Did you mean 'clients'"),
        ('config = "other.toml"', "unknown key"),
        ("clients = 1.5", "clients=1.5 was given; allowed: a whole number"),
        ("clients = true", "a whole number"),
        ("clients = [3]", "a whole number"),
        ("clients = 0x" + "f" * 5000, "20000 bits"),
        (f'[partition]\nkind = "shards"\nper_client = 0x{"f" * 5000}', "20000 bits"),
        ("test = nan", "a number"),
        ("partition = [1]", "a list or table"),
        ("[partition]\nper_client = 2", "needs a kind"),
        ("[partition]\nkind = 2", "needs a kind"),
        ('[partition]\nkind = "shards"\nper_client = [2]', "per_client is a list or table"),
        ('[partition]\nkind = "shards"\n[partition.more]\na = 1', "more is a list or table"),
        ('out = ""', "a path"),
    ],
)
def test_a_wrong_value_names_file_and_key(file, text, message):
    with pytest.raises(UsageError, match=message) as caught:
        read_config(file(text), SceneMake)
    assert "file.toml" in str(caught.value)


@pytest.mark.parametrize("text", ["=", "a = ", "[a", "a = 1\na = 2", "a = 1" + "0" * 5000, "x = " + "[" * 3000])
def test_what_is_not_toml_is_a_data_problem(file, text):
    with pytest.raises(DataError, match=r"file\.toml: not valid TOML"):
        read_config(file(text), SceneMake)


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "file.toml").write_bytes(b"data = '\xff\xfe'")
    with pytest.raises(DataError, match="not valid TOML"):
        read_config(tmp_path / "file.toml", SceneMake)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"none\.toml: cannot be read"):
        read_config(tmp_path / "none.toml", SceneMake)


def test_two_files_are_one_too_many():
    with pytest.raises(UsageError, match="twice"):
        parse(SceneMake, "scene make", ["--config", "a", "--config=b"])


def test_a_command_without_a_config_has_no_such_flag():
    with pytest.raises(UsageError, match="unknown flag '--config'"):
        parse(SceneShow, "scene show", ["--config", "a"])


@pytest.mark.parametrize(
    ("of_file", "of_flag", "together"),
    [
        ("feddiv:passes=5,eta=0", "feddiv:preset=code", "feddiv:passes=5,eta=0,preset=code"),
        ("feddiv:passes=5,eta=0", "feddiv:eta=1", "feddiv:passes=5,eta=1"),
        ("feddiv:passes=5", "feddiv", "feddiv:passes=5"),
        ("feddiv:passes=5", "fedavg", "fedavg"),
        ("csv:path=a.csv,label=x", "csv:path='b, c.csv'", 'csv:path="b, c.csv",label=x'),
        ("feddiv:passes=5", "./feddiv.py:build", "./feddiv.py:build"),
    ],
)
def test_a_flag_changes_only_the_options_it_names(file, of_file, of_flag, together):
    path = file(f'method = "{of_file}"')
    assert parse(Run, "run", ["--config", str(path), "--method", of_flag]).method == together


def test_a_set_up_of_a_paper_with_two_changes_is_changed_in_two_places():
    usual = parse(Run, "run", ["--config", "feddiv/cifar10"]).experiment()
    other = parse(
        Run, "run", ["--config", "feddiv/cifar10", "--rounds", "5", "--method", "feddiv:preset=code"]
    ).experiment()
    assert other == replace(usual, rounds=5, method=f"{usual.method},preset=code")


def test_a_key_in_two_spellings_is_refused(file):
    with pytest.raises(UsageError, match=r"file\.toml: batch_size is given twice"):
        read_config(file("batch-size = 3\nbatch_size = 4"), Run)
