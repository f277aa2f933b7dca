"""Plain iteration of a map: its states, of which only measures and the latest are kept."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .._internal.norms import row_norm
from .._internal.trees import Layout
from ..solvers._map import RunningMap
from .verdict import MAX_PERIOD, NUM_KEPT


class CountedMap:
    """A map that counts its evaluations."""

    def __init__(self, f: Callable[..., Any], *, passes_step: bool = False) -> None:
        self._f, self.passes_step, self.num_evals = f, passes_step, 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.num_evals += 1
        return self._f(*arguments, **options)


class Trajectory:
    """The states z0, f(z0), ..., of which only measures and the latest are kept."""

    def __init__(
        self,
        block: CountedMap,
        layout: Layout,
        inputs: tuple[Any, ...],
        start: Tensor,
        max_evals: int,
        metric: Callable[[Any], Any] | None = None,
        marked: int = 1,
    ) -> None:
        latest = deque([start], maxlen=NUM_KEPT)
        steps, sizes, scores = [], [], [] if metric is None else [_score(metric, layout, start)]
        self.first = self.marked = self.end = start
        """The states after one evaluation, after the number that is marked, and after all."""
        for fz, step, size in _steps(block, layout, inputs, start, max_evals):
            self.first = self.first if steps else fz
            self.marked = fz if len(steps) < marked else self.marked
            self.end = fz
            latest.append(fz)
            steps.append(step)
            sizes.append(size)
            if metric is not None:
                scores.append(_score(metric, layout, fz))
        # What stopped moving stays as it is.
        missing = max_evals - len(steps)
        step, size = (torch.stack(rows + rows[-1:] * missing).cpu().double() for rows in (steps, sizes))
        self.measures = step.T, size.T, _returns(latest)
        """Steps, sizes and returns as `judge` takes them, with the samples along dim 0."""
        largest = size.cummax(dim=0).values
        self.growth = (largest[-1] / largest[min(marked, len(size)) - 1]).nan_to_num(math.inf, math.inf)
        """(B,) size of the largest state, in sizes of the largest up to the marked evaluation."""
        self.residual = torch.where(step == 0, 0, step / size).nan_to_num(math.inf, math.inf)
        """(evaluations, B) relative residuals."""
        self.metric = torch.stack(scores + scores[-1:] * missing).cpu() if scores else None
        """(evaluations + 1, B or 1) scores."""


def _returns(latest: deque[Tensor]) -> Tensor:
    """Return the (B, periods, shifts) distances between latest states that are 1, 2, ... evaluations apart."""
    num_periods = min(MAX_PERIOD, (len(latest) - 1) // 2)
    num_shifts = len(latest) - num_periods
    rows = [
        row_norm(latest[-1 - shift] - latest[-1 - shift - period])
        for period in range(1, num_periods + 1)
        for shift in range(num_shifts)
    ]
    return torch.stack(rows, dim=1).cpu().double().unflatten(1, (num_periods, num_shifts))


def _steps(
    block: CountedMap,
    layout: Layout,
    inputs: tuple[Any, ...],
    z: Tensor,
    max_evals: int,
    error: Tensor | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Iterate, and yield each image with the (B,) norms of its step and of itself, until nothing moves any more."""
    evaluate = RunningMap(block, layout, inputs, compact=False, passes_step=block.passes_step)
    for index in range(max_evals):
        seen, fz = evaluate(z)
        fz = fz if error is None else fz + error
        step = row_norm(fz - seen)
        yield fz, step, row_norm(fz)
        # Now and then, as asking makes the device wait.
        if index % 16 == 15 and bool(((step == 0) | ~step.isfinite()).all()):
            return
        z = fz


def iterate(
    block: CountedMap,
    layout: Layout,
    inputs: tuple[Any, ...],
    z: Tensor,
    max_evals: int,
    *,
    error: Tensor | None = None,
) -> Tensor:
    """Return the state in which iterating ends, with an error that is added to each image if one is given."""
    end = z
    for image, _, _ in _steps(block, layout, inputs, z, max_evals, error):
        end = image
    return end


def _score(metric: Callable[[Any], Any], layout: Layout, z: Tensor) -> Tensor:
    score = torch.as_tensor(metric(layout.unpack(z)), device=z.device).detach()
    if score.shape not in ((), (layout.batch_size,)):
        raise ValueError(
            f"metric returned a tensor of shape {tuple(score.shape)}; it must be a score of each sample, of shape "
            f"({layout.batch_size},), or a scalar."
        )
    return score.double().reshape(-1)


def distance(a: Tensor, b: Tensor, size: Tensor) -> Tensor:
    """Return the (B,) distances of rows in units of a size; infinite where they are not finite."""
    gap = row_norm(a - b)
    return torch.where(gap == 0, 0, gap / size).nan_to_num(math.inf, math.inf).cpu()
