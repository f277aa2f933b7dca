"""Models by name: the published configurations, and small ones for a laptop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from .._internal.validation import suggestion
from .base import AbstractModelConfig
from .conv import ConvDEQ
from .densenet import DenseNet
from .equilibrium_transformer import EquilibriumTransformer, StackedTransformer
from .looped_conv import LoopedConv
from .mdeq import MDEQClassifier, MDEQSegmenter
from .monotone import MonotoneDEQ
from .resnet import ResNet
from .toy import ToyDEQ
from .transformer import DEQTransformerLM, TiedTransformer, TransformerXL

# Multiscale DEQs are those of the yaml files of `locuslab/deq`.

_SMALL = (32, 64, 128, 256)
_LARGE = (80, 160, 320, 640)
_XL = (88, 176, 352, 704)

_MDEQ_CIFAR = MDEQClassifier.Config(channels=_SMALL, head_channels=(14, 28, 56, 112), final_channels=1680)
_MDEQ_IMAGENET = MDEQClassifier.Config(
    channels=_SMALL,
    num_downsamplings=2,
    head_channels=(24, 48, 96, 192),
    final_channels=2048,
    num_classes=1000,
    post_affine=True,
)
_MDEQ_IMAGENET_LARGE = replace(_MDEQ_IMAGENET, channels=_LARGE, head_channels=(32, 64, 128, 256))
_MDEQ_CITYSCAPES = MDEQSegmenter.Config(num_downsamplings=2, num_classes=19, post_affine=True)

# Transformers are those of Table 1 and of the scripts of `locuslab/deq`.

_WT103: dict[str, Any] = {
    "vocab_size": 267_735,
    "num_heads": 10,
    "cutoffs": (20_000, 40_000, 200_000),
    "div_value": 4.0,
    # The official code has two parameters on one storage for each projection of a tail, which stay equal for ever.
    "tied": "tails",
}
_WT103_DEQ: dict[str, Any] = {
    **_WT103,
    "features": 700,
    "hidden_features": 48_000,
    "memory_length": 150,
    "window": 1000,
    "dropout": 0.05,
}
_WT103_JR: dict[str, Any] = {**_WT103_DEQ, "memory_length": 300, "dropout": 0.06, "attention_dropout": 0.01}
_WT2_CPU: dict[str, Any] = {
    "vocab_size": 33_278,
    "num_heads": 4,
    "cutoffs": (2_000, 10_000),
    "div_value": 4.0,
    "memory_length": 64,
    # 1/√128: token vectors and what is injected have a variance of one. With smaller ones, training stays for hundreds
    # of steps where all positions predict the frequencies of tokens.
    "std": 0.09,
}
_WT2_CPU_DEQ: dict[str, Any] = {**_WT2_CPU, "features": 128, "hidden_features": 512}

# Not in the paper: modern Transformer blocks, small enough for a laptop. On small grids, a base of 100 spreads the
# speeds of rotation over the distances that there are.

_VIT_DIGITS: dict[str, Any] = {
    "kind": "image",
    "image_channels": 1,
    "image_size": 8,
    "patch_size": 2,
    "features": 48,
    "num_heads": 4,
    "hidden_features": 96,
    "rotary_base": 100.0,
}
_VIT_CIFAR_CPU: dict[str, Any] = {
    "kind": "image",
    "image_size": 32,
    "patch_size": 4,
    "features": 64,
    "num_heads": 4,
    "hidden_features": 128,
    "rotary_base": 100.0,
}
_ADDITION: dict[str, Any] = {
    "kind": "grid",
    "vocab_size": 100,
    "num_classes": 10,
    "features": 64,
    "num_heads": 4,
    "hidden_features": 128,
    "rotary_base": 100.0,
}
_MODERN_WT2_CPU: dict[str, Any] = {
    "kind": "language",
    "vocab_size": 33_278,
    "cutoffs": (2_000, 10_000),
    "div_value": 4.0,
    "features": 128,
    "num_heads": 4,
    "hidden_features": 512,
}

_PRESETS: dict[str, AbstractModelConfig] = {
    "toy": ToyDEQ.Config(),
    "looped-conv": LoopedConv.Config(),
    "conv/digits": ConvDEQ.Config(image_channels=1, channels=24, hidden=48),
    "mdeq/cifar10-tiny": MDEQClassifier.Config(
        channels=(24, 24), head_channels=(8, 16), final_channels=200, dropout=0.25
    ),
    "mdeq/cifar10": replace(_MDEQ_CIFAR, dropout=0.3),
    "mdeq/cifar10-jr": replace(_MDEQ_CIFAR, dropout=0.22),
    # The widths that the paper prints; 8 groups do not divide them, see docs/fidelity.md.
    "mdeq/cifar10-paper": replace(_MDEQ_CIFAR, channels=(28, 56, 112, 224), groups=4, dropout=0.25),
    "mdeq/imagenet-small": _MDEQ_IMAGENET,
    "mdeq/imagenet-small-jr": replace(
        _MDEQ_IMAGENET, head_channels=(28, 56, 112, 224), post_affine=False, dropout=0.02
    ),
    "mdeq/imagenet-large": _MDEQ_IMAGENET_LARGE,
    "mdeq/imagenet-large-jr": replace(_MDEQ_IMAGENET_LARGE, post_affine=False),
    "mdeq/imagenet-xl": replace(_MDEQ_IMAGENET_LARGE, channels=_XL, expansion=6),
    # Not the paper's: small enough for a laptop.
    "mdeq/cifar10-cpu": MDEQClassifier.Config(
        channels=(16, 32), num_downsamplings=1, head_channels=(8, 16), final_channels=128, expansion=2, groups=4
    ),
    "mdeq/cityscapes-small": replace(_MDEQ_CITYSCAPES, channels=_SMALL, dropout=0.05),
    "mdeq/cityscapes-large": replace(_MDEQ_CITYSCAPES, channels=_LARGE, dropout=0.03),
    "mdeq/cityscapes-xl": replace(_MDEQ_CITYSCAPES, channels=_XL, expansion=6, dropout=0.04),
    "monotone/digits": MonotoneDEQ.Config(image_channels=1, channels=24, image_size=8),
    "monotone/cifar10": MonotoneDEQ.Config(image_channels=3, channels=81, image_size=32),
    "monotone/cifar10-multi": MonotoneDEQ.Config(image_channels=3, channels=64, tiers=(128, 128), image_size=32),
    # Not the paper's: as small as the multiscale DEQ for laptops.
    "resnet/cpu": ResNet.Config(blocks=(1, 1, 1), widths=(16, 32, 64), stem="cifar"),
    "resnet/18": ResNet.Config(blocks=(2, 2, 2, 2), stem="imagenet"),
    "resnet/50": ResNet.Config(block="bottleneck", blocks=(3, 4, 6, 3), stem="imagenet"),
    "resnet/101": ResNet.Config(block="bottleneck", blocks=(3, 4, 23, 3), stem="imagenet"),
    "densenet/121": DenseNet.Config(),
    "deq-transformer/wt103": DEQTransformerLM.Config(**_WT103_DEQ),
    "deq-transformer/wt103-jr": DEQTransformerLM.Config(**_WT103_JR),
    # The one of Table 1 that diverged.
    "deq-transformer/wt103-pre": DEQTransformerLM.Config(**_WT103_DEQ, norm="pre"),
    "deq-transformer/wt103-pre-jr": DEQTransformerLM.Config(**_WT103_JR, norm="pre"),
    # Not the paper's: small enough for a laptop.
    "deq-transformer/wt2-cpu": DEQTransformerLM.Config(**_WT2_CPU_DEQ),
    # Paper: 18 layers and 110 million parameters; it gives no widths, and these are ours. Dropout is that of
    # Transformer-XL's own script.
    "transformer-xl/wt103": TransformerXL.Config(
        **_WT103, num_layers=18, features=600, hidden_features=2540, memory_length=150, dropout=0.1
    ),
    # As many parameters as the DEQ: depth at the price of width.
    "transformer-xl/wt2-cpu": TransformerXL.Config(**_WT2_CPU, num_layers=4, features=96, hidden_features=350),
    # Not in the paper: as deep as its regularized DEQ has evaluations.
    "tied-transformer/wt103": TiedTransformer.Config(**_WT103_DEQ, depth=12),
    "tied-transformer/wt2-cpu": TiedTransformer.Config(**_WT2_CPU_DEQ, depth=12),
    "vit/digits": EquilibriumTransformer.Config(**_VIT_DIGITS),
    "stacked-vit/digits": StackedTransformer.Config(**_VIT_DIGITS, depth=6),
    "vit/cifar10-cpu": EquilibriumTransformer.Config(**_VIT_CIFAR_CPU),
    "stacked-vit/cifar10-cpu": StackedTransformer.Config(**_VIT_CIFAR_CPU, depth=6),
    "modern/addition": EquilibriumTransformer.Config(**_ADDITION),
    "stacked-modern/addition": StackedTransformer.Config(**_ADDITION, depth=6),
    "modern/wt2-cpu": EquilibriumTransformer.Config(**_MODERN_WT2_CPU),
    "stacked-modern/wt2-cpu": StackedTransformer.Config(**_MODERN_WT2_CPU, depth=6),
}


def available() -> tuple[str, ...]:
    """Return the names that `preset` and `create` take.

    Example:
        >>> "toy" in available()
        True
    """
    return tuple(sorted(_PRESETS))


def preset(name: str) -> AbstractModelConfig:
    """Return the config of a model by name.

    Args:
        name: One of `available()`.

    Raises:
        ValueError: There is no such preset.

    Example:
        >>> preset("resnet/cpu").widths
        (16, 32, 64)
    """
    if name not in _PRESETS:
        raise ValueError(f"There is no model {name!r}.{suggestion(name, _PRESETS)} See steadeq.models.available().")
    return _PRESETS[name]


def create(name: str, **overrides: Any) -> nn.Module:
    """Build a model by the name of its preset.

    Args:
        name: One of `available()`.
        **overrides: Fields of the config that override the preset's, and arguments of the model such as
            `solver` and `adjoint`.

    Returns:
        The model, freshly initialized.

    Raises:
        ValueError: There is no such preset.

    Example:
        >>> create("toy", hidden=10).config
        ToyDEQ.Config(hidden=10)
    """
    config = preset(name)
    return config.model_class(config, **overrides)
