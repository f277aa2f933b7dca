"""Figure 5: what the penalty does to a map of one variable (section 5.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from ..lab import data
from ..lab import recipes
from ..models import ToyDEQ
from ..lab.recipes.registry import Scale
from ..lab.report import gamma_figure, save_png, synthetic_figure
from ..solvers import Anderson, Picard
from ..lab.train import Run, TrainConfig
from ..lab.train.loading import load_model
from .result import Artefact, Verdict
from .drawing import write_summary
from .results import spread, tabulate, write_rows

GAMMAS = (0.0, 1.0, 2.0, 4.0)
SEEDS = (0, 1, 2)
MAX_EVALS = 100
_MEASURES = ("mse", "mse_converged", "slope", "slope_max", "picard_evals", "anderson_evals")


def configs(scale: Scale) -> dict[str, TrainConfig]:
    """Return a run for each gamma and seed; the data, and both scales, are the same for all."""
    base = recipes.get("synthetic").build()
    return {
        f"synthetic-gamma{gamma:g}-seed{seed}": replace(
            base, jacobian=replace(base.jacobian, weight=gamma), loop=replace(base.loop, seed=seed)
        )
        for gamma in GAMMAS
        for seed in SEEDS
    }


def produce(runs: Mapping[str, Run], folder: Path, scale: Scale) -> list[Verdict]:
    """Draw the figure, write its numbers, and judge the claims.

    Args:
        runs: Finished runs, by name.
        folder: Where figures and numbers go.
        scale: Of the runs.
    """
    models: dict[float, list[ToyDEQ]] = {gamma: [] for gamma in GAMMAS}
    rows: list[dict[str, Any]] = []
    splits = data.synthetic.generate()
    for run in runs.values():
        model, config, _ = load_model(run)
        assert isinstance(model, ToyDEQ)
        models[config.jacobian.weight].append(model)
        budget = config.forward.evaluation_budget
        rows.append({"gamma": config.jacobian.weight, "seed": config.loop.seed, **measure(model, splits, budget)})
    folder.mkdir(parents=True, exist_ok=True)
    first = {f"γ = {gamma:g}": members[0] for gamma, members in models.items()}
    validation = splits.validation
    figure = synthetic_figure(first, data.synthetic.target, data=validation.everything())
    save_png(figure, folder / "surfaces.png", dpi=90)
    save_png(gamma_figure(models, validation.everything()[0]), folder / "evaluations.png", dpi=110)
    write_rows(folder / "runs.csv", rows)
    summary = summarize(rows)
    verdicts = judge(summary)
    write_summary(folder, verdicts, noise_floor=data.synthetic.NOISE**2, gammas=summary)
    return verdicts


@torch.no_grad()
def measure(model: ToyDEQ, splits: data.Splits, budget: int) -> dict[str, float]:
    """Return what is compared, on the validation split.

    Args:
        model: A trained model.
        splits: The data.
        budget: Evaluations of the run's own solver.
    """
    x, y = splits.validation.everything()
    at_budget = model(x, solver=Anderson(max_evals=budget, tol=1e-3))[0]
    converged = model(x, solver=Anderson(max_evals=MAX_EVALS, tol=1e-6))[0]
    slope = _slopes(model, converged, x)
    picard = model(x, solver=Picard(max_evals=MAX_EVALS, tol=1e-3))[1]
    anderson = model(x, solver=Anderson(max_evals=MAX_EVALS, tol=1e-3))[1]
    return {
        "mse": float((at_budget - y).square().mean()),
        "mse_converged": float((converged - y).square().mean()),
        "slope": float(slope.abs().mean()),
        "slope_max": float(slope.abs().max()),
        "picard_evals": float(picard.num_evals.double().mean()),
        "anderson_evals": float(anderson.num_evals.double().mean()),
    }


def _slopes(model: ToyDEQ, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return df/dz, the whole Jacobian of a scalar map."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        return torch.autograd.grad(model.layer.cell(z, x).sum(), z)[0]


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return mean and standard deviation over seeds, for each gamma."""
    return [{"gamma": gamma, **spread([r for r in rows if r["gamma"] == gamma], _MEASURES)} for gamma in GAMMAS]


def judge(summary: list[dict[str, float]]) -> list[Verdict]:
    """Hold the paper's claims against the numbers."""
    floor = data.synthetic.NOISE**2
    # The variance of the target over the inputs, which a constant would leave.
    scale = float(data.synthetic.target(torch.linspace(-1, 1, 1001) * data.synthetic.RADIUS).var())

    def listed(name: str, digits: str) -> str:
        cells = (f"{entry[name]:{digits}} ± {entry[f'{name}_std']:{digits}}" for entry in summary)
        gammas = ", ".join(f"{entry['gamma']:g}" for entry in summary)
        return f"gamma {gammas}: {', '.join(cells)}"

    def falls(name: str) -> bool:
        return all(after[name] < before[name] for before, after in pairwise(summary))

    worst = max(entry["mse"] for entry in summary)
    return [
        Verdict.of(
            "every gamma fits the target (unexplained variance, noise aside, below 1%)",
            (worst - floor) / scale < 0.01,
            f"validation MSE, {listed('mse', '.4f')}; noise floor {floor:g}, variance of the target {scale:.2f}",
        ),
        Verdict.of(
            "a larger gamma gives a flatter surface at the equilibrium",
            falls("slope"),
            f"mean |df/dz|, {listed('slope', '.3f')}",
        ),
        Verdict.of(
            "a larger gamma needs fewer evaluations of plain iteration",
            falls("picard_evals"),
            listed("picard_evals", ".1f"),
        ),
        Verdict.of(
            "a larger gamma needs fewer evaluations of Anderson",
            falls("anderson_evals"),
            listed("anderson_evals", ".2f"),
        ),
    ]


def table(content: Mapping[str, Any]) -> str:
    """Return the numbers of `summary.json` as a table in Markdown."""
    columns = {
        "validation MSE at 6 evaluations": ("mse", ".4f"),
        "mean slope of f": ("slope", ".3f"),
        "evaluations of plain iteration": ("picard_evals", ".1f"),
        "evaluations of Anderson": ("anderson_evals", ".2f"),
    }
    rows = [
        [f"{entry['gamma']:g}", *(f"{entry[n]:{d}} ± {entry[f'{n}_std']:{d}}" for n, d in columns.values())]
        for entry in content["gammas"]
    ]
    return tabulate(["γ", *columns], rows)


FIGURE5 = Artefact(
    name="fig5",
    claim="all gammas fit the target; larger ones flatten f and need fewer evaluations",
    data={"cpu": "synthetic", "paper": "synthetic"},
    duration={"cpu": "3 min", "paper": "3 min"},
    runs=configs,
    produce=produce,
    tabulate=table,
)
