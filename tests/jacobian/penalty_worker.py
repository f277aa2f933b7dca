"""One process of the distributed test: `python penalty_worker.py RANK WORLD_SIZE FOLDER`."""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from steadeq import Equilibrium, JacobianRegularizer, ResidualRegularizer
from steadeq.jacobian import AbstractRegularizer

DIM, NUM_LOOPS = 6, 4


class Block(nn.Module):
    """Its Jacobian is diagonal, so that probes of signs are exact and no process needs to share them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(-0.8, 0.8, DIM))

    def forward(self, z, x):
        return torch.tanh(self.scale * z + x)


class LoopedModel(nn.Module):
    """A block iterated by hand; returns the loss with two penalties."""

    def __init__(self, *regularizers: AbstractRegularizer) -> None:
        super().__init__()
        self.encoder, self.block, self.head = nn.Linear(DIM, DIM), Block(), nn.Linear(DIM, 1)
        self.regularizers = regularizers or (
            JacobianRegularizer(weight=0.3, estimator="difference"),
            ResidualRegularizer(weight=0.2),
        )

    def forward(self, x):
        h = self.encoder(x)
        z = torch.zeros_like(h)
        for _ in range(NUM_LOOPS):
            z = self.block(z, h)
        eq = Equilibrium.at(self.block, z, h)
        return self.head(z).square().mean() + sum(regularizer(eq, step=0) for regularizer in self.regularizers)


def make_model(*regularizers: AbstractRegularizer) -> LoopedModel:
    torch.manual_seed(11)
    return LoopedModel(*regularizers).double()


def shard(model: LoopedModel, world_size: int) -> LoopedModel:
    mesh = init_device_mesh("cpu", (world_size,))
    for module in (model.block, model):
        fully_shard(module, mesh=mesh)
    return model


def make_batch() -> torch.Tensor:
    return torch.randn(8, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


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
    batch = make_batch().chunk(world_size)[rank]
    results: dict[str, Any] = {"ddp": gradients(DistributedDataParallel(make_model()), batch)}
    results["fsdp"] = gradients(shard(make_model(), world_size), batch)
    exact = JacobianRegularizer(weight=0.3)
    results["exact, ddp"] = gradients(DistributedDataParallel(make_model(exact)), batch)
    try:
        gradients(shard(make_model(exact), world_size), batch)
    except RuntimeError as error:
        results["exact, fsdp"] = str(error)
    torch.save(results, folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
