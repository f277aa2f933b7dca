"""`steadeq diagnose`: what becomes of the states of a trained network that is iterated, and how its solves go."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from ...diagnosis import Diagnosis, Subject, diagnose
from ...equilibrium import Equilibrium
from ...jacobian import frobenius_norm, operator_norm, spectral_radius
from ...models import AbstractEquilibriumModel
from ...solvers import AbstractSolver
from ...trees import leaves, map_tensors
from ..errors import InputError
from ..extension import EXTENSIONS
from ..files import check_no_link, check_plain, write_atomically
from ..recipes import call_function, names_function
from ..report import diagnosis_panels, iteration_panel, save_png
from ..run.loading import TrainedModel, load_trained
from ..run.record import RunDiagnosis, Split
from ..terminal import Work, answer, note
from ..train import Process
from ..train.adapter import ModelAdapter
from ..train.evaluation import Samples
from .arguments import parse, positional
from .table import print_table


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `diagnose`."""

    run: Path = positional()
    """Folder of the run, or path/to/file.py:function for a model of your own: a function that returns a
    steadeq.diagnosis.Subject. The file is executed."""
    split: Split = "validation"
    """Which samples."""
    num_samples: int = 32
    """Number of samples, spread evenly over the split."""
    max_evals: int | None = None
    """Number of evaluations to iterate for, and budget of a solve; by default 256, or four times as many as in training
    if that is more."""
    tol: float | None = None
    """Relative residual at which a sample of a solve is finished; by default the run's."""
    bits: tuple[int, ...] = ()
    """Numbers of bits to which the cell's weights are rounded, such as 8 6 4, to see what becomes of the metric."""
    time_dim: int | None = None
    """Dim of the state that is time (1 for texts), to see whether later tokens change earlier states."""
    details: bool = False
    """Print all that was found, with its spread over the samples."""
    max_products: int = 80
    """Largest number of products with the Jacobian for each spectral estimate."""
    step: int | None = None
    """Step of the checkpoint; by default the latest."""
    recipe: str | None = None
    """For a run of your own recipe: path/to/file.py:function. The file is executed."""
    device: str = "auto"
    """Device to compute on: auto, cpu, cuda ..."""

    def __post_init__(self) -> None:
        for name, least in (("num_samples", 1), ("max_evals", 16), ("max_products", 2), ("time_dim", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"--{name.replace('_', '-')} is {value}; it must be at least {least}.")
        if self.tol is not None and not 0 <= self.tol < 1:
            raise InputError(f"--tol is {self.tol}; it must be in [0, 1).")


def run(arguments: Sequence[str]) -> int:
    """Look closely at a run, say what was found, and write JSON and figures."""
    summary = "Find out whether iterating a trained cell settles and whether it helps, and measure its spectrum."
    args = parse(Arguments, arguments, command="diagnose", summary=summary)
    if names_function(str(args.run)):
        return _run_file(args)
    with Process.join(args.device) as process:
        trained = load_trained(args.run, step=args.step, device=process.device, recipe=args.recipe)
        with Work(f"Diagnosing {args.run}", 8) as work:
            result = measure(trained, args, process.device, work)
    write(result, trained, args.run)
    print(result.found.details() if args.details else result.found, end="\n\n")
    rows = [
        _row("spectral radius (Arnoldi)", result.spectral_radius, result.spectral_radius_errors),
        _row("spectral radius (Rayleigh, the paper's)", result.spectral_radius_rayleigh),
        _row("operator norm", result.operator_norm, result.operator_norm_errors),
        _row("Jacobian norm ‖J‖²_F / d", result.jacobian_norm),
        _row(f"evaluations of the solver, to residual {result.tol:g} at best", result.num_evals),
    ]
    title = (
        f"Equilibria of the solver: {args.run} at step {result.step}, {result.num_samples} samples, "
        f"{result.converged:.0%} converged"
    )
    print_table(["per sample", "mean", "smallest", "largest", "mean error"], rows, title=title)
    note(f"Written to {args.run / 'diagnosis.json'} and {args.run / 'diagnosis'}.")
    answer(json.loads(result.to_json()))
    return 0


def write(result: RunDiagnosis, trained: TrainedModel, run: Path) -> None:
    """Write a diagnosis and its figures into the folder of a run."""
    panels = [iteration_panel(result), *diagnosis_panels(result)]
    figures = {panel.title: panel.figure for panel in panels}
    for extension in EXTENSIONS:
        figures |= importlib.import_module(extension.figures).run_figures(trained)
    folder = run / "diagnosis"
    try:
        check_plain(run / "diagnosis.json")
        check_no_link(folder)
        folder.mkdir(exist_ok=True)
        write_atomically(run / "diagnosis.json", result.to_json())
        for name, figure in figures.items():
            path = folder / f"{name.lower().replace(' ', '-')}.png"
            check_plain(path)
            save_png(figure, path)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.") from error


def _run_file(args: Arguments) -> int:
    """Diagnose a model of somebody's own."""
    of_runs = ("split", "num_samples", "tol", "step", "recipe", "device")
    for field in fields(args):
        if field.name in of_runs and getattr(args, field.name) != field.default:
            raise InputError(f"--{field.name.replace('_', '-')} is for runs; {args.run} is a function.")
    subject = call_function(str(args.run), Subject)
    subject = subject if args.time_dim is None else replace(subject, time_dim=args.time_dim)
    max_evals = max(256, 4 * (subject.training_depth or 0)) if args.max_evals is None else args.max_evals
    with Work(f"Diagnosing {args.run}", 1) as work:
        try:
            found = subject.diagnose(
                max_evals=max_evals,
                max_products=args.max_products,
                bits=args.bits,
                generator=torch.Generator().manual_seed(0),
            )
        except ValueError as error:
            raise InputError(f"{args.run} cannot be diagnosed: {error}") from error
        work.advance()
    print(found.details() if args.details else found)
    answer(found.to_dict())
    return 0


def measure(trained: TrainedModel, args: Arguments, device: torch.device, work: Work) -> RunDiagnosis:
    """Return what is found out about a trained model on some samples of a split."""
    config, adapter = trained.config, ModelAdapter(trained.model)
    if not adapter.has_equilibrium:
        raise InputError(f"{args.run} is a run of an explicit network: it has no equilibrium to diagnose.")
    depth = config.training_depth(trained.step)
    max_evals = max(256, 4 * depth) if args.max_evals is None else args.max_evals
    if max_evals < depth:
        raise InputError(f"--max-evals is {max_evals}; it must be at least the {depth} evaluations of training.")
    dataset = config.data.load_split(args.split)
    trained.check_samples(args.split, dataset)
    solver = config.evaluation_solver
    solver = solver.with_max_evals(max_evals).with_tol(solver.tol if args.tol is None else args.tol)
    precision = torch.bfloat16 if config.loop.precision == "bfloat16" else None
    with torch.autocast(device.type, dtype=precision, enabled=precision is not None):
        samples = Samples.spread(
            adapter, dataset, num_samples=args.num_samples, device=device, solver=config.evaluation_solver
        )
        with torch.no_grad():
            eq = adapter(samples.x, carry=samples.carry, solver=solver).equilibrium
        assert eq is not None
        work.advance()
        work.doing(f"letting the cell run for {max_evals} evaluations")
        found = _iterate(
            trained,
            eq,
            samples,
            max_evals=max_evals,
            training_depth=depth,
            max_products=args.max_products,
            bits=args.bits,
            time_dim=args.time_dim,
        )
        work.advance(3)
        return _summarize(trained, eq, solver, found, args, work)


def _iterate(
    trained: TrainedModel,
    eq: Equilibrium,
    samples: Samples,
    *,
    max_evals: int,
    training_depth: int,
    max_products: int,
    bits: tuple[int, ...],
    time_dim: int | None,
) -> Diagnosis:
    """Return what becomes of the states that are iterated, from the start that the model has."""
    model, task = trained.model, trained.config.data.task
    metric: Callable[[Any], Any] | None = None
    # Somebody's own network need not have more than `solve`.
    z0 = map_tensors(torch.zeros_like, eq.z)
    if isinstance(model, AbstractEquilibriumModel):
        context = (samples.carry,) if model.takes_carry else ()
        with torch.no_grad():
            z0, _ = model.encode(samples.x, *context)

        def score(z: Any) -> Tensor:
            return task.measure(model.decode(z), samples.y)

        metric = score

    try:
        return diagnose(
            eq.f,
            z0,
            *eq.inputs,
            max_evals=max_evals,
            training_depth=training_depth,
            metric=metric,
            metric_name=task.metric,
            higher_is_better=task.higher_is_better,
            max_products=max_products,
            generator=torch.Generator().manual_seed(0),
            bits=bits,
            time_dim=time_dim,
        )
    except ValueError as error:
        raise InputError(f"{trained.path} cannot be diagnosed so: {error}") from error


def _summarize(
    trained: TrainedModel, eq: Equilibrium, solver: AbstractSolver, found: Diagnosis, args: Arguments, work: Work
) -> RunDiagnosis:
    """Return what is known of equilibria and of iteration."""
    generator = torch.Generator().manual_seed(0)
    assert eq.stats is not None
    dim = sum(leaf[0].numel() for leaf in leaves(eq.z))
    work.doing("estimating the spectrum")
    radius = spectral_radius(eq, memory=min(args.max_products, 60), max_products=args.max_products, generator=generator)
    work.advance()
    rayleigh = spectral_radius(eq, method="rayleigh", max_products=args.max_products, generator=generator)
    work.advance()
    unknown = (None,) * len(radius.value)
    try:
        largest = operator_norm(eq, max_products=args.max_products, generator=generator)
    except RuntimeError as error:
        # Fused attention has none, and all other numbers do without.
        if "second derivative" not in str(error):
            raise
        largest = None
    work.advance()
    norm = frobenius_norm(eq, num_probes=16, generator=generator)
    work.advance()
    trace = eq.stats.trace.double()
    low, high = torch.quantile(trace, torch.tensor([0.1, 0.9], dtype=trace.dtype, device=trace.device), dim=1)
    return RunDiagnosis(
        step=trained.step,
        split=args.split,
        num_samples=len(radius.value),
        dim=dim,
        tol=solver.tol,
        max_evals=solver.max_evals,
        converged=float(eq.stats.converged.double().mean()),
        spectral_radius=tuple(radius.value.tolist()),
        spectral_radius_errors=tuple(radius.error.tolist()),
        spectral_radius_rayleigh=tuple(rayleigh.value.tolist()),
        operator_norm=unknown if largest is None else tuple(largest.value.tolist()),
        operator_norm_errors=unknown if largest is None else tuple(largest.error.tolist()),
        jacobian_norm=tuple((norm.value.square() / dim).tolist()),
        residual_mean=tuple(trace.mean(dim=1).tolist()),
        residual_low=tuple(low.tolist()),
        residual_high=tuple(high.tolist()),
        num_evals=tuple(eq.stats.num_evals.tolist()),
        iteration=found.to_dict(),
    )


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
