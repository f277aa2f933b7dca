"""Figure 6: error, inference time and training memory beside explicit networks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..lab.recipes.registry import Scale
from ..lab.report.bars import Bars, bars_figure
from ..lab.train import Run, TrainConfig
from .result import Artefact, Verdict
from .drawing import save_figures, write_summary
from .variant import collect, find, plan, summarize
from .memory_profile import inference_seconds, step_memory
from .study import Summary
from .table import Column, show, table
from .vision import MDEQ, MDEQ_JR, MONOTONE, RESNET, RESNET101, classifiers

entries = classifiers(RESNET, RESNET101, MONOTONE, MDEQ, MDEQ_JR)


def configs(scale: Scale) -> Mapping[str, TrainConfig]:
    """Return the runs on CIFAR-10, all of which Table 2 has too."""
    return plan(entries(scale))


def produce(runs: Mapping[str, Run], folder: Path, scale: Scale) -> list[Verdict]:
    """Measure what models cost, draw the bars, and judge the claims.

    Args:
        runs: Finished runs, by name.
        folder: Where figures and numbers go.
        scale: Of the runs.
    """
    chosen = entries(scale)
    summary = summarize(chosen, collect(chosen, runs, folder))
    for entry, row in zip(chosen, summary, strict=True):
        # One seed will do: they differ in their weights only.
        run = runs[next(iter(entry.configs()))]
        row["error"], row["error_std"] = 1 - row["score"], row["score_std"]
        row["inference_seconds"] = inference_seconds(run, max_evals=entry.max_evals)
        row["step_mb"] = step_memory(run)
    save_figures({"bars": draw(summary)}, folder)
    verdicts = judge(summary)
    write_summary(folder, verdicts, entries=summary)
    return verdicts


def draw(summary: Summary) -> Figure:
    """Return the bars; lower is better in all of them."""
    labels = [f"{row['entry']} ({row['max_evals']} NFE)" if row["max_evals"] else row["entry"] for row in summary]

    def bars(column: Column, errors: list[float] | None = None) -> Bars:
        return Bars(
            title=column.title,
            values=[column.factor * row[column.measure] for row in summary],
            texts=[show(row, column.measure, factor=column.factor, digits=column.digits) for row in summary],
            errors=errors,
        )

    error, seconds, memory = _COLUMNS
    return bars_figure(labels, [bars(error, [100 * row["error_std"] for row in summary]), bars(seconds), bars(memory)])


def judge(summary: Summary) -> list[Verdict]:
    """Hold the paper's claims against the numbers."""
    explicit, plain, regularized = (find(summary, name) for name in (RESNET, MDEQ, MDEQ_JR))

    def ratio(name: str, row: Mapping[str, Any], other: Mapping[str, Any]) -> float:
        return row[name] / other[name]

    def listed(column: Column, *rows: Mapping[str, Any]) -> str:
        shown = (show(row, column.measure, factor=column.factor, digits=column.digits) for row in rows)
        return f"{column.title}: {' against '.join(shown)}"

    error, seconds, memory = _COLUMNS
    return [
        Verdict.of(
            "the regularized MDEQ is as accurate as the explicit network (error within 2 points, or below)",
            regularized["error"] <= explicit["error"] + 0.02,
            listed(error, regularized, explicit),
        ),
        Verdict.of(
            "its inference takes at most 0.6 of the time of the unregularized one",
            ratio("inference_seconds", regularized, plain) <= 0.6,
            listed(seconds, regularized, plain),
        ),
        Verdict.of(
            "its inference is about as fast as that of the explicit network (at most 1.5 times as long)",
            ratio("inference_seconds", regularized, explicit) <= 1.5,
            listed(seconds, regularized, explicit),
        ),
        Verdict.of(
            "it trains in at most 0.6 of the memory of the explicit network",
            ratio("step_mb", regularized, explicit) <= 0.6,
            listed(memory, regularized, explicit),
        ),
        Verdict.of(
            "the penalty adds about 30% to the memory of the unregularized one (at most 50%)",
            ratio("step_mb", regularized, plain) <= 1.5,
            listed(memory, regularized, plain),
        ),
    ]


_COLUMNS = (
    Column(title="test error, %", measure="error", factor=100, digits=".1f"),
    Column(title="inference, ms per image", measure="inference_seconds", factor=1e3, digits=".2f"),
    Column(title="training step, MB", measure="step_mb", digits=".0f"),
)

FIGURE6 = Artefact(
    name="fig6",
    claim="a regularized MDEQ is competitive with explicit networks in accuracy, time and memory",
    data={"cpu": "cifar10", "paper": "cifar10"},
    duration={"cpu": "25 min", "paper": "days on 4 GPUs"},
    runs=configs,
    produce=produce,
    tabulate=partial(table, columns=_COLUMNS),
)
