"""Recipes: functions that return a complete config, by the name under which they are trained."""

from . import digits, synthetic
from .registry import Recipe, get, names

__all__ = ["Recipe", "digits", "get", "names", "synthetic"]
