"""Measuring a network: its task, its solves, and its Jacobian."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..data import AbstractDataset, Text
from ..errors import Interrupted
from ..jacobian import frobenius_norm
from ..models import AbstractEquilibriumModel, AbstractExplicitModel, Predictions, Segment
from ..models.transformer import Memory
from ..solvers import AbstractSolver
from ..spectrum import spectral_radius
from ..state import leaves
from .distributed import Process
from .interruption import Interruption
from .task import AbstractTask


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Runs a network over a dataset; with several processes, each takes its part and all get the whole result."""

    task: AbstractTask
    process: Process
    batch_size: int = 250
    precision: torch.dtype | None = None
    """Of autocast, or None for none."""
    interruption: Interruption | None = None
    """Stops between batches when it was requested."""

    @torch.no_grad()
    def measure(
        self,
        model: AbstractEquilibriumModel | AbstractExplicitModel,
        dataset: AbstractDataset,
        solver: AbstractSolver,
    ) -> dict[str, float]:
        """Return loss, metric, and means over samples of residual and evaluations, at a solver's budget.

        A text is read in order, each segment with the memory of those before; all means are over its words.

        Raises:
            Interrupted: It was asked to stop.
        """
        device = self.process.device
        was_training = model.training
        model.eval()
        # loss, score, residual, evaluations, converged, seconds, units
        sums = torch.zeros(7, dtype=torch.float64, device=device)
        is_text = isinstance(dataset, Text)
        memory: Memory | None = None
        try:
            for batch in self._read(dataset):
                if self.interruption is not None and self.interruption.requested and self.process.world_size == 1:
                    raise Interrupted
                x, y = (tensor.to(device) for tensor in batch)
                if is_text:
                    x = Segment(x, memory)
                start = now(device)
                with torch.autocast(device.type, dtype=self.precision, enabled=self.precision is not None):
                    if isinstance(model, AbstractExplicitModel):
                        output, solution = model(x)
                    else:
                        output, solution = model(x, solver=solver)
                seconds = now(device) - start
                if isinstance(output, Predictions):
                    memory = output.memory
                losses = self.task.losses(output, y)
                values = [losses, self.task.scores(output, y, losses)]
                if solution is not None:
                    values += [solution.residual, solution.num_evals, solution.converged]
                num_units = self.task.num_units(y)
                sums[: len(values)] += num_units * torch.stack([value.double().sum() for value in values])
                sums[5] += seconds
                sums[6] += num_units * len(y)
        finally:
            model.train(was_training)
        loss, score, residual, evals, converged, seconds, count = self.process.total(sums).tolist()
        solves = {"forward_residual": residual, "forward_evals": evals, "converged": converged}
        has_solves = isinstance(model, AbstractEquilibriumModel)
        return {
            "loss": loss / count,
            self.task.metric: self.task.summarize(score / count),
            **({name: value / count for name, value in solves.items()} if has_solves else {}),
            "seconds_per_sample": seconds / count,
        }

    def _read(self, dataset: AbstractDataset) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the part of this process: samples in order, or segments of streams."""
        rank, world_size = self.process.rank, self.process.world_size
        if isinstance(dataset, Text):
            # At least one stream for each process, and not so many that each of them is hardly a segment.
            num_streams = max(min(self.batch_size, len(dataset)), world_size)
            for words, following in dataset.streams(num_streams):
                yield words[rank::world_size], following[rank::world_size]
            return
        for indices in torch.arange(rank, len(dataset), world_size).split(self.batch_size):
            yield dataset.batch(indices)

    def measure_spectrum(
        self,
        model: AbstractEquilibriumModel,
        dataset: AbstractDataset,
        solver: AbstractSolver,
        *,
        num_samples: int,
        max_products: int,
        seed: int,
    ) -> dict[str, float]:
        """Return ‖J‖²_F / d and the spectral radius, by Arnoldi and as the paper does, as means over the first samples.

        The error of the radius is the mean over samples where it is known, if there are any, next to the share of those
        where it is not.
        Every process measures the same samples, as they are few.
        """
        device = self.process.device
        was_training = model.training
        model.eval()
        generator = torch.Generator().manual_seed(seed)
        x, _ = dataset.batch(torch.arange(min(num_samples, len(dataset))))
        with torch.no_grad():
            equilibrium = model.solve(x.to(device), solver=solver)
        z, cell = equilibrium.z, model.layer.cell
        dim = sum(leaf[0].numel() for leaf in leaves(z))
        norm = frobenius_norm(cell, z, *equilibrium.inputs, num_probes=4, generator=generator)
        options = {"max_products": max_products, "tol": 1e-2, "generator": generator}
        radius = spectral_radius(cell, z, *equilibrium.inputs, memory=max_products, **options)
        rayleigh = spectral_radius(cell, z, *equilibrium.inputs, method="rayleigh", **options)
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


def now(device: torch.device) -> float:
    """Return the time when all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
