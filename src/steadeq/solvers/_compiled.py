"""Compiled code of a map: of single evaluations, and of a few rounds of a solve.

A round is what `_loop` does between two evaluations. Code is made of four rounds at a time and of one, which serve
every budget and tolerance: the host looks in between whether samples are left. It takes any method whose step asks the
host nothing.
"""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .._internal.autocast import under_autocast
from .._internal.trees import Layout, leaves, map_tensors
from ..equilibrium import SolveStats
from ._loop import Options, by_sample
from ._map import RunningMap
from ._progress import Kept, Progress, Rules, Scale, check_stagnation, record
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
        self._evaluate: Callable[..., Any] | None = None
        self._blocks: dict[Any, Callable[..., Any]] = {}
        self._failed: set[Any] = set()

    @property
    def evaluate(self) -> Callable[..., Any]:
        """The map, compiled."""
        if self._evaluate is None:
            # Solves keep earlier images, over which a captured CUDA graph would write.
            self._evaluate = torch.compile(self._f)
        return self._evaluate

    def can_solve(self, solver: AbstractSolver, options: Options) -> bool:
        """Return whether code can be made of the rounds of a solve, as far as is known."""
        is_whole = not (options.keep_rows or options.compact or solver.passes_step or solver.always_asks)
        return is_whole and type(solver) not in self._failed

    def solve(
        self, z0: Tensor, inputs: tuple[Any, ...], *, solver: AbstractSolver, layout: Layout, options: Options
    ) -> tuple[Tensor, SolveStats] | None:
        """Solve z = f(z, *inputs) from the (B, D) matrix z0; see `_loop.solve`.

        Returns:
            The (B, D) state, and how the solve went; None if no code can be made of it.
        """
        # Which takes a second, and only who compiles needs it.
        from torch._dynamo.exc import TorchDynamoException

        try:
            if solver.causal:
                tokens = layout.by_token()
                start = tokens.pack(layout.unpack(z0))
                z, progress = self._iterate(start, inputs, solver, tokens, options, Prefix(tokens.num_tokens))
                return layout.pack(tokens.unpack(z)), by_sample(progress.result(), tokens.num_tokens)
            z, progress = self._iterate(z0, inputs, solver, layout, options, None)
            return z, progress.result()
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

    def _iterate(
        self,
        z0: Tensor,
        inputs: tuple[Any, ...],
        solver: AbstractSolver,
        layout: Layout,
        options: Options,
        prefix: Prefix | None,
    ) -> tuple[Tensor, Progress]:
        f, rounds = under_autocast(self._f, layout), _ROUNDS
        rules = Rules.of(solver, layout.dim, layout.eps, keep_last=options.keep_last or solver.returns_image)
        is_recorded = torch.is_grad_enabled()
        with torch.set_grad_enabled(is_recorded and options.num_silent == 0):
            # The first evaluation, which tells the scale, is made as ever.
            progress = Progress(z0, solver, rules, may_ask=False)
            evaluate = RunningMap(f, layout, inputs, compact=False)
            z, fz = evaluate(z0 if options.num_silent == 0 else z0.detach())
            if prefix is None:
                z, fz = evaluate.rescale(z, fz, may_ask=z0.device.type == "cpu")
            g = fz - z
            scale, seen = Scale.begin(z, fz, g, prefix)
            progress.record(fz if solver.returns_image else z, seen)
            grows = type(solver).widen is not AbstractSolver.widen
            # What grows with the budget begins small, so that the same code serves every budget.
            first = solver.with_max_evals(2) if grows else solver
            with torch.no_grad():
                # Of a fixed size, also where steps are recorded.
                state = first.init(z.detach(), eps=layout.eps, may_ask=False)
            image_norm = seen.image_norm
            assert image_norm is not None
            tol = torch.tensor(progress.tol, dtype=z.dtype, device=z.device)
            number = torch.tensor(1, device=z.device)
            num_left = torch.tensor(solver.max_evals - 1, device=z.device)
            at = Evaluation(z, fz, g, image_norm, progress.rejected, 1, solver.max_evals - 1, tol, False, prefix)
            state, z = solver.step(state, at)
            recent = seen.measures[1]
            # Tensors of their own, in one memory format, as code is made for what it is given.
            z = z.clone()
            progress.kept = Kept(*(tensor.clone(memory_format=torch.contiguous_format) for tensor in progress.kept))
        signature = type(solver), layout.signature, rules, prefix, evaluate.scales is None
        fixed = (replace(solver, tol=0.0) if not solver.returns_image else solver).with_max_evals(2)
        while progress.goes_on:
            done = progress.num_evals
            end = options.num_silent if done < options.num_silent else solver.max_evals
            count = rounds if end - done >= rounds else 1
            with torch.set_grad_enabled(is_recorded and done >= options.num_silent):
                state = solver.widen(state, done + count)
                if grows:
                    _mark_growing(state, layout.dim)
                block = self._block((*signature, fixed), f, layout, rules, prefix, count)
                with warnings.catch_warnings():
                    # The compiler asks for the gradients of what it is given.
                    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
                    z, kept, state, recent, number, num_left, residuals, diverged = block(
                        z, scale, evaluate.scales, progress.kept, state, recent, number, num_left, tol, inputs
                    )
                if self._mode is not None:
                    # The next run of a captured CUDA graph writes over what this one returned.
                    z, kept, state, recent, number, num_left = map_tensors(
                        Tensor.clone, (z, kept, state, recent, number, num_left)
                    )
                progress.advance(kept, residuals, diverged)
        return evaluate.unscale(progress.payloads()), progress

    def _block(
        self,
        signature: Any,
        f: Callable[..., Any],
        layout: Layout,
        rules: Rules,
        prefix: Prefix | None,
        count: int,
    ) -> Callable[..., Any]:
        key = *signature, count
        if key in self._blocks:
            return self._blocks[key]
        solver: AbstractSolver = signature[-1]

        def run(
            z: Tensor,
            scale: Scale,
            scales: tuple[Tensor, Tensor] | None,
            kept: Kept,
            state: Any,
            recent: Tensor,
            number: Tensor,
            num_left: Tensor,
            tol: Tensor,
            inputs: tuple[Any, ...],
        ) -> tuple[Any, ...]:
            residuals, diverged = [], None
            for _ in range(count):
                number, num_left = number + 1, num_left - 1
                point = layout.unpack(z if scales is None else z * scales[0])
                fz = layout.pack_image(f(point, *inputs), z.shape[0])
                z = layout.pack(point) if layout.rounds else z
                if scales is not None:
                    fz, z = fz * scales[1], z * scales[1] if layout.rounds else z
                g = fz - z
                seen = scale.measure(fz, g, prefix)
                assert seen.image_norm is not None
                kept, rejected = record(kept, rules, fz if solver.returns_image else z, seen, number, tol)
                recent = torch.minimum(recent, seen.measures[1])
                is_due = (number % WINDOW == 0) & (tol > 0)
                diverged = seen.have_diverged()
                checked = check_stagnation(kept, rules, recent, number, diverged)
                kept = Kept(*(torch.where(is_due, new, old) for new, old in zip(checked, kept, strict=True)))
                recent = torch.where(is_due, math.inf, recent)
                residuals.append(seen.measures[1])
                at = Evaluation(z, fz, g, seen.image_norm, rejected, number, num_left, tol, False, prefix)
                held = z
                state, z = solver.step(state, at)
                if prefix is not None:
                    z = torch.where(kept.is_running[:, None], z, held)
            return z, kept, state, recent, number, num_left, torch.stack(residuals), diverged

        # With code of its own: the compiler counts by that how often something was compiled anew.
        own = types.FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)
        self._blocks[key] = torch.compile(own, fullgraph=True, mode=self._mode)
        return self._blocks[key]


def _mark_growing(state: Any, dim: int) -> None:
    """Tell the compiler which sizes of a state will change, so that it makes code once."""
    for leaf in leaves(state):
        if isinstance(leaf, Tensor):
            for axis in range(1, leaf.dim()):
                if leaf.shape[axis] != dim:
                    torch._dynamo.maybe_mark_dynamic(leaf, axis)
