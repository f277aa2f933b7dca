"""Data that is drawn from a seed: targets that another way to find them finds too."""

from collections import deque
from itertools import permutations, product

import pytest
import torch

from steadeq.lab.data import Addition, Mazes, PrefixSums, Shapes, Sudoku
from steadeq.lab.data.sudoku import solutions_of
from steadeq.lab.tasks import Tagging


@pytest.mark.parametrize("kind", [Addition, Mazes, PrefixSums, Shapes, Sudoku])
def test_samples_are_a_function_of_the_seed_and_never_the_same_in_two_splits(kind):
    first, again, other = (kind(num_train=300, num_validation=30, num_test=50, seed=seed).load() for seed in (1, 1, 2))
    splits = ("train", "validation", "test")
    assert [len(getattr(first, split)) for split in splits] == [300, 30, 50]
    for split in splits:
        assert all(map(torch.equal, getattr(first, split).all(), getattr(again, split).all()))
        assert not torch.equal(getattr(first, split).inputs, getattr(other, split).inputs)
    rows = [{bytes(x.flatten().byte().tolist()) for x in getattr(first, split).inputs} for split in splits]
    assert sum(map(len, rows)) == len(set.union(*rows))


# Sums


def number(digits):
    """Return the number with some digits, the lowest first."""
    return sum(digit * 10**place for place, digit in enumerate(digits))


def test_targets_are_the_digits_of_the_sums():
    x, y = Addition(num_train=200, num_digits=7).load().train.all()
    assert x.shape == y.shape == (200, 8)
    assert not x[:, 7].any(), "the last position takes the carry"
    for tokens, digits in zip(x.tolist(), y.tolist(), strict=True):
        assert number(token // 10 for token in tokens) + number(token % 10 for token in tokens) == number(digits)


def test_carries_travel_far():
    x, _ = Addition(num_digits=30).load().train.batch(torch.arange(1_000))
    sums = x[:, :30] // 10 + x[:, :30] % 10
    # Half of the positions by choice, and a tenth of the others by chance.
    assert (sums == 9).double().mean().item() == pytest.approx(0.55, abs=0.01)


def test_targets_are_the_parities_of_the_ones_so_far():
    x, y = PrefixSums(num_train=50, num_bits=9).load().train.all()
    assert x.shape == (50, 1, 9)
    for bits, parities in zip(x[:, 0].int().tolist(), y.tolist(), strict=True):
        assert parities == [sum(bits[: end + 1]) % 2 for end in range(9)]


def test_a_sequence_is_right_only_where_all_of_it_is():
    target = torch.tensor([[0, 1, 1], [1, 1, 0]])
    output = torch.nn.functional.one_hot(torch.tensor([[0, 1, 1], [1, 0, 0]]), 2).movedim(-1, 1).float()
    task = Tagging()
    losses = task.losses(output, target)
    assert task.scores(output, target, losses).tolist() == [1.0, 0.0]
    # The loss of a sequence is the mean over its positions.
    right, wrong = (torch.log1p(torch.exp(torch.tensor(sign))) for sign in (-1.0, 1.0))
    torch.testing.assert_close(losses, torch.stack([right, (2 * right + wrong) / 3]))
    with pytest.raises(ValueError, match="output is"):
        task.check(output[..., :2], target)
    with pytest.raises(ValueError, match="num_classes is 2"):
        task.check(output, target + 1)


# Mazes


def shortest_way(is_open, start, goal):
    """Return the pixels of a shortest way, by breadth-first search."""
    before, queue = {start: start}, deque([start])
    while queue:
        row, column = queue.popleft()
        for place in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if is_open[place] and place not in before:
                before[place] = (row, column)
                queue.append(place)
    way = {goal}
    while goal != start:
        goal = before[goal]
        way.add(goal)
    return way, len(before)


@pytest.mark.parametrize("size", [5, 9, 31])
def test_targets_are_the_shortest_ways_and_there_is_no_other_way(size):
    x, y = Mazes(num_train=10, num_validation=1, num_test=1, size=size).load().train.all()
    assert x.shape == (10, 3, size, size)
    num_places = ((size - 1) // 2) ** 2
    for (is_open, is_start, is_goal), target in zip(x.bool(), y, strict=True):
        (start,), (goal,) = is_start.nonzero().tolist(), is_goal.nonzero().tolist()
        way, num_reached = shortest_way(is_open, tuple(start), tuple(goal))
        assert {tuple(place) for place in target.nonzero().tolist()} == way
        # A tree: as many passages as places, less one, and all of it can be reached.
        assert num_reached == int(is_open.sum()) == 2 * num_places - 1
        assert start != goal


def test_ways_get_longer_with_the_size():
    lengths = [Mazes(num_train=1, num_validation=1, num_test=64, size=size).load().test.all()[1] for size in (9, 29)]
    small, large = (target.flatten(1).sum(dim=1).double().mean().item() for target in lengths)
    assert large > 4 * small


# Sudokus: trying all grids finds one solution, and more if any digit is taken away.


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


def test_puzzles_have_one_solution_and_no_digit_too_many():
    squares = (
        [digit for row in rows for digit in row]
        for rows in product(permutations((1, 2, 3, 4)), repeat=4)
        if all(len(set(column)) == 4 for column in zip(*rows, strict=True))
    )
    grids = [grid for grid in squares if is_solution(grid, 4)]
    # As many as is known.
    assert len(grids) == 288

    def count(puzzle):
        return sum(all(digit in (0, known) for digit, known in zip(puzzle, grid, strict=True)) for grid in grids)

    x, y = Sudoku(num_train=80, num_validation=1, num_test=1).load().train.all()
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


# Shapes


def test_each_shape_is_what_its_label_says():
    """A disk fills π/4 of its bounding square, a square 1/2 to all of it, a triangle about a half at most."""
    splits = Shapes(num_train=400, num_validation=1, num_test=1, size=48).load()
    fills = {1: [], 2: [], 3: []}
    for labels in splits.train.targets:
        present = torch.unique(labels[labels > 0])
        if len(present) != 1:
            continue
        ys, xs = (labels > 0).nonzero(as_tuple=True)
        height, width = int(ys.max() - ys.min()) + 1, int(xs.max() - xs.min()) + 1
        inside = min(int(ys.min()), int(xs.min())) > 0 and max(int(ys.max()), int(xs.max())) < 47
        if inside:
            fills[int(present)].append(len(ys) / (height * width))
    medians = {kind: float(torch.tensor(values).median()) for kind, values in fills.items()}
    assert abs(medians[1] - 0.785) < 0.03
    assert medians[3] < 0.56
    assert max(fills[2]) > 0.85
