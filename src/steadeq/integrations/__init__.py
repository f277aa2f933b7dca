"""Bridges to other libraries: training frameworks, trackers, and libraries of equilibrium models.

They share `Monitor`, which watches all solves of a training step, returns their penalty, and collects the numbers to
log. It needs only torch, and works in your own training loop and with Accelerate. The other bridges are separate
modules that import their library: `lightning`, `transformers`, `torchdeq` and `deepinv`.
"""

from .monitor import Monitor

__all__ = ["Monitor"]
