"""Checkpoints: whole or not at all, verified, never executed."""

import contextlib
import hashlib
import json
import logging
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from lab.train.runs import (
    Crash,
    assert_same,
    crash,
    disk_full,
    final_state,
    latest,
    make_run,
    raise_at,
    reseal,
    snapshot,
    tiny_config,
    train,
    train_until,
)

from steadeq.lab.errors import InputError, Interrupted, RunError
from steadeq.lab.run.checkpoint import Checkpoint, CheckpointFolder, DamagedCheckpointError
from steadeq.lab.run.folder import RunFolder

CONFIG = tiny_config(loop={"ema_decay": 0.9})
FILES = ["model.safetensors", "average.safetensors", "state.pt", "checksums.json"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return final_state(make_run(tmp_path_factory, CONFIG))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that crashed after step 9, with checkpoints of steps 4 and 8."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    crash(CONFIG, path, at=9)
    assert RunFolder(path).checkpoints().steps() == [4, 8]
    return path


@pytest.fixture
def path(stopped, tmp_path):
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def make_checkpoint(step: int, value: float = 1.0) -> Checkpoint:
    return Checkpoint(weights={"w": torch.full((3,), value)}, average=None, state={"step": step, "list": [1.5, "a"]})


def truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(bytes(content))


def fill_with_zeros(file):
    file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        *((flip_a_bit, name) for name in FILES),
        *((damage, "state.pt") for damage in (truncate, fill_with_zeros, Path.unlink)),
        *((damage, "checksums.json") for damage in (truncate, fill_with_zeros, Path.unlink)),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(damage, name, whole, path, caplog):
    damage(path / "checkpoints" / "step-00000008" / name)
    with caplog.at_level(logging.WARNING):
        trainer = train(CONFIG, path)
    assert "step-00000008" in caplog.text
    assert "damaged" in caplog.text
    assert trainer.is_finished
    assert_same(final_state(path), whole)


def test_a_checkpoint_that_lost_all_its_files_is_named_and_the_one_before_it_is_used(whole, path, caplog):
    folder = path / "checkpoints" / "step-00000008"
    shutil.rmtree(folder)
    folder.mkdir()
    with caplog.at_level(logging.WARNING):
        train(CONFIG, path)
    assert "step-00000008" in caplog.text
    assert_same(final_state(path), whole)


def test_checksums_that_do_not_cover_a_file_do_not_vouch_for_it(path):
    folder = path / "checkpoints" / "step-00000008"
    (folder / "checksums.json").write_text("{}")
    with pytest.raises(DamagedCheckpointError):
        RunFolder(path).checkpoints().load(8)


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_later_checkpoint_never_pushes_out_a_whole_one(keep, whole, path):
    config = tiny_config(loop={"ema_decay": 0.9}, log={"keep_checkpoints": keep})
    truncate(path / "checkpoints" / "step-00000008" / "state.pt")
    with pytest.raises(Interrupted):
        train_until(config, path, stop_at=5)
    assert latest(path).step >= 5
    train(config, path)
    assert_same(final_state(path), whole)


@pytest.mark.parametrize("protocol", [None, 0, 2], ids=["of PyTorch", "0", "2"])
def test_a_pickle_with_code_is_never_executed(protocol, path, tmp_path):
    marker = tmp_path / "executed"

    class Trap:
        def __reduce__(self):
            return Path.touch, (marker,)

    for folder in (path / "checkpoints").iterdir():
        if protocol is None:
            torch.save({"step": 8, "optimizer": Trap()}, folder / "state.pt")
        else:
            (folder / "state.pt").write_bytes(pickle.dumps(Trap(), protocol=protocol))
        reseal(folder, "state.pt")
    with pytest.raises(DamagedCheckpointError):
        train(CONFIG, path)
    assert not marker.exists()


def test_files_are_what_was_promised_and_their_checksums_match(path):
    folder = path / "checkpoints" / "step-00000008"
    assert sorted(file.name for file in folder.iterdir()) == sorted(FILES)
    checksums = json.loads((folder / "checksums.json").read_text())
    assert checksums == {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES if name != "checksums.json"
    }
    assert set(safetensors.torch.load_file(folder / "model.safetensors")) == {
        "layer.cell.W1",
        "layer.cell.W2",
        "layer.cell.U",
        "layer.cell.b",
    }
    assert torch.load(folder / "state.pt", weights_only=True)["step"] == 8


def test_who_may_read_the_run_may_read_its_weights(path):
    modes = {file.name: file.stat().st_mode & 0o777 for file in (path / "checkpoints" / "step-00000008").iterdir()}
    assert len(set(modes.values())) == 1, modes


def test_what_is_saved_is_what_is_loaded(tmp_path):
    checkpoints = CheckpointFolder(tmp_path / "checkpoints")
    tied = torch.randn(4)
    weights = {"a": tied, "b": tied, "c": torch.arange(6).reshape(2, 3).T, "d": torch.randn(2, dtype=torch.bfloat16)}
    state = {"step": 5, "nested": {"a": [1, 2.5, None, True, "x"], "t": torch.randn(3, dtype=torch.float64)}}
    checkpoints.save(Checkpoint(weights=weights, average={"a": tied + 1}, state=state))
    loaded = checkpoints.load(5)
    assert loaded.step == 5
    assert_same(loaded.weights, {name: tensor.contiguous() for name, tensor in weights.items()})
    assert_same(loaded.average, {"a": tied + 1})
    assert_same(loaded.state, state)


@pytest.mark.parametrize("keep", [1, 3])
def test_so_many_checkpoints_are_kept(keep, tmp_path):
    checkpoints = CheckpointFolder(tmp_path / "checkpoints", keep=keep)
    for step in (2, 4, 100_000_000, 6_000, 123_456_789):
        checkpoints.save(make_checkpoint(step))
    assert len(checkpoints.steps()) == keep
    assert checkpoints.steps()[-1] == 123_456_789


def test_asking_for_a_step_without_a_checkpoint_names_those_there_are(tmp_path):
    checkpoints = CheckpointFolder(tmp_path / "checkpoints")
    with pytest.raises(InputError, match=r"step 3 .* none"):
        checkpoints.load(3)
    checkpoints.save(make_checkpoint(2))
    with pytest.raises(InputError, match=r"step 3 .*: 2\."):
        checkpoints.load(3)
    assert CheckpointFolder(tmp_path / "nowhere").load_latest() is None


# A full disk

RENAMES = [(Path, "rename"), (Path, "replace"), (os, "rename"), (os, "replace")]
PLACES = {
    "weights": [(safetensors.torch, "save_file")],
    "state": [(torch, "save")],
    "sync": [(os, "fsync")],
    "rename": RENAMES,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_full_disk_leaves_the_earlier_checkpoint_and_nothing_else(place, tmp_path, monkeypatch):
    checkpoints = CheckpointFolder(tmp_path / "checkpoints")
    checkpoints.save(make_checkpoint(4))
    before = snapshot(tmp_path)
    with monkeypatch.context() as patch:
        raise_at(patch, PLACES[place], 1, disk_full())
        with pytest.raises(RunError, match=r"step-00000008 .*No space left on device.*step 4 is intact"):
            checkpoints.save(make_checkpoint(8))
    assert snapshot(tmp_path) == before
    assert checkpoints.load_latest().step == 4


@pytest.mark.parametrize(
    ("place", "call"),
    [("weights", 1), ("state", 1), *(("sync", i) for i in (1, 4, 5)), *(("rename", i) for i in (1, 2, 4))],
)
@pytest.mark.parametrize("error", [disk_full(), Crash()], ids=["full", "crash"])
def test_saving_a_step_again_never_leaves_it_without_a_checkpoint(place, call, error, tmp_path, monkeypatch):
    # As after a stop in an evaluation: the same step is saved once more when the evaluation is made up for.
    checkpoints = CheckpointFolder(tmp_path / "checkpoints", keep=1)
    checkpoints.save(make_checkpoint(4, 1.0))
    with monkeypatch.context() as patch, contextlib.suppress(RunError, Crash):
        raise_at(patch, PLACES[place], call, error)
        checkpoints.save(make_checkpoint(4, 2.0))
    before = snapshot(tmp_path)
    reader = CheckpointFolder(tmp_path / "checkpoints", keep=1)
    assert reader.load_latest().step == 4
    assert reader.steps() == [4]
    # Who only reads, perhaps while another process trains, changes nothing.
    assert snapshot(tmp_path) == before
    # And the next one finds its place.
    checkpoints.save(make_checkpoint(4, 3.0))
    assert checkpoints.load_latest().weights["w"][0] == 3


def test_what_a_crash_left_half_written_is_no_checkpoint_and_is_cleaned_up(tmp_path, monkeypatch):
    checkpoints = CheckpointFolder(tmp_path / "checkpoints")
    checkpoints.save(make_checkpoint(4))
    with monkeypatch.context() as patch:
        raise_at(patch, [(torch, "save")], 1, Crash())
        with pytest.raises(Crash):
            checkpoints.save(make_checkpoint(6))
    assert checkpoints.steps() == [4]
    checkpoints.save(make_checkpoint(8))
    assert sorted(entry.name for entry in checkpoints.path.iterdir()) == ["step-00000004", "step-00000008"]


def test_who_reads_while_the_only_checkpoint_is_replaced_gets_the_later_one(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.save(make_checkpoint(1))
    load = CheckpointFolder.load

    def replaced_before(self, step, **options):
        if step == 1:
            self.save(make_checkpoint(2))
        return load(self, step, **options)

    monkeypatch.setattr(CheckpointFolder, "load", replaced_before)
    assert folder.load_latest().step == 2


def test_a_state_of_millions_of_instructions_is_refused_before_it_is_followed(path, monkeypatch):
    def follow(*arguments, **options):
        raise AssertionError("PyTorch was asked to read it.")

    folder = path / "checkpoints" / "step-00000004"
    with zipfile.ZipFile(folder / "state.pt", "w") as archive:
        archive.writestr("state/data.pkl", b"\x80\x02](" + b"N" * 3_000_000 + b"e.")
    reseal(folder, "state.pt")
    monkeypatch.setattr(torch, "load", follow)
    with pytest.raises(DamagedCheckpointError, match=r"state\.pt holds more than weights and plain values"):
        RunFolder(path).checkpoints().load(4)
