import math

import pytest
import torch
from adjoints.cells import TIGHT, TanhCell, energy, leaf, relative_error

from steadeq import GMRES, Anderson, Broyden, Implicit, OneStep, Phantom, Picard, Shine, fixed_point


def gradients(cell, x, adjoint, solver=TIGHT):
    eq = fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=adjoint)
    return torch.autograd.grad(energy(eq.z), [*cell.parameters(), x])


@pytest.fixture
def cell():
    return TanhCell(6, 0.8)


@pytest.fixture
def x():
    return leaf(4, 6)


def test_the_estimate_of_shine_does_not_depend_on_the_neighbors_of_a_sample():
    cell, x = TanhCell(8, 0.9), torch.randn(6, 8, dtype=torch.float64)
    # Samples of different difficulty, so that some finish while others go on.
    x *= torch.linspace(0.1, 4, 6, dtype=torch.float64)[:, None]
    g = torch.randn_like(x)
    solver, adjoint = Broyden(max_evals=60, tol=1e-6), Shine(max_stretch=math.inf)

    def gradient(rows):
        y = x[rows].clone().requires_grad_()
        eq = fixed_point(cell, torch.zeros_like(y), y, solver=solver, adjoint=adjoint)
        eq.z.backward(g[rows])
        return y.grad, eq.stats.num_evals

    together, num_evals = gradient(slice(None))
    assert num_evals.min() < num_evals.max()
    for row in range(6):
        assert relative_error(together[row], gradient([row])[0][0]) < 1e-8


def test_shine_keeps_the_whole_history_whatever_the_memory_of_the_solver_is(cell, x):
    short, whole = (
        gradients(cell, x, Shine(max_stretch=math.inf), Broyden(max_evals=9, tol=0, memory=memory))
        for memory in (2, None)
    )
    torch.testing.assert_close(short, whole, rtol=0, atol=0)


def test_shine_falls_back_sample_by_sample():
    # u = g / (1 - slope): a stretch of 1.25 is trusted, one of 5 is not.
    slope = torch.tensor([[0.2], [0.8]], dtype=torch.float64)
    x = leaf(2, 1)
    solver = Broyden(max_evals=20, tol=1e-13)
    f = lambda z, x, slope: slope * z + x  # noqa: E731
    z = fixed_point(f, torch.zeros_like(x), x, slope, solver=solver, adjoint=Shine(max_stretch=1.3)).z
    z.sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[1.25], [1.0]], dtype=torch.float64))


@pytest.mark.parametrize("solver", [Anderson(), Picard()])
def test_shine_needs_broyden(solver):
    with pytest.raises(ValueError, match=rf"Shine\(\) needs solver=Broyden.*not {type(solver).__name__}"):
        fixed_point(torch.cos, torch.zeros(1, 1), solver=solver, adjoint=Shine())


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        *((lambda bad=bad: Shine(max_stretch=bad), ValueError, "max_stretch") for bad in (0, math.nan)),
        (lambda: Phantom(num_steps=0), ValueError, "num_steps"),
        (lambda: Phantom(num_steps=2.0), TypeError, "num_steps"),
        *((lambda bad=bad: Phantom(damping=bad), ValueError, "damping") for bad in (0.0, 1.5)),
    ],
)
def test_meaningless_arguments_are_refused(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize(
    ("adjoint", "least", "most"),
    [
        (OneStep(), 0.8 - 1e-6, 0.8 + 1e-6),
        *((Phantom(n, 1.0), 0.8**n * (1 - 1e-6), 0.8**n * (1 + 1e-6)) for n in (2, 5, 20)),
        # What costs more than one step, or remembers more, must be better.
        (Phantom(), 0.1, 0.8),
        (Shine(max_stretch=math.inf), 1e-6, 0.8),
        (Implicit(), 0, 1e-5),
        (Implicit(GMRES(tol=1e-7)), 0, 1e-6),
    ],
    ids=repr,
)
def test_each_adjoint_has_the_gradient_error_of_what_it_leaves_out(adjoint, least, most):
    # J is 0.8 times a rotation: each of its powers shrinks every vector by the same 0.8, so that errors are known.
    dim = 12
    weight = 0.8 * torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64))[0]
    x, g = leaf(5, dim), torch.randn(5, dim, dtype=torch.float64)
    solver = Broyden(max_evals=100, tol=1e-12)
    value = fixed_point(lambda z, x: z @ weight.T + x, torch.zeros_like(x), x, solver=solver, adjoint=adjoint).z
    value.backward(g)
    exact = g @ torch.linalg.inv(torch.eye(dim, dtype=torch.float64) - weight)
    assert least <= relative_error(x.grad, exact) <= most
