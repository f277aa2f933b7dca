"""Rows of a table, or curves of a figure: which runs each stands for, and what is measured of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

from .. import recipes
from ..errors import RunError
from ..train import Process, Run, TrainConfig
from .completion import complete_evaluation
from .results import spread, write_rows

SEEDS = (0, 1, 2)
MEASURES = (
    "score",
    "forward_residual",
    "seconds_per_sample",
    "early_residual",
    "early_evals",
    "train_residual",
    "train_evals",
    "backward_residual",
    "backward_evals",
    "early_jacobian_norm",
    "jacobian_norm",
    "spectral_radius",
    "spectral_radius_error",
    "spectral_radius_unknown",
    "spectral_radius_rayleigh",
    "seconds_per_step",
    "memory_mb",
    "diverged",
)
"""What `collect` returns of a run, besides its entry and seed; what it does not have is None."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Runs of one config with several seeds, evaluated at one budget."""

    name: str
    """As in the table."""
    recipe: str
    max_evals: int = 0
    """At which it is evaluated on test data; 0 for a network that solves nothing."""
    seeds: tuple[int, ...] = SEEDS
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the recipe, by `section.field`."""
    paper: Mapping[str, str] = field(default_factory=dict)
    """What the paper reports, by column."""

    def configs(self) -> dict[str, TrainConfig]:
        """Return the run of each seed, by the name of its folder, which other entries may share."""
        config = recipes.get(self.recipe).build()
        label = self.recipe
        for name, value in self.changes.items():
            section, option = name.split(".")
            config = replace(config, **{section: replace(getattr(config, section), **{option: value})})
            label += f"-{option}-{value}"
        return {f"{label}-seed{seed}": replace(config, loop=replace(config.loop, seed=seed)) for seed in self.seeds}


def plan(entries: Sequence[Entry]) -> dict[str, TrainConfig]:
    """Return all runs that entries need, by the names of their folders."""
    return {name: config for entry in entries for name, config in entry.configs().items()}


def collect(
    entries: Sequence[Entry], runs: Mapping[str, Run], folder: Path, *, budgets: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """Measure what was not measured yet, write `runs.csv` and `budgets.csv`, and return a row for each entry and seed.

    Args:
        entries: Which runs, and at which budgets.
        runs: Finished runs, by name.
        folder: Where the files go.
        budgets: Further budgets at which every equilibrium model is evaluated.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted: dict[str, set[int]] = {}
    for entry in entries:
        for name in entry.configs():
            wanted.setdefault(name, set()).update([entry.max_evals, *(budgets if entry.max_evals else ())])
    found = {name: _evaluate(runs[name], sorted(values)) for name, values in wanted.items()}
    rows = [
        {"entry": entry.name, "seed": config.loop.seed, **measure(runs[name], found[name].get(entry.max_evals))}
        for entry in entries
        for name, config in entry.configs().items()
    ]
    write_rows(folder / "runs.csv", rows)
    by_budget = [
        {"run": name, "max_evals": budget, **{k: v for k, v in row.items() if k not in ("max_evals", "seconds")}}
        for name, evaluated in found.items()
        for budget, row in evaluated.items()
        if budget
    ]
    if by_budget:
        write_rows(folder / "budgets.csv", by_budget)
    return rows


def measure(run: Run, evaluated: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the `MEASURES` of a run.

    Args:
        run: A finished run, or one that diverged.
        evaluated: What it came to on test data; None if it diverged before its first checkpoint.
    """
    metrics = run.metrics()
    training = [record for record in metrics if record["event"] == "train"]
    checked = [record for record in metrics if record["event"] == "evaluation"]
    config, clock = run.config(), run.clock()
    # What training began with is its first tenth with solves, and what it came to the last.
    solved = [record for record in training if record["step"] > config.warmup.num_steps]
    size = max(len(solved) // 10, 1)
    early, late = solved[:size], solved[-size:]

    def average(records: Sequence[Mapping[str, Any]], name: str) -> float | None:
        values = [record[name] for record in records if record.get(name) is not None]
        return mean(values) if values else None

    def checked_at(place: int, name: str) -> float | None:
        return checked[place].get(name) if checked else None

    score = None if evaluated is None else evaluated[config.data.task.metric]
    return {
        "score": score,
        "forward_residual": None if evaluated is None else evaluated.get("forward_residual"),
        "seconds_per_sample": None if evaluated is None else evaluated["seconds_per_sample"],
        "early_residual": average(early, "forward_residual"),
        "early_evals": average(early, "forward_evals"),
        "train_residual": average(late, "forward_residual"),
        "train_evals": average(late, "forward_evals"),
        "backward_residual": average(late, "backward_residual"),
        "backward_evals": average(late, "backward_evals"),
        "early_jacobian_norm": checked_at(0, "jacobian_norm"),
        "jacobian_norm": checked_at(-1, "jacobian_norm"),
        "spectral_radius": checked_at(-1, "spectral_radius"),
        "spectral_radius_error": checked_at(-1, "spectral_radius_error"),
        "spectral_radius_unknown": checked_at(-1, "spectral_radius_unknown"),
        "spectral_radius_rayleigh": checked_at(-1, "spectral_radius_rayleigh"),
        "seconds_per_step": mean(record.get(clock, record["seconds"]) for record in training) if training else None,
        "memory_mb": training[-1]["memory_mb"] if training else None,
        "diverged": float(run.has_diverged()),
    }


def summarize(entries: Sequence[Entry], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return mean and standard deviation over seeds, for each entry."""
    return [
        {
            "entry": entry.name,
            "recipe": entry.recipe,
            "max_evals": entry.max_evals,
            "paper": dict(entry.paper),
            **spread([row for row in rows if row["entry"] == entry.name], MEASURES),
        }
        for entry in entries
    ]


def find(summary: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """Return an entry of a summary by its name."""
    return next(row for row in summary if row["entry"] == name)


def _evaluate(run: Run, budgets: Sequence[int]) -> dict[int, dict[str, Any]]:
    if not run.checkpoints().steps():
        if run.has_diverged():
            return {}
        raise RunError(f"{run.path} has no checkpoint.")
    result = complete_evaluation(run, process=Process(), budgets=tuple(budgets))
    return {row["max_evals"]: row for row in result["rows"]}
