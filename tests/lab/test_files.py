"""Where files are written."""

import os
import threading
from pathlib import Path

import pytest

from steadeq.lab.files import write_atomically


def test_a_link_stays_one_and_its_target_is_written(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"
    (tmp_path / "dangling").symlink_to(tmp_path / "made")
    write_atomically(tmp_path / "dangling", "new")
    assert (tmp_path / "made").read_text() == "new"


def test_what_is_no_file_is_written_to(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_atomically(pipe, "through")
    reader.join()
    assert read == ["through"]
    assert pipe.is_fifo()


def test_a_device_stays_one():
    before = os.stat("/dev/null").st_mode
    write_atomically(Path("/dev/null"), "gone")
    assert os.stat("/dev/null").st_mode == before


def test_a_folder_is_no_place_for_a_file(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "folder", "text")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]
