"""Recipes: functions that return a complete config, by the name under which they are trained."""

from . import (
    addition,
    cifar10,
    cityscapes,
    day,
    digits,
    fashion_mnist,
    imagenet,
    modern,
    prefix_sums,
    shapes,
    synthetic,
    wikitext2,
    wikitext103,
)
from .registry import Recipe, Scale, get, load_recipe, names, recipe

__all__ = [
    "Recipe",
    "Scale",
    "addition",
    "cifar10",
    "cityscapes",
    "day",
    "digits",
    "fashion_mnist",
    "get",
    "imagenet",
    "load_recipe",
    "modern",
    "names",
    "prefix_sums",
    "recipe",
    "shapes",
    "synthetic",
    "wikitext2",
    "wikitext103",
]
