"""CIFAR-10 (section 5.3, Table 2, appendix A.3)."""

from __future__ import annotations

from dataclasses import replace

from ...adjoints import Implicit
from ...jacobian import JacobianRegularizer
from ...jacobian.schedules import StopAfter
from ...models import preset
from ...solvers import GMRES, Anderson, Broyden, Picard
from ..config import LogConfig, LoopConfig, RandomBudget, TrainConfig, WarmupConfig
from ..data import Cifar10
from ..optimizers import SGD, Adam
from .registry import recipe, regularized

# On a laptop


@recipe("cifar10-mdeq-cpu", scale="cpu")
def cifar10_mdeq_cpu() -> TrainConfig:
    """A small MDEQ on a part of CIFAR-10, at 12 evaluations a solve, not regularized."""
    return TrainConfig(
        model=preset("mdeq/cifar10-cpu"),
        data=Cifar10(num_train=8_000, num_validation=2_000),
        optimizer=Adam(learning_rate=1.5e-3),
        solver=Anderson(max_evals=12, tol=1e-3),
        adjoint=Implicit(GMRES(max_evals=12, tol=1e-4)),
        regularizer=JacobianRegularizer(weight=0.0, probability=0.3),
        loop=LoopConfig(num_epochs=6, batch_size=32),
    )


@recipe("cifar10-mdeq-cpu-jr", scale="cpu")
def cifar10_mdeq_cpu_jr() -> TrainConfig:
    """A small MDEQ on a part of CIFAR-10, at 6 evaluations a solve, regularized."""
    return regularized(cifar10_mdeq_cpu(), weight=0.3, max_evals=6, learning_rate=3e-3)


@recipe("cifar10-monotone-cpu", scale="cpu")
def cifar10_monotone_cpu() -> TrainConfig:
    """A monotone DEQ on a part of CIFAR-10 that trains about as long as cifar10-mdeq-cpu."""
    # A sixth of the parameters, as it works on images of full size (in the paper it is a tenth).
    return replace(cifar10_mdeq_cpu(), model=replace(preset("monotone/cifar10"), channels=16))


@recipe("cifar10-monotone-multi-cpu", scale="cpu")
def cifar10_monotone_multi_cpu() -> TrainConfig:
    """A monotone DEQ of three tiers on a part of CIFAR-10."""
    base = cifar10_mdeq_cpu()
    return replace(
        base,
        model=replace(preset("monotone/cifar10-multi"), channels=6, tiers=(12, 24)),
        optimizer=replace(base.optimizer, learning_rate=3e-3),
    )


@recipe("cifar10-resnet-cpu", scale="cpu")
def cifar10_resnet_cpu() -> TrainConfig:
    """A residual network on a part of CIFAR-10, as small as the MDEQ of cifar10-mdeq-cpu."""
    base = cifar10_mdeq_cpu()
    return replace(base, model=preset("resnet/cpu"), optimizer=replace(base.optimizer, learning_rate=3e-3))


@recipe("cifar10-mdeq-cpu-weight-decay", scale="cpu")
def cifar10_mdeq_cpu_weight_decay() -> TrainConfig:
    """A small MDEQ on a part of CIFAR-10, with weight decay instead of regularization."""
    base = cifar10_mdeq_cpu()
    return replace(base, optimizer=replace(base.optimizer, weight_decay=1e-6))


# At the scale of the paper

_ALL = Cifar10(num_train=50_000, num_validation=0)
"""All images that there are to train on, as in the official runs."""


@recipe("cifar10-mdeq-tiny", scale="paper")
def cifar10_mdeq_tiny() -> TrainConfig:
    """Tiny MDEQ on CIFAR-10 with the hyper-parameters of the official code."""
    base = cifar10_mdeq()
    return replace(
        base,
        model=preset("mdeq/cifar10-tiny"),
        data=replace(_ALL, augment=False),
        optimizer=replace(base.optimizer, weight_decay=2.5e-6),
        warmup=WarmupConfig(num_steps=3_000, depth=10),
        loop=LoopConfig(num_epochs=50, batch_size=128),
    )


@recipe("cifar10-mdeq-tiny-jr", scale="paper")
def cifar10_mdeq_tiny_jr() -> TrainConfig:
    """Tiny MDEQ on CIFAR-10 with Jacobian regularization as in the official code for the large model."""
    return _with_official_penalty(cifar10_mdeq_tiny())


@recipe("cifar10-mdeq", scale="paper")
def cifar10_mdeq() -> TrainConfig:
    """MDEQ on CIFAR-10 with the hyper-parameters of the official code, without regularization."""
    return TrainConfig(
        model=preset("mdeq/cifar10"),
        data=_ALL,
        optimizer=Adam(learning_rate=1e-3, min_learning_rate=1e-6),
        solver=Broyden(max_evals=18, tol=1e-3),
        adjoint=Implicit(Broyden(max_evals=20, tol=1e-3)),
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
        model=preset("mdeq/cifar10-jr"),
        warmup=WarmupConfig(num_steps=16_000, depth=8),
        loop=replace(base.loop, batch_size=96),
    )


@recipe("cifar10-mdeq-jr-paper", scale="paper")
def cifar10_mdeq_jr_paper() -> TrainConfig:
    """MDEQ on CIFAR-10 with Jacobian regularization and the hyper-parameters that the paper prints."""
    return TrainConfig(
        model=preset("mdeq/cifar10-paper"),
        data=_ALL,
        optimizer=Adam(learning_rate=1e-3),
        solver=Broyden(max_evals=7, tol=1e-3),
        eval_solver=Broyden(max_evals=6, tol=1e-3),
        adjoint=Implicit(Broyden(max_evals=8, tol=1e-4)),
        regularizer=JacobianRegularizer(weight=0.5, probability=0.05, probe="gaussian"),
        loop=LoopConfig(num_epochs=200, batch_size=96),
        log=LogConfig(every=50, checkpoint_every=1_000),
    )


@recipe("cifar10-monotone", scale="paper")
def cifar10_monotone() -> TrainConfig:
    """Monotone DEQ with a single convolution on CIFAR-10 with the hyper-parameters of its authors' code."""
    return TrainConfig(
        model=preset("monotone/cifar10"),
        data=replace(_ALL, augment=False),
        # Their rate is divided by 10 after epoch 25.
        optimizer=Adam(learning_rate=1e-3, min_learning_rate=1e-4),
        solver=Picard(max_evals=300, tol=1e-2),
        adjoint=Implicit(Picard(max_evals=300, tol=1e-2)),
        loop=LoopConfig(num_epochs=40, batch_size=128),
        log=LogConfig(every=50, checkpoint_every=1_000),
    )


@recipe("cifar10-monotone-multi", scale="paper")
def cifar10_monotone_multi() -> TrainConfig:
    """Monotone DEQ with three tiers on CIFAR-10 with the hyper-parameters of its authors' code."""
    return replace(
        cifar10_monotone(),
        model=preset("monotone/cifar10-multi"),
        data=_ALL,
        # Their rate rises over 30 epochs and falls over 30, both linearly, and is lowest for 5; their first beta goes
        # from 0.95 to 0.85 and back meanwhile.
        optimizer=Adam(learning_rate=0.05, min_learning_rate=1e-3, warmup_steps=10_500),
        loop=LoopConfig(num_epochs=65, batch_size=128),
    )


@recipe("cifar10-resnet18", scale="paper")
def cifar10_resnet18() -> TrainConfig:
    """ResNet-18 on CIFAR-10 with the usual hyper-parameters; the paper prints none."""
    return TrainConfig(
        model=replace(preset("resnet/18"), stem="cifar"),
        data=_ALL,
        optimizer=SGD(learning_rate=0.1, weight_decay=5e-4, momentum=0.9, nesterov=True),
        loop=LoopConfig(num_epochs=200, batch_size=128),
        log=LogConfig(every=50, checkpoint_every=1_000),
    )


@recipe("cifar10-resnet101", scale="paper")
def cifar10_resnet101() -> TrainConfig:
    """ResNet-101 on CIFAR-10 with the usual hyper-parameters; the paper prints none."""
    return replace(cifar10_resnet18(), model=replace(preset("resnet/101"), stem="cifar"))


@recipe("cifar10-densenet121", scale="paper")
def cifar10_densenet121() -> TrainConfig:
    """DenseNet-121 on CIFAR-10 with the usual hyper-parameters; the paper prints none."""
    return replace(cifar10_resnet18(), model=replace(preset("densenet/121"), stem="cifar"))


def _with_official_penalty(config: TrainConfig) -> TrainConfig:
    """Return a config with the penalty of the official run on CIFAR-10: weak, rare, and stopped at epoch 90 of 220."""
    return replace(
        config,
        solver=Broyden(max_evals=8, tol=1e-3),
        budget=RandomBudget(low=-2, high=1, when="penalized"),
        adjoint=Implicit(Broyden(max_evals=7, tol=1e-3)),
        regularizer=JacobianRegularizer(
            weight=0.4,
            probability=0.02,
            num_probes=2,
            probe="gaussian",
            schedule=StopAfter(epoch=90 * config.loop.num_epochs // 220),
        ),
    )
