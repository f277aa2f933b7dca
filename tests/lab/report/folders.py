"""Run folders written by hand, with numbers that are known."""

import json
import math
from dataclasses import replace

import torch

from steadeq import diagnose
from steadeq.lab import recipes
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.run.record import Evaluation, EvaluationRow, RunDiagnosis, RunRecord


def write_run(
    path,
    *,
    recipe="digits",
    seed=0,
    weight=None,
    num_steps=40,
    stop_at=None,
    accuracy=0.9,
    seconds=0.1,
    residual=0.01,
    name=None,
):
    """Make a folder like one that training leaves behind, with an evaluation every ten steps."""
    config = recipes.get(recipe).build()
    weight = config.regularizer.weight if weight is None else weight
    config = replace(
        config,
        recipe=name or recipe,
        regularizer=replace(config.regularizer, weight=weight),
        loop=replace(config.loop, seed=seed, num_steps=num_steps),
    )
    run = RunFolder.create(path, config)
    run.record_environment(device="cpu", world_size=1)
    metric = config.data.task.metric
    lines = []
    for step in range(1, (num_steps if stop_at is None else stop_at) + 1):
        train = {"event": "train", "step": step, "epoch": step / 10, "loss": 1 / step, "seconds": seconds}
        train |= {"forward_residual": residual * (1 + math.sin(step) / 2), "forward_evals": 6.0 + seed}
        train |= {"backward_residual": residual / 2, "backward_evals": 5.0, "memory_mb": 300.0 + step, metric: accuracy}
        lines.append(train)
        if step % 10 == 0:
            evaluation = {"event": "evaluation", "step": step, metric: accuracy, "forward_residual": residual}
            evaluation |= {"forward_evals": 7.0, "jacobian_norm": 0.2, "spectral_radius": 0.8, "epoch": step / 10}
            lines.append(evaluation)
    if stop_at is None:
        lines.append({"event": "finished", "step": num_steps})
    run.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def append(run, **record):
    with run.metrics_path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def write_evaluation(run, scores, *, split="test", step=40, metric="accuracy"):
    rows = tuple(
        EvaluationRow(max_evals=budget, score=score, forward_residual=1 / budget, forward_evals=float(budget))
        for budget, score in scores.items()
    )
    evaluation = Evaluation(
        split=split, step=step, metric=metric, higher_is_better=metric == "accuracy", unit="sample", rows=rows
    )
    (run.path / "evaluation.json").write_text(evaluation.to_json())


def iteration(num_samples=8):
    """Return a diagnosis of linear maps, of which the first one expands and the others contract."""
    factors = torch.linspace(1.1, 0.5, num_samples)[:, None]
    z0 = torch.ones(num_samples, 2)
    found = diagnose(
        lambda z, factors: factors * z,
        z0,
        factors,
        max_evals=128,
        training_depth=8,
        metric=lambda z: (z[:, 0] < 2).double(),
        metric_name="accuracy",
        generator=torch.Generator().manual_seed(0),
    )
    return found.to_dict()


def diagnosis(num_samples=8, **changes):
    values = tuple(0.5 + 0.1 * i for i in range(num_samples))
    fields = {
        "step": 40,
        "split": "test",
        "num_samples": num_samples,
        "dim": 64,
        "tol": 1e-3,
        "max_evals": 20,
        "converged": 1.0,
        "spectral_radius": values,
        "spectral_radius_errors": (0.01,) * num_samples,
        "spectral_radius_rayleigh": tuple(v / 2 for v in values),
        "operator_norm": values,
        "operator_norm_errors": values,
        "jacobian_norm": tuple(0.1 + 0.01 * i for i in range(num_samples)),
        "residual_mean": (None, *(0.5**k for k in range(1, 15))),
        "residual_low": (None, *(0.4**k for k in range(1, 15))),
        "residual_high": (None, *(0.6**k for k in range(1, 15))),
        "num_evals": tuple(9 + i % 3 for i in range(num_samples)),
        "iteration": iteration(num_samples),
    }
    return RunDiagnosis(**(fields | changes))


def read(*runs):
    return [RunRecord.read(run.path) for run in runs]
