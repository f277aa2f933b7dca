"""What a solver is: hyper-parameters, and the rule by which it picks the next point."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from .._internal.validation import check_count
from ..equilibrium import SolveStats

WINDOW = 10
"""Number of evaluations between two looks for stagnation."""


class Rule(ABC):
    """The update rule of one running solve, on the rows that are still being worked on.

    A rule sees one evaluation after the other and answers each with the next point. It keeps its own history and
    nothing else: counting, residuals, the best iterate, stopping and compaction belong to the loop.
    """

    max_growth: float = math.inf
    """A sample whose ‖f(z) - z‖ exceeds its best by this factor is handed to `advance` as rejected (see `Scale`)."""

    num_quiet_windows: int = 1
    """How many windows of the stagnation test may pass without progress by design, as while a basis is built."""

    max_stalled_windows: float = 3
    """So many windows without progress end a sample. Infinite for methods whose residuals may rise for long before they
    fall; at the rounding limit one window ends a sample in any case."""

    may_look: bool = True
    """Whether the rule may look at numbers, which on an accelerator makes the host wait; set by the loop."""

    @abstractmethod
    def advance(self, z: Tensor, fz: Tensor, g: Tensor, rejected: Tensor | None) -> Tensor:
        """Return the next (rows, D) point.

        Args:
            z: The point just evaluated.
            fz: f at that point.
            g: The residual fz - z.
            rejected: Which rows grew beyond `max_growth`, or None if it is known that no row did.
        """

    @abstractmethod
    def select(self, rows: Tensor) -> None:
        """Keep the history of the given rows only."""


@dataclass(frozen=True, kw_only=True)
class AbstractLinearSolver(ABC):
    """Hyper-parameters of a solver of u = A u + b, the system of the implicit gradient, where A u is Jᵀu."""

    max_evals: int = 30
    """Budget of a solve: the most evaluations of the map; in the backward pass each is one vector-Jacobian product."""
    tol: float = 1e-3
    """Tolerance: a sample is solved once its relative residual |f(z) - z| / |f(z)| is at most this; 0 spends the whole
    budget."""
    check_every: int | None = None
    """Number of evaluations after which a solve asks whether all samples are done, which makes the host wait for the
    device; None for 1 on the CPU and 4 elsewhere."""

    def __post_init__(self) -> None:
        check_count("max_evals", self.max_evals)
        if self.check_every is not None:
            check_count("check_every", self.check_every)
        if not self.tol >= 0 or math.isinf(self.tol):
            raise ValueError(f"tol is {self.tol!r}; it must be a finite number >= 0.")

    @abstractmethod
    def solve_linear(self, operator: Callable[[Tensor], Tensor], b: Tensor) -> tuple[Tensor, SolveStats]:
        """Solve u = operator(u) + b for each row.

        Args:
            operator: A linear map of (B, D) matrices that acts on each row by itself.
            b: (B, D) right-hand sides.

        Returns:
            The (B, D) solution, and how the solve went.
        """


@dataclass(frozen=True, kw_only=True)
class AbstractSolver(AbstractLinearSolver):
    """Hyper-parameters of a fixed-point solver, which solves linear systems too.

    All solvers count in evaluations of f, stop each sample by itself at ‖f(z) - z‖ <= tol ‖f(z)‖, and are free of
    scale: a problem multiplied by a constant is solved along the same path. An equilibrium that rounding at the scale
    of the start cannot tell from zero counts as zero: ‖f(z)‖ is then replaced by that rounding.
    """

    max_evals: int = 30
    """Budget of a solve: the most calls of the map f (the cell; in the backward pass, vector-Jacobian products), the
    first included."""
    patience: int = 1
    """Number of evaluations in a row that must meet the tolerance; above 1 for cells that come close to a state and
    leave it again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("patience", self.patience)

    @abstractmethod
    def start(self, z: Tensor, eps: float) -> Rule:
        """Return a fresh rule for a solve that starts at the (B, D) matrix z and evaluates f with precision eps."""

    def solve_linear(self, operator: Callable[[Tensor], Tensor], b: Tensor) -> tuple[Tensor, SolveStats]:
        """Solve u = operator(u) + b as a fixed-point problem, from b and at the scale of b."""
        # The loop needs this module.
        from ._loop import solve_affine

        return solve_affine(operator, b, solver=self)
