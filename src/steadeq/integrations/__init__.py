"""Bridges to other libraries: training frameworks, trackers, and libraries of equilibrium models.

`Monitor` is what they share: it watches all solves of a training step, returns their penalty, and keeps the numbers to
log. It needs torch alone, and works in a loop of your own and with Accelerate. The other bridges live in
modules of their own, which import the library that they are for: `lightning`, `transformers`, `torchdeq` and `deepinv`.
"""

from .monitor import Monitor

__all__ = ["Monitor"]
