"""Multiscale DEQs for images (section 5.3, Table 2, appendix A.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..models import MDEQClassifier, create
from ..train import (
    AbstractModelConfig,
    BackwardConfig,
    ForwardConfig,
    JacobianConfig,
    LogConfig,
    LoopConfig,
    OptimizerConfig,
    TrainConfig,
)
from ..train.checks import check_at_least, check_fraction
from .cifar10 import Cifar10Data
from .registry import recipe


@dataclass(frozen=True, kw_only=True)
class MDEQModel(AbstractModelConfig):
    """A multiscale DEQ with a classification head."""

    channels: tuple[int, ...] = (32, 64, 128, 256)
    """Of each scale, from fine to coarse."""
    head_channels: tuple[int, ...] = (14, 28, 56, 112)
    """Inside the head's bottleneck of each scale."""
    final_channels: int = 1680
    """Of the head, before its average."""
    num_classes: int = 10
    """Classes to tell apart."""
    image_channels: int = 3
    """Of the images."""
    num_downsamplings: int = 0
    """How often the stem halves the resolution."""
    expansion: int = 5
    """Width inside the residual blocks, as a multiple of a scale's channels."""
    groups: int = 8
    """Of the group normalizations."""
    dropout: float = 0.0
    """Probability that a channel is dropped, for a whole solve."""
    weight_norm: bool = True
    """Whether the cell's weights are normalized."""
    post_affine: bool = False
    """Whether the last normalization of the cell has parameters."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_at_least("model", self, 1, "final_channels", "num_classes", "image_channels", "expansion", "groups")
        check_at_least("model", self, 0, "num_downsamplings")
        check_fraction("model", self, "dropout")

    def build(self) -> MDEQClassifier:
        """Return the network."""
        model = create("mdeq/cifar10", **vars(self))
        assert isinstance(model, MDEQClassifier)
        return model


@recipe("cifar10-mdeq-cpu", scale="cpu")
def cifar10_mdeq_cpu() -> TrainConfig:
    """A part of CIFAR-10 with two small scales, without regularization, at a generous budget."""
    return TrainConfig(
        recipe="cifar10-mdeq-cpu",
        model=MDEQModel(channels=(16, 32), head_channels=(4, 8), final_channels=64, expansion=2, groups=4),
        data=Cifar10Data(num_train=8_000, num_validation=2_000),
        optimizer=OptimizerConfig(method="adam", learning_rate=3e-3, schedule="cosine"),
        forward=ForwardConfig(solver="anderson", max_evals=12, tol=1e-3),
        backward=BackwardConfig(solver="gmres", max_evals=12, tol=1e-4),
        jacobian=JacobianConfig(weight=0.0, probability=0.3),
        loop=LoopConfig(num_epochs=5, batch_size=64),
        log=LogConfig(eval_every=125, spectrum_samples=8),
    )


@recipe("cifar10-mdeq-cpu-small-budget", scale="cpu")
def cifar10_mdeq_cpu_small_budget() -> TrainConfig:
    """The same at half the budget, still without regularization."""
    base = cifar10_mdeq_cpu()
    return replace(
        base,
        recipe="cifar10-mdeq-cpu-small-budget",
        forward=replace(base.forward, max_evals=6),
        backward=replace(base.backward, max_evals=6),
    )


@recipe("cifar10-mdeq-cpu-jr", scale="cpu")
def cifar10_mdeq_cpu_jr() -> TrainConfig:
    """The same at half the budget, with Jacobian regularization."""
    base = cifar10_mdeq_cpu_small_budget()
    return replace(base, recipe="cifar10-mdeq-cpu-jr", jacobian=replace(base.jacobian, weight=1.0))
