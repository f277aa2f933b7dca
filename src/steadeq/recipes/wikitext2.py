"""WikiText-2 at the scale of a laptop: small twins of the paper's models for WikiText-103."""

from __future__ import annotations

from dataclasses import replace

from ..train import (
    BackwardConfig,
    ForwardConfig,
    JacobianConfig,
    LogConfig,
    LoopConfig,
    OptimizerConfig,
    TrainConfig,
    WarmupConfig,
)
from .budget import with_budget
from .registry import recipe
from .text import WikiText2Data
from .transformers import deq_transformer, tied_transformer, transformer_xl

_SMALL = 12
"""The paper's budget for regularized models; all others have 30."""


@recipe("wikitext2-deq-post-cpu", scale="cpu")
def wikitext2_deq_post_cpu() -> TrainConfig:
    """A part of WikiText-2 with a small post-LN DEQ-Transformer, without regularization, at a generous budget."""
    return TrainConfig(
        recipe="wikitext2-deq-post-cpu",
        model=deq_transformer("wt2-cpu"),
        data=WikiText2Data(length=64, max_validation=40_000, max_test=60_000),
        optimizer=OptimizerConfig(
            method="adam", learning_rate=2e-3, schedule="cosine", warmup_steps=50, max_grad_norm=0.25
        ),
        forward=ForwardConfig(solver="anderson", max_evals=30, tol=1e-3),
        backward=BackwardConfig(solver="gmres", max_evals=30, tol=1e-3),
        warmup=WarmupConfig(num_steps=50, depth=3),
        loop=LoopConfig(num_steps=1_000, batch_size=16),
        log=LogConfig(eval_every=200, eval_batch_size=16, spectrum_samples=4, checkpoint_every=100),
    )


@recipe("wikitext2-deq-early-stopped-cpu", scale="cpu")
def wikitext2_deq_early_stopped_cpu() -> TrainConfig:
    """The same, hard-stopped at 12 evaluations whenever it is evaluated."""
    base = wikitext2_deq_post_cpu()
    return replace(base, recipe="wikitext2-deq-early-stopped-cpu", forward=replace(base.forward, eval_max_evals=_SMALL))


@recipe("wikitext2-deq-post-small-budget-cpu", scale="cpu")
def wikitext2_deq_post_small_budget_cpu() -> TrainConfig:
    """The same, trained with 12 evaluations, without regularization."""
    return replace(with_budget(wikitext2_deq_post_cpu(), _SMALL), recipe="wikitext2-deq-post-small-budget-cpu")


@recipe("wikitext2-deq-post-jr-cpu", scale="cpu")
def wikitext2_deq_post_jr_cpu() -> TrainConfig:
    """The same with 12 evaluations and Jacobian regularization."""
    return replace(
        with_budget(wikitext2_deq_post_cpu(), _SMALL),
        recipe="wikitext2-deq-post-jr-cpu",
        jacobian=JacobianConfig(weight=0.4, probability=0.4),
    )


@recipe("wikitext2-deq-post-jr-linear-cpu", scale="cpu")
def wikitext2_deq_post_jr_linear_cpu() -> TrainConfig:
    """The same with a weight of the penalty that grows in training."""
    base = wikitext2_deq_post_jr_cpu()
    return replace(
        base,
        recipe="wikitext2-deq-post-jr-linear-cpu",
        jacobian=replace(base.jacobian, schedule="linear", weight=0.1, end=0.7),
    )


@recipe("wikitext2-deq-post-no-weight-norm-cpu", scale="cpu")
def wikitext2_deq_post_no_weight_norm_cpu() -> TrainConfig:
    """The post-LN model without weight normalization or regularization."""
    return replace(
        wikitext2_deq_post_cpu(),
        recipe="wikitext2-deq-post-no-weight-norm-cpu",
        model=replace(deq_transformer("wt2-cpu"), weight_norm=False),
    )


@recipe("wikitext2-deq-post-weight-decay-cpu", scale="cpu")
def wikitext2_deq_post_weight_decay_cpu() -> TrainConfig:
    """The post-LN model with weight decay in the place of regularization."""
    base = wikitext2_deq_post_cpu()
    return replace(
        base,
        recipe="wikitext2-deq-post-weight-decay-cpu",
        optimizer=replace(base.optimizer, weight_decay=1e-6),
    )


@recipe("wikitext2-deq-pre-cpu", scale="cpu")
def wikitext2_deq_pre_cpu() -> TrainConfig:
    """The pre-LN model without regularization, at a generous budget."""
    return replace(
        wikitext2_deq_post_cpu(),
        recipe="wikitext2-deq-pre-cpu",
        model=replace(deq_transformer("wt2-cpu"), norm="pre"),
    )


@recipe("wikitext2-deq-pre-jr-cpu", scale="cpu")
def wikitext2_deq_pre_jr_cpu() -> TrainConfig:
    """The pre-LN model with 12 evaluations and Jacobian regularization."""
    return replace(
        wikitext2_deq_post_jr_cpu(),
        recipe="wikitext2-deq-pre-jr-cpu",
        model=replace(deq_transformer("wt2-cpu"), norm="pre"),
    )


@recipe("wikitext2-transformer-xl-cpu", scale="cpu")
def wikitext2_transformer_xl_cpu() -> TrainConfig:
    """Transformer-XL of as many parameters."""
    base = wikitext2_deq_post_cpu()
    return replace(
        base,
        recipe="wikitext2-transformer-xl-cpu",
        optimizer=replace(base.optimizer, learning_rate=4e-3),
        model=transformer_xl("wt2-cpu"),
        warmup=WarmupConfig(),
    )


@recipe("wikitext2-tied-transformer-cpu", scale="cpu")
def wikitext2_tied_transformer_cpu() -> TrainConfig:
    """The cell of the post-LN model applied 12 times, by plain backpropagation."""
    return replace(
        wikitext2_deq_post_cpu(),
        recipe="wikitext2-tied-transformer-cpu",
        model=tied_transformer("wt2-cpu"),
        warmup=WarmupConfig(),
    )
