"""Residual networks (He et al., 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from ..solvers.base import check_choice
from .explicit import AbstractExplicitModel, initialize_convolutions

Block = Literal["basic", "bottleneck"]
Stem = Literal["cifar", "imagenet"]


class ResNet(AbstractExplicitModel):
    """Classifies images by stages of residual blocks, each stage at half the resolution of the one before.

    ResNet-18 has `blocks=(2, 2, 2, 2)`, ResNet-50 `block="bottleneck", blocks=(3, 4, 6, 3)` and ResNet-101
    `block="bottleneck", blocks=(3, 4, 23, 3)`.

    Args:
        block: "basic" for two 3 by 3 convolutions, "bottleneck" for one between two of 1 by 1.
        blocks: Number of blocks in each stage.
        widths: Channels of each stage, before the fourfold expansion of bottlenecks.
        stem: "imagenet" for a convolution and a pooling that take the resolution to a quarter, "cifar" for a 3 by 3
            convolution that keeps it.
        image_channels: Of the images.
        num_classes: Number of classes.
        zero_init: Whether each block starts as its shortcut: the last normalization of its branch is zero at first.

    Example:
        >>> import torch
        >>> model = ResNet(blocks=(1, 1, 1), widths=(16, 32, 64), stem="cifar")
        >>> sum(p.numel() for p in model.parameters())
        78042
        >>> logits, _ = model(torch.zeros(2, 3, 32, 32))
        >>> logits.shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        block: Block = "basic",
        blocks: Sequence[int] = (2, 2, 2, 2),
        widths: Sequence[int] = (64, 128, 256, 512),
        stem: Stem = "imagenet",
        image_channels: int = 3,
        num_classes: int = 10,
        zero_init: bool = False,
    ) -> None:
        super().__init__()
        check_choice("block", block, get_args(Block))
        if len(blocks) != len(widths):
            raise ValueError(f"blocks is {blocks} and widths is {widths}; they must have one entry for each stage.")
        kind = BasicBlock if block == "basic" else Bottleneck
        channels = widths[0]
        self.stem = image_stem(stem, image_channels, channels)
        self.stages = nn.Sequential()
        for stage, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            for position in range(count):
                stride = 2 if stage > 0 and position == 0 else 1
                self.stages.append(kind(channels, width, stride=stride, zero_init=zero_init))
                channels = kind.expansion * width
        self.head = nn.Linear(channels, num_classes)
        initialize_convolutions(self)

    def output(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.stages(self.stem(x)).mean(dim=(2, 3)))


class _ResidualBlock(nn.Module):
    """ReLU(shortcut + branch); the branch ends with a normalization, the shortcut is the identity where shapes allow.

    Args:
        layers: Of the branch, without its last normalization.
        in_channels: Of the input.
        out_channels: Of the branch.
        stride: Of the branch.
        zero_init: Whether the branch is zero at first.
    """

    def __init__(self, *layers: nn.Module, in_channels: int, out_channels: int, stride: int, zero_init: bool) -> None:
        super().__init__()
        norm = nn.BatchNorm2d(out_channels)
        if zero_init:
            nn.init.zeros_(norm.weight)
        self.branch = nn.Sequential(*layers, norm)
        is_identity = stride == 1 and in_channels == out_channels
        self.shortcut = (
            nn.Identity()
            if is_identity
            else nn.Sequential(_conv(in_channels, out_channels, 1, stride=stride), nn.BatchNorm2d(out_channels))
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.branch(x), inplace=True)


class BasicBlock(_ResidualBlock):
    """Two 3 by 3 convolutions.

    Args:
        in_channels: Of the input.
        width: Of both convolutions, and of the output.
        stride: Of the first one.
        zero_init: Whether the block starts as its shortcut.
    """

    expansion = 1

    def __init__(self, in_channels: int, width: int, *, stride: int = 1, zero_init: bool = False) -> None:
        super().__init__(
            *_conv_norm_relu(in_channels, width, 3, stride=stride),
            _conv(width, width, 3),
            in_channels=in_channels,
            out_channels=width,
            stride=stride,
            zero_init=zero_init,
        )


class Bottleneck(_ResidualBlock):
    """A 3 by 3 convolution between two of 1 by 1.

    Args:
        in_channels: Of the input.
        width: Of the middle; the output has four times as many channels.
        stride: Of the middle. The paper of 2016 has it in the first convolution; since then it is where no pixel is
            left out.
        zero_init: Whether the block starts as its shortcut.
    """

    expansion = 4

    def __init__(self, in_channels: int, width: int, *, stride: int = 1, zero_init: bool = False) -> None:
        super().__init__(
            *_conv_norm_relu(in_channels, width, 1),
            *_conv_norm_relu(width, width, 3, stride=stride),
            _conv(width, self.expansion * width, 1),
            in_channels=in_channels,
            out_channels=self.expansion * width,
            stride=stride,
            zero_init=zero_init,
        )


def image_stem(stem: Stem, image_channels: int, channels: int) -> nn.Sequential:
    """Return the first layers of a network for images of a usual size: "cifar" (32 pixels) or "imagenet" (224)."""
    check_choice("stem", stem, get_args(Stem))
    if stem == "cifar":
        return nn.Sequential(*_conv_norm_relu(image_channels, channels, 3))
    return nn.Sequential(*_conv_norm_relu(image_channels, channels, 7, stride=2), nn.MaxPool2d(3, stride=2, padding=1))


def _conv(in_channels: int, out_channels: int, kernel: int, *, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, bias=False)


def _conv_norm_relu(in_channels: int, out_channels: int, kernel: int, *, stride: int = 1) -> tuple[nn.Module, ...]:
    conv = _conv(in_channels, out_channels, kernel, stride=stride)
    return conv, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True)
