"""The study of iteration: equal parameters and effort, what truncates gradients, and claims on made-up runs."""

import json
from dataclasses import replace
from statistics import mean

import numpy as np
import pytest
import torch
from paper.made_up import MEASURES, complete, row

from steadeq import Loop, Unrolled
from steadeq.lab.cli.main import main
from steadeq.lab.run.archive import archive_run
from steadeq.lab.run.loading import build_model
from steadeq.models import AbstractEquilibriumModel
from steadeq.paper import iteration, iteration_rows
from steadeq.paper.comparison import summarize
from steadeq.paper.iteration import ITERATION, rank_correlation
from steadeq.paper.iteration_rows import FACTORS, PREFIX_SUMS, TASKS
from steadeq.paper.variant import Summary

ROWS = {variant.name: (task, next(iter(variant.configs().values()))) for task in TASKS for variant in task.variants()}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_all_networks_of_a_task_have_as_many_parameters(task):
    sizes = []
    for variant in task.variants():
        (config, *_) = variant.configs().values()
        with torch.device("meta"):
            sizes.append(sum(parameter.numel() for parameter in config.model.build().parameters()))
    assert max(sizes) <= 1.1 * min(sizes)
    assert min(sizes) >= 10_000
    assert max(sizes) <= 300_000


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_all_rows_of_a_task_are_trained_with_the_same_effort(task):
    configs = [config for found, config in ROWS.values() if found is task]
    for config in configs:
        effort = (config.data, config.optimizer, config.loop.num_steps, config.loop.batch_size)
        assert effort == (configs[0].data, configs[0].optimizer, configs[0].loop.num_steps, configs[0].loop.batch_size)


@pytest.mark.parametrize("name", [name for name in ROWS if name.endswith(iteration_rows.NONE)])
def test_loops_spend_as_many_evaluations_on_a_step(name):
    task, config = ROWS[name]
    network = name.partition(": ")[2].removesuffix(f", {iteration_rows.NONE}")
    drawn = [config.budget.draw(config.solver, seed=0, step=step).max_evals for step in range(4_000)]
    spent = config.loop.num_answers * mean(drawn)
    assert spent == pytest.approx(task.depth_of(network), rel=0.05)
    assert config.evaluation_solver.max_evals == task.depth_of(network)


@pytest.mark.parametrize("name", [name for name in ROWS if name.endswith(iteration_rows.NONE)])
def test_networks_can_be_iterated_for_longer_than_trained(name):
    _, config = ROWS[name]
    model = build_model(config).eval()
    assert isinstance(model, AbstractEquilibriumModel)
    x = config.data.draw(2, torch.Generator().manual_seed(0)).inputs
    depth = config.evaluation_solver.max_evals
    with torch.no_grad():
        output, eq = model.solve(x, solver=Loop(num_steps=4 * depth), states_at=(depth, 4 * depth))
    torch.testing.assert_close(model.decode(eq.states[-1]), output)
    assert not torch.equal(model.decode(eq.states[0]), output)


@pytest.mark.parametrize(
    "name",
    [
        PREFIX_SUMS.named(iteration_rows.CORE),
        iteration_rows.ADDITION.named(iteration_rows.LOOPED_TRANSFORMER),
        iteration_rows.SUDOKU.named(iteration_rows.NORMALIZED_TRANSFORMER),
    ],
)
def test_gradients_of_random_depths_go_through_the_last_third(name):
    task, config = ROWS[name]
    model = build_model(config)
    x = config.data.draw(2, torch.Generator().manual_seed(0)).inputs
    output, _ = model.solve(x, solver=Loop(num_steps=10), adjoint=config.adjoint)
    found = torch.autograd.grad(output.square().sum(), list(model.parameters()))
    z, inputs = model.encode(x)
    for step in range(10):
        if step <= 10 - task.depth // 3:
            z = z.detach()
        z = model.layer.cell(z, *inputs)
    expected = torch.autograd.grad(model.decode(z).square().sum(), list(model.parameters()))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_other_loops_backpropagate_through_all_steps_of_an_answer():
    for network in (iteration_rows.TIED, iteration_rows.LOOPED, iteration_rows.TWO_STATES):
        assert ROWS[PREFIX_SUMS.named(network)][1].adjoint == Unrolled()


def test_a_study_that_is_not_finished_has_the_first_seed_of_all_rows_first():
    seeds = [config.loop.seed for config in ITERATION.runs("cpu").values()]
    assert seeds == sorted(seeds)
    names = [name for task in TASKS for variant in task.variants() for name in variant.configs()]
    assert sorted(names) == sorted(set(names)) == sorted(ITERATION.runs("cpu"))


# Measures and claims


def beyond(curve, *, longer=(0.0, 0.0, 0.0), settled=1.0, radius=0.9):
    """Return what is measured of a made-up run of the looped network on prefix sums."""
    sizes = list(PREFIX_SUMS.sizes)
    return {
        "num_parameters": 10_000,
        "budgets": [round(12 * factor) for factor in FACTORS],
        "accuracy": {
            str(size): values for size, values in zip(sizes, (curve, *([v] * 9 for v in longer)), strict=True)
        },
        "settled": settled,
        "spectral_radius": radius,
    }


class _Record:
    config = ROWS[PREFIX_SUMS.named(iteration_rows.LOOPED)][1]
    validations = ()


@pytest.mark.parametrize(
    ("curve", "kept"),
    [
        ([0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 1.0),
        ([0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.99], 1.0),
        ([0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.98], 0.0),
        ([0.0, 0.5, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0], 0.0),
        ([0.5] * 9, 0.0),
    ],
)
def test_accuracy_is_kept_if_it_stays_within_a_point_of_a_best_that_is_learned(curve, kept):
    found = iteration.measures(beyond(curve), _Record)
    assert found["kept"] == kept
    assert found["score"] == curve[2]
    assert found["accuracy_at_64"] == curve[-1]
    assert found["learned"] == (max(curve) >= 0.9)


def test_how_far_a_network_reaches():
    found = iteration.measures(beyond([1.0] * 9, longer=(1.0, 0.95, 0.2)), _Record)
    assert (found["reach"], found["size_4"], found["accuracy_far"]) == (16.0, 1.0, 0.95)
    assert iteration.measures(beyond([0.2] * 9), _Record)["reach"] == 0


def test_runs_that_learned_are_counted_by_their_spectral_radius():
    keeps, falls, fails = [1.0] * 9, [1.0] * 8 + [0.2], [0.2] * 9
    variant = next(v for v in PREFIX_SUMS.variants() if v.name == PREFIX_SUMS.named(iteration_rows.LOOPED))
    runs = [beyond(keeps), beyond(falls), beyond(falls, radius=1.0), beyond(falls, radius=None), beyond(fails)]
    row = summarize(variant, [iteration.measures(run, _Record) for run in runs])
    table = ITERATION.table(Summary({variant.name: row}.items()))
    assert table.endswith("| prefix sums | 1 of 2 | 0 of 2 |\n| prefix sums: looped | 1 of 2 | 0 of 2 |")


def made_up(changed):
    """Return a summary in which every row has learned, keeps its accuracy and solves all sizes, but for changes."""
    values = {"learned": 1.0, "kept": 1.0, "best": 1.0, "size_4": 1.0, "accuracy_far": 1.0, "settled": 1.0}
    summary = Summary()
    for index, variant in enumerate(PREFIX_SUMS.variants()):
        found = {**values, "spectral_radius": 0.5 + 0.001 * index, **changed(variant.name)}
        summary[variant.name] = row(variant.name, recipe=variant.recipe, unknown=MEASURES, **found)
    return summary


def outcome(id, summary):
    claim = ITERATION.claim(f"prefix-sums-{id}")
    return next(verdict.outcome for verdict in ITERATION.judge(summary) if verdict.claim == claim.text)


def test_claims_follow_from_the_runs():
    plain = [PREFIX_SUMS.named(name) for name, found in PREFIX_SUMS.networks.items() if len(found) > 1]
    explicit = PREFIX_SUMS.named(iteration_rows.EXPLICIT)

    def as_claimed(name):
        if name == explicit:
            return {"size_4": 0.0, "accuracy_far": 0.0}
        return {"kept": 0.3, "accuracy_far": 0.1, "settled": 0.2, "spectral_radius": 1.1} if name in plain else {}

    found = made_up(as_claimed)
    for id in ("falls-apart", "kept-jacobian-vjp", "kept-outer-norm", "costs-nothing", "larger", "settled-predicts"):
        assert outcome(id, found) == "holds", id
    assert outcome("radius-predicts", found) == "holds"
    # Where nothing was learned, nothing can be kept or lost.
    found = made_up(lambda name: {"learned": 0.0, "kept": 0.0, "best": 0.0})
    for id in ("falls-apart", "kept-outer-norm", "costs-nothing"):
        assert outcome(id, found) == "not tested"

    found = made_up(lambda name: {"kept": 0.0} if "outer norm" in name else {})
    assert outcome("falls-apart", found) == outcome("kept-outer-norm", found) == "does not hold"
    assert outcome("kept-residual", found) == "holds"
    assert outcome("larger", found) == "does not hold", "the explicit network solves them too"
    assert outcome("settled-predicts", found) == "not tested", "all are equal"
    found = made_up(lambda name: {"best": 0.9} if name.endswith(iteration_rows.DIFFERENCE) else {})
    assert outcome("costs-nothing", found) == "does not hold"


def test_rank_correlations_share_ranks():
    assert rank_correlation([(1, 1), (2, 2), (3, 3)]) == 1
    assert rank_correlation([(1, 3), (2, 2), (3, 1)]) == -1
    # Of the ranks 1.5, 1.5, 3, 4 and 2, 3.5, 1, 3.5; with ties, the formula of squared differences would not do.
    pairs = [(5, 2), (5, 9), (6, 1), (8, 9)]
    expected = np.corrcoef([1.5, 1.5, 3, 4], [2, 3.5, 1, 3.5])[0, 1]
    assert rank_correlation(pairs) == pytest.approx(expected)


# Whole runs


@pytest.fixture
def small():
    """A study of four rows, with runs of two steps."""
    none = (iteration_rows.NONE,)
    bits = {iteration_rows.EXPLICIT: none, iteration_rows.LOOPED: none}
    digits = {iteration_rows.TRANSFORMER: none, iteration_rows.LOOPED_TRANSFORMER: none}
    return ITERATION.of(
        "iteration",
        [
            replace(PREFIX_SUMS, networks=bits, sizes={16: 4, 64: 2}, seeds=(0, 1), num_steps=2),
            replace(iteration_rows.ADDITION, networks=digits, sizes={6: 4, 12: 2}, seeds=(0,), num_steps=2),
        ],
    )


def test_archived_runs_make_the_same_result(small, tmp_path):
    runs = complete(small.runs("cpu"), tmp_path / "runs")
    assert not any(small.can_use(name, path, "cpu") for name, path in runs.items())
    verdicts = small.produce(runs, tmp_path / "out", "cpu")
    for name, path in runs.items():
        archive_run(path, tmp_path / "kept" / name)
        assert small.can_use(name, tmp_path / "kept" / name, "cpu")
    kept = {name: tmp_path / "kept" / name for name in runs}
    assert small.produce(kept, tmp_path / "again", "cpu") == verdicts
    for name in ("summary.json", "summary.csv", "runs.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    rows, lines = small.read(tmp_path / "out")[0], (tmp_path / "out" / "runs.csv").read_text().splitlines()
    assert [row.num_seeds for row in rows.values()] == [2, 2, 1, 1]
    assert len(lines) == 1 + 6
    assert "prefix sums" in small.table(rows)


def test_a_part_of_the_runs_makes_a_part_of_the_study(small, tmp_path):
    (first, *_), configs = small.runs("cpu"), small.runs("cpu")
    runs = complete({first: configs[first]}, tmp_path / "runs")
    small.produce(runs, tmp_path / "out", "cpu")
    content = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert sum(map(len, content["missing"].values())) == len(configs) - 1


@pytest.mark.slow
def test_the_quick_part_runs_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "iteration", "--quick"]) == 0
    summary, verdicts = ITERATION.quick().read(tmp_path / "results" / "iteration-quick")
    assert [row.num_seeds for row in summary.values()] == [1, 1]
    assert "holds" in {verdict.outcome for verdict in verdicts}
    assert (tmp_path / "results" / "iteration-quick" / "accuracy_prefix_sums.png").is_file()
