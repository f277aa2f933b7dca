"""Densely connected networks (Huang et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from .._internal.validation import check_choice, check_count
from .base import AbstractModelConfig
from .pretrained import PretrainedModel
from .resnet import Stem, initialize_convolutions, make_stem


class DenseNet(PretrainedModel):
    """Classifies images by blocks in which each layer sees the outputs of all layers before it.

    With bottlenecks and compression, "DenseNet-BC" in the paper. The defaults are DenseNet-121.

    Args:
        config: The sizes; see `DenseNet.Config`.
        **fields: Fields that override the config.

    Example:
        >>> model = DenseNet(blocks=(2, 2), growth=4, width=8, stem="cifar")
        >>> model(torch.zeros(2, 3, 16, 16)).shape
        torch.Size([2, 10])
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractModelConfig):
        """A densely connected network."""

        blocks: tuple[int, ...] = (6, 12, 24, 16)
        """Number of layers in each dense block."""
        growth: int = 32
        """Number of channels that each layer adds."""
        width: int = 64
        """Number of channels of the first convolution."""
        bottleneck: int = 4
        """Number of channels between the two convolutions of a layer, as a multiple of growth."""
        compression: float = 0.5
        """Share of the channels that the transitions between dense blocks keep."""
        stem: Stem = "imagenet"
        """First layers: "cifar" keeps the resolution, "imagenet" takes it to a quarter."""
        image_channels: int = 3
        """Number of channels of the images: 1 for gray, 3 for color."""
        num_classes: int = 10
        """Number of classes to tell apart."""

        def __post_init__(self) -> None:
            super().__post_init__()
            check_choice("stem", self.stem, get_args(Stem))
            for name in ("growth", "width", "bottleneck", "image_channels", "num_classes"):
                check_count(name, getattr(self, name))
            if not self.blocks:
                raise ValueError("blocks is empty; there must be at least one dense block.")
            for count in self.blocks:
                check_count("blocks", count)
            if not 0 < self.compression <= 1:
                raise ValueError(f"compression is {self.compression!r}; it must be in (0, 1].")

    def __init__(self, config: DenseNet.Config | None = None, **fields: Any) -> None:
        super().__init__()
        self.config = config = DenseNet.Config.resolve(config, fields)
        self.stem = make_stem(config.stem, config.image_channels, config.width)
        self.stages = nn.Sequential()
        channels = config.width
        for stage, count in enumerate(config.blocks):
            if stage > 0:
                kept = int(channels * config.compression)
                self.stages.append(nn.Sequential(*_norm_relu_conv(channels, kept, 1), nn.AvgPool2d(2)))
                channels = kept
            for _ in range(count):
                self.stages.append(DenseLayer(channels, growth=config.growth, bottleneck=config.bottleneck))
                channels += config.growth
        self.stages.extend((nn.BatchNorm2d(channels), nn.ReLU(inplace=True)))
        self.head = nn.Linear(channels, config.num_classes)
        initialize_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.stages(self.stem(x)).mean(dim=(2, 3)))


class DenseLayer(nn.Module):
    """Appends new channels to its input.

    Args:
        in_channels: Number of channels of the input.
        growth: Number of channels to add.
        bottleneck: Number of channels between the two convolutions, in multiples of `growth`.
    """

    def __init__(self, in_channels: int, *, growth: int, bottleneck: int) -> None:
        super().__init__()
        hidden = bottleneck * growth
        self.branch = nn.Sequential(*_norm_relu_conv(in_channels, hidden, 1), *_norm_relu_conv(hidden, growth, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Return the input with the new channels appended, (B, in_channels + growth, H, W)."""
        return torch.cat((x, self.branch(x)), dim=1)


def _norm_relu_conv(in_channels: int, out_channels: int, kernel: int) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(in_channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, bias=False),
    )
