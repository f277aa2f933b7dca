"""Random masks that hold for a solve.

A mask is drawn where it is first needed, as its shape is known there, and belongs to the solve from then on: the map
that the equilibrium hands on, to its gradient and to penalties, has it with it. Modules keep nothing. While a map is
evaluated they are told whose masks to use, so that many solves may be alive at a time, each with its own.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .trees import leaves


class MaskError(ValueError):
    """A module with a mask sees another number of rows than the solve has samples; says nothing about the samples."""


class Rows(NamedTuple):
    """Which samples of the batch an evaluation sees; as the last input of a map it is selected as they are."""

    numbers: Tensor


def owner_of(f: Callable[..., Any]) -> nn.Module | None:
    """Return the module that a map is, or is a method of."""
    f = f.f if isinstance(f, MaskedMap) else f
    owner = f if isinstance(f, nn.Module) else getattr(f, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


_instances: weakref.WeakSet[AbstractMasked] = weakref.WeakSet()
"""All modules that may use a mask."""


class AbstractMasked(nn.Module, ABC):
    """A module that uses a random mask, which is the same for all evaluations of a solve."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Remember the instance, also of copies and pickles."""
        instance = super().__new__(cls)
        _instances.add(instance)
        return instance

    # Whether a graph may exist through a mask that a solve held.
    _was_held: bool = False

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """Whether a mask is used at all."""

    @abstractmethod
    def draw(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a new mask.

        Args:
            shape: Its shape.
            like: A tensor whose dtype and device are taken.
        """

    def mask(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return the mask of the solve that is being evaluated, or a new one outside of any.

        Args:
            shape: Its shape, with the batch first.
            like: A tensor whose dtype and device are taken.
        """
        # Compiled code would be specialized for the masks of one solve; so it is left for this.
        return _mask_outside_of_graphs(self, shape, like) if torch.compiler.is_compiling() else _mask(self, shape, like)


class _Evaluation(NamedTuple):
    """Which masks an evaluation uses."""

    drawn: dict[tuple[AbstractMasked, tuple[int, ...]], Tensor]
    """For the whole batch, by module and by shape without the batch."""
    num_samples: int
    """Of the whole batch."""
    rows: Tensor | None
    """Samples of the batch that are evaluated, or None for all."""

    def mask(self, part: AbstractMasked, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return the mask of a module, for the samples that are evaluated."""
        num_rows, key = shape[0], (part, shape[1:])
        is_selected = self.rows is not None and num_rows == len(self.rows)
        mask = self.drawn.get(key)
        if mask is None:
            whole = self.num_samples if is_selected else num_rows
            mask = self.drawn[key] = part.draw((whole, *shape[1:]), like)
        if len(mask) == num_rows:
            return mask
        if self.rows is None or not is_selected or len(mask) != self.num_samples:
            raise MaskError(
                f"{type(part).__name__} drew a mask for {len(mask)} rows and now sees {num_rows}. During a solve, dim "
                "0 of its input must be the batch of the state; otherwise set compact=False."
            )
        return mask.index_select(0, self.rows.to(mask.device))


class _Current(threading.local):
    """The evaluation that is under way in this thread."""

    evaluation: _Evaluation | None = None
    is_recomputed: bool = False


_current = _Current()


def _mask(part: AbstractMasked, shape: tuple[int, ...], like: Tensor) -> Tensor:
    evaluation = _current.evaluation
    if evaluation is not None:
        if torch.is_grad_enabled() and not part._was_held:
            part._was_held = True
        return evaluation.mask(part, shape, like)
    is_in_backward = torch._C._current_graph_task_id() != -1  # pyright: ignore[reportAttributeAccessIssue]
    if part._was_held and is_in_backward and not _current.is_recomputed:
        raise RuntimeError(
            f"{type(part).__name__} is evaluated again in a backward pass, where the mask of its solve is not known. "
            "Pass context_fn=steadeq.nn.checkpoint_masks to torch.utils.checkpoint.checkpoint."
        )
    return part.draw(shape, like)


_mask_outside_of_graphs: Any = torch.compiler.disable(_mask)


def hold_masks(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a map whose dropout masks are drawn when it is first evaluated, and then stay the same.

    `fixed_point` and `DEQ` do that for each solve. This is for loops of your own: make a new one for each training
    step, iterate it, and give it to `Equilibrium.at` too, so that penalties see the same masks. Solves inside of f, or
    of what is returned here, share its masks.

    Args:
        f: The map, called as f(z, *inputs). A module without a `VariationalDropout` in training mode is returned as it
            is.

    Example:
        >>> from steadeq.nn import VariationalDropout
        >>> block = nn.Sequential(nn.Linear(4, 4), VariationalDropout(0.5))
        >>> f, z = hold_masks(block), torch.ones(2, 4)
        >>> torch.equal(f(z), f(z))
        True
    """
    if isinstance(f, MaskedMap):
        return f
    owner = owner_of(f)
    if owner is None:
        # What a function refers to is not known; but while no module draws masks, it draws none.
        return HeldMasks().bind(f) if any(part.is_active for part in _instances) else f
    return HeldMasks().bind(f) if draws_masks(owner) else f


def draws_masks(module: nn.Module) -> bool:
    """Return whether a part of a module draws masks now."""
    return any(isinstance(part, AbstractMasked) and part.is_active for part in module.modules())


class HeldMasks:
    """The masks of one solve; within an evaluation of another one, those of that one."""

    def __init__(self) -> None:
        self._outer = _current.evaluation
        self._drawn = {} if self._outer is None else self._outer.drawn
        self._num_samples: int | None = None
        self._of_all: _Evaluation | None = None

    @property
    def exist(self) -> bool:
        """Whether any was drawn."""
        return bool(self._drawn)

    def bind(self, f: Callable[..., Any]) -> MaskedMap:
        """Return a map that is always evaluated with these masks."""
        return MaskedMap(f, self)

    def evaluation(self, num_samples: int, rows: Tensor | None) -> _Evaluation:
        """Return which masks to use.

        Args:
            num_samples: Number of samples that are evaluated.
            rows: Which they are, if the map was told.
        """
        if rows is None and self._of_all is not None:
            return self._of_all
        if self._num_samples is None:
            self._num_samples = num_samples
        if rows is not None and len(rows) == self._num_samples:
            rows = None
        outer = self._outer
        if outer is None or outer.rows is None:
            found = _Evaluation(self._drawn, self._num_samples, rows)
            # The usual case, which small maps should not be slower by.
            self._of_all = found if rows is None else self._of_all
            return found
        # Samples have left the batch around this one, which is what is left of it, or else something of its own.
        if self._num_samples == len(outer.rows):
            rows = outer.rows if rows is None else outer.rows.index_select(0, rows)
            return _Evaluation(self._drawn, outer.num_samples, rows)
        return _Evaluation(self._drawn, self._num_samples, None)


class MaskedMap:
    """A map with the masks of one solve.

    Args:
        f: The map.
        masks: The masks.
    """

    def __init__(self, f: Callable[..., Any], masks: HeldMasks) -> None:
        self.f, self.masks = f, masks

    def __call__(self, z: Any, *inputs: Any, **options: Any) -> Any:
        """Evaluate the map; inputs may end with the `Rows` that are evaluated."""
        rows = None
        if inputs and isinstance(inputs[-1], Rows):
            inputs, rows = inputs[:-1], inputs[-1].numbers
        before = _current.evaluation
        shape = (z if isinstance(z, Tensor) else leaves(z)[0]).shape
        # A state of one sample may have no dims at all.
        _current.evaluation = self.masks.evaluation(shape[:1].numel(), rows)
        try:
            return self.f(z, *inputs, **options)
        finally:
            _current.evaluation = before


def without_empty(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a map that was evaluated, without the masks that it has not drawn."""
    return f.f if isinstance(f, MaskedMap) and not f.masks.exist else f


class _Recomputed:
    """Context in which modules use the masks of an evaluation again; it may be entered many times."""

    def __init__(self, evaluation: _Evaluation | None) -> None:
        self._evaluation = evaluation
        self._before: list[tuple[_Evaluation | None, bool]] = []

    def __enter__(self) -> None:
        self._before.append((_current.evaluation, _current.is_recomputed))
        _current.evaluation, _current.is_recomputed = self._evaluation, True

    def __exit__(self, *_: object) -> None:
        _current.evaluation, _current.is_recomputed = self._before.pop()


def checkpoint_masks() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Tell activation checkpointing the masks of a solve, which the backward pass needs where it evaluates f anew.

    It is the argument `context_fn` of `torch.utils.checkpoint.checkpoint`. Without it, a `VariationalDropout` that is
    evaluated anew raises an error.

    Returns:
        Contexts for the forward pass and for the recomputation.

    Example:
        >>> from torch.utils.checkpoint import checkpoint
        >>> from steadeq import fixed_point
        >>> from steadeq.nn import VariationalDropout
        >>> block = nn.Sequential(nn.Linear(4, 4), VariationalDropout(0.2), nn.Tanh())
        >>> def f(z, x):
        ...     return 0.5 * checkpoint(block, z, use_reentrant=False, context_fn=checkpoint_masks) + x
        >>> fixed_point(f, torch.zeros(2, 4), torch.ones(2, 4)).z.sum().backward()
    """
    return nullcontext(), _Recomputed(_current.evaluation)
