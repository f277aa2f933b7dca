from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from adjoints.cells import BACKWARD_SOLVERS, EXACT, LONG_LOOP, TIGHT, Offset, energy, largest_error, leaf, matrix
from torch.autograd import gradgradcheck

from steadeq import Broyden, Implicit, OneStep, Phantom, Shine, Unrolled, fixed_point

each_backward_solver = pytest.mark.parametrize("solver", BACKWARD_SOLVERS.values(), ids=BACKWARD_SOLVERS)


def tanh_map(weight):
    return lambda z, x: torch.tanh(z @ weight.T + x)


@each_backward_solver
def test_gradgradcheck_with_respect_to_parameters_and_inputs(solver):
    def layer(weight, x):
        return fixed_point(tanh_map(weight), torch.zeros_like(x), x, solver=TIGHT, adjoint=Implicit(solver)).z

    assert gradgradcheck(layer, (matrix(2, 0.6).requires_grad_(), leaf(2, 2)))


def test_gradgradcheck_of_nested_states():
    def layer(weight, x):
        def f(z, x):
            mixed = torch.cat(z, dim=1) @ weight.T + x
            return torch.tanh(mixed[:, :1]), torch.sin(mixed[:, 1:])

        z0 = x.new_zeros(x.shape[0], 1), x.new_zeros(x.shape[0], 2)
        return fixed_point(f, z0, x, solver=TIGHT, adjoint=EXACT).z

    assert gradgradcheck(layer, (matrix(3, 0.6).requires_grad_(), leaf(2, 3)))


# Each case is a function of (weight, x, solve) that uses one or more equilibria, with sources related in some way.


def leaves_only(weight, x, solve):
    return solve(tanh_map(weight), x)


def computed_input(weight, x, solve):
    return solve(tanh_map(weight), x.sin())


def same_computed_input_twice(weight, x, solve):
    y = x.sin()
    return solve(lambda z, p, q: torch.tanh(z @ weight.T + p * q.cos()), y, y)


def same_leaf_twice(weight, x, solve):
    return solve(lambda z, p, q: torch.tanh(z @ weight.T + p * q.cos()), x, x)


def inputs_that_depend_on_each_other(weight, x, solve):
    y = x.sin()
    return solve(lambda z, p, q: torch.tanh(z @ weight.T + p * q), y, y**2)


def leaf_and_what_is_computed_from_it(weight, x, solve):
    return solve(lambda z, p, q: torch.tanh(z @ weight.T + p * q), x, x.cos())


def weight_shared_with_the_encoder(weight, x, solve):
    return solve(tanh_map(weight), x @ weight)


def one_layer_twice_in_sequence(weight, x, solve):
    return solve(tanh_map(weight), solve(tanh_map(weight), x))


def one_layer_twice_side_by_side(weight, x, solve):
    return solve(tanh_map(weight), x) * solve(tanh_map(weight), x.cos())


def two_outputs_of_one_node(weight, x, solve):
    top = torch.topk(torch.cat([x, x**2], dim=1), x.shape[1], dim=1).values
    variance, mean = torch.var_mean(torch.stack([x, x.sin()]), dim=0)
    return solve(lambda z, p, q, r: torch.tanh(z @ weight.T + p * q + r), variance, mean, top)


def nested_inputs(weight, x, solve):
    y = x.sin()
    return solve(lambda z, tree: torch.tanh(z @ weight.T + tree["a"] * tree["b"][0]), {"a": y, "b": [x.cos()]})


def inputs_that_all_samples_share(weight, x, solve):
    made = torch.tanh(weight.sum(dim=0))
    f = lambda z, x, s: torch.tanh(z @ weight.T + x + s.value * s.scales[0] * s.scales[1])  # noqa: E731
    return solve(f, x.sin(), Offset(made, (1 + made.square(), 0.5)))


def layer_inside_the_cell(weight, x, solve):
    def cell(z, x):
        h = solve(lambda h, z, x: torch.tanh(h @ weight + 0.3 * z + x), z, x)
        return torch.sin(h @ weight.T)

    return solve(cell, x)


def linear_cell(weight, x, solve):
    return solve(lambda z, x: z @ weight.T + x, x)


def cell_without_state(weight, x, solve):
    return solve(lambda z, x: torch.tanh(x @ weight.T), x)


CASES = [
    leaves_only,
    computed_input,
    same_computed_input_twice,
    same_leaf_twice,
    inputs_that_depend_on_each_other,
    leaf_and_what_is_computed_from_it,
    weight_shared_with_the_encoder,
    one_layer_twice_in_sequence,
    one_layer_twice_side_by_side,
    two_outputs_of_one_node,
    nested_inputs,
    inputs_that_all_samples_share,
    layer_inside_the_cell,
    linear_cell,
    cell_without_state,
]


def solve_with(solver, adjoint):
    def solve(f, *inputs):
        first = inputs[0]["a"] if isinstance(inputs[0], dict) else inputs[0]
        return fixed_point(f, torch.zeros_like(first), *inputs, solver=solver, adjoint=adjoint).z

    return solve


@pytest.fixture
def sources():
    return matrix(3, 0.6).requires_grad_(), leaf(2, 3)


@pytest.mark.parametrize("case", CASES)
def test_first_and_second_derivatives_equal_those_of_unrolling(case, sources):
    firsts, seconds = [], []
    for solver, adjoint in ((TIGHT, EXACT), (LONG_LOOP, Unrolled())):
        value = case(*sources, solve_with(solver, adjoint))
        ordinary = torch.autograd.grad(energy(value), sources, retain_graph=True)
        first = torch.autograd.grad(energy(value), sources, create_graph=True)
        assert largest_error(first, ordinary) < 1e-9
        firsts.append(ordinary)
        total = sum((gradient * torch.sin(gradient)).sum() for gradient in first)
        seconds.append(torch.autograd.grad(total, sources))
    assert largest_error(*firsts) < 1e-8
    assert largest_error(*seconds) < 1e-8


def test_the_second_backward_may_run_twice(sources):
    z = fixed_point(tanh_map(sources[0]), torch.zeros_like(sources[1]), sources[1], solver=TIGHT, adjoint=EXACT).z
    first = torch.autograd.grad(energy(z), sources, create_graph=True)
    total = sum(gradient.square().sum() for gradient in first)
    once = torch.autograd.grad(total, sources, retain_graph=True)
    again = torch.autograd.grad(total, sources)
    torch.testing.assert_close(again, once, rtol=0, atol=0)


def test_the_second_backward_may_run_in_another_thread(sources):
    # Autograd numbers its nodes by thread, and runs backward on devices in threads of its own.
    def backward(value):
        first = torch.autograd.grad(energy(value), sources, create_graph=True)
        return torch.autograd.grad(sum(gradient.square().sum() for gradient in first), sources)

    values = [computed_input(*sources, solve_with(TIGHT, EXACT)) for _ in range(2)]
    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(backward, values[0]).result()
    torch.testing.assert_close(elsewhere, backward(values[1]), rtol=0, atol=0)


def test_a_closed_over_result_of_a_computation_is_refused(sources):
    raw, x = sources
    weight = 0.5 * raw.sin()
    z = fixed_point(tanh_map(weight), torch.zeros_like(x), x, solver=TIGHT, adjoint=EXACT).z
    with pytest.raises(RuntimeError, match=r"second derivative through adjoint=Implicit\(\).*closes over.*input"):
        torch.autograd.grad(z.sum(), raw, create_graph=True)


def test_a_closed_over_sibling_of_an_input_is_refused(sources):
    # Both come out of one node of the graph; only one of them is named as an input.
    weight, x = sources
    least, most = torch.aminmax(torch.stack([x, x.sin()]), dim=0)
    f = lambda z, most: torch.tanh(z @ weight.T + least * most)  # noqa: E731
    z = fixed_point(f, torch.zeros_like(x), most, solver=TIGHT, adjoint=EXACT).z
    with pytest.raises(RuntimeError, match="closes over"):
        torch.autograd.grad(z.sum(), x, create_graph=True)


def test_a_parameter_changed_in_place_since_the_solve_is_never_silently_used(sources):
    # The shift is not saved by the graph of f, but evaluating f anew would see its new value.
    weight, x = sources
    shift = leaf(3)
    f = lambda z, x: torch.tanh(z @ weight.T + shift + x)  # noqa: E731
    z = fixed_point(f, torch.zeros_like(x), x, solver=TIGHT, adjoint=EXACT).z
    expected = torch.autograd.grad(energy(z), x, retain_graph=True)[0]
    with torch.no_grad():
        shift += 1
    try:
        actual = torch.autograd.grad(energy(z), x, create_graph=True)[0]
    except RuntimeError as error:
        refusal = str(error)
    else:
        torch.testing.assert_close(actual, expected)
        return
    assert "modified by an inplace operation" in refusal


@pytest.mark.parametrize("adjoint", [OneStep(), Phantom(), Shine()], ids=["OneStep", "Phantom", "Shine"])
def test_inexact_adjoints_refuse_a_second_derivative(adjoint, sources):
    weight, x = sources
    solver = Broyden(max_evals=50, tol=1e-12)
    z = fixed_point(tanh_map(weight), torch.zeros_like(x), x, solver=solver, adjoint=adjoint).z
    with pytest.raises(RuntimeError, match=rf"second derivative through adjoint={type(adjoint).__name__}\(\)"):
        torch.autograd.grad(z.sum(), x, create_graph=True)
    # The refusal costs nothing: the ordinary gradient is still there.
    assert torch.autograd.grad(z.sum(), x)[0].isfinite().all()


THIRD_DERIVATIVES = {
    "tanh": lambda weight: tanh_map(weight),
    "affine": lambda weight: lambda z, x: z @ weight.T + x,
    "quadratic": lambda weight: lambda z, x: 0.1 * z**2 + x @ weight,
    "stateless": lambda weight: lambda z, x: torch.tanh(x @ weight.T),
    "frozen": lambda weight: lambda z, x: z @ weight.detach().T + x.sin() + 0 * weight.sum(),
}


@pytest.mark.parametrize("is_linear_loss", [True, False])
@pytest.mark.parametrize("name", THIRD_DERIVATIVES)
def test_a_third_derivative_is_right_or_refused(name, is_linear_loss, sources):
    weight, x = sources

    def third(solver, adjoint):
        value = solve_with(solver, adjoint)(THIRD_DERIVATIVES[name](weight), x)
        scalar = value.sum() if is_linear_loss else energy(value)
        for _ in range(2):
            gradients = torch.autograd.grad(scalar, sources, create_graph=True, materialize_grads=True)
            scalar = sum(gradient.square().sum() for gradient in gradients)
        return torch.autograd.grad(scalar, sources, allow_unused=True, materialize_grads=True)

    expected = third(LONG_LOOP, Unrolled())
    try:
        actual = third(TIGHT, EXACT)
    except RuntimeError as error:
        refusal = str(error)
    else:
        torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-8)
        return
    assert "derivative through adjoint=Implicit()" in refusal
