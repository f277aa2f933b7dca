"""A network of which each process holds a part: FSDP2, arranged for layers that call their cell many times.

FSDP2 gathers the parameters of a module when it is called and lets go of them afterwards, by hooks. A solve calls its
cell dozens of times, the backward solve runs through the graph of one call dozens of times, a penalty calls the cell
again, and weights that are computed once a solve get their gradients after all of that: hooks on the cell would gather
at each evaluation, and reduce gradients that are not complete. So no hook sits on a part of the network. Its units are
gathered when a step begins, stay whole for the solve, the penalty and the backward pass, and when all gradients are
there, they are reduced and the units are sharded again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from ...nn import DEQ


class _Unit(nn.Module):
    """Modules whose parameters travel together. It is never called, so that the hooks on it never run."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)


class ShardedModule(nn.Module):
    """A module whose parameters are sharded over all processes: those of the cells of its layers are one unit.

    Parameters are DTensors outside of a call, and plain tensors from the beginning of a call to the end of its backward
    pass, or as long as `gathered` lasts. Those without a dimension to shard along stay whole on all processes.

    Args:
        module: What is called; its parameters are replaced.
        device: The kind of device that they are on.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        super().__init__()
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        self.module = module
        self.whole = [parameter for parameter in module.parameters() if parameter.dim() == 0]
        options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": False}
        self.cells = _Unit(*_cells(module))
        fully_shard(self.cells, ignored_params=set(self.whole), **options)
        fully_shard(self, ignored_params={*self.whole, *self.cells.parameters()}, **options)
        self._units = [unit for unit in (self.cells, self) if isinstance(unit, FSDPModule)]

    def forward(self, *arguments: Any) -> Any:
        """Gather the cells and call the module; gradients are reduced at the end of the backward pass."""
        for unit in self._units:
            unit.unshard()
        return self.module(*arguments)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Have all parameters whole, for calls without a backward pass; all processes must enter this."""
        for unit in self._units:
            unit.unshard()
        try:
            yield
        finally:
            for unit in self._units:
                unit.reshard()

    @contextmanager
    def part_of_a_step(self, *, is_last: bool) -> Iterator[None]:
        """Call the module and its backward pass for a part of a batch; only after the last one it is sharded again.

        The gradients of each part are reduced at once: who cuts a batch into parts has little memory, and those of all
        parts would have to be whole until the last one.
        """
        for unit in self._units:
            unit.set_reshard_after_backward(is_last)
        yield
        if is_last:
            for parameter in self.whole:
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()


def _cells(module: nn.Module) -> list[nn.Module]:
    """Return the outermost cells of all layers; none if they share a parameter with what is outside of them."""
    layers = [layer for layer in module.modules() if isinstance(layer, DEQ)]
    inner = {part for layer in layers for part in layer.cell.modules() if isinstance(part, DEQ)}
    cells = list(dict.fromkeys(layer.cell for layer in layers if layer not in inner))
    inside = {part for cell in cells for part in cell.modules()}
    outside = {p for part in module.modules() if part not in inside for p in part.parameters(recurse=False)}
    # Of a parameter in two units, one would keep an old copy.
    return [] if any(p in outside for cell in cells for p in cell.parameters()) else cells
