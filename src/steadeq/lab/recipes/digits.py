"""Handwritten digits with a small convolutional DEQ: the quickest real task."""

from __future__ import annotations

from ...adjoints import Implicit
from ...jacobian import JacobianRegularizer
from ...models import preset
from ...solvers import GMRES, Anderson
from ..config import LoopConfig, TrainConfig
from ..data import Digits
from ..optimizers import Adam
from .registry import recipe, regularized


@recipe("digits", scale="cpu")
def digits() -> TrainConfig:
    """A convolutional DEQ on handwritten digits, at 18 evaluations a solve, not regularized."""
    return TrainConfig(
        model=preset("conv/digits"),
        data=Digits(),
        optimizer=Adam(learning_rate=3e-3),
        solver=Anderson(max_evals=18, tol=1e-3),
        adjoint=Implicit(GMRES(max_evals=18, tol=1e-4)),
        regularizer=JacobianRegularizer(weight=0.0, probability=0.4),
        loop=LoopConfig(num_epochs=16, batch_size=56),
    )


@recipe("digits-small-budget", scale="cpu")
def digits_small_budget() -> TrainConfig:
    """A convolutional DEQ on handwritten digits, at 6 evaluations a solve, not regularized."""
    return digits().with_max_evals(6)


@recipe("digits-jr", scale="cpu")
def digits_jr() -> TrainConfig:
    """A convolutional DEQ on handwritten digits, at 6 evaluations a solve, regularized."""
    return regularized(digits_small_budget(), weight=2.0)
