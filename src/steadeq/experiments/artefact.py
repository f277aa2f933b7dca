"""A table or figure of the paper as a declaration: which runs, what is drawn from them, which claims are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import InputError, suggestion
from ..recipes.registry import Scale
from ..train import Run, TrainConfig


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a claim."""

    claim: str
    outcome: Literal["holds", "does not hold", "not tested"]
    evidence: str
    """The numbers."""

    @classmethod
    def of(cls, claim: str, holds: bool, evidence: str) -> Verdict:
        """Return the verdict on a claim that was tested."""
        return cls(claim=claim, outcome="holds" if holds else "does not hold", evidence=evidence)


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """A table or figure."""

    name: str
    claim: str
    data: Mapping[Scale, str]
    """At each scale at which it can be made."""
    duration: Mapping[Scale, str]
    """How long all its runs take; many are shared with other artefacts."""
    runs: Callable[[Scale], Mapping[str, TrainConfig]]
    """By the name of the run's folder."""
    produce: Callable[[Mapping[str, Run], Path, Scale], list[Verdict]]
    """Draws into a folder, and judges; writes `summary.json`."""
    tabulate: Callable[[Mapping[str, Any]], str]
    """Turns the content of `summary.json` into a table in Markdown."""


def find_artefact(name: str, artefacts: Mapping[str, Artefact]) -> Artefact:
    """Return an artefact by its name.

    Raises:
        InputError: There is none.
    """
    if name not in artefacts:
        raise InputError(
            f"There is no table or figure {name!r}.{suggestion(name, artefacts)} `steadeq reproduce` lists them all."
        )
    return artefacts[name]
