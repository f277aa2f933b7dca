"""Fashion-MNIST on a laptop."""

from __future__ import annotations

from dataclasses import replace

from ...models import preset
from ..config import TrainConfig
from ..data import FashionMnist
from .cifar10 import cifar10_mdeq_cpu
from .registry import recipe, regularized


@recipe("fashion-mnist-mdeq-cpu", scale="cpu")
def fashion_mnist_mdeq_cpu() -> TrainConfig:
    """A small MDEQ on a part of Fashion-MNIST, at 12 evaluations a solve, not regularized."""
    return replace(
        cifar10_mdeq_cpu(),
        model=replace(preset("mdeq/cifar10-cpu"), image_channels=1),
        data=FashionMnist(num_train=8_000, num_validation=2_000),
    )


@recipe("fashion-mnist-mdeq-cpu-jr", scale="cpu")
def fashion_mnist_mdeq_cpu_jr() -> TrainConfig:
    """A small MDEQ on a part of Fashion-MNIST, at 6 evaluations a solve, regularized."""
    return regularized(fashion_mnist_mdeq_cpu(), weight=0.3, max_evals=6)
