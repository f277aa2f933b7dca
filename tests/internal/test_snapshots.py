"""States on the way to an equilibrium, and losses on them."""

import gc
import weakref

import pytest
import torch
from adjoints.cells import ADJOINTS, EXACT, TIGHT, TanhCell, energy, leaf
from stubs import Counted
from torch import nn

from steadeq import DEQ, Anderson, Broyden, NewtonKrylov, Picard, Reversible, Unrolled, fixed_point
from steadeq.nn import VariationalDropout, apply_weight_norm

SOLVERS = {
    "picard": Picard(max_evals=8, tol=0),
    "damped": Picard(max_evals=8, tol=0, damping=0.5),
    "anderson": Anderson(max_evals=8, tol=0),
    "broyden": Broyden(max_evals=8, tol=0),
    "newton": NewtonKrylov(max_evals=8, tol=0),
}
# Of very different difficulty, so that samples leave the batch one after another.
SCALES = torch.logspace(-6, 1, 16, dtype=torch.float64)[:, None]


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize("is_recorded", [True, False])
def test_they_are_the_images_of_the_evaluations_with_these_numbers(solver, is_recorded):
    cell, x = TanhCell(5), leaf(3, 5)
    f = Counted(cell)
    with torch.set_grad_enabled(is_recorded):
        eq = fixed_point(f, torch.zeros_like(x), x, solver=solver, states_at=(1, 4, 2))
    points = f.points
    assert [eq.states[i].requires_grad for i in range(3)] == [is_recorded] * 3
    torch.testing.assert_close(eq.states, tuple(cell(points[number - 1], x) for number in (1, 4, 2)))
    # Nothing else about the solve changes.
    plain = fixed_point(cell, torch.zeros_like(x), x, solver=solver)
    torch.testing.assert_close(eq.z, plain.z, rtol=0, atol=0)
    assert torch.equal(eq.stats.trace, plain.stats.trace)
    assert plain.states == ()
    assert f.calls == 8 + 4 * is_recorded


@pytest.mark.parametrize("adjoint", [a for name, a in ADJOINTS.items() if name not in ("unrolled", "shine")])
def test_a_correction_loss_is_the_one_made_by_hand(adjoint):
    cell, x = TanhCell(5), leaf(3, 5)
    solver, z0 = Picard(max_evals=300, tol=1e-13), torch.zeros_like(x)
    eq = fixed_point(cell, z0, x, solver=solver, adjoint=adjoint, states_at=(2, 4))
    loss = energy(eq.z) + sum(0.8**k * energy(state) for k, state in zip((2, 1), eq.states, strict=True))
    gradients = torch.autograd.grad(loss, [*cell.parameters(), x])
    # By hand: a loop without gradients, and one evaluation with them at each of the chosen states.
    z, expected = z0, energy(fixed_point(cell, z0, x, solver=solver, adjoint=adjoint).z)
    for number in range(1, 5):
        if number in (2, 4):
            expected = expected + 0.8 ** (2 if number == 2 else 1) * energy(cell(z, x))
        with torch.no_grad():
            z = cell(z, x)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, [*cell.parameters(), x]))


@pytest.mark.parametrize("last", [None, 2])
def test_with_unrolled_they_have_the_gradient_of_all_steps_up_to_them_that_are_recorded(last):
    cell, x, z0 = TanhCell(5), leaf(3, 5), leaf(3, 5)
    eq = fixed_point(cell, z0, x, solver=Picard(max_evals=7, tol=0), adjoint=Unrolled(last=last), states_at=(2, 4))
    z, by_hand = z0, []
    for _ in range(4):
        z = cell(z if last is None else z.detach(), x)
        by_hand.append(z)
    torch.testing.assert_close(eq.states, (by_hand[1], by_hand[3]), rtol=0, atol=0)
    sources = [*cell.parameters(), x, z0]
    found, expected = (
        torch.autograd.grad(energy(a) + energy(b), sources, materialize_grads=True, allow_unused=True)
        for a, b in (eq.states, (by_hand[1], by_hand[3]))
    )
    torch.testing.assert_close(found, expected)


def test_the_reversible_adjoint_has_them_too():
    cell, x = TanhCell(5), leaf(3, 5)
    solver = Picard(max_evals=7, tol=0, damping=0.5)
    f = Counted(cell)
    eq = fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=Reversible(), states_at=(3,))
    fixed_point(f, torch.zeros_like(x), x, solver=solver, adjoint=Reversible())
    torch.testing.assert_close(eq.states[0], cell(f.points[2], x))
    energy(eq.states[0]).backward()
    assert cell.weight.grad.abs().max() > 0


def test_a_map_that_replaces_the_cell_in_the_solve_is_watched():
    cell, x = TanhCell(5), leaf(3, 5)
    fast = Counted(cell)
    eq = fixed_point(cell, torch.zeros_like(x), x, solver=Anderson(max_evals=6, tol=0), f_solve=fast, states_at=(3,))
    torch.testing.assert_close(eq.states[0], cell(fast.points[2], x))


@pytest.mark.parametrize("adjoint", [EXACT, Unrolled()], ids=["implicit", "unrolled"])
@pytest.mark.parametrize("compact", [True, False])
def test_a_sample_that_is_done_by_then_stands_at_its_equilibrium(adjoint, compact):
    torch.manual_seed(0)
    cell, x = TanhCell(5), (SCALES * torch.randn(16, 5, dtype=torch.float64)).requires_grad_()
    solver, z0 = Anderson(max_evals=60, tol=1e-10), torch.ones_like(x)
    middle = int(fixed_point(cell, z0, x, solver=solver).stats.num_evals.double().mean())
    numbers = (3, middle, 100)
    eq = fixed_point(cell, z0, x, solver=solver, adjoint=adjoint, compact=compact, states_at=numbers)
    is_done = eq.stats.num_evals <= middle
    assert 0 < is_done.sum() < 16
    assert torch.equal(eq.states[1][is_done], eq.z[is_done])
    assert not (eq.states[1][~is_done] == eq.z[~is_done]).all(dim=1).any()
    assert torch.equal(eq.states[2], eq.z)
    # Each sample is where it is if it is alone.
    for sample in range(16):
        row = slice(sample, sample + 1)
        alone = fixed_point(cell, z0[row], x[row], solver=solver, adjoint=adjoint, states_at=numbers)
        torch.testing.assert_close(tuple(state[row] for state in eq.states), alone.states, rtol=1e-6, atol=1e-9)
    # Its gradient is that of the equilibrium, and the others have that of one evaluation.
    gradients = [torch.autograd.grad(energy(z[is_done]), x, retain_graph=True)[0] for z in (eq.states[1], eq.z)]
    torch.testing.assert_close(*gradients)


def test_a_sample_that_fails_leaves_those_of_others_alone():
    def f(z, x):
        return torch.where(x > 5, z / 0 * torch.ones_like(z), torch.tanh(0.5 * z + x))

    x = torch.tensor([[0.5], [9.0], [1.0]], dtype=torch.float64, requires_grad=True)
    eq = fixed_point(f, torch.ones_like(x), x, solver=Picard(max_evals=50, tol=1e-12), states_at=(1, 3))
    assert all(state.isfinite().all() for state in eq.states)
    keep = torch.tensor([0, 2])
    alone = fixed_point(
        f, torch.ones(2, 1, dtype=torch.float64), x[keep], solver=Picard(max_evals=50, tol=1e-12), states_at=(1, 3)
    )
    torch.testing.assert_close(tuple(state[keep] for state in eq.states), alone.states)


def test_they_have_the_masks_and_the_weights_of_the_solve():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.dropout = apply_weight_norm(nn.Linear(5, 5).double()), VariationalDropout(0.4)

        def forward(self, z, x):
            return torch.tanh(0.4 * self.dropout(self.linear(z)) + x)

    torch.manual_seed(0)
    cell, x = Cell(), (SCALES * torch.randn(16, 5, dtype=torch.float64)).requires_grad_()
    eq = DEQ(cell, solver=TIGHT, adjoint=EXACT).solve(x, states_at=(1, 3))
    z = torch.zeros_like(x)
    torch.testing.assert_close(eq.states[0], eq.f(z, x))
    gradient = torch.autograd.grad(energy(eq.states[0]), cell.linear.weight_g, retain_graph=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(energy(eq.f(z, x)), cell.linear.weight_g))


def test_autocast_reaches_the_evaluation_that_is_made_once_more():
    linear = nn.Linear(4, 4)
    x = torch.randn(2, 4)

    def f(z, x):
        assert linear(z).dtype == torch.bfloat16
        return torch.tanh(0.3 * linear(z).float() + x)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        eq = fixed_point(f, torch.zeros_like(x), x, solver=Picard(max_evals=6, tol=0), states_at=(2,))
    eq.states[0].sum().backward()
    assert linear.weight.grad is not None


def test_the_graph_holds_on_to_no_more_than_without_them():
    cell, x = TanhCell(5), leaf(3, 5)
    eq = fixed_point(cell, torch.zeros_like(x), x, states_at=(2,))
    state = weakref.ref(eq.states[0])
    z = eq.z
    del eq
    gc.collect()
    assert state() is None
    z.sum().backward()


@pytest.mark.parametrize(
    ("states_at", "kind", "message"),
    [((0,), ValueError, "states_at is 0"), ((1.5,), TypeError, "states_at is 1.5"), (3, TypeError, r"such as \(3,\)")],
)
def test_what_is_no_number_of_an_evaluation_is_refused(states_at, kind, message):
    with pytest.raises(kind, match=message):
        fixed_point(torch.cos, torch.zeros(1, 1), states_at=states_at)
