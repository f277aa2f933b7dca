"""Runs whose folder is moved, removed or replaced while they train."""

import shutil
from pathlib import Path

import pytest
from lab.train.runs import (
    Watcher,
    assert_same,
    final_state,
    make_run,
    make_trainer,
    metrics_of,
    snapshot,
    tiny_config,
    train,
)

from steadeq.lab.errors import Interrupted, RunError
from steadeq.lab.run.checkpoint import CheckpointFolder
from steadeq.lab.run.folder import RunFolder

CONFIG = tiny_config(loop={"num_steps": 12}, log={"every": 1, "checkpoint_every": 4, "eval_every": 4})


class Meddler(Watcher):
    """Does something after a step, asks to stop after another, and notes the title that is shown."""

    def __init__(self, action, *, at: int, stop_at: int) -> None:
        super().__init__(stop_at=stop_at)
        self.action, self.at = action, at
        self.titles: list[str] = []

    def begin(self, title, num_steps, step):
        self.titles.append(title)

    def advance(self, title, step, values):
        self.titles.append(title)
        if step == self.at:
            self.action()
        super().advance(title, step, values)


def train_with(path: Path, action, *, at: int = 5, stop_at: int = -1) -> Meddler:
    meddler = Meddler(action, at=at, stop_at=stop_at)
    meddler.trainer = make_trainer(CONFIG, path, display=meddler)
    with meddler.trainer.folder.lock():
        meddler.trainer.train()
    return meddler


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict:
    return final_state(make_run(tmp_path_factory, CONFIG))


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def target(tmp_path) -> Path:
    """Where the run is moved to."""
    return tmp_path / "moved"


def test_a_run_that_is_moved_goes_on_where_it_now_is(path, target, whole, caplog):
    meddler = train_with(path, lambda: path.rename(target))
    assert meddler.trainer.folder.path == target
    # Progress is shown as before.
    assert meddler.titles == ["run"] * 13
    assert f"is now {target}" in caplog.text
    assert not path.exists()
    assert_same(final_state(target), whole)


def test_a_moved_run_that_is_stopped_is_saved_and_resumed_where_it_now_is(path, target, whole):
    with pytest.raises(Interrupted, match=f"the state is saved in {target}"):
        train_with(path, lambda: path.rename(target), stop_at=6)
    assert not path.exists()
    assert RunFolder(target).checkpoints().steps()[-1] >= 6
    train(CONFIG, target)
    assert_same(final_state(target), whole)


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_run_that_is_moved_while_a_checkpoint_is_written_is_saved_where_it_now_is(
    is_removed, path, target, whole, monkeypatch
):
    plain = CheckpointFolder._make_room

    def overtaken(self, temporary):
        plain(self, temporary)
        if path.exists() and temporary.name.endswith("00000008.partial"):
            path.rename(target)
        elif is_removed and target.exists():
            shutil.rmtree(target)

    monkeypatch.setattr(CheckpointFolder, "_make_room", overtaken)
    if is_removed:
        with pytest.raises(RunError, match="moved is gone"):
            train_with(path, lambda: None)
    else:
        train_with(path, lambda: None)
        assert_same(final_state(target), whole)
    assert not path.exists()


@pytest.mark.parametrize("has_link", [False, True])
def test_nothing_is_written_to_what_is_put_in_the_place_of_a_run(has_link, path, target, tmp_path, whole):
    other = tmp_path / "other"
    train(CONFIG, other)
    before = snapshot(other)

    def replace() -> None:
        path.rename(target)
        path.symlink_to(other) if has_link else other.rename(path)

    train_with(path, replace)
    assert snapshot(other if has_link else path) == before
    assert_same(final_state(target), whole)


def test_a_link_to_the_moved_run_will_do(path, target, whole):
    def replace() -> None:
        path.rename(target)
        path.symlink_to(target)

    assert train_with(path, replace).trainer.folder.path == path
    assert_same(final_state(target), whole)


@pytest.mark.parametrize(("is_replaced", "stop_at"), [(False, 5), (True, -1)])
def test_a_run_that_is_removed_says_that_it_is_gone(is_replaced, stop_at, path):
    def remove() -> None:
        shutil.rmtree(path)
        if is_replaced:
            RunFolder.create(path, CONFIG)

    with pytest.raises(RunError, match=r"run is gone.*nothing was saved since") as caught:
        train_with(path, remove, stop_at=stop_at)
    assert "the state is saved" not in str(caught.value)
    assert [file.name for file in path.iterdir()] == ["config.json"] if is_replaced else not path.exists()


def test_a_run_whose_files_are_removed_says_so_rather_than_save_what_cannot_be_resumed(path):
    with pytest.raises(RunError, match=r"config\.json .* removed"):
        train_with(path, (path / "config.json").unlink)
    assert metrics_of(path)[-1]["step"] < 12


def test_checkpoints_are_not_written_through_a_link_that_was_put_in_their_place(path, tmp_path):
    precious = tmp_path / "precious"
    (precious / "step-00000001").mkdir(parents=True)

    def replace() -> None:
        (path / "checkpoints").rename(path / "old")
        (path / "checkpoints").symlink_to(precious)

    with pytest.raises(RunError, match="is a link"):
        train_with(path, replace)
    assert [file.name for file in precious.iterdir()] == ["step-00000001"]
