"""Pickled dictionaries with arrays of bytes, read without running what a pickle may ask for.

A pickle is a program for a machine with a stack. The machine of Python can call any function of any module, and a few
bytes make it take all memory or nest tuples until the interpreter crashes. The one here knows the instructions that
files of data need. With them a pickle can make texts, numbers, lists and tuples of these, arrays of bytes, and a
dictionary of all that; it can call four functions, none of which is what its name says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..errors import InputError
from ..files import one_line, read_plain

MAX_BYTES = 1 << 26
"""The largest file that is read, twice as large as one of CIFAR-10."""
MAX_MEMORY = 5 * MAX_BYTES
"""The most bytes that texts and arrays of a file may take up; arrays of old files are texts before they are arrays."""
MAX_STEPS = 250_000
"""The most instructions of a file; those of CIFAR-10 have about 50,000."""
_MAX_LINE = 100
"""The most characters of names and of numbers that are written out."""
_MAX_TUPLE = 16


def read(path: Path) -> dict[str, Any]:
    """Return a pickled dictionary, with uint8 tensors instead of NumPy's arrays of bytes.

    Files of Python 2 and 3 and of all versions of NumPy will do, but for those that Python 2 wrote with protocol 0.
    Keys become str, and strings of Python 2 bytes.
    """
    try:
        content = _Machine(read_plain(path, max_bytes=MAX_BYTES)).run()
    except _RefusedError as error:
        raise InputError(f"{path} is refused: {error}.") from None
    except _DamagedError as error:
        raise InputError(f"{path} is damaged: {error}.") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is damaged: it does not hold a dictionary.")
    return {
        key.decode("latin1") if isinstance(key, bytes) else key: _unwrap(value, path) for key, value in content.items()
    }


class _RefusedError(Exception):
    """A pickle asks for what no file of data needs."""


class _DamagedError(Exception):
    """A pickle is no program of this machine."""


class _Function:
    """What stands in for something of another module, which is only ever called."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call


class _Type:
    """What numpy.dtype makes: bytes, as all others are refused."""


class _Array:
    """What numpy.ndarray makes: empty at first, with its content set as its state or from a buffer."""

    tensor: Tensor | None = None

    def fill(self, content: Any, kind: Any, shape: Any, order: Any) -> _Array:
        if not isinstance(kind, _Type) or not isinstance(content, bytes):
            raise _DamagedError("it has an array of something other than bytes")
        if not isinstance(shape, tuple) or not all(type(size) is int and 0 <= size < 2**31 for size in shape):
            raise _DamagedError("it has an array without a shape")
        if not content or math.prod(shape) != len(content):
            raise _DamagedError(f"it has {len(content)} bytes for an array of shape {shape}")
        flat = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if order == "F":
            self.tensor = flat.reshape(shape[::-1]).permute(*reversed(range(len(shape)))).contiguous()
        else:
            self.tensor = flat.reshape(shape)
        return self


class _Machine:
    """Runs a pickle step by step; what takes memory is counted before it is made."""

    def __init__(self, program: bytes) -> None:
        self._program, self._place = program, 0
        self._stack: list[Any] = []
        # The stacks that were left at a mark, to go on with what follows the mark in an empty one.
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._memory = 0

    def run(self) -> Any:
        """Return what is left on the stack in the end."""
        for _ in range(MAX_STEPS):
            code = self._take(1)
            if code == b".":
                return self._pop()
            self._step(code)
        raise _RefusedError(f"it has more than {MAX_STEPS:,} instructions")

    def _step(self, code: bytes) -> None:
        match code:
            case b"\x80" | b"\x95":  # the protocol, the length of a frame
                self._take(1 if code == b"\x80" else 8)
            case b"(":
                self._below.append(self._stack)
                self._stack = []
            # Constants
            case b"N" | b"\x88" | b"\x89":
                self._stack.append({b"N": None, b"\x88": True, b"\x89": False}[code])
            case b"K" | b"M":
                self._stack.append(self._number(1 if code == b"K" else 2))
            case b"J":
                self._stack.append(int.from_bytes(self._take(4), "little", signed=True))
            case b"\x8a":
                self._stack.append(int.from_bytes(self._take(self._number(1)), "little", signed=True))
            case b"I" | b"L":
                self._stack.append(self._written_out())
            case b"U" | b"C" | b"T" | b"B" | b"\x8e" | b"\x96":
                content = self._counted({b"U": 1, b"C": 1, b"T": 4, b"B": 4}.get(code, 8))
                self._spend(len(content))
                self._stack.append(content)
            case b"\x8c" | b"X":
                self._stack.append(self._text(self._counted(1 if code == b"\x8c" else 4), "utf-8"))
            case b"V":
                self._stack.append(self._text(self._line(MAX_BYTES), "raw-unicode-escape"))
            # Containers
            case b")" | b"\x85" | b"\x86" | b"\x87":
                count = {b")": 0, b"\x85": 1, b"\x86": 2, b"\x87": 3}[code]
                items = [self._pop() for _ in range(count)]
                self._stack.append(_make_tuple(items[::-1]))
            case b"t":
                items = self._pop_mark()
                self._stack.append(_make_tuple(items))
            case b"]" | b"l":
                items = self._pop_mark() if code == b"l" else []
                self._stack.append([])
                self._extend(items)
            case b"a":
                self._extend([self._pop()])
            case b"e":
                self._extend(self._pop_mark())
            case b"}" | b"d":
                items = self._pop_mark() if code == b"d" else []
                self._stack.append({})
                self._update(items)
            case b"s":
                value, key = self._pop(), self._pop()
                self._update([key, value])
            case b"u":
                self._update(self._pop_mark())
            # What was made before
            case b"\x94":
                self._memo[len(self._memo)] = self._top()
            case b"q" | b"r":
                self._memo[self._number(1 if code == b"q" else 4)] = self._top()
            case b"p":
                self._memo[self._written_out()] = self._top()
            case b"h" | b"j":
                self._recall(self._number(1 if code == b"h" else 4))
            case b"g":
                self._recall(self._written_out())
            # Functions
            case b"c":
                module, name = (self._text(self._line(_MAX_LINE), "utf-8") for _ in range(2))
                self._find(module, name)
            case b"\x93":
                name, module = self._pop(), self._pop()
                self._find(module, name)
            case b"R":
                arguments, function = self._pop(), self._pop()
                if not isinstance(function, _Function) or not isinstance(arguments, tuple):
                    raise _DamagedError("it calls something that is not a function")
                self._stack.append(self._call(function.call, arguments))
            case b"b":
                self._set_state(self._pop())
            case _:
                raise _DamagedError(f"it has an unsupported instruction (0x{code.hex()})")

    # What the program holds

    def _take(self, count: int) -> bytes:
        end = self._place + count
        if end > len(self._program):
            raise _DamagedError("it ends too early")
        taken = self._program[self._place : end]
        self._place = end
        return taken

    def _number(self, num_bytes: int) -> int:
        return int.from_bytes(self._take(num_bytes), "little")

    def _counted(self, num_bytes: int) -> bytes:
        return self._take(self._number(num_bytes))

    def _line(self, limit: int) -> bytes:
        end = self._program.find(b"\n", self._place, self._place + limit + 1)
        if end < 0:
            raise _DamagedError("it has a line without an end")
        return self._take(end + 1 - self._place)[:-1]

    def _written_out(self) -> int:
        line = self._line(_MAX_LINE)
        # Truth is written as 00 and 01.
        if line in (b"00", b"01"):
            return line == b"01"
        try:
            return int(line.removesuffix(b"L"))
        except ValueError:
            raise _DamagedError("it has an invalid number") from None

    def _text(self, content: bytes, encoding: str) -> str:
        # One character that is far from ASCII makes all others take four bytes.
        self._spend(4 * len(content))
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            raise _DamagedError("it has an invalid text") from None

    # What is on the stack

    def _top(self) -> Any:
        if not self._stack:
            raise _DamagedError("it refers to something that does not exist")
        return self._stack[-1]

    def _pop(self) -> Any:
        top = self._top()
        self._stack.pop()
        return top

    def _pop_mark(self) -> list[Any]:
        if not self._below:
            raise _DamagedError("it refers to something that does not exist")
        items, self._stack = self._stack, self._below.pop()
        return items

    def _recall(self, place: int) -> None:
        if place not in self._memo:
            raise _DamagedError("it refers to something that does not exist")
        self._stack.append(self._memo[place])

    def _extend(self, items: list[Any]) -> None:
        target = self._top()
        if not isinstance(target, list):
            raise _DamagedError("it extends something that is not a list")
        if not all(map(_is_simple, items)):
            raise _RefusedError("it has lists of something other than texts and numbers")
        target.extend(items)

    def _update(self, items: list[Any]) -> None:
        target = self._top()
        if not isinstance(target, dict) or len(items) % 2:
            raise _DamagedError("it extends something that is not a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # A key is hashed, and that of nested tuples can take for ever.
            if not isinstance(key, (bytes, str)) or not (_is_simple(value) or isinstance(value, (list, _Array))):
                raise _RefusedError("it has dictionaries of something other than texts, numbers, lists and arrays")
            target[key] = value

    # What it can call

    def _find(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise _DamagedError("it asks for something without a name")
        if (module, name) not in _FUNCTIONS:
            raise _RefusedError(f"it asks for {one_line(f'{module}.{name}')}, which is not allowed in a data file")
        self._stack.append(_Function(_FUNCTIONS[module, name]))

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        try:
            return function(self, *arguments)
        except TypeError:
            raise _DamagedError("it calls a function with the wrong arguments") from None

    def _encode(self, text: Any, encoding: Any) -> bytes:
        # How protocols below 3 write bytes.
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise _DamagedError("it has bytes in an unknown encoding")
        self._spend(len(text))
        try:
            return text.encode("latin1")
        except UnicodeEncodeError:
            raise _DamagedError("it has bytes in an unknown encoding") from None

    def _refuse_call(self, *_: Any) -> NoReturn:
        # The class is only ever an argument of _reconstruct.
        raise _DamagedError("it makes an array in an unknown way")

    def _make_type(self, name: Any, *_: Any) -> _Type:
        if not isinstance(name, (bytes, str)) or name not in ("u1", b"u1"):
            kind = repr(name)[:20] if isinstance(name, (bytes, str)) else "something"
            raise _DamagedError(f"it has an array of {kind} instead of bytes")
        return _Type()

    def _make_array(self, *_: Any) -> _Array:
        return _Array()

    def _from_buffer(self, content: Any, kind: Any, shape: Any, order: Any) -> _Array:
        return self._fill(_Array(), content, kind, shape, order)

    def _set_state(self, state: Any) -> None:
        match self._top(), state:
            case _Type(), tuple():
                pass  # Byte order and alignment, of which bytes have neither.
            case _Array() as array, (_, shape, kind, is_fortran, content):
                self._fill(array, content, kind, shape, "F" if is_fortran else "C")
            case _:
                raise _DamagedError("it sets the state of something that has none")

    def _fill(self, array: _Array, content: Any, kind: Any, shape: Any, order: Any) -> _Array:
        if isinstance(content, bytes):
            # A copy, and another one if its columns come first.
            self._spend(2 * len(content) if order == "F" else len(content))
        return array.fill(content, kind, shape, order)

    def _spend(self, num_bytes: int) -> None:
        self._memory += num_bytes
        if self._memory > MAX_MEMORY:
            raise _RefusedError(f"it takes more than {MAX_MEMORY:,} bytes of memory")


_FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _Machine._refuse_call,
    ("numpy", "dtype"): _Machine._make_type,
    ("_codecs", "encode"): _Machine._encode,
    # NumPy 2 moved its core.
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Machine._make_array for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _Machine._from_buffer for core in ("core", "_core")},
}
"""What a pickle can call, by the names that it knows it by."""


def _make_tuple(items: list[Any]) -> tuple[Any, ...]:
    if len(items) > _MAX_TUPLE:
        raise _RefusedError(f"it has tuples of more than {_MAX_TUPLE} parts")
    for item in items:
        # The shape of an array is a tuple in that of its state, and nothing is deeper.
        is_flat = isinstance(item, tuple) and all(map(_is_simple, item))
        if not (is_flat or _is_simple(item) or isinstance(item, (_Function, _Type))):
            raise _RefusedError("it is nested too deeply")
    return tuple(items)


def _is_simple(value: Any) -> bool:
    return value is None or isinstance(value, (bytes, str, int))


def _unwrap(value: Any, path: Path) -> Any:
    if not isinstance(value, _Array):
        return value
    if value.tensor is None:
        raise InputError(f"{path} is damaged: it has an array without content.")
    return value.tensor
