"""Adjoints: how to differentiate a fixed point."""

from .base import AbstractAdjoint, AbstractLinearAdjoint, Problem
from .implicit import Implicit
from .phantom import OneStep, Phantom
from .reversible import Reversible
from .shine import Shine
from .unrolled import Unrolled

__all__ = [
    "AbstractAdjoint",
    "AbstractLinearAdjoint",
    "Implicit",
    "OneStep",
    "Phantom",
    "Problem",
    "Reversible",
    "Shine",
    "Unrolled",
]
