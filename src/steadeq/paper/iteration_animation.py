"""A maze that networks solve, evaluation by evaluation, as a GIF."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from ..lab.notation import plural
from ..lab.report.style import BLUE, GRAY, INK, PALETTE, RED
from ..models import AbstractEquilibriumModel
from ..solvers import Loop

_PIXELS, _MARGIN, _LINE = 8, 8, 14
"""Width of a place of the maze, of the space around it, and height of a line of text, in pixels."""
_SECONDS, _LAST_SECONDS = 0.12, 3.0
"""For how long a frame is shown, and the last one."""


@torch.no_grad()
def animate(models: Mapping[str, AbstractEquilibriumModel], x: Tensor, y: Tensor, depth: int, path: Path) -> None:
    """Write a GIF of models that solve the same maze side by side.

    It shows each evaluation up to twice the training depth, and then as many more as make 64 times it. What is marked
    and belongs to the way is blue, what is marked and does not is orange.

    Args:
        models: Networks by the names that are written above them.
        x: (3, size, size) picture.
        y: (size, size) way.
        depth: Evaluations in training.
        path: The file.
    """
    budgets = [*range(1, 2 * depth + 1), *(2 * depth + round(62 * depth * (k / 24) ** 3) for k in range(8, 25))]
    marked = {name: _marks(model, x, budgets) for name, model in models.items()}
    frames = [
        _frame(x, y, {name: marks[number] for name, marks in marked.items()}, plural(budget, "evaluation"))
        for number, budget in enumerate(budgets)
    ]
    durations = [1000 * _SECONDS] * (len(frames) - 1) + [1000 * _LAST_SECONDS]
    path.parent.mkdir(parents=True, exist_ok=True)
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0)


def _marks(model: AbstractEquilibriumModel, x: Tensor, budgets: list[int]) -> list[Tensor]:
    _, eq = model.solve(x[None], solver=Loop(num_steps=budgets[-1]), states_at=budgets)
    return [model.decode(z)[0].argmax(dim=0).bool() for z in eq.states]


def _frame(x: Tensor, y: Tensor, marked: Mapping[str, Tensor], title: str) -> Image.Image:
    side = _PIXELS * len(y)
    width, height = len(marked) * (side + _MARGIN) + _MARGIN, side + 2 * (_LINE + _MARGIN)
    frame = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(frame)
    pen.text((_MARGIN, _MARGIN // 2), title, fill=INK)
    is_open, is_start, is_goal = x.bool()
    for number, (name, marks) in enumerate(marked.items()):
        left, top = _MARGIN + number * (side + _MARGIN), 2 * _LINE + _MARGIN
        pen.text((left, top - _LINE), name, fill=INK)
        for row in range(len(y)):
            for column in range(len(y)):
                place = row, column
                color = "white" if is_open[place] else GRAY
                if marks[place]:
                    color = BLUE if y[place] else PALETTE[1]
                if is_start[place] or is_goal[place]:
                    color = PALETTE[2] if is_start[place] else RED
                corner = left + _PIXELS * column, top + _PIXELS * row
                pen.rectangle((*corner, corner[0] + _PIXELS - 1, corner[1] + _PIXELS - 1), fill=color)
    return frame.quantize(16)
