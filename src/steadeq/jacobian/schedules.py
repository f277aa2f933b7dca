"""Schedules: how the weight of a penalty, or its probability, moves while a model is trained."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from .._internal.options import NamedOptions
from .._internal.validation import check_choice, check_count, check_not_negative, check_positive

Observed = Literal["residual", "spectral_radius", "evals"]

State = tuple[float, ...]
"""What a schedule remembers from one step to the next; kept by the regularizer, and part of a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class AbstractSchedule(NamedOptions, ABC):
    """How a number moves with the training step: the weight of a penalty, or the probability that it is applied."""

    @abstractmethod
    def weight(self, initial: float, step: int, state: State = ()) -> float:
        """Return the weight at a step.

        Args:
            initial: The regularizer's own weight, or its probability.
            step: The training step.
            state: What `start` and `observe` returned, for schedules that answer to measurements.
        """

    @abstractmethod
    def is_active(self, initial: float) -> bool:
        """Return whether the weight is positive at some step."""

    @property
    def is_closed_loop(self) -> bool:
        """Whether the weight depends on the measurements passed to `observe`."""
        return False

    def observes(self) -> Observed | None:
        """Return what a closed loop holds at its target; None for other schedules."""
        return None

    def start(self, initial: float) -> State:
        """Return what is remembered before the first step."""
        return ()

    def observe(self, state: State, measured: dict[str, float], *, is_cut: bool = False) -> State:
        """Return what is remembered after measurements, given by their names.

        Args:
            state: What was remembered before.
            measured: What was measured.
            is_cut: Whether the last term was smaller than weight times penalty, as `weigh` has a limit.
        """
        return state

    def obstacle(self, state: State, measured: dict[str, float], *, is_cut: bool = False) -> str | None:
        """Return the name of the field that keeps the weight from growing although it should, if there is one."""
        return None

    def weigh(self, penalty: Tensor, weight: float, task_loss: Tensor | float | None, state: State = ()) -> Tensor:
        """Return the term of the loss, given the bare penalty."""
        return weight * penalty

    def for_run(self, num_steps: int, steps_per_epoch: int) -> AbstractSchedule:
        """Return the schedule with lengths that depend on the run filled in.

        Args:
            num_steps: Steps of the whole run.
            steps_per_epoch: Steps of one pass over the data.
        """
        return self


@dataclass(frozen=True, kw_only=True)
class Constant(AbstractSchedule):
    """The same weight at every step."""

    def weight(self, initial: float, step: int, state: State = ()) -> float:
        """Return the initial weight."""
        return initial

    def is_active(self, initial: float) -> bool:
        """Return whether the weight is positive."""
        return initial > 0


@dataclass(frozen=True, kw_only=True)
class Linear(AbstractSchedule):
    """From the initial weight to `end` (the paper's A -> B), along a straight line.

    Example:
        >>> Linear(end=2.5, num_steps=100).weight(1.5, step=50)
        2.0
    """

    end: float
    """Value at the end of the ramp and after it; the ramp begins at the regularizer's own."""
    num_steps: int | None = None
    """Length of the ramp in training steps; None for the rest of the run."""
    begin: int = 0
    """Training step at which the ramp begins."""

    def __post_init__(self) -> None:
        check_not_negative("end", self.end)
        check_count("begin", self.begin, minimum=0)
        if self.num_steps is not None:
            check_count("num_steps", self.num_steps)

    def weight(self, initial: float, step: int, state: State = ()) -> float:
        """Return the weight on the ramp."""
        if self.num_steps is None:
            raise ValueError("num_steps is None; outside of `steadeq train`, set it to the length of the ramp.")
        fraction = min(max((step - self.begin) / self.num_steps, 0.0), 1.0)
        return initial + fraction * (self.end - initial)

    def is_active(self, initial: float) -> bool:
        """Return whether either end is positive."""
        return initial > 0 or self.end > 0

    def for_run(self, num_steps: int, steps_per_epoch: int) -> Linear:
        """Return a ramp that ends with the run, unless it has a length."""
        return self if self.num_steps is not None else replace(self, num_steps=max(num_steps - self.begin, 1))


@dataclass(frozen=True, kw_only=True)
class Increments(AbstractSchedule):
    """A fixed increment at regular steps, as in the official runs.

    Example:
        >>> Increments(increment=0.1, every=1000).weight(2.0, step=3500)
        2.3
    """

    increment: float
    """Amount that each increment adds; a negative one lowers the value, down to 0."""
    every: int
    """Number of training steps from one increment to the next."""
    begin: int = 0
    """Training step from which the increments are counted."""
    maximum: float = math.inf
    """Largest value that the increments lead to."""

    def __post_init__(self) -> None:
        check_count("every", self.every)
        check_count("begin", self.begin, minimum=0)
        if not math.isfinite(self.increment):
            raise ValueError(f"increment is {self.increment!r}; it must be a finite number.")

    def weight(self, initial: float, step: int, state: State = ()) -> float:
        """Return the weight after the increments so far."""
        return max(0.0, min(initial + max(step - self.begin, 0) // self.every * self.increment, self.maximum))

    def is_active(self, initial: float) -> bool:
        """Return whether the weight is positive, or becomes so."""
        return initial > 0 or self.increment > 0


@dataclass(frozen=True, kw_only=True)
class StopAfter(AbstractSchedule):
    """Another schedule until a step or an epoch, and no penalty from then on.

    The official CIFAR-10 run stops at epoch 90.

    Example:
        >>> StopAfter(step=10).weight(0.5, step=9), StopAfter(step=10).weight(0.5, step=10)
        (0.5, 0.0)
    """

    step: int | None = None
    """First training step without a penalty; give either this or an epoch."""
    epoch: int | None = None
    """First epoch without a penalty, counted from 0; give either this or a step."""
    schedule: AbstractSchedule = Constant()
    """Schedule that holds until the penalty stops."""

    def __post_init__(self) -> None:
        if (self.step is None) == (self.epoch is None):
            raise ValueError(f"step is {self.step} and epoch is {self.epoch}; one of them must be given.")
        check_count("step" if self.epoch is None else "epoch", self._end, minimum=0)

    @property
    def _end(self) -> int | None:
        return self.step if self.epoch is None else self.epoch

    def weight(self, initial: float, step: int, state: State = ()) -> float:
        """Return the inner weight, or zero."""
        if self.step is None:
            raise ValueError("step is None; outside of `steadeq train`, set it to the step at which the penalty stops.")
        return self.schedule.weight(initial, step, state) if step < self.step else 0.0

    def is_active(self, initial: float) -> bool:
        """Return whether there is a penalty before the end."""
        return self._end != 0 and self.schedule.is_active(initial)

    @property
    def is_closed_loop(self) -> bool:
        """Whether the inner schedule is."""
        return self.schedule.is_closed_loop

    def observes(self) -> Observed | None:
        """Return what the inner schedule returns."""
        return self.schedule.observes()

    def start(self, initial: float) -> State:
        """Return what the inner schedule remembers."""
        return self.schedule.start(initial)

    def observe(self, state: State, measured: dict[str, float], *, is_cut: bool = False) -> State:
        """Hand the measurements on."""
        return self.schedule.observe(state, measured, is_cut=is_cut)

    def obstacle(self, state: State, measured: dict[str, float], *, is_cut: bool = False) -> str | None:
        """Return what the inner schedule returns."""
        return self.schedule.obstacle(state, measured, is_cut=is_cut)

    def weigh(self, penalty: Tensor, weight: float, task_loss: Tensor | float | None, state: State = ()) -> Tensor:
        """Leave it to the inner schedule."""
        return self.schedule.weigh(penalty, weight, task_loss, state)

    def for_run(self, num_steps: int, steps_per_epoch: int) -> StopAfter:
        """Return the schedule with its end as a step."""
        step = self.epoch * steps_per_epoch if self.epoch is not None else self.step
        return StopAfter(step=step, schedule=self.schedule.for_run(num_steps, steps_per_epoch))


@dataclass(frozen=True, kw_only=True)
class ClosedLoop(AbstractSchedule):
    """Hold a measured quantity at a target by moving gamma.

    A proportional-integral controller on logarithms: with e = log(measured / target), a base weight is multiplied by
    exp(rate * e) at each measurement, and gamma is the base times exp(gain * e). The integral finds the level; the
    proportional part damps it, as a network answers to gamma with a delay. e is kept within ± 2 so that one bad batch
    cannot throw it off. Feed it with `regularizer.observe` at every step.

    A guard keeps the penalty below a share of the task loss: at first `first_share`, so that a start with a large
    Jacobian does not drown the task. As long as the guard alone keeps gamma from rising, the base weight stays where it
    is, and the share grows by the same rule up to `max_share`; it shrinks again below the target.
    """

    target: float = 1e-2
    """Value at which the observed quantity is held: a relative residual, a spectral radius or a number of
    evaluations."""
    observed: Observed = "residual"
    """Quantity that is held at the target; "spectral_radius" is measured at evaluations, the others on every step."""
    rate: float = 0.05
    """Rate at which the weight of the penalty (gamma) adapts in the long run."""
    gain: float = 4.0
    """Strength with which the weight of the penalty (gamma) reacts to each single measurement."""
    minimum: float = 1e-3
    """Smallest weight of the penalty (gamma)."""
    maximum: float = 1e4
    """Largest weight of the penalty (gamma)."""
    max_share: float = 100.0
    """Upper limit of the penalty, as a multiple of the task loss (`task_loss` of the call) or, if larger, of the task
    loss at the first step with a penalty."""
    first_share: float = 0.5
    """Upper limit of the penalty at first, as a multiple of the same loss; at most `max_share`."""

    def __post_init__(self) -> None:
        for name in ("target", "rate", "gain", "minimum", "max_share", "first_share"):
            check_positive(name, getattr(self, name))
        if not self.maximum >= self.minimum:
            raise ValueError(f"maximum is {self.maximum!r}; it must be at least minimum ({self.minimum!r}).")
        check_choice("observed", self.observed, get_args(Observed))

    @property
    def is_closed_loop(self) -> bool:
        """Return True."""
        return True

    def observes(self) -> Observed | None:
        """Return what is held."""
        return self.observed

    def start(self, initial: float) -> State:
        """Return base weight, gamma and share of the guard before the first measurement."""
        base = max(initial, self.minimum)
        return base, base, min(self.first_share, self.max_share)

    def weight(self, initial: float, step: int, state: State = ()) -> float:
        """Return gamma after the last measurement."""
        _, gamma, _ = state or self.start(initial)
        return gamma

    def is_active(self, initial: float) -> bool:
        """Return True: the loop raises gamma from any start."""
        return True

    def observe(self, state: State, measured: dict[str, float], *, is_cut: bool = False) -> State:
        """Return base weight, gamma and share after one measurement, if it is of what is held."""
        if self.observed not in measured:
            return state
        base, _, share = state
        error = self._error(measured[self.observed])
        if is_cut or error < 0:
            smallest = min(self.first_share, self.max_share)
            share = min(max(share * math.exp(self.rate * error), smallest), self.max_share)
        # What the guard cuts off anyway must not pile up: it would be left when the target is reached.
        return (*self._correct(base, error, rate=0.0 if is_cut and error > 0 else self.rate), share)

    def obstacle(self, state: State, measured: dict[str, float], *, is_cut: bool = False) -> str | None:
        """Return which bound is reached above the target: "max_share" or "maximum"."""
        base, _, share = state
        if self.observed not in measured or self._error(measured[self.observed]) <= 0:
            return None
        if is_cut and share >= self.max_share:
            return "max_share"
        return "maximum" if base >= self.maximum else None

    def correct(self, base: float, measured: float) -> tuple[float, float]:
        """Return base weight and gamma after one measurement; one that is not finite counts as far above the target."""
        return self._correct(base, self._error(measured), rate=self.rate)

    def _error(self, measured: float) -> float:
        """Return the logarithm of measured / target, within ± 2."""
        if 0 < measured < math.inf:
            return min(max(math.log(measured / self.target), -2.0), 2.0)
        return -2.0 if measured <= 0 else 2.0

    def _correct(self, base: float, error: float, *, rate: float) -> tuple[float, float]:
        base = min(max(base * math.exp(rate * error), self.minimum), self.maximum)
        return base, min(max(base * math.exp(self.gain * error), self.minimum), self.maximum)

    def weigh(self, penalty: Tensor, weight: float, task_loss: Tensor | float | None, state: State = ()) -> Tensor:
        """Return the term of the loss, held below a share of a task loss: the regularizer says of which."""
        if task_loss is None:
            return weight * penalty
        _, _, share = state or self.start(weight)
        limit = share * torch.as_tensor(task_loss).detach().abs() / penalty.detach()
        return torch.clamp(limit.to(penalty), max=weight) * penalty
