import copy
import io
import pickle

import pytest
import torch
from adjoints.cells import TanhCell, energy
from torch import nn

from steadeq import DEQ, GMRES, Anderson, Broyden, Implicit, OneStep, Phantom, Picard, Shine, Unrolled

ADJOINTS = [
    Implicit(GMRES(max_evals=7, tol=1e-5)),
    Implicit(Anderson()),
    OneStep(),
    Phantom(3, 0.7),
    Shine(2.0),
    Unrolled(),
]


def fake_compile(cell, **kwargs):
    """Stand in for torch.compile: something that must not be pickled or copied."""

    def compiled(*arguments):
        return cell(*arguments)

    return compiled


# Sums depend on where tensors lie in memory; weights that are left over differ in the first digit.
ROUNDING = {"rtol": 1e-12, "atol": 1e-15}


@pytest.fixture(params=[False, True], ids=["eager", "compiled"])
def layer(request, monkeypatch):
    monkeypatch.setattr(torch, "compile", fake_compile)
    layer = DEQ(TanhCell(5), solver=Broyden(max_evals=9, tol=1e-4), adjoint=Phantom(4), compile=request.param)
    x = torch.randn(3, 5, dtype=torch.float64)
    # Used before it is copied, so that whatever it might keep is there.
    layer(x).sum().backward()
    layer.zero_grad()
    return layer


def step(layer, x):
    z = layer(x)
    return [z.detach(), *torch.autograd.grad(energy(z), list(layer.parameters()))]


def save_and_load(layer):
    stream = io.BytesIO()
    torch.save(layer, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


COPIES = {"pickle": lambda layer: pickle.loads(pickle.dumps(layer)), "deepcopy": copy.deepcopy, "save": save_and_load}


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_a_copy_has_the_values_and_gradients_of_the_original_and_is_independent_of_it(duplicate, layer):
    x = torch.randn(3, 5, dtype=torch.float64)
    before = step(layer, x)
    twin = duplicate(layer)
    assert (twin.solver, twin.adjoint, str(twin)) == (layer.solver, layer.adjoint, str(layer))
    torch.testing.assert_close(step(twin, x), before, rtol=0, atol=0)
    twin(x).sum().backward()
    assert all(parameter.grad is None for parameter in layer.parameters())
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(0.5)
    torch.testing.assert_close(step(layer, x), before, rtol=0, atol=0)
    # And the copy follows its own parameters, not those that the original was compiled with.
    fresh = DEQ(TanhCell(5), solver=twin.solver, adjoint=twin.adjoint)
    fresh.load_state_dict(twin.state_dict())
    torch.testing.assert_close(step(twin, x), step(fresh, x), rtol=0, atol=0)


@pytest.mark.parametrize("adjoint", ADJOINTS, ids=lambda adjoint: type(adjoint).__name__)
def test_solvers_and_adjoints_survive_pickling(adjoint):
    for solver in (Picard(damping=0.5), Anderson(memory=3), Broyden(max_evals=4)):
        layer = pickle.loads(pickle.dumps(DEQ(nn.Identity(), solver=solver, adjoint=adjoint)))
        assert layer.solver == solver
        assert layer.adjoint == adjoint


def test_a_state_dict_makes_a_round_trip_through_a_safe_load_and_takes_effect_at_once(layer):
    x = torch.randn(3, 5, dtype=torch.float64)
    stream = io.BytesIO()
    torch.save(layer.state_dict(), stream)
    stream.seek(0)
    state = torch.load(stream, weights_only=True)
    assert list(state) == ["cell.weight", "cell.bias"]
    other = DEQ(TanhCell(5), solver=layer.solver, adjoint=layer.adjoint, compile=layer.compiles)
    # No stale copy of a weight may be left in the layer.
    assert not torch.allclose(step(other, x)[0], step(layer, x)[0])
    assert other.load_state_dict(state).missing_keys == []
    torch.testing.assert_close(step(other, x), step(layer, x), **ROUNDING)


def test_compiled_code_is_left_out_of_the_state(layer):
    assert "_compiled" not in layer.state_dict()
    assert all("compiled" not in name for name, _ in layer.named_modules())
    if layer.compiles:
        # The stand-in is a local function, which pickle would refuse.
        with pytest.raises((pickle.PicklingError, AttributeError)):
            pickle.dumps(fake_compile(layer.cell))
    assert pickle.loads(pickle.dumps(layer)).compiles == layer.compiles


def test_casting_a_layer_casts_its_cell(layer):
    layer.float()
    x = torch.randn(3, 5, requires_grad=True)
    z = layer(x)
    z.sum().backward()
    assert z.dtype == x.grad.dtype == layer.cell.weight.grad.dtype == torch.float32
