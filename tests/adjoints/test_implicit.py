import pytest
import torch
from adjoints.cells import (
    BACKWARD_SOLVERS,
    EXACT,
    LONG_LOOP,
    TIGHT,
    TanhCell,
    energy,
    largest_error,
    leaf,
    matrix,
    relative_error,
)
from torch.autograd import gradcheck

from steadeq import GMRES, Anderson, Broyden, Implicit, NewtonKrylov, OneStep, Picard, Unrolled, fixed_point

each_backward_solver = pytest.mark.parametrize("solver", BACKWARD_SOLVERS.values(), ids=BACKWARD_SOLVERS)


def test_gradcheck_with_respect_to_a_closed_over_result_of_a_computation():
    def layer(raw, x):
        weight, shift = 0.5 * torch.sin(raw), raw.sum().cos()
        f = lambda z: torch.tanh(z @ weight.T + shift + x.exp())  # noqa: E731
        return fixed_point(f, torch.zeros_like(x), solver=TIGHT, adjoint=EXACT).z

    assert gradcheck(layer, (leaf(3, 3), leaf(2, 3)))


def test_gradcheck_of_nested_states_and_inputs():
    def layer(weight, scale, x, y):
        def f(z, inputs):
            a, [b] = z["a"], z["rest"]
            mixed = torch.cat([a, b.flatten(1)], dim=1) @ weight.T
            return {
                "a": torch.tanh(mixed[:, :2] + inputs["x"]),
                "rest": [(scale * torch.sin(mixed[:, 2:] + inputs["more"][0])).reshape(-1, 1, 2)],
            }

        z0 = {"a": torch.zeros_like(x), "rest": [x.new_zeros(x.shape[0], 1, 2)]}
        value = fixed_point(f, z0, {"x": x, "more": (y,)}, solver=TIGHT, adjoint=EXACT).z
        return value["a"], value["rest"][0]

    scale = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    assert gradcheck(layer, (matrix(4, 0.6).requires_grad_(), scale, leaf(2, 2), leaf(2, 2)))


@each_backward_solver
def test_affine_gradient_is_the_closed_form(solver):
    dim, batch = 6, 4
    weight, x, g = matrix(dim, 0.9).requires_grad_(), leaf(batch, dim), torch.randn(batch, dim, dtype=torch.float64)
    eq = fixed_point(lambda z, x: z @ weight.T + x, torch.zeros_like(x), x, solver=TIGHT, adjoint=Implicit(solver))
    eq.z.backward(g)
    inverse = torch.linalg.inv(torch.eye(dim, dtype=torch.float64) - weight.detach())
    u = g @ inverse
    z_star = x.detach() @ inverse.T
    torch.testing.assert_close(eq.z.detach(), z_star)
    torch.testing.assert_close(x.grad, u, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(weight.grad, u.T @ z_star, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("solver", [BACKWARD_SOLVERS[name] for name in ("gmres", "broyden", "anderson", "newton")])
def test_affine_gradient_is_the_closed_form_where_plain_iteration_diverges(solver):
    # Eigenvalues 1.2 e^(±i pi/2) and -2: the spectral radius is 2.
    weight = torch.tensor([[0.0, -1.2, 0.3], [1.2, 0.0, 0.0], [0.0, 0.0, -2.0]], dtype=torch.float64)
    x, g = leaf(3, 3), torch.randn(3, 3, dtype=torch.float64)
    f = lambda z, x: z @ weight.T + x  # noqa: E731
    z = fixed_point(f, torch.zeros_like(x), x, solver=TIGHT, adjoint=Implicit(solver)).z
    z.backward(g)
    expected = g @ torch.linalg.inv(torch.eye(3, dtype=torch.float64) - weight)
    torch.testing.assert_close(x.grad, expected, rtol=1e-8, atol=1e-9)


@each_backward_solver
def test_gradient_equals_that_of_an_unrolled_converged_iteration(solver):
    cell, x = TanhCell(8, 0.8), leaf(5, 8)
    sources = [*cell.parameters(), x]
    gradients = []
    for forward, adjoint in ((TIGHT, Implicit(solver)), (LONG_LOOP, Unrolled())):
        z = fixed_point(cell, torch.zeros_like(x), x, solver=forward, adjoint=adjoint).z
        gradients.append(torch.autograd.grad(energy(z), sources))
    assert largest_error(*gradients) < 1e-9


def test_a_map_that_ignores_its_state_has_the_ordinary_gradient():
    weight, x = matrix(4, 2.0).requires_grad_(), leaf(3, 4)
    z = fixed_point(lambda z, x: torch.sin(x @ weight), torch.zeros_like(x), x, solver=TIGHT).z
    expected = torch.autograd.grad(energy(torch.sin(x @ weight)), (weight, x))
    actual = torch.autograd.grad(energy(z), (weight, x))
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("make_input", [lambda x: x, torch.sin], ids=["leaf", "computed"])
def test_a_map_that_returns_its_input_has_the_gradient_of_the_identity(make_input):
    x = leaf(3, 4)
    y = make_input(x)
    z = fixed_point(lambda z, y: y, torch.zeros_like(y), y, solver=TIGHT).z
    torch.testing.assert_close(torch.autograd.grad(energy(z), y), torch.autograd.grad(energy(y), y))


def test_states_may_have_no_dimension_but_the_batch():
    x = leaf(5)
    z = fixed_point(lambda z, x: torch.tanh(0.5 * z + x), torch.zeros_like(x), x, solver=TIGHT, adjoint=EXACT).z
    z.sum().backward()
    slope = 1 - z.detach() ** 2
    torch.testing.assert_close(x.grad, slope / (1 - 0.5 * slope))


def test_the_start_may_be_the_input_a_broadcast_or_an_inference_tensor():
    cell, x = TanhCell(4), leaf(3, 4)
    with torch.inference_mode():
        inferred = torch.ones(3, 4, dtype=torch.float64)
    gradients = []
    for z0 in (torch.zeros_like(x), x, torch.ones(1, 1, dtype=torch.float64).expand(3, 4), inferred):
        z = fixed_point(cell, z0, x, solver=TIGHT, adjoint=EXACT).z
        gradients.append(torch.autograd.grad(energy(z), [*cell.parameters(), x]))
    for other in gradients[1:]:
        assert largest_error(other, gradients[0]) < 1e-10


@pytest.mark.parametrize("trained", ["weight", "bias", "x"])
def test_each_source_may_be_the_only_one_that_requires_a_gradient(trained):
    cell, x = TanhCell(4), leaf(3, 4)
    sources = {"weight": cell.weight, "bias": cell.bias, "x": x}
    solve = lambda: fixed_point(cell, torch.zeros_like(x), x, solver=TIGHT, adjoint=EXACT).z  # noqa: E731
    expected = torch.autograd.grad(energy(solve()), sources[trained])
    for name, source in sources.items():
        source.requires_grad_(name == trained)
    energy(solve()).backward()
    torch.testing.assert_close(sources[trained].grad, expected[0])
    assert all(source.grad is None for name, source in sources.items() if name != trained)


@pytest.mark.parametrize("max_evals", [1, 2, 30])
@pytest.mark.parametrize("adjoint", [EXACT, OneStep()], ids=["implicit", "one_step"])
def test_the_start_receives_no_gradient(max_evals, adjoint):
    cell, x, raw = TanhCell(4), leaf(3, 4), leaf(3, 4)
    for z0 in (raw, raw.sin()):
        z = fixed_point(cell, z0, x, solver=Anderson(max_evals=max_evals, tol=1e-9), adjoint=adjoint).z
        gradients = torch.autograd.grad(z.sum(), (raw, x), allow_unused=True)
        assert gradients[0] is None
        assert gradients[1] is not None


@pytest.mark.parametrize("max_evals", [1, 2])
@pytest.mark.parametrize("grad", [True, False])
def test_the_state_never_shares_memory_with_the_start(max_evals, grad):
    cell, x, z0 = TanhCell(4), leaf(3, 4), torch.zeros(3, 4, dtype=torch.float64)
    with torch.set_grad_enabled(grad):
        z = fixed_point(cell, z0, x, solver=Picard(max_evals=max_evals)).z
    before = z.detach().clone()
    z0 += 1
    torch.testing.assert_close(z.detach(), before)


def test_a_warm_start_gives_the_same_gradient_as_a_cold_one():
    cell, x = TanhCell(6), leaf(4, 6)
    sources = [*cell.parameters(), x]
    cold = fixed_point(cell, torch.zeros_like(x), x, solver=TIGHT, adjoint=EXACT)
    warm = fixed_point(cell, cold.z.detach(), x, solver=Anderson(max_evals=9, tol=1e-10), adjoint=EXACT)
    assert warm.stats.num_evals.max() == 1
    expected = torch.autograd.grad(energy(cold.z), sources)
    assert largest_error(torch.autograd.grad(energy(warm.z), sources), expected) < 1e-10


@pytest.mark.parametrize("compact", [True, False, None])
def test_gradients_of_a_batch_of_mixed_difficulty_equal_those_of_its_samples_alone(compact):
    # The gain is an input, so that samples converge after very different numbers of evaluations.
    weight = matrix(5, 1.0).requires_grad_()
    gain = torch.linspace(0.05, 0.95, 16, dtype=torch.float64)[torch.randperm(16)][:, None].requires_grad_()
    x = leaf(16, 5)
    f = lambda z, x, gain: torch.tanh(gain * (z @ weight.T) + x)  # noqa: E731
    whole = fixed_point(f, torch.zeros_like(x), x, gain, solver=TIGHT, adjoint=EXACT, compact=compact)
    assert whole.stats.num_evals.min() < whole.stats.num_evals.max()
    gradients = torch.autograd.grad(energy(whole.z), (weight, x, gain))
    total = torch.zeros_like(weight)
    for row in range(16):
        rows = slice(row, row + 1)
        z0 = torch.zeros(1, 5, dtype=torch.float64)
        alone = fixed_point(f, z0, x[rows], gain[rows], solver=TIGHT, adjoint=EXACT)
        single = torch.autograd.grad(energy(alone.z), (weight, x, gain))
        total += single[0]
        torch.testing.assert_close(gradients[1][row], single[1][row], rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(gradients[2][row], single[2][row], rtol=1e-10, atol=1e-11)
    assert relative_error(gradients[0], total) < 1e-10


def test_a_budget_too_small_for_the_forward_solve_still_gives_the_gradient_at_its_state():
    # z - f(z) = r is what holds at the state; the implicit gradient is that of the equilibrium of this shifted problem.
    cell, x = TanhCell(5, 0.9), leaf(3, 5)
    eq = fixed_point(cell, torch.zeros_like(x), x, solver=Picard(max_evals=3), adjoint=EXACT)
    z = eq.z.detach()
    shift = z - cell(z, x).detach()
    shifted = fixed_point(lambda z, x: cell(z, x) + shift, z, x, solver=TIGHT, adjoint=EXACT)
    assert shifted.stats.num_evals.max() == 1
    sources = [*cell.parameters(), x]
    actual = torch.autograd.grad(energy(eq.z), sources)
    assert largest_error(actual, torch.autograd.grad(energy(shifted.z), sources)) < 1e-10


def test_the_tolerance_of_the_backward_solve_bounds_the_error_of_the_gradient():
    cell, x = TanhCell(32, 0.95), leaf(4, 32)
    solve = lambda adjoint: fixed_point(cell, torch.zeros_like(x), x, solver=TIGHT, adjoint=adjoint)  # noqa: E731
    (expected,) = torch.autograd.grad(energy(solve(EXACT).z), x)
    errors = []
    for tol in (1e-1, 1e-3, 1e-6):
        eq = solve(Implicit(GMRES(tol=tol, max_evals=100)))
        (actual,) = torch.autograd.grad(energy(eq.z), x)
        assert eq.backward.residual.max() <= tol
        # ‖(I - Jᵀ)⁻¹‖ <= 1 / (1 - 0.95)
        errors.append(relative_error(actual, expected))
        assert errors[-1] <= 20 * tol
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("solver", [GMRES(), Anderson(), Broyden(), Picard(), NewtonKrylov()])
def test_one_sample_of_one_component_works(solver):
    w = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    adjoint = Implicit(solver)
    value = fixed_point(lambda z: torch.cos(w * z), torch.zeros(1, 1).double(), solver=TIGHT, adjoint=adjoint).z
    value.sum().backward()
    z = float(value.detach())
    slope = torch.sin(w.detach() * z)
    assert float(w.grad) == pytest.approx(float(-z * slope / (1 + w.detach() * slope)), rel=2e-3)
