"""Fashion-MNIST and the idx format."""

import gzip
import random
import struct
import tracemalloc

import numpy as np
import pytest
import torch
from lab.data.damages import damaged

from steadeq.lab.data import FashionMnist, fashion_mnist
from steadeq.lab.errors import InputError

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def packed(array: np.ndarray) -> bytes:
    code = CODES[array.dtype.str[1:]]
    header = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write(folder, count: int = 12, compress: bool = True) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    content = {}
    for part in ("train", "t10k"):
        content[f"{part}-images-idx3-ubyte"] = rng.integers(256, size=(count, 28, 28), dtype=np.uint8)
        content[f"{part}-labels-idx1-ubyte"] = rng.integers(10, size=count, dtype=np.uint8)
    for name, array in content.items():
        path = folder / (f"{name}.gz" if compress else name)
        path.write_bytes(gzip.compress(packed(array)) if compress else packed(array))
    return content


@pytest.fixture(autouse=True)
def _no_debian_package(home, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "DEBIAN", home / "debian")


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("kind", CODES)
def test_idx_files_are_read_in_every_type(suffix, kind, tmp_path):
    for shape in ((5,), (2, 3), (2, 1, 3, 2), (0, 4)):
        array = (np.arange(np.prod(shape)) * 37 - 50).astype(kind).reshape(shape)
        path = tmp_path / f"array{suffix}"
        path.write_bytes(gzip.compress(packed(array)) if suffix else packed(array))
        result = fashion_mnist.read_idx(path)
        assert torch.equal(result, torch.from_numpy(array))
        assert result.dtype == torch.from_numpy(array).dtype


GOOD = packed(np.arange(12, dtype=np.int32).reshape(3, 4))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "does not begin"),
        (b"\0\0\x0c", "does not begin"),
        (b"\0\1" + GOOD[2:], "does not begin"),
        (b"\0\0\x0a" + GOOD[3:], "does not begin"),
        (GOOD[:9], "within its header"),
        (GOOD[:-1], "should hold 48 bytes of data and has only 47"),
        (GOOD + b"\0", "should hold 48 bytes of data and has more"),
        (b"\0\0\x08\x03" + 12 * b"\xff", "asks for more than 134,217,728 bytes"),
        # An array of nothing whose other sizes are beyond all numbers.
        (b"\0\0\x08\xff" + 4 * b"\0" + 254 * 4 * b"\xff", "asks for more than"),
        (b"\0\0\x0e\x01\x02\0\0\0" + 100 * b"\0", "asks for more than"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_damaged_idx_files_are_refused_by_name(content, problem, suffix, tmp_path):
    path = tmp_path / f"images{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(InputError, match=rf"images(\.gz)? is damaged: .*{problem}"):
        fashion_mnist.read_idx(path)


@pytest.mark.parametrize("damage", ["cut", "other", "flipped"])
def test_damaged_compression_is_refused_by_name(damage, tmp_path):
    content = bytearray(gzip.compress(packed(np.arange(1000, dtype=np.int32) ** 2)))
    content[len(content) // 2] ^= 0xFF * (damage == "flipped")
    path = tmp_path / "images.gz"
    path.write_bytes({"cut": content[:-30], "other": b"plain text", "flipped": content}[damage])
    with pytest.raises(InputError, match=r"images\.gz is damaged: [^.]*.*[^.]\.$"):
        fashion_mnist.read_idx(path)


@pytest.mark.parametrize("place", ["mine/fashion-mnist", "data/fashion-mnist", "debian"])
@pytest.mark.parametrize("compress", [False, True])
def test_fashion_mnist_is_read_pixel_by_pixel_from_each_place(place, compress, home):
    content = write(home / place, compress=compress)
    splits = FashionMnist(num_train=7, num_validation=4).load()
    images, labels = (torch.from_numpy(content[f"train-{name}-ubyte"]) for name in ("images-idx3", "labels-idx1"))
    assert torch.equal(splits.train.inputs, images[:7, None])
    assert torch.equal(splits.validation.inputs, images[8:, None])
    assert torch.equal(splits.validation.targets, labels[8:].long())
    x, y = splits.test.batch(torch.arange(12))
    test_images = torch.from_numpy(content["t10k-images-idx3-ubyte"]).float()
    torch.testing.assert_close(x[:, 0], (test_images / 255 - 0.2860) / 0.3530)
    assert y.tolist() == content["t10k-labels-idx1-ubyte"].tolist()
    assert splits.train.batch(torch.arange(7), torch.Generator().manual_seed(0))[0].shape == (7, 1, 28, 28)


def test_missing_data_names_the_place_of_the_debian_package(home):
    with pytest.raises(InputError, match=rf"fashion-mnist.*{home / 'debian'}.*steadeq data fashion-mnist"):
        FashionMnist().load()


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("train-images-idx3", np.zeros((12, 28, 27), np.uint8)),
        ("t10k-labels-idx1", np.zeros(11, np.uint8)),
        ("t10k-labels-idx1", np.full(12, 10, np.uint8)),
        ("t10k-labels-idx1", np.full(12, -1, np.int8)),
        ("t10k-labels-idx1", np.full(12, 1.5, np.float32)),
        ("t10k-labels-idx1", np.full(12, np.nan, np.float64)),
        ("t10k-labels-idx1", np.zeros((12, 1), np.uint8)),
        ("train-images-idx3", np.zeros((12, 28, 28), np.int8)),
        ("train-images-idx3", np.zeros((12, 28, 28), np.float32)),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(name, array, home):
    write(home / "debian")
    (home / "debian" / f"{name}-ubyte.gz").write_bytes(gzip.compress(packed(array)))
    with pytest.raises(InputError, match=rf"{name}-ubyte\.gz is damaged"):
        FashionMnist(num_train=5, num_validation=5).load()


def test_files_without_images_or_with_too_few_are_refused(home):
    write(home / "debian")
    with pytest.raises(InputError, match=r"12 training images.*\(10\).*\(3\)"):
        FashionMnist(num_train=10, num_validation=3).load()
    write(home / "mine/fashion-mnist", count=0)
    with pytest.raises(InputError, match=r"train-labels-idx1-ubyte\.gz is damaged: it has no labels\.$"):
        FashionMnist(num_train=1, num_validation=0).load()


def test_what_compressed_files_expand_to_is_not_held_in_memory(tmp_path):
    # The header tells the truth: a gigabyte of zeros, in a megabyte.
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(struct.pack(">HBBI", 0, 0x08, 1, 1 << 30) + bytes(1 << 22), compresslevel=1))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"images\.gz is damaged: its header asks for more than"):
            fashion_mnist.read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_whatever_the_damage_an_idx_file_is_read_or_refused(suffix, tmp_path):
    rng = random.Random(0)
    arrays = [(np.arange(60) * 5).astype(kind).reshape(3, 4, 5) for kind in CODES]
    path, num_refused = tmp_path / f"array{suffix}", 0
    for _ in range(150):
        content = packed(rng.choice(arrays))
        # Damage to what is packed, and to the packing.
        if suffix:
            is_inside = rng.random() < 0.5
            content = gzip.compress(damaged(content, rng)) if is_inside else damaged(gzip.compress(content), rng)
        else:
            content = damaged(content, rng)
        path.write_bytes(content)
        try:
            array = fashion_mnist.read_idx(path)
        except InputError:
            num_refused += 1
        else:
            assert array.numel() * array.element_size() <= len(content) if not suffix else array.numel() < 1000
    assert 25 < num_refused < 150
