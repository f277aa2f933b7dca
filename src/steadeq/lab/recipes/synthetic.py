"""The synthetic study (section 5.1, appendix A.1)."""

from __future__ import annotations

from dataclasses import replace

from ...adjoints import Implicit
from ...jacobian import JacobianRegularizer
from ...models import preset
from ...solvers import GMRES, Anderson
from ..config import LoopConfig, TrainConfig
from ..data import Synthetic
from ..optimizers import Adam
from .registry import recipe, regularized


@recipe("synthetic", scale="paper")
def synthetic() -> TrainConfig:
    """A scalar DEQ on the function of the paper's synthetic study, without regularization."""
    return TrainConfig(
        model=preset("toy"),
        data=Synthetic(),
        optimizer=Adam(learning_rate=1e-3),
        solver=Anderson(max_evals=6, tol=1e-3),
        adjoint=Implicit(GMRES(max_evals=6, tol=1e-4)),
        regularizer=JacobianRegularizer(weight=0.0, probability=0.4),
        loop=LoopConfig(num_epochs=50, batch_size=64),
    )


@recipe("synthetic-jr", scale="paper")
def synthetic_jr() -> TrainConfig:
    """A scalar DEQ on the function of the paper's synthetic study, with Jacobian regularization, gamma = 4."""
    return regularized(synthetic(), weight=4.0)


@recipe("synthetic-appendix", scale="paper")
def synthetic_appendix() -> TrainConfig:
    """A scalar DEQ on the function as printed in the appendix (+5x), without regularization."""
    return replace(synthetic(), data=Synthetic(variant="appendix"))


@recipe("synthetic-appendix-jr", scale="paper")
def synthetic_appendix_jr() -> TrainConfig:
    """A scalar DEQ on the function as printed in the appendix (+5x), with Jacobian regularization, gamma = 4."""
    return replace(synthetic_jr(), data=Synthetic(variant="appendix"))
