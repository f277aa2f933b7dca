"""Equilibria of modern Transformer blocks on a laptop, next to the models that each data set has already."""

from __future__ import annotations

from dataclasses import replace

from ...jacobian import JacobianRegularizer
from ...models import preset
from ..config import TrainConfig, WarmupConfig
from ..optimizers import Adam
from .cifar10 import cifar10_mdeq_cpu
from .digits import digits
from .registry import recipe, regularized, with_coarse_gradients
from .wikitext2 import wikitext2_deq_post_cpu

_SMALL = 12
"""The budget of the regularized language model, as for the other ones."""

# Images


@recipe("digits-vit", scale="cpu")
def digits_vit() -> TrainConfig:
    """An equilibrium Transformer on patches of handwritten digits, without regularization.

    Tried with one seed: 40 epochs reach 97.3% of the validation digits and 16, as the convolutional models have, 96.7%;
    a learning rate of 2e-3 reaches 96.7%, and a stack of six such layers 98.7%.
    """
    config = digits()
    return replace(
        config,
        model=preset("vit/digits"),
        # Implicit gradients have rare spikes, which Adam remembers for hundreds of steps.
        optimizer=Adam(learning_rate=3e-3, warmup_steps=30, max_grad_norm=1.0),
        loop=replace(config.loop, num_epochs=40),
    )


@recipe("digits-vit-jr", scale="cpu")
def digits_vit_jr() -> TrainConfig:
    """An equilibrium Transformer on patches of handwritten digits, at 6 evaluations a solve, regularized.

    Tried with one seed and backward solves to 1e-4: 96.0% of the validation digits with a residual of 0.06, and without
    the penalty at the same budget 95.7% with 0.13. Weights of 5 and 10 slow learning down.
    """
    return with_coarse_gradients(regularized(digits_vit(), weight=2.0, max_evals=6))


@recipe("digits-stacked-vit", scale="cpu")
def digits_stacked_vit() -> TrainConfig:
    """A Transformer of six layers on patches of handwritten digits: to compare digits-vit with."""
    return replace(digits_vit(), model=preset("stacked-vit/digits"))


@recipe("cifar10-vit-cpu", scale="cpu")
def cifar10_vit_cpu() -> TrainConfig:
    """An equilibrium Transformer on patches of a part of CIFAR-10, without regularization."""
    return replace(
        cifar10_mdeq_cpu(), model=preset("vit/cifar10-cpu"), optimizer=Adam(learning_rate=2e-3, warmup_steps=100)
    )


@recipe("cifar10-vit-cpu-jr", scale="cpu")
def cifar10_vit_cpu_jr() -> TrainConfig:
    """An equilibrium Transformer on patches of a part of CIFAR-10, at 6 evaluations a solve, regularized."""
    return with_coarse_gradients(regularized(cifar10_vit_cpu(), weight=0.3, max_evals=6))


@recipe("cifar10-stacked-vit-cpu", scale="cpu")
def cifar10_stacked_vit_cpu() -> TrainConfig:
    """A Transformer of six layers on patches of a part of CIFAR-10: to compare cifar10-vit-cpu with."""
    return replace(cifar10_vit_cpu(), model=preset("stacked-vit/cifar10-cpu"))


# Language


@recipe("wikitext2-modern-cpu", scale="cpu")
def wikitext2_modern_cpu() -> TrainConfig:
    """An equilibrium Transformer of today's blocks on a part of WikiText-2, without regularization."""
    return replace(wikitext2_deq_post_cpu(), model=preset("modern/wt2-cpu"))


@recipe("wikitext2-modern-jr-cpu", scale="cpu")
def wikitext2_modern_jr_cpu() -> TrainConfig:
    """An equilibrium Transformer of today's blocks on a part of WikiText-2, with Jacobian regularization."""
    return replace(
        with_coarse_gradients(wikitext2_modern_cpu().with_max_evals(_SMALL)),
        regularizer=JacobianRegularizer(weight=0.4, probability=0.4),
    )


@recipe("wikitext2-stacked-modern-cpu", scale="cpu")
def wikitext2_stacked_modern_cpu() -> TrainConfig:
    """A Transformer of six of today's layers on a part of WikiText-2: to compare wikitext2-modern-cpu with."""
    return replace(wikitext2_modern_cpu(), model=preset("stacked-modern/wt2-cpu"), warmup=WarmupConfig())
