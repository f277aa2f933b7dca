"""Anderson acceleration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._internal.validation import check_count, check_step_length
from ._progress import norms
from ._window import History, Slot, combine, only, solve_gram, to_host
from .base import WINDOW, AbstractSolver, Evaluation
from .broyden import Broyden


@dataclass(frozen=True, kw_only=True)
class Anderson(AbstractSolver):
    """Anderson acceleration of type II, safeguarded per sample.

    With the differences of residuals dG and of images dF over the window, the weights w minimize ‖g - dG w‖, and the
    next point is f(z) - dF w. On affine maps and with full memory, the method is equivalent to GMRES (Walker and Ni,
    2011).

    Example:
        >>> import torch
        >>> from steadeq import fixed_point
        >>> turn = torch.tensor([[0.0, -1.2], [1.2, 0.0]])  # expands: plain iteration diverges
        >>> eq = fixed_point(lambda z: z @ turn.T + 1, torch.zeros(1, 2), solver=Anderson(tol=1e-5))
        >>> eq.z
        tensor([[-0.0820,  0.9016]])
    """

    memory: int = 6
    """Number of latest evaluations to combine into the next point; 1 is plain iteration."""
    mixing: float = 1.0
    """Share of the combined f(z) in the next point, in (0, 1]; the combined z makes up the rest."""
    ridge: float = 0.0
    """Ridge term of the least-squares problem for the weights, relative to its squared columns; 0 (none) is usually
    best."""

    handover: bool = False
    """Switch a sample to Broyden's method once ten evaluations leave more than 30% of its residual. This solves more
    samples where the spectral radius is close to 1, and takes the memory of two more states for each evaluation after
    the switch."""

    max_growth = 100.0
    max_stalled_windows = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("memory", self.memory)
        check_step_length("mixing", self.mixing)
        if not 0 <= self.ridge < float("inf"):
            raise ValueError(f"ridge is {self.ridge!r}; it must be a finite number >= 0.")

    def init(self, z: Tensor, *, eps: float, may_sync: bool) -> History | Handover:
        """Return an empty history."""
        # No more columns than the budget can fill: evaluation k brings column k - 1, and the last evaluation none. Nor
        # more than dimensions: beyond them columns are dependent, and the oldest would only blur the newest.
        history = History.begin(z, min(self.memory - 1, self.max_evals - 2, z.shape[1]), may_sync=may_sync)
        if not self.handover:
            return history
        other = None if may_sync else History.begin(z, self.max_evals - 1, may_sync=False)
        level = z.new_full(z.shape[:1], math.inf)
        return Handover(history, other, 1, level, torch.zeros_like(level, dtype=torch.bool))

    def step(self, state: Any, at: Evaluation) -> tuple[Any, Tensor]:
        """Return f(z) - dF w, and the history with the newest differences."""
        return state.step(self, at) if isinstance(state, Handover) else self.accelerate(state, at)

    def accelerate(self, state: History, at: Evaluation) -> tuple[History, Tensor]:
        """Make a step of Anderson's method."""
        if at.is_first or state.capacity < 1:
            return History(*at[:3], *state[3:]), at.fz if self.mixing == 1 else at.fz - (1 - self.mixing) * at.g
        state, at = state.go_back(at)
        fz, g, slot = at.fz, at.g, Slot(at, state.capacity)
        dg, newest = slot.push(state.left, g, state.g)
        df, _ = slot.push(state.df, fz, state.fz)
        valid = slot.renew(state.valid)
        row, right = only(slot.products(dg, newest), valid), slot.products(dg, g)
        table = slot.write(state.table, row, row)
        system = slot.square(table)
        if self.ridge:
            system = system * (1 + self.ridge * torch.eye(slot.size, dtype=g.dtype, device=g.device))
        weights = solve_gram(system, right, slot.index, at.norm, may_sync=at.may_sync)
        following = combine(fz, weights, slot.filled(df), scale=-1.0)
        if self.mixing != 1:
            following = following - (1 - self.mixing) * combine(g, weights, slot.filled(dg), scale=-1.0)
        return History(at.z, fz, g, dg, df, table, right, valid, state.was_plain), following


class Handover(NamedTuple):
    """Anderson's history, and Broyden's for the rows that have gone over to it."""

    history: History
    other: History | None
    """History of Broyden's method; None as long as no row needs it."""
    start: int
    """Number of the evaluation at which Broyden's method began."""
    level: Tensor
    """(rows,) norms of the residuals at the last test."""
    is_over: Tensor
    """(rows,) which rows have gone over."""

    def step(self, solver: Anderson, at: Evaluation) -> tuple[Handover, Tensor]:
        """Make a step, with the method that each row is at."""
        history, following = solver.accelerate(self.history, at)
        _, other, start, level, is_over = self
        is_due, goes_over = at.number % WINDOW == 0, None
        if isinstance(is_due, Tensor) or is_due:
            norm = norms(at.g, at.prefix)
            goes_over = (norm > _STALLED * level) & ~is_over & is_due
            level, is_over = torch.where(torch.as_tensor(is_due, device=norm.device), norm, level), is_over | goes_over
            if other is None and to_host(goes_over.any()):
                other, start = History.begin(at.z, max(int(at.num_left), 1), may_sync=True), int(at.number)
        if other is not None:
            other, points = Broyden().step(other, at._replace(number=at.number - start + 1))
            if goes_over is not None:
                # A row begins anew, as if it were alone.
                other, points = other.forget(goes_over), torch.where(goes_over[:, None], at.fz, points)
            following = torch.where(is_over[:, None], points, following)
        return Handover(history, other, start, level, is_over), following


_STALLED = 0.3
"""Part of a residual that is left after as many evaluations as there are between two tests, of a row that stalls."""
