"""Small Sudokus with one solution, which constraints that act on each other determine."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from ..tasks import Tagging
from .dataset import InMemory, check_limited
from .generated import AbstractGenerated

_BOXES = {4: (2, 2), 6: (2, 3)}
"""Height and width of the boxes, by the size of the grid."""
_FRESH = 64
"""Number of puzzles of which one is made from scratch; the others are that one in disguise."""


@dataclass(frozen=True, kw_only=True)
class Sudoku(AbstractGenerated):
    """Sudokus of 4 by 4 or 6 by 6 cells from which no more digits can be taken away, and their only solutions.

    An input has a token for each cell, row by row: its digit, or 0 if it is empty. Targets are the digits less one. As
    puzzles are slow to make, most are a fresh one with other digits, and with rows and columns in another order; those
    to train, validate and test on are made from different fresh ones.

    Example:
        >>> x, y = Sudoku(num_train=1, num_validation=1, num_test=1).load().train[0]
        >>> int((x > 0).sum()), bool(((x == 0) | (x == y + 1)).all())
        (4, True)
    """

    name = "sudoku"
    task = Tagging()

    num_train: int = 6_400
    size: int = 4
    """Number of rows, columns and digits: 4 or 6."""

    def __post_init__(self) -> None:
        check_limited("size", self.size, maximum=max(_BOXES))
        if self.size not in _BOXES:
            raise ValueError(f"size is {self.size}; it must be 4 or 6.")
        super().__post_init__()

    def draw(self, count: int, generator: torch.Generator) -> InMemory:
        rng = random.Random(int(torch.randint(2**62, (), generator=generator)))
        puzzles, solutions = [], []
        for begin in range(0, count, _FRESH):
            puzzle, solution = _make(self.size, rng)
            for _ in range(min(_FRESH, count - begin)):
                cells, digits = _disguise(self.size, rng)
                puzzles.append(digits[puzzle[cells]])
                solutions.append(digits[solution[cells]] - 1)
        return InMemory(inputs=torch.stack(puzzles), targets=torch.stack(solutions))


def _peers(size: int) -> list[list[int]]:
    """Return the cells that may not have the digit of a cell, for each cell."""
    height, width = _BOXES[size]

    def groups(cell: int) -> tuple[int, int, tuple[int, int]]:
        row, column = divmod(cell, size)
        return row, column, (row // height, column // width)

    cells = range(size * size)
    return [
        [other for other in cells if other != cell and any(a == b for a, b in zip(groups(cell), groups(other)))]  # noqa: B905
        for cell in cells
    ]


def solutions_of(puzzle: list[int], size: int, *, limit: int, rng: random.Random | None = None) -> list[list[int]]:
    """Return the solutions of a puzzle, at most so many; in random order, if there is a generator."""
    peers, grid, found = _peers(size), list(puzzle), list[list[int]]()

    def search() -> None:
        options: tuple[int, list[int]] | None = None
        for cell, digit in enumerate(grid):
            if digit == 0:
                taken = {grid[peer] for peer in peers[cell]}
                free = [digit for digit in range(1, size + 1) if digit not in taken]
                # The cell with the fewest digits first.
                if options is None or len(free) < len(options[1]):
                    options = cell, free
        if options is None:
            found.append(list(grid))
            return
        cell, free = options
        if rng is not None:
            rng.shuffle(free)
        for digit in free:
            grid[cell] = digit
            search()
            grid[cell] = 0
            if len(found) >= limit:
                return

    search()
    return found


def _make(size: int, rng: random.Random) -> tuple[Tensor, Tensor]:
    """Return a puzzle from which no digit can be taken away, and its solution."""
    solution = solutions_of([0] * size**2, size, limit=1, rng=rng)[0]
    puzzle = list(solution)
    for cell in rng.sample(range(size**2), size**2):
        digit, puzzle[cell] = puzzle[cell], 0
        if len(solutions_of(puzzle, size, limit=2)) > 1:
            puzzle[cell] = digit
    return torch.tensor(puzzle), torch.tensor(solution)


def _disguise(size: int, rng: random.Random) -> tuple[Tensor, Tensor]:
    """Return the cells of a puzzle in another order that keeps its rules, and other digits (0 stays 0)."""
    height, width = _BOXES[size]

    def reorder(length: int) -> list[int]:
        bands = [range(begin, begin + length) for begin in range(0, size, length)]
        return [line for band in rng.sample(bands, len(bands)) for line in rng.sample(band, length)]

    rows, columns = torch.tensor(reorder(height)), torch.tensor(reorder(width))
    return (size * rows[:, None] + columns).flatten(), torch.tensor([0, *rng.sample(range(1, size + 1), size)])
