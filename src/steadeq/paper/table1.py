"""Tables 1 and 4: language models, their perplexity, evaluations, time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from ..lab.report import RunGroup
from ..lab.report.curves import score_by_evals_figure, score_by_time_figure, score_figure
from .result import Verdict
from .variant import find
from .study import Summary, compare
from .table import Column, show
from .wikitext import DATA, POST, POST_JR, PRE, PRE_JR, SMALL_BUDGET, STOPPED, TRANSFORMER_XL, entries_of

BUDGETS = (2, 4, 6, 8, 12, 30)
"""At which every DEQ is evaluated on the test text."""
UNSTABLE = 1e-2
"""A residual in training above ten times the tolerance."""


def draw(groups: Sequence[RunGroup]) -> Mapping[str, Figure | None]:
    """Return the figures by their names."""
    solved = [group for group in groups if group.label != TRANSFORMER_XL]
    return {
        "perplexity": score_figure(groups),
        "perplexity_by_evaluations": score_by_evals_figure(solved),
        "perplexity_by_time": score_by_time_figure(groups),
    }


def add_times(summary: list[dict[str, Any]]) -> None:
    """Give every entry the time of its steps relative to those of Transformer-XL."""
    reference = find(summary, TRANSFORMER_XL)["seconds_per_step"]
    for entry in summary:
        entry["time"] = entry["seconds_per_step"] / reference
        entry["time_std"] = entry["seconds_per_step_std"] / reference


def judge(summary: Summary) -> list[Verdict]:
    """Hold the paper's claims against the numbers."""
    post, stopped, post_jr = (find(summary, name) for name in (POST, STOPPED, POST_JR))
    pre, pre_jr = find(summary, PRE), find(summary, PRE_JR)

    def perplexities(*rows: Mapping[str, Any]) -> str:
        return " against ".join(f"{show(row, 'score', digits='.1f')} at {row['max_evals']}" for row in rows)

    ratio = post["seconds_per_step"] / post_jr["seconds_per_step"]
    verdicts = [
        Verdict.of(
            "without regularization pre-LN becomes unstable (diverges, or its residual in training ends above "
            f"{UNSTABLE:g})",
            _is_unstable(pre),
            f"residual {show(pre, 'train_residual', digits='.2g')} after {show(pre, 'train_evals', digits='.1f')} "
            "evaluations",
        ),
        Verdict.of(
            "with regularization pre-LN trains, with fewer evaluations",
            not _is_unstable(pre_jr) and pre_jr["train_evals"] < pre["train_evals"],
            f"residual {show(pre_jr, 'train_residual', digits='.2g')} after "
            f"{show(pre_jr, 'train_evals', digits='.1f')} evaluations; perplexity {perplexities(pre_jr, pre)}",
        ),
        Verdict.of(
            "regularized post-LN at the small budget is within 5% of unregularized at the generous one",
            post_jr["score"] <= 1.05 * post["score"],
            perplexities(post_jr, post),
        ),
        Verdict.of(
            "hard-stopping the unregularized model costs at least 5% of perplexity",
            stopped["score"] >= 1.05 * post["score"],
            perplexities(stopped, post),
        ),
        Verdict.of(
            "a training step of the regularized model takes about half the time (1.8 times as fast, or more)",
            ratio >= 1.8,
            f"{ratio:.2f} times as fast; relative to Transformer-XL {show(post_jr, 'time', digits='.2f')} against "
            f"{show(post, 'time', digits='.2f')}",
        ),
    ]
    if any(row["entry"] == SMALL_BUDGET for row in summary):
        small = find(summary, SMALL_BUDGET)
        verdicts.append(
            Verdict.of(
                "training the unregularized model at the small budget fails, or costs at least 5% of perplexity",
                small["score"] is None or small["diverged"] > 0 or small["score"] >= 1.05 * post["score"],
                f"{perplexities(small, post)}; residual {show(small, 'train_residual', digits='.2g')}",
            )
        )
    return verdicts


def _is_unstable(entry: Mapping[str, Any]) -> bool:
    return entry["diverged"] > 0 or entry["train_residual"] > UNSTABLE


_SHORT = (
    Column(title="perplexity", measure="score", digits=".1f"),
    Column(title="time of a step", measure="time", digits=".2f"),
)
_LONG = (
    *_SHORT,
    Column(title="evaluations in training", measure="train_evals", digits=".1f"),
    Column(title="products in training", measure="backward_evals", digits=".1f"),
    Column(title="residual in training", measure="train_residual", digits=".1g"),
    Column(title="backward residual", measure="backward_residual", digits=".1g"),
    Column(title="spectral radius", measure="spectral_radius", digits=".2g"),
    Column(title="peak memory, MB", measure="memory_mb", digits=".0f"),
)

TABLE1 = compare(
    name="table1",
    claim="regularized DEQ-Transformers are as good with 12 evaluations as with 30, and pre-LN ones train at all",
    data=DATA,
    duration={"cpu": "45 min", "paper": "weeks on 4 GPUs"},
    entries=entries_of(TRANSFORMER_XL, PRE, POST, STOPPED, PRE_JR, POST_JR),
    figures=draw,
    judge=judge,
    columns=_SHORT,
    budgets=BUDGETS,
    extend=add_times,
)
TABLE4 = compare(
    name="table4",
    claim="the same with evaluations and memory in training, and a model that is trained with few evaluations only",
    data=DATA,
    duration={"cpu": "50 min", "paper": "weeks on 4 GPUs"},
    entries=entries_of(TRANSFORMER_XL, PRE, POST, STOPPED, SMALL_BUDGET, PRE_JR, POST_JR),
    figures=draw,
    judge=judge,
    columns=_LONG,
    budgets=BUDGETS,
    extend=add_times,
)
