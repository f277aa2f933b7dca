"""Table 2: image classifiers, their accuracy and evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from matplotlib.figure import Figure

from ..lab import recipes
from ..lab.report import RunGroup
from ..lab.report.curves import (
    evals_figure,
    jacobian_figure,
    residual_figure,
    score_by_evals_figure,
    spectral_radius_figure,
)
from .result import Verdict
from .variant import find
from .study import Summary, compare
from .table import Column, show
from .vision import (
    DATA,
    IMAGENET,
    IMAGENET_LARGE,
    IMAGENETTE,
    MDEQ,
    MDEQ_JR,
    MONOTONE,
    RESNET,
    STOPPED,
    classifiers,
)

BUDGETS = (1, 2, 3, 4, 6, 12)
"""At which every DEQ is evaluated on the test images."""


def draw(groups: Sequence[RunGroup]) -> Mapping[str, Figure | None]:
    """Return the figures by their names."""
    solved = [group for group in groups if not group.label.endswith(RESNET)]
    cifar = [group for group in solved if group.label in (MONOTONE, MDEQ, MDEQ_JR)]
    # On one plot there is one dataset.
    others = {
        prefix.split(":")[0].lower().replace(", ", "_"): [
            replace(group, label=group.label.removeprefix(prefix)) for group in solved if group.label.startswith(prefix)
        ]
        for prefix in (IMAGENETTE, IMAGENET, IMAGENET_LARGE)
    }
    return {
        "accuracy_by_evaluations": score_by_evals_figure(cifar),
        "forward_residual": residual_figure(cifar),
        "backward_residual": residual_figure(cifar, "backward"),
        "forward_evaluations": evals_figure(cifar),
        "jacobian_norm": jacobian_figure(cifar),
        "spectral_radius": spectral_radius_figure(cifar),
        **{f"{name}_accuracy_by_evaluations": score_by_evals_figure(some) for name, some in others.items() if some},
        **{f"{name}_forward_residual": residual_figure(some) for name, some in others.items() if some},
    }


def add_sizes(summary: list[dict[str, Any]]) -> None:
    """Give every entry the number of its parameters, and the seconds of training for 1,000 images."""
    for entry in summary:
        config = recipes.get(entry["recipe"]).build()
        with torch.device("meta"):
            model = config.model.build()
        entry["num_parameters"] = sum(parameter.numel() for parameter in model.parameters())
        # Steps of different recipes may have batches of different sizes.
        for name in ("", "_std"):
            entry[f"train_seconds{name}"] = 1000 / config.loop.batch_size * entry[f"seconds_per_step{name}"]


def judge(summary: Summary) -> list[Verdict]:
    """Hold the paper's claims against the numbers."""
    names = {row["entry"] for row in summary}
    verdicts = _judge_evaluations(summary, "")
    verdicts += [_judge_beside(summary, RESNET, "is within 1 point of the explicit network, or above", margin=0.01)]
    verdicts += [_judge_beside(summary, MONOTONE, "is at least as accurate as the monotone DEQ", margin=0.0)]
    for prefix in (IMAGENETTE, IMAGENET, IMAGENET_LARGE):
        if prefix + MDEQ in names:
            verdicts += _judge_evaluations(summary, prefix)
    return verdicts


def _judge_evaluations(summary: Summary, prefix: str) -> list[Verdict]:
    """Judge what a dataset, named by the prefix of its entries, says about evaluations and time."""
    plain, stopped, regularized = (find(summary, prefix + name) for name in (MDEQ, STOPPED, MDEQ_JR))
    generous, small = plain["max_evals"], stopped["max_evals"]
    ratio = plain["train_seconds"] / regularized["train_seconds"]
    seconds = [show(row, "train_seconds", digits=".1f") for row in (regularized, plain)]
    return [
        Verdict.of(
            f"{prefix}regularized at {small} evaluations is within 1 point of unregularized at {generous}, or above",
            regularized["score"] >= plain["score"] - 0.01,
            _accuracies(regularized, plain),
        ),
        Verdict.of(
            f"{prefix}unregularized, hard-stopped at {small} evaluations, loses at least 2 points",
            stopped["score"] <= plain["score"] - 0.02,
            _accuracies(stopped, plain),
        ),
        Verdict.of(
            f"{prefix}training is at least twice as fast an epoch",
            ratio >= 2,
            f"{seconds[0]} s against {seconds[1]} s for 1,000 images: {ratio:.2f} times",
        ),
    ]


def _judge_beside(summary: Summary, other: str, says: str, *, margin: float) -> Verdict:
    """Judge the regularized model beside one of another kind, if that was trained."""
    claim = f"regularized, MDEQ {says}"
    if all(row["entry"] != other for row in summary):
        return Verdict(claim=claim, outcome="not tested", evidence="there is no such run at this scale")
    regularized, beside = find(summary, MDEQ_JR), find(summary, other)
    return Verdict.of(claim, regularized["score"] >= beside["score"] - margin, _accuracies(regularized, beside))


def _accuracies(*rows: Mapping[str, Any]) -> str:
    return " against ".join(f"{show(row, 'score', factor=100, digits='.1f')}%" for row in rows)


_COLUMNS = (
    Column(title="thousand parameters", measure="num_parameters", factor=1e-3, digits=",.0f"),
    Column(title="test accuracy, %", measure="score", factor=100, digits=".1f"),
    Column(title="residual", measure="forward_residual", digits=".3f"),
    Column(title="evaluations in training", measure="train_evals", digits=".1f"),
    Column(title="backward residual in training", measure="backward_residual", digits=".3f"),
    Column(title="‖J‖²_F / d", measure="jacobian_norm", digits=".3f"),
    Column(title="spectral radius", measure="spectral_radius", digits=".2f"),
    Column(title="training, s for 1,000 images", measure="train_seconds", digits=".1f"),
)

TABLE2 = compare(
    name="table2",
    claim="a regularized MDEQ needs half the evaluations for the same accuracy, and trains twice as fast",
    data=DATA,
    duration={"cpu": "30 min", "paper": "weeks on 4 GPUs"},
    entries=classifiers(),
    figures=draw,
    judge=judge,
    columns=_COLUMNS,
    budgets=BUDGETS,
    extend=add_sizes,
)
