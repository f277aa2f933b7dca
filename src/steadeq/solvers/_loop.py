"""The one loop behind every solver.

Counting, per-sample residuals, the best iterate, freezing, non-finite values, stagnation, status, trace and
compaction live here and in `_progress`, and nowhere else.

Two measures are taken of each evaluation, with g = f(z) - z. A sample stops by its relative residual ‖g‖ / ‖f(z)‖.
Which iterate is the best, and whether a step made things worse, is judged by its merit: ‖g‖ over ‖f(z)‖ too, as long as
the latter is of the size of the first evaluation, and over a constant beyond that. The plain quotient stands still
where the equilibrium is zero, and looks small where the iterates explode.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._internal.allocator import keep_freed_memory
from .._internal.trees import Layout, leaves, select_rows
from .._internal.unsupported import refuse_vmap
from ..equilibrium import SolveStats
from ._progress import Progress, start_progress
from .base import AbstractSolver, Rule


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


def _versions(state: Any) -> list[int]:
    """Return how often each leaf was written to; inference tensors do not tell."""
    return [leaf._version for leaf in leaves(state) if not leaf.is_inference()]


_REUSED = (
    "f wrote its result over an earlier one: it returns a buffer that it keeps, by out=..., a preallocated tensor, a "
    'captured CUDA graph or torch.compile(mode="reduce-overhead"). Return a new tensor each time, such as a clone.'
)


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
        # Made on the device: copying numbers there would make the host wait.
        self._least = torch.stack([size, limits.eps * size]).clamp(min=limits.tiny)
        self._most = torch.stack([10 * size.clamp(min=limits.tiny), torch.full_like(size, math.inf)])
        self.image_norm = size
        """(rows,) norms of the images of the last evaluation."""

    def measure(self, fz: Tensor, g: Tensor) -> Tensor:
        """Return the (2, rows) merits and relative residuals of an evaluation, without a graph."""
        if torch.is_grad_enabled():
            fz, g = fz.detach(), g.detach()
        self.image_norm = torch.linalg.vector_norm(fz, dim=1)
        return torch.linalg.vector_norm(g, dim=1) / self.image_norm.clamp(self._least, self._most)

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
    keep_freed_memory()
    evaluate = Evaluator(f, layout, inputs, compact)
    rule = solver.start(z0, layout.eps)
    progress = start_progress(
        z0,
        None,
        solver,
        layout.eps,
        num_quiet_windows=rule.num_quiet_windows,
        max_stalled_windows=rule.max_stalled_windows,
        keep_last=keep_last,
    )
    rule.may_look = isinstance(progress, Progress)
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
            progress.record(z, scale.measure(fz, g), scale.image_norm, rule.max_growth)
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
