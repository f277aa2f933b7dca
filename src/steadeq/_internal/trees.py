"""States as matrices: nested structures of batched tensors seen as one (B, D) array.

A single contiguous tensor is packed by a view; several leaves cost the one copy that joins them. A leaf in a
channels-last memory format keeps its order in memory, so that convolutions in that format pack by a view too.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

_LEAF = "tensor"


class Shared:
    """Base of what all samples share: as an input it is a leaf, whatever it holds, and does not leave with samples."""


def _is_record(tree: Any) -> bool:
    # Tensors first: most of what is asked about is one, and looking for fields of a class is slow.
    if isinstance(tree, Tensor):
        return False
    return dataclasses.is_dataclass(tree) and not isinstance(tree, (type, Shared))


def _children(tree: Any) -> list[tuple[Any, Any]] | None:
    """List the children of a tree with their keys, in order, or return None for a leaf."""
    if isinstance(tree, (tuple, list)):
        return list(enumerate(tree))
    if isinstance(tree, dict):
        return list(tree.items())
    if _is_record(tree):
        return [(field.name, getattr(tree, field.name)) for field in dataclasses.fields(tree) if field.init]
    return None


def leaves(tree: Any) -> list[Any]:
    """List the leaves of nested tuples, lists, dicts and dataclasses, in order.

    Example:
        >>> leaves({"a": 1, "b": (2, [3])})
        [1, 2, 3]
    """
    children = _children(tree)
    return [tree] if children is None else [leaf for _, child in children for leaf in leaves(child)]


def tensors_of(leaf: Any) -> list[Tensor]:
    """List the tensors in a leaf: itself, those that samples share, or none."""
    if isinstance(leaf, Tensor):
        return [leaf]
    if not isinstance(leaf, Shared) or not dataclasses.is_dataclass(leaf):
        return []
    return [
        t for field in dataclasses.fields(leaf) for part in leaves(getattr(leaf, field.name)) for t in tensors_of(part)
    ]


def aligned_leaves(tree: Any, like: Any) -> list[Any]:
    """List the leaves of a tree in the order of another of the same structure, whose dicts may be ordered otherwise.

    Example:
        >>> aligned_leaves({"b": 2, "a": 1}, {"a": None, "b": None})
        [1, 2]
    """
    children = _children(like)
    if children is None:
        return [tree]
    part = functools.partial(getattr, tree) if _is_record(like) else tree.__getitem__
    return [leaf for key, child in children for leaf in aligned_leaves(part(key), child)]


def has_structure(tree: Any, like: Any) -> bool:
    """Return whether a tree has the structure of another; the order of dicts does not matter, nor names of tuples."""
    if isinstance(like, dict):
        is_alike = isinstance(tree, dict) and tree.keys() == like.keys()
        return is_alike and all(has_structure(tree[key], like[key]) for key in like)
    for kind in (tuple, list):
        if isinstance(like, kind):
            return isinstance(tree, kind) and len(tree) == len(like) and all(map(has_structure, tree, like))
    if _is_record(like):
        children = zip(_children(tree) or (), _children(like) or (), strict=False)
        return type(tree) is type(like) and all(has_structure(ours, theirs) for (_, ours), (_, theirs) in children)
    return _children(tree) is None


def rebuild(tree: Any, new_leaves: Iterator[Any]) -> Any:
    """Return a structure like `tree` with its leaves taken from `new_leaves`."""
    children = _children(tree)
    if children is None:
        return next(new_leaves)
    rebuilt = {key: rebuild(child, new_leaves) for key, child in children}
    if isinstance(tree, tuple):
        return type(tree)(*rebuilt.values()) if hasattr(tree, "_fields") else tuple(rebuilt.values())
    if isinstance(tree, list):
        return list(rebuilt.values())
    if isinstance(tree, dict):
        # Whatever kind of dict it is.
        twin = copy.copy(tree)
        twin.update(rebuilt)
        return twin
    return dataclasses.replace(tree, **rebuilt)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to every leaf."""
    return rebuild(tree, map(function, leaves(tree)))


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Apply a function to every tensor leaf; leave other leaves (None, flags) as they are."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def replace_tensors(tree: Any, new: dict[int, Tensor]) -> Any:
    """Return a tree in which some tensors, given by id, are replaced; also inside `Shared` inputs."""

    def swap(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return new.get(id(leaf), leaf)
        if not isinstance(leaf, Shared) or not dataclasses.is_dataclass(leaf):
            return leaf
        fields = (field.name for field in dataclasses.fields(leaf) if field.init)
        return dataclasses.replace(leaf, **{name: replace_tensors(getattr(leaf, name), new) for name in fields})

    return map_leaves(swap, tree)


def describe(tree: Any) -> str:
    """Spell out a structure for an error message, such as `(tensor, {'a': tensor})`."""
    if isinstance(tree, Tensor):
        return _LEAF
    if isinstance(tree, tuple):
        return "(" + ", ".join(map(describe, tree)) + ("," if len(tree) == 1 else "") + ")"
    if isinstance(tree, list):
        return "[" + ", ".join(map(describe, tree)) + "]"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key!r}: {describe(child)}" for key, child in tree.items()) + "}"
    if _is_record(tree):
        return f"{type(tree).__name__}({', '.join(f'{key}={describe(child)}' for key, child in _children(tree) or ())})"
    return type(tree).__name__


def check_inputs(inputs: tuple[Any, ...], layout: Layout) -> None:
    """Refuse inputs that do not carry the batch along dim 0, if there is one.

    Raises:
        ValueError: A tensor's first dimension is not the batch size of the state.
    """
    if layout.batch_dims == 0:
        return
    for position, tree in enumerate(inputs):
        for leaf in leaves(tree):
            if isinstance(leaf, Tensor) and (leaf.dim() == 0 or leaf.shape[0] != layout.batch_size):
                raise ValueError(
                    f"inputs[{position}] has shape {tuple(leaf.shape)}, but dim 0 of every input must be the batch of "
                    f"the state ({layout.batch_size}). Tensors that the samples share belong in the module or in a "
                    "closure. If the state has no batch dimension (a graph, for example), pass batch_dims=0."
                )


def select_rows(inputs: tuple[Any, ...], rows: Tensor) -> tuple[Any, ...]:
    """Keep the given samples of every input tensor."""
    return map_tensors(lambda leaf: leaf.index_select(0, rows), inputs)


_MUST_AGREE = {
    1: "dim 0 of every leaf must be the same batch",
    2: "dims 0 and 1 of every leaf must be the same batch and tokens, as causal=True solves token by token",
}


class Layout:
    """How a state lies in a (B, D) matrix.

    The matrix has at least single precision, so that half-precision states are accumulated in float32.

    Args:
        z0: The state whose structure, shapes, dtypes and device are taken.
        autocast_dtype: The dtype in which f computes under autocast, or None without it.
        batch_dims: Number of leading dims that tell rows apart: 1 for a batch of samples, 0 where the whole state is
            one row, and 2 where every token of every sample is one.

    Raises:
        TypeError: A leaf is not a floating-point tensor.
        ValueError: No leaves, an empty batch, or leaves that disagree on batch or device.

    Example:
        >>> z = (torch.ones(2, 3), {"a": torch.zeros(2, 4, 5)})
        >>> layout = Layout(z)
        >>> layout.pack(z).shape
        torch.Size([2, 23])
        >>> layout.unpack(layout.pack(z))[1]["a"].shape
        torch.Size([2, 4, 5])
    """

    def __init__(self, z0: Any, *, autocast_dtype: torch.dtype | None = None, batch_dims: int = 1) -> None:
        tensors = leaves(z0)
        if not tensors:
            raise ValueError(
                f"z0 has no tensors: {describe(z0)}; pass a tensor or a nested tuple, list, dict or dataclass of them."
            )
        for tensor in tensors:
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                found = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
                raise TypeError(f"z0 holds a leaf of type {found}; every leaf must be a floating-point tensor.")
        first = tensors[0]
        for tensor in tensors:
            if tensor.dim() < batch_dims or tensor.shape[:batch_dims] != first.shape[:batch_dims]:
                shapes = [tuple(t.shape) for t in tensors]
                raise ValueError(f"z0 has leaves of shapes {shapes}; {_MUST_AGREE[batch_dims]}.")
            if tensor.device != first.device:
                devices = [str(t.device) for t in tensors]
                raise ValueError(f"z0 has leaves on {devices}; all must be on one device.")
        if any(tensor.numel() == 0 for tensor in tensors):
            shapes = [tuple(t.shape) for t in tensors]
            raise ValueError(
                f"z0 has an empty batch or an empty leaf: shapes {shapes}; at least one element is needed."
            )
        self.tree = map_leaves(lambda _: None, z0)
        self._description = describe(z0)
        self.device = first.device
        self.batch_dims = batch_dims
        self.batch_size = math.prod(first.shape[:batch_dims])
        """Number of rows."""
        self.num_tokens = first.shape[1] if batch_dims == 2 else 1
        """Number of rows that are tokens of one sample."""
        self.shapes = [tuple(tensor.shape[batch_dims:]) for tensor in tensors]
        self.dtypes = [tensor.dtype for tensor in tensors]
        self.sizes = [tensor.numel() // self.batch_size for tensor in tensors]
        self.dim = sum(self.sizes)
        self.dtype = torch.float32
        for dtype in self.dtypes:
            self.dtype = torch.promote_types(self.dtype, dtype)
        self.autocast_dtype = autocast_dtype
        self._orders = [_memory_order(tensor) if batch_dims < 2 else None for tensor in tensors]
        self._is_single = isinstance(z0, Tensor)
        self._is_plain = self._is_single and self._orders[0] is None and self.dtypes[0] == self.dtype
        self._is_matrix = self._is_plain and first.dim() == 2 and batch_dims == 1
        self.rounds = any(dtype != self.dtype for dtype in self.dtypes)
        """Whether unpacking rounds, because some leaf is narrower than the matrix."""

    @property
    def signature(self) -> tuple[Any, ...]:
        """All that is the same for states that lie in matrices in the same way, whatever their batch size."""
        orders = tuple(None if order is None else tuple(order) for order in self._orders)
        kinds = tuple(self.shapes), tuple(self.dtypes), orders, self.batch_dims, self.num_tokens
        return self._description, *kinds, self.device, self.autocast_dtype

    @property
    def eps(self) -> float:
        """Machine epsilon of the narrowest dtype that f computes in."""
        dtypes = self.dtypes if self.autocast_dtype is None else [*self.dtypes, self.autocast_dtype]
        return max(torch.finfo(dtype).eps for dtype in dtypes)

    def by_token(self) -> Layout:
        """Return the layout of the same states with a row for each token of each sample.

        Raises:
            ValueError: Some leaf has no dim 1, or leaves disagree on it.
        """
        row = torch.zeros((), dtype=self.dtype, device=self.device)
        state = self.assemble(tuple(row.expand(self.batch_size, size) for size in self.sizes))
        return Layout(state, autocast_dtype=self.autocast_dtype, batch_dims=2)

    def pack(self, tree: Any) -> Tensor:
        """Return the (B, D) matrix of a state."""
        if self._is_matrix:
            return tree
        if self._is_plain:
            return tree.reshape(-1, self.dim)
        parts = []
        for leaf, order, size in zip(aligned_leaves(tree, self.tree), self._orders, self.sizes, strict=True):
            flat = leaf if order is None else leaf.permute(order)
            parts.append(flat.reshape(-1, size).to(self.dtype))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def unpack(self, matrix: Tensor) -> Any:
        """Return the state that a matrix (of any number of rows) stands for, by views where dtypes allow."""
        return self.assemble(self.split(matrix))

    def split(self, matrix: Tensor) -> tuple[Tensor, ...]:
        """Return the columns of each leaf."""
        return (matrix,) if len(self.sizes) == 1 else matrix.split(self.sizes, dim=1)

    def assemble(self, pieces: tuple[Tensor, ...]) -> Any:
        """Return the state whose leaves have the given columns."""
        if self._is_matrix:
            return pieces[0]
        rows = pieces[0].shape[0]
        if self._is_plain:
            return pieces[0].reshape(self._full(rows, self.shapes[0]))
        tensors = []
        for piece, shape, dtype, order in zip(pieces, self.shapes, self.dtypes, self._orders, strict=True):
            full = self._full(rows, shape)
            if order is None:
                leaf = piece.reshape(full)
            else:
                inverse = sorted(range(len(order)), key=order.__getitem__)
                leaf = piece.reshape([full[axis] for axis in order]).permute(inverse)
            tensors.append(leaf.to(dtype))
        return tensors[0] if self._is_single else rebuild(self.tree, iter(tensors))

    def _full(self, rows: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the whole shape of a leaf for a number of rows."""
        if self.batch_dims == 1:
            return rows, *shape
        return shape if self.batch_dims == 0 else (rows // self.num_tokens, self.num_tokens, *shape)

    def pack_image(self, image: Any, rows: int) -> Tensor:
        """Pack what f returned for a batch of `rows` samples, after checking it against the state.

        Under autocast a cell may return a narrower dtype than the state's; it is cast back. Anything else that
        differs is refused.

        Raises:
            ValueError: Structure, shape, dtype or device differ from the state's.
        """
        if self._is_single and isinstance(image, Tensor):
            self._check_leaf(image, 0, rows)
        else:
            if not has_structure(image, self.tree):
                hint = ""
                if isinstance(image, tuple) and image and has_structure(image[0], self.tree):
                    hint = (
                        " Outputs besides the state are not supported: compute them from the equilibrium after the "
                        "solve, which also gives them the whole gradient."
                    )
                raise ValueError(
                    f"f returned {describe(image)} where the state is {self._description}; it must return the same "
                    f"structure.{hint}"
                )
            for position, leaf in enumerate(aligned_leaves(image, self.tree)):
                self._check_leaf(leaf, position, rows)
        return self.pack(image if not self._is_plain or image.dtype == self.dtype else image.to(self.dtype))

    def _check_leaf(self, leaf: Any, position: int, rows: int) -> None:
        expected, dtype = self._full(rows, self.shapes[position]), self.dtypes[position]
        if isinstance(leaf, Tensor) and leaf.shape == expected and leaf.dtype == dtype and leaf.device == self.device:
            return
        where = (
            "f returned a tensor"
            if self._is_single
            else f"f returned, at leaf {position} of {self._description}, a tensor"
        )
        if not isinstance(leaf, Tensor):
            raise ValueError(f"f returned {describe(leaf)} where the state is {self._description}.")
        if leaf.shape != expected:
            hint = ""
            if rows != self.batch_size and leaf.dim() and leaf.shape[0] == self.batch_size:
                hint = (
                    " Finished samples have left the batch, and f closes over a tensor of the whole batch: "
                    "pass it as an input; if the rows of the state see each other, pass batch_dims=0."
                )
            raise ValueError(f"{where} of shape {tuple(leaf.shape)} where the state has {expected}.{hint}")
        if leaf.device != self.device:
            raise ValueError(f"{where} on {leaf.device} where the state is on {self.device}.")
        if leaf.dtype != dtype and not (leaf.is_floating_point() and self.autocast_dtype is not None):
            raise ValueError(f"{where} of dtype {leaf.dtype} where the state has {dtype}.")


def _memory_order(tensor: Tensor) -> list[int] | None:
    """Return the permutation that makes a channels-last leaf contiguous, or None for every other leaf."""
    if tensor.is_contiguous():
        return None
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return [0, 2, 3, 1]
    if tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        return [0, 2, 3, 4, 1]
    return None
