"""Mazes with one way through: the longer the way, the more steps it takes to find it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from ..tasks import Tagging
from .dataset import InMemory, check_limited
from .generated import AbstractGenerated

_MAX_SIZE, _MAX_PIXELS = 255, 1 << 27


@dataclass(frozen=True, kw_only=True)
class Mazes(AbstractGenerated):
    """Pictures of mazes with a start and a goal, and the pixels of the one way between them.

    A task of Schwarzschild et al. (2021). A maze is carved by a random depth-first search, so that there is exactly one
    way between any two of its places. The channels of a picture are what is open, the start, and the goal.

    Example:
        >>> x, y = Mazes(num_train=1, num_validation=1, num_test=1, size=7).load().train[0]
        >>> print(draw_maze(x, y))  # S start, G goal, o the way
        #######
        #ooooo#
        #o###o#
        #S#Goo#
        ### ###
        #     #
        #######
    """

    name = "mazes"
    task = Tagging()

    num_train: int = 6_400
    size: int = 9
    """Height and width of the pictures, in pixels; an odd number, as walls lie between places."""

    def __post_init__(self) -> None:
        check_limited("size", self.size, minimum=5, maximum=_MAX_SIZE)
        if self.size % 2 == 0:
            raise ValueError(f"size is {self.size}; it must be odd, as walls lie between places.")
        super().__post_init__()

    @property
    def max_samples(self) -> int:
        return _MAX_PIXELS // self.size**2

    def draw(self, count: int, generator: torch.Generator) -> InMemory:
        rng = random.Random(int(torch.randint(2**62, (), generator=generator)))
        inputs = torch.zeros(count, 3, self.size, self.size)
        targets = torch.zeros(count, self.size, self.size, dtype=torch.int64)
        places = [(row, column) for row in range(1, self.size, 2) for column in range(1, self.size, 2)]
        for picture, way in zip(inputs, targets, strict=True):
            start, goal = rng.sample(places, 2)
            before = _carve(picture[0], start, rng)
            picture[1][start] = picture[2][goal] = 1
            place, way[start] = goal, 1
            while place != start:
                other = before[place]
                way[place] = way[_between(place, other)] = 1
                place = other
        return InMemory(inputs=inputs, targets=targets)


def _carve(is_open: Tensor, start: tuple[int, int], rng: random.Random) -> dict[tuple[int, int], tuple[int, int]]:
    """Open the ways of a maze; return the place before each place on the way from the start."""
    size, path, before = len(is_open), [start], {start: start}
    is_open[start] = 1
    while path:
        row, column = path[-1]
        around = ((row - 2, column), (row + 2, column), (row, column - 2), (row, column + 2))
        found = [place for place in around if place not in before and min(place) > 0 and max(place) < size]
        if not found:
            path.pop()
            continue
        place = rng.choice(found)
        before[place] = path[-1]
        is_open[place] = is_open[_between(place, path[-1])] = 1
        path.append(place)
    return before


def _between(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return (a[0] + b[0]) // 2, (a[1] + b[1]) // 2


def draw_maze(picture: Tensor, way: Tensor) -> str:
    """Return a maze as text: # for walls, S and G for start and goal, o for the way."""
    is_open, is_start, is_goal = picture.bool()
    kinds = torch.where(is_open, 1 + way, 0)
    kinds = torch.where(is_goal, 4, torch.where(is_start, 3, kinds))
    return "\n".join("".join("# oSG"[kind] for kind in row) for row in kinds.tolist())
