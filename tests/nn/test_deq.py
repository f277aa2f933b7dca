import pytest
import torch
from adjoints.cells import EXACT, LONG_LOOP, TIGHT, TanhCell, energy, largest_error, leaf
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


def test_options_are_keywords_and_typos_are_refused():
    with pytest.raises(TypeError):
        DEQ(TanhCell(3), Anderson())
    with pytest.raises(TypeError):
        DEQ(TanhCell(3), max_iters=3)
    with pytest.raises(TypeError, match="solver is 'anderson'"):
        DEQ(TanhCell(3), solver="anderson")(torch.zeros(1, 3).double())


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


class TwoScaleCell(nn.Module):
    """Two resolutions that exchange what they know, as in a multiscale DEQ."""

    def __init__(self):
        super().__init__()
        self.fine = nn.Conv2d(2, 2, 3, padding=1)
        self.coarse = nn.Conv2d(3, 3, 3, padding=1)
        self.down = nn.Conv2d(2, 3, 3, stride=2, padding=1)
        self.up = nn.Conv2d(3, 2, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter *= 0.5

    def forward(self, z, x):
        fine, coarse = z
        upper = nn.functional.interpolate(self.up(coarse), scale_factor=2)
        return torch.tanh(self.fine(fine) + upper + x), torch.tanh(self.coarse(coarse) + self.down(fine))


class AttentionCell(nn.Module):
    """Attention to the state and to a memory that is an input."""

    def __init__(self, dim=6):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, z, x, memory):
        q, k, v = self.qkv(z + x).chunk(3, dim=-1)
        k, v = torch.cat([memory, k], dim=1), torch.cat([memory, v], dim=1)
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        return nn.functional.layer_norm(0.4 * self.out(weights @ v) + x, z.shape[-1:])


class NormalizedCell(nn.Module):
    """A cell with the weight norm of torch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(5, 5))

    def forward(self, z, x):
        return torch.tanh(0.5 * self.linear(z) + x)


CELLS = {
    "convolution": (ConvCell, [(3, 4, 5, 5)]),
    "two scales": (TwoScaleCell, [(3, 2, 6, 6)]),
    "attention to a memory": (AttentionCell, [(3, 4, 6), (3, 2, 6)]),
    "weight norm": (NormalizedCell, [(3, 5)]),
}


@pytest.mark.parametrize(("make", "shapes"), CELLS.values(), ids=CELLS)
def test_cells_of_all_kinds_have_the_unrolled_gradient(make, shapes):
    cell, inputs = make().double(), [leaf(*shape) for shape in shapes]
    z0 = torch.zeros_like(inputs[0])
    if make is TwoScaleCell:
        z0 = z0, torch.zeros(3, 3, 3, 3, dtype=torch.float64)
    gradients = []
    for solver, adjoint in ((TIGHT, EXACT), (LONG_LOOP, Unrolled())):
        z = DEQ(cell, solver=solver, adjoint=adjoint)(*inputs, z0=z0)
        assert type(z) is type(z0)
        loss = sum(map(energy, z)) if isinstance(z, tuple) else energy(z)
        gradients.append(torch.autograd.grad(loss, [*cell.parameters(), *inputs]))
    # The bias of the keys has no gradient of its own (softmax ignores it), so compare on the scale of the others.
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-8)


class DropoutCell(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.inner = TanhCell(dim, 0.6)

    def forward(self, z, x, mask):
        return mask * self.inner(z, x)


@pytest.mark.parametrize("compact", [True, False, None])
def test_a_dropout_mask_that_travels_as_an_input_stays_with_its_sample(compact):
    cell, x = DropoutCell(5), leaf(16, 5)
    mask = torch.bernoulli(torch.full((16, 5), 0.7, dtype=torch.float64)) / 0.7
    # Some samples are dropped entirely and finish at once, so that the batch shrinks early.
    mask[::4] = 0
    sources = [*cell.parameters(), x]
    layer = DEQ(cell, solver=TIGHT, adjoint=EXACT, compact=compact)
    eq = layer.solve(x, mask)
    assert eq.stats.num_evals[0] < eq.stats.num_evals.max()
    actual = torch.autograd.grad(energy(eq.z), sources)
    z = torch.zeros_like(x)
    for _ in range(300):
        z = cell(z, x, mask)
    assert largest_error(actual, torch.autograd.grad(energy(z), sources)) < 1e-9
    assert actual[-1][::4].abs().max() == 0
