"""Ordinary backpropagation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..equilibrium import BackwardRecord, SolveStats
from ..solvers._loop import solve
from .base import AbstractAdjoint, Problem


@dataclass(frozen=True)
class Unrolled(AbstractAdjoint):
    """Ordinary backpropagation through every step of the solver.

    Memory grows with the number of evaluations. The reference for the others, and the way to train a weight-tied
    network of fixed depth: `Picard(max_evals=depth + 1, tol=0)`, as the last evaluation only tells the residual.
    """

    def run(self, problem: Problem) -> tuple[Tensor, SolveStats, BackwardRecord]:
        """Solve while autograd records."""
        f = problem.f if torch.is_grad_enabled() else problem.f_solve
        z, stats, _ = solve(f, problem.z0, problem.inputs, solver=problem.solver, layout=problem.layout, compact=False)
        return z, stats, BackwardRecord()
