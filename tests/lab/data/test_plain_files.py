"""What stands where a file should be: every reader says in a sentence what is wrong with it, and waits for nothing."""

import os
import socket
from pathlib import Path

import pytest
import torch
from lab.data.published import write_texts

from steadeq.lab.cli.main import main
from steadeq.lab.data import Cifar10, WikiText2, cifar10, fashion_mnist, images, locations, search_path, token_cache
from steadeq.lab.data.vocabulary import Vocabulary, read_lines
from steadeq.lab.errors import InputError
from steadeq.lab.files import one_line

READERS = {
    "CIFAR-10, binary": cifar10.read_binary,
    "CIFAR-10, pickled": cifar10.read_pickled,
    "idx": fashion_mnist.read_idx,
    "text": lambda path: list(read_lines(path)),
    "tokens": lambda path: token_cache.load_tokens(path, Vocabulary(["<eos>", "<unk>"])),
    "vocabulary": token_cache.load_vocabulary,
    "image": images.decode,
    "color image": images.decode_rgb,
    "checksum": locations.md5,
    "checksum of what is compressed": lambda path: locations.md5(path, unpacked=True),
}


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as end:
        # In the current folder: a path may have 100 bytes.
        end.bind(path.name)


PLACES = {
    "a pipe": (os.mkfifo, "it is a pipe"),
    "a device that never ends": (lambda path: path.symlink_to("/dev/zero"), "it is a device"),
    "a folder": (os.mkdir, "it is a folder"),
    "a socket": (make_socket, "it is a socket"),
    "a link to itself": (lambda path: path.symlink_to(path), "symbolic links"),
    "a link to nowhere": (lambda path: path.symlink_to("nowhere"), "No such file"),
    "nothing": (lambda path: None, "No such file"),
}


pytestmark = pytest.mark.usefixtures("home", "_in_seconds")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("reader", READERS)
def test_only_plain_files_are_opened(reader, place, tmp_path):
    make, problem = PLACES[place]
    path = tmp_path / "file"
    make(path)
    with pytest.raises(InputError, match=rf"file cannot be read: .*{problem}[^.]*\.$"):
        READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
def test_what_is_wrong_with_a_name_or_a_file_is_one_sentence(reader, tmp_path, monkeypatch):
    read = READERS[reader]
    with pytest.raises(InputError, match=r"aaa cannot be (read|looked at): File name too long\.$"):
        read(tmp_path / ("a" * 300))
    # Names that are not UTF-8 are names.
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    with pytest.raises(InputError, match=r"file cannot be read: No such file"):
        read(folder / "file")
    (tmp_path / "file").touch()
    if not reader.startswith("checksum"):
        with pytest.raises(InputError, match=r"file is (damaged|empty|refused): [^\n]*[^.\n]\.$"):
            read(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"content")
    deny(monkeypatch, tmp_path / "file")
    with pytest.raises(InputError, match=r"file cannot be (read|looked at): Permission denied\.$"):
        read(tmp_path / "file")


def deny(monkeypatch, folder):
    """Refuse what is in a folder, as the system does; tests may be run by root, who is refused nothing."""
    for name in ("stat", "open"):
        original = getattr(Path, name)

        def refuse(path, *args, original=original, **options):
            if path == folder or folder in path.parents:
                raise PermissionError(13, "Permission denied", str(path))
            return original(path, *args, **options)

        monkeypatch.setattr(Path, name, refuse)


# Where data is looked for


def test_a_folder_that_may_not_be_looked_into_is_said_and_does_not_hide_the_others(home, monkeypatch, capfd):
    (home / "mine").mkdir()
    deny(monkeypatch, home / "mine")
    with pytest.raises(InputError, match=r"mine/cifar-10-batches-bin cannot be read: Permission denied\.$"):
        Cifar10().load()
    assert main(["data"]) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "Permission denied" in shown
    assert "part of the package" in shown
    assert main(["data", "cifar10"]) == 0
    assert main(["data", "cifar10", "--verify"]) == 2
    assert "Permission denied" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["a" * 300, os.fsdecode(b"caf\xe9"), "loop"])
def test_strange_folders_of_data_are_one_line(name, home, monkeypatch, capfd):
    (home / "loop").symlink_to("loop")
    monkeypatch.setenv("STEADEQ_DATA", str(home / name))
    assert main(["data"]) == 0
    assert main(["data", "wikitext-2"]) == 0
    assert main(["data", "wikitext-2", "--verify"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("steadeq: ")


def test_without_a_home_data_is_found_elsewhere(home, monkeypatch, capfd):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert search_path() == [home / "mine", Path("data")]
    assert main(["data"]) == 0
    write_texts(home / "mine" / "wikitext-2", *["a text\n"] * 3)
    with pytest.raises(InputError, match=r"^There is no home folder: set XDG_CACHE_HOME "):
        WikiText2().vocabulary()
    capfd.readouterr()
    monkeypatch.delenv("STEADEQ_DATA")
    assert main(["data", "cifar10", "--download"]) == 2
    assert "There is no home folder" in capfd.readouterr().err


def test_texts_in_folders_of_any_name_have_their_place_in_the_cache(home, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / os.fsdecode(b"caf\xe9")))
    for name in (os.fsdecode(b"\xe9t\xe9"), "long" * 60):
        folder = write_texts(home / name / "wikitext-2", *["a text\n"] * 3)
        monkeypatch.setenv("STEADEQ_DATA", str(home / name))
        assert WikiText2(length=1).load().train.tokens.tolist() == [1, 2, 0]
        long = folder / ("n" * 250)
        long.write_text("a text\n")
        assert torch.equal(token_cache.load_tokens(long, WikiText2().vocabulary()), torch.tensor([1, 2, 0]))


# What others say


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain.", "plain"),
        ("two\nlines\r\nand\ttabs", "two lines and tabs"),
        ("\x1b]0;title\x07\x1b[2Jgone", "]0;title [2Jgone"),
        ("right\u202eleft\u2066", "right left"),
        ("half\ud800", "half"),
        ("x" * 10_000, "x" * 200),
        (ValueError("of any kind"), "of any kind"),
    ],
)
def test_what_others_say_is_one_short_line(text, shown):
    assert one_line(text) == shown
