"""The published configurations of multiscale DEQs (the yaml files of `locuslab/deq`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .model import MDEQ, MDEQClassifier, MDEQSegmenter

_CIFAR = {"channels": (32, 64, 128, 256), "head_channels": (14, 28, 56, 112), "final_channels": 1680}
_IMAGENET = {"num_downsamplings": 2, "num_classes": 1000, "final_channels": 2048, "post_affine": True}
_CITYSCAPES = {"num_downsamplings": 2, "num_classes": 19, "post_affine": True}
_SMALL = (32, 64, 128, 256)
_LARGE = (80, 160, 320, 640)
_XL = (88, 176, 352, 704)

CLASSIFIERS: dict[str, dict[str, Any]] = {
    "cifar10-tiny": {"channels": (24, 24), "head_channels": (8, 16), "final_channels": 200, "dropout": 0.25},
    "cifar10": {**_CIFAR, "dropout": 0.3},
    "cifar10-jr": {**_CIFAR, "dropout": 0.22},
    # The widths that the paper prints; 8 groups do not divide them, see docs/fidelity.md.
    "cifar10-paper": {**_CIFAR, "channels": (28, 56, 112, 224), "groups": 4, "dropout": 0.25},
    "imagenet-small": {**_IMAGENET, "channels": _SMALL, "head_channels": (24, 48, 96, 192)},
    "imagenet-small-jr": {
        **_IMAGENET,
        "channels": _SMALL,
        "head_channels": (28, 56, 112, 224),
        "post_affine": False,
        "dropout": 0.02,
    },
    "imagenet-large": {**_IMAGENET, "channels": _LARGE, "head_channels": (32, 64, 128, 256)},
    "imagenet-large-jr": {**_IMAGENET, "channels": _LARGE, "head_channels": (32, 64, 128, 256), "post_affine": False},
    "imagenet-xl": {**_IMAGENET, "channels": _XL, "head_channels": (32, 64, 128, 256), "expansion": 6},
    # Not the paper's: small enough for a laptop.
    "cifar10-cpu": {
        "channels": (16, 32),
        "num_downsamplings": 1,
        "head_channels": (8, 16),
        "final_channels": 128,
        "expansion": 2,
        "groups": 4,
    },
}
SEGMENTERS: dict[str, dict[str, Any]] = {
    "cityscapes-small": {**_CITYSCAPES, "channels": _SMALL, "dropout": 0.05},
    "cityscapes-large": {**_CITYSCAPES, "channels": _LARGE, "dropout": 0.03},
    "cityscapes-xl": {**_CITYSCAPES, "channels": _XL, "expansion": 6, "dropout": 0.04},
}


def build_classifier(**options: Any) -> MDEQClassifier:
    """Return a classifier from the arguments of `MDEQ` and `MDEQClassifier` together."""
    backbone, head = _split(MDEQClassifier, options)
    return MDEQClassifier(backbone=MDEQ(**backbone), **head)


def build_segmenter(**options: Any) -> MDEQSegmenter:
    """Return a segmenter from the arguments of `MDEQ` and `MDEQSegmenter` together."""
    backbone, head = _split(MDEQSegmenter, options)
    return MDEQSegmenter(backbone=MDEQ(**backbone), **head)


def _split(head: Callable[..., Any], options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    names = inspect.signature(head).parameters.keys() - {"backbone"}
    return {k: v for k, v in options.items() if k not in names}, {k: v for k, v in options.items() if k in names}
