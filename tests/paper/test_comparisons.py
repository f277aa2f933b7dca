"""Variants become runs, numbers, figures and verdicts."""

import csv
import json
from dataclasses import replace

import pytest
from paper.made_up import by_columns, complete, outcomes, row, summary

from steadeq import Unrolled
from steadeq.lab.errors import RunError
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.run.record import RunRecord
from steadeq.lab.serialization import differences
from steadeq.paper.catalog import RESULTS
from steadeq.paper.comparison import Comparison, summarize
from steadeq.paper.figure1 import FIGURE1, FIGURE1_CIFAR10
from steadeq.paper.figure7 import FIGURE7
from steadeq.paper.figure8 import FIGURE8
from steadeq.paper.figure9 import FIGURE9, FIGURE9_CIFAR10
from steadeq.paper.figure34 import FIGURE34
from steadeq.paper.language import (
    NO_WEIGHT_NORM,
    POST,
    POST_JR,
    PRE,
    PRE_JR,
    SMALL_BUDGET,
    STOPPED,
    TRANSFORMER_XL,
    TWENTY,
    TWICE_AS_LONG,
    WEIGHT_DECAY,
    language_models,
)
from steadeq.paper.result import HARDWARE, Claim
from steadeq.paper.table1 import TABLE1, TABLE4, add_times
from steadeq.paper.tables import Column
from steadeq.paper.variant import Variant, evaluate, measure, plan
from steadeq.paper.vision import MDEQ, MDEQ_JR
from steadeq.paper.vision import WEIGHT_DECAY as MDEQ_DECAY


def short(config):
    return replace(
        config,
        loop=replace(config.loop, num_steps=12, batch_size=16),
        log=replace(config.log, eval_every=6, spectrum_samples=0),
    )


def with_weight(config):
    return replace(config, regularizer=replace(config.regularizer, weight=2.0))


# Runs


def test_variants_name_their_runs_by_recipe_changes_and_seed():
    plain = Variant(name="a", recipe="synthetic", seeds=(0, 3))
    changed = Variant(name="b", recipe="synthetic", seeds=(0,), change=with_weight)
    stopped = Variant(name="c", recipe="synthetic", seeds=(0, 3), max_evals=2)
    runs = plan([plain, changed, stopped])
    assert list(runs) == ["synthetic-seed0", "synthetic-seed3", "synthetic-weight-2.0-seed0"]
    assert runs["synthetic-seed3"].loop.seed == 3
    assert runs["synthetic-weight-2.0-seed0"].regularizer.weight == 2.0


@pytest.mark.parametrize("scale", HARDWARE)
def test_results_that_share_a_name_share_the_run(scale):
    known = {}
    for result in RESULTS.values():
        if scale not in result.scales:
            continue
        assert result.duration(scale)
        assert result.data(scale)
        for name, config in result.runs(scale).items():
            assert not differences(known.setdefault(name, config), config), name


def made_up_result():
    def variants(scale):
        options = {"recipe": "synthetic", "seeds": (0, 1), "change": short}
        return [
            Variant(name="plain", max_evals=4, paper={"score": "0.1"}, **options),
            Variant(name="stopped", max_evals=2, **options),
        ]

    return Comparison(
        name="made-up",
        title="Made up",
        statement="",
        variants=variants,
        # No run recorded the spectral radius.
        figures=("forward_evaluations", "spectral_radius"),
        claims=[
            Claim(
                "more is better",
                section="5.2, Table 1",
                threshold="stated before",
                holds=lambda s: s["plain"].mean("score") < s["stopped"].mean("score"),
                evidence=lambda s: s["plain"].show("score", digits=".3f"),
            ),
            Claim(
                "there is another",
                section="5.2",
                source="own",
                holds=lambda s: s["another"].mean("score") > 0,
                evidence=lambda s: "",
            ),
            Claim(
                "nobody asks",
                section="5.2",
                holds=lambda s: True,
                evidence=lambda s: "",
                applies=lambda s: s.plans("another"),
            ),
        ],
        columns=[Column(title="error", measure="score", digits=".3f", beside_paper="error in the paper")],
        quoted={"plain": {}, "another": {"score": "0.2"}},
        budgets=(3,),
    )


def test_a_comparison_evaluates_draws_judges_and_writes(tmp_path):
    result, folder = made_up_result(), tmp_path / "out"
    configs = result.runs("cpu")
    assert len(configs) == 2, "variants that are the same runs share them"
    runs = complete(configs, tmp_path / "runs")
    verdict, missing = result.produce(runs, folder, "cpu")
    assert (missing.outcome, missing.evidence) == ("not tested", "there is no such run at this scale")
    content = json.loads((folder / "summary.json").read_text())
    published = content["verdicts"][0]
    assert published["outcome"] == verdict.outcome
    assert (published["section"], published["source"], published["threshold"]) == (
        "5.2, Table 1",
        "paper",
        "stated before",
    )
    assert [one["num_seeds"] for one in content["variants"]] == [2, 2]
    with (folder / "budgets.csv").open() as file:
        assert {one["max_evals"] for one in csv.DictReader(file)} == {"2", "3", "4"}
    with (folder / "runs.csv").open() as file:
        scores = {(one["variant"], one["seed"]): float(one["score"]) for one in csv.DictReader(file)}
    expected = (scores["plain", "0"] + scores["plain", "1"]) / 2
    assert content["variants"][0]["score"] == pytest.approx(expected)
    with (folder / "summary.csv").open() as file:
        plain, stopped = csv.DictReader(file)
    assert float(plain["score"]) == pytest.approx(expected)
    assert (plain["paper_score"], stopped["paper_score"]) == ("0.1", "")
    assert sorted(path.name for path in folder.glob("*.png")) == ["forward_evaluations.png"]
    found, verdicts = result.read(folder)
    assert verdicts == [verdict, missing]
    assert result.judge(found) == verdicts
    head, _, first, second, third = result.table(found).splitlines()
    assert head == "| model | NFE | error | error in the paper |"
    assert f"{expected:.3f} ±" in first
    assert first.endswith("| 0.1 |")
    assert second.endswith("| - |")
    assert third == "| another, quoted | - | - | 0.2 |"


def test_a_run_without_a_checkpoint_is_a_result_only_if_it_diverged(tmp_path):
    (config,) = Variant(name="a", recipe="synthetic", seeds=(0,)).configs().values()
    folder = RunFolder.create(tmp_path / "run", config)
    with pytest.raises(RunError, match="no checkpoint"):
        evaluate(folder.path, [2])
    folder.metrics_path.write_text(json.dumps({"event": "diverged", "step": 3}) + "\n")
    assert evaluate(folder.path, [2]) == {}


def test_what_a_run_does_not_have_is_left_out_of_the_mean():
    variant = Variant(name="a", recipe="synthetic")
    found = summarize(variant, [{"score": None}, {"score": 2.0}])
    assert found.mean("score") == 2.0
    assert summarize(variant, [{"score": None}]).show("score") == "-"


def test_a_model_that_diverged_for_all_seeds_has_no_score():
    table = TABLE1.table(summary(row(PRE, diverged=1.0), row(POST, diverged=1 / 3, score=24.0)))
    assert "diverged" in table.splitlines()[2]
    assert "24.0 ± 0.0" in table.splitlines()[3]


@pytest.mark.parametrize("scale", HARDWARE)
def test_language_models_are_there_at_all_scales(scale):
    names = (
        *(TRANSFORMER_XL, PRE, POST, STOPPED, TWENTY, SMALL_BUDGET, PRE_JR, POST_JR, TWICE_AS_LONG),
        *(NO_WEIGHT_NORM, WEIGHT_DECAY),
    )
    found = language_models(*names)(scale)
    assert [one.name for one in found] == list(names)
    configs = {one.name: next(iter(one.configs().values())) for one in found}
    assert configs[POST] == configs[STOPPED]
    assert not configs[NO_WEIGHT_NORM].model.weight_norm
    assert configs[WEIGHT_DECAY].optimizer.weight_decay == 1e-6
    assert configs[PRE].model.norm == configs[PRE_JR].model.norm == "pre"
    assert configs[POST_JR].regularizer.weight > 0 == configs[POST].regularizer.weight
    assert configs[SMALL_BUDGET].solver.max_evals < configs[POST].solver.max_evals
    assert not isinstance(configs[SMALL_BUDGET].adjoint, Unrolled)
    assert configs[SMALL_BUDGET].adjoint.solver.max_evals < configs[POST].adjoint.solver.max_evals
    assert configs[TWENTY].solver.max_evals == configs[TWENTY].adjoint.solver.max_evals == 20
    data, longer = configs[POST_JR].data, configs[TWICE_AS_LONG].data
    assert replace(configs[TWICE_AS_LONG], data=data) == configs[POST_JR]
    assert longer == replace(data, length=2 * data.length)


def test_rows_that_the_paper_takes_from_others_are_quoted():
    table = TABLE4.table(summary(row(TRANSFORMER_XL), row(TWENTY)))
    assert "| Megatron-LM (Shoeybi et al., 2019), quoted | - | - | 10.8 | - | - | - |" in table
    assert f"{TWICE_AS_LONG}, quoted | - | - | 23.8 | - | - | 6.5 GB |" in table
    assert f"{TWENTY}, quoted" not in table, "it was run"
    assert "| AWD-QRNN (Bradbury et al., 2016), quoted | - | - | - | 33.0 | - | - |" in TABLE1.table(summary())


def test_fluctuation_is_that_of_the_last_tenth_of_training(tmp_path):
    (path,) = complete(Variant(name="a", recipe="synthetic", change=short).configs(), tmp_path).values()
    record = RunRecord.read(path)
    residuals = (*[5.0] * 90, *[0.1, 0.3] * 5)
    line = record.training[0]
    lines = [replace(line, step=n, backward_residual=value) for n, value in enumerate(residuals, start=1)]
    found = measure(replace(record, training=lines), {}, 0)
    assert found["early_backward_residual"] == 5.0
    assert found["backward_residual"] == pytest.approx(0.2)
    assert found["backward_fluctuation"] == pytest.approx(0.1 * (10 / 9) ** 0.5)


# Claims


def test_table1_and_table4_are_judged_by_the_numbers():
    good = [
        row(TRANSFORMER_XL, score=97.0),
        row(PRE, train_residual=0.2, train_evals=30.0),
        row(POST, score=100.0, seconds_per_step=2.0, train_residual=1e-3, time=3.1),
        row(STOPPED, score=110.0),
        row(PRE_JR, train_residual=1e-3, train_evals=10.0),
        row(POST_JR, score=101.0, seconds_per_step=1.0, train_residual=1e-3),
    ]
    assert outcomes(TABLE1, summary(*good)) == [True] * 7
    bad = [
        row(TRANSFORMER_XL),
        row(PRE, train_residual=1e-3, train_evals=9.0),
        row(POST, score=100.0, seconds_per_step=1.0, train_residual=1e-3),
        row(STOPPED, score=101.0),
        row(PRE_JR, train_residual=0.2, train_evals=10.0),
        row(POST_JR, score=110.0, seconds_per_step=1.0, train_residual=1e-3),
    ]
    assert outcomes(TABLE1, summary(*bad)) == [False] * 7

    def further(small, twenty, longer):
        return outcomes(TABLE4, summary(*good, small, row(TWENTY, score=twenty), row(TWICE_AS_LONG, score=longer)))

    assert further(row(SMALL_BUDGET, score=120.0), 100.1, 100.9) == [True] * 3
    assert further(row(SMALL_BUDGET, unknown=["score"], diverged=1.0), 100.1, 100.9)[0] is True
    assert further(row(SMALL_BUDGET, score=101.0), 99.9, 101.1) == [False] * 3
    assert outcomes(TABLE4, summary(*good)) == [None] * 3


def test_times_are_relative_to_transformer_xl():
    found = add_times(summary(row(TRANSFORMER_XL, seconds_per_step=2.0), row(POST, seconds_per_step=5.0)))
    assert [one.mean("time") for one in found.values()] == [1.0, 2.5]


PAIR, IMAGES = (POST, POST_JR), (MDEQ, MDEQ_JR)
FEW, DECAYED, DECAYED_IMAGES = (POST, SMALL_BUDGET, POST_JR), (POST, WEIGHT_DECAY, POST_JR), (MDEQ, MDEQ_DECAY, MDEQ_JR)


def on_images(backward, late, at_6):
    """Return residuals and norms that are 0.1 early in training; those of the backward solve later are given apart."""
    early = dict.fromkeys(("early_residual", "early_backward_residual", "early_jacobian_norm"), (0.1, 0.1))
    late = {"train_residual": late, "jacobian_norm": late, "backward_residual": backward}
    return by_columns(IMAGES, **early, **late, residual_at_6=at_6)


def figures_3_and_4(*residuals, diverged=0.0):
    names = (POST, PRE, NO_WEIGHT_NORM, POST_JR, PRE_JR)
    evals = [100 * residual for residual in residuals]
    measured = {"train_residual": residuals, "residual_at_12": residuals, "train_evals": evals}
    return by_columns(names, **measured, diverged=(0.0, diverged, 0.0, 0.0, 0.0))


def figure1(evals, norms, residuals):
    return by_columns(PAIR, early_evals=(5, 5), train_evals=evals, jacobian_norm=norms, residual_at_12=residuals)


def figure9(evals, norms):
    return by_columns(DECAYED, backward_evals=evals, early_jacobian_norm=(1, 1, 1), jacobian_norm=norms)


def figure9_on_images(residuals, fluctuations):
    return by_columns(DECAYED_IMAGES, backward_residual=residuals, backward_fluctuation=fluctuations)


@pytest.mark.parametrize(
    ("result", "found", "expected"),
    [
        (FIGURE1, figure1((20, 6), (1.0, 0.1), (0.1, 0.01)), [True] * 4),
        (FIGURE1, figure1((6, 20), (0.1, 1.0), (0.01, 0.1)), [False] * 4),
        (FIGURE1_CIFAR10, on_images((0.2, 0.05), (0.2, 0.05), (0.3, 0.1)), [True] * 4),
        (FIGURE1_CIFAR10, on_images((0.05, 0.2), (0.05, 0.2), (0.1, 0.3)), [False] * 4),
        # Both solves must get worse.
        (FIGURE1_CIFAR10, on_images((0.05, 0.05), (0.2, 0.05), (0.3, 0.1)), [False, True, True, True]),
        (FIGURE9_CIFAR10, figure9_on_images((0.02, 0.05, 0.01), (0.3, 0.2, 0.1)), [True] * 4),
        (FIGURE9_CIFAR10, figure9_on_images((0.02, 0.01, 0.05), (0.1, 0.2, 0.3)), [False] * 4),
        (FIGURE34, figures_3_and_4(0.1, 0.3, 0.3, 0.01, 0.01), [True] * 3),
        (FIGURE34, figures_3_and_4(0.1, 0.15, 0.1, 0.2, 0.01), [False] * 3),
        (FIGURE34, figures_3_and_4(0.1, 0.1, 0.1, 0.01, 0.01, diverged=1 / 3), [True, False, True]),
        (FIGURE7, by_columns(FEW, spectral_radius=(2.0, 5.0, 0.5)), [True] * 3),
        (FIGURE7, by_columns(FEW, spectral_radius=(0.5, 0.4, 2.0)), [False] * 3),
        (FIGURE8, by_columns(DECAYED, train_evals=(20, 19, 8)), [True]),
        (FIGURE8, by_columns(DECAYED, train_evals=(20, 10, 8)), [False]),
        (FIGURE8, by_columns(DECAYED, train_evals=(20, 19, 18)), [False]),
        (FIGURE9, figure9((10, 9, 5), (3, 3, 2)), [True] * 3),
        (FIGURE9, figure9((5, 9, 10), (2, 2, 0.5)), [False, False, True]),
        (FIGURE9, figure9((10, 9, 5), (3, 2, 2)), [True, True, False]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_figures_are_judged_by_the_numbers(result, found, expected):
    assert outcomes(result, found) == expected


def test_the_error_of_a_radius_stands_beside_it():
    found = by_columns(FEW, spectral_radius=(2.0, 5.0, 0.5), spectral_radius_error=[0.02] * 3)
    (first, *_) = FIGURE7.judge(found)
    assert "0.50 ± 0.00 (error 0.02) against 2.00 ± 0.00 (error 0.02)" in first.evidence
