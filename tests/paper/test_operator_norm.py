import pytest
import torch
from paper.made_up import outcomes, spreads

from steadeq import Equilibrium
from steadeq.models import ConvDEQ
from steadeq.paper import operator_norm as study
from steadeq.paper.variant import SEEDS, Averages


def test_each_arm_penalizes_what_it_says():
    """Of J = diag(3, 1): the mean of the squares is 5, and the largest is 9."""
    eq = Equilibrium.at(lambda z: z * torch.tensor([3.0, 1.0]), torch.zeros(4, 2))
    generator = torch.Generator().manual_seed(0)
    values = {
        p: float(study.Arm(penalty=p, weight=1.0).regularizer().penalty(eq, generator=generator))
        for p in (study.FROBENIUS, study.SIGMA)
    }
    assert values[study.FROBENIUS] == pytest.approx(5)
    assert values[study.SIGMA] == pytest.approx(9, rel=1e-3)
    assert not study.Arm(penalty=study.NONE).regularizer().is_active


def test_both_penalties_have_as_many_runs_that_differ_in_nothing_else():
    assert len(study.WEIGHTS[study.FROBENIUS]) == len(study.WEIGHTS[study.SIGMA])
    configs = study.OPERATOR_NORM.runs("cpu")
    assert len(configs) == len(study.ARMS) * len(SEEDS)
    first = next(iter(configs.values()))
    for config in configs.values():
        for name in ("model", "data", "optimizer", "solver", "adjoint", "log"):
            assert getattr(config, name) == getattr(first, name)
        assert config.regularizer.probability == first.regularizer.probability


def averages(accuracy, evals, *, test_accuracy=0.9, sigma=1.0):
    values = {"validation_accuracy": accuracy, "validation_evals": evals, "accuracy": test_accuracy, "evals": evals}
    values |= {"spectral_radius": 0.5, "operator_norm": sigma, "frobenius_norm": 5.0}
    return Averages(num_seeds=3, spreads=spreads(values))


def test_a_weight_is_chosen_by_evaluations_among_the_accurate_ones():
    arms = [study.Arm(penalty=study.FROBENIUS, weight=weight) for weight in (0.3, 1.0, 3.0, 10.0)]
    arms += [study.Arm(penalty=study.SIGMA, weight=weight) for weight in (0.1, 1.0)]
    found = [averages(0.98, 20), averages(0.979, 10), averages(0.975, 8), averages(0.9, 4)]
    # Of a penalty that is never accurate enough, the most accurate.
    found += [averages(0.96, 9), averages(0.95, 3)]
    assert study.choose(list(zip(arms, found, strict=True))) == [False, False, True, False, True, False]


def test_what_test_data_say_does_not_matter_for_the_choice():
    arms = [study.Arm(penalty=study.SIGMA, weight=weight) for weight in (0.1, 1.0)]
    for scores in ((0.1, 0.9), (0.9, 0.1)):
        found = [averages(0.98, 20 - i, test_accuracy=score) for i, score in enumerate(scores)]
        assert study.choose(list(zip(arms, found, strict=True))) == [False, True]


def test_a_model_is_measured():
    torch.manual_seed(0)
    found = study.measure(ConvDEQ(channels=4, hidden=4))
    assert 0 <= found["accuracy"] <= 1
    assert found["evals"] > 1
    # As far as estimates tell.
    assert 0 < found["spectral_radius"] <= found["operator_norm"] + found["operator_norm_error"]
    assert found["operator_norm"] <= found["frobenius_norm"] + found["frobenius_norm_error"]


def made_up(*, frobenius=0.9, evals=10.0, none_evals=30.0, sigma=0.5, seconds=1.2):
    """Return a summary with one accuracy, number of evaluations and time of the Frobenius norm's arm."""

    def summarized(arm):
        own = {
            study.NONE: averages(0.98, none_evals),
            study.FROBENIUS: averages(0.98, evals, test_accuracy=frobenius),
            study.SIGMA: averages(0.98, 10.0, sigma=sigma),
        }[arm.penalty]
        is_chosen = arm.weight == study.WEIGHTS[arm.penalty][0]
        return study.ArmSummary(**vars(arm), is_chosen=is_chosen, num_seeds=3, spreads=own.spreads)

    return study.Summary(
        step_seconds={study.NONE: 1.0, study.FROBENIUS: seconds, study.SIGMA: 1.5},
        arms=[summarized(arm) for arm in study.ARMS],
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [True] * 5),
        ({"sigma": 9.0}, [False, True, True, True, False]),
        ({"seconds": 1.6}, [True, False, True, True, True]),
        ({"frobenius": 0.88}, [True, True, False, True, True]),
        ({"evals": 11.0}, [True, True, False, True, True]),
        ({"none_evals": 9.0}, [True, True, True, False, True]),
    ],
)
def test_claims_are_judged_by_the_numbers(changes, expected):
    assert outcomes(study.OPERATOR_NORM, made_up(**changes)) == expected
