"""Further questions about a loop: what its block is like, how it takes rounding, and whether it is causal."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._internal.linearization import root_mean_square
from .._internal.norms import row_norm
from .._internal.trees import Layout, leaves, map_tensors
from ..jacobian._products import Probes
from ..solvers._map import RunningMap
from ._iteration import CountedMap, Trajectory, distance, iterate

_NUM_PROBES = 2


def other_samples(inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the inputs, exchanged between the samples of the batch; None if all samples have the same ones."""
    others = map_tensors(lambda leaf: leaf.roll(1, 0), inputs)
    pairs = zip(leaves(inputs), leaves(others), strict=True)
    return others if any(isinstance(leaf, Tensor) and not torch.equal(leaf, other) for leaf, other in pairs) else None


def look_inside(
    block: Callable[..., Any],
    layout: Layout,
    inputs: tuple[Any, ...],
    z: Tensor,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor | None]:
    """Return (B,) the mean of the Jacobian's diagonal at a state, and how far other inputs move its image there.

    A block that adds to its state has about 1 on the diagonal.
    """
    evaluate = RunningMap(block, layout, inputs, compact=False)
    image = evaluate(z)[1].clone()
    step = math.sqrt(layout.eps) * root_mean_square(z).clamp(min=torch.finfo(z.dtype).tiny)
    draw = Probes(z, _NUM_PROBES, "rademacher", generator).draw
    diagonal = torch.zeros_like(step[:, 0])
    for _ in range(_NUM_PROBES):
        probe = draw()
        diagonal += ((evaluate(z + step * probe)[1] - image) * probe).mean(dim=1) / step[:, 0] / _NUM_PROBES
    effect, others = None, other_samples(inputs)
    if others is not None:
        other = RunningMap(block, layout, others, compact=False)(z)[1]
        effect = distance(other, image, row_norm(image))
    return diagonal.cpu(), effect


def causal_leak(
    block: CountedMap, layout: Layout, inputs: tuple[Any, ...], start: Tensor, num_evals: int, time_dim: int
) -> Tensor:
    """Return (B,) how far the states of the first half of the tokens move if the inputs of the second half change."""
    states = [leaf for leaf in leaves(layout.unpack(start)) if leaf.ndim > time_dim]
    length = states[0].shape[time_dim] if states else 0
    half = length // 2
    timed = [leaf for leaf in leaves(inputs) if isinstance(leaf, Tensor) and _has_time(leaf, time_dim, length)]
    if half == 0 or not timed:
        raise ValueError(
            f"time_dim is {time_dim}; the state and at least one input must have that dim, of the same length >= 2."
        )

    def change(leaf: Tensor) -> Tensor:
        if not _has_time(leaf, time_dim, length):
            return leaf
        early, late = leaf.tensor_split([half], dim=time_dim)
        return torch.cat([early, late.roll(1, 0).flip(time_dim)], dim=time_dim)

    def early(z: Tensor) -> Tensor:
        parts = [leaf.narrow(time_dim, 0, half) for leaf in leaves(layout.unpack(z)) if leaf.ndim > time_dim]
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    ends = [early(iterate(block, layout, given, start, num_evals)) for given in (inputs, map_tensors(change, inputs))]
    return distance(ends[1], ends[0], row_norm(ends[0]))


def _has_time(leaf: Tensor, time_dim: int, length: int) -> bool:
    return leaf.ndim > time_dim and leaf.shape[time_dim] == length


def rounding_gain(
    block: CountedMap,
    layout: Layout,
    inputs: tuple[Any, ...],
    z: Tensor,
    max_evals: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Return (B,) by how much a small constant error of each evaluation is multiplied in the end.

    Near a fixed point that is ‖(I - J)⁻¹ v‖ / ‖v‖, here its root mean square over random errors v.
    """
    total = torch.zeros_like(z[:, 0])
    draw = Probes(z, _NUM_PROBES, "rademacher", generator).draw
    size = math.sqrt(layout.eps) * root_mean_square(z).clamp(min=torch.finfo(z.dtype).tiny)
    plain = iterate(block, layout, inputs, z, max_evals)
    for _ in range(_NUM_PROBES):
        error = size * draw()
        moved = iterate(block, layout, inputs, z, max_evals, error=error)
        total += (row_norm(moved - plain) / row_norm(error)).square() / _NUM_PROBES
    return total.sqrt().nan_to_num(math.inf, math.inf).cpu()


def scores_by_bits(
    block: CountedMap,
    layout: Layout,
    inputs: tuple[Any, ...],
    start: Tensor,
    metric: Callable[[Any], Any],
    modules: Sequence[nn.Module],
    bits: Sequence[int],
    depths: Sequence[int],
) -> dict[int, dict[int, float]]:
    """Return the mean score at each depth, by the number of bits to which the weights of modules are rounded."""
    found: dict[int, dict[int, float]] = {}
    for num_bits in bits:
        with rounded_weights(modules, num_bits):
            scores = Trajectory(block, layout, inputs, start, max(depths), metric).metric
        assert scores is not None
        found[num_bits] = {depth: float(scores[depth].mean()) for depth in depths}
    return found


@contextlib.contextmanager
def rounded_weights(modules: Sequence[nn.Module], num_bits: int) -> Iterator[None]:
    """Round matrices and kernels to a number of bits, with a scale for each output channel, and put them back."""
    weights = {id(p): p for module in modules for p in module.parameters() if p.ndim >= 2}.values()
    saved = [(weight, weight.detach().clone()) for weight in weights]
    largest = 2 ** (num_bits - 1) - 1
    try:
        with torch.no_grad():
            for weight, before in saved:
                scale = before.flatten(1).abs().amax(dim=1).clamp(min=torch.finfo(before.dtype).tiny) / largest
                scale = scale.view(-1, *[1] * (before.ndim - 1))
                weight.copy_((before / scale).round() * scale)
        yield
    finally:
        with torch.no_grad():
            for weight, before in saved:
                weight.copy_(before)


def modules_of(*functions: Callable[..., Any] | None) -> list[nn.Module]:
    """Return the modules that functions are, are methods of, or refer to."""
    owners: list[Any] = []
    for function in functions:
        owners += [function, getattr(function, "__self__", None)]
        if inspect.isfunction(function) or inspect.ismethod(function):
            variables = inspect.getclosurevars(function)
            owners += [*variables.nonlocals.values(), *variables.globals.values()]
    return [module for owner in owners if isinstance(owner, nn.Module) for module in owner.modules()]
