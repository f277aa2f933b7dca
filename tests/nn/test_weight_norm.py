"""Normalized weights: layers that have them, and those of a module that are given them."""

import copy
import pickle
import threading

import pytest
import torch
from adjoints.cells import EXACT, TIGHT, energy, leaf
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from steadeq import DEQ, Anderson, Implicit, Picard, Reversible, Unrolled, fixed_point, jacobian_penalty
from steadeq.nn import WeightNormConv2d, WeightNormLinear, apply_weight_norm, cached_parameters, remove_weight_norm
from steadeq.nn.weight_norm import make_linear


def test_a_linear_map_begins_as_a_plain_one_and_agrees_with_torch():
    linear = WeightNormLinear(5, 3)
    torch.testing.assert_close(linear.compute(), linear.v)
    assert linear.v.abs().max() <= 5**-0.5
    assert not linear.bias.any()
    for bias in (True, False):
        layers = [make_linear(4, 6, bias=bias, weight_norm=switch) for switch in (False, True)]
        assert [type(layer) for layer in layers] == [nn.Linear, WeightNormLinear]
        assert [layer.bias is not None for layer in layers] == [bias, bias]
    oracle = nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))
    with torch.no_grad():
        linear.v.normal_()
        linear.bias.normal_()
        oracle.parametrizations.weight.original0.copy_(linear.g)
        oracle.parametrizations.weight.original1.copy_(linear.v)
        oracle.bias.copy_(linear.bias)
    x = torch.randn(4, 5)
    torch.testing.assert_close(linear(x), oracle(x))


DERIVED = {
    "linear": (lambda: WeightNormLinear(3, 2), ("v", "g", "bias"), (2, 3)),
    "convolution": (lambda: WeightNormConv2d(2, 3, 3), ("v", "g"), (1, 2, 4, 4)),
    "applied": (lambda: apply_weight_norm(nn.Linear(3, 2)), ("weight_g", "weight_v"), (2, 3)),
}


@pytest.mark.parametrize(("make", "names", "shape"), DERIVED.values(), ids=DERIVED)
def test_first_and_second_derivatives_are_right_in_all_parameters(make, names, shape):
    layer = make().double()

    def call(x, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,)).square()

    arguments = (leaf(*shape), *(layer.get_parameter(name) for name in names))
    assert torch.autograd.gradcheck(call, arguments)
    assert torch.autograd.gradgradcheck(call, arguments)


def test_the_weight_is_cached_parameters_in_a_solve_and_reaches_its_parameters():
    linear = WeightNormLinear(3, 3)
    with cached_parameters(linear):
        with torch.no_grad():
            linear(torch.ones(1, 3))
        assert linear.cached() is linear.cached()
        linear(torch.ones(1, 3)).sum().backward()
    assert linear.v.grad is not None
    assert torch.equal(copy.deepcopy(linear)(torch.ones(1, 3)), linear(torch.ones(1, 3)))


LAYERS = {
    "linear": (lambda: nn.Linear(4, 6), (2, 4)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), (2, 4, 8)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, groups=2), (2, 4, 8, 8)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 2, 4, 4, 4)),
    "transposed1d": (lambda: nn.ConvTranspose1d(4, 6, 3), (2, 4, 8)),
    "transposed2d": (lambda: nn.ConvTranspose2d(4, 6, 3, bias=False), (2, 4, 5, 5)),
    "transposed3d": (lambda: nn.ConvTranspose3d(2, 3, 2), (2, 2, 3, 3, 3)),
}


class Cell(nn.Module):
    """tanh of a two-layer map whose weights are normalized."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 6).double(), nn.Linear(6, 4).double()
        apply_weight_norm(self)

    def forward(self, z, x):
        return torch.tanh(0.5 * self.down(torch.relu(self.up(z))) + x)


class MyLinear(nn.Linear):
    """A layer of somebody's own, which uses its weight in its own way."""

    def forward(self, x):
        return x @ (2 * self.weight).T + self.bias


def count_computations(layer):
    """Return a list that grows with each computation of the weight of a layer."""
    calls, plain = [], layer.compute
    layer.compute = lambda: (calls.append(torch.is_grad_enabled()), plain())[1]
    return calls


@pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)
def test_values_and_gradients_are_those_of_torch(make, shape):
    layer = make().double()
    dim = 1 if type(layer).__name__.startswith("ConvTranspose") else 0
    oracle = nn.utils.parametrizations.weight_norm(copy.deepcopy(layer), dim=dim)
    before = layer.weight.detach().clone()
    apply_weight_norm(layer)
    torch.testing.assert_close(layer.weight, before)
    with torch.no_grad():
        layer.weight_g.mul_(torch.rand_like(layer.weight_g) + 0.5)
        layer.weight_v.mul_(3)
        originals = oracle.parametrizations.weight
        originals.original0.copy_(layer.weight_g)
        originals.original1.copy_(layer.weight_v)
    x = torch.randn(shape, dtype=torch.float64)
    image, expected = layer(x), oracle(x)
    torch.testing.assert_close(image, expected)
    torch.testing.assert_close(
        torch.autograd.grad(energy(image), [layer.weight_g, layer.weight_v]),
        torch.autograd.grad(energy(expected), [originals.original0, originals.original1]),
    )
    assert isinstance(layer, type(make()))


def test_all_layers_of_a_module_are_normalized_once_and_nothing_else():
    module = nn.ModuleDict(
        {"a": nn.Linear(2, 3), "b": nn.Sequential(nn.Conv2d(1, 1, 3), nn.GroupNorm(1, 4)), "c": MyLinear(2, 2)}
    )
    module["c"].weight.requires_grad_(False)
    expected = {f"{layer}.{part}" for layer in ("a", "b.0", "c") for part in ("weight_g", "weight_v", "bias")}
    for _ in range(2):
        names = {name for name, _ in apply_weight_norm(module).named_parameters()}
        assert names == expected | {"b.1.weight", "b.1.bias"}
    # What is frozen stays frozen, and a weight that follows from others cannot be set.
    assert [name for name, p in module["c"].named_parameters() if p.requires_grad] == ["bias"]
    with pytest.raises(KeyError, match="weight"):
        module["a"].weight = nn.Parameter(torch.zeros(3, 2))


def test_a_solve_has_the_values_and_gradients_of_the_plain_weights():
    cell, x = Cell(), leaf(3, 4)
    plain = remove_weight_norm(copy.deepcopy(cell))
    z = DEQ(cell, solver=TIGHT, adjoint=EXACT)(x)
    w = DEQ(plain, solver=TIGHT, adjoint=EXACT)(x)
    torch.testing.assert_close(z, w)
    energy(z).backward()
    energy(w).backward()
    # By the chain rule, through weight = g v / |v| at hand.
    g, v = (p.detach().requires_grad_() for p in (cell.up.weight_g, cell.up.weight_v))
    expected = torch.autograd.grad(g * v / v.norm(dim=1, keepdim=True), [g, v], plain.up.weight.grad)
    torch.testing.assert_close((cell.up.weight_g.grad, cell.up.weight_v.grad), expected)


@pytest.mark.parametrize(
    ("adjoint", "expected"), [(Implicit(), [False, True]), (Unrolled(), [True])], ids=["implicit", "unrolled"]
)
def test_weights_are_computed_once_for_a_solve_and_once_for_its_graph(adjoint, expected):
    cell, x = Cell(), leaf(3, 4)
    calls = count_computations(cell.up)
    z = DEQ(cell, solver=Anderson(max_evals=12, tol=0), adjoint=adjoint)(x)
    energy(z).backward()
    assert calls == expected
    assert cell.up.weight_v.grad.abs().max() > 0
    calls.clear()
    with torch.no_grad():
        DEQ(cell, solver=Anderson(max_evals=12, tol=0), adjoint=adjoint)(x)
    assert calls == [False]


def test_the_second_derivative_and_the_penalty_of_a_solve_reach_them():
    cell, x = Cell(), leaf(2, 4)
    parameters = [cell.up.weight_g, cell.up.weight_v]

    def gradient_norm():
        eq = DEQ(cell, solver=TIGHT, adjoint=EXACT).solve(x)
        first = torch.autograd.grad(energy(eq.z), x, create_graph=True)[0]
        return first.square().sum() + jacobian_penalty(eq, generator=torch.Generator().manual_seed(0))

    gradients = torch.autograd.grad(gradient_norm(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        direction = torch.randn_like(parameter)
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(sign * 1e-5 * direction)
            # Here z moves with the parameters; the penalty holds it still, so it is left out of the difference.
            eq = DEQ(cell, solver=TIGHT, adjoint=EXACT).solve(x)
            values.append(torch.autograd.grad(energy(eq.z), x)[0].square().sum())
            with torch.no_grad():
                parameter.sub_(sign * 1e-5 * direction)
        slope = (values[0] - values[1]) / 2e-5
        eq = DEQ(cell, solver=TIGHT, adjoint=EXACT).solve(x)
        penalty = jacobian_penalty(eq, generator=torch.Generator().manual_seed(0))
        share = torch.autograd.grad(penalty, parameter)[0]
        torch.testing.assert_close(((gradient - share) * direction).sum(), slope, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("adjoint", [Reversible(), Unrolled(), EXACT], ids=["reversible", "unrolled", "implicit"])
def test_gradients_are_the_same_with_and_without_cache_and_checkpointing(adjoint):
    cell, x = Cell(), leaf(3, 4)
    solver = Picard(max_evals=12, tol=0, damping=0.5)

    def gradients(f):
        cell.zero_grad()
        energy(fixed_point(f, torch.zeros_like(x), x, solver=solver, adjoint=adjoint).z).backward()
        return [parameter.grad for parameter in cell.parameters()]

    expected = gradients(lambda z, x: cell(z, x))
    torch.testing.assert_close(gradients(cell), expected)
    torch.testing.assert_close(gradients(lambda z, x: checkpoint(cell, z, x, use_reentrant=False)), expected)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "average": lambda module: AveragedModel(module).module,
}


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_copies_are_whole_and_independent(duplicate):
    cell, x = Cell(), leaf(3, 4)
    cell.extra = apply_weight_norm(MyLinear(4, 4).double())
    DEQ(cell)(x).sum().backward()
    before = cell(x, x).detach()
    twin = duplicate(cell)
    assert torch.equal(twin(x, x), before)
    assert isinstance(twin.extra, MyLinear)
    with torch.no_grad():
        twin.up.weight_g.mul_(2)
    assert torch.equal(cell(x, x), before)
    assert not torch.equal(twin(x, x), before)
    assert str(twin) == str(cell)
    assert {"up.weight_g", "up.weight_v", "up.bias"} <= set(cell.state_dict())
    twin.load_state_dict(cell.state_dict())
    assert torch.equal(twin(x, x), before)


def test_nothing_stale_is_left_behind_by_threads():
    cell, x = Cell(), torch.randn(3, 4, dtype=torch.float64)

    def work():
        for _ in range(20):
            with torch.no_grad():
                DEQ(cell, solver=Anderson(max_evals=3, tol=0))(x)
            fixed_point(cell, torch.zeros_like(x), x, solver=Anderson(max_evals=3, tol=0), adjoint=Unrolled())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not cell.up._kept


def test_it_can_be_taken_off_again():
    cell, x = Cell(), leaf(3, 4)
    with torch.no_grad():
        cell.up.weight_v.mul_(3)
        cell.up.weight_g.mul_(0.7)
    before = cell(x, x)
    assert remove_weight_norm(cell) is cell
    assert type(cell.up) is nn.Linear
    assert {name for name, _ in cell.named_parameters()} == {"up.weight", "up.bias", "down.weight", "down.bias"}
    torch.testing.assert_close(cell(x, x), before)
    apply_weight_norm(cell)
    torch.testing.assert_close(cell(x, x), before)


def test_weights_that_two_layers_share_stay_shared():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    apply_weight_norm(module)
    assert module[0].weight_v is module[1].weight_v
    assert module[0].weight_g is module[1].weight_g
    remove_weight_norm(module)
    assert module[0].weight is module[1].weight


def zero_row(layer):
    with torch.no_grad():
        layer.weight[0] = 0
    return layer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (nn.ReLU, "has no linear or convolution layer"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "weight of 0 has no shape yet"),
        (
            lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))),
            "of 0 already has a parametrization",
        ),
        (lambda: nn.Sequential(nn.Linear(3, 3), zero_row(nn.Linear(3, 3))), "weight of 1 is zero for an output"),
    ],
    ids=["nothing", "lazy", "parametrized", "zero"],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_what_cannot_be_normalized_is_refused_and_left_as_it_was(make, message):
    module = make()
    names = [name for name, _ in module.named_parameters()]
    with pytest.raises(ValueError, match=message):
        apply_weight_norm(module)
    assert [name for name, _ in module.named_parameters()] == names


def test_a_compiled_cell_sees_them():
    torch._dynamo.reset()
    cell, x = Cell(), leaf(3, 4)
    compiled = torch.compile(cell, backend="aot_eager")
    for _ in range(2):
        states = [
            fixed_point(cell, torch.zeros_like(x), x, solver=TIGHT, adjoint=EXACT, f_solve=f_solve).z
            for f_solve in (None, compiled)
        ]
        torch.testing.assert_close(*states)
        with torch.no_grad():
            cell.up.weight_v.normal_()
            cell.up.weight_g.mul_(0.9)
