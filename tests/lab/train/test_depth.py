"""Depths that are drawn anew at each step."""

import json

from lab.train.runs import assert_same, change, crash, final_state, metrics_of, tiny_config, train

from steadeq import Picard, Unrolled
from steadeq.lab.cli.main import main
from steadeq.lab.config import RandomBudget
from steadeq.lab.run.record import RunRecord
from steadeq.solvers import LogNormalDepth, UniformDepth

DEPTH = LogNormalDepth(mean=5, maximum=9)
CONFIG = tiny_config(
    solver=Picard(max_evals=5, tol=0.0),
    adjoint=Unrolled(last=2),
    budget=RandomBudget(depth=DEPTH),
    loop={"num_steps": 12, "batch_size": 16, "seed": 3},
)


def test_each_step_has_the_depth_that_was_drawn_also_after_a_crash(tmp_path):
    train(CONFIG, tmp_path / "whole")
    drawn = [line["forward_evals"] for line in metrics_of(tmp_path / "whole") if line["event"] == "train"]
    expected = [DEPTH.draw(step, seed=3) for step in range(12)]
    # Samples whose residual is exactly zero stop before a large budget is spent.
    assert all(a == b or (b > 5 and b - 1 < a < b) for a, b in zip(drawn, expected, strict=True))
    assert len(set(expected)) > 3
    crash(CONFIG, tmp_path / "stopped", at=6)
    train(CONFIG, tmp_path / "stopped")
    assert_same(final_state(tmp_path / "stopped"), final_state(tmp_path / "whole"))


def test_a_depth_is_an_option(tmp_path):
    options = "--solver Picard --solver.tol 0 --adjoint Unrolled --adjoint.last 2 --budget.depth UniformDepth"
    options += " --budget.depth.low 2 --budget.depth.high 4 --loop.num-steps 4 --log.spectrum-samples 0"
    assert main(["train", "synthetic-jr", "--out", str(tmp_path / "run"), *options.split()]) == 0
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["budget"]["depth"]
    assert stored == {"class": "steadeq.solvers.depth:UniformDepth", "low": 2, "high": 4}
    assert {line["forward_evals"] for line in metrics_of(tmp_path / "run") if line["event"] == "train"} <= {2, 3, 4}


def test_a_loop_is_recorded_evaluated_diagnosed_and_reported_as_an_equilibrium_is(tmp_path, capfd):
    log = {"spectrum_samples": 4, "spectrum_products": 8}
    train(tiny_config(log=log, loop={"seed": 3}), tmp_path / "equilibrium")
    train(change(CONFIG, log=log), tmp_path / "loop")
    lines = {name: metrics_of(tmp_path / name) for name in ("equilibrium", "loop")}
    of_solves = {"backward_residual", "backward_evals", "converged"}
    for one, other in zip(lines["loop"], lines["equilibrium"], strict=True):
        # There is no backward solve to record, and no tolerance to reach.
        assert one.keys() | of_solves == other.keys() | of_solves
    page = tmp_path / "report.html"
    for command in ("evaluate loop", "diagnose loop --num-samples 3", f"report loop equilibrium --out {page}"):
        name, *options = command.split()
        paths = [str(tmp_path / option) if option in lines else option for option in options]
        assert main([name, *paths]) == 0
    assert "Does iterating loop settle, and does it help?" in page.read_text(encoding="utf-8")
    # The mean of the depths that are drawn, but for the evaluation that tells the residual.
    assert RunRecord.read(tmp_path / "loop").diagnosis.found.training_depth == 4


def test_a_depth_of_one_evaluation_still_trains():
    solver = Picard(max_evals=12, tol=0.0)
    drawn = {RandomBudget(depth=UniformDepth(low=1, high=3)).draw(solver, seed=0, step=s).max_evals for s in range(50)}
    assert drawn == {2, 3}
