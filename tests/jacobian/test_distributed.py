"""Penalties without second derivatives under DistributedDataParallel and FSDP2, on two processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from jacobian import penalty_worker

import steadeq

WORLD_SIZE, TIMEOUT = 2, 60


def run_workers(folder):
    """Return what each process computed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(steadeq.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, penalty_worker.__file__, str(rank), str(WORLD_SIZE), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD_SIZE)
    ]
    try:
        for process in processes:
            output, _ = process.communicate(timeout=TIMEOUT)
            assert process.returncode == 0, output
    finally:
        # A hang, or the failure of one, must not leave the other behind.
        for process in processes:
            process.kill()
            process.wait()
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(WORLD_SIZE)]


# Starting the processes is what takes time.
@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_two_processes_have_the_gradients_of_one_on_the_union_of_their_batches(tmp_path):
    expected = penalty_worker.gradients(penalty_worker.make_model(), penalty_worker.make_batch())
    for results in run_workers(tmp_path):
        assert set(results) == {"ddp", "fsdp"}
        for found in results.values():
            torch.testing.assert_close(found, expected)
