import pytest
import torch
from adjoints import ddp_worker
from adjoints.cells import largest_error
from two_processes import run_workers


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_two_processes_have_the_gradients_of_one_on_the_union_of_their_batches(tmp_path):
    # One test for all options and penalties, as starting the processes is what takes time.
    ranks = run_workers(ddp_worker.__file__, tmp_path)
    batch = ddp_worker.make_batch()
    expected = dict.fromkeys(ddp_worker.OPTIONS, ddp_worker.gradients(ddp_worker.make_model(), batch))
    for name in ddp_worker.REGULARIZERS:
        expected[f"{name}, ddp"] = ddp_worker.gradients(ddp_worker.make_model(name), batch)
    expected["difference, fsdp"] = expected["difference, ddp"]
    for results in ranks:
        errors = {name: largest_error(results[name], gradients) for name, gradients in expected.items()}
        assert max(errors.values()) < 1e-9, errors
        # What is sharded has no second derivative, which would only be said in the backward pass, and not well.
        assert "fully_shard" in results["exact, fsdp"]
        assert 'estimator="difference"' in results["exact, fsdp"]
    # The processes were free to need different numbers of evaluations.
    assert ranks[0]["num_evals"] != ranks[1]["num_evals"]
