"""Dropout whose mask holds for a solve."""

import copy
import pickle
import threading

import pytest
import torch
from adjoints.cells import ADJOINTS, EXACT, FORWARD_SOLVERS, TIGHT, energy, leaf, matrix
from torch import nn
from torch.utils.checkpoint import checkpoint

from steadeq import (
    DEQ,
    Anderson,
    Equilibrium,
    Implicit,
    JacobianRegularizer,
    Picard,
    RandomnessWarning,
    Reversible,
    Unrolled,
    diagnose,
    fixed_point,
    jacobian_penalty,
    operator_norm,
    spectral_radius,
)
from steadeq._internal.masks import MaskedMap
from steadeq.nn import VariationalDropout, checkpoint_masks, hold_masks, solve_from_starts

DIM = 5


class Cell(nn.Module):
    """tanh(mask * W z + x); `masks` is every mask that it used, told from what dropout makes of ones."""

    def __init__(self, p=0.5, *, shared=(), norm=0.8):
        super().__init__()
        self.weight = nn.Parameter(matrix(DIM, norm * (1 - p)))
        self.dropout = VariationalDropout(p, shared=shared)
        self.masks = []

    def forward(self, z, x):
        image = z @ self.weight.T
        self.masks.append(self.dropout(torch.ones_like(image)).detach())
        return torch.tanh(self.dropout(image) + x)


def plain(cell, mask):
    """Return the same map with a mask that is given."""
    return lambda z, x: torch.tanh(mask * (z @ cell.weight.T) + x)


def only_mask(cell):
    """Return the mask of all evaluations of the whole batch so far, which must be one."""
    whole = [mask for mask in cell.masks if len(mask) == len(cell.masks[0])]
    assert all(torch.equal(mask, whole[0]) for mask in whole)
    return whole[0]


def given_mask(cell):
    """Return the same map with its mask as an input."""
    return lambda z, x, mask: torch.tanh(mask * (z @ cell.weight.T) + x)


def loop(f, x, num_steps=400):
    z = torch.zeros_like(x)
    for _ in range(num_steps):
        z = f(z, x)
    return z


@pytest.mark.parametrize("solver", FORWARD_SOLVERS.values(), ids=FORWARD_SOLVERS)
def test_the_state_and_its_gradient_are_those_of_a_loop_with_one_mask(solver):
    cell, x = Cell(), leaf(3, DIM)
    z = DEQ(cell, solver=solver, adjoint=EXACT)(x)
    gradients = torch.autograd.grad(energy(z), [cell.weight, x])
    mask = only_mask(cell)
    assert set(mask.flatten().tolist()) == {0.0, 2.0}
    expected = loop(plain(cell, mask), x)
    torch.testing.assert_close(z, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(energy(expected), [cell.weight, x]))


@pytest.mark.parametrize(
    "adjoint", [*ADJOINTS.values(), Unrolled(last=2), Reversible()], ids=[*ADJOINTS, "last", "reversible"]
)
def test_every_adjoint_has_the_gradient_of_the_map_with_that_mask(adjoint):
    cell, x = Cell(), leaf(3, DIM)
    solver = FORWARD_SOLVERS["broyden"]
    if isinstance(adjoint, Reversible):
        solver = Picard(max_evals=15, tol=0, damping=0.5)
    z = fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=adjoint).z
    gradients = torch.autograd.grad(energy(z), [cell.weight, x])
    given = plain(cell, only_mask(cell))
    expected = fixed_point(given, torch.zeros_like(x), x, solver=solver, adjoint=adjoint).z
    torch.testing.assert_close(z, expected, rtol=0, atol=0)
    torch.testing.assert_close(gradients, torch.autograd.grad(energy(expected), [cell.weight, x]), rtol=0, atol=0)


def test_first_and_second_derivatives_agree_with_finite_differences():
    dropout = VariationalDropout(0.5)

    def solve(x, weight):
        def f(z, x):
            return torch.tanh(dropout(z @ weight.T) + x)

        return fixed_point(f, torch.zeros_like(x), x, solver=TIGHT, adjoint=EXACT).z

    # Held from outside, as finite differences solve many times.
    held = hold_masks(solve)
    arguments = leaf(2, DIM), matrix(DIM, 0.4).requires_grad_()
    assert torch.autograd.gradcheck(held, arguments)
    assert torch.autograd.gradgradcheck(held, arguments, atol=1e-4)
    assert not torch.equal(solve(*arguments), solve(*arguments))


def test_penalties_and_spectra_at_the_equilibrium_have_its_mask():
    cell, x = Cell(), leaf(8, DIM)
    eq = DEQ(cell, solver=TIGHT, adjoint=EXACT).solve(x)
    given = Equilibrium.at(plain(cell, only_mask(cell)), eq.z, x)
    for estimator in ("vjp", "difference"):
        penalties = [
            jacobian_penalty(e, estimator=estimator, generator=torch.Generator().manual_seed(1)) for e in (eq, given)
        ]
        torch.testing.assert_close(*penalties)
        gradients = [torch.autograd.grad(penalty, cell.weight)[0] for penalty in penalties]
        torch.testing.assert_close(*gradients)
    for estimate in (spectral_radius, operator_norm):
        values = [estimate(e, generator=torch.Generator().manual_seed(1)).value for e in (eq, given)]
        torch.testing.assert_close(*values)
    terms = []
    for e in (eq, given):
        torch.manual_seed(7)
        terms.append(JacobianRegularizer(weight=2.0)(e, step=0))
    torch.testing.assert_close(*terms)
    only_mask(cell)


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize("is_function", [True, False])
def test_masks_follow_their_samples_when_others_leave_the_batch(is_recorded, is_function):
    cell = Cell()
    f = (lambda z, x: cell(z, x)) if is_function else cell
    # Samples of very different difficulty, so that they leave one after another.
    x = torch.logspace(-6, 1, 16, dtype=torch.float64)[:, None] * torch.randn(16, DIM, dtype=torch.float64)
    z0 = torch.ones_like(x)
    with torch.set_grad_enabled(is_recorded):
        eq = fixed_point(f, z0, x, solver=Anderson(max_evals=60, tol=1e-10))
    mask = cell.masks[0]
    sizes = {len(mask) for mask in cell.masks}
    assert len(sizes) > 2, sizes
    with torch.no_grad():
        expected = fixed_point(given_mask(cell), z0, x, mask, solver=Anderson(max_evals=60, tol=1e-10))
    torch.testing.assert_close(eq.z, expected.z, rtol=0, atol=0)
    assert torch.equal(eq.stats.num_evals, expected.stats.num_evals)
    if is_recorded:
        assert torch.equal(cell.masks[-1], mask)


def test_each_solve_draws_masks_of_its_own():
    torch.manual_seed(0)
    cell, x = Cell(), leaf(8, DIM)
    layer = DEQ(cell, solver=TIGHT, adjoint=EXACT)
    # Supervision steps: each solve starts where the last one ended, and all are alive at the same time.
    z, equilibria, masks = None, [], []
    for _ in range(3):
        cell.masks.clear()
        equilibria.append(layer.solve(x, z0=z))
        masks.append(only_mask(cell))
        z = equilibria[-1].z.detach()
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[1], masks[2])
    # The penalties come last, and in another order.
    loss = sum(energy(eq.z) for eq in equilibria)
    generators = [torch.Generator().manual_seed(2) for _ in range(2)]
    loss = loss + sum(jacobian_penalty(eq, generator=generators[0]) for eq in reversed(equilibria))
    gradient = torch.autograd.grad(loss, cell.weight)[0]
    maps = [plain(cell, mask) for mask in masks]
    states = [loop(f, x) for f in maps]
    loss = sum(map(energy, states))
    loss = loss + sum(
        jacobian_penalty(Equilibrium.at(f, z, x), generator=generators[1])
        for f, z in zip(reversed(maps), reversed(states), strict=True)
    )
    torch.testing.assert_close(gradient, torch.autograd.grad(loss, cell.weight)[0])


def test_solves_in_threads_do_not_meet():
    torch.manual_seed(0)
    cell, x = Cell(), torch.randn(4, DIM, dtype=torch.float64)
    cell.forward = lambda z, x: torch.tanh(cell.dropout(z @ cell.weight.T) + x)
    found, barrier = {}, threading.Barrier(4)

    def work(name):
        barrier.wait()
        eq = fixed_point(cell, torch.zeros_like(x), x, solver=TIGHT, adjoint=EXACT)
        found[name] = eq.z.detach(), eq.f(eq.z, x).detach()

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for z, image in found.values():
        torch.testing.assert_close(z, image)


def test_in_eval_mode_nothing_is_dropped_and_the_map_stays_the_callers():
    cell, x = Cell().eval(), leaf(8, DIM)
    eq = DEQ(cell, solver=TIGHT, adjoint=EXACT).solve(x)
    assert eq.f is cell
    assert torch.equal(only_mask(cell), torch.ones(8, DIM, dtype=torch.float64))
    z = torch.randn(2, DIM)
    assert VariationalDropout(0.5).eval()(z) is z
    assert VariationalDropout(0.0)(z) is z


@pytest.mark.parametrize("f", [torch.cos, lambda z: torch.cos(z)], ids=["builtin", "function"])
def test_maps_without_dropout_stay_the_callers(f):
    assert fixed_point(f, torch.zeros(2, 3)).f is f
    assert solve_from_starts(f, [torch.zeros(2, 3), torch.ones(2, 3)]).f is f


def test_by_hand_each_call_draws_a_mask_unless_they_are_held():
    torch.manual_seed(0)
    cell, x = Cell(), leaf(8, DIM)
    z = torch.ones_like(x)
    assert not torch.equal(cell(z, x), cell(z, x))
    cell.masks.clear()
    f = hold_masks(cell)
    z = loop(f, x)
    mask = only_mask(cell)
    torch.testing.assert_close(z, loop(plain(cell, mask), x), rtol=0, atol=0)
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    held, given = Equilibrium.at(f, z, x), Equilibrium.at(plain(cell, mask), z, x)
    torch.testing.assert_close(
        *(jacobian_penalty(eq, generator=generator) for eq, generator in zip((held, given), generators, strict=True))
    )
    # Each has masks of its own, and the module itself has none.
    other = hold_masks(cell)
    assert not torch.equal(f(z, x), other(z, x))
    assert torch.equal(f(z, x), f(z, x))
    assert not torch.equal(cell(z, x), f(z, x))
    assert hold_masks(f) is f
    linear = nn.Linear(2, 2)
    assert hold_masks(linear) is linear


def test_solves_of_a_map_that_is_held_share_its_masks():
    cell, x = Cell(), leaf(8, DIM)
    f = hold_masks(cell)
    first, second = (fixed_point(f, torch.zeros_like(x), x, solver=TIGHT, adjoint=EXACT) for _ in range(2))
    only_mask(cell)
    torch.testing.assert_close(first.z, second.z, rtol=0, atol=0)
    solve_from_starts(f, [torch.zeros_like(x), torch.ones_like(x)], x)
    only_mask(cell)
    cell.masks.clear()
    solve_from_starts(cell, [torch.zeros_like(x), torch.ones_like(x)], x)
    only_mask(cell)


class Outer(nn.Module):
    """A cell that solves another one to its equilibrium."""

    def __init__(self, *, inner_compact=None):
        super().__init__()
        self.inner = DEQ(Cell(norm=0.5), solver=TIGHT, adjoint=EXACT, compact=inner_compact)
        self.dropout = VariationalDropout(0.3)

    def forward(self, z, x):
        return torch.tanh(0.3 * self.dropout(self.inner(x + z)) + x)


@pytest.mark.parametrize("batch_size", [2, 16])
def test_an_equilibrium_inside_of_a_cell_holds_its_masks_for_the_outer_solve(batch_size):
    torch.manual_seed(0)
    outer = Outer(inner_compact=True)
    x = torch.logspace(-6, 1, batch_size, dtype=torch.float64)[:, None] * torch.randn(
        batch_size, DIM, dtype=torch.float64
    )
    x.requires_grad_()
    eq = DEQ(outer, solver=Anderson(max_evals=60, tol=1e-11), adjoint=EXACT, init=torch.ones_like).solve(x)
    assert eq.stats.converged.all()
    sizes = {len(mask) for mask in outer.inner.cell.masks}
    assert batch_size == 2 or len(sizes) > 3
    gradient = torch.autograd.grad(energy(eq.z), [x, outer.inner.cell.weight])
    mask = only_mask(outer.inner.cell)
    assert isinstance(eq.f, MaskedMap)
    outer_mask = hold_outer_mask(eq, outer, x)
    inner = plain(outer.inner.cell, mask)

    def f(z, x):
        return torch.tanh(0.3 * outer_mask * loop(inner, x + z, 60) + x)

    z = loop(f, x, 60)
    torch.testing.assert_close(eq.z, z)
    torch.testing.assert_close(gradient, torch.autograd.grad(energy(z), [x, outer.inner.cell.weight]))


def hold_outer_mask(eq, outer, x):
    """Return the mask of the outer dropout, which a hook sees in an evaluation of the map of the equilibrium."""
    seen = []
    hook = outer.dropout.register_forward_hook(lambda module, inputs, output: seen.append(output / inputs[0]))
    with torch.no_grad():
        eq.f(eq.z, x)
    hook.remove()
    return seen[0].nan_to_num()


class Checkpointed(Cell):
    """Cell whose inside is computed anew in the backward pass."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, z, x):
        return checkpoint(super().forward, z, x, use_reentrant=False, **self.options)


@pytest.mark.parametrize("adjoint", [EXACT, Unrolled()], ids=["implicit", "unrolled"])
def test_activation_checkpointing_recomputes_with_the_masks_of_each_solve(adjoint):
    torch.manual_seed(0)
    cell, x = Checkpointed(context_fn=checkpoint_masks), leaf(4, DIM)
    layer = DEQ(cell, solver=Picard(max_evals=300, tol=1e-14), adjoint=adjoint)
    first, second = layer.solve(x), layer.solve(x)
    masks = [cell.masks[0], cell.masks[-1]]
    assert not torch.equal(*masks)
    gradient = torch.autograd.grad(energy(first.z) + energy(second.z), cell.weight)[0]
    states = [loop(plain(cell, mask), x) for mask in masks]
    torch.testing.assert_close(gradient, torch.autograd.grad(sum(map(energy, states)), cell.weight)[0])


def test_activation_checkpointing_that_does_not_know_the_masks_is_refused():
    cell, x = Checkpointed(), leaf(4, DIM)
    z = DEQ(cell)(x)
    with pytest.raises(RuntimeError, match=r"context_fn=steadeq\.nn\.checkpoint_masks"):
        z.sum().backward()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_have_no_masks_of_the_original(duplicate):
    cell, x = Cell(), leaf(8, DIM)
    layer = DEQ(cell)
    layer(x).sum().backward()
    twin = duplicate(layer)
    states = []
    for one in (layer, twin):
        torch.manual_seed(3)
        states.append(one(x).detach())
    assert torch.equal(*states)
    assert not layer.cell.dropout.state_dict()
    assert str(twin.cell.dropout) == "VariationalDropout(p=0.5)"
    # A map with masks is copied with its modules.
    f, z = hold_masks(cell), torch.ones_like(x)
    image = f(z, x)
    twin = duplicate(f)
    assert twin.f is not cell
    assert torch.equal(twin(z, x), image)


def test_a_compiled_cell_has_the_masks_of_the_cell():
    torch._dynamo.reset()
    cell, x = Cell(), leaf(4, DIM)
    cell.forward = lambda z, x: torch.tanh(cell.dropout(z @ cell.weight.T) + x)
    compiled = torch.compile(cell, backend="aot_eager")
    states = []
    for f_solve in (None, compiled, compiled):
        torch.manual_seed(4)
        eq = fixed_point(cell, torch.zeros_like(x), x, solver=TIGHT, adjoint=EXACT, f_solve=f_solve)
        states.append(eq.z)
    torch.testing.assert_close(states[1], states[0])
    torch.testing.assert_close(states[2], states[0])
    torch.manual_seed(6)
    assert not torch.allclose(fixed_point(cell, torch.zeros_like(x), x, f_solve=compiled).z, states[0])


def test_a_diagnosis_holds_the_masks():
    cell, x = Cell(), torch.randn(4, DIM, dtype=torch.float64)
    diagnosis = diagnose(cell, torch.zeros_like(x), x, max_evals=32)
    only_mask(cell)
    assert not diagnosis.is_random


@pytest.mark.parametrize(
    ("shared", "shape", "expected"),
    [
        ((), (2, 3, 4), (2, 3, 4)),
        (1, (2, 3, 4), (2, 1, 4)),
        (-1, (2, 3, 4), (2, 3, 1)),
        ((2, 3), (2, 3, 4, 5), (2, 3, 1, 1)),
    ],
)
def test_what_is_shared_is_dropped_together(shared, shape, expected):
    torch.manual_seed(0)
    dropout = VariationalDropout(0.5, shared=shared)
    seen = []
    plain_draw = dropout.draw
    dropout.draw = lambda shape, like: (seen.append(shape), plain_draw(shape, like))[1]
    image = dropout(torch.ones(shape))
    assert seen == [expected]
    dims = [dim for dim in range(len(shape)) if expected[dim] == 1]
    if dims:
        assert torch.equal(image.amax(dims), image.amin(dims))


@pytest.mark.parametrize(
    ("p", "shared", "message"),
    [*((0.5, shared, "shared is") for shared in (0, 3, -3, -4)), *((p, (), "p is") for p in (-0.1, 1.0))],
)
def test_dimensions_that_are_not_there_and_what_is_no_probability_are_refused(p, shared, message):
    with pytest.raises(ValueError, match=message):
        VariationalDropout(p, shared=shared)(torch.ones(2, 3, 4))


class Flattening(nn.Module):
    """Treats every position as a sample, so that what dropout sees has another batch."""

    def __init__(self):
        super().__init__()
        self.dropout = VariationalDropout(0.5)

    def forward(self, z, x):
        return torch.tanh(0.4 * self.dropout(z.flatten(0, 1)).view_as(z) + x)


def test_another_batch_inside_of_the_cell_works_until_samples_leave():
    x = torch.logspace(-6, 1, 16, dtype=torch.float64)[:, None, None] * torch.randn(16, 3, DIM, dtype=torch.float64)
    layer = DEQ(Flattening(), solver=Anderson(max_evals=60, tol=1e-10), init=torch.ones_like)
    with torch.no_grad(), pytest.raises(ValueError, match=r"drew a mask for 48 rows and now sees .*compact=False"):
        layer(x)
    layer.compact = False
    with torch.no_grad():
        assert layer.solve(x).stats.converged.all()


def test_a_state_without_dims_is_solved_beside_modules_with_masks():
    dropout, x = VariationalDropout(0.5), torch.tensor(0.3, dtype=torch.float64)
    eq = fixed_point(lambda z, x: 0.5 * torch.cos(z) + x, torch.zeros_like(x), x, batch_dims=0)
    assert eq.stats.converged.all()
    assert dropout.is_active


def test_evaluating_some_of_the_samples_of_a_solve_is_refused():
    cell, x = Cell(), leaf(8, DIM)
    eq = DEQ(cell).solve(x)
    with pytest.raises(ValueError, match="drew a mask for 8 rows and now sees 3"):
        eq.f(eq.z[:3], x[:3])


def test_one_module_may_be_used_at_places_of_different_shapes():
    class TwoPlaces(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)
            self.dropout = VariationalDropout(0.2)

        def forward(self, z, x):
            return torch.tanh(0.3 * self.dropout(self.down(self.dropout(self.up(z)))) + x)

    assert DEQ(TwoPlaces()).solve(torch.randn(8, 4)).stats.converged.all()


def test_half_precision_and_autocast_have_the_mask_of_single_precision():
    torch.manual_seed(0)
    cell = nn.Sequential(nn.Linear(4, 4), VariationalDropout(0.3))
    f, z = hold_masks(cell), torch.ones(2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert f(z).dtype == torch.bfloat16
    image = cell[0](z)
    mask = f(z) / image
    kept = mask[mask != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.7))
    # Their mean is one.
    assert abs(float(VariationalDropout(0.3)(torch.ones(100, 1000)).mean()) - 1) < 0.01


def test_plain_dropout_in_a_cell_is_pointed_to_this_one():
    cell = Cell()
    cell.dropout = nn.Dropout(0.5)
    with pytest.warns(RandomnessWarning, match=r"steadeq\.nn\.VariationalDropout"):
        DEQ(cell, solver=Picard(max_evals=10, tol=1e-3), adjoint=Implicit())(leaf(8, DIM))
