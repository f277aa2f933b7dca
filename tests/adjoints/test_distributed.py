import pytest
import torch
from adjoints import ddp_worker
from adjoints.cells import largest_error
from two_processes import WORLD_SIZE, run_workers


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_two_processes_have_the_gradients_of_one_on_the_union_of_their_batches(tmp_path):
    # One test for all options, as starting the processes is what takes time.
    ranks = run_workers(ddp_worker.__file__, tmp_path)
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
