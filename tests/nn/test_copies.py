import copy
import io
import pickle

import pytest
import torch
from adjoints.cells import TanhCell, energy

from steadeq import DEQ, Broyden, Phantom


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


COPIES = {"pickle": lambda layer: pickle.loads(pickle.dumps(layer)), "deepcopy": copy.deepcopy}


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
