"""Jacobian regularization as it is used in training: how strong, how often, and for how long.

The weight gamma follows a schedule, and the penalty is applied on a random part of the steps (the paper's tau and p).
The paper leaves adaptive weights to future work; `ClosedLoop` is such a scheme: it holds a residual or a spectral
radius at a target by moving gamma.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .jacobian import Probe, jacobian_penalty
from .solvers.base import check_count
from .state import leaves
from .transforms import outside_of_graphs


class AbstractSchedule(ABC):
    """How the weight of the penalty moves with the training step."""

    @abstractmethod
    def weight(self, initial: float, step: int) -> float:
        """Return the weight at a step, given the regularizer's own weight."""


@dataclass(frozen=True, kw_only=True)
class Constant(AbstractSchedule):
    """The same weight at every step."""

    def weight(self, initial: float, step: int) -> float:
        """Return the initial weight."""
        return initial


@dataclass(frozen=True, kw_only=True)
class Linear(AbstractSchedule):
    """From the initial weight to `end` (the paper's A -> B), along a straight line.

    Example:
        >>> Linear(end=2.5, num_steps=100).weight(1.5, step=50)
        2.0
    """

    end: float
    """Weight at the end of the ramp and after it."""
    num_steps: int
    """Length of the ramp."""
    begin: int = 0
    """Step at which the ramp begins."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        _check_weight("end", self.end)
        check_count("num_steps", self.num_steps)

    def weight(self, initial: float, step: int) -> float:
        """Return the weight on the ramp."""
        fraction = min(max((step - self.begin) / self.num_steps, 0.0), 1.0)
        return initial + fraction * (self.end - initial)


@dataclass(frozen=True, kw_only=True)
class Increments(AbstractSchedule):
    """A fixed amount more every so many steps, as in the official runs.

    Example:
        >>> Increments(increment=0.1, every=1000).weight(2.0, step=3500)
        2.3
    """

    increment: float
    """What each increment adds."""
    every: int
    """Steps between increments."""
    begin: int = 0
    """Step from which they are counted."""
    maximum: float = math.inf
    """The weight goes no higher."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_count("every", self.every)

    def weight(self, initial: float, step: int) -> float:
        """Return the weight after the increments so far."""
        return max(0.0, min(initial + max(step - self.begin, 0) // self.every * self.increment, self.maximum))


@dataclass(frozen=True, kw_only=True)
class StopAfter(AbstractSchedule):
    """Another schedule until a step, and no penalty from then on (the official CIFAR-10 run stops at epoch 90).

    Example:
        >>> StopAfter(step=10).weight(0.5, step=9), StopAfter(step=10).weight(0.5, step=10)
        (0.5, 0.0)
    """

    step: int
    """First step without a penalty."""
    schedule: AbstractSchedule = Constant()
    """What holds before it."""

    def weight(self, initial: float, step: int) -> float:
        """Return the inner weight, or zero."""
        return self.schedule.weight(initial, step) if step < self.step else 0.0


@dataclass(frozen=True, kw_only=True)
class ClosedLoop:
    """Hold a measured quantity at a target by moving gamma.

    A proportional-integral controller on logarithms: with e = log(measured / target), a base weight is multiplied by
    exp(rate * e) at each measurement, and gamma is the base times exp(gain * e). The integral finds the level; the
    proportional part damps it, as a network answers to gamma with a delay. e is kept within ± 2 so that one bad batch
    cannot throw it off. Feed it with `regularizer.observe` at every step.
    """

    target: float
    """Value to hold, of the relative residual at the training budget or of the spectral radius."""
    measure: Literal["residual", "spectral_radius"] = "residual"
    """Which of the two is observed."""
    rate: float = 0.05
    """How fast the base weight moves."""
    gain: float = 4.0
    """How strongly gamma answers at once."""
    minimum: float = 1e-3
    """gamma goes no lower."""
    maximum: float = 100.0
    """gamma goes no higher."""
    max_share: float = 0.5
    """Guard: the penalty term may be at most this multiple of the task loss, if `task_loss` is given in the call."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        for name in ("target", "rate", "gain", "minimum", "max_share"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be > 0.")
        if not self.maximum >= self.minimum:
            raise ValueError(f"maximum is {self.maximum!r}; it must be at least minimum ({self.minimum!r}).")
        if self.measure not in ("residual", "spectral_radius"):
            raise ValueError(f"measure is {self.measure!r}; it must be 'residual' or 'spectral_radius'.")

    def correct(self, base: float, measured: float) -> tuple[float, float]:
        """Return base weight and gamma after one measurement; one that is not finite counts as far above the target."""
        if 0 < measured < math.inf:
            error = min(max(math.log(measured / self.target), -2.0), 2.0)
        else:
            error = -2.0 if measured <= 0 else 2.0
        base = min(max(base * math.exp(self.rate * error), self.minimum), self.maximum)
        return base, min(max(base * math.exp(self.gain * error), self.minimum), self.maximum)


class JacobianRegularizer:
    """Draws tau and returns gamma(step) * tau * penalty, to be added to the task loss.

    tau is a function of the seed and the step alone: every rank of a distributed run draws the same, and a resumed run
    draws as if it had never stopped. On the steps with tau = 0 the cell is not evaluated at all.

    Args:
        weight: gamma, where the schedule begins.
        probability: p, the part of the steps on which the penalty is applied.
        num_probes: M, probes per application.
        probe: Distribution of the probes.
        schedule: How gamma moves: `Constant`, `Linear`, `Increments`, `StopAfter`, or `ClosedLoop`.
        seed: Of tau.

    Example:
        >>> cell = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        >>> regularizer = JacobianRegularizer(weight=0.5, probability=1.0)
        >>> loss = regularizer(cell, torch.zeros(8, 4), step=0)
        >>> loss.backward()  # adds to the gradients of the cell
    """

    def __init__(
        self,
        weight: float,
        probability: float = 1.0,
        num_probes: int = 1,
        probe: Probe = "rademacher",
        schedule: AbstractSchedule | ClosedLoop = Constant(),  # noqa: B008 (frozen)
        seed: int = 0,
    ) -> None:
        _check_weight("weight", weight)
        if not 0 <= probability <= 1:
            raise ValueError(f"probability is {probability!r}; it must be in [0, 1].")
        check_count("num_probes", num_probes)
        self.weight, self.probability = weight, probability
        self.num_probes = num_probes
        self.probe: Probe = probe
        self.schedule, self.seed = schedule, seed
        # The state of a closed loop: its base weight, and gamma after the last measurement.
        self._base = self._gamma = max(weight, schedule.minimum) if isinstance(schedule, ClosedLoop) else weight

    def gamma(self, step: int) -> float:
        """Return the weight at a step."""
        if isinstance(self.schedule, ClosedLoop):
            return self._gamma
        return self.schedule.weight(self.weight, step)

    def tau(self, step: int) -> bool:
        """Return whether the penalty is applied at a step."""
        return random.Random(f"{self.seed}/{step}").random() < self.probability

    @outside_of_graphs
    def __call__(
        self,
        f: Callable[..., Any],
        z: Any,
        *inputs: Any,
        step: int,
        task_loss: Tensor | float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the term to add to the loss at this step.

        Args:
            f: The cell, called as f(z, *inputs).
            z: The equilibrium; its graph is not used.
            *inputs: What f takes after the state.
            step: The training step.
            task_loss: The loss that the term is added to, for the guard of `ClosedLoop`.
            generator: Source of the probes.

        Returns:
            A scalar; zero, without a graph, when the penalty is not applied.
        """
        return self.split(f, z, *inputs, step=step, task_loss=task_loss, generator=generator)[0]

    def is_applied(self, step: int) -> bool:
        """Return whether a step has a penalty: its weight is not zero, and tau is 1."""
        return self.gamma(step) > 0 and self.tau(step)

    @outside_of_graphs
    def split(
        self,
        f: Callable[..., Any],
        z: Any,
        *inputs: Any,
        step: int,
        task_loss: Tensor | float | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the term to add to the loss, and the bare penalty without its weight, or None if it is not applied.

        Args:
            f: The cell, called as f(z, *inputs).
            z: The equilibrium; its graph is not used.
            *inputs: What f takes after the state.
            step: The training step.
            task_loss: The loss that the term is added to, for the guard of `ClosedLoop`.
            generator: Source of the probes.
        """
        gamma = self.gamma(step)
        if not self.is_applied(step):
            first = leaves(z)[0]
            return torch.zeros((), dtype=first.dtype, device=first.device), None
        penalty = jacobian_penalty(f, z, *inputs, num_probes=self.num_probes, probe=self.probe, generator=generator)
        if isinstance(self.schedule, ClosedLoop) and task_loss is not None:
            limit = self.schedule.max_share * torch.as_tensor(task_loss).detach().abs() / penalty.detach()
            return torch.clamp(limit.to(penalty), max=gamma) * penalty, penalty.detach()
        return gamma * penalty, penalty.detach()

    def observe(self, *, residual: float | Tensor | None = None, spectral_radius: float | Tensor | None = None) -> None:
        """Correct gamma after a measurement; does nothing for schedules that are not closed loops.

        In a distributed run, pass the mean over ranks, so that gamma stays the same on all of them.

        Args:
            residual: Relative residual of the forward solve, such as `solution.residual.mean()`.
            spectral_radius: Spectral radius at the equilibrium.
        """
        if not isinstance(self.schedule, ClosedLoop):
            return
        measured = {"residual": residual, "spectral_radius": spectral_radius}[self.schedule.measure]
        if measured is not None:
            self._base, self._gamma = self.schedule.correct(self._base, float(measured))

    def state_dict(self) -> dict[str, float]:
        """Return what a checkpoint needs."""
        return {"base": self._base, "gamma": self._gamma}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from a checkpoint."""
        self._base, self._gamma = float(state["base"]), float(state["gamma"])


def _check_weight(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r}; it must be a finite number >= 0.")
