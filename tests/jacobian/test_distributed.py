"""Penalties under DistributedDataParallel and FSDP2, on two processes."""

import pytest
import torch
from jacobian import penalty_worker
from two_processes import run_workers

from steadeq import JacobianRegularizer


# Starting the processes is what takes time.
@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_two_processes_have_the_gradients_of_one_on_the_union_of_their_batches(tmp_path):
    batch = penalty_worker.make_batch()
    expected = penalty_worker.gradients(penalty_worker.make_model(), batch)
    exact = penalty_worker.gradients(penalty_worker.make_model(JacobianRegularizer(weight=0.3)), batch)
    for results in run_workers(penalty_worker.__file__, tmp_path):
        torch.testing.assert_close(results["ddp"], expected)
        torch.testing.assert_close(results["fsdp"], expected)
        torch.testing.assert_close(results["exact, ddp"], exact)
        # What is sharded has no second derivative, which would only be said in the backward pass, and not well.
        assert "fully_shard" in results["exact, fsdp"]
        assert 'estimator="difference"' in results["exact, fsdp"]
