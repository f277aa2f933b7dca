"""Regularizers: penalties with a weight, a probability and schedules for both.

The penalty is applied on a random part of the steps (the paper's tau and p). Its weight gamma and its probability p
each follow a schedule. The paper leaves adaptive weights to future work; `ClosedLoop` is such a scheme: it holds a
residual, a number of evaluations or a spectral radius at a target by moving gamma.
"""

from __future__ import annotations

import random
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar, get_args

import torch
from torch import Tensor
from torch.profiler import record_function

from .._internal.autocast import state_layout
from .._internal.options import NamedOptions
from .._internal.unsupported import outside_of_graphs
from .._internal.validation import check_choice, check_count, check_not_negative, check_probability
from ..equilibrium import Equilibrium
from ._products import Probe, check_equilibrium
from .penalty import (
    Estimator,
    jacobian_penalty,
    operator_norm_penalty,
    residual_penalty,
    spectral_penalty_and_vectors,
)
from .schedules import AbstractSchedule, Constant, State

PATIENCE = 200
"""Number of measurements in a row at which a bound keeps a closed loop from its target before it warns."""

_R = TypeVar("_R", bound="AbstractRegularizer")


@dataclass(kw_only=True)
class AbstractRegularizer(NamedOptions, ABC):
    """Draws tau and returns gamma(step) * tau * penalty, to be added to the task loss.

    tau is a function of the seed and the step alone: every rank of a distributed run draws the same, and a resumed run
    draws as if it had never stopped. On the steps with tau = 0 the cell is not evaluated at all.
    """

    is_norm: ClassVar[bool] = False
    """Whether the penalty is an estimate of ‖J‖²_F / d, which runs record as such."""
    weight: float = 0.0
    """Weight of the penalty in the loss (gamma), or its first value if a schedule moves it; constant 0 switches the
    penalty off."""
    probability: float = 1.0
    """Share of the steps on which the penalty is applied (p), drawn at random, or its first value if a schedule moves
    it."""
    schedule: AbstractSchedule = Constant()  # noqa: RUF009 (frozen)
    """Schedule that moves the weight of the penalty (gamma) during training."""
    seed: int = 0
    """Seed of the draw that decides on which steps the penalty is applied (tau)."""
    probability_schedule: AbstractSchedule = Constant()  # noqa: RUF009 (frozen)
    """Schedule that moves the probability of the penalty (p) during training; any but ClosedLoop."""
    _state: State = field(init=False, repr=False, compare=False)
    _first_loss: Tensor | None = field(init=False, repr=False, compare=False, default=None)
    _is_cut: Tensor | bool = field(init=False, repr=False, compare=False, default=False)
    """Whether the guard of a closed loop made the last term smaller than weight times penalty."""
    _num_held: int = field(init=False, repr=False, compare=False, default=0)
    """Measurements in a row at which a bound held a closed loop back."""
    _next_step: int = field(init=False, repr=False, compare=False, default=0)
    """The step of a call that names none."""

    def __post_init__(self) -> None:
        check_not_negative("weight", self.weight)
        check_probability("probability", self.probability)
        for name, example in (("schedule", "Linear(end=2.0)"), ("probability_schedule", "Linear(end=0.5)")):
            schedule: Any = getattr(self, name)
            if not isinstance(schedule, AbstractSchedule):
                raise TypeError(f"{name} is {schedule!r}; it must be a steadeq schedule, such as {example}.")
        if self.probability_schedule.is_closed_loop:
            raise ValueError(
                f"probability_schedule is {self.probability_schedule!r}; it must not be a closed loop, because p may "
                "depend on the step only. Use the closed loop for the weight, as `schedule`."
            )
        self._state = self.schedule.start(self.weight)

    @abstractmethod
    def penalty(self, eq: Equilibrium, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the bare penalty, a scalar without its weight.

        Args:
            eq: The equilibrium; the graph of its state is not used.
            generator: Source of the probes.
        """

    @outside_of_graphs
    def __call__(
        self,
        eq: Equilibrium,
        *,
        step: int | None = None,
        task_loss: Tensor | float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the term to add to the loss at this step.

        Args:
            eq: The equilibrium; the graph of its state is not used.
            step: The training step; None counts one step per call. Pass it if a training step has several calls or
                none, because tau and the schedules depend on it.
            task_loss: The loss that the term is added to, for the guard of `ClosedLoop`.
            generator: Source of the probes.

        Returns:
            A scalar in float32, or in float64 for such a state; zero, without a graph, when the penalty is not applied.
        """
        return self.evaluate(eq, step=step, task_loss=task_loss, generator=generator)[0]

    @outside_of_graphs
    def evaluate(
        self,
        eq: Equilibrium,
        *,
        step: int | None = None,
        task_loss: Tensor | float | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the term to add to the loss, and the bare penalty without its weight, or None if it is not applied.

        Args:
            eq: The equilibrium; the graph of its state is not used.
            step: The training step; None counts one step per call. Pass it if a training step has several calls or
                none, because tau and the schedules depend on it.
            task_loss: The loss that the term is added to, for the guard of `ClosedLoop`.
            generator: Source of the probes.
        """
        check_equilibrium(eq)
        step = self._next_step if step is None else step
        self._next_step = step + 1
        if not self.is_applied(step):
            # In the dtype of a penalty, which is never half precision.
            layout = state_layout(eq.z, eq.batch_dims)
            return torch.zeros((), dtype=layout.dtype, device=layout.device), None
        with record_function("steadeq.penalty"):
            penalty = self.penalty(eq, generator=generator)
        gamma = self.gamma(step)
        if task_loss is not None and self.schedule.is_closed_loop:
            task_loss = self._scale(torch.as_tensor(task_loss).detach().abs())
        term = self.schedule.weigh(penalty, gamma, task_loss, self._state)
        if self.schedule.is_closed_loop:
            # Not read here, as that would wait for the device.
            self._is_cut = term.detach() < 0.999 * gamma * penalty.detach()
        return term, penalty.detach()

    def _scale(self, task_loss: Tensor) -> Tensor:
        """Return the task loss, or the one of the first step with a penalty where this was larger.

        A loss that goes to zero, as in a network which knows its training data by heart, says nothing about how
        strong a penalty may be: a share of it would switch the penalty off when it is needed most.
        """
        if self._first_loss is None and bool(task_loss.isfinite()):
            self._first_loss = task_loss.clone()
        return task_loss if self._first_loss is None else torch.maximum(task_loss, self._first_loss.to(task_loss))

    def gamma(self, step: int) -> float:
        """Return the weight at a step."""
        return self.schedule.weight(self.weight, step, self._state)

    def probability_at(self, step: int) -> float:
        """Return p at a step.

        Values outside [0, 1] are clipped: increments have no upper end, and a long run should not fail once they reach
        1.
        """
        return min(max(self.probability_schedule.weight(self.probability, step), 0.0), 1.0)

    def tau(self, step: int) -> bool:
        """Return whether the penalty is drawn at a step, whatever its weight.

        The number that is drawn does not depend on p: a larger p adds steps to those that have a penalty, and takes
        none of them away.
        """
        return random.Random(f"{self.seed}/{step}").random() < self.probability_at(step)

    def is_applied(self, step: int) -> bool:
        """Return whether a step has a penalty: its weight is not zero, and tau is 1."""
        return self.gamma(step) > 0 and self.tau(step)

    @property
    def is_active(self) -> bool:
        """Whether there can be a penalty: neither gamma nor p is zero throughout."""
        return self.probability_schedule.is_active(self.probability) and self.schedule.is_active(self.weight)

    def observe(
        self,
        *,
        residual: float | Tensor | None = None,
        spectral_radius: float | Tensor | None = None,
        evals: float | Tensor | None = None,
        is_cut: bool | None = None,
    ) -> str | None:
        """Correct gamma after a measurement; does nothing for schedules that are not closed loops.

        In a distributed run, pass the mean over ranks, so that gamma stays the same on all of them. If a bound keeps a
        closed loop above its target for `PATIENCE` measurements in a row, it warns once.

        Args:
            residual: Relative residual of the forward solve, such as `eq.stats.residual.mean()`.
            spectral_radius: Spectral radius at the equilibrium.
            evals: Evaluations of the forward solve, such as `eq.stats.num_evals.double().mean()`; a closed loop on them
                needs a solver that can stop before its budget is spent.
            is_cut: Whether `max_share` reduced the last term; None uses what this process recorded. In a distributed
                run, pass the same on all ranks.

        Returns:
            The name of the field of the schedule that keeps the loop from its target, or None.
        """
        given = {"residual": residual, "spectral_radius": spectral_radius, "evals": evals}
        measured = {name: float(value) for name, value in given.items() if value is not None}
        if not self.schedule.is_closed_loop or not measured:
            return None
        was_cut = self.was_cut if is_cut is None else is_cut
        self._state = self.schedule.observe(self._state, measured, is_cut=was_cut)
        obstacle = self.schedule.obstacle(self._state, measured, is_cut=was_cut)
        self._num_held = 0 if obstacle is None else self._num_held + 1
        if self._num_held == PATIENCE:
            warnings.warn(
                f"{obstacle} of {self.schedule!r} holds the penalty back: for {PATIENCE} measurements in a row "
                f"{', '.join(f'{name} {value:.3g}' for name, value in measured.items())} stayed above the target. "
                f"Raise {obstacle} if the task allows it, or the target.",
                stacklevel=2,
            )
        return obstacle

    @property
    def was_cut(self) -> bool:
        """Whether the guard of a closed loop made the last term smaller than weight times penalty."""
        return bool(self._is_cut)

    def for_run(self: _R, *, num_steps: int, steps_per_epoch: int, seed: int = 0) -> _R:
        """Return a copy of the regularizer for one run, with lengths that depend on the run filled in.

        Args:
            num_steps: Steps of the whole run.
            steps_per_epoch: Steps of one pass over the data.
            seed: Seed of the run, which is added to the regularizer's own.
        """
        return replace(
            self,
            schedule=self.schedule.for_run(num_steps, steps_per_epoch),
            probability_schedule=self.probability_schedule.for_run(num_steps, steps_per_epoch),
            seed=self.seed + seed,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        first = None if self._first_loss is None else float(self._first_loss)
        return {
            "schedule": list(self._state),
            "first_loss": first,
            "is_cut": self.was_cut,
            "num_held": self._num_held,
            "next_step": self._next_step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._state = tuple(map(float, state["schedule"]))
        self._is_cut, self._num_held = bool(state["is_cut"]), int(state["num_held"])
        self._next_step = int(state.get("next_step", 0))
        first = state.get("first_loss")
        self._first_loss = None if first is None else torch.tensor(first, dtype=torch.float64, device="cpu")


@dataclass(kw_only=True)
class JacobianRegularizer(AbstractRegularizer):
    """The paper's penalty on the Frobenius norm of the Jacobian, for training.

    Example:
        >>> from steadeq import Equilibrium
        >>> cell = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        >>> regularizer = JacobianRegularizer(weight=0.5, probability=1.0)
        >>> loss = regularizer(Equilibrium.at(cell, torch.zeros(8, 4)), step=0)
        >>> loss.backward()  # adds to the gradients of the cell
    """

    is_norm = True
    num_probes: int = 1
    """Number of random probes of the Hutchinson estimate (M); each costs one product with the Jacobian."""
    probe: Probe = "rademacher"
    """Distribution of the random probes; the paper uses "gaussian", and "rademacher" has less variance."""
    estimator: Estimator = "vjp"
    """Product with the Jacobian: "vjp" by autograd, or "difference" of two evaluations, for cells without second
    derivatives."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("num_probes", self.num_probes)
        check_choice("probe", self.probe, get_args(Probe))
        check_choice("estimator", self.estimator, get_args(Estimator))

    def penalty(self, eq: Equilibrium, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the estimate of ‖J‖²_F / d, as a mean over the batch."""
        return jacobian_penalty(
            eq, num_probes=self.num_probes, probe=self.probe, estimator=self.estimator, generator=generator
        )


@dataclass(kw_only=True)
class OperatorNormRegularizer(AbstractRegularizer):
    """A penalty on the largest singular value of the Jacobian, an alternative that the paper argues against.

    It bounds the spectral radius more tightly than the Frobenius norm does, for several times the cost: see
    `operator_norm_penalty`.
    """

    num_steps: int = 5
    """Number of steps of the power method; each costs one product with the Jacobian and one with its transpose."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("num_steps", self.num_steps)

    def penalty(self, eq: Equilibrium, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the estimate of sigma(J)², as a mean over the batch."""
        return operator_norm_penalty(eq, num_steps=self.num_steps, generator=generator)


@dataclass(kw_only=True)
class SpectralRegularizer(AbstractRegularizer):
    """A penalty on the spectral radius itself, which decides whether plain iteration converges.

    It lowers only the few directions that grow, while the Frobenius norm is a mean over all directions: a cell with a
    skip connection may have a small ‖J‖²_F / d and a radius above 1. It costs more; see `spectral_penalty`.
    With `estimator="difference"` it needs no second derivatives, and eight evaluations a step.

    Example:
        >>> from steadeq import Equilibrium
        >>> cell = torch.nn.Linear(4, 4)
        >>> loss = SpectralRegularizer(weight=0.1)(Equilibrium.at(cell, torch.zeros(8, 4)), step=0)
        >>> loss.backward()  # adds to the gradients of the cell
    """

    num_products: int | None = None
    """Budget of the estimate, in products with the Jacobian or its transpose; eigenvalues close to each other need
    more. None for 20 with "vjp", and for 5 with "difference"."""
    keep: bool | None = None
    """Start each estimate from the vectors of the step before and random ones, which helps where batches resemble each
    other. None to do so with "difference", which has few products."""
    estimator: Estimator = "vjp"
    """Product with the Jacobian: "vjp" by autograd, or "difference" of evaluations, for cells without second
    derivatives."""
    _vectors: Tensor | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_products is not None:
            check_count("num_products", self.num_products, minimum=2)
        check_choice("estimator", self.estimator, get_args(Estimator))

    def penalty(self, eq: Equilibrium, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the estimate of rho(J)², as a mean over the batch."""
        by_difference = self.estimator == "difference"
        num_products = self.num_products or (5 if by_difference else 20)
        penalty, vectors = spectral_penalty_and_vectors(eq, num_products, self.estimator, self._vectors, generator)
        self._vectors = vectors if (by_difference if self.keep is None else self.keep) else None
        return penalty

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return {**super().state_dict(), "vectors": self._vectors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        super().load_state_dict(state)
        self._vectors = state["vectors"]


@dataclass(kw_only=True)
class ResidualRegularizer(AbstractRegularizer):
    """A penalty on the relative residual of the state, which moves the fixed point of f there.

    It costs one evaluation. Unlike the other penalties it does not limit the Jacobian, so the state may become a fixed
    point that repels its neighbors. But it works for any f, and for loops that end before they converge.

    Example:
        >>> from steadeq import Equilibrium
        >>> cell = torch.nn.Linear(4, 4)
        >>> loss = ResidualRegularizer(weight=0.1)(Equilibrium.at(cell, torch.zeros(8, 4)), step=0)
        >>> loss.backward()  # adds to the gradients of the cell
    """

    def penalty(self, eq: Equilibrium, *, generator: torch.Generator | None = None) -> Tensor:
        """Return ‖f(z) - z‖² / ‖f(z)‖², as a mean over the batch; nothing is drawn."""
        return residual_penalty(eq)
