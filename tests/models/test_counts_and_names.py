"""The sizes that the literature states, and the names that published weights use."""

import pytest
import torch
from torch import nn

from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape


def images(side: int, channels: int, classes: int) -> Shape:
    return Shape("images", (side, side, channels), classes)


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("spec", "shape", "count"),
    [
        ("linear", Shape("rows", (30,), 2), 30 * 2 + 2),
        ("linear", images(8, 1, 10), 64 * 10 + 10),
        ("mlp", images(8, 1, 10), 64 * 128 + 128 + 128 * 10 + 10),
        ("mlp:hidden=5,layers=2", Shape("rows", (3,), 2), (3 * 5 + 5) + (5 * 5 + 5) + (5 * 2 + 2)),
        ("lenet", images(8, 1, 10), (25 * 16 + 16) + (25 * 16 * 32 + 32) + (128 * 128 + 128) + (128 * 10 + 10)),
        ("lenet", images(28, 1, 10), (25 * 16 + 16) + (25 * 16 * 32 + 32) + (7 * 7 * 32 * 128 + 128) + (1290)),
        ("cnn4", images(32, 3, 10), 115_658),
        ("cnn4", images(32, 3, 100), 138_788),
        ("cnn4:norm=none", images(32, 3, 10), 115_658 - 4 * 2 * 64),
        ("resnet18", images(32, 3, 10), 11_173_962),
        ("resnet18", images(65, 3, 1000), 11_689_512),
        ("resnet18:norm=group", images(65, 3, 1000), 11_689_512),
        ("resnet34", images(224, 3, 1000), 21_797_672),
        ("resnet50", images(224, 3, 1000), 25_557_032),
        ("text:width=4", Shape("tokens", (12,), 3, vocabulary=100), 100 * 4 + 4 * 3 + 3),
    ],
)
def test_number_of_parameters(spec: str, shape: Shape, count: int) -> None:
    assert parameters(make_model(spec, shape)) == count


NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def expected_names(blocks: tuple[int, ...], convolutions: int, first_stage_projects: bool) -> set[str]:
    names = {"conv1.weight", "fc.weight", "fc.bias"} | {f"bn1.{key}" for key in NORM}
    for stage, count in enumerate(blocks, start=1):
        for block in range(count):
            here = f"layer{stage}.{block}"
            for number in range(1, convolutions + 1):
                names |= {f"{here}.conv{number}.weight"} | {f"{here}.bn{number}.{key}" for key in NORM}
            if block == 0 and (stage > 1 or first_stage_projects):
                names |= {f"{here}.downsample.0.weight"} | {f"{here}.downsample.1.{key}" for key in NORM}
    return names


@pytest.mark.parametrize("side", [32, 224])
def test_resnet18_has_the_usual_names(side: int) -> None:
    state = make_model("resnet18", images(side, 3, 10)).state_dict()
    assert set(state) == expected_names((2, 2, 2, 2), convolutions=2, first_stage_projects=False)
    assert len(state) == 122
    assert state["conv1.weight"].shape == ((64, 3, 3, 3) if side == 32 else (64, 3, 7, 7))
    assert state["layer2.0.downsample.0.weight"].shape == (128, 64, 1, 1)


def test_resnet50_has_the_usual_names_and_shapes() -> None:
    state = make_model("resnet50", images(224, 3, 10)).state_dict()
    assert set(state) == expected_names((3, 4, 6, 3), convolutions=3, first_stage_projects=True)
    assert len(state) == 320
    assert state["layer1.0.downsample.0.weight"].shape == (256, 64, 1, 1)
    assert state["layer4.0.conv2.weight"].shape == (512, 512, 3, 3)
    assert state["layer4.2.conv3.weight"].shape == (2048, 512, 1, 1)


def test_resnet50_halves_in_the_three_by_three_convolution() -> None:
    modules = dict(make_model("resnet50", images(32, 3, 10)).named_modules())
    strides = [modules[f"layer2.0.conv{number}"].stride for number in (1, 2, 3)]
    assert strides == [(1, 1), (2, 2), (1, 1)]


@pytest.mark.parametrize("norm", ["batch", "batch_statistics", "group", "none"])
@pytest.mark.parametrize("model", ["lenet", "cnn4"])
def test_norms_give_scores_for_one_sample_of_the_smallest_size(model: str, norm: str) -> None:
    side = {"lenet": 4, "cnn4": 16}[model]
    module = make_model(f"{model}:norm={norm}", images(side, 1, 3)).train()
    assert module(torch.randn(1, 1, side, side)).shape == (1, 3)


@pytest.mark.parametrize("norm", ["batch", "batch_statistics", "group"])
@pytest.mark.parametrize(("stem", "side"), [("small", 9), ("large", 33)])
def test_resnet_trains_on_one_sample_of_the_smallest_size(norm: str, stem: str, side: int) -> None:
    module = make_model(f"resnet18:norm={norm},stem={stem}", images(side, 1, 3)).train()
    assert module(torch.randn(1, 1, side, side)).shape == (1, 3)


def test_batch_statistics_keeps_no_running_averages() -> None:
    assert not [key for key in make_model("cnn4", images(16, 1, 2)).state_dict() if "running" in key]
    assert [key for key in make_model("cnn4:norm=batch", images(16, 1, 2)).state_dict() if "running" in key]


def test_pooling_before_relu_equals_relu_before_pooling() -> None:
    module = make_model("cnn4", images(16, 3, 4))
    x = torch.randn(3, 3, 16, 16)
    steps = dict(module.named_children())
    y = x
    for number in range(1, 5):
        y = steps[f"norm{number}"](steps[f"conv{number}"](y))
        y = nn.functional.max_pool2d(torch.relu(y), 2)
    assert torch.equal(module(x), steps["fc"](y.flatten(1)))


def test_group_norm_groups_divide_every_width() -> None:
    for width in range(1, 70):
        group = next(
            layer
            for layer in make_model(f"cnn4:norm=group,width={width}", images(16, 1, 2)).modules()
            if isinstance(layer, nn.GroupNorm)
        )
        assert group.num_groups == 1 or width // group.num_groups >= 2


def test_text_is_the_mean_of_its_words_without_padding() -> None:
    module = make_model("text:width=2", Shape("tokens", (4,), 2, vocabulary=5))
    with torch.no_grad():
        module.embedding.weight.copy_(torch.tensor([[9.0, 9.0], [1.0, 0.0], [0.0, 2.0], [4.0, 4.0], [5.0, 5.0]]))
        module.fc.weight.copy_(torch.eye(2))
        module.fc.bias.zero_()
    tokens = torch.tensor([[1, 2, 0, 0], [3, 3, 3, 1], [0, 0, 0, 0]], dtype=torch.int32)
    assert torch.equal(module(tokens), torch.tensor([[0.5, 1.0], [3.25, 3.0], [0.0, 0.0]]))
