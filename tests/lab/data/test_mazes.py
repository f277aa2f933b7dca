"""Mazes, whose targets a search finds too."""

from collections import deque

import pytest

from steadeq.lab.data import Mazes


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
    x, y = Mazes(num_train=20, num_validation=1, num_test=1, size=size).load().train.all()
    assert x.shape == (20, 3, size, size)
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


@pytest.mark.parametrize("size", [3, 8, 1001])
def test_sizes_that_make_no_sense_are_refused(size):
    with pytest.raises(ValueError, match="size is"):
        Mazes(size=size)
