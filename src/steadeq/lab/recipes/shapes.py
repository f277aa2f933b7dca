"""Disks, squares and triangles to segment: multiscale DEQs for every pixel, on a laptop."""

from __future__ import annotations

from ...adjoints import Implicit
from ...jacobian import JacobianRegularizer
from ...models import MDEQSegmenter
from ...solvers import GMRES, Anderson
from ..config import LogConfig, LoopConfig, TrainConfig
from ..data import Shapes
from ..optimizers import Adam
from .registry import recipe, regularized, with_coarse_gradients


@recipe("shapes-mdeq-cpu", scale="cpu")
def shapes_mdeq_cpu() -> TrainConfig:
    """A small MDEQ that segments drawn shapes, at a generous budget, without regularization."""
    return TrainConfig(
        model=MDEQSegmenter.Config(channels=(16, 32), num_downsamplings=1, num_classes=4, expansion=2, groups=4),
        data=Shapes(),
        optimizer=Adam(learning_rate=2e-3),
        solver=Anderson(max_evals=12, tol=1e-3),
        adjoint=Implicit(GMRES(max_evals=12, tol=1e-4)),
        regularizer=JacobianRegularizer(weight=0.0, probability=0.3),
        loop=LoopConfig(num_epochs=5, batch_size=24),
        log=LogConfig(spectrum_samples=8),
    )


@recipe("shapes-mdeq-cpu-jr", scale="cpu")
def shapes_mdeq_cpu_jr() -> TrainConfig:
    """A small MDEQ that segments drawn shapes, at half the budget, with Jacobian regularization."""
    # A contractive cell takes larger steps; without regularization, this rate is too high.
    return with_coarse_gradients(regularized(shapes_mdeq_cpu(), weight=0.1, max_evals=6, learning_rate=6e-3))
