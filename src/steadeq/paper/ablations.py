"""Why claims of the paper do not hold here: for each, an experiment that shows what stands in the way."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..lab.recipes.registry import Scale
from .adaptive_gamma import ADAPTIVE_GAMMA, CIFAR10, FEW
from .comparison import Comparison
from .result import Claim, PaperResult, results_folder
from .table2 import TABLE2
from .tables import ACCURACY, BACKWARD_RESIDUAL, RESIDUAL, Column
from .vision import MDEQ_JR_SOONER, STOPPED_SOONER

NOT_FOUND = "reason not found yet"


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """Two variants of a comparison that differ in one thing, and what their numbers say on a claim."""

    claim: str
    """Beginning of the claim, which does not hold."""
    of: str
    """Name of the result that makes the claim."""
    scale: Scale
    """Scale at which it does not hold."""
    reason: str
    """Why it does not, without numbers."""
    comparison: Comparison
    """The result that has both variants."""
    variants: tuple[str, str]
    """Names of the variants."""
    column: Column
    """What of them is compared."""

    def explains(self, result: PaperResult[Any], claim: Claim[Any], scale: Scale) -> bool:
        """Return whether it is about a claim at a scale."""
        return (self.of, self.scale) == (result.name, scale) and claim.text.startswith(self.claim)

    def evidence(self, numbers: Path) -> str:
        """Return the numbers of both variants, from the folder of all results."""
        summary, _ = self.comparison.read(results_folder(numbers, self.comparison.name, self.scale))
        first, second = (summary[name] for name in self.variants)
        return f"{self.column.title}: {self.column.against(first, second)}, {first.variant} against {second.variant}"


_AT_ONE_BUDGET = CIFAR10.named("γ = 0.3"), CIFAR10.named(FEW)
"""The regularized MDEQ, and one without the penalty that has the same budgets in training."""

ABLATIONS: tuple[Ablation, ...] = (
    Ablation(
        claim="with regularization, solves of both directions end closer",
        of="fig1-cifar10",
        scale="day",
        reason="it has less than half of the evaluations; without the penalty a network that has no more of them is "
        "far from any fixed point",
        comparison=ADAPTIVE_GAMMA,
        variants=_AT_ONE_BUDGET,
        column=RESIDUAL,
    ),
    Ablation(
        claim="regularization improves the quality of backward solves",
        of="fig9-cifar10",
        scale="day",
        reason="it has less than half of the products; with as few, backward solves without the penalty fail",
        comparison=ADAPTIVE_GAMMA,
        variants=_AT_ONE_BUDGET,
        column=BACKWARD_RESIDUAL,
    ),
    Ablation(
        claim="unregularized, but stopped early",
        of="table2",
        scale="day",
        reason="the answers of so small a network are settled after six evaluations, though its solves are not; "
        "stopped at three, it does lose, and much more than the regularized one",
        comparison=TABLE2,
        variants=(STOPPED_SOONER, MDEQ_JR_SOONER),
        column=ACCURACY,
    ),
)
"""All that were made. A claim that does not hold and is not here has no reason that an experiment shows."""


def reason(result: PaperResult[Any], claim: Claim[Any], scale: Scale, numbers: Path) -> str:
    """Return why a claim does not hold at a scale, with the numbers that show it, or that this is not known."""
    found = [ablation for ablation in ABLATIONS if ablation.explains(result, claim, scale)]
    return "; ".join(f"{one.reason} ({one.evidence(numbers)})" for one in found) or NOT_FOUND
