"""Iterating a block and watching what happens."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
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
from ..equilibrium import Equilibrium, check_map
from ..jacobian import Estimate, spectral_radius
from ..jacobian._products import Probes
from ..solvers._map import RunningMap
from ._iteration import CountedMap, Trajectory, distance, iterate
from ._questions import causal_leak, look_inside, modules_of, other_samples, rounding_gain, scores_by_bits
from .result import Diagnosis, depths_of_interest
from .verdict import NUM_KEPT, Finding, Verdict, judge
from .words import NEGLIGIBLE, NO_DERIVATIVE

_EARLY = 8
"""Evaluations after which the block is looked at where no training depth is given."""


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
    bits: Sequence[int] = (),
    time_dim: int | None = None,
) -> Diagnosis:
    """Tell whether iterating z = f(z, *inputs) settles and whether it helps, without training or changing anything.

    f is any block that maps a state to a state of the same shape: a looped or recursive block, or the cell of a DEQ. It
    is iterated in its current mode. `diagnose` leaves no gradients, and restores torch's random state and the buffers
    of the modules that f uses.

    The cost, in evaluations of f on the whole batch: `max_evals` from z0, as many from each other start (zeros, unless
    z0 is that, and Gaussian noise), as many with the inputs of other samples, and 8 for the precision of f, its graph
    and what it is like; at most `max_products` products with its Jacobian; and `max_evals` + 1 evaluations of the
    metric. So about 3 or 4 times `max_evals`, and less if every state stops moving. Where a state rests although its
    spectral radius is above 1, `max_evals` more. At most 33 states are held at a time.

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
        bits: Numbers of bits, such as (8, 6, 4), to which the weights of f are rounded, to measure the effect on the
            metric. Each takes `max_evals` evaluations; how much iterating multiplies errors takes 3 times as many.
        time_dim: Dim of state and inputs that is time, if you want to know whether later tokens change the states of
            earlier ones; takes the training depth twice, or 8 evaluations twice if none is given.

    Returns:
        The diagnosis; `print` it for a summary of a few lines with advice.

    Raises:
        ValueError: An argument is out of range, the metric returns something of another shape, or there is nothing that
            `bits` or `time_dim` could be applied to.

    Example:
        >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
        >>> diagnosis = diagnose(lambda z: z @ turn.T, torch.tensor([[1.0, 0.0]]))
        >>> diagnosis.verdicts, diagnosis.period.tolist()
        ([<Verdict.CYCLES: 1>], [4])
    """
    check_map(f, len(inputs))
    check_count("max_evals", max_evals, minimum=16)
    check_count("max_products", max_products, minimum=0)
    if training_depth is not None:
        check_count("training_depth", training_depth)
        if training_depth > max_evals:
            raise ValueError(
                f"training_depth is {training_depth}; it must be at most max_evals ({max_evals}). Raise max_evals: the "
                "diagnosis needs evaluations beyond the training depth."
            )
    marked = min(training_depth or _EARLY, max_evals)
    modules = modules_of(f)
    if bits:
        if metric is None or not any(parameter.ndim >= 2 for module in modules for parameter in module.parameters()):
            raise ValueError("bits needs a metric, and an f that is, or refers to, a module with weights.")
        for num_bits in bits:
            check_count("bits", num_bits, minimum=2)
    if time_dim is not None:
        check_count("time_dim", time_dim)
    refuse_vmap(leaves((z0, inputs)))
    layout = state_layout(z0, batch_dims)
    check_inputs(inputs, layout)
    block = CountedMap(under_autocast(hold_masks(f), layout), passes_step=pass_step)
    devices = [] if layout.device.type == "cpu" else [layout.device]
    device_type = layout.device.type if devices else "cuda"
    with torch.random.fork_rng(devices, device_type=device_type), _unchanged_buffers(modules + modules_of(metric)):
        with torch.no_grad(), without_autocast(layout):
            start = layout.pack(map_tensors(Tensor.detach, z0))
            score = None if metric is None else under_autocast(metric, layout)
            trajectory = Trajectory(block, layout, inputs, start, max_evals, score, marked)
            end = trajectory.end
            # Of the start too, as the end may be zero.
            size = torch.maximum(row_norm(start), row_norm(end))
            at_end = partial(block, step=max_evals - 1) if pass_step else block
            noise, is_random = _noise(at_end, layout, inputs, end, generator)
            scale = _scale(layout, start, end)
            ends = {
                name: iterate(block, layout, inputs, other, max_evals)
                for name, other in _other_starts(start, scale, generator).items()
            }
            input_effect, exchanged = None, other_samples(inputs)
            if exchanged is not None:
                input_effect = distance(iterate(block, layout, exchanged, start, max_evals), end, size)
            at_marked = partial(block, step=marked - 1) if pass_step else block
            skip, recall = look_inside(at_marked, layout, inputs, trajectory.marked, generator)
            leak = None
            if time_dim is not None:
                leak = causal_leak(block, layout, inputs, start, marked, time_dim)
            gain, by_bits = None, None
            if bits and score is not None:
                gain = rounding_gain(block, layout, inputs, end, max_evals, generator)
                depths = depths_of_interest(training_depth, max_evals)
                by_bits = scores_by_bits(block, layout, inputs, start, score, modules, bits, depths)
        z = layout.unpack(end.clone())
        radius, reason = _radius(at_end, z, inputs, max_products, generator, batch_dims)
        findings = _judged(trajectory, noise, layout)
        if radius is not None:
            # A contraction so slow that its steps do not show it is no certain drift.
            is_inside = radius.value < 1 - 8 * layout.eps
            findings = [
                finding._replace(is_certain=finding.is_certain and not (inside and finding.verdict == Verdict.DRIFTS))
                for finding, inside in zip(findings, is_inside.tolist(), strict=True)
            ]
        is_suspect = [
            _is_suspect(finding, radius, row, float(trajectory.residual[-1, row]))
            for row, finding in enumerate(findings)
        ]
        is_unstable = torch.zeros(layout.batch_size, dtype=torch.bool, device="cpu")
        if any(is_suspect) and not is_random:
            with torch.no_grad(), without_autocast(layout):
                nudge = NEGLIGIBLE * scale * Probes(end, 1, "gaussian", generator).draw()
                nudged = Trajectory(block, layout, inputs, end + nudge, max_evals)
            away = distance(nudged.end, end, size)
            for row, finding in enumerate(_judged(nudged, noise, layout)):
                if is_suspect[row] and float(away[row]) > 2 * NEGLIGIBLE:
                    is_unstable[row] = True
                    verdict = finding.verdict if finding.verdict == Verdict.DIVERGES else Verdict.DRIFTS
                    is_certain = finding.is_certain and verdict == finding.verdict
                    findings[row] = Finding(verdict, is_certain, finding.rate)
    is_same = torch.stack([distance(other, end, size) < NEGLIGIBLE for other in ends.values()]).all(dim=0)
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
        is_transient=torch.tensor([finding.is_transient for finding in findings], device="cpu"),
        is_unstable=is_unstable,
        radius=radius,
        radius_missing=reason,
        starts=tuple(ends),
        is_path_independent=is_same,
        # Of states that overflow, the direction is unknown.
        cosine=cosine.amin(dim=0).nan_to_num(0.0).cpu(),
        movement=distance(start, end, size),
        movement_after_one=distance(trajectory.first, end, size),
        input_effect=input_effect,
        growth=trajectory.growth,
        skip=skip,
        recall=recall,
        leak=leak,
        gain=gain,
        bits=by_bits,
        is_random=is_random,
        training_depth=training_depth,
        num_evals=block.num_evals,
        z=z,
    )


def _judged(trajectory: Trajectory, noise: Tensor, layout: Layout) -> list[Finding]:
    return [
        judge(steps, sizes, returns, floor=float(floor), eps=layout.eps)
        for steps, sizes, returns, floor in zip(*trajectory.measures, noise.cpu().double(), strict=True)
    ]


def _is_suspect(finding: Finding, radius: Estimate | None, row: int, residual: float) -> bool:
    """Return whether a state may rest only because what grows is still too small to be seen."""
    if finding.verdict == Verdict.DRIFTS:
        return residual < NEGLIGIBLE and finding.rate > 1 and not finding.is_certain
    if finding.verdict != Verdict.CONVERGES or radius is None:
        return False
    return float(radius.value[row] - radius.error[row]) > 1


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


def _scale(layout: Layout, start: Tensor, end: Tensor) -> Tensor:
    """Return the scale of each entry of the state: the scale of its leaf at the start or, if larger, at the end."""
    pairs = zip(layout.split(start), layout.split(end), strict=True)
    sizes = [first_positive(root_mean_square(a).maximum(root_mean_square(b)).nan_to_num(0, 0, 0)) for a, b in pairs]
    return torch.cat([size.expand(-1, dim) for size, dim in zip(sizes, layout.sizes, strict=True)], dim=1)


def _other_starts(start: Tensor, scale: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
    """Return starts by name: zeros, unless that is the given start, and noise."""
    starts = {"zeros": torch.zeros_like(start)} if bool(start.any()) else {}
    return starts | {"Gaussian noise": scale * Probes(start, 1, "gaussian", generator).draw()}


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
        return None, f"{NO_DERIVATIVE}: {str(error).splitlines()[0]}"
    except ValueError as error:
        # Rows that see each other have no radius each.
        return None, f"The spectral radius is unknown: {error}"
    return (
        Estimate(value=estimate.value.cpu(), error=estimate.error.cpu(), num_products=estimate.num_products),
        "",
    )


@contextlib.contextmanager
def _unchanged_buffers(modules: list[nn.Module]) -> Iterator[None]:
    """Put back what is written to the buffers of modules, as batch norm in training mode does."""
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
