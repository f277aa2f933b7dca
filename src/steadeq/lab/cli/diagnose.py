"""`steadeq diagnose`: the spectrum of a trained network, and how its solves go, sample by sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean

import torch
from matplotlib.figure import Figure

from ..._internal.trees import leaves
from ...jacobian import frobenius_norm, operator_norm, spectral_radius
from ...models import ToyDEQ
from ..data import Synthetic, read_samples, synthetic
from ..errors import InputError
from ..files import write_atomically
from ..folder import check_plain
from ..loading import TrainedModel, load_trained
from ..report import diagnosis_panels, save_png, synthetic_figure
from ..report.synthetic import Frame
from ..runs import Diagnosis, Split
from ..train import Process
from ..train.adapter import ModelAdapter
from ..train.evaluation import check_weights
from .arguments import parse, positional
from .table import print_table


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `diagnose`."""

    run: Path = positional()
    """Folder of the run."""
    split: Split = "test"
    """Which samples."""
    num_samples: int = 32
    """Number of samples, from the first on."""
    max_evals: int = 60
    """Evaluations that a solve may spend: generous, as what is looked at is the equilibrium."""
    tol: float | None = None
    """Relative residual at which a sample is finished; by default the run's."""
    max_products: int = 80
    """Products with the Jacobian that each spectral estimate may spend."""
    step: int | None = None
    """Step of the checkpoint; by default the latest."""
    recipe: str | None = None
    """For a run of your own recipe: path/to/file.py:function. The file is executed."""
    device: str = "auto"
    """Device to compute on: auto, cpu, cuda ..."""


def run(arguments: Sequence[str]) -> int:
    """Look closely at a run, print a summary, and write JSON and figures."""
    summary = "Is it safe to iterate: spectrum, Jacobian norm, residual curves and evaluations of each sample."
    args = parse(Arguments, arguments, command="diagnose", summary=summary)
    for name, least in (("num_samples", 1), ("max_evals", 1), ("max_products", 2)):
        if getattr(args, name) < least:
            raise InputError(f"--{name.replace('_', '-')} is {getattr(args, name)}; it must be at least {least}.")
    if args.tol is not None and not 0 <= args.tol < 1:
        raise InputError(f"--tol is {args.tol}; it must be in [0, 1).")
    with Process.join(args.device) as process:
        trained = load_trained(args.run, step=args.step, device=process.device, recipe=args.recipe)
        check_weights(trained)
        result = _diagnose(trained, args, process.device)
    figures = {panel.title: panel.figure for panel in diagnosis_panels(result)} | _surfaces(trained)
    folder = args.run / "diagnosis"
    try:
        check_plain(args.run / "diagnosis.json")
        folder.mkdir(exist_ok=True)
        write_atomically(args.run / "diagnosis.json", result.to_json())
        for name, figure in figures.items():
            save_png(figure, folder / f"{name.lower().replace(' ', '-')}.png")
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.") from error
    rows = [
        _row("spectral radius (Arnoldi)", result.spectral_radius, result.spectral_radius_errors),
        _row("spectral radius (Rayleigh, the paper's)", result.spectral_radius_rayleigh),
        _row("operator norm", result.operator_norm, result.operator_norm_errors),
        _row("Jacobian norm ‖J‖²_F / d", result.jacobian_norm),
        _row(f"evaluations to residual {result.tol:g}", result.num_evals),
    ]
    title = f"{args.run} at step {result.step}: {result.num_samples} samples, {result.converged:.0%} converged"
    print_table(["per sample", "mean", "smallest", "largest", "mean error"], rows, title=title)
    print(f"Written to {args.run / 'diagnosis.json'} and {folder}.")
    return 0


def _diagnose(trained: TrainedModel, args: Arguments, device: torch.device) -> Diagnosis:
    """Return what is found out about a trained model on the first samples of a split."""
    adapter = ModelAdapter(trained.model)
    if not adapter.has_equilibrium:
        raise InputError("This is a run of an explicit network: it has no equilibrium to diagnose.")
    solver = trained.config.evaluation_solver
    solver = replace(solver, max_evals=args.max_evals, tol=solver.tol if args.tol is None else args.tol)
    generator = torch.Generator().manual_seed(0)
    dataset = trained.config.data.load_split(args.split)
    x, _ = read_samples(dataset, torch.arange(min(args.num_samples, len(dataset))))
    with torch.no_grad():
        eq = adapter(x.to(device), solver=solver).equilibrium
    assert eq is not None
    assert eq.stats is not None
    dim = sum(leaf[0].numel() for leaf in leaves(eq.z))
    radius = spectral_radius(eq, memory=min(args.max_products, 60), max_products=args.max_products, generator=generator)
    rayleigh = spectral_radius(eq, method="rayleigh", max_products=args.max_products, generator=generator)
    largest = operator_norm(eq, max_products=args.max_products, generator=generator)
    norm = frobenius_norm(eq, num_probes=16, generator=generator)
    trace = eq.stats.trace.double()
    low, high = torch.quantile(trace, torch.tensor([0.1, 0.9], dtype=trace.dtype, device=trace.device), dim=1)
    return Diagnosis(
        step=trained.step,
        split=args.split,
        num_samples=len(x),
        dim=dim,
        tol=solver.tol,
        max_evals=solver.max_evals,
        converged=float(eq.stats.converged.double().mean()),
        spectral_radius=tuple(radius.value.tolist()),
        spectral_radius_errors=tuple(radius.error.tolist()),
        spectral_radius_rayleigh=tuple(rayleigh.value.tolist()),
        operator_norm=tuple(largest.value.tolist()),
        operator_norm_errors=tuple(largest.error.tolist()),
        jacobian_norm=tuple((norm.value.square() / dim).tolist()),
        residual_mean=tuple(trace.mean(dim=1).tolist()),
        residual_low=tuple(low.tolist()),
        residual_high=tuple(high.tolist()),
        num_evals=tuple(eq.stats.num_evals.tolist()),
    )


def _surfaces(trained: TrainedModel) -> dict[str, Figure]:
    """Return the figure of a map of one variable, for runs of the synthetic study."""
    model, data = trained.model, trained.config.data
    if not isinstance(model, ToyDEQ) or not isinstance(data, Synthetic):
        return {}
    label = f"γ = {trained.config.regularizer.weight:g}"
    target = partial(synthetic.target, variant=data.variant)
    samples = read_samples(train := data.load().train, torch.arange(len(train)))
    frame = Frame.around([model.cpu()], target, radius=data.radius)
    return {"surface": synthetic_figure({label: model}, target, data=samples, frame=frame)}


def _row(name: str, values: Sequence[float | None], errors: Sequence[float | None] | None = None) -> list[str]:
    known = [value for value in values if value is not None]
    numbers = [f"{value:.4g}" for value in (mean(known), min(known), max(known))] if known else ["-"] * 3
    if errors is None:
        return [name, *numbers, ""]
    bounds = [error for error in errors if error is not None and error < float("inf")]
    if not bounds:
        return [name, *numbers, "unknown"]
    unknown = len(errors) - len(bounds)
    return [name, *numbers, f"{mean(bounds):.1e}{f', {unknown} unknown' if unknown else ''}"]
