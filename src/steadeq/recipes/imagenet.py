"""ImageNet at the scale of the paper, and Imagenette at 64 pixels on a laptop (section 5.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .. import data
from ..train import (
    AbstractDataConfig,
    BackwardConfig,
    Classification,
    ForwardConfig,
    JacobianConfig,
    LogConfig,
    LoopConfig,
    OptimizerConfig,
    TrainConfig,
    WarmupConfig,
)
from ..train.checks import check_at_least
from .budget import with_budget
from .mdeq import cifar10_mdeq_cpu, preset
from .registry import recipe


@dataclass(frozen=True, kw_only=True)
class ImagenetData(AbstractDataConfig):
    """1.28 million photographs in 1000 classes."""

    name = "imagenet"
    task = Classification()

    num_validation: int = 10_000
    """Training images set apart for validation; ImageNet's own validation images are the test split."""
    num_workers: int = 8
    """Processes that decode images."""
    on_corrupt: Literal["raise", "skip"] = "raise"
    """Whether a damaged image is an error or replaced by another one of its class."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_at_least("data", self, 1, "num_validation")
        check_at_least("data", self, 0, "num_workers")

    def load(self) -> data.Splits:
        """Return the data."""
        return data.imagenet.load(
            num_validation=self.num_validation, num_workers=self.num_workers, on_corrupt=self.on_corrupt
        )


@dataclass(frozen=True, kw_only=True)
class Imagenette64Data(AbstractDataConfig):
    """Ten classes of ImageNet at 64 by 64 pixels."""

    name = "imagenette64"
    task = Classification()

    num_train: int | None = None
    """Training images to use; all if not given."""
    num_validation: int = 1_000
    """Training images set apart for validation."""
    augment: bool = True
    """Whether training images are shifted and mirrored at random."""

    def load(self) -> data.Splits:
        """Return the data."""
        return data.imagenette64.load(
            num_train=self.num_train, num_validation=self.num_validation, augment=self.augment
        )


@recipe("imagenette64-mdeq-cpu", scale="cpu")
def imagenette64_mdeq_cpu() -> TrainConfig:
    """A part of Imagenette-64 with two small scales, without regularization, at a generous budget."""
    return replace(
        cifar10_mdeq_cpu(),
        recipe="imagenette64-mdeq-cpu",
        model=replace(preset("cifar10-cpu"), num_downsamplings=2),
        data=Imagenette64Data(num_train=6_400),
    )


@recipe("imagenette64-mdeq-cpu-jr", scale="cpu")
def imagenette64_mdeq_cpu_jr() -> TrainConfig:
    """The same at half the budget, with Jacobian regularization."""
    base = with_budget(imagenette64_mdeq_cpu(), 6)
    return replace(
        base,
        recipe="imagenette64-mdeq-cpu-jr",
        # Those of cifar10-mdeq-cpu-jr; nothing was selected on Imagenette.
        optimizer=replace(base.optimizer, learning_rate=3e-3),
        jacobian=replace(base.jacobian, weight=0.3),
    )


@recipe("imagenet-mdeq-small", scale="paper")
def imagenet_mdeq_small() -> TrainConfig:
    """Small MDEQ on ImageNet with the hyper-parameters of the official code, without regularization."""
    return TrainConfig(
        recipe="imagenet-mdeq-small",
        model=preset("imagenet-small"),
        data=ImagenetData(),
        optimizer=OptimizerConfig(
            method="sgd",
            learning_rate=0.05,
            schedule="cosine",
            min_learning_rate=1e-6,
            weight_decay=5e-5,
            momentum=0.9,
            nesterov=True,
        ),
        # The official stopping rule never triggers at this size: all evaluations are spent.
        forward=ForwardConfig(solver="broyden", max_evals=26, tol=0.0, memory=26),
        backward=BackwardConfig(solver="broyden", max_evals=27, tol=0.0),
        warmup=WarmupConfig(num_steps=510_000, depth=5),
        loop=LoopConfig(num_epochs=100, batch_size=128),
        log=LogConfig(every=100, checkpoint_every=2_000, eval_batch_size=128),
    )


@recipe("imagenet-mdeq-small-jr", scale="paper")
def imagenet_mdeq_small_jr() -> TrainConfig:
    """The same with Jacobian regularization, at half the budget."""
    base = _with_official_penalty(imagenet_mdeq_small(), weight=2.5)
    return replace(
        base,
        recipe="imagenet-mdeq-small-jr",
        model=preset("imagenet-small-jr"),
        optimizer=replace(base.optimizer, learning_rate=0.04, weight_decay=2e-5),
    )


@recipe("imagenet-mdeq-small-jr-paper", scale="paper")
def imagenet_mdeq_small_jr_paper() -> TrainConfig:
    """Small MDEQ on ImageNet with Jacobian regularization and the hyper-parameters that the paper prints."""
    base = imagenet_mdeq_small()
    return replace(
        base,
        recipe="imagenet-mdeq-small-jr-paper",
        model=preset("imagenet-small-jr"),
        optimizer=replace(base.optimizer, min_learning_rate=0.0),
        forward=ForwardConfig(solver="broyden", max_evals=14, tol=1e-3, memory=14),
        backward=BackwardConfig(solver="broyden", max_evals=14, tol=1e-4),
        jacobian=JacobianConfig(weight=2.0, schedule="linear", end=3.0, probability=0.1, probe="gaussian"),
        warmup=WarmupConfig(),
        loop=LoopConfig(num_epochs=120, batch_size=112),
    )


@recipe("imagenet-mdeq-large", scale="paper")
def imagenet_mdeq_large() -> TrainConfig:
    """Large MDEQ on ImageNet with the hyper-parameters of the official code, without regularization."""
    base = imagenet_mdeq_small()
    return replace(
        base,
        recipe="imagenet-mdeq-large",
        model=preset("imagenet-large"),
        optimizer=replace(base.optimizer, weight_decay=1e-4),
        warmup=WarmupConfig(num_steps=510_000, depth=4),
    )


@recipe("imagenet-mdeq-large-jr", scale="paper")
def imagenet_mdeq_large_jr() -> TrainConfig:
    """The same with Jacobian regularization, at half the budget."""
    base = _with_official_penalty(imagenet_mdeq_large(), weight=3.0)
    return replace(base, recipe="imagenet-mdeq-large-jr", model=preset("imagenet-large-jr"))


def _with_official_penalty(config: TrainConfig, *, weight: float) -> TrainConfig:
    """Return a config with the penalty of the official runs on ImageNet, which grows slowly after the warm-up."""
    return replace(
        config,
        forward=replace(config.forward, max_evals=14, memory=14, jitter=(-2, 1), jitter_when="penalized"),
        backward=replace(config.backward, max_evals=14),
        jacobian=JacobianConfig(
            weight=weight,
            probability=0.08,
            num_probes=2,
            probe="gaussian",
            schedule="increments",
            increment=0.1,
            every=50_000,
            begin=config.warmup.num_steps,
        ),
        warmup=replace(config.warmup, jacobian_weight=0.03),
    )
