"""torchdeq: its calling convention on top of steadeq, for code that moves over.

torchdeq itself is not needed. `z_out, info = deq(f, z0)` works as before, with solvers that treat every sample by
itself, and exact gradients unless you set `grad` or `ift=False`. [Coming from torchdeq](../coming-from.md) lists the
native names.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from .._fixed_point import fixed_point
from ..adjoints import AbstractAdjoint, Implicit, Phantom
from ..equilibrium import Equilibrium
from ..jacobian import spectral_radius
from ..solvers import AbstractSolver, Anderson, Broyden, Picard

__all__ = ["DEQ", "get_deq"]

SOLVERS: dict[str, type[AbstractSolver]] = {
    "anderson": Anderson,
    "broyden": Broyden,
    "fixed_point_iter": Picard,
    "simple_fixed_point_iter": Picard,
}
"""Solvers by torchdeq's names."""


class DEQ(nn.Module):
    """Solves `z = f(z)` when called as `z_out, info = deq(f, z0)`.

    `z_out` is a list with one state. `info` has `rel_lowest` (the relative residual of each sample), `nstep` (the
    evaluations of each sample), `rel_trace`, `sradius` if asked for, and `equilibrium`, the object that penalties and
    estimates of steadeq take. Absolute residuals are not measured. Everything that f uses besides the state is in its
    closure, and gradients reach it.

    Args:
        f_solver: Name of the forward solver: "anderson", "broyden", "fixed_point_iter" or "simple_fixed_point_iter".
        b_solver: Name of the solver of the backward pass.
        f_max_iter: Largest number of evaluations of a forward solve.
        b_max_iter: Largest number of vector-Jacobian products of a backward solve.
        f_tol: Relative residual at which a sample is solved.
        b_tol: Relative residual at which the backward solve of a sample is finished.
        eval_f_max_iter: Like `f_max_iter`, in evaluation mode; 0 for the same.
        ift: Whether gradients are exact, by the implicit function theorem; if not, they come from `grad` phantom steps.
        hook_ift: Same as `ift`; torchdeq has two implementations.
        grad: Number of phantom steps if `ift` and `hook_ift` are False.
        tau: Damping of the phantom steps.
        f_stop_mode: "rel"; with "abs" there is a warning, because steadeq has no absolute tolerance.
    """

    def __init__(
        self,
        *,
        f_solver: str = "fixed_point_iter",
        b_solver: str = "fixed_point_iter",
        f_max_iter: int = 40,
        b_max_iter: int = 40,
        f_tol: float = 1e-3,
        b_tol: float = 1e-6,
        eval_f_max_iter: int = 0,
        ift: bool = False,
        hook_ift: bool = False,
        grad: int = 1,
        tau: float = 1.0,
        f_stop_mode: str = "rel",
    ) -> None:
        super().__init__()
        if f_stop_mode != "rel":
            warnings.warn(
                "f_tol is compared with relative residuals, because steadeq has no absolute tolerance.", stacklevel=2
            )
        self.solver = _solver("f_solver", f_solver, f_max_iter, f_tol)
        self.eval_solver = replace(self.solver, max_evals=eval_f_max_iter) if eval_f_max_iter else self.solver
        self.adjoint: AbstractAdjoint = (
            Implicit(_solver("b_solver", b_solver, b_max_iter, b_tol))
            if ift or hook_ift
            else Phantom(num_steps=grad, damping=tau)
        )

    def forward(
        self, func: Callable[[Any], Any], z_init: Any, *, sradius_mode: bool = False
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the state in a list, and how the solve went.

        Args:
            func: The map, called as func(z), or as func(*z) if the state is a tuple or list.
            z_init: State to start from: a tensor, or a tuple or list of them.
            sradius_mode: Whether to estimate the spectral radius in evaluation mode, as torchdeq does.
        """
        is_many = isinstance(z_init, (tuple, list))
        kind = type(z_init)
        eq: Equilibrium = fixed_point(
            (lambda z: kind(func(*z))) if is_many else func,
            z_init,
            solver=self.solver if self.training else self.eval_solver,
            adjoint=self.adjoint,
        )
        assert eq.stats is not None
        info: dict[str, Any] = {
            "rel_lowest": eq.stats.residual,
            "nstep": eq.stats.num_evals,
            "rel_trace": eq.stats.trace.T,
            "equilibrium": eq,
        }
        if sradius_mode and not self.training:
            info["sradius"] = spectral_radius(eq).value
        return [eq.z], info


def get_deq(args: Any = None, **options: Any) -> DEQ:
    """Return a `DEQ` from the arguments of `torchdeq.get_deq`.

    Args:
        args: A dict, or an object with attributes such as an argparse namespace; unknown entries are ignored.
        **options: Arguments of `DEQ`, which `args` overrides, as in torchdeq.
    """
    known = DEQ.__init__.__kwdefaults__ or {}
    given = {} if args is None else dict(args if isinstance(args, dict) else vars(args))
    return DEQ(**{**options, **{name: value for name, value in given.items() if name in known}})


def _solver(name: str, value: str, max_evals: int, tol: float) -> AbstractSolver:
    if value not in SOLVERS:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, SOLVERS))}.")
    return SOLVERS[value](max_evals=max_evals, tol=0.0 if value.startswith("simple") else tol)
