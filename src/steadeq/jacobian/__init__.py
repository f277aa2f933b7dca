"""The Jacobian at an equilibrium: what to penalize it by, and what can be found out about it."""

from ._differences import PrecisionWarning
from ._products import Estimate, Probe, linearize
from .frobenius import frobenius_norm
from .penalty import jacobian_penalty, operator_norm_penalty, residual_penalty, spectral_penalty
from .regularizers import (
    AbstractRegularizer,
    JacobianRegularizer,
    OperatorNormRegularizer,
    ResidualRegularizer,
    SpectralRegularizer,
)
from .schedules import AbstractSchedule, ClosedLoop, Constant, Increments, Linear, StopAfter
from .spectrum import operator_norm, spectral_radius

__all__ = [
    "AbstractRegularizer",
    "AbstractSchedule",
    "ClosedLoop",
    "Constant",
    "Estimate",
    "Increments",
    "JacobianRegularizer",
    "Linear",
    "OperatorNormRegularizer",
    "PrecisionWarning",
    "Probe",
    "ResidualRegularizer",
    "SpectralRegularizer",
    "StopAfter",
    "frobenius_norm",
    "jacobian_penalty",
    "linearize",
    "operator_norm",
    "operator_norm_penalty",
    "residual_penalty",
    "spectral_penalty",
    "spectral_radius",
]
