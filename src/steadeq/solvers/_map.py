"""The map of a solve, evaluated on the rows that are still running.

What a solve takes for granted of a map is checked here: that it leaves the state alone, that it does not write over an
earlier image, and that what is left of a batch is mapped as before when finished samples leave it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._internal.independence import COUPLED
from .._internal.masks import MaskError
from .._internal.trees import Layout, leaves, select_rows
from .._internal.unsupported import is_transformed, refuse_vmap
from ._window import to_host


def evaluate(
    f: Callable[..., Any], layout: Layout, z: Tensor, inputs: Any, scales: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Return the points as f sees them (rounded to the state's dtypes) and their images, as matrices.

    The (rows, 1) scales are units of the state, and their inverses.
    """
    state = layout.unpack(z if scales is None else z * scales[0])
    if layout.rounds:
        z = layout.pack(state) if scales is None else layout.pack(state) * scales[1]
    fz = layout.pack_image(f(state, *inputs), z.shape[0])
    return z, fz if scales is None else fz * scales[1]


class RunningMap:
    """Evaluates f on the rows that are still running.

    Args:
        f, layout, inputs: See `_solve.solve`; rows leave inputs with those of the state.
        compact: Whether f is called on the running rows only. If not, f keeps seeing the whole batch, with finished
            rows held at their last point.
        passes_step: Whether f is told the number of the step, counted from 0, as `step=`.
        may_sync: Whether the host may read numbers.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        layout: Layout,
        inputs: tuple[Any, ...],
        *,
        compact: bool,
        passes_step: bool = False,
        may_sync: bool = True,
    ) -> None:
        self.layout, self.inputs, self._compact = layout, inputs, compact
        self._is_watched = not torch.compiler.is_compiling()
        # Asked once, as each question counts beside a small map.
        self._is_transformed = self._is_watched and is_transformed()
        # Under inference mode tensors do not count how often they are written to; those of the solve shall.
        self._f = torch.inference_mode()(f) if self._is_watched and torch.is_inference_mode_enabled() else f
        self._may_sync, self._is_first = may_sync, True
        self._options = {"step": -1} if passes_step else {}
        self.has_compacted = False
        """Whether samples have left the batch that f sees."""
        self.scales: tuple[Tensor, Tensor] | None = None
        """(rows, 1) powers of two by which states far from one in size are divided, and their inverses, of the rows
        that f sees; None where all are one."""
        self._whole_scale: Tensor | None = None
        self._rows: Tensor | None = None
        self._whole = torch.empty(0)
        # Images that are still in use, by where they lie in memory, and how often that had been written to; None of
        # those that may be returned again.
        self._images: dict[int, tuple[Callable[[], Tensor | None], int | None]] = {}

    def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the points as f saw them (rounded to the state's dtypes) and their images, as matrices."""
        rows, is_first = self._rows, self._is_first
        if rows is not None:
            self._whole = z = self._whole.index_copy(0, rows, z)
        if self._options:
            self._options["step"] += 1
        if not self._is_watched:
            z, fz = evaluate(partial(self._f, **self._options), self.layout, z, self.inputs, self.scales)
        else:
            if (version := _version(z)) < 0:
                z = z.clone()
                version = _version(z)
            given, copy = z, None
            if is_first and self._may_sync and z.is_cpu and not self._is_transformed:
                # What numpy writes is counted nowhere.
                copy = z.detach().clone()
            # Where the state is made of views of z, z knows of all that is written to them.
            has_views = not (self.layout.rounds or self.scales)
            is_plain = has_views and not (self._options or self._is_transformed or self.has_compacted)
            z, fz = evaluate(self._f if is_plain else self._call, self.layout, z, self.inputs, self.scales)
            if _version(given) != version or (copy is not None and _differ(given, copy)):
                raise ValueError(_REUSED if _place(fz) in self._images else _CHANGED)
            self._check_memory(fz, z)
        self._is_first = False
        return (z, fz) if rows is None else (z.index_select(0, rows), fz.index_select(0, rows))

    def _call(self, state: Any, *inputs: Any) -> Any:
        """Evaluate f, and explain what goes wrong."""
        versions = [_version(leaf) for leaf in leaves(state)]
        try:
            image = self._f(state, *inputs, **self._options)
        except (RuntimeError, IndexError, ValueError) as error:
            if not self.has_compacted or isinstance(error, MaskError):
                raise
            raise RuntimeError(f"f failed once finished samples had left the batch: {error}. {COUPLED}") from error
        if self._is_first:
            refuse_vmap(leaves(image))
        if [_version(leaf) for leaf in leaves(state)] != versions:
            raise ValueError(_CHANGED)
        return image

    def _check_memory(self, fz: Tensor, z: Tensor) -> None:
        """Refuse an image that lies where an earlier one lies that is still in use, unless that one is as it was.

        A map may well return the same tensor twice, as a constant one does. What the solver has made a copy of may be
        written over.
        """
        if self._is_transformed and torch._C._functorch.is_functorch_wrapped_tensor(fz):  # pyright: ignore[reportAttributeAccessIssue]
            return
        place, version = _place(fz), _version(fz)
        known, before = self._images.get(place, _NONE)
        if (earlier := known()) is not None:
            if before is not None and (before != version or self._writes_over(earlier, z)):
                raise ValueError(_REUSED)
            version = None
        self._images[place] = weakref.ref(fz), version

    @torch.no_grad()
    def _writes_over(self, earlier: Tensor, z: Tensor) -> bool:
        """Return whether an evaluation somewhere else changes what an earlier one returned.

        Version counters do not notice all writes: numpy and captured CUDA graphs write without counting.
        """
        before = earlier.clone()
        self._f(self.layout.unpack(z + 1), *self.inputs, **self._options)
        return not torch.equal(before.nan_to_num(), earlier.nan_to_num())

    def rescale(self, z: Tensor, fz: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first evaluation in units in which squares neither vanish nor overflow, which later ones have too.

        Multiplying by a power of two rounds nothing, so that a state of any size is solved as one of size one is.
        `size` is the larger of the (rows,) norms of z and fz, as far as squares can tell.
        """
        limit = torch.finfo(z.dtype).max ** 0.25
        least, most = size.aminmax()
        if self._may_sync and 1 / limit < to_host(least) and to_host(most) < limit:
            return z, fz
        size = torch.maximum(z.detach().abs().amax(dim=1), fz.detach().abs().amax(dim=1))
        is_far = ((size > limit) | (size < 1 / limit)) & (size > 0) & size.isfinite()
        if self._may_sync and not to_host(is_far.any()):
            return z, fz
        # Within what can be inverted; 0.5 is its own mantissa.
        size = torch.where(is_far, size.clamp(limit**-3.8, limit**3.8), 0.5)
        scale = torch.where(is_far, size / torch.frexp(size).mantissa, 1).unsqueeze(1)
        self._whole_scale, self.scales = scale, (scale, scale.reciprocal())
        return z * self.scales[1], fz * self.scales[1]

    def unscale(self, z: Tensor) -> Tensor:
        """Return states of the whole batch in their own units."""
        return z if self._whole_scale is None else z * self._whole_scale

    def select(self, rows: Tensor, z: Tensor) -> None:
        """Go on with the given rows of the current ones, whose points (before the selection) are z."""
        if self._compact:
            self.inputs, self.scales = select_rows((self.inputs, self.scales), rows)
            self.has_compacted = True
        elif self._rows is None:
            self._whole, self._rows = z, rows
        else:
            self._whole, self._rows = self._whole.index_copy(0, self._rows, z), self._rows.index_select(0, rows)


def _place(tensor: Tensor) -> int:
    """Return where a tensor lies in memory; of the outside of another tensor, which has no memory, what it is."""
    try:
        return tensor.data_ptr() or id(tensor)
    except RuntimeError:
        return tensor.untyped_storage()._cdata


def _version(tensor: Tensor) -> int:
    """Return how often a tensor was written to, or -1 of one from inference mode, which does not tell."""
    try:
        # Cheaper than to ask first.
        return tensor._version
    except RuntimeError:
        return -1


def _differ(a: Tensor, b: Tensor) -> bool:
    return not to_host((a == b).all()) and to_host(((a != b) & (a == a)).any())


_NONE = (lambda: None), None
_CHANGED = "f changed the state in place; it must leave its argument alone and return a new one."
_REUSED = (
    "f wrote its result over an earlier one: it returns a buffer that it keeps, by out=..., a preallocated tensor, a "
    'captured CUDA graph or torch.compile(mode="reduce-overhead"). Return a new tensor each time, such as a clone.'
)
