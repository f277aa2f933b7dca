"""Solves under the transforms of `torch.func`: grad, vjp, jacrev, and vmap over parameters or inputs.

A solve asks for values to decide when to stop, and its gradient asks autograd for products; inside of a transform,
tensors are wrapped and can do neither. So f is made a function of all its tensors (the state, the inputs, and the
parameters and buffers of its module), and the solve is one operation on them, which torch unwraps the tensors for:
outside of all transforms, it is solved and differentiated as ever. What is mapped over becomes part of the batch, so
that every sample of every member of an ensemble stops by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .._internal.parameters import Parameters
from .._internal.trees import leaves, map_tensors, rebuild, replace_tensors, tensors_of
from ..equilibrium import BackwardRecord, Equilibrium, SolveStats


def solve_transformed(
    f: Callable[..., Any],
    z0: Any,
    inputs: tuple[Any, ...],
    *,
    solve: Callable[..., Equilibrium],
    step: dict[str, int],
    batch_dims: int,
) -> tuple[Any, SolveStats, BackwardRecord]:
    """Solve under transforms.

    Args:
        f: The map.
        z0: State to start from.
        inputs: What f takes after the state.
        solve: Called as solve(f, z0, batch_dims=...) outside of all transforms.
        step: What f is told of the step, if anything.
        batch_dims: Number of dims of the state that tell samples apart.

    Returns:
        The state, how the solve went, and where backward passes leave how they went.
    """
    parameters = Parameters(f)
    of_inputs = list({id(tensor): tensor for leaf in leaves(inputs) for tensor in tensors_of(leaf)}.values())
    names = [id(tensor) for tensor in of_inputs]

    def call(z: Any, rest: Sequence[Tensor], **step: int) -> Any:
        new = replace_tensors(inputs, dict(zip(names, rest, strict=False)))
        return parameters.call(rest[len(names) :], z, *new, **step)

    starts = leaves(z0)
    tensors = [*starts, *of_inputs, *parameters.tensors]
    record = BackwardRecord()
    computation = _Solve(
        call=call,
        cell=f,
        z0=z0,
        solve=solve,
        step=step,
        batch_dims=batch_dims,
        record=record,
        is_recorded=torch.is_grad_enabled(),
        num_tensors=len(tensors),
        num_outputs=len(starts),
    )
    outputs: Any = _Apply.apply(computation, *tensors)
    residual, num_evals, status, trace = outputs[len(starts) :]
    stats = SolveStats(residual=residual, num_evals=num_evals, status=status, trace=trace)
    return rebuild(z0, iter(outputs[: len(starts)])), stats, record


@dataclass(kw_only=True, eq=False)
class _Computation(ABC):
    """A function of tensors that no transform has wrapped, and that a graph is kept of."""

    num_tensors: int
    """Number of tensors that the solve was given; gradients that a derivative was given come after them."""
    num_outputs: int
    """Number of outputs that have a derivative, which come first."""

    @abstractmethod
    def values(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Compute the outputs."""

    @abstractmethod
    def graph(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return copies of the tensors, and the outputs that have a derivative as part of a graph that begins there."""

    @abstractmethod
    def mapped(self) -> _Computation:
        """Return the same function of stacked tensors, whose outputs are stacked; the new dim is dim 0."""


@dataclass(kw_only=True, eq=False)
class _Solve(_Computation):
    """The solve: returns the leaves of the state, and the fields of its stats."""

    call: Callable[..., Any]
    """f as a function of the state and a list of all other tensors, which nothing is mapped over in."""
    cell: Callable[..., Any]
    """f as the caller has it."""
    z0: Any
    """A tree like the state."""
    solve: Callable[..., Equilibrium]
    step: dict[str, int]
    batch_dims: int
    record: BackwardRecord
    is_recorded: bool
    num_maps: int = 0
    """Number of leading dims that are mapped over."""
    _graph: tuple[list[Tensor], list[Tensor]] = field(default=([], []), init=False)
    _equilibrium: Equilibrium | None = field(default=None, init=False)
    _mapped: _Solve | None = field(default=None, init=False)

    def values(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        sources = [
            t.detach().requires_grad_(self.is_recorded and (t.is_floating_point() or t.is_complex())) for t in tensors
        ]
        states = sources[: self.num_outputs]
        batch = states[0].shape[: self.num_maps + self.batch_dims]
        self._refuse_others(sources)
        with torch.set_grad_enabled(self.is_recorded):
            z0 = rebuild(self.z0, iter(state.flatten(0, len(batch) - 1) if batch else state for state in states))
            f = _Flat(self.call, self.cell, sources[self.num_outputs :], batch, self.num_maps)
            eq = self.solve(f, z0, batch_dims=1 if batch else 0)
            outputs = [leaf.unflatten(0, batch) if batch else leaf for leaf in leaves(eq.z)]
        self._graph, self._equilibrium = (sources, outputs), eq
        assert eq.stats is not None
        stats = self._unflatten(eq.stats, batch)
        return *(output.detach().clone() for output in outputs), *_fields(stats)

    def _refuse_others(self, sources: list[Tensor]) -> None:
        """Refuse an f that depends on tensors which are not among those that are known; one evaluation tells.

        Raises:
            RuntimeError: It does.
        """
        for _ in range(self.num_maps):
            # One member of what is mapped over tells, and needs no transform.
            sources = [source[0] for source in sources if len(source)]
        if len(sources) < self.num_tensors:
            return
        rest = [t.detach().requires_grad_(t.requires_grad) for t in sources[self.num_outputs :]]
        known = {id(tensor) for tensor in rest}
        with torch.set_grad_enabled(self.is_recorded), _Unwrapped():
            image = self.call(rebuild(self.z0, (t.detach() for t in sources[: self.num_outputs])), rest, **self.step)
        pending: list[Any] = [leaf.grad_fn for leaf in leaves(image) if leaf.grad_fn is not None]
        seen = set(pending)
        while pending:
            node = pending.pop()
            if hasattr(node, "variable") and id(node.variable) not in known:
                raise RuntimeError(_CLOSED)
            following = {node for node, _ in node.next_functions if node is not None} - seen
            seen |= following
            pending.extend(following)

    def _unflatten(self, stats: SolveStats, batch: Sequence[int]) -> SolveStats:
        """Return stats with the dims of what is mapped over first."""
        shape = tuple(batch) if self.batch_dims else (*batch, 1)
        residual, num_evals, status, trace = (value.unflatten(-1, shape) for value in _fields(stats))
        return SolveStats(residual=residual, num_evals=num_evals, status=status, trace=trace.movedim(0, self.num_maps))

    def graph(self) -> tuple[list[Tensor], list[Tensor]]:
        if not self.is_recorded:
            raise RuntimeError(
                "A transform of torch.func needs the derivative of a solve that ran under torch.no_grad()."
            )
        return self._graph

    def note_backward(self) -> None:
        """Leave how the backward solve went where the caller finds it."""
        sources, _ = self._graph
        assert self._equilibrium is not None
        if (stats := self._equilibrium.backward) is not None:
            batch = sources[0].shape[: self.num_maps + self.batch_dims]
            self.record.stats = self._unflatten(stats, batch)

    def mapped(self) -> _Solve:
        if self._mapped is None:
            self._mapped = replace(self, num_maps=self.num_maps + 1)
        return self._mapped


class _Flat:
    """f with dims that are mapped over as part of the batch.

    Args:
        call: f as a function of the state and a list of all other tensors.
        cell: f as the caller has it.
        rest: The other tensors, with the dims that are mapped over first.
        batch: Sizes of these dims, and of the batch.
        num_maps: Number of dims that are mapped over.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        cell: Callable[..., Any],
        rest: list[Tensor],
        batch: Sequence[int],
        num_maps: int,
    ) -> None:
        self._rest, self._batch = rest, tuple(batch)
        for _ in range(num_maps):
            call = torch.func.vmap(call)
        self._call = call
        # What samples were found to be independent for: the caller's own map, and not all that is transformed.
        self.__wrapped__ = cell

    def __call__(self, z: Any, **step: int) -> Any:
        """Evaluate f for all samples of all that is mapped over."""
        batch = self._batch
        if not batch:
            return self._call(z, self._rest, **step)
        try:
            image = self._call(map_tensors(lambda leaf: leaf.unflatten(0, batch), z), self._rest, **step)
        except RuntimeError as error:
            if "escaped from inside a function being vmapped" in str(error):
                raise RuntimeError(_CLOSED) from error
            raise
        return map_tensors(lambda leaf: leaf.flatten(0, len(batch) - 1), image)


@dataclass(kw_only=True, eq=False)
class _Gradient(_Computation):
    """Gradients of some of the tensors of a computation, which takes those of its outputs beside its tensors."""

    of: _Computation
    asked: tuple[int, ...]
    """Numbers of the tensors."""
    _given: list[Tensor] = field(default_factory=list, init=False)

    def values(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        self._given = [tensor.detach() for tensor in tensors[len(tensors) - self.of.num_outputs :]]
        gradients = self._differentiate(self._given, create_graph=False)
        if isinstance(self.of, _Solve):
            self.of.note_backward()
        return tuple(gradients)

    def _differentiate(self, given: list[Tensor], *, create_graph: bool) -> list[Tensor]:
        sources, outputs = self.of.graph()
        targets = [sources[number] for number in self.asked]
        pairs = [(output, g) for output, g in zip(outputs, given, strict=True) if output.requires_grad]
        found: Sequence[Tensor | None] = [None] * len(targets)
        if pairs:
            with torch.set_grad_enabled(create_graph):
                found = torch.autograd.grad(
                    [output for output, _ in pairs],
                    targets,
                    [g for _, g in pairs],
                    retain_graph=True,
                    create_graph=create_graph,
                    allow_unused=True,
                )
        return [torch.zeros_like(t) if g is None else g for g, t in zip(found, targets, strict=True)]

    def graph(self) -> tuple[list[Tensor], list[Tensor]]:
        given = [g.requires_grad_() for g in self._given]
        return [*self.of.graph()[0], *given], self._differentiate(given, create_graph=True)

    def mapped(self) -> _Gradient:
        return replace(self, of=self.of.mapped())


class _Apply(torch.autograd.Function):
    """A computation as one operation."""

    @staticmethod
    def forward(computation: _Computation, *tensors: Tensor) -> tuple[Tensor, ...]:
        return computation.values(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        computation, *tensors = inputs
        ctx.computation = computation
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*output[computation.num_outputs :])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        computation: _Computation = ctx.computation
        _, *are_asked = ctx.needs_input_grad
        asked = tuple(number for number, is_asked in enumerate(are_asked) if is_asked)
        gradient = _Gradient(of=computation, asked=asked, num_tensors=computation.num_tensors, num_outputs=len(asked))
        found: Any = _Apply.apply(gradient, *ctx.saved_tensors, *gradients[: computation.num_outputs])
        by_number = dict(zip(asked, found, strict=True))
        return None, *(by_number.get(number) for number in range(len(are_asked)))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError(
            "fixed_point has no forward-mode derivative, which torch.func.jvp, jacfwd and hessian need. Use "
            "torch.func.grad, vjp or jacrev, or adjoint=Unrolled()."
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        (computation, *tensors), (_, *dims) = args, in_dims
        if all(dim is None for dim in dims[: computation.num_tensors]):
            # Many gradients of one solve, as for the rows of a Jacobian.
            rows = []
            for number in range(info.batch_size):
                row = [t if d is None else t.select(d, number) for t, d in zip(tensors, dims, strict=True)]
                rows.append(_Apply.apply(replace(computation), *row))
            outputs = tuple(torch.stack(column) for column in zip(*rows, strict=True))
        else:
            stacked = [
                tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
                for tensor, dim in zip(tensors, dims, strict=True)
            ]
            outputs = _Apply.apply(computation.mapped(), *stacked)
        return outputs, (0,) * len(outputs)  # pyright: ignore[reportArgumentType]


def _fields(stats: SolveStats) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return stats.residual, stats.num_evals, stats.status, stats.trace


class _Unwrapped(TorchFunctionMode):
    """Refuses tensors that a transform has wrapped, of which torch would take the values and no more."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore[reportAttributeAccessIssue]
        if any(isinstance(leaf, Tensor) and is_wrapped(leaf) for leaf in leaves((args, kwargs or {}))):
            raise RuntimeError(_CLOSED)
        return func(*args, **(kwargs or {}))


_CLOSED = (
    "Under torch.func, fixed_point must know every tensor that f depends on and that is mapped over or has a "
    "gradient, but f closes over one; pass it after z0 as an input, or pass the nn.Module that owns it as f. With "
    "adjoint=Unrolled(), torch.func.grad reaches what f closes over."
)
