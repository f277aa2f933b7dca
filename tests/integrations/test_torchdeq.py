import argparse

import pytest
import torch
from small_deq import make_model, samples

from steadeq import jacobian_penalty
from steadeq.integrations.torchdeq import DEQ, get_deq


def problem():
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    W = (0.7 * W / torch.linalg.matrix_norm(W, 2)).requires_grad_()
    x = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    return W, lambda z: torch.tanh(z @ W.T + x), torch.zeros_like(x)


@pytest.mark.parametrize("solver", ["anderson", "broyden", "fixed_point_iter"])
def test_results_and_gradients_are_those_of_torchdeq(solver):
    torchdeq = pytest.importorskip("torchdeq", reason="needs the extra integrations: make integrations")
    options = {"f_solver": solver, "f_max_iter": 60, "f_tol": 1e-9, "b_max_iter": 60, "b_tol": 1e-9, "ift": True}
    found = []
    for make in (get_deq, torchdeq.get_deq):
        W, f, z0 = problem()
        z_out, info = make(**options, **({} if make is get_deq else {"f_stop_mode": "rel", "b_stop_mode": "rel"}))(
            f, z0
        )
        z_out[-1].square().sum().backward()
        assert info["rel_lowest"].max() < 1e-8
        assert info["nstep"].shape == (4,)
        found.append((z_out[-1].detach(), W.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-8)


def test_the_info_has_what_penalties_take():
    _, f, z0 = problem()
    deq = get_deq(f_solver="anderson", ift=True)
    _, info = deq(f, z0)
    assert jacobian_penalty(info["equilibrium"]) > 0
    assert "sradius" not in info
    with torch.no_grad():
        _, info = deq.eval()(f, z0, sradius_mode=True)
    assert 0 < info["sradius"].max() < 0.7


def test_states_of_several_tensors_are_passed_as_arguments():
    z_out, _ = get_deq(f_solver="anderson", f_tol=1e-6)(
        lambda a, b: (torch.cos(b), torch.cos(a)), (torch.zeros(2, 3), torch.zeros(2, 3))
    )
    torch.testing.assert_close(z_out[0][0], torch.full((2, 3), 0.739085))


def test_phantom_gradients_are_the_default_as_in_torchdeq():
    assert type(DEQ().adjoint).__name__ == "Phantom"
    assert type(DEQ(hook_ift=True).adjoint).__name__ == "Implicit"


def test_arguments_are_taken_from_argparse_and_unknown_ones_refused():
    deq = get_deq(argparse.Namespace(f_solver="broyden", f_max_iter=7, lr=0.1), f_max_iter=5)
    assert (type(deq.solver).__name__, deq.solver.max_evals) == ("Broyden", 7)
    with pytest.raises(TypeError, match="f_maxiter"):
        get_deq(f_maxiter=5)
    with pytest.raises(ValueError, match="f_solver is 'newton'"):
        get_deq(f_solver="newton")
    with pytest.warns(UserWarning, match="relative residuals"):
        get_deq(f_stop_mode="abs")


def test_gradients_reach_a_model_that_the_map_closes_over():
    model, (x, _) = make_model(), samples()
    u = model[0](x)
    z_out, _ = get_deq(f_solver="anderson", ift=True)(lambda z: model[1].cell(z, u), torch.zeros_like(u))
    z_out[-1].sum().backward()
    assert model[0].weight.grad.abs().sum() > 0
