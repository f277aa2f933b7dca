"""CIFAR-10 as pickles: the official files are read, and no code in them is run."""

import os
import pickle
import random
import struct
import tracemalloc

import numpy as np
import pytest
import torch
from lab.data.damages import damaged

from steadeq.lab.data import Cifar10, cifar10, pickles
from steadeq.lab.errors import InputError

NAMES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def python2(images: np.ndarray, labels: list[int], *, core: str = "core") -> bytes:
    """Return the content of an official file, as cPickle of Python 2 wrote it with protocol 2."""

    def text(value: bytes) -> bytes:
        short = len(value) < 256
        return b"U" + bytes([len(value)]) + value if short else b"T" + struct.pack("<i", len(value)) + value

    def number(value: int) -> bytes:
        return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)

    array = (
        f"cnumpy.{core}.multiarray\n_reconstruct\n".encode()
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


def numpy_today(images: np.ndarray, labels: list[int], *, protocol: int, key=str.encode) -> bytes:
    return pickle.dumps({key("data"): images, key("labels"): labels, key("filenames"): ["a"]}, protocol=protocol)


WRITERS = {
    "Python 2": python2,
    "Python 2 after a rename": lambda images, labels: python2(images, labels, core="_core"),
    **{f"protocol {p}": lambda i, y, p=p: numpy_today(i, y, protocol=p) for p in range(6)},
    "keys of Python 3": lambda images, labels: numpy_today(images, labels, protocol=4, key=str),
    "columns first": lambda images, labels: numpy_today(np.asfortranarray(images), labels, protocol=5),
    "columns first, old": lambda images, labels: numpy_today(np.asfortranarray(images), labels, protocol=2),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STEADEQ_DATA", str(tmp_path))
    (tmp_path / "cifar-10-batches-py").mkdir()
    return tmp_path / "cifar-10-batches-py"


def sample(seed: int = 0, count: int = 4):
    rng = np.random.default_rng(seed)
    return rng.integers(256, size=(count, 3072), dtype=np.uint8), rng.integers(10, size=count).tolist()


@pytest.mark.parametrize("writer", WRITERS)
def test_files_of_all_ages_are_read_pixel_by_pixel(writer, folder):
    content = {}
    for index, name in enumerate(NAMES):
        images, labels = sample(index)
        packed = WRITERS[writer](images, labels)
        # What is written here is what NumPy itself would read.
        if "rename" not in writer:
            known = pickle.loads(packed, encoding="bytes")
            np.testing.assert_array_equal(known.get(b"data", known.get("data")), images)
        (folder / name).write_bytes(packed)
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
def test_a_malicious_pickle_is_refused_by_name_and_not_run(protocol, tmp_path):
    trace, path = tmp_path / "trace", tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": Malicious(f"touch {trace}")}, protocol=protocol))
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
        ("__builtin__", "eval"),
        ("builtins", "getattr"),
        ("numpy", "load"),
        ("numpy", "ndarray.__class__"),
        ("numpy.core.multiarray", "scalar"),
        ("copyreg", "_reconstructor"),
        ("steadeq.lab.data.pickles", "read"),
        ("nonexistent", "thing"),
    ],
)
def test_globals_that_files_do_not_need_are_refused_by_name(module, name, tmp_path):
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x04" + b"".join(b"\x8c" + bytes([len(t)]) + t.encode() for t in (module, name)) + b"\x93.")
    with pytest.raises(InputError, match=rf"batch is refused: it asks for {module}\.{name}"):
        pickles.read(path)


@pytest.mark.parametrize(
    "body",
    [
        b"cnumpy\ndtype\n}X\x01\x00\x00\x00aK\x01sb.",  # sets an attribute of a stand-in
        b"cnumpy\nndarray\n)R.",  # calls the class
        b"cnumpy\nndarray\n)\x81.",  # the other way to call it
        b"cnumpy\ndtype\nU\x02O8\x85R.",  # objects, which may be anything
        b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",
        b"}U\x04datacnumpy.core.multiarray\n_reconstruct\n)Rs.",  # an array without content
        b"Ppersistent\n.",
        b"]U\x04data\x94.",
        b"K\x01.",
        b"",
    ],
)
def test_pickles_that_are_up_to_something_else_are_refused(body, tmp_path):
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02" + body if body else b"")
    before = dict(vars(pickles))
    with pytest.raises(InputError, match=r"batch is damaged: .*\.$"):
        pickles.read(path)
    assert dict(vars(pickles)) == before


@pytest.mark.parametrize("part", [0, 1, 40, 0.3, 0.9, -1])
def test_a_truncated_pickle_is_refused_by_name(part, tmp_path):
    path, content = tmp_path / "data_batch_2", python2(*sample())
    path.write_bytes(content[: part if isinstance(part, int) else int(part * len(content))])
    with pytest.raises(InputError, match=r"data_batch_2 is damaged"):
        cifar10.read_pickled(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"labels": [1]}, "its data"),
        ({"data": np.zeros((1, 3071), np.uint8), "labels": [1]}, "3072"),
        ({"data": np.zeros(3072, np.uint8), "labels": [1]}, "3072"),
        ({"data": np.zeros((1, 3072), np.int16), "labels": [1]}, "i2"),
        ({"data": np.zeros((1, 3072), np.uint8)}, "labels"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [1, 2]}, "list of 1"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": ["1"]}, "integers"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, "label of 10"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [-1]}, "label of -1"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [10**30]}, "label"),
        ([1, 2], "dictionary"),
    ],
)
def test_a_pickle_of_something_else_is_refused_by_name(content, problem, tmp_path):
    path = tmp_path / "test_batch"
    path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(InputError, match=rf"test_batch is damaged: .*{problem}"):
        cifar10.read_pickled(path)


def test_a_missing_pickle_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"test_batch cannot be read: No such file"):
        cifar10.read_pickled(tmp_path / "test_batch")


# Pickles that are out for the machine

NUMPY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
BYTES = b"(K\x01K\x64\x85cnumpy\ndtype\nU\x02u1\x85R\x89U\x64" + 100 * b"a" + b"t"
ABUSES = {
    # What follows crashes the interpreter, hangs it or takes gigabytes where Python's own machine runs it.
    "nested tuples": b"}U\x01a)" + b"\x85" * 200_000 + b"s.",
    "nested tuples as a key": b"})" + b"\x85" * 200_000 + b"K\x01s.",
    "nested lists": b"}U\x01a" + b"]" * 1000 + b"a" * 999 + b"s.",
    "nested dictionaries": b"}U\x01a}s.",
    "a billion laughs": b"})" + b"q\x00h\x00\x86" * 60 + b"K\x01s.",
    "a list in itself": b"}U\x01a]q\x00h\x00as.",
    "a dictionary in itself": b"}q\x00U\x01ah\x00s.",
    "a far place": b"]r\xff\xff\xff\x7f0.",
    "a long frame": b"\x95" + b"\xff" * 8 + b"]",
    "a long string": b"T\xff\xff\xff\x7fabc.",
    "longer bytes": b"\x8e" + b"\xff" * 8 + b".",
    "long bytes of a bytearray": b"\x96" + b"\xff" * 7 + b"\x7f.",
    "a long number": b"\x8b\xff\xff\xff\x7f.",
    "a million digits": b"I" + b"9" * 1_000_000 + b"\n.",
    "a long name": b"c" + b"a" * 1_000_000 + b"\n\n.",
    "many instructions": b"]" * 300_000 + b".",
    "many marks": b"(" * 300_000 + b".",
    "a long tuple": b"(" + b"N" * 1000 + b"t.",
    "endless copies of a text": b"X\x00\x00\x10\x00" + b"a" * 0x100000 + b"q\x00X\x06\x00\x00\x00latin1q\x01"
    + b"c_codecs\nencode\nh\x00h\x01\x86R" * 500 + b".",
    "endless copies of an array": NUMPY + BYTES.replace(b"U\x64" + 100 * b"a", b"B\x00\x00\x10\x00" + b"a" * 0x100000)
    .replace(b"K\x64", b"J\x00\x00\x10\x00")
    + b"q\x00b" + b"h\x00b" * 500 + b".",
    "an array of a strange shape": NUMPY + BYTES.replace(b"K\x64\x85", b"]") + b"b.",
    "an array of negative sizes": NUMPY + BYTES.replace(b"K\x64\x85", b"J\x9c\xff\xff\xff" + b"J\xff\xff\xff\xff\x86")
    + b"b.",
    "an array without bytes": NUMPY + BYTES.replace(b"U\x64" + 100 * b"a", b"U\x00") + b"b.",
    "an array of a text": NUMPY + BYTES.replace(b"U\x64", b"X\x64\x00\x00\x00") + b"b.",
    "too few arguments": b"c_codecs\nencode\n)R.",
    "a call of a number": b"K\x01)R.",
    "a name that is a number": b"K\x01K\x01\x93.",
    "a name that paints": b"c\x1b[31m\nred\n.",
    "an empty stack": b"a.",
    "no mark": b"e.",
    "a text that is none": b"X\x01\x00\x00\x00\xff.",
    "a surrogate as bytes": b"c_codecs\nencode\nV\\ud800\nX\x06\x00\x00\x00latin1\x86R.",
}  # fmt: skip


@pytest.mark.parametrize("abuse", ABUSES)
def test_no_pickle_takes_the_machine(abuse, tmp_path, monkeypatch):
    monkeypatch.setattr(pickles, "MAX_MEMORY", 10 << 20)
    monkeypatch.setattr(pickles, "MAX_STEPS", 5000)
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02" + ABUSES[abuse])
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"batch is (damaged|refused): [ -~]*[^.]\.$"):
            pickles.read(path)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_the_limits_leave_room_for_official_files(tmp_path):
    # The numbers of instructions and bytes of a whole file, with an image of one pixel for each of its rows.
    count = 10_000
    content = python2(np.zeros((200, 3072), np.uint8), [0] * 200)
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    machine = pickles._Machine(content)
    machine.run()
    assert machine._memory * count / 200 < pickles.MAX_MEMORY / 4
    assert len(content) * count / 200 < pickles.MAX_BYTES / 1.9
    # Of a label one instruction, of a name of a file two or three.
    assert 5 * count < pickles.MAX_STEPS / 4


def test_a_file_that_is_far_too_large_is_not_even_opened(tmp_path):
    path = tmp_path / "data_batch_1"
    with path.open("wb") as file:
        file.truncate(pickles.MAX_BYTES + 1)
    with pytest.raises(InputError, match=r"data_batch_1 is refused: it has 67,108,865 bytes"):
        cifar10.read_pickled(path)


def is_read_or_refused(path):
    try:
        images, labels = cifar10.read_pickled(path)
    except InputError:
        return False
    assert (images.dtype, images.shape[1:]) == (torch.uint8, (3, 32, 32))
    assert len(images) == len(labels) > 0
    assert 0 <= int(labels.min()) <= int(labels.max()) <= 9
    return True


def test_whatever_the_damage_a_pickle_is_read_or_refused(tmp_path):
    rng = random.Random(0)
    wholes = [writer(*sample(count=2)) for writer in WRITERS.values()]
    path, num_read = tmp_path / "batch", 0
    for _ in range(300):
        path.write_bytes(damaged(rng.choice(wholes), rng))
        num_read += is_read_or_refused(path)
    # Most of the bytes are pixels.
    assert 25 < num_read < 275


def test_random_programs_are_refused(tmp_path):
    rng = random.Random(0)
    codes = [bytes([code]) for code in b"N\x88K\x01U\x01ac]ltae}dsu()\x85\x86\x87qhr\x94pgR\x93b.IL0\nVX\x8c\x80\x95"]
    pieces = [*codes, NUMPY, BYTES, b"U\x04data", b"cnumpy\ndtype\n", b"c_codecs\nencode\n", b"I1\n", b"p0\n", b"g0\n"]
    path = tmp_path / "batch"
    for _ in range(300):
        path.write_bytes(b"\x80\x02" + b"".join(rng.choices(pieces, k=rng.randint(1, 40))) + b".")
        assert not is_read_or_refused(path)
