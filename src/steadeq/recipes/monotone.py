"""Monotone DEQs, the single-scale equilibrium models of Table 2."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .. import models
from ..train import AbstractModelConfig, TrainConfig
from ..train.checks import check_at_least, check_positive
from .mdeq import cifar10_mdeq_cpu
from .registry import recipe


@dataclass(frozen=True, kw_only=True)
class MonotoneModel(AbstractModelConfig):
    """A monotone operator equilibrium network, with convolutions."""

    image_channels: int = 3
    """Of the images."""
    channels: int = 81
    """Of the state."""
    num_classes: int = 10
    """Classes to tell apart."""
    image_size: int = 32
    """Height and width of the images."""
    splitting: Literal["peaceman-rachford", "forward-backward"] = "peaceman-rachford"
    """Which method is iterated."""
    m: float = 1.0
    """Margin of monotonicity."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_at_least("model", self, 1, "image_channels", "channels", "num_classes", "image_size")
        check_positive("model", self, "m")

    def build(self) -> models.MonotoneDEQ:
        """Return the network."""
        return models.MonotoneDEQ(**vars(self))


@recipe("cifar10-monotone-cpu", scale="cpu")
def cifar10_monotone_cpu() -> TrainConfig:
    """A part of CIFAR-10 with a monotone DEQ that trains about as long as cifar10-mdeq-cpu."""
    # A sixth of the parameters, as it works on images of full size (in the paper it is a tenth).
    return replace(cifar10_mdeq_cpu(), recipe="cifar10-monotone-cpu", model=MonotoneModel(channels=16))
