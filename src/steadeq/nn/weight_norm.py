"""Convolutions with normalized weights (Salimans and Kingma, 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .shared import AbstractShared


class WeightNormConv2d(AbstractShared[Tensor]):
    """A convolution without bias whose weight is g v / ‖v‖, with a norm for each output channel.

    Written out, as the double backward of torch's fused weight norm is wrong with respect to v. Initially g = ‖v‖, so
    that the weight is v, in torch's default initialization of convolutions.

    Args:
        in_channels: Of the input.
        out_channels: Of the output.
        kernel_size: Of the kernel, an odd number; the resolution stays the same.

    Example:
        >>> WeightNormConv2d(4, 8, 3)(torch.zeros(1, 4, 6, 6)).shape
        torch.Size([1, 8, 6, 6])
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        like = nn.Conv2d(in_channels, out_channels, kernel_size, bias=False)
        self.padding = kernel_size // 2
        self.v = nn.Parameter(like.weight.detach())
        self.g = nn.Parameter(_norm(like.weight.detach()))

    def compute(self) -> Tensor:
        """Return the weight."""
        return self.v * (self.g / _norm(self.v))

    def forward(self, z: Tensor) -> Tensor:
        """Convolve."""
        return F.conv2d(z, self.shared(), padding=self.padding)


def _norm(v: Tensor) -> Tensor:
    return torch.linalg.vector_norm(v, dim=tuple(range(1, v.dim())), keepdim=True)
