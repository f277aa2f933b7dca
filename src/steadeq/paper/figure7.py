"""Figure 7: the spectral radius over training, with and without regularization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from ..lab.report import RunGroup
from ..lab.report.curves import power_method_figure
from .result import Verdict
from .variant import find
from .study import Summary, compare
from .table import Column, show
from .wikitext import DATA, POST, POST_JR, SMALL_BUDGET, entries_of

_NAMES = (POST, SMALL_BUDGET, POST_JR)


def draw(groups: Sequence[RunGroup]) -> Mapping[str, Figure | None]:
    """Return the figures by their names."""
    return {
        "spectral_radius": power_method_figure(groups),
    }


def judge(summary: Summary) -> list[Verdict]:
    """Hold the paper's claims against the numbers."""
    plain, small, regularized = (find(summary, name) for name in _NAMES)

    def radii(*rows: Mapping[str, Any]) -> str:
        return " against ".join(show(row, "spectral_radius", digits=".2f") for row in rows)

    return [
        Verdict.of(
            "the regularized model has the smallest spectral radius",
            regularized["spectral_radius"] < min(plain["spectral_radius"], small["spectral_radius"]),
            f"{radii(regularized, plain)} at the generous budget and "
            f"{show(small, 'spectral_radius', digits='.2f')} at the small one",
        ),
        Verdict.of(
            "without regularization, the small budget ends with a larger radius than the generous one",
            small["spectral_radius"] > plain["spectral_radius"],
            radii(small, plain),
        ),
        Verdict.of(
            "without regularization the radius is above 1, and with it below",
            regularized["spectral_radius"] < 1 < plain["spectral_radius"],
            radii(regularized, plain),
        ),
    ]


_COLUMNS = (
    Column(title="spectral radius (Arnoldi)", measure="spectral_radius", digits=".2f"),
    Column(title="by the paper's power method", measure="spectral_radius_rayleigh", digits=".2f"),
    Column(title="‖J‖²_F / d", measure="jacobian_norm", digits=".3f"),
    Column(title="residual, last tenth", measure="train_residual", digits=".1g"),
)

FIGURE7 = compare(
    name="fig7",
    claim="regularization constrains the spectral radius; training with few evaluations lets it explode",
    data=DATA,
    duration={"cpu": "30 min", "paper": "weeks on 4 GPUs"},
    entries=entries_of(*_NAMES),
    figures=draw,
    judge=judge,
    columns=_COLUMNS,
)
