"""Dropout whose mask stays the same over a solve (variational dropout, Gal and Ghahramani, 2016)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._internal.masks import AbstractMasked
from .._internal.validation import check_dropout


def draw_mask(shape: Sequence[int], probability: float, *, like: Tensor) -> Tensor:
    """Return a mask of zeros and 1 / (1 - probability), to multiply with.

    Drawn once before a solve and handed to the cell as an input, it is the same for all evaluations, for the backward
    solve and for the Jacobian penalty, and it follows its samples when finished ones leave the batch.
    `VariationalDropout` does all that by itself.

    Args:
        shape: Shape of the mask; the first dimension is the batch.
        probability: Probability of a zero.
        like: A tensor whose dtype and device are taken.

    Example:
        >>> mask = draw_mask((2, 100), 0.5, like=torch.zeros(1))
        >>> sorted(set(mask.flatten().tolist()))
        [0.0, 2.0]
    """
    return torch.empty(*shape, dtype=like.dtype, device=like.device).bernoulli_(1 - probability).div_(1 - probability)


class VariationalDropout(AbstractMasked):
    """Dropout for cells: each solve draws a mask and keeps it.

    All evaluations of a solve, its gradient, and penalties and spectra at its equilibrium have the same mask, which
    follows its samples when finished ones leave the batch. The next solve draws another one; nothing has to be reset.
    If a cell uses the module in several places, those with the same shape share one mask. Outside of a solve, each call
    draws a mask, as with `nn.Dropout`; use `hold_masks` in your own loops and `checkpoint_masks` for activation
    checkpointing. In eval mode nothing is dropped.

    In a compiled cell, each mask breaks the graph.

    Args:
        p: Probability of a zero; the other elements are divided by 1 - p.
        shared: Dimensions that share a mask: 1 drops features of (B, L, features) at all positions, (2, 3) drops whole
            channels of images (B, channels, height, width). By default each element is dropped independently.

    Example:
        >>> from torch import nn
        >>> from steadeq import DEQ
        >>> class Cell(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.linear, self.dropout = nn.Linear(4, 4), VariationalDropout(0.2, shared=1)
        ...     def forward(self, z, x):
        ...         return torch.tanh(self.dropout(self.linear(z)) + x)
        >>> DEQ(Cell()).solve(torch.ones(2, 5, 4)).stats.converged.tolist()
        [True, True]
    """

    def __init__(self, p: float = 0.5, *, shared: int | Sequence[int] = ()) -> None:
        super().__init__()
        check_dropout("p", p)
        self.p = p
        self.shared = (shared,) if isinstance(shared, int) else tuple(shared)

    @property
    def is_active(self) -> bool:
        """Whether anything is dropped."""
        return self.training and self.p > 0

    def draw(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a new mask, in single precision at least, as evaluations may differ in theirs."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        return draw_mask(shape, self.p, like=like.new_empty(0, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply with the mask.

        Args:
            x: What to drop elements of, with the batch first.
        """
        if not self.is_active:
            return x
        shape = list(x.shape)
        for dim in self.shared:
            if not dim % x.dim() > 0 or not -x.dim() <= dim < x.dim():
                raise ValueError(
                    f"shared is {self.shared}, and the tensor has shape {tuple(x.shape)}: each must be a dimension of "
                    "the tensor other than the batch (0)."
                )
            shape[dim] = 1
        return x * self.mask(tuple(shape), x).to(x.dtype)

    def extra_repr(self) -> str:
        """Show the probability, and what is dropped together."""
        return f"p={self.p:g}" + (f", shared={self.shared}" if self.shared else "")
