"""One process among those that `torchrun` started, or the only one."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import InputError
from ..run.shards import check_version, is_sharded

Parallel = Literal["ddp", "fsdp"]

_TIMEOUT = datetime.timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True)
class Process:
    """Which process this is, and what the processes do together."""

    rank: int = 0
    """Number of this process, from 0."""
    world_size: int = 1
    """Number of processes that train together."""
    device: torch.device = torch.device("cpu")  # noqa: RUF009 (immutable)
    """Where this process computes."""
    parallel: Parallel = "ddp"
    """What several processes do: "ddp" keeps all parameters on each, "fsdp" shards them, their gradients and the state
    of the optimizer over all."""

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds a part of the parameters."""
        return self.parallel == "fsdp" and self.world_size > 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes logs and checkpoints."""
        return self.rank == 0

    @classmethod
    def alone(cls, device: str = "auto") -> Process:
        """Return a process that works by itself; "auto" is a GPU if there is one."""
        return cls(device=_device(device, 0))

    @classmethod
    @contextmanager
    def join(cls, device: str = "auto", *, parallel: Parallel = "ddp") -> Iterator[Process]:
        """Join the processes of a job, for as long as the context lasts."""
        world_size = _from_environment("WORLD_SIZE", 1, least=1)
        rank, local_rank = _from_environment("RANK", 0), _from_environment("LOCAL_RANK", 0)
        if world_size > 1:
            for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
                if name not in os.environ:
                    raise InputError(f"WORLD_SIZE is set, but {name} is not: start several processes with torchrun.")
        if rank >= world_size:
            raise InputError(
                f"The environment variable RANK is {rank}, and WORLD_SIZE is {world_size}: start several processes "
                "with torchrun."
            )
        if parallel == "fsdp":
            check_version()
        place = _device(device, local_rank)
        if world_size == 1:
            yield cls(device=place, parallel=parallel)
            return
        if place.type == "cuda":
            torch.cuda.set_device(place)
        try:
            dist.init_process_group("nccl" if place.type == "cuda" else "gloo", timeout=_TIMEOUT)
        except (ValueError, RuntimeError) as error:
            raise InputError(f"The processes cannot connect to each other: {str(error).splitlines()[0]}") from error
        try:
            yield cls(rank=dist.get_rank(), world_size=world_size, device=place, parallel=parallel)
        finally:
            dist.destroy_process_group()

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return a module whose gradients are averaged over the processes; its parameters may be replaced."""
        if self.world_size == 1:
            return module
        if self.is_sharded:
            return self.shard(module)
        ids = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=ids)

    def shard(self, module: nn.Module) -> nn.Module:
        """Return a module whose parameters are sharded, if those of this job are."""
        if not self.is_sharded:
            return module
        # Not at the top, as this import takes a second.
        from .sharding import ShardedModule

        return ShardedModule(module, self.device)

    def gathered(self, module: nn.Module) -> AbstractContextManager[None]:
        """Return a context in which the parameters of what `wrap` or `shard` returned are whole."""
        return module.gathered() if self.is_sharded else nullcontext()  # pyright: ignore

    def part_of_a_step(self, module: nn.Module, *, is_last: bool) -> AbstractContextManager[None]:
        """Return a context for a call of what `wrap` returned and its backward pass, one of several in a step."""
        if self.is_sharded:
            return module.part_of_a_step(is_last=is_last)  # pyright: ignore
        return nullcontext() if is_last or self.world_size == 1 else module.no_sync()  # pyright: ignore

    def prepare(self, optimizer: torch.optim.Optimizer) -> None:
        """Let an optimizer that was built or loaded work with parameters of which some are sharded and some are not."""
        kinds = {is_sharded(p) for group in optimizer.param_groups for p in group["params"]}
        if len(kinds) > 1:
            for group in optimizer.param_groups:
                # Calls on many tensors at once do not take both.
                group["foreach"] = False

    @torch.no_grad()
    def clip_gradients(self, parameters: Iterable[nn.Parameter], limit: float | None) -> float:
        """Return the norm of the gradient, and scale the gradient down if that is above a limit."""
        parameters = [parameter for parameter in parameters if parameter.grad is not None]
        kinds = [parameters]
        if self.is_sharded:
            # Those that are sharded and those that are not do not mix in one call.
            kinds = [[p for p in parameters if is_sharded(p) == kind] for kind in (False, True)]
        norms = [nn.utils.get_total_norm([p.grad for p in kind if p.grad is not None]) for kind in kinds if kind]
        norms = [norm.full_tensor() if is_sharded(norm) else norm for norm in norms]  # pyright: ignore
        norm = norms[0] if len(norms) == 1 else nn.utils.get_total_norm(norms)
        if limit is not None:
            for kind in kinds:
                nn.utils.clip_grads_with_norm_(kind, limit, norm)
        return float(norm)

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over the processes."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def concatenate(self, tensor: Tensor) -> Tensor:
        """Return what all processes have, which is of one shape, along the first dimension in the order of ranks."""
        if self.world_size == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    def agrees(self, text: str) -> bool:
        """Return whether all processes have the same text."""
        if self.world_size == 1:
            return True
        texts: list[Any] = [None] * self.world_size
        dist.all_gather_object(texts, text)
        return len(set(texts)) == 1

    def share_buffers(self, module: nn.Module) -> None:
        """Give every process the buffers of the main one."""
        if self.world_size > 1:
            for buffer in module.buffers():
                dist.broadcast(buffer, src=0)

    def wait(self) -> None:
        """Wait for all processes."""
        if self.world_size > 1:
            dist.barrier()


def _from_environment(name: str, default: int, *, least: int = 0) -> int:
    value = os.environ.get(name, str(default))
    if not (value.isascii() and value.isdecimal() and len(value) < 10) or int(value) < least:
        raise InputError(f"The environment variable {name} is {value!r}; it must be an integer >= {least}.")
    return int(value)


def _device(name: str, local_rank: int) -> torch.device:
    if name == "auto":
        name = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"There is no device {name!r}; try auto, cpu or cuda.") from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"The device {name!r} is not supported; try auto, cpu or cuda.")
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise InputError(f"The device {name!r} is not available here; try auto or cpu.")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", local_rank)
    return device
