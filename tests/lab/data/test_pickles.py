"""CIFAR-10 as pickles: the official files are read, and no code in them is run."""

import hashlib
import os
import pickle
import struct

import numpy as np
import pytest
import torch

from steadeq.lab.data import Cifar10, cifar10
from steadeq.lab.errors import InputError

NAMES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def python2(images: np.ndarray, labels: list[int]) -> bytes:
    """Return the content of an official file, as cPickle of Python 2 wrote it with protocol 2."""

    def text(value: bytes) -> bytes:
        short = len(value) < 256
        return b"U" + bytes([len(value)]) + value if short else b"T" + struct.pack("<i", len(value)) + value

    def number(value: int) -> bytes:
        return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n"
        + b"cnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R"
        + b"(" + number(1) + number(images.shape[0]) + number(images.shape[1]) + b"\x86"
        + b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
        + b"(" + number(3) + text(b"|") + b"NNN" + 2 * b"J\xff\xff\xff\xff" + number(0) + b"tb"
        + b"\x89" + text(images.tobytes()) + b"tb"
    )  # fmt: skip
    return (
        b"\x80\x02}q\x01("
        + text(b"batch_label") + text(b"training batch 1 of 5")
        + text(b"labels") + b"](" + b"".join(map(number, labels)) + b"e"
        + text(b"data") + array
        + text(b"filenames") + b"](" + b"".join(text(b"image_%d.png" % i) for i in range(len(labels))) + b"e"
        + b"u."
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STEADEQ_DATA", str(tmp_path))
    (tmp_path / "cifar-10-batches-py").mkdir()
    return tmp_path / "cifar-10-batches-py"


def sample(seed: int = 0, count: int = 4):
    rng = np.random.default_rng(seed)
    return rng.integers(256, size=(count, 3072), dtype=np.uint8), rng.integers(10, size=count).tolist()


def publish(monkeypatch, path, content):
    """Write a file, as if it were the published one of its name."""
    path.write_bytes(content)
    known = cifar10.CHECKSUMS[cifar10.PICKLED_FOLDER]
    monkeypatch.setitem(known, path.name, hashlib.md5(content, usedforsecurity=False).hexdigest())


def test_published_files_are_read_pixel_by_pixel(folder, monkeypatch):
    content = {}
    for index, name in enumerate(NAMES):
        images, labels = sample(index)
        publish(monkeypatch, folder / name, python2(images, labels))
        content[name] = torch.from_numpy(images).reshape(-1, 3, 32, 32), torch.tensor(labels)
    splits = Cifar10(num_train=15, num_validation=5).load()
    for place, expected in ((0, splits.train.inputs), (1, splits.train.targets)):
        assert torch.equal(torch.cat([content[name][place] for name in NAMES[:5]])[:15], expected)
    assert torch.equal(splits.test.inputs, content["test_batch"][0])
    assert torch.equal(splits.test.targets, content["test_batch"][1])


def test_binary_files_come_first(folder, tmp_path):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    with pytest.raises(InputError, match=r"cifar-10-batches-bin.data_batch_1\.bin"):
        Cifar10().load()


class Malicious:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_is_refused_by_name_and_not_run(protocol, tmp_path, monkeypatch):
    """By its checksum, and, if that were right, by what it asks for."""
    trace, path = tmp_path / "trace", tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": Malicious(f"touch {trace}")}, protocol=protocol))
    with pytest.raises(InputError, match=r"data_batch_1 is refused: it is not the published file"):
        cifar10.read_pickled(path)
    publish(monkeypatch, path, path.read_bytes())
    with pytest.raises(InputError, match=r"data_batch_1 is refused: it asks for posix\.system"):
        cifar10.read_pickled(path)
    assert not trace.exists()
    # The file is as dangerous as it should be for this test to mean something.
    pickle.loads(path.read_bytes())
    assert trace.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("numpy", "load"),
        ("numpy", "ndarray.__class__"),
        ("numpy.core.multiarray", "scalar"),
        ("copyreg", "_reconstructor"),
        ("steadeq.lab.recipes", "load_recipe"),
        ("nonexistent", "thing"),
    ],
)
def test_names_that_files_do_not_need_are_refused(module, name, tmp_path, monkeypatch):
    texts = b"".join(b"\x8c" + bytes([len(t)]) + t.encode() for t in (module, name))
    publish(monkeypatch, tmp_path / "test_batch", b"\x80\x04" + texts + b"\x93.")
    with pytest.raises(InputError, match=rf"test_batch is refused: it asks for {module}\.{name}"):
        cifar10.read_pickled(tmp_path / "test_batch")


def test_a_damaged_pickle_or_one_of_another_name_is_refused_by_name(tmp_path, monkeypatch):
    content = python2(*sample())
    publish(monkeypatch, tmp_path / "data_batch_2", content)
    (tmp_path / "data_batch_1").write_bytes(content)
    for name, length in (("data_batch_1", None), *(("data_batch_2", part) for part in (0, 1, 40, -1))):
        (tmp_path / name).write_bytes(content[:length])
        with pytest.raises(InputError, match=rf"{name} is refused: it is not the published file"):
            cifar10.read_pickled(tmp_path / name)


def test_a_file_that_is_far_too_large_is_not_even_opened(tmp_path):
    path = tmp_path / "data_batch_1"
    with path.open("wb") as file:
        file.truncate(cifar10._MAX_BYTES + 1)
    with pytest.raises(InputError, match=r"data_batch_1 is refused: it has [\d,]+ bytes"):
        cifar10.read_pickled(path)
