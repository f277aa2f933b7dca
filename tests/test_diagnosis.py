"""`diagnose` tells what becomes of an iteration, on maps whose fate is known."""

import json
import math
import re
import sys
import weakref

import pytest
import torch
from torch import nn

import steadeq
from steadeq import (
    Anderson,
    Diagnosis,
    Equilibrium,
    Verdict,
    diagnose,
    fixed_point,
    spectral_radius,
)
from steadeq.diagnosis.verdict import NUM_KEPT

CONVERGES, CYCLES, DRIFTS, DIVERGES = Verdict


def linear(matrix):
    """Return z -> A z + x."""
    return lambda z, x: z @ matrix.to(z).T + x


def turn(degrees, factor=1.0):
    angle = torch.tensor(math.radians(degrees), dtype=torch.float64)
    return factor * torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])


def far_from_normal():
    """A matrix of radius 0.9 whose powers grow a thousandfold before they fall."""
    return sheared(0.9, 6, 0.5)


def sheared(radius, dim, shear):
    """A matrix whose only eigenvalue is the radius, and whose powers grow like a polynomial first."""
    return radius * torch.eye(dim, dtype=torch.float64) + shear * torch.diag(torch.ones(dim - 1).double(), 1)


def hidden(factor):
    """Two entries that settle at once, and a third one that grows from 1e-13 on by a factor."""
    return lambda z, x: torch.cat([0.5 * z[:, :2] + x[:, :2], factor * z[:, 2:] + 1e-13 * x[:, 2:]], dim=1)


# name: the map of z and x, the dimension, what becomes of it, and its period or rate.
MAPS = {
    "contraction": (linear(0.5 * turn(30)), 2, CONVERGES, 0.5),
    "contraction that alternates": (linear(-0.999 * torch.eye(3)), 3, CONVERGES, 0.999),
    "contraction so slow that it looks like drift": (linear(0.9999 * torch.eye(3)), 3, CONVERGES, 0.9999),
    "slow spiral inwards": (linear(turn(90, 0.999)), 2, CONVERGES, 0.999),
    "growth before convergence": (linear(far_from_normal()), 6, CONVERGES, None),
    "several attractors": (lambda z, x: torch.tanh(2 * z), 4, CONVERGES, None),
    "slower than any factor": (lambda z, x: z - z**3, 1, CONVERGES, None),
    "constant": (lambda z, x: x, 3, CONVERGES, 0.0),
    "identity": (lambda z, x: z, 3, CONVERGES, None),
    "quarter turn": (linear(turn(90)), 2, CYCLES, 4),
    "fifth of a turn": (linear(turn(72)), 2, CYCLES, 5),
    "sign flip": (lambda z, x: x - z, 3, CYCLES, 2),
    "logistic map, period 2": (lambda z, x: 3.2 * z * (1 - z), 1, CYCLES, 2),
    "logistic map, period 4": (lambda z, x: 3.5 * z * (1 - z), 1, CYCLES, 4),
    "logistic map, period 3": (lambda z, x: 3.835 * z * (1 - z), 1, CYCLES, 3),
    "turn by the golden ratio": (linear(turn(360 * 0.6180339887)), 2, DRIFTS, None),
    "slow drift": (lambda z, x: z + 0.01, 3, DRIFTS, None),
    "drift that slows down like the harmonic series": (lambda z, x: torch.log1p(z.exp()), 1, DRIFTS, None),
    "drift whose steps fall to nine tenths": (lambda z, x: z + 0.9 + 0.1 * torch.exp(-z / 1000), 1, DRIFTS, None),
    "logistic map, chaos": (lambda z, x: 3.9 * z * (1 - z), 1, DRIFTS, None),
    "growth of a thousand evaluations before convergence": (linear(sheared(0.95, 20, 0.5)), 20, CONVERGES, None),
    "growth for as long as one looks": (linear(sheared(0.95, 12, 0.3)), 12, CONVERGES, None),
    "growth before slow convergence": (linear(sheared(0.99, 6, 0.1)), 6, CONVERGES, None),
    "slow and steady": (lambda z, x: 0.99995 * z + 5e-5, 3, CONVERGES, 0.99995),
    "slow spiral inwards in twelve directions": (linear(turn(30, 0.9999)), 2, CONVERGES, 0.9999),
    "square roots by Newton": (lambda z, x: 0.5 * (z + x / z), 3, CONVERGES, None),
    "seventh of a turn": (linear(turn(360 / 7)), 2, CYCLES, 7),
    "sixth of a turn, normalized": (lambda z, x: nn.functional.normalize(z @ turn(60).to(z).T), 2, CYCLES, 6),
    "growth like a square root": (lambda z, x: (z.square() + 1).sqrt(), 1, DRIFTS, None),
    "growth like one over itself": (lambda z, x: z + 1 / (z + 1), 1, DRIFTS, None),
    "a turn among what settles": (linear(torch.block_diag(turn(137.5), 0.5 * torch.eye(2))), 4, DRIFTS, None),
    "tenfold until it overflows": (lambda z, x: 10 * z, 3, DIVERGES, 10.0),
    "tenfold with an input": (lambda z, x: 10 * z + x, 3, DIVERGES, 10.0),
    "growth by a hundredth behind relu": (lambda z, x: torch.relu(1.01 * z) + 0.01 * x, 3, DIVERGES, 1.01),
    "growth that accelerates": (lambda z, x: z + z**3, 2, DIVERGES, None),
    "expansion": (linear(1.2 * torch.eye(3)), 3, DIVERGES, 1.2),
    "expansion by a thousandth": (lambda z, x: 1.001 * z, 3, DIVERGES, 1.001),
    "spiral outwards": (linear(turn(50, 1.05)), 2, DIVERGES, 1.05),
}


def samples(dim, dtype=torch.float64, count=4):
    """Return starts and inputs between 0.2 and 0.8."""
    generator = torch.Generator().manual_seed(1)
    z, x = 0.2 + 0.6 * torch.rand(2, count, dim, dtype=torch.float64, generator=generator)
    return z.to(dtype), x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MAPS)
def test_every_fate_is_told(name, dtype):
    f, dim, verdict, number = MAPS[name]
    diagnosis = diagnose(f, *samples(dim, dtype), max_evals=256, max_products=0)
    assert diagnosis.verdicts == [verdict] * 4
    if verdict is CYCLES:
        assert diagnosis.period.tolist() == [number] * 4
    else:
        assert not diagnosis.period.any()
    if verdict is not CYCLES and number is not None:
        torch.testing.assert_close(diagnosis.rate.double(), torch.full((4,), number).double(), rtol=0.02, atol=1e-6)
    assert diagnosis.settles == (verdict is CONVERGES)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_verdicts_are_free_of_scale(factor):
    for name in ("contraction", "growth before convergence", "quarter turn", "spiral outwards", "sign flip"):
        f, dim, verdict, _ = MAPS[name]
        z, x = samples(dim, torch.float32)
        assert diagnose(f, factor * z, factor * x, max_products=0).verdicts == [verdict] * 4


def test_what_was_not_seen_is_not_certain():
    def certain(name, max_evals):
        f, dim, verdict, _ = MAPS[name]
        diagnosis = diagnose(f, *samples(dim), max_evals=max_evals, max_products=0)
        assert diagnosis.verdicts == [verdict] * 4
        return diagnosis.is_certain.all() if diagnosis.is_certain[0] else diagnosis.is_certain.any()

    assert not certain("contraction so slow that it looks like drift", 256)
    assert not certain("expansion by a thousandth", 256)
    assert not certain("slow spiral inwards", 256)
    for name in ("contraction", "quarter turn", "expansion", "slow drift", "identity"):
        assert certain(name, 256), name
    f, dim, _, _ = MAPS["contraction so slow that it looks like drift"]
    assert "4 settle slowly but steadily; 4 uncertain" in diagnose(f, *samples(dim)).summary["note"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("factor", [1.05, 1.1, 1.5])
def test_growth_that_is_hidden_by_what_settled_is_told(factor, dtype):
    z, x = samples(3, dtype)
    z[:, 2] = 0
    diagnosis = diagnose(hidden(factor), z, x, max_evals=256)
    assert diagnosis.verdicts == [DIVERGES] * 4
    # By the largest factor, it is no longer hidden.
    assert diagnosis.is_unstable.all() or factor == 1.5
    assert ("4 seem to rest, but a push of 1% drives them away" in str(diagnosis)) == bool(diagnosis.is_unstable.any())
    torch.testing.assert_close(diagnosis.rate, torch.full((4,), factor), rtol=0.02, atol=0)


def test_rest_where_a_nudge_leads_elsewhere_is_not_settling():
    # Zero is a fixed point, and every other start leads away from it.
    diagnosis = diagnose(lambda z, x: torch.tanh(2 * z), torch.zeros(4, 3), samples(3, torch.float32)[1])
    assert diagnosis.is_unstable.all()
    assert diagnosis.verdicts == [DRIFTS] * 4
    assert not diagnosis.is_certain.any()
    # Near a stable one it comes back, from as far as that.
    assert not diagnose(lambda z, x: torch.tanh(2 * z), *samples(3)).is_unstable.any()


def test_long_growth_of_maps_far_from_normal_is_called_by_its_name():
    for name in ("growth of a thousand evaluations before convergence", "growth before slow convergence"):
        f, dim, _, _ = MAPS[name]
        diagnosis = diagnose(f, *samples(dim), max_products=0)
        assert diagnosis.is_transient.all()
        assert not diagnosis.is_certain.any()
        assert "4 grow long before they settle (J is far from normal)" in str(diagnosis)
    assert not diagnose(MAPS["contraction"][0], *samples(2), max_products=0).is_transient.any()


def test_states_that_still_move_do_not_tell_whether_the_start_matters():
    for name in ("contraction so slow that it looks like drift", "growth before slow convergence"):
        f, dim, _, _ = MAPS[name]
        diagnosis = diagnose(f, *samples(dim))
        assert not diagnosis.is_path_independent.any()
        assert diagnosis.summary["start"].startswith("not known")
        assert "always start the same way" not in diagnosis.advice
    # Two attractors: each start settles, on its own.
    two = diagnose(lambda z, x: torch.tanh(2 * z), *samples(3))
    assert two.summary["start"].startswith("matters")


def test_rows_that_see_each_other_are_advised_to_be_one_sample():
    A, W = torch.roll(torch.eye(12), 1, 0).double(), 0.9 * torch.linalg.qr(torch.randn(8, 8).double())[0]
    f = lambda z, x: A @ torch.tanh(z @ W) + x  # noqa: E731
    z, x = torch.zeros(12, 8).double(), torch.randn(12, 8).double()
    assert diagnose(f, z, x).advice.startswith("pass batch_dims=0")
    assert "batch_dims" not in diagnose(f, z, x, batch_dims=0).advice


def test_a_drift_is_uncertain_where_the_radius_is_below_one():
    f, (z, x) = lambda z, x: 0.999995 * z + 5e-6, samples(3, torch.float32)
    assert not diagnose(f, z, x).is_certain.any()


def test_chaos_in_many_dimensions_is_neither_a_cycle_nor_convergence():
    W = torch.randn(100, 100) / 10
    x = torch.randn(64, 100)
    diagnosis = diagnose(lambda z, x: torch.tanh(4 * z @ W.T + 0.1 * x), torch.zeros(64, 100), x, max_products=0)
    assert (diagnosis.verdict == DRIFTS).all()
    assert not diagnosis.is_path_independent.any()


def test_chaos_of_many_starts_is_hardly_ever_mistaken():
    z = torch.linspace(0.11, 0.89, 200, dtype=torch.float64)[:, None]
    for r in (3.7, 3.9, 4.0):
        verdict = diagnose(lambda z, r=r: r * z * (1 - z), z, max_products=0).verdict
        assert (verdict == DRIFTS).double().mean() > 0.99


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [4, 300])
def test_the_rounding_floor_is_convergence(dim, dtype):
    W = torch.randn(dim, dim, dtype=torch.float64)
    W = 0.7 * W / torch.linalg.matrix_norm(W, 2)
    x = torch.randn(16, dim).to(dtype)
    diagnosis = diagnose(lambda z, x: torch.tanh(z @ W.to(z).T + x), torch.zeros_like(x), x, max_products=0)
    assert (diagnosis.verdict == CONVERGES).all()
    assert diagnosis.is_certain.all()
    assert diagnosis.residual[-1].max() < 8 * torch.finfo(dtype).eps


def test_a_cycle_of_rounding_errors_is_convergence():
    # The mode that alternates keeps what single precision rounds alive, with period 2.
    basis = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0]
    skewed = basis @ torch.diag(torch.logspace(0, 1, 8, dtype=torch.float64))
    eigenvalues = torch.tensor([-0.97, 0.83, -0.7, 0.6, 0.5, -0.3, 0.2, 0.1], dtype=torch.float64)
    W = skewed @ torch.diag(eigenvalues) @ torch.linalg.inv(skewed)
    diagnosis = diagnose(linear(W), *samples(8, torch.float32, count=16), max_evals=1024, max_products=0)
    assert diagnosis.settles
    assert diagnosis.is_certain.all()
    torch.testing.assert_close(diagnosis.rate, torch.full((16,), 0.97), rtol=0.02, atol=0)


@pytest.mark.parametrize("radius", [0.5, 0.9, 0.97, 0.99, 1.02, 1.1])
def test_what_is_certain_about_linear_maps_is_right(radius):
    for _ in range(5):
        W = torch.randn(8, 8, dtype=torch.float64)
        W *= radius / torch.linalg.eigvals(W).abs().max()
        diagnosis = diagnose(linear(W), torch.zeros(8, 8), torch.randn(8, 8), max_products=0)
        assert (diagnosis.verdict == (CONVERGES if radius < 1 else DIVERGES))[diagnosis.is_certain].all()
        assert diagnosis.settles == (radius < 1) or not diagnosis.is_certain.all()


@pytest.mark.slow
def test_what_is_certain_about_random_networks_is_right_but_for_one_percent():
    num_certain = num_wrong = 0
    for gain in (0.9, 1.1, 1.3, 1.6):
        for _ in range(20):
            W, x = gain * torch.randn(32, 32) / 32**0.5, 0.5 * torch.randn(8, 32)
            diagnosis = diagnose(lambda z, x, W=W: torch.tanh(z @ W.T + x), torch.zeros_like(x), x, max_products=0)
            z = diagnosis.z
            for _ in range(4000):
                z = torch.tanh(z @ W.T + x)
            later = [z]
            for _ in range(16):
                later.append(torch.tanh(later[-1] @ W.T + x))
            distances = torch.stack([(state - z).norm(dim=1) / z.norm(dim=1) for state in later[1:]])
            returns = distances < 1e-4
            truth = torch.where(returns.any(dim=0), returns.int().argmax(dim=0) + 1, 0)
            found = torch.where(diagnosis.verdict == CONVERGES, 1, diagnosis.period)
            num_certain += int(diagnosis.is_certain.sum())
            num_wrong += int(((found != truth) & diagnosis.is_certain).sum())
    assert num_certain > 500
    assert num_wrong <= 0.01 * num_certain


def test_the_rate_is_the_spectral_radius_where_the_map_is_smooth():
    W = torch.randn(40, 40, dtype=torch.float64)
    W = 0.45 * (W + W.T) / torch.linalg.matrix_norm(W + W.T, 2) * 2
    x = torch.randn(8, 40, dtype=torch.float64)
    diagnosis = diagnose(lambda z, x: torch.tanh(z @ W.T + x), torch.zeros_like(x), x, max_evals=400)
    torch.testing.assert_close(diagnosis.rate.double(), diagnosis.radius.value, rtol=0.03, atol=0)
    eq = fixed_point(lambda z, x: torch.tanh(z @ W.T + x), torch.zeros_like(x), x, solver=Anderson(tol=1e-12))
    slope = 1 - eq.z.square()
    truth = torch.linalg.eigvals(slope[:, :, None] * W).abs().amax(dim=1)
    assert ((diagnosis.radius.value - truth).abs() <= diagnosis.radius.error + 1e-6).all()


def test_one_sample_that_turns_nan_leaves_its_neighbors_alone():
    def f(z, x):
        return torch.where((z > 1.9) & (x > 0.99), torch.nan, 0.5 * z + x)

    z, x = samples(3)
    alone = diagnose(f, z, x)
    x_bad, generator = x.clone(), torch.Generator().manual_seed(0)
    x_bad[2] = 1.0
    diagnosis = diagnose(f, z, x_bad, generator=generator)
    assert diagnosis.verdicts == [CONVERGES, CONVERGES, DIVERGES, CONVERGES]
    assert diagnosis.is_certain[2]
    others = [0, 1, 3]
    assert torch.equal(diagnosis.residual[:, others], alone.residual[:, others])
    assert diagnosis.residual[-1, 2] == math.inf
    assert not diagnosis.is_path_independent[2]
    torch.testing.assert_close(diagnosis.radius.value[others], torch.full((3,), 0.5).double())
    assert diagnosis.summary["settles"].startswith("partly, 3 of 4 samples; 1 diverges")


def test_residuals_are_those_of_plain_iteration():
    f, dim = MAPS["contraction"][:2]
    z, x = samples(dim)
    diagnosis = diagnose(f, z, x, max_evals=16, max_products=0)
    for residual in diagnosis.residual:
        image = f(z, x)
        torch.testing.assert_close(residual, (image - z).norm(dim=1) / image.norm(dim=1))
        z = image
    assert torch.equal(diagnosis.z, z)


def test_evaluations_are_counted_and_stop_when_nothing_moves():
    calls = []

    def f(z, x):
        calls.append(1)
        return 0.9999 * z.roll(1, dims=1) + x

    z, x = samples(3)
    diagnosis = diagnose(f, z, x, max_evals=100)
    # The given start, zeros, noise and other inputs; three for the precision, one for the graph, four to look inside.
    assert len(calls) == diagnosis.num_evals == 4 * 100 + 8
    calls.clear()
    assert diagnose(f, torch.zeros_like(z), x, max_evals=100).num_evals == len(calls) == 3 * 100 + 8
    calls.clear()
    assert diagnose(lambda z, x: f(z, x) * 0 + x, z, x, max_evals=1000).num_evals == len(calls) == 4 * 16 + 8


def test_memory_does_not_grow_with_the_number_of_evaluations():
    alive, most = weakref.WeakSet(), []

    def f(z, x):
        most.append(len(alive))
        image = torch.tanh(2 * z.roll(1, dims=1) + x)
        alive.add(image)
        return image

    z, x = samples(8)
    diagnose(f, z, x, max_evals=500, metric=lambda z: z.sum(dim=1))
    assert max(most) <= NUM_KEPT + 5


def test_nothing_is_left_behind():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm, self.dropout = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.1)
            self.register_buffer("latest", torch.zeros(1))

        def forward(self, z, x):
            self.latest = self.latest + 1
            return self.dropout(self.norm(self.linear(z) + x))

    block, (z, x) = Noisy(), samples(6, torch.float32)
    z.requires_grad_()
    head = nn.BatchNorm1d(6)
    before = {name: tensor.clone() for name, tensor in block.state_dict().items()}
    calls = [block, lambda z, x: block(z, x), block.forward]
    for f in calls:
        torch.manual_seed(3)
        diagnosis = diagnose(f, z, x, max_evals=20, metric=lambda z: head(z)[:, 0])
        assert torch.equal(torch.rand(3), torch.manual_seed(3) and torch.rand(3))
        assert diagnosis.is_random
        assert "f is random" in str(diagnosis)
        assert diagnosis.advice.startswith("put dropout in eval mode")
        assert not diagnosis.settles
        assert all(torch.equal(tensor, before[name]) for name, tensor in block.state_dict().items())
    assert head.num_batches_tracked == 0
    assert block.training
    assert block.dropout.training
    assert all(parameter.grad is None for parameter in block.parameters())
    assert z.grad is None
    assert not diagnosis.z.requires_grad
    assert torch.is_grad_enabled()


class FusedBlock(nn.Module):
    """Attention by a fused kernel, which has a first derivative only."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(8, 24), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, z, x):
        heads = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(z).chunk(3, dim=-1))
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.FLASH_ATTENTION):
            mixed = nn.functional.scaled_dot_product_attention(*heads)
        return self.norm(x + self.out(mixed.transpose(1, 2).flatten(2)))


def test_the_spectral_radius_needs_first_derivatives_only():
    block, x = FusedBlock(), torch.randn(3, 5, 8)
    diagnosis = diagnose(block, torch.zeros_like(x), x)
    assert diagnosis.settles
    assert diagnosis.radius_missing == ""
    rates = diagnosis.rate.double()
    assert (diagnosis.radius.value < 1).all()
    assert ((diagnosis.radius.value.double() / rates).log().abs() < 0.5).all()


def test_a_map_without_a_derivative_is_diagnosed_all_the_same():
    block, x = FusedBlock(), torch.randn(3, 5, 8)
    diagnosis = diagnose(torch.no_grad()(block), torch.zeros_like(x), x)
    assert diagnosis.settles
    assert diagnosis.radius is None
    assert "could not be differentiated" in str(diagnosis)
    with torch.inference_mode():
        assert "inference_mode" in diagnose(block, torch.zeros_like(x), x).radius_missing
    assert diagnose(block, torch.zeros_like(x), x, max_products=0).radius_missing == "The spectral radius was left out."


def test_autocast_reaches_the_block_and_its_precision_is_known():
    block, x = FusedBlock(), torch.randn(3, 5, 8)
    precise = diagnose(block, torch.zeros_like(x), x)
    with torch.autocast("cpu", torch.bfloat16):
        diagnosis = diagnose(block, torch.zeros_like(x), x, metric=lambda z: (z @ z.mT).sum(dim=(1, 2)))
    assert diagnosis.settles
    assert diagnosis.radius is not None
    # The end states differ by what bfloat16 rounds, and steps within that are convergence.
    assert 1e-4 < (diagnosis.z - precise.z).norm() / precise.z.norm() < 0.02
    assert diagnosis.residual[-1].max() < 0.02


def test_end_states_of_several_attractors_depend_on_the_start():
    z, x = samples(12)
    bistable = diagnose(lambda z, x: torch.tanh(2 * z + 0.1 * x), z, x)
    assert bistable.settles
    assert not bistable.is_path_independent.any()
    assert bistable.cosine.max() < 0.99
    assert bistable.starts == ("zeros", "Gaussian noise")
    assert "depends on the start" in str(bistable)
    monostable = diagnose(lambda z, x: torch.tanh(0.5 * z + x), z, x)
    assert monostable.is_path_independent.all()
    assert monostable.cosine.min() > 0.9999
    assert diagnose(lambda z, x: torch.tanh(0.5 * z + x), 0 * z, x).starts == ("Gaussian noise",)


def test_a_fixed_point_at_zero_is_the_same_from_every_start():
    assert diagnose(lambda z, x: 0.8 * z, *samples(3), max_evals=64).is_path_independent.all()


def test_a_lazy_identity_is_found_out():
    z, x = samples(4)
    bypass = diagnose(lambda z, x: z, z, x)
    assert torch.equal(bypass.movement, torch.zeros(4).double())
    assert torch.equal(bypass.input_effect, torch.zeros(4).double())
    assert "does nothing for 4 of 4 samples" in str(bypass)
    bypass.z.zero_()
    assert z.all(), "the end state is a tensor of its own"
    assert "do not depend on the inputs" in str(bypass)

    one_step = diagnose(lambda z, x: x.sin() + 1e-4 * z, z, x)
    assert (one_step.movement_after_one < 0.01).all()
    assert (one_step.movement > 0.01).all()
    assert "one evaluation is enough for 4 of 4 samples" in str(one_step)

    equilibrium = 2 * x
    start = diagnose(lambda z, x: 0.5 * z + x, equilibrium, x)
    assert (start.residual[0] < 1e-12).all()
    assert (start.movement < 1e-12).all()
    assert (start.input_effect > 0.01).all()

    deaf = diagnose(lambda z, x: z.cos() + 0 * x, z, x)
    assert (deaf.input_effect < 1e-6).all()
    assert (deaf.movement > 0.01).all()

    slow = diagnose(lambda z, x: z + 1e-6, z, x, max_products=0)
    assert slow.verdicts == [DRIFTS] * 4
    assert "does nothing for 4 of 4 samples" in str(slow)

    honest = diagnose(lambda z, x: torch.tanh(0.9 * z + x), torch.zeros_like(z), x)
    assert (honest.movement_after_one > 0.01).all()
    assert (honest.input_effect > 0.01).all()
    for phrase in ("does nothing", "one evaluation", "do not depend"):
        assert phrase not in str(honest)


@pytest.mark.parametrize("max_evals", [60, 61])
@pytest.mark.parametrize("name", ["quarter turn", "fifth of a turn", "sign flip"])
def test_a_cycle_that_is_back_at_its_start_is_not_called_idle(name, max_evals):
    f, dim, _, period = MAPS[name]
    diagnosis = diagnose(f, *samples(dim), max_evals=max_evals, max_products=0)
    assert diagnosis.period.tolist() == [period] * 4
    nearest = diagnosis.movement if max_evals == 60 else diagnosis.movement_after_one
    assert (nearest < 1e-6).all(), "the end was chosen to be where the loop began, or one evaluation later"
    for phrase in ("does nothing", "one evaluation", "do not depend"):
        assert phrase not in str(diagnosis)


def test_without_other_inputs_their_effect_is_unknown():
    z, x = samples(3, count=1)
    assert diagnose(lambda z, x: 0.5 * z + x, z, x).input_effect is None
    assert diagnose(lambda z: 0.5 * z, samples(3)[0]).input_effect is None
    assert diagnose(lambda z, x: 0.5 * z + x, torch.zeros(3, 2), torch.ones(3, 2)).input_effect is None


def test_the_metric_is_followed_beyond_the_training_depth():
    # A state that counts: the score is best after 20 evaluations and falls from there on.
    diagnosis = diagnose(
        lambda z: z + 1, torch.zeros(3, 1), max_evals=100, training_depth=8, metric=lambda z: -(z[:, 0] - 20).abs()
    )
    assert diagnosis.metric.shape == (101, 3)
    assert diagnosis.metric[:3, 0].tolist() == [-20, -19, -18]
    assert diagnosis.best_depth == 20
    assert diagnosis.scores == {8: -12, 16: -4, 32: -12, 100: -80}
    assert diagnosis.effect == "hurts"
    assert "no, it hurts; metric -12 at 8, -4 at 16, -12 at 32" in diagnosis.summary["helps"]
    assert diagnosis.summary["helps"].endswith("best 0 at 20")
    assert diagnosis.verdicts == [DRIFTS] * 3


def test_a_metric_may_be_one_number_or_true_and_false():
    z, x = samples(3)
    f = MAPS["identity"][0]
    assert diagnose(f, z, x, metric=lambda z: float(z.sum()), max_evals=16).metric.shape == (17, 1)
    assert diagnose(f, z, x, metric=lambda z: z[:, 0] > z[:, 0].mean(), max_evals=16).metric.unique().tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"metric returned a tensor of shape \(4, 3\)"):
        diagnose(f, z, x, metric=lambda z: z)


def test_a_metric_may_be_better_the_lower_it_is():
    # 1, 1/2, 1/4 ... below a quarter, and up again.
    options = {"max_evals": 16, "metric": lambda z: (z[:, 0] - 0.25).abs(), "metric_name": "perplexity"}
    diagnosis = diagnose(lambda z: 0.5 * z, torch.ones(2, 1), **options, higher_is_better=False)
    assert diagnosis.best_depth == 2
    assert diagnosis.summary["helps"].endswith("best 0 at 2")
    assert diagnose(lambda z: 0.5 * z, torch.ones(2, 1), **options).best_depth == 0
    assert diagnosis.plot().axes[1].get_ylabel() == "perplexity"


def full(**options):
    """Return a diagnosis that has all fields, of which some are not finite."""
    factors = torch.tensor([[0.5], [0.9], [-1.0], [1e30]])
    return diagnose(
        lambda z, factors: factors * z,
        torch.ones(4, 2),
        factors,
        max_evals=64,
        training_depth=8,
        metric=lambda z: z[:, 0] < 2,
        generator=torch.Generator().manual_seed(0),
        **options,
    )


@pytest.mark.parametrize("options", [{}, {"max_products": 0}])
def test_a_diagnosis_survives_strict_json(options):
    diagnosis = full(**options)
    text = json.dumps(diagnosis.to_dict(), allow_nan=False)
    again = Diagnosis.from_dict(json.loads(text))
    assert again.to_dict() == diagnosis.to_dict()
    assert str(again) == str(diagnosis)
    assert again.verdicts == [CONVERGES, CONVERGES, CYCLES, DIVERGES]
    assert again.z is None
    for name in ("residual", "verdict", "is_certain", "rate", "period", "is_path_independent", "movement"):
        torch.testing.assert_close(
            getattr(again, name), getattr(diagnosis, name), equal_nan=True, rtol=0, atol=0, check_dtype=False
        )


def test_a_record_of_an_earlier_version_is_read():
    content, later = (
        full().to_dict(),
        ("is_transient", "is_unstable", "growth", "skip", "recall", "leak", "gain", "bits"),
    )
    old = Diagnosis.from_dict({name: value for name, value in content.items() if name not in later})
    assert old.verdicts == full().verdicts
    assert old.advice
    assert old.details()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("verdict", ["converges"] * 3),
        ("verdict", ["explodes"] * 4),
        ("residual", [[0.1] * 4] * 63),
        ("residual", [[0.1] * 4, [0.1] * 3]),
        ("residual", [0.1] * 4),
        ("residual", []),
        ("residual", "high"),
        ("metric", [[0.1] * 2] * 65),
        ("rate", [{}] * 4),
        ("rate", 0.5),
        ("period", [10**30] * 4),
        ("period", [None] * 4),
        ("training_depth", 65),
        ("training_depth", 0.5),
        ("training_depth", -3),
        ("starts", [3]),
        ("is_random", "no"),
        ("radius", {"value": [0.5] * 4, "error": None, "num_products": 3}),
        ("radius", 0.5),
        ("metric_name", None),
    ],
)
def test_what_is_no_diagnosis_is_refused(name, value):
    content = full().to_dict()
    for damaged in ({**content, name: value}, {key: value for key, value in content.items() if key != name}, {}, []):
        with pytest.raises(ValueError, match="not a diagnosis"):
            Diagnosis.from_dict(damaged)


def test_bad_arguments_are_refused_by_name():
    z, x = samples(3)
    f = MAPS["identity"][0]
    with pytest.raises(ValueError, match="max_evals is 8; it must be an integer >= 16"):
        diagnose(f, z, x, max_evals=8)
    with pytest.raises(ValueError, match="training_depth is 300; it must be at most max_evals"):
        diagnose(f, z, x, training_depth=300)
    with pytest.raises(ValueError, match=r"inputs\[0\] has shape"):
        diagnose(f, z, x[:2])
    with pytest.raises(ValueError, match="f returned"):
        diagnose(lambda z, x: z[:, :2], z, x)


def told(f, z, x, **options):
    """Return a diagnosis whose words are few and short."""
    diagnosis = diagnose(f, z, x, **options)
    lines = str(diagnosis).splitlines()
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 160
    assert set(lines) - {lines[-1]} <= set(diagnosis.details().splitlines()) or "cost:" in diagnosis.details()
    for regularizer in re.findall(r"\w+Regularizer", str(diagnosis)):
        assert hasattr(steadeq, regularizer)
    return diagnosis


def test_advice_follows_from_what_was_measured():
    z, x = samples(3)
    collapse = {"metric": lambda z: z.norm(dim=1) < 50, "training_depth": 8, "max_evals": 128}
    # A block that adds to its state, and one that does not.
    adding = told(lambda z, x: z + 0.5 * x, z, x, **collapse)
    torch.testing.assert_close(adding.skip, torch.ones(4).double(), rtol=1e-5, atol=0)
    assert adding.advice.startswith("tune steadeq.nn.Normalized(block) with JacobianRegularizer")
    expanding = told(lambda z, x: -1.2 * z.flip(1) + x, z, x, **collapse)
    assert expanding.advice.startswith("tune with JacobianRegularizer")
    # What a block cannot have, what it has already, and what it does not need is not advised.
    assert "Regularizer" not in told(torch.no_grad()(lambda z, x: -1.2 * z.flip(1) + x), z, x, **collapse).advice
    assert "feed the input" not in str(adding)
    assert told(lambda z, x: 1.1 * z, z, x, **collapse).advice.startswith("feed the input in at every step")
    assert told(lambda z, x: 0.5 * z + x, z, x).advice.startswith("nothing needs repair")
    assert "Anderson()" in told(lambda z, x: 0.98 * z + x, z, x, max_evals=1000).advice
    assert "random starts" in told(lambda z, x: torch.tanh(2 * z + 0.1 * x), z, x).advice


def test_settling_and_helping_are_two_things():
    z, x = samples(3)
    wrong = told(lambda z, x: 0.9 * z, z, x, metric=lambda z: z.norm(dim=1) > 0.1, training_depth=2)
    assert wrong.settles
    assert wrong.effect == "hurts"
    assert "settles on worse answers" in wrong.advice
    right = told(lambda z, x: x - z, z, x, metric=lambda z: z.norm(dim=1) < 10, training_depth=2)
    assert not right.settles
    assert right.effect == "keeps"
    assert right.advice.startswith("watch the metric, not the residual")
    # Answers that were right before the training depth, and wrong from there on, do not hold.
    late = told(lambda z, x: z + x, z, x, metric=lambda z: z.norm(dim=1) < 10, training_depth=64)
    assert late.effect == "keeps"
    assert late.best_depth < 8
    assert late.advice.startswith("tune steadeq.nn.Normalized(block)")
    assert diagnose(lambda z, x: 0.5 * z + x, z, x, metric=lambda z: z.sum(dim=1)).effect == "helps"
    assert diagnose(lambda z, x: 0.5 * z + x, z, x).effect is None


def test_confidence_is_the_share_of_pairs_in_order():
    z, x = torch.ones(40, 1), torch.linspace(0.1, 1.1, 40)[:, None]
    # Rates that grow with x, and answers of which one in four is wrong, most of them slow.
    is_right = torch.arange(40) < 30
    is_right[[3, 35]] = ~is_right[[3, 35]]
    diagnosis = told(lambda z, x: x * z + 1, z, x, metric=lambda z: is_right, training_depth=20, max_evals=64)
    residual = diagnosis.residual[19]
    pairs = [float(a < b) + 0.5 * float(a == b) for a in residual[is_right] for b in residual[~is_right]]
    assert diagnosis.confidence == pytest.approx(sum(pairs) / len(pairs))
    assert f"AUC {diagnosis.confidence:.2f}" in str(diagnosis)
    assert "the residual at 20 tells right from wrong" in str(diagnosis)
    is_right = torch.arange(40) % 2 == 0
    random = told(lambda z, x: x * z + 1, z, x, metric=lambda z: is_right, training_depth=20, max_evals=64)
    assert "does not tell right from wrong" in str(random)
    few = told(lambda z, x: x * z + 1, z, x, metric=lambda z: torch.arange(40) > 2, training_depth=20, max_evals=64)
    assert "unknown: 37 samples are right at 20 and 3 wrong, too few to compare" in str(few)
    assert diagnose(lambda z, x: x * z + 1, z, x, metric=lambda z: z[:, 0], max_evals=64).confidence is None


def test_later_tokens_that_change_earlier_states_are_told():
    z, x = torch.zeros(3, 6, 4), torch.randn(3, 6, 4)
    ahead = told(lambda z, x: 0.5 * z.cumsum(dim=1) / 6 + x, z, x, time_dim=1)
    assert not ahead.leak.any()
    assert "yes, later tokens do not change" in str(ahead)
    behind = told(lambda z, x: 0.5 * z.mean(dim=1, keepdim=True) + x, z, x, time_dim=1)
    assert (behind.leak > 0.01).all()
    assert "no, later tokens change earlier states by up to" in str(behind)
    with pytest.raises(ValueError, match="time_dim is 3"):
        diagnose(lambda z, x: 0.5 * z + x, z, x, time_dim=3)


def test_rounded_weights_are_scored_and_put_back():
    linear, x = nn.Linear(6, 6), torch.randn(8, 6)
    with torch.no_grad():
        linear.weight.mul_(0.5)
    before = linear.weight.detach().clone()
    exact = torch.linalg.solve(torch.eye(6) - before, (x + linear.bias.detach()).T).T

    def error(z):
        return (z - exact).norm(dim=1) / exact.norm(dim=1)

    options = {"metric": error, "higher_is_better": False, "training_depth": 32, "max_evals": 128}
    diagnosis = told(lambda z, x: linear(z) + x, torch.zeros_like(x), x, bits=(8, 4), **options)
    assert torch.equal(linear.weight, before)
    assert list(diagnosis.bits) == [8, 4]
    for num_bits, scores in diagnosis.bits.items():
        scale = before.abs().amax(dim=1, keepdim=True) / (2 ** (num_bits - 1) - 1)
        rounded = (before / scale).round() * scale
        end = torch.linalg.solve(torch.eye(6) - rounded, (x + linear.bias.detach()).T).T
        assert scores[128] == pytest.approx(float(error(end).mean()), rel=1e-3)
    inverse = torch.linalg.inv(torch.eye(6) - before)
    assert (diagnosis.gain < 1.01 * torch.linalg.matrix_norm(inverse, 2)).all()
    assert (diagnosis.gain > 0.99 / torch.linalg.matrix_norm(torch.eye(6) - before, 2)).all()
    again = Diagnosis.from_dict(json.loads(json.dumps(diagnosis.to_dict(), allow_nan=False)))
    assert again.bits == diagnosis.bits
    with pytest.raises(ValueError, match="bits needs a metric"):
        diagnose(lambda z: 0.5 * z, x, bits=(8,))


def test_the_figure_shows_residuals_metric_and_depth():
    def f(z, x):
        return torch.where(x > 0.5, 0.5 * z + x, -z)

    z, x = torch.ones(6, 1), torch.linspace(0, 1, 6)[:, None]
    diagnosis = diagnose(f, z, x, max_evals=32, training_depth=4, metric=lambda z: z[:, 0])
    residual, metric = diagnosis.plot().axes
    # Of each kind three samples, their median and its mark; and the training depth.
    assert len(residual.lines) == 2 * (3 + 2) + 1
    assert residual.get_yscale() == "log"
    for median, verdict in ((residual.lines[3], CONVERGES), (residual.lines[8], CYCLES)):
        assert list(median.get_xdata()) == list(range(1, 33))
        expected = diagnosis.residual[0, diagnosis.verdict == verdict].median()
        assert median.get_ydata()[0] == pytest.approx(float(expected))
    assert list(residual.lines[-1].get_xdata()) == [4, 4]
    converging, _, cycling, _, mean, _ = metric.lines
    assert mean.get_ydata()[-1] == pytest.approx(diagnosis.scores[32])
    assert converging.get_ydata()[0] == pytest.approx(0.5 + 0.8)
    assert list(cycling.get_ydata()[:3]) == [-1, 1, -1]
    labels = [text.get_text() for text in residual.figure.legends[0].get_texts()]
    assert labels[:2] == ["3 settle", "3 cycle"]
    # Nothing to draw is no reason to fail.
    assert diagnose(lambda z: z, z, max_evals=16).plot().axes


def test_without_matplotlib_there_is_a_sentence(monkeypatch):
    diagnosis = diagnose(lambda z: z, torch.ones(2, 1), max_evals=16)
    monkeypatch.delitem(sys.modules, "steadeq.diagnosis.figure", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(RuntimeError, match="plot needs matplotlib"):
        diagnosis.plot()


class Recursion(nn.Module):
    """A tiny recursive model: an answer and a latent, refined in turns."""

    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3 * dim, 32), nn.SiLU(), nn.Linear(32, dim), nn.LayerNorm(dim))

    def forward(self, state, x):
        answer, latent = state
        for _ in range(2):
            latent = self.net(torch.cat([x, answer, latent], dim=-1))
        return self.net(torch.cat([torch.zeros_like(x), answer, latent], dim=-1)), latent


def test_a_hand_written_recursion_with_two_states_is_diagnosed():
    torch.manual_seed(0)
    block, head = Recursion(6), nn.Linear(6, 1)
    optimizer = torch.optim.Adam([*block.parameters(), *head.parameters()], lr=1e-2)
    x = torch.randn(64, 6)
    y = (x.prod(dim=1, keepdim=True) > 0).float()
    for _ in range(60):
        state = torch.zeros(64, 6), torch.zeros(64, 6)
        for index in range(3):
            with torch.set_grad_enabled(index == 2):
                state = block(state, x)
        loss = nn.functional.binary_cross_entropy_with_logits(head(state[0]), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    diagnosis = diagnose(
        block,
        (torch.zeros(64, 6), torch.zeros(64, 6)),
        x,
        training_depth=3,
        max_evals=64 * 3,
        metric=lambda state: ((head(state[0]) > 0) == (y > 0))[:, 0],
    )
    assert isinstance(diagnosis.z, tuple)
    # The truth, by brute force: does the state of a sample still move after many more steps?
    state, moved = diagnosis.z, torch.zeros(64, dtype=torch.bool)
    with torch.no_grad():
        for _ in range(1000):
            state = block(state, x)
        latest = torch.cat(state, dim=1)
        for _ in range(20):
            state = block(state, x)
            moved |= (torch.cat(state, dim=1) - latest).norm(dim=1) > 1e-3 * latest.norm(dim=1)
    settled = diagnosis.verdict == CONVERGES
    assert not moved[settled & diagnosis.is_certain].any()
    assert moved[(diagnosis.verdict != CONVERGES) & diagnosis.is_certain].all()


def test_the_end_state_is_at_hand_for_further_questions():
    f, (z, x) = MAPS["contraction"][0], samples(2)
    diagnosis = diagnose(f, z, x)
    estimate = spectral_radius(Equilibrium.at(f, diagnosis.z, x))
    torch.testing.assert_close(estimate.value, diagnosis.radius.value, rtol=0.02, atol=0)
    assert repr(diagnosis).startswith("Diagnosis(4 settle, residual=(256, 4)")
