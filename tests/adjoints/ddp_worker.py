"""One process of the distributed tests: `python ddp_worker.py RANK WORLD_SIZE FOLDER`."""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from steadeq import (
    DEQ,
    GMRES,
    Anderson,
    Equilibrium,
    Implicit,
    JacobianRegularizer,
    ResidualRegularizer,
    jacobian_penalty,
)
from steadeq.jacobian import AbstractRegularizer

DIM, NUM_LOOPS = 6, 4
OPTIONS = {
    "default": {},
    "find_unused": {"find_unused_parameters": True},
    "static_graph": {"static_graph": True},
    "bucket_view": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0001},
}
REGULARIZERS = {
    "difference": (JacobianRegularizer(weight=0.3, estimator="difference"), ResidualRegularizer(weight=0.2)),
    "exact": (JacobianRegularizer(weight=0.3),),
}


class CoupledCell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)

    def forward(self, z, x):
        return torch.tanh(0.9 * self.linear(z) + x)


class DiagonalCell(nn.Module):
    """Its Jacobian is diagonal, so that Rademacher probes are exact and no process needs to share them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(-0.8, 0.8, DIM))

    def forward(self, z, x):
        return torch.tanh(self.scale * z + x)


class Model(nn.Module):
    """An encoder, two layers, one of them used twice, and a head; returns the loss with the penalty."""

    def __init__(self) -> None:
        super().__init__()
        solver, adjoint = Anderson(max_evals=200, tol=1e-13), Implicit(GMRES(max_evals=200, tol=1e-13))
        self.encoder = nn.Linear(DIM, DIM)
        self.coupled = DEQ(CoupledCell(), solver=solver, adjoint=adjoint)
        self.diagonal = DEQ(DiagonalCell(), solver=solver, adjoint=adjoint)
        self.head = nn.Linear(DIM, 1)
        self.num_evals = 0

    def forward(self, x):
        h = self.encoder(x)
        first = self.coupled.solve(h)
        self.num_evals = int(first.stats.num_evals.max())
        last = self.diagonal.solve(self.coupled(h - first.z))
        return self.head(last.z).square().mean() + 0.3 * jacobian_penalty(last)


class LoopedModel(nn.Module):
    """A block iterated by hand; returns the loss with penalties."""

    def __init__(self, regularizers: tuple[AbstractRegularizer, ...]) -> None:
        super().__init__()
        self.encoder, self.block, self.head = nn.Linear(DIM, DIM), DiagonalCell(), nn.Linear(DIM, 1)
        self.regularizers = regularizers

    def forward(self, x):
        h = self.encoder(x)
        z = torch.zeros_like(h)
        for _ in range(NUM_LOOPS):
            z = self.block(z, h)
        eq = Equilibrium.at(self.block, z, h)
        return self.head(z).square().mean() + sum(regularizer(eq, step=0) for regularizer in self.regularizers)


def make_model(regularizers: str | None = None) -> nn.Module:
    torch.manual_seed(11)
    return (Model() if regularizers is None else LoopedModel(REGULARIZERS[regularizers])).double()


def make_batch() -> torch.Tensor:
    """Return 8 samples; the first half is harder, so that processes need different numbers of evaluations."""
    batch = torch.randn(8, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    batch[:4] *= 8
    return batch


def gradients(model: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradients of the second of two steps, whole where they are sharded."""
    for _ in range(2):
        model.zero_grad()
        model(batch).backward()
    found = [parameter.grad for parameter in model.parameters()]
    return [grad.full_tensor() if hasattr(grad, "full_tensor") else grad.clone() for grad in found]


def main(rank: int, world_size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world_size)
    batch, model = make_batch().chunk(world_size)[rank], make_model()
    results: dict[str, Any] = {
        name: gradients(DistributedDataParallel(make_model(), **options), batch) for name, options in OPTIONS.items()
    }
    model(batch)
    results["num_evals"] = model.num_evals
    for name in REGULARIZERS:
        results[f"{name}, ddp"] = gradients(DistributedDataParallel(make_model(name)), batch)
        sharded = make_model(name)
        for module in (sharded.block, sharded):
            fully_shard(module, mesh=init_device_mesh("cpu", (world_size,)))
        try:
            results[f"{name}, fsdp"] = gradients(sharded, batch)
        except RuntimeError as error:
            results[f"{name}, fsdp"] = str(error)
    torch.save(results, folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
