"""Every row and column of the recipes at the papers' scale, and every shipped config, against what the papers state."""

from __future__ import annotations

import copy
import dataclasses
import tomllib
from pathlib import Path

import pytest

from fedwinnow import catalogue
from fedwinnow.cli import parse
from fedwinnow.commands.run import Run
from fedwinnow.federation.method import find_method
from fedwinnow.flags import shipped
from fedwinnow.options import parse_spec
from fedwinnow.scene.noise import RateNoise, make_noise
from fedwinnow.study.recipes import PAPERS, Recipe, Setting, recipes
from fedwinnow.study.sweep_plan import SETTINGS

STATED = tomllib.loads((Path(__file__).parent / "material" / "papers.toml").read_text(encoding="utf-8"))
NOT_OF_A_PAPER = {"fednoro/fashion-mnist"}  # a miniature of our own
SCENE = {"method", "partition", "noise", "seed"}  # compared part by part, not as texts


def of(paper):
    return [recipe for name, recipe in recipes().items() if name.startswith(f"{paper}-")]


def matches(condition, setting):
    """Whether the words that a `when` names begin those of the column."""
    words = {"data": setting.data, "partition": setting.partition, "noise": setting.noise}
    return all(
        words[key] == word if key == "data" else words[key].startswith(word)
        for key, word in condition.items()
        if key in words
    )


def stated_method(paper, row, setting):
    """What the paper states about a row in a column: the name, other settings of the run, the options."""
    entry = dict(STATED[paper]["methods"][row])
    if "like" in entry:
        base = stated_method(paper, entry.pop("like"), setting)
    else:
        base = {"name": entry["name"], "settings": {}, "options": {}}
    base["name"] = entry.pop("name", base["name"])
    base["settings"] |= entry.pop("settings", {})
    conditions = entry.pop("when", [])
    del entry["source"]
    base["options"] |= entry
    for condition in conditions:
        if matches(condition, setting):
            base["options"] |= {
                key: value for key, value in condition.items() if key not in ("partition", "noise", "data")
            }
    return base


def differences(what, made, stated):
    """The options of a part that are not as stated, and those that are set although nothing is stated about them."""
    values = made.values()
    wrong = [
        f"{what}: {key} is {values.get(key)!r}, stated: {value!r}"
        for key, value in stated.items()
        if not same(key, values, value)
    ]
    extra = parse_spec(str(made))[1].keys() - stated.keys()
    return wrong + [f"{what}: {key} is set to {values[key]!r}, but nothing is stated" for key in sorted(extra)]


def same(key, values, value):
    """Whether an option has the stated value; a part within a part is compared as a part."""
    if key not in values:
        return False
    if key == "loss":
        return catalogue.make("losses", values[key]) == catalogue.make("losses", value)
    return values[key] == value and isinstance(values[key], bool) == isinstance(value, bool)


def wrong_noise(settings, stated, classes):
    made, stated = make_noise(settings["noise"]), dict(stated)
    del stated["source"]
    name, flip = stated.pop("name"), stated.pop("flip", None)
    if made.name != name:
        return [f"noise: {made.name}, stated: {name}"]
    if not isinstance(made, RateNoise):
        return differences("noise", made, stated)
    flips = [str(made.flip_rule()), str(catalogue.make("flips", flip))]
    if classes == 10:  # one of the first ten classes is any class, if there are ten
        flips = [flip.replace("fedcorr_compat", "symmetric_all") for flip in flips]
    wrong = [] if flips[0] == flips[1] else [f"noise: flip {flips[0]}, stated: {flips[1]}"]
    return wrong + differences("noise", dataclasses.replace(made, flip=None), stated)


def wrong_partition(settings, stated):
    made, stated = catalogue.make("partitions", settings["partition"]), dict(stated)
    del stated["source"]
    name = stated.pop("name")
    return differences("partition", made, stated) if made.name == name else [f"partition: {made.name}, stated: {name}"]


def wrong_federation(settings, stated):
    """Clients, rounds, optimiser and the rest, as the paper has them for the data set."""
    stated = dict(stated)
    del stated["source"]
    optimizer = dict(stated.pop("optimizer"))
    made = catalogue.make("optimizers", settings["optimizer"])
    wrong = [] if made.name == optimizer.pop("name") else [f"optimizer: {made.name}"]
    wrong += differences("optimizer", made, optimizer)
    wrong += [
        f"{key} is {settings.get(key)!r}, stated: {value!r}"
        for key, value in stated.items()
        if settings.get(key) != value
    ]
    extra = settings.keys() - stated.keys() - SCENE - {"optimizer"}
    return wrong + [f"{key} is {settings[key]!r}, but nothing is stated" for key in sorted(extra)]


def mistakes(paper, row, setting, settings):
    """Everything in which the settings of a run differ from what the paper states about its row and column."""
    book, method = STATED[paper], stated_method(paper, row, setting)
    federation = {**book["data"][setting.data], **method["settings"]}
    made = find_method(settings["method"])
    if made.name != method["name"]:
        return [f"method: {made.name}, stated: {method['name']}"]
    return [
        *wrong_federation(settings, federation),
        *wrong_partition(settings, book["partitions"][setting.partition]),
        *wrong_noise(settings, book["noises"][setting.noise], 10 if setting.data == "cifar10" else None),
        *differences("method", made, method["options"]),
    ]


def cells(recipe):
    """Row, column and settings of each of a recipe's runs at the paper's scale, once for all seeds."""
    columns = {recipe.label(setting): setting for setting in recipe.settings}
    for job in recipe.plan(Path("x"), "paper", seeds=[0]).jobs:
        yield job.row, columns[job.scene], job.settings


@pytest.mark.parametrize("name", list(recipes()))
def test_every_run_of_a_table_is_set_as_its_paper_states(name):
    recipe, paper = recipes()[name], name.partition("-")[0]
    found = {
        f"{row} | {setting.data}, {setting.partition}, {setting.noise} | {mistake}"
        for row, setting, settings in cells(recipe)
        for mistake in mistakes(paper, row, setting, settings)
    }
    assert not found


@pytest.mark.parametrize("paper", PAPERS)
def test_every_row_and_column_is_stated_with_its_source_and_no_other(paper):
    book, tables = STATED[paper], of(paper)
    settings = [setting for recipe in tables for setting in recipe.settings]
    assert book["methods"].keys() == {row for recipe in tables for row in recipe.rows}
    assert book["data"].keys() == {setting.data for setting in settings}
    assert book["partitions"].keys() == {setting.partition for setting in settings}
    assert book["noises"].keys() == {setting.noise for setting in settings}
    for kind in ("methods", "data", "partitions", "noises"):
        assert all(entry["source"] for entry in book[kind].values())
    seeds = tables[0].book["seeds"]["paper"]
    assert book["seeds_source"]
    assert seeds == book["seeds"] if isinstance(book["seeds"], list) else len(seeds) == book["seeds"]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_condition_is_met_somewhere(paper):
    """A `when` that no column meets would be a statement that nothing holds anybody to."""
    settings = {setting for recipe in of(paper) for setting in recipe.settings}
    for row, entry in STATED[paper]["methods"].items():
        for condition in entry.get("when", []):
            assert any(matches(condition, setting) for setting in settings), (row, condition)


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_config_is_set_as_its_paper_states(name):
    if name in NOT_OF_A_PAPER:
        assert name not in STATED["configs"]
        return
    entry = STATED["configs"][name]
    setting = Setting(entry["data"], entry["partition"], entry["noise"])
    run = parse(Run, "run", ["--config", name])
    written = tomllib.loads(shipped()[name].read_text(encoding="utf-8")).keys()
    settings = {key: getattr(run, key) for key in SETTINGS if key in written}
    assert not mistakes(entry["paper"], entry["row"], setting, settings)


# --- would it notice? -----------------------------------------------------------------------------------------------

# Settings that recipes once had, and others a little off.
WRONG = [
    ("fedgr-table-1", "methods", "coteaching", "coteaching", "forget_rate is 0.2, stated: 0.75"),
    ("fedgr-table-1", "methods", "coteaching", "coteaching:forget_rate=0.75,ramp=100", "ramp is 100"),
    ("fedgr-table-1", "methods", "fednoro", "fednoro:preset=code,warm_up=50", "warm_up is 50"),
    ("fedgr-table-2", "methods", "fedcorr", "fedcorr:preset=code", "passes is None, stated: 10"),
    ("fedgr-table-3", "methods", "dividemix", "dividemix", "warm_up is None, stated: 100"),
    (
        "feddiv-table-5",
        "methods",
        "fedcorr",
        "fedcorr:passes=2,fine_tune_rounds=50",
        "relabel_ratio is 0.5, stated: 0.8",
    ),
    ("fednoro-table-1", "methods", "fedcorr[la]", "fedcorr:loss=logit_adjustment,mixup=0", "mixup is 0.0, stated: 1.0"),
    ("fednoro-table-1", "methods", "rofl", "rofl:forget=0.3", "forget is set to 0.3, but nothing is stated"),
    ("fedrn-table-3", "methods", "selfie", "selfie", "warm_up is None, stated: 100"),
    ("fedes-table-1", "methods", "sce", "sce:loss=sce:alpha=1", "loss is"),
    ("fedes-table-1", "methods", "fedavg", "fedprox", "method: fedprox, stated: fedavg"),
    ("feddiv-table-3", "noises", "uniform rho=0.4 tau=0.5", "fedcorr:rho=0.4,tau=0.5", "flip symmetric_all"),
    ("fedgr-table-1", "noises", "clean", "uniform:low=0,high=1", "noise: uniform, stated: none"),
    ("fedrn-table-2", "noises", "asym linear 0.0-0.4", "linear:low=0,high=0.4,flip=pair", "flip pair, stated"),
    ("fedrn-table-2", "noises", "sym linear 0.0-0.4", "linear:low=0.1,high=0.4", "low is 0.1"),
]


@pytest.mark.parametrize(("name", "kind", "word", "value", "words"), WRONG)
def test_a_wrong_row_or_column_is_noticed(name, kind, word, value, words):
    recipe = recipes()[name]
    book = copy.deepcopy(recipe.book)
    entry = recipe.book[kind][word]
    book[kind][word] = {**entry, "noise": value} if kind == "noises" and isinstance(entry, dict) else value
    changed = Recipe(name, recipe.table, book, recipe.cells)
    found = [
        mistake
        for row, setting, settings in cells(changed)
        if word in (row, setting.noise)
        for mistake in mistakes(name.partition("-")[0], row, setting, settings)
    ]
    assert any(words in mistake for mistake in found), found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rounds", 400),
        ("participation", 0.2),
        ("optimizer", "sgd:lr=0.1"),
        ("model", "lenet"),
        ("views", "none"),
        ("test", 0.3),
    ],
)
def test_a_wrong_federation_is_noticed(key, value):
    recipe = recipes()["feddiv-table-2"]
    book = copy.deepcopy(recipe.book)
    book["data"]["cifar10"]["paper"][key] = value
    row, setting, settings = next(cells(Recipe(recipe.name, recipe.table, book, recipe.cells)))
    assert mistakes("feddiv", row, setting, settings)


def test_a_wrong_partition_is_noticed():
    recipe = recipes()["fedrn-table-2"]
    book = copy.deepcopy(recipe.book)
    book["partitions"]["dirichlet beta=0.5"]["partition"] = "dirichlet:alpha=0.5,cap=false"
    changed = Recipe(recipe.name, recipe.table, book, recipe.cells)
    noticed = {setting.partition for row, setting, made in cells(changed) if mistakes("fedrn", row, setting, made)}
    assert noticed == {"dirichlet beta=0.5"}
