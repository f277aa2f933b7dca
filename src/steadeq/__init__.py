"""steadeq: deep equilibrium models that stay stable.

`fixed_point` takes a map f(z, *inputs) -> z, a solver that finds its fixed point, and an adjoint that differentiates
it. It returns an `Equilibrium`. `DEQ` does the same as a module. `jacobian_penalty` and `JacobianRegularizer` keep the
map stable during training; `frobenius_norm`, `operator_norm` and `spectral_radius` measure how stable it is. All of
them take an equilibrium.
"""

# Nothing is imported here, not even `typing`: the command begins with this file, and Ctrl-C before it has come to its
# own would be a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import (
        adjoints as adjoints,
        export as export,
        integrations as integrations,
        jacobian as jacobian,
        models as models,
        nn as nn,
        solvers as solvers,
    )
    from ._fixed_point import fixed_point as fixed_point
    from .adjoints import (
        AbstractAdjoint as AbstractAdjoint,
        Implicit as Implicit,
        OneStep as OneStep,
        Phantom as Phantom,
        Reversible as Reversible,
        Shine as Shine,
        Unrolled as Unrolled,
    )
    from .diagnosis import Diagnosis as Diagnosis, Verdict as Verdict, diagnose as diagnose
    from .equilibrium import (
        ConvergenceError as ConvergenceError,
        ConvergenceWarning as ConvergenceWarning,
        Equilibrium as Equilibrium,
        RandomnessWarning as RandomnessWarning,
        SolveStats as SolveStats,
        Status as Status,
    )
    from .jacobian import (
        AbstractRegularizer as AbstractRegularizer,
        AbstractSchedule as AbstractSchedule,
        ClosedLoop as ClosedLoop,
        Constant as Constant,
        Estimate as Estimate,
        Increments as Increments,
        JacobianRegularizer as JacobianRegularizer,
        Linear as Linear,
        OperatorNormRegularizer as OperatorNormRegularizer,
        PrecisionWarning as PrecisionWarning,
        ResidualRegularizer as ResidualRegularizer,
        SpectralRegularizer as SpectralRegularizer,
        StopAfter as StopAfter,
        frobenius_norm as frobenius_norm,
        jacobian_penalty as jacobian_penalty,
        operator_norm as operator_norm,
        operator_norm_penalty as operator_norm_penalty,
        residual_penalty as residual_penalty,
        spectral_penalty as spectral_penalty,
        spectral_radius as spectral_radius,
    )
    from .lab.run.loading import load_model as load_model
    from .nn import DEQ as DEQ
    from .solvers import (
        GMRES as GMRES,
        AbstractLinearSolver as AbstractLinearSolver,
        AbstractSolver as AbstractSolver,
        Anderson as Anderson,
        Broyden as Broyden,
        Loop as Loop,
        NewtonKrylov as NewtonKrylov,
        Picard as Picard,
    )

__version__ = "0.2.0"

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
    "lab.run.loading": ("load_model",),
    "nn": ("DEQ",),
    "solvers": (
        "GMRES",
        "AbstractLinearSolver",
        "AbstractSolver",
        "Anderson",
        "Broyden",
        "Loop",
        "NewtonKrylov",
        "Picard",
    ),
}
_MODULES = ("adjoints", "export", "integrations", "jacobian", "models", "nn", "solvers")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # type checkers know all names from above, and report others

    def __getattr__(name):
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
