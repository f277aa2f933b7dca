"""States on the way to the equilibrium, for losses on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..equilibrium import SolveStats
from .masks import Rows
from .trees import Layout
from .validation import check_count


class Snapshots:
    """Keeps the chosen evaluations of one solve.

    Args:
        states_at: Numbers of the evaluations; the first is 1.
        layout: How states lie in matrices.
    """

    def __init__(self, states_at: Sequence[int], layout: Layout) -> None:
        if isinstance(states_at, int):
            raise TypeError(f"states_at is {states_at}; it must be a sequence of integers, such as ({states_at},).")
        self._numbers, self._layout = tuple(states_at), layout
        for number in self._numbers:
            check_count("states_at", number)
        self._num_evals = 0
        # The points and images of evaluations, and which samples they are of.
        self._taken: dict[int, tuple[Tensor, Tensor, Tensor | None]] = {}

    def watch(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return a map whose evaluations are counted, and the chosen ones kept; inputs may end with `Rows`."""
        if not self._numbers:
            return f

        def evaluate(z: Any, *inputs: Any, **options: Any) -> Any:
            image = f(z, *inputs, **options)
            self._num_evals += 1
            if self._num_evals in self._numbers:
                # Solvers may write over their points.
                point = self._layout.pack(z).detach().clone()
                rows = inputs[-1].numbers if inputs and isinstance(inputs[-1], Rows) else None
                self._taken[self._num_evals] = point, self._layout.pack_image(image, len(point)), rows
            return image

        return evaluate

    def states(self, f: Callable[..., Any], inputs: tuple[Any, ...], z: Tensor, stats: SolveStats) -> tuple[Any, ...]:
        """Return the chosen states, at the end of the solve.

        Args:
            f: The map.
            inputs: What it takes after the state.
            z: (B, D) state that the solve ended with, as part of its graph.
            stats: How the solve went.
        """
        numbers, taken = self._numbers, self._taken
        # Graphs hold on to the maps that are watched.
        self._numbers, self._taken = (), {}
        states = []
        for number in numbers:
            is_done = (stats.num_evals <= number)[:, None]
            if number not in taken or bool(is_done.all()):
                states.append(self._layout.unpack(z))
                continue
            point, image, rows = taken[number]
            if torch.is_grad_enabled() and not image.requires_grad:
                whole = self._layout.unpack(_spread(point, rows, z.detach()))
                image, rows = self._layout.pack_image(f(whole, *inputs), len(z)), None
            states.append(self._layout.unpack(torch.where(is_done, z, _spread(image, rows, z))))
        return tuple(states)


def _spread(matrix: Tensor, rows: Tensor | None, around: Tensor) -> Tensor:
    """Return a matrix of all samples: the given rows, and around them those of another matrix."""
    return matrix if rows is None else around.index_copy(0, rows, matrix)
