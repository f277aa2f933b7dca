"""Where the time of training goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...adjoints import AbstractAdjoint
from ...equilibrium import SolveStats
from ...nn import DEQ
from ...solvers import AbstractLinearSolver
from .metrics import now

SECTIONS = {
    "f": "evaluations of f",
    "products": "vector-Jacobian products and gradients of parameters",
    "solver": "solvers, forward and backward",
    "model": "encoder, head, loss and penalty outside of f",
    "data": "data",
    "optimizer": "optimizer",
    "logging": "logs, checkpoints and display",
    "other": "rest of the loop",
}


class Profile:
    """Adds up the seconds of each section of training; those of an inner section do not count in the outer one.

    Evaluations of f are timed by hooks on the cell, and what is around the layer by hooks on the modules beside it. In
    the backward pass the linear solver is wrapped: what it does outside of products is the solver's time, all else
    are gradients. GPUs are waited for at each border of a section, which slows them down a little. Nothing is timed
    unless it is on.
    """

    def __init__(self, model: nn.Module, device: torch.device, *, is_on: bool) -> None:
        self.is_on = is_on
        self.seconds = {**dict.fromkeys(SECTIONS, 0.0), "evaluation": 0.0}
        self._timed = list(_timed_modules(model))
        self._device = device
        self._stack: list[str] = []
        self._mark = 0.0

    @contextmanager
    def steps(self) -> Iterator[None]:
        """Time all sections in this context."""
        if not self.is_on:
            yield
            return
        hooks = []
        for module, section in self._timed:
            hooks.append(module.register_forward_pre_hook(lambda *_, section=section: self._enter(section)))
            hooks.append(module.register_forward_hook(lambda *_: self._leave()))
        self._mark = now(self._device)
        self._stack = ["other"]
        try:
            yield
        finally:
            self._charge()
            self._stack = []
            for hook in hooks:
                hook.remove()

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Time a section."""
        if not self._stack:
            yield
            return
        self._enter(name)
        try:
            yield
        finally:
            self._leave()

    def adjoint(self, adjoint: AbstractAdjoint) -> AbstractAdjoint:
        """Return an adjoint whose solver is timed."""
        if not self.is_on:
            return adjoint
        return adjoint.with_solver(
            lambda solver: _TimedSolver(max_evals=solver.max_evals, tol=solver.tol, solver=solver, profile=self)
        )

    def shares(self) -> dict[str, float]:
        """Return the part of the training time, without evaluations, that went into each section."""
        training = {name: seconds for name, seconds in self.seconds.items() if name in SECTIONS}
        total = sum(training.values())
        return {name: seconds / total for name, seconds in training.items()}

    def _enter(self, name: str) -> None:
        self._charge()
        # What an evaluation spends in f is the evaluation's.
        self._stack.append("evaluation" if "evaluation" in self._stack else name)

    def _leave(self) -> None:
        self._charge()
        self._stack.pop()

    def _charge(self) -> None:
        moment = now(self._device)
        if self._stack:
            self.seconds[self._stack[-1]] += moment - self._mark
        self._mark = moment


@dataclass(frozen=True, kw_only=True)
class _TimedSolver(AbstractLinearSolver):
    """A linear solver whose products and own work are timed apart."""

    solver: AbstractLinearSolver
    profile: Profile

    def solve_linear(self, operator: Callable[[Tensor], Tensor], b: Tensor) -> tuple[Tensor, SolveStats]:
        def timed(u: Tensor) -> Tensor:
            with self.profile.section("products"):
                return operator(u)

        with self.profile.section("solver"):
            return self.solver.solve_linear(timed, b)


def _timed_modules(model: nn.Module) -> Iterator[tuple[Any, str]]:
    """Yield the cells of all layers, and the largest modules that have none, with the section that they count in."""
    for child in model.children():
        if isinstance(child, DEQ):
            yield child.cell, "f"
        elif any(isinstance(module, DEQ) for module in child.modules()):
            yield from _timed_modules(child)
        else:
            yield child, "model"
