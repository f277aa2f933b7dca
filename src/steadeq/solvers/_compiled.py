"""Compiled code of a map: of single evaluations, and of whole solves with a fixed budget."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .._internal.autocast import under_autocast
from .._internal.trees import Layout
from ..equilibrium import SolveStats
from ._straight import is_supported, solve_straight
from .base import AbstractSolver


class CompiledMap:
    """What `torch.compile` makes of a map, when it is needed.

    Args:
        f: The map, called as f(state, *inputs).
        mode: Mode of `torch.compile`, such as "reduce-overhead"; None for its default.
    """

    def __init__(self, f: Callable[..., Any], mode: str | None = None) -> None:
        self._f, self._mode = f, mode
        self._evaluate: Callable[..., Any] | None = None
        self._solves: dict[Any, Callable[..., tuple[Tensor, ...]]] = {}

    @property
    def evaluate(self) -> Callable[..., Any]:
        """The map, compiled."""
        if self._evaluate is None:
            # Solves keep earlier images, over which a captured CUDA graph would write.
            self._evaluate = torch.compile(self._f)
        return self._evaluate

    def can_solve(self, solver: AbstractSolver) -> bool:
        """Return whether a whole solve can be one graph: one of a fixed budget, by a method that is known here."""
        return is_supported(solver)

    def solve(
        self, z0: Tensor, inputs: tuple[Any, ...], *, solver: AbstractSolver, layout: Layout, **options: Any
    ) -> tuple[Tensor, SolveStats]:
        """Solve z = f(z, *inputs) from the (B, D) matrix z0 by one graph.

        Args:
            z0: The state to start from.
            inputs: What f takes after the state, batched along dim 0.
            solver: Solver that sets budget and method.
            layout: How states lie in matrices.
            **options: `keep_last` and `num_silent` of `solve_straight`.

        Returns:
            The (B, D) state, and how the solve went.
        """
        key = solver, layout.signature, tuple(options.items())
        if key not in self._solves:
            self._solves[key] = self._compile(solver, layout, options)
        z, *stats = self._solves[key](z0, *inputs)
        if self._mode is not None:
            # The next run of a captured CUDA graph writes over what this one returned.
            z, *stats = (tensor.clone() for tensor in (z, *stats))
        residual, num_evals, status, trace = stats
        return z, SolveStats(residual=residual, num_evals=num_evals, status=status, trace=trace)

    def _compile(self, solver: AbstractSolver, layout: Layout, options: dict[str, Any]) -> Callable[..., Any]:
        f, region = under_autocast(self._f, layout), _region()

        def run(z0: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
            z, stats = solve_straight(f, z0, inputs, solver=solver, layout=layout, region=region, **options)
            return z, stats.residual, stats.num_evals, stats.status, stats.trace

        # With code of its own: the compiler counts by that how often something was compiled anew.
        own = types.FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)
        return torch.compile(own, fullgraph=True, mode=self._mode)


@cache
def _region() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what lets the compiler make code of a step once, and use it for all steps that are alike."""
    # Since PyTorch 2.8; before, code is made of each step.
    mark = getattr(torch.compiler, "nested_compile_region", lambda function: function)

    def call(step: Callable[..., Any], *tensors: Tensor) -> Any:
        return step(*tensors)

    marked = mark(call)
    return lambda step: lambda *tensors: marked(step, *tensors)
