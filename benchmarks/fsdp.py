"""Memory of a process that trains the 98M DEQ-Transformer of WikiText-103, with DDP and with FSDP, on the CPU.

    python benchmarks/fsdp.py

Starts gloo processes that make some training steps on random tokens, short ones, so that it is the model and not its
activations that takes memory. Writes results/fsdp.json, and the table in docs/training.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steadeq import GMRES, Anderson, ConvergenceWarning, Implicit, JacobianRegularizer
from steadeq.lab.run.shards import is_sharded
from steadeq.lab.tasks import LanguageModeling
from steadeq.lab.train import Process
from steadeq.lab.train.metrics import forget_peak_memory, peak_memory
from steadeq.lab.train.step import StepSettings, TrainStep
from steadeq.models.presets import preset

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "training.md"
MODEL = "deq-transformer/wt103"
NUM_PROCESSES = 2
NUM_STEPS = 2
LENGTH = 8
ROWS = {
    "parameters": "parameters that it keeps",
    "gradients": "gradients that it keeps",
    "optimizer": "moments of Adam",
    "between_steps": "process between steps",
    "peak": "process at its peak",
}


def resident() -> float:
    """Return the memory of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmRSS:"))


def megabytes(tensors: list[Tensor]) -> float:
    """Return the memory of what this process has of tensors."""
    local = [tensor.to_local() if is_sharded(tensor) else tensor for tensor in tensors]  # pyright: ignore
    return sum(tensor.numel() * tensor.element_size() for tensor in local) / 2**20


def work(parallel: Any, out: Path) -> None:
    """Train in one process of a job."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    with Process.join("cpu", parallel=parallel) as process:
        if process.is_sharded:
            import steadeq.lab.train.sharding  # noqa: F401 (what it imports is part of the base)
        base = resident()
        torch.manual_seed(0)
        config = preset(MODEL)
        model = config.build()
        num_parameters = sum(p.numel() for p in model.parameters())
        step = process.wrap(TrainStep(model, LanguageModeling()))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        settings = StepSettings(
            step=0,
            solver=Anderson(max_evals=4),
            adjoint=Implicit(GMRES(max_evals=4)),
            regularizer=JacobianRegularizer(weight=0.1),
        )
        tokens = torch.randint(
            config.vocab_size, (1, LENGTH + 1), generator=torch.Generator().manual_seed(process.rank)
        )
        found: dict[str, Any] = {}
        forget_peak_memory(process.device)
        start = time.perf_counter()
        for _ in range(NUM_STEPS):
            with process.part_of_a_step(step, is_last=True):
                step(tokens[:, :-1], tokens[:, 1:], settings).loss.backward()
            process.clip_gradients(model.parameters(), 1.0)
            optimizer.step()
            found["gradients"] = megabytes([p.grad for p in model.parameters() if p.grad is not None])
            optimizer.zero_grad(set_to_none=True)
        found |= {
            "parameters": megabytes(list(model.parameters())),
            "optimizer": megabytes([v for state in optimizer.state.values() for v in state.values()]),
            "between_steps": resident() - base,
            "peak": peak_memory(process.device) - base,
            "base": base,
            "seconds_per_step": (time.perf_counter() - start) / NUM_STEPS,
            "num_parameters": num_parameters,
        }
        (out / f"rank{process.rank}.json").write_text(json.dumps(found))


def measure(parallel: str) -> dict[str, float]:
    """Return the largest numbers over the processes of a job."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        shared = {"WORLD_SIZE": str(NUM_PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, __file__, "--worker", parallel, folder]
        jobs = [
            subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(rank), "OMP_NUM_THREADS": "1"})
            for rank in range(NUM_PROCESSES)
        ]
        try:
            codes = [job.wait() for job in jobs]
        finally:
            for job in jobs:
                job.kill()
        if any(codes):
            raise SystemExit(f"A process of {parallel} failed.")
        parts = [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(NUM_PROCESSES)]
    return {name: max(part[name] for part in parts) for name in parts[0]}


def table(results: dict[str, Any]) -> str:
    """Return what stands in the docs."""
    runs = results["runs"]
    lines = ["| MB a process | " + " | ".join(run.upper() for run in runs) + " |", "|---" * (len(runs) + 1) + "|"]
    lines += [
        f"| {text} | " + " | ".join(f"{run[name]:,.0f}" for run in runs.values()) + " |" for name, text in ROWS.items()
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure all, or work in one process of a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", nargs=2, metavar=("PARALLEL", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker[0], Path(arguments.worker[1]))
        return
    results = {
        "model": MODEL,
        "num_processes": NUM_PROCESSES,
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "runs": {parallel: measure(parallel) for parallel in ("ddp", "fsdp")},
    }
    (HERE / "results" / "fsdp.json").write_text(json.dumps(results, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition("<!-- memory -->\n")
    after = rest[rest.index("Recompute with `python benchmarks/fsdp.py`") :]
    PAGE.write_text(f"{before}<!-- memory -->\n\n{table(results)}\n\n{after}")
    print(table(results))


if __name__ == "__main__":
    main()
