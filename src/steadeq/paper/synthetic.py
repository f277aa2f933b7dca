"""The synthetic study (section 5.1): what the penalty does to a map of one variable."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d.axes3d import Axes3D
from torch import Tensor

from ..equilibrium import SolveStats
from ..lab.data import AbstractDataset, read_samples
from ..lab.data.synthetic import Synthetic, target
from ..lab.errors import InputError, RunError
from ..lab.report.groups import RunGroup
from ..lab.report.panels import Panel, Section
from ..lab.report.style import BLUE, GRAY, INK, PALETTE, RED, WIDTH, fit, line_style, new_axes, styled
from ..lab.run.folder import RunFolder
from ..lab.run.loading import TrainedModel, build_model, load_weights
from ..lab.run.record import Array, RunRecord
from ..models import ToyDEQ
from ..solvers import Anderson, Picard

NUM_STEPS = 30
"""Number of steps of the fixed-point iteration that is shown."""
MAX_EVALS = 100
"""Number of evaluations after which a solve that does not reach its tolerance stops."""
TOL = 1e-3
"""Relative residual to which evaluations are counted."""

_Function = Callable[[Tensor], Tensor]
_Z_STAR: dict[str, Any] = {"color": RED, "linestyle": (0, (3, 1.2)), "linewidth": 2.2}


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Ranges of the axes, so that figures of different models can be compared."""

    radius: float
    """Inputs are shown from -radius to radius."""
    z: tuple[float, float]
    """Range of the state."""
    out: tuple[float, float]
    """Range of f(z; x)."""

    @property
    def x_slice(self) -> float:
        """Input of the slice that is shown."""
        return -0.5 * self.radius

    def grid(self, num_points: int = 25) -> Array:
        """Return inputs at equal distances."""
        return np.linspace(-self.radius, self.radius, num_points)

    @classmethod
    def around(cls, models: Sequence[ToyDEQ], function: _Function, *, radius: float = 1.0) -> Frame:
        """Return ranges that hold the target function, and the surfaces of all models above it."""
        y = function(torch.linspace(-radius, radius, 101, dtype=torch.float64))
        low, high = float(y.min()), float(y.max())
        margin = 0.3 * (high - low)
        frame = cls(radius=radius, z=(low - margin, high + margin), out=(low - margin, high + margin))
        heights = np.stack([_surface(model, frame.grid(), np.linspace(*frame.z, 25)) for model in models])
        low, high = min(frame.z[0], float(heights.min())), max(frame.z[1], float(heights.max()))
        return replace(frame, out=(low, high))


def synthetic_figure(
    models: Mapping[str, ToyDEQ], function: _Function, *, data: tuple[Tensor, Tensor], frame: Frame | None = None
) -> Figure:
    """Show one column for each model: the surface of f, a slice of it with a fixed-point iteration, and the fit.

    Args:
        models: Trained models by their labels.
        function: The function that they learned.
        data: Inputs and noisy targets, (N, 1) each.
        frame: Ranges of the axes; by default those that suit the models.
    """
    frame = Frame.around(list(models.values()), function) if frame is None else frame
    with styled():
        figure = Figure(figsize=(WIDTH * len(models), 10.0))
        grid = figure.add_gridspec(3, len(models), height_ratios=(1.0, 1.05, 0.85))
        for column, (label, model) in enumerate(models.items()):
            # Grids in three dimensions take no notice of grid.alpha.
            with matplotlib.rc_context({"grid.color": f"{INK}22"}):
                surface = figure.add_subplot(grid[0, column], projection="3d")
            assert isinstance(surface, Axes3D)
            surface.set_title(fit(label), pad=-12)
            _draw_surface(surface, model, frame)
            _draw_slice(figure.add_subplot(grid[1, column]), model, frame)
            _draw_fit(figure.add_subplot(grid[2, column]), model, function, data, frame)
    return figure


def _draw_surface(axes: Axes3D, model: ToyDEQ, frame: Frame) -> None:
    """Draw z_out = f(z; x), with the equilibria in red and one slice in blue."""
    x, z = frame.grid(), np.linspace(*frame.z, 25)
    # Seen through, so that the lines stay visible on every side of it.
    shades = LinearSegmentedColormap.from_list("surface", ["#56708f", "#9db4cc"])
    axes.plot_surface(
        *np.meshgrid(x, z), _surface(model, x, z), cmap=shades, alpha=0.5, linewidth=0.25, edgecolor="#7d94ad66"
    )
    states = equilibria(model, x)
    axes.plot(x, states, states, zorder=10, **_Z_STAR)
    heights = _surface(model, np.array([frame.x_slice]), z)[:, 0]
    axes.plot(np.full_like(z, frame.x_slice), z, heights, color=BLUE, linewidth=2.4, zorder=9)
    axes.set(xlabel="x", ylabel="z", ylim=frame.z, zlim=frame.out)
    # At the top of its axis, as beside it the label would be cut off where the figure ends.
    top = frame.out[1] + 0.12 * (frame.out[1] - frame.out[0])
    axes.text(1.05 * frame.radius, frame.z[1], top, "f(z; x)", ha="center")
    axes.view_init(elev=22, azim=-52)
    axes.set_box_aspect((1, 1, 0.8), zoom=1.12)  # pyright: ignore[reportArgumentType]
    axes.locator_params(nbins=5)


def _draw_slice(axes: Axes, model: ToyDEQ, frame: Frame) -> None:
    """Draw f(z; x) at one input, the diagonal that it meets in the equilibrium, and the path of plain iteration."""
    x, z = frame.x_slice, np.linspace(*frame.z, 200)
    star = equilibria(model, np.array([x]))
    # From the end that is further away.
    margin = 0.03 * (frame.z[1] - frame.z[0])
    ends = (frame.z[0] + margin, frame.z[1] - margin)
    start = max(ends, key=lambda end: abs(end - float(star[0])) if np.isfinite(star[0]) else end)
    path = picard_path(model, x, start=start)
    axes.plot(z, z, color=GRAY, linewidth=1.2, label="diagonal")
    axes.plot(z, _surface(model, np.array([x]), z)[:, 0], color=BLUE, linewidth=2.4, label=f"f(z; {x:g})")
    # Up or down to the curve, then across to the diagonal.
    axes.plot(np.repeat(path, 2)[:-1], np.repeat(path, 2)[1:], color=PALETTE[1], linewidth=1.1, label="iteration")
    axes.plot(star, star, "o", color=RED, markersize=6, label="z*")
    axes.set(xlabel="z", ylabel=f"f(z; x = {x:g})", xlim=frame.z, ylim=frame.z)
    axes.set_aspect("equal")
    axes.legend(loc="best", fontsize=8.5)


def _draw_fit(axes: Axes, model: ToyDEQ, function: _Function, data: tuple[Tensor, Tensor], frame: Frame) -> None:
    """Draw the target function, some of the noisy data, and the learned equilibria."""
    x = frame.grid(101)
    inputs, targets = (tensor.flatten()[:200].numpy() for tensor in data)
    axes.plot(inputs, targets, ".", color=GRAY, markersize=3.5, alpha=0.6, label="data")
    axes.plot(x, function(torch.from_numpy(x)).numpy(), color=GRAY, linewidth=1.4, label="target")
    axes.plot(x, equilibria(model, x), label="z*(x)", **_Z_STAR)
    axes.set(xlabel="x", ylabel="y", ylim=frame.z)
    axes.legend(loc="best", fontsize=8.5)


@torch.no_grad()
def gamma_figure(models: Mapping[float, Sequence[ToyDEQ]], x: Tensor) -> Figure:
    """Show the evaluations that Anderson and plain iteration need, against the weight of the penalty.

    Args:
        models: Models by gamma, one for each seed.
        x: (N, 1) inputs to average over; one that does not reach `TOL` counts with `MAX_EVALS`.
    """
    gammas = sorted(models)
    with styled():
        figure, axes = new_axes("Jacobian weight γ", f"evaluations to a residual of {TOL:g}")
        for index, (name, method) in enumerate({"plain iteration": Picard, "Anderson": Anderson}.items()):
            solver = method(max_evals=MAX_EVALS, tol=TOL)
            counts = [[float(_solve(m, x, solver)[1].num_evals.double().mean()) for m in models[g]] for g in gammas]
            axes.plot(gammas, [np.mean(seeds) for seeds in counts], marker="o", label=name, **line_style(index))
            low, high = [min(seeds) for seeds in counts], [max(seeds) for seeds in counts]
            axes.fill_between(gammas, low, high, color=line_style(index)["color"], alpha=0.18, linewidth=0)
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside upper left", ncols=2)
    return figure


@torch.no_grad()
def equilibria(model: ToyDEQ, x: Array) -> Array:
    """Return z*(x), solved to six digits; NaN where no solve came near."""
    z, stats = _solve(_double(model), torch.from_numpy(x)[:, None], Anderson(max_evals=300, tol=1e-6))
    return torch.where(stats.residual < 1e-3, z[:, 0], torch.nan).numpy()


@torch.no_grad()
def picard_path(model: ToyDEQ, x: float, *, start: float) -> Array:
    """Return the states of plain fixed-point iteration, the first one included."""
    cell, inputs = _double(model).layer.cell, torch.full((1, 1), x, dtype=torch.float64)
    states = [torch.full((1, 1), start, dtype=torch.float64)]
    for _ in range(NUM_STEPS):
        states.append(cell(states[-1], inputs))
    return torch.cat(states).flatten().numpy()


@torch.no_grad()
def _surface(model: ToyDEQ, x: Array, z: Array) -> Array:
    """Return f(z; x), one row for each z and one column for each x."""
    grid_x, grid_z = (torch.from_numpy(values) for values in np.meshgrid(x, z))
    return _double(model).layer.cell(grid_z.reshape(-1, 1), grid_x.reshape(-1, 1)).reshape(len(z), len(x)).numpy()


def _solve(model: ToyDEQ, x: Tensor, solver: Picard | Anderson) -> tuple[Tensor, SolveStats]:
    _, eq = model.solve(x, solver=solver)
    assert eq.stats is not None
    return eq.z, eq.stats


def _double(model: ToyDEQ) -> ToyDEQ:
    return copy.deepcopy(model).cpu().double()


# From runs


def run_figures(trained: TrainedModel) -> dict[str, Figure]:
    """Return the figure of a map of one variable, for a run of the synthetic study."""
    model, data = trained.model, trained.config.data
    if not isinstance(model, ToyDEQ) or not isinstance(data, Synthetic):
        return {}
    function = partial(target, variant=data.variant)
    samples = read_samples(train := data.load().train, torch.arange(len(train)))
    frame = Frame.around([model.cpu()], function, radius=data.radius)
    label = f"γ = {trained.config.regularizer.weight:g}"
    return {"surface": synthetic_figure({label: model}, function, data=samples, frame=frame)}


def _load_toys(runs: Iterable[RunRecord]) -> tuple[dict[Path, ToyDEQ], dict[Path, str]]:
    """Return the trained models of the runs of the synthetic study, and sentences on those that cannot be loaded.

    Both are by the run's folder. Runs of other data or models, and those without a checkpoint, are left out.
    """
    models: dict[Path, ToyDEQ] = {}
    problems: dict[Path, str] = {}
    for run in runs:
        if not isinstance(run.config.data, Synthetic) or not isinstance(run.config.model, ToyDEQ.Config):
            continue
        try:
            checkpoint = RunFolder(run.path).checkpoints().load_latest()
            if checkpoint is None:
                continue
            model = build_model(run.config)
            load_weights(model, checkpoint.weights if checkpoint.average is None else checkpoint.average)
        except (InputError, RunError) as error:
            problems[run.path] = str(error)
            continue
        assert isinstance(model, ToyDEQ)
        models[run.path] = model.eval()
    return models, problems


def report_sections(groups: Sequence[RunGroup]) -> tuple[list[Section], dict[Path, str]]:
    """Return the figures of the synthetic study, and sentences on runs that cannot be loaded.

    There is a column for each group that has a model, by rising gamma.
    """
    models, problems = _load_toys(run for group in groups for run in group.runs)
    config = groups[0].first.config.data
    found = {
        group: members
        for group in sorted(groups, key=_weight)
        if (members := [models[run.path] for run in group.runs if run.path in models])
    }
    if not found or not isinstance(config, Synthetic):
        return [], problems
    splits, function = config.load(), partial(target, variant=config.variant)
    assert isinstance(splits.train, AbstractDataset)
    assert isinstance(splits.validation, AbstractDataset)
    frame = Frame.around([members[0] for members in found.values()], function, radius=config.radius)
    columns = []
    for group, members in found.items():
        figure = synthetic_figure({group.label: members[0]}, function, data=splits.train.all(), frame=frame)
        which = f"Seed {group.first.config.loop.seed}" if len(group.runs) > 1 else "The run's latest checkpoint"
        caption = f"{which}; the iteration starts at the end of the range that is further from the equilibrium."
        columns.append(Panel(figure=figure, title=group.label, caption=caption))
    intro = (
        "From the top: the surface f(z; x) with the learned equilibria z*(x) in red and one slice in blue; "
        "plain fixed-point iteration on that slice, which needs more steps the closer the slope at the equilibrium "
        "is to 1; and the fit. A larger weight of the penalty should flatten the surface along z and leave the red "
        "line where it is."
    )
    sections = [Section(title="The learned map", intro=intro, panels=columns)]
    by_weight = {_weight(group): members for group, members in found.items()}
    # With other differences beside the weight there is no single curve to draw.
    if len(by_weight) == len(found) > 1:
        caption = (
            "Mean over validation inputs; the band spans the seeds. "
            f"Inputs whose solve does not converge count as {MAX_EVALS} evaluations."
        )
        figure = gamma_figure(by_weight, splits.validation.all()[0])
        panel = Panel(figure=figure, title=f"Evaluations to a residual of {TOL:g}", caption=caption)
        sections.append(Section(title="Evaluations by weight of the penalty", panels=[panel]))
    return sections, problems


def _weight(group: RunGroup) -> float:
    return group.first.config.regularizer.weight
