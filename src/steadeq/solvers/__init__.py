"""Solvers: how to find a fixed point, and how to solve the linear system of its gradient."""

from .anderson import Anderson
from .base import AbstractLinearSolver, AbstractSolver, Evaluation
from .broyden import Broyden
from .depth import AbstractDepth, LogNormalDepth, UniformDepth
from .gmres import GMRES
from .loop import Loop
from .newton_krylov import NewtonKrylov
from .picard import Picard

__all__ = [
    "GMRES",
    "AbstractDepth",
    "AbstractLinearSolver",
    "AbstractSolver",
    "Anderson",
    "Broyden",
    "Evaluation",
    "LogNormalDepth",
    "Loop",
    "NewtonKrylov",
    "Picard",
    "UniformDepth",
]
