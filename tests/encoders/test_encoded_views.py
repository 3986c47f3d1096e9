"""Random views on frozen features: drawn from the content of an image, encoded once; training takes one of them."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import torch

import fedwinnow
from by_hand import identity, one_client
from fedwinnow.backends.host_as_text import build_features, describe_features
from fedwinnow.backends.shared_memory import OpenedArrays, SharedArrays
from fedwinnow.cli import main
from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.dataset import Resident
from fedwinnow.deployment.agreed_encoder import encoder_in, packed
from fedwinnow.deployment.site_data import OwnData
from fedwinnow.encoders import feature_cache
from fedwinnow.encoders.encoded import Encoded
from fedwinnow.encoders.encoded_views import ImageViews, Viewed, ViewKind
from fedwinnow.encoders.encoder import OpenEncoder
from fedwinnow.encoders.feature_cache import FeatureCache, cached_bytes
from fedwinnow.encoders.head_input import Scaling
from fedwinnow.encoders.make_encoder import DataEncoder, find_encoder
from fedwinnow.errors import UsageError
from fedwinnow.experiment.encoding import Encoding
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.client import Client
from fedwinnow.federation.host import Host
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import Method, find_method
from fedwinnow.federation.view_kinds import view_kind
from fedwinnow.mathematics.views import random_view
from fedwinnow.models.model import Shape
from fedwinnow.testing import comparable
from stages import TINY

PIXELS = "from torch import nn\ndef build(): return nn.Flatten()\n"


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDWINNOW_CACHE", str(tmp_path / "cache"))


def pictures(count=48):
    """Pictures of two classes, bright at the top or at the bottom."""
    labels = np.arange(count) % 2
    images = np.random.default_rng(0).integers(0, 60, (count, 6, 6, 3), dtype=np.uint8)
    for row, label in enumerate(labels):
        images[row, 3 * label : 3 * label + 3] += 150
    half = count * 2 // 3
    return from_arrays(images[:half], labels[:half], x_test=images[half:], y_test=labels[half:], name="pictures")


@pytest.fixture
def own(tmp_path):
    (tmp_path / "mine.py").write_text(PIXELS)
    return f"own:path={tmp_path / 'mine.py'}"


@pytest.fixture
def settings(own):
    return {**TINY, "clients": 2, "data": pictures(), "encoder": f"{own},views=3", "noise": "constant:rate=0.2"}


# --- drawing and encoding ------------------------------------------------------------------------------------------


def brighter(images, generator):
    return images + torch.randint(100, (len(images), 1, 1, 1), generator=generator).to(torch.uint8)


def seed_of(name: str, number: int, content: bytes) -> int:
    """Worked out apart from the code: the kind, the number of the view, and the hash of the image's bytes."""
    digest = hashlib.blake2b(f"{name}\0{number}\0".encode() + content, digest_size=8).digest()
    return int.from_bytes(digest, "little") % 2**63


def test_a_view_comes_from_the_image_the_kind_and_its_number():
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    key = hashlib.blake2b(image.tobytes(), digest_size=16).digest()
    for number in range(3):
        for kind, content in ((ViewKind("bright", brighter), key), (ViewKind("bright", brighter, alike=True), b"")):
            luck = torch.Generator().manual_seed(seed_of("bright", number, content))
            added = int(torch.randint(100, (1, 1, 1, 1), generator=luck))
            assert np.array_equal(kind.view(image, number), image + np.uint8(added))
    alike = ViewKind("bright", brighter, alike=True)
    assert np.array_equal(alike.view(image + np.uint8(1), 2) - alike.view(image, 2), np.ones((2, 2, 3), np.uint8))


def test_views_are_the_same_in_every_order():
    images = pictures().train.features
    kind = view_kind("strong")
    whole = ImageViews(images, kind, 3)
    assert len(whole) == 96
    later = ImageViews(images.subset(np.array([20, 4])), kind, 3)
    assert np.array_equal(whole.take(np.array([14, 60, 12])), later.take(np.array([5, 0, 3])))  # 4 * 3 + 2, 20 * 3
    assert len(set(whole.keys())) == 96
    assert later.keys() == whole.keys()[60:63] + whole.keys()[12:15]
    assert ImageViews(images, kind, 2).keys()[:2] == whole.keys()[:2]


def test_views_are_encoded_once_and_found_again(monkeypatch, own):
    data, rows = pictures(), []
    first = FeatureCache.encode_batch

    def counted(cache, samples, batch):
        rows.append(len(batch))
        return first(cache, samples, batch)

    monkeypatch.setattr(FeatureCache, "encode_batch", counted)

    def encoded(views, kinds=("flip",)):
        rows.clear()
        encoder = DataEncoder.for_data(f"{own},views={views}", data)
        return encoder.encoded(data, kinds=tuple(map(view_kind, kinds))).train.features, sum(rows)

    assert encoded(0)[1] == 48  # every image, also of the test part
    features, count = encoded(2)
    assert count == 64  # two of each of the 32 training images: the plain rows are those of the encoder without views
    assert isinstance(features, Viewed)
    assert isinstance(features.views["flip"].segments[0], np.memmap)
    assert features.views["flip"].segments[0].dtype == np.float16
    assert encoded(2)[1] == 0
    assert encoded(3)[1] == 32
    assert encoded(3, ("flip", "strong"))[1] == 96
    assert encoded(3, ())[1] == 0
    (part,) = [path for path in feature_cache.features_folder().rglob("*.npy") if path.stat().st_size == 64 * 216 + 128]
    part.write_bytes(b"damaged")
    with pytest.warns(match="damaged"):
        assert encoded(3)[1] == 64


def test_rows_of_views_are_the_views_encoded(own):
    data = pictures()
    encoder = DataEncoder.for_data(f"{own},views=2", data)
    features = encoder.encoded(data, kinds=[view_kind("crop_flip")]).train.features
    image = data.train.features.array[7]
    luck = torch.Generator().manual_seed(
        seed_of("crop_flip", 1, hashlib.blake2b(image.tobytes(), digest_size=16).digest())
    )
    shifted = random_view(torch.from_numpy(image[None]), "crop_flip", luck)
    expected = (shifted.permute(0, 3, 1, 2).float() / 255).flatten(1).numpy().astype(np.float16).astype(np.float32)
    assert np.array_equal(features.view("crop_flip", np.array([7]), np.array([1])), expected)


def test_another_function_of_the_same_name_does_not_find_the_views():
    kind, darker = ViewKind("bright", brighter), ViewKind("bright", lambda images, luck: brighter(images, luck) // 2)
    assert kind.fingerprint((4, 4, 1)) == ViewKind("bright", brighter).fingerprint((4, 4, 1))
    assert kind.fingerprint((4, 4, 1)) != darker.fingerprint((4, 4, 1))
    with pytest.raises(UsageError, match=r"view 'cut' .* shape \(3, 4, 1\) .* needed: those of the image, \(4, 4, 1\)"):
        ViewKind("cut", lambda images, luck: images[:, 1:]).view(np.zeros((4, 4, 1), np.uint8), 0)


# --- which view a client gets --------------------------------------------------------------------------------------


def numbered(views="none", count=4, samples=5) -> Client:
    """Sample i is the row (i, 0); its weak view k is (i, 10 + k), its strong one (i, 20 + k)."""
    rows = np.array([[row, 0] for row in range(samples)], np.float32)

    def kind(first: int) -> Encoded:
        half = np.array([[row, first + view] for row in range(samples) for view in range(count)], np.float16)
        return Encoded((half,), np.arange(len(half)), Scaling.plain(2))

    client = one_client(rows, [0] * samples, views=views, batch_size=3)
    client.features = Viewed(Resident(rows), {"crop_flip": kind(10), "strong": kind(20)}, count)
    return client


def test_the_view_is_drawn_by_the_clients_generator():
    client, luck = numbered(), torch.Generator().manual_seed(0)
    rows = torch.tensor([4, 0, 2])
    (stored,) = client.stored([rows])
    for kind, first in (("crop_flip", 10), ("strong", 20), ("strong", 20)):
        drawn = torch.randint(4, (3,), generator=luck)
        expected = torch.stack([rows, first + drawn], dim=1).float()
        assert torch.equal(client.view(stored, kind), expected)
    assert torch.equal(client.view(stored, "none"), torch.tensor([[4.0, 0], [0, 0], [2, 0]]))
    assert torch.equal(client.view(stored), client.plain(stored))
    together = client.encoded_view(stored, "strong", together=True)[:, 1]
    assert len(set(together.tolist())) == 1
    with pytest.raises(UsageError, match="view of the kind 'flip' was asked for, but only crop_flip, strong"):
        client.view(stored, "flip")


@pytest.mark.parametrize("few", [2**20, 0], ids=["kept ready", "gathered"])
def test_training_sees_views_and_scoring_plain_rows(monkeypatch, few):
    monkeypatch.setattr("fedwinnow.federation.client.FEW", few)
    client = numbered(views="strong")
    client.model.load(identity())
    seen = {}

    def objective(rows, x, y):
        seen.update(zip(rows.tolist(), x.tolist(), strict=True))
        return client.model.module(x).sum()

    client.fit(objective)
    assert {row: x[0] for row, x in seen.items()} == {row: row for row in range(5)}
    assert all(20 <= x[1] < 24 for x in seen.values())
    client.fit(objective, views="none")
    assert set(map(tuple, seen.values())) == {(row, 0) for row in range(5)}
    client.model.load(identity())
    plain = torch.tensor([[row, 0.0] for row in range(5)])
    assert torch.equal(client.predict(), plain)
    assert torch.equal(client.predict_with_features()[1], plain)
    assert (client.predict(views=True)[:, 1] >= 20).all()
    assert ((client.predict(views="crop_flip")[:, 1] // 10) == 1).all()
    assert torch.equal(client.predict(rows=torch.tensor([3])), plain[3:4])


def test_a_site_cannot_reach_the_views_of_another():
    features = numbered().features
    assert isinstance(features, Viewed)
    mine = features.subset(np.array([3, 1]))
    assert [len(one.segments[0]) for one in mine.views.values()] == [8, 8]
    assert mine.view("strong", np.array([0, 1]), np.array([2, 0])).tolist() == [[3, 22], [1, 20]]
    assert mine.take(np.array([1])).tolist() == [[1, 0]]


def test_another_process_gets_the_same_views():
    features, arrays, opened = numbered().features, SharedArrays(), OpenedArrays()
    try:
        described = json.loads(json.dumps(describe_features(features, arrays)))
        again = build_features(described, opened)
        assert isinstance(again, Viewed)
        assert again.count == 4
        assert again.view("strong", np.array([4]), np.array([3])).tolist() == [[4, 23]]
        assert again.take(np.array([2])).tolist() == [[2, 0]]
        del again
    finally:
        opened.close()
        arrays.close()


# --- runs ----------------------------------------------------------------------------------------------------------


def kinds_taken(monkeypatch) -> list[tuple[str, list[int]]]:
    """What is taken from now on, as kind and numbers."""
    found, take = [], Viewed.view

    def noted(self, kind, rows, numbers):
        found.append((kind, numbers.tolist()))
        return take(self, kind, rows, numbers)

    monkeypatch.setattr(Viewed, "view", noted)
    return found


@pytest.mark.parametrize(
    ("method", "views", "kinds"),
    [
        ("fedgr", "none", {"crop_flip", "strong"}),
        ("fedgr:preset=code", "none", {"crop_flip", "strong"}),
        ("fedgr:weak=flip,strong=none", "none", {"flip"}),
        ("fedlsr", "none", {"mild"}),
        ("fedlsr", "crop_flip", {"mild", "crop_flip"}),
        ("fedlsr:preset=code", "none", {"mild_alike"}),
        ("fedavg", "flip", {"flip"}),
        ("dividemix", "crop_flip", {"crop_flip"}),
        ("fedcorr:preset=code", "strong", {"strong"}),
    ],
)
def test_methods_play_on_views(settings, tmp_path, monkeypatch, method, views, kinds):
    taken = kinds_taken(monkeypatch)
    result = fedwinnow.run(**{**settings, "method": method, "views": views}, out=tmp_path / "run")
    assert result.summary["status"] == "finished"
    assert {kind for kind, _ in taken} == kinds
    assert {number for _, numbers in taken for number in numbers} == {0, 1, 2}
    if method == "fedlsr:preset=code":
        assert all(len(set(numbers)) == 1 for _, numbers in taken)


def test_the_change_of_one_draw_is_the_same_for_every_image():
    (kind,) = find_method("fedlsr:preset=code").view_kinds
    (other,) = find_method("fedlsr").view_kinds
    light, dark = np.full((6, 6, 3), 80, np.uint8), np.full((6, 6, 3), 40, np.uint8)
    # An image of one grey has only its brightness changed, by a factor of 0.2 to 1.8: nothing is cut off at 255.
    pairs = [(kind.view(light, number)[0, 0, 0], kind.view(dark, number)[0, 0, 0]) for number in range(12)]
    assert all(abs(int(one) - 2 * int(two)) <= 1 for one, two in pairs)
    assert len({int(one) for one, _ in pairs}) > 6
    apart = [(other.view(light, number)[0, 0, 0], other.view(dark, number)[0, 0, 0]) for number in range(12)]
    assert sum(abs(int(one) - 2 * int(two)) > 1 for one, two in apart) > 6


def test_all_backends_and_a_resumed_run_give_the_same(settings, tmp_path):
    settings |= {"method": "fedgr:warm_up=1", "rounds": 3}
    fedwinnow.run(**settings, out=tmp_path / "serial")
    size = cached_bytes()
    fedwinnow.run(**settings, out=tmp_path / "two", backend="processes:workers=1")
    fedwinnow.run(**{**settings, "rounds": 1}, out=tmp_path / "resumed")
    with pytest.raises(UsageError, match=r"encoder"):
        fedwinnow.run(**{**settings, "encoder": settings["encoder"][:-1] + "2"}, out=tmp_path / "resumed", resume=True)
    fedwinnow.run(**settings, out=tmp_path / "resumed", resume=True)
    assert cached_bytes() == size
    serial = comparable(tmp_path / "serial")
    assert serial == comparable(tmp_path / "two")
    assert serial == comparable(tmp_path / "resumed")


def test_without_a_view_asked_for_nothing_changes(settings, own, tmp_path):
    fedwinnow.run(**settings, out=tmp_path / "with")
    size = cached_bytes()
    fedwinnow.run(**{**settings, "encoder": own}, out=tmp_path / "without")
    assert cached_bytes() == size
    one, other = ((tmp_path / name / "state.safetensors").read_bytes() for name in ("with", "without"))
    assert one == other


def test_prediction_and_evaluation_use_plain_rows(settings, tmp_path, monkeypatch):
    result = fedwinnow.run(**settings, method="fedlsr", out=tmp_path / "run")
    monkeypatch.setattr(ImageViews, "take", None)  # nobody may draw a view now
    test = settings["data"].test
    scores = fedwinnow.load(tmp_path / "run").predict_proba(test.features.array)
    assert (scores.argmax(axis=1) == test.labels).mean() == result.summary["last"]["accuracy"]
    assert json.loads((tmp_path / "run" / "encoder.json").read_text())["encoder"].startswith("own:views=3,")


def test_samples_that_the_server_trains_on_have_views_and_measured_ones_have_none(settings):
    stage = prepare(Experiment(**settings, method="fedgr", trusted=4, public=4, validation=0.2))
    for features in (stage.aside.trusted, stage.parts["public"], stage.sites.features, stage.judged.features):
        assert isinstance(features, Viewed)
        assert set(features.views) == {"crop_flip", "strong"}
        assert all(len(one) == 3 * len(features) for one in features.views.values())
    assert isinstance(stage.parts["test"], Resident)
    assert isinstance(stage.parts["validation"], Resident)


def test_a_site_of_its_own_encodes_the_views_of_its_images(settings, tmp_path):
    data = settings["data"]
    stage = prepare(Experiment(**settings, method="fedgr"))
    assert isinstance(stage.encoding, Encoding)
    shape = Shape.of(data)
    run = {
        "task": {"class_names": list(data.class_names), "shape": vars(shape), "mean": data.mean, "std": data.std},
        "clients": 1,
        **encoder_in(stage.encoding, scaled=True),
    }
    assert run["encoder"]["mean"] == packed(stage.encoding.scaling.mean)
    holding, experiment = OwnData(data), stage.experiment
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedwinnow.deployment.site_data.experiment_of", lambda run: experiment)
        host = holding.host(run, 0, Memory(tmp_path))
    assert isinstance(host, Host)
    features = host.sites.features
    assert isinstance(features, Viewed)
    rows, numbers = np.arange(32), np.arange(32) % 3
    assert np.array_equal(features.view("strong", rows, numbers), stage.sites.features.view("strong", rows, numbers))


class AsksForStrong(Method):
    """A method of a user that says only that it needs views."""

    name = "asks_for_strong"

    @property
    def needs_views(self) -> bool:
        return True


def test_a_method_that_only_says_that_it_needs_views_has_the_two_usual_kinds():
    assert [kind.name for kind in AsksForStrong().view_kinds] == ["crop_flip", "strong"]


# --- refusals ------------------------------------------------------------------------------------------------------


def test_views_only_of_images(own):
    table = from_arrays(np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2, name="table")
    with pytest.raises(UsageError, match=r"the samples are rows, and only images have random views; leave views=4 out"):
        DataEncoder.for_data(f"{own},views=4", table)
    with pytest.raises(UsageError, match=r"views=65 was given; allowed: at least 0 and at most 64"):
        find_encoder(f"{own},views=65")
    for name in ("tfidf", "words", "rows"):
        with pytest.raises(UsageError, match="views"):
            find_encoder(f"{name}:views=4")
    for method, words in (("fedlsr", "method 'fedlsr', which"), ("fedavg", "--views flip")):
        with pytest.raises(UsageError, match=rf"{words}.*Only encoders of images can encode views"):
            prepare(
                Experiment(**TINY, data=table, encoder="rows", method=method, views="flip" if "--" in words else "none")
            )


def test_the_advice_works(settings, own):
    with pytest.raises(UsageError) as refusal:
        prepare(Experiment(**{**settings, "encoder": own, "method": "fedgr"}))
    advised = str(refusal.value).split("with --encoder ")[-1].split(", or")[0]
    assert "views=4" in advised
    assert prepare(Experiment(**{**settings, "encoder": advised, "method": "fedgr"})).sites.features.count == 4


def test_nothing_is_encoded_before_the_refusal(settings, own):
    with pytest.raises(UsageError, match="--views flip was given with --encoder"):
        prepare(Experiment(**{**settings, "encoder": own, "views": "flip"}))
    assert cached_bytes() == 0


def test_a_folder_of_features_has_no_views(own, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = pictures()
    np.savez("pictures.npz", x=data.train.features.array, y=data.train.labels)
    with pytest.raises(SystemExit) as ended:
        main(["encode", "--data", "pictures.npz", "--encoder", f"{own},views=4", "--out", "encoded"])
    assert ended.value.code == 2
    assert not (tmp_path / "encoded").exists()
    assert "one row per sample and no views; leave views=4 out" in " ".join(capsys.readouterr().err.split())


def test_open_encoders_do_not_know_of_views(own):
    shape = Shape.of(pictures())
    plain, viewed = (find_encoder(spec).open(shape) for spec in (own, f"{own},views=4"))
    assert isinstance(plain, OpenEncoder)
    assert plain.hash == viewed.hash
