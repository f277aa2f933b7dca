"""Table 2: image classifiers, their accuracy and evaluations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from matplotlib.figure import Figure

from ..lab import recipes
from ..lab.report import RunGroup
from ..lab.run.record import Spread
from .comparison import FIGURES, Comparison
from .result import Claim
from .tables import ACCURACY, Column
from .variant import Summary, VariantSummary
from .vision import (
    DENSENET,
    IMAGENET,
    IMAGENET_LARGE,
    IMAGENET_RESNETS,
    IMAGENETTE,
    MDEQ,
    MDEQ_JR,
    MDEQ_JR_SOONER,
    MONOTONE,
    MULTI_TIER,
    RESNET,
    RESNET101,
    RESNET_DEEP,
    RESNET_GROUP_NORM,
    SMALL_BUDGET,
    STOPPED,
    STOPPED_SOONER,
    TABLE2_OF_THE_PAPER,
    classifiers,
)

BUDGETS = (1, 2, 3, 4, 6, 12)
"""Budgets at which every DEQ is evaluated on the test images."""
_OTHERS = (IMAGENETTE, IMAGENET, IMAGENET_LARGE)
"""Data sets beside CIFAR-10."""


def add_sizes(summary: Summary) -> Summary:
    """Give every variant the number of its parameters, and the seconds of training for 1,000 images."""

    def extended(row: VariantSummary) -> VariantSummary:
        config = recipes.get(row.recipe).build()
        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in config.model.build().parameters())
        return row.adding(
            num_parameters=Spread(mean=count, std=None, count=1),
            # Steps of different recipes may have batches of different sizes.
            train_seconds=row.scaled("seconds_per_step", 1000 / config.loop.batch_size),
        )

    return summary.map(extended)


_ACCURACY = replace(ACCURACY, beside_paper="paper, %")
_SECONDS = Column(title="training, s for 1,000 images", measure="train_seconds", digits=".1f")


def _at_budgets(*rows: VariantSummary) -> str:
    return " against ".join(f"{_ACCURACY.show(row)}% at {row.max_evals}" for row in rows)


def _claims_about(prefix: str) -> tuple[Claim[Summary], ...]:
    """Return what is claimed about evaluations and time on a data set, which the names of variants begin with."""
    plain, stopped, regularized = (prefix + name for name in (MDEQ, STOPPED, MDEQ_JR))

    def applies(summary: Summary) -> bool:
        return summary.plans(plain)

    def speedup(summary: Summary) -> float:
        return summary[plain].mean("train_seconds") / summary[regularized].mean("train_seconds")

    return (
        Claim(
            f"{prefix}regularized with the small budget is at most 1 point below unregularized with the large one",
            id=f"{prefix}small-budget",
            section="5.3, Table 2",
            threshold="stated before",
            holds=lambda s: s[regularized].mean("score") >= s[plain].mean("score") - 0.01,
            evidence=lambda s: _at_budgets(s[regularized], s[plain]),
            applies=applies,
        ),
        Claim(
            f"{prefix}unregularized, but stopped early at the small budget, loses at least 2 points",
            id=f"{prefix}stopped-early",
            section="5.3, Table 2",
            # Of ImageNet, the paper's table has no such row.
            source="own" if prefix else "paper",
            threshold="stated before",
            holds=lambda s: s[stopped].mean("score") <= s[plain].mean("score") - 0.02,
            evidence=lambda s: _at_budgets(s[stopped], s[plain]),
            applies=applies,
        ),
        Claim(
            f"{prefix}training is at least twice as fast an epoch",
            id=f"{prefix}faster",
            section="5.3" if prefix else "1, introduction",
            holds=lambda s: speedup(s) >= 2,
            evidence=lambda s: (
                f"{_SECONDS.against(s[regularized], s[plain])} s for 1,000 images: {speedup(s):.2f} times"
            ),
            applies=applies,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Table2(Comparison):
    def draw(self, groups: Sequence[RunGroup]) -> Mapping[str, Figure | None]:
        solved = [group for group in groups if RESNET not in group.label]
        on_cifar10 = (MONOTONE, MULTI_TIER, MDEQ, SMALL_BUDGET, MDEQ_JR)
        drawn = {**super().draw([group for group in solved if group.label in on_cifar10])}
        # On one plot there is one data set.
        for prefix in _OTHERS:
            others = [replace(g, label=g.label.removeprefix(prefix)) for g in solved if g.label.startswith(prefix)]
            name = prefix.split(":")[0].lower().replace(", ", "_")
            for figure in ("accuracy_by_evaluations", "forward_residual") if others else ():
                drawn[f"{name}_{figure}"] = FIGURES[figure](others)
        return drawn


TABLE2 = _Table2(
    name="table2",
    title="Table 2: images",
    statement="a regularized MDEQ needs half the evaluations at most for about the same accuracy, and is twice as fast",
    variants=classifiers(
        *(RESNET, RESNET_DEEP, RESNET_GROUP_NORM, RESNET101, DENSENET, MONOTONE, MULTI_TIER),
        *(MDEQ, STOPPED, STOPPED_SOONER, SMALL_BUDGET, MDEQ_JR, MDEQ_JR_SOONER),
        *IMAGENET_RESNETS,
        *(prefix + name for prefix in _OTHERS for name in (RESNET, MDEQ, STOPPED, MDEQ_JR)),
    ),
    figures=(
        *("accuracy_by_evaluations", "forward_residual", "backward_residual"),
        *("forward_evaluations", "jacobian_norm", "spectral_radius"),
    ),
    claims=(
        *_claims_about(""),
        _ACCURACY.claim(
            "regularized, MDEQ is within 1 point of the explicit network, or above",
            MDEQ_JR,
            RESNET,
            lambda a, b: a >= b - 0.01,
            section="5.3, Table 2",
            threshold="set after a look at numbers",
        ),
        _ACCURACY.claim(
            "regularized, MDEQ is at least as accurate as the multi-tier monotone DEQ",
            MDEQ_JR,
            MULTI_TIER,
            lambda a, b: a >= b,
            section="Table 2",
        ),
        _ACCURACY.claim(
            "regularized, MDEQ is at least as accurate as the monotone DEQ of a single scale",
            MDEQ_JR,
            MONOTONE,
            lambda a, b: a >= b,
            section="Table 2",
            source="own",
        ),
        *(claim for prefix in _OTHERS for claim in _claims_about(prefix)),
    ),
    columns=(
        _ACCURACY,
        Column(title="spectral radius", measure="spectral_radius", digits=".2f"),
        _SECONDS,
    ),
    nfe_beside_paper=True,
    quoted=TABLE2_OF_THE_PAPER,
    budgets=BUDGETS,
    extend=add_sizes,
)
