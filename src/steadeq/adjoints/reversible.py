"""The exact gradient of reversible steps, with the memory of one step."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._internal.autocast import without_autocast
from .._internal.linearization import Linearization
from .._internal.randomness import check_steady
from .._internal.trees import replace_tensors
from ..equilibrium import BackwardRecord, ConvergenceWarning, SolveStats, Status
from ..solvers import AbstractSolver, Picard
from ..solvers._map import RunningMap
from ..solvers._progress import Progress
from ._attachment import Sources
from .base import AbstractAdjoint, Problem, lost_rows, warn_if_short, without_lost

_TOLERATED = 1e-3
"""Relative error of the retraced start above which gradients are warned of."""


@dataclass(frozen=True)
class Reversible(AbstractAdjoint):
    """The exact gradient of the steps that were taken, with the memory of one step (RevDEQ, 2025).

    It needs `solver=Picard(damping=...)` with a damping below 1, and couples the iteration: the next point is (1 -
    damping) times the previous point plus damping times f of the current one, which has the same fixed points. Solving
    this for the previous point reverses a step. The backward pass retraces all points from the end and differentiates
    each evaluation again. It costs an evaluation and a product for each evaluation of the solve.

    Points are stored in float64, whatever the dtype of f. With a damping of 0.5 and f in float32 or narrower, about 30
    steps are reversed bit for bit, until float64 runs out of digits. With other dampings, or with f in float64,
    rounding errors grow by 1 / (1 - damping) per step, and by more if the Jacobian is large: with 0.8, the start of a
    freshly initialized multiscale DEQ is lost after 6 steps. `eq.backward.residual` is the relative error of the
    recomputed start; if it is large, there is a warning.

    Example:
        >>> from steadeq import fixed_point
        >>> x = torch.tensor([[1.0]], requires_grad=True)
        >>> solver = Picard(max_evals=24, tol=0, damping=0.5)
        >>> z = fixed_point(lambda z, x: 0.1 * z + x, torch.zeros(1, 1), x, solver=solver, adjoint=Reversible()).z
        >>> z.sum().backward()
        >>> round(x.grad.item(), 2)  # z = x / 0.9
        1.11
    """

    retraces = True

    def check_solver(self, solver: AbstractSolver) -> None:
        """Accept damped plain iteration only."""
        if not isinstance(solver, Picard) or solver.damping == 1:
            raise ValueError(
                "adjoint=Reversible() needs solver=Picard(damping=...) with a damping below 1, such as 0.5, not "
                f"{solver}."
            )

    def run(self, problem: Problem) -> tuple[Tensor, SolveStats, BackwardRecord]:
        """Iterate, and attach the node that reverses the steps if gradients are on."""
        solver = problem.solver
        self.check_solver(solver)
        assert isinstance(solver, Picard)
        record = BackwardRecord()
        with torch.no_grad():
            wide, stats = _iterate(problem, solver)
            z = wide[0].to(problem.z0.dtype)
        is_lost = lost_rows(solver, stats) if torch.is_grad_enabled() else None
        if not torch.is_grad_enabled():
            stats = problem.check_samples(z, stats)
        elif is_lost is not None:
            # Once more without those samples, whose derivatives are NaN however they are weighed.
            rows, inputs = without_lost(is_lost, problem)
            others, _, record = self.run(replace(problem, z0=problem.z0.index_select(0, rows), inputs=inputs))
            z = torch.where(is_lost, z, others)
        else:
            point = Linearization(problem.f, z, problem.inputs, problem.layout)
            point.check_graph()
            sources = Sources(point)
            if sources.exist or problem.z0.requires_grad:
                if not sources.are_named:
                    raise RuntimeError(
                        "adjoint=Reversible() needs every tensor that f depends on to be a leaf or an input, but f "
                        "closes over the result of another computation; pass it after z0 as an input."
                    )
                warn_if_short("forward", solver, stats)
                stats = check_steady(problem.cell, point, problem.z0, z, stats)
                steps = _Steps(
                    problem=problem,
                    damping=solver.damping,
                    stats=stats,
                    record=record,
                    last=wide,
                    sources=sources,
                )
                z = _Retrace.apply(z, problem.z0, steps, *sources.tensors)
        return z, stats, record  # pyright: ignore[reportReturnType]


def _iterate(problem: Problem, solver: Picard) -> tuple[tuple[Tensor, Tensor], SolveStats]:
    """Return the last two points of every sample, from the end, in float64, and how the solve went."""
    z0 = problem.z0.detach()
    evaluate = RunningMap(
        problem.f if torch.is_grad_enabled() else problem.f_solve, problem.layout, problem.inputs, compact=False
    )
    previous = point = z0.to(_wide(z0))
    progress = Progress(z0, solver, dim=problem.layout.dim, eps=problem.layout.eps, keep_last=True)
    while True:
        z, fz = evaluate(point.to(z0.dtype))
        progress.record(z, progress.measure(z, fz, fz - z))
        if not progress.goes_on:
            return (point, previous), progress.result()
        following = (1 - solver.damping) * previous + solver.damping * fz
        goes_on = progress.kept.is_running[:, None]
        previous, point = torch.where(goes_on, point, previous), torch.where(goes_on, following, point)


def _wide(tensor: Tensor) -> torch.dtype:
    # There is no float64 on Apple's GPUs.
    return tensor.dtype if tensor.device.type == "mps" else torch.float64


@dataclass(frozen=True, kw_only=True, eq=False)
class _Steps:
    """What the backward passes of one solve need."""

    problem: Problem
    damping: float
    stats: SolveStats
    record: BackwardRecord
    last: tuple[Tensor, Tensor]
    sources: Sources

    @torch.no_grad()
    def retrace(self, g: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """Return the gradients of the start and of the sources."""
        self.sources.check_versions("its backward pass")
        problem, damping = self.problem, self.damping
        # Cut off from where they come from: a weight may be used in f and for an input too, and its gradient by way of
        # the input is not taken here.
        copies = {id(tensor): tensor.detach().requires_grad_() for tensor in self.sources.tensors if not tensor.is_leaf}
        inputs = replace_tensors(problem.inputs, copies)
        sources = [copies.get(id(tensor), tensor) for tensor in self.sources.tensors]
        dtype = problem.z0.dtype
        following, point = self.last
        totals: list[Tensor | None] = [None] * len(sources)
        # Of the point before the one that is looked at, and of that one.
        outer, inner = g.to(following.dtype), torch.zeros_like(following)
        num_steps = self.stats.num_evals - 1
        for step in range(int(num_steps.max())):
            is_active = (step < num_steps)[:, None]
            linearization = Linearization(problem.f_again, point.to(dtype), inputs, problem.layout)
            cotangent = torch.where(is_active, damping * outer, 0).to(dtype)
            with torch.enable_grad():
                product, *gradients = torch.autograd.grad(
                    linearization.fz, [linearization.first, *sources], cotangent, allow_unused=True
                )
            totals = [
                gradient if total is None else total if gradient is None else total + gradient
                for total, gradient in zip(totals, gradients, strict=True)
            ]
            earlier = (following - damping * linearization.fz.detach()) / (1 - damping)
            passed = inner if product is None else inner + product
            following, point = torch.where(is_active, point, following), torch.where(is_active, earlier, point)
            outer, inner = torch.where(is_active, passed, outer), torch.where(is_active, (1 - damping) * outer, inner)
        self._check(following, point, num_steps)
        return (outer + inner).to(dtype), totals

    def _check(self, first: Tensor, second: Tensor, num_steps: Tensor) -> None:
        """Leave in the record how well the start was found again, and warn if that is not well."""
        start = self.problem.z0.detach().to(first.dtype)
        norms = (torch.linalg.vector_norm(matrix, dim=1) for matrix in (start, self.last[0]))
        size = torch.maximum(*norms).clamp(min=torch.finfo(start.dtype).tiny)
        errors = (torch.linalg.vector_norm(found - start, dim=1) for found in (first, second))
        error = torch.maximum(*errors) / size
        is_exact = error <= _TOLERATED
        self.record.stats = SolveStats(
            residual=error.to(self.problem.z0.dtype),
            num_evals=num_steps,
            status=torch.where(is_exact, int(Status.CONVERGED), int(Status.STAGNATED)),
            trace=error.new_empty((0, len(error))),
        )
        if not is_exact.all():
            warnings.warn(
                "adjoint=Reversible() could not reverse its steps because of rounding, so its gradients are not "
                "exact. Lower max_evals or damping of the solver, or use adjoint=Implicit(). eq.backward.residual is "
                "the error at the start.",
                ConvergenceWarning,
                stacklevel=1,
            )


class _Retrace(torch.autograd.Function):
    """Passes the state through; its backward takes the steps back."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, z0: Tensor, steps: _Steps, *sources: Tensor) -> Tensor:
        ctx.steps = steps
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "A second derivative through adjoint=Reversible() is not supported; use adjoint=Implicit() or "
                "Unrolled()."
            )
        steps: _Steps = ctx.steps
        with without_autocast(steps.problem.layout):
            start, totals = steps.retrace(gradients[0])
        return None, start if steps.problem.z0.requires_grad else None, None, *totals
