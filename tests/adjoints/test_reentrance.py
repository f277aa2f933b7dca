from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from adjoints.cells import ADJOINTS, EXACT, LONG_LOOP, TIGHT, TanhCell, energy, largest_error, leaf, matrix
from torch import nn
from torch.utils.checkpoint import checkpoint

from steadeq import DEQ, Broyden, Equilibrium, Unrolled, fixed_point, jacobian_penalty

BROYDEN = Broyden(max_evals=200, tol=1e-12)
each_adjoint = pytest.mark.parametrize("adjoint", ADJOINTS.values(), ids=ADJOINTS)


def zeros(x):
    return torch.zeros_like(x)


class NestedCell(nn.Module):
    """Feeds its state through a layer of its own."""

    def __init__(self, dim, **kwargs):
        super().__init__()
        self.inner = DEQ(TanhCell(dim, 0.5), **kwargs)
        self.weight = nn.Parameter(matrix(dim, 0.6))

    def forward(self, z, x):
        h = self.inner(torch.sin(z) + x)
        return torch.tanh(h @ self.weight.T)


def test_the_penalty_of_a_cell_that_contains_a_layer():
    x, cell = torch.randn(3, 4, dtype=torch.float64), NestedCell(4)
    z = torch.randn(3, 4, dtype=torch.float64)
    gradients = []
    for cell.inner.solver, cell.inner.adjoint in ((TIGHT, EXACT), (LONG_LOOP, Unrolled())):
        penalty = jacobian_penalty(Equilibrium.at(cell, z, x), generator=torch.Generator().manual_seed(1))
        gradients.append(torch.autograd.grad(penalty, list(cell.parameters())))
    assert largest_error(*gradients) < 1e-8


@each_adjoint
def test_a_retained_graph_gives_the_same_gradient_again_and_a_freed_one_the_usual_error(adjoint):
    cell, x = TanhCell(5), leaf(3, 5)
    z = fixed_point(cell, zeros(x), x, solver=BROYDEN, adjoint=adjoint).z
    losses, sources = (energy(z), z.exp().sum()), [*cell.parameters(), x]
    once, again = (torch.autograd.grad(losses[0], sources, retain_graph=True) for _ in range(2))
    torch.testing.assert_close(again, once, rtol=0, atol=0)
    expected = torch.autograd.grad(sum(losses), sources, retain_graph=True)
    losses[0].backward(retain_graph=True)
    losses[1].backward()
    assert largest_error([source.grad for source in sources], expected) < 1e-9
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        z.sum().backward()


def test_backward_after_an_in_place_change_of_a_parameter_raises_the_usual_error():
    cell, x = TanhCell(5), leaf(3, 5)
    z = fixed_point(cell, zeros(x), x, solver=TIGHT).z
    with torch.no_grad():
        cell.weight.add_(0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


@each_adjoint
def test_each_parameter_is_accumulated_once_per_backward(adjoint):
    # What DDP, and optimizers that step inside of backward, build upon.
    cell, x = TanhCell(5), leaf(3, 5)
    seen, gradients = [], []
    for name, parameter in cell.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter, name=name: seen.append(name))
    cell.weight.register_hook(gradients.append)
    z = fixed_point(cell, zeros(x), x, solver=BROYDEN, adjoint=adjoint).z
    energy(z).backward()
    assert sorted(seen) == ["bias", "weight"]
    # A hook sees the whole gradient.
    torch.testing.assert_close(gradients, [cell.weight.grad])


def test_layers_may_run_in_threads():
    cells, x = [TanhCell(5) for _ in range(4)], torch.randn(3, 5, dtype=torch.float64)

    def step(cell):
        value = fixed_point(cell, zeros(x), x, solver=TIGHT, adjoint=EXACT).z
        return torch.autograd.grad(energy(value), list(cell.parameters()))

    expected = [step(cell) for cell in cells]
    with ThreadPoolExecutor(4) as pool:
        torch.testing.assert_close(list(pool.map(step, cells * 5)), expected * 5, rtol=0, atol=0)


class DeepCell(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim, 9), nn.Tanh(), nn.Linear(9, 7), nn.Sigmoid(), nn.Linear(7, dim))
        self.double()

    def forward(self, z, x):
        return torch.tanh(self.layers(z) + x)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_layer_may_be_checkpointed(use_reentrant):
    # Six parameters of different shapes, as what is saved must come in the same order again.
    cell, x = DeepCell(5), leaf(3, 5)
    layer = DEQ(cell, solver=TIGHT, adjoint=EXACT)
    sources = [*layer.parameters(), x]
    expected = torch.autograd.grad(energy(layer(x)), sources)
    energy(checkpoint(lambda x: layer(x).sin().asin(), x, use_reentrant=use_reentrant)).backward()
    assert largest_error([source.grad for source in sources], expected) < 1e-9


def test_a_cell_may_checkpoint_its_parts():
    cell, x = TanhCell(5), leaf(3, 5)
    sources = [*cell.parameters(), x]
    frugal = lambda z, x: checkpoint(cell, z, x, use_reentrant=False)  # noqa: E731
    gradients = []
    for f in (cell, frugal):
        z = fixed_point(f, zeros(x), x, solver=TIGHT, adjoint=EXACT).z
        gradients.append(torch.autograd.grad(energy(z), sources))
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("make_input", [lambda x: x, torch.sin], ids=["leaf", "computed"])
def test_saved_tensors_may_be_moved_away(make_input):
    cell, x = TanhCell(5), leaf(3, 5)
    sources = [*cell.parameters(), x]
    results = []
    for is_moved in (False, True):
        hooks = torch.autograd.graph.save_on_cpu() if is_moved else torch.enable_grad()
        with hooks:
            z = fixed_point(cell, zeros(x), make_input(x), solver=TIGHT, adjoint=EXACT).z
        first = torch.autograd.grad(energy(z), sources, create_graph=True)
        second = torch.autograd.grad(sum(gradient.square().sum() for gradient in first), sources)
        results.append([*first, *second])
    torch.testing.assert_close(results[1], results[0])
