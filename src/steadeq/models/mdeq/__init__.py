"""Multiscale deep equilibrium networks."""

from .cell import MDEQCell
from .model import MDEQ, MDEQClassifier, MDEQSegmenter

__all__ = ["MDEQ", "MDEQCell", "MDEQClassifier", "MDEQSegmenter"]
