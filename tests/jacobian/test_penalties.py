"""What all penalties have in common."""

import functools

import pytest
import torch
from jacobian.cells import linear, matrices, seeded

from steadeq import (
    Equilibrium,
    JacobianRegularizer,
    OperatorNormRegularizer,
    SpectralRegularizer,
    jacobian_penalty,
    operator_norm_penalty,
    residual_penalty,
    spectral_penalty,
)

PENALTIES = {
    "jacobian": jacobian_penalty,
    "jacobian by difference": functools.partial(jacobian_penalty, estimator="difference"),
    "operator norm": operator_norm_penalty,
    "spectral": spectral_penalty,
    "spectral by difference": functools.partial(spectral_penalty, num_products=8, estimator="difference"),
    "residual": residual_penalty,
}
RANDOM = [name for name in PENALTIES if name != "residual"]
each_penalty = pytest.mark.parametrize("name", PENALTIES)


def penalty(name, eq, seed=0):
    """Return a penalty of an equilibrium, with the same numbers at every call."""
    return PENALTIES[name](eq, **({} if name == "residual" else {"generator": seeded(seed)}))


@each_penalty
def test_gradients_reach_parameters_and_inputs_and_treat_z_as_constant(name):
    W, z, x = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((5, 5), (3, 5), (3, 5)))
    penalty(name, Equilibrium.at(lambda z, x: torch.tanh(z @ W.T + x), z * 2, x)).backward()
    assert z.grad is None
    assert W.grad.abs().sum() > 0
    assert (x.grad.abs().sum(dim=1) > 0).all()


@each_penalty
def test_a_sample_does_not_feel_its_neighbors(name):
    M = matrices(batch=3)
    other = M.clone()
    other[[0, 2]] = 1e3 * torch.randn(2, 12, 12, dtype=M.dtype)
    z, scales = torch.randn(3, 12, dtype=M.dtype), torch.tensor([[1e3], [1.0], [1e-3]]).double()

    def gradient(M, z):
        M = M.clone().requires_grad_()
        return torch.autograd.grad(penalty(name, Equilibrium.at(linear, z, M)), M)[0][1]

    # To the last bit, where no eigenvalue problem is solved.
    tolerance = {} if "spectral" in name else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(gradient(M, z), gradient(other, scales * z), **tolerance)


@each_penalty
@pytest.mark.parametrize("scale", [1e-15, 1e-6, 1e6, 1e15])
def test_the_scale_of_a_problem_does_not_matter(name, scale):
    W, z = torch.randn(6, 6), torch.randn(3, 6)
    found = penalty(name, Equilibrium.at(lambda z: scale * torch.tanh(z / scale @ W.T), scale * z))
    expected = penalty(name, Equilibrium.at(lambda z: torch.tanh(z @ W.T), z))
    assert found.item() == pytest.approx(expected.item(), rel=1e-3 if name == "spectral by difference" else 1e-4)


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_scale_of_the_jacobian_does_not_matter(name, scale):
    M, z = matrices(dtype=torch.float32), torch.randn(4, 12)
    found, expected = (penalty(name, Equilibrium.at(linear, z, c * M)).item() for c in (scale, 1))
    assert found / scale**2 == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", RANDOM)
def test_a_constant_map_has_none(name):
    x, W = torch.ones(2, 3), torch.ones(3, requires_grad=True)
    for f in (lambda z: x, lambda z: x * W + 0 * z):
        assert penalty(name, Equilibrium.at(f, torch.ones(2, 3))).item() == 0


@pytest.mark.parametrize(
    ("name", "expected", "rel"),
    [
        *((name, 0.25, 1e-6) for name in RANDOM[:2]),
        *((name, 0.25, 0.03) for name in RANDOM[2:]),
        ("residual", 1, 1e-6),
    ],
)
def test_without_gradients_they_keep_no_graph_and_half_precision_is_accumulated_in_single(name, expected, rel):
    scale = torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True)
    eq = Equilibrium.at(lambda z: scale * z, torch.randn(2, 512, dtype=torch.bfloat16))
    with torch.no_grad():
        value = penalty(name, eq)
    assert not value.requires_grad
    assert penalty(name, eq).requires_grad
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(expected, rel=rel)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, (4 * 4 + 9 * 18) / 22) for name in RANDOM[:2]),
        *((name, 9) for name in RANDOM[2:]),
        ("residual", (4 + 4 * 18) / (4 * 4 + 9 * 18)),
    ],
)
def test_every_leaf_of_a_nested_state_counts(name, expected):
    z = {"a": torch.ones(2, 4), "b": (torch.ones(2, 2, 3, 3).to(memory_format=torch.channels_last),)}
    f = lambda z: {"a": 2 * z["a"], "b": (3 * z["b"][0],)}  # noqa: E731
    assert penalty(name, Equilibrium.at(f, z)).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", RANDOM)
def test_a_generator_fixes_what_is_drawn(name):
    eq = Equilibrium.at(linear, torch.randn(4, 12, dtype=torch.float64), matrices())
    first, again, other = (penalty(name, eq, seed) for seed in (5, 5, 6))
    assert first == again != other


@pytest.mark.parametrize(
    ("regularizer", "penalty"),
    [
        (
            JacobianRegularizer(weight=3.0, num_probes=2, estimator="difference"),
            functools.partial(jacobian_penalty, num_probes=2, estimator="difference"),
        ),
        (OperatorNormRegularizer(weight=3.0, num_steps=2), functools.partial(operator_norm_penalty, num_steps=2)),
        (SpectralRegularizer(weight=3.0, num_products=6), functools.partial(spectral_penalty, num_products=6)),
    ],
)
def test_the_term_of_a_regularizer_is_weight_times_the_penalty(regularizer, penalty):
    M = torch.randn(6, 6)
    eq = Equilibrium.at(lambda z: z @ M.T, torch.ones(2, 6))
    torch.testing.assert_close(regularizer(eq, step=0, generator=seeded()), 3 * penalty(eq, generator=seeded()))


EQ = Equilibrium.at(torch.cos, torch.ones(1, 2))


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        *((lambda p=p: p(torch.cos), TypeError, "it must be an Equilibrium") for p in PENALTIES.values()),
        (lambda: jacobian_penalty(EQ, num_probes=0), ValueError, "num_probes is 0; it must be an integer >= 1"),
        (
            lambda: jacobian_penalty(EQ, probe="uniform"),
            ValueError,
            "probe is 'uniform'; it must be one of 'rademacher', 'gaussian', 'sphere'",
        ),
        *(
            (lambda p=p: p(EQ, estimator="jvp"), ValueError, "estimator is 'jvp'; it must be one of 'vjp', 'diff")
            for p in (jacobian_penalty, spectral_penalty)
        ),
        (lambda: operator_norm_penalty(EQ, num_steps=0), ValueError, "num_steps is 0; it must be an integer >= 1"),
        (lambda: OperatorNormRegularizer(num_steps=0), ValueError, "num_steps is 0; it must be an integer >= 1"),
        *(
            (make, kind, f"num_products is {num}; it must be an integer >= 2")
            for num, kind in ((1, ValueError), (2.0, TypeError))
            for make in (
                lambda num=num: spectral_penalty(EQ, num_products=num),
                lambda num=num: SpectralRegularizer(num_products=num),
            )
        ),
        (lambda: SpectralRegularizer(estimator="jvp"), ValueError, "estimator is 'jvp'; it must be one of"),
    ],
)
def test_bad_arguments_are_named(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_spectral_differences_are_refused_in_inference_mode():
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"torch\.no_grad\(\) instead"):
        penalty("spectral by difference", Equilibrium.at(torch.cos, torch.ones(1, 2)))
