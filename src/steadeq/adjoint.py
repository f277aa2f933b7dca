"""Adjoints: how to differentiate a fixed point.

All but `Unrolled` solve without recording, then evaluate f once more at the value z*, with its graph, and put one node
between that graph and the result. The node's backward turns the incoming gradient g into the u that the graph of f
carries on to parameters, inputs and whatever f closes over. Nothing is kept on modules and no tensor hooks are used, so
a layer may occur many times in a graph, backward may run many times, and other passes through the cell (such as the
double backward of the Jacobian penalty) never meet the node.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .linearization import Linearization
from .solution import BackwardRecord, ConvergenceWarning, Solution, Status, unmeasured
from .solvers import GMRES, AbstractSolver, Broyden, Rule
from .solvers.base import check_count, check_fraction
from .solvers.loop import solve
from .state import Layout, leaves


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A fixed-point problem and how to solve it."""

    f: Callable[..., Any]
    """The map, called as f(state, *inputs)."""
    z0: Tensor
    """(B, D) start."""
    inputs: tuple[Any, ...]
    solver: AbstractSolver
    layout: Layout
    compact: bool
    f_solve: Callable[..., Any]
    """A faster version of f that is used while nothing is recorded."""


class AbstractAdjoint(ABC):
    """How gradients reach what a fixed point depends on."""

    @abstractmethod
    def run(self, problem: Problem) -> tuple[Tensor, Solution]:
        """Solve, and return the (B, D) value, part of the graph if gradients are on, with its statistics."""


class _LinearAdjoint(AbstractAdjoint):
    """An adjoint that maps the gradient at z* to a cotangent u of f(z*)."""

    is_exact = False
    keeps_rows = False

    @abstractmethod
    def cotangent(self, vjp: Callable[[Tensor], Tensor], g: Tensor, rule: Rule) -> tuple[Tensor, Solution]:
        """Return u and the statistics of finding it."""

    def run(self, problem: Problem) -> tuple[Tensor, Solution]:
        with torch.no_grad():
            value, solution, rule = solve(
                problem.f_solve,
                problem.z0,
                problem.inputs,
                solver=self.forward_solver(problem.solver),
                layout=problem.layout,
                compact=problem.compact and not self.keeps_rows,
                keep_rows=self.keeps_rows,
            )
        if torch.is_grad_enabled():
            value = _attach(self, problem.f, value, problem.inputs, problem.layout, rule, solution._record)
        return value, solution

    def forward_solver(self, solver: AbstractSolver) -> AbstractSolver:
        """Return the solver to use in the forward pass."""
        return solver


@dataclass(frozen=True)
class Implicit(_LinearAdjoint):
    """The exact gradient by the implicit function theorem (Eq. 1): solve u = Jᵀu + g at the equilibrium.

    Memory does not depend on the number of evaluations, forward or backward. A second derivative is exact too, through
    a second implicit solve, as long as f closes over nothing but leaves (pass other tensors as inputs).

    Example:
        >>> import torch
        >>> from steadeq import fixed_point, Anderson
        >>> x = torch.tensor([[1.0]], requires_grad=True)
        >>> z = fixed_point(lambda z, x: 0.5 * z + x, torch.zeros(1, 1), x).value  # z = 2 x
        >>> z.sum().backward()
        >>> x.grad
        tensor([[2.]])
    """

    solver: AbstractSolver = GMRES()
    """Solver of the linear system. GMRES stops on ‖r‖ / ‖g‖ of each sample; any other one works too."""

    is_exact = True

    def cotangent(self, vjp: Callable[[Tensor], Tensor], g: Tensor, rule: Rule) -> tuple[Tensor, Solution]:
        """Solve the adjoint system."""
        if isinstance(self.solver, GMRES):
            return self.solver.solve_linear(vjp, g)
        scale = torch.linalg.vector_norm(g, dim=1, keepdim=True)
        unit = torch.where(scale > 0, g / scale, 0)
        u, solution, _ = solve(
            lambda u: vjp(u) + unit, unit, (), solver=self.solver, layout=Layout(unit), compact=False
        )
        return u * scale, solution


@dataclass(frozen=True)
class OneStep(_LinearAdjoint):
    """The gradient of one evaluation at the equilibrium, u = g (Jacobian-free backpropagation).

    Free, and biased: the part of the gradient that comes back through J is missing.
    """

    def cotangent(self, vjp: Callable[[Tensor], Tensor], g: Tensor, rule: Rule) -> tuple[Tensor, Solution]:
        """Return g itself."""
        return g, unmeasured(g.shape[0], 0, g)


@dataclass(frozen=True)
class Phantom(_LinearAdjoint):
    """The phantom gradient: `num_steps` damped iterations of u = Jᵀu + g, in its memory-free Neumann form.

    Between `OneStep` (num_steps=1, damping=1) and `Implicit` (many steps) in cost and in bias.
    """

    num_steps: int = 5
    """Terms of the series; each but the first costs one vector-Jacobian product."""
    damping: float = 0.5
    """Length of each step, in (0, 1]."""

    def __post_init__(self) -> None:
        """Refuse hyper-parameters that make no sense."""
        check_count("num_steps", self.num_steps)
        check_fraction("damping", self.damping)

    def cotangent(self, vjp: Callable[[Tensor], Tensor], g: Tensor, rule: Rule) -> tuple[Tensor, Solution]:
        """Sum the series."""
        u = self.damping * g
        for _ in range(self.num_steps - 1):
            u = torch.lerp(u, vjp(u) + g, self.damping)
        return u, unmeasured(g.shape[0], self.num_steps - 1, g)


@dataclass(frozen=True)
class Shine(_LinearAdjoint):
    """The inverse estimate of the forward Broyden solve, used for the backward pass too (Ramzi et al., 2022).

    Costs no vector-Jacobian product. Where the estimate stretches the gradient beyond `max_stretch`, that sample falls
    back to the gradient of `OneStep`. Needs `solver=Broyden(...)`, whose whole history is kept.
    """

    max_stretch: float = 1.3
    """Largest trusted ‖u‖ / ‖g‖."""

    keeps_rows = True

    def __post_init__(self) -> None:
        """Refuse hyper-parameters that make no sense."""
        if not self.max_stretch > 0:
            raise ValueError(f"max_stretch is {self.max_stretch!r}; it must be > 0.")

    def forward_solver(self, solver: AbstractSolver) -> AbstractSolver:
        """Return the Broyden solver with room for its whole history."""
        if not isinstance(solver, Broyden):
            raise ValueError(f"adjoint=Shine() needs solver=Broyden(...), not {type(solver).__name__}.")
        return replace(solver, memory=max(solver.memory, solver.max_evals))

    def cotangent(self, vjp: Callable[[Tensor], Tensor], g: Tensor, rule: Rule) -> tuple[Tensor, Solution]:
        """Apply the transposed inverse estimate."""
        u = rule.apply_transposed(g)
        stretch = torch.linalg.vector_norm(u, dim=1) / torch.linalg.vector_norm(g, dim=1)
        return torch.where((stretch <= self.max_stretch)[:, None], u, g), unmeasured(g.shape[0], 0, g)


@dataclass(frozen=True)
class Unrolled(AbstractAdjoint):
    """Ordinary backpropagation through every step of the solver.

    Memory grows with the number of evaluations. The reference for the others, and the way to train a weight-tied
    network of fixed depth (`Picard(max_evals=depth, tol=0)`).
    """

    def run(self, problem: Problem) -> tuple[Tensor, Solution]:
        """Solve while autograd records."""
        f = problem.f if torch.is_grad_enabled() else problem.f_solve
        value, solution, _ = solve(
            f, problem.z0, problem.inputs, solver=problem.solver, layout=problem.layout, compact=False
        )
        return value, solution


def _attach(
    adjoint: _LinearAdjoint,
    f: Callable[..., Any],
    value: Tensor,
    inputs: tuple[Any, ...],
    layout: Layout,
    rule: Rule,
    record: BackwardRecord,
) -> Tensor:
    """Return the value as part of the graph of f at the value."""
    point = Linearization(f, value, inputs, layout)
    sources = _Sources(point, inputs)
    if not sources.exist:
        return value
    node = _Node(adjoint, f, inputs, layout, rule, record, point, sources.is_complete)
    return _Attach.apply(value, point.fz, node, *sources.tensors)


class _Sources:
    """What the graph of f hangs on: its leaves and the inputs that are part of a graph.

    `exist` says whether there are any. `is_complete` is False if f closes over a tensor that is no leaf; gradients
    still reach it, but it cannot be named, which the second derivative needs.
    """

    def __init__(self, point: Linearization, inputs: tuple[Any, ...]) -> None:
        known = [leaf for leaf in leaves(inputs) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
        stops = {tensor.grad_fn for tensor in known}
        oldest = point.first.grad_fn._sequence_nr()
        found: list[Tensor] = []
        reached = set()
        self.is_complete = True
        pending = [point.fz.grad_fn]
        seen = set(pending)
        while pending:
            node = pending.pop()
            if node is None or node is point.first.grad_fn:
                continue
            if node in stops:
                reached.add(node)
            elif hasattr(node, "variable"):
                found.append(node.variable)
            elif node._sequence_nr() < oldest:
                self.is_complete = False
            else:
                following = {edge for edge, _ in node.next_functions} - seen
                seen |= following
                pending.extend(following)
        self.tensors = found + [tensor for tensor in known if tensor.grad_fn in reached]
        self.exist = bool(self.tensors) or not self.is_complete


class _Node:
    """What the backward pass of one solution needs."""

    def __init__(
        self,
        adjoint: _LinearAdjoint,
        f: Callable[..., Any],
        inputs: tuple[Any, ...],
        layout: Layout,
        rule: Rule,
        record: BackwardRecord,
        point: Linearization,
        is_complete: bool,
    ) -> None:
        self.adjoint, self.f, self.inputs, self.layout, self.rule = adjoint, f, inputs, layout, rule
        self.record, self.point, self.is_complete = record, point, is_complete
        device = layout.device.type
        self._autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))

    def autocast(self) -> torch.autocast:
        """Restore the autocast state of the forward pass."""
        device, dtype, enabled = self._autocast
        return torch.autocast(device, dtype=dtype, enabled=enabled)

    def cotangent(self, g: Tensor) -> Tensor:
        """Return u, leaving the statistics in the record."""
        with torch.no_grad():
            u, solution = self.adjoint.cotangent(self.point.vjp, g.detach(), self.rule)
        self.record.solution = solution
        _warn_once(self.adjoint, solution)
        return u


class _Attach(torch.autograd.Function):
    """Passes the value through; its backward hands u to the graph of f."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, fz: Tensor, node: _Node, *sources: Tensor) -> Tensor:
        ctx.node = node
        ctx.set_materialize_grads(False)
        value = value.view_as(value)
        ctx.save_for_backward(value, *sources)
        return value

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
        node: _Node = ctx.node
        value, *sources = ctx.saved_tensors
        if g is None:
            return None, None, None, *[None] * len(sources)
        with node.autocast():
            if not torch.is_grad_enabled():
                return None, node.cotangent(g), None, *[None] * len(sources)
            gradients = _differentiable_gradients(node, value, sources, g)
        return None, None, None, *gradients


def _differentiable_gradients(
    node: _Node, value: Tensor, sources: list[Tensor], g: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the sources as part of a graph, for a second derivative.

    f is evaluated once more, now at the value as part of its graph, since J and the derivatives of f depend on it; a
    gate keeps the first derivative from passing there, as u accounts for that path already. The adjoint system is itself
    a fixed-point problem in u, and is attached in the same way.
    """
    if not node.adjoint.is_exact:
        raise RuntimeError(
            f"A second derivative through adjoint={type(node.adjoint).__name__}() is not supported: its gradient is an "
            "approximation that has no meaningful derivative; use adjoint=Implicit() or Unrolled()."
        )
    if not node.is_complete:
        raise RuntimeError(
            "A second derivative through adjoint=Implicit() needs every tensor that f depends on to be a leaf or an input, "
            "but f closes over the result of another computation; pass it after z0 as an input, or use adjoint=Unrolled()."
        )
    gate = _Gate()
    point = Linearization(node.f, _PassGate.apply(value, gate), node.inputs, node.layout)
    u = node.cotangent(g)
    u = _attach(
        node.adjoint,
        lambda u: point.vjp(u, create_graph=True) + g,
        u,
        (),
        Layout(u),
        node.rule,
        BackwardRecord(),
    )
    gradients = torch.autograd.grad(point.fz, sources, u, create_graph=True, allow_unused=True)
    gate.is_open = True
    return gradients


class _Gate:
    """Whether gradients pass."""

    is_open = False


class _PassGate(torch.autograd.Function):
    """The identity, whose gradient passes only while the gate is open."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gate: _Gate) -> Tensor:
        ctx.gate = gate
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None]:
        return (g if ctx.gate.is_open else None), None


_has_warned = False


def _warn_once(adjoint: _LinearAdjoint, solution: Solution) -> None:
    global _has_warned
    if _has_warned or not adjoint.is_exact or bool(solution.converged.all()):
        return
    _has_warned = True
    count, total = int((~solution.converged).sum()), solution.status.numel()
    statuses = sorted({Status(int(status)).name for status in solution.status[~solution.converged]})
    warnings.warn(
        f"The backward solve {adjoint!r} did not converge for {count} of {total} samples ({', '.join(statuses)}, largest "
        f"relative residual {float(solution.residual.max()):.1e}); their gradients are approximate. Watch "
        "solution.backward; this warning is shown once.",
        ConvergenceWarning,
        stacklevel=2,
    )
