"""Figure 6: error, inference time and training memory beside explicit networks."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from ..lab.recipes.registry import Scale
from ..lab.report.bars import Bars, bars_figure
from ..lab.run.record import Spread
from .colors import place_of
from .comparison import Comparison, save_figures
from .memory_profile import known_costs, measure_costs
from .result import Claim
from .tables import Column
from .variant import Summary
from .vision import (
    DENSENET,
    MDEQ,
    MDEQ_JR,
    MONOTONE,
    MULTI_TIER,
    RESNET,
    RESNET101,
    RESNET_DEEP,
    RESNET_GROUP_NORM,
    classifiers,
)

_ERROR = Column(title="test error, %", measure="error", factor=100, digits=".1f")
SECONDS = Column(title="inference, ms per image", measure="inference_seconds", factor=1e3, digits=".2f")
MEMORY = Column(title="training step, MB", measure="step_mb", digits=".0f")


def draw(summary: Summary) -> Figure | None:
    """Return the bars of all rows that have these numbers, if there are any; lower is better in all of them."""
    rows = [row for row in summary.values() if "error" in row.spreads]
    if not rows:
        return None
    labels = [f"{row.variant} ({row.max_evals} NFE)" if row.max_evals else row.variant for row in rows]

    def bars(column: Column, errors: list[float] | None = None) -> Bars:
        values = [column.factor * row.mean(column.measure) for row in rows]
        return Bars(title=column.title, values=values, texts=[column.show(row) for row in rows], errors=errors)

    stds = [100 * (row.spreads["error"].std or 0.0) for row in rows]
    places = [place_of(row.variant) or 0 for row in rows]
    return bars_figure(labels, [bars(_ERROR, stds), bars(SECONDS), bars(MEMORY)], places=places)


@dataclass(frozen=True, kw_only=True)
class _Figure6(Comparison):
    def can_use(self, name: str, path: Path, scale: Scale) -> bool:
        budgets = [v.max_evals for v in self.variants(scale) if next(iter(v.configs())) == name]
        return super().can_use(name, path, scale) and all(known_costs(path, max_evals=n) for n in budgets)

    def measure(self, runs: Mapping[str, Path], folder: Path, scale: Scale) -> Summary:
        summary = super().measure(runs, folder, scale)
        for variant in self.variants(scale):
            # One seed will do: they differ in their weights only.
            name = next(iter(variant.configs()))
            if name in runs and "score" in (row := summary[variant.name]).spreads:
                score, costs = row.spreads["score"], measure_costs(runs[name], max_evals=variant.max_evals)
                summary[variant.name] = row.adding(
                    error=Spread(mean=1 - score.mean, std=score.std, count=score.count),
                    inference_seconds=Spread(mean=costs.inference_seconds, std=None, count=1),
                    step_mb=Spread(mean=costs.step_mb, std=None, count=1),
                )
        save_figures({"bars": draw(summary)}, folder)
        return summary


def _at_most(
    column: Column, factor: float, other: str, text: str, *, id: str = "", section: str = "5.3, Figure 6"
) -> Claim[Summary]:
    """Return a claim that the regularized MDEQ needs at most a multiple of what another model needs."""
    threshold = "set after a look at numbers"
    return column.claim(text, MDEQ_JR, other, lambda a, b: a <= factor * b, id=id, section=section, threshold=threshold)


FIGURE6 = _Figure6(
    name="fig6",
    title="Figure 6: against explicit networks",
    statement="a regularized MDEQ is competitive with explicit networks in accuracy, time and memory",
    variants=classifiers(
        *(RESNET, RESNET_DEEP, RESNET_GROUP_NORM, RESNET101, DENSENET),
        *(MONOTONE, MULTI_TIER, MDEQ, MDEQ_JR),
    ),
    claims=(
        _ERROR.claim(
            "the regularized MDEQ is as accurate as the explicit network (error within 2 points, or below)",
            MDEQ_JR,
            RESNET,
            lambda a, b: a <= b + 0.02,
            id="accuracy",
            section="5.3, Figure 6",
            threshold="set after a look at numbers",
        ),
        _at_most(SECONDS, 0.6, MDEQ, "its inference is much faster than without the penalty (at most 0.6 of the time)"),
        _at_most(
            SECONDS,
            1.5,
            RESNET,
            "its inference is competitive with the explicit network (at most 1.5 times as long)",
            id="inference",
        ),
        _at_most(
            MEMORY,
            0.6,
            RESNET,
            "it trains with much less memory than the explicit network (at most 0.6 of it)",
            id="memory",
        ),
        _at_most(
            MEMORY, 1.5, MDEQ, "the penalty adds about 30% to the memory of training (at most 50%)", section="4.3"
        ),
    ),
    columns=(_ERROR, SECONDS, MEMORY),
)
