"""What an adjoint is: how gradients reach what a fixed point depends on."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.profiler import record_function

from .._internal.independence import check_products, check_residuals, check_solution, is_known
from .._internal.linearization import Linearization
from .._internal.randomness import check_steady
from .._internal.trees import Layout, select_rows
from ..equilibrium import BackwardRecord, ConvergenceWarning, SolveStats, Status
from ..solvers import AbstractLinearSolver, AbstractSolver
from ..solvers._compiled import CompiledMap
from ..solvers._solve import Options, solve
from ._attachment import Audit, attach


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
    """What f takes after the state."""
    solver: AbstractSolver
    """How to find the fixed point."""
    layout: Layout
    """How the caller's state becomes a (B, D) matrix, and back."""
    compact: bool
    """Whether finished samples leave the batch."""
    f_solve: Callable[..., Any]
    """A faster version of f that is used while nothing is recorded."""
    f_again: Callable[..., Any]
    """f with the parameters that its module has now, for evaluations in backward passes."""
    code: CompiledMap | None = None
    """Compiled code of f, for solves that can be one graph."""

    def solve(
        self, z0: Tensor, *, f: Callable[..., Any], solver: AbstractSolver, **options: Any
    ) -> tuple[Tensor, SolveStats, Any]:
        """Solve from z0, by compiled code if there is some.

        Args:
            z0: (B, D) start.
            f: The map, as it is used while nothing is compiled.
            solver: Solver.
            **options: Fields of `solvers._solve.Options`.

        Returns:
            The (B, D) state, how the solve went, and the state of the method as it ended if rows were to be kept.
        """
        chosen = Options(**options)
        if self.code is not None:
            found = self.code.solve(z0, self.inputs, solver=solver, layout=self.layout, options=chosen)
            if found is not None:
                return *found, None
        z, stats, state = solve(f, z0, self.inputs, solver=solver, layout=self.layout, options=chosen)
        return z, stats, state if chosen.keep_rows else None

    def check_samples(self, z: Tensor, stats: SolveStats) -> SolveStats:
        """Return the stats of a solve whose state no other evaluation sees, compared with the whole map.

        That is done once for a cell, where samples stopped one after the other and the budget leaves an evaluation.
        """
        layout, solver = self.layout, self.solver
        is_due = (
            stats.is_staggered and layout.batch_dims == 1 and solver.tol > 0 and len(stats.trace) < solver.max_evals
        )
        if not is_due or is_known(self.cell):
            return stats

        def evaluate() -> Tensor:
            # Not by f_solve, as the compiler would make code for this one call.
            return layout.pack_image(self.f_again(layout.unpack(z), *self.inputs), len(z))

        return check_residuals(self.cell, evaluate, z, self.z0, stats, layout.eps)


@dataclass(frozen=True)
class AbstractAdjoint(ABC):
    """How gradients reach what a fixed point depends on."""

    records: ClassVar[bool] = False
    """Whether autograd records the steps of the solve themselves."""

    retraces: ClassVar[bool] = False
    """Whether backward passes evaluate the steps of the solve again."""

    def check_solver(self, solver: AbstractSolver) -> None:  # noqa: B027 (most go with every solver)
        """Raise a ValueError if the adjoint does not support the solver."""

    def with_solver(self, change: Callable[[AbstractLinearSolver], AbstractLinearSolver]) -> AbstractAdjoint:
        """Return the adjoint with another solver of its backward pass, made of its own; itself if it has none."""
        return self

    def forward_solver(self, solver: AbstractSolver) -> AbstractSolver:
        """Return the solver to use in the forward pass; a ValueError if the adjoint does not support the solver."""
        self.check_solver(solver)
        return solver

    def steps_of(self, solver: AbstractSolver) -> int:
        """Return how many evaluations lead to the state of a solve that spends its budget."""
        # Where the steps themselves are differentiated, the last evaluation tells the residual of the state, and is no
        # step, but in a loop.
        return solver.max_evals - int((self.records or self.retraces) and not solver.returns_image)

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
    """Whether the method must end with a history of every sample."""

    @abstractmethod
    def cotangent(self, vjp: Callable[[Tensor], Tensor], g: Tensor, state: Any) -> tuple[Tensor, SolveStats]:
        """Return u, and how it was found.

        Args:
            vjp: Returns Jᵀu for a (B, D) matrix u.
            g: (B, D) gradient at the state.
            state: State of the forward method as it ended, for adjoints with `keeps_rows`.
        """

    def run(self, problem: Problem) -> tuple[Tensor, SolveStats, BackwardRecord]:
        """Solve, and attach the graph at the state if gradients are on."""
        record = BackwardRecord()
        with torch.no_grad():
            solver = self.forward_solver(problem.solver)
            # The history of the forward solve is not kept until backward unless it is needed there.
            z, stats, state = problem.solve(
                problem.z0.detach(),
                f=problem.f_solve,
                solver=solver,
                compact=problem.compact and not self.keeps_rows,
                keep_rows=self.keeps_rows,
            )
        if not torch.is_grad_enabled():
            return z, problem.check_samples(z, stats), record
        may_sync = _may_sync(solver, z)
        is_lost = lost_rows(solver, stats)
        is_checked = self.is_exact and problem.layout.batch_dims == 1 and len(z) > 1
        audit = Audit(problem.cell, problem.layout.eps) if is_checked and may_sync else None
        point = linearize_without(is_lost, problem, z if audit is None else audit.watch(z))

        def cotangent(vjp: Callable[[Tensor], Tensor], g: Tensor) -> tuple[Tensor, SolveStats]:
            is_new = is_checked and not is_known(problem.cell)
            if is_new:
                check_products(problem.cell, vjp, g)
            with record_function("steadeq.adjoint"):
                g = g if is_lost is None else g.masked_fill(is_lost, 0)
                u, backward = self.cotangent(vjp, g, state)
            if is_new:
                check_solution(problem.cell, vjp(u), u, g, backward.residual, problem.layout.eps)
            return u, backward if is_lost is None else backward.lose(is_lost[:, 0])

        attached = attach(
            point,
            z,
            cotangent=cotangent,
            record=record,
            again=problem.f_again,
            audit=audit,
            refusal=None
            if self.is_exact
            else (
                f"A second derivative through adjoint={type(self).__name__}() is not supported, because its gradient "
                "is an approximation without a meaningful derivative; use adjoint=Implicit() or Unrolled()."
            ),
        )
        if attached.requires_grad:
            warn_if_short("forward", solver, stats)
            if may_sync:
                stats = check_steady(problem.cell, point, problem.z0, z, stats)
        return attached, stats, record


def _may_sync(solver: AbstractSolver, z: Tensor) -> bool:
    """Return whether to look at numbers after a solve.

    A fixed budget on an accelerator is there to let the host run ahead, which a question would end.
    """
    return solver.tol > 0 or z.device.type == "cpu"


def lost_rows(solver: AbstractSolver, stats: SolveStats) -> Tensor | None:
    """Return (B, 1) which samples were lost to a NaN, or None if there are none that could be told from others.

    Their derivatives are NaN, and not zero, however they are weighed; so they are left out where it can be known.
    """
    if not _may_sync(solver, stats.status):
        return None
    is_lost = stats.status == Status.NON_FINITE
    return is_lost.unsqueeze(1) if is_lost.any() and not is_lost.all() else None


def without_lost(is_lost: Tensor, problem: Problem) -> tuple[Tensor, tuple[Any, ...]]:
    """Return rows in which a good sample stands instead of each lost one, and the inputs so."""
    good = (~is_lost[:, 0]).nonzero()[:, 0]
    rows = torch.arange(len(is_lost), device=is_lost.device).where(~is_lost[:, 0], good[0])
    return rows, select_rows(problem.inputs, rows)


def linearize_without(is_lost: Tensor | None, problem: Problem, z: Tensor) -> Linearization:
    """Return the map around a state, with a good sample instead of each lost one."""
    if is_lost is None:
        return Linearization(problem.f, z, problem.inputs, problem.layout)
    rows, inputs = without_lost(is_lost, problem)
    return Linearization(problem.f, z.index_select(0, rows), inputs, problem.layout)


_ADVICE = {
    "forward": "its gradients are computed at states that are not equilibria; raise max_evals, loosen tol, or keep "
    "the cell stable with JacobianRegularizer. print(eq.stats) shows how many samples failed and by how much, "
    "eq.stats.status shows which. To spend a fixed budget without this warning, set tol=0.",
    "backward": "its gradients are approximate; raise max_evals of the adjoint's solver, loosen its tol, or keep the "
    "cell stable with JacobianRegularizer. print(eq.backward) shows how many samples failed and by how much.",
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
        name = f"{type(solver).__name__}(max_evals={solver.max_evals}, tol={solver.tol})"
        advice = _ADVICE[which]
        if statuses in (Status.NON_FINITE.name, Status.DIVERGED.name):
            # A larger budget or tolerance does not help then.
            advice = f"its gradients mean nothing. {Status[statuses].message}"
        warnings.warn(
            f"A {which} solve by {name} did not reach its tolerance ({statuses}), and {advice}",
            ConvergenceWarning,
            stacklevel=1,
        )
