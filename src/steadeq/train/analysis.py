"""A close look at a trained network: its spectrum, and how its solves go, sample by sample."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..data import AbstractDataset
from ..jacobian import frobenius_norm
from ..models import AbstractEquilibriumModel
from ..solvers import AbstractSolver
from ..spectrum import operator_norm, spectral_radius
from ..state import leaves


def analyze(
    model: AbstractEquilibriumModel,
    dataset: AbstractDataset,
    solver: AbstractSolver,
    *,
    num_samples: int = 32,
    max_products: int = 80,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """Return numbers that can be saved as JSON.

    Args:
        model: In evaluation mode.
        dataset: Its first samples are looked at.
        solver: With a generous budget, as what is looked at is the equilibrium.
        num_samples: How many samples.
        max_products: Products that each spectral estimate may spend.
        seed: Of the probes.
        device: Of the model.
    """
    generator = torch.Generator().manual_seed(seed)
    x, _ = dataset.batch(torch.arange(min(num_samples, len(dataset))))
    with torch.no_grad():
        equilibrium = model.solve(x.to(device), solver=solver)
    z, inputs, solution, cell = equilibrium.z, equilibrium.inputs, equilibrium.solution, model.layer.cell
    dim = sum(leaf[0].numel() for leaf in leaves(z))
    options = {"max_products": max_products, "generator": generator}
    radius = spectral_radius(cell, z, *inputs, memory=min(max_products, 60), **options)
    rayleigh = spectral_radius(cell, z, *inputs, method="rayleigh", **options)
    largest = operator_norm(cell, z, *inputs, **options)
    norm = frobenius_norm(cell, z, *inputs, num_probes=16, generator=generator)
    trace = solution.trace.double()
    quantiles = torch.quantile(trace, torch.tensor([0.1, 0.9], dtype=trace.dtype, device=trace.device), dim=1)
    return {
        "num_samples": len(x),
        "dim": dim,
        "tol": solver.tol,
        "max_evals": solver.max_evals,
        "converged": float(solution.converged.double().mean()),
        "spectral_radius": {
            "values": radius.value.tolist(),
            "errors": _known(radius.error),
            "rayleigh": rayleigh.value.tolist(),
        },
        "operator_norm": {"values": largest.value.tolist(), "errors": _known(largest.error)},
        "jacobian_norm": (norm.value.square() / dim).tolist(),
        "residual_curve": {
            "mean": trace.mean(dim=1).tolist(),
            "low": quantiles[0].tolist(),
            "high": quantiles[1].tolist(),
        },
        "num_evals": solution.num_evals.tolist(),
    }


def _known(errors: Tensor) -> list[float | None]:
    """Return errors as JSON can hold them: None where they are infinite."""
    return [error if math.isfinite(error) else None for error in errors.tolist()]
