"""Section 2.2: a penalty on sums of columns (Linsley et al., 2020), and why it need not make a DEQ stable."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from ..equilibrium import Equilibrium, SolveStats
from ..jacobian import frobenius_norm, jacobian_penalty, linearize, spectral_radius
from ..lab import recipes
from ..lab.data import AbstractDataset
from ..lab.data.digits import Digits
from ..lab.data.readers import BatchOrder
from ..lab.notation import error_note
from ..lab.recipes.registry import Scale
from ..lab.report.style import HEIGHT, WIDTH, line_style, new_axes, styled, use_log_scale
from ..lab.seeds import derive_generator, derive_seed
from ..lab.train import Process
from ..models import ConvDEQ
from ..solvers import AbstractSolver, Anderson, Picard
from .comparison import save_figures
from .result import Claim, PaperResult, Source, write_csv
from .study import fit, mean_evals, measure_radius, over_seeds
from .tables import Column, markdown_table
from .variant import Averages

COUNTEREXAMPLE = ((2.0, -2.0), (-2.0, 2.0))
LEVEL = 0.9
"""The λ of Linsley et al., in their code."""
NUM_EPOCHS, MAX_EVALS = 5, 12
"""Length of training, and evaluations of its solves."""
NORMALIZED, BARE = "digits", "digits, no last norm"
"""The cell of the recipe, and the same without the group normalization that it ends with."""
NONE, COLUMNS, FROBENIUS = "no penalty", "sums of columns", "Frobenius norm"
_LARGE, _SMALL = 100, 6
_PENALTY = Column(title="L", measure="column_penalty", digits=".2g")
_RADIUS = Column(title="spectral radius", measure="spectral_radius", digits=".2f")
_EVALS = Column(title="evaluations of Anderson", measure="anderson_evals", digits=".1f")


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


def column_sums(eq: Equilibrium) -> Tensor:
    """Return 1ᵀJ of each sample at an equilibrium, a (B, D) matrix, differentiably."""
    point = linearize(eq)
    return point.vjp(torch.ones_like(point.fz), create_graph=torch.is_grad_enabled())


def column_penalty(sums: Tensor, *, level: float = LEVEL) -> Tensor:
    """Return the mean over the batch of L = ‖(1ᵀJ - λ)⁺‖₂, where λ is the level up to which a sum costs nothing.

    Example:
        >>> J = torch.tensor(COUNTEREXAMPLE)
        >>> column_penalty(column_sums(Equilibrium.at(lambda z: z @ J.T, torch.zeros(1, 2))))
        tensor(0.)
    """
    return torch.linalg.vector_norm((sums - level).clamp(min=0), dim=1).mean()


def measure_counterexample() -> dict[str, Any]:
    """Return what penalties and estimators say of the paper's matrix.

    `distances` are the distances from the fixed point after 0, 1, 2 ... steps of plain iteration.
    """
    # The difference of start and fixed point is then an eigenvector.
    J, b = torch.tensor(COUNTEREXAMPLE), torch.tensor([[1.0, -1.0]])
    z_star = torch.linalg.solve(torch.eye(2) - J, b.T).T

    def f(z: Tensor) -> Tensor:
        return z @ J.T + b

    distances, z = [], torch.zeros(1, 2)
    for _ in range(11):
        distances.append(float(torch.linalg.vector_norm(z - z_star)))
        z = f(z)
    generator = torch.Generator().manual_seed(0)
    eq = Equilibrium.at(f, z_star)
    radius = spectral_radius(eq, generator=generator)
    return {
        # Zero at every λ >= 0, also at the strictest.
        "column_penalty": float(column_penalty(column_sums(eq), level=0.0)),
        "spectral_radius": float(radius.value),
        "spectral_radius_error": float(radius.error),
        "frobenius_norm": float(frobenius_norm(eq, num_probes=200, generator=generator).value),
        "distances": distances,
    }


def train(arm: Arm, seed: int, *, device: torch.device, num_steps: int | None = None) -> ConvDEQ:
    """Return a model trained on digits, by default to the end of `NUM_EPOCHS`.

    Weights, batches and probes of a seed are the same for all penalties.
    """
    config = recipes.get("digits").build().with_max_evals(MAX_EVALS)
    dataset = Digits().load().train
    assert isinstance(dataset, AbstractDataset)
    torch.manual_seed(derive_seed(seed, "initialization"))
    # Narrower than the recipe's, to be quick.
    model = ConvDEQ(channels=16, hidden=32)
    if arm.cell == BARE:
        model.layer.cell.norm3 = nn.Identity()
    model.to(device)
    order = BatchOrder(len(dataset), batch_size=config.loop.batch_size, num_parts=1, seed=seed)
    optimizer = config.optimizer.build(model.parameters())
    total = NUM_EPOCHS * order.steps_per_epoch

    def loss(step: int) -> Tensor:
        x, y = (tensor.to(device) for tensor in dataset.batch(order.indices(step, 0)))
        output, eq = model.solve(x, solver=config.solver, adjoint=config.adjoint)
        task_loss = F.cross_entropy(output, y)
        if arm.penalty == COLUMNS:
            return task_loss + arm.weight * column_penalty(column_sums(eq))
        if arm.penalty == FROBENIUS:
            return task_loss + arm.weight * jacobian_penalty(eq, generator=derive_generator(seed, "probes", step))
        return task_loss

    num_steps = total if num_steps is None else num_steps
    fit(model, optimizer, loss, rate=lambda step: config.optimizer.rate(step, total), num_steps=num_steps)
    return model


@torch.no_grad()
def measure(model: ConvDEQ, *, unpenalized: ConvDEQ) -> tuple[dict[str, float | None], list[float]]:
    """Return what is compared, on validation data except for the training loss, and the residuals of plain iteration.

    Evaluations are counted until the residual is 0.001; the change of weights is the largest.

    Args:
        model: A trained model.
        unpenalized: The model of the same seed that was trained without a penalty.
    """
    splits = Digits().load()
    assert isinstance(splits.train, AbstractDataset)
    assert isinstance(splits.validation, AbstractDataset)
    weights, others = (nn.utils.parameters_to_vector(m.parameters()) for m in (model, unpenalized))
    precise = Anderson(max_evals=_LARGE, tol=1e-4)
    x, y = (tensor.to(weights.device) for tensor in splits.train.all())
    loss = F.cross_entropy(model(x, solver=precise), y)
    x, y = (tensor.to(weights.device) for tensor in splits.validation.all())
    output, eq = model.solve(x, solver=precise)

    def stats(solver: AbstractSolver) -> SolveStats:
        found = model.solve(x, solver=solver)[1].stats
        assert found is not None
        return found

    # A few samples tell enough of the Jacobian, which is expensive.
    some = Equilibrium.at(eq.f, eq.z[:32], *(tensor[:32] for tensor in eq.inputs))
    sums = column_sums(some)
    generator = torch.Generator().manual_seed(0)
    found = {
        "train_loss": float(loss),
        "accuracy": float((output.argmax(dim=1) == y).double().mean()),
        "column_penalty": float(column_penalty(sums)),
        "largest_sum": float(sums.max()),
        **measure_radius(some, generator),
        "jacobian_norm": float(frobenius_norm(some, generator=generator).value.square().mean()) / some.z[0].numel(),
        "residual": float(stats(Anderson(max_evals=_SMALL, tol=0)).residual.mean()),
        "anderson_evals": mean_evals(model, x, Anderson(max_evals=_LARGE, tol=1e-3)),
        "picard_evals": mean_evals(model, x, Picard(max_evals=_LARGE, tol=1e-3)),
        "weight_change": float((weights - others).abs().max()),
    }
    return found, stats(Picard(max_evals=30, tol=0)).trace.double().mean(dim=1).tolist()


@dataclass(frozen=True, kw_only=True)
class ArmSummary(Averages, Arm):
    """What is known of an arm over its seeds."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The counterexample, and the trained models."""

    counterexample: Mapping[str, Any]
    """What `measure_counterexample` returned."""
    arms: Sequence[ArmSummary]

    def of(self, cell: str) -> tuple[ArmSummary, ArmSummary, ArmSummary]:
        """Return a cell without a penalty, with one on sums of columns, and with one on the Frobenius norm."""
        none, columns, frobenius = (arm for arm in self.arms if arm.cell == cell)
        return none, columns, frobenius


def draw_counterexample(distances: Sequence[float]) -> Figure:
    """Show how plain iteration leaves the fixed point of the paper's matrix."""
    with styled():
        figure, axes = new_axes("steps of plain iteration", "distance from the fixed point")
        axes.plot(distances, marker="o", markersize=4, **line_style(0))
        use_log_scale(axes)
    return figure


def draw_residuals(traces: Mapping[Arm, Sequence[Sequence[float]]]) -> Figure:
    """Show how plain iteration converges in each trained cell, with the range over seeds."""
    cells = list(dict.fromkeys(arm.cell for arm in traces))
    with styled():
        figure = Figure(figsize=(WIDTH * len(cells), HEIGHT + 0.4))
        panels = figure.subplots(1, len(cells), sharey=True, squeeze=False)[0]
        for axes, cell in zip(panels, cells, strict=True):
            for index, arm in enumerate(arm for arm in traces if arm.cell == cell):
                values, style = np.array(traces[arm]), line_style(index)
                numbers = range(1, values.shape[1] + 1)
                axes.plot(numbers, values.mean(0), label=arm.penalty, **style)
                axes.fill_between(numbers, values.min(0), values.max(0), color=style["color"], alpha=0.18, linewidth=0)
            axes.set(title=cell, xlabel="evaluations of plain iteration")
            use_log_scale(axes)
        panels[0].set_ylabel("relative residual")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return figure


@dataclass(frozen=True, kw_only=True)
class _ColumnSums(PaperResult[Summary]):
    summary_type = Summary
    rows_key = "arms"

    def measure(self, runs: Mapping[str, Path], folder: Path, scale: Scale) -> Summary:
        device = Process.alone().device
        traces: dict[Arm, list[list[float]]] = {arm: [] for arm in ARMS}
        unpenalized: dict[tuple[str, int], ConvDEQ] = {}
        residuals = []

        def measure_arm(arm: Arm, seed: int) -> dict[str, float | None]:
            model = train(arm, seed, device=device)
            found, trace = measure(model, unpenalized=unpenalized.setdefault((arm.cell, seed), model))
            traces[arm].append(trace)
            name = {**vars(arm), "seed": seed}
            residuals.extend({**name, "evaluation": n, "residual": value} for n, value in enumerate(trace, start=1))
            return found

        arms, rows = over_seeds(ArmSummary, ARMS, measure_arm)
        write_csv(folder / "runs.csv", rows)
        write_csv(folder / "residuals.csv", residuals)
        counterexample = measure_counterexample()
        drawn = draw_counterexample(counterexample["distances"])
        save_figures({"counterexample": drawn, "residuals": draw_residuals(traces)}, folder)
        return Summary(counterexample=counterexample, arms=arms)

    def table(self, summary: Summary) -> str:
        accuracy = Column(title="accuracy, %", measure="accuracy", factor=100, digits=".1f")
        columns = (accuracy, _PENALTY, _RADIUS, _EVALS)
        rows = [[arm.cell, arm.penalty, f"{arm.weight:g}", *(c.show(arm) for c in columns)] for arm in summary.arms]
        return markdown_table(["cell", "penalty", "weight", *(column.title for column in columns)], rows)


def _growth(summary: Summary) -> float:
    distances = summary.counterexample["distances"]
    return distances[-1] / distances[0]


def _matrix_evidence(summary: Summary) -> str:
    found = summary.counterexample
    return (
        f"L {found['column_penalty']:g}, spectral radius {found['spectral_radius']:.4g}"
        f"{error_note(found.get('spectral_radius_error'))}, ‖J‖_F {found['frobenius_norm']:.3g} (exact: 4); "
        f"{len(found['distances']) - 1} steps take plain iteration {_growth(summary):.3g} times as far away"
    )


def _helps_less(text: str, *, cell: str, source: Source) -> Claim[Summary]:
    """Return a claim that sums of columns have less than half of the effect of the Frobenius norm, which has some."""

    def holds(summary: Summary) -> bool:
        none, columns, frobenius = summary.of(cell)
        for name in ("spectral_radius", "anderson_evals"):
            effect = none.mean(name) - frobenius.mean(name)
            if effect <= 0 or none.mean(name) - columns.mean(name) >= effect / 2:
                return False
        return True

    def evidence(summary: Summary) -> str:
        arms = summary.of(cell)
        measures = (_RADIUS, _EVALS, _PENALTY, Column(title="training loss", measure="train_loss", digits=".2g"))
        listed = "; ".join(f"{column.title} {', '.join(map(column.show, arms))}" for column in measures)
        change = arms[1].mean("weight_change")
        return f"{NONE}, {COLUMNS}, {FROBENIUS}: {listed}; largest change of a weight by {COLUMNS} {change:.2g}"

    threshold = "set after a look at numbers"
    return Claim(text, section="2.2", source=source, threshold=threshold, holds=holds, evidence=evidence)


COLUMN_SUMS = _ColumnSums(
    name="linsley",
    title="A penalty that does not help (section 2.2)",
    statement="a penalty on sums of columns can be zero where the spectral radius is 4, and does not help DEQs",
    scales=("cpu",),
    needs="digits",
    takes="3 min",
    claims=(
        Claim(
            "the matrix ((2, -2), (-2, 2)) has L = 0 and yet an eigenvalue of 4",
            section="2.2",
            holds=lambda s: (
                s.counterexample["column_penalty"] == 0 and abs(s.counterexample["spectral_radius"] - 4) < 0.01
            ),
            evidence=_matrix_evidence,
        ),
        _helps_less(
            "a penalty on sums of columns does not help a DEQ as that on the Frobenius norm does (digits: less than "
            "half of its effect on spectral radius and evaluations)",
            cell=NORMALIZED,
            source="paper",
        ),
        _helps_less(
            "nor does it if the cell does not end with a normalization, which makes sums of columns vanish",
            cell=BARE,
            source="own",
        ),
    ),
)
