"""A looped block of convolutions, against a loop written by hand."""

import pytest
import torch

from steadeq import Picard
from steadeq.models import LoopedConv


@pytest.mark.parametrize("with_gradients", [True, False])
@pytest.mark.parametrize("depth", [1, 4, 11])
def test_it_is_a_loop_in_training_and_evaluation(depth, with_gradients):
    torch.manual_seed(0)
    model = LoopedConv(channels=6, num_classes=3)
    with torch.no_grad():
        # Unstable, so that states before the last have smaller residuals.
        model.layer.cell.adapter.weight.mul_(3)
    x = torch.randint(2, (5, 1, 9)).float()
    with torch.set_grad_enabled(with_gradients):
        output, eq = model.solve(x, solver=Picard(max_evals=depth + 1, tol=0.0))
    injected = model.encoder(x)
    z = torch.zeros_like(injected)
    for _ in range(depth):
        z = model.layer.cell(z, injected)
    torch.testing.assert_close(eq.z, z)
    torch.testing.assert_close(output, model.head(z))
    assert output.shape == (5, 3, 9)
    if with_gradients:
        expected = torch.autograd.grad(model.head(z).square().sum(), list(model.parameters()))
        found = torch.autograd.grad(output.square().sum(), list(model.parameters()))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_sizes_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="channels"):
        LoopedConv(channels=0)
