"""The grammar `name:key=value`, and parts that check their own values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwinnow.errors import UsageError
from fedwinnow.options import LARGEST, Part, build, format_spec, option, parse_spec


@dataclass(frozen=True)
class Sample(Part):
    """A part with an option of every type."""

    name: ClassVar[str] = "sample"
    count: int = option(3, "A count.", at_least=1, at_most=9)
    share: float = option(0.5, "A share.", above=0)
    deep: bool = option(False, "A switch.")
    word: str = option("a", "A text.")
    mode: Literal["slow", "fast"] = option("slow", "A choice.")
    step: Literal[1, -1] = option(1, "A number to choose.")
    limit: int | None = option(None, "Perhaps a limit.")
    path: Path | None = option(None, "Perhaps a path.")


def made(spec: str) -> Sample:
    return build("thing", Sample, dict(parse_spec(spec)[1]))


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("iid", "iid", {}),
        (" iid : ", "iid ", {}),
        ("a:b=1,c=2", "a", {"b": "1", "c": "2"}),
        ("a: b = 1 , c = 2 ", "a", {"b": "1", "c": "2"}),
        ("a:b-c=1", "a", {"b_c": "1"}),
        ("a:path=x=y", "a", {"path": "x=y"}),
        ("a:path=C:/x.csv", "a", {"path": "C:/x.csv"}),
        ("C:\\x\\my.py:b=1", "C:\\x\\my.py", {"b": "1"}),
        ("d:/x/my.py", "d:/x/my.py", {}),
        ('a:label="one, two",b=3', "a", {"label": "one, two", "b": "3"}),
        ("a:label='say \"x\"'", "a", {"label": 'say "x"'}),
        ("a:label=it's", "a", {"label": "it's"}),
        ("a:label=", "a", {"label": ""}),
    ],
)
def test_the_grammar(text, name, values):
    assert parse_spec(text) == (name, values)


@pytest.mark.parametrize("text", ["", ":", ":a=1", "a:b", "a:=1", "a:b=1,,c=2", "a:b=1,b=2", 'a:b="1', "a:b=1,"])
def test_what_is_not_the_grammar(text):
    with pytest.raises(UsageError):
        parse_spec(text)


plain = st.text(st.characters(exclude_characters="\"'\0", exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]))


@given(st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True), plain | st.integers() | st.booleans()))
def test_what_is_written_is_read_back(values):
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in values.items()}
    assert parse_spec(format_spec("name", values)) == ("name", texts)


def test_every_type_is_read_from_text():
    part = made("sample:count=4,share=1e-3,deep=yes,word=3,mode=fast,step=-1,limit=7,path=a/b")
    assert part.values() == {
        "count": 4,
        "share": 0.001,
        "deep": True,
        "word": "3",
        "mode": "fast",
        "step": -1,
        "limit": 7,
        "path": Path("a/b"),
    }
    assert made("sample:limit=none").limit is None
    assert math.isinf(made("sample:share=inf").share)


def test_a_part_writes_the_shortest_spec_that_makes_it_again():
    assert str(made("sample:count=3")) == "sample"
    part = made("sample:count=4,deep=true,path='a,b'")
    assert str(part) == 'sample:count=4,deep=true,path="a,b"'
    assert made(str(part)) == part


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sample:count=0", "at least 1 and at most 9"),
        ("sample:count=10", "at most 9"),
        ("sample:count=1.5", "a whole number"),
        ("sample:count=", "a whole number"),
        ("sample:limit=1" + "0" * 400, f"at most {LARGEST}"),
        ("sample:share=0", "above 0"),
        ("sample:share=nan", "a number"),
        ("sample:share=half", "a number"),
        ("sample:deep=perhaps", "true or false"),
        ("sample:mode=fats", "Did you mean 'fast'"),
        ("sample:step=2", "-1, 1"),
        ("sample:cuont=2", "Did you mean 'count'"),
        ("sample:count=none", "a whole number"),
        ("sample:path=", "a path"),
        ("sample:path=a\0", "a path"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(spec, message):
    with pytest.raises(UsageError, match=message):
        made(spec)


@pytest.mark.parametrize(("key", "value"), [("count", True), ("count", 2.5), ("share", True), ("word", ["a"])])
def test_typed_values_are_checked_as_well(key, value):
    with pytest.raises(UsageError, match=key):
        build("thing", Sample, {key: value})


def test_whole_floats_and_numbers_as_text_are_taken():
    assert build("thing", Sample, {"count": 2.0, "word": 5}).values()["word"] == "5"


def test_a_required_option_is_asked_for_with_an_example():
    @dataclass(frozen=True)
    class Needy(Part):
        """A part that needs a path."""

        name: ClassVar[str] = "needy"
        path: Path = option(..., "The file.")

    with pytest.raises(UsageError, match=r"needs path=.*The file.*needy:path=file"):
        build("thing", Needy, {})


def test_none_may_be_a_word_of_its_own():
    @dataclass(frozen=True)
    class Choosy(Part):
        """A part in which none is a choice and leaving it out is another."""

        name: ClassVar[str] = "choosy"
        preset: Literal["one", "two"] = option("one", "A preset.")
        mode: Literal["none", "all"] | None = option(
            None, "By preset unless given.", presets={"one": "all", "two": "none"}
        )

    assert build("part", Choosy, {}).mode == "all"
    assert build("part", Choosy, {"preset": "two"}).mode == "none"
    chosen = build("part", Choosy, {"mode": "none"})
    assert chosen.mode == "none"
    assert str(chosen) == "choosy:mode=none"


@dataclass(frozen=True)
class ByPreset(Part):
    """A part with options that have their value from a preset."""

    name: ClassVar[str] = "by_preset"
    preset: Literal["paper", "code"] = option("paper", "A preset.")
    steps: int = option(None, "By preset unless given.", at_least=1, presets={"paper": 10, "code": 50})
    quick: bool = option(None, "By preset unless given.", presets={"paper": False, "code": True})


def test_an_option_of_a_preset_has_its_value_where_none_is_given():
    assert ByPreset(steps=None, quick=None) == ByPreset() == build("part", ByPreset, {"steps": None, "quick": None})
    assert build("part", ByPreset, {"preset": "code"}).values() == {"preset": "code", "steps": 50, "quick": True}
    assert str(ByPreset(preset="code", steps=10)) == "by_preset:preset=code,steps=10"


@pytest.mark.parametrize(("text", "allowed"), [("steps=none", "a whole number"), ("quick=none", "true or false")])
def test_none_is_no_value_of_an_option_of_a_preset(text, allowed):
    with pytest.raises(UsageError, match=f"{text} was given; allowed: {allowed}"):
        build("part", ByPreset, parse_spec(f"by_preset:{text}")[1])


@pytest.mark.parametrize(("key", "value"), [("mode", "fats"), ("step", 2), ("count", 2.5), ("deep", "perhaps")])
def test_a_part_made_in_python_is_checked_as_well(key, value):
    with pytest.raises(UsageError, match=f"sample: {key}"):
        Sample(**{key: value})


def test_texts_in_python_are_read_as_on_the_command_line():
    assert Sample(path="a/b", count="4", step="-1", deep="yes") == made("sample:path=a/b,count=4,step=-1,deep=true")


@pytest.mark.parametrize("share", [1 / 3, 0.1 + 0.2, 1e-17, 0.1, 1e22])
def test_no_digit_of_a_number_is_lost(share):
    assert made(str(Sample(share=share))).share == share


@pytest.mark.skipif(Path("a\\b").name == "b", reason="here a backslash is no letter of a file's name")
def test_a_backslash_may_be_a_letter_of_a_name():
    part = Sample(path=Path("a\\b"))
    assert made(str(part)) == part
