"""Adjoints: how to differentiate a fixed point."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .attachment import attach
from .linearization import Linearization
from .randomness import warn_if_random
from .solution import ConvergenceWarning, Solution, Status, unmeasured
from .solvers import GMRES, AbstractSolver, Broyden, Rule
from .solvers.base import check_count, check_fraction
from .solvers.broyden import BroydenRule
from .solvers.loop import solve
from .state import Layout


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


class AbstractAdjoint(ABC):
    """How gradients reach what a fixed point depends on."""

    @abstractmethod
    def run(self, problem: Problem) -> tuple[Tensor, Solution]:
        """Solve, and return the (B, D) value, part of the graph if gradients are on, with its statistics."""


class _LinearAdjoint(AbstractAdjoint):
    """An adjoint that solves without recording, and maps the gradient at the value to a cotangent u of f."""

    is_exact = False
    keeps_rows = False
    """Whether the rule must end with a history of every sample."""

    @abstractmethod
    def cotangent(self, vjp: Callable[[Tensor], Tensor], g: Tensor, rule: Rule | None) -> tuple[Tensor, Solution]:
        """Return u, given products with Jᵀ, and the statistics of finding it."""

    def forward_solver(self, solver: AbstractSolver) -> AbstractSolver:
        """Return the solver to use in the forward pass."""
        return solver

    def run(self, problem: Problem) -> tuple[Tensor, Solution]:
        with torch.no_grad():
            solver = self.forward_solver(problem.solver)
            value, solution, rule = solve(
                problem.f_solve,
                problem.z0.detach(),
                problem.inputs,
                solver=solver,
                layout=problem.layout,
                compact=problem.compact and not self.keeps_rows,
                keep_rows=self.keeps_rows,
            )
        if torch.is_grad_enabled():
            # The history of the forward solve is not kept until backward unless it is needed there.
            kept = rule if self.keeps_rows else None
            point = Linearization(problem.f, value, problem.inputs, problem.layout)
            attached = attach(
                point,
                value,
                cotangent=lambda vjp, g: self.cotangent(vjp, g, kept),
                record=solution._record,
                refusal=None
                if self.is_exact
                else f"A second derivative through adjoint={type(self).__name__}() is not supported, as its gradient "
                "is an approximation that has no meaningful derivative; use adjoint=Implicit() or Unrolled().",
            )
            if attached.requires_grad:
                _warn("forward", solver, solution)
                warn_if_random(problem.cell, point, problem.z0, value, solution.residual)
            value = attached
        return value, solution


@dataclass(frozen=True)
class Implicit(_LinearAdjoint):
    """The exact gradient by the implicit function theorem (Eq. 1): solve u = Jᵀu + g at the equilibrium.

    Memory does not depend on the number of evaluations, forward or backward. A second derivative is exact too, through
    a second implicit solve, as long as f closes over nothing but leaves (pass other tensors as inputs).

    Example:
        >>> import torch
        >>> from steadeq import fixed_point, Anderson
        >>> x = torch.tensor([[1.0]], requires_grad=True)
        >>> z = fixed_point(lambda z, x: 0.5 * z + x, torch.zeros(1, 1), x).value  # z = 2 x
        >>> z.sum().backward()
        >>> x.grad
        tensor([[2.]])
    """

    solver: AbstractSolver = GMRES()  # noqa: RUF009 (frozen)
    """Solver of the linear system. GMRES stops on ‖r‖ / ‖g‖ of each sample; any other one works too."""

    is_exact = True

    def cotangent(self, vjp: Callable[[Tensor], Tensor], g: Tensor, rule: Rule | None) -> tuple[Tensor, Solution]:
        """Solve the adjoint system."""
        if isinstance(self.solver, GMRES):
            u, solution = self.solver.solve_linear(vjp, g)
        else:
            u, solution = self._solve_as_fixed_point(vjp, g)
        _warn("backward", self.solver, solution)
        return u, solution

    def _solve_as_fixed_point(self, vjp: Callable[[Tensor], Tensor], g: Tensor) -> tuple[Tensor, Solution]:
        scale = torch.linalg.vector_norm(g, dim=1, keepdim=True)
        unit = torch.where(scale == 0, 0, g / scale)
        u, solution, _ = solve(
            lambda u: vjp(u) + unit, unit, (), solver=self.solver, layout=Layout(unit), compact=False
        )
        return u * scale, solution


@dataclass(frozen=True)
class OneStep(_LinearAdjoint):
    """The gradient of one evaluation at the equilibrium, u = g (Jacobian-free backpropagation).

    Free, and biased: the part of the gradient that comes back through J is missing.
    """

    def cotangent(self, vjp: Callable[[Tensor], Tensor], g: Tensor, rule: Rule | None) -> tuple[Tensor, Solution]:
        """Return g itself."""
        return g, unmeasured(g.shape[0], 0, g)


@dataclass(frozen=True)
class Phantom(_LinearAdjoint):
    """The phantom gradient: `num_steps` damped iterations of u = Jᵀu + g, in its memory-free Neumann form.

    Between `OneStep` (num_steps=1, damping=1) and `Implicit` (many steps) in cost and in bias.
    """

    num_steps: int = 5
    """Terms of the series; each but the first costs one vector-Jacobian product."""
    damping: float = 0.5
    """Length of each step, in (0, 1]."""

    def __post_init__(self) -> None:
        """Refuse hyper-parameters that make no sense."""
        check_count("num_steps", self.num_steps)
        check_fraction("damping", self.damping)

    def cotangent(self, vjp: Callable[[Tensor], Tensor], g: Tensor, rule: Rule | None) -> tuple[Tensor, Solution]:
        """Sum the series."""
        u = self.damping * g
        for _ in range(self.num_steps - 1):
            u = torch.lerp(u, vjp(u) + g, self.damping)
        return u, unmeasured(g.shape[0], self.num_steps - 1, g)


@dataclass(frozen=True)
class Shine(_LinearAdjoint):
    """The inverse estimate of the forward Broyden solve, used for the backward pass too (Ramzi et al., 2022).

    Costs no vector-Jacobian product. Where the estimate stretches the gradient beyond `max_stretch`, that sample falls
    back to the gradient of `OneStep`. Needs `solver=Broyden(...)`, whose whole history is kept.
    """

    max_stretch: float = 1.3
    """Largest trusted ‖u‖ / ‖g‖."""

    keeps_rows = True

    def __post_init__(self) -> None:
        """Refuse hyper-parameters that make no sense."""
        if not self.max_stretch > 0:
            raise ValueError(f"max_stretch is {self.max_stretch!r}; it must be > 0.")

    def forward_solver(self, solver: AbstractSolver) -> AbstractSolver:
        """Return the Broyden solver with room for its whole history."""
        if not isinstance(solver, Broyden):
            raise ValueError(f"adjoint=Shine() needs solver=Broyden(...), not {type(solver).__name__}.")
        return replace(solver, memory=None)

    def cotangent(self, vjp: Callable[[Tensor], Tensor], g: Tensor, rule: Rule | None) -> tuple[Tensor, Solution]:
        """Apply the transposed inverse estimate."""
        assert isinstance(rule, BroydenRule)
        u = rule.apply_transposed(g)
        stretch = torch.linalg.vector_norm(u, dim=1) / torch.linalg.vector_norm(g, dim=1)
        return torch.where((stretch <= self.max_stretch)[:, None], u, g), unmeasured(g.shape[0], 0, g)


@dataclass(frozen=True)
class Unrolled(AbstractAdjoint):
    """Ordinary backpropagation through every step of the solver.

    Memory grows with the number of evaluations. The reference for the others, and the way to train a weight-tied
    network of fixed depth (`Picard(max_evals=depth, tol=0)`).
    """

    def run(self, problem: Problem) -> tuple[Tensor, Solution]:
        """Solve while autograd records."""
        f = problem.f if torch.is_grad_enabled() else problem.f_solve
        value, solution, _ = solve(
            f, problem.z0, problem.inputs, solver=problem.solver, layout=problem.layout, compact=False
        )
        return value, solution


_ADVICE = {
    "forward": "its gradients are taken at points that are no equilibria; raise max_evals, loosen tol, or keep the "
    "cell stable with JacobianRegularizer. print(solution) says how many samples and how far, solution.status which; "
    "a budget that is meant to be spent has tol=0.",
    "backward": "its gradients are approximate; raise max_evals of the adjoint's solver, loosen its tol, or keep the "
    "cell stable with JacobianRegularizer. print(solution.backward) says how many samples and how far.",
}


def _warn(which: str, solver: AbstractSolver, solution: Solution) -> None:
    statuses = _shortcomings(solver, solution)
    if statuses:
        warnings.warn(
            f"A {which} solve by {solver} ended short of its tolerance ({statuses}), and {_ADVICE[which]}",
            ConvergenceWarning,
            stacklevel=1,
        )


def _shortcomings(solver: AbstractSolver, solution: Solution) -> str:
    """Name the statuses of samples that did not converge, unless the budget was to be spent anyway.

    Warnings have no numbers in them and one place in the code, so that Python's default filter shows each once.
    """
    if solver.tol == 0:
        return ""
    return ", ".join(Status(status).name for status in sorted(set(solution.status.tolist())) if status)
