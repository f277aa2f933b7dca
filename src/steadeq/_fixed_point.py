"""The function `fixed_point`, which solves a map to its fixed point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any, TypeVar

import torch
from torch.profiler import record_function

from ._internal.autocast import state_layout, under_autocast, without_autocast
from ._internal.cached import cached_parameters
from ._internal.independence import modules_of, ties_samples
from ._internal.masks import HeldMasks, MaskedMap, Rows, draws_masks, hold_masks, owner_of, without_empty
from ._internal.parameters import Parameters
from ._internal.snapshots import Snapshots
from ._internal.trees import check_inputs, leaves
from ._internal.unsupported import is_mapped, is_transformed, outside_of_graphs, refuse_tangents, refuse_tracing
from ._internal.watching import announce
from .adjoints import AbstractAdjoint, Implicit, Problem
from .adjoints._transforms import solve_transformed
from .equilibrium import Equilibrium, SolveStats, check_map
from .solvers import AbstractLinearSolver, AbstractSolver, Anderson
from .solvers._compiled import CompiledMap

_S = TypeVar("_S")

_WORTH_COMPACTING = 8


@outside_of_graphs
def fixed_point(
    f: Callable[..., _S],
    z0: _S,
    *inputs: Any,
    solver: AbstractSolver = Anderson(),  # noqa: B008 (frozen)
    adjoint: AbstractAdjoint = Implicit(),  # noqa: B008 (frozen)
    compact: bool | None = None,
    f_solve: Callable[..., Any] | None = None,
    states_at: Sequence[int] = (),
    compile: bool | str | CompiledMap = False,
    batch_dims: int = 1,
) -> Equilibrium[_S, SolveStats]:
    """Solve z = f(z, *inputs) for every sample of a batch, differentiably.

    Args:
        f: The map; returns a state structured like its first argument.
        z0: State to start from: a floating-point tensor, or a nested tuple, list or dict of them; dim 0 is the batch.
        *inputs: Further arguments of f, batched along dim 0: tensors, or nested tuples, lists, dicts and dataclasses of
            them. Tensors that the samples share belong in a closure, or in f if it is a module.
        solver: How to find the fixed point.
        adjoint: How to differentiate it. If gradients are on, f is evaluated once more, at the state that was found,
            to attach the graph; the state itself is the same with and without gradients.
        compact: Whether finished samples leave the batch, so that f is evaluated on fewer rows. By default they do if f
            has inputs and the batch has at least 8 samples: without inputs, f may close over tensors of the whole
            batch.
        f_solve: A faster version of f with the same results, such as `torch.compile(f)`, for evaluations without
            gradients.
        states_at: Numbers of evaluations whose results are kept as `eq.states`, for losses on intermediate states
            (correction losses). Each state has the gradient of its one evaluation, which is repeated if gradients are
            on; with `Unrolled`, it has the gradient of all evaluations up to it. For a sample that has finished by
            then, the state is its equilibrium, as in `eq.z`.
        compile: Whether to compile the solve with `torch.compile`, a few steps at a time; the code serves every budget
            and tolerance. A string is the mode of `torch.compile`, such as "reduce-overhead" for CUDA graphs. The code
            of the last few maps is cached: pass the same f each time, not a new lambda.
        batch_dims: 1 if dim 0 of the state is a batch of independent samples. 0 if the whole state is one sample, such
            as the nodes of a graph, a field, or time steps along dim 0; the tensors of the state may then have any
            shape, inputs are not batched, and stats have shape (1,).

    Returns:
        The equilibrium, with the best iterate seen as its state.

    Example:
        >>> import torch
        >>> W = torch.tensor([[0.3, -0.8], [0.6, 0.1]], requires_grad=True)
        >>> x = torch.tensor([[1.0, -1.0], [0.5, 2.0]])
        >>> eq = fixed_point(lambda z, x: torch.tanh(z @ W.T + x), torch.zeros(2, 2), x)
        >>> eq.stats.converged
        tensor([True, True])
        >>> eq.z.sum().backward()
        >>> W.grad.shape
        torch.Size([2, 2])
    """
    check_map(f, len(inputs))
    check_methods(solver, adjoint)
    refuse_tracing()
    arguments = leaves((z0, inputs))
    if not adjoint.records:
        refuse_tangents(arguments, type(adjoint).__name__)
    layout = state_layout(z0, batch_dims)
    check_inputs(inputs, layout)
    # Beyond the steps of a loop, the map is that of its last step.
    step = {"step": solver.max_evals - 1} if solver.pass_step else {}
    # What autograd records step by step, torch.func differentiates without help, as long as values can be looked at.
    if is_transformed() and not (adjoint.records and not any(map(is_mapped, [*arguments, *Parameters(f).tensors]))):
        if states_at:
            raise RuntimeError("states_at is not supported under torch.func; use torch.autograd.grad instead.")
        solve = partial(fixed_point, solver=solver, adjoint=adjoint, compact=False)
        held = hold_masks(f)
        z, stats, record = solve_transformed(held, z0, inputs, solve=solve, step=step, batch_dims=batch_dims)
        return Equilibrium(without_empty(held), z, inputs, stats=stats, record=record, batch_dims=batch_dims)
    code = None if compile is False else compile if isinstance(compile, CompiledMap) else _compiled(f, compile)
    if compact is None:
        # Each new batch size would be compiled anew, and batch norm in training mode is another map on fewer samples.
        is_compact = bool(inputs) and layout.batch_size >= _WORTH_COMPACTING and code is None and not ties_samples(f)
    else:
        is_compact = compact
    snapshots = Snapshots(states_at, layout)
    held = hold_masks(f)
    if states_at and not isinstance(held, MaskedMap):
        # Understands which samples are left.
        held = HeldMasks().bind(held)
    f_fast = held
    if f_solve is None and code is not None:
        f_solve = code.evaluate
    if f_solve is not None:
        f_fast = held.masks.bind(f_solve) if isinstance(held, MaskedMap) else f_solve
    follows_rows = is_compact and isinstance(held, MaskedMap)
    at_end = partial(held, **step) if step else held
    again = Parameters(held) if torch.is_grad_enabled() else held
    # In one graph, nobody is there to change masks or to look at states. If a function draws masks by a module that is
    # not known, the compiler refuses it.
    is_whole = code is not None and not states_at and not isinstance(f, MaskedMap)
    problem = Problem(
        cell=f,
        f=snapshots.watch(under_autocast(held if adjoint.records else at_end, layout)),
        z0=layout.pack(z0),
        inputs=(*inputs, Rows(torch.arange(layout.batch_size, device=layout.device))) if follows_rows else inputs,
        solver=solver,
        layout=layout,
        compact=is_compact,
        f_solve=snapshots.watch(under_autocast(f_fast, layout)),
        f_again=under_autocast(partial(again, **step), layout),
        code=code if is_whole and not any(map(draws_masks, modules_of(f))) else None,
    )
    owner = owner_of(f)
    # With a graph only where all is recorded: elsewhere the one evaluation that is has its graph from the leaves on.
    caching = nullcontext() if owner is None else cached_parameters(owner, recorded=adjoint.records)
    with record_function("steadeq.solve"), without_autocast(layout), caching:
        z, stats, record = adjoint.run(problem)
        states = snapshots.states(under_autocast(at_end, layout), inputs, z, stats)
    f = at_end if solver.pass_step else without_empty(held)
    eq = Equilibrium(f, layout.unpack(z), inputs, stats=stats, states=states, record=record, batch_dims=batch_dims)
    return announce(eq)


@lru_cache(maxsize=8)
def _compiled(f: Callable[..., Any], compile: bool | str) -> CompiledMap:
    return CompiledMap(f, compile if isinstance(compile, str) else None)


def check_methods(solver: Any, adjoint: Any) -> None:
    """Check that the arguments are a fixed-point solver and an adjoint.

    Raises:
        TypeError: One of them is of another type.
    """
    if isinstance(solver, AbstractLinearSolver) and not isinstance(solver, AbstractSolver):
        raise TypeError(
            f"solver is {solver!r}, which solves linear systems only. Use it for the backward pass, as in "
            f"adjoint=Implicit({type(solver).__name__}()), and use Anderson() or NewtonKrylov() for the fixed point."
        )
    for name, value, kind in (("solver", solver, AbstractSolver), ("adjoint", adjoint, AbstractAdjoint)):
        if not isinstance(value, kind):
            raise TypeError(f"{name} is {value!r}; it must be a steadeq {name}, such as {_EXAMPLES[name]}.")


_EXAMPLES = {"solver": "Anderson()", "adjoint": "Implicit()"}
