"""Sums of two numbers with a looped Transformer block, and with as many layers of their own.

The block is trained as looped language models are: the depth of a step is drawn from a log-normal distribution, and
gradients go through the last four steps only. It is evaluated at four times the mean depth of 12.
"""

from __future__ import annotations

from dataclasses import replace

from ...adjoints import Unrolled
from ...jacobian import JacobianRegularizer
from ...models import preset
from ...solvers import LogNormalDepth, Loop, Picard
from ..config import LogConfig, LoopConfig, RandomBudget, TrainConfig
from ..data import Addition
from ..optimizers import Adam
from .registry import recipe, regularized


@recipe("addition", scale="cpu")
def addition() -> TrainConfig:
    """An equilibrium Transformer looped over the digits of two numbers, 12 times on average, not regularized."""
    return TrainConfig(
        model=preset("modern/addition"),
        data=Addition(),
        optimizer=Adam(learning_rate=2e-3, warmup_steps=50, max_grad_norm=1.0),
        solver=Loop(num_steps=12),
        eval_solver=Picard(max_evals=48, tol=1e-3),
        budget=RandomBudget(depth=LogNormalDepth(mean=12, maximum=40)),
        adjoint=Unrolled(last=4),
        regularizer=JacobianRegularizer(weight=0.0, estimator="difference"),
        loop=LoopConfig(num_epochs=5, batch_size=64),
        log=LogConfig(eval_every=100, eval_batch_size=256),
    )


@recipe("addition-jr", scale="cpu")
def addition_jr() -> TrainConfig:
    """An equilibrium Transformer looped over the digits of two numbers, with Jacobian regularization."""
    return regularized(addition(), weight=0.3)


@recipe("addition-stacked", scale="cpu")
def addition_stacked() -> TrainConfig:
    """A Transformer of six layers of their own on the digits of two numbers, to compare addition with."""
    return replace(addition(), model=preset("stacked-modern/addition"))
