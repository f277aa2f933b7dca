import math

import pytest
import torch
from paper.made_up import outcomes

from steadeq import Equilibrium, jacobian_penalty
from steadeq.lab.tasks import Classification
from steadeq.models import ConvDEQ
from steadeq.paper import estimators as study


def linear(num_samples=3, dim=12):
    """Return an equilibrium whose Jacobian is W times the input of a sample, and W."""
    W = torch.randn(dim, dim, generator=torch.Generator().manual_seed(0)) / math.sqrt(dim)
    x = torch.arange(1.0, num_samples + 1)[:, None]
    return Equilibrium.at(lambda z, x: (z * x) @ W.T, torch.zeros(num_samples, dim), x), W


def test_the_exact_norm_is_that_of_the_matrix():
    eq, W = linear()
    torch.testing.assert_close(study.exact_squares(eq), W.square().sum() * torch.tensor([1.0, 4.0, 9.0]))


def test_samples_are_taken_with_their_inputs_and_may_repeat():
    eq, W = linear()
    squares = study.exact_squares(study.rows_of(eq, torch.tensor([2, 0, 2])))
    torch.testing.assert_close(squares, W.square().sum() * torch.tensor([9.0, 1.0, 9.0]))


def test_a_power_law_is_found():
    assert study.fit_exponent({n: 3 * n**-0.7 for n in (1, 2, 4, 8)}) == pytest.approx(-0.7)


def test_errors_of_gaussian_probes_follow_their_formula():
    """The variance of ‖Jᵀe‖² is 2 ‖JJᵀ‖²_F for Gaussian e."""
    eq, W = linear(num_samples=1)
    exact = float(W.square().sum()) / 12
    errors = study.probe_errors(eq, exact, num_repeats=200)
    deviation = math.sqrt(2) * float(torch.linalg.matrix_norm(W @ W.T)) / float(W.square().sum())
    assert list(errors) == list(study.PROBES)
    for num_probes, error in errors.items():
        assert error == pytest.approx(deviation / math.sqrt(num_probes), rel=0.25)


def test_errors_of_batches_have_the_spread_of_samples_in_them():
    """With J a multiple of a rotation, an estimate by signs or directions has no error but that of the samples."""
    x = torch.tensor([[1.0], [3.0]])
    eq = Equilibrium.at(lambda z, x: z * x, torch.zeros(2, 400), x)
    errors = study.batch_errors(eq, num_repeats=200)
    # The squares are 1 and 9: 5 ± 4, and the 400 dimensions leave the probes an error of 0.07.
    for size, error in errors.items():
        assert error == pytest.approx(math.hypot(0.8, 0.07) / math.sqrt(size), rel=0.25)
    assert study.fit_exponent(errors) == pytest.approx(-0.5, abs=0.1)


def test_hutch_plus_plus_is_exact_where_the_rank_is_small():
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(40, 2, generator=generator) @ torch.randn(2, 40, generator=generator)
    eq = Equilibrium.at(lambda z: z @ W.T, torch.zeros(2, 40))
    hutchinson, improved = (study.product_errors(eq, study.exact_squares(eq), m) for m in ("hutchinson", "hutch++"))
    assert list(hutchinson) == list(improved) == list(study.PRODUCTS)
    assert max(improved.values()) < 1e-4 < min(hutchinson.values())


def test_a_step_leaves_no_gradient_and_backward_steps_are_counted():
    torch.manual_seed(0)
    model = ConvDEQ(channels=4, hidden=4)
    x, y = torch.randn(8, 1, 4, 4), torch.zeros(8, dtype=torch.long)
    step = study.TrainingStep(model=model, task=Classification(), x=x, y=y)
    seen = []

    def penalty(eq):
        seen.append(eq)
        return jacobian_penalty(eq)

    step.run(num_backward=5, penalty=penalty)()
    (eq,) = seen
    assert eq.stats.num_evals.tolist() == [6] * 8
    assert eq.backward.num_evals.tolist() == [5] * 8
    assert all(parameter.grad is None for parameter in model.parameters())


def made_up(*, probe=-0.5, batch=-0.5, error=0.5, cost=1.0, improved=0.5):
    """Return two cells with these exponents, an error with one sample, costs in backward steps, and a gain."""

    def cell(name):
        products = {n: n**-0.5 for n in study.PRODUCTS}
        return study.CellSummary(
            cell=name,
            dim=100,
            probe_errors={n: 0.1 * n**probe for n in study.PROBES},
            batch_errors={n: error * (n / 32) ** batch * 0.04 for n in study.BATCHES},
            hutchinson_errors=products,
            hutch_plus_plus_errors={n: improved * value for n, value in products.items()},
            costs={m: cost * m for m in study.COSTS},
        )

    return [cell("one"), cell("other")]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [True] * 5),
        ({"probe": -0.35}, [False, True, True, True, True]),
        ({"batch": -0.7}, [True, False, True, True, True]),
        ({"error": 2.0}, [True, True, False, True, True]),
        ({"cost": 2.5}, [True, True, True, False, True]),
        ({"cost": 0.3}, [True, True, True, False, True]),
        ({"improved": 1.1}, [True, True, True, True, False]),
    ],
)
def test_claims_are_judged_by_the_numbers(changes, expected):
    assert outcomes(study.ESTIMATORS, made_up(**changes)) == expected
