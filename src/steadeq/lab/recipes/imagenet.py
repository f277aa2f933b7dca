"""ImageNet at the scale of the paper (section 5.3), and ten classes of it on a laptop."""

from __future__ import annotations

from dataclasses import replace

from ...adjoints import Implicit
from ...jacobian import JacobianRegularizer
from ...jacobian.schedules import Increments, Linear
from ...models import preset
from ...solvers import Broyden
from ..config import LogConfig, LoopConfig, RandomBudget, TrainConfig, WarmupConfig
from ..data import ImageNet, Imagenette64
from ..optimizers import SGD
from .cifar10 import cifar10_mdeq_cpu
from .registry import recipe, regularized

_ALL = ImageNet(num_validation=0)
"""All images that there are to train on, as in the official runs."""


@recipe("imagenet-mdeq-small", scale="paper")
def imagenet_mdeq_small() -> TrainConfig:
    """Small MDEQ on ImageNet with the hyper-parameters of the official code, without regularization."""
    return TrainConfig(
        model=preset("mdeq/imagenet-small"),
        data=_ALL,
        optimizer=SGD(learning_rate=0.05, min_learning_rate=1e-6, weight_decay=5e-5, momentum=0.9, nesterov=True),
        # The official solves stop where a norm over a GPU's batch is below 1e-3. Forward it is about 2,500, so that all
        # evaluations are spent. Backward it is 0.006 to 0.04, so that they stop at 0.18 to 0.02 of it.
        solver=Broyden(max_evals=26, tol=0.0),
        adjoint=Implicit(Broyden(max_evals=27, tol=0.05)),
        warmup=WarmupConfig(num_steps=510_000, depth=5),
        loop=LoopConfig(num_epochs=100, batch_size=128),
        log=LogConfig(every=100, checkpoint_every=2_000, eval_batch_size=128),
    )


@recipe("imagenet-mdeq-small-jr", scale="paper")
def imagenet_mdeq_small_jr() -> TrainConfig:
    """Small MDEQ on ImageNet with Jacobian regularization and the hyper-parameters of the official code."""
    base = _with_official_penalty(imagenet_mdeq_small(), weight=2.5)
    return replace(
        base,
        model=preset("mdeq/imagenet-small-jr"),
        optimizer=replace(base.optimizer, learning_rate=0.04, weight_decay=2e-5),
    )


@recipe("imagenet-mdeq-small-jr-paper", scale="paper")
def imagenet_mdeq_small_jr_paper() -> TrainConfig:
    """Small MDEQ on ImageNet with Jacobian regularization and the hyper-parameters that the paper prints."""
    base = imagenet_mdeq_small()
    return replace(
        base,
        model=preset("mdeq/imagenet-small-jr"),
        optimizer=replace(base.optimizer, min_learning_rate=0.0),
        solver=Broyden(max_evals=14, tol=1e-3),
        adjoint=Implicit(Broyden(max_evals=14, tol=1e-4)),
        regularizer=JacobianRegularizer(weight=2.0, probability=0.1, probe="gaussian", schedule=Linear(end=3.0)),
        warmup=WarmupConfig(),
        loop=LoopConfig(num_epochs=120, batch_size=112),
    )


@recipe("imagenet-mdeq-large", scale="paper")
def imagenet_mdeq_large() -> TrainConfig:
    """Large MDEQ on ImageNet with the hyper-parameters of the official code, without regularization."""
    base = imagenet_mdeq_small()
    return replace(
        base,
        model=preset("mdeq/imagenet-large"),
        optimizer=replace(base.optimizer, weight_decay=1e-4),
        warmup=WarmupConfig(num_steps=510_000, depth=4),
    )


@recipe("imagenet-mdeq-large-jr", scale="paper")
def imagenet_mdeq_large_jr() -> TrainConfig:
    """Large MDEQ on ImageNet with Jacobian regularization and the hyper-parameters of the official code."""
    return replace(_with_official_penalty(imagenet_mdeq_large(), weight=3.0), model=preset("mdeq/imagenet-large-jr"))


@recipe("imagenet-resnet18", scale="paper")
def imagenet_resnet18() -> TrainConfig:
    """ResNet-18 on ImageNet with the hyper-parameters of He et al. (2016), but a cosine; the paper quotes its row."""
    return TrainConfig(
        model=replace(preset("resnet/18"), num_classes=1000),
        data=_ALL,
        optimizer=SGD(learning_rate=0.1, weight_decay=1e-4, momentum=0.9),
        loop=LoopConfig(num_epochs=90, batch_size=256),
        log=LogConfig(every=100, checkpoint_every=2_000, eval_batch_size=256),
    )


@recipe("imagenet-resnet50", scale="paper")
def imagenet_resnet50() -> TrainConfig:
    """ResNet-50 on ImageNet with the hyper-parameters of He et al. (2016), but a cosine; the paper quotes its row."""
    return replace(imagenet_resnet18(), model=replace(preset("resnet/50"), num_classes=1000))


@recipe("imagenet-resnet101", scale="paper")
def imagenet_resnet101() -> TrainConfig:
    """ResNet-101 on ImageNet with the hyper-parameters of He et al. (2016), but a cosine; the paper quotes its row."""
    return replace(imagenet_resnet18(), model=replace(preset("resnet/101"), num_classes=1000))


# Imagenette at 64 pixels, on a laptop


@recipe("imagenette64-mdeq-cpu", scale="cpu")
def imagenette64_mdeq_cpu() -> TrainConfig:
    """A small MDEQ on a part of Imagenette-64, at 12 evaluations a solve, not regularized."""
    return replace(
        cifar10_mdeq_cpu(),
        model=replace(preset("mdeq/cifar10-cpu"), num_downsamplings=2),
        data=Imagenette64(num_train=6_400),
    )


@recipe("imagenette64-mdeq-cpu-jr", scale="cpu")
def imagenette64_mdeq_cpu_jr() -> TrainConfig:
    """A small MDEQ on a part of Imagenette-64, at 6 evaluations a solve, regularized."""
    # The values of cifar10-mdeq-cpu-jr; nothing was selected on Imagenette.
    return regularized(imagenette64_mdeq_cpu(), weight=0.3, max_evals=6, learning_rate=3e-3)


@recipe("imagenette64-resnet-cpu", scale="cpu")
def imagenette64_resnet_cpu() -> TrainConfig:
    """A residual network on a part of Imagenette-64, as small as the MDEQ of imagenette64-mdeq-cpu."""
    base = imagenette64_mdeq_cpu()
    return replace(
        base,
        # The stem takes images to 16 by 16 pixels, as that of the multiscale DEQ does.
        model=replace(preset("resnet/cpu"), stem="imagenet"),
        # That of cifar10-resnet-cpu; nothing was selected on Imagenette.
        optimizer=replace(base.optimizer, learning_rate=3e-3),
    )


def _with_official_penalty(config: TrainConfig, *, weight: float) -> TrainConfig:
    """Return a config with the penalty of the official runs on ImageNet, which grows slowly after the warm-up."""
    return replace(
        config.with_max_evals(14),
        budget=RandomBudget(low=-2, high=1, when="penalized"),
        regularizer=JacobianRegularizer(
            weight=weight,
            probability=0.08,
            num_probes=2,
            probe="gaussian",
            schedule=Increments(increment=0.1, every=50_000, begin=config.warmup.num_steps),
        ),
        warmup=replace(config.warmup, regularizer_weight=0.03),
    )
