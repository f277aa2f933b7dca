"""Cells whose derivative has no derivative."""

import pytest
import torch
from adjoints.cells import leaf
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from steadeq import (
    Equilibrium,
    JacobianRegularizer,
    fixed_point,
    frobenius_norm,
    jacobian_penalty,
    operator_norm,
    spectral_radius,
)


class Attention(torch.nn.Module):
    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(0.5 * torch.eye(4))
        self.fused = fused

    def forward(self, z):
        z = z @ self.weight
        if self.fused:
            return scaled_dot_product_attention(z, z, z)
        with sdpa_kernel(SDPBackend.MATH):
            return scaled_dot_product_attention(z, z, z)


class Once(torch.autograd.Function):
    """A sine by a user who did not think of second derivatives."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


def regularize(eq):
    return JacobianRegularizer(weight=1.0)(eq, step=0)


@pytest.mark.parametrize("measure", [jacobian_penalty, regularize, operator_norm])
def test_fused_attention_is_refused_with_what_to_do(measure):
    with pytest.raises(RuntimeError, match=r"no second derivative.*SDPBackend\.MATH.*by hand"):
        measure(Equilibrium.at(Attention(fused=True), torch.randn(2, 2, 6, 4)))


def test_the_remedy_works_for_attention_that_views_its_output():
    def attention(z, merge):
        heads = scaled_dot_product_attention(*(3 * [z.unflatten(2, (2, 4)).transpose(1, 2)]))
        return merge(heads.transpose(1, 2), z.shape)

    z = torch.randn(2, 6, 8)
    fused = Equilibrium.at(lambda z: attention(z, torch.Tensor.view), z)
    with pytest.raises(RuntimeError, match=r"use \.reshape instead of \.view on its output"):
        jacobian_penalty(fused)
    with sdpa_kernel(SDPBackend.MATH):
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            jacobian_penalty(fused)
        assert jacobian_penalty(Equilibrium.at(lambda z: attention(z, torch.Tensor.reshape), z)).item() > 0


def test_a_function_that_can_be_differentiated_once_is_refused():
    with pytest.raises(RuntimeError, match=r"no second derivative.*torch\.autograd\.Function"):
        operator_norm(Equilibrium.at(Once.apply, torch.randn(3, 4)))


def test_the_advice_helps():
    z = torch.randn(2, 2, 6, 4)
    fused, plain = Attention(fused=True), Attention(fused=False)
    jacobian_penalty(Equilibrium.at(plain, z)).backward()
    assert plain.weight.grad.abs().max() > 0
    norm = operator_norm(Equilibrium.at(plain, z))
    assert (norm.value > 0).all()
    # What needs one derivative takes fused attention as well.
    for measure in (frobenius_norm, spectral_radius):
        values = [
            measure(Equilibrium.at(f, z), generator=torch.Generator().manual_seed(1)).value for f in (fused, plain)
        ]
        torch.testing.assert_close(*values)
    with torch.no_grad():
        values = [
            jacobian_penalty(Equilibrium.at(f, z), generator=torch.Generator().manual_seed(1)) for f in (fused, plain)
        ]
    torch.testing.assert_close(*values)


def test_a_second_derivative_of_a_fixed_point_is_refused_too():
    x = leaf(3, 4)
    z = fixed_point(lambda z, x: Once.apply(0.5 * z + x), torch.zeros_like(x), x).z
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(z.sum(), x, create_graph=True)
    z.sum().backward()
