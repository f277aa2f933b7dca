"""Numbers of several runs become means, and verdicts."""

import json

import pytest

from steadeq.paper import figure5
from steadeq.paper.results import spread


def test_the_spread_is_that_of_the_seeds():
    assert spread([{"x": 1.0}, {"x": 2.0}, {"x": 6.0}], ["x"]) == {
        "num_seeds": 3,
        "x": 3.0,
        "x_std": pytest.approx(7**0.5),
    }


def test_claims_on_the_synthetic_study_are_judged_by_the_numbers():
    def row(gamma, mse, slope, picard, anderson):
        values = {"mse": mse, "slope": slope, "picard_evals": picard, "anderson_evals": anderson}
        return {"gamma": gamma, **values, **{f"{name}_std": 0.0 for name in values}}

    good = [row(0, 0.003, 0.8, 20, 6), row(1, 0.004, 0.3, 7, 5)]
    bad = [row(0, 0.003, 0.3, 7, 5), row(1, 0.9, 0.8, 20, 6)]
    assert {verdict.outcome for verdict in figure5.judge(good)} == {"holds"}
    assert {verdict.outcome for verdict in figure5.judge(bad)} == {"does not hold"}


def test_runs_of_an_artefact_differ_in_what_they_are_about():
    configs = figure5.configs("cpu")
    assert len(configs) == 12
    assert {config.jacobian.weight for config in configs.values()} == {0, 1, 2, 4}
    assert len({json.dumps([c.jacobian.weight, c.loop.seed]) for c in configs.values()}) == 12
