"""Runs whose folder is moved, removed or replaced while they train."""

import shutil
from pathlib import Path

import pytest
from lab.train.runs import assert_same, final_state, metrics_of, tiny_config, train

from steadeq.lab.errors import Interrupted, RunError
from steadeq.lab.run.checkpoint import CheckpointFolder
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.train import Trainer
from steadeq.lab.train.display import Display

CONFIG = tiny_config(loop={"num_steps": 12}, log={"every": 1, "checkpoint_every": 4, "eval_every": 4})


class Meddler(Display):
    """Does something after a step, and asks to stop after another."""

    def __init__(self, action, *, at: int, stop_at: int = -1) -> None:
        self.action, self.at, self.stop_at = action, at, stop_at
        self.trainer: Trainer | None = None

    def advance(self, title, step, values):
        if step == self.at:
            self.action()
        if step == self.stop_at:
            assert self.trainer is not None
            self.trainer.interruption.requested = True


def train_with(path: Path, action, *, at: int = 5, stop_at: int = -1) -> Trainer:
    folder = RunFolder.create(path, CONFIG)
    meddler = Meddler(action, at=at, stop_at=stop_at)
    trainer = meddler.trainer = Trainer(CONFIG, folder, display=meddler)
    with folder.lock():
        trainer.train()
    return trainer


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict:
    path = tmp_path_factory.mktemp("whole") / "run"
    train(CONFIG, path)
    return final_state(path)


def test_progress_of_a_moved_run_is_shown_as_before(tmp_path):
    path, target = tmp_path / "run", tmp_path / "elsewhere" / "moved"
    titles = []
    folder = RunFolder.create(path, CONFIG)

    class Shown(Meddler):
        def begin(self, title, num_steps, step):
            titles.append(title)

        def advance(self, title, step, values):
            super().advance(title, step, values)
            titles.append(title)

    trainer = Trainer(CONFIG, folder, display=Shown(lambda: move(path, target), at=5))
    with folder.lock():
        trainer.train()
    assert titles == ["run"] * 13


def move(path: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    path.rename(target)


def test_a_run_that_is_moved_goes_on_where_it_now_is(tmp_path, whole, caplog):
    path, target = tmp_path / "run", tmp_path / "elsewhere" / "moved"
    trainer = train_with(path, lambda: move(path, target))
    assert trainer.folder.path == target
    assert f"is now {target}" in caplog.text
    assert not path.exists()
    assert_same(final_state(target), whole)


def test_a_moved_run_that_is_stopped_is_saved_and_resumed_where_it_now_is(tmp_path, whole):
    path, target = tmp_path / "run", tmp_path / "elsewhere" / "moved"
    with pytest.raises(Interrupted, match=f"the state is saved in {target}"):
        train_with(path, lambda: move(path, target), stop_at=6)
    assert not path.exists()
    assert RunFolder(target).checkpoints().steps()[-1] >= 6
    train(CONFIG, target)
    assert_same(final_state(target), whole)


def test_a_run_that_is_moved_while_a_checkpoint_is_written_is_saved_where_it_now_is(tmp_path, whole, monkeypatch):
    path, target = tmp_path / "run", tmp_path / "elsewhere" / "moved"
    plain = CheckpointFolder._make_room

    def overtaken(self, temporary):
        plain(self, temporary)
        if path.exists() and temporary.name.endswith("00000008.partial"):
            move(path, target)

    monkeypatch.setattr(CheckpointFolder, "_make_room", overtaken)
    train_with(path, lambda: None)
    assert not path.exists()
    assert_same(final_state(target), whole)


def test_a_run_that_is_moved_and_then_removed_while_a_checkpoint_is_written_is_gone(tmp_path, monkeypatch):
    path, target = tmp_path / "run", tmp_path / "elsewhere" / "moved"
    plain = CheckpointFolder._make_room

    def overtaken(self, temporary):
        plain(self, temporary)
        if path.exists():
            move(path, target)
        else:
            shutil.rmtree(target)

    monkeypatch.setattr(CheckpointFolder, "_make_room", overtaken)
    with pytest.raises(RunError, match="moved is gone"):
        train_with(path, lambda: None)


@pytest.mark.parametrize("has_link", [False, True])
def test_nothing_is_written_to_what_is_put_in_the_place_of_a_run(has_link, tmp_path, whole):
    path, target, other = tmp_path / "run", tmp_path / "elsewhere" / "moved", tmp_path / "other"
    train(CONFIG, other)
    before = {file: file.read_bytes() for file in other.rglob("*") if file.is_file()}

    def replace() -> None:
        move(path, target)
        path.symlink_to(other) if has_link else other.rename(path)

    train_with(path, replace)
    found = other if has_link else path
    assert {other / file.relative_to(found): file.read_bytes() for file in found.rglob("*") if file.is_file()} == before
    assert_same(final_state(target), whole)


def test_a_link_to_the_moved_run_will_do(tmp_path, whole):
    path, target = tmp_path / "run", tmp_path / "elsewhere" / "moved"

    def replace() -> None:
        move(path, target)
        path.symlink_to(target)

    assert train_with(path, replace).folder.path == path
    assert_same(final_state(target), whole)


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("stop_at", [-1, 5])
def test_a_run_that_is_removed_says_that_it_is_gone(is_replaced, stop_at, tmp_path):
    path = tmp_path / "run"

    def remove() -> None:
        shutil.rmtree(path)
        if is_replaced:
            RunFolder.create(path, CONFIG)

    with pytest.raises(RunError, match=r"run is gone.*nothing was saved since") as caught:
        train_with(path, remove, stop_at=stop_at)
    assert "the state is saved" not in str(caught.value)
    assert [file.name for file in path.iterdir()] == ["config.json"] if is_replaced else not path.exists()


def test_a_run_whose_files_are_removed_says_so_rather_than_save_what_cannot_be_resumed(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(RunError, match=r"config\.json .* removed"):
        train_with(path, (path / "config.json").unlink)
    assert metrics_of(path)[-1]["step"] < 12


def test_checkpoints_are_not_written_through_a_link_that_was_put_in_their_place(tmp_path):
    path, precious = tmp_path / "run", tmp_path / "precious"
    (precious / "step-00000001").mkdir(parents=True)

    def replace() -> None:
        (path / "checkpoints").rename(path / "old")
        (path / "checkpoints").symlink_to(precious)

    with pytest.raises(RunError, match="is a link"):
        train_with(path, replace)
    assert [file.name for file in precious.iterdir()] == ["step-00000001"]
