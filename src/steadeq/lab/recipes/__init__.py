"""Recipes: functions that return a complete config, by the name under which they are trained."""

from . import (
    addition,
    cifar10,
    cityscapes,
    digits,
    fashion_mnist,
    imagenet,
    mazes,
    modern,
    prefix_sums,
    shapes,
    sudoku,
    synthetic,
    wikitext2,
    wikitext103,
)
from .registry import Recipe, Scale, call_function, get, load_recipe, names, names_function, recipe

__all__ = [
    "Recipe",
    "Scale",
    "addition",
    "call_function",
    "cifar10",
    "cityscapes",
    "digits",
    "fashion_mnist",
    "get",
    "imagenet",
    "load_recipe",
    "mazes",
    "modern",
    "names",
    "names_function",
    "prefix_sums",
    "recipe",
    "shapes",
    "sudoku",
    "synthetic",
    "wikitext2",
    "wikitext103",
]
