"""How time, memory and kernels are measured."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Times:
    """Seconds that a contender took, one entry for each round."""

    rounds: list[float]

    @property
    def best(self) -> float:
        """The least disturbed round."""
        return min(self.rounds)

    @property
    def typical(self) -> float:
        """The median round."""
        return median(self.rounds)


def time_interleaved(contenders: dict[str, Callable[[], Any]], *, seconds: float, min_rounds: int) -> dict[str, Times]:
    """Time all contenders once a round, for at least so many rounds and seconds.

    Each round starts with another contender, so that nobody always follows the same neighbor, and a disturbance hits
    contenders by chance. Garbage is collected between rounds only.
    """
    names = list(contenders)
    for name in names:
        contenders[name]()
    rounds: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.freeze()
    gc.disable()
    end = time.perf_counter() + seconds
    num_rounds = 0
    while num_rounds < min_rounds or time.perf_counter() < end:
        shift = num_rounds % len(names)
        for name in names[shift:] + names[:shift]:
            run = contenders[name]
            start = time.perf_counter()
            run()
            rounds[name].append(time.perf_counter() - start)
        gc.collect()
        num_rounds += 1
    gc.enable()
    gc.unfreeze()
    return {name: Times(values) for name, values in rounds.items()}


def peak_bytes(run: Callable[[], Any]) -> int:
    """Return the most memory that torch held at any time during a run, beyond what it held at the start.

    Read from the allocator's own record, so that workspaces inside of kernels count like tensors do.
    """
    run()
    gc.collect()
    cpu = torch.profiler.ProfilerActivity.CPU
    with _quiet_stderr(), torch.profiler.profile(activities=[cpu], profile_memory=True) as profiler:
        run()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    held = peak = 0
    for event in events:
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Silence the profiler, which announces each start and stop from C++."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class OpCounter(TorchDispatchMode):
    """Counts dispatched operations, except for those inside of `pause`.

    `kernels` holds operations that compute or copy, `views` those that only describe memory anew. `num_bytes` is what
    kernels read and write if each tensor that they take or return passes through memory once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.views: Counter[str] = Counter()
        self.num_bytes = 0
        self._is_paused = False

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count."""
        before, self._is_paused = self._is_paused, True
        yield
        self._is_paused = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._is_paused:
            returns = func._schema.returns
            is_view = any(value.alias_info is not None and not value.alias_info.is_write for value in returns)
            (self.views if is_view else self.kernels)[str(func)] += 1
        result = func(*args, **(kwargs or {}))
        if not self._is_paused and not is_view and "empty" not in str(func):
            touched = tree_leaves((args, kwargs, result))
            # What is written in place, or by out=..., is among both arguments and results.
            sizes = {id(t): t.numel() * t.element_size() for t in touched if isinstance(t, Tensor)}
            self.num_bytes += sum(sizes.values())
        return result


def launch_seconds() -> float:
    """Return what the least kernel takes that is launched from Python, with nothing else in between."""
    x = torch.zeros(1)
    return min(_times(lambda: torch.add(x, x), 2000))


def bytes_per_second(num_bytes: int) -> float:
    """Return how fast one thread reads two tensors of a size and writes a third, of the 24 that a solver may hold."""
    ring = [torch.zeros(max(num_bytes // 4, 1)) for _ in range(24)]

    def go_around() -> None:
        for number in range(len(ring)):
            torch.add(ring[number - 2], ring[number - 1], out=ring[number])

    return 3 * len(ring) * ring[0].numel() * 4 / min(_times(go_around, 20))


def _times(run: Callable[[], Any], number: int) -> list[float]:
    found = []
    for _ in range(number):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found


_WAITING = ("_local_scalar_dense", "item", "equal", "nonzero", "is_nonzero", "masked_select", "_unique2")


class WaitCounter(TorchDispatchMode):
    """Counts operations for which the host waits until an accelerator is done, as they hand numbers to it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self._reads = _ReadCounter(self)

    def __enter__(self) -> WaitCounter:
        self._reads.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._reads.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        is_mask = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
        self.count += name in _WAITING or is_mask
        return func(*args, **(kwargs or {}))


class _ReadCounter(TorchFunctionMode):
    """Counts readings of whole tensors, which on the CPU are no operations."""

    def __init__(self, counter: WaitCounter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._counter.count += func in (Tensor.tolist, Tensor.numpy)
        return func(*args, **(kwargs or {}))


class _CountedIdentity(torch.autograd.Function):
    """The identity, which counts how often gradients come back."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, counts: Counter[str]) -> Tensor:
        ctx.counts = counts
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        ctx.counts["vjp"] += 1
        return g, None


def count_calls(f: Callable[..., Tensor]) -> tuple[Callable[..., Tensor], Counter[str]]:
    """Return f with a counter of its evaluations ("f") and of the products with its Jacobian's transpose ("vjp")."""
    counts: Counter[str] = Counter()

    def counted(z: Tensor, *inputs: Any) -> Tensor:
        counts["f"] += 1
        return f(_CountedIdentity.apply(z, counts), *inputs)

    return counted, counts
