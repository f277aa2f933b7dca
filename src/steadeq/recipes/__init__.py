"""Recipes: functions that return a complete config, by the name under which they are trained."""

from . import (
    cifar10,
    digits,
    fashion_mnist,
    imagenet,
    mdeq,
    monotone,
    resnet,
    synthetic,
    text,
    transformers,
    wikitext2,
    wikitext103,
)
from .registry import Recipe, get, names

__all__ = [
    "Recipe",
    "cifar10",
    "digits",
    "fashion_mnist",
    "get",
    "imagenet",
    "mdeq",
    "monotone",
    "names",
    "resnet",
    "synthetic",
    "text",
    "transformers",
    "wikitext2",
    "wikitext103",
]
