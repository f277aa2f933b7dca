"""Handwritten digits with a small convolutional DEQ: the quickest real task."""

from __future__ import annotations

from dataclasses import replace

from ...adjoints import Implicit
from ...jacobian import JacobianRegularizer, ResidualRegularizer, SpectralRegularizer
from ...jacobian.schedules import ClosedLoop, Linear
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


@recipe("digits-jr-linear", scale="cpu")
def digits_jr_linear() -> TrainConfig:
    """A convolutional DEQ on handwritten digits, with a penalty whose weight grows in training."""
    base = digits_jr()
    return replace(base, regularizer=replace(base.regularizer, weight=1.0, schedule=Linear(end=3.0)))


@recipe("digits-jr-closed-loop", scale="cpu")
def digits_jr_closed_loop() -> TrainConfig:
    """A convolutional DEQ on handwritten digits, with a penalty in a closed loop on the residual."""
    base = digits_jr()
    return replace(base, regularizer=replace(base.regularizer, schedule=ClosedLoop()))


@recipe("digits-jr-closed-loop-evals", scale="cpu")
def digits_jr_closed_loop_evals() -> TrainConfig:
    """A convolutional DEQ on handwritten digits, with a penalty in a closed loop on the evaluations."""
    base = digits()
    # Solves may take more than the loop is to hold, or it could not tell whether they need them.
    loop = ClosedLoop(observed="evals", target=6)
    return replace(base, regularizer=replace(base.regularizer, weight=2.0, schedule=loop))


@recipe("digits-spectral", scale="cpu")
def digits_spectral() -> TrainConfig:
    """A convolutional DEQ on handwritten digits, with a penalty on the spectral radius in a closed loop."""
    penalty = SpectralRegularizer(weight=2.0, probability=0.4, schedule=ClosedLoop())
    return replace(digits_small_budget(), regularizer=penalty)


@recipe("digits-residual", scale="cpu")
def digits_residual() -> TrainConfig:
    """A convolutional DEQ on handwritten digits, with a penalty on the residual in a closed loop."""
    penalty = ResidualRegularizer(weight=2.0, probability=0.4, schedule=ClosedLoop())
    return replace(digits_small_budget(), regularizer=penalty)
