"""Heads that decode the scales of an equilibrium for a task."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_EXPANSION = 4


class HeadBlock(nn.Module):
    """A residual block of three convolutions, 1 by 1, 3 by 3 and 1 by 1, with a convolution as its skip.

    Args:
        in_channels: Number of channels of the input.
        channels: Number of channels inside; the output has four times as many.
    """

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        out_channels = _EXPANSION * channels
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels, affine=False),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels, affine=False),
            nn.ReLU(),
            nn.Conv2d(channels, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels, affine=False),
        )
        self.skip = nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map a feature map to one of the same resolution."""
        return F.relu(self.body(x) + self.skip(x))


class ClassificationHead(nn.Module):
    """Adds up the scales from fine to coarse, averages over pixels, and applies a linear map.

    Args:
        channels: Number of channels of each scale.
        head_channels: Number of channels inside each scale's block.
        final_channels: Number of channels before the average.
        num_classes: Number of classes.
    """

    def __init__(
        self, *, channels: Sequence[int], head_channels: Sequence[int], final_channels: int, num_classes: int
    ) -> None:
        super().__init__()
        widths = [_EXPANSION * c for c in head_channels]
        self.bottlenecks = nn.ModuleList(HeadBlock(c, h) for c, h in zip(channels, head_channels, strict=True))
        self.downs = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in pairwise(widths)
        )
        self.final = nn.Sequential(nn.Conv2d(widths[-1], final_channels, 1), nn.BatchNorm2d(final_channels), nn.ReLU())
        self.classifier = nn.Linear(final_channels, num_classes)

    def forward(self, z: Sequence[Tensor]) -> Tensor:
        """Map the scales to (B, num_classes) logits."""
        y = self.bottlenecks[0](z[0])
        for down, bottleneck, state in zip(self.downs, self.bottlenecks[1:], z[1:], strict=True):
            y = bottleneck(state) + down(y)
        return self.classifier(self.final(y).mean(dim=(2, 3)))


class SegmentationHead(nn.Module):
    """Brings all scales to the finest resolution, concatenates them, and classifies every pixel.

    Args:
        channels: Number of channels of each scale.
        num_classes: Number of classes.
        kernel_size: Height and width of the last convolution's kernel.
    """

    def __init__(self, *, channels: Sequence[int], num_classes: int, kernel_size: int = 1) -> None:
        super().__init__()
        width = sum(channels)
        self.mix = nn.Sequential(nn.Conv2d(width, width, 1), nn.BatchNorm2d(width), nn.ReLU())
        self.classifier = nn.Conv2d(width, num_classes, kernel_size, padding=kernel_size // 2)

    def forward(self, z: Sequence[Tensor]) -> Tensor:
        """Map the scales to (B, num_classes, H, W) logits at the resolution of the finest one."""
        size = z[0].shape[-2:]
        coarse = [F.interpolate(state, size=size, mode="bilinear", align_corners=True) for state in z[1:]]
        return self.classifier(self.mix(torch.cat([z[0], *coarse], dim=1)))
