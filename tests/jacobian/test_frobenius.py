import itertools
import math

import pytest
import torch
from jacobian.cells import linear, matrices

from steadeq import Equilibrium, frobenius_norm
from steadeq.jacobian._products import ScaledJacobian
from steadeq.jacobian.frobenius import _student_quantile


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
@pytest.mark.parametrize(
    ("method", "rank", "num_probes"),
    [
        *itertools.product(["hutchinson"], [1, 3, 40], [2, 4, 16]),
        *itertools.product(["hutch++"], [3, 18, 40], [8, 16, 48]),
    ],
)
def test_intervals_have_their_rate_at_every_rank(method, rank, num_probes, probe):
    M = torch.randn(40, rank, dtype=torch.float64) @ torch.randn(rank, 40, dtype=torch.float64)
    eq = Equilibrium.at(lambda z: z @ M.T, torch.zeros(2000, 40, dtype=M.dtype))
    estimate = frobenius_norm(eq, method=method, num_probes=num_probes, probe=probe)
    covered = ((estimate.value - torch.linalg.matrix_norm(M)).abs() <= estimate.error).double().mean()
    # Two standard errors of the count below the nominal rate, and not far above it, or exact.
    assert covered == 1 if method == "hutch++" and rank <= num_probes // 3 else 0.94 <= covered <= 0.99


@pytest.mark.parametrize("method", ["hutchinson", "hutch++"])
def test_zero_has_no_error_and_what_is_not_known_an_infinite_one(method):
    estimate = frobenius_norm(Equilibrium.at(lambda z: 0 * z, torch.ones(2, 3)), num_probes=4, method=method)
    assert estimate.value.tolist() == estimate.error.tolist() == [0, 0]
    eq = Equilibrium.at(lambda z: math.nan * z, torch.ones(1, 3))
    assert frobenius_norm(eq, method=method).error.isinf().all()
    if method == "hutchinson":
        assert frobenius_norm(Equilibrium.at(torch.cos, torch.ones(4, 3)), num_probes=1).error.isinf().all()


class TestHutchPlusPlus:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize(("rank", "num_probes"), [(1, 3), (1, 8), (5, 15), (5, 16), (20, 60)])
    def test_it_is_exact_for_a_rank_of_up_to_a_third_of_the_probes(self, rank, num_probes, dtype):
        M = torch.randn(3, 40, rank, dtype=dtype) @ torch.randn(3, rank, 40, dtype=dtype)
        eq = Equilibrium.at(linear, torch.zeros(3, 40, dtype=dtype), M)
        estimate = frobenius_norm(eq, method="hutch++", num_probes=num_probes)
        off = (estimate.value - torch.linalg.matrix_norm(M)).abs()
        assert (off <= 10 * torch.finfo(dtype).eps * estimate.value).all()
        assert (off <= estimate.error).all()
        if num_probes >= 8:
            assert (estimate.error <= 1e-4 * estimate.value).all()

    def test_signs_in_a_sparse_jacobian_do_not_spoil_the_exact_part(self):
        # Two vectors of signs are dependent on two coordinates for every second sample.
        scale = torch.tensor([1.0, 1.0] + [0.0] * 10)
        eq = Equilibrium.at(lambda z: z * scale, torch.zeros(64, 12))
        found = frobenius_norm(eq, method="hutch++", num_probes=8, probe="rademacher")
        torch.testing.assert_close(found.value, torch.full((64,), math.sqrt(2)))

    def test_its_square_is_unbiased(self):
        M = torch.randn(30, 30, dtype=torch.float64) * 0.8 ** torch.arange(30)
        eq = Equilibrium.at(lambda z: z @ M.T, torch.zeros(4000, 30, dtype=M.dtype))
        squares = frobenius_norm(eq, method="hutch++", num_probes=9).value.square()
        assert abs(squares.mean() - M.square().sum()) < 4 * squares.std() / math.sqrt(4000)

    def test_it_beats_hutchinson_where_singular_values_fall_and_not_where_they_are_equal(self):
        # Singular values of one over j squared, turned so that signs have no advantage; and those of a random matrix.
        Q = torch.linalg.qr(torch.randn(2, 60, 60, dtype=torch.float64))[0]
        falling = Q[0] @ torch.diag(torch.arange(1.0, 61, dtype=torch.float64) ** -2) @ Q[1]
        level = torch.randn(60, 60, dtype=torch.float64)

        def error(M, method):
            eq = Equilibrium.at(lambda z: z @ M.T, torch.zeros(500, 60, dtype=M.dtype))
            value = frobenius_norm(eq, method=method, num_probes=24).value
            return (value / torch.linalg.matrix_norm(M) - 1).square().mean().sqrt().item()

        assert error(falling, "hutch++") < 0.01 * error(falling, "hutchinson")
        assert error(level, "hutch++") < 2 * error(level, "hutchinson")

    @pytest.mark.parametrize("num_probes", [3, 4, 16, 50])
    @pytest.mark.parametrize("dim", [1, 4, 40])
    def test_it_spends_as_many_products_as_it_says(self, num_probes, dim, monkeypatch):
        calls = []
        for name in ("vjp", "jvp"):
            plain = getattr(ScaledJacobian, name)
            monkeypatch.setattr(ScaledJacobian, name, lambda self, v, plain=plain: calls.append(v) or plain(self, v))
        estimate = frobenius_norm(
            Equilibrium.at(torch.cos, torch.ones(2, dim)), method="hutch++", num_probes=num_probes
        )
        assert len(calls) == estimate.num_products == num_probes


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 8, 15, 60])
def test_student_quantile_agrees_with_scipy(degrees):
    scipy_stats = pytest.importorskip("scipy.stats")
    assert _student_quantile(0.975, degrees) == pytest.approx(scipy_stats.t.ppf(0.975, degrees), rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_probes": 0}, "num_probes is 0; it must be an integer >= 1"),
        ({"probe": "uniform"}, "probe is 'uniform'; it must be one of 'rademacher', 'gaussian', 'sphere'"),
        ({"method": "xtrace"}, r"method is 'xtrace'; it must be one of 'hutchinson', 'hutch\+\+'"),
        ({"method": "hutch++", "num_probes": 2}, "num_probes is 2; it must be an integer >= 3"),
        ({"confidence": 1}, "confidence is 1; it must be between 0 and 1"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        frobenius_norm(Equilibrium.at(torch.cos, torch.ones(1, 2)), **arguments)
