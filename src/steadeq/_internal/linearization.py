"""A map around a point: its image there, and products with its Jacobian."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .trees import Layout
from .unsupported import is_transformed


class Linearization:
    """f evaluated once at z with its graph kept, so that each product with J or Jᵀ is one backward pass.

    Args:
        f: The map, called as f(state, *inputs).
        z: The (B, D) point. A point that is part of a graph stays so: the Jacobian then depends on what z came from.
        inputs: What f takes after the state.
        layout: How states lie in matrices.
    """

    def __init__(self, f: Callable[..., Any], z: Tensor, inputs: tuple[Any, ...], layout: Layout) -> None:
        self.f, self.inputs, self.layout = f, inputs, layout
        if is_transformed():
            raise RuntimeError(
                "Penalties and spectra need products with the Jacobian, which are not available under torch.func; use "
                "torch.autograd.grad instead."
            )
        with torch.enable_grad():
            z = z if z.requires_grad else z.detach().requires_grad_()
            # The first node of the graph of f, by which nodes made inside of f are told from older ones.
            self.first = z.view_as(z)
            self._pieces = layout.split(self.first)
            image = self._evaluate(self._pieces)
            # If f hands on a leaf, a view of it has the node that leads there.
            self.fz = image.view_as(image) if image.is_leaf else image
        self._transposed: tuple[Tensor, Tensor] | None = None
        self._has_derivative = self._is_whole = False

    def evaluate(self) -> Tensor:
        """Return what another evaluation at z gives."""
        return self._evaluate(self._pieces)

    def _evaluate(self, pieces: tuple[Tensor, ...]) -> Tensor:
        return self.layout.pack_image(self.f(self.layout.assemble(pieces), *self.inputs), pieces[0].shape[0])

    def vjp(self, u: Tensor, *, create_graph: bool = False, retain_graph: bool = True) -> Tensor:
        """Return Jᵀu for a (B, D) matrix u.

        Args:
            u: The matrix.
            create_graph: Whether the product can be differentiated.
            retain_graph: Whether another product will be asked for.

        Raises:
            RuntimeError: The graph of f is cut, or the code inside of f cannot be differentiated that often.
        """
        if not self.fz.requires_grad:
            self.check_graph()
            return torch.zeros_like(u)
        try:
            products = torch.autograd.grad(
                self.fz, self._pieces, u, retain_graph=retain_graph, create_graph=create_graph, allow_unused=True
            )
        except RuntimeError as error:
            if "donated buffers" in str(error):
                reason = "has given away what repeated products with the Jacobian need"
                raise RuntimeError(_COMPILED.format(reason)) from error
            if "use_reentrant" in str(error):
                raise RuntimeError(_REENTRANT) from error
            raise
        if any(product is None for product in products):
            self._refuse_cut([product is None for product in products])
            pairs = zip(products, self._pieces, strict=True)
            products = [torch.zeros_like(piece) if product is None else product for product, piece in pairs]
        product = products[0] if len(products) == 1 else torch.cat(products, dim=1)
        if create_graph and not self._has_derivative:
            _refuse_missing_derivatives(product)
            self._has_derivative = True
        return product

    def check_graph(self) -> None:
        """Refuse an image that has no graph at all although it depends on z.

        Raises:
            RuntimeError: It is such an image.
        """
        if not self.fz.requires_grad:
            self._refuse_cut([True] * len(self._pieces))

    @torch.no_grad()
    def _refuse_cut(self, is_missing: list[bool]) -> None:
        """Refuse leaves of z that autograd finds no way to, unless f really does not depend on them.

        That is told by one more evaluation, with those leaves moved a little, and where it differs by another one at z
        itself, as a cell may be random.
        """
        if self._is_whole:
            return
        step = math.sqrt(self.layout.eps)
        image = self.fz.detach()
        # A leaf of zeros moves by the size of the image, and if that is zero too, by that of one.
        size = root_mean_square(image)
        moved = tuple(
            piece + step * first_positive(root_mean_square(piece), size) if is_lost else piece
            for piece, is_lost in zip(self._pieces, is_missing, strict=True)
        )
        change = torch.linalg.vector_norm(self._evaluate(moved) - image, dim=1)
        if change.any():
            noise = torch.linalg.vector_norm(self.evaluate() - image, dim=1)
            if (change > 10 * noise).any():
                raise RuntimeError(CUT)
        self._is_whole = True

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
    "fixed_point(cell, ..., f_solve=torch.compile(cell)), compiles the evaluations without gradients. The "
    'Jacobian and the spectral penalty take compiled code with estimator="difference".'
)

_REENTRANT = (
    "f is checkpointed with use_reentrant=True, which allows no products with its Jacobian; use "
    'torch.utils.checkpoint.checkpoint(..., use_reentrant=False), or for the Jacobian penalty estimator="difference".'
)

_SHARDED = (
    "The parameters of f are sharded by fully_shard (FSDP2), which frees them after each product with the Jacobian, so "
    'that it has no second derivative; JacobianRegularizer and jacobian_penalty work with estimator="difference", '
    "and ResidualRegularizer always does."
)

CUT = (
    "The graph between z and f(z) is cut: f(z) changes with z, but autograd finds no path from it to z, so the "
    "Jacobian is unknown. Look for detach, .data, torch.no_grad, numpy or torch.compile inside f. If you want no "
    "gradient, solve under torch.no_grad(). If f is constant around z by design, return its result plus 0 * z."
)


def constant(z: Tensor) -> Tensor:
    """Return a copy of a state to evaluate f at for the sake of its parameters, z being held constant.

    It asks for a gradient, which nobody takes, as reentrant checkpointing records nothing for parameters either unless
    a tensor that it is given does. It is neither a leaf nor a view, so that f may write to it.
    """
    return z.detach().requires_grad_().clone() if torch.is_grad_enabled() else z.detach().clone()


def root_mean_square(matrix: Tensor) -> Tensor:
    """Return the (B, 1) root mean squares of the rows of a matrix."""
    return torch.linalg.vector_norm(matrix, dim=1, keepdim=True) / math.sqrt(matrix.shape[1])


def first_positive(*sizes: Tensor) -> Tensor:
    """Return, for each sample, the first size that is larger than zero, or else one."""
    result = torch.ones_like(sizes[0])
    for size in reversed(sizes):
        result = torch.where(size > 0, size, result)
    return result


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
        if name == "torch::autograd::AccumulateGrad" and _is_freed(node.variable):
            raise RuntimeError(_SHARDED)
        if name in ("torch::autograd::NotImplemented", "torch::autograd::Error"):
            raise RuntimeError(
                "An operation inside f has no second derivative. The Jacobian penalty, operator_norm and the second "
                "derivative of a fixed point need one. JacobianRegularizer and SpectralRegularizer work without it if "
                'you pass estimator="difference", and ResidualRegularizer always does. Otherwise, if the operation is '
                "scaled_dot_product_attention, wrap it in "
                "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH) and use .reshape instead of .view "
                "on its output, or write attention by hand; if it is your own torch.autograd.Function, make its "
                "backward differentiable. To compute the penalty without its gradient, use torch.no_grad()."
            )
        following = {node for node, _ in node.next_functions} - seen
        seen |= following
        pending.extend(following)


def _is_freed(parameter: Tensor) -> bool:
    """Whether somebody took the memory of a tensor away, as FSDP2 does with whole parameters between their uses."""
    return parameter.numel() > 0 and parameter.untyped_storage().size() == 0
