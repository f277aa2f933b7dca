import math

import pytest
import torch

from steadeq import Equilibrium, frobenius_norm
from steadeq.jacobian.frobenius import _student_quantile


def linear(z, M):
    return torch.einsum("bij,bj->bi", M, z)


def matrices(batch=4, dim=12, dtype=torch.float64):
    return torch.randn(batch, dim, dim, dtype=dtype) / math.sqrt(dim)


def test_frobenius_norm_is_close_and_its_interval_covers_the_truth_as_often_as_it_says():
    M = matrices(batch=400, dim=8)
    estimate = frobenius_norm(
        Equilibrium.at(linear, torch.zeros(400, 8, dtype=M.dtype), M), num_probes=24, confidence=0.9
    )
    exact = torch.linalg.matrix_norm(M)
    covered = ((estimate.value - exact).abs() <= estimate.error).double().mean()
    assert 0.84 < covered < 0.96
    assert estimate.num_products == 24
    assert ((estimate.value - exact) / exact).abs().mean() < 0.1


@pytest.mark.parametrize("probe", ["rademacher", "gaussian"])
@pytest.mark.parametrize("num_probes", [2, 4, 16])
@pytest.mark.parametrize("rank", [1, 3, 40])
def test_intervals_of_the_frobenius_norm_have_their_rate_at_every_rank(rank, num_probes, probe):
    M = torch.randn(40, rank, dtype=torch.float64) @ torch.randn(rank, 40, dtype=torch.float64)
    z = torch.zeros(2000, 40, dtype=M.dtype)
    estimate = frobenius_norm(Equilibrium.at(lambda z: z @ M.T, z), num_probes=num_probes, probe=probe)
    covered = ((estimate.value - torch.linalg.matrix_norm(M)).abs() <= estimate.error).double().mean()
    # Two standard errors of the count below the nominal rate, and not far above it.
    assert 0.94 <= covered <= 0.99


def test_a_zero_jacobian_has_norm_and_error_zero():
    estimate = frobenius_norm(Equilibrium.at(lambda z: 0 * z, torch.ones(2, 3)), num_probes=4)
    assert estimate.value.tolist() == estimate.error.tolist() == [0, 0]


def test_a_jacobian_of_nan_has_an_infinite_error():
    assert frobenius_norm(Equilibrium.at(lambda z: math.nan * z, torch.ones(1, 3))).error.isinf().all()


def test_a_single_probe_says_that_its_error_is_unknown():
    M = matrices()
    assert (
        frobenius_norm(Equilibrium.at(linear, torch.zeros(4, 12, dtype=M.dtype), M), num_probes=1).error.isinf().all()
    )


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 8, 15, 60])
def test_student_quantile_agrees_with_scipy(degrees):
    scipy_stats = pytest.importorskip("scipy.stats")
    assert _student_quantile(0.975, degrees) == pytest.approx(scipy_stats.t.ppf(0.975, degrees), rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_probes": 0}, "num_probes is 0; it must be an integer >= 1"),
        ({"probe": "uniform"}, "probe is 'uniform'; it must be one of 'rademacher', 'gaussian', 'sphere'"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        frobenius_norm(Equilibrium.at(torch.cos, torch.ones(1, 2)), **arguments)


def test_confidence_outside_zero_and_one_is_refused():
    with pytest.raises(ValueError, match="confidence is 1; it must be between 0 and 1"):
        frobenius_norm(Equilibrium.at(torch.cos, torch.ones(1, 2)), confidence=1)
