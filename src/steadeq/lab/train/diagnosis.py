"""A close look at a trained network: its spectrum, and how its solves go, sample by sample."""

from __future__ import annotations

import torch

from ..._internal.trees import leaves
from ...jacobian import frobenius_norm, operator_norm, spectral_radius
from ...solvers import AbstractSolver
from ..data import read_samples
from ..errors import InputError
from ..loading import TrainedModel
from ..runs import Diagnosis, Split
from .adapter import ModelAdapter


def diagnose_model(
    trained: TrainedModel,
    solver: AbstractSolver,
    *,
    split: Split = "test",
    num_samples: int = 32,
    max_products: int = 80,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Diagnosis:
    """Return what is found out about a trained model.

    Args:
        trained: The model.
        solver: With a generous budget, as what is looked at is the equilibrium.
        split: Which samples; the first ones are looked at.
        num_samples: How many samples.
        max_products: Products that each spectral estimate may spend.
        seed: Seed of the probes.
        device: Where the model is.
    """
    adapter = ModelAdapter(trained.model)
    if not adapter.has_equilibrium:
        raise InputError("This is a run of an explicit network: it has no equilibrium to diagnose.")
    generator = torch.Generator().manual_seed(seed)
    dataset = getattr(trained.config.data.load(), split)
    x, _ = read_samples(dataset, torch.arange(min(num_samples, len(dataset))))
    with torch.no_grad():
        eq = adapter(x.to(device), solver=solver).equilibrium
    assert eq is not None
    assert eq.stats is not None
    dim = sum(leaf[0].numel() for leaf in leaves(eq.z))
    memory = min(max_products, 60)
    radius = spectral_radius(eq, memory=memory, max_products=max_products, generator=generator)
    rayleigh = spectral_radius(eq, method="rayleigh", max_products=max_products, generator=generator)
    largest = operator_norm(eq, max_products=max_products, generator=generator)
    norm = frobenius_norm(eq, num_probes=16, generator=generator)
    trace = eq.stats.trace.double()
    low, high = torch.quantile(trace, torch.tensor([0.1, 0.9], dtype=trace.dtype, device=trace.device), dim=1)
    return Diagnosis(
        step=trained.step,
        split=split,
        num_samples=len(x),
        dim=dim,
        tol=solver.tol,
        max_evals=solver.max_evals,
        converged=float(eq.stats.converged.double().mean()),
        spectral_radius=tuple(radius.value.tolist()),
        spectral_radius_errors=tuple(radius.error.tolist()),
        spectral_radius_rayleigh=tuple(rayleigh.value.tolist()),
        operator_norm=tuple(largest.value.tolist()),
        operator_norm_errors=tuple(largest.error.tolist()),
        jacobian_norm=tuple((norm.value.square() / dim).tolist()),
        residual_mean=tuple(trace.mean(dim=1).tolist()),
        residual_low=tuple(low.tolist()),
        residual_high=tuple(high.tolist()),
        num_evals=tuple(eq.stats.num_evals.tolist()),
    )
