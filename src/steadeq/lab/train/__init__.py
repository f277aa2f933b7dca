"""Training: the loop, metrics, evaluation."""

from .distributed import Process
from .loop import Trainer

__all__ = ["Process", "Trainer"]
