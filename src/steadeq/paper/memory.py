"""Memory of training and inference: of a DEQ by its budget and solver, and of the same cell unrolled by its depth."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..lab import recipes
from ..adjoints.base import Implicit
from ..jacobian.frobenius import jacobian_penalty
from ..models import AbstractEquilibriumModel, DEQTransformerLM
from ..models.transformer.presets import DEQ_TRANSFORMERS
from ..lab.recipes.registry import Scale
from ..lab.report.style import HEIGHT, WIDTH, look, styled, use_log_scale
from ..equilibrium import ConvergenceWarning
from ..solvers import GMRES, AbstractSolver, Anderson, Broyden, Picard
from .._internal.trees import leaves
from ..lab.train import Classification, Run
from ..lab.train.task import AbstractTask, LanguageModeling
from .result import Artefact, Verdict
from .drawing import save_figures, write_summary
from .memory_profile import peak_bytes
from .results import tabulate, write_rows

BUDGETS = (2, 4, 8, 12, 16, 30, 32)
"""Evaluations, forward and backward, of the DEQ; depths of its twin."""
SMALL, GENEROUS = 12, 30
"""Evaluations of the paper's DEQ-Transformers, with and without the penalty."""
DEPTH = 16
"""Of the twin that is compared; the paper's Transformer-XL has 18 layers."""
PLAIN, ANDERSON, BROYDEN = "plain iteration", "Anderson, window 6", "Broyden, window 8"
WHOLE, GMRES_BACKWARD, TWIN = "Broyden, whole history", "Anderson, backward GMRES", "unrolled"
SOLVERS: dict[str, Callable[[int], tuple[AbstractSolver, AbstractSolver]]] = {
    PLAIN: lambda budget: _both(Picard(max_evals=budget, tol=0)),
    ANDERSON: lambda budget: _both(Anderson(max_evals=budget, tol=0, memory=6)),
    BROYDEN: lambda budget: _both(Broyden(max_evals=budget, tol=0, memory=8)),
    # As in the official code.
    WHOLE: lambda budget: _both(Broyden(max_evals=budget, tol=0, memory=budget)),
    # As in most recipes; the Krylov space has room for the whole budget.
    GMRES_BACKWARD: lambda budget: (Anderson(max_evals=budget, tol=0, memory=6), GMRES(max_evals=budget, tol=0)),
}
"""By name: the solvers of the forward and of the backward pass, which spend all of a budget."""
_MB = 2**20
_TICKS = (2, 4, 8, 16, 32)

Row = Mapping[str, Any]


def _both(solver: AbstractSolver) -> tuple[AbstractSolver, AbstractSolver]:
    return solver, solver


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A model with a batch."""

    model: AbstractEquilibriumModel
    task: AbstractTask
    x: Tensor
    y: Tensor

    @torch.no_grad()
    def state_bytes(self) -> int:
        """Return the size of the states of the batch."""
        return sum(leaf.nbytes for leaf in leaves(self.model.inject(self.x)[0]))

    def train(self, name: str, budget: int, *, penalty: bool) -> None:
        """Compute the gradients of one step, and drop them.

        Args:
            name: Of `SOLVERS`, or `TWIN`.
            budget: Evaluations, or depth.
            penalty: Whether the Jacobian penalty is part of the loss.
        """
        with warnings.catch_warnings():
            # Plain iteration need not converge, which changes nothing about its memory.
            warnings.simplefilter("ignore", ConvergenceWarning)
            z, inputs = self._state(name, budget)
            loss = self.task.losses(self.model.answer(self.x, z, inputs), self.y).mean()
            if penalty:
                loss = loss + jacobian_penalty(self.model.layer.cell, z, *inputs)
            loss.backward()
        self.model.zero_grad()

    @torch.no_grad()
    def infer(self, name: str, budget: int) -> None:
        """Compute the output."""
        self.model.answer(self.x, *self._state(name, budget))

    def _state(self, name: str, budget: int) -> tuple[Any, tuple[Any, ...]]:
        if name != TWIN:
            forward, backward = SOLVERS[name](budget)
            equilibrium = self.model.solve(self.x, solver=forward, adjoint=Implicit(backward))
            return equilibrium.z, equilibrium.inputs
        return self.model.unroll(self.x, budget)


def subjects(device: torch.device) -> dict[str, Subject]:
    """Return the small models of the recipes with random batches, as memory does not depend on what they hold."""
    torch.manual_seed(0)
    found = {}
    for name, recipe, shape in (
        ("convolution", "digits", (32, 1, 8, 8)),
        ("MDEQ", "cifar10-mdeq-cpu", (8, 3, 32, 32)),
    ):
        model = recipes.get(recipe).build().model.build()
        assert isinstance(model, AbstractEquilibriumModel)
        x, y = torch.randn(shape), torch.randint(10, shape[:1])
        found[name] = Subject(model=model.to(device), task=Classification(), x=x.to(device), y=y.to(device))
    # With few words: as in the paper's numbers, those of embedding and softmax are left out.
    sizes: dict[str, Any] = {**DEQ_TRANSFORMERS["wt2-cpu"], "num_words": 100, "cutoffs": ()}
    words = torch.randint(100, (2, 8, 64)).to(device)
    transformer = DEQTransformerLM(**sizes).to(device)
    found["Transformer"] = Subject(model=transformer, task=LanguageModeling(), x=words[0], y=words[1])
    return found


def produce(runs: Mapping[str, Run], folder: Path, scale: Scale) -> list[Verdict]:
    """Measure, draw, and judge the claims.

    Args:
        runs: None.
        folder: Where figures and numbers go.
        scale: The same for all.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = [row for name, subject in subjects(device).items() for row in measure(name, subject, device)]
    verdicts = judge(rows)
    write_summary(folder, verdicts, device=device.type, rows=rows)
    write_rows(folder / "memory.csv", rows)
    save_figures({"training": draw(rows, "training"), "inference": draw(rows, "inference")}, folder)
    return verdicts


def measure(name: str, subject: Subject, device: torch.device, *, budgets: Sequence[int] = BUDGETS) -> list[Row]:
    """Return the peaks of one model, with each solver at each budget, and unrolled to each depth.

    Args:
        name: Of the model.
        subject: The model.
        device: Where it is.
        budgets: Budgets and depths.
    """
    state = subject.state_bytes()
    rows = []
    for solver in (*SOLVERS, TWIN):
        for budget in budgets:
            training, penalized = (
                peak_bytes(lambda: subject.train(solver, budget, penalty=penalty), device)  # noqa: B023 (called here)
                for penalty in (False, True)
            )
            rows.append(
                {
                    "model": name,
                    "solver": solver,
                    "budget": budget,
                    "training": training,
                    "training_penalized": penalized,
                    "inference": peak_bytes(lambda: subject.infer(solver, budget), device),  # noqa: B023
                    "state": state,
                }
            )
    return rows


def draw(rows: Sequence[Row], measured: str) -> Figure:
    """Show the peak memory of each model against budget or depth.

    Args:
        rows: What `measure` returned for all models.
        measured: training or inference.
    """
    names = _models(rows)
    with styled():
        figure = Figure(figsize=(WIDTH * len(names), HEIGHT + 0.7))
        panels = figure.subplots(1, len(names), squeeze=False)[0]
        for axes, name in zip(panels, names, strict=True):
            for index, solver in enumerate((*SOLVERS, TWIN)):
                if (measured, solver) == ("inference", GMRES_BACKWARD):
                    continue  # has no backward pass
                chosen = [row for row in rows if row["model"] == name and row["solver"] == solver]
                budgets = [row["budget"] for row in chosen]
                label = "the same cell, unrolled" if solver == TWIN else f"DEQ: {solver}"
                values = [row[measured] / _MB for row in chosen]
                axes.plot(budgets, values, marker="o", markersize=3.5, label=label, **look(index))
                if measured == "training" and solver in (ANDERSON, TWIN):
                    values = [row["training_penalized"] / _MB for row in chosen]
                    axes.plot(budgets, values, marker="x", label=f"{label}, with penalty", **look(index))
            axes.set_xscale("log", base=2)
            axes.set(title=name, xlabel="evaluations, or depth", xticks=_TICKS, xticklabels=_TICKS)
            axes.set_ylabel(f"peak memory of {measured}, MB")
            use_log_scale(axes)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return figure


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """Hold the paper's claims against the numbers."""
    names = _models(rows)

    def peak(name: str, solver: str, budget: int, measured: str = "training") -> float:
        found = next(r for r in rows if (r["model"], r["solver"], r["budget"]) == (name, solver, budget))
        return found[measured]

    def listed(show: Callable[[str], str]) -> str:
        return "; ".join(f"{name} {show(name)}" for name in names)

    def growth(name: str, solver: str, measured: str, first: int, last: int) -> float:
        return peak(name, solver, last, measured) / peak(name, solver, first, measured) - 1

    everything = ("training", "training_penalized", "inference")
    worst = {
        name: max(growth(name, s, m, 16, 32) for s in (PLAIN, ANDERSON, BROYDEN) for m in everything) for name in names
    }
    # A straight line grows twice as much from 16 to 32 as from 8 to 16.
    bend = {
        name: (peak(name, TWIN, 32) - peak(name, TWIN, 16)) / (peak(name, TWIN, 16) - peak(name, TWIN, 8)) / 2 - 1
        for name in names
    }
    each = {
        name: (peak(name, WHOLE, 32, "inference") - peak(name, WHOLE, 16, "inference")) / 16 / _state(rows, name)
        for name in names
    }
    share = {name: peak(name, ANDERSON, SMALL, "training_penalized") / peak(name, TWIN, DEPTH) for name in names}
    added = {
        name: {s: peak(name, s, SMALL, "training_penalized") / peak(name, s, SMALL) - 1 for s in SOLVERS}
        for name in names
    }
    net = {name: peak(name, WHOLE, SMALL, "training_penalized") / peak(name, WHOLE, GENEROUS) - 1 for name in names}
    saved = {name: -growth(name, WHOLE, "inference", GENEROUS, SMALL) for name in names}
    extra = {
        name: {s: peak(name, s, GENEROUS, "inference") / peak(name, TWIN, GENEROUS, "inference") - 1 for s in SOLVERS}
        for name in names
    }
    return [
        Verdict.of(
            "memory of a DEQ does not grow with the budget once the window of its solver is full (within 1%; plain "
            "iteration, Anderson, Broyden with a window; training, with and without penalty, and inference)",
            max(worst.values()) < 0.01,
            f"largest growth from 16 to 32 evaluations: {listed(lambda n: f'{worst[n]:.2%}')}",
        ),
        Verdict.of(
            "Broyden with its whole history needs about two more states for each evaluation (section 3.4)",
            all(abs(value - 2) < 0.2 for value in each.values()),
            f"states for each evaluation, inference: {listed(lambda n: f'{each[n]:.2f}')}; training from 16 to 32 "
            f"evaluations: {listed(lambda n: f'{growth(n, WHOLE, everything[0], 16, 32):+.0%}')}; with GMRES for the "
            f"backward pass: {listed(lambda n: f'{growth(n, GMRES_BACKWARD, everything[0], 16, 32):+.0%}')}",
        ),
        Verdict.of(
            "training memory of the same cell unrolled grows linearly with depth (within 5%)",
            max(map(abs, bend.values())) < 0.05,
            "from depth 16 to 32: " + listed(lambda n: f"{growth(n, TWIN, 'training', 16, 32):+.0%}"),
        ),
        Verdict.of(
            f"a regularized DEQ trains with half the memory of an explicit network, or less (Anderson at {SMALL} "
            f"evaluations, depth {DEPTH})",
            max(share.values()) <= 0.5,
            listed(lambda n: f"{share[n]:.0%}, that of depth {_break_even(rows, n):.1f}"),
        ),
        Verdict.of(
            f"the penalty needs about 30% more training memory at most, evaluations saved counted in ({SMALL} instead "
            f"of {GENEROUS}, Broyden with its whole history; section 4.3)",
            max(net.values()) < 0.35,
            listed(lambda n: f"{net[n]:+.0%}"),
        ),
        Verdict.of(
            f"at equal budgets too, the penalty needs about 30% more training memory at most ({SMALL} evaluations)",
            max(value for found in added.values() for value in found.values()) < 0.35,
            "; ".join(f"{solver}: {listed(lambda n, s=solver: f'{added[n][s]:+.0%}')}" for solver in SOLVERS),
        ),
        Verdict.of(
            f"fewer evaluations halve the memory of inference with Broyden, or more ({SMALL} instead of {GENEROUS}; "
            "section 5.2)",
            min(saved.values()) >= 0.5,
            f"saved: {listed(lambda n: f'{saved[n]:.0%}')}",
        ),
        Verdict.of(
            "plain iteration needs no more memory for inference than the explicit network (within 5%; section 3.4)",
            max(found[PLAIN] for found in extra.values()) < 0.05,
            "; ".join(f"{solver}: {listed(lambda n, s=solver: f'{extra[n][s]:+.0%}')}" for solver in SOLVERS),
        ),
    ]


def _models(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in rows))


def _state(rows: Sequence[Row], name: str) -> int:
    return next(row["state"] for row in rows if row["model"] == name)


def _break_even(rows: Sequence[Row], name: str) -> float:
    """Return the depth at which the unrolled cell trains with the memory of the regularized DEQ."""
    by_depth = {row["budget"]: row["training"] for row in rows if (row["model"], row["solver"]) == (name, TWIN)}
    wanted = next(
        row["training_penalized"]
        for row in rows
        if (row["model"], row["solver"], row["budget"]) == (name, ANDERSON, SMALL)
    )
    slope = (by_depth[32] - by_depth[8]) / 24
    return 8 + (wanted - by_depth[8]) / slope


def table(content: Mapping[str, Any]) -> str:
    """Return the numbers of `summary.json` as a table in Markdown: MB of training / with penalty / of inference."""
    rows = content["rows"]
    chosen = (4, 8, 16, 32)
    lines = []
    for name in _models(rows):
        for solver in (*SOLVERS, TWIN):
            by_budget = {row["budget"]: row for row in rows if (row["model"], row["solver"]) == (name, solver)}
            cells = (
                " / ".join(f"{by_budget[n][m] / _MB:.3g}" for m in ("training", "training_penalized", "inference"))
                for n in chosen
            )
            lines.append([name, solver, *cells])
    titles = [f"at {n}" for n in chosen]
    titles[0] = f"MB {titles[0]} evaluations, or depth {chosen[0]}: training / with penalty / inference"
    return tabulate(["cell", "solver", *titles], lines)


MEMORY = Artefact(
    name="memory",
    claim="a DEQ trains with the same memory at every budget, but for its solver's; unrolled, memory grows with depth",
    data={"cpu": "-"},
    duration={"cpu": "2 min"},
    runs=lambda scale: {},
    produce=produce,
    tabulate=table,
)
