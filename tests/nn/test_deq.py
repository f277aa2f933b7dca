import pytest
import torch
from adjoints.cells import EXACT, TIGHT, TanhCell, energy, largest_error, leaf
from torch import nn

from steadeq import DEQ, GMRES, Anderson, Broyden, Equilibrium, Implicit, OneStep, Picard, Unrolled, fixed_point


def test_a_layer_is_fixed_point_as_a_module():
    cell, x = TanhCell(5), leaf(3, 5)
    solver, adjoint = Broyden(max_evals=9, tol=1e-4), OneStep()
    layer = DEQ(cell, solver=solver, adjoint=adjoint)
    eq, expected = layer.solve(x), fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=adjoint)
    assert isinstance(eq, Equilibrium)
    assert eq.f is cell
    assert eq.inputs == (x,)
    sources = [*cell.parameters(), x]
    gradients = torch.autograd.grad(energy(expected.z), sources)
    for z in (eq.z, layer(x)):
        torch.testing.assert_close(z, expected.z, rtol=0, atol=0)
        torch.testing.assert_close(torch.autograd.grad(energy(z), sources), gradients, rtol=0, atol=0)
    assert torch.equal(eq.stats.num_evals, expected.stats.num_evals)


def test_the_layer_keeps_nothing_between_calls_and_has_the_parameters_of_the_cell():
    layer, x = DEQ(TanhCell(5)), leaf(3, 5)
    before = dict(vars(layer))
    z = layer(x)
    z.sum().backward()
    assert dict(vars(layer)) == before
    assert list(layer.buffers()) == []
    assert list(dict(layer.named_parameters())) == list(layer.state_dict()) == ["cell.weight", "cell.bias"]


def test_printing_a_layer_shows_solver_and_adjoint():
    text = str(DEQ(TanhCell(5), solver=Anderson(max_evals=12), adjoint=Implicit(GMRES(tol=1e-4))))
    assert "Anderson(max_evals=12" in text
    assert "Implicit(solver=GMRES(max_evals=40, tol=0.0001" in text


def test_solver_and_adjoint_may_be_replaced_for_one_call_and_changed_between_calls():
    layer, x = DEQ(TanhCell(5), solver=Picard(max_evals=3, tol=0.0)), leaf(3, 5)
    other = {"solver": Picard(max_evals=7, tol=0.0), "adjoint": Unrolled()}
    eq = layer.solve(x, **other)
    eq.z.sum().backward()
    assert eq.stats.num_evals.max() == 7
    assert eq.backward is None
    assert torch.equal(layer(x, **other), eq.z)
    assert layer.solve(x).stats.num_evals.max() == 3
    # As a training loop does that evaluates at several budgets, or warms up unrolled.
    layer.solver, layer.adjoint = other.values()
    assert torch.equal(layer(x), eq.z)
    assert layer.solve(x).backward is None


class NoInputCell(nn.Module):
    def forward(self, z):
        return torch.cos(z)


def test_a_layer_starts_at_zeros_like_its_first_input():
    seen = []

    class Cell(nn.Module):
        def forward(self, z, x, scale):
            seen.append(z)
            return {"a": torch.tanh(scale * z["a"] + x["a"])}

    x = {"a": torch.ones(2, 3, dtype=torch.float64)}
    DEQ(Cell())(x, torch.full((2, 1), 0.5, dtype=torch.float64))
    assert torch.equal(seen[0]["a"], torch.zeros(2, 3, dtype=torch.float64))


def test_init_makes_the_start_from_the_inputs_and_z0_takes_its_place():
    cell, x = TanhCell(5), leaf(3, 5)
    layer = DEQ(cell, solver=Picard(max_evals=1), init=lambda x: x + 1)
    assert torch.equal(layer(x), x + 1)
    assert torch.equal(layer.initial_state(x), x + 1)
    assert torch.equal(layer(x, z0=torch.full_like(x, 7)), torch.full_like(x, 7))


def test_init_may_be_a_module_whose_parameters_are_those_of_the_layer():
    # The start has no gradient, but is saved and moved with the layer.
    layer = DEQ(TanhCell(5), init=nn.Linear(5, 5).double())
    x = leaf(3, 5)
    layer(x).sum().backward()
    assert "init.weight" in layer.state_dict()
    assert layer.init.weight.grad is None


def test_a_layer_without_inputs_needs_a_start():
    with pytest.raises(ValueError, match=r"^Without inputs.*z0=.*DEQ\(init=.*\.$"):
        DEQ(NoInputCell())()
    expected = torch.full((1, 2), 0.7391)
    torch.testing.assert_close(DEQ(NoInputCell())(z0=torch.zeros(1, 2)), expected, rtol=1e-3, atol=0)
    torch.testing.assert_close(DEQ(NoInputCell(), init=lambda: torch.zeros(1, 2))(), expected, rtol=1e-3, atol=0)


class ConvCell(nn.Module):
    def __init__(self, channels=4):
        super().__init__()
        self.first = nn.Conv2d(channels, 8, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, 8)
        self.second = nn.Conv2d(8, channels, 3, padding=1)
        with torch.no_grad():
            self.second.weight *= 0.3
        self.formats = set()

    def forward(self, z, x):
        self.formats.add(z.is_contiguous(memory_format=torch.channels_last) and not z.is_contiguous())
        return torch.tanh(self.second(torch.relu(self.norm(self.first(z)))) + x)


@pytest.mark.parametrize("batch", [3, 10])
def test_channels_last_states_keep_their_format_and_their_gradients(batch):
    cell = ConvCell().double()
    x = torch.randn(batch, 4, 5, 6, dtype=torch.float64)
    results = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        cell.to(memory_format=memory_format)
        cell.formats.clear()
        y = x.contiguous(memory_format=memory_format).requires_grad_()
        z = DEQ(cell, solver=TIGHT, adjoint=EXACT)(y)
        assert cell.formats == {memory_format == torch.channels_last}
        assert z.is_contiguous(memory_format=memory_format)
        weights = torch.linspace(0, 1, x[0].numel(), dtype=torch.float64).reshape(x[0].shape)
        results.append([z, *torch.autograd.grad((weights * z**2).sum(), [*cell.parameters(), y])])
    assert largest_error(results[1], results[0]) < 1e-9
