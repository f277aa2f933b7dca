"""Parities of bits so far with a looped block: right at its training depth only, unless it is kept stable.

The block is trained as recursive models are: after every 4 steps an answer is supervised, and the state is carried
on without its graph. It is evaluated at four times the training depth of 12.
"""

from __future__ import annotations

from ...adjoints import Unrolled
from ...jacobian import JacobianRegularizer
from ...models import preset
from ...solvers import Loop, Picard
from ..config import LogConfig, LoopConfig, TrainConfig
from ..data import PrefixSums
from ..optimizers import Adam
from .registry import recipe, regularized


@recipe("prefix-sums", scale="cpu")
def prefix_sums() -> TrainConfig:
    """A block of convolutions looped 12 times over strings of bits, not regularized."""
    return TrainConfig(
        model=preset("looped-conv"),
        data=PrefixSums(),
        optimizer=Adam(learning_rate=1e-3, min_learning_rate=1e-3, max_grad_norm=1.0),
        solver=Loop(num_steps=4),
        eval_solver=Picard(max_evals=48, tol=1e-3),
        adjoint=Unrolled(),
        regularizer=JacobianRegularizer(weight=0.0, estimator="difference"),
        loop=LoopConfig(num_epochs=6, batch_size=64, num_answers=3),
        log=LogConfig(eval_every=50, eval_batch_size=256),
    )


@recipe("prefix-sums-jr", scale="cpu")
def prefix_sums_jr() -> TrainConfig:
    """A block of convolutions looped 12 times over strings of bits, with Jacobian regularization."""
    return regularized(prefix_sums(), weight=0.3)
