"""What the runs show about Jacobian regularization, in sentences made from their numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .. import notation
from ..run.record import Split, Spread
from ..serialization import differences
from ..tasks import AbstractTask
from .groups import RunGroup, measure


def compared_split(groups: Sequence[RunGroup]) -> Split:
    """Return the split that all runs can be compared on: test if all were evaluated on it, else validation."""
    runs = [run for group in groups for run in group.runs]
    return "test" if all(measure(run, "score", "test") is not None for run in runs) else "validation"


def headlines(groups: Sequence[RunGroup], split: Split) -> list[str]:
    """Return a paragraph for each regularized group that has an unregularized one of the same data beside it."""
    found = []
    for group in groups:
        peers = [other for other in groups if other.has_same_data(group) and not other.first.is_regularized]
        if group.first.is_regularized and peers:
            nearest = min(peers, key=lambda other: len(differences(group.first.config, other.first.config)))
            found.append(_compare(group, nearest, split))
    return [paragraph for paragraph in found if paragraph]


def _compare(regularized: RunGroup, plain: RunGroup, split: Split) -> str:
    """Return what regularization changed, for the better or the worse; nothing if a run was not evaluated."""
    pair, task = (regularized, plain), plain.first.task
    score, base = (group.spread("score", split) for group in pair)
    if score is None or base is None:
        return ""
    names = [f"{group.label}, {notation.plural(len(group.runs), 'seed')}" for group in pair]
    means = [group.mean("evals", split) for group in pair]
    evals = ["" if mean is None else f" with {mean:.1f} evaluations per sample" for mean in means]
    reached, metric = _score(score, task), task.metric
    # An error is a quantity to name, a share is read off its unit.
    reached = f"{reached} {metric} on {split} data" if task.is_share else f"a {split} {metric} of {reached}"
    sentences = [
        f"With Jacobian regularization ({names[0]}) the model reaches {reached}{evals[0]}; "
        f"without it ({names[1]}) {_score(base, task)}{evals[1]}.",
        _verdict(score, base, task),
    ]
    time, base_time = (group.mean("seconds_per_step", split) for group in pair)
    if time and base_time:
        ratio = time / base_time
        long = "about as long" if 0.95 < ratio < 1.05 else f"{notation.number(ratio, 2)} times as long"
        sentences.append(
            f"A training step takes {long} ({notation.duration(time)} against {notation.duration(base_time)})."
        )
    residual, base_residual = (group.mean("residual", split) for group in pair)
    if residual and base_residual:
        ratio = residual / base_residual
        factor = max(ratio, 1 / ratio)
        times = "more than 1,000" if factor > 1000 else notation.number(factor, 2)
        larger = f"{times} times {'larger' if ratio > 1 else 'smaller'}"
        change = "about the same" if 0.95 < ratio < 1.05 else larger
        sentences.append(f"The forward residual after these evaluations is {change}.")
    radius, base_radius = (group.mean("spectral_radius", split) for group in pair)
    if radius is not None and base_radius is not None:
        pace, base_pace = _pace(radius), _pace(base_radius)
        texts = [
            notation.number(mean, 2) + group.error_note("spectral_radius", split)
            for mean, group in ((radius, regularized), (base_radius, plain))
        ]
        paces = f"{pace} with both" if pace == base_pace else f"{pace} with regularization, and {base_pace} without"
        sentences.append(
            f"The spectral radius of the Jacobian is {texts[0]} against {texts[1]}: plain iteration {paces}."
        )
    if not all(run.is_finished for group in pair for run in group.runs):
        sentences.append("Some of these runs are not finished, so the comparison is preliminary.")
    return " ".join(sentences)


def _score(spread: Spread, task: AbstractTask) -> str:
    deviation = "" if spread.std is None else f" (± {task.show(spread.std)})"
    return task.show(spread.mean) + deviation


def _verdict(regularized: Spread, plain: Spread, task: AbstractTask) -> str:
    """Say which of the two is better at the task, and whether the seeds can tell."""
    score, base = regularized.mean, plain.mean
    if score == base:
        return f"Both have the same {task.metric}."
    is_larger = score > base
    low, high = sorted((score, base))
    if task.is_share:
        size = f"{notation.number(100 * (high - low), 2)} percentage points {'higher' if is_larger else 'lower'}"
    else:
        size = "larger" if is_larger else "smaller"
        # "1.0 times larger" says nothing.
        if low > 0 and high / low > 1.2:
            size = f"{notation.number(high / low, 2)} times {size}"
        elif low > 0:
            size = f"{notation.number(100 * (high - low) / base, 2)}% {size}"
    doubt = ""
    if regularized.std is None or plain.std is None:
        doubt = ", though with a single seed on one side this may be chance"
    elif high - low <= regularized.std + plain.std:
        doubt = ", a difference within the spread over seeds"
    quality = "better" if is_larger == task.higher_is_better else "worse"
    return f"On the task, the regularized model is {quality}: the {task.metric} is {size}{doubt}."


def _pace(radius: float) -> str:
    """Return what plain fixed-point iteration does near an equilibrium of some spectral radius."""
    if radius >= 1:
        return "diverges"
    if radius < 1e-6:
        return "arrives at once"
    return f"gains a digit every {notation.number(max(math.log(10) / -math.log(radius), 1), 2)} evaluations"
