"""Tensors that are spread over processes, and files of them: one for each process, by torch.distributed.checkpoint.

The files are safetensors. By default torch.distributed.checkpoint writes its index as a pickle, and reading one
executes what it says; here each file says in its header which part of which tensor it holds.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import InputError, RunError

T = TypeVar("T")

_PATTERN = "shard-{:05d}-*.safetensors"
"""Names of the files of a process, counted from 1."""

Like = Callable[[str], Tensor | None]
"""Maps the name of a tensor to the sharded one that it is to lie like, or to None if it is to be whole."""


def check_version() -> None:
    """Refuse a version of PyTorch that has no sharded files of safetensors."""
    if torch.__version__ < "2.9":
        raise InputError(
            f"Sharded parameters and their checkpoints need PyTorch 2.9 or later, and this is {torch.__version__}: use "
            "--parallel ddp, or upgrade."
        )


def is_sharded(tensor: Any) -> bool:
    """Return whether each process holds a part of a tensor."""
    # Who has such a tensor has imported this; for all others it would take a second.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def take_share(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this process's part of a tensor that all processes have, as another one is sharded."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    # Without a source nothing is sent: each process cuts out its own part.
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


class Processes:
    """The processes that write something together: all of them, or only this one.

    Args:
        is_alone: Whether it is only this one.
    """

    def __init__(self, *, is_alone: bool) -> None:
        self._is_alone = is_alone
        self.rank = 0 if is_alone else dist.get_rank()

    @property
    def is_main(self) -> bool:
        """Whether this process does what only one may do."""
        return self.rank == 0

    def gather(self, action: Callable[[], T]) -> list[T]:
        """Return what an action returned on each process, once all are through; if it fails on one, raise on all."""
        result: Any = None
        failure: Exception | None = None
        try:
            result = action()
        except Exception as error:
            failure = error
        if self._is_alone:
            if failure is not None:
                raise failure
            return [result]
        reason = None if failure is None else _reason(failure)
        results: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(results, (result, reason))
        if failure is not None:
            raise failure
        for rank, (_, reason) in enumerate(results):
            if reason is not None:
                raise RunError(f"process {rank}: {reason}")
        return [result for result, _ in results]


def write_shards(folder: Path, tensors: dict[str, Tensor]) -> list[Path]:
    """Write the parts that this process holds of tensors, on disk; all processes must call this.

    Args:
        folder: An empty folder that all processes see.
        tensors: The tensors by their names, which are the same on all processes.

    Returns:
        The files that this process has written.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        str(folder).encode()
    except UnicodeEncodeError as error:
        raise RunError("its name is not valid Unicode, which sharded files need") from error
    try:
        save(tensors, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        # It is no Exception, and holds what failed on which process.
        failures = {rank: failure for rank, (failure, _) in error.failures.items()}
        own = failures.get(dist.get_rank())
        if isinstance(own, Exception):
            raise own from error
        raise RunError(
            "; ".join(f"process {rank}: {_reason(failure)}" for rank, failure in failures.items())
        ) from error
    return sorted(folder.glob(_PATTERN.format(dist.get_rank() + 1)))


def read_shards(folder: Path, like: Like) -> dict[str, Tensor]:
    """Return tensors that were written by any number of processes; no other process is needed.

    Args:
        folder: Where they are; all files ending in .safetensors are read.
        like: How each is to be sharded, if at all; this process's part is then all that is read of it.
    """
    check_version()
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    tensors: dict[str, Tensor] = {}
    for name, entry in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata)
        # Parts that are in the files bound the memory that is asked for.
        if sum(math.prod(chunk.sizes) for chunk in entry.chunks) != math.prod(entry.size):
            raise ValueError(f"the parts of {name} do not form a tensor.")
        pattern, dtype = like(name), entry.properties.dtype
        if pattern is not None and pattern.shape == entry.size:
            tensors[name] = torch.zeros_like(pattern, dtype=dtype)
        else:
            tensors[name] = torch.zeros(entry.size, dtype=dtype)
    try:
        with warnings.catch_warnings():
            # It says that other processes are left alone, which is what was asked for.
            warnings.filterwarnings("ignore", message=".*assuming the intent is to load in a single process")
            load(tensors, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        ((failure, _),) = error.failures.values()
        raise ValueError(_reason(failure)) from error
    return tensors


def _reason(error: BaseException) -> str:
    """Return why something failed, in a line."""
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or (str(error).splitlines() or [type(error).__name__])[0]
