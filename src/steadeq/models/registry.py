"""Models by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from ..errors import suggestion
from .conv import ConvDEQ
from .densenet import DenseNet
from .mdeq.presets import CLASSIFIERS, SEGMENTERS, build_classifier, build_segmenter
from .monotone import MonotoneDEQ
from .resnet import ResNet
from .toy import ToyDEQ
from .transformer import DEQTransformerLM, TransformerXL
from .transformer.presets import DEQ_TRANSFORMERS, TIED_TRANSFORMERS, TRANSFORMER_XLS, build_tied_transformer

_PRESETS: dict[str, Callable[..., nn.Module]] = {
    "toy": ToyDEQ,
    "conv/digits": partial(ConvDEQ, image_channels=1, channels=24, hidden=48),
    **{f"mdeq/{name}": partial(build_classifier, **options) for name, options in CLASSIFIERS.items()},
    **{f"mdeq/{name}": partial(build_segmenter, **options) for name, options in SEGMENTERS.items()},
    "monotone/digits": partial(MonotoneDEQ, image_channels=1, channels=24, image_size=8),
    "monotone/cifar10": partial(MonotoneDEQ, image_channels=3, channels=81, image_size=32),
    # Not the paper's: as small as the multiscale DEQ for laptops.
    "resnet/cpu": partial(ResNet, blocks=(1, 1, 1), widths=(16, 32, 64), stem="cifar"),
    "resnet/18": partial(ResNet, blocks=(2, 2, 2, 2)),
    "resnet/50": partial(ResNet, block="bottleneck", blocks=(3, 4, 6, 3)),
    "resnet/101": partial(ResNet, block="bottleneck", blocks=(3, 4, 23, 3)),
    "densenet/121": DenseNet,
    **{f"deq-transformer/{name}": partial(DEQTransformerLM, **options) for name, options in DEQ_TRANSFORMERS.items()},
    **{f"transformer-xl/{name}": partial(TransformerXL, **options) for name, options in TRANSFORMER_XLS.items()},
    **{
        f"tied-transformer/{name}": partial(build_tied_transformer, **options)
        for name, options in TIED_TRANSFORMERS.items()
    },
}


def available() -> tuple[str, ...]:
    """Return the names that `create` takes.

    Example:
        >>> "toy" in available()
        True
    """
    return tuple(sorted(_PRESETS))


def create(name: str, **overrides: Any) -> nn.Module:
    """Build a model by the name of its preset.

    Args:
        name: One of `available()`.
        **overrides: Arguments of the model that take the place of the preset's.

    Returns:
        The model, freshly initialized.

    Raises:
        ValueError: There is no such preset.

    Example:
        >>> model = create("toy", hidden=10)
    """
    if name not in _PRESETS:
        raise ValueError(f"There is no model {name!r}.{suggestion(name, _PRESETS)} See steadeq.models.available().")
    return _PRESETS[name](**overrides)
