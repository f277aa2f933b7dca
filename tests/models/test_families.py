"""What holds for a small model of every family."""

import pytest
import torch
from export.families import EQUILIBRIA, EXPLICIT

from steadeq import GMRES, Anderson, Implicit, jacobian_penalty
from steadeq.models import AbstractEquilibriumModel, Predictions

MODELS = {name: make for name, make in (EQUILIBRIA | EXPLICIT).items() if name != "sequential"}


def make(name):
    """Return a model in double precision, and a batch."""
    model, x = MODELS[name]()
    return model.double(), x.double() if x.is_floating_point() else x


def solve(model, x, **how):
    """Return an output, and its equilibrium where there is one."""
    if isinstance(model, AbstractEquilibriumModel):
        output, eq = model.solve(x, **{"solver": Anderson(max_evals=30, tol=1e-6), **how})
    else:
        output, eq = model(x), None
    return output.log_probabilities() if isinstance(output, Predictions) else output, eq


@pytest.mark.parametrize("name", MODELS)
def test_gradients_reach_every_parameter(name):
    model, x = make(name)
    solve(model, x)[0].square().mean().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name


# Those whose random weights have an equilibrium that is easy to find; of the others, see their own tests.
EASY = ["toy", "monotone", "monotone dense", "monotone tiers", "looped", "fused attention"]
EASY += ["image transformer", "grid transformer", "language transformer"]


@pytest.mark.parametrize("name", EASY)
def test_gradients_through_the_solve_are_those_of_differences(name):
    model, x = make(name)
    parameters = list(model.parameters())
    directions = [torch.randn_like(parameter) * parameter.detach().abs().mean() for parameter in parameters]
    how = {"solver": Anderson(max_evals=100, tol=1e-13), "adjoint": Implicit(GMRES(max_evals=100, tol=1e-12))}

    def loss():
        output, eq = solve(model, x, **how)
        assert eq.stats.converged.all()
        return output.square().mean()

    gradients = torch.autograd.grad(loss(), parameters)
    slope = sum((gradient * direction).sum() for gradient, direction in zip(gradients, directions, strict=True))
    values = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(direction, alpha=step)
            values.append(loss())
    assert float((values[0] - values[1]) / 2e-6) == pytest.approx(float(slope), rel=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_in_evaluation_a_sample_does_not_feel_the_others(name):
    model, x = make(name)
    model.eval()
    if x.is_floating_point():
        # Of different difficulty, so that some leave the batch before others.
        x = x * torch.logspace(-2, 1, len(x), dtype=x.dtype).reshape(-1, *[1] * (x.dim() - 1))
    with torch.no_grad():
        together, eq = solve(model, x)
        for b in range(len(x)):
            alone, own = solve(model, x[b : b + 1])
            torch.testing.assert_close(alone[0], together[b], rtol=1e-7, atol=1e-8)
            assert eq is None or own.stats.num_evals[0] == eq.stats.num_evals[b]


# The penalty of fused attention is refused, see test_equilibrium_transformer.py.
@pytest.mark.parametrize("name", [name for name in EQUILIBRIA if name not in ("sequential", "fused attention")])
def test_the_penalty_has_a_gradient_in_every_weight_of_the_cell(name):
    model, x = make(name)
    _, eq = solve(model, x)
    jacobian_penalty(eq, generator=torch.Generator().manual_seed(0)).backward()
    for parameter_name, parameter in model.layer.cell.named_parameters():
        gradient = parameter.grad
        # Some biases only shift f, or move only its kinks, as those of the toy model do with its weights of the input.
        if not parameter_name.endswith("bias") and parameter_name not in ("b", "U"):
            assert gradient is not None, parameter_name
            assert gradient.any(), parameter_name
        assert gradient is None or gradient.isfinite().all(), parameter_name
