"""Recipes: functions that return a complete config, by the name under which they are trained."""

from . import cifar10, digits, mdeq, synthetic
from .registry import Recipe, get, names

__all__ = ["Recipe", "cifar10", "digits", "get", "mdeq", "names", "synthetic"]
