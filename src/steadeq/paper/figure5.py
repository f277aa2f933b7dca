"""Figure 5: what the penalty does to a map of one variable (section 5.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..lab import recipes
from ..lab.config import TrainConfig
from ..lab.data import AbstractDataset
from ..lab.data.synthetic import NOISE, RADIUS, Synthetic, target
from ..lab.recipes.registry import Scale
from ..lab.report import save_png
from ..lab.run.loading import load_trained
from ..lab.train import Process
from ..models import ToyDEQ
from ..solvers import Anderson, Picard
from .result import Claim, PaperResult, Source, write_csv
from .synthetic import gamma_figure, synthetic_figure
from .tables import Column, markdown_table
from .variant import SEEDS, Averages

GAMMAS = (0.0, 1.0, 2.0, 4.0)
MAX_EVALS = 100
_MSE = Column(title="validation MSE at 6 evaluations", measure="mse", digits=".4f")
_SLOPE = Column(title="mean slope of f", measure="slope", digits=".3f")
_PICARD = Column(title="evaluations of plain iteration", measure="picard_evals", digits=".1f")
_ANDERSON = Column(title="evaluations of Anderson", measure="anderson_evals", digits=".2f")


@dataclass(frozen=True, kw_only=True)
class GammaSummary(Averages):
    """What is known of the models that were trained with one gamma."""

    gamma: float


Summary = Sequence[GammaSummary]


@torch.no_grad()
def measure(model: ToyDEQ, x: Tensor, y: Tensor, *, budget: int) -> dict[str, float]:
    """Return what is measured of a trained model; evaluations are counted until the residual is 0.001.

    Args:
        model: The model.
        x: (N, 1) inputs, on the device of the model.
        y: (N, 1) targets.
        budget: Evaluations of the run's own solver.
    """
    converged = model(x, solver=Anderson(max_evals=MAX_EVALS, tol=1e-6))
    with torch.enable_grad():
        # The whole Jacobian, as the map is scalar.
        z = converged.detach().requires_grad_()
        slope = torch.autograd.grad(model.layer.cell(z, x).sum(), z)[0].abs()

    def num_evals(solver: Anderson | Picard) -> float:
        stats = model.solve(x, solver=solver)[1].stats
        assert stats is not None
        return float(stats.num_evals.double().mean())

    return {
        "mse": float((model(x, solver=Anderson(max_evals=budget, tol=1e-3)) - y).square().mean()),
        "mse_converged": float((converged - y).square().mean()),
        "slope": float(slope.mean()),
        "slope_max": float(slope.max()),
        "picard_evals": num_evals(Picard(max_evals=MAX_EVALS, tol=1e-3)),
        "anderson_evals": num_evals(Anderson(max_evals=MAX_EVALS, tol=1e-3)),
    }


@dataclass(frozen=True, kw_only=True)
class _Figure5(PaperResult[Summary]):
    rows_key = "gammas"

    def runs(self, scale: Scale) -> Mapping[str, TrainConfig]:
        base = recipes.get("synthetic").build()
        return {
            f"synthetic-gamma{gamma:g}-seed{seed}": replace(
                base, regularizer=replace(base.regularizer, weight=gamma), loop=replace(base.loop, seed=seed)
            )
            for gamma in GAMMAS
            for seed in SEEDS
        }

    def measure(self, runs: Mapping[str, Path], folder: Path, scale: Scale) -> Summary:
        device = Process.alone().device
        models: dict[float, list[ToyDEQ]] = {gamma: [] for gamma in GAMMAS}
        measured: dict[float, list[dict[str, float]]] = {gamma: [] for gamma in GAMMAS}
        rows = []
        validation = Synthetic().load().validation
        assert isinstance(validation, AbstractDataset)
        x, y = validation.all()
        for name in self.runs(scale):
            trained = load_trained(runs[name], device=device)
            model, config = trained.model, trained.config
            assert isinstance(model, ToyDEQ)
            found = measure(model, x.to(device), y.to(device), budget=config.evaluation_solver.max_evals)
            gamma = config.regularizer.weight
            measured[gamma].append(found)
            models[gamma].append(model.cpu())
            rows.append({"gamma": gamma, "seed": config.loop.seed, **found})
        write_csv(folder / "runs.csv", rows)
        first = {f"γ = {gamma:g}": members[0] for gamma, members in models.items()}
        save_png(synthetic_figure(first, target, data=(x, y)), folder / "surfaces.png", dpi=90)
        save_png(gamma_figure(models, x), folder / "evaluations.png", dpi=110)
        return [GammaSummary.over(found, gamma=gamma) for gamma, found in measured.items()]

    def to_json(self, summary: Summary) -> dict[str, Any]:
        return {"noise_floor": NOISE**2, "gammas": [row.to_json() for row in summary]}

    def from_json(self, content: Mapping[str, Any]) -> Summary:
        return [GammaSummary.from_json(row) for row in content["gammas"]]

    def table(self, summary: Summary) -> str:
        columns = (_MSE, _SLOPE, _PICARD, _ANDERSON)
        rows = [[f"{row.gamma:g}", *(column.show(row) for column in columns)] for row in summary]
        return markdown_table(["γ", *(column.title for column in columns)], rows)


def _target_variance() -> float:
    """Return the variance of the target over the inputs, which a constant would leave."""
    return float(target(torch.linspace(-1, 1, 1001) * RADIUS).var())


def _listed(summary: Summary, column: Column) -> str:
    gammas = ", ".join(f"{row.gamma:g}" for row in summary)
    return f"gamma {gammas}: {', '.join(map(column.show, summary))}"


def _falls(text: str, column: Column, *, id: str, prefix: str = "", source: Source = "paper") -> Claim[Summary]:
    """Return a claim that a measure falls with gamma."""
    return Claim(
        text,
        id=id,
        section="5.1, Figure 5",
        source=source,
        holds=lambda s: all(b.mean(column.measure) < a.mean(column.measure) for a, b in pairwise(s)),
        evidence=lambda s: prefix + _listed(s, column),
    )


FIGURE5 = _Figure5(
    name="fig5",
    title="Figure 5: synthetic study",
    statement="all gammas fit the target; larger ones flatten f and need fewer evaluations",
    scales=("cpu",),
    takes="3 min",
    claims=(
        Claim(
            "every gamma fits the target (unexplained variance, noise aside, below 1%)",
            id="fit",
            section="5.1, Figure 5",
            threshold="stated before",
            holds=lambda s: (max(row.mean("mse") for row in s) - NOISE**2) / _target_variance() < 0.01,
            evidence=lambda s: (
                f"validation MSE, {_listed(s, _MSE)}; noise floor {NOISE**2:g}, variance of the target "
                f"{_target_variance():.2f}"
            ),
        ),
        _falls(
            "a larger gamma gives a flatter surface at the equilibrium", _SLOPE, id="flatter", prefix="mean |df/dz|, "
        ),
        _falls("a larger gamma needs fewer evaluations of plain iteration", _PICARD, id="picard"),
        # The paper draws plain iteration only.
        _falls("a larger gamma needs fewer evaluations of Anderson", _ANDERSON, id="anderson", source="own"),
    ),
)
