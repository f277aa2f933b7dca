"""Solvers: how to find a fixed point."""

from .anderson import Anderson
from .base import AbstractSolver, Rule
from .broyden import Broyden
from .gmres import GMRES
from .newton_krylov import NewtonKrylov
from .picard import Picard

__all__ = ["GMRES", "AbstractSolver", "Anderson", "Broyden", "NewtonKrylov", "Picard", "Rule"]
