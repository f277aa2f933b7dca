"""Solves of a fixed budget as straight-line code, for compilers: no loop over data, no question, nothing in place.

The methods and the results are those of `_loop` at a tolerance of zero, where all is known in advance but numbers. What
depends on numbers is masked: a sample that is not finite, or solved to the last digit, keeps its state, and one whose
step was rejected goes back. A step takes tensors and returns new ones, so that a compiler may make code of it once, and
use that for all steps whose windows are as long.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._internal.trees import Layout
from ..equilibrium import SolveStats, Status
from ._history import LEAST_PIVOT
from .anderson import MAX_GROWTH, Anderson
from .base import AbstractSolver
from .broyden import LARGE, Broyden
from .picard import Picard

Region = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Marks a function of which a compiler makes code once."""


class _Kept(NamedTuple):
    """What is kept of each sample's best evaluation."""

    z: Tensor
    merit: Tensor
    """Minus infinity from the first evaluation on that was not finite: nothing is better than that."""
    residual: Tensor


def has_straight_form(solver: AbstractSolver) -> bool:
    """Return whether the method of a solver can be written as straight-line code."""
    # The inverse that Broyden keeps cannot well forget its oldest pair.
    forgets = isinstance(solver, Broyden) and solver.memory is not None and solver.memory < solver.max_evals - 1
    return type(solver) in _RULES and not forgets


def is_supported(solver: AbstractSolver) -> bool:
    """Return whether a solve is straight-line code: one of a fixed budget, by a method that is known here."""
    return solver.tol == 0 and has_straight_form(solver)


def solve_straight(
    f: Callable[..., Any],
    z0: Tensor,
    inputs: tuple[Any, ...],
    *,
    solver: AbstractSolver,
    layout: Layout,
    keep_last: bool = False,
    num_silent: int = 0,
    region: Region = lambda step: step,
) -> tuple[Tensor, SolveStats]:
    """Solve z = f(z, *inputs) from the (B, D) matrix z0 with a fixed budget.

    Args:
        f: The map, called as f(state, *inputs).
        z0: The state to start from.
        inputs: What f takes after the state, batched along dim 0.
        solver: Solver that sets budget and method; see `is_supported`.
        layout: How states lie in matrices.
        keep_last: Return the last finite iterate in the place of the best.
        num_silent: Number of evaluations at the beginning that no gradient goes through, even if gradients are on.
        region: Marks the steps, of which the compiler makes code once.

    Returns:
        The (B, D) state, and how the solve went.
    """
    rule = _RULES[type(solver)](solver, z0)
    limits = torch.finfo(z0.dtype)

    def evaluate(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = layout.unpack(z)
        fz = layout.pack_image(f(state, *inputs), z.shape[0])
        z = layout.pack(state) if layout.rounds else z
        return z, fz, fz - z

    def keep(kept: _Kept, size: Tensor, z: Tensor, fz: Tensor, g: Tensor) -> tuple[_Kept, Tensor, Tensor]:
        """Return what is kept after an evaluation, and the merits and relative residuals of that; see `Scale`."""
        image_norm, norm = _norm(fz.detach()), _norm(g.detach())
        merit = norm / image_norm.clamp(size, 10 * size)
        residual = norm / image_norm.maximum((limits.eps * size).clamp(min=limits.tiny))
        is_finite = merit.isfinite() & residual.isfinite() & image_norm.isfinite()
        is_open = (kept.merit > -math.inf) & (kept.residual > 0)
        is_better = is_open & is_finite
        if not keep_last:
            is_better = is_better & (merit <= kept.merit)
        # Not NaN: code of a step would not be used for the next one, as a NaN in it is not equal to itself.
        best = torch.where(is_finite, torch.minimum(kept.merit, merit), -math.inf)
        kept = _Kept(
            z=torch.where(is_better.unsqueeze(1), z, kept.z),
            merit=torch.where(is_open, best, kept.merit),
            residual=torch.where(is_better, residual, kept.residual),
        )
        return kept, merit, residual

    def step(z: Tensor, size: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        kept = _Kept(*state[:3])
        z, fz, g = evaluate(z)
        following, merit, residual = keep(kept, size, z, fz, g)
        rejected = None if rule.max_growth == math.inf else merit > rule.max_growth * kept.merit
        return residual, *following, *rule.step(z, fz, g, rejected, state[3:])

    def last_step(z: Tensor, size: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        following, _, residual = keep(_Kept(*state), size, *evaluate(z))
        return residual, *following

    z, fz, g = evaluate(z0)
    # The scale of each sample's problem.
    size = torch.maximum(_norm(z.detach()), _norm(fz.detach())).clamp(min=limits.tiny)
    unknown = torch.full_like(size, math.inf)
    kept, _, residual = keep(_Kept(z, unknown, unknown), size, z, fz, g)
    z = rule.start(z, fz, g)
    trace, marked = [residual], region(step)
    for number in range(1, solver.max_evals):
        if number == num_silent:
            # Not by switching gradients off before, as code of a step does not know whether they were on.
            z, kept = z.detach(), _Kept(*(tensor.detach() for tensor in kept))
            rule.detach()
        if number == solver.max_evals - 1:
            residual, *rest = last_step(z, size, *kept)
            kept = _Kept(*rest)
        else:
            residual, *rest = marked(z, size, *kept, *rule.carried)
            kept, z = _Kept(*rest[:3]), rule.take(rest[3:])
        trace.append(residual)
    return kept.z, _stats(torch.stack(trace), kept)


def _norm(matrix: Tensor) -> Tensor:
    return torch.linalg.vector_norm(matrix, dim=1)


def _stats(trace: Tensor, kept: _Kept) -> SolveStats:
    """Return how the solve went, which at a tolerance of zero follows from the (evaluations, B) residuals."""
    is_over = ~trace.isfinite() | (trace == 0)
    count = len(trace)
    first = torch.where(is_over, torch.arange(count, device=trace.device)[:, None], count).amin(dim=0)
    num_evals = (first + 1).clamp(max=count)
    status = torch.where(kept.residual == 0, int(Status.CONVERGED), int(Status.MAX_EVALS))
    status = torch.where(kept.merit == -math.inf, int(Status.NON_FINITE), status)
    last = torch.arange(count, device=trace.device)[:, None].minimum(num_evals - 1)
    trace = trace.gather(0, last).nan_to_num(nan=math.inf, posinf=math.inf)
    return SolveStats(residual=kept.residual, num_evals=num_evals, status=status, trace=trace)


class _StraightRule(ABC):
    """A method as functions of tensors; the twin of a `Rule`."""

    max_growth: float = math.inf

    def __init__(self, solver: Any, z: Tensor) -> None:
        self.solver, self.dim = solver, z.shape[1]
        self._rest: tuple[Tensor, ...] = ()
        """What is carried beside windows."""

    @property
    def size(self) -> int:
        """How long the window is that `step` takes."""
        return 0

    @property
    def carried(self) -> Sequence[Tensor]:
        """What `step` takes from the step before."""
        return ()

    @abstractmethod
    def start(self, z: Tensor, fz: Tensor, g: Tensor) -> Tensor:
        """Take in the first evaluation; return the next point, as a tensor that nothing else is."""

    @abstractmethod
    def step(
        self, z: Tensor, fz: Tensor, g: Tensor, rejected: Tensor | None, carried: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return the next point, and what `take` takes."""

    def take(self, made: Sequence[Tensor]) -> Tensor:
        """Take in what a step made; return the next point."""
        return made[0]

    def detach(self) -> None:
        """Let gradients go no further back than this."""
        self._rest = tuple(tensor.detach() for tensor in self._rest)


class _Picard(_StraightRule):
    solver: Picard

    def start(self, z: Tensor, fz: Tensor, g: Tensor) -> Tensor:
        return self.step(z, fz, g, None, ())[0]

    def step(
        self, z: Tensor, fz: Tensor, g: Tensor, rejected: Tensor | None, carried: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        return (fz if self.solver.damping == 1 else z + self.solver.damping * g,)


class _Anderson(_StraightRule):
    solver: Anderson
    max_growth = MAX_GROWTH

    def __init__(self, solver: Anderson, z: Tensor) -> None:
        super().__init__(solver, z)
        self._capacity = min(solver.memory - 1, solver.max_evals - 2, self.dim)
        # Windows from the newest to the oldest.
        self._dg: list[Tensor] = []
        self._df: list[Tensor] = []

    @property
    def size(self) -> int:
        return len(self._dg)

    @property
    def carried(self) -> Sequence[Tensor]:
        return *self._rest, *self._dg, *self._df

    def start(self, z: Tensor, fz: Tensor, g: Tensor) -> Tensor:
        no_row = torch.zeros_like(fz[:, 0], dtype=torch.bool)
        # Of the evaluation before: its image and residual, and which rows it made a plain step for.
        self._rest = (fz, g, no_row)
        return fz.clone() if self.solver.mixing == 1 else fz - (1 - self.solver.mixing) * g

    def step(
        self, z: Tensor, fz: Tensor, g: Tensor, rejected: Tensor | None, carried: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        mixing = self.solver.mixing
        if self._capacity < 1:
            return (fz if mixing == 1 else fz - (1 - mixing) * g,)
        assert rejected is not None
        fz_last, g_last, was_plain, *rest = carried
        count = self.size
        # Rejected rows go back to the evaluation before, without a history; see `LastEvaluation`.
        goes_back = rejected & ~was_plain
        fz, g = (torch.where(goes_back[:, None], old, new) for old, new in ((fz_last, fz), (g_last, g)))
        dg, df = [g - g_last], [fz - fz_last]
        is_valid = torch.ones_like(goes_back)[:, None]
        if count:
            was_valid, gram, *columns = rest
            left = min(count, self._capacity - 1)
            is_valid = torch.cat([is_valid, was_valid[:, :left] & ~goes_back[:, None]], dim=1)
            dg, df = [*dg, *columns[:left]], [*df, *columns[count : count + left]]
            row = torch.where(is_valid, _products(dg, dg[0]), 0)
            inner = torch.where(goes_back[:, None, None], 0, gram[:, :left, :left])
            gram = torch.cat([row[:, None], torch.cat([row[:, 1:, None], inner], dim=2)], dim=1)
        else:
            gram = _products(dg, dg[0])[:, None]
        system = gram
        if self.solver.ridge:
            system = gram * (1 + self.solver.ridge * torch.eye(len(dg), dtype=gram.dtype, device=gram.device))
        weights = _solve_gram(system, _products(dg, g))
        following = _combine(fz, weights, df)
        if mixing != 1:
            following = following - (1 - mixing) * _combine(g, weights, dg)
        return following, fz, g, goes_back, is_valid, gram, dg[0], df[0]

    def take(self, made: Sequence[Tensor]) -> Tensor:
        if self._capacity > 0:
            self._rest = tuple(made[1:-2])
            self._dg = [made[-2], *self._dg][: self._capacity]
            self._df = [made[-1], *self._df][: self._capacity]
        return made[0]

    def detach(self) -> None:
        super().detach()
        self._dg, self._df = ([column.detach() for column in window] for window in (self._dg, self._df))


class _Broyden(_StraightRule):
    """Broyden's method with the inverse of its table kept up to date, by one row and one column a step.

    Windows are filled up with zeros to a multiple of `_BLOCK`, so that few steps are different.
    """

    solver: Broyden

    def __init__(self, solver: Broyden, z: Tensor) -> None:
        super().__init__(solver, z)
        # Steps and changes of the image, from the newest to the oldest.
        self._pairs: tuple[list[Tensor], list[Tensor]] = ([], [])

    @property
    def _num_pairs(self) -> int:
        return len(self._pairs[0])

    @property
    def size(self) -> int:
        return _BLOCK * math.ceil(self._num_pairs / _BLOCK)

    @property
    def carried(self) -> Sequence[Tensor]:
        z, fz, g, *small = self._rest
        if self._num_pairs == 0:
            return self._rest
        wider = self.size - small[0].shape[1]
        if wider:
            inverse, right, norms = small
            small = [pad(inverse, (0, wider, 0, wider)), pad(right, (0, wider)), pad(norms, (0, wider))]
        # Each a tensor of its own.
        s, df = ([*pairs, *(torch.zeros_like(z) for _ in range(self.size - len(pairs)))] for pairs in self._pairs)
        return z, fz, g, *small, *s, *df

    def start(self, z: Tensor, fz: Tensor, g: Tensor) -> Tensor:
        self._rest = (z, fz, g)
        return fz.clone()

    def step(
        self, z: Tensor, fz: Tensor, g: Tensor, rejected: Tensor | None, carried: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        z_last, fz_last, g_last, *rest = carried
        tiny = torch.finfo(z.dtype).tiny
        newest, change = z - z_last, fz - fz_last
        corner = (newest * (g - g_last)).sum(dim=1)
        last_right, length = (newest * g).sum(dim=1), _norm(change.detach())
        if not rest:
            inverse = _reciprocal(corner, tiny)
            weights = (last_right * inverse)[:, None]
            inverse, right, norms = inverse[:, None, None], last_right[:, None], length[:, None]
            df = [change]
        else:
            old_inverse, before, old_norms, *columns = rest
            count = len(columns) // 2
            s, old_df = columns[:count], columns[count:]
            # What `BroydenRule` writes into its table: a row, a column, and the corner of both.
            row, old_right = _products(old_df, newest), _products(s, g)
            column = old_right - before
            along = (old_inverse * column[:, None]).sum(dim=2)
            across = (row[:, :, None] * old_inverse).sum(dim=1)
            schur = _reciprocal(corner - (row * along).sum(dim=1), tiny)
            solved = (old_inverse * old_right[:, None]).sum(dim=2)
            first = (last_right - (row * solved).sum(dim=1)) * schur
            weights = torch.cat([first[:, None], solved - along * first[:, None]], dim=1)
            inner = old_inverse + along[:, :, None] * (across * schur[:, None])[:, None]
            top = torch.cat([schur[:, None], -across * schur[:, None]], dim=1)
            inverse = torch.cat([top[:, None], torch.cat([-(along * schur[:, None])[:, :, None], inner], dim=2)], dim=1)
            right = torch.cat([last_right[:, None], old_right], dim=1)
            norms = torch.cat([length[:, None], old_norms], dim=1)
            df = [change, *old_df]
        sizes = weights.abs()
        is_lost = ((sizes * norms).amax(dim=1) > LARGE * _norm(g.detach())) & (sizes.amax(dim=1) > LARGE)
        is_lost = is_lost | ~weights.isfinite().all(dim=1)
        weights = torch.where(is_lost[:, None], 0, weights)
        inverse = torch.where(is_lost[:, None, None], 0, inverse)
        # A step returns nothing that it was given.
        return _combine(fz, weights, df), z.clone(), fz, g, inverse, right, norms, newest, change

    def take(self, made: Sequence[Tensor]) -> Tensor:
        following, z, fz, g, inverse, right, norms, newest, change = made
        self._pairs = [newest, *self._pairs[0]], [change, *self._pairs[1]]
        size = self.size
        self._rest = (z, fz, g, inverse[:, :size, :size], right[:, :size], norms[:, :size])
        return following

    def detach(self) -> None:
        super().detach()
        s, df = ([column.detach() for column in window] for window in self._pairs)
        self._pairs = s, df


_BLOCK = 5
"""Lengths of Broyden's windows are multiples of this."""

_RULES: dict[type[AbstractSolver], type[_StraightRule]] = {Picard: _Picard, Anderson: _Anderson, Broyden: _Broyden}


def _reciprocal(values: Tensor, tiny: float) -> Tensor:
    """Return 1 / values, and 0 where a value is zero or not finite."""
    is_regular = (values.abs() > tiny) & values.isfinite()
    return torch.where(is_regular, torch.where(is_regular, values, 1).reciprocal(), 0)


def _products(columns: Sequence[Tensor], vector: Tensor) -> Tensor:
    """Return the (B, columns) inner products of (B, D) columns with a (B, D) vector."""
    return torch.stack([(column * vector).sum(dim=1) for column in columns], dim=1)


def _combine(base: Tensor, weights: Tensor, columns: Sequence[Tensor]) -> Tensor:
    """Return base - sum_j weights_j columns_j."""
    for weight, column in zip(weights.unbind(1), columns, strict=True):
        base = base - weight[:, None] * column
    return base


def _solve_gram(gram: Tensor, right: Tensor) -> Tensor:
    """Solve (B, m, m) systems of inner products, newest column first, as `solve_gram` does: by Gauss and Jordan."""
    size = gram.shape[1]
    least = LEAST_PIVOT * torch.finfo(gram.dtype).eps
    squares = gram.diagonal(dim1=1, dim2=2)
    is_there = squares > 0
    scales = torch.where(is_there, torch.where(is_there, squares, 1).rsqrt(), 0)
    system = torch.cat([gram * scales[:, None] * scales[:, :, None], (right * scales)[:, :, None]], dim=2)
    eye = torch.eye(size, dtype=gram.dtype, device=gram.device)
    kept = []
    for k in range(size):
        pivot = system[:, k, k]
        is_kept = pivot > least
        kept.append(is_kept)
        inverse = torch.where(is_kept, torch.where(is_kept, pivot, 1).reciprocal(), 0)
        # Row k is divided by its pivot; of all others, what they have in column k is taken off.
        factors = (system[:, :, k] - eye[k]) * inverse[:, None]
        system = system - factors[:, :, None] * system[:, k, None]
    weights = torch.where(torch.stack(kept, dim=1), system[:, :, size], 0) * scales
    return torch.where(weights.isfinite().all(dim=1, keepdim=True), weights, 0)
