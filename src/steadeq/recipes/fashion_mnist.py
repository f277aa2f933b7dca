"""Fashion-MNIST."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .. import data
from ..train import AbstractDataConfig, Classification, TrainConfig
from .budget import with_budget
from .mdeq import cifar10_mdeq_cpu, preset
from .registry import recipe


@dataclass(frozen=True, kw_only=True)
class FashionMnistData(AbstractDataConfig):
    """Gray images of clothes, 28 by 28 pixels, in 10 classes."""

    name = "fashion-mnist"
    task = Classification()

    num_train: int = 55_000
    """Training images to use, from the first on."""
    num_validation: int = 5_000
    """Training images set apart for validation, from the last on."""
    augment: bool = True
    """Whether training images are shifted and mirrored at random."""

    def load(self) -> data.Splits:
        """Return the data."""
        return data.fashion_mnist.load(
            num_train=self.num_train, num_validation=self.num_validation, augment=self.augment
        )


@recipe("fashion-mnist-mdeq-cpu", scale="cpu")
def fashion_mnist_mdeq_cpu() -> TrainConfig:
    """A part of Fashion-MNIST with two small scales, without regularization, at a generous budget."""
    return replace(
        cifar10_mdeq_cpu(),
        recipe="fashion-mnist-mdeq-cpu",
        model=replace(preset("cifar10-cpu"), image_channels=1),
        data=FashionMnistData(num_train=8_000, num_validation=2_000),
    )


@recipe("fashion-mnist-mdeq-cpu-jr", scale="cpu")
def fashion_mnist_mdeq_cpu_jr() -> TrainConfig:
    """The same at half the budget, with Jacobian regularization."""
    base = with_budget(fashion_mnist_mdeq_cpu(), 6)
    return replace(base, recipe="fashion-mnist-mdeq-cpu-jr", jacobian=replace(base.jacobian, weight=0.3))
