"""What studies of small networks share: a training loop, what is measured of a network, and means over seeds."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..equilibrium import ConvergenceWarning, Equilibrium
from ..jacobian import spectral_radius
from ..models import AbstractEquilibriumModel
from ..solvers import AbstractSolver
from .variant import SEEDS, Averages

_A = TypeVar("_A", bound=Averages)


def fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[int], Tensor],
    *,
    rate: Callable[[int], float],
    num_steps: int,
    max_grad_norm: float | None = None,
) -> None:
    """Train a network with a loss of its own.

    Args:
        model: The network.
        optimizer: The optimizer of its parameters.
        loss: Returns the loss of a step, counted from 0.
        rate: Returns the learning rate of a step.
        num_steps: Number of steps.
        max_grad_norm: Largest norm of the gradient; None for no limit.
    """
    with warnings.catch_warnings():
        # A solve that falls short is a part of what is compared.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for step in range(num_steps):
            value = loss(step)
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
            optimizer.zero_grad()
            value.backward()
            if max_grad_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
            optimizer.step()


def mean_evals(model: AbstractEquilibriumModel, x: Tensor, solver: AbstractSolver) -> float:
    """Return the evaluations that a sample takes on average."""
    stats = model.solve(x, solver=solver)[1].stats
    assert stats is not None
    return float(stats.num_evals.double().mean())


def measure_radius(eq: Equilibrium, generator: torch.Generator) -> dict[str, float | None]:
    """Return the mean spectral radius, its mean error, and the share of samples of unknown error."""
    radius = spectral_radius(eq, generator=generator)
    error, unknown = radius.mean_error()
    return {
        "spectral_radius": float(radius.value.mean()),
        "spectral_radius_error": error,
        "spectral_radius_unknown": unknown,
    }


def over_seeds(
    kind: type[_A], arms: Iterable[Any], measure: Callable[[Any, int], Mapping[str, float | None]]
) -> tuple[list[_A], list[dict[str, Any]]]:
    """Return the means of each arm over `SEEDS`, and a row of what was measured with each seed.

    Args:
        kind: Class of the means, which has the fields of an arm.
        arms: What is compared.
        measure: Returns what is measured of an arm with a seed.
    """
    found, rows = [], []
    for arm in arms:
        measured = [measure(arm, seed) for seed in SEEDS]
        rows += [{**vars(arm), "seed": seed, **row} for seed, row in zip(SEEDS, measured, strict=True)]
        found.append(kind.over(measured, **vars(arm)))
    return found, rows
