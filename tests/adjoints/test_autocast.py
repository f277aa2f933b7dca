import pytest
import torch
from adjoints.cells import TanhCell, all_adjoints, largest_error, leaf
from torch import nn

from steadeq import (
    GMRES,
    Anderson,
    Broyden,
    Implicit,
    Phantom,
    Picard,
    Shine,
    fixed_point,
)

ADJOINTS = all_adjoints(1e-2)
each_adjoint = pytest.mark.parametrize("adjoint", ADJOINTS.values(), ids=ADJOINTS)


class LinearCell(nn.Module):
    """A cell whose matrix product autocast would run in bfloat16."""

    def __init__(self, dim=32):
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        with torch.no_grad():
            self.linear.weight *= 0.8 / torch.linalg.matrix_norm(self.linear.weight, 2)
        self.dtypes = set()

    def forward(self, z, x):
        product = self.linear(z)
        self.dtypes.add(product.dtype)
        return torch.tanh(product + x)


def gradients(cell, x, *, solver, adjoint, autocast=False, backward_inside=False):
    sources = [*cell.parameters(), x]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        value = fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=adjoint).z
        loss = value.float().square().sum()
        if backward_inside:
            return value, torch.autograd.grad(loss, sources)
    return value, torch.autograd.grad(loss, sources)


@pytest.fixture
def cell():
    return LinearCell()


@pytest.fixture
def x():
    return leaf(10, 32, dtype=torch.float32)


@each_adjoint
@pytest.mark.parametrize("backward_inside", [False, True], ids=["outside", "inside"])
def test_autocast_changes_gradients_by_rounding_only(adjoint, backward_inside, cell, x):
    # Not tighter than bfloat16 can resolve, or the secants of Broyden, which Shine uses, are noise.
    solver, tolerance = Broyden(tol=1e-2), 0.15 if isinstance(adjoint, Shine) else 0.05
    _, expected = gradients(cell, x, solver=solver, adjoint=adjoint)
    cell.dtypes.clear()
    value, actual = gradients(cell, x, solver=solver, adjoint=adjoint, autocast=True, backward_inside=backward_inside)
    assert cell.dtypes == {torch.bfloat16}
    assert value.dtype == torch.float32
    assert all(gradient.dtype == torch.float32 for gradient in actual)
    assert largest_error(actual, expected) < tolerance


@pytest.mark.parametrize("solver", [Picard(tol=1e-2), Anderson(tol=1e-2), Broyden(tol=1e-2)])
def test_the_arithmetic_of_a_solver_is_not_autocast(solver):
    # A cell that does nothing in bfloat16: autocast may not change a single bit of its equilibrium and gradient.
    # Newton is left out: it takes longer differences where f may be that coarse.
    cell, x = TanhCell(16, 0.8, torch.float32), leaf(6, 16, dtype=torch.float32)
    exempt = lambda z, x: torch.tanh((z[:, None] * cell.weight).sum(dim=2) + x)  # noqa: E731
    results = []
    for is_enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_enabled):
            z = fixed_point(exempt, torch.zeros_like(x), x, solver=solver, adjoint=Implicit(solver)).z
            results.append((z.detach(), *torch.autograd.grad(z.square().sum(), (cell.weight, x))))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def test_the_evaluation_for_a_second_derivative_sees_the_autocast_of_the_forward_pass(cell, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = fixed_point(cell, torch.zeros_like(x), x, solver=Anderson(tol=1e-3)).z
    cell.dtypes.clear()
    torch.autograd.grad(z.square().sum(), x, create_graph=True)
    assert cell.dtypes <= {torch.bfloat16}
    z = fixed_point(cell, torch.zeros_like(x), x, solver=Anderson(tol=1e-3)).z
    cell.dtypes.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.autograd.grad(z.square().sum(), x, create_graph=True)
    assert cell.dtypes <= {torch.float32}


def test_a_layer_may_switch_autocast_by_itself(cell, x):
    # As in a cell that keeps its normalization in full precision.
    class Mixed(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, z, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.inner(z, x).to(z.dtype)

    _, expected = gradients(cell, x, solver=Anderson(), adjoint=Implicit(GMRES(tol=1e-3)))
    mixed = Mixed(cell)
    _, actual = gradients(mixed, x, solver=Anderson(), adjoint=Implicit(GMRES(tol=1e-3)))
    assert largest_error(actual, expected) < 0.05


@each_adjoint
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_states_of_any_floating_dtype_have_gradients_of_their_dtype(adjoint, dtype, cell, x):
    solver = Broyden(tol=2e-2)
    expected = gradients(cell.double(), x.detach().double().requires_grad_(), solver=solver, adjoint=adjoint)[1]
    value, actual = gradients(cell.to(dtype), x.detach().to(dtype).requires_grad_(), solver=solver, adjoint=adjoint)
    assert value.dtype == dtype
    assert all(gradient.dtype == dtype for gradient in actual)
    assert largest_error([gradient.double() for gradient in actual], expected) < 0.06


@pytest.mark.parametrize("adjoint", [Implicit(GMRES(tol=1e-3)), Phantom()], ids=["implicit", "phantom"])
def test_states_may_mix_dtypes(adjoint):
    weight, x = 0.5 * torch.eye(4), leaf(3, 4, dtype=torch.float32)
    weight.requires_grad_()

    def f(z, x):
        half, full = z
        mixed = torch.tanh(full @ weight + half.float() @ weight.T * 0.5 + x)
        return mixed.to(torch.bfloat16), torch.sin(mixed)

    def reference(z, x):
        mixed = torch.tanh(z[1] @ weight + z[0] @ weight.T * 0.5 + x)
        return mixed, torch.sin(mixed)

    z0 = torch.zeros(3, 4, dtype=torch.bfloat16), torch.zeros(3, 4)
    value = fixed_point(f, z0, x, solver=Anderson(tol=1e-2), adjoint=adjoint).z
    assert [part.dtype for part in value] == [torch.bfloat16, torch.float32]
    actual = torch.autograd.grad(value[0].float().sum() + value[1].sum(), (weight, x))
    plain = fixed_point(reference, (torch.zeros(3, 4), torch.zeros(3, 4)), x, solver=Anderson(), adjoint=adjoint).z
    expected = torch.autograd.grad(plain[0].sum() + plain[1].sum(), (weight, x))
    assert largest_error(actual, expected) < 0.05
