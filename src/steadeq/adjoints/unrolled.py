"""Ordinary backpropagation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..equilibrium import BackwardRecord, SolveStats, Status
from ..solvers._loop import solve
from .base import AbstractAdjoint, Problem


@dataclass(frozen=True)
class Unrolled(AbstractAdjoint):
    """Ordinary backpropagation through every step of the solver.

    Memory grows with the number of evaluations. The reference for the others, and the way to train a weight-tied
    network of fixed depth: `Picard(max_evals=depth + 1, tol=0)`, as the last evaluation only tells the residual.

    With a tolerance, the gradient is that of the steps which a sample took to meet it. One that is returned where it
    started, as after a warm start at the solution, took none; it gets the gradient of one evaluation there, that of
    `OneStep`.
    """

    def run(self, problem: Problem) -> tuple[Tensor, SolveStats, BackwardRecord]:
        """Solve while autograd records."""
        f, layout = problem.f if torch.is_grad_enabled() else problem.f_solve, problem.layout
        z, stats, _ = solve(f, problem.z0, problem.inputs, solver=problem.solver, layout=layout, compact=False)
        if torch.is_grad_enabled():
            stayed = (z == problem.z0).all(dim=1, keepdim=True) & (stats.status == Status.CONVERGED)[:, None]
            if stayed.any():
                fz = layout.pack_image(f(layout.unpack(problem.z0), *problem.inputs), layout.batch_size)
                # The value of z, and the gradient of fz.
                z = torch.where(stayed, problem.z0.detach() + (fz - fz.detach()), z)
        return z, stats, BackwardRecord()
