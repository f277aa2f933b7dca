"""Penalties without second derivatives under DistributedDataParallel and FSDP2, on two processes."""

import pytest
import torch
from jacobian import penalty_worker
from two_processes import run_workers


# Starting the processes is what takes time.
@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_two_processes_have_the_gradients_of_one_on_the_union_of_their_batches(tmp_path):
    expected = penalty_worker.gradients(penalty_worker.make_model(), penalty_worker.make_batch())
    for results in run_workers(penalty_worker.__file__, tmp_path):
        assert set(results) == {"ddp", "fsdp"}
        for found in results.values():
            torch.testing.assert_close(found, expected)
