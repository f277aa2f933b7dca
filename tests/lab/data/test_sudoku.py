"""Small Sudokus: trying all grids finds one solution, and more if any digit is taken away."""

from itertools import permutations, product

import torch

from steadeq.lab.data import Sudoku
from steadeq.lab.data.sudoku import solutions_of


def is_solution(grid, size):
    """Return whether every row, column and box has every digit."""
    height, width = {4: (2, 2), 6: (2, 3)}[size]
    everything = set(range(1, size + 1))
    rows = [grid[begin : begin + size] for begin in range(0, size * size, size)]
    boxes = [
        [rows[top + a][left + b] for a in range(height) for b in range(width)]
        for top in range(0, size, height)
        for left in range(0, size, width)
    ]
    return all(set(group) == everything for group in (*rows, *zip(*rows, strict=True), *boxes))


GRIDS = [
    grid
    for rows in product(permutations((1, 2, 3, 4)), repeat=4)
    if is_solution(grid := [digit for row in rows for digit in row], 4)
]


def count(puzzle):
    """Return the number of all grids of 4 by 4 that fit a puzzle."""
    return sum(all(digit in (0, known) for digit, known in zip(puzzle, grid, strict=True)) for grid in GRIDS)


def test_there_are_as_many_grids_as_is_known():
    assert len(GRIDS) == 288


def test_puzzles_have_one_solution_and_no_digit_too_many():
    x, y = Sudoku(num_train=150, num_validation=1, num_test=1).load().train.all()
    for puzzle, solution in zip(x.tolist(), (y + 1).tolist(), strict=True):
        assert count(puzzle) == 1
        assert all(digit in (0, known) for digit, known in zip(puzzle, solution, strict=True))
        assert is_solution(solution, 4)
        for cell in range(16):
            assert puzzle[cell] == 0 or count([*puzzle[:cell], 0, *puzzle[cell + 1 :]]) > 1
        assert sorted(solutions_of(puzzle, 4, limit=2)) == [solution]


def test_larger_puzzles_have_one_solution_too():
    x, y = Sudoku(num_train=70, num_validation=1, num_test=1, size=6).load().train.all()
    for puzzle, solution in zip(x.tolist()[::10], (y + 1).tolist()[::10], strict=True):
        assert solutions_of(puzzle, 6, limit=2) == [solution]
        assert is_solution(solution, 6)
        assert 6 <= sum(digit > 0 for digit in puzzle) <= 18
    assert len({tuple(puzzle) for puzzle in x.tolist()}) == 70


def test_puzzles_are_drawn_from_the_seed():
    first, again, other = (Sudoku(num_train=10, seed=seed).load().train.all()[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
