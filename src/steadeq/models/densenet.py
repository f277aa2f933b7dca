"""Densely connected networks (Huang et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .explicit import AbstractExplicitModel, initialize_convolutions
from .resnet import Stem, image_stem


class DenseNet(AbstractExplicitModel):
    """Classifies images by blocks in which each layer sees the outputs of all layers before it.

    With bottlenecks and compression, "DenseNet-BC" in the paper. The defaults are DenseNet-121.

    Args:
        blocks: Number of layers in each dense block.
        growth: Channels that each layer adds.
        width: Channels of the stem.
        bottleneck: Channels between the two convolutions of a layer, in multiples of `growth`.
        compression: Part of the channels that the transitions between blocks keep.
        stem: "imagenet" takes the resolution to a quarter, "cifar" keeps it.
        image_channels: Of the images.
        num_classes: Number of classes.

    Example:
        >>> model = DenseNet(blocks=(2, 2), growth=4, width=8, stem="cifar")
        >>> logits, _ = model(torch.zeros(2, 3, 16, 16))
        >>> logits.shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        blocks: Sequence[int] = (6, 12, 24, 16),
        growth: int = 32,
        width: int = 64,
        bottleneck: int = 4,
        compression: float = 0.5,
        stem: Stem = "imagenet",
        image_channels: int = 3,
        num_classes: int = 10,
    ) -> None:
        super().__init__()
        self.stem = image_stem(stem, image_channels, width)
        self.stages = nn.Sequential()
        channels = width
        for stage, count in enumerate(blocks):
            if stage > 0:
                kept = int(channels * compression)
                self.stages.append(nn.Sequential(*_norm_relu_conv(channels, kept, 1), nn.AvgPool2d(2)))
                channels = kept
            for _ in range(count):
                self.stages.append(DenseLayer(channels, growth=growth, bottleneck=bottleneck))
                channels += growth
        self.stages.extend((nn.BatchNorm2d(channels), nn.ReLU(inplace=True)))
        self.head = nn.Linear(channels, num_classes)
        initialize_convolutions(self)

    def output(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.stages(self.stem(x)).mean(dim=(2, 3)))


class DenseLayer(nn.Module):
    """Appends new channels to its input.

    Args:
        in_channels: Of the input.
        growth: Channels to add.
        bottleneck: Channels between the two convolutions, in multiples of `growth`.
    """

    def __init__(self, in_channels: int, *, growth: int, bottleneck: int) -> None:
        super().__init__()
        hidden = bottleneck * growth
        self.branch = nn.Sequential(*_norm_relu_conv(in_channels, hidden, 1), *_norm_relu_conv(hidden, growth, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Return the input and what was made of it, (B, in_channels + growth, H, W)."""
        return torch.cat((x, self.branch(x)), dim=1)


def _norm_relu_conv(in_channels: int, out_channels: int, kernel: int) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(in_channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, bias=False),
    )
