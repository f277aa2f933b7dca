"""Table 3: the weight of the penalty against the evaluations that inference may spend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from ..lab.config import TrainConfig
from ..lab.recipes.registry import Scale
from ..lab.report import RunGroup
from .comparison import Comparison
from .result import Claim
from .tables import markdown_table
from .variant import Summary, Variant, VariantSummary
from .vision import MDEQ_JR, classifiers

GAMMAS = SMALL, MEDIUM, LARGE = 0.1, 0.6, 1.2
BUDGETS = (1, 2, 3, 4, 5, 6)
"""NFE as the official code counts them: it does not count the evaluation at the start, so that k are k + 1 of ours."""
_FEW, _MANY = 3, 6
_PAPER = {
    SMALL: ("82.4", "89.7", "91.9", "92.3", "92.7", "92.9"),
    MEDIUM: ("85.8", "91.5", "92.7", "93.0", "93.0", "93.1"),
    LARGE: ("84.4", "89.6", "92.2", "92.6", "92.7", "92.7"),
}


def variants(scale: Scale) -> list[Variant]:
    """Return a variant for each cell of the table; those of a row share their runs."""
    (base,) = classifiers(MDEQ_JR)(scale)
    found = []
    for gamma, row in _PAPER.items():
        weighted = replace(
            base, seeds=base.seeds[:1] if scale == "cpu" else base.seeds[:2], change=partial(_with_weight, gamma)
        )
        for nfe, accuracy in zip(BUDGETS, row, strict=True):
            cell = replace(weighted, name=cell_name(gamma, nfe), max_evals=nfe + 1, paper={"score": accuracy})
            found.append(cell)
    return found


def _with_weight(gamma: float, config: TrainConfig) -> TrainConfig:
    return replace(config, regularizer=replace(config.regularizer, weight=gamma))


def cell_name(gamma: float, nfe: int) -> str:
    """Return the name of the variant of a cell."""
    return f"γ = {gamma:g}, NFE = {nfe}"


def _score(summary: Summary, gamma: float, nfe: int) -> float:
    return summary[cell_name(gamma, nfe)].mean("score")


def _loss(summary: Summary, gamma: float) -> float:
    return _score(summary, gamma, _MANY) - _score(summary, gamma, _FEW)


def _accuracies(summary: Summary, gamma: float, *budgets: int) -> str:
    shown = (f"{summary[cell_name(gamma, n)].show('score', factor=100, digits='.1f')}% at {n}" for n in budgets)
    return f"gamma {gamma:g}: {', '.join(shown)}"


def _gamma(row: VariantSummary) -> float:
    return float(row.variant.split(",")[0].removeprefix("γ = "))


@dataclass(frozen=True, kw_only=True)
class _Table3(Comparison):
    def draw(self, groups: Sequence[RunGroup]) -> Mapping[str, Figure | None]:
        return super().draw([replace(group, label=group.label.split(",")[0]) for group in groups])

    def from_json(self, content: Mapping[str, Any]) -> Summary:
        # Earlier files have cells by our count of evaluations.
        summary = super().from_json(content)
        rows = {cell_name(g, row.max_evals - 1): row for g in _PAPER for row in summary.values() if _gamma(row) == g}
        named = ((name, replace(row, variant=name)) for name, row in rows.items())
        return Summary(named, missing=summary.missing)

    def table(self, summary: Summary) -> str:
        rows = []
        for gamma in _PAPER:
            cells = [summary.get(cell_name(gamma, budget)) for budget in BUDGETS]
            shown = (cell.show("score", factor=100, digits=".1f") if cell else "-" for cell in cells)
            rows.append([f"γ = {gamma:g}", *shown])
            rows.append(["paper", *_PAPER[gamma]])
        return markdown_table(["test accuracy, %", *(f"NFE = {budget}" for budget in BUDGETS)], rows)


TABLE3 = _Table3(
    name="table3",
    title="Table 3: strength of the penalty",
    statement="a small gamma needs more evaluations; a large one converges quickly, and costs accuracy",
    variants=variants,
    figures=("accuracy_by_evaluations", "jacobian_norm", "spectral_radius"),
    claims=(
        Claim(
            f"a small gamma needs more evaluations: at {_FEW} instead of {_MANY}, gamma {SMALL:g} loses more than "
            f"gamma {LARGE:g}",
            section="5.5, Table 3",
            holds=lambda s: _loss(s, SMALL) > _loss(s, LARGE),
            evidence=lambda s: f"{_accuracies(s, SMALL, _FEW, _MANY)}; {_accuracies(s, LARGE, _FEW, _MANY)}",
        ),
        Claim(
            f"a large gamma converges quickly: gamma {LARGE:g} at {_FEW} evaluations is within 1 point of {_MANY}",
            section="5.5, Table 3",
            threshold="stated before",
            holds=lambda s: _loss(s, LARGE) <= 0.01,
            evidence=lambda s: _accuracies(s, LARGE, *BUDGETS),
        ),
        Claim(
            f"a large gamma costs accuracy: at {_MANY} evaluations gamma {LARGE:g} is below gamma {MEDIUM:g}",
            section="5.5, Table 3",
            holds=lambda s: _score(s, LARGE, _MANY) < _score(s, MEDIUM, _MANY),
            evidence=lambda s: f"{_accuracies(s, LARGE, _MANY)}; {_accuracies(s, MEDIUM, _MANY)}",
        ),
    ),
)
