"""How the state that a solve finds becomes part of the graph of f.

f is evaluated once at the state z*, with its graph, and one node is put between that graph and the result. The node's
backward turns the incoming gradient g into the u that the graph of f carries on to parameters, inputs and whatever f
closes over. Nothing is kept on modules and no tensor hooks are used, so a layer may occur many times in a graph,
backward may run many times, and other passes through the cell (such as the double backward of the Jacobian penalty)
never meet the node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._internal.autocast import without_autocast
from .._internal.independence import check_solution
from .._internal.linearization import Linearization
from .._internal.trees import Layout, leaves, replace_tensors, tensors_of
from ..equilibrium import BackwardRecord, SolveStats

Product = Callable[[Tensor], Tensor]


def attach(
    point: Linearization,
    z: Tensor,
    *,
    cotangent: Callable[[Product, Tensor], tuple[Tensor, SolveStats]],
    record: BackwardRecord,
    again: Callable[..., Any],
    audit: Audit | None = None,
    refusal: str | None = None,
) -> Tensor:
    """Return the state with a gradient.

    Args:
        point: The map f, under whatever autocast it needs, evaluated at the state.
        z: (B, D) fixed point of f, without a graph.
        cotangent: Maps products with Jᵀ and the gradient g at the state to the cotangent u of f, and how it was found.
        record: Where the stats of each backward pass go.
        again: f as it is to be evaluated in a backward pass.
        audit: What compares solutions with the whole map; the point of `point` is watched by it.
        refusal: Why there is no second derivative, if u does not solve u = Jᵀu + g.

    Returns:
        The state, part of a graph if f depends on anything that requires a gradient.
    """
    point.check_graph()
    sources = Sources(point)
    if not sources.exist:
        return z
    attachment = _Attachment(
        cotangent=cotangent, record=record, again=again, audit=audit, refusal=refusal, point=point, sources=sources
    )
    return _Attach.apply(z, point.fz, attachment, *sources.tensors)  # pyright: ignore[reportReturnType]


class Audit:
    """Compares the solutions of backward solves with the whole map, where autograd computes their products anyway.

    A backward pass that carries u through the graph of f to the parameters ends at the state too, with Jᵀu.

    Args:
        cell: The map as the caller has it.
        eps: Precision with which products are computed.
    """

    def __init__(self, cell: Callable[..., Any], eps: float) -> None:
        self._cell, self._eps = cell, eps
        self._expected: tuple[Tensor, Tensor, Tensor] | None = None

    def watch(self, z: Tensor) -> Tensor:
        """Return a state at which to evaluate f, and at which products arrive."""
        with torch.enable_grad():
            watched: Any = _Watch.apply(z.detach().requires_grad_(), self)
        return watched

    def expect(self, point: Linearization, u: Tensor, g: Tensor, residual: Tensor) -> None:
        """Remember a solution, if this pass will come to the state; `torch.autograd.grad` does not, for one."""
        first: Any = point.first.grad_fn
        node, _ = first.next_functions[0]
        # Of a point that stands for others, the node is the selection of its rows.
        if torch._C._will_engine_execute_node(node):  # pyright: ignore[reportAttributeAccessIssue]
            self._expected = u, g, residual

    def compare(self, product: Tensor) -> None:
        """Refuse a product that does not belong to the solution."""
        expected, self._expected = self._expected, None
        if expected is not None:
            u, g, residual = expected
            check_solution(self._cell, product, u, g, residual, self._eps)


class _Watch(torch.autograd.Function):
    """Passes a state through, and shows the product that arrives at it."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, audit: Audit) -> Tensor:
        ctx.audit = audit
        ctx.set_materialize_grads(False)
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if gradients[0] is not None:
            ctx.audit.compare(gradients[0])
        return None, None


class Sources:
    """What the graph of f hangs on: its leaves, and the inputs that are part of a graph.

    f may also close over tensors that are no leaves. Gradients reach them through the graph, but they cannot be named;
    `are_named` is False then.
    """

    def __init__(self, point: Linearization) -> None:
        inputs = leaves(point.inputs)
        tensors = {id(leaf): leaf for part in inputs for leaf in tensors_of(part)}
        known = [tensor for tensor in tensors.values() if tensor.grad_fn is not None]
        stops = {(tensor.grad_fn, tensor.output_nr) for tensor in known}
        first: Any = point.first.grad_fn
        pending: list[Any] = [(point.fz.grad_fn, point.fz.output_nr)]
        seen = dict.fromkeys(pending)
        found: list[Tensor] = []
        self.are_named = True
        while pending:
            edge = node, _ = pending.pop()
            if node is None or node is first or edge in stops:
                continue
            if hasattr(node, "variable"):
                found.append(node.variable)
            elif node._sequence_nr() < first._sequence_nr():
                # Made before f was evaluated: something that f closes over.
                self.are_named = False
            else:
                # In a fixed order, as checkpointing compares what two evaluations save.
                following = [edge for edge in dict.fromkeys(node.next_functions) if edge not in seen]
                seen.update(dict.fromkeys(following))
                pending.extend(following)
        self.computed_inputs = [tensor for tensor in known if (tensor.grad_fn, tensor.output_nr) in seen]
        self.tensors = found + self.computed_inputs
        self.exist = bool(self.tensors) or not self.are_named
        self._versions = [tensor._version for tensor in self.tensors]

    def check_versions(self, what: str) -> None:
        """Refuse to evaluate f anew in a backward pass if that would use other numbers than the solve did."""
        for tensor, version in zip(self.tensors, self._versions, strict=True):
            if tensor._version != version:
                raise RuntimeError(
                    f"A tensor of shape {tuple(tensor.shape)} that f depends on was modified by an inplace operation "
                    f"between the solve and {what}."
                )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Attachment:
    """What the backward passes of one equilibrium need."""

    cotangent: Callable[[Product, Tensor], tuple[Tensor, SolveStats]]
    record: BackwardRecord
    again: Callable[..., Any]
    audit: Audit | None
    refusal: str | None
    point: Linearization
    sources: Sources

    def solve(self, g: Tensor) -> Tensor:
        """Return u without a graph, leaving its stats in the record."""
        with torch.no_grad():
            u, self.record.stats = self.cotangent(self.point.vjp, g.detach())
        return u

    def differentiable_gradients(self, z: Tensor, g: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the sources as part of a graph, for a second derivative.

        f is evaluated once more, now at the state as part of its graph, since J and the derivatives of f depend on it.
        A gate keeps the first derivative from passing beyond the state, as u accounts for that path already, and beyond
        the inputs, as what lies there gets its share from theirs. The adjoint system is itself a fixed-point problem in
        u, and is attached in the same way.
        """
        if self.refusal is not None:
            raise RuntimeError(self.refusal)
        if not self.sources.are_named:
            raise RuntimeError(
                "A second derivative through adjoint=Implicit() needs every tensor that f depends on to be a leaf or "
                "an input, but f closes over the result of another computation; pass it after z0 as an input, or use "
                "adjoint=Unrolled()."
            )
        self.sources.check_versions("its second derivative")
        gate = _Gate()
        gated = {id(tensor): gate.apply(tensor) for tensor in self.sources.computed_inputs}
        inputs = replace_tensors(self.point.inputs, gated)
        point = Linearization(self.again, gate.apply(z), inputs, self.point.layout)
        u = self.solve(g)

        def system(u: Tensor) -> Tensor:
            return point.vjp(u, create_graph=True) + g

        u = attach(
            Linearization(system, u, (), Layout(u)),
            u,
            cotangent=self.cotangent,
            record=BackwardRecord(),
            again=system,
            refusal="A third derivative through adjoint=Implicit() is not supported; use adjoint=Unrolled().",
        )
        targets = [gated.get(id(source), source) for source in self.sources.tensors]
        gradients = torch.autograd.grad(point.fz, targets, u, create_graph=True, allow_unused=True)
        gate.is_open = True
        return gradients


class _Attach(torch.autograd.Function):
    """Passes the state through; its backward hands u to the graph of f."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, fz: Tensor, attachment: _Attachment, *sources: Tensor) -> Tensor:
        ctx.attachment = attachment
        ctx.set_materialize_grads(False)
        z = z.view_as(z)
        ctx.save_for_backward(z)
        return z

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        attachment: _Attachment = ctx.attachment
        (z,), (g,) = ctx.saved_tensors, gradients
        nothing = (None,) * len(attachment.sources.tensors)
        if g is None:
            return None, None, None, *nothing
        with without_autocast(attachment.point.layout):
            if torch.is_grad_enabled():
                return None, None, None, *attachment.differentiable_gradients(z, g)
            u = attachment.solve(g)
            if attachment.audit is not None and attachment.record.stats is not None:
                attachment.audit.expect(attachment.point, u, g, attachment.record.stats.residual)
            return None, u, None, *nothing


class _Gate:
    """Lets gradients pass, or not."""

    is_open = False

    def apply(self, tensor: Tensor) -> Tensor:
        """Return a tensor, seen through the gate."""
        through: Any = _PassGate.apply(tensor, self)
        return through


class _PassGate(torch.autograd.Function):
    """The identity, whose gradient passes only while the gate is open."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, gate: _Gate) -> Tensor:
        ctx.gate = gate
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (gradients[0] if ctx.gate.is_open else None), None
