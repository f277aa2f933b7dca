import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from adjoint import ddp_worker
from adjoint.cells import largest_error

import steadeq

WORLD_SIZE, TIMEOUT = 2, 60

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs gloo"
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Return what each of two processes computed under DistributedDataParallel."""
    folder = tmp_path_factory.mktemp("ddp")
    source = str(Path(steadeq.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
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


@pytest.fixture(scope="module")
def single():
    gradients, _ = ddp_worker.gradients(ddp_worker.make_model(), ddp_worker.make_batch())
    return gradients


@pytest.mark.parametrize("options", ddp_worker.OPTIONS)
def test_two_processes_have_the_gradients_of_one_on_the_union_of_their_batches(options, ranks, single):
    for result in ranks:
        gradients, _ = result[options]
        assert largest_error(gradients, single) < 1e-9


def test_processes_may_need_different_numbers_of_evaluations(ranks):
    counts = [result["default"][1] for result in ranks]
    assert counts[0] != counts[1]
