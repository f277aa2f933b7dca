"""Anderson acceleration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .._internal.validation import check_count, check_step_length
from ._window import Slot, combine, forget, go_back, new_window, only, solve_gram
from .base import AbstractSolver, Evaluation


class AndersonState(NamedTuple):
    """What Anderson remembers."""

    fz: Tensor
    """Image of the last evaluation."""
    g: Tensor
    """Its residual."""
    dg: Tensor
    """(rows, capacity, D) differences of residuals."""
    df: Tensor
    """Differences of images."""
    gram: Tensor
    """(rows, capacity, capacity) inner products of differences of residuals."""
    valid: Tensor | None
    """(rows, capacity) differences that count; None for all."""
    was_plain: Tensor | None
    """(rows,) rows that went back to the evaluation before; None for none."""


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

    max_growth = 100.0
    max_stalled_windows = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("memory", self.memory)
        check_step_length("mixing", self.mixing)
        if not 0 <= self.ridge < float("inf"):
            raise ValueError(f"ridge is {self.ridge!r}; it must be a finite number >= 0.")

    def init(self, z: Tensor, *, eps: float, may_ask: bool) -> AndersonState:
        """Return an empty history."""
        # No more columns than the budget can fill: evaluation k brings column k - 1, and the last evaluation none. Nor
        # more than dimensions: beyond them columns are dependent, and the oldest would only blur the newest.
        capacity = max(min(self.memory - 1, self.max_evals - 2, z.shape[1]), 0)
        nothing = torch.zeros_like(z)
        return AndersonState(
            fz=nothing,
            g=nothing,
            dg=new_window(z, capacity, may_ask=may_ask),
            df=new_window(z, capacity, may_ask=may_ask),
            gram=z.new_zeros(z.shape[0], capacity, capacity),
            valid=None if may_ask else torch.zeros(z.shape[0], capacity, dtype=torch.bool, device=z.device),
            was_plain=None if may_ask else torch.zeros(z.shape[0], dtype=torch.bool, device=z.device),
        )

    def step(self, state: AndersonState, at: Evaluation) -> tuple[AndersonState, Tensor]:
        """Return f(z) - dF w, and the history with the newest differences."""
        fz, g, capacity = at.fz, at.g, state.gram.shape[1]
        if at.is_first or capacity < 1:
            return state._replace(fz=fz, g=g), fz if self.mixing == 1 else fz - (1 - self.mixing) * g
        gram, valid, was_plain = state.gram, state.valid, None
        if at.rejected is not None:
            was_plain, (fz, g) = go_back(at.rejected, state.was_plain, (state.fz, fz), (state.g, g))
            gram, valid = forget(was_plain, gram, valid)
        slot = Slot(at, capacity)
        dg, newest = slot.push(state.dg, g, state.g)
        df, _ = slot.push(state.df, fz, state.fz)
        valid = slot.renew(valid)
        row = only(slot.products(dg, newest), valid)
        gram = slot.write(gram, row, row)
        system = slot.square(gram)
        if self.ridge:
            system = system * (1 + self.ridge * torch.eye(slot.size, dtype=gram.dtype, device=gram.device))
        floor = (torch.finfo(at.norm.dtype).eps * at.norm).square().unsqueeze(1)
        weights = solve_gram(system, slot.products(dg, g), slot.index, floor, may_ask=at.may_ask)
        following = combine(fz, weights, slot.filled(df), scale=-1.0)
        if self.mixing != 1:
            following = following - (1 - self.mixing) * combine(g, weights, slot.filled(dg), scale=-1.0)
        return AndersonState(fz, g, dg, df, gram, valid, was_plain), following
