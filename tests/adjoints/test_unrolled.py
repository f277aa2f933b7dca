from dataclasses import replace

import pytest
import torch
from adjoints.cells import EXACT, FORWARD_SOLVERS, TIGHT, TanhCell, energy, largest_error, leaf, matrix, relative_error
from torch.autograd import gradcheck, gradgradcheck

from steadeq import Anderson, Broyden, OneStep, Picard, Unrolled, fixed_point

each_forward_solver = pytest.mark.parametrize("solver", FORWARD_SOLVERS.values(), ids=FORWARD_SOLVERS)


@pytest.mark.parametrize(
    "solver",
    [Picard(max_evals=4, tol=0.0), Anderson(max_evals=5, tol=0.0), Broyden(max_evals=5, tol=0.0)],
    ids=["picard", "anderson", "broyden"],
)
def test_gradcheck_of_a_truncated_solve(solver):
    def layer(weight, x, z0):
        f = lambda z, x: torch.tanh(z @ weight.T + x)  # noqa: E731
        return fixed_point(f, z0, x, solver=solver, adjoint=Unrolled()).z

    assert gradcheck(layer, (matrix(4, 0.7).requires_grad_(), leaf(2, 4), leaf(2, 4)))


def test_second_derivatives_of_a_truncated_solve():
    def layer(weight, x):
        f = lambda z, x: torch.tanh(z @ weight.T + x)  # noqa: E731
        return fixed_point(f, torch.zeros_like(x), x, solver=Picard(max_evals=4, tol=0.0), adjoint=Unrolled()).z

    assert gradgradcheck(layer, (matrix(3, 0.7).requires_grad_(), leaf(2, 3)))


@each_forward_solver
@pytest.mark.parametrize("compact", [True, False])
def test_a_sample_that_starts_at_its_fixed_point_leaves_the_gradient_of_the_others_alone(solver, compact):
    weight = matrix(5, 0.8).requires_grad_()
    x = torch.randn(8, 5, dtype=torch.float64)
    x[2] = 0
    x.requires_grad_()
    f = lambda z, x: torch.tanh(z @ weight.T + x)  # noqa: E731
    gradients = []
    for adjoint in (Unrolled(), EXACT):
        z = fixed_point(f, torch.zeros_like(x), x, solver=solver, adjoint=adjoint, compact=compact).z
        others = torch.cat([z[:2], z[3:]])
        gradients.append(torch.autograd.grad(energy(others), (weight, x)))
    assert largest_error(*gradients) < 1e-6


@each_forward_solver
def test_samples_that_finish_early_keep_their_gradient(solver):
    weight, x = matrix(4, 1.0).requires_grad_(), leaf(12, 4)
    gain = torch.linspace(0.05, 0.9, 12, dtype=torch.float64)[:, None]
    f = lambda z, x, gain: torch.tanh(gain * (z @ weight.T) + x)  # noqa: E731
    gradients = []
    for forward, adjoint in ((solver, Unrolled()), (TIGHT, EXACT)):
        eq = fixed_point(f, torch.zeros_like(x), x, gain, solver=forward, adjoint=adjoint)
        gradients.append(torch.autograd.grad(energy(eq.z), x)[0])
    assert eq.stats.num_evals.min() < eq.stats.num_evals.max()
    for row in range(12):
        assert relative_error(gradients[0][row], gradients[1][row]) < 1e-6


@each_forward_solver
@pytest.mark.parametrize("num_stayed", [1, 3])
def test_what_is_returned_where_it_started_has_the_gradient_of_one_evaluation(solver, num_stayed):
    cell, x = TanhCell(5), leaf(3, 5)
    sources = [*cell.parameters(), x]
    z0 = torch.zeros_like(x)
    with torch.no_grad():
        z0[:num_stayed] = fixed_point(cell, z0, x, solver=TIGHT).z[:num_stayed]
    eq = fixed_point(cell, z0, x, solver=replace(solver, tol=1e-9), adjoint=Unrolled())
    assert torch.equal(eq.z[:num_stayed], z0[:num_stayed])
    one = fixed_point(cell, z0, x, solver=replace(solver, tol=1e-9), adjoint=OneStep())
    actual = torch.autograd.grad(energy(eq.z[:num_stayed]), sources)
    assert largest_error(actual, torch.autograd.grad(energy(one.z[:num_stayed]), sources)) < 1e-12
    assert all(gradient.abs().sum() > 0 for gradient in actual)
    with torch.no_grad():
        assert torch.equal(fixed_point(cell, z0, x, solver=replace(solver, tol=1e-9), adjoint=Unrolled()).z, eq.z)


# Through the last evaluations only


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("damping", [1.0, 0.6])
@pytest.mark.parametrize(("depth", "last"), [(8, 1), (8, 3), (8, None), (3, 8), (1, 1), (0, None)])
def test_gradients_are_those_of_a_loop_written_by_hand_bit_for_bit(depth, last, damping, dtype):
    cell, x, z0 = TanhCell(5).to(dtype), leaf(3, 5, dtype=dtype), leaf(3, 5, dtype=dtype)
    sources = [*cell.parameters(), x, z0]
    # The budget includes the evaluation that measures the residual of the state.
    solver = Picard(max_evals=depth + 1, tol=0.0, damping=damping)
    eq = fixed_point(cell, z0, x, solver=solver, adjoint=Unrolled(last=last))
    z = z0
    for step in range(depth):
        with torch.set_grad_enabled(last is None or step >= depth - last):
            z = cell(z, x) if damping == 1 else z + damping * (cell(z, x) - z)
    assert torch.equal(eq.z, z)
    expected, found = (
        torch.autograd.grad(energy(state), sources, materialize_grads=True, allow_unused=True) for state in (z, eq.z)
    )
    assert all(map(torch.equal, found, expected))
    with torch.no_grad():
        assert torch.equal(fixed_point(cell, z0, x, solver=solver, adjoint=Unrolled(last=last)).z, z)


@each_forward_solver
def test_truncated_gradients_of_converged_samples_are_those_of_so_many_evaluations(solver):
    cell, x = TanhCell(5), leaf(3, 5)
    sources = [*cell.parameters(), x]
    eq = fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=Unrolled(last=4))
    assert eq.stats.converged.all()
    z = eq.z.detach()
    for _ in range(4):
        z = cell(z, x)
    assert largest_error(torch.autograd.grad(energy(eq.z), sources), torch.autograd.grad(energy(z), sources)) < 1e-9


@pytest.mark.parametrize("solver", [Anderson(max_evals=9, tol=0.0), Broyden(max_evals=9, tol=0.0)])
def test_more_recorded_evaluations_come_closer_to_the_whole_gradient(solver):
    cell, x = TanhCell(5), leaf(3, 5)
    sources = [*cell.parameters(), x]
    whole = torch.autograd.grad(
        energy(fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=Unrolled()).z), sources
    )
    errors = []
    for last in (1, 4, 8):
        z = fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=Unrolled(last=last)).z
        errors.append(largest_error(torch.autograd.grad(energy(z), sources), whole))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-12


def test_memory_grows_with_the_evaluations_that_are_recorded_and_not_with_all_of_them():
    cell, x = TanhCell(5), leaf(3, 5)

    def num_saved(max_evals, last):
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            fixed_point(
                cell, torch.zeros_like(x), x, solver=Picard(max_evals=max_evals, tol=0.0), adjoint=Unrolled(last)
            )
        return len(saved)

    assert num_saved(16, 3) == num_saved(10, 3) < num_saved(16, 9)


@pytest.mark.parametrize("last", [0, -1, 1.5])
def test_a_number_of_evaluations_that_makes_no_sense_is_refused(last):
    with pytest.raises((ValueError, TypeError), match=r"^last is"):
        Unrolled(last=last)


@pytest.mark.parametrize("last", [None, 2])
@pytest.mark.parametrize("slope", [-1.3, 0.5, 1.2])
@pytest.mark.parametrize("with_gradients", [True, False])
def test_a_loop_that_does_not_converge_is_unrolled_to_its_end(slope, last, with_gradients):
    # The residual is least before the end, and the answer of a loop is still its last state.
    weight = torch.tensor(slope, dtype=torch.float64, requires_grad=True)
    z0, depth = torch.tensor([[0.0], [1.0], [-3.0]], dtype=torch.float64), 7
    with torch.set_grad_enabled(with_gradients):
        eq = fixed_point(
            lambda z: weight * z + 1, z0, solver=Picard(max_evals=depth + 1, tol=0), adjoint=Unrolled(last)
        )
    z = z0
    for step in range(depth):
        z = (z.detach() if last is not None and step == depth - last else z) * weight + 1
    assert torch.equal(eq.z, z)
    if with_gradients:
        (expected,) = torch.autograd.grad(z.sum(), weight)
        (found,) = torch.autograd.grad(eq.z.sum(), weight)
        assert torch.equal(found, expected)
    residual = ((weight * z + 1 - z).abs() / (weight * z + 1).abs())[:, 0]
    assert eq.stats is not None
    torch.testing.assert_close(eq.stats.residual, residual.detach())
