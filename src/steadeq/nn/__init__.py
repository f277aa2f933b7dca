"""Modules."""

from .deq import DEQ

__all__ = ["DEQ"]
