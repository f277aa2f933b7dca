import pytest
import torch
from adjoints.cells import (
    BACKWARD_SOLVERS,
    EXACT,
    TIGHT,
    TanhCell,
    energy,
    largest_error,
    leaf,
    matrix,
    relative_error,
)
from torch.autograd import gradcheck

from steadeq import Anderson, Implicit, OneStep, fixed_point


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
