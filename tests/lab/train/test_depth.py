"""Depths that are drawn anew at each step."""

import json

from lab.train.runs import assert_same, crash, final_state, metrics_of, tiny_config, train

from steadeq import Picard, Unrolled
from steadeq.lab.cli.main import main
from steadeq.lab.config import RandomBudget
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


def test_a_depth_of_one_evaluation_still_trains():
    solver = Picard(max_evals=12, tol=0.0)
    drawn = {RandomBudget(depth=UniformDepth(low=1, high=3)).draw(solver, seed=0, step=s).max_evals for s in range(50)}
    assert drawn == {2, 3}
