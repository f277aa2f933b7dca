import pytest
import torch

from steadeq.lab import data
from steadeq.paper import linsley
from steadeq.paper.linsley import (
    ARMS,
    BARE,
    COLUMNS,
    COUNTEREXAMPLE,
    FROBENIUS,
    NONE,
    NORMALIZED,
    column_penalty,
    column_sums,
)
from steadeq.models import MDEQCell

SPLITS = data.digits.load()


def arm(cell, penalty):
    return next(arm for arm in ARMS if (arm.cell, arm.penalty) == (cell, penalty))


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_sums_of_columns_are_those_of_the_jacobian():
    J = torch.tensor([[1.0, 2.0, -1.0], [3.0, -5.0, 0.0], [0.5, 0.5, 4.0]])
    sums = column_sums(lambda z: z @ J.T, torch.zeros(2, 3))
    torch.testing.assert_close(sums, J.sum(dim=0).expand(2, 3))
    # 4.5 - 1, and 3 - 1; the negative sum costs nothing.
    assert float(column_penalty(sums, level=1.0)) == pytest.approx((3.5**2 + 2.0**2) ** 0.5)


def test_the_counterexample_has_no_penalty_and_an_eigenvalue_of_4():
    found = linsley.measure_counterexample()
    assert found["column_penalty"] == 0
    assert found["spectral_radius"] == pytest.approx(4)
    assert max(torch.linalg.eigvals(torch.tensor(COUNTEREXAMPLE)).abs()) == pytest.approx(4)
    assert found["frobenius_norm"] == pytest.approx(4, rel=0.1)
    assert found["distances"][-1] / found["distances"][-2] == pytest.approx(4)


def test_sums_of_columns_vanish_where_a_cell_ends_with_a_normalization():
    cell = MDEQCell(channels=(8, 16), expansion=2, groups=4)
    z = (torch.randn(2, 8, 8, 8), torch.randn(2, 16, 4, 4))
    with torch.no_grad():
        assert float(column_sums(cell, z, torch.randn(2, 8, 8, 8)).abs().max()) < 1e-4


def test_training_is_the_same_for_the_same_seed():
    first, second, other = (linsley.train(arm(BARE, FROBENIUS), s, SPLITS, num_steps=2) for s in (0, 0, 1))
    assert torch.equal(weights(first), weights(second))
    assert not torch.equal(weights(first), weights(other))


def test_the_penalty_on_sums_changes_only_the_cell_without_normalization():
    for cell, is_same in ((NORMALIZED, True), (BARE, False)):
        none, columns = (linsley.train(arm(cell, penalty), 0, SPLITS, num_steps=3) for penalty in (NONE, COLUMNS))
        assert torch.equal(weights(none), weights(columns)) == is_same


def made_up(*, columns, frobenius):
    """Return a summary of arms with these spectral radii, and 20 times as many evaluations; 0.8 without a penalty."""
    radii = {NONE: 0.8, COLUMNS: columns, FROBENIUS: frobenius}
    measures = dict.fromkeys(linsley._MEASURES, 1.0)
    spreads = {f"{name}_std": 0.0 for name in linsley._MEASURES}
    return [
        {
            **vars(arm),
            "num_seeds": 3,
            **measures,
            **spreads,
            "spectral_radius": radii[arm.penalty],
            "anderson_evals": 20 * radii[arm.penalty],
        }
        for arm in ARMS
    ]


@pytest.mark.parametrize(
    ("columns", "frobenius", "outcome"),
    [
        (0.8, 0.5, "holds"),
        (0.7, 0.5, "holds"),
        (0.55, 0.5, "does not hold"),
        # Nothing is said if neither helps.
        (0.8, 0.8, "does not hold"),
    ],
)
def test_claims_are_judged_by_the_numbers(columns, frobenius, outcome):
    verdicts = linsley.judge(linsley.measure_counterexample(), made_up(columns=columns, frobenius=frobenius))
    assert [verdict.outcome for verdict in verdicts] == ["holds", outcome, outcome]


def test_a_stable_matrix_is_no_counterexample():
    found = {**linsley.measure_counterexample(), "spectral_radius": 0.9}
    assert linsley.judge(found, made_up(columns=0.8, frobenius=0.5))[0].outcome == "does not hold"


def test_the_table_has_a_line_for_each_arm():
    assert len(linsley.table({"arms": made_up(columns=0.8, frobenius=0.5)}).splitlines()) == 2 + len(ARMS)
