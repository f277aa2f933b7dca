"""Own study: what keeps a network right that is iterated far beyond its training depth; see docs/results/iteration.md.

`iteration_rows.py` says what is trained, this file what is measured and claimed. A run is measured at 1/4 to 64 times
its training depth, on samples of the size of training and of larger ones, and diagnosed on the former alone. Accuracy
is the share of samples that are right at all positions. A network has learned if it reaches 90% at some depth, and
keeps its accuracy if it stays within a point of its best up to 64 times the training depth, from the depth on at which
it first comes so close.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from ..diagnosis import diagnose
from ..diagnosis.verdict import Verdict
from ..lab.config import TrainConfig
from ..lab.files import write_atomically
from ..lab.recipes.registry import Scale
from ..lab.report.style import HEIGHT, WIDTH, add_legend, line_style, styled
from ..lab.run.archive import BEYOND_FILE
from ..lab.run.folder import RunFolder
from ..lab.run.loading import TrainedModel, load_trained
from ..lab.run.record import RunRecord
from ..lab.train.adapter import ModelAdapter
from ..models import AbstractEquilibriumModel
from . import iteration_rows as rows
from .comparison import Comparison, save_figures, summarize
from .iteration_animation import animate
from .iteration_rows import FACTORS, TASKS, Task
from .result import Claim, MissingNumber, write_csv
from .tables import markdown_table
from .variant import Measures, Summary, Variant, VariantSummary

LEARNED, CLOSE = 0.9, 0.01
"""Accuracy from which on a task is learned, and by how much accuracy may be below the best to be kept."""
_SEED = 1_000_000
"""Seed of the test samples, far from the seeds of training."""
_FAR = "accuracy_far"

Beyond = Mapping[str, Any]
"""What is measured of a run, as in its file; see `measure_beyond`."""


# One run


def measure_beyond(path: Path, task: Task, *, seed: int = _SEED) -> Beyond:
    """Return what is measured of a run, which is kept in its folder.

    `budgets` are numbers of evaluations, 0 for a network that iterates nothing; `accuracy` has a list of as many by
    size. `settled` is the share of samples that converge according to `diagnose`, and `spectral_radius` their mean
    radius there, both on samples of the size of training.
    """
    file = path / BEYOND_FILE
    if not file.is_file():
        trained = load_trained(path)
        found: dict[str, Any] = {"num_parameters": sum(p.numel() for p in trained.model.parameters())}
        depth = trained.config.evaluation_solver.max_evals if ModelAdapter(trained.model).has_equilibrium else 0
        found["budgets"] = [depth] if depth <= 1 else [max(round(factor * depth), 1) for factor in FACTORS]
        found["accuracy"] = {
            str(size): accuracies(trained, task, size, found["budgets"], num_samples=num_samples, seed=seed)
            for size, num_samples in task.sizes.items()
        }
        if depth > 1:
            found |= _diagnose(trained, task, depth, seed)
        write_atomically(file, json.dumps(found, indent=1) + "\n")
    return json.loads(file.read_text(encoding="utf-8"))


def draw(
    trained: TrainedModel, task: Task, size: int, num_samples: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of samples of a size."""
    data: Any = replace(trained.config.data, **{task.size_field: size})
    samples = data.draw(num_samples, torch.Generator().manual_seed(seed + size))
    return samples.inputs, samples.targets


@torch.no_grad()
def accuracies(
    trained: TrainedModel, task: Task, size: int, budgets: Sequence[int], *, num_samples: int, seed: int = _SEED
) -> list[float]:
    """Return the share of samples of a size that are right, after each number of evaluations of one solve."""
    x, y = draw(trained, task, size, num_samples, seed)
    model, measure = trained.model, trained.config.data.task.measure
    if not isinstance(model, AbstractEquilibriumModel):
        return [float(measure(model(x), y).mean())]
    solver = trained.config.evaluation_solver.with_max_evals(budgets[-1])
    _, eq = model.solve(x, solver=solver, states_at=budgets)
    return [float(measure(model.decode(z), y).mean()) for z in eq.states]


def _diagnose(trained: TrainedModel, task: Task, depth: int, seed: int) -> dict[str, float | None]:
    model = trained.model
    assert isinstance(model, AbstractEquilibriumModel)
    with torch.no_grad():
        z0, inputs = model.encode(draw(trained, task, next(iter(task.sizes)), 32, seed)[0])
    found = diagnose(
        model.layer.cell,
        z0,
        *inputs,
        max_evals=8 * depth,
        training_depth=depth,
        max_products=40,
        generator=torch.Generator().manual_seed(0),
    )
    radius = None if found.radius is None else float(found.radius.value.mean())
    settled = float((found.verdict == Verdict.CONVERGES).float().mean())
    return {"settled": settled, "spectral_radius": radius if radius is None or np.isfinite(radius) else None}


def measures(beyond: Beyond, record: RunRecord) -> dict[str, float | None]:
    """Return the numbers of a run that rows are compared by.

    `accuracy_at_N` is that at the size of training after N times the training depth, and `size_N` that at N times the
    size of training, at the largest depth; `accuracy_far` is that at 16 times, or the most if sizes do not go so far.
    `inside` and `outside` are 1 for a run that has learned, with a spectral radius below 1 or not.
    `reach` is the largest size, in sizes of training, of which 90% are right at the largest depth, 0 if none.
    """
    at_sizes = {int(size): found for size, found in beyond["accuracy"].items()}
    first, curve = next(iter(at_sizes.items()))
    best = max(curve)
    since = next(place for place, value in enumerate(curve) if value >= best - CLOSE - 1e-9)
    learned = best >= LEARNED
    validated = [line.step for line in record.validations if line.score is not None and line.score >= LEARNED]
    found: dict[str, float | None] = {
        "score": curve[beyond["budgets"].index(record.config.evaluation_solver.max_evals)] if len(curve) > 1 else best,
        "best": best,
        "learned": float(learned),
        "learning_steps": float(validated[0]) if validated else None,
        "reach": max([size / first for size, values in at_sizes.items() if values[-1] >= LEARNED], default=0.0),
        "num_parameters": float(beyond["num_parameters"]),
    }
    for size, values in at_sizes.items():
        if size != first:
            found[f"size_{size / first:g}"] = values[-1]
            if size <= 16 * first:
                found[_FAR] = values[-1]
    if len(curve) > 1:
        kept = all(value >= best - CLOSE - 1e-9 for value in curve[since:])
        found |= {f"accuracy_at_{factor:g}": value for factor, value in zip(FACTORS, curve, strict=True)}
        found |= {
            "kept": float(learned and kept),
            "evals_needed": float(beyond["budgets"][since]) if learned else None,
            "settled": beyond["settled"],
            "spectral_radius": beyond["spectral_radius"],
        }
        is_inside = beyond["spectral_radius"] is not None and beyond["spectral_radius"] < 1
        for name, holds in (("inside", is_inside), ("outside", not is_inside)):
            found |= {name: float(learned and holds), f"{name}_kept": float(learned and holds and kept)}
    return found


# Figures


def draw_curves(task: Task, found: Mapping[str, Sequence[Beyond]]) -> Figure | None:
    """Show accuracy against depth, a row of panels for each network, a column for each small size; means over seeds."""
    # The heat maps have all sizes; more columns could not be read on a page.
    sizes = list(task.sizes)[:3]
    networks = [name for name in task.networks if any(_iterates(found.get(row)) for row in _rows_of(task, name))]
    if not networks:
        return None
    with styled():
        figure = Figure(figsize=(0.75 * WIDTH * len(sizes), 0.62 * HEIGHT * len(networks) + 0.6))
        panels = figure.subplots(len(networks), len(sizes), sharex=True, sharey=True, squeeze=False)
        handles = {}
        for line, network in zip(panels, networks, strict=True):
            for axes, size in zip(line, sizes, strict=True):
                for place, stabilizer in enumerate(task.networks[network]):
                    runs = found.get(task.named(network, stabilizer), ())
                    if _iterates(runs):
                        values = 100 * np.mean([run["accuracy"][str(size)] for run in runs], axis=0)
                        handles[stabilizer] = axes.plot(FACTORS, values, **line_style(place))[0]
                axes.set_xscale("log", base=2)
                axes.set_xticks(FACTORS[::2], labels=[f"{factor:g}" for factor in FACTORS[::2]])
            line[0].set_ylabel(textwrap.fill(network, 20) + "\nright, %")
        for axes, size in zip(panels[0], sizes, strict=True):
            axes.set_title(f"size {size}")
        for axes in panels[-1]:
            axes.set_xlabel("evaluations / training depth")
        add_legend(figure, handles)
    return figure


def draw_heat_maps(task: Task, network: str, found: Mapping[str, Sequence[Beyond]]) -> Figure | None:
    """Show accuracy by size and depth of a network with each stabilizer; means over seeds."""
    shown = {name: found[row] for name in task.networks[network] if (row := task.named(network, name)) in found}
    if len(task.sizes) < 2 or not shown:
        return None
    with styled():
        columns = min(len(shown), 5)
        lines = -(-len(shown) // columns)
        figure = Figure(figsize=(0.55 * WIDTH * columns + 0.5, 0.62 * HEIGHT * lines))
        panels, image = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flat, None
        for axes, (stabilizer, runs) in zip(panels, shown.items(), strict=False):
            grid = [100 * np.mean([run["accuracy"][str(size)] for run in runs], axis=0) for size in task.sizes]
            image = axes.imshow(grid, origin="lower", aspect="auto", vmin=0, vmax=100, cmap="viridis")
            axes.set_title(stabilizer)
            axes.set_xticks(range(0, len(FACTORS), 2), labels=[f"{factor:g}" for factor in FACTORS[::2]])
            axes.set_yticks(range(len(task.sizes)), labels=[str(size) for size in task.sizes])
            axes.grid(visible=False)
        for axes in list(panels)[len(shown) :]:
            axes.set_axis_off()
        figure.supxlabel("evaluations / training depth", fontsize=9.5)
        figure.supylabel(f"{network}\n{task.size_field.removeprefix('num_')}", fontsize=9.5)
        assert image is not None
        figure.colorbar(image, ax=figure.axes, label="right, %")
    return figure


def draw_prediction(task: Task, measured: Mapping[str, Sequence[Measures]]) -> Figure | None:
    """Show accuracy far beyond the size of training against what is known at that size, for every run that learned."""
    points = [(name, run) for name, runs in measured.items() for run in runs if run["learned"] and "settled" in run]
    if not points or _FAR not in points[0][1]:
        return None
    networks = list(task.networks)
    with styled():
        figure = Figure(figsize=(1.9 * WIDTH, HEIGHT))
        handles = {}
        for axes, name, title in zip(
            figure.subplots(1, 2, sharey=True),
            ("spectral_radius", "settled"),
            ("spectral radius at the size of training", "share of samples that settle at the size of training"),
            strict=True,
        ):
            for row, run in points:
                network = next(network for network in networks if row in _rows_of(task, network))
                if run[name] is not None:
                    handles[network] = axes.scatter(
                        run[name],
                        100 * (run[_FAR] or 0.0),
                        s=18,
                        color=line_style(networks.index(network))["color"],
                        alpha=0.7,
                    )
            axes.set_xlabel(title)
        far = max(size for size in task.sizes if size <= 16 * next(iter(task.sizes)))
        figure.axes[0].set_ylabel(f"right at {far} {task.size_field.removeprefix('num_')}, %")
        add_legend(figure, handles)
    return figure


def _iterates(runs: Sequence[Beyond] | None) -> bool:
    return bool(runs) and len(runs[0]["budgets"]) > 1


def _rows_of(task: Task, network: str) -> list[str]:
    return [task.named(network, stabilizer) for stabilizer in task.networks[network]]


# Claims


def kept(summary: Summary, name: str) -> bool:
    """Return whether all seeds of a row have learned and keep their accuracy."""
    return summary[name].mean("kept") == 1


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Spearman's rank correlation; equal numbers share the mean of their ranks.

    Example:
        >>> rank_correlation([(1.0, 10.0), (2.0, 20.0), (3.0, 15.0)])
        0.5
    """

    def ranks(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return (values[:, None] > values).sum(axis=1) + ((values[:, None] == values).sum(axis=1) - 1) / 2

    first, second = (ranks(np.array(values)) for values in zip(*pairs, strict=True))
    if first.std() == 0 or second.std() == 0:
        raise MissingNumber("all numbers are equal, so that there are no ranks")
    return round(float(np.corrcoef(first, second)[0, 1]), 9)


def _claims_about(task: Task) -> list[Claim[Summary]]:
    """Return what is claimed on a task: about every stabilizer that is tried, and about one penalty in detail."""
    iterated = {name: found for name, found in task.networks.items() if len(found) > 1}
    explicit = [task.named(name) for name, found in task.networks.items() if len(found) == 1]
    sizes = list(task.sizes)

    def claim(
        id: str, text: str, holds: Callable[[Summary], bool], evidence: Callable[[Summary], str]
    ) -> Claim[Summary]:
        return Claim(
            f"{task.name}: {text}",
            id=f"{task.recipe}-{id}",
            section="4.1",
            source="own",
            threshold="stated before",
            holds=holds,
            evidence=evidence,
        )

    def having(stabilizer: str) -> list[str]:
        return [task.named(name, stabilizer) for name, found in iterated.items() if stabilizer in found]

    def percents(summary: Summary, names: Sequence[str], measure: str) -> str:
        return ", ".join(f"{100 * summary[name].mean(measure):.0f}%" for name in names)

    def pairs(summary: Summary, measure: str, *, below: float = math.inf) -> list[tuple[float, float]]:
        known = [summary[row] for name in iterated for row in _rows_of(task, name)]
        needed = {measure, _FAR, "spectral_radius"}
        known = [row for row in known if row.mean("learned") == 1 and needed <= row.spreads.keys()]
        known = [row for row in known if row.mean("spectral_radius") < below]
        if len(known) < 5:
            raise MissingNumber(f"only {len(known)} rows have learned")
        return [(row.mean(measure), row.mean(_FAR)) for row in known]

    def told(summary: Summary, measure: str) -> str:
        every = pairs(summary, measure)
        text = f"{rank_correlation(every):.2f} over {len(every)} rows"
        with suppress(MissingNumber):
            inside = pairs(summary, measure, below=1.0)
            text += f"; {rank_correlation(inside):.2f} among the {len(inside)} with a radius below 1"
        return text

    def require_learned(summary: Summary, names: Sequence[str]) -> None:
        if not any(summary[name].mean("learned") for name in names):
            raise MissingNumber("no network has learned the task")

    def num_kept(summary: Summary, names: Sequence[str]) -> int:
        require_learned(summary, names)
        return sum(kept(summary, name) for name in names)

    def costs_nothing(summary: Summary) -> bool:
        require_learned(summary, plain)
        pairs = zip(damped, plain, strict=True)
        return all(summary[name].mean("best") >= summary[other].mean("best") - CLOSE for name, other in pairs)

    def keeps(stabilizer: str) -> Claim[Summary]:
        names = having(stabilizer)
        return claim(
            f"kept-{rows.slug(stabilizer)}",
            f"{stabilizer}: most networks keep their accuracy",
            lambda s: 2 * num_kept(s, names) > len(names),
            lambda s: f"{num_kept(s, names)} of {len(names)} do; seeds: {percents(s, names, 'kept')}",
        )

    plain, damped = having(rows.NONE), having(rows.DIFFERENCE)
    found = [
        claim(
            "falls-apart",
            f"{rows.NONE}: no iterated network keeps its accuracy",
            lambda s: num_kept(s, plain) == 0,
            lambda s: f"{num_kept(s, plain)} of {len(plain)} do; seeds: {percents(s, plain, 'kept')}",
        ),
        *(keeps(name) for name in rows.STABILIZERS[1:] if having(name)),
        claim(
            "costs-nothing",
            f"{rows.DIFFERENCE}: costs at most a point of the best accuracy, on each network",
            costs_nothing,
            lambda s: f"{percents(s, damped, 'best')} against {percents(s, plain, 'best')}",
        ),
    ]
    if {rows.LOOPED_TRANSFORMER, rows.NORMALIZED_TRANSFORMER} <= task.networks.keys():
        bare, normalized = map(task.named, (rows.LOOPED_TRANSFORMER, rows.NORMALIZED_TRANSFORMER))
        found.append(
            claim(
                "normalization",
                "a normalized state is learned with all seeds, and without a normalization with none",
                lambda s: s[normalized].mean("learned") == 1 and s[bare].mean("learned") == 0,
                lambda s: " against ".join(percents(s, [name], "learned") for name in (normalized, bare)),
            )
        )
    if len(sizes) == 1:
        found.append(
            claim(
                "beats-explicit",
                f"{rows.DIFFERENCE}: iterated networks get at least 90% right, the explicit one at most 50%",
                lambda s: (
                    all(s[name].mean("best") >= LEARNED for name in damped)
                    and all(s[name].mean("best") <= 0.5 for name in explicit)
                ),
                lambda s: " against ".join(percents(s, names, "best") for names in (damped, explicit)),
            )
        )
    else:
        second = f"size_{sizes[1] / sizes[0]:g}"
        text = f"{rows.DIFFERENCE}: iterated networks get at least 90% right at the size {sizes[1]}"
        found.append(
            claim(
                "larger",
                f"{text}, the explicit one at most 10%" if explicit else text,
                lambda s: (
                    all(s[name].mean(second) >= LEARNED for name in damped)
                    and all(s[name].mean(second) <= 1 - LEARNED for name in explicit)
                ),
                lambda s: " against ".join(percents(s, names, second) for names in (damped, explicit) if names),
            )
        )
    if task.is_whole:
        text = "tells who is right far beyond the size of training: rank correlation of"
        found += [
            claim(
                "settled-predicts",
                f"the share that settles {text} at least 0.5",
                lambda s: rank_correlation(pairs(s, "settled")) >= 0.5,
                lambda s: told(s, "settled"),
            ),
            claim(
                "radius-predicts",
                f"the spectral radius {text} at most -0.5",
                lambda s: rank_correlation(pairs(s, "spectral_radius")) <= -0.5,
                lambda s: told(s, "spectral_radius"),
            ),
        ]
    return found


# The result


@dataclass(frozen=True, kw_only=True)
class _Iteration(Comparison):
    tasks: Sequence[Task]

    def of(self, name: str, tasks: Sequence[Task]) -> _Iteration:
        """Return the study of other tasks."""
        claims = [claim for task in tasks for claim in _claims_about(task)]
        return replace(self, name=name, tasks=tasks, variants=lambda scale: _variants(tasks), claims=claims)

    def quick(self) -> _Iteration:
        few = {rows.TWO_STATES: (rows.NONE, rows.DIFFERENCE)}
        return self.of(f"{self.name}-quick", [replace(rows.PREFIX_SUMS, networks=few, seeds=(0,))])

    def runs(self, scale: Scale) -> Mapping[str, TrainConfig]:
        # The first seed of all rows comes before the second of any, so that an unfinished study is even.
        return dict(sorted(super().runs(scale).items(), key=lambda item: item[1].loop.seed))

    def can_use(self, name: str, path: Path, scale: Scale) -> bool:
        return (path / BEYOND_FILE).is_file()

    def measure(self, runs: Mapping[str, Path], folder: Path, scale: Scale) -> Summary:
        summary, lines = Summary(), []
        for task in self.tasks:
            beyond: dict[str, list[Beyond]] = {}
            measured: dict[str, list[Measures]] = {}
            for variant in task.variants():
                name, configs = variant.name, variant.configs()
                finished = {run: runs[run] for run in configs if run in runs}
                if len(finished) < len(configs):
                    summary.missing[name] = [run for run in configs if run not in runs]
                if finished:
                    beyond[name] = [measure_beyond(path, task) for path in finished.values()]
                    records = map(RunRecord.read, finished.values())
                    measured[name] = list(map(measures, beyond[name], records))
                    lines += [
                        {"run": run, "row": name, **found} for run, found in zip(finished, measured[name], strict=True)
                    ]
                    summary[name] = summarize(variant, measured[name])
            preferred = (rows.LOOPED, rows.NORMALIZED_TRANSFORMER, rows.LOOPED_TRANSFORMER)
            looped = next((name for name in preferred if name in task.networks), next(iter(task.networks)))
            figures = {
                "accuracy": draw_curves(task, beyond),
                "radius": draw_prediction(task, measured) if task.is_whole else None,
                "heat_map": draw_heat_maps(task, looped, beyond),
            }
            save_figures({f"{name}_{task.recipe.replace('-', '_')}": one for name, one in figures.items()}, folder)
            if task is rows.MAZES:
                self._animate(task, runs, folder)
        write_csv(folder / "runs.csv", lines)
        return summary

    def _animate(self, task: Task, runs: Mapping[str, Path], folder: Path) -> None:
        """Show a maze of more than twice the size of training, with and without a normalization of the state.

        Nothing is shown unless the weights of both runs are there.
        """
        models = {}
        for variant in task.variants():
            path = runs.get(next(iter(variant.configs())))
            if path is not None and RunFolder(path).checkpoints().steps():
                models[variant.name] = load_trained(path)
        shown = {stabilizer: task.named(rows.LOOPED, stabilizer) for stabilizer in (rows.NONE, rows.OUTER_NORM)}
        if models.keys() >= set(shown.values()):
            x, y = draw(models[shown[rows.NONE]], task, list(task.sizes)[2], 8, _SEED)
            longest = int(y.flatten(1).sum(dim=1).argmax())
            both = {stabilizer: models[name].model for stabilizer, name in shown.items()}
            animate(both, x[longest], y[longest], task.depth, folder / "maze.gif")

    def found(self, summary: Summary) -> str | None:
        task = self.tasks[0]
        counts = _num_kept_by_radius(task, list(task.networks), summary)
        two_states = [task.named(rows.TWO_STATES, stabilizer) for stabilizer in (rows.NONE, rows.SPECTRAL)]
        foretold = [claim.judge(summary) for claim in self.claims if claim.id == f"{task.recipe}-radius-predicts"]
        if counts is None or not set(two_states) <= summary.keys() or not foretold:
            return None
        if foretold[0].outcome == "not tested":
            return None
        plain, penalized = (f"{100 * summary[name].mean(_FAR):.0f}%" for name in two_states)
        holds = "foretells" if foretold[0].outcome == "holds" else "does not foretell"
        return (
            f"Of the runs that learned {task.name}, {counts[0]} with a mean spectral radius below 1 keep their "
            f"accuracy up to {FACTORS[-1]} times the training depth, and {counts[1]} with a larger one. On strings 16 "
            f"times as long as in training, two states that take turns are right on {plain}, and on {penalized} with a "
            f"penalty on the radius. The radius at the size of training {holds} who is right there (rank correlation "
            f"{foretold[0].evidence})."
        )

    def table(self, summary: Summary) -> str:
        tables = [*(_table(task, summary) for task in self.tasks), _table_by_radius(self.tasks, summary)]
        return "\n\n".join(filter(None, tables))


def _table(task: Task, summary: Summary) -> str:
    """Return a table of a task, with a column for each network; what every row has in common is in the last line."""
    iterated = [name for name, found in task.networks.items() if len(found) > 1]
    stabilizers = dict.fromkeys(stabilizer for name in iterated for stabilizer in task.networks[name])
    cells = [
        [stabilizer, *(_cell(summary.get(task.named(name, stabilizer))) for name in iterated)]
        for stabilizer in stabilizers
    ]
    explicit = (task.named(name) for name, found in task.networks.items() if len(found) == 1)
    cells += [[name.partition(": ")[2], _cell(summary.get(name)), *[""] * (len(iterated) - 1)] for name in explicit]
    if all(cell in ("-", "") for line in cells for cell in line[1:]):
        return ""
    return markdown_table([task.name, *iterated], cells)


def _num_kept_by_radius(task: Task, networks: Sequence[str], summary: Summary) -> tuple[str, str] | None:
    """Return how many of the runs that learned keep their accuracy, with a spectral radius below 1 and with others."""
    known = [summary[row] for name in networks for row in _rows_of(task, name) if row in summary]
    known = [row for row in known if "inside" in row.spreads]
    count = {
        name: round(sum(row.mean(name) * row.num_seeds for row in known))
        for name in ("inside", "inside_kept", "outside", "outside_kept")
    }
    if not count["inside"] + count["outside"]:
        return None
    inside, outside = (f"{count[f'{name}_kept']} of {count[name]}" for name in ("inside", "outside"))
    return inside, outside


def _table_by_radius(tasks: Sequence[Task], summary: Summary) -> str:
    """Return a table of how many of the runs that learned keep their accuracy, by the spectral radius."""
    groups = [(task.name, task, list(task.networks)) for task in tasks]
    groups += [(f"{task.name}: {name}", task, [name]) for task in tasks if task.is_whole for name in task.networks]
    counts = ((title, _num_kept_by_radius(task, networks, summary)) for title, task, networks in groups)
    lines = [[title, *found] for title, found in counts if found is not None]
    titles = ["runs that keep their accuracy", "mean spectral radius below 1", "1 or more"]
    return markdown_table(titles, lines) if lines else ""


def _cell(row: VariantSummary | None) -> str:
    """Return the best accuracy, that at 64 times the training depth with its spread, and the largest size."""
    if row is None:
        return "-"
    if "kept" not in row.spreads:
        return row.show("best", factor=100, digits=".0f").replace(" ", "")
    best, deep = (row.show(name, factor=100, digits=".0f").replace(" ", "") for name in ("best", "accuracy_at_64"))
    best = best.partition("±")[0]
    text = f"{best}/{deep}/{row.mean('reach'):.3g}"
    return f"**{text}**" if row.mean("kept") == 1 else text


def _variants(tasks: Sequence[Task]) -> list[Variant]:
    return [variant for task in tasks for variant in task.variants()]


ITERATION = _Iteration(
    name="iteration",
    title="Own study: iteration beyond the training depth",
    statement="which stabilizer keeps a network right that is iterated far longer than it was trained",
    scales=("cpu",),
    variants=lambda scale: _variants(TASKS),
    claims=[claim for task in TASKS for claim in _claims_about(task)],
    tasks=TASKS,
)
