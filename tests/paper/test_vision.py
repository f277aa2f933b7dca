"""Tables 2 and 3 and Figure 6: which runs they need, what they say of made-up numbers, and that they can be made."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from lab.data.published import write_cifar
from paper.made_up import complete, leave_old_garbage, outcomes, row, summary

from steadeq import OneStep, Picard, Unrolled
from steadeq.lab import recipes
from steadeq.lab.report import RunGroup
from steadeq.lab.run.archive import archive_run
from steadeq.lab.run.record import RunRecord
from steadeq.lab.runner import complete_evaluation
from steadeq.paper import table3
from steadeq.paper.comparison import FIGURES
from steadeq.paper.figure1 import FIGURE1_CIFAR10
from steadeq.paper.figure6 import FIGURE6
from steadeq.paper.figure9 import FIGURE9_CIFAR10
from steadeq.paper.memory_profile import inference_seconds, step_memory
from steadeq.paper.result import HARDWARE
from steadeq.paper.table2 import TABLE2, add_sizes
from steadeq.paper.table3 import TABLE3
from steadeq.paper.variant import Variant, plan
from steadeq.paper.vision import (
    IMAGENET,
    IMAGENETTE,
    MDEQ,
    MDEQ_JR,
    MONOTONE,
    MULTI_TIER,
    RESNET,
    RESNET101,
    STOPPED,
    classifiers,
)

# Runs


def test_table2_has_the_papers_own_runs_at_the_scale_of_the_paper():
    runs = TABLE2.runs("paper")
    assert {recipes.get(config.recipe).scale for config in runs.values()} == {"paper"}
    assert {config.data.name for config in runs.values()} == {"cifar10", "imagenet"}
    seeds = Counter(config.recipe for config in runs.values())
    assert all(number == (5 if recipe.startswith("cifar10") else 1) for recipe, number in seeds.items())
    assert {"cifar10-densenet121", "cifar10-monotone-multi", "imagenet-resnet50"} < set(seeds)
    assert "cifar10-mdeq-weight_decay-1e-06-seed0" in FIGURE9_CIFAR10.runs("paper").keys() - runs.keys()


@pytest.mark.parametrize("scale", HARDWARE)
def test_hard_stopped_rows_are_other_budgets_of_the_same_runs(scale):
    known = {one.name: one for one in classifiers()(scale)}
    for name, one in known.items():
        if name.endswith(STOPPED):
            plain = known[name.removesuffix(STOPPED) + MDEQ]
            assert one.configs() == plain.configs()
            assert one.max_evals < plain.max_evals


@pytest.mark.parametrize("scale", HARDWARE)
def test_figure6_needs_no_runs_of_its_own(scale):
    assert FIGURE6.runs(scale).items() <= TABLE2.runs(scale).items()


# Claims


@pytest.mark.parametrize(
    ("accuracies", "seconds", "expected"),
    [
        ((0.45, 0.38, 0.46), (100, 45), True),
        ((0.45, 0.44, 0.43), (100, 60), False),
        ((0.45, 0.43, 0.44), (100, 50), True),
    ],
)
def test_table2_is_judged_by_the_numbers(accuracies, seconds, expected):
    plain, stopped, regularized = accuracies

    def rows(prefix):
        return [
            row(prefix + MDEQ, score=plain, train_seconds=seconds[0], max_evals=12),
            row(prefix + STOPPED, score=stopped, max_evals=6),
            row(prefix + MDEQ_JR, score=regularized, train_seconds=seconds[1], max_evals=6),
        ]

    found = summary(*rows(""), *rows(IMAGENETTE))
    assert outcomes(TABLE2, found) == [expected] * 3 + [None] * 3 + [expected] * 3
    verdicts = TABLE2.judge(found)
    assert all(verdict.claim.startswith(IMAGENETTE) for verdict in verdicts[6:])
    stopped = [verdict.source for verdict in verdicts if "stopped early" in verdict.claim]
    assert stopped == ["paper", "own"], "the paper stops no model of ImageNet early"


@pytest.mark.parametrize(("explicit", "monotone", "expected"), [(0.46, 0.44, [True] * 3), (0.47, 0.46, [False] * 3)])
def test_table2_compares_with_other_kinds_of_networks(explicit, monotone, expected):
    rows = [row(MDEQ, score=0.45), row(STOPPED, score=0.45), row(MDEQ_JR, score=0.45)]
    found = summary(*rows, row(RESNET, score=explicit), row(MONOTONE, score=monotone), row(MULTI_TIER, score=monotone))
    assert outcomes(TABLE2, found)[3:] == expected


def test_rows_of_table2_that_are_not_run_are_quoted_once():
    table = TABLE2.table(summary(row(RESNET, score=0.5), row(MDEQ, score=0.4)))
    quoted = [line for line in table.splitlines() if ", quoted |" in line]
    assert len(quoted) == 14, "16 rows in all"
    assert "| DenseNet-121, quoted | - | - | - | 95.0 ± 0.1 | - | - |" in quoted
    assert "| ImageNet: DenseNet-264 (Huang et al., 2017), quoted | - | - | - | 79.7 | - | - |" in quoted
    assert table.splitlines()[0].count("paper") == 2
    assert all(title in table for title in ("| NFE in the paper |", "| paper, % |"))


def test_sizes_and_times_do_not_depend_on_the_batch():
    found = add_sizes(summary(row("a", seconds_per_step=0.32, recipe="cifar10-resnet-cpu")))["a"]
    assert found.mean("num_parameters") == 78_042
    assert found.mean("train_seconds") == pytest.approx(10.0)  # batches of 32


def test_figure6_is_judged_by_the_numbers():
    def rows(explicit, plain, regularized):
        values = {RESNET: explicit, MDEQ: plain, MDEQ_JR: regularized}
        names = ("error", "inference_seconds", "step_mb")
        return summary(*(row(name, **dict(zip(names, numbers, strict=True))) for name, numbers in values.items()))

    good = rows((0.5, 1.0, 100.0), (0.5, 2.0, 40.0), (0.5, 1.0, 50.0))
    bad = rows((0.4, 1.0, 100.0), (0.5, 2.0, 40.0), (0.5, 1.6, 90.0))
    assert outcomes(FIGURE6, good) == [True] * 5
    assert outcomes(FIGURE6, bad) == [False] * 5


def test_table3_is_judged_by_the_numbers():
    def rows(scores):
        return summary(
            *(
                row(table3.cell_name(gamma, budget), score=score, max_evals=budget)
                for gamma, numbers in scores.items()
                for budget, score in zip(table3.BUDGETS, numbers, strict=True)
            )
        )

    good = {0.1: (0.1, 0.2, 0.3, 0.4, 0.4, 0.45), 0.6: (0.4,) * 5 + (0.46,), 1.2: (0.44,) * 6}
    bad = {0.1: (0.45,) * 6, 0.6: (0.44,) * 6, 1.2: (0.1, 0.2, 0.3, 0.4, 0.4, 0.45)}
    assert outcomes(TABLE3, rows(good)) == [True] * 3
    assert outcomes(TABLE3, rows(bad)) == [False] * 3


# On tiny runs


def short(config):
    return replace(
        config,
        data=replace(config.data, num_train=12, num_validation=4),
        loop=replace(config.loop, num_steps=2, batch_size=4),
        log=replace(config.log, spectrum_samples=1, spectrum_products=2),
    )


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """A folder of data with four images in each file."""
    leave_old_garbage()
    data = tmp_path_factory.mktemp("data")
    write_cifar(data / "cifar-10-batches-bin")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEADEQ_DATA", str(data))
        yield


def tiny(name, recipe, max_evals, change=short):
    return Variant(name=name, recipe=recipe, max_evals=max_evals, seeds=(0,), change=change)


@pytest.fixture(scope="module")
def finished(cifar, tmp_path_factory):
    """Tiny variants, and the folders of their runs by name."""
    variants = [
        tiny(RESNET, "cifar10-resnet-cpu", 0),
        tiny(MONOTONE, "cifar10-monotone-cpu", 3),
        tiny(MDEQ, "cifar10-mdeq-cpu", 3),
        tiny(MDEQ_JR, "cifar10-mdeq-cpu-jr", 2),
    ]
    return variants, complete(plan(variants), tmp_path_factory.mktemp("runs"))


def test_figure6_is_made_of_finished_runs(finished, tmp_path):
    variants, runs = finished
    result = replace(FIGURE6, variants=lambda scale: variants)
    verdicts = result.produce(runs, tmp_path / "out", "cpu")
    assert len(verdicts) == 5
    content = json.loads((tmp_path / "out" / "summary.json").read_text())
    explicit, _, plain, regularized = content["variants"]
    assert "forward_residual" not in explicit
    assert explicit["error"] == pytest.approx(1 - explicit["score"])
    assert 0 < plain["step_mb"] < regularized["step_mb"], "the penalty needs its own graph"
    assert (tmp_path / "out" / "bars.png").is_file()
    assert "training step, MB" in result.table(result.from_json(content))
    # Costs are measured once, so that they can be had without the weights.
    kept = {name: tmp_path / "kept" / name for name in runs}
    for name, path in runs.items():
        archive_run(path, kept[name])
        assert result.can_use(name, kept[name], "cpu")
    assert result.produce(kept, tmp_path / "again", "cpu") == verdicts
    assert json.loads((tmp_path / "again" / "summary.json").read_text()) == content
    name, folder = next(iter(kept.items()))
    (folder / "costs.json").unlink()
    assert not result.can_use(name, folder, "cpu")


def test_figure1_is_made_of_finished_runs_on_images(finished, tmp_path):
    variants, runs = finished
    result = replace(FIGURE1_CIFAR10, variants=lambda scale: variants[2:])
    verdicts = result.produce(runs, tmp_path / "out", "cpu")
    assert all(verdict.outcome != "not tested" for verdict in verdicts)
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == set(result.figures)


def test_an_explicit_network_is_evaluated_once_at_a_budget_of_none(finished):
    path = next(iter(finished[1].values()))
    (found,) = complete_evaluation(path, budgets=(0,)).rows
    assert found.max_evals == 0
    before = (path / "evaluation.json").stat().st_mtime_ns
    assert complete_evaluation(path, budgets=(0,)).rows == (found,)
    assert (path / "evaluation.json").stat().st_mtime_ns == before
    # It has no place on an axis of budgets.
    group = RunGroup(label=RESNET, runs=(RunRecord.read(path),))
    assert FIGURES["accuracy_by_evaluations"]([group]) is None


@pytest.mark.usefixtures("cifar")
def test_memory_grows_with_the_depth_of_what_is_unrolled_and_not_of_what_is_solved(tmp_path):
    def memory(budget, adjoint):
        def change(config):
            # Plain iteration keeps no history.
            return replace(short(config), solver=Picard(max_evals=budget, tol=0.0), adjoint=adjoint)

        (config,) = tiny("a", "cifar10-mdeq-cpu", 3, change).configs().values()
        (path,) = complete({f"{budget}-{type(adjoint).__name__}": config}, tmp_path).values()
        assert inference_seconds(path, max_evals=3) > 0
        return step_memory(path)

    assert memory(8, OneStep()) == pytest.approx(memory(4, OneStep()), rel=0.02)
    assert memory(8, Unrolled()) > 1.5 * memory(4, Unrolled())


# Parts


def test_the_papers_numbers_stand_beside_those_of_cifar_only():
    papers = {one.name: one.paper for scale in HARDWARE for one in classifiers()(scale)}
    assert papers[MDEQ_JR]["score"] == "93.1 ± 0.3"
    assert papers[IMAGENET + MDEQ_JR]["max_evals"] == "14"
    assert papers[RESNET101]["num_parameters"] == "40M"
    assert papers[MULTI_TIER]["score"] == "89.4 ± 0.2"
    assert not papers[MONOTONE], "the paper's has several scales"
    assert not any(paper for name, paper in papers.items() if name.startswith(IMAGENETTE))
