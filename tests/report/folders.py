"""Run folders written by hand, with numbers that are known."""

import json
import math
from dataclasses import replace

from steadeq.recipes import get
from steadeq.report import RunSummary
from steadeq.train import Run


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
    config = get(recipe).build()
    weight = config.jacobian.weight if weight is None else weight
    config = replace(
        config,
        recipe=name or recipe,
        jacobian=replace(config.jacobian, weight=weight),
        loop=replace(config.loop, seed=seed, num_steps=num_steps),
    )
    run = Run.create(path, config)
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
    run.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def append(run, **record):
    with run.metrics_path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def write_evaluation(run, scores, *, split="test", step=40, metric="accuracy"):
    rows = [
        {"max_evals": budget, metric: score, "forward_residual": 1 / budget, "forward_evals": float(budget)}
        for budget, score in scores.items()
    ]
    content = {"split": split, "step": step, "metric": metric, "higher_is_better": metric == "accuracy", "rows": rows}
    (run.path / "evaluation.json").write_text(json.dumps(content))


def analysis(num_samples=8):
    values = [0.5 + 0.1 * i for i in range(num_samples)]
    return {
        "step": 40,
        "num_samples": num_samples,
        "dim": 64,
        "tol": 1e-3,
        "max_evals": 20,
        "spectral_radius": {"values": values, "errors": [0.01] * num_samples, "rayleigh": [v / 2 for v in values]},
        "operator_norm": {"values": values, "errors": values},
        "jacobian_norm": [0.1 + 0.01 * i for i in range(num_samples)],
        "residual_curve": {
            "mean": [None, *(0.5**k for k in range(1, 15))],
            "low": [None, *(0.4**k for k in range(1, 15))],
            "high": [None, *(0.6**k for k in range(1, 15))],
        },
        "num_evals": [9 + i % 3 for i in range(num_samples)],
    }


def read(*runs):
    return [RunSummary.read(run) for run in runs]
