"""Training: configs, the loop, checkpoints, metrics, evaluation."""

from .config import (
    AbstractDataConfig,
    AbstractModelConfig,
    BackwardConfig,
    ForwardConfig,
    JacobianConfig,
    LogConfig,
    LoopConfig,
    OptimizerConfig,
    TrainConfig,
    WarmupConfig,
)
from .distributed import Process
from .loop import Trainer
from .run import Run
from .task import AbstractTask, Classification, LanguageModeling, Regression

__all__ = [
    "AbstractDataConfig",
    "AbstractModelConfig",
    "AbstractTask",
    "BackwardConfig",
    "Classification",
    "ForwardConfig",
    "JacobianConfig",
    "LanguageModeling",
    "LogConfig",
    "LoopConfig",
    "OptimizerConfig",
    "Process",
    "Regression",
    "Run",
    "TrainConfig",
    "Trainer",
    "WarmupConfig",
]
