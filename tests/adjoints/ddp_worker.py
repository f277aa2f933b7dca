"""One process of the distributed test: `python ddp_worker.py RANK WORLD_SIZE FOLDER`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from steadeq import DEQ, GMRES, Anderson, Implicit, jacobian_penalty

DIM = 6
OPTIONS = {
    "default": {},
    "find_unused": {"find_unused_parameters": True},
    "static_graph": {"static_graph": True},
    "bucket_view": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0001},
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

    def forward(self, x):
        h = self.encoder(x)
        first = self.coupled.solve(h)
        last = self.diagonal.solve(self.coupled(h - first.z))
        return self.head(last.z).square().mean() + 0.3 * jacobian_penalty(last), first


def make_model() -> Model:
    torch.manual_seed(11)
    return Model().double()


def make_batch() -> torch.Tensor:
    """Return 8 samples; the second half is harder, so that processes need different numbers of evaluations."""
    batch = torch.randn(8, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    batch[:4] *= 8
    return batch


def gradients(model: nn.Module, batch: torch.Tensor, num_steps: int = 2) -> tuple[list[torch.Tensor], int]:
    """Return the gradients of the last of some steps, and the evaluations that its first solve took."""
    for _ in range(num_steps):
        model.zero_grad()
        loss, eq = model(batch)
        loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()], int(eq.stats.num_evals.max())


def main(rank: int, world_size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world_size)
    results = {}
    for name, options in OPTIONS.items():
        model = DistributedDataParallel(make_model(), **options)
        results[name] = gradients(model, make_batch().chunk(world_size)[rank])
    torch.save(results, folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
