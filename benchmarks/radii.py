"""Spectral radii of finished runs, by methods that do not know of each other, beside those that were published.

    python benchmarks/radii.py runs/reproduce/cifar10-mdeq-cpu-seed0 ... --csv results/table2/radii.csv

Of each run: the radius at its last evaluation and the residual of its backward solves over the last tenth of training,
from its own record; and, at the equilibria of the first validation samples, the radius by Arnoldi, by the growth of a
power iteration, and by the paper's Rayleigh quotient, with their mean errors.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import torch

from steadeq import Anderson, spectral_radius
from steadeq.lab.data import read_samples
from steadeq.lab.run.loading import load_trained
from steadeq.lab.run.record import RunRecord
from steadeq.lab.train import Process
from steadeq.models import AbstractEquilibriumModel
from steadeq.paper.variant import measure

NUM_SAMPLES, NUM_PRODUCTS = 8, 200


def recompute(path: Path) -> dict[str, Any]:
    """Return the row of a run."""
    device = Process.alone().device
    trained = load_trained(path, device=device)
    model = trained.model
    assert isinstance(model, AbstractEquilibriumModel)
    recorded = measure(RunRecord.read(path), None)
    x, _ = read_samples(trained.config.data.load().validation, torch.arange(NUM_SAMPLES))
    with torch.no_grad():
        _, eq = model.solve(x.to(device), solver=Anderson(max_evals=200, tol=1e-5))
    assert eq.stats is not None
    row: dict[str, Any] = {
        "run": path.name,
        "recorded": recorded["spectral_radius"],
        "backward_residual": recorded["backward_residual"],
        "converged": float(eq.stats.converged.double().mean()),
    }
    for method in ("arnoldi", "power", "rayleigh"):
        generator = torch.Generator().manual_seed(0)
        estimate = spectral_radius(eq, method=method, max_products=NUM_PRODUCTS, generator=generator)
        row |= {method: float(estimate.value.mean()), f"{method}_error": float(estimate.error.mean())}
    return row


def main() -> None:
    """Recompute the radii of the given runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for path in arguments.runs:
        rows.append(recompute(path))
        print(rows[-1], flush=True)
    if arguments.csv is not None:
        with arguments.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
