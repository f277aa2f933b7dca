"""Multiscale DEQs for images (section 5.3, Table 2, appendix A.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..models import MDEQClassifier
from ..models.mdeq.presets import CLASSIFIERS, build_classifier
from ..train import (
    AbstractModelConfig,
    BackwardConfig,
    ForwardConfig,
    JacobianConfig,
    LogConfig,
    LoopConfig,
    OptimizerConfig,
    TrainConfig,
    WarmupConfig,
)
from ..train.checks import check_at_least, check_fraction
from .budget import with_budget
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
        return build_classifier(**vars(self))


def preset(name: str) -> MDEQModel:
    """Return the config of a published model."""
    return MDEQModel(**CLASSIFIERS[name])


# On a laptop


@recipe("cifar10-mdeq-cpu", scale="cpu")
def cifar10_mdeq_cpu() -> TrainConfig:
    """A part of CIFAR-10 with two small scales, without regularization, at a generous budget."""
    return TrainConfig(
        recipe="cifar10-mdeq-cpu",
        model=preset("cifar10-cpu"),
        data=Cifar10Data(num_train=8_000, num_validation=2_000),
        optimizer=OptimizerConfig(method="adam", learning_rate=1.5e-3, schedule="cosine"),
        forward=ForwardConfig(solver="anderson", max_evals=12, tol=1e-3),
        backward=BackwardConfig(solver="gmres", max_evals=12, tol=1e-4),
        jacobian=JacobianConfig(weight=0.0, probability=0.3),
        loop=LoopConfig(num_epochs=6, batch_size=32),
        log=LogConfig(spectrum_samples=8),
    )


@recipe("cifar10-mdeq-cpu-jr", scale="cpu")
def cifar10_mdeq_cpu_jr() -> TrainConfig:
    """The same at half the budget, with Jacobian regularization."""
    base = with_budget(cifar10_mdeq_cpu(), 6)
    return replace(
        base,
        recipe="cifar10-mdeq-cpu-jr",
        optimizer=replace(base.optimizer, learning_rate=3e-3),
        jacobian=replace(base.jacobian, weight=0.3),
    )


@recipe("cifar10-mdeq-cpu-long", scale="cpu")
def cifar10_mdeq_cpu_long() -> TrainConfig:
    """All of CIFAR-10 with wider scales, without regularization, for some hours."""
    return replace(
        cifar10_mdeq_cpu(),
        recipe="cifar10-mdeq-cpu-long",
        model=replace(preset("cifar10-cpu"), channels=(32, 64)),
        data=Cifar10Data(),
        loop=LoopConfig(num_epochs=12, batch_size=50),
        log=LogConfig(every=10, spectrum_samples=8, checkpoint_every=50),
    )


@recipe("cifar10-mdeq-cpu-long-jr", scale="cpu")
def cifar10_mdeq_cpu_long_jr() -> TrainConfig:
    """The same at half the budget, with Jacobian regularization."""
    base = with_budget(cifar10_mdeq_cpu_long(), 6)
    return replace(base, recipe="cifar10-mdeq-cpu-long-jr", jacobian=replace(base.jacobian, weight=0.3))


# At the scale of the paper


@recipe("cifar10-mdeq-tiny", scale="paper")
def cifar10_mdeq_tiny() -> TrainConfig:
    """Tiny MDEQ on CIFAR-10 with the hyper-parameters of the official code."""
    return replace(
        cifar10_mdeq(),
        recipe="cifar10-mdeq-tiny",
        model=preset("cifar10-tiny"),
        data=Cifar10Data(augment=False),
        optimizer=_official_adam(weight_decay=2.5e-6),
        warmup=WarmupConfig(num_steps=3_000, depth=10),
        loop=LoopConfig(num_epochs=50, batch_size=128),
    )


@recipe("cifar10-mdeq-tiny-jr", scale="paper")
def cifar10_mdeq_tiny_jr() -> TrainConfig:
    """The same at half the budget, with Jacobian regularization as in the official code for the large model."""
    return replace(_with_official_penalty(cifar10_mdeq_tiny()), recipe="cifar10-mdeq-tiny-jr")


@recipe("cifar10-mdeq", scale="paper")
def cifar10_mdeq() -> TrainConfig:
    """MDEQ on CIFAR-10 with the hyper-parameters of the official code, without regularization."""
    return TrainConfig(
        recipe="cifar10-mdeq",
        model=preset("cifar10"),
        data=Cifar10Data(),
        optimizer=_official_adam(),
        forward=ForwardConfig(solver="broyden", max_evals=18, tol=1e-3, memory=18),
        backward=BackwardConfig(solver="broyden", max_evals=20, tol=1e-3),
        warmup=WarmupConfig(num_steps=20_000, depth=10),
        loop=LoopConfig(num_epochs=220, batch_size=128),
        log=LogConfig(every=50, checkpoint_every=1_000),
    )


@recipe("cifar10-mdeq-jr", scale="paper")
def cifar10_mdeq_jr() -> TrainConfig:
    """MDEQ on CIFAR-10 with Jacobian regularization and the hyper-parameters of the official code."""
    base = _with_official_penalty(cifar10_mdeq())
    return replace(
        base,
        recipe="cifar10-mdeq-jr",
        model=preset("cifar10-jr"),
        warmup=WarmupConfig(num_steps=16_000, depth=8),
        loop=replace(base.loop, batch_size=96),
    )


@recipe("cifar10-mdeq-jr-paper", scale="paper")
def cifar10_mdeq_jr_paper() -> TrainConfig:
    """MDEQ on CIFAR-10 with Jacobian regularization and the hyper-parameters that the paper prints."""
    return TrainConfig(
        recipe="cifar10-mdeq-jr-paper",
        model=replace(preset("cifar10-jr"), dropout=0.25),
        data=Cifar10Data(),
        optimizer=OptimizerConfig(method="adam", learning_rate=1e-3, schedule="cosine"),
        forward=ForwardConfig(solver="broyden", max_evals=7, eval_max_evals=6, tol=1e-3, memory=7),
        backward=BackwardConfig(solver="broyden", max_evals=8, tol=1e-4),
        jacobian=JacobianConfig(weight=0.5, probability=0.05, probe="gaussian"),
        loop=LoopConfig(num_epochs=200, batch_size=96),
        log=LogConfig(every=50, checkpoint_every=1_000),
    )


def _official_adam(weight_decay: float = 0.0) -> OptimizerConfig:
    return OptimizerConfig(
        method="adam", learning_rate=1e-3, schedule="cosine", min_learning_rate=1e-6, weight_decay=weight_decay
    )


def _with_official_penalty(config: TrainConfig) -> TrainConfig:
    """Return a config with the penalty of the official run on CIFAR-10: weak, rare, and stopped at epoch 90 of 220."""
    return replace(
        config,
        forward=replace(config.forward, max_evals=8, memory=8, jitter=(-2, 1), jitter_when="penalized"),
        backward=replace(config.backward, max_evals=7),
        jacobian=JacobianConfig(
            weight=0.4, probability=0.02, num_probes=2, probe="gaussian", stop_epoch=90 * config.loop.num_epochs // 220
        ),
    )
