"""Memory of training and inference: of a DEQ by its budget and solver, and of the same cell unrolled by its depth."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..adjoints import Implicit
from ..equilibrium import ConvergenceWarning, Equilibrium
from ..jacobian import jacobian_penalty
from ..lab import recipes
from ..lab.recipes.registry import Scale
from ..lab.report.style import HEIGHT, WIDTH, line_style, styled, use_log_scale
from ..lab.tasks import AbstractTask, Classification, LanguageModeling
from ..lab.train import Process
from ..models import AbstractEquilibriumModel, DEQTransformerLM, preset
from ..nn import cached_parameters
from ..solvers import GMRES, AbstractLinearSolver, AbstractSolver, Anderson, Broyden, Picard
from ..trees import leaves
from .comparison import save_figures
from .memory_profile import peak_bytes
from .result import Claim, PaperResult, Source, Threshold
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

    def run(self, solver: str, budget: int, measured: Measured) -> None:
        """Compute the output, or the gradients of one step, and drop them."""
        if measured == "inference":
            with torch.no_grad():
                self._solve(solver, budget)
            return
        with warnings.catch_warnings():
            # Plain iteration need not converge, which changes nothing about its memory.
            warnings.simplefilter("ignore", ConvergenceWarning)
            output, eq = self._solve(solver, budget)
            loss = self.task.losses(output, self.y).mean()
            if measured == "training_penalized":
                loss = loss + jacobian_penalty(eq)
            # What is not needed any more does not count.
            del output, eq
            loss.backward()
        self.model.zero_grad()

    def _solve(self, solver: str, budget: int) -> tuple[Any, Equilibrium]:
        if solver == UNROLLED:
            # Not by `unroll`, which keeps the state before the last for its residual.
            z, inputs = self.model.encode(self.x)
            with cached_parameters(self.model.layer.cell):
                for _ in range(budget):
                    z = self.model.layer.cell(z, *inputs)
            return self.model.decode(z), Equilibrium.at(self.model.layer.cell, z, *inputs)
        forward, backward = SOLVERS[solver](budget)
        return self.model.solve(self.x, solver=forward, adjoint=Implicit(backward or forward))


def subjects(device: torch.device) -> dict[str, Subject]:
    """Return the small models of the recipes with random batches, as memory does not depend on what they hold."""
    torch.manual_seed(0)
    found, images = {}, (("convolution", "digits", (32, 1, 8, 8)), ("MDEQ", "cifar10-mdeq-cpu", (8, 3, 32, 32)))
    for name, recipe, shape in images:
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
    """The most memory that tensors take at a time, and the size of the states of the batch, in bytes."""

    model: str
    solver: str
    """Name of the solvers, or `UNROLLED`, whose budget is its depth."""
    budget: int
    training: int
    training_penalized: int
    inference: int
    state: int


def measure(name: str, subject: Subject, device: torch.device, *, budgets: Sequence[int] = BUDGETS) -> list[Peak]:
    """Return the peaks of one model, with each solver at each budget, and unrolled to each depth."""
    with torch.no_grad():
        state = sum(leaf.nbytes for leaf in leaves(subject.model.encode(subject.x)[0]))
    found = []
    for solver, budget in product((*SOLVERS, UNROLLED), budgets):
        peaks = {m: peak_bytes(partial(subject.run, solver, budget, m), device) for m in MEASURED}
        found.append(Peak(model=name, solver=solver, budget=budget, **peaks, state=state))
    return found


Number = Callable[["Summary", str], float]
"""Returns a number of the model of a name."""
Point = tuple[str, int, Measured]
"""Name of a solver, budget, and what is measured."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All peaks."""

    device: str
    rows: Sequence[Peak]

    @property
    def models(self) -> list[str]:
        """Names of the models."""
        return list(dict.fromkeys(row.model for row in self.rows))

    def peak(self, model: str, solver: str, budget: int) -> Peak:
        """Return a row."""
        return next(r for r in self.rows if (r.model, r.solver, r.budget) == (model, solver, budget))

    def each(self, number: Number, digits: str = "+.0%") -> str:
        """Return a number of each model as text."""
        return "; ".join(f"{name} {number(self, name):{digits}}" for name in self.models)


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
                axes.plot(budgets, values, marker="o", markersize=3.5, label=label, **line_style(index))
                if measured == "training" and solver in (ANDERSON, UNROLLED):
                    values = [row.training_penalized / _MB for row in chosen]
                    axes.plot(budgets, values, marker="x", label=f"{label}, with penalty", **line_style(index))
            axes.set_xscale("log", base=2)
            axes.set(title=name, xlabel="evaluations, or depth", xticks=ticks, xticklabels=ticks)
            axes.set_ylabel(f"peak memory of {measured}, MB")
            use_log_scale(axes)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return figure


@dataclass(frozen=True, kw_only=True)
class _Memory(PaperResult[Summary]):
    summary_type = Summary
    rows_key = "rows"

    def measure(self, runs: Mapping[str, Path], folder: Path, scale: Scale) -> Summary:
        device = Process.alone().device
        rows = [row for name, subject in subjects(device).items() for row in measure(name, subject, device)]
        summary = Summary(device=device.type, rows=rows)
        save_figures({"training": draw(summary, "training"), "inference": draw(summary, "inference")}, folder)
        return summary

    def table(self, summary: Summary) -> str:
        def cell(row: Peak) -> str:
            return " / ".join(f"{getattr(row, name) / _MB:.3g}" for name in MEASURED)

        rows = [
            [name, solver, *(cell(summary.peak(name, solver, budget)) for budget in (4, 32))]
            for name in summary.models
            for solver in (*SOLVERS, UNROLLED)
        ]
        return markdown_table(["cell", "solver", "4", "32"], rows)


def _ratio(first: Point, second: Point, *, minus: float = 1.0) -> Number:
    """Return how much more memory one point takes than another, as a fraction."""

    def number(s: Summary, model: str) -> float:
        one, other = (getattr(s.peak(model, solver, budget), measured) for solver, budget, measured in (first, second))
        return one / other - minus

    return number


def _growth(solver: str, measured: Measured) -> Number:
    return _ratio((solver, 32, measured), (solver, 16, measured))


def _largest_growth(s: Summary, model: str) -> float:
    return max(_growth(solver, m)(s, model) for solver in (PLAIN, ANDERSON, BROYDEN) for m in MEASURED)


def _states_per_evaluation(s: Summary, model: str) -> float:
    first, last = (s.peak(model, WHOLE, budget) for budget in (16, 32))
    return (last.inference - first.inference) / 16 / first.state


def _bend(s: Summary, model: str) -> float:
    """Return how far memory is from a straight line, which grows twice as much from 16 to 32 as from 8 to 16."""
    low, middle, high = (s.peak(model, UNROLLED, depth).training for depth in (8, 16, 32))
    return (high - middle) / (middle - low) / 2 - 1


def _break_even(s: Summary, model: str) -> float:
    """Return the depth at which the unrolled cell trains with the memory of the regularized DEQ."""
    low, high = (s.peak(model, UNROLLED, depth).training for depth in (8, 32))
    return 8 + (s.peak(model, ANDERSON, SMALL).training_penalized - low) / ((high - low) / 24)


def _penalty_added(solver: str) -> Number:
    return _ratio((solver, SMALL, "training_penalized"), (solver, SMALL, "training"))


def _inference_added(solver: str) -> Number:
    return _ratio((solver, LARGE, "inference"), (UNROLLED, LARGE, "inference"))


def _by_solver(s: Summary, number: Callable[[str], Number]) -> str:
    return "; ".join(f"{solver}: {s.each(number(solver))}" for solver in SOLVERS)


def _claim(
    text: str,
    number: Number,
    holds: Callable[[float], bool],
    evidence: Callable[[Summary], str],
    *,
    section: str,
    id: str = "",
    source: Source = "paper",
    threshold: Threshold = "set after a look at numbers",
) -> Claim[Summary]:
    """Return a claim that something holds of a number of all models."""
    return Claim(
        text,
        id=id,
        section=section,
        source=source,
        threshold=threshold,
        holds=lambda s: all(holds(number(s, model)) for model in s.models),
        evidence=evidence,
    )


_share = _ratio((ANDERSON, SMALL, "training_penalized"), (UNROLLED, DEPTH, "training"), minus=0)
_penalty_net = _ratio((WHOLE, SMALL, "training_penalized"), (WHOLE, LARGE, "training"))
_broyden_net = _ratio((WHOLE, SMALL, "inference"), (WHOLE, LARGE, "inference"))

MEMORY = _Memory(
    name="memory",
    title="Memory",
    statement="a DEQ trains with the same memory at every budget, but for its solver's; unrolled, memory grows with "
    "depth",
    scales=("cpu",),
    takes="2 min",
    claims=(
        _claim(
            "memory of a DEQ does not grow with the budget once the window of its solver is full (within 1%; plain "
            "iteration, Anderson, Broyden with a window; training, with and without penalty, and inference)",
            _largest_growth,
            lambda growth: growth < 0.01,
            lambda s: f"largest growth from 16 to 32 evaluations: {s.each(_largest_growth, '.2%')}",
            id="constant",
            section="4.3",
        ),
        _claim(
            "Broyden with its whole history needs about two more states for each evaluation",
            _states_per_evaluation,
            lambda number: abs(number - 2) < 0.2,
            lambda s: (
                f"states for each evaluation, inference: {s.each(_states_per_evaluation, '.2f')}; "
                f"training from 16 to 32 evaluations: {s.each(_growth(WHOLE, 'training'))}; with "
                f"GMRES for the backward pass: {s.each(_growth(GMRES_BACKWARD, 'training'))}"
            ),
            section="3.4",
        ),
        _claim(
            "training memory of the same cell unrolled grows linearly with depth (within 5%)",
            _bend,
            lambda bend: abs(bend) < 0.05,
            lambda s: f"from depth 16 to 32: {s.each(_growth(UNROLLED, 'training'))}",
            section="4.3",
            source="own",
        ),
        _claim(
            f"a regularized DEQ trains with half the memory of an explicit network, or less (Anderson at {SMALL} "
            f"evaluations, depth {DEPTH})",
            _share,
            lambda share: share <= 0.5,
            lambda s: "; ".join(f"{n} {_share(s, n):.0%}, as much as depth {_break_even(s, n):.1f}" for n in s.models),
            section="4.3",
            threshold="none",
        ),
        _claim(
            f"the penalty needs about 30% more training memory at most, evaluations saved counted in ({SMALL} instead "
            f"of {LARGE}, Broyden with its whole history)",
            _penalty_net,
            lambda added: added < 0.35,
            lambda s: s.each(_penalty_net),
            section="4.3, B.1",
        ),
        _claim(
            f"at equal budgets too, the penalty needs about 30% more training memory at most ({SMALL} evaluations)",
            lambda s, n: max(_penalty_added(solver)(s, n) for solver in SOLVERS),
            lambda added: added < 0.35,
            lambda s: _by_solver(s, _penalty_added),
            section="4.3",
            source="own",
        ),
        _claim(
            f"fewer evaluations halve the memory of inference with Broyden, or more ({SMALL} instead of {LARGE})",
            _broyden_net,
            lambda growth: growth <= -0.5,
            lambda s: f"saved: {s.each(lambda s, n: -_broyden_net(s, n), '.0%')}",
            section="5.2",
            threshold="none",
        ),
        _claim(
            "plain iteration needs no more memory for inference than the explicit network (within 5%)",
            _inference_added(PLAIN),
            lambda added: added < 0.05,
            lambda s: _by_solver(s, _inference_added),
            section="3.4",
        ),
    ),
)
