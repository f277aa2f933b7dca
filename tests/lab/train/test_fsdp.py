"""Parameters that are sharded over processes: `steadeq train --parallel fsdp`."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from lab.data.published import write_words
from lab.train import fsdp_worker
from lab.train.runs import assert_same, final_state, latest, reseal, snapshot, train, train_until
from lab.train.test_distributed import assert_close, train_two
from two_processes import run_workers

from steadeq.lab.cli.main import main
from steadeq.lab.config import TrainConfig
from steadeq.lab.errors import InputError, Interrupted
from steadeq.lab.run.checkpoint import DamagedCheckpointError
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.run.loading import load_model

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")


@dataclass(frozen=True)
class Job:
    """What two processes did."""

    folder: Path
    results: list[dict]
    """What each of them measured."""


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Iterator[Job]:
    """Have two processes train all runs of the worker, once, as starting them is what takes time."""
    folder = tmp_path_factory.mktemp("fsdp")
    write_words(folder / "data" / "wikitext-2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("STEADEQ_DATA", str(folder / "data"))
        with pytest.raises(Interrupted):
            train_until(fsdp_worker.REPEATABLE, folder / "one-then-two", stop_at=2)
        yield Job(folder, run_workers(fsdp_worker.__file__, folder, timeout=600))


def in_parts(config: TrainConfig) -> TrainConfig:
    """Return the config of one process that does what two do."""
    return replace(config, loop=replace(config.loop, accumulate=2 * config.loop.accumulate))


# Two are one


@pytest.mark.parametrize("name", fsdp_worker.RUNS)
def test_two_sharded_processes_are_one_with_two_parts(name, job, tmp_path):
    train(in_parts(fsdp_worker.RUNS[name]), tmp_path / "one")
    two, one = final_state(job.folder / name), final_state(tmp_path / "one")
    assert_close(two, one)
    for index, moments in one["state"]["optimizer"]["state"].items():
        for key, value in moments.items():
            found = two["state"]["optimizer"]["state"][index][key]
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5)
    if name == "bad":
        assert any(line.get("num_bad_samples") for line in two["metrics"])
    if name == "language":
        for a, b in zip(two["state"]["carry"], one["state"]["carry"], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_two_sharded_processes_in_bfloat16_are_one_up_to_its_precision(job, tmp_path):
    train(in_parts(fsdp_worker.HALF), tmp_path / "one")
    two, one = final_state(job.folder / "half"), final_state(tmp_path / "one")
    first, *_ = zip(two["metrics"], one["metrics"], strict=True)
    # Before the first update, nothing is rounded otherwise than in one process.
    for name in ("loss", "task_loss", "jacobian_norm", "forward_residual", "grad_norm"):
        assert first[0][name] == pytest.approx(first[1][name], rel=1e-5), name
    for a, b in zip(two["metrics"], one["metrics"], strict=True):
        if "loss" in b:
            assert a["loss"] == pytest.approx(b["loss"], rel=0.02)
    for key, value in one["weights"].items():
        # Master weights.
        assert two["weights"][key].dtype == torch.float32
        torch.testing.assert_close(two["weights"][key], value, rtol=0.05, atol=2e-3)


def test_the_network_is_gathered_once_a_step_whatever_a_solve_takes(job):
    for result in job.results:
        found = result["collectives"]
        # For two parts of a batch: the solves, the evaluations with a graph, and the penalties.
        assert found["evals"] >= 2 * 13
        # Two units, the cell and the rest.
        assert found["counts"]["_allgather_base_"] == 2
        # The gradients of each part are reduced at once.
        assert found["counts"]["_reduce_scatter_base_"] == 4
        # The numbers of the step, and the norm of the gradient.
        assert found["counts"].keys() <= {"_allgather_base_", "_reduce_scatter_base_", "allreduce_"}


def test_each_process_keeps_half_of_parameters_and_moments(job):
    parts = [result["collectives"] for result in job.results]
    assert parts[0]["whole"] == []
    assert sum(part["local"] for part in parts) == parts[0]["total"]
    assert sum(part["local moments"] for part in parts) == 2 * parts[0]["total"]
    # But for tensors of odd sizes.
    assert parts[0]["local"] == pytest.approx(parts[1]["local"], rel=0.1)


# Checkpoints


@pytest.mark.parametrize("name", ["conv", "language"])
def test_a_sharded_run_that_was_stopped_resumes_bit_for_bit(name, job):
    assert_same(final_state(job.folder / f"{name}-stopped"), final_state(job.folder / name))


def test_two_sharded_processes_go_on_with_a_run_of_one_and_the_other_way_round(job, tmp_path):
    train(fsdp_worker.REPEATABLE, tmp_path / "one")
    expected = final_state(tmp_path / "one")
    shutil.copytree(job.folder / "two-then-one", tmp_path / "two-then-one")
    assert max(RunFolder(tmp_path / "two-then-one").checkpoints().steps()) == 3
    train(fsdp_worker.REPEATABLE, tmp_path / "two-then-one")
    assert_close(final_state(tmp_path / "two-then-one"), expected)
    assert_close(final_state(job.folder / "one-then-two"), expected)


def test_each_process_writes_its_own_part_of_a_checkpoint(job):
    for folder in (job.folder / "conv" / "checkpoints").iterdir():
        shards = sorted(folder.glob("shard-*.safetensors"))
        names = [path.name for path in shards]
        assert [name[:11] for name in names] == ["shard-00001", "shard-00002"]
        assert {path.name for path in folder.iterdir()} == {*names, "state.pt", "checksums.json"}
        # No tensor that grows with the model is in the state, which one process writes.
        assert (folder / "state.pt").stat().st_size < 16_000
        assert shards[0].stat().st_size == pytest.approx(shards[1].stat().st_size, rel=0.4)


def test_a_sharded_run_is_opened_without_other_processes(job, capsys):
    path = job.folder / "conv"
    # Evaluations use the average of the weights.
    assert_same(dict(load_model(path).state_dict()), latest(path).average)
    assert main(["evaluate", str(path), "--budgets", "2", "--split", "validation"]) == 0
    assert "accuracy" in capsys.readouterr().out
    text = ["generate", str(job.folder / "language"), "--num-tokens", "3", "--prompt", "w1 w2"]
    assert main(text) == 0


@pytest.fixture
def damaged(job, tmp_path) -> Path:
    """Return a copy of a sharded run, to be damaged."""
    return Path(shutil.copytree(job.folder / "conv", tmp_path / "damaged"))


def test_a_damaged_shard_is_named_and_the_checkpoint_before_is_used(damaged, caplog):
    checkpoints = RunFolder(damaged).checkpoints()
    *_, before, last = checkpoints.steps()
    shard = next((damaged / "checkpoints" / f"step-{last:08d}").glob("shard-00002-*"))
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=f"{shard.name} has changed since it was written"):
        checkpoints.load(last)
    assert latest(damaged).step == before
    assert "Trying the one before it" in caplog.text


def test_a_checkpoint_that_lacks_a_shard_is_refused(damaged):
    checkpoints = RunFolder(damaged).checkpoints()
    for shard in damaged.glob("checkpoints/*/shard-00001-*"):
        shard.unlink()
    with pytest.raises(DamagedCheckpointError, match=r"its files are not the files that were written"):
        checkpoints.load_latest()
    assert main(["evaluate", str(damaged)]) == 1


def test_a_shard_that_claims_more_than_it_holds_is_refused_before_memory_is_taken(damaged):
    step = RunFolder(damaged).checkpoints().steps()[-1]
    folder = damaged / "checkpoints" / f"step-{step:08d}"
    shard = next(folder.glob("shard-00002-*"))
    with safetensors.safe_open(shard, "pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    # Where in the whole tensors the parts are, as torch.distributed.checkpoint notes it.
    ((key, places),) = [(key, json.loads(text)) for key, text in metadata.items() if "saved_offsets" in text]
    next(place for place in places.values() if place["saved_offsets"])["saved_offsets"][0] += 10**12
    safetensors.torch.save_file(tensors, shard, {**metadata, key: json.dumps(places)})
    reseal(folder, shard.name)
    with pytest.raises(DamagedCheckpointError, match="do not form a tensor"):
        RunFolder(damaged).checkpoints().load(step)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_of_one_process_is_one_clear_error_of_all(rank, job):
    path = job.folder / f"full{rank}"
    for reporting, result in enumerate(job.results):
        said = result["full"][rank]
        assert "step-00000003 could not be written" in said
        assert "No space left on device" in said
        assert "step 2 is intact" in said
        assert (f"process {rank}" in said) == (reporting != rank)
    # What was begun is gone, on all processes.
    assert [entry.name for entry in (path / "checkpoints").iterdir()] == ["step-00000002"]
    assert RunFolder(path).checkpoints().load(2).step == 2


# One process


def test_one_process_has_nothing_to_shard(tmp_path):
    options = ("--loop.num-steps", "2", "--loop.batch-size", "16", "--log.spectrum-samples", "0")
    for name, more in (("plain", ()), ("fsdp", ("--parallel", "fsdp"))):
        assert main(["train", "synthetic-jr", "--out", str(tmp_path / name), *options, *more]) == 0
    assert_same(final_state(tmp_path / "fsdp"), final_state(tmp_path / "plain"))
    # How a run is distributed is no part of what it is.
    assert snapshot(tmp_path / "fsdp")["config.json"] == snapshot(tmp_path / "plain")["config.json"]


def test_a_version_without_sharded_files_is_refused(job, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.8.0"))
    assert main(["train", "synthetic", "--out", str(tmp_path / "run"), "--parallel", "fsdp"]) == 2
    assert "PyTorch 2.9 or later" in capsys.readouterr().err
    # A checkpoint that this version cannot read is not damaged.
    with pytest.raises(InputError, match=r"PyTorch 2.9 or later"):
        RunFolder(job.folder / "conv").checkpoints().load_latest()


# As a command


@pytest.mark.slow
def test_a_run_may_change_how_it_is_distributed(tmp_path):
    path = tmp_path / "run"
    # Nothing that depends on how a batch is cut.
    fixed = ("--loop.batch-size", "16", "--regularizer.weight", "0", "--loop.ema-decay", "0.9")
    for parallel, num_steps in (("ddp", 4), ("fsdp", 8), ("ddp", 12)):
        new = ("synthetic", *fixed, "--log.checkpoint-every", "4") if num_steps == 4 else ("--resume",)
        length = ("--loop.num-steps", str(num_steps), "--out", str(path), "--parallel", parallel)
        train_two(*new, *length, "--optimizer.schedule", "constant")
        assert any(path.glob(f"checkpoints/step-{num_steps:08d}/shard-*")) == (parallel == "fsdp")
    arguments = ["train", "synthetic", *fixed, "--loop.num-steps", "12", "--out", str(tmp_path / "one")]
    assert main([*arguments, "--optimizer.schedule", "constant"]) == 0
    changed, one = final_state(path), final_state(tmp_path / "one")
    for key, value in one["weights"].items():
        torch.testing.assert_close(changed["weights"][key], value, rtol=1e-4, atol=1e-5)
