"""The explicit networks that multiscale DEQs are compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .. import models
from ..train import AbstractModelConfig, TrainConfig
from ..train.checks import check_at_least
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
    return replace(
        cifar10_mdeq_cpu(),
        recipe="cifar10-resnet-cpu",
        model=ResNetModel(blocks=(1, 1, 1), widths=(16, 32, 64)),
    )
