"""steadeq: deep equilibrium models that stay stable.

Three nouns, each an argument: a map f(z, *inputs) -> z, a solver that finds its fixed point, and an adjoint that
differentiates it. One verb joins them, `fixed_point`; `DEQ` is the same as a module. `jacobian_penalty` and
`JacobianRegularizer` keep the map stable while it is trained, `frobenius_norm`, `operator_norm` and `spectral_radius`
tell how stable it is.
"""

from . import nn as nn
from . import regularizer as regularizer
from .adjoint import AbstractAdjoint, Implicit, OneStep, Phantom, Shine, Unrolled
from .fixed_point import fixed_point
from .jacobian import Estimate, frobenius_norm, jacobian_penalty
from .nn import DEQ
from .regularizer import ClosedLoop, Constant, Increments, JacobianRegularizer, Linear, StopAfter
from .solution import ConvergenceError, ConvergenceWarning, Solution, Status
from .solvers import GMRES, AbstractSolver, Anderson, Broyden, NewtonKrylov, Picard
from .spectrum import operator_norm, spectral_radius

__version__ = "0.1.0"

__all__ = [
    "DEQ",
    "GMRES",
    "AbstractAdjoint",
    "AbstractSolver",
    "Anderson",
    "Broyden",
    "ClosedLoop",
    "Constant",
    "ConvergenceError",
    "ConvergenceWarning",
    "Estimate",
    "Implicit",
    "Increments",
    "JacobianRegularizer",
    "Linear",
    "NewtonKrylov",
    "OneStep",
    "Phantom",
    "Picard",
    "Shine",
    "Solution",
    "Status",
    "StopAfter",
    "Unrolled",
    "fixed_point",
    "frobenius_norm",
    "jacobian_penalty",
    "operator_norm",
    "spectral_radius",
]
