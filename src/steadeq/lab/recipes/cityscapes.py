"""Cityscapes at the scale of the paper's models for it (appendix of Bai, Koltun and Kolter, 2020)."""

from __future__ import annotations

from ...adjoints import Implicit
from ...models import preset
from ...solvers import Broyden
from ..config import LogConfig, LoopConfig, TrainConfig, WarmupConfig
from ..data import Cityscapes
from ..optimizers import SGD
from .registry import recipe


@recipe("cityscapes-mdeq-small", scale="paper")
def cityscapes_mdeq_small() -> TrainConfig:
    """Small MDEQ on Cityscapes with the hyper-parameters of the official code, but from random weights."""
    return TrainConfig(
        # The official run starts from weights that were trained on ImageNet, and weighs classes by their frequency.
        model=preset("mdeq/cityscapes-small"),
        data=Cityscapes(crop=(512, 1024)),
        optimizer=SGD(learning_rate=0.01, min_learning_rate=1e-6, weight_decay=2e-4, momentum=0.9),
        # The official stopping rule never triggers at this size forward; what it does backward was not measured.
        solver=Broyden(max_evals=27, tol=0.0),
        adjoint=Implicit(Broyden(max_evals=30, tol=0.0)),
        warmup=WarmupConfig(num_steps=60_000, depth=3),
        loop=LoopConfig(num_epochs=500, batch_size=12),
        # An image at full size is worth sixteen of ImageNet.
        log=LogConfig(every=50, eval_every=5_000, eval_batch_size=4, checkpoint_every=1_000, spectrum_samples=2),
    )
