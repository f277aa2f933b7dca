"""A second device on a machine without one: "second", whose memory and kernels are the CPU's.

Tensors of it and of the CPU do not mix, as those of an accelerator do not, so that whatever is made on a wrong device
fails. What makes the host wait for an accelerator is counted.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "second"
_WAITS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "unique")
"""Operations whose result the host must know."""
_MOVES = ("_to_copy", "copy_", "_copy_from")
"""Operations that may take tensors of both devices."""
_waits: list[str] = []


class SecondTensor(Tensor):
    """A tensor of the second device, around one of the CPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> SecondTensor:
        """Make the outside, which has no memory of its own."""
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation on the CPU."""
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        """Return the numbers, which torch does for its own class alone."""
        return self.to("cpu").tolist()

    def new_tensor(self, data: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return a tensor of numbers here, which torch makes for its own class alone."""
        return torch.tensor(data, dtype=self.dtype).to(NAME)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        """Show the numbers."""
        return f"SecondTensor({self.inner})"


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    name = func.overloadpacket.__name__
    if name not in _MOVES and not name.startswith("index"):
        strangers = [tensor for tensor in given if not isinstance(tensor, SecondTensor) and tensor.dim() > 0]
        if strangers and len(strangers) < len(given):
            raise RuntimeError(f"{name}: expected all tensors to be on one device, but there are {NAME} and cpu.")
    elif name.startswith("index") and isinstance(args[0], SecondTensor):
        values = [part for part in args[2:] if isinstance(part, Tensor) and part.dim() > 0]
        if any(not isinstance(part, SecondTensor) for part in values):
            raise RuntimeError(f"{name}: expected all tensors to be on one device, but there are {NAME} and cpu.")
    if name in _WAITS or (name == "_to_copy" and _device(kwargs) == "cpu"):
        _waits.append(name)
    is_here = _device(kwargs) == NAME or (_device(kwargs) is None and any(isinstance(t, SecondTensor) for t in given))
    inner_args, inner_kwargs = tree_map_only(SecondTensor, lambda tensor: tensor.inner, (args, kwargs))
    if _device(kwargs) is not None:
        inner_kwargs = {**inner_kwargs, "device": torch.device("cpu")}
    # Conjugates at once, as what is put off is not made up for below the level at which this runs.
    out = torch.conj_physical(inner_args[0]) if name == "_conj" else func(*inner_args, **inner_kwargs)
    if is_here:
        out = tree_map_only(Tensor, lambda tensor: SecondTensor(tensor), out)
    if isinstance(args[0] if args else None, SecondTensor) and name != "_conj":
        return return_and_correct_aliasing(func, args, kwargs, out) if is_here else out
    return out


def _device(kwargs: dict[str, Any]) -> str | None:
    device = kwargs.get("device")
    return None if device is None else torch.device(device).type


class _Module(_DummyBackendModule):
    """What torch asks of a device: one, whose random numbers are the CPU's."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: Any = 0) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = 0) -> None:
        torch.set_rng_state(state)

    @contextmanager
    def device(self, index: Any) -> Iterator[None]:
        yield


def _fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
    return _run(func, args, kwargs)


_library: list[Any] = []


def set_up() -> None:
    """Register the device, once."""
    if not _library:
        _setup_privateuseone_for_python_backend(rename=NAME, backend_module=_Module())
        library = torch.library.Library("_", "IMPL")
        library.fallback(_fallback, "PrivateUse1")
        # Torch makes these by resizing an empty tensor, which the outside of one does not notice.
        makers = torch.library.Library("aten", "IMPL")
        for name in ("eye", "eye.m", "arange", "arange.start", "arange.start_step", "linspace", "randperm"):
            packet, _, overload = name.partition(".")
            func = getattr(getattr(torch.ops.aten, packet), overload or "default")
            makers.impl(name, functools.partial(_fallback, func), "PrivateUse1")
        _library.append(makers)
        _library.append(library)


@contextmanager
def counted_waits() -> Iterator[list[str]]:
    """Yield a list that fills with the operations for which the host waits."""
    _waits.clear()
    yield _waits


def to_second(tree: Any) -> Any:
    """Return the tensors of a nested structure on the second device."""
    return tree_map(lambda leaf: leaf.to(NAME) if isinstance(leaf, Tensor) else leaf, tree)


def to_cpu(tree: Any) -> Any:
    """Return them on the CPU."""
    return tree_map(lambda leaf: leaf.to("cpu") if isinstance(leaf, Tensor) else leaf, tree)
