"""What a program hands over instead of words: data in many forms, scenes, methods, losses; and what a change does."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.nn import functional

import fedwinnow
from fedwinnow import Method, Scene
from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.from_program import understood_data
from fedwinnow.errors import DataError, FedwinnowWarning, RunError, StaleError, UsageError
from fedwinnow.experiment.handed_over import method_with
from fedwinnow.mathematics.optimizers import Sgd
from fedwinnow.methods.fedprox import FedProx
from fedwinnow.options import option
from fedwinnow.testing import comparable, toy_data

RANDOM = np.random.default_rng(0)
Y = np.arange(90) % 3
X = (RANDOM.normal(size=(90, 4)) + Y[:, None]).astype(np.float32)
SITES = np.array(["north", "south", "west"])[np.arange(90) // 30]
SMALL = {"clients": 3, "participation": 1.0, "rounds": 2, "epochs": 1, "model": "linear", "optimizer": "sgd:lr=0.1"}


class Frame:
    """As much of a data frame as is used."""

    def __init__(self, columns):
        self.table = dict(columns)

    @property
    def columns(self):
        return list(self.table)

    def items(self):
        return self.table.items()

    def __len__(self):
        return len(next(iter(self.table.values())))


FRAME = Frame({name: X[:, place] for place, name in enumerate("abcd")} | {"sort": Y.astype(str), "hospital": SITES})


class Items(torch.utils.data.Dataset):
    """A data set of torch, which counts how often it is asked."""

    def __init__(self, x, y):
        self.x, self.y, self.asked = x, y, 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        self.asked += 1
        return self.x[place], self.y[place]


def run(folder, **settings):
    return fedwinnow.run(out=folder, **{**SMALL, **settings})


def same(one, other) -> bool:
    return comparable(one.folder) == comparable(other.folder)


# --- data ----------------------------------------------------------------------------------------------------------


def test_a_pair_is_the_data_set_of_its_arrays(tmp_path):
    assert same(run(tmp_path / "a", data=(X, Y)), run(tmp_path / "b", data=from_arrays(X, Y)))


def test_a_pair_may_have_a_test_part():
    for data in ((X[:60], Y[:60], X[60:], Y[60:]), ((X[:60], Y[:60]), (X[60:], Y[60:]))):
        dataset = understood_data(data)
        assert (len(dataset.train), len(dataset.test)) == (60, 30)


def test_a_data_set_of_torch_is_read_once_and_is_its_arrays(tmp_path):
    items = Items(torch.from_numpy(X), Y.tolist())
    assert same(run(tmp_path / "a", data=items), run(tmp_path / "b", data=from_arrays(X, Y, name="Items")))
    assert items.asked == 90 + 1  # the first one tells the shape


def test_two_data_sets_of_torch_are_a_training_and_a_test_part(tmp_path):
    parts = Items(torch.from_numpy(X[:60]), Y[:60].tolist()), Items(torch.from_numpy(X[60:]), Y[60:].tolist())
    arrays = from_arrays(X[:60], Y[:60], x_test=X[60:], y_test=Y[60:], name="Items")
    wanted = run(tmp_path / "a", data=arrays)
    for place, given in enumerate((parts, list(parts), {"train": parts[0], "test": parts[1]})):
        assert same(run(tmp_path / str(place), data=given), wanted)
    halves = torch.utils.data.random_split(Items(torch.from_numpy(X), Y.tolist()), [0.5, 0.5])
    halves[0].dataset.classes = ["a", "b", "c"]
    dataset = understood_data(halves, site=np.arange(45) % 3)
    assert (dataset.class_names, len(dataset.train), len(dataset.test)) == (("a", "b", "c"), 45, 45)
    with pytest.raises(DataError, match=r"test part have the shape \(3,\), those of the other \(4,\)"):
        understood_data((Items(X, Y), Items(X[:, :3], Y)))


def test_images_of_torch_have_their_channels_first():
    bytes_ = RANDOM.integers(0, 256, (12, 5, 6, 3), dtype=np.uint8)
    floats = [torch.from_numpy(image).permute(2, 0, 1).float() / 255 for image in bytes_]
    dataset = understood_data(Items(floats, (np.arange(12) % 2).tolist()))
    assert dataset.kind == "images"
    assert (dataset.train.features.take(np.arange(12)) == bytes_).all()


def test_images_of_pillow_and_the_names_of_classes():
    pillow = pytest.importorskip("PIL.Image")
    items = Items([pillow.new("RGB", (6, 5), (place, 0, 9)) for place in range(4)], [0, 2, 0, 2])
    items.classes = ["cat", "unused", "dog"]
    dataset = understood_data(items)
    assert dataset.sample_shape == (5, 6, 3)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train.labels.tolist() == [0, 1, 0, 1]


def test_a_frame_is_the_table_that_it_could_be_saved_as(tmp_path):
    rows = zip(*(map(str, column.tolist()) for _, column in FRAME.items()), strict=True)
    (tmp_path / "t.csv").write_text("\n".join([",".join(FRAME.columns), *map(",".join, rows)]) + "\n")
    found = run(tmp_path / "a", data=FRAME, label="sort", site="hospital")
    saved = run(tmp_path / "b", data=tmp_path / "t.csv", label="sort", site="hospital")
    assert found.scene.site_names == ("north", "south", "west")
    assert found.curve()[1].tolist() == saved.curve()[1].tolist()
    files = ("state.safetensors", "clients.csv", "verdicts.npz")
    assert all((found.folder / one).read_bytes() == (saved.folder / one).read_bytes() for one in files)
    assert found.predict(Frame({name: X[:5, place] for place, name in enumerate("abcd")})).shape == (5,)


def test_columns_may_also_be_values():
    columns = {name: X[:, place] for place, name in enumerate("abcd")}
    dataset = understood_data(Frame(columns), label=Y, site=SITES, group=np.arange(90) // 2)
    assert dataset.train.sites.tolist() == SITES.tolist()
    assert len(set(dataset.train.groups.tolist())) == 45
    assert understood_data((Frame(columns), Y)).sample_shape == (4,)
    assert understood_data((X, Y), site=SITES).train.sites.tolist() == SITES.tolist()


class ClassLabel:
    names = ("a", "b", "c")


class Value:
    dtype = "float32"


class Text:
    dtype = "string"


Text.__name__ = "Value"


class Split:
    """As much of a data set of Hugging Face as is used."""

    def __init__(self, rows=90):
        self.table = {"x": X[:rows, 0].tolist(), "y": X[:rows, 1].tolist(), "kind": Y[:rows].tolist()}
        self.table["clinic"] = SITES[:rows].tolist()
        self.features = {"x": Value(), "y": Value(), "kind": ClassLabel(), "clinic": Text()}
        self.column_names = list(self.features)

    def __len__(self):
        return len(self.table["x"])

    def __getitem__(self, name):
        return self.table[name]


def test_a_data_set_of_hugging_face_is_known_by_what_it_can_do():
    dataset = understood_data(Split(), site="clinic")
    assert dataset.class_names == ("a", "b", "c")
    assert dataset.sample_shape == (2,)
    assert dataset.train.sites.tolist() == SITES.tolist()
    both = understood_data({"train": Split(), "test": Split(30)}, site="clinic")
    assert len(both.test) == 30
    assert len(understood_data((Split(), Split(30)), site="clinic").test) == 30


def test_floats_are_kept_in_256_levels_wherever_their_channels_are():
    bytes_ = RANDOM.integers(0, 256, (20, 8, 7, 3), dtype=np.uint8)
    labels = np.arange(20) % 2
    for x in (bytes_ / 255, (bytes_ / 255).transpose(0, 3, 1, 2), torch.from_numpy(bytes_ / 255).float()):
        assert (understood_data((x, labels)).train.features.take(np.arange(20)) == bytes_).all()
    assert understood_data((bytes_[..., 0] / 255, labels)).sample_shape == (8, 7, 1)
    assert understood_data((bytes_[..., 0].astype(int), labels)).kind == "images"
    with pytest.warns(FedwinnowWarning, match="rounded to multiples of 1/255"):
        understood_data((RANDOM.random((20, 8, 7)), labels))


@pytest.mark.parametrize(
    ("data", "roles", "words"),
    [
        ([X, Y], {}, r"type list was given; give a tuple: \(x, y\)"),
        (X, {}, r"samples need labels: \(x, y\)"),
        ((X, Y, X), {}, "a tuple of 3 was given"),
        (torch.utils.data.DataLoader(Items(X, Y)), {}, r"loader\.dataset"),
        ((X, Y), {"label": "sort"}, "label= was given beside"),
        (toy_data(), {"site": "hospital"}, "site= was given beside a Dataset"),
        (FRAME, {}, "label= is missing, the column of the labels; the columns are: a, b"),
        (FRAME, {"label": "sorte"}, "Did you mean 'sort'"),
        (FRAME, {"label": Y[:5]}, "a value for each"),
        (Items([], []), {}, "has no samples"),
        (Items(X[:, :0], Y), {}, "no sample in it"),
        (Items([X[0], X[1][:2]], [0, 1]), {}, "item 1 of the torch Dataset is an array of the shape"),
        (Items(torch.zeros(4, 5, dtype=torch.int64), [0, 1, 0, 1]), {}, "may be numbers or token ids"),
        (Items(X, Y[:, None].repeat(2, 1)), {}, "one class, as a whole number or a text"),
        (Items(["a", "b"], [0, 1]), {}, "allowed: a tensor or an array"),
        (Scene.make("digits:train=60", clients=2), {}, "give it as scene="),
        (object(), {}, "an object of the type object was given; allowed as data"),
    ],
)
def test_what_cannot_be_data_is_answered(data, roles, words):
    with pytest.raises((UsageError, DataError), match=words):
        fedwinnow.run(data=data, **SMALL, **roles)


def test_items_that_are_no_pairs_are_refused():
    class Alone(Items):
        def __getitem__(self, place):
            return {"x": 1}

    with pytest.raises(DataError, match=r"item 0 of the torch Dataset is a dict; allowed: a pair"):
        understood_data(Alone(X, Y))


def test_other_values_are_other_data(tmp_path):
    run(tmp_path, data=(X, Y))
    with pytest.raises(StaleError, match=r"the values of arrays have changed since this run was made.*redo=True"):
        run(tmp_path, data=(X + 0.001, Y))
    assert run(tmp_path, data=(X + 0.001, Y), redo=True).summary["status"] == "finished"


# --- scenes --------------------------------------------------------------------------------------------------------


def test_a_scene_is_played_as_its_folder_is(tmp_path):
    scene = Scene.make("digits:train=60", clients=3, noise="constant:rate=0.3", seed=4)
    scene.save(tmp_path / "scene")
    few = {name: value for name, value in SMALL.items() if name != "clients"}
    one, other = (
        fedwinnow.run(out=tmp_path / name, scene=given, **few)
        for name, given in (("a", scene), ("b", tmp_path / "scene"))
    )
    files = ("state.safetensors", "scene.npz", "scene.json", "clients.csv", "verdicts.npz")
    assert all((one.folder / name).read_bytes() == (other.folder / name).read_bytes() for name in files)
    again = fedwinnow.run(out=tmp_path / "a", scene=Scene.load(tmp_path / "scene"), **few)
    assert again.summary == one.summary
    with pytest.raises(UsageError, match=r"scene \(.*there, .*now\)"):
        fedwinnow.run(out=tmp_path / "a", scene=Scene.make("digits:train=60", clients=3, seed=5), **few)


def test_a_scene_has_decided_what_it_holds(tmp_path):
    scene = Scene.make((X, Y), site=SITES)
    assert scene.site_names == ("north", "south", "west")
    with pytest.raises(UsageError, match=r"noise=constant:rate=0\.1 was given beside a saved scene"):
        fedwinnow.run(scene=scene, noise="constant:rate=0.1")
    with pytest.raises(UsageError, match="site= was given beside a scene"):
        fedwinnow.run(scene=scene, site="hospital")
    with pytest.raises(UsageError, match="scene= was given an object of the type int"):
        fedwinnow.run(scene=3)


# --- methods and losses --------------------------------------------------------------------------------------------


def test_a_class_is_its_method_with_its_defaults(tmp_path):
    by_name = run(tmp_path / "a", data=(X, Y), method="fedprox")
    assert same(run(tmp_path / "b", data=(X, Y), method=FedProx), by_name)
    with pytest.raises(UsageError, match="the class dict was given as the method, but does not derive from Method"):
        run(tmp_path / "c", data=(X, Y), method=dict)


def test_a_method_that_only_the_program_has_still_predicts(tmp_path):
    @dataclass(frozen=True)
    class Half(Method):
        name: ClassVar[str] = "half"
        share: float = option(0.5, "How much of the loss counts.", above=0)

        def objective(self, client, rows, x, y, got):
            return self.share * super().objective(client, rows, x, y, got)

    result = run(tmp_path, data=(X, Y), method=Half(share=0.3))
    assert result.predict(X).shape == (90,)
    assert fedwinnow.load(tmp_path, method=Half(share=0.3)).predict(X).tolist() == result.predict(X).tolist()
    with pytest.raises(UsageError, match=r"was made by a program, give it again: fedwinnow\.load\(RUN, method="):
        fedwinnow.load(tmp_path).predict(X)


def focal(logits, target):
    losses = functional.cross_entropy(logits, target, reduction="none")
    return (1 - (-losses).exp()) ** 2 * losses


@pytest.mark.parametrize(
    "loss",
    [
        functional.cross_entropy,
        torch.nn.CrossEntropyLoss(),
        lambda logits, target: functional.cross_entropy(logits, target, reduction="none"),
        lambda logits, target, class_counts: functional.cross_entropy(logits, target),
    ],
)
def test_cross_entropy_in_any_form_is_cross_entropy(tmp_path, loss):
    plain, own = run(tmp_path / "a", data=(X, Y)), run(tmp_path / "b", data=(X, Y), loss=loss)
    assert own.curve("macro_f1")[1] == pytest.approx(plain.curve("macro_f1")[1])
    state = (tmp_path / "a" / "verdicts.npz", tmp_path / "b" / "verdicts.npz")
    assert np.load(state[0])["loss"] == pytest.approx(np.load(state[1])["loss"], abs=1e-5)


def test_a_loss_of_ones_own_is_what_is_trained(tmp_path):
    """One step from known weights: w - lr * gradient of the loss."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    before = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    logits = torch.func.functional_call(model, before, torch.from_numpy(X))
    gradient = torch.autograd.grad(focal(logits, torch.from_numpy(Y)).mean(), list(before.values()))
    one = {"clients": 1, "batch_size": 90, "rounds": 1, "test": 0.0, "optimizer": "sgd:lr=0.5,momentum=0"}
    result = run(tmp_path, data=(X, Y), model=model, method="fedavg", loss=focal, **one)
    found = dict(result.model.models[0].named_parameters())
    for (name, value), slope in zip(before.items(), gradient, strict=True):
        assert torch.allclose(found[name], value - 0.5 * slope, atol=1e-6)


@pytest.mark.parametrize("method", ["winnow", "winnow:preset=second"])
def test_a_loss_may_replace_that_of_a_preset(method):
    assert method_with(method, "gce").loss == "gce"
    with pytest.raises(UsageError, match="names a loss already"):
        method_with(f"{method},loss=logit_adjustment" if ":" in method else f"{method}:loss=logit_adjustment", "gce")


def test_a_loss_is_an_option_of_every_method_that_has_one(tmp_path):
    own = run(tmp_path / "a", data=(X, Y), method=FedProx(mu=0.3, loss=focal))
    assert same(own, run(tmp_path / "b", data=(X, Y), method="fedprox:mu=0.3", loss=focal))
    assert own.summary["method"] == "fedprox:loss=focal,mu=0.3"
    named = run(tmp_path / "c", data=(X, Y), method="fedavg", loss="gce:q=0.5")
    assert same(named, run(tmp_path / "d", data=(X, Y), method="fedavg:loss=gce:q=0.5"))
    with pytest.raises(UsageError, match="names a loss already"):
        run(tmp_path / "e", data=(X, Y), method="fedavg:loss=gce", loss=focal)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (torch.nn.CrossEntropyLoss, r"make it first: CrossEntropyLoss\(\)"),
        (lambda logits: 0, r"takes \(logits\); allowed: loss\(logits, target\)"),
        (3, "3 was given as a loss"),
    ],
)
def test_what_cannot_be_a_loss_is_answered(loss, words):
    with pytest.raises(UsageError, match=words):
        fedwinnow.run(data=(X, Y), loss=loss)


def test_what_a_loss_returns_is_checked(tmp_path):
    with pytest.raises(RunError, match=r"the loss lambda returned something \(float\); allowed: one number for each"):
        run(tmp_path, data=(X, Y), loss=lambda logits, target: 1.0)


def test_a_changed_loss_or_method_makes_the_run_stale(tmp_path):
    def made(power):
        def own(logits, target):
            return functional.cross_entropy(logits, target, reduction="none") ** power

        return own

    run(tmp_path, data=(X, Y), loss=made(2))
    assert run(tmp_path, data=(X, Y), loss=made(2)).summary["status"] == "finished"
    with pytest.raises(StaleError, match=r"own has changed since this run was made.*redo=True"):
        run(tmp_path, data=(X, Y), loss=made(3))


# --- optimisers ----------------------------------------------------------------------------------------------------

NOWHERE = [torch.nn.Parameter(torch.zeros(1))]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (torch.optim.SGD(NOWHERE, lr=0.2, momentum=0.9), "sgd:lr=0.2,momentum=0.9"),
        (torch.optim.SGD, "sgd:lr=0.001,momentum=0"),
        (functools.partial(torch.optim.SGD, lr=0.2, weight_decay=1e-4), "sgd:lr=0.2,weight_decay=0.0001,momentum=0"),
        (
            lambda parameters: torch.optim.Adam(parameters, lr=0.01, betas=(0.8, 0.9)),
            "adam:lr=0.01,beta1=0.8,beta2=0.9",
        ),
        (torch.optim.AdamW(NOWHERE), "adamw"),
        (torch.optim.AdamW(NOWHERE, lr=0.01, weight_decay=0.1), "adamw:lr=0.01,weight_decay=0.1"),
        (Sgd(lr=0.2), "sgd:lr=0.2"),
        (Sgd, "sgd"),
        ({"kind": "sgd", "lr": 0.2}, "sgd:lr=0.2"),
    ],
)
def test_an_optimizer_is_the_text_that_names_it(tmp_path, given, words):
    by_object, by_text = (
        run(tmp_path / name, data=(X, Y), optimizer=one) for name, one in (("a", given), ("b", words))
    )
    assert same(by_object, by_text)
    assert by_object.curve()[1].tolist() == by_text.curve()[1].tolist()


def test_an_object_of_torch_makes_the_steps_that_torch_makes(tmp_path):
    """One site, one epoch of one batch: the weights are those after a step of torch."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    theirs = copy.deepcopy(model)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.1, betas=(0.8, 0.9), weight_decay=0.01)
    one = {"clients": 1, "batch_size": 90, "rounds": 1, "test": 0.0, "method": "fedavg"}
    result = run(tmp_path, data=(X, Y), model=model, optimizer=optimizer, **one)
    functional.cross_entropy(theirs(torch.from_numpy(X)), torch.from_numpy(Y)).backward()
    optimizer.step()
    for found, wanted in zip(result.model.models[0].parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(found, wanted, atol=1e-6)


class Own(Sgd):
    name: ClassVar[str] = "own"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            torch.optim.SGD(NOWHERE, lr=0.1, momentum=0.9, nesterov=True),
            "SGD was given with nesterov=True; allowed: neste",
        ),
        (torch.optim.Adam(NOWHERE, amsgrad=True), "amsgrad=True"),
        (torch.optim.Adam(NOWHERE, eps=1e-4), "eps=0.0001; allowed: eps=1e-08"),
        (torch.optim.RMSprop(NOWHERE), "unknown optimizer of torch 'RMSprop'"),
        (
            torch.optim.SGD([{"params": NOWHERE, "lr": 1}, {"params": [torch.zeros(1)], "lr": 2}]),
            "2 groups of parameters",
        ),
        (torch.optim.lr_scheduler.StepLR(torch.optim.SGD(NOWHERE, lr=1), 3), "a schedule of torch .StepLR. was given"),
        (lambda: None, r"was called to make the optimizer and failed \(TypeError"),
        (lambda parameters: 3, "and returned int"),
        (Own(lr=0.1), "the optimizer Own is of your own"),
        (0.1, "an object of the type float was given as the optimizer"),
        ({"kind": "sgd", "rate": 1}, "unknown option of optimizer 'sgd': 'rate'"),
    ],
)
def test_what_cannot_be_an_optimizer_is_answered(given, words):
    with pytest.raises(UsageError, match=words):
        fedwinnow.run(data=(X, Y), optimizer=given, **{k: v for k, v in SMALL.items() if k != "optimizer"})


def test_rows_of_a_sweep_have_optimizers_of_their_own(tmp_path):
    rows = [
        {"name": name, "method": "fedavg", "optimizer": one} for name, one in (("torch", torch.optim.SGD), ("own", Sgd))
    ]
    swept = fedwinnow.sweep(rows, data=(X, Y), seeds=1, out=tmp_path, **SMALL)
    assert [one.status for one in swept.outcomes] == ["finished"] * 2
    assert "momentum=0" in (swept.outcomes[0].job.folder / "config.toml").read_text()


# --- sweeps --------------------------------------------------------------------------------------------------------


def test_a_sweep_takes_the_same_things_and_knows_them_again(tmp_path):
    scene = Scene.make((X, Y), clients=3, noise="constant:rate=0.2")
    asked = {
        "methods": [FedProx(mu=0.3), FedProx, "fedavg", {"name": "focal", "method": "fedavg", "loss": focal}],
        "scenes": [scene, {"name": "frame", "data": FRAME, "label": "sort", "site": "hospital"}],
        "seeds": 1,
        "out": tmp_path / "sweep",
        **{name: value for name, value in SMALL.items() if name != "clients"},
    }
    swept = fedwinnow.sweep(**asked)
    assert [one.status for one in swept.outcomes] == ["finished"] * 8
    assert swept.table().rows == ("fedprox:mu=0.3", "fedprox", "fedavg", "focal")
    assert [one.status for one in fedwinnow.sweep(**asked).outcomes] == ["skipped"] * 8
    moved = Scene.make((X + 1, Y), clients=3, noise="constant:rate=0.2")
    again = fedwinnow.sweep(**asked | {"scenes": [{"name": f"arrays-{scene.hash[:8]}", "scene": moved}]})
    assert [one.status for one in again.outcomes] == ["stale"] * 4


def test_a_loss_beside_a_sweep_is_for_all_its_methods(tmp_path):
    rest = {"data": (X, Y), "seeds": 1, "out": tmp_path, **SMALL}
    swept = fedwinnow.sweep(["fedavg", {"name": "gce", "method": "fedavg", "loss": "gce"}], loss=focal, **rest)
    assert {one.job.row for one in swept.outcomes} == {"fedavg:loss=focal", "gce"}
