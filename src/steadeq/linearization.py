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

    def vjp(self, u: Tensor, *, create_graph: bool = False) -> Tensor:
        """Return Jᵀu for a (B, D) matrix u."""
        if not self.fz.requires_grad:
            return torch.zeros_like(u)
        return torch.autograd.grad(
            self.fz, self.first, u, retain_graph=True, create_graph=create_graph, materialize_grads=True
        )[0]

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
