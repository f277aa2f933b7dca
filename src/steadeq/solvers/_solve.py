"""The loop behind every solver: evaluations, bookkeeping and steps, one after the other.

It runs as it is, with gradients on or off; traced by `torch.export`, it becomes a program of fixed length. `_compiled`
makes code of a few rounds of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._internal.allocator import keep_freed_memory
from .._internal.norms import row_norm
from .._internal.trees import Layout, select_rows
from ..equilibrium import SolveStats, Status
from ._map import RunningMap
from ._progress import Progress
from .base import AbstractSolver, Evaluation, Prefix

if TYPE_CHECKING:
    from ._compiled import CompiledMap


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
    code: CompiledMap | None = None
    """What makes all evaluations but the first, if these are compiled."""
    prefix: Prefix | None = None
    """Sums over prefixes, if rows are the tokens of causal samples; the loop sets it."""


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
    if solver.causal and options.prefix is None:
        # A row for each token, measured and weighed together with the tokens before it. All that is decided of a token,
        # its weights, its best iterate and its stop, comes from sums over its prefix: no later token has a part in it.
        tokens = layout.by_token()
        start, prefix = tokens.pack(layout.unpack(z0)), Prefix(tokens.num_tokens)
        options = replace(options, compact=False, prefix=prefix)
        z, stats, _ = solve(f, start, inputs, solver=solver, layout=tokens, options=options)
        return layout.pack(tokens.unpack(z)), _by_sample(stats, prefix.length), None
    is_traced, is_recorded = torch.compiler.is_compiling(), torch.is_grad_enabled()
    num_silent, code, keep_rows, prefix = options.num_silent, options.code, options.keep_rows, options.prefix
    eps = layout.eps
    progress = Progress(
        z0,
        solver,
        dim=layout.dim,
        eps=eps,
        keep_last=options.keep_last,
        prefix=prefix,
        may_sync=False if is_traced or code is not None else None,
    )
    may_sync, holds_rows = progress.may_sync, keep_rows or prefix is not None
    evaluate = RunningMap(f, layout, inputs, compact=options.compact, passes_step=solver.pass_step, may_sync=may_sync)
    with ExitStack() as contexts:
        if not is_traced:
            keep_freed_memory()
        if not is_traced and torch.is_inference_mode_enabled():
            # So that tensors of the solve count how often they are written to.
            contexts.enter_context(torch.inference_mode(False))
            contexts.enter_context(torch.no_grad())
            z0 = z0.clone() if z0.is_inference() else z0
        contexts.enter_context(torch.set_grad_enabled(is_recorded and num_silent == 0))
        z = z0 if num_silent == 0 else z0.detach()
        state = solver.init(z, eps=eps, may_sync=may_sync) if code is None else code.init(solver, z, eps)
        while True:
            number = progress.num_evals + 1
            if number == num_silent + 1:
                torch.set_grad_enabled(is_recorded)
            z, fz = evaluate(z)
            g = fz - z
            seen = progress.measure(z, fz, g)
            if number == 1 and prefix is None and not is_traced:
                z, fz = evaluate.rescale(z, fz, seen.scale.least[0])
                if evaluate.scales is not None:
                    g, progress.scale = fz - z, None
                    seen = progress.measure(z, fz, g)
            progress.record(fz if solver.returns_image else z, seen)
            norm, is_over = seen.image_norm, not progress.goes_on
            if progress.wants_selection and not holds_rows and not is_over:
                rows = progress.select()
                evaluate.select(rows, z)
                state, (z, fz, g, norm) = select_rows((state, (z, fz, g, norm)), rows)
            if is_over and not keep_rows:
                break
            # Whether a row's last evaluation enters its history must not depend on how long its neighbors run.
            at = Evaluation(
                z, fz, g, norm, progress.rejected, number, solver.max_evals - number, progress.tol, may_sync, prefix
            )
            state, following = solver.step(state, at)
            if is_over:
                break
            if holds_rows and progress.has_finished:
                following = torch.where(progress.kept.is_running[:, None], following, z)
            z = following
            if code is not None:
                code.run(z, state, progress, evaluate, num_silent, is_recorded)
                break
    stats = progress.result()
    found = evaluate.unscale(progress.kept.best)
    # Where the start was not improved on, the caller gets a tensor of its own.
    return (found.clone() if found is z0 else found), stats, state


def _by_sample(stats: SolveStats, num_tokens: int) -> SolveStats:
    """Return the stats of samples from those of their tokens: a sample is as good as the worst of these."""
    residual, num_evals, status = (
        vector.unflatten(0, (-1, num_tokens)) for vector in (stats.residual, stats.num_evals, stats.status)
    )
    worst = torch.tensor([int(status) for status in _WORST], device=status.device)
    order = (status.unsqueeze(-1) == worst).int().argmax(dim=-1).amin(dim=1)
    # The last token is measured together with all others.
    trace = stats.trace.unflatten(1, (-1, num_tokens))[:, :, -1]
    return replace(
        stats,
        residual=residual.amax(dim=1),
        num_evals=num_evals.amax(dim=1),
        status=worst[order],
        trace=trace,
        is_staggered=stats.is_staggered and len(order) > 1,
    )


_WORST = Status.NON_FINITE, Status.DIVERGED, Status.STAGNATED, Status.MAX_EVALS, Status.CONVERGED


def solve_affine(
    operator: Callable[[Tensor], Tensor], b: Tensor, *, solver: AbstractSolver
) -> tuple[Tensor, SolveStats]:
    """Solve u = operator(u) + b from b, at the scale of b; see `AbstractLinearSolver.solve_linear`."""
    scale = row_norm(b).unsqueeze(1)
    unit = torch.where(scale == 0, 0, b / scale)
    solver = replace(solver, causal=False) if solver.causal else solver
    u, stats, _ = solve(lambda u: operator(u) + unit, unit, (), solver=solver, layout=Layout(unit))
    return u * scale, stats
