import statistics

import pytest

from steadeq.solvers import LogNormalDepth, UniformDepth


@pytest.mark.parametrize("depth", [UniformDepth(low=3, high=9), LogNormalDepth(mean=12)])
def test_a_depth_is_a_function_of_seed_and_step(depth):
    drawn = [depth.draw(step, seed=1) for step in range(200)]
    assert drawn == [depth.draw(step, seed=1) for step in range(200)]
    assert drawn != [depth.draw(step, seed=2) for step in range(200)]
    assert min(drawn) >= 1
    assert len(set(drawn)) > 3


def test_uniform_depths_are_uniform():
    drawn = [UniformDepth(low=3, high=6).draw(step) for step in range(8000)]
    assert set(drawn) == {3, 4, 5, 6}
    assert all(abs(drawn.count(n) / 8000 - 0.25) < 0.02 for n in range(3, 7))


@pytest.mark.parametrize(("mean", "sigma"), [(8.0, 0.5), (32.0, 0.0), (4.0, 1.0)])
def test_log_normal_depths_have_their_mean_and_variance(mean, sigma):
    drawn = [LogNormalDepth(mean=mean, sigma=sigma).draw(step) for step in range(8_000)]
    assert statistics.mean(drawn) == pytest.approx(mean, rel=0.03)
    # That of the Poisson number, plus that of its rate.
    rate = mean - 1
    variance = rate + rate**2 * (2.718281828 ** (sigma**2) - 1)
    assert statistics.variance(drawn) == pytest.approx(variance, rel=0.15)
    if sigma:
        assert statistics.median(drawn) < mean


def test_depths_have_limits():
    assert max(LogNormalDepth(mean=50, sigma=2.0, maximum=60).draw(step) for step in range(500)) == 60
    assert {LogNormalDepth(mean=1.0).draw(step) for step in range(20)} == {1}


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: UniformDepth(low=0), "low"),
        (lambda: UniformDepth(low=9, high=3), "low"),
        (lambda: LogNormalDepth(mean=0.5), "mean"),
        (lambda: LogNormalDepth(mean=float("inf")), "mean"),
        (lambda: LogNormalDepth(sigma=-1.0), "sigma"),
    ],
)
def test_what_makes_no_sense_is_refused(make, field):
    with pytest.raises(ValueError, match=f"^{field} is"):
        make()
