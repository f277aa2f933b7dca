"""Adaptive gamma and attention: which runs are compared, and how they are judged."""

import math
from dataclasses import replace

import pytest
from paper.made_up import by_columns, outcomes, row, summary

from steadeq import ClosedLoop
from steadeq.lab.run.record import EvaluationRow
from steadeq.paper import adaptive_gamma as study
from steadeq.paper.adaptive_gamma import ADAPTIVE_GAMMA, CIFAR10, DATA_SETS, DIGITS, WIKITEXT2
from steadeq.paper.attention import ATTENTION
from steadeq.paper.vision import ANDERSON, ANDERSON_JR, VIT, VIT_JR


@pytest.mark.parametrize("data", DATA_SETS, ids=lambda data: data.name)
def test_every_data_set_has_all_methods_and_the_loops_have_their_defaults(data):
    configs = {variant.name: next(iter(variant.configs().values())) for variant in data.variants}
    assert len(configs) == len(data.variants)
    assert {study.NONE, study.FEW, study.LOOP} < set(configs)
    assert any(name.startswith("γ = ") for name in configs)
    assert not configs[study.NONE].regularizer.is_active
    # That of CIFAR-10 has the bounds of its run.
    bounds = {"maximum": 100.0, "max_share": 0.5} if data.name == "CIFAR-10" else {}
    assert configs[study.LOOP].regularizer.schedule == ClosedLoop(**bounds)
    for name in (study.SPECTRAL, study.RESIDUAL):
        assert name not in configs or configs[name].regularizer.schedule == ClosedLoop()
    if study.LOOP_EVALS in configs:
        loop = configs[study.LOOP_EVALS]
        assert loop.regularizer.schedule == ClosedLoop(observed="evals", target=data.target)
        assert loop.solver.max_evals == configs[study.NONE].solver.max_evals > data.target
    for name, config in configs.items():
        if name.startswith("γ = "):
            assert f"γ = {config.regularizer.weight:g}" == name
            assert replace(config, regularizer=configs[study.LOOP].regularizer, recipe="") == replace(
                configs[study.LOOP], recipe=""
            )


def test_the_best_fixed_gamma_is_the_largest_that_keeps_the_quality_on_validation_data():
    def found(scores):
        names = [v.name for v in DIGITS.variants if v.name.startswith("γ = ")]
        gammas = (0.5, 2.0, 8.0)
        rows = zip(names, gammas, scores, strict=True)
        return summary(
            *(row(DIGITS.named(n), validation_score=s, regularizer_weight=g, score=0.0) for n, g, s in rows if s)
        )

    assert DIGITS.best_fixed(found((0.98, 0.975, 0.96))).variant == "digits: γ = 2"
    assert DIGITS.best_fixed(found((0.96, 0.98, 0.975))).variant == "digits: γ = 8"
    assert DIGITS.best_fixed(found((0.96, None, None))).variant == "digits: γ = 0.5"


def test_evaluations_needed_are_those_that_keep_the_quality():
    points = {1: (1.0, 0.5), 3: (3.0, 0.96), 6: (5.0, 0.98)}
    assert study.evals_needed(points, DIGITS, 0.969) == 3
    assert study.evals_needed(points, DIGITS, 0.98) == 6
    assert study.evals_needed(points, DIGITS, 0.999) == math.inf
    assert study.evals_needed({2: (2.0, 101.0), 4: (4.0, 100.0)}, WIKITEXT2, 100.0) == 2


def test_a_curve_is_the_mean_over_seeds_of_what_all_of_them_have():
    def seed(**scores):
        return {int(k[1:]): EvaluationRow(max_evals=int(k[1:]), score=s, forward_evals=2.0) for k, s in scores.items()}

    assert study.curve([seed(n1=0.4, n2=0.8), seed(n1=0.6, n2=None)]) == {1: (2.0, 0.5)}


def judged(**changes):
    """Return the outcomes on CIFAR-10; changes are of rows, by the first word of their method."""
    rows = {
        study.NONE: {"score": 0.80, "evals_needed": 12},
        "γ = 0.3": {"score": 0.79, "evals_needed": 6, "validation_score": 0.79, "regularizer_weight": 0.3},
        study.LINEAR: {"score": 0.79, "evals_needed": 6},
        study.LOOP: {"score": 0.795, "evals_needed": 4},
        study.LOOP_EVALS: {"score": 0.79, "train_evals": 6.3},
        study.SPECTRAL: {"score": 0.79, "evals_needed": 3},
        study.RESIDUAL: {"score": 0.79, "evals_needed": 4},
    }
    found = summary(*(row(CIFAR10.named(n), **{**rows[n], **changes.get(n.split(",")[0], {})}) for n in rows))
    return outcomes(ADAPTIVE_GAMMA, found)


def test_closed_loops_are_judged_by_the_numbers():
    assert judged() == [True] * 6
    assert judged(**{study.LOOP: {"score": 0.78, "evals_needed": 12}}) == [False, False, False, True, True, True]
    assert judged(**{study.LOOP_EVALS: {"train_evals": 6.7}})[3] is False
    assert judged(**{"spectral radius": {"evals_needed": 6}, "residual": {"evals_needed": 12}})[4:] == [False, False]


def test_what_never_keeps_the_quality_needs_too_many_evaluations():
    names = (study.NONE, study.LOOP, study.LINEAR)
    found = summary(*(row(CIFAR10.named(name), score=0.8) for name in names))
    verdict = next(v for v in ADAPTIVE_GAMMA.judge(found) if "linear schedule" in v.claim)
    assert verdict.outcome == "does not hold"
    assert "does not reach it at any budget" in verdict.evidence


def test_attention_is_judged_by_the_numbers():
    def found(evals, residuals, scores):
        names = (ANDERSON, ANDERSON_JR, VIT, VIT_JR)
        return by_columns(names, train_evals=evals, forward_residual=residuals, score=scores)

    assert outcomes(ATTENTION, found((17, 7, 12, 7), (0.1, 0.1, 0.1, 0.01), (0.8, 0.7, 0.7, 0.65))) == [True] * 3
    assert outcomes(ATTENTION, found((12, 7, 17, 7), (0.1, 0.01, 0.1, 0.1), (0.8, 0.75, 0.7, 0.6))) == [False] * 3
