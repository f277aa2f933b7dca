import pytest
import torch
from torch import nn

from steadeq import DEQ, Anderson

deepinv = pytest.importorskip("deepinv", reason="needs the extra integrations: make integrations")
pytestmark = pytest.mark.filterwarnings("ignore")


class Shrink(nn.Module):
    """A denoiser with one weight, so that the reconstruction has a closed form."""

    def __init__(self, weight=0.8):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight, dtype=torch.float64))

    def forward(self, x, sigma, **_):
        return self.weight * x


def make(**options):
    from deepinv.optim.data_fidelity import L2
    from deepinv.optim.optim_iterators import PGDIteration
    from deepinv.optim.prior import PnP

    from steadeq.integrations.deepinv import IterationCell

    denoiser = Shrink()
    physics = deepinv.physics.Denoising()
    params = {"stepsize": torch.tensor(0.5, dtype=torch.float64, requires_grad=True), "g_param": 0.1}
    return IterationCell(
        options.get("iteration", PGDIteration()), L2(), PnP(denoiser), physics, params=params
    ), denoiser


def test_a_reconstruction_and_its_gradients_are_those_of_the_closed_form():
    cell, denoiser = make()
    layer = DEQ(cell, solver=Anderson(max_evals=60, tol=1e-10), init=cell.initial_state)
    y = torch.rand(2, 1, 4, 4, dtype=torch.float64)
    x = layer(y)
    # x = w (x - s (x - y)), so x = w s y / (1 - w (1 - s))
    w = denoiser.weight.detach().clone().requires_grad_()
    s = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    exact = w * s * y / (1 - w * (1 - s))
    torch.testing.assert_close(x, exact)
    x.square().sum().backward()
    exact.square().sum().backward()
    torch.testing.assert_close(denoiser.weight.grad, w.grad)
    torch.testing.assert_close(cell.params["stepsize"].grad, s.grad)


def test_it_is_one_step_of_deepinv_itself():
    cell, denoiser = make()
    y = torch.rand(1, 1, 4, 4, dtype=torch.float64)
    model = deepinv.optim.optim_builder(
        "PGD",
        max_iter=1,
        prior=deepinv.optim.prior.PnP(denoiser),
        data_fidelity=deepinv.optim.data_fidelity.L2(),
        params_algo={"stepsize": 0.5, "g_param": 0.1},
    )
    torch.testing.assert_close(cell(cell.initial_state(y), y), model(y, cell.physics))


def test_iterations_with_a_second_variable_are_refused():
    from deepinv.optim.optim_iterators import ADMMIteration

    with pytest.raises(ValueError, match="ADMMIteration"):
        make(iteration=ADMMIteration())
