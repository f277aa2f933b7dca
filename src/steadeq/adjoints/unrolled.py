"""Ordinary backpropagation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .._internal.validation import check_count
from ..equilibrium import BackwardRecord, SolveStats, Status
from .base import AbstractAdjoint, Problem, lost_rows, without_lost


@dataclass(frozen=True)
class Unrolled(AbstractAdjoint):
    """Ordinary backpropagation through every step of the solver.

    Memory grows with the number of evaluations. Use it as a reference for the other adjoints, and to train a
    weight-tied network of fixed depth with `Loop(num_steps=depth)`. With `Picard`, the result is the state after the
    last step, as in a loop, even if an earlier state had a smaller residual.

    With `last=k`, gradients flow through the last k evaluations only, as in the training of looped and recursive
    models. Memory then grows with k and not with the number of evaluations.

    With a tolerance, gradients flow through the steps that a sample took to meet it. A sample that started at the
    solution took no step and gets the gradient of one evaluation, as with `OneStep`. With `last=k`, every sample that
    meets the tolerance gets the gradient of k evaluations from there.
    """

    records = True

    last: int | None = None
    """Number of last evaluations that gradients flow through; None for all."""

    def __post_init__(self) -> None:
        if self.last is not None:
            check_count("last", self.last)

    def run(self, problem: Problem) -> tuple[Tensor, SolveStats, BackwardRecord]:
        """Solve while autograd records."""
        z, stats = self._solve(problem)
        stats = problem.check_samples(z.detach(), stats)
        is_lost = lost_rows(problem.solver, stats) if torch.is_grad_enabled() else None
        if is_lost is not None:
            # Once more without those samples: the derivatives of what became NaN are NaN, however they are weighed.
            rows, inputs = without_lost(is_lost, problem)
            others = replace(problem, z0=problem.z0.index_select(0, rows), inputs=inputs)
            z = torch.where(is_lost, z.detach(), self._solve(others)[0])
        return z, stats, BackwardRecord()

    def _solve(self, problem: Problem) -> tuple[Tensor, SolveStats]:
        f, layout = problem.f if torch.is_grad_enabled() else problem.f_solve, problem.layout
        solver = problem.solver
        num_silent = 0 if self.last is None else max(self.steps_of(solver) - self.last, 0)
        z, stats, _ = problem.solve(
            problem.z0,
            f=f,
            solver=solver,
            num_silent=num_silent,
            # Plain iteration is a loop that somebody wants unrolled; other solvers search, and may overshoot.
            keep_last=solver.is_loop,
        )
        if torch.is_grad_enabled() and not solver.returns_image:
            is_short = (stats.status == Status.CONVERGED)[:, None]
            if self.last is None:
                is_short = is_short & (z == problem.z0).all(dim=1, keepdim=True)
            if is_short.any():
                recorded = z.detach() if self.last is not None else problem.z0
                for _ in range(self.last or 1):
                    recorded = layout.pack_image(f(layout.unpack(recorded), *problem.inputs), layout.batch_size)
                # The value of z, and the gradient of what was recorded.
                z = torch.where(is_short, z.detach() + (recorded - recorded.detach()), z)
        return z, stats
