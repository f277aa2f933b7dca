"""The loop behind every solver: evaluations, bookkeeping and steps, one after the other.

It runs as it is, with gradients on or off; traced by `torch.export`, it becomes a program of fixed length. `_compiled`
makes code of a few rounds of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._internal.allocator import keep_freed_memory
from .._internal.norms import row_norm
from .._internal.trees import Layout, select_rows
from ..equilibrium import SolveStats, Status
from ._map import RunningMap
from ._progress import Progress, Rules, Scale
from .base import AbstractSolver, Evaluation, Prefix


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a solve is run; most leave all of it as it is."""

    compact: bool = False
    """Whether finished samples leave the batch that f sees."""
    keep_rows: bool = False
    """Hold finished rows still instead of dropping them, so that the method ends with a history of every sample."""
    num_silent: int = 0
    """Number of evaluations at the beginning that are not recorded, even if gradients are on."""
    keep_last: bool = False
    """Return the last finite iterate instead of the best."""


def solve(
    f: Callable[..., Any],
    z0: Tensor,
    inputs: tuple[Any, ...],
    *,
    solver: AbstractSolver,
    layout: Layout,
    options: Options = Options(),  # noqa: B008 (frozen)
) -> tuple[Tensor, SolveStats, Any]:
    """Solve z = f(z, *inputs) from the (B, D) matrix z0.

    Args:
        f: The map, called as f(state, *inputs).
        z0: The state to start from.
        inputs: What f takes after the state, batched along dim 0.
        solver: Solver that sets budget, tolerance and method.
        layout: How states lie in matrices.
        options: How the solve is run.

    Returns:
        The (B, D) state, how the solve went, and the state of the method as the solve left it.
    """
    if solver.causal:
        return _solve_tokens(f, z0, inputs, solver=solver, layout=layout, options=options)
    z, progress, state = iterate(f, z0, inputs, solver=solver, layout=layout, options=options)
    return z, progress.result(), state


def iterate(
    f: Callable[..., Any],
    z0: Tensor,
    inputs: tuple[Any, ...],
    *,
    solver: AbstractSolver,
    layout: Layout,
    options: Options,
    prefix: Prefix | None = None,
) -> tuple[Tensor, Progress, Any]:
    """Solve, and return the progress instead of the stats; see `solve`."""
    is_traced = torch.compiler.is_compiling()
    if not is_traced:
        keep_freed_memory()
    is_recorded, num_silent = torch.is_grad_enabled(), options.num_silent
    with ExitStack() as contexts:
        keep_last = options.keep_last or solver.returns_image
        rules = Rules.of(solver, layout.dim, layout.eps, keep_last=keep_last)
        progress = Progress(z0, solver, rules, may_ask=False if is_traced else None)
        may_ask = progress.may_ask
        evaluate = RunningMap(
            f, layout, inputs, compact=options.compact, passes_step=solver.passes_step, may_ask=may_ask
        )
        if not is_traced and torch.is_inference_mode_enabled():
            # So that tensors of the solve count how often they are written to.
            contexts.enter_context(torch.inference_mode(False))
            contexts.enter_context(torch.no_grad())
            z0 = z0.clone() if z0.is_inference() else z0
        contexts.enter_context(torch.set_grad_enabled(is_recorded and num_silent == 0))
        z = z0 if num_silent == 0 else z0.detach()
        state = solver.init(z0, eps=layout.eps, may_ask=may_ask)
        scale: Scale | None = None
        while True:
            if progress.num_evals == num_silent:
                torch.set_grad_enabled(is_recorded)
            z, fz = evaluate(z)
            if scale is None:
                if prefix is None and not is_traced:
                    z, fz = evaluate.rescale(z, fz, may_ask=may_ask)
                g = fz - z
                scale, seen = Scale.begin(z, fz, g, prefix)
            else:
                g = fz - z
                seen = scale.measure(fz, g, prefix)
            progress.record(fz if solver.returns_image else z, seen)
            is_over, norm = not progress.goes_on, seen.image_norm
            assert norm is not None
            if progress.wants_selection and prefix is None and not options.keep_rows and not is_over:
                rows = progress.select()
                evaluate.select(rows, z)
                state, scale = select_rows(state, rows), scale.select(rows)
                z, fz, g, norm = (tensor.index_select(0, rows) for tensor in (z, fz, g, norm))
            if is_over and not options.keep_rows:
                break
            # Whether a row's last evaluation enters its history must not depend on how long its neighbors run.
            number = progress.num_evals
            num_left = solver.max_evals - number
            at = Evaluation(z, fz, g, norm, progress.rejected, number, num_left, progress.tol, may_ask, prefix)
            state, following = solver.step(state, at)
            if is_over:
                break
            if (options.keep_rows or prefix is not None) and progress.has_finished:
                following = torch.where(progress.kept.is_running[:, None], following, z)
            z = following
    found = evaluate.unscale(progress.payloads())
    # Where the start was not improved on, the caller gets a tensor of its own.
    return (found.clone() if found is z0 else found), progress, state


def _solve_tokens(
    f: Callable[..., Any],
    z0: Tensor,
    inputs: tuple[Any, ...],
    *,
    solver: AbstractSolver,
    layout: Layout,
    options: Options,
) -> tuple[Tensor, SolveStats, Any]:
    """Solve with a row for each token, measured and weighed together with the tokens before it.

    All that is decided of a token, its weights, its best iterate and its stop, comes from sums over its prefix, so that
    no later token has a part in it.
    """
    tokens = layout.by_token()
    length = tokens.num_tokens
    z, progress, _ = iterate(
        f,
        tokens.pack(layout.unpack(z0)),
        inputs,
        solver=solver,
        layout=tokens,
        options=replace(options, compact=False),
        prefix=Prefix(length),
    )
    return layout.pack(tokens.unpack(z)), by_sample(progress.result(), length), None


def by_sample(stats: SolveStats, num_tokens: int) -> SolveStats:
    """Return the stats of samples from those of their tokens: a sample is as good as the worst of these."""
    residual, num_evals, status = (
        vector.unflatten(0, (-1, num_tokens)) for vector in (stats.residual, stats.num_evals, stats.status)
    )
    worst = torch.tensor(_WORST, device=status.device)
    order = (status.unsqueeze(-1) == worst).int().argmax(dim=-1).amin(dim=1)
    return SolveStats(
        residual=residual.amax(dim=1),
        num_evals=num_evals.amax(dim=1),
        status=worst[order],
        # The last token is measured together with all others.
        trace=stats.trace.unflatten(1, (-1, num_tokens))[:, :, -1],
    )


_WORST = [
    int(status) for status in (Status.NON_FINITE, Status.DIVERGED, Status.STAGNATED, Status.MAX_EVALS, Status.CONVERGED)
]
"""Statuses from the worst to the best."""


def solve_affine(
    operator: Callable[[Tensor], Tensor], b: Tensor, *, solver: AbstractSolver
) -> tuple[Tensor, SolveStats]:
    """Solve u = operator(u) + b from b, at the scale of b, so that residuals are relative to it.

    Args:
        operator: A linear map of (B, D) matrices that acts on each row by itself.
        b: (B, D) right-hand sides.
        solver: Solver that sets budget, tolerance and method.
    """
    scale = row_norm(b).unsqueeze(1)
    unit = torch.where(scale == 0, 0, b / scale)
    solver = replace(solver, causal=False) if solver.causal else solver
    u, stats, _ = solve(lambda u: operator(u) + unit, unit, (), solver=solver, layout=Layout(unit))
    return u * scale, stats
