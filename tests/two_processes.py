"""Scripts that run as two processes of one job."""

import os
import subprocess
import sys
from pathlib import Path

import torch

import steadeq

# So long that no busy machine looks like a process that hangs.
WORLD_SIZE, TIMEOUT = 2, 300


def run_workers(script, folder, *, timeout=TIMEOUT):
    """Return what each process computed: what it saved as rank0.pt and rank1.pt in the folder."""
    environment = {**os.environ, "PYTHONPATH": str(Path(steadeq.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(WORLD_SIZE), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD_SIZE)
    ]
    try:
        for process in processes:
            output, _ = process.communicate(timeout=timeout)
            assert process.returncode == 0, output
    finally:
        # A hang, or the failure of one, must not leave the other behind.
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(WORLD_SIZE)]
