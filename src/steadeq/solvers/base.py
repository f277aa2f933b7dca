"""What a solver is: hyper-parameters, and the rule by which it picks the next point."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

WINDOW = 10
"""Stagnation is looked for every so many evaluations."""


class Rule(ABC):
    """The update rule of one running solve, on the rows that are still being worked on.

    A rule sees one evaluation after the other and answers each with the next point. It keeps its own history and
    nothing else: counting, residuals, the best iterate, stopping and compaction belong to the loop.
    """

    max_growth: float = math.inf
    """A sample whose ‖f(z) - z‖ exceeds its best by this factor is handed to `advance` as rejected (see `Scale`)."""

    num_quiet_windows: int = 1
    """How many windows of the stagnation test may pass without progress by design, as while a basis is built."""

    patience: float = 3
    """So many windows without progress end a sample. Infinite for methods whose residuals may rise for long before they
    fall; at the rounding limit one window ends a sample in any case."""

    @abstractmethod
    def advance(self, z: Tensor, fz: Tensor, g: Tensor, rejected: Tensor | None) -> Tensor:
        """Return the next (rows, D) point.

        Args:
            z: The point just evaluated.
            fz: f at that point.
            g: The residual fz - z.
            rejected: Which rows grew beyond `max_growth`, or None when no row did.
        """

    @abstractmethod
    def select(self, rows: Tensor) -> None:
        """Keep the history of the given rows only."""


@dataclass(frozen=True, kw_only=True)
class AbstractSolver(ABC):
    """Hyper-parameters of a fixed-point solver.

    All solvers count in evaluations of f, stop each sample by itself at ‖f(z) - z‖ <= tol ‖f(z)‖, and are free of
    scale: a problem multiplied by a constant is solved along the same path. An equilibrium that rounding at the scale
    of the start cannot tell from zero counts as zero: ‖f(z)‖ is then replaced by that rounding.
    """

    max_evals: int = 30
    """The most evaluations of f that a solve may spend, the one at the start included."""
    tol: float = 1e-3
    """Relative residual at which a sample is finished; 0 spends the whole budget."""

    def __post_init__(self) -> None:
        """Refuse hyper-parameters that make no sense."""
        check_count("max_evals", self.max_evals)
        if not self.tol >= 0 or math.isinf(self.tol):
            raise ValueError(f"tol is {self.tol!r}; it must be a finite number >= 0.")

    @abstractmethod
    def start(self, z: Tensor, eps: float) -> Rule:
        """Return a fresh rule for a solve that starts at the (B, D) matrix z and evaluates f with precision eps."""


def check_count(name: str, value: Any, minimum: int = 1) -> None:
    """Refuse a count that is not an integer of at least `minimum`.

    Raises:
        TypeError: The value is not an integer.
        ValueError: The value is too small.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it must be an integer >= {minimum}.")
    if value < minimum:
        raise ValueError(f"{name} is {value}; it must be an integer >= {minimum}.")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of the choices.

    Raises:
        ValueError: It is not.
    """
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}.")


def check_fraction(name: str, value: float) -> None:
    """Refuse a step length outside (0, 1].

    Raises:
        ValueError: The value is outside.
    """
    if not 0 < value <= 1:
        raise ValueError(f"{name} is {value!r}; it must be in (0, 1], where 1 is a full step.")
