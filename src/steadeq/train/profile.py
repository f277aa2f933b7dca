"""Where the time of training goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ..linearization import Linearization
from ..models import AbstractEquilibriumModel
from .evaluation import now

SECTIONS = {
    "f": "evaluations of f",
    "products": "vector-Jacobian products and gradients of parameters",
    "solver": "solvers, forward and backward",
    "model": "injection, read-out, loss and penalty outside of f",
    "data": "data",
    "optimizer": "optimizer",
    "logging": "logs, checkpoints and display",
    "other": "rest of the loop",
}


class NoProfile:
    """Times nothing."""

    @contextmanager
    def steps(self) -> Iterator[None]:
        """Do nothing."""
        yield

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Do nothing."""
        yield


class Profile(NoProfile):
    """Adds up the seconds of each section of training; those of an inner section do not count in the outer one.

    Of a backward pass, what happens between the first and the last product of the adjoint solve, outside of these
    products, is the solver's; all else is gradients.

    Args:
        model: Evaluations of its cell are timed by hooks.
        device: GPUs are waited for at each border of a section, which slows them down a little.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.seconds = {**dict.fromkeys(SECTIONS, 0.0), "evaluation": 0.0}
        layer = model.layer if isinstance(model, AbstractEquilibriumModel) else None
        # Each with the section that its calls count in.
        self._timed = [] if layer is None else [(layer.cell, "f"), (layer, "solver")]
        self._device = device
        self._stack: list[str] = []
        self._mark = 0.0
        self._products: tuple[float, float, float] | None = None

    @contextmanager
    def steps(self) -> Iterator[None]:
        """Time what happens in this context."""
        hooks = []
        for module, section in self._timed:
            hooks.append(module.register_forward_pre_hook(lambda *_, section=section: self._enter(section)))
            hooks.append(module.register_forward_hook(lambda *_: self._leave()))
        plain = Linearization.vjp
        profile = self

        def timed(self: Linearization, u: torch.Tensor, *, create_graph: bool = False) -> torch.Tensor:
            start = now(profile._device)
            with profile.section("products"):
                product = plain(self, u, create_graph=create_graph)
            profile._note_product(start, now(profile._device))
            return product

        Linearization.vjp = timed
        self._mark = now(self._device)
        self._stack = ["other"]
        try:
            yield
        finally:
            self._charge()
            self._stack = []
            Linearization.vjp = plain
            for hook in hooks:
                hook.remove()

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Time what happens in this context under a name; "backward" is a backward pass."""
        if not self._stack:
            yield
            return
        if name == "backward":
            self._products = None
        self._enter("products" if name == "backward" else name)
        try:
            yield
        finally:
            self._leave()
            if name == "backward" and self._products is not None:
                first, last, inside = self._products
                between = last - first - inside
                self.seconds["products"] -= between
                self.seconds["solver"] += between
                self._products = None

    def shares(self) -> dict[str, float]:
        """Return the part of the training time, without evaluations, that went into each section."""
        training = {name: seconds for name, seconds in self.seconds.items() if name in SECTIONS}
        total = sum(training.values())
        return {name: seconds / total for name, seconds in training.items()}

    def _note_product(self, start: float, end: float) -> None:
        first, _, inside = self._products or (start, start, 0.0)
        self._products = first, end, inside + end - start

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
