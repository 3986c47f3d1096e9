"""What methods and scenes are called in print, and that colours stay with methods."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedwinnow import catalogue
from fedwinnow.method_names import TITLES, method_of, title_of
from fedwinnow.study.method_styles import COLOURS, method_styles
from fedwinnow.study.scene_words import scene_in_words

PAGES = Path(__file__).parents[2] / "docs" / "methods"


def test_every_method_is_called_as_on_its_page():
    # The installed test packages may bring methods of their own, which are in no folder of fedwinnow.
    own = {name for name, entry in catalogue.entries("methods").items() if entry.module.startswith("fedwinnow.")}
    assert own == set(TITLES)
    for name, title in TITLES.items():
        assert (PAGES / f"{name}.md").read_text(encoding="utf-8").splitlines()[0] == f"# {title}"


@pytest.mark.parametrize(
    ("row", "title", "method"),
    [
        ("feddiv", "FedDiv", "feddiv"),
        ("feddiv:passes=2,eta=1", "FedDiv (passes=2, eta=1)", "feddiv"),
        ("feddiv[no-pcs]", "FedDiv (no-pcs)", "feddiv"),
        ("FedDiv", "FedDiv", "feddiv"),
        ("s-fedavg[indicator]", "S-FedAvg (indicator)", "s_fedavg"),
        ("fedla", "Logit adjustment (FedLA)", "logit_adjustment"),
        ("FedAvg, crop and flip", "FedAvg, crop and flip", "FedAvg, crop and flip"),
        ("./my_method.py:keep=0.5", "my_method (keep=0.5)", "./my_method.py"),
        ("theirs:mu=1", "theirs:mu=1", "theirs:mu=1"),
        ("gce:", "GCE", "gce"),
        ("x=1,,:", "x=1,,:", "x=1,,:"),
    ],
)
def test_titles(row, title, method):
    assert (title_of(row), method_of(row)) == (title, method)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("iid, constant:rate=0.4", "symmetric 40 %, IID sites"),
        ("dirichlet:alpha=0.3, constant:rate=0.2,flip=pair", "pair 20 %, Dirichlet(0.3) sites"),
        ("iid, no noise", "no noise, IID sites"),
        ("iid, uniform:share=0.5,low=0.4,high=0.6", "symmetric 40 to 60 % at 50 % of sites, IID sites"),
        ("iid, constant:rate=0.4,select=independent", "symmetric 40 % (select=independent), IID sites"),
        ("cifar10:train=200, clients=5", "CIFAR-10 (train=200), 5 sites"),
        ("rounds=5", "rounds 5"),
        ("heavy, as in the clinic", "heavy, as in the clinic"),
        ("all runs", "all runs"),
        ("constant:rate=much", "constant:rate=much"),
        ("human", "human"),
        ("linear:low=0,high=0.4,flip=pair:step=-1", "pair (class before) 0 to 40 %, growing by site"),
        (
            'linear:low=0,high=0.4,flip="mixed:reading=halves,asymmetric=pair:step=-1"',
            "first half symmetric, others pair (class before), 0 to 40 %, growing by site",
        ),
    ],
)
def test_scenes_in_words(name, words):
    assert scene_in_words(name) == words


def test_different_scenes_have_different_words():
    flips = ("symmetric", "symmetric_all", "fedcorr_compat", "pair", "asymmetric", "asymmetric_cyclic", "mixed")
    specs = ["iid", "dirichlet:alpha=0.5", "fedrn_dirichlet_compat:beta=0.5", "shards", "classes", "quantity"]
    specs += [f"constant:rate={rate},flip={flip}" for rate in (0.2, 0.4) for flip in flips]
    specs += [
        "constant:rate=0.4,local=true",
        "constant:rate=0.4,flip=matrix,file=a.csv",
        "linear:reach=false",
        "linear",
    ]
    assert len({scene_in_words(spec) for spec in specs}) == len(specs)


def test_a_colour_stays_with_its_method():
    few = method_styles(["feddiv", "gce"])
    many = method_styles(list(TITLES))
    assert few["gce"] == many["gce"]
    assert few["feddiv"] == many["feddiv"] == method_styles(["feddiv:eta=1", "gce"])["feddiv:eta=1"]
    both = method_styles(["feddiv:eta=1", "feddiv", "fedrn[k=2]"])
    assert both["feddiv"] == many["feddiv"]
    assert both["feddiv:eta=1"] != many["feddiv"]
    assert both["fedrn[k=2]"] == many["fedrn"]
    assert both == method_styles(["fedrn[k=2]", "feddiv", "feddiv:eta=1"])  # whatever the order


@pytest.mark.parametrize("rows", [list(TITLES), [f"fedrn:neighbours={one}" for one in range(40)]])
def test_no_two_methods_look_alike(rows):
    styles = method_styles(rows)
    assert len({style.colour for style in styles.values()}) == len(rows)
    assert len(set(COLOURS)) == len(COLOURS)
    main = list(method_styles(list(TITLES)[:32]).values())
    assert len({(style.dashes, style.mark) for style in main}) == 32
