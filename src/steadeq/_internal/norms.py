"""Norms of rows that neither vanish nor overflow before the rows themselves do."""

from __future__ import annotations

import torch
from torch import Tensor


def row_norm(matrix: Tensor) -> Tensor:
    """Return the (B,) Euclidean norms of the rows of a matrix, whatever their size.

    The squares that a plain norm adds up leave the range of float32 for elements below 1e-23 or above 1e19.

    Example:
        >>> row_norm(torch.tensor([[3e-30, 4e-30], [3e30, 4e30], [0.0, 0.0]]))
        tensor([5.0000e-30, 5.0000e+30, 0.0000e+00])
    """
    largest = matrix.abs().amax(dim=1, keepdim=True)
    unit = torch.where((largest > 0) & largest.isfinite(), largest, 1)
    return torch.linalg.vector_norm(matrix / unit, dim=1) * unit.squeeze(1)
