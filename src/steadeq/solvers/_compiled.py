"""Compiled code of a map: of single evaluations, and of a few rounds of a solve.

A round is what `_solve` does between two evaluations. Code is made of four rounds at a time and of one, which serve
every budget and tolerance: the host looks in between whether samples are left. It takes any method whose step asks the
host nothing.
"""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .._internal.autocast import under_autocast
from .._internal.trees import Layout, leaves, map_tensors
from ..equilibrium import SolveStats
from ._map import RunningMap, evaluate
from ._progress import Kept, Progress, Rules, Scale, Seen, norms
from ._solve import Options, solve
from .base import WINDOW, AbstractSolver, Evaluation, Prefix

_ROUNDS = 4
"""Number of rounds of which code is made at a time."""


class CompiledMap:
    """What `torch.compile` makes of a map, when it is needed.

    Args:
        f: The map, called as f(state, *inputs).
        mode: Mode of `torch.compile`, such as "reduce-overhead"; None for its default.
    """

    def __init__(self, f: Callable[..., Any], mode: str | None = None) -> None:
        self._f, self._mode = f, mode
        self._blocks: dict[Any, Callable[..., Any]] = {}
        self._failed: set[Any] = set()

    @cached_property
    def evaluate(self) -> Callable[..., Any]:
        """The map, compiled."""
        # In the default mode, as solves keep earlier images, over which a captured CUDA graph would write.
        return torch.compile(self._f)

    def solve(
        self, z0: Tensor, inputs: tuple[Any, ...], *, solver: AbstractSolver, layout: Layout, options: Options
    ) -> tuple[Tensor, SolveStats] | None:
        """Solve z = f(z, *inputs) from the (B, D) matrix z0, as `_solve.solve` does; None if no code can be made."""
        is_whole = not (options.keep_rows or options.compact or solver.pass_step or solver.always_syncs)
        if not is_whole or type(solver) in self._failed:
            return None
        # Which takes a second, and only who compiles needs it.
        from torch._dynamo.exc import TorchDynamoException

        try:
            f, options = under_autocast(self._f, layout), replace(options, code=self)
            return solve(f, z0, inputs, solver=solver, layout=layout, options=options)[:2]
        except TorchDynamoException as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            warnings.warn(
                "compile=True compiles only single evaluations of this map and not the steps of "
                f"{type(solver).__name__}, because the map or the solver reads values of tensors: {reason}",
                RuntimeWarning,
                stacklevel=1,
            )
            self._failed.add(type(solver))
            return None

    def init(self, solver: AbstractSolver, z: Tensor, eps: float) -> Any:
        """Return the state of a solve."""
        # What grows with the budget begins small, so that the same code serves every budget.
        first = solver.with_max_evals(2) if _grows(solver) else solver
        with torch.no_grad():
            # Of a fixed size, also where steps are recorded.
            return first.init(z.detach(), eps=eps, may_sync=False)

    def run(
        self, z: Tensor, state: Any, progress: Progress, evaluate: RunningMap, num_silent: int, is_recorded: bool
    ) -> None:
        """Make all rounds after the first evaluation, whose step led to z and state, and record them."""
        solver, layout, scales = progress.solver, evaluate.layout, evaluate.scales
        assert isinstance(solver, AbstractSolver)
        # Tensors of their own, in one memory format, as code is made for what it is given.
        z = z.clone()
        progress.kept = Kept(*(tensor.clone(memory_format=torch.contiguous_format) for tensor in progress.kept))
        # The same code for every budget and tolerance.
        fixed = (solver if solver.returns_image else replace(solver, tol=0.0)).with_max_evals(2)
        signature = fixed, layout.signature, progress.rules, progress.prefix, scales is None
        number, num_left = (torch.tensor(value, device=z.device) for value in (1, solver.max_evals - 1))
        tol, recent = torch.tensor(progress.tol, dtype=z.dtype, device=z.device), progress.kept.measures[1]
        while progress.goes_on:
            done = progress.num_evals
            end = num_silent if done < num_silent else solver.max_evals
            count = _ROUNDS if end - done >= _ROUNDS else 1
            with torch.set_grad_enabled(is_recorded and done >= num_silent), warnings.catch_warnings():
                # The compiler asks for the gradients of what it is given.
                warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
                state = solver.widen(state, done + count)
                if _grows(solver):
                    _mark_growing(state, layout.dim)
                key = *signature, count
                if key not in self._blocks:
                    f = under_autocast(self._f, layout)
                    own = _block(f, layout, fixed, progress.rules, progress.prefix, count)
                    # Convolutions in channels-last order, which the compiler likes on CPUs, would have every norm of a
                    # row read its elements out of order.
                    is_plain = self._mode is None and layout.device.type == "cpu"
                    options: Any = {"layout_optimization": False} if is_plain else None
                    self._blocks[key] = torch.compile(own, fullgraph=True, mode=self._mode, options=options)
                carried, residuals, seen = self._blocks[key](
                    (z, progress.kept, state, recent, number, num_left), progress.scale, scales, tol, evaluate.inputs
                )
                if self._mode is not None:
                    # The next run of a captured CUDA graph writes over what this one returned.
                    carried = map_tensors(Tensor.clone, carried)
                z, kept, state, recent, number, num_left = carried
                progress.advance(kept, residuals, seen)


def _block(
    f: Callable[..., Any], layout: Layout, solver: AbstractSolver, rules: Rules, prefix: Prefix | None, count: int
) -> Callable[..., Any]:
    """Return a function that makes `count` rounds."""

    def run(
        carried: tuple[Any, ...], scale: Scale, scales: tuple[Tensor, Tensor] | None, tol: Tensor, inputs: Any
    ) -> tuple[tuple[Any, ...], Tensor, Seen | None]:
        z, kept, state, recent, number, num_left = carried
        residuals, seen = [], None
        for _ in range(count):
            number, num_left = number + 1, num_left - 1
            z, fz = evaluate(f, layout, z, inputs, scales)
            g = fz - z
            seen = scale.measure(norms(g, prefix), norms(fz, prefix), prefix)
            kept, rejected = kept.record(rules, fz if solver.returns_image else z, seen, number, tol)
            recent = torch.minimum(recent, seen.measures[1])
            is_due = (number % WINDOW == 0) & (tol > 0)
            checked = kept.check_stagnation(rules, recent, seen, number, may_sync=False)
            kept = Kept(*(torch.where(is_due, new, old) for new, old in zip(checked, kept, strict=True)))
            recent = torch.where(is_due, math.inf, recent)
            residuals.append(seen.measures[1])
            at = Evaluation(z, fz, g, seen.image_norm, rejected, number, num_left, tol, False, prefix)
            state, following = solver.step(state, at)
            z = following if prefix is None else torch.where(kept.is_running[:, None], following, z)
        return (z, kept, state, recent, number, num_left), torch.stack(residuals), seen

    # With code of its own: the compiler counts by that how often something was compiled anew.
    return types.FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)


def _grows(solver: AbstractSolver) -> bool:
    return type(solver).widen is not AbstractSolver.widen


def _mark_growing(state: Any, dim: int) -> None:
    """Tell the compiler which sizes of a state will change, so that it makes code once."""
    for leaf in leaves(state):
        if isinstance(leaf, Tensor):
            for axis in range(1, leaf.dim()):
                if leaf.shape[axis] != dim:
                    torch._dynamo.maybe_mark_dynamic(leaf, axis)
