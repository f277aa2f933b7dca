"""The way through a maze, with a looped block of convolutions.

After every 8 steps an answer is supervised, and the state is carried on without its graph, as in `prefix-sums`.
"""

from __future__ import annotations

from dataclasses import replace

from ...models import LoopedConv
from ...solvers import Loop, Picard
from ..config import TrainConfig
from ..data import Mazes
from .prefix_sums import prefix_sums
from .registry import recipe, regularized


@recipe("mazes", scale="cpu")
def mazes() -> TrainConfig:
    """A block of convolutions looped 24 times over pictures of mazes, not regularized."""
    config = prefix_sums()
    return replace(
        config,
        model=LoopedConv.Config(input_channels=3, channels=24, dims=2),
        data=Mazes(),
        solver=Loop(num_steps=8),
        eval_solver=Picard(max_evals=96, tol=1e-3),
        optimizer=replace(config.optimizer, learning_rate=3e-3, min_learning_rate=3e-3),
        loop=replace(config.loop, batch_size=32, num_epochs=5),
    )


@recipe("mazes-jr", scale="cpu")
def mazes_jr() -> TrainConfig:
    """A block of convolutions looped 24 times over pictures of mazes, with Jacobian regularization."""
    return regularized(mazes(), weight=0.3)
