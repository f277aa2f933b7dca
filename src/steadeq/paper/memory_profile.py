"""What a trained model costs: the memory of a training step, and the time of inference."""

import gc
import json
import time
import timeit
import warnings
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..equilibrium import ConvergenceWarning
from ..jacobian import Constant
from ..lab.data import MapDataset, read_samples
from ..lab.files import write_atomically
from ..lab.run.loading import load_trained
from ..lab.train import Process
from ..lab.train.adapter import ModelAdapter
from ..lab.train.step import StepSettings, TrainStep
from ..nn import keep_freed_memory

BATCH_SIZE = 64
"""Number of samples of both measurements."""
_NUM_REPEATS = 5


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of tensors that were made in this context and are still there.

    The memory of the process is no measure: on a CPU it includes the libraries and the data, and never shrinks.

    Example:
        >>> with LiveTensors() as live:
        ...     x = torch.zeros(1000) + 1
        ...     del x
        >>> live.peak
        8000
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        """The most bytes at a time."""
        self._total = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and note the storages of its results."""
        results = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(results):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in given:
                self._note(leaf.untyped_storage())
        return results

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return

        def forget(_: Any) -> None:
            self._total -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, forget)
        self._total += size
        self.peak = max(self.peak, self._total)


def peak_bytes(run: Callable[[], Any], device: torch.device) -> int:
    """Return the most memory that tensors held during a run, beyond those that were there before.

    On a CPU it is exact, and the same every time; memory that a kernel allocates and frees within one operation is not
    counted. On a GPU, the allocator counts all.
    """
    # What waits for the collector would be freed at some time during the run.
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    # The first solve of a process would, and it makes a large tensor for it.
    keep_freed_memory()
    with LiveTensors() as live:
        run()
    return live.peak


def step_memory(path: Path) -> float:
    """Return the MB of tensors that a training step makes at most at a time, with the penalty if the run has one."""
    device = Process.alone().device
    trained = load_trained(path, device=device)
    config = trained.config
    x, y = (tensor.to(device) for tensor in _first(config.data.load().train))
    regularizer = replace(config.regularizer, probability=1.0, probability_schedule=Constant())
    settings = StepSettings(
        step=config.warmup.num_steps,
        solver=config.solver,
        adjoint=config.adjoint,
        regularizer=regularizer.for_run(num_steps=1, steps_per_epoch=1, seed=config.loop.seed),
    )
    step = TrainStep(trained.model.train(), config.data.task)
    with warnings.catch_warnings():
        # It is about memory, not about the gradient.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return peak_bytes(lambda: step(x, y, settings).loss.backward(), device) / 2**20


@torch.no_grad()
def inference_seconds(path: Path, *, max_evals: int) -> float:
    """Return the time that an image takes on one thread of the CPU; explicit networks have a budget of 0."""
    trained = load_trained(path, device="cpu")
    x, _ = _first(trained.config.data.load_split("test"))
    solver = trained.config.evaluation_solver.with_max_evals(max_evals) if max_evals else None
    model = ModelAdapter(trained.model)
    num_threads = torch.get_num_threads()
    # Of one thread, the time of the processor tells, which other work on the machine does not change much.
    torch.set_num_threads(1)
    try:
        # The first one warms up.
        times = timeit.repeat(
            lambda: model(x, solver=solver), timer=time.process_time, repeat=1 + _NUM_REPEATS, number=1
        )
    finally:
        torch.set_num_threads(num_threads)
    return min(times[1:]) / len(x)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a trained model costs."""

    inference_seconds: float
    """Time that an image takes, at one budget."""
    step_mb: float
    """Memory of a training step."""


def known_costs(path: Path, *, max_evals: int) -> Costs | None:
    """Return what `measure_costs` stored in costs.json in the run's folder; None if there is nothing."""
    file = path / "costs.json"
    known = json.loads(file.read_text(encoding="utf-8")).get(str(max_evals)) if file.is_file() else None
    return None if known is None else Costs(**known)


def measure_costs(path: Path, *, max_evals: int) -> Costs:
    """Return what a run's model costs at a budget, and note it in costs.json; what is known is not measured again."""
    found = known_costs(path, max_evals=max_evals)
    if found is None:
        found = Costs(inference_seconds=inference_seconds(path, max_evals=max_evals), step_mb=step_memory(path))
        file = path / "costs.json"
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        write_atomically(file, json.dumps(known | {str(max_evals): asdict(found)}, indent=1) + "\n")
    return found


def _first(dataset: MapDataset) -> tuple[Tensor, Tensor]:
    return read_samples(dataset, torch.arange(min(BATCH_SIZE, len(dataset))))
