"""Measuring a network: its task, its solves, and its Jacobian."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from ..data import AbstractDataset
from ..errors import Interrupted
from ..jacobian import frobenius_norm
from ..models import AbstractEquilibriumModel, AbstractExplicitModel
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

        Raises:
            Interrupted: It was asked to stop.
        """
        device = self.process.device
        was_training = model.training
        model.eval()
        # loss, score, residual, evaluations, converged, seconds, samples
        sums = torch.zeros(7, dtype=torch.float64, device=device)
        try:
            mine = torch.arange(self.process.rank, len(dataset), self.process.world_size)
            for indices in mine.split(self.batch_size):
                if self.interruption is not None and self.interruption.requested and self.process.world_size == 1:
                    raise Interrupted
                x, y = (tensor.to(device) for tensor in dataset.batch(indices))
                start = now(device)
                with torch.autocast(device.type, dtype=self.precision, enabled=self.precision is not None):
                    if isinstance(model, AbstractExplicitModel):
                        output, solution = model(x)
                    else:
                        output, solution = model(x, solver=solver)
                seconds = now(device) - start
                sums[0] += self.task.losses(output, y).double().sum()
                sums[1] += self.task.scores(output, y).double().sum()
                if solution is not None:
                    values = (solution.residual, solution.num_evals, solution.converged)
                    sums[2:5] += torch.stack([value.double().sum() for value in values])
                sums[5] += seconds
                sums[6] += len(indices)
        finally:
            model.train(was_training)
        loss, score, residual, evals, converged, seconds, count = self.process.total(sums).tolist()
        solves = {"forward_residual": residual, "forward_evals": evals, "converged": converged}
        has_solves = isinstance(model, AbstractEquilibriumModel)
        return {
            "loss": loss / count,
            self.task.metric: score / count,
            **({name: value / count for name, value in solves.items()} if has_solves else {}),
            "seconds_per_sample": seconds / count,
        }

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
        """Return ‖J‖²_F / d and the spectral radius, as means over the first samples of a dataset.

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
        radius = spectral_radius(
            cell, z, *equilibrium.inputs, max_products=max_products, tol=1e-2, memory=max_products, generator=generator
        )
        model.train(was_training)
        return {
            "jacobian_norm": float(norm.value.square().mean()) / dim,
            "spectral_radius": float(radius.value.mean()),
            "spectral_radius_max": float(radius.value.max()),
            "spectral_radius_error": float(radius.error.mean()),
        }


def now(device: torch.device) -> float:
    """Return the time when all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
