"""Residual networks (He et al., 2016)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from .._internal.validation import check_choice, check_count
from .base import AbstractModelConfig
from .pretrained import PretrainedModel

Block = Literal["basic", "bottleneck"]
Stem = Literal["cifar", "imagenet"]
Norm = Callable[[int], nn.Module]
"""A function that returns a normalization layer for a number of channels."""


class ResNet(PretrainedModel):
    """Classifies images by stages of residual blocks, each stage at half the resolution of the one before.

    ResNet-18 has `blocks=(2, 2, 2, 2)`, ResNet-50 `block="bottleneck", blocks=(3, 4, 6, 3)` and ResNet-101
    `block="bottleneck", blocks=(3, 4, 23, 3)`.

    Args:
        config: The sizes; see `ResNet.Config`.
        **fields: Fields that override the config.

    Example:
        >>> import torch
        >>> model = ResNet(blocks=(1, 1, 1), widths=(16, 32, 64))
        >>> sum(p.numel() for p in model.parameters())
        78042
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractModelConfig):
        """A residual network."""

        block: Block = "basic"
        """Kind of the blocks: "basic" for two convolutions of 3 by 3 pixels, "bottleneck" for one between two of 1 by
        1."""
        blocks: tuple[int, ...] = (2, 2, 2, 2)
        """Number of residual blocks in each stage."""
        widths: tuple[int, ...] = (64, 128, 256, 512)
        """Number of channels of each stage, before the fourfold expansion of bottlenecks."""
        stem: Stem = "cifar"
        """First layers: "cifar" for a 3 by 3 convolution that keeps the resolution, "imagenet" for layers that take it
        to a quarter."""
        image_channels: int = 3
        """Number of channels of the images: 1 for gray, 3 for color."""
        num_classes: int = 10
        """Number of classes to tell apart."""
        zero_init: bool = False
        """Initialize the last normalization of each block with weight zero, so that the block starts as its
        shortcut."""
        groups: int | None = None
        """Number of groups of every GroupNorm; None for normalizations over the batch."""

        def __post_init__(self) -> None:
            super().__post_init__()
            check_choice("block", self.block, get_args(Block))
            check_choice("stem", self.stem, get_args(Stem))
            for name in ("image_channels", "num_classes"):
                check_count(name, getattr(self, name))
            for name in ("blocks", "widths"):
                for value in getattr(self, name):
                    check_count(name, value)
            if self.groups is not None:
                check_count("groups", self.groups)
                if any(width % self.groups for width in self.widths):
                    raise ValueError(f"groups is {self.groups}; it must divide all of widths, {self.widths}.")
            if not self.blocks or len(self.blocks) != len(self.widths):
                raise ValueError(
                    f"blocks is {self.blocks} and widths is {self.widths}; they must have one entry for each stage."
                )

    def __init__(self, config: ResNet.Config | None = None, **fields: Any) -> None:
        super().__init__()
        self.config = config = ResNet.Config.resolve(config, fields)
        kind = BasicBlock if config.block == "basic" else Bottleneck
        norm: Norm = nn.BatchNorm2d if config.groups is None else partial(nn.GroupNorm, config.groups)
        channels = config.widths[0]
        self.stem = make_stem(config.stem, config.image_channels, channels, norm=norm)
        self.stages = nn.Sequential()
        for stage, (count, width) in enumerate(zip(config.blocks, config.widths, strict=True)):
            for position in range(count):
                stride = 2 if stage > 0 and position == 0 else 1
                self.stages.append(kind(channels, width, stride=stride, zero_init=config.zero_init, norm=norm))
                channels = kind.expansion * width
        self.head = nn.Linear(channels, config.num_classes)
        initialize_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.stages(self.stem(x)).mean(dim=(2, 3)))


class _ResidualBlock(nn.Module):
    """ReLU(shortcut + branch); the branch ends with a normalization, the shortcut is the identity where shapes allow.

    Args:
        *layers: Layers of the branch, without its last normalization.
        in_channels: Number of channels of the input.
        out_channels: Number of channels of the output.
        stride: Stride of the branch.
        zero_init: Whether the branch is zero at first.
        norm: Makes the normalizations.
    """

    def __init__(
        self, *layers: nn.Module, in_channels: int, out_channels: int, stride: int, zero_init: bool, norm: Norm
    ) -> None:
        super().__init__()
        last = norm(out_channels)
        if zero_init:
            assert isinstance(last.weight, Tensor)
            nn.init.zeros_(last.weight)
        self.branch = nn.Sequential(*layers, last)
        is_identity = stride == 1 and in_channels == out_channels
        self.shortcut = (
            nn.Identity()
            if is_identity
            else nn.Sequential(_conv(in_channels, out_channels, 1, stride=stride), norm(out_channels))
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.branch(x), inplace=True)


class BasicBlock(_ResidualBlock):
    """Two 3 by 3 convolutions.

    Args:
        in_channels: Number of channels of the input.
        width: Number of channels of both convolutions, and of the output.
        stride: Stride of the first convolution.
        zero_init: Whether the block starts as its shortcut.
        norm: Makes the normalizations.
    """

    expansion = 1

    def __init__(self, in_channels: int, width: int, *, stride: int, zero_init: bool, norm: Norm) -> None:
        super().__init__(
            *_conv_norm_relu(in_channels, width, 3, stride=stride, norm=norm),
            _conv(width, width, 3),
            in_channels=in_channels,
            out_channels=width,
            stride=stride,
            zero_init=zero_init,
            norm=norm,
        )


class Bottleneck(_ResidualBlock):
    """A 3 by 3 convolution between two of 1 by 1.

    Args:
        in_channels: Number of channels of the input.
        width: Number of channels of the middle convolution; the output has four times as many.
        stride: Stride of the middle convolution. He et al. (2016) have it in the first one, which skips pixels; later
            implementations moved it.
        zero_init: Whether the block starts as its shortcut.
        norm: Makes the normalizations.
    """

    expansion = 4

    def __init__(self, in_channels: int, width: int, *, stride: int, zero_init: bool, norm: Norm) -> None:
        super().__init__(
            *_conv_norm_relu(in_channels, width, 1, norm=norm),
            *_conv_norm_relu(width, width, 3, stride=stride, norm=norm),
            _conv(width, self.expansion * width, 1),
            in_channels=in_channels,
            out_channels=self.expansion * width,
            stride=stride,
            zero_init=zero_init,
            norm=norm,
        )


def make_stem(stem: Stem, image_channels: int, channels: int, *, norm: Norm = nn.BatchNorm2d) -> nn.Sequential:
    """Return the first layers of a network for images of a usual size: "cifar" (32 pixels) or "imagenet" (224)."""
    if stem == "cifar":
        return nn.Sequential(*_conv_norm_relu(image_channels, channels, 3, norm=norm))
    layers = _conv_norm_relu(image_channels, channels, 7, stride=2, norm=norm)
    return nn.Sequential(*layers, nn.MaxPool2d(3, stride=2, padding=1))


def initialize_convolutions(module: nn.Module) -> None:
    """Draw the weights of all convolutions from Kaiming's normal distribution, which keeps gradients at their scale."""
    for child in module.modules():
        if isinstance(child, nn.Conv2d):
            nn.init.kaiming_normal_(child.weight, mode="fan_out", nonlinearity="relu")


def _conv(in_channels: int, out_channels: int, kernel: int, *, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, bias=False)


def _conv_norm_relu(
    in_channels: int, out_channels: int, kernel: int, *, stride: int = 1, norm: Norm
) -> tuple[nn.Module, ...]:
    conv = _conv(in_channels, out_channels, kernel, stride=stride)
    return conv, norm(out_channels), nn.ReLU(inplace=True)
