"""Networks built around an equilibrium; each forward returns `(output, Solution)`."""

from .base import AbstractEquilibriumModel, Equilibrium
from .conv import ConvCell, ConvDEQ
from .mdeq import MDEQ, MDEQCell, MDEQClassifier, MDEQSegmenter
from .registry import available, create
from .toy import ToyCell, ToyDEQ

__all__ = [
    "MDEQ",
    "AbstractEquilibriumModel",
    "ConvCell",
    "ConvDEQ",
    "Equilibrium",
    "MDEQCell",
    "MDEQClassifier",
    "MDEQSegmenter",
    "ToyCell",
    "ToyDEQ",
    "available",
    "create",
]
