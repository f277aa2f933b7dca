"""CIFAR-10."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
)
from .digits import ConvModel
from .registry import recipe


@dataclass(frozen=True, kw_only=True)
class Cifar10Data(AbstractDataConfig):
    """Color images of 32 by 32 pixels in 10 classes."""

    name = "cifar10"
    task = Classification()

    num_train: int = 45_000
    """Training images to use, from the first on."""
    num_validation: int = 5_000
    """Training images set apart for validation, from the last on."""
    augment: bool = True
    """Whether training images are shifted and mirrored at random."""

    def load(self) -> data.Splits:
        """Return the data."""
        return data.cifar10.load(num_train=self.num_train, num_validation=self.num_validation, augment=self.augment)


@recipe("cifar10-conv-cpu", scale="cpu")
def cifar10_conv_cpu() -> TrainConfig:
    """A part of CIFAR-10 with one scale, without regularization."""
    return TrainConfig(
        recipe="cifar10-conv-cpu",
        model=ConvModel(image_channels=3, channels=32, hidden=64, stride=2),
        data=Cifar10Data(num_train=8_000, num_validation=2_000),
        optimizer=OptimizerConfig(method="adam", learning_rate=2e-3, schedule="cosine"),
        forward=ForwardConfig(solver="anderson", max_evals=12, tol=1e-3),
        backward=BackwardConfig(solver="gmres", max_evals=12, tol=1e-4),
        jacobian=JacobianConfig(weight=0.0, probability=0.3),
        loop=LoopConfig(num_epochs=5, batch_size=64),
        log=LogConfig(eval_every=125, spectrum_samples=8),
    )


@recipe("cifar10-conv-cpu-jr", scale="cpu")
def cifar10_conv_cpu_jr() -> TrainConfig:
    """The same with Jacobian regularization, at half the budget."""
    base = cifar10_conv_cpu()
    return replace(
        base,
        recipe="cifar10-conv-cpu-jr",
        forward=replace(base.forward, max_evals=6),
        backward=replace(base.backward, max_evals=6),
        jacobian=replace(base.jacobian, weight=1.0),
    )
