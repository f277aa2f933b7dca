"""Section 2.2: a penalty on sums of columns (Linsley et al., 2020), and why it need not make a DEQ stable."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from .. import data, recipes
from ..jacobian import frobenius_norm, jacobian_penalty, linearize
from ..models import ConvDEQ, Equilibrium
from ..recipes.budget import with_budget
from ..recipes.registry import Scale
from ..report.notation import error_note
from ..report.style import HEIGHT, WIDTH, look, new_axes, styled, use_log_scale
from ..solution import ConvergenceWarning
from ..solvers import Anderson, Picard
from ..spectrum import spectral_radius
from ..train import Run
from ..train.batches import BatchOrder
from ..train.optimizer import build_optimizer, learning_rate
from ..train.seeds import derive_generator, derive_seed
from .artefact import Artefact, Verdict
from .drawing import save_figures, write_summary
from .results import spread, tabulate, write_rows
from .table import show

COUNTEREXAMPLE = ((2.0, -2.0), (-2.0, 2.0))
LEVEL = 0.9
"""The λ of Linsley et al., in their code."""
SEEDS = (0, 1, 2)
NUM_EPOCHS, MAX_EVALS = 5, 12
"""Of training."""
NORMALIZED, BARE = "digits", "digits, no last norm"
"""The cell of the recipe, and the same without the group normalization that it ends with."""
NONE, COLUMNS, FROBENIUS = "no penalty", "sums of columns", "Frobenius norm"
_GENEROUS, _SMALL = 100, 6
_MEASURES = (
    "train_loss",
    "accuracy",
    "column_penalty",
    "largest_sum",
    "spectral_radius",
    "spectral_radius_error",
    "spectral_radius_unknown",
    "jacobian_norm",
    "residual",
    "anderson_evals",
    "picard_evals",
    "weight_change",
)

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A cell and a penalty to train it with."""

    cell: str
    penalty: str
    weight: float = 0.0


# Weights at which all training losses of a cell are about the same.
ARMS = (
    Arm(cell=NORMALIZED, penalty=NONE),
    Arm(cell=NORMALIZED, penalty=COLUMNS, weight=1.0),
    Arm(cell=NORMALIZED, penalty=FROBENIUS, weight=0.1),
    Arm(cell=BARE, penalty=NONE),
    Arm(cell=BARE, penalty=COLUMNS, weight=0.1),
    Arm(cell=BARE, penalty=FROBENIUS, weight=0.3),
)


def column_sums(f: Callable[..., Any], z: Any, *inputs: Any) -> Tensor:
    """Return 1ᵀJ of each sample, a (B, D) matrix, differentiably.

    Args:
        f: The cell, called as f(z, *inputs).
        z: The equilibrium.
        *inputs: What f takes after the state.
    """
    point, _ = linearize(f, z, inputs)
    return point.vjp(torch.ones_like(point.fz), create_graph=torch.is_grad_enabled())


def column_penalty(sums: Tensor, *, level: float = LEVEL) -> Tensor:
    """Return the mean over the batch of L = ‖(1ᵀJ - λ)⁺‖₂.

    Args:
        sums: 1ᵀJ of each sample.
        level: λ, what a sum may be at no cost.

    Example:
        >>> J = torch.tensor(COUNTEREXAMPLE)
        >>> column_penalty(column_sums(lambda z: z @ J.T, torch.zeros(1, 2)))
        tensor(0.)
    """
    return torch.linalg.vector_norm((sums - level).clamp(min=0), dim=1).mean()


def measure_counterexample(num_steps: int = 10) -> dict[str, Any]:
    """Return what penalties and estimators say of the paper's matrix, and how far plain iteration gets with it.

    Args:
        num_steps: Of the iteration.
    """
    # The difference of start and fixed point is then an eigenvector.
    J, b = torch.tensor(COUNTEREXAMPLE), torch.tensor([[1.0, -1.0]])
    z_star = torch.linalg.solve(torch.eye(2) - J, b.T).T

    def f(z: Tensor) -> Tensor:
        return z @ J.T + b

    distances, z = [], torch.zeros(1, 2)
    for _ in range(num_steps + 1):
        distances.append(float(torch.linalg.vector_norm(z - z_star)))
        z = f(z)
    generator = torch.Generator().manual_seed(0)
    radius = spectral_radius(f, z_star, generator=generator)
    return {
        # Zero at every λ >= 0, also at the strictest.
        "column_penalty": float(column_penalty(column_sums(f, z_star), level=0.0)),
        "spectral_radius": float(radius.value),
        "spectral_radius_error": float(radius.error),
        "frobenius_norm": float(frobenius_norm(f, z_star, num_probes=200, generator=generator).value),
        "distances": distances,
    }


def train(arm: Arm, seed: int, splits: data.Splits, *, num_steps: int | None = None) -> ConvDEQ:
    """Return a model trained on digits.

    Args:
        arm: Which cell and penalty.
        seed: Of weights, batches and probes, which are the same for all penalties.
        splits: The digits.
        num_steps: Steps after which to stop; by default `NUM_EPOCHS` are finished.
    """
    config = with_budget(recipes.get("digits").build(), MAX_EVALS)
    solver, adjoint = config.forward.build(MAX_EVALS), config.backward.build()
    torch.manual_seed(derive_seed(seed, "initialization"))
    # Narrower than the recipe's, to be quick.
    model = ConvDEQ(channels=16, hidden=32)
    if arm.cell == BARE:
        model.layer.cell.norm3 = nn.Identity()
    order = BatchOrder(len(splits.train), batch_size=config.loop.batch_size, num_parts=1, seed=seed)
    optimizer = build_optimizer(config.optimizer, model.parameters())
    total = NUM_EPOCHS * order.steps_per_epoch
    with warnings.catch_warnings():
        # A backward solve that falls short is a part of what is compared.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for step in range(total if num_steps is None else num_steps):
            x, y = splits.train.batch(order.indices(step, 0))
            equilibrium = model.solve(x, solver=solver, adjoint=adjoint)
            loss = F.cross_entropy(model.read_out(equilibrium.z), y)
            if arm.penalty != NONE:
                generator = derive_generator(seed, "probes", step)
                loss = loss + arm.weight * _penalty(arm.penalty, model, equilibrium, generator)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(config.optimizer, step, total)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def _penalty(name: str, model: ConvDEQ, at: Equilibrium, generator: torch.Generator) -> Tensor:
    if name == COLUMNS:
        return column_penalty(column_sums(model.layer.cell, at.z, *at.inputs))
    return jacobian_penalty(model.layer.cell, at.z, *at.inputs, generator=generator)


def measure(model: ConvDEQ, splits: data.Splits) -> tuple[dict[str, float], list[float]]:
    """Return what is compared, on validation data unless it says otherwise, and the residuals of plain iteration.

    Args:
        model: A trained model.
        splits: The digits.
    """
    precise = Anderson(max_evals=_GENEROUS, tol=1e-4)
    with torch.no_grad():
        x, y = splits.train.everything()
        loss = F.cross_entropy(model(x, solver=precise)[0], y)
        x, y = splits.validation.everything()
        equilibrium = model.solve(x, solver=precise)
        is_right = model.read_out(equilibrium.z).argmax(dim=1) == y
        stopped = model.solve(x, solver=Anderson(max_evals=_SMALL, tol=0)).solution
        anderson = model.solve(x, solver=Anderson(max_evals=_GENEROUS, tol=1e-3)).solution
        picard = model.solve(x, solver=Picard(max_evals=_GENEROUS, tol=1e-3)).solution
        trace = model.solve(x, solver=Picard(max_evals=30, tol=0)).solution.trace
        # A few samples tell enough of the Jacobian, which is expensive.
        z, inputs, cell = equilibrium.z[:32], [tensor[:32] for tensor in equilibrium.inputs], model.layer.cell
        sums = column_sums(cell, z, *inputs)
        generator = torch.Generator().manual_seed(0)
        radius = spectral_radius(cell, z, *inputs, generator=generator)
        norm = frobenius_norm(cell, z, *inputs, generator=generator).value
        error, unknown = radius.mean_error()
    found = {
        "train_loss": float(loss),
        "accuracy": float(is_right.double().mean()),
        "column_penalty": float(column_penalty(sums)),
        "largest_sum": float(sums.max()),
        "spectral_radius": float(radius.value.mean()),
        "spectral_radius_error": error,
        "spectral_radius_unknown": unknown,
        "jacobian_norm": float(norm.square().mean()) / z[0].numel(),
        "residual": float(stopped.residual.mean()),
        "anderson_evals": float(anderson.num_evals.double().mean()),
        "picard_evals": float(picard.num_evals.double().mean()),
    }
    return found, trace.double().mean(dim=1).tolist()


def produce(runs: Mapping[str, Run], folder: Path, scale: Scale) -> list[Verdict]:
    """Compute the counterexample, train and measure all arms, draw, and judge the claims.

    Args:
        runs: None; models are trained here.
        folder: Where figures and numbers go.
        scale: The same for all.
    """
    splits = data.digits.load()
    rows, traces, unpenalized = [], {}, {}
    for arm in ARMS:
        for seed in SEEDS:
            model = train(arm, seed, splits)
            weights = nn.utils.parameters_to_vector(model.parameters()).detach()
            before = unpenalized.setdefault((arm.cell, seed), weights)
            found, traces[arm, seed] = measure(model, splits)
            rows.append({**vars(arm), "seed": seed, **found, "weight_change": float((weights - before).abs().max())})
    summary = summarize(rows)
    counterexample = measure_counterexample()
    verdicts = judge(counterexample, summary)
    write_summary(folder, verdicts, counterexample=counterexample, arms=summary)
    write_rows(folder / "runs.csv", rows)
    residuals = [
        {**vars(arm), "seed": seed, "evaluation": number, "residual": value}
        for (arm, seed), trace in traces.items()
        for number, value in enumerate(trace, start=1)
    ]
    write_rows(folder / "residuals.csv", residuals)
    figures = {"counterexample": draw_counterexample(counterexample), "residuals": draw_residuals(residuals)}
    save_figures(figures, folder)
    return verdicts


def summarize(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return mean and standard deviation over seeds, for each arm."""
    return [
        {**vars(arm), **spread([row for row in rows if all(row[k] == v for k, v in vars(arm).items())], _MEASURES)}
        for arm in ARMS
    ]


def draw_counterexample(counterexample: Mapping[str, Any]) -> Figure:
    """Show how plain iteration leaves the fixed point of the paper's matrix."""
    with styled():
        figure, axes = new_axes("steps of plain iteration", "distance from the fixed point")
        axes.plot(counterexample["distances"], marker="o", markersize=4, **look(0))
        use_log_scale(axes)
    return figure


def draw_residuals(rows: Sequence[Row]) -> Figure:
    """Show how plain iteration converges in each trained cell, with the range over seeds."""
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    with styled():
        figure = Figure(figsize=(WIDTH * len(cells), HEIGHT + 0.4))
        panels = figure.subplots(1, len(cells), sharey=True, squeeze=False)[0]
        for axes, cell in zip(panels, cells, strict=True):
            for index, penalty in enumerate((NONE, COLUMNS, FROBENIUS)):
                chosen = [row for row in rows if (row["cell"], row["penalty"]) == (cell, penalty)]
                numbers = sorted({row["evaluation"] for row in chosen})
                values = [[row["residual"] for row in chosen if row["evaluation"] == number] for number in numbers]
                style = look(index)
                axes.plot(numbers, [sum(v) / len(v) for v in values], label=penalty, **style)
                low, high = ([extreme(v) for v in values] for extreme in (min, max))
                axes.fill_between(numbers, low, high, color=style["color"], alpha=0.18, linewidth=0)
            axes.set(title=cell, xlabel="evaluations of plain iteration")
            use_log_scale(axes)
        panels[0].set_ylabel("relative residual")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return figure


def judge(counterexample: Mapping[str, Any], summary: Sequence[Row]) -> list[Verdict]:
    """Hold the paper's claims against the numbers.

    Args:
        counterexample: What `measure_counterexample` returned.
        summary: What `summarize` returned.
    """
    growth = counterexample["distances"][-1] / counterexample["distances"][0]
    values = counterexample["column_penalty"], counterexample["spectral_radius"]
    note = error_note(counterexample.get("spectral_radius_error"))
    return [
        Verdict.of(
            "the matrix ((2, -2), (-2, 2)) has L = 0 and yet an eigenvalue of 4, and plain iteration diverges",
            values[0] == 0 and abs(values[1] - 4) < 0.01 and growth > 1e3,
            f"L {values[0]:g}, spectral radius {values[1]:.4g}{note}, ‖J‖_F {counterexample['frobenius_norm']:.3g} "
            f"(exact: 4); {len(counterexample['distances']) - 1} steps take plain iteration {growth:.3g} times as far "
            "away",
        ),
        _judge_cell(
            "a penalty on sums of columns does not help a DEQ as that on the Frobenius norm does (digits: less than "
            "half of its effect on spectral radius and evaluations)",
            [row for row in summary if row["cell"] == NORMALIZED],
        ),
        _judge_cell(
            "nor does it if the cell does not end with a normalization, which makes sums of columns vanish",
            [row for row in summary if row["cell"] == BARE],
        ),
    ]


def _judge_cell(claim: str, rows: Sequence[Row]) -> Verdict:
    by_penalty = {row["penalty"]: row for row in rows}
    none, columns, frobenius = (by_penalty[name] for name in (NONE, COLUMNS, FROBENIUS))
    measures = ("spectral_radius", "anderson_evals")
    holds = all(
        frobenius[name] < none[name] and none[name] - columns[name] < (none[name] - frobenius[name]) / 2
        for name in measures
    )

    def listed(name: str, digits: str = ".3g") -> str:
        return ", ".join(show(row, name, digits=digits) for row in (none, columns, frobenius))

    return Verdict.of(
        claim,
        holds,
        f"{NONE}, {COLUMNS}, {FROBENIUS}: spectral radius {listed('spectral_radius', '.2f')}; evaluations of Anderson "
        f"{listed('anderson_evals', '.1f')}; L {listed('column_penalty', '.2g')}; training loss "
        f"{listed('train_loss', '.2g')}; largest change of a weight by {COLUMNS} {columns['weight_change']:.2g}",
    )


def table(content: Mapping[str, Any]) -> str:
    """Return the numbers of `summary.json` as a table in Markdown."""
    columns = {
        "training loss": ("train_loss", 1, ".3f"),
        "accuracy, %": ("accuracy", 100, ".1f"),
        "L": ("column_penalty", 1, ".2g"),
        "largest sum": ("largest_sum", 1, ".2f"),
        "spectral radius": ("spectral_radius", 1, ".2f"),
        "‖J‖²_F / d": ("jacobian_norm", 1, ".3f"),
        f"residual at {_SMALL}": ("residual", 1, ".3f"),
        "evaluations of Anderson": ("anderson_evals", 1, ".1f"),
        "of plain iteration": ("picard_evals", 1, ".1f"),
    }
    rows = [
        [
            arm["cell"],
            arm["penalty"],
            f"{arm['weight']:g}",
            *(show(arm, name, factor=factor, digits=digits) for name, factor, digits in columns.values()),
        ]
        for arm in content["arms"]
    ]
    return tabulate(["cell", "penalty", "weight", *columns], rows)


LINSLEY = Artefact(
    name="linsley",
    claim="a penalty on sums of columns can be zero where the spectral radius is 4, and does not help DEQs",
    data={"cpu": "digits"},
    duration={"cpu": "3 min"},
    runs=lambda scale: {},
    produce=produce,
    tabulate=table,
)
