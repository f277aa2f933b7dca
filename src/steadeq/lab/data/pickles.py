"""Pickled dictionaries with arrays of bytes, read without NumPy and without running what a pickle may ask for.

A pickle is a program that may call any function of any module. Here it can call four stand-ins and nothing else.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError


def read(path: Path) -> dict[str, Any]:
    """Return a pickled dictionary, with uint8 tensors in the place of NumPy's arrays of bytes.

    Files of Python 2 and 3 and of all versions of NumPy will do; keys become str, and strings of Python 2 bytes.
    """
    try:
        with path.open("rb") as file:
            content = _Unpickler(file, encoding="bytes").load()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except _RefusedError as error:
        raise InputError(f"{path} is refused: {error}") from None
    except Exception as error:  # Damaged pickles raise nearly everything: the documentation of pickle names no limit.
        reason = " ".join(str(error).split()).removesuffix(".") or type(error).__name__
        raise InputError(f"{path} is damaged: {reason}.") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is damaged: it holds no dictionary.")
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): _unwrap(value, path)
        for key, value in content.items()
    }


class _RefusedError(pickle.UnpicklingError):
    """A pickle asks for what no file of data needs."""


class _Unpickler(pickle.Unpickler):
    """Knows a few globals, none of which is what its name says."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise _RefusedError(f"it asks for {module}.{name}, which no file of data needs.")
        return _StandIn(_STAND_INS[module, name])


class _StandIn:
    """A function that a pickle can call and not change."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        # Without this method, a pickle could set attributes.
        raise pickle.UnpicklingError("it changes what it should call")


class _Type:
    """What numpy.dtype makes."""

    def __init__(self, name: str | bytes, *_: Any) -> None:
        if name not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"it has an array of {name!r} instead of bytes")

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and alignment: bytes have neither."""


class _Array:
    """What numpy.ndarray makes: empty at first, with its content set as its state or from a buffer."""

    tensor: Tensor | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, is_fortran, content = state
        self.fill(content, kind, shape, "F" if is_fortran else "C")

    def fill(self, content: bytes, kind: Any, shape: tuple[int, ...], order: str) -> _Array:
        if not isinstance(kind, _Type) or math.prod(shape) != len(content):
            raise pickle.UnpicklingError(f"it has {len(content)} bytes for an array of shape {shape}")
        flat = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if order == "F":
            self.tensor = flat.reshape(shape[::-1]).permute(*reversed(range(len(shape)))).contiguous()
        else:
            self.tensor = flat.reshape(shape)
        return self


def _encode(text: str, encoding: str) -> bytes:
    # How protocols below 3 write bytes.
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"it has bytes in the encoding {encoding!r}")
    return text.encode("latin1")


def _refuse_call(*_: Any) -> None:
    # The class is only ever an argument of _reconstruct.
    raise pickle.UnpicklingError("it makes an array in an unknown way")


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _refuse_call,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
    # NumPy 2 moved its core.
    **{(f"numpy.{core}.multiarray", "_reconstruct"): lambda *_: _Array() for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): lambda *buffer: _Array().fill(*buffer) for core in ("core", "_core")},
}


def _unwrap(value: Any, path: Path) -> Any:
    if not isinstance(value, _Array):
        return value
    if value.tensor is None:
        raise InputError(f"{path} is damaged: it has an array without content.")
    return value.tensor
