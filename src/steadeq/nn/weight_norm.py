"""Convolutions and linear maps with normalized weights (Salimans and Kingma, 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .cached import AbstractCached


class WeightNormConv2d(AbstractCached[Tensor]):
    """A convolution without bias whose weight is g v / ‖v‖, with a norm for each output channel.

    Written out, as the double backward of torch's fused weight norm is wrong with respect to v. Initially g = ‖v‖, so
    that the weight is v, in torch's default initialization of convolutions.

    Args:
        in_channels: Number of channels of the input.
        out_channels: Number of channels of the output.
        kernel_size: Height and width of the kernel, an odd number; the resolution stays the same.

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
        return F.conv2d(z, self.cached(), padding=self.padding)


class WeightNormLinear(AbstractCached[Tensor]):
    """A linear map whose weight is g v / ‖v‖, with a norm for each output feature.

    Written out, as the double backward of torch's fused weight norm is wrong with respect to v. Initially g = ‖v‖, so
    that the weight is v, in torch's default initialization of linear maps; the bias starts at zero.

    Args:
        in_features: Number of features of the input.
        out_features: Number of features of the output.
        bias: Whether a bias is added.

    Example:
        >>> WeightNormLinear(4, 8)(torch.zeros(2, 5, 4)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__()
        like = nn.Linear(in_features, out_features, bias=False)
        self.v = nn.Parameter(like.weight.detach())
        self.g = nn.Parameter(_norm(like.weight.detach()))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def compute(self) -> Tensor:
        """Return the weight."""
        return self.v * (self.g / _norm(self.v))

    def forward(self, x: Tensor) -> Tensor:
        """Map the last dimension."""
        return F.linear(x, self.cached(), self.bias)

    def extra_repr(self) -> str:
        """Show the sizes."""
        out_features, in_features = self.v.shape
        return f"in_features={in_features}, out_features={out_features}, bias={self.bias is not None}"


def make_linear(in_features: int, out_features: int, *, bias: bool = True, weight_norm: bool = True) -> nn.Module:
    """Return a linear map, with a normalized weight or with a plain one.

    Args:
        in_features: Number of features of the input.
        out_features: Number of features of the output.
        bias: Whether a bias is added.
        weight_norm: Whether the weight is normalized.
    """
    kind = WeightNormLinear if weight_norm else nn.Linear
    return kind(in_features, out_features, bias=bias)


def _norm(v: Tensor) -> Tensor:
    return torch.linalg.vector_norm(v, dim=tuple(range(1, v.dim())), keepdim=True)
