"""Figures of an artefact, and the file of its numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..report import RunGroup, RunSummary, save_png
from ..train import Run
from .artefact import Verdict
from .entries import Entry


def groups_of(entries: Sequence[Entry], runs: Mapping[str, Run]) -> list[RunGroup]:
    """Return the runs of each entry under the entry's name; of entries that share their runs, the first."""
    groups, seen = [], set()
    for entry in entries:
        names = tuple(entry.configs())
        if names not in seen:
            seen.add(names)
            members = tuple(RunSummary.read(runs[name]) for name in names)
            groups.append(RunGroup(label=entry.name, runs=members))
    return groups


def save_figures(figures: Mapping[str, Figure | None], folder: Path) -> None:
    """Save figures as PNG by their names; those are left out for which the runs recorded nothing."""
    for name, figure in figures.items():
        if figure is not None:
            save_png(figure, folder / f"{name}.png", dpi=110)


def write_summary(folder: Path, verdicts: Sequence[Verdict], **content: Any) -> None:
    """Write `summary.json`: whatever the artefact's table shows, and the verdicts."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {**content, "verdicts": [vars(verdict) for verdict in verdicts]}
    (folder / "summary.json").write_text(json.dumps(content, indent=1) + "\n")
