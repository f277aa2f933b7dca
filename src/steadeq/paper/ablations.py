"""Why claims of the paper do not hold here: for each, an experiment that shows the reason."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..lab.recipes.registry import Scale
from .adaptive_gamma import ADAPTIVE_GAMMA, CIFAR10, FEW
from .comparison import Comparison
from .figure1 import FIGURE1_CIFAR10, early
from .figure6 import FIGURE6, MEMORY, SECONDS
from .language import POST_JR, TIED, TRANSFORMER_XL_SAME_BLOCK
from .numbers import Numbers
from .result import Claim
from .table1 import TABLE1
from .table2 import TABLE2
from .tables import ACCURACY, BACKWARD_RESIDUAL, PERPLEXITY, RESIDUAL, Column
from .variant import Summary
from .vision import MDEQ_JR, MDEQ_JR_SOONER, RESNET_DEEP, STOPPED_SOONER

NOT_FOUND = "reason not found yet"


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """Models of a comparison that differ in one thing, or one model at two times, which explain a claim's verdict."""

    claim: Claim[Any]
    """The claim, which does not hold."""
    scale: Scale
    """Scale at which it does not hold."""
    reason: str
    """Why it does not, without numbers."""
    comparison: Comparison
    """The result that has them."""
    shown_by: Callable[[Summary], str]
    """Returns the numbers that show it."""

    def evidence(self, numbers: Numbers) -> str:
        """Return the numbers that show it."""
        made = numbers.read(self.comparison, self.scale)
        assert made is not None, f"{self.comparison.name} was not made at the scale {self.scale}"
        return self.shown_by(made[0])


def against(column: Column, first: str, second: str) -> Callable[[Summary], str]:
    """Return a function that compares a column of two variants, given by their names."""
    return lambda s: f"{column.title}: {column.against(s[first], s[second])}, {first} against {second}"


def growth(variant: str, *columns: Column) -> Callable[[Summary], str]:
    """Return a function that shows how columns of a variant change from the first to the last tenth of training."""

    def show(s: Summary) -> str:
        changes = (f"{c.title.split(',')[0]} {early(c).show(s[variant])} to {c.show(s[variant])}" for c in columns)
        return f"{variant}, first to last tenth: {', '.join(changes)}"

    return show


def both(*shown: Callable[[Summary], str]) -> Callable[[Summary], str]:
    """Return a function that shows several things one after the other."""
    return lambda s: "; ".join(show(s) for show in shown)


ABLATIONS: tuple[Ablation, ...] = (
    Ablation(
        claim=FIGURE1_CIFAR10.claim("residuals-get-worse"),
        scale="day",
        reason="with 17 evaluations, more than so small a network needs, it stays within their reach; with as few as "
        "the regularized one has, both residuals get worse until nothing converges",
        comparison=ADAPTIVE_GAMMA,
        shown_by=growth(CIFAR10.named(FEW), RESIDUAL, BACKWARD_RESIDUAL),
    ),
    Ablation(
        claim=TABLE1.claim("transformer-xl"),
        scale="day",
        reason="it is the use of one layer over and over that costs so much in so short a training, and not the "
        "equilibrium: the cell of the DEQ, applied 12 times and trained by plain backpropagation, is further behind "
        "layers with weights of their own than the DEQ is",
        comparison=TABLE1,
        shown_by=both(against(PERPLEXITY, TIED, TRANSFORMER_XL_SAME_BLOCK), against(PERPLEXITY, TIED, POST_JR)),
    ),
    Ablation(
        claim=TABLE2.claim("stopped-early"),
        scale="day",
        reason="the answers of so small a network are settled after six evaluations, though its solves are not; "
        "stopped at three, it does lose, and much more than the regularized one",
        comparison=TABLE2,
        shown_by=against(ACCURACY, STOPPED_SOONER, MDEQ_JR_SOONER),
    ),
    Ablation(
        claim=FIGURE6.claim("inference"),
        scale="day",
        reason="the explicit network has three blocks, where the paper compares with a deep one; with 110 layers, and "
        "about as many parameters, it takes nearly as long",
        comparison=FIGURE6,
        shown_by=against(SECONDS, MDEQ_JR, RESNET_DEEP),
    ),
    Ablation(
        claim=FIGURE6.claim("memory"),
        scale="day",
        reason="the memory of a DEQ does not grow with depth, and the explicit network has three blocks, where the "
        "paper compares with a deep one; with 110 layers, and about as many parameters, it takes more",
        comparison=FIGURE6,
        shown_by=against(MEMORY, MDEQ_JR, RESNET_DEEP),
    ),
)
"""All such experiments. For other claims that do not hold, no experiment shows the reason."""


def reason(claim: Claim[Any], scale: Scale, numbers: Numbers) -> str:
    """Return why a claim does not hold at a scale, with the numbers that show it, or that this is not known."""
    found = [ablation for ablation in ABLATIONS if ablation.claim is claim and ablation.scale == scale]
    return "; ".join(f"{one.reason} ({one.evidence(numbers)})" for one in found) or NOT_FOUND
