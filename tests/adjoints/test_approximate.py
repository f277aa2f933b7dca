import math

import pytest
import torch
from adjoints.cells import (
    EXACT,
    TIGHT,
    CountBackward,
    TanhCell,
    energy,
    largest_error,
    leaf,
    matrix,
    relative_error,
)

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


@pytest.fixture
def z_star(cell, x):
    with torch.no_grad():
        return fixed_point(cell, torch.zeros_like(x), x, solver=TIGHT).z


def test_one_step_is_the_gradient_of_one_evaluation(cell, x, z_star):
    expected = torch.autograd.grad(energy(cell(z_star, x)), [*cell.parameters(), x])
    assert largest_error(gradients(cell, x, OneStep()), expected) < 1e-11


def test_phantom_of_one_full_step_is_one_step(cell, x):
    torch.testing.assert_close(gradients(cell, x, Phantom(1, 1.0)), gradients(cell, x, OneStep()), rtol=0, atol=0)


@pytest.mark.parametrize(("num_steps", "damping"), [(1, 0.5), (2, 1.0), (4, 0.3), (5, 0.5), (9, 0.9)])
def test_phantom_is_the_gradient_of_damped_steps_from_the_equilibrium(num_steps, damping, cell, x, z_star):
    z = z_star
    for _ in range(num_steps):
        z = damping * cell(z, x) + (1 - damping) * z
    expected = torch.autograd.grad(energy(z), [*cell.parameters(), x])
    assert largest_error(gradients(cell, x, Phantom(num_steps, damping)), expected) < 1e-11


def test_phantom_is_the_damped_neumann_sum():
    dim, num_steps, damping = 5, 6, 0.4
    weight, x = matrix(dim, 0.9), leaf(3, dim)
    g = torch.randn(3, dim, dtype=torch.float64)
    adjoint = Phantom(num_steps=num_steps, damping=damping)
    z = fixed_point(lambda z, x: z @ weight.T + x, torch.zeros_like(x), x, solver=TIGHT, adjoint=adjoint).z
    z.backward(g)
    damped = damping * weight + (1 - damping) * torch.eye(dim, dtype=torch.float64)
    total = sum(torch.linalg.matrix_power(damped, power) for power in range(num_steps))
    torch.testing.assert_close(x.grad, damping * g @ total)


def test_phantom_tends_to_the_exact_gradient(cell, x):
    exact = gradients(cell, x, EXACT)
    errors = [largest_error(gradients(cell, x, Phantom(num_steps, 0.8)), exact) for num_steps in (2, 8, 32, 150)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-9


def test_shine_is_exact_in_one_dimension_where_the_secant_is_the_slope():
    slope, x = torch.tensor(0.6, dtype=torch.float64), leaf(5, 1)
    solver, adjoint = Broyden(max_evals=20, tol=1e-13), Shine(max_stretch=math.inf)
    z = fixed_point(lambda z, x: slope * z + x, torch.zeros_like(x), x, solver=solver, adjoint=adjoint).z
    z.sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 1 / 0.4))


def test_shine_applies_the_transposed_inverse_of_textbook_broyden():
    dim, max_evals = 6, 9
    weight, x, g = matrix(dim, 0.9), leaf(1, dim), torch.randn(1, dim, dtype=torch.float64)
    solver, adjoint = Broyden(max_evals=max_evals, tol=0.0), Shine(max_stretch=math.inf)
    value = fixed_point(lambda z, x: z @ weight.T + x, torch.zeros_like(x), x, solver=solver, adjoint=adjoint).z
    value.backward(g)
    inverse = -torch.eye(dim, dtype=torch.float64)
    z = torch.zeros(dim, dtype=torch.float64)
    residual = x.detach()[0]
    errors = []
    for _ in range(max_evals - 1):
        step = -inverse @ residual
        z = z + step
        change = weight @ z + x.detach()[0] - z - residual
        residual = residual + change
        image = inverse @ change
        inverse = inverse + torch.outer(step - image, step @ inverse) / (step @ image)
        errors.append(relative_error(x.grad, -g @ inverse))
    # Whether the last evaluation, which only measures the state, still brings a secant is the solver's choice.
    assert min(errors[-2:]) < 1e-8


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


def test_shine_with_the_whole_history_is_closer_to_the_exact_gradient_than_one_step():
    cell, x = TanhCell(6, 0.9), leaf(8, 6)
    solver = Broyden(max_evals=60, tol=1e-13, memory=60)
    exact = gradients(cell, x, EXACT)
    shine = largest_error(gradients(cell, x, Shine(max_stretch=math.inf), solver), exact)
    one_step = largest_error(gradients(cell, x, OneStep(), solver), exact)
    assert shine < 0.75 * one_step


def test_shine_falls_back_to_one_step_where_the_estimate_stretches_too_far(cell, x):
    solver = Broyden(max_evals=60, tol=1e-12, memory=60)
    never = gradients(cell, x, Shine(max_stretch=1e-9), solver)
    torch.testing.assert_close(never, gradients(cell, x, OneStep(), solver), rtol=0, atol=0)


def test_shine_falls_back_sample_by_sample():
    # u = g / (1 - slope): a stretch of 1.25 is trusted, one of 5 is not.
    slope = torch.tensor([[0.2], [0.8]], dtype=torch.float64)
    x = leaf(2, 1)
    solver = Broyden(max_evals=20, tol=1e-13)
    f = lambda z, x, slope: slope * z + x  # noqa: E731
    z = fixed_point(f, torch.zeros_like(x), x, slope, solver=solver, adjoint=Shine(max_stretch=1.3)).z
    z.sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[1.25], [1.0]], dtype=torch.float64))


def test_shine_keeps_every_sample_of_a_batch_of_mixed_difficulty():
    slope = torch.linspace(0.05, 0.6, 12, dtype=torch.float64)[:, None]
    x = leaf(12, 1)
    solver, adjoint = Broyden(max_evals=30, tol=1e-12), Shine(max_stretch=math.inf)
    f = lambda z, x, slope: slope * torch.sin(z) + x  # noqa: E731
    eq = fixed_point(f, torch.zeros_like(x), x, slope, solver=solver, adjoint=adjoint)
    assert eq.stats.num_evals.min() < eq.stats.num_evals.max()
    eq.z.sum().backward()
    exact = 1 / (1 - slope * torch.cos(eq.z.detach()))
    # The last secant of a superlinearly converging sample is the slope up to the length of its step.
    torch.testing.assert_close(x.grad, exact, rtol=1e-3, atol=0)


@pytest.mark.parametrize("solver", [Anderson(), Picard()])
def test_shine_needs_broyden(solver):
    with pytest.raises(ValueError, match=rf"Shine\(\) needs solver=Broyden.*not {type(solver).__name__}"):
        fixed_point(torch.cos, torch.zeros(1, 1), solver=solver, adjoint=Shine())


@pytest.mark.parametrize("max_stretch", [0, -1.0, math.nan])
def test_shine_refuses_a_stretch_that_is_not_positive(max_stretch):
    with pytest.raises(ValueError, match="max_stretch"):
        Shine(max_stretch=max_stretch)


@pytest.mark.parametrize("arguments", [{"num_steps": 0}, {"damping": 0.0}, {"damping": 1.5}])
def test_phantom_refuses_meaningless_arguments(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=name):
        Phantom(**arguments)


def test_phantom_refuses_a_number_of_steps_that_is_not_an_integer():
    with pytest.raises(TypeError, match="num_steps"):
        Phantom(num_steps=2.0)


def rotation_error(adjoint):
    """Return the relative error of the gradient of an affine map whose Jacobian is 0.8 times a rotation.

    Every power of J shrinks every vector by the same 0.8, so that what a truncated series leaves out is known exactly.
    """
    dim = 12
    weight = 0.8 * torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64))[0]
    x, g = leaf(5, dim), torch.randn(5, dim, dtype=torch.float64)
    solver = Broyden(max_evals=100, tol=1e-12)
    value = fixed_point(lambda z, x: z @ weight.T + x, torch.zeros_like(x), x, solver=solver, adjoint=adjoint).z
    value.backward(g)
    return relative_error(x.grad, g @ torch.linalg.inv(torch.eye(dim, dtype=torch.float64) - weight))


EXACT_ERRORS = {
    "one_step": (OneStep(), 0.8),
    "phantom_2": (Phantom(2, 1.0), 0.8**2),
    "phantom_5": (Phantom(5, 1.0), 0.8**5),
    "phantom_20": (Phantom(20, 1.0), 0.8**20),
}


@pytest.mark.parametrize(("adjoint", "expected"), EXACT_ERRORS.values(), ids=EXACT_ERRORS)
def test_a_truncated_series_has_the_gradient_error_of_what_it_leaves_out(adjoint, expected):
    assert rotation_error(adjoint) == pytest.approx(expected, rel=1e-6)


ERROR_BOUNDS = {
    "implicit": (Implicit(GMRES(tol=1e-7)), 0, 1e-6),
    "implicit_default": (Implicit(), 0, 1e-5),
    "phantom_default": (Phantom(), 0.1, 0.8),
    "shine": (Shine(max_stretch=math.inf), 1e-6, 0.8),
}


@pytest.mark.parametrize(("adjoint", "least", "most"), ERROR_BOUNDS.values(), ids=ERROR_BOUNDS)
def test_each_adjoint_has_a_gradient_error_of_the_documented_order(adjoint, least, most):
    # 0.8 is the error of OneStep here: what costs more, or remembers more, must be better.
    assert least <= rotation_error(adjoint) < most


def test_biased_gradients_still_descend_on_a_contraction(cell, x):
    # J has norm below 1, so g and each estimate of (I - Jᵀ)⁻¹ g keep a positive inner product with the exact one.
    exact = gradients(cell, x, EXACT)[-1]
    for adjoint in (OneStep(), Phantom(), Shine()):
        estimate = gradients(cell, x, adjoint, Broyden(max_evals=100, tol=1e-12))[-1]
        assert torch.cosine_similarity(estimate.flatten(), exact.flatten(), dim=0) > 0.5


@pytest.mark.parametrize(
    ("adjoint", "num_products"),
    [
        (OneStep(), 0),
        (Phantom(1, 0.5), 0),
        (Phantom(5, 0.5), 4),
        (Shine(), 0),
        (Implicit(GMRES(max_evals=3, tol=0.0)), 3),
    ],
    ids=["one_step", "phantom_1", "phantom_5", "shine", "implicit_3"],
)
def test_products_with_the_jacobian_are_as_many_as_the_record_says(adjoint, num_products, cell, x):
    counts = []
    f = lambda z, x: CountBackward.apply(cell(z, x), counts)  # noqa: E731
    eq = fixed_point(f, torch.zeros_like(x), x, solver=Broyden(max_evals=60, tol=1e-12), adjoint=adjoint)
    eq.z.sum().backward()
    assert eq.backward.num_evals.tolist() == [num_products] * 4
    # One more pass carries u on to the parameters and the inputs. The first time, two tell whether samples see each
    # other.
    num_first = 2 if isinstance(adjoint, Implicit) else 0
    assert len(counts) == num_products + 1 + num_first
