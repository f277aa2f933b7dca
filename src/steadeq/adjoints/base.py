"""What an adjoint is: how gradients reach what a fixed point depends on."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._internal.linearization import Linearization
from .._internal.randomness import warn_if_random
from .._internal.trees import Layout
from ..equilibrium import BackwardRecord, ConvergenceWarning, SolveStats, Status
from ..solvers import AbstractLinearSolver, AbstractSolver, Rule
from ..solvers._compiled import CompiledMap
from ..solvers._loop import solve
from ._attachment import attach


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A fixed-point problem and how to solve it."""

    cell: Callable[..., Any]
    """The map as the caller has it."""
    f: Callable[..., Any]
    """The map under the caller's autocast, called as f(state, *inputs)."""
    z0: Tensor
    """(B, D) start."""
    inputs: tuple[Any, ...]
    solver: AbstractSolver
    layout: Layout
    compact: bool
    f_solve: Callable[..., Any]
    """A faster version of f that is used while nothing is recorded."""
    code: CompiledMap | None = None
    """Compiled code of f, for solves that can be one graph."""

    def solve(
        self,
        z0: Tensor,
        *,
        f: Callable[..., Any],
        solver: AbstractSolver,
        compact: bool = False,
        keep_rows: bool = False,
        num_silent: int = 0,
        keep_last: bool = False,
    ) -> tuple[Tensor, SolveStats, Rule | None]:
        """Solve from z0, by one graph if there is code for that; see `solvers._loop.solve`.

        Returns:
            The (B, D) state, how the solve went, and the rule as it ended if rows were to be kept.
        """
        options: dict[str, Any] = {"solver": solver, "layout": self.layout}
        options |= {"num_silent": num_silent, "keep_last": keep_last}
        if self.code is not None and not keep_rows and self.code.can_solve(solver):
            return *self.code.solve(z0, self.inputs, **options), None
        z, stats, rule = solve(f, z0, self.inputs, compact=compact, keep_rows=keep_rows, **options)
        return z, stats, rule if keep_rows else None


@dataclass(frozen=True)
class AbstractAdjoint(ABC):
    """How gradients reach what a fixed point depends on."""

    @abstractmethod
    def run(self, problem: Problem) -> tuple[Tensor, SolveStats, BackwardRecord]:
        """Solve.

        Returns:
            The (B, D) state, part of the graph if gradients are on; how the solve went; and where backward passes will
            leave how they went.
        """


@dataclass(frozen=True)
class AbstractLinearAdjoint(AbstractAdjoint):
    """An adjoint that solves without recording, and maps the gradient g at the state to a cotangent u of f."""

    is_exact: ClassVar[bool] = False
    """Whether u solves u = Jᵀu + g, so that a second derivative exists."""
    keeps_rows: ClassVar[bool] = False
    """Whether the rule must end with a history of every sample."""

    @abstractmethod
    def cotangent(self, vjp: Callable[[Tensor], Tensor], g: Tensor, rule: Rule | None) -> tuple[Tensor, SolveStats]:
        """Return u, and how it was found.

        Args:
            vjp: Returns Jᵀu for a (B, D) matrix u.
            g: (B, D) gradient at the state.
            rule: The rule of the forward solve as it ended, for adjoints with `keeps_rows`.
        """

    def forward_solver(self, solver: AbstractSolver) -> AbstractSolver:
        """Return the solver to use in the forward pass."""
        return solver

    def run(self, problem: Problem) -> tuple[Tensor, SolveStats, BackwardRecord]:
        """Solve, and attach the graph at the state if gradients are on."""
        record = BackwardRecord()
        with torch.no_grad():
            solver = self.forward_solver(problem.solver)
            # The history of the forward solve is not kept until backward unless it is needed there.
            z, stats, rule = problem.solve(
                problem.z0.detach(),
                f=problem.f_solve,
                solver=solver,
                compact=problem.compact and not self.keeps_rows,
                keep_rows=self.keeps_rows,
            )
        if torch.is_grad_enabled():
            point = Linearization(problem.f, z, problem.inputs, problem.layout)
            attached = attach(
                point,
                z,
                cotangent=lambda vjp, g: self.cotangent(vjp, g, rule),
                record=record,
                refusal=None
                if self.is_exact
                else f"A second derivative through adjoint={type(self).__name__}() is not supported, as its gradient "
                "is an approximation that has no meaningful derivative; use adjoint=Implicit() or Unrolled().",
            )
            if attached.requires_grad:
                warn_if_short("forward", solver, stats)
                # A fixed budget on an accelerator is there to let the host run ahead, which a question would end.
                if solver.tol > 0 or z.device.type == "cpu":
                    warn_if_random(problem.cell, point, problem.z0, z, stats.residual)
            z = attached
        return z, stats, record


_ADVICE = {
    "forward": "its gradients are taken at points that are no equilibria; raise max_evals, loosen tol, or keep the "
    "cell stable with JacobianRegularizer. print(eq.stats) says how many samples and how far, eq.stats.status which; "
    "to spend a fixed budget without this warning, set tol=0.",
    "backward": "its gradients are approximate; raise max_evals of the adjoint's solver, loosen its tol, or keep the "
    "cell stable with JacobianRegularizer. print(eq.backward) says how many samples and how far.",
}


def warn_if_short(which: str, solver: AbstractLinearSolver, stats: SolveStats) -> None:
    """Warn if some samples did not converge, unless the budget was to be spent anyway.

    Warnings have no numbers in them and one place in the code, so that Python's default filter shows each once.

    Args:
        which: Name of the pass, "forward" or "backward".
        solver: Solver of the pass.
        stats: Stats of the solve.
    """
    if solver.tol == 0:
        return
    statuses = ", ".join(Status(status).name for status in sorted(set(stats.status.tolist())) if status)
    if statuses:
        warnings.warn(
            f"A {which} solve by {solver} ended short of its tolerance ({statuses}), and {_ADVICE[which]}",
            ConvergenceWarning,
            stacklevel=1,
        )
