"""Runs that differ only in their seed, taken together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..train.serialization import to_dict
from .notation import average, error_note, spread
from .summary import RunSummary, Split

_SHORT = {"jacobian.weight": "γ", "jacobian.probability": "p", "forward.max_evals": "budget"}


@dataclass(frozen=True, kw_only=True, eq=False)
class RunGroup:
    """Runs of one config with different seeds."""

    label: str
    runs: tuple[RunSummary, ...]

    @property
    def first(self) -> RunSummary:
        """One of them, for what they have in common."""
        return self.runs[0]

    @cached_property
    def data(self) -> str:
        """What tells the data apart from other data."""
        return json.dumps(to_dict(self.first.config.data), sort_keys=True)

    def values(self, name: str, split: Split) -> list[float | None]:
        """Return one of the numbers of each run; see `RunSummary.numbers`."""
        return [run.numbers(split)[name] for run in self.runs]

    def mean(self, name: str, split: Split) -> float | None:
        """Return the mean of a number over the runs that have it."""
        return average(self.values(name, split))

    def error_note(self, name: str, split: Split) -> str:
        """Return the error of a number that was estimated, as text; nothing where there is none."""
        numbers = self.first.numbers(split)
        if f"{name}_error" not in numbers:
            return ""
        return error_note(self.mean(f"{name}_error", split), self.mean(f"{name}_unknown", split))

    def spread(self, name: str, split: Split) -> float | None:
        """Return the standard deviation of a number over the runs that have it."""
        return spread(self.values(name, split))


def group_runs(runs: Sequence[RunSummary]) -> list[RunGroup]:
    """Put runs together whose configs differ only in the seed, in the order of their first appearance."""
    groups: dict[str, list[RunSummary]] = {}
    for run in runs:
        fields = {name: value for name, value in flatten(run.config).items() if name != "loop.seed"}
        groups.setdefault(json.dumps(fields, sort_keys=True), []).append(run)
    members = [tuple(group) for group in groups.values()]
    return [RunGroup(label=label, runs=group) for label, group in zip(_labels(members), members, strict=True)]


def flatten(config: Any) -> dict[str, Any]:
    """Return a config as one dict, with `section.field` as the keys."""
    flat = {}
    for section, content in to_dict(config).items():
        if isinstance(content, dict):
            flat |= {f"{section}.{name}": value for name, value in content.items()}
        else:
            flat[section] = content
    return flat


def differing_fields(runs: Sequence[RunSummary]) -> list[str]:
    """Return the names of the config fields in which some of the runs differ, in the order of the config."""
    configs = [flatten(run.config) for run in runs]
    names = list(dict.fromkeys(name for config in configs for name in config))
    return [name for name in names if any(config.get(name) != configs[0].get(name) for config in configs)]


def _labels(groups: Sequence[tuple[RunSummary, ...]]) -> list[str]:
    """Name each group by its recipe, and where recipes repeat, by the fields that tell them apart.

    A recipe that all of them share is not repeated in every legend.
    """
    has_one_recipe = len({group[0].config.recipe for group in groups}) == 1
    labels = []
    for group in groups:
        recipe = group[0].config.recipe
        peers = [other[0] for other in groups if other[0].config.recipe == recipe]
        config = flatten(group[0].config)
        names = [name for name in differing_fields(peers) if name != "loop.seed"]
        # The weight of the penalty is what this library is about.
        names.sort(key=lambda name: name != "jacobian.weight")
        parts = [f"{_SHORT.get(name, name)} = {_show(config.get(name))}" for name in names[:2]]
        labels.append(", ".join(parts if parts and has_one_recipe else [recipe, *parts]))
    if len(set(labels)) == len(labels):
        return labels
    return [f"{label} ({group[0].name})" for label, group in zip(labels, groups, strict=True)]


def _show(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
