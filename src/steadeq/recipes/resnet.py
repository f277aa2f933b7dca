"""The explicit networks that multiscale DEQs are compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .. import models
from ..train import AbstractModelConfig, LogConfig, LoopConfig, OptimizerConfig, TrainConfig
from ..train.checks import check_at_least
from .cifar10 import Cifar10Data
from .imagenet import imagenette64_mdeq_cpu
from .mdeq import cifar10_mdeq_cpu
from .registry import recipe


@dataclass(frozen=True, kw_only=True)
class ResNetModel(AbstractModelConfig):
    """A residual network."""

    block: Literal["basic", "bottleneck"] = "basic"
    """Two convolutions of 3 by 3 pixels, or one between two of 1 by 1."""
    blocks: tuple[int, ...] = (2, 2, 2, 2)
    """How many of each width."""
    widths: tuple[int, ...] = (64, 128, 256, 512)
    """Channels of each group of blocks; the resolution is halved between groups."""
    stem: Literal["cifar", "imagenet"] = "cifar"
    """Whether the first layers keep the resolution of the images or quarter it."""
    image_channels: int = 3
    """Of the images."""
    num_classes: int = 10
    """Classes to tell apart."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_at_least("model", self, 1, "image_channels", "num_classes")

    def build(self) -> models.ResNet:
        """Return the network."""
        return models.ResNet(**vars(self))


@recipe("cifar10-resnet-cpu", scale="cpu")
def cifar10_resnet_cpu() -> TrainConfig:
    """A part of CIFAR-10 with an explicit network as small as that of cifar10-mdeq-cpu."""
    base = cifar10_mdeq_cpu()
    return replace(
        base,
        recipe="cifar10-resnet-cpu",
        model=ResNetModel(blocks=(1, 1, 1), widths=(16, 32, 64)),
        optimizer=replace(base.optimizer, learning_rate=3e-3),
    )


@recipe("imagenette64-resnet-cpu", scale="cpu")
def imagenette64_resnet_cpu() -> TrainConfig:
    """A part of Imagenette-64 with an explicit network as small as that of imagenette64-mdeq-cpu."""
    base = imagenette64_mdeq_cpu()
    return replace(
        base,
        recipe="imagenette64-resnet-cpu",
        # The stem takes images to 16 by 16 pixels, as that of the multiscale DEQ does.
        model=ResNetModel(blocks=(1, 1, 1), widths=(16, 32, 64), stem="imagenet"),
        # That of cifar10-resnet-cpu; nothing was selected on Imagenette.
        optimizer=replace(base.optimizer, learning_rate=3e-3),
    )


@recipe("cifar10-resnet18", scale="paper")
def cifar10_resnet18() -> TrainConfig:
    """ResNet-18 on CIFAR-10 with the usual hyper-parameters; the paper prints none."""
    return TrainConfig(
        recipe="cifar10-resnet18",
        model=ResNetModel(),
        data=Cifar10Data(),
        optimizer=OptimizerConfig(
            method="sgd", learning_rate=0.1, schedule="cosine", weight_decay=5e-4, momentum=0.9, nesterov=True
        ),
        loop=LoopConfig(num_epochs=200, batch_size=128),
        log=LogConfig(every=50, checkpoint_every=1_000),
    )


@recipe("cifar10-resnet101", scale="paper")
def cifar10_resnet101() -> TrainConfig:
    """ResNet-101 in the same way."""
    return replace(
        cifar10_resnet18(),
        recipe="cifar10-resnet101",
        model=ResNetModel(block="bottleneck", blocks=(3, 4, 23, 3)),
    )
