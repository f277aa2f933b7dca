"""When a run counts as diverged: by one rule, for the trainer that can stop it and for whoever reads its records."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from .data import Splits
from .run.record import RunRecord

MAX_RESIDUAL = 0.5
"""A state with a larger relative residual does not count as an equilibrium."""
NUM_STEPS = 500
"""Number of steps in a row that are off the track after which a run has diverged."""


def is_off_track(*, loss: float, residual: float | None, trivial_loss: float) -> bool:
    """Return whether the solve of a step failed, or its loss is no better than the trivial one.

    Args:
        loss: Loss of the task, without the penalty.
        residual: Relative residual of the forward solve; None where nothing was solved.
        trivial_loss: Loss of a model that only knows how frequent each target is; infinite where it is not known.

    Example:
        >>> is_off_track(loss=5.1, residual=0.02, trivial_loss=7), is_off_track(loss=5.1, residual=0.9, trivial_loss=7)
        (False, True)
    """
    return loss > trivial_loss or (residual is not None and residual > MAX_RESIDUAL)


def longest_off_track(steps: Iterable[tuple[int, bool]]) -> int:
    """Return the largest number of steps in a row that were off track, of (number of steps, off track or not).

    Example:
        >>> longest_off_track([(20, True), (20, True), (20, False), (20, True)])
        40
    """
    longest = current = 0
    for count, is_off in steps:
        current = current + count if is_off else 0
        longest = max(longest, current)
    return longest


def trivial_loss(targets: Tensor) -> float:
    """Return the cross entropy of predicting each label or token as often as it occurs; infinite for other targets.

    Example:
        >>> round(trivial_loss(torch.tensor([0, 1, 0, 1])), 4), trivial_loss(torch.zeros(3))
        (0.6931, inf)
    """
    if targets.is_floating_point() or targets.is_complex() or not targets.numel():
        return math.inf
    counts = torch.unique(targets, return_counts=True)[1].double()
    shares = counts / counts.sum()
    return float(-(shares * shares.log()).sum())


def trivial_loss_of(splits: Splits) -> float:
    """Return the loss of a model that knows only how frequent the targets are; infinite where they are not at hand."""
    names = ("tokens", "targets")
    targets = next((found for name in names if (found := getattr(splits.train, name, None)) is not None), None)
    return trivial_loss(targets) if isinstance(targets, Tensor) else math.inf


@cache
def known_trivial_losses() -> dict[str, float]:
    """Return the trivial losses of data sets by their names, which `benchmarks/trivial_losses.py` computed."""
    return json.loads(Path(__file__).with_name("trivial_losses.json").read_text(encoding="utf-8"))


def has_diverged(record: RunRecord) -> bool:
    """Return whether a run has diverged: it stopped for that, or solved or learned nothing for `NUM_STEPS` in a row.

    Lines are means over the steps since the line before. Warm-ups do not count.
    """
    if record.has_diverged or record.is_mostly_skipped:
        return True
    config, known = record.config, known_trivial_losses()
    loss = known.get(config.data.name, math.inf)
    begin = max(config.warmup.num_steps, config.optimizer.warmup_steps)
    steps, last = [], 0
    for line in record.training:
        is_off = line.step > begin and is_off_track(
            loss=math.inf if line.task_loss is None else line.task_loss,
            residual=line.forward_residual,
            trivial_loss=loss,
        )
        steps.append((line.step - last, is_off))
        last = line.step
    return longest_off_track(steps) >= NUM_STEPS
