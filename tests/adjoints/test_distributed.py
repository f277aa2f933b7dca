import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from adjoints import ddp_worker
from adjoints.cells import largest_error

import steadeq

WORLD_SIZE, TIMEOUT = 2, 60


def run_workers(folder):
    """Return what each process computed under DistributedDataParallel."""
    environment = {**os.environ, "PYTHONPATH": str(Path(steadeq.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, ddp_worker.__file__, str(rank), str(WORLD_SIZE), str(folder)],
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


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_two_processes_have_the_gradients_of_one_on_the_union_of_their_batches(tmp_path):
    # One test for all options, as starting the processes is what takes time.
    ranks = run_workers(tmp_path)
    expected, _ = ddp_worker.gradients(ddp_worker.make_model(), ddp_worker.make_batch())
    errors = {
        (name, rank): largest_error(gradients, expected)
        for rank, results in enumerate(ranks)
        for name, (gradients, _) in results.items()
    }
    assert len(errors) == WORLD_SIZE * len(ddp_worker.OPTIONS)
    assert max(errors.values()) < 1e-9, errors
    # The processes were free to need different numbers of evaluations.
    counts = [results["default"][1] for results in ranks]
    assert counts[0] != counts[1]
