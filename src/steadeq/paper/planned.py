"""Which runs a result needs, where they are, and what it takes to finish them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..lab.config import TrainConfig
from ..lab.recipes.registry import Scale
from ..lab.run.record import RunRecord
from ..lab.runner import run_state
from .result import PaperResult

_DONE = ("finished", "diverged")


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run that a result needs."""

    config: TrainConfig
    path: Path
    """Where it is, or will be."""
    state: str
    """How far it is, in the words of `run_state`."""
    is_archived: bool
    """Whether only its numbers are left, without weights."""
    minutes: float | None
    """About how long the whole run takes on one core, if that is known."""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to train."""
        return self.state in _DONE

    @property
    def minutes_left(self) -> float:
        """About how long the rest takes on one core, as far as known."""
        if self.is_done or self.minutes is None:
            return 0.0
        if not self.state.startswith("at step"):
            return self.minutes
        record = RunRecord.read(self.path)
        return self.minutes * (1 - record.step / record.num_steps) if record.num_steps else self.minutes


def plan_runs(result: PaperResult[Any], scale: Scale, *, runs: Path, archive: Path) -> dict[str, PlannedRun]:
    """Return the runs of a result by name: archived ones where the folder of runs lacks them.

    Args:
        result: The result.
        scale: The scale of the runs.
        runs: Folder of the folders of all runs.
        archive: Folder of archived ones.
    """
    minutes = result.minutes(scale)

    def find(name: str, config: TrainConfig) -> PlannedRun:
        path, state, is_archived = runs / name, run_state(runs / name, config), False
        if state not in _DONE:
            kept = run_state(archive / name, config)
            if kept in _DONE and result.can_use(name, archive / name, scale):
                path, state, is_archived = archive / name, kept, True
        return PlannedRun(config=config, path=path, state=state, is_archived=is_archived, minutes=minutes.get(name))

    return {name: find(name, config) for name, config in result.runs(scale).items()}


def together(plans: Iterable[Mapping[str, PlannedRun]]) -> dict[str, PlannedRun]:
    """Return the runs of several results by name; a run that is needed with its weights is not an archived one."""
    found: dict[str, PlannedRun] = {}
    for name, run in (item for plan in plans for item in plan.items()):
        known = found.get(name, run)
        minutes = known.minutes if run.minutes is None else run.minutes
        found[name] = replace(run if known.is_archived else known, minutes=minutes)
    return found
