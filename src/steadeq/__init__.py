"""steadeq: deep equilibrium models that stay stable.

Three nouns, each an argument: a map f(z, *inputs) -> z, a solver that finds its fixed point, and an adjoint that
differentiates it. One verb joins them, `fixed_point`, and returns an `Equilibrium`; `DEQ` is the same as a module.
`jacobian_penalty` and `JacobianRegularizer` keep the map stable while it is trained; `frobenius_norm`, `operator_norm`
and `spectral_radius` tell how stable it is. All of them take an equilibrium.
"""

# Nothing is imported here, not even `typing`: the command begins with this file, and Ctrl-C before it has come to its
# own would be a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import adjoints as adjoints
    from . import export as export
    from . import jacobian as jacobian
    from . import models as models
    from . import nn as nn
    from . import solvers as solvers
    from ._fixed_point import fixed_point
    from .adjoints import AbstractAdjoint, Implicit, OneStep, Phantom, Reversible, Shine, Unrolled
    from .diagnosis import Diagnosis, Verdict, diagnose
    from .equilibrium import (
        ConvergenceError,
        ConvergenceWarning,
        Equilibrium,
        RandomnessWarning,
        SolveStats,
        Status,
    )
    from .jacobian import (
        AbstractRegularizer,
        AbstractSchedule,
        ClosedLoop,
        Constant,
        Estimate,
        Increments,
        JacobianRegularizer,
        Linear,
        OperatorNormRegularizer,
        PrecisionWarning,
        ResidualRegularizer,
        SpectralRegularizer,
        StopAfter,
        frobenius_norm,
        jacobian_penalty,
        operator_norm,
        operator_norm_penalty,
        residual_penalty,
        spectral_penalty,
        spectral_radius,
    )
    from .lab.loading import load_model
    from .nn import DEQ
    from .solvers import GMRES, AbstractLinearSolver, AbstractSolver, Anderson, Broyden, NewtonKrylov, Picard

__version__ = "0.1.0"

# Where each public name lives. Importing torch takes seconds, and the command line must answer `--help` without it, so
# that names are imported when they are first asked for.
_HOMES = {
    "_fixed_point": ("fixed_point",),
    "adjoints": ("AbstractAdjoint", "Implicit", "OneStep", "Phantom", "Reversible", "Shine", "Unrolled"),
    "diagnosis": ("Diagnosis", "Verdict", "diagnose"),
    "equilibrium": (
        "ConvergenceError",
        "ConvergenceWarning",
        "Equilibrium",
        "RandomnessWarning",
        "SolveStats",
        "Status",
    ),
    "jacobian": (
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
        "ResidualRegularizer",
        "SpectralRegularizer",
        "StopAfter",
        "frobenius_norm",
        "jacobian_penalty",
        "operator_norm",
        "operator_norm_penalty",
        "residual_penalty",
        "spectral_penalty",
        "spectral_radius",
    ),
    "lab.loading": ("load_model",),
    "nn": ("DEQ",),
    "solvers": ("GMRES", "AbstractLinearSolver", "AbstractSolver", "Anderson", "Broyden", "NewtonKrylov", "Picard"),
}
_MODULES = ("adjoints", "export", "jacobian", "models", "nn", "solvers")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> "Any":
    import importlib

    if name in _HOME_OF:
        value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
