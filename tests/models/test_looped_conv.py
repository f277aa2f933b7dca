"""A looped block of convolutions, against a loop written by hand."""

import pytest
import torch

from steadeq.models import LoopedConv
from steadeq.solvers import Loop

OPTIONS = {
    "adds": {"recall": "add"},
    "decays": {"recall": "decay"},
    "starts from the input": {"recall": "none"},
    "normalized": {"outer_norm": True},
    "spectral norm": {"spectral_norm": True},
    "two states": {"num_states": 2},
    "two normalized states": {"num_states": 2, "outer_norm": True},
    "own blocks around the loop": {"num_outer_blocks": 2},
    "pictures": {"dims": 2, "input_channels": 3},
    "pictures and spectral norm": {"dims": 2, "input_channels": 3, "spectral_norm": True},
}


def made(**fields):
    torch.manual_seed(0)
    model = LoopedConv(channels=6, num_classes=3, **fields)
    shape = (5, model.config.input_channels, *[9] * model.config.dims)
    return model, torch.randint(2, shape).float()


@pytest.mark.parametrize("fields", OPTIONS.values(), ids=OPTIONS)
def test_every_option_makes_a_loop_that_can_go_on_for_longer(fields):
    model, x = made(**fields)
    output, eq = model.solve(x, solver=Loop(num_steps=7), states_at=(3, 7))
    z, inputs = model.encode(x)
    states = []
    for _ in range(7):
        z = model.layer.cell(z, *inputs)
        states.append(z)
    for found, expected in zip(eq.states, (states[2], states[6]), strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(output, model.decode(states[-1]))
    assert output.shape == (5, 3, *x.shape[2:])
    output.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("scale", [0.01, 30.0])
def test_spectral_norms_are_at_most_one(dims, scale):
    model, x = made(dims=dims, input_channels=3, spectral_norm=True)
    cell = model.layer.cell
    for conv in (cell.up, cell.down, cell.adapter):
        weight = conv.conv.weight
        with torch.no_grad():
            weight.mul_(scale)
        norm = torch.linalg.matrix_norm(weight.flatten(1), ord=2)
        torch.testing.assert_close(conv.cached(), weight / norm if norm > 1 else weight)
    a, b = torch.randn(2, 5, 12, *x.shape[2:])
    h = torch.randn_like(a[:, :6])
    torch.testing.assert_close(cell.add_branch(h), (h + cell.down(torch.relu(cell.up(h)))) / 2)
    assert torch.dist(cell.adapter(a), cell.adapter(b)) <= torch.dist(a, b) * (1 + 1e-5)


def test_the_outer_norm_normalizes_every_position_by_itself():
    model, x = made(outer_norm=True)
    z = model.solve(x, solver=Loop(num_steps=3))[1].z
    torch.testing.assert_close(z.mean(dim=1), torch.zeros_like(z[:, 0]), rtol=0, atol=1e-5)
    torch.testing.assert_close(z.var(dim=1, unbiased=False), torch.ones_like(z[:, 0]), rtol=0, atol=1e-2)


def test_a_decaying_state_is_forgotten_without_its_branch():
    model, x = made(recall="decay")
    with torch.no_grad():
        for parameter in model.layer.cell.down.parameters():
            parameter.zero_()
    _, inputs = model.encode(x)
    starts = torch.randn(2, *inputs[0].shape)
    ends = [model.solve(x, z0=start, solver=Loop(num_steps=60))[1].z for start in starts]
    torch.testing.assert_close(ends[0], ends[1])


def test_noise_at_the_start_is_for_training_only():
    model, x = made(start_noise=1.0)
    starts = [model.encode(x)[0] for _ in range(2)]
    assert not torch.equal(*starts)
    assert not model.eval().encode(x)[0].any()
