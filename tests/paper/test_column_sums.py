import copy
from dataclasses import replace

import pytest
import torch
from paper.made_up import outcomes, spreads

from steadeq import Equilibrium
from steadeq.models import MDEQCell
from steadeq.paper import column_sums as study

CPU = torch.device("cpu")


def train(cell, penalty, seed=0, *, num_steps):
    arm = next(arm for arm in study.ARMS if (arm.cell, arm.penalty) == (cell, penalty))
    model = study.train(arm, seed, device=CPU, num_steps=num_steps)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_sums_of_columns_are_those_of_the_jacobian():
    J = torch.tensor([[1.0, 2.0, -1.0], [3.0, -5.0, 0.0], [0.5, 0.5, 4.0]])
    sums = study.column_sums(Equilibrium.at(lambda z: z @ J.T, torch.zeros(2, 3)))
    torch.testing.assert_close(sums, J.sum(dim=0).expand(2, 3))
    # 4.5 - 1, and 3 - 1; the negative sum costs nothing.
    assert float(study.column_penalty(sums, level=1.0)) == pytest.approx((3.5**2 + 2.0**2) ** 0.5)


def test_the_counterexample_has_no_penalty_and_an_eigenvalue_of_4():
    found = study.measure_counterexample()
    assert found["column_penalty"] == 0
    assert found["spectral_radius"] == pytest.approx(4)
    assert max(torch.linalg.eigvals(torch.tensor(study.COUNTEREXAMPLE)).abs()) == pytest.approx(4)
    assert found["frobenius_norm"] == pytest.approx(4, rel=0.1)
    assert found["distances"][-1] / found["distances"][-2] == pytest.approx(4)


def test_sums_of_columns_vanish_where_a_cell_ends_with_a_normalization():
    cell = MDEQCell(channels=(8, 16), expansion=2, groups=4)
    z = (torch.randn(2, 8, 8, 8), torch.randn(2, 16, 4, 4))
    with torch.no_grad():
        assert float(study.column_sums(Equilibrium.at(cell, z, torch.randn(2, 8, 8, 8))).abs().max()) < 1e-4


def test_the_penalty_on_sums_changes_only_the_cell_without_normalization():
    for cell, is_same in ((study.NORMALIZED, True), (study.BARE, False)):
        none, columns = (train(cell, penalty, num_steps=3) for penalty in (study.NONE, study.COLUMNS))
        assert torch.equal(none, columns) == is_same


def test_a_trained_model_is_measured():
    model = study.train(study.ARMS[0], 0, device=CPU, num_steps=1)
    other = copy.deepcopy(model)
    with torch.no_grad():
        next(other.parameters()).flatten()[3] += 0.5
    found, trace = study.measure(model, unpenalized=other)
    assert found["weight_change"] == pytest.approx(0.5)
    assert 0 < found["residual"] < 1
    assert 0 < found["anderson_evals"] <= 100
    assert len(trace) == 30


def made_up(*, columns, frobenius):
    """Return a summary of arms with these spectral radii, and 20 times as many evaluations; 0.8 without a penalty."""
    radii = {study.NONE: 0.8, study.COLUMNS: columns, study.FROBENIUS: frobenius}

    def summarized(arm):
        radius = radii[arm.penalty]
        values = dict.fromkeys(("train_loss", "accuracy", "column_penalty", "weight_change"), 1.0)
        values |= {"spectral_radius": radius, "anderson_evals": 20 * radius}
        return study.ArmSummary(**vars(arm), num_seeds=3, spreads=spreads(values))

    return study.Summary(counterexample=study.measure_counterexample(), arms=[summarized(arm) for arm in study.ARMS])


@pytest.mark.parametrize(
    ("columns", "frobenius", "expected"),
    [
        (0.8, 0.5, True),
        (0.7, 0.5, True),
        (0.55, 0.5, False),
        # Nothing is said if neither helps.
        (0.8, 0.8, False),
    ],
)
def test_claims_are_judged_by_the_numbers(columns, frobenius, expected):
    found = made_up(columns=columns, frobenius=frobenius)
    assert outcomes(study.COLUMN_SUMS, found) == [True, expected, expected]
    stable = replace(found, counterexample={**found.counterexample, "spectral_radius": 0.9})
    assert outcomes(study.COLUMN_SUMS, stable) == [False, expected, expected]
