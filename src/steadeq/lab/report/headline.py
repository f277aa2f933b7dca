"""What the runs show about Jacobian regularization, in sentences made from their numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..runs import Split
from ..serialization import flatten
from . import notation
from .groups import RunGroup, measure


def compared_split(groups: Sequence[RunGroup]) -> Split:
    """Return the split that all runs can be compared on: test if all were evaluated on it, else validation."""
    runs = [run for group in groups for run in group.runs]
    return "test" if all(measure(run, "score", "test") is not None for run in runs) else "validation"


def headlines(groups: Sequence[RunGroup], split: Split) -> list[str]:
    """Return a paragraph for each regularized group that has an unregularized one of the same data beside it."""
    plain = [group for group in groups if not group.first.is_regularized]
    found = []
    for group in groups:
        peers = [other for other in plain if other.has_same_data(group)]
        if group.first.is_regularized and peers:
            nearest = min(peers, key=lambda other: _num_differences(group, other))
            paragraph = compare(group, nearest, split)
            if paragraph:
                found.append(paragraph)
    return found


def compare(regularized: RunGroup, plain: RunGroup, split: Split) -> str:
    """Return what regularization changed, for the better or the worse; nothing if a run was not evaluated."""
    score, base = (group.mean("score", split) for group in (regularized, plain))
    if score is None or base is None:
        return ""
    sentences = [
        f"With Jacobian regularization ({_describe(regularized)}) the model reaches "
        f"{_score(regularized, split)}{_evals(regularized, split)}; "
        f"without it ({_describe(plain)}) {_score(plain, split, short=True)}{_evals(plain, split)}.",
        _verdict(regularized, plain, split),
    ]
    times = [group.mean("seconds_per_step", split) for group in (regularized, plain)]
    if times[0] and times[1]:
        sentences.append(
            f"A training step takes {_multiple(times[0] / times[1])} "
            f"({notation.duration(times[0])} against {notation.duration(times[1])})."
        )
    residuals = [group.mean("residual", split) for group in (regularized, plain)]
    if residuals[0] and residuals[1]:
        sentences.append(_factor("The forward residual after these evaluations", residuals[0] / residuals[1]))
    radii = [group.mean("spectral_radius", split) for group in (regularized, plain)]
    if radii[0] is not None and radii[1] is not None:
        paces = [_pace(radius) for radius in radii[:2] if radius is not None]
        sentences.append(
            f"The spectral radius of the Jacobian is {notation.number(radii[0], 2)}"
            f"{regularized.error_note('spectral_radius', split)} against {notation.number(radii[1], 2)}"
            f"{plain.error_note('spectral_radius', split)}: plain iteration "
            + (
                f"{paces[0]} with both."
                if paces[0] == paces[1]
                else f"{paces[0]} with regularization, and {paces[1]} without."
            )
        )
    if not all(run.is_finished for group in (regularized, plain) for run in group.runs):
        sentences.append("Some of these runs are not finished, so the comparison is preliminary.")
    return " ".join(sentence for sentence in sentences if sentence)


def _verdict(regularized: RunGroup, plain: RunGroup, split: Split) -> str:
    """Say which of the two is better at the task, and whether the seeds can tell."""
    metric, higher = plain.first.metric, plain.first.task.higher_is_better
    spreads = [group.spread("score", split) for group in (regularized, plain)]
    assert spreads[0] is not None
    assert spreads[1] is not None
    score, base = spreads[0].mean, spreads[1].mean
    if score == base:
        return f"Both have the same {metric}."
    quality = "better" if (score > base) == higher else "worse"
    if metric == "accuracy":
        size = (
            f"{notation.number(100 * abs(score - base), 2)} percentage points {'higher' if score > base else 'lower'}"
        )
    else:
        ratio, word = max(score, base) / min(score, base), "larger" if score > base else "smaller"
        # "1.0 times larger" says nothing.
        part = 100 * abs(score / base - 1)
        size = f"{notation.ratio(ratio)} times {word}" if ratio > 1.2 else f"{notation.number(part, 2)}% {word}"
    if spreads[0].std is None or spreads[1].std is None:
        doubt = ", though with a single seed on one side this may be chance"
    elif abs(score - base) <= spreads[0].std + spreads[1].std:
        doubt = ", a difference within the spread over seeds"
    else:
        doubt = ""
    return f"On the task, the regularized model is {quality}: the {metric} is {size}{doubt}."


def _pace(radius: float) -> str:
    """Return what plain fixed-point iteration does near an equilibrium of some spectral radius."""
    if radius >= 1:
        return "diverges"
    if radius < 1e-6:
        return "arrives at once"
    return f"gains a digit every {notation.number(max(math.log(10) / -math.log(radius), 1), 2)} evaluations"


def _factor(subject: str, ratio: float) -> str:
    if 0.95 < ratio < 1.05:
        return f"{subject} is about the same."
    if ratio > 1:
        return f"{subject} is {notation.ratio(ratio)} times larger."
    return f"{subject} is {notation.ratio(1 / ratio)} times smaller."


def _multiple(ratio: float) -> str:
    return "about as long" if 0.95 < ratio < 1.05 else f"{notation.ratio(ratio)} times as long"


def _describe(group: RunGroup) -> str:
    return f"{group.label}, {notation.plural(len(group.runs), 'seed')}"


def _score(group: RunGroup, split: Split, *, short: bool = False) -> str:
    metric = group.first.metric
    spread = group.spread("score", split)
    assert spread is not None
    deviation = "" if spread.std is None else f" (± {notation.score(spread.std, metric)})"
    text = notation.score(spread.mean, metric) + deviation
    if short:
        return text
    # An error is a quantity to name, an accuracy is read off its unit.
    return f"{text} {metric} on {split} data" if metric == "accuracy" else f"a {split} {metric} of {text}"


def _evals(group: RunGroup, split: Split) -> str:
    evals = group.mean("evals", split)
    return "" if evals is None else f" with {evals:.1f} evaluations per sample"


def _num_differences(a: RunGroup, b: RunGroup) -> int:
    left, right = flatten(a.first.config), flatten(b.first.config)
    return sum(left.get(name) != right.get(name) for name in {*left, *right})
