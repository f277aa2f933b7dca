"""WikiText-103 at the scale of the paper (section 5.2, Table 1, appendix A.2)."""

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
from .registry import recipe
from .text import WikiText103Data
from .transformers import deq_transformer, transformer_xl

# One pass over 103 million words, in 60 streams of segments of 150.
_PAPER_EPOCH = 11_469


@recipe("wikitext103-deq-post", scale="paper")
def wikitext103_deq_post() -> TrainConfig:
    """Post-LN DEQ-Transformer on WikiText-103 with the hyper-parameters of the official code, not regularized."""
    return TrainConfig(
        recipe="wikitext103-deq-post",
        model=deq_transformer("wt103"),
        data=WikiText103Data(length=150),
        optimizer=OptimizerConfig(
            method="adam", learning_rate=2.5e-4, schedule="cosine", warmup_steps=16_000, max_grad_norm=0.25
        ),
        forward=ForwardConfig(solver="anderson", max_evals=30, tol=1e-3),
        backward=BackwardConfig(solver="broyden", max_evals=35, tol=1e-3),
        warmup=WarmupConfig(num_steps=32_000, depth=2),
        loop=LoopConfig(num_steps=300_000, batch_size=56),
        log=LogConfig(every=50, eval_every=5_000, eval_batch_size=16, checkpoint_every=1_000, spectrum_samples=4),
    )


@recipe("wikitext103-deq-early-stopped", scale="paper")
def wikitext103_deq_early_stopped() -> TrainConfig:
    """The same, hard-stopped at 12 evaluations whenever it is evaluated."""
    base = wikitext103_deq_post()
    return replace(base, recipe="wikitext103-deq-early-stopped", forward=replace(base.forward, eval_max_evals=12))


@recipe("wikitext103-deq-post-jr", scale="paper")
def wikitext103_deq_post_jr() -> TrainConfig:
    """Post-LN DEQ-Transformer with Jacobian regularization and the hyper-parameters of the official code."""
    return replace(
        wikitext103_deq_post(),
        recipe="wikitext103-deq-post-jr",
        model=deq_transformer("wt103-jr"),
        forward=ForwardConfig(solver="anderson", max_evals=12, tol=1e-3, jitter=(-2, 0)),
        backward=BackwardConfig(solver="broyden", max_evals=13, tol=1e-3),
        jacobian=JacobianConfig(
            weight=1.9, probability=0.35, probe="gaussian", schedule="increments", increment=0.1, every=35_000
        ),
    )


@recipe("wikitext103-deq-post-jr-paper", scale="paper")
def wikitext103_deq_post_jr_paper() -> TrainConfig:
    """Post-LN DEQ-Transformer with Jacobian regularization and the hyper-parameters that the paper prints."""
    return TrainConfig(
        recipe="wikitext103-deq-post-jr-paper",
        model=replace(deq_transformer("wt103"), dropout=0.06),
        data=WikiText103Data(length=150),
        optimizer=OptimizerConfig(
            method="adam", learning_rate=2.5e-4, schedule="cosine", warmup_steps=_PAPER_EPOCH, max_grad_norm=0.25
        ),
        forward=ForwardConfig(solver="anderson", max_evals=12, tol=1e-3),
        backward=BackwardConfig(solver="broyden", max_evals=12, tol=1e-4),
        jacobian=JacobianConfig(weight=1.6, probability=0.35, probe="gaussian", schedule="linear", end=2.5),
        loop=LoopConfig(num_steps=250_000, batch_size=60),
        log=wikitext103_deq_post().log,
    )


@recipe("wikitext103-deq-pre", scale="paper")
def wikitext103_deq_pre() -> TrainConfig:
    """Pre-LN DEQ-Transformer on WikiText-103, not regularized, which diverged in the paper."""
    return replace(wikitext103_deq_post(), recipe="wikitext103-deq-pre", model=deq_transformer("wt103-pre"))


@recipe("wikitext103-deq-pre-jr", scale="paper")
def wikitext103_deq_pre_jr() -> TrainConfig:
    """Pre-LN DEQ-Transformer with Jacobian regularization and the hyper-parameters of the official code."""
    base = wikitext103_deq_post_jr()
    return replace(
        base,
        recipe="wikitext103-deq-pre-jr",
        model=deq_transformer("wt103-pre-jr"),
        forward=replace(base.forward, max_evals=14),
        backward=replace(base.backward, max_evals=14),
        # The official run skips the increment that falls into its unrolled phase.
        jacobian=replace(base.jacobian, weight=2.0, probability=0.4, every=30_000, begin=30_000),
    )


@recipe("wikitext103-deq-pre-jr-paper", scale="paper")
def wikitext103_deq_pre_jr_paper() -> TrainConfig:
    """Pre-LN DEQ-Transformer with Jacobian regularization and the hyper-parameters that the paper prints."""
    base = wikitext103_deq_post_jr_paper()
    return replace(
        base,
        recipe="wikitext103-deq-pre-jr-paper",
        model=replace(deq_transformer("wt103-pre"), dropout=0.06),
        forward=replace(base.forward, max_evals=14),
        backward=replace(base.backward, max_evals=14),
    )


@recipe("wikitext103-transformer-xl", scale="paper")
def wikitext103_transformer_xl() -> TrainConfig:
    """Transformer-XL of 18 layers on WikiText-103."""
    return replace(
        wikitext103_deq_post(),
        recipe="wikitext103-transformer-xl",
        model=transformer_xl("wt103"),
        warmup=WarmupConfig(),
        loop=LoopConfig(num_steps=250_000, batch_size=60),
    )
