"""WikiText-2 at the scale of a laptop."""

from __future__ import annotations

from ..train import (
    BackwardConfig,
    ForwardConfig,
    LogConfig,
    LoopConfig,
    OptimizerConfig,
    TrainConfig,
)
from .registry import recipe
from .text import WikiText2Data
from .transformers import deq_transformer


@recipe("wikitext2-deq-post-cpu", scale="cpu")
def wikitext2_deq_post_cpu() -> TrainConfig:
    """A part of WikiText-2 with a small post-LN DEQ-Transformer, without regularization, at a generous budget."""
    return TrainConfig(
        recipe="wikitext2-deq-post-cpu",
        model=deq_transformer("wt2-cpu"),
        data=WikiText2Data(length=64, max_validation=40_000),
        optimizer=OptimizerConfig(
            method="adam", learning_rate=2e-3, schedule="cosine", warmup_steps=50, max_grad_norm=0.25
        ),
        forward=ForwardConfig(solver="anderson", max_evals=30, tol=1e-3),
        backward=BackwardConfig(solver="gmres", max_evals=30, tol=1e-3),
        loop=LoopConfig(num_steps=600, batch_size=16),
        log=LogConfig(eval_every=100, eval_batch_size=16, spectrum_samples=4, checkpoint_every=50),
    )
