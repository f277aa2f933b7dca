"""Data: what is part of the package, and readers of official layouts."""

from . import cifar10, digits, synthetic
from .dataset import AbstractDataset, Dataset, Splits
from .locations import find, require, search_path

__all__ = ["AbstractDataset", "Dataset", "Splits", "cifar10", "digits", "find", "require", "search_path", "synthetic"]
