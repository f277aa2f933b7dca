"""Handwritten digits with a small convolutional DEQ: the quickest real task."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .. import data, models
from ..train import (
    AbstractDataConfig,
    AbstractModelConfig,
    BackwardConfig,
    Classification,
    ForwardConfig,
    JacobianConfig,
    LoopConfig,
    OptimizerConfig,
    TrainConfig,
)
from ..train.checks import check_at_least
from .registry import recipe


@dataclass(frozen=True, kw_only=True)
class ConvModel(AbstractModelConfig):
    """Two convolutions, solved to their equilibrium."""

    image_channels: int = 1
    """Channels of the images."""
    channels: int = 24
    """Channels of the state."""
    hidden: int = 48
    """Channels between the two convolutions of the cell."""
    groups: int = 4
    """Groups of the normalizations."""
    stride: int = 1
    """Of the injection: 2 halves the resolution of the state."""
    num_classes: int = 10
    """Classes to tell apart."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        names = ("image_channels", "channels", "hidden", "groups", "stride", "num_classes")
        check_at_least("model", self, 1, *names)

    def build(self) -> models.ConvDEQ:
        """Return the network."""
        return models.ConvDEQ(
            image_channels=self.image_channels,
            channels=self.channels,
            hidden=self.hidden,
            groups=self.groups,
            stride=self.stride,
            num_classes=self.num_classes,
        )


@dataclass(frozen=True, kw_only=True)
class DigitsData(AbstractDataConfig):
    """1797 handwritten digits of 8 by 8 pixels."""

    name = "digits"
    task = Classification()

    def load(self) -> data.Splits:
        """Return the data."""
        return data.digits.load()


@recipe("digits", scale="cpu")
def digits() -> TrainConfig:
    """Handwritten digits of 8 by 8 pixels, without regularization, at a generous budget."""
    return TrainConfig(
        recipe="digits",
        model=ConvModel(),
        data=DigitsData(),
        optimizer=OptimizerConfig(method="adam", learning_rate=3e-3, schedule="cosine"),
        forward=ForwardConfig(solver="anderson", max_evals=18, tol=1e-3),
        backward=BackwardConfig(solver="gmres", max_evals=18, tol=1e-4),
        jacobian=JacobianConfig(weight=0.0, probability=0.4),
        loop=LoopConfig(num_epochs=16, batch_size=57),
    )


@recipe("digits-small-budget", scale="cpu")
def digits_small_budget() -> TrainConfig:
    """The same at a third of the budget, still without regularization."""
    base = digits()
    return replace(
        base,
        recipe="digits-small-budget",
        forward=replace(base.forward, max_evals=6),
        backward=replace(base.backward, max_evals=6),
    )


@recipe("digits-jr", scale="cpu")
def digits_jr() -> TrainConfig:
    """The same at a third of the budget, with Jacobian regularization."""
    base = digits_small_budget()
    return replace(base, recipe="digits-jr", jacobian=replace(base.jacobian, weight=2.0))
