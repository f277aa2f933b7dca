"""WikiText-2 at the scale of a laptop: small versions of the paper's models for WikiText-103."""

from __future__ import annotations

from dataclasses import replace

from ...adjoints import Implicit
from ...jacobian import JacobianRegularizer
from ...jacobian.schedules import Linear
from ...models import preset
from ...solvers import GMRES, Anderson
from ..config import LogConfig, LoopConfig, TrainConfig, WarmupConfig
from ..data import WikiText2
from ..optimizers import Adam
from .registry import recipe

_SMALL = 12
"""The paper's budget for regularized models; all others have 30."""


@recipe("wikitext2-deq-post-cpu", scale="cpu")
def wikitext2_deq_post_cpu() -> TrainConfig:
    """A small post-LN DEQ-Transformer on a part of WikiText-2, at 30 evaluations a solve, not regularized."""
    return TrainConfig(
        model=preset("deq-transformer/wt2-cpu"),
        data=WikiText2(length=64, max_validation=40_000, max_test=60_000),
        optimizer=Adam(learning_rate=2e-3, warmup_steps=50, max_grad_norm=0.25),
        solver=Anderson(max_evals=30, tol=1e-3),
        adjoint=Implicit(GMRES(max_evals=30, tol=1e-3)),
        warmup=WarmupConfig(num_steps=50, depth=3),
        loop=LoopConfig(num_steps=1_000, batch_size=16),
        log=LogConfig(eval_every=200, eval_batch_size=16, checkpoint_every=100),
    )


@recipe("wikitext2-deq-early-stopped-cpu", scale="cpu")
def wikitext2_deq_early_stopped_cpu() -> TrainConfig:
    """A small post-LN DEQ-Transformer on a part of WikiText-2, evaluated with 12 evaluations a solve."""
    base = wikitext2_deq_post_cpu()
    return replace(base, eval_solver=replace(base.solver, max_evals=_SMALL))


@recipe("wikitext2-deq-post-small-budget-cpu", scale="cpu")
def wikitext2_deq_post_small_budget_cpu() -> TrainConfig:
    """A small post-LN DEQ-Transformer on a part of WikiText-2, at 12 evaluations a solve, not regularized."""
    return wikitext2_deq_post_cpu().with_max_evals(_SMALL)


@recipe("wikitext2-deq-post-jr-cpu", scale="cpu")
def wikitext2_deq_post_jr_cpu() -> TrainConfig:
    """A small post-LN DEQ-Transformer on a part of WikiText-2, at 12 evaluations a solve, regularized."""
    return replace(
        wikitext2_deq_post_cpu().with_max_evals(_SMALL),
        regularizer=JacobianRegularizer(weight=0.4, probability=0.4),
    )


@recipe("wikitext2-deq-post-jr-linear-cpu", scale="cpu")
def wikitext2_deq_post_jr_linear_cpu() -> TrainConfig:
    """A small post-LN DEQ-Transformer on a part of WikiText-2, with a penalty whose weight grows in training."""
    base = wikitext2_deq_post_jr_cpu()
    return replace(base, regularizer=replace(base.regularizer, weight=0.1, schedule=Linear(end=0.7)))


@recipe("wikitext2-deq-post-no-weight-norm-cpu", scale="cpu")
def wikitext2_deq_post_no_weight_norm_cpu() -> TrainConfig:
    """A small post-LN DEQ-Transformer on a part of WikiText-2, without weight normalization or regularization."""
    base = wikitext2_deq_post_cpu()
    return replace(base, model=replace(base.model, weight_norm=False))


@recipe("wikitext2-deq-post-weight-decay-cpu", scale="cpu")
def wikitext2_deq_post_weight_decay_cpu() -> TrainConfig:
    """A small post-LN DEQ-Transformer on a part of WikiText-2, with weight decay instead of regularization."""
    base = wikitext2_deq_post_cpu()
    return replace(base, optimizer=replace(base.optimizer, weight_decay=1e-6))


@recipe("wikitext2-deq-pre-cpu", scale="cpu")
def wikitext2_deq_pre_cpu() -> TrainConfig:
    """A small pre-LN DEQ-Transformer on a part of WikiText-2, at 30 evaluations a solve, not regularized."""
    base = wikitext2_deq_post_cpu()
    return replace(base, model=replace(base.model, norm="pre"))


@recipe("wikitext2-deq-pre-jr-cpu", scale="cpu")
def wikitext2_deq_pre_jr_cpu() -> TrainConfig:
    """A small pre-LN DEQ-Transformer on a part of WikiText-2, at 12 evaluations a solve, regularized."""
    base = wikitext2_deq_post_jr_cpu()
    return replace(base, model=replace(base.model, norm="pre"))


@recipe("wikitext2-transformer-xl-cpu", scale="cpu")
def wikitext2_transformer_xl_cpu() -> TrainConfig:
    """A Transformer-XL on a part of WikiText-2, with as many parameters as wikitext2-deq-post-cpu."""
    base = wikitext2_deq_post_cpu()
    return replace(
        base,
        model=preset("transformer-xl/wt2-cpu"),
        optimizer=replace(base.optimizer, learning_rate=4e-3),
        warmup=WarmupConfig(),
    )


@recipe("wikitext2-tied-transformer-cpu", scale="cpu")
def wikitext2_tied_transformer_cpu() -> TrainConfig:
    """A Transformer on a part of WikiText-2 that applies the one layer of wikitext2-deq-post-cpu 12 times."""
    return replace(wikitext2_deq_post_cpu(), model=preset("tied-transformer/wt2-cpu"), warmup=WarmupConfig())
