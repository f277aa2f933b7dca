"""A map around a point: its image there, and products with its Jacobian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .state import Layout


class Linearization:
    """f evaluated once at z with its graph kept, so that each product with J or Jᵀ is one backward pass.

    Args:
        f: The map, called as f(state, *inputs).
        z: The (B, D) point. A point that is part of a graph stays so: the Jacobian then depends on what z came from.
        inputs: What f takes after the state.
        layout: How states lie in matrices.
    """

    def __init__(self, f: Callable[..., Any], z: Tensor, inputs: tuple[Any, ...], layout: Layout) -> None:
        with torch.enable_grad():
            z = z if z.requires_grad else z.detach().requires_grad_()
            # The first node of the graph of f, by which nodes made inside of f are told from older ones.
            self.first = z.view_as(z)
            image = layout.pack_image(f(layout.unpack(self.first), *inputs), z.shape[0])
            # If f hands on a leaf, a view of it has the node that leads there.
            self.fz = image.view_as(image) if image.is_leaf else image
        self._transposed: tuple[Tensor, Tensor] | None = None
        self._is_checked = False

    def vjp(self, u: Tensor, *, create_graph: bool = False) -> Tensor:
        """Return Jᵀu for a (B, D) matrix u.

        Raises:
            RuntimeError: The code inside of f cannot be differentiated that often.
        """
        if not self.fz.requires_grad:
            return torch.zeros_like(u)
        try:
            (product,) = torch.autograd.grad(
                self.fz, self.first, u, retain_graph=True, create_graph=create_graph, materialize_grads=True
            )
        except RuntimeError as error:
            if "donated buffers" in str(error):
                raise RuntimeError(
                    _COMPILED.format("has given away what repeated products with the Jacobian need")
                ) from error
            raise
        if create_graph and not self._is_checked:
            self._is_checked = True
            _refuse_missing_derivatives(product)
        return product

    def jvp(self, v: Tensor) -> Tensor:
        """Return J v for a (B, D) matrix v.

        Jᵀu is linear in u, so its own derivative with respect to u, transposed, is J. Unlike forward-mode
        differentiation this works for every cell that the Jacobian penalty works for.
        """
        if self._transposed is None:
            with torch.enable_grad():
                dummy = torch.zeros_like(self.fz, requires_grad=True)
                self._transposed = dummy, self.vjp(dummy, create_graph=True)
        dummy, image = self._transposed
        if not image.requires_grad:
            return torch.zeros_like(v)
        return torch.autograd.grad(image, dummy, v, retain_graph=True, materialize_grads=True)[0]


_COMPILED = (
    "f runs compiled code, which {}; pass the cell itself and not torch.compile(cell): DEQ(cell, compile=True), or "
    "fixed_point(cell, ..., f_solve=torch.compile(cell)), compiles the evaluations of which no gradient is taken."
)


def _refuse_missing_derivatives(product: Tensor) -> None:
    """Refuse a product with the Jacobian that has no derivative, which autograd would only say much later, or not well.

    Raises:
        RuntimeError: Some node of its graph is there to fail.
    """
    pending: list[Any] = [product.grad_fn]
    seen = {None, *pending}
    while pending:
        node = pending.pop()
        if node is None:
            continue
        name = node.name()
        if name == "CompiledFunctionBackwardBackward":
            raise RuntimeError(_COMPILED.format("has no second derivative"))
        if name in ("torch::autograd::NotImplemented", "torch::autograd::Error"):
            raise RuntimeError(
                "An operation inside of f has no second derivative, which the Jacobian penalty, operator_norm and the "
                "second derivative of a fixed point need; if it is scaled_dot_product_attention, wrap it in "
                "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH) or write attention by hand, and if "
                "it is a torch.autograd.Function of yours, make its backward differentiable. The value of the penalty "
                "alone can be had under torch.no_grad()."
            )
        following = {node for node, _ in node.next_functions} - seen
        seen |= following
        pending.extend(following)
