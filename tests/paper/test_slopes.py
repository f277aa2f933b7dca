import math

import pytest
import torch
from paper.made_up import outcomes

from steadeq.paper import slopes as study


@pytest.mark.parametrize("slope", study.SLOPES)
def test_a_map_has_its_slope_at_its_only_fixed_point(slope):
    f = study.make_map(slope)
    z = torch.tensor([study.CENTER], dtype=torch.float64, requires_grad=True)
    image = f(z)
    assert image.item() == study.CENTER
    assert float(torch.autograd.grad(image, z)[0]) == pytest.approx(slope)
    grid = study.CENTER + torch.linspace(-50, 50, 9_999, dtype=torch.float64)
    others = grid[(grid - study.CENTER).abs() > 1e-3]
    # f(z) - z changes its sign at the fixed point alone.
    side = torch.sign((f(others) - others) * (others - study.CENTER))
    assert (side == (1 if slope > 1 else -1)).all()


@pytest.mark.parametrize("slope", study.SLOPES)
def test_plain_iteration_finds_what_attracts_it(slope):
    assert study.measure(study.PLAIN, slope).share_found == (1 if abs(slope) < 1 else 0)


@pytest.mark.parametrize("slope", study.SLOPES)
def test_damping_finds_what_its_own_slope_lets_it(slope):
    found = study.measure(study.DAMPED, slope)
    damped = 1 - study.DAMPING + study.DAMPING * slope
    assert found.share_found == (1 if abs(damped) < 1 else 0)


@pytest.mark.parametrize("solver", [study.ANDERSON, study.BROYDEN, study.NEWTON])
def test_newton_type_solvers_find_a_fixed_point_that_repels(solver):
    for slope in (-3.0, 3.0):
        found = study.measure(solver, slope)
        assert found.share_found == 1
        assert found.num_evals < 20


def test_plain_iteration_converges_at_the_rate_of_the_slope():
    assert study.measure(study.PLAIN, 0.8).rate == pytest.approx(0.8, rel=1e-3)
    assert study.measure(study.PLAIN, -3.0).rate is None


def made_up(*, wrong=None):
    """Return what theory says of every solver; of one of them the contrary."""

    def outcome(solver, slope):
        bounded = {study.PLAIN: abs(slope) < 1, study.DAMPED: slope < 1}.get(solver, True)
        is_found = bounded != (solver == wrong)
        rate = abs(slope) if is_found else None
        return study.Outcome(
            solver=solver, slope=slope, share_found=float(is_found), num_evals=9.0 if is_found else None, rate=rate
        )

    return [outcome(solver, slope) for solver in study.SOLVERS for slope in study.SLOPES]


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (None, [True] * 7),
        (study.PLAIN, [False, False, False, True, True, True, True]),
        (study.BROYDEN, [True, True, True, False, True, True, True]),
        (study.NEWTON, [True, True, True, False, True, True, True]),
        (study.ANDERSON, [True, True, True, True, False, True, True]),
        (study.DAMPED, [True, True, True, True, True, False, False]),
    ],
)
def test_claims_are_judged_by_the_numbers(wrong, expected):
    assert outcomes(study.SLOPES_RESULT, made_up(wrong=wrong)) == expected


def test_the_table_says_what_was_not_found():
    lines = study.SLOPES_RESULT.table(made_up()).splitlines()
    assert len(lines) == 2 + len(study.SOLVERS)
    assert lines[2].count("not found") == 4
    assert "not found" not in lines[-1]


def test_figures_show_what_is_measured():
    assert [axes.get_title() for axes in study.draw_cobwebs().axes] == [f"slope {slope:g}" for slope in study._DRAWN]
    plain = study.draw_residuals().axes[0].lines[0].get_ydata()
    # A straight line in the logarithm, with the slope of the map.
    assert math.log(plain[40] / plain[30]) / 10 == pytest.approx(math.log(0.8), rel=1e-2)
