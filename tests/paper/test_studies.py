"""Entries become runs, numbers, figures and verdicts."""

import csv
import json

import pytest

from steadeq.paper import ARTEFACTS, figure1, figure7, figure8, figure9, figure34, table1
from steadeq.paper.result import Verdict
from steadeq.lab.runner.completion import complete_run
from steadeq.paper.variant import MEASURES, Entry, find, plan, summarize
from steadeq.paper.study import compare
from steadeq.paper.table import Column
from steadeq.paper.wikitext import (
    NO_WEIGHT_NORM,
    POST,
    POST_JR,
    PRE,
    PRE_JR,
    SMALL_BUDGET,
    STOPPED,
    TRANSFORMER_XL,
    WEIGHT_DECAY,
    entries_of,
)
from steadeq.lab.report.curves import evals_figure
from steadeq.lab.train import Process
from steadeq.lab.train.display import SilentDisplay
from steadeq.lab.train.serialization import differences

SHORT = {"loop.num_steps": 12, "loop.batch_size": 16, "log.eval_every": 6, "log.spectrum_samples": 0}


def entry(name, **values):
    """Return an entry of a summary with made-up numbers."""
    measures = {**dict.fromkeys(MEASURES, 1.0), "diverged": 0.0, "time": 1.0, **values}
    spreads = {f"{measure}_std": 0.0 for measure in measures}
    return {"entry": name, "recipe": "", "max_evals": 12, "paper": {}, "num_seeds": 3, **measures, **spreads}


def outcomes(verdicts):
    return [verdict.outcome == "holds" for verdict in verdicts]


# Runs


def test_entries_name_their_runs_by_recipe_changes_and_seed():
    plain = Entry(name="a", recipe="synthetic", seeds=(0, 3))
    changed = Entry(name="b", recipe="synthetic", seeds=(0,), changes={"jacobian.weight": 2.0})
    stopped = Entry(name="c", recipe="synthetic", seeds=(0, 3), max_evals=2)
    runs = plan([plain, changed, stopped])
    assert list(runs) == ["synthetic-seed0", "synthetic-seed3", "synthetic-weight-2.0-seed0"]
    assert runs["synthetic-seed3"].loop.seed == 3
    assert runs["synthetic-weight-2.0-seed0"].jacobian.weight == 2.0


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_artefacts_that_share_a_name_share_the_run(scale):
    known = {}
    for artefact in ARTEFACTS.values():
        if scale not in artefact.data:
            continue
        assert scale in artefact.duration
        for name, config in artefact.runs(scale).items():
            assert not differences(known.setdefault(name, config), config), name


def test_a_comparison_evaluates_draws_judges_and_writes(tmp_path):
    def entries(scale):
        return [
            Entry(name="plain", recipe="synthetic", max_evals=4, seeds=(0, 1), changes=SHORT, paper={"mse": "0.1"}),
            Entry(name="stopped", recipe="synthetic", max_evals=2, seeds=(0, 1), changes=SHORT),
        ]

    def judge(summary):
        better, worse = find(summary, "plain"), find(summary, "stopped")
        return [Verdict.of("more is better", better["score"] < worse["score"], f"{better['score']:.3f}")]

    artefact = compare(
        name="made-up",
        claim="",
        data={"cpu": "synthetic"},
        duration={"cpu": "1 min"},
        entries=entries,
        figures=lambda groups: {"evaluations": evals_figure(groups), "nothing": None},
        judge=judge,
        columns=[Column(title="error", measure="score", digits=".3f")],
        budgets=(3,),
    )
    configs = artefact.runs("cpu")
    assert len(configs) == 2, "entries that are the same runs share them"
    runs = {
        name: complete_run(config, tmp_path / "runs" / name, process=Process(), display=SilentDisplay())
        for name, config in configs.items()
    }
    (verdict,) = artefact.produce(runs, tmp_path / "out", "cpu")
    content = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert content["verdicts"][0]["outcome"] == verdict.outcome
    assert [row["num_seeds"] for row in content["entries"]] == [2, 2]
    with (tmp_path / "out" / "budgets.csv").open() as file:
        assert {row["max_evals"] for row in csv.DictReader(file)} == {"2", "3", "4"}
    with (tmp_path / "out" / "runs.csv").open() as file:
        scores = {(row["entry"], row["seed"]): float(row["score"]) for row in csv.DictReader(file)}
    expected = (scores["plain", "0"] + scores["plain", "1"]) / 2
    assert content["entries"][0]["score"] == pytest.approx(expected)
    assert sorted(path.name for path in (tmp_path / "out").glob("*.png")) == ["evaluations.png"]
    table = artefact.tabulate(content)
    assert f"{expected:.3f} ±" in table
    assert "paper: mse" in table


def test_what_a_run_does_not_have_is_left_out_of_the_mean():
    rows = [{"entry": "a", **dict.fromkeys(MEASURES, None)}, {"entry": "a", **dict.fromkeys(MEASURES, 2.0)}]
    (found,) = summarize([Entry(name="a", recipe="synthetic")], rows)
    assert found["score"] == 2.0
    (nothing,) = summarize([Entry(name="a", recipe="synthetic")], rows[:1])
    assert nothing["score"] is None


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_language_models_are_there_at_both_scales(scale):
    names = (TRANSFORMER_XL, PRE, POST, STOPPED, SMALL_BUDGET, PRE_JR, POST_JR, NO_WEIGHT_NORM, WEIGHT_DECAY)
    found = entries_of(*names)(scale)
    assert [one.name for one in found] == list(names)
    configs = {one.name: next(iter(one.configs().values())) for one in found}
    assert configs[POST] == configs[STOPPED]
    assert not configs[NO_WEIGHT_NORM].model.weight_norm
    assert configs[WEIGHT_DECAY].optimizer.weight_decay == 1e-6
    assert configs[PRE].model.norm == configs[PRE_JR].model.norm == "pre"
    assert configs[POST_JR].jacobian.weight > 0 == configs[POST].jacobian.weight
    assert configs[SMALL_BUDGET].forward.max_evals < configs[POST].forward.max_evals


# Verdicts


def test_table1_and_table4_are_judged_by_the_numbers():
    good = [
        entry(TRANSFORMER_XL),
        entry(PRE, train_residual=0.2, train_evals=30.0),
        entry(POST, score=100.0, seconds_per_step=2.0, train_residual=1e-3),
        entry(STOPPED, score=110.0),
        entry(PRE_JR, train_residual=1e-3, train_evals=10.0),
        entry(POST_JR, score=101.0, seconds_per_step=1.0, train_residual=1e-3),
    ]
    assert outcomes(table1.judge(good)) == [True] * 5
    bad = [
        entry(TRANSFORMER_XL),
        entry(PRE, train_residual=1e-3, train_evals=9.0),
        entry(POST, score=100.0, seconds_per_step=1.0, train_residual=1e-3),
        entry(STOPPED, score=101.0),
        entry(PRE_JR, train_residual=0.2, train_evals=10.0),
        entry(POST_JR, score=110.0, seconds_per_step=1.0, train_residual=1e-3),
    ]
    assert outcomes(table1.judge(bad)) == [False] * 5
    assert outcomes(table1.judge([*good, entry(SMALL_BUDGET, score=120.0)]))[-1]
    assert outcomes(table1.judge([*good, entry(SMALL_BUDGET, score=None, diverged=1.0)]))[-1]
    assert not outcomes(table1.judge([*good, entry(SMALL_BUDGET, score=101.0)]))[-1]


def test_times_are_relative_to_transformer_xl():
    summary = [entry(TRANSFORMER_XL, seconds_per_step=2.0), entry(POST, seconds_per_step=5.0)]
    table1.add_times(summary)
    assert [row["time"] for row in summary] == [1.0, 2.5]


def test_figure1_is_judged_by_the_numbers():
    good = [
        entry(POST, early_evals=5.0, train_evals=20.0, jacobian_norm=1.0, train_residual=0.1),
        entry(POST_JR, early_evals=5.0, train_evals=6.0, jacobian_norm=0.1, train_residual=0.01),
    ]
    assert outcomes(figure1.judge(good)) == [True] * 3
    swapped = [{**good[1], "entry": POST}, {**good[0], "entry": POST_JR}]
    assert outcomes(figure1.judge(swapped)) == [False] * 3


def test_figures_3_and_4_are_judged_by_the_numbers():
    def summary(*residuals):
        names = (POST, PRE, NO_WEIGHT_NORM, POST_JR, PRE_JR)
        return [entry(n, train_residual=r, train_evals=100 * r) for n, r in zip(names, residuals, strict=True)]

    assert outcomes(figure34.judge(summary(0.1, 0.3, 0.3, 0.01, 0.01))) == [True] * 3
    assert outcomes(figure34.judge(summary(0.1, 0.15, 0.1, 0.2, 0.01))) == [False] * 3
    diverged = summary(0.1, 0.1, 0.1, 0.01, 0.01)
    diverged[1]["diverged"] = 1 / 3
    assert outcomes(figure34.judge(diverged)) == [True, False, True]


def test_figures_7_to_9_are_judged_by_the_numbers():
    def radii(*values):
        names = (POST, SMALL_BUDGET, POST_JR)
        return [entry(name, spectral_radius=value) for name, value in zip(names, values, strict=True)]

    assert outcomes(figure7.judge(radii(2.0, 5.0, 0.5))) == [True] * 3
    assert outcomes(figure7.judge(radii(0.5, 0.4, 2.0))) == [False] * 3

    known = {"spectral_radius_error": 0.02, "spectral_radius_unknown": 0.0}
    (first, *_) = figure7.judge([{**row, **known} for row in radii(2.0, 5.0, 0.5)])
    assert "0.50 ± 0.00 (error 0.02) against 2.00 ± 0.00 (error 0.02)" in first.evidence

    def evals(*values):
        names = (POST, WEIGHT_DECAY, POST_JR)
        return [entry(name, train_evals=value) for name, value in zip(names, values, strict=True)]

    assert outcomes(figure8.judge(evals(20, 19, 8))) == [True]
    assert outcomes(figure8.judge(evals(20, 10, 8))) == [False]
    assert outcomes(figure8.judge(evals(20, 19, 18))) == [False]

    def backward(products, norms):
        names = (POST, WEIGHT_DECAY, POST_JR)
        return [
            entry(name, backward_evals=p, early_jacobian_norm=1.0, jacobian_norm=n)
            for name, p, n in zip(names, products, norms, strict=True)
        ]

    assert outcomes(figure9.judge(backward((10, 9, 5), (2, 2, 2)))) == [True, True]
    assert outcomes(figure9.judge(backward((5, 9, 10), (2, 2, 0.5)))) == [False, False]
