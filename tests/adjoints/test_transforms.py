"""Solves under torch.func: the transforms agree with ordinary autograd on one model and one sample at a time."""

import copy
import warnings

import pytest
import torch
from adjoints.cells import ADJOINTS, EXACT, LONG_LOOP, TIGHT, TanhCell, energy, matrix
from torch import nn
from torch.func import functional_call, grad, jacrev, stack_module_state, vjp, vmap

from steadeq import DEQ, Broyden, Implicit, Loop, Picard, Reversible, Unrolled, fixed_point, jacobian_penalty
from steadeq.nn import VariationalDropout

SIZE = 4


@pytest.fixture
def x():
    return torch.randn(3, SIZE, dtype=torch.float64)


def layers(num, **options):
    return [DEQ(TanhCell(SIZE), **{"solver": TIGHT, "adjoint": EXACT, **options}) for _ in range(num)]


def own_gradients(layer, x):
    names, parameters = zip(*layer.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(energy(layer(x)), parameters), strict=True))


def stacked(dicts):
    return {name: torch.stack([each[name] for each in dicts]) for name in dicts[0]}


def detached(layer):
    return {name: parameter.detach() for name, parameter in layer.named_parameters()}


def loss_of(layer):
    return lambda parameters, x: energy(functional_call(layer, parameters, (x,)))


@pytest.mark.parametrize("name", [name for name in ADJOINTS if name != "unrolled"])
def test_a_gradient_over_parameters_is_that_of_autograd_with_every_adjoint(name, x):
    adjoint = ADJOINTS[name]
    solver = Picard(damping=0.5, max_evals=40) if isinstance(adjoint, Reversible) else Broyden(max_evals=40, tol=1e-9)
    layer, other = layers(2, solver=solver, adjoint=adjoint)
    torch.testing.assert_close(grad(loss_of(other))(detached(layer), x), own_gradients(layer, x))


def test_gradients_over_parameters_inputs_and_both_reach_all_of_them(x):
    layer, other = layers(2)
    parameters = detached(layer)
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(energy(layer(leaf)), leaf)
    of_parameters, of_x = grad(loss_of(other), argnums=(0, 1))(parameters, x)
    torch.testing.assert_close(of_x, expected)
    torch.testing.assert_close(of_parameters, own_gradients(layer, x))
    _, pull = vjp(loss_of(other), parameters, x)
    torch.testing.assert_close(pull(torch.ones((), dtype=torch.float64))[1], expected)


def test_second_derivatives_over_parameters_are_those_of_differences(x):
    (layer,) = layers(1)
    parameters, loss, step = detached(layer), loss_of(layer), 1e-5
    found = jacrev(jacrev(loss))(parameters, x)["cell.weight"]["cell.weight"]
    for i, j in ((0, 1), (2, 2)):
        shift = torch.zeros(SIZE, SIZE, dtype=torch.float64)
        shift[i, j] = step
        ahead, behind = (grad(loss)({"cell.weight": parameters["cell.weight"] + s}, x) for s in (shift, -shift))
        expected = (ahead["cell.weight"] - behind["cell.weight"]) / (2 * step)
        torch.testing.assert_close(found[..., i, j], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("adjoint", [EXACT, Unrolled()], ids=["implicit", "unrolled"])
def test_an_ensemble_is_solved_as_its_members_are(adjoint, x):
    models = layers(5, adjoint=adjoint)
    parameters, _ = stack_module_state(models)
    base = copy.deepcopy(models[0])
    z = vmap(lambda p, x: functional_call(base, p, (x,)), (0, None))(parameters, x)
    torch.testing.assert_close(z, torch.stack([model(x) for model in models]))
    expected = stacked([own_gradients(model, x) for model in models])
    found = torch.autograd.grad(vmap(energy)(z).sum(), list(parameters.values()))
    torch.testing.assert_close(dict(zip(parameters, found, strict=True)), expected, rtol=1e-6, atol=1e-8)
    values = {name: parameter.detach() for name, parameter in parameters.items()}
    each = vmap(grad(loss_of(base)), (0, None))(values, x)
    torch.testing.assert_close(each, expected, rtol=1e-6, atol=1e-8)
    together = grad(lambda values: vmap(loss_of(base), (0, None))(values, x).sum())(values)
    torch.testing.assert_close(together, expected, rtol=1e-6, atol=1e-8)


def test_gradients_of_single_samples_by_vmap_are_those_of_each_alone(x):
    (layer,) = layers(1)
    expected = stacked([own_gradients(layer, row[None]) for row in x])
    found = vmap(grad(lambda p, row: loss_of(layer)(p, row[None])), (None, 0))(detached(layer), x)
    torch.testing.assert_close(found, expected)


def test_maps_within_maps_and_jacobians_within_them_are_those_of_each_alone(x):
    models, batches = layers(2), torch.stack([x, 2 * x, -x])
    values = stacked([detached(model) for model in models])
    base = copy.deepcopy(models[0])
    call = lambda p, x: functional_call(base, p, (x,))  # noqa: E731
    expected = torch.stack([torch.stack([model(x) for x in batches]) for model in models]).detach()
    torch.testing.assert_close(vmap(vmap(call, (None, 0)), (0, None))(values, batches), expected)
    jacobians = vmap(jacrev(call, argnums=1), (0, None))(values, x)
    expected = torch.stack([torch.autograd.functional.jacobian(model, x) for model in models])
    torch.testing.assert_close(jacobians, expected)


def test_members_stop_by_themselves_and_stats_are_those_of_each(x):
    # The nearer the slope is to 1, the longer plain iteration takes.
    slopes = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    seen = {}

    def solve(slope, x):
        eq = fixed_point(lambda z, a, x: a * z + x, torch.zeros_like(x), slope.expand(3, 1), x, solver=LONG_LOOP)
        seen["eq"] = eq
        return eq.z, eq.stats.num_evals, eq.stats.residual, eq.stats.trace

    z, num_evals, residual, trace = vmap(solve, (0, None))(slopes, x)
    torch.testing.assert_close(z, x / (1 - slopes[:, None, None]), rtol=1e-8, atol=1e-9)
    alone = [fixed_point(lambda z, x, a=a: a * z + x, torch.zeros_like(x), x, solver=LONG_LOOP) for a in slopes]
    assert num_evals.tolist() == [eq.stats.num_evals.tolist() for eq in alone]
    assert (residual <= LONG_LOOP.tol).all()
    assert trace.shape == (3, num_evals.max(), 3)


def test_graphs_that_are_one_sample_each_can_be_mapped_over():
    rings = torch.stack([torch.roll(torch.eye(6, dtype=torch.float64), shift, 0) for shift in (1, 2)])
    x = torch.randn(6, 2, dtype=torch.float64)

    def solve(ring):
        f = lambda z, ring: 0.5 * ring @ z + x  # noqa: E731
        eq = fixed_point(f, torch.zeros_like(x), ring, solver=TIGHT, adjoint=EXACT, batch_dims=0)
        return eq.z, eq.stats.num_evals

    z, num_evals = vmap(solve)(rings)
    torch.testing.assert_close(z, torch.linalg.solve(torch.eye(6, dtype=torch.float64) - 0.5 * rings, x))
    assert num_evals.shape == (2, 1)


def test_loops_that_know_their_step_and_nested_states_go_along():
    def f(z, x, *, step):
        return {"a": 0.5 * z["b"] + step, "b": 0.5 * z["a"] + x}

    def value(x):
        z0 = {"a": torch.zeros_like(x), "b": torch.zeros_like(x)}
        z = fixed_point(f, z0, x, solver=Loop(num_steps=3, pass_step=True), adjoint=Unrolled()).z
        return (z["a"] + z["b"]).sum()

    x = torch.randn(4, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(vmap(value)(x), torch.stack([value(each) for each in x]))
    torch.testing.assert_close(vmap(grad(value))(x), grad(lambda x: vmap(value)(x).sum())(x))


def test_how_the_backward_solve_went_is_told(x):
    (layer,) = layers(1)
    seen = []

    def loss(x):
        seen.append(layer.solve(x))
        return energy(seen[0].z)

    grad(loss)(x)
    assert seen[0].backward.converged.tolist() == [True] * 3


def test_what_f_closes_over_is_refused_and_no_gradient_is_lost(x):
    def value(weight):
        f = lambda z, x: torch.tanh(z @ weight.T + x)  # noqa: E731
        return fixed_point(f, torch.zeros_like(x), x, adjoint=EXACT).z.sum()

    weight = matrix(SIZE, 0.5)
    members = weight.expand(2, SIZE, SIZE)
    for transformed, given in ((grad(value), weight), (vmap(value), members), (vmap(grad(value)), members)):
        with pytest.raises(RuntimeError, match="f closes over one; pass it after z0 as an input"):
            transformed(given)
    # An ordinary leaf, whose gradient would not be asked of the solve.
    leaf = weight.requires_grad_()
    f = lambda z, x: torch.tanh(z @ leaf.T + x)  # noqa: E731
    with pytest.raises(RuntimeError, match="f closes over one"):
        vmap(lambda x: fixed_point(f, torch.zeros_like(x), x).z)(x[None])
    with torch.no_grad():
        z = vmap(lambda x: fixed_point(f, torch.zeros_like(x), x, solver=TIGHT).z)(x[None])
        torch.testing.assert_close(z[0], fixed_point(f, torch.zeros_like(x), x, solver=TIGHT).z)


def test_penalties_inside_of_a_transform_are_refused(x):
    (layer,) = layers(1)
    with pytest.raises(RuntimeError, match=r"products with the Jacobian.*torch\.func"):
        grad(lambda x: jacobian_penalty(layer.solve(x)).sum())(x)


def test_masks_hold_for_a_solve_under_a_gradient_too(x):
    cell = TanhCell(SIZE)
    dropout = VariationalDropout(0.5)

    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.dropout = cell, dropout

        def forward(self, z, x):
            return self.dropout(self.cell(z, x))

    layer = DEQ(Dropped(), solver=TIGHT, adjoint=EXACT)
    torch.manual_seed(0)
    expected = own_gradients(layer, x)
    torch.manual_seed(0)
    torch.testing.assert_close(grad(loss_of(layer))(detached(layer), x), expected)


def test_samples_that_see_each_other_are_still_refused(x):
    class Coupled(nn.Module):
        def forward(self, z, x):
            return 0.5 * z.mean(0, keepdim=True) + x

    layer = DEQ(Coupled(), solver=TIGHT, adjoint=EXACT)
    with pytest.raises(ValueError, match="depends on other rows"):
        grad(lambda x: energy(layer(x)))(x)


@pytest.mark.parametrize("adjoint", [EXACT, Reversible()], ids=["implicit", "reversible"])
def test_backward_passes_use_the_parameters_of_functional_call(adjoint, x):
    solver = Picard(damping=0.5, max_evals=40) if isinstance(adjoint, Reversible) else TIGHT
    layer, other = layers(2, solver=solver, adjoint=adjoint)
    given = {name: tensor.requires_grad_() for name, tensor in detached(layer).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = energy(functional_call(other, given, (x,)))
        found = torch.autograd.grad(loss, list(given.values()), create_graph=isinstance(adjoint, Implicit))
    torch.testing.assert_close(dict(zip(given, found, strict=True)), own_gradients(layer, x), rtol=1e-6, atol=1e-7)


def test_second_derivatives_use_the_parameters_of_functional_call(x):
    layer, other = layers(2)

    def loss(weight):
        return energy(functional_call(other, {"cell.weight": weight}, (x,)))

    weight = detached(layer)["cell.weight"].requires_grad_()
    (first,) = torch.autograd.grad(loss(weight), weight, create_graph=True)
    second = torch.stack([torch.autograd.grad(g, weight, retain_graph=True)[0] for g in first.flatten()])
    expected = jacrev(jacrev(loss))(weight.detach())
    torch.testing.assert_close(second.unflatten(0, (SIZE, SIZE)), expected.detach())
    assert expected.abs().max() > 1e-2
