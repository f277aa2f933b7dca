"""Adaptive gamma, which the paper leaves to future work: closed loops beside the best fixed gamma."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from ..lab.config import TrainConfig
from ..lab.recipes.registry import Scale
from ..lab.report.style import GRAY, HEIGHT, WIDTH, add_legend, line_style, new_axes, styled
from ..lab.run.record import EvaluationRow, Spread, spread
from . import language, table1, table2, table3, vision
from .colors import place_of, places_of_gammas
from .comparison import Comparison, save_figures
from .result import Claim
from .tables import EVALS, Column
from .variant import SEEDS, Summary, Variant, VariantSummary, evaluate

NONE, FEW = "no penalty", "no penalty, few evaluations"
ALL_STEPS = "γ at all steps"
LINEAR, LOOP, LOOP_EVALS = "linear schedule", "closed loop", "closed loop on evaluations"
SPECTRAL, RESIDUAL = "spectral radius, closed loop", "residual, closed loop"
_FIXED = "γ = "
"""What the names of those with a fixed gamma begin with."""


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """What is compared on one data set."""

    name: str
    scale: Scale
    variants: Sequence[Variant]
    """With names from above, and `fixed` ones."""
    budgets: Sequence[int]
    """Budgets at which all of them are evaluated."""
    is_accuracy: bool
    """Whether quality is an accuracy; a perplexity otherwise."""
    target: int
    """Evaluations at which `LOOP_EVALS` is to hold the solves of training."""

    def named(self, name: str) -> str:
        """Return the name of a row of this data set."""
        return f"{self.name}: {name}"

    @property
    def tolerance(self) -> str:
        """What counts as the same quality, in words."""
        return "1 point of accuracy" if self.is_accuracy else "1% of perplexity"

    def is_kept(self, quality: float, than: float) -> bool:
        """Return whether a quality is as good as another one, up to the tolerance."""
        # A point less is within a point, however the difference of two accuracies is rounded.
        return quality - than >= -0.01 - 1e-9 if self.is_accuracy else quality <= 1.01 * than

    def best_fixed(self, summary: Summary) -> VariantSummary:
        """Return the row of the largest fixed gamma that keeps the quality of the best one on validation data."""
        names = [self.named(variant.name) for variant in self.variants if variant.name.startswith(_FIXED)]
        rows = [summary[name] for name in names if name in summary] or [summary[names[0]]]
        best = (max if self.is_accuracy else min)(row.mean("validation_score") for row in rows)
        kept = (row for row in rows if self.is_kept(row.mean("validation_score"), best))
        return max(kept, key=lambda row: row.mean("regularizer_weight"))


def with_weight(gamma: float, config: TrainConfig) -> TrainConfig:
    """Return a config with another weight of its penalty."""
    return replace(config, regularizer=replace(config.regularizer, weight=gamma))


def _at_all_steps(config: TrainConfig) -> TrainConfig:
    return replace(config, regularizer=replace(config.regularizer, probability=1.0))


def fixed(variant: Variant, gamma: float) -> Variant:
    """Return a variant with another weight of its penalty, named by it."""
    return replace(variant, name=f"{_FIXED}{gamma:g}", change=partial(with_weight, gamma))


def _renamed(known: Sequence[Variant], names: Mapping[str, str]) -> list[Variant]:
    """Return variants under other names, without what the paper reports of them; new names are given by old ones."""
    found = {variant.name: variant for variant in known}
    return [replace(found[old], name=new, paper={}) for old, new in names.items()]


_DIGITS_JR = Variant("", "digits-jr", 6, 0.6, seeds=SEEDS)
_CIFAR10_JR = vision.classifiers(vision.MDEQ_JR)("day")[0]
DIGITS = DataSet(
    name="digits",
    scale="cpu",
    variants=(
        Variant(NONE, "digits", 18, 1.2, seeds=SEEDS),
        Variant(FEW, "digits-small-budget", 6, 0.6, seeds=SEEDS),
        fixed(_DIGITS_JR, 0.5),
        fixed(_DIGITS_JR, 2.0),
        fixed(_DIGITS_JR, 8.0),
        replace(_DIGITS_JR, name=ALL_STEPS, minutes=0.8, change=_at_all_steps),
        Variant(LINEAR, "digits-jr-linear", 6, 0.6, seeds=SEEDS),
        Variant(LOOP, "digits-jr-closed-loop", 6, 0.6, seeds=SEEDS),
        Variant(LOOP_EVALS, "digits-jr-closed-loop-evals", 6, 0.9, seeds=SEEDS),
        Variant(SPECTRAL, "digits-spectral", 6, 1.0, seeds=SEEDS),
        Variant(RESIDUAL, "digits-residual", 6, 0.6, seeds=SEEDS),
    ),
    budgets=(1, 2, 3, 4, 6, 12, 18),
    is_accuracy=True,
    target=6,
)
CIFAR10 = DataSet(
    name="CIFAR-10",
    scale="day",
    variants=(
        *_renamed(
            vision.classifiers()("day"),
            {vision.MDEQ: NONE, vision.SMALL_BUDGET: FEW, vision.MDEQ_JR: f"{_FIXED}0.3"},
        ),
        *(replace(fixed(_CIFAR10_JR, gamma), seeds=(0,), paper={}) for gamma in table3.GAMMAS),
        *_renamed(
            vision.classifiers()("day"),
            {
                vision.LINEAR: LINEAR,
                vision.CLOSED_LOOP: LOOP,
                vision.CLOSED_LOOP_EVALS: LOOP_EVALS,
                vision.SPECTRAL: SPECTRAL,
                vision.RESIDUAL: RESIDUAL,
            },
        ),
    ),
    budgets=table2.BUDGETS,
    is_accuracy=True,
    target=6,
)
WIKITEXT2 = DataSet(
    name="WikiText-2",
    scale="day",
    variants=_renamed(
        language.language_models()("day"),
        {
            language.POST: NONE,
            language.SMALL_BUDGET: FEW,
            language.POST_JR: f"{_FIXED}0.4",
            language.CLOSED_LOOP: LOOP,
        },
    ),
    budgets=table1.BUDGETS,
    is_accuracy=False,
    target=12,
)
DATA_SETS = (DIGITS, CIFAR10, WIKITEXT2)

Curve = Mapping[int, tuple[float, float]]
"""Evaluations that a solve on test data took, and quality, as means over seeds, by budget."""


def curve(evaluated: Sequence[Mapping[int, EvaluationRow]]) -> Curve:
    """Return the means over the seeds of a variant; budgets of which some seed has no number are left out."""
    found = {}
    for budget in evaluated[0]:
        rows = [rows[budget] for rows in evaluated if budget in rows]
        means = [spread(getattr(row, name) for row in rows) for name in ("forward_evals", "score")]
        if len(rows) == len(evaluated) and all(mean is not None and mean.count == len(rows) for mean in means):
            found[budget] = tuple(mean.mean for mean in means if mean is not None)
    return found


def evals_needed(points: Curve, data: DataSet, quality: float) -> float:
    """Return the smallest budget that keeps a quality, up to the tolerance; infinite if none does."""
    return min((budget for budget, (_, found) in points.items() if data.is_kept(found, quality)), default=math.inf)


def draw(data: DataSet, curves: Mapping[str, Curve]) -> Figure:
    """Show quality against evaluations of all variants, by name, and what is best at any number of evaluations."""
    factor = 100 if data.is_accuracy else 1
    with styled():
        figure, axes = new_axes(
            "evaluations of a solve on test data", "test accuracy, %" if data.is_accuracy else "test perplexity"
        )
        figure.set_size_inches(1.3 * WIDTH, 1.4 * HEIGHT)
        points = sorted(point for found in curves.values() for point in found.values())
        front: list[tuple[float, float]] = []
        for evals, quality in points:
            if not front or (quality > front[-1][1] if data.is_accuracy else quality < front[-1][1]):
                front.append((evals, quality))
        if front:
            front.append((points[-1][0], front[-1][1]))
            x, y = zip(*front, strict=True)
            axes.step(
                x, [factor * value for value in y], where="post", color=GRAY, linewidth=5, alpha=0.3, label="best"
            )
        places = places_of_gammas([name for name in curves if name.startswith(_FIXED)])
        for name, found in curves.items():
            place = places.get(name, place_of(name) or 0)
            x, y = zip(*found.values(), strict=True) if found else ((), ())
            axes.plot(
                x, [factor * value for value in y], **{**line_style(place), "marker": "o", "markersize": 3}, label=name
            )
        axes.set_xscale("log")
        ticks = [budget for budget in data.budgets if budget]
        axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
        axes.minorticks_off()
        if points:
            # What a few evaluations leave far behind would press everything else together.
            best = front[-1][1]
            low, high = (best - 0.12, best + 0.01) if data.is_accuracy else (0.97 * best, 1.4 * best)
            axes.set_ylim(factor * low, factor * high)
        handles, labels = axes.get_legend_handles_labels()
        add_legend(figure, dict(zip(labels, handles, strict=True)))
    return figure


@dataclass(frozen=True, kw_only=True)
class _AdaptiveGamma(Comparison):
    def budgets_of(self, variant: Variant) -> Sequence[int]:
        (budgets,) = (data.budgets for data in DATA_SETS if variant.name.startswith(data.named("")))
        return budgets

    def measure(self, runs: Mapping[str, Path], folder: Path, scale: Scale) -> Summary:
        summary = super().measure(runs, folder, scale)
        for data in DATA_SETS:
            curves: dict[str, Curve] = {}
            for variant in data.variants:
                names = [name for name in variant.configs() if name in runs]
                if data.scale == scale and names:
                    budgets = sorted({variant.max_evals, *data.budgets})
                    curves[variant.name] = curve([evaluate(runs[name], budgets) for name in names])
            for name, points in curves.items():
                row = summary[data.named(name)]
                more = (
                    {"quality": row.scaled("score", 100 if data.is_accuracy else 1)} if "score" in row.spreads else {}
                )
                plain = summary.get(data.named(NONE))
                if plain is not None and "score" in plain.spreads:
                    needed = evals_needed(points, data, plain.mean("score"))
                    if needed < math.inf:
                        more["evals_needed"] = Spread(mean=needed, std=None, count=1)
                summary[data.named(name)] = row.adding(**more)
            if curves:
                save_figures({f"pareto_{data.name.lower().replace('-', '')}": draw(data, curves)}, folder)
        return summary


_QUALITY = Column(title="test accuracy in %, or perplexity", measure="quality", digits=".1f")
_NEEDED = Column(title="evaluations needed", measure="evals_needed", digits=".0f")
_GAMMA = Column(title="γ, last tenth", measure="regularizer_weight", digits=".2g")


def _needed(row: VariantSummary) -> float:
    """Return how many evaluations a variant needs for the quality of no penalty; infinite if it never has that."""
    return row.mean("evals_needed") if "evals_needed" in row.spreads else math.inf


def _shown(row: VariantSummary) -> str:
    label = row.variant.partition(": ")[2]
    if "evals_needed" not in row.spreads:
        return f"{label} {_QUALITY.show(row)} at {row.max_evals}, does not reach it at any budget"
    return f"{label} {_QUALITY.show(row)} at {row.max_evals}, needs {_NEEDED.show(row)} evaluations"


def _claims_about(data: DataSet) -> tuple[Claim[Summary], ...]:
    """Return what is claimed on a data set."""

    def claim(text: str, holds: str, first: str, second: str | None) -> Claim[Summary]:
        """Return a claim on two rows, the second of which is the best fixed gamma if it has no name."""

        def rows(summary: Summary) -> tuple[VariantSummary, VariantSummary, VariantSummary]:
            other = data.best_fixed(summary) if second is None else summary[data.named(second)]
            return summary[data.named(first)], other, summary[data.named(NONE)]

        def judge(summary: Summary) -> bool:
            row, other, plain = rows(summary)
            if holds == "quality":
                return data.is_kept(row.mean("score"), plain.mean("score"))
            return _needed(row) < math.inf and _needed(row) <= _needed(other)

        return Claim(
            data.named(text),
            section="B.3",
            source="own",
            threshold="stated before",
            holds=judge,
            evidence=lambda s: " against ".join(dict.fromkeys(_shown(row) for row in rows(s)[:2])),
            applies=lambda s: s.plans(data.named(first)) and s.plans(data.named(NONE if second is None else second)),
        )

    return (
        claim(
            f"a closed loop at its defaults keeps the quality of no penalty, with few evaluations (within "
            f"{data.tolerance})",
            "quality",
            LOOP,
            NONE,
        ),
        claim(
            "for that quality it needs no more evaluations than the best fixed γ (chosen on validation data)",
            "evaluations",
            LOOP,
            None,
        ),
        claim("and no more than the linear schedule", "evaluations", LOOP, LINEAR),
        Claim(
            data.named(
                "a closed loop on the number of evaluations holds it (within 10% in the last tenth of training)"
            ),
            section="B.3",
            source="own",
            threshold="stated before",
            holds=lambda s: abs(s[data.named(LOOP_EVALS)].mean("train_evals") - data.target) <= 0.1 * data.target,
            evidence=lambda s: f"{EVALS.show(s[data.named(LOOP_EVALS)])} evaluations, to be held at {data.target}",
            applies=lambda s: s.plans(data.named(LOOP_EVALS)),
        ),
        claim(
            "a penalty on the spectral radius needs no more evaluations for it than one on the Frobenius norm",
            "evaluations",
            SPECTRAL,
            LOOP,
        ),
        claim(
            "a penalty on the residual needs no more evaluations for it than one on the Frobenius norm",
            "evaluations",
            RESIDUAL,
            LOOP,
        ),
    )


def variants(scale: Scale) -> list[Variant]:
    """Return what is compared at a scale."""
    return [
        replace(variant, name=data.named(variant.name))
        for data in DATA_SETS
        if data.scale == scale
        for variant in data.variants
    ]


_RANDOM, _ALL = DIGITS.named(f"{_FIXED}2"), DIGITS.named(ALL_STEPS)
_RANDOM_STEPS = Claim[Summary](
    "digits: the penalty at random steps is better for the quality than at all steps, though only slightly",
    section="appendix A.4",
    holds=lambda s: s[_RANDOM].mean("score") > s[_ALL].mean("score"),
    evidence=lambda s: _QUALITY.against(s[_RANDOM], s[_ALL]),
    applies=lambda s: s.plans(_ALL),
)
ADAPTIVE_GAMMA = _AdaptiveGamma(
    name="adaptive-gamma",
    title="Adaptive γ (appendix B.3)",
    statement="a closed loop needs no more evaluations than the best fixed γ, at the quality of no penalty",
    scales=("cpu", "day"),
    variants=variants,
    claims=(_RANDOM_STEPS, *(claim for data in DATA_SETS for claim in _claims_about(data))),
    columns=(_QUALITY, EVALS, _NEEDED, _GAMMA),
)
