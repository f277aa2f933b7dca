"""A small model of each family, with a batch that it takes."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from steadeq import DEQ
from steadeq.models import (
    ConvDEQ,
    DenseNet,
    DEQTransformerLM,
    EquilibriumTransformer,
    LoopedConv,
    MDEQClassifier,
    MDEQSegmenter,
    MonotoneDEQ,
    ResNet,
    StackedTransformer,
    TiedTransformer,
    ToyDEQ,
    TransformerXL,
)


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(0.5 * self.linear(z) + x)


def images(channels: int, size: int) -> Tensor:
    return torch.randn(4, channels, size, size)


def tokens(vocab_size: int, *shape: int) -> Tensor:
    return torch.randint(vocab_size, (4, *shape))


TEXT = {"vocab_size": 50, "features": 16, "num_heads": 2, "hidden_features": 32}
BLOCK = {"features": 16, "hidden_features": 32}
OTHER_BLOCK = {"norm": "post", "injection": "concat", "num_blocks": 2}

EQUILIBRIA: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "toy": lambda: (ToyDEQ(), torch.randn(4, 1)),
    "sequential": lambda: (nn.Sequential(nn.Linear(3, 4), DEQ(Cell()), nn.Linear(4, 2)), torch.randn(4, 3)),
    "conv": lambda: (ConvDEQ(channels=8, hidden=8), images(1, 8)),
    "mdeq": lambda: (
        MDEQClassifier(channels=(8, 16), groups=4, expansion=2, final_channels=16, dropout=0.3),
        images(3, 8),
    ),
    "mdeq segmenter": lambda: (MDEQSegmenter(channels=(8,), groups=4, expansion=1, num_downsamplings=1), images(3, 8)),
    "monotone": lambda: (MonotoneDEQ(channels=4), images(1, 8)),
    "monotone dense": lambda: (MonotoneDEQ(channels=6, kind="dense"), images(1, 8)),
    "monotone tiers": lambda: (MonotoneDEQ(channels=3, tiers=(4,)), images(1, 8)),
    "image transformer": lambda: (EquilibriumTransformer(kind="image", patch_size=4, **BLOCK), images(3, 8)),
    "grid transformer": lambda: (
        EquilibriumTransformer(kind="grid", vocab_size=10, num_classes=9, **BLOCK),
        tokens(10, 3, 3),
    ),
    "language transformer": lambda: (EquilibriumTransformer(kind="language", vocab_size=20, **BLOCK), tokens(20, 6)),
    "fused attention": lambda: (
        EquilibriumTransformer(kind="language", vocab_size=20, attention="fused", **BLOCK, **OTHER_BLOCK),
        tokens(20, 6),
    ),
    "deq transformer": lambda: (DEQTransformerLM(**TEXT, memory_length=4), tokens(50, 6)),
    "adaptive softmax": lambda: (DEQTransformerLM(**TEXT, cutoffs=(10, 30), div_value=2, tied="tails"), tokens(50, 6)),
    "looped": lambda: (LoopedConv(channels=8), torch.randn(4, 1, 8)),
}

EXPLICIT: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "resnet": lambda: (ResNet(widths=(8, 16), blocks=(1, 1)), images(3, 8)),
    "bottlenecks": lambda: (ResNet(block="bottleneck", widths=(4, 8), blocks=(2, 1), stem="cifar"), images(3, 8)),
    "densenet": lambda: (DenseNet(blocks=(1, 1), growth=4, width=8, stem="cifar"), images(3, 8)),
    "transformer-xl": lambda: (TransformerXL(**TEXT, num_layers=2), tokens(50, 6)),
    "tied": lambda: (TiedTransformer(**TEXT, depth=3), tokens(50, 6)),
    "stacked": lambda: (
        StackedTransformer(kind="grid", vocab_size=10, num_classes=9, depth=2, **BLOCK),
        tokens(10, 3, 3),
    ),
}
