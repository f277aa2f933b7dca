from functools import partial

import pytest
import torch

from steadeq.models import DenseNet, ResNet

RESNET18 = partial(ResNet, blocks=(2, 2, 2, 2), stem="imagenet")
RESNET50 = partial(ResNet, block="bottleneck", blocks=(3, 4, 6, 3), stem="imagenet")
RESNET101 = partial(ResNet, block="bottleneck", blocks=(3, 4, 23, 3), stem="imagenet")
DENSENET121 = partial(DenseNet, blocks=(6, 12, 24, 16))


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("build", "cifar10", "imagenet"),
    [
        (RESNET18, 11_181_642, 11_689_512),
        (RESNET50, 23_528_522, 25_557_032),
        (RESNET101, 42_520_650, 44_549_160),
        (DENSENET121, 6_964_106, 7_978_856),
    ],
    ids=["resnet18", "resnet50", "resnet101", "densenet121"],
)
def test_networks_have_the_published_numbers_of_parameters(build, cifar10, imagenet):
    with torch.device("meta"):
        assert count(build(num_classes=10)) == cifar10
        assert count(build(num_classes=1000)) == imagenet


@pytest.mark.parametrize("build", [RESNET18, RESNET50, DENSENET121], ids=["resnet18", "resnet50", "densenet121"])
def test_the_last_features_have_the_resolution_of_the_papers(build):
    with torch.device("meta"):
        model, images = build(), torch.empty(1, 3, 224, 224)
        assert model.stages(model.stem(images)).shape[2:] == (7, 7)
        model = build(stem="cifar")
        assert model.stages(model.stem(images[..., :32, :32])).shape[2:] == (4, 4)


@pytest.mark.parametrize("block", ["basic", "bottleneck"])
def test_blocks_can_start_as_their_shortcuts(block):
    model = ResNet(block=block, blocks=(3,), widths=(4,), stem="cifar", zero_init=True)
    x = torch.randn(2, 3, 8, 8)
    features = model.stem(x)
    torch.testing.assert_close(model.stages(features), torch.relu(model.stages[0].shortcut(features)))


@pytest.mark.parametrize("block", ["basic", "bottleneck"])
def test_normalized_in_groups_an_image_does_not_depend_on_the_others_in_training(block):
    torch.manual_seed(0)
    options = {"block": block, "blocks": (1, 2), "widths": (4, 8), "stem": "cifar"}
    model = ResNet(**options, groups=2).double()
    assert count(model) == count(ResNet(**options))
    x = torch.randn(4, 3, 8, 8, dtype=torch.double)
    torch.testing.assert_close(model(x)[:1], model(x[:1]))


def test_convolutions_start_with_the_variance_of_kaiming():
    model = ResNet(blocks=(1,), widths=(64,), stem="cifar")
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            expected = (2 / (module.out_channels * module.kernel_size[0] ** 2)) ** 0.5
            assert module.weight.std().item() == pytest.approx(expected, rel=0.1)
