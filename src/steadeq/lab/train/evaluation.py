"""Measuring a network: its task, its solves at one budget or at many, and its Jacobian."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ...equilibrium import Status
from ...jacobian import frobenius_norm, spectral_radius
from ...solvers import AbstractSolver
from ...trees import leaves
from ..data import MapDataset, evaluation_batches, is_contiguous, read_samples, spread_over
from ..errors import InputError, Interrupted
from ..files import check_plain, write_atomically
from ..run.loading import TrainedModel
from ..run.record import Evaluation, EvaluationRow, Split
from ..signals import Interruption
from ..tasks import AbstractTask
from ..terminal import Work
from .adapter import Carry, ModelAdapter
from .distributed import Process
from .metrics import now, peak_memory

log = logging.getLogger(__name__)

_MAX_BUDGET = 100_000
"""The largest budget of a solve that may be asked for; beyond it is a typo."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """Some samples to look at closely."""

    x: Tensor
    """The inputs."""
    y: Tensor
    """The targets."""
    carry: Carry | None
    """What the network carries over from earlier segments of a text, if it carries anything."""

    @classmethod
    @torch.no_grad()
    def spread(
        cls,
        adapter: ModelAdapter,
        dataset: MapDataset,
        *,
        num_samples: int,
        device: torch.device,
        solver: AbstractSolver,
        depth: int | None = None,
    ) -> Samples:
        """Return samples that are spread evenly over a data set.

        Args:
            adapter: The network, by which segments of a text get the memory of the segment before.
            dataset: Where they are from.
            num_samples: How many, if there are so many.
            device: Where they are wanted.
            solver: How equilibria are found.
            depth: Apply the cell this often instead of solving for the equilibrium.
        """
        first = int(is_contiguous(dataset) and len(dataset) > 1)
        places = first + spread_over(len(dataset) - first, num_samples)
        carry = None
        if first:
            x, _ = read_samples(dataset, places - 1)
            carry = adapter(x.to(device), solver=solver, depth=depth).carry
        x, y = (tensor.to(device) for tensor in read_samples(dataset, places))
        return cls(x=x, y=y, carry=carry)


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Runs a network over a data set; with several processes, each takes its part and all get the whole result."""

    task: AbstractTask
    process: Process
    batch_size: int = 250
    precision: torch.dtype | None = None
    """Dtype of autocast, or None for none."""
    interruption: Interruption | None = None
    """Stops between batches when it was requested."""

    @torch.no_grad()
    def measure(
        self, model: nn.Module, dataset: MapDataset, solver: AbstractSolver, *, depth: int | None = None
    ) -> EvaluationRow:
        """Return loss, metric, and means over samples of residual and evaluations, at a solver's budget.

        A text is read in order, each segment with the carry of the one before; all means are over its tokens.

        Args:
            model: The network.
            dataset: What it is measured on.
            solver: How equilibria are found.
            depth: Apply the cell this often instead of solving for the equilibrium.
        """
        device, adapter = self.process.device, ModelAdapter(model)
        was_training = model.training
        model.eval()
        # loss, residual, evaluations, converged, seconds, units, bad samples; then the scores
        sums = torch.zeros(7, dtype=torch.float64, device=device)
        scores: torch.Tensor | None = None
        keeps_carry = is_contiguous(dataset)
        carry: Carry | None = None
        batches = evaluation_batches(
            dataset, batch_size=self.batch_size, rank=self.process.rank, world_size=self.process.world_size
        )
        try:
            for batch in batches:
                if self.interruption is not None and self.interruption.requested and self.process.world_size == 1:
                    raise Interrupted
                x, y = (tensor.to(device) for tensor in batch)
                start = now(device)
                with torch.autocast(device.type, dtype=self.precision, enabled=self.precision is not None):
                    answer = adapter(x, carry=carry, solver=solver, depth=depth)
                seconds = now(device) - start
                carry = answer.carry if keeps_carry else None
                losses = self.task.losses(answer.output, y)
                num_units = self.task.num_units(y)
                sums[0] += num_units * losses.double().sum()
                stats = None if answer.equilibrium is None else answer.equilibrium.stats
                is_bad = ~losses.isfinite()
                if stats is not None:
                    is_bad |= stats.status == Status.NON_FINITE
                    values = (stats.residual, stats.num_evals, stats.converged)
                    sums[1:4] += num_units * torch.stack([value.double().sum() for value in values])
                sums[4] += seconds
                sums[5] += num_units * len(y)
                sums[6] += is_bad.sum()
                part = num_units * self.task.scores(answer.output, y, losses).double().sum(dim=0).reshape(-1)
                scores = part if scores is None else scores + part
        finally:
            model.train(was_training)
        assert scores is not None
        numbers = self.process.total(torch.cat([sums, scores])).tolist()
        loss, residual, evals, converged, seconds, count, num_bad, *totals = numbers
        has_solves = adapter.has_equilibrium
        max_evals = (depth or solver.max_evals) if has_solves else 0
        if num_bad and self.process.is_main:
            log.warning(
                "%d samples have a state or a loss that is not finite%s; their scores are meaningless.",
                num_bad,
                f" after {max_evals} evaluations" if max_evals else "",
            )
        return EvaluationRow(
            max_evals=max_evals,
            loss=loss / count,
            score=self.task.summarize([total / count for total in totals]),
            forward_residual=residual / count if has_solves else None,
            forward_evals=evals / count if has_solves else None,
            # Without a tolerance, nothing is there to be reached.
            converged=converged / count if has_solves and solver.tol > 0 else None,
            seconds_per_sample=seconds / count,
        )

    def measure_spectrum(
        self,
        model: nn.Module,
        dataset: MapDataset,
        solver: AbstractSolver,
        *,
        num_samples: int,
        max_products: int,
        seed: int,
        depth: int | None = None,
    ) -> dict[str, float]:
        """Return ‖J‖²_F / d and the spectral radius, by Arnoldi and as the paper does, as means over some samples.

        The samples are spread evenly over the data set; segments of a text have the memory of the segment before. The
        error of the radius is the mean over samples where it is known, if there are any, next to the share of those
        where it is not. Every process measures the same samples, as they are few.
        """
        was_training = model.training
        model.eval()
        generator = torch.Generator().manual_seed(seed)
        adapter = ModelAdapter(model)
        samples = Samples.spread(
            adapter, dataset, num_samples=num_samples, device=self.process.device, solver=solver, depth=depth
        )
        with torch.no_grad():
            eq = adapter(samples.x, carry=samples.carry, solver=solver, depth=depth).equilibrium
        assert eq is not None
        dim = sum(leaf[0].numel() for leaf in leaves(eq.z))
        norm = frobenius_norm(eq, num_probes=4, generator=generator)
        radius = spectral_radius(eq, memory=max_products, max_products=max_products, tol=1e-2, generator=generator)
        rayleigh = spectral_radius(eq, method="rayleigh", max_products=max_products, tol=1e-2, generator=generator)
        model.train(was_training)
        error, unknown = radius.mean_error()
        return {
            "jacobian_norm": float(norm.value.square().mean()) / dim,
            "spectral_radius": float(radius.value.mean()),
            "spectral_radius_max": float(radius.value.max()),
            **({} if error is None else {"spectral_radius_error": error}),
            "spectral_radius_unknown": unknown,
            "spectral_radius_rayleigh": float(rayleigh.value.mean()),
        }


def sweep_budgets(
    trained: TrainedModel,
    process: Process,
    *,
    budgets: Sequence[int] = (),
    split: Split = "test",
    dataset: MapDataset | None = None,
    solver: AbstractSolver | None = None,
) -> Evaluation:
    """Return the measurements of a trained model at many budgets, by default from 1 to the budget of the run.

    These are the paper's tables of a metric against the number of function evaluations (NFE). A model that was trained
    as a loop is measured as one, so that n evaluations are n steps. An explicit network has a single row, of 0.

    Args:
        trained: The model, and the config that names its data.
        process: Which process this is.
        budgets: Numbers of evaluations to allow.
        split: Which samples.
        dataset: These samples, if they are read already.
        solver: How equilibria are found, instead of the run's own way.
    """
    config = trained.config
    for budget in budgets:
        if not 1 <= budget <= _MAX_BUDGET:
            raise InputError(f"--budgets has {budget}; each must be from 1 to {_MAX_BUDGET}.")
    dataset = config.data.load_split(split) if dataset is None else dataset
    trained.check_samples(split, dataset)
    task, largest = config.data.task, (solver or config.evaluation_solver).max_evals
    if solver is None:
        solver = config.solver if config.solver.returns_image else config.evaluation_solver
    precision = torch.bfloat16 if config.loop.precision == "bfloat16" else None
    evaluator = Evaluator(task=task, process=process, batch_size=config.log.eval_batch_size, precision=precision)
    # Without an equilibrium there is nothing to spend a budget on.
    chosen = budgets or range(1, largest + 1) if ModelAdapter(trained.model).has_equilibrium else [1]
    rows = []
    with Work(f"Evaluating {trained.path}", sum(chosen)) as work:
        for budget in chosen:
            rows.append(evaluator.measure(trained.model, dataset, solver.with_max_evals(budget)))
            work.advance(budget)
    return Evaluation(
        split=split,
        step=trained.step,
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        unit=task.unit,
        memory_mb=peak_memory(process.device),
        rows=tuple(rows),
    )


def write_evaluation(folder: Path, evaluation: Evaluation) -> None:
    """Write evaluation.json and evaluation.csv."""
    try:
        for name in ("evaluation.json", "evaluation.csv"):
            check_plain(folder / name)
        write_atomically(folder / "evaluation.json", evaluation.to_json())
        write_atomically(folder / "evaluation.csv", evaluation.to_csv())
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.") from error
