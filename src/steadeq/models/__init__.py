"""Networks built around an equilibrium; each forward returns `(output, Solution)`."""

from .base import AbstractEquilibriumModel, Equilibrium
from .conv import ConvCell, ConvDEQ
from .registry import available, create
from .toy import ToyCell, ToyDEQ

__all__ = [
    "AbstractEquilibriumModel",
    "ConvCell",
    "ConvDEQ",
    "Equilibrium",
    "ToyCell",
    "ToyDEQ",
    "available",
    "create",
]
