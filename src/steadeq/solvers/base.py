"""What a solver is: hyper-parameters, a state, and one step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

from torch import Tensor

from .._internal.options import NamedOptions
from .._internal.validation import check_count, check_number
from ..equilibrium import SolveStats

WINDOW = 10
"""Number of evaluations between two tests for stagnation."""

_L = TypeVar("_L", bound="AbstractLinearSolver")


class Prefix(NamedTuple):
    """Sums over prefixes, where the rows of a matrix are the tokens of samples."""

    length: int
    """Number of tokens of a sample."""

    def sum(self, values: Tensor) -> Tensor:
        """Return the sums of (rows, ...) values over each token and those before it."""
        return values.unflatten(0, (-1, self.length)).cumsum(dim=1).flatten(0, 1)

    def max(self, values: Tensor) -> Tensor:
        """Return the largest of (rows,) values among each token and those before it."""
        return values.unflatten(0, (-1, self.length)).cummax(dim=1).values.flatten(0, 1)


class Evaluation(NamedTuple):
    """One evaluation of f within a solve: the input of a solver's step."""

    z: Tensor
    """(rows, D) points at which f was evaluated."""
    fz: Tensor
    """(rows, D) images f(z)."""
    g: Tensor
    """(rows, D) residuals fz - z."""
    norm: Tensor
    """(rows,) norms of the images, without a graph; anything below eps times this is rounding."""
    rejected: Tensor | None
    """(rows,) which residuals grew beyond `max_growth` of their best; None where no row did."""
    number: int | Tensor
    """Evaluations made so far, this one included. In compiled code, which serves every step, it is a 0-dim tensor."""
    num_left: int | Tensor
    """Evaluations that the budget leaves after this one."""
    tol: float | Tensor
    """Tolerance of the solve."""
    may_sync: bool
    """Whether the step may read numbers on the host, as `if mask.any()` does. On an accelerator the host would have to
    wait for the device, and compiled or exported code cannot ask at all."""
    prefix: Prefix | None = None
    """In a causal solve, where rows are tokens: sums over each token and those before it."""

    @property
    def is_first(self) -> bool:
        """Whether this is known to be the first evaluation."""
        return isinstance(self.number, int) and self.number == 1


@dataclass(frozen=True, kw_only=True)
class AbstractLinearSolver(NamedOptions, ABC):
    """Hyper-parameters of a solver of u = A u + b, the system of the implicit gradient, where A u is Jᵀu."""

    max_evals: int = 30
    """Budget of a solve: the most evaluations of the map; in the backward pass each is one vector-Jacobian product."""
    tol: float = 1e-3
    """Tolerance: a sample is solved once its relative residual |f(z) - z| / |f(z)| is at most this; 0 spends the whole
    budget."""
    check_every: int | None = None
    """Number of evaluations between checks whether all samples are done; each check makes the host wait for the device.
    None for 1 on the CPU and 4 elsewhere."""

    patience = 1
    max_growth: ClassVar[float] = math.inf
    """A sample whose ‖f(z) - z‖ exceeds its best by this factor is marked as rejected; see `_progress` for the measure.
    """
    max_stalled_windows: ClassVar[float] = 3
    """Number of windows of evaluations without progress after which a sample ends. Infinite for methods whose residuals
    may rise for long before they fall; at the rounding limit one window ends a sample in any case."""
    returns_image: ClassVar[bool] = False
    """Whether the state of a solve is the image of the last evaluation, and not its point."""

    def __post_init__(self) -> None:
        check_count("max_evals", self.max_evals)
        check_count("patience", self.patience)
        if self.check_every is not None:
            check_count("check_every", self.check_every)
        check_number("tol", self.tol)
        if not self.tol >= 0 or math.isinf(self.tol):
            raise ValueError(f"tol is {self.tol!r}; it must be a finite number >= 0.")

    def with_max_evals(self: _L, max_evals: int) -> _L:
        """Return the solver with another budget."""
        return replace(self, max_evals=max_evals)

    def with_tol(self: _L, tol: float) -> _L:
        """Return the solver with another tolerance."""
        return replace(self, tol=tol)

    def num_quiet_windows(self, dim: int) -> int:
        """Return how many windows may pass without progress by design for states of `dim` elements."""
        return 1

    @abstractmethod
    def solve_linear(self, operator: Callable[[Tensor], Tensor], b: Tensor) -> tuple[Tensor, SolveStats]:
        """Solve u = operator(u) + b for each row.

        Args:
            operator: A linear map of (B, D) matrices that acts on each row by itself.
            b: (B, D) right-hand sides.

        Returns:
            The (B, D) solution, and how the solve went; residuals are relative to b.
        """


@dataclass(frozen=True, kw_only=True)
class AbstractSolver(AbstractLinearSolver):
    """Hyper-parameters of a fixed-point solver, which can also solve linear systems.

    All solvers count evaluations of f, stop each sample by itself at ‖f(z) - z‖ <= tol ‖f(z)‖, and are scale-free:
    multiplying a problem by a constant does not change the path of the solve. An equilibrium that cannot be told from
    zero, given rounding at the scale of the start, counts as zero: ‖f(z)‖ is then replaced by that rounding.

    To write your own method, subclass this and implement two functions. `init` returns the state of a solve: a tensor,
    None, or a nested tuple of them, with rows along dim 0. `step` takes the state and an `Evaluation`, and returns the
    new state and the next points. A step may write into its own state, except while autograd records. It sees only the
    rows that are still running; the driver counts, measures residuals, keeps the best iterate, stops samples and
    removes them from the batch. If the step makes no host sync when `may_sync` is False, it can be compiled and
    exported as it is.
    """

    max_evals: int = 30
    """Budget of a solve: the most calls of the map f (the cell; in the backward pass, vector-Jacobian products), the
    first included."""
    patience: int = 1
    """Number of evaluations in a row that must meet the tolerance; use more than 1 for cells that come close to a state
    and leave it again."""
    causal: bool = False
    """Treat dim 1 of the state as time and compute weights, best iterate and stop of a token only from that token and
    earlier ones, so that a causal cell stays causal and no state depends on later tokens."""

    always_syncs: ClassVar[bool] = False
    """Whether a step reads numbers on the host even if `may_sync` is False, so that it can be neither compiled nor
    exported."""
    is_loop: ClassVar[bool] = False
    """Whether the method is a plain loop over f, which returns the last state and not the best when it is unrolled."""
    pass_step = False
    """Whether f is called with the number of the step, from 0 on, as `step=`."""

    @abstractmethod
    def init(self, z: Tensor, *, eps: float, may_sync: bool) -> Any:
        """Return the state of a solve.

        Args:
            z: (rows, D) start, whose size, dtype and device are taken.
            eps: Precision with which f is evaluated.
            may_sync: Whether steps will be able to read numbers on the host; see `Evaluation`.
        """

    def widen(self, state: Any, num_evals: int) -> Any:
        """Return a state with room for this many evaluations, for methods whose state grows with the budget.

        Compiled solves, whose tensors have one shape for several steps, ask for it between them.
        """
        return state

    @abstractmethod
    def step(self, state: Any, at: Evaluation) -> tuple[Any, Tensor]:
        """Return the new state and the (rows, D) points to evaluate next.

        Args:
            state: What `init` or the step before returned.
            at: The evaluation just made.
        """

    def solve_linear(self, operator: Callable[[Tensor], Tensor], b: Tensor) -> tuple[Tensor, SolveStats]:
        """Solve u = operator(u) + b as a fixed-point problem, from b and at the scale of b."""
        # The loop needs this module.
        from ._solve import solve_affine

        return solve_affine(operator, b, solver=self)
