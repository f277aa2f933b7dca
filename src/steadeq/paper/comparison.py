"""Results that compare variants: all of them evaluate, draw, judge and write in the same order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..lab.config import TrainConfig
from ..lab.recipes.registry import Scale
from ..lab.report import RunGroup, curves, save_png
from ..lab.runs import RunRecord
from .result import HARDWARE, PaperResult, write_csv
from .tables import Column, variant_table
from .variant import Measures, Summary, Variant, VariantSummary, evaluate, measure, plan


def _score_by_evals(groups: Sequence[RunGroup]) -> Figure | None:
    """Show all groups but explicit networks, which have a single row, of no evaluations."""
    solved = [g for g in groups if g.first.evaluation and any(row.max_evals for row in g.first.evaluation.rows)]
    return curves.score_by_evals_figure(solved) if solved else None


FIGURES: Mapping[str, Callable[[Sequence[RunGroup]], Figure | None]] = {
    "forward_residual": curves.residual_figure,
    "backward_residual": partial(curves.residual_figure, direction="backward"),
    "forward_evaluations": curves.evals_figure,
    "backward_evaluations": partial(curves.evals_figure, direction="backward"),
    "jacobian_norm": curves.jacobian_figure,
    "residual_by_jacobian_norm": curves.residual_by_jacobian_figure,
    "spectral_radius": curves.spectral_radius_figure,
    "spectral_radius_by_two_methods": curves.power_method_figure,
    "accuracy_by_evaluations": _score_by_evals,
    "perplexity": curves.score_figure,
    "perplexity_by_evaluations": _score_by_evals,
    "perplexity_by_time": curves.score_by_time_figure,
}
"""What can be drawn of runs, by the name of the file."""


@dataclass(frozen=True, kw_only=True)
class Comparison(PaperResult[Summary]):
    """A table or figure that compares variants."""

    rows_key = "variants"
    variants: Callable[[Scale], Sequence[Variant]]
    """What is compared at a scale."""
    figures: Sequence[str] = ()
    """Names of `FIGURES` to draw of all variants."""
    columns: Sequence[Column] = ()
    """Columns of the table beside the name and the budget of a variant."""
    nfe_beside_paper: bool = False
    """Whether the budget of the paper stands beside ours in the table."""
    budgets: Sequence[int] = ()
    """Further budgets at which every equilibrium model is evaluated."""
    extend: Callable[[Summary, Mapping[str, Path]], Summary] = lambda summary, _: summary
    """Adds to the summary what follows from several variants, or from one of the runs of each."""

    def runs(self, scale: Scale) -> Mapping[str, TrainConfig]:
        return plan(self.variants(scale))

    def duration(self, scale: Scale) -> str:
        hardware = HARDWARE[scale]
        minutes = sum({name: v.minutes for v in self.variants(scale) for name in v.configs()}.values())
        minutes = 5 * max(round(minutes / hardware.num_jobs / 5), 1)
        day = 24 * 60
        text = f"{minutes} min" if minutes < day else "days" if minutes < 14 * day else "weeks"
        return f"{text} on {hardware.name}" if hardware.name else text

    def measure(self, runs: Mapping[str, Path], folder: Path, scale: Scale) -> Summary:
        variants = self.variants(scale)
        measured = self._collect(variants, runs, folder)
        found = Summary((variant.name, summarize(variant, measured[variant.name])) for variant in variants)
        save_figures(self.draw(_groups(variants, runs)), folder)
        return self.extend(found, runs)

    def draw(self, groups: Sequence[RunGroup]) -> Mapping[str, Figure | None]:
        """Return the figures by their names; None where the runs recorded nothing to draw."""
        return {name: FIGURES[name](groups) for name in self.figures}

    def to_json(self, summary: Summary) -> dict[str, Any]:
        return {"variants": [row.to_json() for row in summary.values()]}

    def from_json(self, content: Mapping[str, Any]) -> Summary:
        return Summary((row["variant"], VariantSummary.from_json(row)) for row in content["variants"])

    def table(self, summary: Summary) -> str:
        return variant_table(summary.values(), self.columns, nfe_beside_paper=self.nfe_beside_paper)

    def _collect(
        self, variants: Sequence[Variant], runs: Mapping[str, Path], folder: Path
    ) -> dict[str, list[Measures]]:
        """Return what is measured of each run, by variant; write runs.csv and budgets.csv."""
        wanted: dict[str, set[int]] = {}
        for variant in variants:
            for name in variant.configs():
                budgets = self.budgets if variant.max_evals else ()
                wanted.setdefault(name, set()).update([variant.max_evals, *budgets])
        evaluated = {name: evaluate(runs[name], sorted(budgets)) for name, budgets in wanted.items()}
        records = {name: RunRecord.read(runs[name]) for name in wanted}
        measured: dict[str, list[Measures]] = {variant.name: [] for variant in variants}
        rows = []
        for variant in variants:
            for name, config in variant.configs().items():
                found = measure(records[name], evaluated[name].get(variant.max_evals))
                measured[variant.name].append(found)
                rows.append({"variant": variant.name, "seed": config.loop.seed, **found})
        write_csv(folder / "runs.csv", rows)
        by_budget = [
            {"run": name, **{records[name].metric if k == "score" else k: v for k, v in asdict(row).items()}}
            for name, found in evaluated.items()
            for row in found.values()
            if row.max_evals
        ]
        if by_budget:
            write_csv(folder / "budgets.csv", by_budget)
        return measured


def summarize(variant: Variant, measured: Sequence[Measures]) -> VariantSummary:
    """Return the means over the runs of a variant, of which the measures are given."""
    identity = {"variant": variant.name, "recipe": variant.recipe, "max_evals": variant.max_evals}
    return VariantSummary.over(measured, **identity, paper=dict(variant.paper))


def save_figures(figures: Mapping[str, Figure | None], folder: Path) -> None:
    """Save figures as PNG by their names; those are left out for which the runs recorded nothing."""
    for name, figure in figures.items():
        if figure is not None:
            save_png(figure, folder / f"{name}.png", dpi=110)


def _groups(variants: Sequence[Variant], runs: Mapping[str, Path]) -> list[RunGroup]:
    """Return the runs of each variant under its name; of variants that share their runs, the first."""
    groups: dict[tuple[str, ...], RunGroup] = {}
    for variant in variants:
        names = tuple(variant.configs())
        if names not in groups:
            groups[names] = RunGroup(label=variant.name, runs=tuple(RunRecord.read(runs[name]) for name in names))
    return list(groups.values())
