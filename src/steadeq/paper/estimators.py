"""Section 4.2: how precise the estimate of the penalty is, and what it costs."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..adjoints import Implicit
from ..equilibrium import ConvergenceWarning, Equilibrium
from ..jacobian import frobenius_norm, jacobian_penalty, linearize
from ..lab.config import TrainConfig
from ..lab.data import read_samples
from ..lab.recipes.registry import Scale
from ..lab.report.style import GRAY, HEIGHT, WIDTH, line_style, styled, use_log_scale
from ..lab.run.loading import load_trained
from ..lab.tasks import AbstractTask
from ..lab.train.adapter import ModelAdapter
from ..models import AbstractEquilibriumModel
from ..models.transformer import is_language_model
from ..solvers import GMRES, Anderson
from ..trees import map_tensors, select_rows
from .comparison import save_figures
from .result import Claim, PaperResult, write_csv
from .tables import markdown_table
from .variant import Variant, plan

PROBES = (1, 2, 4, 8, 16)
"""Numbers of probes M whose errors are compared, on the same batch."""
BATCHES = (1, 2, 4, 8, 16, 32)
"""Sizes of batches B whose errors are compared, with a single probe."""
PRODUCTS = (12, 24, 48, 96)
"""Numbers of products that both estimators of the norm may spend."""
COMPARED = 48
"""Number of products at which they are compared."""
COSTS = (1, 2, 4)
"""Numbers of probes whose time is measured."""
NUM_REPEATS = 200
"""Estimates of which an error is the root mean square."""
_NUM_SAMPLES, _NUM_EXACT, _NUM_TOKENS = 64, 4, 16
_FEW, _MANY = 8, 24
"""Backward steps by whose difference in time one of them is measured."""


def _short(config: TrainConfig) -> TrainConfig:
    return replace(config, loop=replace(config.loop, num_steps=300))


CELLS: Mapping[str, Variant] = {
    "convolution": Variant("convolution", "digits", 18),
    "convolution + JR": Variant("convolution + JR", "digits-jr", 6),
    "Transformer + JR": Variant("Transformer + JR", "wikitext2-deq-post-jr-cpu", 12, change=_short),
}
"""Trained cells, each by one run."""


# Precision


def exact_squares(eq: Equilibrium) -> Tensor:
    """Return ‖J‖²_F of each sample from all rows of J, one product each."""
    point = linearize(eq)
    total = torch.zeros_like(point.fz[:, 0])
    with torch.no_grad():
        for index in range(point.fz.shape[1]):
            unit = torch.zeros_like(point.fz)
            unit[:, index] = 1
            total += point.vjp(unit).square().sum(dim=1)
    return total


def rows_of(eq: Equilibrium, rows: Tensor) -> Equilibrium:
    """Return the equilibrium of some samples, which may repeat."""
    z = map_tensors(lambda leaf: leaf.index_select(0, rows), eq.z)
    return Equilibrium.at(eq.f, z, *select_rows(eq.inputs, rows))


def root_mean_square(errors: Sequence[float] | Tensor) -> float:
    """Return the root of the mean square."""
    return float(torch.as_tensor(errors, dtype=torch.float64).square().mean().sqrt())


@torch.no_grad()
def probe_errors(eq: Equilibrium, exact: float, *, num_repeats: int = NUM_REPEATS) -> dict[int, float]:
    """Return the relative error of the penalty of a batch by the number of probes.

    Args:
        eq: The batch.
        exact: What is estimated.
        num_repeats: Number of estimates.
    """
    generator = torch.Generator().manual_seed(0)
    found = {}
    for num_probes in PROBES:
        # The paper's probes.
        estimates = [
            float(jacobian_penalty(eq, num_probes=num_probes, probe="gaussian", generator=generator))
            for _ in range(num_repeats)
        ]
        found[num_probes] = root_mean_square([estimate / exact - 1 for estimate in estimates])
    return found


@torch.no_grad()
def batch_errors(eq: Equilibrium, *, num_repeats: int = NUM_REPEATS) -> dict[int, float]:
    """Return the relative error of the penalty of random batches, with a single probe, by their size.

    It is relative to the mean over all samples, from which batches are drawn with replacement.

    Args:
        eq: All samples.
        num_repeats: Number of batches.
    """
    generator = torch.Generator().manual_seed(0)
    num_samples = len(linearize(eq).fz)
    mean = float(jacobian_penalty(eq, num_probes=200, probe="gaussian", generator=generator))
    found = {}
    for size in BATCHES:
        errors = []
        for _ in range(num_repeats):
            batch = rows_of(eq, torch.randint(num_samples, (size,), generator=generator))
            errors.append(float(jacobian_penalty(batch, probe="gaussian", generator=generator)) / mean - 1)
        found[size] = root_mean_square(errors)
    return found


def product_errors(eq: Equilibrium, exact: Tensor, method: Any, *, num_repeats: int = 20) -> dict[int, float]:
    """Return the relative error of the estimates of ‖J‖²_F by the number of products.

    Args:
        eq: Some samples.
        exact: (B,) what is estimated of each.
        method: "hutchinson" or "hutch++".
        num_repeats: Number of estimates of each sample.
    """
    generator = torch.Generator().manual_seed(0)

    def errors(num_products: int) -> Tensor:
        found = frobenius_norm(eq, method=method, num_probes=num_products, generator=generator)
        assert found.num_products == num_products
        return found.value.square() / exact - 1

    return {n: root_mean_square(torch.cat([errors(n) for _ in range(num_repeats)])) for n in PRODUCTS}


def fit_exponent(errors: Mapping[int, float]) -> float:
    """Return the exponent of the power law that fits best.

    Example:
        >>> round(fit_exponent({1: 0.4, 4: 0.2, 16: 0.1}), 6)
        -0.5
    """
    slope, _ = np.polyfit(np.log(list(errors)), np.log(list(errors.values())), deg=1)
    return float(slope)


# Cost


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingStep:
    """A training step without its optimizer, with fixed numbers of evaluations."""

    model: AbstractEquilibriumModel
    task: AbstractTask
    x: Tensor
    y: Tensor

    def run(
        self, *, num_backward: int = _FEW, penalty: Callable[[Equilibrium], Tensor] | None = None
    ) -> Callable[[], None]:
        """Return a function that makes the step.

        Args:
            num_backward: Steps of the backward solve.
            penalty: What is added to the loss.
        """
        solver, adjoint = Anderson(max_evals=6, tol=0), Implicit(GMRES(max_evals=num_backward, tol=0))

        def step() -> None:
            with warnings.catch_warnings():
                # Nothing is meant to converge.
                warnings.simplefilter("ignore", ConvergenceWarning)
                output, eq = self.model.solve(self.x, solver=solver, adjoint=adjoint)
                loss = self.task.losses(output, self.y).mean()
                if penalty is not None:
                    loss = loss + penalty(eq)
                loss.backward()
            self.model.zero_grad()

        return step


def cpu_seconds(steps: Mapping[str, Callable[[], None]], *, num_rounds: int = 15) -> dict[str, float]:
    """Return how long each function computes, in one thread: medians over rounds in which each has its turn.

    Time in which other processes have the processor does not count.
    """
    found: dict[str, list[float]] = {name: [] for name in steps}
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for number in range(num_rounds + 1):
            for name, step in steps.items():
                start = time.process_time()
                step()
                if number:  # The first round warms up.
                    found[name].append(time.process_time() - start)
    finally:
        torch.set_num_threads(num_threads)
    return {name: median(values) for name, values in found.items()}


def penalty_costs(step: TrainingStep) -> dict[int, float]:
    """Return what the penalty adds to a training step, in backward steps, by the number of probes."""

    def penalty(num_probes: int) -> Callable[[Equilibrium], Tensor]:
        return lambda eq: jacobian_penalty(eq, num_probes=num_probes)

    runs = {"few": step.run(), "many": step.run(num_backward=_MANY)}
    seconds = cpu_seconds({**runs, **{str(m): step.run(penalty=penalty(m)) for m in COSTS}})
    unit = (seconds["many"] - seconds["few"]) / (_MANY - _FEW)
    return {m: (seconds[str(m)] - seconds["few"]) / unit for m in COSTS}


# The result


@dataclass(frozen=True, kw_only=True)
class CellSummary:
    """What is known of one cell; errors are relative, and roots of mean squares."""

    cell: str
    dim: int
    """Dimension of the state that precision was measured at."""
    probe_errors: Mapping[int, float]
    """By the number of probes M."""
    batch_errors: Mapping[int, float]
    """By the size of the batch B."""
    hutchinson_errors: Mapping[int, float]
    """By the number of products."""
    hutch_plus_plus_errors: Mapping[int, float]
    """The same for Hutch++."""
    costs: Mapping[int, float]
    """What the penalty adds to a training step, in backward steps, by the number of probes."""

    @property
    def probe_exponent(self) -> float:
        """Exponent of the error as a power of M."""
        return fit_exponent(self.probe_errors)

    @property
    def batch_exponent(self) -> float:
        """Exponent of the error as a power of B."""
        return fit_exponent(self.batch_errors)


Summary = Sequence[CellSummary]
_TABLES: Mapping[str, Sequence[int]] = {
    "probe_errors": PROBES,
    "batch_errors": BATCHES,
    "hutchinson_errors": PRODUCTS,
    "hutch_plus_plus_errors": PRODUCTS,
    "costs": COSTS,
}
"""What is measured of a cell at several numbers."""


def measure(name: str, run: Path) -> CellSummary:
    """Return what is measured of a run."""
    trained = load_trained(run)
    model, data = trained.model, trained.config.data
    assert isinstance(model, AbstractEquilibriumModel)
    splits = data.load()
    x, _ = read_samples(splits.validation, torch.arange(_NUM_SAMPLES))
    if is_language_model(model):
        # Fewer tokens, so that a whole Jacobian can be computed.
        x = x[:, :_NUM_TOKENS]
    with torch.no_grad():
        eq = ModelAdapter(model)(x, solver=Anderson(max_evals=100, tol=1e-4)).equilibrium
    assert eq is not None
    few = rows_of(eq, torch.arange(_NUM_EXACT))
    exact = exact_squares(few)
    dim = linearize(few).fz.shape[1]
    batch = read_samples(splits.train, torch.arange(trained.config.loop.batch_size))
    step = TrainingStep(model=model, task=data.task, x=batch[0], y=batch[1])
    return CellSummary(
        cell=name,
        dim=dim,
        probe_errors=probe_errors(few, float(exact.mean()) / dim),
        batch_errors=batch_errors(eq),
        hutchinson_errors=product_errors(few, exact, "hutchinson"),
        hutch_plus_plus_errors=product_errors(few, exact, "hutch++"),
        costs=penalty_costs(step),
    )


def draw_errors(summary: Summary) -> Figure:
    """Show the errors against probes, batch size and products."""
    with styled():
        figure = Figure(figsize=(2.4 * WIDTH, HEIGHT + 0.5))
        panels = figure.subplots(1, 3)
        for index, row in enumerate(summary):
            style = line_style(index)
            for axes, errors in zip(panels, (row.probe_errors, row.batch_errors, row.hutchinson_errors), strict=True):
                axes.plot(list(errors), list(errors.values()), marker="o", markersize=4, label=row.cell, **style)
            errors = row.hutch_plus_plus_errors
            label = f"{row.cell}, Hutch++"
            panels[2].plot(list(errors), list(errors.values()), marker="x", label=label, **style)
        for axes, errors in zip(panels, (summary[0].probe_errors, summary[0].batch_errors), strict=False):
            numbers = list(errors)
            law = [0.7 * errors[1] * number**-0.5 for number in numbers]
            axes.plot(numbers, law, color=GRAY, linewidth=1, label="power of -1/2")
        titles = ("probes M, fixed batch", "batch size B, one probe", "products with the Jacobian")
        for axes, title, ticks in zip(panels, titles, (PROBES, BATCHES, PRODUCTS), strict=True):
            axes.set_xscale("log", base=2)
            axes.set(xlabel=title, xticks=ticks, xticklabels=ticks)
            axes.minorticks_off()
            use_log_scale(axes)
        panels[0].set_ylabel("relative error of ‖J‖²_F")
        handles = {
            label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(list(handles.values()), list(handles), loc="outside upper left", ncols=4)
    return figure


def draw_costs(summary: Summary) -> Figure:
    """Show what the penalty costs against the number of probes."""
    with styled():
        figure = Figure(figsize=(WIDTH, HEIGHT))
        axes = figure.add_subplot(xlabel="probes M", ylabel="cost in backward steps", xticks=COSTS)
        for index, row in enumerate(summary):
            axes.plot(
                list(row.costs), list(row.costs.values()), marker="o", markersize=4, label=row.cell, **line_style(index)
            )
        axes.plot(COSTS, COSTS, color=GRAY, linewidth=1, label="M backward steps")
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper left")
    return figure


@dataclass(frozen=True, kw_only=True)
class _Estimators(PaperResult[Summary]):
    rows_key = "cells"

    def runs(self, scale: Scale) -> Mapping[str, TrainConfig]:
        return plan(CELLS.values())

    def measure(self, runs: Mapping[str, Path], folder: Path, scale: Scale) -> Summary:
        summary = [measure(name, runs[next(iter(variant.configs()))]) for name, variant in CELLS.items()]
        rows = [
            {"cell": row.cell, "measure": table, "number": number, "value": value}
            for row in summary
            for table in _TABLES
            for number, value in getattr(row, table).items()
        ]
        write_csv(folder / "curves.csv", rows)
        save_figures({"errors": draw_errors(summary), "costs": draw_costs(summary)}, folder)
        return summary

    def to_json(self, summary: Summary) -> dict[str, Any]:
        def row(cell: CellSummary) -> dict[str, Any]:
            exponents = {name: getattr(cell, name) for name in ("probe_exponent", "batch_exponent")}
            values = {f"{name}_{n}": getattr(cell, name)[n] for name, numbers in _TABLES.items() for n in numbers}
            return {"cell": cell.cell, "dim": cell.dim, **exponents, **values}

        return {"cells": [row(cell) for cell in summary]}

    def from_json(self, content: Mapping[str, Any]) -> Summary:
        def cell(row: Mapping[str, Any]) -> CellSummary:
            tables = {name: {n: row[f"{name}_{n}"] for n in numbers} for name, numbers in _TABLES.items()}
            return CellSummary(cell=row["cell"], dim=row["dim"], **tables)

        return [cell(row) for row in content["cells"]]

    def table(self, summary: Summary) -> str:
        largest = BATCHES[-1]
        titles = ("cell", "exponent of M", "exponent of B", f"error at M = 1, B = {largest}")
        rows = [
            [
                row.cell,
                f"{row.probe_exponent:.2f}",
                f"{row.batch_exponent:.2f}",
                f"{row.batch_errors[largest]:.1%}",
                f"{row.hutchinson_errors[COMPARED]:.2%}",
                f"{row.hutch_plus_plus_errors[COMPARED]:.2%}",
                " / ".join(f"{cost:.1f}" for cost in row.costs.values()),
            ]
            for row in summary
        ]
        costs = f"cost of M = {', '.join(map(str, COSTS))}"
        return markdown_table([*titles, f"Hutchinson, {COMPARED}", f"Hutch++, {COMPARED}", costs], rows)


def _of_all(
    text: str, number: Callable[[CellSummary], float], holds: Callable[[float], bool], digits: str, **kind: Any
) -> Claim[Summary]:
    """Return a claim that something holds of a number of all cells."""
    return Claim(
        text,
        section="4.2",
        holds=lambda s: all(holds(number(row)) for row in s),
        evidence=lambda s: "; ".join(f"{row.cell} {number(row):{digits}}" for row in s),
        **kind,
    )


def _is_half(exponent: float) -> bool:
    return abs(exponent + 0.5) <= 0.1


def _shown_costs(row: CellSummary) -> str:
    return ", ".join(f"{cost:.1f} at M = {m}" for m, cost in row.costs.items())


ESTIMATORS = _Estimators(
    name="estimators",
    title="Precision and cost of the penalty (section 4.2)",
    statement="the error of the estimate falls with the square roots of probes and batch size; one probe will do, and "
    "costs a backward step",
    scales=("cpu",),
    takes="8 min",
    claims=(
        _of_all(
            "the relative error falls as M to the power of -1/2 (exponent within 0.1, fixed batch)",
            lambda row: row.probe_exponent,
            _is_half,
            ".2f",
            threshold="stated before",
        ),
        _of_all(
            "and as B to the power of -1/2 (exponent within 0.1, one probe)",
            lambda row: row.batch_exponent,
            _is_half,
            ".2f",
            threshold="stated before",
        ),
        _of_all(
            f"one probe works well with large batches (relative error below 5% at B = {BATCHES[-1]})",
            lambda row: row.batch_errors[BATCHES[-1]],
            lambda error: error < 0.05,
            ".1%",
            threshold="stated before",
        ),
        Claim(
            "the penalty costs about as much as M backward steps (between half and twice that)",
            section="4.2",
            threshold="stated before",
            holds=lambda s: all(0.5 <= cost / m <= 2 for row in s for m, cost in row.costs.items()),
            evidence=lambda s: "; ".join(f"{row.cell}: {_shown_costs(row)}" for row in s),
        ),
        Claim(
            f"Hutch++ is more precise than Hutchinson's estimator for as many products ({COMPARED})",
            section="4.2",
            source="own",
            holds=lambda s: all(row.hutch_plus_plus_errors[COMPARED] < row.hutchinson_errors[COMPARED] for row in s),
            evidence=lambda s: "; ".join(
                f"{row.cell} {row.hutch_plus_plus_errors[COMPARED]:.2%} against {row.hutchinson_errors[COMPARED]:.2%}"
                for row in s
            ),
        ),
    ),
)
