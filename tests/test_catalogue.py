"""The catalogue: complete, truthful, and in step with the classes it describes."""

from __future__ import annotations

import dataclasses
from importlib.metadata import EntryPoint

import pytest

from fedwinnow import catalogue
from fedwinnow.errors import UsageError

EVERY = [entry for family in catalogue.FAMILIES for entry in catalogue.entries(family).values()]


def named(entry: catalogue.Entry) -> str:
    return f"{entry.family}-{entry.name}"


@pytest.mark.parametrize("entry", EVERY, ids=named)
def test_every_part_has_a_summary_and_every_option_a_sentence_a_type_and_a_default(entry):
    assert entry.summary.endswith(".")
    for option in entry.options:
        assert option.sentence.endswith("."), option.name
        assert option.type, option.name
        assert option.default, option.name


@pytest.mark.parametrize("entry", EVERY, ids=named)
def test_what_the_text_says_is_what_the_class_has(entry):
    part = entry.load()
    ineffective = part.unused() if entry.family == "methods" else ()
    fields = {field.name: field for field in dataclasses.fields(part) if field.name not in ineffective}
    assert part.name == entry.name
    assert [option.name for option in entry.options] == list(fields)
    for option in entry.options:
        default = fields[option.name].default
        expected = "required" if default is dataclasses.MISSING else str(default)
        assert option.default == expected, option.name
        assert option.sentence == fields[option.name].metadata["sentence"]


@pytest.mark.parametrize("entry", EVERY, ids=named)
def test_every_part_without_a_required_option_can_be_made_by_its_name(entry):
    required = [option.name for option in entry.options if option.default == "required"]
    if required:
        with pytest.raises(UsageError, match=f"needs {required[0]}="):
            catalogue.make(entry.family, entry.name)
    else:
        assert str(catalogue.make(entry.family, entry.name)) == entry.name


def test_options_of_flips_and_of_noises_never_share_a_name():
    """They are written side by side: `uniform:share=0.6,flip=pair,step=-1`."""
    noises = {option.name for entry in catalogue.entries("noises").values() for option in entry.options}
    flips = {option.name: entry.name for entry in catalogue.entries("flips").values() for option in entry.options}
    assert not {name: flips[name] for name in noises & flips.keys()}


def test_published_data_sets_say_whom_to_cite():
    cited = {name for name, entry in catalogue.entries("data").items() if "citation" in entry.facts}
    assert cited == {
        "agnews", "cifar10", "cifar100", "cifar10n", "cifar100n", "clothing1m", "digits", "fashion-mnist",
        "ich", "isic2019", "mnist", "webvision",
    }  # fmt: skip


def test_a_table_with_kind_is_a_spec_too():
    table = {"kind": "shards", "per_client": 3}
    assert catalogue.make("partitions", table) == catalogue.make("partitions", "shards:per_client=3")
    for wrong in ({}, {"kind": 3}, {"per_client": 3}, 7, None):
        with pytest.raises(UsageError, match="a table with a kind"):
            catalogue.make("partitions", wrong)


def test_a_made_part_is_left_as_it_is():
    part = catalogue.make("partitions", "iid")
    assert catalogue.make("partitions", part) is part


@pytest.mark.parametrize("family", catalogue.FAMILIES)
def test_an_unknown_name_lists_what_there_is(family):
    with pytest.raises(UsageError, match=f"unknown {catalogue.FAMILIES[family][0]} 'nonsense'") as caught:
        catalogue.find(family, "nonsense")
    assert all(name in str(caught.value) for name in catalogue.entries(family))


def test_a_third_party_adds_a_part_with_an_entry_point(tmp_path, monkeypatch):
    (tmp_path / "their_parts.py").write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "from fedwinnow.options import option\n"
        "from fedwinnow.scene.partitions.even import Iid\n"
        "from fedwinnow.scene.partition import Partition\n"
        "@dataclass(frozen=True)\n"
        "class Theirs(Partition):\n"
        '    """Everything as iid does it."""\n'
        '    name: ClassVar[str] = "theirs"\n'
        '    level: int = option(2, "A level.")\n'
        "    def split(self, population):\n"
        "        return Iid().split(population)\n"
        "    def describe(self):\n"
        '        return "theirs"\n'
    )
    information = tmp_path / "their_parts-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: their-parts\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[fedwinnow.partitions]\ntheirs = their_parts:Theirs\n")
    monkeypatch.syspath_prepend(tmp_path)
    catalogue.entries.cache_clear()
    try:
        entry = catalogue.find("partitions", "theirs")
        assert entry.summary == "Everything as iid does it."
        assert [option.name for option in entry.options] == ["level"]
        assert str(catalogue.make("partitions", "theirs:level=5")) == "theirs:level=5"
    finally:
        catalogue.entries.cache_clear()


def test_an_installed_part_that_cannot_be_imported_is_named(monkeypatch):
    point = EntryPoint("theirs", "no_such_package:Flip", "fedwinnow.flips")
    monkeypatch.setattr(catalogue, "entry_points", lambda group: [point])
    with pytest.raises(UsageError, match=r"installed flip 'theirs' \(no_such_package:Flip\) cannot be imported"):
        catalogue.entries.__wrapped__("flips")


@pytest.mark.parametrize("written", ["option(0.5)", "option(0.5, sentence='The share.')", "option()"])
def test_an_option_without_a_sentence_is_explained_with_its_line(tmp_path, written):
    path = tmp_path / "mine.py"
    path.write_text(f"class Mine(Method):\n    name = 'mine'\n    keep: float = {written}\n")
    with pytest.raises(UsageError, match=r"mine\.py.*line 3: an option is written option\(default"):
        catalogue.in_file("methods", path)


def test_a_fact_that_is_no_value_is_no_fact(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("class Mine(Method):\n    name = 'mine'\n    facts = {[]: 1}\n")
    assert "facts" not in catalogue.in_file("methods", path).facts
