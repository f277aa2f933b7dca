"""The one loop behind every solver.

Counting, per-sample residuals, the best iterate, freezing, non-finite values, stagnation, status, trace and
compaction live here and nowhere else. The common case, in which every sample improves and none finishes, costs a few
small kernels on (B,) vectors beyond the two norms; all else is paid for only when something happens.

Two measures are taken of each evaluation, with g = f(z) - z. A sample stops by its relative residual ‖g‖ / ‖f(z)‖.
Which iterate is the best, and whether a step made things worse, is judged by its merit: ‖g‖ over ‖f(z)‖ too, as long as
the latter is of the size of the first evaluation, and over a constant beyond that. The plain quotient stands still
where the equilibrium is zero, and looks small where the iterates explode.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._internal.trees import Layout, leaves, select_rows
from .._internal.unsupported import refuse_vmap
from ..equilibrium import SolveStats, Status
from .base import WINDOW, AbstractLinearSolver, AbstractSolver, Rule


class Evaluator:
    """Evaluates f on the rows that are still running.

    Args:
        f: The map, called as f(state, *inputs).
        layout: How states lie in matrices.
        inputs: What f takes after the state, batched along dim 0; rows leave it with those of the state.
        compact: Whether f is called on the running rows only. If not, f keeps seeing the whole batch, with finished
            rows held at their last point.
    """

    def __init__(self, f: Callable[..., Any], layout: Layout, inputs: tuple[Any, ...], compact: bool) -> None:
        self._f, self._layout, self._inputs, self._compact = f, layout, inputs, compact
        self._is_checked = self._has_compacted = False
        self._rows: Tensor | None = None
        self._whole: Tensor | None = None
        # Images that are still in use, by where they lie in memory, and how often that had been written to.
        self._images: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._harmless: set[int] = set()

    def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the points as f saw them (rounded to the state's dtypes) and their images, as matrices."""
        if self._rows is None or self._whole is None:
            return self._evaluate(z)
        self._whole = self._whole.index_copy(0, self._rows, z)
        seen, images = self._evaluate(self._whole)
        return seen.index_select(0, self._rows), images.index_select(0, self._rows)

    def _evaluate(self, z: Tensor) -> tuple[Tensor, Tensor]:
        layout = self._layout
        state = layout.unpack(z)
        image = self._f(state, *self._inputs) if self._is_checked else self._call_watched(state)
        fz = layout.pack_image(image, z.shape[0])
        self._check_memory(fz, z)
        return (layout.pack(state) if layout.rounds else z), fz

    def _check_memory(self, fz: Tensor, z: Tensor) -> None:
        """Refuse an image that lies where an earlier one lies that is still in use, unless that one is as it was.

        A map may well return the same tensor twice, as a constant one does. What the solver has made a copy of may be
        written over.
        """
        if torch._C._functorch.is_functorch_wrapped_tensor(fz):  # pyright: ignore[reportAttributeAccessIssue]
            return
        place = fz.untyped_storage().data_ptr()
        version = -1 if fz.is_inference() else fz._version
        known = self._images.get(place)
        earlier = None if known is None else known[0]()
        if known is not None and earlier is not None and place and place not in self._harmless:
            if known[1] != version or self._writes_over(earlier, z):
                raise ValueError(_REUSED)
            self._harmless.add(place)
        self._images[place] = weakref.ref(fz), version

    @torch.no_grad()
    def _writes_over(self, earlier: Tensor, z: Tensor) -> bool:
        """Return whether an evaluation somewhere else changes what an earlier one returned.

        Not all writing is counted by versions: that of numpy or of a captured CUDA graph is not.
        """
        before = earlier.clone()
        self._f(self._layout.unpack(z + 1), *self._inputs)
        return not torch.equal(before.nan_to_num(), earlier.nan_to_num())

    def _call_watched(self, state: Any) -> Any:
        """Evaluate f for the first time, or for the first time after rows have left, and explain what goes wrong."""
        self._is_checked = True
        if not self._has_compacted:
            before = _versions(state)
            image = self._f(state, *self._inputs)
            refuse_vmap(leaves(image))
            if _versions(state) != before:
                raise ValueError("f changed the state in place; it must leave its argument alone and return a new one.")
            return image
        try:
            return self._f(state, *self._inputs)
        except RuntimeError as error:
            raise RuntimeError(
                f"f failed once finished samples had left the batch: {error}. If f closes over a tensor of the whole "
                "batch, pass it as an input, or set compact=False."
            ) from error

    def select(self, rows: Tensor, z: Tensor) -> None:
        """Go on with the given rows of the current ones, whose points (before the selection) are z."""
        if self._compact:
            self._inputs = select_rows(self._inputs, rows)
            self._has_compacted, self._is_checked = True, False
        elif self._rows is None or self._whole is None:
            self._whole, self._rows = z, rows
        else:
            self._whole = self._whole.index_copy(0, self._rows, z)
            self._rows = self._rows.index_select(0, rows)


class Progress:
    """Per-sample bookkeeping of one solve.

    Rows are the samples still carried along. A finished row rides with the others until `wants_selection` asks to
    drop it; its result is kept from the moment it finished.

    Args:
        payload: What is kept of each row before its first evaluation. Of later ones the best is kept: its point, or
            whatever leads back to it, such as the number of products with which a Krylov method had its least residual.
        residual: (B,) relative residual before the first evaluation, or None if that is not known yet.
        solver: Solver whose budget and tolerance apply.
        eps: Precision of the evaluations.
        num_quiet_windows: See `Rule`.
        max_stalled_windows: See `Rule`.
        keep_last: Keep the last finite evaluation in the place of the best.
    """

    def __init__(
        self,
        payload: Tensor,
        residual: Tensor | None,
        solver: AbstractLinearSolver,
        eps: float,
        *,
        num_quiet_windows: int = 1,
        max_stalled_windows: float = 3,
        keep_last: bool = False,
    ) -> None:
        is_known = residual is not None
        if residual is None:
            residual = payload.new_full((payload.shape[0],), math.inf)
        self.num_evals = 0
        self.goes_on = True
        """Whether there is budget left and a row to spend it on."""
        self.rejected: Tensor | None = None
        """Current rows whose merit grew beyond what the rule allows, if any."""
        self.finished: Tensor | None = None
        """Current rows that are done and only ride along, if any."""
        self._batch_size = residual.shape[0]
        # What is beyond the largest number of the dtype accepts all that is finite, as that number does.
        self._tol, self._max_evals = min(solver.tol, torch.finfo(residual.dtype).max), solver.max_evals
        self._floor, self._num_quiet_windows, self._max_stalled = 100 * eps, num_quiet_windows, max_stalled_windows
        self._keep_last = keep_last
        self._rows: Tensor | None = None
        self._trace: list[tuple[Tensor, Tensor | None]] = []
        self._results: list[_Result] = []
        self._num_riding = self._num_leaving = 0
        self._most = residual.new_full((), torch.finfo(residual.dtype).max)
        self._best, self._kept = payload, residual.expand(2, -1)
        self._snapshot, self._window = self._kept, list[Tensor]()
        # Between which measures nothing happens: every row improves, has not converged, and is finite.
        self._lower = torch.full_like(self._kept, -math.inf)
        self._upper = self._most.expand_as(self._kept).clone()
        self._lower[1] = torch.full_like(residual, self._tol).nextafter(self._most)
        if is_known:
            self._upper[0] = residual
        self._bound = self._upper[0]
        self._num_stalled = torch.zeros_like(residual, dtype=torch.int64)
        # How often in a row the tolerance was met, and how often it must be.
        self._num_met, self._num_to_meet = self._num_stalled, getattr(solver, "patience", 1)
        if is_known:
            self._finish(residual <= self._tol, Status.CONVERGED)

    def record(self, z: Tensor, measures: Tensor, fz: Tensor | None = None, max_growth: float = math.inf) -> None:
        """Take in one evaluation of the current rows.

        Args:
            z: The points.
            measures: (2, rows) their merits and relative residuals; see `Scale`.
            fz: Their images, if a residual may be small because the norm of an image overflows.
            max_growth: See `Rule`.
        """
        self.num_evals += 1
        self.rejected = None
        self._trace.append((measures[1], self._rows))
        if self._num_to_meet > 1:
            self._num_met = torch.where(measures[1] <= self._tol, self._num_met + 1, 0)
        # Measures that clamping leaves alone lie within their bounds; a NaN never does.
        clamped = measures.clamp(self._lower, self._upper)
        if torch.equal(clamped, measures):
            self._best, self._kept = z, measures
        elif torch.equal(clamped[1], measures[1]):
            self._keep_better(z, measures, self._is_better(measures), max_growth)
        else:
            self._settle(z, measures, fz, max_growth)
        self._bound.copy_(self._kept[0])
        if self._tol > 0:
            self._window.append(measures[1])
            if len(self._window) == WINDOW:
                self._check_stagnation()
        self.goes_on = self.num_evals < self._max_evals and self._num_riding < measures.shape[1]

    def _settle(self, z: Tensor, measures: Tensor, fz: Tensor | None, max_growth: float) -> None:
        """Handle an evaluation at which some row finished or failed."""
        is_finite = measures.isfinite().all(dim=0)
        if fz is not None:
            is_finite = is_finite & torch.linalg.vector_norm(fz, dim=1).isfinite()
        is_converged = (measures[1] <= self._tol) & is_finite
        if self._num_to_meet > 1:
            is_converged = is_converged & (self._num_met >= self._num_to_meet)
        # What meets the tolerance is returned, whatever came before.
        better = is_converged | (self._is_better(measures) & is_finite)
        self._keep_better(z, measures, better, max_growth)
        self._finish(is_converged, Status.CONVERGED)
        self._finish(~is_finite, Status.NON_FINITE)

    def _is_better(self, measures: Tensor) -> Tensor:
        return measures[0].isfinite() if self._keep_last else measures[0] < self._kept[0]

    def _keep_better(self, z: Tensor, measures: Tensor, better: Tensor, max_growth: float) -> None:
        self._best = torch.where(better.unsqueeze(1), z, self._best)
        if max_growth != math.inf:
            rejected = measures[0] > max_growth * self._kept[0]
            # Handed on only if it says something, as a rule has to do much about it.
            self.rejected = rejected if rejected.any().item() else None
        self._kept = torch.where(better, measures, self._kept)

    def _check_stagnation(self) -> None:
        # Progress by either measure counts: on the way through a hump the residual may fall while ‖g‖ grows.
        latest = torch.stack([self._kept[0], torch.stack(self._window).amin(dim=0).minimum(self._snapshot[1])])
        is_stalled = (latest > 0.999 * self._snapshot).all(dim=0)
        self._num_stalled = torch.where(is_stalled, self._num_stalled + 1, 0)
        self._snapshot = latest
        self._window = []
        limit = torch.where(self._kept[1] < self._floor, 1, self._max_stalled)
        self._finish(self._num_stalled >= self._num_quiet_windows * limit, Status.STAGNATED)

    def _finish(self, mask: Tensor, status: Status) -> None:
        if self.finished is not None:
            mask = mask & ~self.finished
        index = mask.nonzero()[:, 0]
        if index.numel() == 0:
            return
        self._results.append(
            _Result(
                rows=index if self._rows is None else self._rows.index_select(0, index),
                payload=self._best.index_select(0, index),
                residual=self._kept[1].index_select(0, index),
                num_evals=self.num_evals,
                status=status,
            )
        )
        self.finished = mask if self.finished is None else self.finished | mask
        self._num_riding += index.numel()
        # A failed row costs its neighbors nothing, and does not change when they are compacted.
        self._num_leaving += 0 if status is Status.NON_FINITE else index.numel()
        # Nothing more happens to these rows.
        self._lower = torch.where(mask, -math.inf, self._lower)
        self._upper = torch.where(mask, math.inf, self._upper)
        self._kept = torch.where(mask, math.inf, self._kept)
        self._bound = self._upper[0]
        self.goes_on = self._num_riding < mask.shape[0]

    @property
    def wants_selection(self) -> bool:
        """Whether enough rows have finished for dropping them to pay off."""
        return self._num_leaving > 0 and 4 * self._num_leaving >= self._kept.shape[1]

    def select(self) -> Tensor:
        """Drop finished rows and return the index of those that stay."""
        assert self.finished is not None
        rows = (~self.finished).nonzero()[:, 0]
        for name in ("_best", "_num_stalled", "_num_met"):
            setattr(self, name, getattr(self, name).index_select(0, rows))
        for name in ("_lower", "_upper", "_kept", "_snapshot"):
            setattr(self, name, getattr(self, name).index_select(1, rows))
        self._window = [residual.index_select(0, rows) for residual in self._window]
        self._bound = self._upper[0]
        if self.rejected is not None:
            self.rejected = self.rejected.index_select(0, rows)
        self._rows = rows if self._rows is None else self._rows.index_select(0, rows)
        self.finished, self._num_riding, self._num_leaving = None, 0, 0
        return rows

    def payloads(self) -> Tensor:
        """Return what is kept of every sample's best evaluation so far, finished or not."""
        if not self._results:
            return self._best
        if self._rows is None:
            payloads = self._best
        else:
            payloads = self._best.new_zeros(self._batch_size, self._best.shape[1])
            payloads = payloads.index_copy(0, self._rows, self._best)
        for result in self._results:
            payloads = payloads.index_copy(0, result.rows, result.payload)
        return payloads

    def residuals(self) -> Tensor:
        """Return the relative residual of every sample's best evaluation so far, as long as no rows were dropped."""
        residuals = self._kept[1].clone()
        for result in self._results:
            residuals[result.rows] = result.residual
        return residuals

    def result(self) -> SolveStats:
        """Return how the solve went."""
        if not self._results:
            num_evals = torch.full_like(self._num_stalled, self.num_evals)
            return SolveStats(
                residual=self._kept[1],
                num_evals=num_evals,
                status=torch.full_like(num_evals, int(Status.MAX_EVALS)),
                trace=torch.stack([residual for residual, _ in self._trace]),
            )
        rest = torch.ones_like(self._num_stalled, dtype=torch.bool) if self.finished is None else ~self.finished
        residual = self._kept.new_empty(self._batch_size)
        num_evals = torch.empty_like(residual, dtype=torch.int64)
        status = torch.empty_like(num_evals)
        self._finish(rest, Status.MAX_EVALS)
        for result in self._results:
            residual[result.rows] = result.residual
            num_evals[result.rows] = result.num_evals
            status[result.rows] = int(result.status)
        return SolveStats(residual=residual, num_evals=num_evals, status=status, trace=self._assemble_trace(num_evals))

    def _assemble_trace(self, num_evals: Tensor) -> Tensor:
        trace = self._kept.new_zeros(len(self._trace), self._batch_size)
        for line, (residual, rows) in zip(trace, self._trace, strict=True):
            line[slice(None) if rows is None else rows] = residual
        last = torch.arange(len(self._trace), device=trace.device)[:, None].minimum((num_evals - 1).clamp(min=0))
        return trace.gather(0, last).nan_to_num(nan=math.inf, posinf=math.inf)


def _versions(state: Any) -> list[int]:
    """Return how often each leaf was written to; inference tensors do not tell."""
    return [leaf._version for leaf in leaves(state) if not leaf.is_inference()]


_REUSED = (
    "f wrote its result over an earlier one: it returns a buffer that it keeps, by out=..., a preallocated tensor, a "
    'captured CUDA graph or torch.compile(mode="reduce-overhead"). Return a new tensor each time, such as a clone.'
)


class _Result(NamedTuple):
    """Rows that finished together."""

    rows: Tensor
    payload: Tensor
    residual: Tensor
    num_evals: int
    status: Status


class Scale:
    """The size of each sample's problem, by which its evaluations are measured; taken from the first of them.

    Args:
        z: (rows, D) start of the solve.
        fz: The image of the start.
    """

    def __init__(self, z: Tensor, fz: Tensor) -> None:
        size = torch.maximum(torch.linalg.vector_norm(z, dim=1), torch.linalg.vector_norm(fz, dim=1)).detach()
        limits = torch.finfo(size.dtype)
        # An image that rounding at the size of the start cannot tell from zero is measured as if it were that large.
        self._least = torch.stack([size, limits.eps * size]).clamp(min=limits.tiny)
        self._most = torch.stack([10 * size.clamp(min=limits.tiny), torch.full_like(size, math.inf)])

    def measure(self, fz: Tensor, g: Tensor) -> Tensor:
        """Return the (2, rows) merits and relative residuals of an evaluation, without a graph."""
        if torch.is_grad_enabled():
            fz, g = fz.detach(), g.detach()
        norms = torch.linalg.vector_norm(fz, dim=1).clamp(self._least, self._most)
        return torch.linalg.vector_norm(g, dim=1) / norms

    def select(self, rows: Tensor) -> None:
        """Keep the given rows."""
        self._least, self._most = self._least.index_select(1, rows), self._most.index_select(1, rows)


def solve(
    f: Callable[..., Any],
    z0: Tensor,
    inputs: tuple[Any, ...],
    *,
    solver: AbstractSolver,
    layout: Layout,
    compact: bool,
    keep_rows: bool = False,
    num_silent: int = 0,
    keep_last: bool = False,
) -> tuple[Tensor, SolveStats, Rule]:
    """Solve z = f(z, *inputs) from the (B, D) matrix z0.

    Args:
        f: The map, called as f(state, *inputs).
        z0: The state to start from.
        inputs: What f takes after the state, batched along dim 0.
        solver: Solver that sets budget, tolerance and update rule.
        layout: How states lie in matrices.
        compact: Whether finished samples leave the batch that f sees.
        keep_rows: Hold finished rows still instead of dropping them, so that the rule ends with a history of every
            sample.
        num_silent: Number of evaluations at the beginning that are not recorded, even if gradients are on.
        keep_last: Return the last finite iterate in the place of the best.

    Returns:
        The (B, D) state, how the solve went, and the rule as the solve left it.
    """
    evaluate = Evaluator(f, layout, inputs, compact)
    rule = solver.start(z0, layout.eps)
    progress = Progress(
        z0,
        None,
        solver,
        layout.eps,
        num_quiet_windows=rule.num_quiet_windows,
        max_stalled_windows=rule.max_stalled_windows,
        keep_last=keep_last,
    )
    scale: Scale | None = None
    z = z0 if num_silent == 0 else z0.detach()
    is_recorded = torch.is_grad_enabled()
    with torch.set_grad_enabled(is_recorded and num_silent == 0):
        while True:
            if progress.num_evals == num_silent:
                torch.set_grad_enabled(is_recorded)
            z, fz = evaluate(z)
            g = fz - z
            if scale is None:
                scale = Scale(z, fz)
            progress.record(z, scale.measure(fz, g), fz, rule.max_growth)
            if not progress.goes_on:
                if keep_rows:
                    # Whether a row's last evaluation enters its history must not depend on how long its neighbors run.
                    rule.advance(z, fz, g, progress.rejected)
                break
            if progress.wants_selection and not keep_rows:
                rows = progress.select()
                evaluate.select(rows, z)
                rule.select(rows)
                scale.select(rows)
                z, fz, g = (matrix.index_select(0, rows) for matrix in (z, fz, g))
            following = rule.advance(z, fz, g, progress.rejected)
            if keep_rows and progress.finished is not None:
                following = torch.where(progress.finished[:, None], z, following)
            z = following
    found = progress.payloads()
    # Where the start was not improved on, the caller gets a tensor of its own.
    return (found.clone() if found is z0 else found), progress.result(), rule


def solve_affine(
    operator: Callable[[Tensor], Tensor], b: Tensor, *, solver: AbstractSolver
) -> tuple[Tensor, SolveStats]:
    """Solve u = operator(u) + b from b, at the scale of b, so that residuals are relative to it.

    Args:
        operator: A linear map of (B, D) matrices that acts on each row by itself.
        b: (B, D) right-hand sides.
        solver: Solver that sets budget, tolerance and update rule.
    """
    scale = torch.linalg.vector_norm(b, dim=1, keepdim=True)
    unit = torch.where(scale == 0, 0, b / scale)
    u, stats, _ = solve(lambda u: operator(u) + unit, unit, (), solver=solver, layout=Layout(unit), compact=False)
    return u * scale, stats
