"""Monotone operator equilibrium networks (Winston and Kolter, 2020): an equilibrium exists for every input."""

from .cell import MonotoneCell, SharedStep, Splitting
from .classifier import MonotoneDEQ
from .operator import AbstractMonotoneOperator, MonotoneConv, MonotoneLinear, norm_bound, resolvent

__all__ = [
    "AbstractMonotoneOperator",
    "MonotoneCell",
    "MonotoneConv",
    "MonotoneDEQ",
    "MonotoneLinear",
    "SharedStep",
    "Splitting",
    "norm_bound",
    "resolvent",
]
