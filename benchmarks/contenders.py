"""What is compared: each solver and training step of steadeq, and of torchdeq where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import by_hand
import torch
from torch import Tensor
from workloads import Workload

from steadeq import GMRES, Anderson, Broyden, Implicit, Picard, fixed_point
from steadeq.solvers import AbstractSolver

Map = Callable[..., Tensor]
Solve = Callable[[Map, Workload, int], Any]
"""Solves f from the start of a workload with so many evaluations, none fewer."""


def peer_version() -> str | None:
    """Return the version of torchdeq, or None where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torchdeq")
    except PackageNotFoundError:
        return None


def solvers() -> dict[tuple[str, str], Solve]:
    """Return how each library solves, by method and library."""
    found: dict[tuple[str, str], Solve] = {
        ("Picard", "steadeq"): _steadeq(lambda num_evals: Picard(max_evals=num_evals, tol=0)),
        ("Anderson", "steadeq"): _steadeq(lambda num_evals: Anderson(max_evals=num_evals, tol=0, memory=6)),
        ("Broyden", "steadeq"): _steadeq(lambda num_evals: Broyden(max_evals=num_evals, tol=0)),
    }
    if peer_version() is not None:
        found[("Picard", "torchdeq")] = _torchdeq("fixed_point_iter")
        found[("Anderson", "torchdeq")] = _torchdeq("anderson", m=6)
        # It does not count the evaluation at the start.
        found[("Broyden", "torchdeq")] = _torchdeq("broyden", num_free=1)
    return found


def hand_written() -> dict[tuple[str, str], Solve]:
    """Return the loops that one would write by hand, by method and library."""
    methods = {"Picard": by_hand.picard, "Anderson": by_hand.anderson, "Broyden": by_hand.broyden}
    return {(name, "by hand"): _by_hand(method) for name, method in methods.items()}


def train_steps() -> dict[str, Callable[[Map, Workload, int, Tensor], None]]:
    """Return how each library makes a forward and a backward pass of so many evaluations each."""
    found = {"steadeq": _steadeq_train_step, "by hand": _train_step_by_hand}
    if peer_version() is not None:
        found["torchdeq"] = _torchdeq_train_step
    return found


def _steadeq(make_solver: Callable[[int], AbstractSolver]) -> Solve:
    def solve(f: Map, workload: Workload, num_evals: int) -> Any:
        return fixed_point(f, workload.z0, *workload.inputs, solver=make_solver(num_evals))

    return solve


def _by_hand(method: Callable[..., Any]) -> Solve:
    def solve(f: Map, workload: Workload, num_evals: int) -> Any:
        return method(_on_matrices(f, workload), workload.z0.flatten(1), num_evals)

    return solve


def _on_matrices(f: Map, workload: Workload) -> Callable[[Tensor], Tensor]:
    shape, inputs = workload.z0.shape, workload.inputs
    return lambda z: f(z.view(shape), *inputs).flatten(1)


def _train_step_by_hand(f: Map, workload: Workload, num_evals: int, g: Tensor) -> None:
    by_hand.train_step(_on_matrices(f, workload), workload.z0.flatten(1), num_evals, g.flatten(1))


def _torchdeq(name: str, *, num_free: int = 0, **options: Any) -> Solve:
    from torchdeq.solver import get_solver

    solver = get_solver(name)

    def solve(f: Map, workload: Workload, num_evals: int) -> Any:
        max_iter = num_evals - num_free
        return solver(
            lambda z: f(z, *workload.inputs), workload.z0, max_iter=max_iter, tol=0.0, stop_mode="rel", **options
        )

    return solve


def _steadeq_train_step(f: Map, workload: Workload, num_evals: int, g: Tensor) -> None:
    eq = fixed_point(
        f,
        workload.z0,
        *workload.inputs,
        solver=Anderson(max_evals=num_evals, tol=0, memory=6),
        adjoint=Implicit(GMRES(max_evals=num_evals, tol=0)),
    )
    eq.z.backward(g)


def _torchdeq_train_step(f: Map, workload: Workload, num_evals: int, g: Tensor) -> None:
    from torchdeq import get_deq

    # Of its two implicit gradients, the one by a hook is the faster: it does not evaluate f again in the backward pass.
    layer = get_deq(
        f_solver="anderson",
        b_solver="anderson",
        f_max_iter=num_evals,
        b_max_iter=num_evals,
        f_tol=0.0,
        b_tol=0.0,
        f_stop_mode="rel",
        b_stop_mode="rel",
        hook_ift=True,
    )
    values, _ = layer(lambda z: f(z, *workload.inputs), workload.z0)
    values[-1].backward(g)


def solve_linear(operator: Callable[[Tensor], Tensor], workload: Workload, num_evals: int) -> Any:
    """Solve u = operator(u) + b with GMRES, b being of the size of the workload's state."""
    b = torch.randn(workload.z0.shape, generator=torch.Generator().manual_seed(0)).flatten(1)
    return GMRES(max_evals=num_evals, tol=0).solve_linear(operator, b)
