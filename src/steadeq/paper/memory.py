"""Memory of training and inference: of a DEQ by its budget and solver, and of the same cell unrolled by its depth."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from matplotlib.figure import Figure
from torch import Tensor

from .._internal.trees import leaves
from ..adjoints import Implicit
from ..equilibrium import ConvergenceWarning, Equilibrium
from ..jacobian import jacobian_penalty
from ..lab import recipes
from ..lab.recipes.registry import Scale
from ..lab.report.style import HEIGHT, WIDTH, look, styled, use_log_scale
from ..lab.tasks import AbstractTask, Classification, LanguageModeling
from ..lab.train import Process
from ..models import AbstractEquilibriumModel, DEQTransformerLM, preset
from ..solvers import GMRES, AbstractLinearSolver, AbstractSolver, Anderson, Broyden, Picard
from .comparison import save_figures
from .memory_profile import peak_bytes
from .result import Claim, PaperResult
from .tables import markdown_table

Measured = Literal["training", "training_penalized", "inference"]
MEASURED: tuple[Measured, ...] = ("training", "training_penalized", "inference")
BUDGETS = (2, 4, 8, 12, 16, 30, 32)
"""Evaluations, forward and backward, of the DEQ; depths of the same cell unrolled."""
SMALL, LARGE = 12, 30
"""Evaluations of the paper's DEQ-Transformers, with and without the penalty."""
DEPTH = 16
"""Depth of the unrolled cell that is compared; the paper's Transformer-XL has 18 layers."""
PLAIN, ANDERSON, BROYDEN = "plain iteration", "Anderson, window 6", "Broyden, window 8"
WHOLE, GMRES_BACKWARD, UNROLLED = "Broyden, whole history", "Anderson, backward GMRES", "unrolled"
SOLVERS: Mapping[str, Callable[[int], tuple[AbstractSolver, AbstractLinearSolver | None]]] = {
    PLAIN: lambda budget: (Picard(max_evals=budget, tol=0), None),
    ANDERSON: lambda budget: (Anderson(max_evals=budget, tol=0, memory=6), None),
    BROYDEN: lambda budget: (Broyden(max_evals=budget, tol=0, memory=8), None),
    # As in the official code.
    WHOLE: lambda budget: (Broyden(max_evals=budget, tol=0, memory=budget), None),
    # As in most recipes; the Krylov space has room for the whole budget.
    GMRES_BACKWARD: lambda budget: (Anderson(max_evals=budget, tol=0, memory=6), GMRES(max_evals=budget, tol=0)),
}
"""Solvers of the forward and of the backward pass (None for the same), which spend all of a budget, by name."""
_MB = 2**20


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
        return sum(leaf.nbytes for leaf in leaves(self.model.encode(self.x)[0]))

    def train(self, name: str, budget: int, *, penalty: bool) -> None:
        """Compute the gradients of one step, and drop them.

        Args:
            name: Name of the solver, or `UNROLLED`.
            budget: Evaluations, or depth.
            penalty: Whether the Jacobian penalty is part of the loss.
        """
        with warnings.catch_warnings():
            # Plain iteration need not converge, which changes nothing about its memory.
            warnings.simplefilter("ignore", ConvergenceWarning)
            output, eq = self._run(name, budget)
            loss = self.task.losses(output, self.y).mean()
            if penalty:
                loss = loss + jacobian_penalty(eq)
            # What is not needed any more does not count.
            del output, eq
            loss.backward()
        self.model.zero_grad()

    @torch.no_grad()
    def infer(self, name: str, budget: int) -> None:
        """Compute the output."""
        self._run(name, budget)

    def _run(self, name: str, budget: int) -> tuple[Any, Equilibrium]:
        if name == UNROLLED:
            return self.model.unroll(self.x, budget)
        forward, backward = SOLVERS[name](budget)
        return self.model.solve(self.x, solver=forward, adjoint=Implicit(backward or forward))


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
    sizes = preset("deq-transformer/wt2-cpu")
    assert isinstance(sizes, DEQTransformerLM.Config)
    # With few tokens: as in the paper's numbers, those of embedding and softmax are left out.
    transformer = DEQTransformerLM(replace(sizes, vocab_size=100, cutoffs=())).to(device)
    tokens = torch.randint(100, (2, 8, 64)).to(device)
    found["Transformer"] = Subject(model=transformer, task=LanguageModeling(), x=tokens[0], y=tokens[1])
    return found


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The most memory that tensors take at a time, in bytes."""

    model: str
    solver: str
    """Name of the solvers, or `UNROLLED`."""
    budget: int
    """Evaluations, or depth."""
    training: int
    training_penalized: int
    inference: int
    state: int
    """Size of the states of the batch."""


def measure(name: str, subject: Subject, device: torch.device, *, budgets: Sequence[int] = BUDGETS) -> list[Peak]:
    """Return the peaks of one model, with each solver at each budget, and unrolled to each depth.

    Args:
        name: Name of the model.
        subject: The model.
        device: Where it is.
        budgets: Budgets and depths.
    """
    state = subject.state_bytes()

    def at(solver: str, budget: int) -> Peak:
        return Peak(
            model=name,
            solver=solver,
            budget=budget,
            training=peak_bytes(lambda: subject.train(solver, budget, penalty=False), device),
            training_penalized=peak_bytes(lambda: subject.train(solver, budget, penalty=True), device),
            inference=peak_bytes(lambda: subject.infer(solver, budget), device),
            state=state,
        )

    return [at(solver, budget) for solver in (*SOLVERS, UNROLLED) for budget in budgets]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All peaks, and what the claims are about."""

    device: str
    rows: Sequence[Peak]

    @property
    def models(self) -> list[str]:
        """Names of the models."""
        return list(dict.fromkeys(row.model for row in self.rows))

    def peak(self, model: str, solver: str, budget: int) -> Peak:
        """Return a row."""
        return next(r for r in self.rows if (r.model, r.solver, r.budget) == (model, solver, budget))

    def growth(self, model: str, solver: str, measured: Measured, first: int, last: int) -> float:
        """Return how much more a budget takes than another, as a fraction."""
        low, high = (getattr(self.peak(model, solver, budget), measured) for budget in (first, last))
        return high / low - 1

    def each(self, number: Callable[[str], float]) -> list[float]:
        """Return a number for each model."""
        return [number(name) for name in self.models]

    def listed(self, text: Callable[[str], str]) -> str:
        """Return a text for each model."""
        return "; ".join(f"{name} {text(name)}" for name in self.models)

    def by_solver(self, number: Callable[[str, str], float]) -> str:
        """Return a percentage for each solver and model."""
        return "; ".join(f"{s}: {self.listed(lambda n, s=s: f'{number(n, s):+.0%}')}" for s in SOLVERS)

    def largest_growth(self, model: str) -> float:
        """Return how much peaks grow from 16 to 32 evaluations where no solver keeps its whole history."""
        return max(self.growth(model, s, m, 16, 32) for s in (PLAIN, ANDERSON, BROYDEN) for m in MEASURED)

    def states_per_evaluation(self, model: str) -> float:
        """Return how many states Broyden keeps for each evaluation if it keeps its whole history."""
        first, last = (self.peak(model, WHOLE, budget) for budget in (16, 32))
        return (last.inference - first.inference) / 16 / first.state

    def bend(self, model: str) -> float:
        """Return how far the memory of the unrolled cell is from a straight line, which doubles its growth here."""
        low, middle, high = (self.peak(model, UNROLLED, depth).training for depth in (8, 16, 32))
        return (high - middle) / (middle - low) / 2 - 1

    def share(self, model: str) -> float:
        """Return the memory of a regularized DEQ as a fraction of that of the unrolled cell."""
        return self.peak(model, ANDERSON, SMALL).training_penalized / self.peak(model, UNROLLED, DEPTH).training

    def break_even(self, model: str) -> float:
        """Return the depth at which the unrolled cell trains with the memory of the regularized DEQ."""
        low, high = (self.peak(model, UNROLLED, depth).training for depth in (8, 32))
        return 8 + (self.peak(model, ANDERSON, SMALL).training_penalized - low) / ((high - low) / 24)

    def penalty_net(self, model: str) -> float:
        """Return what the penalty adds to training if it saves evaluations, as a fraction."""
        return self.peak(model, WHOLE, SMALL).training_penalized / self.peak(model, WHOLE, LARGE).training - 1

    def penalty_added(self, model: str, solver: str) -> float:
        """Return what the penalty adds to training with the same budget, as a fraction."""
        row = self.peak(model, solver, SMALL)
        return row.training_penalized / row.training - 1

    def inference_added(self, model: str, solver: str) -> float:
        """Return what a DEQ takes for inference beyond the unrolled cell, as a fraction."""
        return self.peak(model, solver, LARGE).inference / self.peak(model, UNROLLED, LARGE).inference - 1


def draw(summary: Summary, measured: Literal["training", "inference"]) -> Figure:
    """Show the peak memory of each model against budget or depth."""
    ticks = (2, 4, 8, 16, 32)
    with styled():
        figure = Figure(figsize=(WIDTH * len(summary.models), HEIGHT + 0.7))
        panels = figure.subplots(1, len(summary.models), squeeze=False)[0]
        for axes, name in zip(panels, summary.models, strict=True):
            for index, solver in enumerate((*SOLVERS, UNROLLED)):
                if (measured, solver) == ("inference", GMRES_BACKWARD):
                    continue  # has no backward pass
                chosen = [row for row in summary.rows if (row.model, row.solver) == (name, solver)]
                budgets = [row.budget for row in chosen]
                label = "the same cell, unrolled" if solver == UNROLLED else f"DEQ: {solver}"
                values = [getattr(row, measured) / _MB for row in chosen]
                axes.plot(budgets, values, marker="o", markersize=3.5, label=label, **look(index))
                if measured == "training" and solver in (ANDERSON, UNROLLED):
                    values = [row.training_penalized / _MB for row in chosen]
                    axes.plot(budgets, values, marker="x", label=f"{label}, with penalty", **look(index))
            axes.set_xscale("log", base=2)
            axes.set(title=name, xlabel="evaluations, or depth", xticks=ticks, xticklabels=ticks)
            axes.set_ylabel(f"peak memory of {measured}, MB")
            use_log_scale(axes)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return figure


@dataclass(frozen=True, kw_only=True)
class _Memory(PaperResult[Summary]):
    rows_key = "rows"

    def measure(self, runs: Mapping[str, Path], folder: Path, scale: Scale) -> Summary:
        """Measure all peaks, and draw them."""
        device = Process.alone().device
        rows = [row for name, subject in subjects(device).items() for row in measure(name, subject, device)]
        summary = Summary(device=device.type, rows=rows)
        save_figures({"training": draw(summary, "training"), "inference": draw(summary, "inference")}, folder)
        return summary

    def to_json(self, summary: Summary) -> dict[str, Any]:
        """Return what is written to summary.json."""
        return asdict(summary)

    def from_json(self, content: Mapping[str, Any]) -> Summary:
        """Return what was read from summary.json."""
        return Summary(device=content["device"], rows=[Peak(**row) for row in content["rows"]])

    def table(self, summary: Summary) -> str:
        """Return MB of training / with penalty / of inference, at some budgets."""
        budgets = (4, 8, 16, 32)

        def cell(row: Peak) -> str:
            return " / ".join(f"{getattr(row, name) / _MB:.3g}" for name in MEASURED)

        rows = [
            [name, solver, *(cell(summary.peak(name, solver, budget)) for budget in budgets)]
            for name in summary.models
            for solver in (*SOLVERS, UNROLLED)
        ]
        return markdown_table(["cell", "solver", *map(str, budgets)], rows)


MEMORY = _Memory(
    name="memory",
    title="Memory (sections 3.4, 4.3 and 5.2)",
    statement="a DEQ trains with the same memory at every budget, but for its solver's; unrolled, memory grows with "
    "depth",
    scales=("cpu",),
    takes="2 min",
    claims=(
        Claim(
            "memory of a DEQ does not grow with the budget once the window of its solver is full (within 1%; plain "
            "iteration, Anderson, Broyden with a window; training, with and without penalty, and inference)",
            holds=lambda s: max(s.each(s.largest_growth)) < 0.01,
            evidence=lambda s: (
                f"largest growth from 16 to 32 evaluations: {s.listed(lambda n: f'{s.largest_growth(n):.2%}')}"
            ),
        ),
        Claim(
            "Broyden with its whole history needs about two more states for each evaluation (section 3.4)",
            holds=lambda s: all(abs(value - 2) < 0.2 for value in s.each(s.states_per_evaluation)),
            evidence=lambda s: (
                f"states for each evaluation, inference: {s.listed(lambda n: f'{s.states_per_evaluation(n):.2f}')}; "
                "training from 16 to 32 evaluations: "
                f"{s.listed(lambda n: f'{s.growth(n, WHOLE, MEASURED[0], 16, 32):+.0%}')}; with GMRES for the backward "
                f"pass: {s.listed(lambda n: f'{s.growth(n, GMRES_BACKWARD, MEASURED[0], 16, 32):+.0%}')}"
            ),
        ),
        Claim(
            "training memory of the same cell unrolled grows linearly with depth (within 5%)",
            holds=lambda s: max(map(abs, s.each(s.bend))) < 0.05,
            evidence=lambda s: (
                "from depth 16 to 32: " + s.listed(lambda n: f"{s.growth(n, UNROLLED, 'training', 16, 32):+.0%}")
            ),
        ),
        Claim(
            f"a regularized DEQ trains with half the memory of an explicit network, or less (Anderson at {SMALL} "
            f"evaluations, depth {DEPTH})",
            holds=lambda s: max(s.each(s.share)) <= 0.5,
            evidence=lambda s: s.listed(lambda n: f"{s.share(n):.0%}, that of depth {s.break_even(n):.1f}"),
        ),
        Claim(
            f"the penalty needs about 30% more training memory at most, evaluations saved counted in ({SMALL} instead "
            f"of {LARGE}, Broyden with its whole history; section 4.3)",
            holds=lambda s: max(s.each(s.penalty_net)) < 0.35,
            evidence=lambda s: s.listed(lambda n: f"{s.penalty_net(n):+.0%}"),
        ),
        Claim(
            f"at equal budgets too, the penalty needs about 30% more training memory at most ({SMALL} evaluations)",
            holds=lambda s: max(s.penalty_added(n, solver) for n in s.models for solver in SOLVERS) < 0.35,
            evidence=lambda s: s.by_solver(s.penalty_added),
        ),
        Claim(
            f"fewer evaluations halve the memory of inference with Broyden, or more ({SMALL} instead of {LARGE}; "
            "section 5.2)",
            holds=lambda s: max(s.each(lambda n: s.growth(n, WHOLE, "inference", LARGE, SMALL))) <= -0.5,
            evidence=lambda s: f"saved: {s.listed(lambda n: f'{-s.growth(n, WHOLE, MEASURED[2], LARGE, SMALL):.0%}')}",
        ),
        Claim(
            "plain iteration needs no more memory for inference than the explicit network (within 5%; section 3.4)",
            holds=lambda s: max(s.inference_added(n, PLAIN) for n in s.models) < 0.05,
            evidence=lambda s: s.by_solver(s.inference_added),
        ),
    ),
)
