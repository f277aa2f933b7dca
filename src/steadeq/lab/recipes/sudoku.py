"""Small Sudokus, with the looped Transformer block of the recipe `addition`."""

from __future__ import annotations

from dataclasses import replace

from ...models import preset
from ..config import TrainConfig
from ..data import Sudoku
from .addition import addition
from .registry import recipe, regularized


@recipe("sudoku", scale="cpu")
def sudoku() -> TrainConfig:
    """An equilibrium Transformer looped over the cells of a Sudoku of 4 by 4, 12 times on average, not regularized."""
    return replace(addition(), model=replace(preset("modern/addition"), vocab_size=5, num_classes=4), data=Sudoku())


@recipe("sudoku-jr", scale="cpu")
def sudoku_jr() -> TrainConfig:
    """An equilibrium Transformer looped over the cells of a Sudoku of 4 by 4, with Jacobian regularization."""
    return regularized(sudoku(), weight=0.3)
