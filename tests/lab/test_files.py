"""Where files are written."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from lab.train.runs import environment

from steadeq.lab.cli.main import main
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


def test_a_link_that_leads_in_a_circle_is_no_place_for_a_file(tmp_path, capfd):
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match=r"[Ll]inks"):
        write_atomically(tmp_path / "circle", "new")
    assert (tmp_path / "circle").is_symlink()
    assert main(["train", f"{tmp_path / 'circle'}.py:function"]) == 2
    (tmp_path / "circle.py").symlink_to("circle.py")
    assert main(["train", f"{tmp_path / 'circle.py'}:function"]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize("length", [7, 300_000])
def test_a_pipe_that_somebody_reads_is_written_to(length, tmp_path):
    # More than the pipe itself has room for, too.
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(end, True)

    def read_all():
        with os.fdopen(end) as file:
            read.append(file.read())

    reader = threading.Thread(target=read_all)
    # As a shell has it, which hands over a number and no name: `--out >(less)`.
    write_end = os.open(pipe, os.O_WRONLY)
    reader.start()
    write_atomically(Path(f"/dev/fd/{write_end}"), "x" * length)
    os.close(write_end)
    reader.join()
    assert read == ["x" * length]
    assert pipe.is_fifo()


def test_nobody_waits_for_the_reader_of_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no process reads from it"):
        write_atomically(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link").symlink_to("pipe")
    with pytest.raises(OSError, match="no process reads from it"):
        write_atomically(tmp_path / "link", "text")


DEADLY = """
import os, sys
from pathlib import Path
from steadeq.lab import files
name, call = sys.argv[2], int(sys.argv[3])
plain, calls = getattr(os, name), []
def deadly(*arguments, **options):
    calls.append(name)
    if len(calls) == call:
        os._exit(9)
    return plain(*arguments, **options)
setattr(os, name, deadly)
files.write_atomically(Path(sys.argv[1]), "text", is_new=True)
"""


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="other systems leave a temporary file behind")
@pytest.mark.parametrize(("name", "call"), [("open", 1), ("open", 2), ("fsync", 1), ("fsync", 2), ("link", 1)])
def test_who_dies_while_making_a_new_file_leaves_the_whole_of_it_or_nothing_at_all(name, call, tmp_path):
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    arguments = [sys.executable, "-c", DEADLY, str(path), name, str(call)]
    assert subprocess.run(arguments, env=environment()).returncode == 9
    left = {entry.name: entry.read_text() for entry in path.parent.iterdir()}
    assert left in ({}, {"file": "text"})
    assert (left == {}) == ((name, call) != ("fsync", 2))


@pytest.mark.parametrize("system", ["this", "another"])
def test_a_new_file_is_there_as_a_whole_and_takes_no_place_of_another(system, tmp_path, monkeypatch):
    if system == "another":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    umask = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", "first", is_new=True)
    finally:
        os.umask(umask)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "file", "second", is_new=True)
    assert {entry.name: entry.read_text() for entry in tmp_path.iterdir()} == {"file": "first"}
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_device_stays_one():
    before = os.stat("/dev/null").st_mode
    write_atomically(Path("/dev/null"), "gone")
    assert os.stat("/dev/null").st_mode == before


def test_a_folder_is_no_place_for_a_file(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "folder", "text")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]
