"""Anderson acceleration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from .._internal.validation import check_count, check_step_length
from ._history import Diagonals, History, LastEvaluation, Table, combine, products, solve_gram
from .base import AbstractSolver, Rule


@dataclass(frozen=True, kw_only=True)
class Anderson(AbstractSolver):
    """Anderson acceleration of type II, safeguarded per sample.

    With the differences of residuals dG and of images dF over the window, the weights minimize ‖g - dG w‖ and the next
    point is f(z) - dF w. On affine maps and with full memory it is GMRES (Walker and Ni, 2011).

    Example:
        >>> import torch
        >>> from steadeq import fixed_point
        >>> turn = torch.tensor([[0.0, -1.2], [1.2, 0.0]])  # expands: plain iteration diverges
        >>> eq = fixed_point(lambda z: z @ turn.T + 1, torch.zeros(1, 2), solver=Anderson(tol=1e-5))
        >>> eq.z
        tensor([[-0.0820,  0.9016]])
    """

    memory: int = 6
    """Number of latest evaluations that are combined into the next point; 1 is plain iteration."""
    mixing: float = 1.0
    """Share of the combined f(z) in the next point, in (0, 1]; the combined z makes up the rest."""
    ridge: float = 0.0
    """Ridge term of the least-squares problem for the weights, relative to its squared columns; 0, for none, is usually
    best."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("memory", self.memory)
        check_step_length("mixing", self.mixing)
        if not 0 <= self.ridge < float("inf"):
            raise ValueError(f"ridge is {self.ridge!r}; it must be a finite number >= 0.")

    def start(self, z: Tensor, eps: float) -> Rule:
        """Return a fresh rule."""
        return _AndersonRule(self, z)


MAX_GROWTH = 100.0
"""Growth of the merit over its best by which a step is rejected."""


class _AndersonRule(Rule):
    max_growth = MAX_GROWTH
    max_stalled_windows = math.inf

    def __init__(self, solver: Anderson, z: Tensor) -> None:
        # No more columns than the budget can fill: evaluation k brings column k - 1, and the last evaluation none. Nor
        # more than dimensions: beyond them columns are dependent, and the oldest would only blur the newest.
        capacity = min(solver.memory - 1, solver.max_evals - 2, z.shape[1])
        self._capacity, self._mixing = capacity, solver.mixing
        self._dg, self._df, self._gram = History(capacity), History(capacity), Table(capacity)
        self._ridge = Diagonals(1.0, solver.ridge, capacity, z) if solver.ridge else None
        self._last = LastEvaluation()

    def advance(self, z: Tensor, fz: Tensor, g: Tensor, rejected: Tensor | None) -> Tensor:
        if self._last.matrices is None or self._capacity < 1:
            self._last.matrices = (fz, g)
            return fz if self._mixing == 1 else fz - (1 - self._mixing) * g
        if rejected is None:
            self._last.accept()
        else:
            (fz, g), cleared = self._last.rollback((fz, g), rejected)
            self._gram.clear(cleared)
        fz_last, g_last = self._last.matrices
        newest = self._dg.push_difference(g, g_last)
        self._df.push_difference(fz, fz_last)
        self._last.matrices = (fz, g)
        dg, df, size, slot = self._dg.columns, self._df.columns, len(self._dg), self._dg.slot
        self._gram.renew(slot)
        row = products(dg, newest)
        gram = self._gram.write(slot, size, row=row, column=row)
        system = gram if self._ridge is None else gram * self._ridge[size]
        weights = solve_gram(system, products(dg, g), slot, may_look=self.may_look)
        following = combine(fz, weights, df, scale=-1.0)
        if self._mixing == 1:
            return following
        return following - (1 - self._mixing) * combine(g, weights, dg, scale=-1.0)

    def select(self, rows: Tensor) -> None:
        for part in (self._dg, self._df, self._gram, self._last):
            part.select(rows)
