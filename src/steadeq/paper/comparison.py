"""Results that compare variants: all of them evaluate, draw, judge and write in the same order."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..lab.config import TrainConfig
from ..lab.divergence import has_diverged
from ..lab.recipes.registry import Scale
from ..lab.report import RunGroup, curves, save_png
from ..lab.run.record import RunRecord
from .colors import place_of
from .judging import judge
from .result import HARDWARE, PaperResult, Verdict, write_csv
from .tables import Column, markdown_table
from .variant import Measures, Summary, Variant, VariantSummary, evaluate, measure, plan, reported


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
"""Figures that can be drawn from runs, by the name of the file."""


@dataclass(frozen=True, kw_only=True)
class Comparison(PaperResult[Summary]):
    """A table or figure that compares variants."""

    rows_key = "variants"
    can_be_partial = True
    variants: Callable[[Scale], Sequence[Variant]]
    """What is compared at a scale."""
    figures: Sequence[str] = ()
    """Names of `FIGURES` to draw of all variants."""
    columns: Sequence[Column] = ()
    """Columns of the table beside the name and the budget of a variant."""
    nfe_beside_paper: bool = False
    """Whether the budget of the paper stands beside ours in the table."""
    quoted: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What the paper reports, by the names of our measures, of models that the table quotes where they are not run."""
    budgets: Sequence[int] = ()
    """Further budgets at which every equilibrium model is evaluated."""
    extend: Callable[[Summary], Summary] = lambda summary: summary
    """Adds to the summary what follows from several variants, or from their recipes."""

    def runs(self, scale: Scale) -> Mapping[str, TrainConfig]:
        return plan(self.variants(scale))

    def minutes(self, scale: Scale) -> Mapping[str, float]:
        return {name: variant.minutes for variant in self.variants(scale) for name in variant.configs()}

    def duration(self, scale: Scale) -> str:
        hardware = HARDWARE[scale]
        minutes = sum(self.minutes(scale).values())
        minutes = 5 * max(round(minutes / hardware.num_jobs / 5), 1)
        day = 24 * 60
        text = f"{minutes} min" if minutes < day else "days" if minutes < 14 * day else "weeks"
        return f"{text} on {hardware.name}" if hardware.name else text

    def budgets_of(self, variant: Variant) -> Sequence[int]:
        """Return the further budgets at which a variant is evaluated."""
        return self.budgets if variant.max_evals else ()

    def wanted(self, scale: Scale) -> Mapping[str, set[int]]:
        """Return the budgets at which each run is evaluated, by the names of their folders."""
        found: dict[str, set[int]] = defaultdict(set)
        for variant in self.variants(scale):
            for name in variant.configs():
                found[name] |= {variant.max_evals, *self.budgets_of(variant)}
        return found

    def can_use(self, name: str, path: Path, scale: Scale) -> bool:
        record = RunRecord.read(path)
        known = {row.max_evals for row in record.evaluation.rows} if record.evaluation else set()
        return self.wanted(scale)[name] <= known or (record.has_diverged and not known)

    def measure(self, runs: Mapping[str, Path], folder: Path, scale: Scale) -> Summary:
        wanted = {name: budgets for name, budgets in self.wanted(scale).items() if name in runs}
        evaluated = {name: evaluate(runs[name], sorted(budgets)) for name, budgets in wanted.items()}
        records = {name: RunRecord.read(runs[name]) for name in wanted}
        summary, groups, rows = Summary(), {}, []
        for variant in self.variants(scale):
            configs = variant.configs()
            missing = [name for name in configs if name not in runs]
            if missing:
                summary.missing[variant.name] = missing
            finished = {name: config for name, config in configs.items() if name in runs}
            if not finished:
                continue
            measured = [measure(records[name], evaluated[name], variant.max_evals) for name in finished]
            summary[variant.name] = summarize(variant, measured)
            for config, found in zip(finished.values(), measured, strict=True):
                rows.append({"variant": variant.name, "seed": config.loop.seed, **found})
            # Of variants that share their runs, the first is drawn.
            runs_of = tuple(records[name] for name in finished)
            group = RunGroup(label=variant.name, runs=runs_of, place=place_of(variant.name))
            groups.setdefault(tuple(finished), group)
        write_csv(folder / "runs.csv", rows)
        by_budget = [
            {"run": name, **{records[name].metric if k == "score" else k: v for k, v in asdict(row).items()}}
            for name, found in evaluated.items()
            for row in found.values()
            if row.max_evals
        ]
        if by_budget:
            write_csv(folder / "budgets.csv", by_budget)
        summary = self.extend(summary)
        unused = summary.unused
        save_figures(self.draw([group for group in groups.values() if group.label not in unused]), folder)
        return summary

    def draw(self, groups: Sequence[RunGroup]) -> Mapping[str, Figure | None]:
        """Return the figures by their names; None where the runs recorded nothing to draw."""
        # What has learned nothing would press all others together.
        trained = [group for group in groups if not any(has_diverged(run) for run in group.runs)]
        is_score = {name: name.startswith(("perplexity", "accuracy")) for name in self.figures}
        return {name: FIGURES[name](trained if is_score[name] else groups) for name in self.figures}

    def of_paper(self) -> Summary:
        """Return what the paper reports of these variants, in the form of our measurements; most are missing."""
        found: dict[str, VariantSummary] = {}
        for variant in (variant for scale in self.scales for variant in self.variants(scale)):
            if variant.paper and variant.name not in found:
                found[variant.name] = reported(variant)
        return Summary(found.items())

    def to_json(self, summary: Summary) -> dict[str, Any]:
        rows: dict[str, Any] = {"variants": [row.to_json() for row in summary.values()]}
        more = {"missing": summary.missing, "stand_ins": summary.stand_ins, "tried": summary.tried}
        return rows | {name: value for name, value in more.items() if value}

    def from_json(self, content: Mapping[str, Any]) -> Summary:
        rows = ((row["variant"], VariantSummary.from_json(row)) for row in content["variants"])
        summary = Summary(rows, missing=content.get("missing", {}), stand_ins=content.get("stand_ins", {}))
        summary.tried = content.get("tried", {})
        return summary

    def judge(self, summary: Summary) -> list[Verdict]:
        return [judge(claim, summary) for claim in self.claims if claim.applies(summary)]

    def table(self, summary: Summary) -> str:
        titles = ["model", "NFE", *(["NFE in the paper"] if self.nfe_beside_paper else [])]
        for column in self.columns:
            titles += [column.title, column.beside_paper] if column.beside_paper else [column.title]
        rows = [
            self._cells([_label(row, summary), str(row.max_evals or "-")], partial(_show, row), row.paper)
            for row in summary.values()
        ]
        for name, paper in self.quoted.items():
            if name not in summary:
                rows.append(self._cells([f"{name}, quoted", "-"], lambda _: "-", paper))
        return markdown_table(titles, rows)

    def _cells(self, first: list[str], show: Callable[[Column], str], paper: Mapping[str, str]) -> list[str]:
        found = [*first, *([paper.get("max_evals", "-")] if self.nfe_beside_paper else [])]
        for column in self.columns:
            found.append(show(column))
            if column.beside_paper:
                found.append(paper.get(column.measure, "-"))
        return found


def _label(row: VariantSummary, summary: Summary) -> str:
    """Return the name of a variant, and how many of its seeds are finished if that is not all."""
    num_missing = len(summary.missing.get(row.variant, ()))
    return f"{row.variant}, {row.num_seeds} of {row.num_seeds + num_missing} seeds" if num_missing else row.variant


def _show(row: VariantSummary, column: Column) -> str:
    has_diverged = column.measure == "score" and row.mean("diverged") == 1
    return "diverged" if has_diverged else column.show(row)


def summarize(variant: Variant, measured: Sequence[Measures]) -> VariantSummary:
    """Return the means over the runs of a variant, of which the measures are given."""
    identity = {"variant": variant.name, "recipe": variant.recipe, "max_evals": variant.max_evals}
    return VariantSummary.over(measured, **identity, paper=dict(variant.paper))


def save_figures(figures: Mapping[str, Figure | None], folder: Path) -> None:
    """Save figures as PNG by their names; figures without recorded numbers are left out."""
    for name, figure in figures.items():
        if figure is not None:
            save_png(figure, folder / f"{name}.png", dpi=152)
