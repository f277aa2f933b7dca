"""steadeq: deep equilibrium models that stay stable.

Three nouns, each an argument: a map f(z, *inputs) -> z, a solver that finds its fixed point, and an adjoint that
differentiates it. One verb joins them, `fixed_point`; `DEQ` is the same as a module. `jacobian_penalty` and
`JacobianRegularizer` keep the map stable while it is trained, `frobenius_norm`, `operator_norm` and `spectral_radius`
tell how stable it is.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import data as data
    from . import models as models
    from . import nn as nn
    from . import regularizer as regularizer
    from .adjoint import AbstractAdjoint, Implicit, OneStep, Phantom, Shine, Unrolled
    from .equilibrium import fixed_point
    from .jacobian import Estimate, frobenius_norm, jacobian_penalty
    from .nn import DEQ
    from .regularizer import ClosedLoop, Constant, Increments, JacobianRegularizer, Linear, StopAfter
    from .solution import ConvergenceError, ConvergenceWarning, RandomnessWarning, Solution, Status
    from .solvers import GMRES, AbstractSolver, Anderson, Broyden, NewtonKrylov, Picard
    from .spectrum import operator_norm, spectral_radius

__version__ = "0.1.0"

# Where each public name lives. Importing torch takes seconds, and the command line must answer `--help` without it, so
# that names are imported when they are first asked for.
_HOMES = {
    **dict.fromkeys(("AbstractAdjoint", "Implicit", "OneStep", "Phantom", "Shine", "Unrolled"), "adjoint"),
    "fixed_point": "equilibrium",
    **dict.fromkeys(("Estimate", "frobenius_norm", "jacobian_penalty"), "jacobian"),
    "DEQ": "nn",
    **dict.fromkeys(
        ("ClosedLoop", "Constant", "Increments", "JacobianRegularizer", "Linear", "StopAfter"), "regularizer"
    ),
    **dict.fromkeys(("ConvergenceError", "ConvergenceWarning", "RandomnessWarning", "Solution", "Status"), "solution"),
    **dict.fromkeys(("GMRES", "AbstractSolver", "Anderson", "Broyden", "NewtonKrylov", "Picard"), "solvers"),
    **dict.fromkeys(("operator_norm", "spectral_radius"), "spectrum"),
}
_MODULES = ("data", "models", "nn", "regularizer")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


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
    "RandomnessWarning",
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
