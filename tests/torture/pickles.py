"""Pickles that are up to something, for the reader of CIFAR-10 and for checkpoints: nothing of them is executed."""

import hashlib
import io
import json
import pickle
import pickletools
import struct
import zipfile
from pathlib import Path
from random import Random

import numpy as np
from torture import subjects
from torture.damages import look, resume
from torture.process import call, command, told

MAX_MB, MAX_SECONDS = 500, 10
CANARY = "canary"
EVIL = (
    *(("os", "system"), ("posix", "system"), ("builtins", "eval"), ("builtins", "exec"), ("subprocess", "check_call")),
    *(("builtins", "getattr"), ("builtins", "__import__"), ("pathlib", "Path.touch"), ("torch", "load")),
    *(("numpy", "load"), ("importlib", "import_module"), ("torch.hub", "load"), ("runpy", "run_path")),
    ("steadeq.lab.recipes", "load_recipe"),
)


def attempt_cifar(draw: Random, folder: Path) -> None:
    """Read a hostile pickle as a file of CIFAR-10."""
    path = folder / "data_batch_1"
    make = draw.choice((_calls, _deep, _large, _doubled, _program, _program, _mutant, _mutant))
    path.write_bytes(make(draw, folder))
    outcome = call(_read_cifar, path, folder=folder)
    outcome.check(0, 2, max_seconds=MAX_SECONDS, max_mb=MAX_MB)
    assert not (folder / CANARY).exists(), "it was executed"


def attempt_checkpoint(draw: Random, folder: Path) -> None:
    """Use a run whose checkpoints hold a hostile pickle, with checksums that fit."""
    path = subjects.copy_of(subjects.stopped("plain"), folder)
    make = draw.choice((_calls, _calls, _deep, _large, _doubled, _program, _types))
    content = make(draw, folder)
    if make is not _types:
        content = _zipped(content, draw)
    for state in path.glob("checkpoints/step-*/state.pt"):
        state.write_bytes(content)
        checksums = state.with_name("checksums.json")
        digest = hashlib.sha256(content).hexdigest()
        checksums.write_text(json.dumps({**json.loads(checksums.read_text()), "state.pt": digest}))
    outcome = resume(path) if draw.random() < 0.5 else look("evaluate", path)
    outcome.check(0, 1, 2, max_seconds=MAX_SECONDS, max_mb=MAX_MB)
    assert not (folder / CANARY).exists(), "it was executed"


def attempt_official(draw: Random, folder: Path) -> None:
    """Convert a hostile pickle as an official checkpoint."""
    make = draw.choice((_calls, _calls, _deep, _large, _doubled, _program, _types))
    content = make(draw, folder)
    (folder / "official.pth").write_bytes(content if make is _types else _zipped(content, draw))
    arguments = ("convert", "official.pth", "--out", "model")
    outcome = command(*arguments, folder=folder, environment=subjects.environment(folder))
    outcome.check(2, max_seconds=MAX_SECONDS, max_mb=MAX_MB)
    assert not (folder / CANARY).exists(), "it was executed"
    assert not (folder / "model").exists(), "a part of it was left behind"


def _read_cifar(path: Path) -> int:
    from steadeq.lab.data import cifar10

    return told(cifar10.read_pickled, path)


# What the pickles do


def _calls(draw: Random, folder: Path) -> bytes:
    """Call a function of another module, in one of the ways that pickles have."""
    module, name = draw.choice(EVIL)
    argument = f"open({str(folder / CANARY)!r}, 'w')" if name in ("eval", "exec") else f"touch {folder / CANARY}"
    value = _text(argument)
    plain = f"c{module}\n{name}\n".encode()
    ways = (
        plain + value + b"\x85R.",
        _text(module) + _text(name) + b"\x93" + value + b"\x85R.",
        b"(" + value + f"i{module}\n{name}\n".encode() + b".",
        b"(" + plain + value + b"o.",
        plain + value + b"\x85\x81.",
        plain + value + b"\x85}\x92.",
        b"}" + _text("data") + plain + value + b"\x85Rs.",
        b"\x82\x01.",
        b"cnumpy\ndtype\n" + _text("u1") + b"\x85R}" + _text("__class__") + plain + b"sb.",
    )
    return b"\x80\x04" + draw.choice(ways)


def _deep(draw: Random, folder: Path) -> bytes:
    """Nest containers deeper than any stack."""
    depth = draw.choice((10_000, 100_000, 1_000_000))
    opening, closing = draw.choice(((b"N", b"\x85"), (b"", b"]"), (b"N", b"\x86"), (b"(", b"t"), (b"N", b"\x91")))
    if closing == b"]":
        return b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."
    if closing == b"\x86":
        return b"\x80\x02N" + b"N\x86" * depth + b"."
    if closing == b"t":
        return b"\x80\x02" + b"(" * depth + b"t" * depth + b"."
    if closing == b"\x91":
        return b"\x80\x04" + b"(" * depth + b"\x91" * depth + b"."
    return b"\x80\x02" + opening + closing * depth + b"."


def _large(draw: Random, folder: Path) -> bytes:
    """Announce more than there is, or ask for much with few bytes."""
    size = draw.choice((1 << 28, (1 << 31) - 1, 1 << 31, (1 << 32) - 1))
    wide = struct.pack("<Q", draw.choice((1 << 33, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)))
    small = struct.pack("<I", size)
    bodies = (
        *(b"T" + small, b"B" + small, b"X" + small, b"\x8b" + small, b"\x8e" + wide, b"\x8d" + wide, b"\x96" + wide),
        *(b"\x95" + wide, b"Nr" + small, b"j" + small, b"Np%d\n" % size, b"I" + b"9" * 5_000_000 + b"\n"),
        b"L" + b"9" * 1_000_000 + b"L\n",
        b"\x8b" + struct.pack("<i", 20_000_000) + b"\x7f" * 20_000_000,
        b"cbuiltins\nbytearray\n\x8a\x05" + (1 << 33).to_bytes(5, "little") + b"\x85R",
        b"ccollections\nCounter\n)R",
        b"]" + b"N" * 20_000_000 + b"e",
    )
    return b"\x80\x04" + draw.choice(bodies) + b"."


def _doubled(draw: Random, folder: Path) -> bytes:
    """Use a large thing again and again, so that little becomes much."""
    if draw.random() < 0.5:
        # Lists of lists: two to the power of their number, for who looks into each.
        lines = b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(60))
        return b"\x80\x02(]q\x00" + lines + b"l."
    text = b"X" + struct.pack("<I", 4_000_000) + b"a" * 4_000_000 + b"q\x00"
    encode = b"c_codecs\nencode\nh\x00" + _text("latin1") + b"\x86R"
    return b"\x80\x02(" + text + encode * 400 + b"l."


def _program(draw: Random, folder: Path) -> bytes:
    """Do anything at all."""
    body = bytearray()
    for _ in range(draw.randint(1, 60)):
        op = draw.choice(pickletools.opcodes)
        body += op.code.encode("latin1")
        if op.arg is not None:
            n = op.arg.n
            if n >= 0:
                body += draw.randbytes(n)
            elif n == pickletools.UP_TO_NEWLINE:
                body += draw.choice((b"0\n", b"numpy\nndarray\n", b"os\nsystem\n", b"1\n", b"-1\n", b"1.5\n", b"'a'\n"))
            else:
                size = draw.choice((0, 1, 3, 100))
                body += size.to_bytes({-2: 1, -3: 4, -4: 4, -5: 8}.get(n, 1), "little") + draw.randbytes(
                    draw.choice((0, size))
                )
    return b"\x80\x04" + bytes(body) + b"."


def _mutant(draw: Random, folder: Path) -> bytes:
    """Change some bytes of a good file."""
    images = np.zeros((2, 3072), np.uint8)
    content = bytearray(pickle.dumps({"data": images, "labels": [1, 2]}, protocol=draw.randint(0, 5)))
    for _ in range(draw.randint(1, 8)):
        # Most of the file are pixels, which any byte will do for.
        place = draw.choice((draw.randrange(200), draw.randrange(len(content)), len(content) - 1 - draw.randrange(40)))
        content[place] = draw.randrange(256)
    return bytes(content)


def _types(draw: Random, folder: Path) -> bytes:
    """Save what torch may load, and no run ever saved."""
    import torch

    state = draw.choice(
        (
            None, 1, "state", [], {}, {"step": "six"}, {"step": 6}, {"step": -1, "identity": 1}, {"step": 2**70},
            {"step": 6, "identity": {}}, {"step": 6, "identity": {"config": 1, "data": 2, "vocabulary": 3}},
            {"step": torch.zeros(()), "identity": []}, {"step": float("nan")}, {1: 2}, torch.zeros(3), (1, 2),
            {"step": 6, "identity": {"config": {}, "data": {}, "vocabulary": None}, "optimizer": []},
            {"step": 6, "identity": {"config": [], "data": [], "vocabulary": []}, "window": {"a": 1}},
        )
    )  # fmt: skip
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _zipped(program: bytes, draw: Random) -> bytes:
    """Return the pickle as torch saves it, or as the older format has it, or in a bomb."""
    way = draw.random()
    if way < 0.2:
        return program
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if way < 0.5 else zipfile.ZIP_STORED) as file:
        file.writestr("state/data.pkl", program)
        file.writestr("state/version", "3\n")
        file.writestr("state/byteorder", "little")
        if way < 0.4:
            file.writestr("state/data/0", bytes(800_000_000))
    return buffer.getvalue()


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
