"""Dropout whose mask stays the same over a solve."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def draw_mask(shape: Sequence[int], probability: float, *, like: Tensor) -> Tensor:
    """Return a mask of zeros and 1 / (1 - probability), to multiply with.

    Drawn once before a solve and handed to the cell as an input, it is the same for all evaluations, for the backward
    solve and for the Jacobian penalty (variational dropout, Gal and Ghahramani, 2016), and it follows its samples when
    finished ones leave the batch.

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
