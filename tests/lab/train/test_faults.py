"""What goes wrong around a run: disks that are full or read-only, folders that are taken, numbers that blow up."""

import copy
import errno
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from lab.train.runs import (
    LineData,
    assert_same,
    crash,
    disk_full,
    each,
    events_of,
    final_state,
    latest,
    make_run,
    make_trainer,
    metrics_of,
    raise_at,
    record,
    snapshot,
    tiny_config,
    train,
)
from torch import nn

from steadeq.lab.cli.main import main
from steadeq.lab.errors import InputError, RunError
from steadeq.lab.optimizers import SGD
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.run.record import RunRecord
from steadeq.lab.train import Trainer
from steadeq.models import AbstractModelConfig, ToyDEQ

CONFIG = tiny_config()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return final_state(make_run(tmp_path_factory, CONFIG))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that crashed after step 6, with a checkpoint of step 4."""
    return make_run(tmp_path_factory, CONFIG, crash_at=6)


@pytest.fixture
def path(stopped, tmp_path):
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def resume(path: Path) -> int:
    return main(["train", "--resume", "--out", str(path)])


def assert_one_sentence(errors: str) -> str:
    (line,) = errors.splitlines()
    assert line.startswith("steadeq: ")
    return line


# Disks


@pytest.mark.parametrize("call", each(range(1, 16), 1, 6, 11, 15))
def test_a_disk_that_fills_up_at_any_moment_is_one_clear_error(call, whole, path, monkeypatch, capfd):
    with monkeypatch.context() as patch:
        calls = raise_at(patch, [(os, "fsync")], call, disk_full())
        code = resume(path)
    if len(calls) < call:
        assert code == 0
    else:
        assert code == 1
        assert "No space left on device" in assert_one_sentence(capfd.readouterr().err)
    latest(path)
    assert resume(path) == 0
    assert_same(final_state(path), whole)


def test_a_disk_that_is_full_at_the_first_byte_is_one_clear_error(path, whole, monkeypatch, capfd):
    before = snapshot(path)
    with monkeypatch.context() as patch:
        raise_at(patch, [(tempfile, "mkstemp")], 1, OSError(errno.EROFS, os.strerror(errno.EROFS)))
        code = resume(path)
    assert code in (1, 2)
    assert "Read-only file system" in assert_one_sentence(capfd.readouterr().err)
    assert snapshot(path) == before
    assert resume(path) == 0
    assert_same(final_state(path), whole)


def test_a_folder_that_cannot_be_locked_is_one_clear_error(path, capfd):
    (path / ".lock").unlink(missing_ok=True)
    (path / ".lock").mkdir()
    assert resume(path) in (1, 2)
    assert str(path) in assert_one_sentence(capfd.readouterr().err)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_refused(tmp_path, capfd):
    tmp_path.chmod(0o500)
    try:
        assert main(["train", "synthetic", "--out", str(tmp_path / "run")]) == 2
        assert "Permission denied" in assert_one_sentence(capfd.readouterr().err)
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_in_which_another_process_trains_is_refused(path, capfd):
    with RunFolder(path).lock():
        before = snapshot(path)
        assert resume(path) == 2
        assert "Another process is training" in assert_one_sentence(capfd.readouterr().err)
        assert snapshot(path) == before
    with RunFolder(path).lock(), pytest.raises(InputError, match="Another process"), RunFolder(path).lock():
        pass


@pytest.mark.parametrize("has_unnamed_files", [True, False])
def test_a_folder_that_another_process_makes_at_the_same_time_is_left_to_it(has_unnamed_files, tmp_path, monkeypatch):
    other = tiny_config(loop={"seed": 7})
    # Before there is anything to be seen of the file.
    owner, name = (os, "fsync") if has_unnamed_files else (tempfile, "mkstemp")
    plain = getattr(owner, name)
    if not has_unnamed_files:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)

    def overtaken(*arguments, **options):
        patch.undo()
        RunFolder.create(tmp_path / "run", other)
        return plain(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, overtaken)
        with pytest.raises(InputError, match="created by another process"):
            RunFolder.create(tmp_path / "run", CONFIG)
    assert RunFolder(tmp_path / "run").config() == other
    assert list(snapshot(tmp_path / "run")) == ["config.json"]


def test_a_file_system_without_links_will_do(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    RunFolder.create(tmp_path / "run", CONFIG)
    assert RunFolder(tmp_path / "run").config() == CONFIG
    assert list(snapshot(tmp_path / "run")) == ["config.json"]


# Numbers


class Poisoned(ToyDEQ):
    """A ToyDEQ whose loss is not finite at some of its calls in training, counted from 0."""

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractModelConfig):
        bad: tuple[int, ...] = ()
        where: str = "output"

        def build(self) -> nn.Module:
            return Poisoned(self)

    def __init__(self, config: Config) -> None:
        super().__init__(hidden=4)
        self.bad, self.where, self.calls = config.bad, config.where, 0

    def encode(self, x):
        if self.training:
            self.calls += 1
            if self.where == "input" and self.calls - 1 in self.bad:
                x = torch.full_like(x, float("nan"))
        return super().encode(x)

    def decode(self, z):
        if self.training and self.calls - 1 in self.bad:
            if self.where == "output":
                return z * float("inf")
            if self.where == "gradient":
                return z + _InfiniteGradient.apply(z)
        return z


class _InfiniteGradient(torch.autograd.Function):
    """Zero, with a gradient that is not finite."""

    @staticmethod
    def forward(ctx, z):
        return torch.zeros_like(z)

    @staticmethod
    def backward(ctx, g):
        return g * float("inf")


def poisoned(bad, where="output", **loop):
    config = tiny_config("synthetic", loop={"num_steps": 6, "ema_decay": 0.5, **loop}, log={"eval_every": 6})
    return replace(config, model=Poisoned.Config(bad=tuple(bad), where=where))


@pytest.mark.parametrize("where", ["output", "input", "gradient"])
def test_a_step_that_is_not_finite_is_skipped_counted_and_recorded(where, tmp_path):
    initial, recorder = record(poisoned([2, 4], where), tmp_path / "run")
    for kept in ([initial, *recorder.weights], [initial, *recorder.averages]):
        is_same = [all(map(torch.equal, before.values(), after.values())) for before, after in pairwise(kept)]
        assert is_same == [False, False, True, False, True, False]
        assert all(bool(p.isfinite().all()) for p in kept[-1].values())
    # Nothing of a bad step is in the moments of the optimizer.
    assert {entry["step"].item() for entry in recorder.trainer.optimizer.state.values()} == {4}
    skipped, trained = (events_of(tmp_path / "run", event) for event in ("skipped", "train"))
    assert [(line["step"], line["in_row"]) for line in skipped] == [(3, 1), (5, 1)]
    assert all("not finite" in line["reason"] for line in skipped)
    assert [(line["step"], line["num_skipped"]) for line in trained] == [(1, 0), (2, 0), (4, 1), (6, 2)]
    assert sum("is skipped" in line for line in recorder.lines) == 2


def test_a_skipped_step_is_left_out_of_the_averages_of_a_window(tmp_path):
    config = poisoned([2])
    train(replace(config, log=replace(config.log, every=3)), tmp_path / "run")
    assert [(line["step"], line["loss"] is None) for line in events_of(tmp_path / "run", "train")] == [
        (3, False),
        (6, False),
    ]


class Normalized(ToyDEQ):
    """A ToyDEQ behind a batch normalization."""

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractModelConfig):
        def build(self) -> nn.Module:
            return Normalized()

    def __init__(self) -> None:
        super().__init__(hidden=4)
        self.norm = nn.BatchNorm1d(1)

    def encode(self, x):
        return super().encode(self.norm(x))


@pytest.mark.parametrize("huge", [False, True], ids=["left out", "skipped"])
def test_a_bad_sample_leaves_running_means_alone(huge, tmp_path):
    config = tiny_config("synthetic", loop={"num_steps": 6, "ema_decay": 0.5}, log={"eval_every": 6})
    config = replace(config, model=Normalized.Config(), data=LineData(num_train=96, bad=() if huge else (0,)))
    trainer = make_trainer(config, tmp_path / "run")
    if huge:
        # Finite, but its square is not: batch normalization spreads it over the batch, and nobody can tell who it was.
        trainer.splits.train.inputs[0] = 1e38
    trainer.train()
    assert len(events_of(tmp_path / "run", "skipped")) == (1 if huge else 0)
    assert trainer.average is not None
    for model in (trainer.model, trainer.average):
        for name, buffer in model.named_buffers():
            assert buffer.isfinite().all(), name
    assert trainer.model.norm.num_batches_tracked == (5 if huge else 6)
    assert trainer.evaluation["mse"] < 1e3


class Diverging(ToyDEQ):
    """A ToyDEQ with a running mean, whose map has no fixed point for inputs above 0.9: its state becomes infinite."""

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractModelConfig):
        def build(self) -> nn.Module:
            return Diverging(hidden=4)

    def __init__(self, **sizes) -> None:
        super().__init__(**sizes)
        self.register_buffer("mean", torch.zeros(()))

    def encode(self, x):
        z0, (u,) = super().encode(x)
        return z0, (torch.where(x > 0.9, 3e38, u),)

    def decode(self, z):
        if self.training:
            self.mean.lerp_(z.detach().mean(), 0.5)
        return super().decode(z)


@pytest.mark.parametrize(("kind", "accumulate"), [("input", 1), ("state", 2)])
def test_a_bad_sample_does_not_cost_the_others_their_gradients(kind, accumulate, tmp_path):
    loop = {"num_steps": 1, "batch_size": 48, "accumulate": accumulate}
    config = tiny_config("synthetic", loop=loop, log={"eval_every": 1}, optimizer=SGD(learning_rate=0.1))
    model = Diverging.Config() if kind == "state" else config.model
    data = LineData() if kind == "state" else LineData(bad=(3, 7, 8))
    config = replace(config, model=model, data=data)
    trainer = make_trainer(config, tmp_path / "run")
    x = trainer.splits.train.inputs

    def is_bad(x):
        return x > 0.9 if kind == "state" else x.isnan()

    num_bad = int(is_bad(x).sum())
    assert 0 < num_bad < 24
    # What a step without these samples does, by hand.
    twin = copy.deepcopy(trainer.model)
    order = torch.cat([trainer.reader.get(0, part)[0] for part in range(accumulate)])
    for part in order.chunk(accumulate):
        kept = part[~is_bad(part)].reshape(-1, 1)
        loss = (twin.solve(kept, solver=config.solver, adjoint=config.adjoint)[0] - kept / 2).square().mean()
        (loss / accumulate).backward()
    trainer.train()
    for moved, (name, parameter) in zip(trainer.model.parameters(), twin.named_parameters(), strict=True):
        rate = config.optimizer.rate(0, 1)
        torch.testing.assert_close(moved, parameter - rate * parameter.grad, msg=name)
    (line,) = events_of(tmp_path / "run", "train")
    assert line["num_bad_samples"] == num_bad
    assert line["num_skipped"] == 0
    # Nor do they stay in running means.
    assert_same(dict(trainer.model.named_buffers()), dict(twin.named_buffers()))


def poisoned_recipe(folder: Path, arguments: str) -> str:
    """Return the name of a recipe in a file, as a command takes it."""
    content = f"from lab.train.test_faults import poisoned\ndef recipe():\n    return poisoned({arguments})\n"
    (folder / "poisoned_recipe.py").write_text(content)
    return f"{folder / 'poisoned_recipe.py'}:recipe"


@pytest.mark.parametrize(("bad", "code"), [([0, 1, 3, 4], 1), ([1], 0)])
def test_a_run_whose_steps_were_mostly_skipped_exits_with_1(bad, code, tmp_path, capfd):
    recipe, path = poisoned_recipe(tmp_path, f"{bad}, max_bad_steps=3"), tmp_path / "run"
    # Said again when the run is looked at again.
    for again in ((), ("--resume",)):
        assert main(["train", recipe, "--out", str(path), *again]) == code
        output, errors = capfd.readouterr()
        assert f"{len(bad)} of 6 steps were skipped" in (assert_one_sentence(errors) if code else output)
    record = RunRecord.read(path, recipe)
    assert record.is_finished
    assert record.is_mostly_skipped == (code == 1)
    assert f"{len(bad)} of them skipped" in record.status


def test_bad_steps_before_a_crash_still_count_after_it(tmp_path):
    # The data is bad everywhere, so that a resumed run meets the same.
    data = LineData(bad=tuple(range(48)))
    config = replace(tiny_config("synthetic", loop={"max_bad_steps": 7, "batch_size": 48}), data=data)
    crash(config, tmp_path / "run", at=5)
    with pytest.raises(RunError, match="step 7: 7 steps in a row"):
        train(config, tmp_path / "run")
    skipped = [record["in_row"] for record in events_of(tmp_path / "run", "skipped")]
    assert skipped == list(range(1, 8))


def test_too_many_bad_steps_in_a_row_end_the_run_with_code_1_and_advice(tmp_path, capfd):
    recipe, path = poisoned_recipe(tmp_path, "[0, 2, 3, 4], max_bad_steps=3"), tmp_path / "run"
    assert main(["train", recipe, "--out", str(path)]) == 1
    line = assert_one_sentence(capfd.readouterr().err)
    assert re.search(r"step 5: 3 steps in a row .* Try a lower optimizer\.learning_rate", line)
    assert [line["in_row"] for line in events_of(path, "skipped")] == [1, 1, 2, 3]
    assert metrics_of(path)[-1]["event"] == "diverged"
    assert RunRecord.read(path, recipe).has_diverged


def test_metrics_are_json_even_where_numbers_are_not_finite(tmp_path):
    # A validation loss that is infinite is recorded as null.
    trainer = make_trainer(poisoned([]), tmp_path / "run")
    trainer.splits.validation.targets[0] = float("inf")
    trainer.train()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [record["event"] for record in records[-2:]] == ["evaluation", "finished"]
    assert records[-2]["loss"] is None


# What was left behind


def test_a_run_with_fewer_steps_an_epoch_never_goes_past_its_end(path):
    # As with a number of processes for which the last batch of an epoch is too small.
    trainer = Trainer(CONFIG, RunFolder(path))
    trainer.num_steps = 3
    with pytest.raises(InputError, match=r"of step 4, beyond the last step of the run \(3\)"):
        trainer.resume()


@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        *((".lock", is_there) for is_there in (True, False)),
        *((name, True) for name in ("config.json", "environment.json", "metrics.jsonl", "checkpoints")),
        *((name, False) for name in ("environment.json", "metrics.jsonl", "checkpoints")),
    ],
)
def test_a_run_writes_through_no_link(name, is_there, path, tmp_path, capfd):
    place, other = path / name, tmp_path / "elsewhere" / "other"
    other.parent.mkdir()
    if is_there:
        place.rename(other)
    else:
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    place.symlink_to(other)
    before = snapshot(other.parent)
    # Longer, so that all of it would be written.
    assert main(["train", "--resume", "--out", str(path), "--loop.num-steps", "14"]) == 2
    assert f"{place} is a link" in capfd.readouterr().err
    assert snapshot(other.parent) == before


def test_a_link_to_the_whole_folder_of_a_run_is_followed(path, tmp_path):
    (tmp_path / "link").symlink_to(path)
    assert main(["train", "--resume", "--out", str(tmp_path / "link")]) == 0
    assert (path / "checkpoints" / "step-00000012").is_dir()


def test_what_is_kept_aside_goes_through_no_link(path, tmp_path):
    shutil.rmtree(path / "checkpoints")
    before = (path / "metrics.jsonl").read_bytes()
    (path / "metrics.1.jsonl").symlink_to(tmp_path / "authorized_keys")
    train(CONFIG, path)
    assert not (tmp_path / "authorized_keys").exists()
    assert (path / "metrics.2.jsonl").read_bytes() == before


def test_what_is_in_a_lock_stays_there(path):
    (path / ".lock").write_text("note")
    with RunFolder(path).lock():
        pass
    assert (path / ".lock").read_text() == "note"


@pytest.mark.parametrize(
    ("line", "is_cut_off"), [(1, False), (-1, False), (-1, True)], ids=["inner", "last", "cut off"]
)
def test_lines_that_cannot_be_read_are_kept_aside_and_cost_no_others(line, is_cut_off, path, caplog):
    lines = (path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b":", b"\xff")
    damaged = b"".join(lines)[: -1 if is_cut_off else None]
    (path / "metrics.jsonl").write_bytes(damaged)
    train(CONFIG, path)
    # What a crash cut off is no loss.
    assert ((path / "metrics.1.jsonl").exists(), "lines that cannot be read" in caplog.text) == (not is_cut_off,) * 2
    assert is_cut_off or (path / "metrics.1.jsonl").read_bytes() == damaged
    assert line == -1 or "lines that cannot be read (2); it is kept as metrics.1.jsonl" in caplog.text
    assert [record["step"] for record in events_of(path, "train")] == [1, *range(2 if line == -1 else 3, 13)]


def test_metrics_of_a_run_that_lost_its_checkpoints_are_kept_aside(path, whole, caplog):
    before = (path / "metrics.jsonl").read_bytes()
    shutil.rmtree(path / "checkpoints")
    train(CONFIG, path)
    assert (path / "metrics.1.jsonl").read_bytes() == before
    assert "There is no checkpoint" in caplog.text
    assert_same(final_state(path), whole)
