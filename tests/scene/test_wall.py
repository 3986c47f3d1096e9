"""What a scene shows of one site leads to no true label."""

from __future__ import annotations

import gc
import sys

import numpy as np

from fedwinnow.scene.scene import Scene, SceneSite

PROGRAM = (type(sys), type, type(lambda: 0))  # modules, classes and functions are code, not data


def reachable(start: object) -> list[object]:
    """Every object that can be reached by following references, code apart."""
    seen: dict[int, object] = {}
    waiting = [start]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, PROGRAM):
            continue
        seen[id(thing)] = thing
        waiting += gc.get_referents(thing)
    return list(seen.values())


def test_a_site_leads_to_no_truth():
    scene = Scene.make("digits", clients=3, noise="constant:rate=0.5")
    site = scene.site(1)
    truth = scene.true[scene.holdings.of(1)]
    assert (truth != site.given).any()
    for thing in reachable(site):
        assert not isinstance(thing, Scene)
        if isinstance(thing, np.ndarray) and thing.ndim == 1 and np.issubdtype(thing.dtype, np.integer):
            assert len(thing) != len(truth) or not np.array_equal(thing, truth)
            assert len(thing) != len(scene.true) or not np.array_equal(thing, scene.true)


def test_the_search_would_find_a_leak():
    scene = Scene.make("digits", clients=3, noise="constant:rate=0.5")
    assert any(thing is scene.true for thing in reachable({"nested": [scene]}))


def test_a_site_has_no_more_than_it_says():
    assert set(SceneSite.__slots__) == {"number", "name", "features", "given", "ids", "class_names", "groups"}


def test_changing_a_site_does_not_change_the_scene():
    scene = Scene.make("digits", clients=3)
    before = scene.given.copy()
    scene.site(0).given[:] = 0
    assert (scene.given == before).all()
