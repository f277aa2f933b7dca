"""Imagenette at 64 pixels on a laptop."""

from __future__ import annotations

from dataclasses import replace

from ...models import preset
from ..config import TrainConfig
from ..data import Imagenette64
from .cifar10 import cifar10_mdeq_cpu
from .registry import recipe


@recipe("imagenette64-mdeq-cpu", scale="cpu")
def imagenette64_mdeq_cpu() -> TrainConfig:
    """A part of Imagenette-64 with two small scales, without regularization, at a generous budget."""
    return replace(
        cifar10_mdeq_cpu(),
        model=replace(preset("mdeq/cifar10-cpu"), num_downsamplings=2),
        data=Imagenette64(num_train=6_400),
    )


@recipe("imagenette64-mdeq-cpu-jr", scale="cpu")
def imagenette64_mdeq_cpu_jr() -> TrainConfig:
    """The same at half the budget, with Jacobian regularization."""
    base = imagenette64_mdeq_cpu().with_max_evals(6)
    return replace(
        base,
        # Those of cifar10-mdeq-cpu-jr; nothing was selected on Imagenette.
        optimizer=replace(base.optimizer, learning_rate=3e-3),
        regularizer=replace(base.regularizer, weight=0.3),
    )


@recipe("imagenette64-resnet-cpu", scale="cpu")
def imagenette64_resnet_cpu() -> TrainConfig:
    """A part of Imagenette-64 with an explicit network as small as that of imagenette64-mdeq-cpu."""
    base = imagenette64_mdeq_cpu()
    return replace(
        base,
        # The stem takes images to 16 by 16 pixels, as that of the multiscale DEQ does.
        model=replace(preset("resnet/cpu"), stem="imagenet"),
        # That of cifar10-resnet-cpu; nothing was selected on Imagenette.
        optimizer=replace(base.optimizer, learning_rate=3e-3),
    )
