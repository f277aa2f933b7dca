"""Whether the samples of a batch are independent: that no row of f(z) depends on another row of z.

Solves take that for granted: each sample has steps, a stop and a linear system of its own. Where rows see each other,
as nodes of a graph or positions of a sequence along dim 0 do, gradients would be wrong with a clean status.

What is found is compared with the whole map, at these costs:

* The first backward pass through a cell spends two products with the Jacobian: one of cotangents on half of the rows,
  and one of its solution, whose residual it recomputes.
* Every `backward()` recomputes the residual of its solution at no cost: the pass that carries the solution to the
  parameters computes that product anyway. `torch.autograd.grad` leaves it out, and there nothing is compared.
* With gradients on, the evaluation that attaches the graph tells the residual of the state, at no cost.
* Without gradients, or with `Unrolled`, one solve of a cell spends an evaluation of the whole batch, if its budget
  leaves one: the first in which samples stop one after the other.
"""

from __future__ import annotations

import functools
import math
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..equilibrium import SolveStats, Status
from .masks import MaskedMap

COUPLED = (
    "The samples of a batch (dim 0) must not depend on each other. If dim 0 of the state holds nodes, atoms or time "
    "steps that see each other, pass batch_dims=0, which solves the whole state as one sample; if f closes over a "
    "tensor of the whole batch, pass that after z0 as an input."
)

_independent: weakref.WeakSet[Any] = weakref.WeakSet()
"""Modules, codes and types of which cells are made whose samples were found to be independent."""


def _parts(cell: Callable[..., Any]) -> Iterator[Any]:
    """List what a cell is known by: its modules, and the code of its functions, which are often made anew each time.

    A helper that solves `lambda z: cell(z)` for many cells has one code: what functions refer to counts too.
    """
    pending, seen = [cell], set[int]()
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, MaskedMap):
            pending.append(part.f)
        elif isinstance(part, functools.partial):
            pending += [part.func, *filter(callable, (*part.args, *part.keywords.values()))]
        elif isinstance(part, types.MethodType):
            pending += [part.__func__, part.__self__]
        elif isinstance(part, types.FunctionType):
            yield part.__code__
            names = (part.__globals__.get(name) for name in part.__code__.co_names)
            pending += [value for value in names if isinstance(value, nn.Module)]
            pending += [value for value in _closed_over(part) if callable(value) and not isinstance(value, type)]
        elif (wrapped := getattr(part, "__wrapped__", None)) is not None and not isinstance(part, nn.Module):
            pending.append(wrapped)
        else:
            try:
                weakref.ref(part)
                hash(part)
            except TypeError:
                part = type(part)
            yield part


def _closed_over(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            # Not bound yet.
            continue


def is_known(cell: Callable[..., Any]) -> bool:
    """Return whether the samples of a cell were found to be independent, or are known not to be and warned of."""
    return all(part in _independent for part in _parts(cell)) or ties_samples(cell)


def ties_samples(cell: Callable[..., Any]) -> bool:
    """Return whether a cell has batch norm in training mode, which is warned of and not refused."""
    return any(
        isinstance(module, _BatchNorm) and module.training for owner in modules_of(cell) for module in owner.modules()
    )


def modules_of(cell: Callable[..., Any]) -> list[nn.Module]:
    """List the modules that a cell is, or refers to."""
    return [part for part in _parts(cell) if isinstance(part, nn.Module)]


def note(cell: Callable[..., Any]) -> None:
    """Remember that the samples of a cell are independent."""
    for part in _parts(cell):
        _independent.add(part)


@torch.no_grad()
def check_products(cell: Callable[..., Any], vjp: Callable[[Tensor], Tensor], like: Tensor) -> None:
    """Refuse a cell whose samples see each other, told by one product: of cotangents on half of the rows.

    Args:
        cell: The map as the caller has it.
        vjp: Returns Jᵀu for a (B, D) matrix u.
        like: (B, D) matrix whose size, dtype and device are taken.

    Raises:
        ValueError: The product is not zero on the other half.
    """
    if len(like) > 1 and not is_known(cell):
        if are_coupled(vjp, like):
            raise ValueError(f"A row of f(z) depends on other rows of z. {COUPLED}")
        note(cell)


@torch.no_grad()
def are_coupled(vjp: Callable[[Tensor], Tensor], like: Tensor) -> bool:
    """Return whether a product of cotangents on half of the rows is not zero on the other half; see `check_products`.

    Rows that only few others see may be missed, by a chance of up to three in four.
    """
    generator = torch.Generator("cpu").manual_seed(len(like))
    order = torch.randperm(len(like), generator=generator, device="cpu")
    probed, others = (part.to(like.device) for part in (order[: len(like) // 2], order[len(like) // 2 :]))
    # The same signs on all rows, of several sizes: a mean over the batch adds them up, and nothing cancels.
    signs = 2 * torch.randint(2, (1, like.shape[1]), generator=generator, device="cpu") - 1
    sizes = 1 + torch.randint(2, (len(probed), 1), generator=generator, device="cpu")
    u = torch.zeros_like(like)
    u[probed] = (sizes * signs).to(like)
    product = vjp(u).abs().amax(dim=1)
    # Where rows are independent there are only zeros to add up, which round nothing.
    return bool(product[others].amax() > torch.finfo(like.dtype).eps * product[probed].amax())


@torch.no_grad()
def check_solution(
    cell: Callable[..., Any], product: Tensor, u: Tensor, g: Tensor, residual: Tensor, eps: float
) -> None:
    """Refuse a cell for which the solution of a backward solve is none of the whole batch.

    Args:
        cell: The map as the caller has it.
        product: (B, D) matrix Jᵀu of the whole map.
        u: (B, D) solution of u = Jᵀu + g.
        g: (B, D) right-hand side.
        residual: (B,) what the solve says is left, relative to g or to u.
        eps: Precision with which products are computed.

    Raises:
        ValueError: More is left.
    """
    norm = functools.partial(torch.linalg.vector_norm, dim=1)
    limit = (2 * residual + math.sqrt(eps)) * torch.maximum(norm(u), norm(g))
    # NaN, which samples have that are not finite, exceeds nothing.
    if bool((norm(u - g - product) > limit).any()) and not ties_samples(cell):
        raise ValueError(
            "The solution of the backward solve, found for each sample by itself, does not solve the system of the "
            f"whole batch: its residual, recomputed with one product, is larger than the solve says. {COUPLED}"
        )


def departure(image: Tensor, z: Tensor, start: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far the residual of an evaluation is from the one that a solve found at the same state.

    Args:
        image: (B, D) image of the state, evaluated once more.
        z: (B, D) state.
        start: (B, D) state at which the solver started.
        residual: (B,) relative residual of the state, as the solver saw it.

    Returns:
        (B,) absolute differences, and what they are to be compared with.
    """
    norm = torch.linalg.vector_norm(image, dim=1)
    change = (torch.linalg.vector_norm(image - z, dim=1) - residual * norm).abs()
    # Where the equilibrium is zero, what is left of the start counts, as residuals are relative to that.
    return change, torch.maximum(norm, torch.linalg.vector_norm(start, dim=1))


def correct(stats: SolveStats, image: Tensor, z: Tensor, is_off: Tensor) -> SolveStats:
    """Return stats with the residual of another evaluation where that is not the one that the solve found."""
    norm = torch.linalg.vector_norm(image, dim=1).clamp(min=torch.finfo(z.dtype).tiny)
    found = torch.linalg.vector_norm(image - z, dim=1) / norm
    is_wrong = is_off & (found > stats.residual)
    return replace(
        stats,
        residual=torch.where(is_wrong, found.to(stats.residual), stats.residual),
        status=torch.where(is_wrong & stats.converged, int(Status.STAGNATED), stats.status),
    )


@torch.no_grad()
def check_residuals(
    cell: Callable[..., Any], evaluate: Callable[[], Tensor], z: Tensor, start: Tensor, stats: SolveStats, eps: float
) -> SolveStats:
    """Return the stats of a solve, compared with one evaluation of the whole batch at the states that were found.

    Samples stop one after the other, and may leave the batch: where they see each other, those that stopped first are
    at no equilibrium once all have stopped.

    Args:
        cell: The map as the caller has it.
        evaluate: Returns the (B, D) image of the states.
        z: (B, D) states that were found.
        start: (B, D) states at which the solver started.
        stats: What the solve says.
        eps: Precision with which f is evaluated.

    Raises:
        ValueError: The residuals are larger, and f gives the same image once more.
    """
    image = evaluate()
    change, size = departure(image, z, start, stats.residual)
    # Kernels round otherwise for other batch sizes, by a few eps of what they add up; the root of eps is far above.
    limit = math.sqrt(eps) * size
    is_off = change > limit + stats.residual * size
    if not bool(is_off.any()):
        note(cell)
        return stats
    if bool((torch.linalg.vector_norm(evaluate() - image, dim=1) > 0.01 * change)[is_off].any()):
        return correct(stats, image, z, is_off)
    raise ValueError(
        f"After samples had stopped or left the batch, f mapped the remaining samples differently. {COUPLED}"
    )
