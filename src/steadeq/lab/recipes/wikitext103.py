"""WikiText-103 at the scale of the paper (section 5.2, Table 1, appendix A.2)."""

from __future__ import annotations

from dataclasses import replace

from ...adjoints import Implicit
from ...jacobian import JacobianRegularizer
from ...jacobian.schedules import Increments, Linear
from ...models import preset
from ...solvers import Anderson, Broyden
from ..config import LogConfig, LoopConfig, RandomBudget, TrainConfig, WarmupConfig
from ..data import WikiText103
from ..optimizers import Adam
from .registry import recipe

# One pass over 103 million words, in 60 streams of segments of 150.
_PAPER_EPOCH = 11_470


@recipe("wikitext103-deq-post", scale="paper")
def wikitext103_deq_post() -> TrainConfig:
    """Post-LN DEQ-Transformer on WikiText-103 with the hyper-parameters of the official code, not regularized."""
    return TrainConfig(
        model=preset("deq-transformer/wt103"),
        data=WikiText103(length=150),
        optimizer=Adam(learning_rate=2.5e-4, warmup_steps=16_000, max_grad_norm=0.25),
        solver=Anderson(max_evals=30, tol=1e-3),
        adjoint=Implicit(Broyden(max_evals=35, tol=1e-3)),
        warmup=WarmupConfig(num_steps=32_000, depth=2),
        loop=LoopConfig(num_steps=300_000, batch_size=56),
        log=LogConfig(every=50, eval_every=5_000, eval_batch_size=16, checkpoint_every=1_000),
    )


@recipe("wikitext103-deq-early-stopped", scale="paper")
def wikitext103_deq_early_stopped() -> TrainConfig:
    """Post-LN DEQ-Transformer on WikiText-103, not regularized, evaluated with 12 evaluations a solve."""
    base = wikitext103_deq_post()
    return replace(base, eval_solver=replace(base.solver, max_evals=12))


@recipe("wikitext103-deq-post-jr", scale="paper")
def wikitext103_deq_post_jr() -> TrainConfig:
    """Post-LN DEQ-Transformer on WikiText-103, regularized, with the hyper-parameters of the official code."""
    return replace(
        wikitext103_deq_post(),
        model=preset("deq-transformer/wt103-jr"),
        solver=Anderson(max_evals=12, tol=1e-3),
        budget=RandomBudget(low=-2, high=0),
        adjoint=Implicit(Broyden(max_evals=13, tol=1e-3)),
        regularizer=JacobianRegularizer(
            weight=1.9, probability=0.35, probe="gaussian", schedule=Increments(increment=0.1, every=35_000)
        ),
    )


@recipe("wikitext103-deq-post-jr-paper", scale="paper")
def wikitext103_deq_post_jr_paper() -> TrainConfig:
    """Post-LN DEQ-Transformer on WikiText-103, regularized, with the hyper-parameters that the paper prints."""
    return TrainConfig(
        model=replace(preset("deq-transformer/wt103"), dropout=0.06),
        data=WikiText103(length=150),
        optimizer=Adam(learning_rate=2.5e-4, warmup_steps=_PAPER_EPOCH, max_grad_norm=0.25),
        solver=Anderson(max_evals=12, tol=1e-3),
        adjoint=Implicit(Broyden(max_evals=12, tol=1e-4)),
        regularizer=JacobianRegularizer(weight=1.6, probability=0.35, probe="gaussian", schedule=Linear(end=2.5)),
        loop=LoopConfig(num_steps=250_000, batch_size=60),
        log=wikitext103_deq_post().log,
    )


@recipe("wikitext103-deq-pre", scale="paper")
def wikitext103_deq_pre() -> TrainConfig:
    """Pre-LN DEQ-Transformer on WikiText-103, not regularized, which diverged in the paper."""
    return replace(wikitext103_deq_post(), model=preset("deq-transformer/wt103-pre"))


@recipe("wikitext103-deq-pre-jr", scale="paper")
def wikitext103_deq_pre_jr() -> TrainConfig:
    """Pre-LN DEQ-Transformer on WikiText-103, regularized, with the hyper-parameters of the official code."""
    return replace(
        wikitext103_deq_post_jr().with_max_evals(14),
        model=preset("deq-transformer/wt103-pre-jr"),
        regularizer=JacobianRegularizer(
            weight=2.0,
            probability=0.4,
            probe="gaussian",
            # The official run skips the increment that falls into its unrolled phase.
            schedule=Increments(increment=0.1, every=30_000, begin=30_000),
        ),
    )


@recipe("wikitext103-deq-pre-jr-paper", scale="paper")
def wikitext103_deq_pre_jr_paper() -> TrainConfig:
    """Pre-LN DEQ-Transformer on WikiText-103, regularized, with the hyper-parameters that the paper prints."""
    return replace(
        wikitext103_deq_post_jr_paper().with_max_evals(14),
        model=replace(preset("deq-transformer/wt103-pre"), dropout=0.06),
    )


@recipe("wikitext103-transformer-xl", scale="paper")
def wikitext103_transformer_xl() -> TrainConfig:
    """Transformer-XL of 18 layers on WikiText-103."""
    return replace(
        wikitext103_deq_post(),
        model=preset("transformer-xl/wt103"),
        warmup=WarmupConfig(),
        loop=LoopConfig(num_steps=250_000, batch_size=60),
    )
