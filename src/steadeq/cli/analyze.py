"""`steadeq analyze`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Annotated, Literal

import tyro

from ..data import synthetic
from ..errors import InputError
from ..models import AbstractEquilibriumModel, ToyDEQ
from ..recipes.synthetic import SyntheticData
from ..report import analysis_panels, save_png, synthetic_figure
from ..train import Process, Run
from ..train.analysis import analyze
from ..train.files import write_atomically
from ..train.loading import load_model
from .arguments import parse
from .table import print_table


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What `analyze` takes."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    split: Literal["test", "validation"] = "test"
    """Which samples."""
    num_samples: int = 32
    """How many samples, from the first on."""
    max_evals: int = 60
    """Evaluations that a solve may spend: generous, as what is looked at is the equilibrium."""
    tol: float | None = None
    """Relative residual at which a sample is finished; by default the run's."""
    max_products: int = 80
    """Products with the Jacobian that each spectral estimate may spend."""
    step: int | None = None
    """Step of the checkpoint; by default the latest."""
    device: str = "auto"
    """auto, cpu, cuda ..."""


def run(arguments: Sequence[str]) -> int:
    """Look closely at a run, print a summary, and write JSON and figures."""
    given = parse(
        Arguments,
        arguments,
        command="analyze",
        summary="Spectrum, Jacobian norm, residual curves and per-sample evaluations of a run.",
    )
    for name in ("num_samples", "max_evals", "max_products"):
        if getattr(given, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} is {getattr(given, name)}; it must be at least 1.")
    if given.tol is not None and not 0 <= given.tol < 1:
        raise InputError(f"--tol is {given.tol}; it must be in [0, 1).")
    run = Run.open(given.run)
    with Process.join(given.device) as process:
        model, config, step = load_model(run, step=given.step, device=process.device)
        if not isinstance(model, AbstractEquilibriumModel):
            raise InputError(f"{run.path} is a run of an explicit network: it has no equilibrium to analyze.")
        splits = config.data.load()
        result = {
            "step": step,
            "split": given.split,
            **analyze(
                model,
                getattr(splits, given.split),
                config.forward.build(given.max_evals, given.tol),
                num_samples=given.num_samples,
                max_products=given.max_products,
                device=process.device,
            ),
        }
    figures = {panel.title: panel.figure for panel in analysis_panels(result)}
    if isinstance(model, ToyDEQ) and isinstance(config.data, SyntheticData):
        label = f"γ = {config.jacobian.weight:g}"
        target = partial(synthetic.target, variant=config.data.variant)
        data = splits.train.everything()
        figures["surface"] = synthetic_figure({label: model.cpu()}, target, data=data)
    folder = run.path / "analysis"
    try:
        folder.mkdir(exist_ok=True)
        write_atomically(run.path / "analysis.json", json.dumps(result, indent=1) + "\n")
        for name, figure in figures.items():
            save_png(figure, folder / f"{name.lower().replace(' ', '-')}.png")
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.") from error
    radius, largest = result["spectral_radius"], result["operator_norm"]
    rows = [
        _row("spectral radius (Arnoldi)", radius["values"], radius["errors"]),
        _row("spectral radius (Rayleigh, the paper's)", radius["rayleigh"]),
        _row("operator norm", largest["values"], largest["errors"]),
        _row("Jacobian norm ‖J‖²_F / d", result["jacobian_norm"]),
        _row(f"evaluations to residual {result['tol']:g}", result["num_evals"]),
    ]
    title = f"{run.path} at step {step}: {result['num_samples']} samples, {result['converged']:.0%} converged"
    print_table(["per sample", "mean", "smallest", "largest", "mean error"], rows, title=title)
    print(f"Written to {run.path / 'analysis.json'} and {folder}.")
    return 0


def _row(name: str, values: Sequence[float], errors: Sequence[float | None] | None = None) -> list[str]:
    numbers = [f"{value:.4g}" for value in (mean(values), min(values), max(values))]
    return [name, *numbers, "" if errors is None else _error(errors)]


def _error(errors: Sequence[float | None]) -> str:
    known = [error for error in errors if error is not None]
    if not known:
        return "unknown"
    text = f"{mean(known):.1e}"
    return text if len(known) == len(errors) else f"{text}, {len(errors) - len(known)} unknown"
