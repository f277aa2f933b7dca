"""Iterating a block and watching what happens."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._internal.autocast import state_layout, under_autocast, without_autocast
from .._internal.linearization import first_positive, root_mean_square
from .._internal.masks import hold_masks
from .._internal.norms import row_norm
from .._internal.trees import Layout, check_inputs, leaves, map_tensors
from .._internal.unsupported import outside_of_graphs, refuse_vmap
from .._internal.validation import check_count
from ..equilibrium import Equilibrium
from ..jacobian import Estimate, spectral_radius
from ..jacobian._products import Probes
from ..solvers._map import RunningMap
from .result import NEGLIGIBLE, Diagnosis
from .verdict import MAX_PERIOD, NUM_KEPT, judge


@outside_of_graphs
def diagnose(
    f: Callable[..., Any],
    z0: Any,
    *inputs: Any,
    max_evals: int = 256,
    training_depth: int | None = None,
    metric: Callable[[Any], Any] | None = None,
    metric_name: str = "metric",
    higher_is_better: bool = True,
    max_products: int = 60,
    generator: torch.Generator | None = None,
    batch_dims: int = 1,
    pass_step: bool = False,
) -> Diagnosis:
    """Tell whether it is safe to iterate z = f(z, *inputs), without training or changing anything.

    f is any block that maps a state to a state of the same shape: a looped or recursive block, or the cell of a DEQ. It
    is iterated in its current mode. `diagnose` leaves no gradients, and restores torch's random state and the buffers
    of the modules that f uses.

    The cost is about 3 or 4 times `max_evals` evaluations of f on the whole batch, or less if every state stops moving:
    `max_evals` from z0, as many from each other start (Gaussian noise, and zeros unless z0 is zero), as many with the
    inputs of other samples, and 4 more. The spectral radius takes at most `max_products` products with the Jacobian,
    and the metric is computed `max_evals` + 1 times. At most 33 states are in memory at a time.

    Args:
        f: The block, called as f(z, *inputs).
        z0: State to start from: a floating-point tensor, or a nested tuple, list or dict of them; dim 0 is the batch.
        *inputs: Further arguments of f, batched along dim 0: tensors, or nested structures of them.
        max_evals: Number of evaluations to iterate for, at least 16. Choose several times the depth that you want to
            use: a cycle or a slow drift shows only after a few rounds.
        training_depth: Number of evaluations that the block was trained with, to report what happens beyond it.
        metric: Maps a state to a score of each sample, (B,), or of the whole batch, a scalar.
        metric_name: Name of the metric in the text and in the figure.
        higher_is_better: Whether a larger score is better; pass False for a loss or a perplexity.
        max_products: Largest number of products with the Jacobian for the spectral radius; 0 skips it.
        generator: Source of the Gaussian start and of probes; torch's own by default.
        batch_dims: 1 if dim 0 is a batch of independent samples, 0 if the whole state is one sample.
        pass_step: Whether f is called as f(z, *inputs, step=k), with k from 0 on, for blocks that depend on their step.
            The spectral radius is then measured at the last step.

    Returns:
        The diagnosis; `print` it for a summary in words with advice.

    Raises:
        ValueError: An argument is out of range, or the metric returns a tensor of the wrong shape.

    Example:
        >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
        >>> diagnosis = diagnose(lambda z: z @ turn.T, torch.tensor([[1.0, 0.0]]))
        >>> diagnosis.verdicts, diagnosis.period.tolist()
        ([<Verdict.CYCLES: 1>], [4])
    """
    check_count("max_evals", max_evals, minimum=16)
    check_count("max_products", max_products, minimum=0)
    if training_depth is not None:
        check_count("training_depth", training_depth)
        if training_depth > max_evals:
            raise ValueError(
                f"training_depth is {training_depth}; it must be at most max_evals ({max_evals}). Raise max_evals: the "
                "diagnosis needs evaluations beyond the training depth."
            )
    refuse_vmap(leaves((z0, inputs)))
    layout = state_layout(z0, batch_dims)
    check_inputs(inputs, layout)
    block = _Counted(under_autocast(hold_masks(f), layout), passes_step=pass_step)
    devices = [] if layout.device.type == "cpu" else [layout.device]
    device_type = layout.device.type if devices else "cuda"
    with torch.random.fork_rng(devices, device_type=device_type), _unchanged_buffers(f, metric):
        with torch.no_grad(), without_autocast(layout):
            start = layout.pack(map_tensors(Tensor.detach, z0))
            score = None if metric is None else under_autocast(metric, layout)
            trajectory = _Trajectory(block, layout, inputs, start, max_evals, score)
            end = trajectory.end
            # Of the start too, as the end may be zero.
            size = torch.maximum(row_norm(start), row_norm(end))
            at_end = partial(block, step=max_evals - 1) if pass_step else block
            noise, is_random = _noise(at_end, layout, inputs, end, generator)
            ends = {
                name: _iterate(block, layout, inputs, other, max_evals)
                for name, other in _other_starts(layout, start, end, generator).items()
            }
            input_effect = None
            if layout.batch_size > 1 and any(isinstance(leaf, Tensor) for leaf in leaves(inputs)):
                others = map_tensors(lambda leaf: leaf.roll(1, 0), inputs)
                input_effect = _distance(_iterate(block, layout, others, start, max_evals), end, size)
        z = layout.unpack(end.clone())
        radius, reason = _radius(at_end, z, inputs, max_products, generator, batch_dims)
    findings = [
        judge(steps, sizes, returns, floor=float(floor), eps=layout.eps)
        for steps, sizes, returns, floor in zip(*trajectory.measures, noise.cpu().double(), strict=True)
    ]
    is_same = torch.stack([_distance(other, end, size) < NEGLIGIBLE for other in ends.values()]).all(dim=0)
    cosine = torch.stack([torch.cosine_similarity(other, end, dim=1) for other in ends.values()])
    return Diagnosis(
        residual=trajectory.residual,
        metric=trajectory.metric,
        metric_name=metric_name,
        higher_is_better=higher_is_better,
        verdict=torch.tensor([finding.verdict for finding in findings], device="cpu"),
        is_certain=torch.tensor([finding.is_certain for finding in findings], device="cpu"),
        # As large as a number of single precision can be.
        rate=torch.tensor([min(finding.rate, 3e38) for finding in findings], device="cpu"),
        period=torch.tensor([finding.period for finding in findings], device="cpu"),
        radius=radius,
        radius_missing=reason,
        starts=tuple(ends),
        is_path_independent=is_same,
        # Of states that overflow, the direction is unknown.
        cosine=cosine.amin(dim=0).nan_to_num(0.0).cpu(),
        movement=_distance(start, end, size),
        movement_after_one=_distance(trajectory.first, end, size),
        input_effect=input_effect,
        is_random=is_random,
        training_depth=training_depth,
        num_evals=block.num_evals,
        z=z,
    )


class _Counted:
    """A map that counts its evaluations."""

    def __init__(self, f: Callable[..., Any], *, passes_step: bool = False) -> None:
        self._f, self.passes_step, self.num_evals = f, passes_step, 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.num_evals += 1
        return self._f(*arguments, **options)


class _Trajectory:
    """The states z0, f(z0), ..., of which only measures and the latest are kept."""

    def __init__(
        self,
        block: _Counted,
        layout: Layout,
        inputs: tuple[Any, ...],
        start: Tensor,
        max_evals: int,
        metric: Callable[[Any], Any] | None,
    ) -> None:
        latest = deque([start], maxlen=NUM_KEPT)
        steps, sizes, scores = [], [], [] if metric is None else [_score(metric, layout, start)]
        self.first = self.end = start
        """The states after one evaluation and after all."""
        for fz, step, size in _steps(block, layout, inputs, start, max_evals):
            self.first = self.first if steps else fz
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
    block: _Counted, layout: Layout, inputs: tuple[Any, ...], z: Tensor, max_evals: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Iterate, and yield each image with the (B,) norms of its step and of itself, until nothing moves any more."""
    evaluate = RunningMap(block, layout, inputs, compact=False, passes_step=block.passes_step)
    for index in range(max_evals):
        seen, fz = evaluate(z)
        step = row_norm(fz - seen)
        yield fz, step, row_norm(fz)
        # Now and then, as asking makes the device wait.
        if index % 16 == 15 and bool(((step == 0) | ~step.isfinite()).all()):
            return
        z = fz


def _iterate(block: _Counted, layout: Layout, inputs: tuple[Any, ...], z: Tensor, max_evals: int) -> Tensor:
    """Return the state in which iterating ends."""
    end = z
    for image, _, _ in _steps(block, layout, inputs, z, max_evals):
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


def _noise(
    block: Callable[..., Any],
    layout: Layout,
    inputs: tuple[Any, ...],
    z: Tensor,
    generator: torch.Generator | None,
) -> tuple[Tensor, bool]:
    """Return the (B,) step that rounding explains at a state, and whether f is random between evaluations."""
    evaluate = RunningMap(block, layout, inputs, compact=False)
    nudge = layout.eps * Probes(z, 1, "rademacher", generator).draw()
    image, again, moved = (evaluate(point)[1].clone() for point in (z, z, z * (1 + nudge)))
    size = row_norm(image)
    # NaN, which samples have that are not finite, exceeds nothing.
    is_random = row_norm(again - image) > math.sqrt(layout.eps) * size
    change = row_norm(moved - image).where(~is_random, 0)
    return 2 * (change + layout.eps * size), bool(is_random.any())


def _other_starts(layout: Layout, start: Tensor, end: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
    """Return starts by name: zeros, unless that is the given start, and noise of the scale of each leaf."""
    starts = {"zeros": torch.zeros_like(start)} if bool(start.any()) else {}
    pairs = zip(layout.split(start), layout.split(end), strict=True)
    sizes = [first_positive(root_mean_square(a).maximum(root_mean_square(b)).nan_to_num(0, 0, 0)) for a, b in pairs]
    scale = torch.cat([size.expand(-1, dim) for size, dim in zip(sizes, layout.sizes, strict=True)], dim=1)
    return starts | {"Gaussian noise": scale * Probes(end, 1, "gaussian", generator).draw()}


def _distance(a: Tensor, b: Tensor, size: Tensor) -> Tensor:
    """Return the (B,) distances of rows in units of a size; infinite where they are not finite."""
    distance = row_norm(a - b)
    return torch.where(distance == 0, 0, distance / size).nan_to_num(math.inf, math.inf).cpu()


def _radius(
    block: Callable[..., Any],
    z: Any,
    inputs: tuple[Any, ...],
    max_products: int,
    generator: torch.Generator | None,
    batch_dims: int,
) -> tuple[Estimate | None, str]:
    """Return the spectral radius at a state, or None and a sentence that says why there is none."""
    if max_products == 0:
        return None, "The spectral radius was left out."
    try:
        estimate = spectral_radius(
            Equilibrium.at(block, z, *inputs, batch_dims=batch_dims),
            max_products=max_products,
            memory=NUM_KEPT,
            generator=generator,
        )
    except RuntimeError as error:
        return None, f"The spectral radius is unknown, as f could not be differentiated: {str(error).splitlines()[0]}"
    except ValueError as error:
        # Rows that see each other have no radius each.
        return None, f"The spectral radius is unknown: {error}"
    return (
        Estimate(value=estimate.value.cpu(), error=estimate.error.cpu(), num_products=estimate.num_products),
        "",
    )


@contextlib.contextmanager
def _unchanged_buffers(*functions: Callable[..., Any] | None) -> Iterator[None]:
    """Put back what functions write to the buffers of their modules, as batch norm in training mode does."""
    owners: list[Any] = []
    for function in functions:
        owners += [function, getattr(function, "__self__", None)]
        if inspect.isfunction(function) or inspect.ismethod(function):
            variables = inspect.getclosurevars(function)
            owners += [*variables.nonlocals.values(), *variables.globals.values()]
    modules = [module for owner in owners if isinstance(owner, nn.Module) for module in owner.modules()]
    saved = [
        (module, name, buffer, buffer.detach().clone())
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for module, name, buffer, before in saved:
            module._buffers[name] = buffer
            if not torch.equal(buffer, before):
                with torch.no_grad():
                    buffer.copy_(before)
