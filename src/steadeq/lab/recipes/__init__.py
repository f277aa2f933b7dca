"""Recipes: functions that return a complete config, by the name under which they are trained."""

from . import (
    cifar10,
    cityscapes,
    digits,
    fashion_mnist,
    imagenet,
    imagenette64,
    shapes,
    synthetic,
    wikitext2,
    wikitext103,
)
from .loading import load_recipe
from .registry import Recipe, Scale, get, names, recipe

__all__ = [
    "Recipe",
    "Scale",
    "cifar10",
    "cityscapes",
    "digits",
    "fashion_mnist",
    "get",
    "imagenet",
    "imagenette64",
    "load_recipe",
    "names",
    "recipe",
    "shapes",
    "synthetic",
    "wikitext2",
    "wikitext103",
]
