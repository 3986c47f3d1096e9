"""fedlsr: its loss by hand, its edge cases, its cost, and the shared tester."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest
import torch

from by_hand import identity, one_client
from fedwinnow.api import run
from fedwinnow.data.dataset import InputStep, Resident
from fedwinnow.mathematics.distillation import jensen_shannon
from fedwinnow.methods.fedlsr import FedLsr, mild_view, recoloured
from fedwinnow.testing import MethodTester, toy_data


class TestFedlsr(MethodTester):
    method: ClassVar[str] = "fedlsr"


class TestFedlsrCode(MethodTester):
    method: ClassVar[str] = "fedlsr:preset=code"


def client_of_one(label: int = 0):
    return one_client([[0.0, 0.0]], [label])


# Two predictions of one sample: (0.8, 0.2) and (0.6, 0.4).
FIRST, SECOND = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.6, 0.4]]).log()


def test_the_mixture_is_sharpened():
    # A quarter of the first and three of the second: (0.65, 0.35); squared and scaled: 0.4225 / 0.545.
    sharp = 0.4225 / (0.4225 + 0.1225)
    loss = FedLsr().sharpened(client_of_one(), 0.25, FIRST, SECOND, torch.tensor([0]))
    assert loss.item() == pytest.approx(-math.log(sharp), rel=1e-5)
    code = FedLsr(preset="code").sharpened(client_of_one(), 0.25, FIRST, SECOND, torch.tensor([0]))
    assert code.item() == pytest.approx(-sharp + math.log(math.exp(sharp) + math.exp(1 - sharp)), rel=1e-5)
    plain = FedLsr(sharpening=1.0).sharpened(client_of_one(), 0.25, FIRST, SECOND, torch.tensor([0]))
    assert plain.item() == pytest.approx(-math.log(0.65), rel=1e-5)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_of_everything_is_finite(share):
    sure = torch.tensor([[200.0, -200.0]])
    loss = FedLsr().sharpened(client_of_one(), share, sure, -sure, torch.tensor([0]))
    assert math.isfinite(loss.item())


def test_the_divergence_of_jensen_and_shannon():
    # The middle is (0.7, 0.3).
    first = 0.8 * math.log(0.8 / 0.7) + 0.2 * math.log(0.2 / 0.3)
    second = 0.6 * math.log(0.6 / 0.7) + 0.4 * math.log(0.4 / 0.3)
    assert jensen_shannon(FIRST.exp(), SECOND.exp()).item() == pytest.approx((first + second) / 2, rel=1e-5)
    assert jensen_shannon(FIRST.exp(), FIRST.exp()).item() == pytest.approx(0, abs=1e-7)


def entropy(*probabilities):
    return -sum(p * math.log(p) for p in probabilities)


def test_the_entropy_of_fedlsr_plus():
    of_both = FedLsr().unsureness(FIRST.exp(), SECOND.exp())
    assert of_both.item() == pytest.approx((entropy(0.8, 0.2) + entropy(0.6, 0.4)) / 2, rel=1e-5)
    again = 1 / (1 + math.exp(-0.6))  # the softmax of (0.8, 0.2)
    code = FedLsr(preset="code").unsureness(FIRST.exp(), SECOND.exp())
    assert code.item() == pytest.approx(entropy(again, 1 - again), rel=1e-5)


@pytest.mark.parametrize(
    ("number", "ramp", "expected"),
    [(1, None, 0), (6, None, 0.1), (21, None, 0.4), (90, None, 0.4), (1, 0, 0.4), (2, 4, 0.1)],
)
def test_the_divergence_comes_in_slowly(number, ramp, expected):
    client = client_of_one()
    client.round, client.rounds = number, 100
    assert FedLsr(ramp=ramp).weight(client) == pytest.approx(expected)


class TwoAnswers(torch.nn.Module):
    """Says one thing about the first view and another about the second."""

    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(2))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return (FIRST if self.calls % 2 else SECOND) + self.bias


@pytest.mark.parametrize("preset", ["paper", "code"])
def test_the_whole_loss(monkeypatch, preset):
    client = client_of_one()
    client.round = 10
    client.model.module = TwoAnswers()
    monkeypatch.setattr("fedwinnow.methods.fedlsr.beta_draw", lambda alpha, generator: 0.25)
    method = FedLsr(preset=preset)
    total = method.objective(client, torch.tensor([0]), torch.zeros(1, 2), torch.tensor([0]), {})
    alike = [(3 * logits).softmax(1) for logits in (FIRST, SECOND)]
    expected = method.sharpened(client, 0.25, FIRST, SECOND, torch.tensor([0]))
    if preset == "paper":
        expected += 0.4 * jensen_shannon(*alike)
    else:
        expected += 0.4 * jensen_shannon(*alike) / 2 + 0.6 * method.unsureness(*alike)
    assert total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert (client.forward_samples, client.backward_samples) == (1, 1)


def test_the_second_view_is_of_the_stored_image():
    images = np.random.default_rng(0).integers(256, size=(4, 8, 8, 1)).astype(np.uint8)
    client = one_client([[0.0, 0.0]] * 4, [0, 1, 0, 1])
    client.features, client.input_step = Resident(images), InputStep("images", (0.5,), (0.5,))
    rows = torch.tensor([2, 0])
    seen = FedLsr().second_view(client, rows)
    assert seen.shape == (2, 1, 8, 8)
    assert not torch.equal(seen, client.plain(torch.from_numpy(images[[2, 0]])))


def test_rows_of_a_table_are_their_own_second_view():
    client = one_client([[1.0, 2.0], [3.0, 4.0]], [0, 1])
    client.model.load(identity())
    assert FedLsr().second_view(client, torch.tensor([1])).tolist() == [[3, 4]]


def test_what_is_counted(tmp_path):
    # the messages of FedAvg; 2EF + 2EB, one of each per view
    settings = {"data": toy_data(120), "model": "linear", "clients": 4, "rounds": 1, "epochs": 3, "participation": 1.0}
    row = run(out=tmp_path, method="fedlsr", **settings).rounds[0]
    assert (row["forward_samples"], row["backward_samples"]) == (2 * 3 * 120, 2 * 3 * 120)
    assert (row["bytes_down"], row["bytes_up"]) == (4 * 36, 4 * (36 + 8))


# --- mild views -------------------------------------------------------------------------------------------------------

# Luck with which colours stay as they are: no jitter, not grey.
STAYS = (0.9, 0.5, 0.5, 0.5, 0.5, 0.9)


def coloured(*colour: int) -> torch.Tensor:
    return torch.tensor(colour, dtype=torch.uint8).view(1, 1, 1, 3)


def changed(colour, **luck):
    names = ("whether", "brightness", "contrast", "saturation", "hue", "grey")
    values = dict(zip(names, (0.1, 0.5, 0.5, 0.5, 0.5, 0.9), strict=True)) | luck
    return recoloured(coloured(*colour), torch.tensor(list(values.values())).unsqueeze(1)).flatten().tolist()


def test_nothing_changes_where_luck_says_so():
    assert changed((200, 100, 50)) == [200, 100, 50]  # jittered by nothing
    images = torch.randint(256, (5, 4, 4, 3), dtype=torch.uint8)
    assert torch.equal(recoloured(images, torch.tensor(STAYS).unsqueeze(1).expand(6, 5)), images)


def test_brightness_and_saturation():
    assert changed((200, 100, 50), brightness=0.0) == [40, 20, 10]  # a fifth
    assert changed((200, 100, 50), brightness=1.0) == [255, 180, 90]  # 1.8 times, cut off at white
    grey = 0.299 * 200 + 0.587 * 100 + 0.114 * 50
    expected = [round(grey + 0.2 * (value - grey)) for value in (200, 100, 50)]
    assert changed((200, 100, 50), saturation=0.0) == pytest.approx(expected, abs=1)
    assert changed((200, 100, 50), grey=0.1) == pytest.approx([round(grey)] * 3, abs=1)


def test_contrast_keeps_the_mean_brightness():
    image = torch.tensor([0, 0, 0, 100, 100, 100], dtype=torch.uint8).view(1, 1, 2, 3)
    luck = torch.tensor([0.1, 0.5, 0.0, 0.5, 0.5, 0.9]).unsqueeze(1)
    assert recoloured(image, luck).flatten().tolist() == [40, 40, 40, 60, 60, 60]


def test_hue_turns_colours_and_leaves_grey():
    assert changed((90, 90, 90), hue=1.0) == [90, 90, 90]
    one, other = changed((150, 100, 100), hue=0.0), changed((150, 100, 100), hue=1.0)
    assert one != other
    light = [0.299 * red + 0.587 * green + 0.114 * blue for red, green, blue in (one, other, (150, 100, 100))]
    assert light == pytest.approx([light[2]] * 3, abs=1.5)


def test_grey_images_are_turned_by_up_to_thirty_degrees():
    images = torch.zeros(40, 21, 21, 1, dtype=torch.uint8)
    images[:, 10, 18] = 255  # eight pixels to the right of the middle
    seen = mild_view(images, torch.Generator().manual_seed(0))
    assert seen.shape == images.shape
    places = seen[..., 0].float().nonzero()
    angles = torch.atan2(places[:, 1] - 10.0, places[:, 2] - 10.0)
    assert float(angles.abs().max()) <= math.radians(30) + 0.1
    assert float(angles.std()) > 0.2


def test_a_batch_is_changed_together_or_one_by_one():
    for channels in (1, 3):
        images = torch.randint(256, (1, 8, 8, channels), dtype=torch.uint8).expand(6, 8, 8, channels)
        alone = mild_view(images, torch.Generator().manual_seed(1))
        together = mild_view(images, torch.Generator().manual_seed(1), together=True)
        assert alone.dtype == torch.uint8
        assert (together == together[:1]).all()
        assert not (alone == alone[:1]).all()
        assert torch.equal(alone, mild_view(images, torch.Generator().manual_seed(1)))


def test_half_of_the_coloured_images_are_flipped():
    images = torch.zeros(200, 1, 2, 3, dtype=torch.uint8)
    images[:, :, 0] = 255
    seen = mild_view(images, torch.Generator().manual_seed(0)).float().sum(-1)[:, 0]
    assert 70 < int((seen[:, 0] < seen[:, 1]).sum()) < 130
