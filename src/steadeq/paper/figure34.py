"""Figure 3: small changes of the architecture make a DEQ-Transformer unstable, unless it is regularized."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from ..lab.report import RunGroup
from .comparison import Comparison
from .figure1 import at_evals
from .figure2 import draw_cells
from .language import NO_WEIGHT_NORM, POST, POST_JR, PRE, PRE_JR, as_trained_best, choose_settings
from .result import Claim
from .tables import BACKWARD_RESIDUAL, EVALS, PERPLEXITY, RADIUS, RESIDUAL, Column
from .variant import VariantSummary

_RESIDUAL = Column(title="residual", measure="train_residual", digits=".2g")
_FEW = 12
"""Evaluations of the regularized models."""
_AT_FEW = at_evals(_FEW)


def _is_worse(row: VariantSummary, than: VariantSummary) -> bool:
    return row.mean("diverged") > than.mean("diverged") or (
        row.mean("train_residual") > 2 * than.mean("train_residual")
    )


def _is_steadier(row: VariantSummary, than: VariantSummary) -> bool:
    names = (_AT_FEW.measure, "train_evals")
    return row.mean("diverged") == 0 and all(row.mean(name) < than.mean(name) for name in names)


@dataclass(frozen=True, kw_only=True)
class _Figure34(Comparison):
    def draw(self, groups: Sequence[RunGroup]) -> Mapping[str, Figure | None]:
        return {**super().draw(groups), "cells": draw_cells()}


FIGURE34 = _Figure34(
    name="fig3-4",
    title="Figure 3: brittleness",
    statement="pre-LN and missing weight normalization make a DEQ-Transformer unstable; regularized ones are stable",
    variants=as_trained_best(POST, PRE, NO_WEIGHT_NORM, POST_JR, PRE_JR),
    budgets=(_FEW,),
    extend=choose_settings,
    figures=("forward_residual", "backward_residual", "forward_evaluations", "perplexity"),
    claims=(
        Claim(
            "pre-LN makes an unregularized model diverge (or end with at least twice the residual of post-LN)",
            section="3.3, Figure 3",
            threshold="stated before",
            subjects=(PRE,),
            holds=lambda s: _is_worse(s[PRE], s[POST]),
            evidence=lambda s: _RESIDUAL.against(s[PRE], s[POST]),
        ),
        Claim(
            "without weight normalization, solves of post-LN collapse (it diverges, or ends with twice the residual)",
            section="3.3, Figure 3",
            threshold="stated before",
            subjects=(NO_WEIGHT_NORM,),
            holds=lambda s: _is_worse(s[NO_WEIGHT_NORM], s[POST]),
            evidence=lambda s: _RESIDUAL.against(s[NO_WEIGHT_NORM], s[POST]),
        ),
        Claim(
            f"regularized, both post-LN and pre-LN end with a smaller residual after as many evaluations ({_FEW}, on "
            "test data), and take fewer in training",
            subjects=(POST_JR, PRE_JR, PRE),
            section="5.2, Figure 3",
            threshold="set after a look at numbers",
            holds=lambda s: _is_steadier(s[POST_JR], s[POST]) and _is_steadier(s[PRE_JR], s[PRE]),
            evidence=lambda s: (
                f"post-LN {_AT_FEW.against(s[POST_JR], s[POST])}, pre-LN {_AT_FEW.against(s[PRE_JR], s[PRE])}"
            ),
        ),
    ),
    columns=(PERPLEXITY, EVALS, RESIDUAL, replace(BACKWARD_RESIDUAL, title="backward residual"), RADIUS),
)
