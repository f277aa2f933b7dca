"""Monotone operator equilibrium networks (Winston and Kolter, 2020): an equilibrium exists for every input."""

from .cell import MonotoneCell, SharedStep, Splitting
from .classifier import MonotoneDEQ
from .convolution import MonotoneConv, MonotoneMultiConv
from .operator import AbstractMonotoneOperator, MonotoneLinear, norm_bound, resolvent

__all__ = [
    "AbstractMonotoneOperator",
    "MonotoneCell",
    "MonotoneConv",
    "MonotoneDEQ",
    "MonotoneLinear",
    "MonotoneMultiConv",
    "SharedStep",
    "Splitting",
    "norm_bound",
    "resolvent",
]
