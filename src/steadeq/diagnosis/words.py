"""What a diagnosis says: in a few lines, in more of them, and as advice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from .._internal.independence import COUPLED
from .verdict import Verdict

if TYPE_CHECKING:
    from .result import Diagnosis

NEGLIGIBLE = 0.01
"""Relative distance below which a state has not moved, or an input has no effect."""
PHRASES = {
    Verdict.CONVERGES: ("settles", "settle"),
    Verdict.CYCLES: ("cycles", "cycle"),
    Verdict.DRIFTS: ("drifts", "drift"),
    Verdict.DIVERGES: ("diverges", "diverge"),
}
"""What one sample does, and what several do."""
SLOW = 0.95
"""Rate from which on convergence is called slow."""
TELLING = 0.7
"""Area under the curve (AUC) from which on the residual is said to tell right answers from wrong ones."""
_ENOUGH = 5
"""Number of right and of wrong samples from which on this is said."""
NO_DERIVATIVE = "The spectral radius is unknown, because f could not be differentiated"
_PENALTY = 'JacobianRegularizer(weight=0.3, estimator="difference")'


def in_lines(parts: dict[str, str]) -> str:
    """Return one line for each part, with its name in front."""
    width = max(map(len, parts)) + 2
    return "\n".join(f"{name + ':':{width}}{text}" for name, text in parts.items())


def counts(diagnosis: Diagnosis, *, without: Verdict | None = None) -> str:
    """Return how many samples settle, cycle, drift and diverge."""
    found = {verdict: diagnosis.verdicts.count(verdict) for verdict in Verdict if verdict is not without}
    return ", ".join(f"{count} {PHRASES[verdict][count > 1]}" for verdict, count in found.items() if count)


def summary(diagnosis: Diagnosis) -> dict[str, str]:
    """Return the words of each line; see `Diagnosis.summary`."""
    parts = {
        "settles": _settling(diagnosis),
        "note": _notes(diagnosis),
        "helps": _helping(diagnosis),
        "start": _start(diagnosis),
        "radius": _radius(diagnosis),
        "residual": _residual(diagnosis),
        "loop": _laziness(diagnosis),
        "bits": _bits(diagnosis),
        "confidence": _confidence(diagnosis),
        "causality": _causality(diagnosis),
        "advice": advice(diagnosis),
    }
    return {name: text for name, text in parts.items() if text}


def details(diagnosis: Diagnosis) -> dict[str, str]:
    """Return all that is known, with the spread over the samples; see `Diagnosis.details`."""
    parts = summary(diagnosis)
    last = parts.pop("advice", "")
    for verdict in Verdict:
        rows = diagnosis.verdict == verdict
        if bool(rows.any()):
            count = int(rows.sum())
            sure = int(diagnosis.is_certain[rows].sum())
            parts[f"{count} {PHRASES[verdict][count > 1]}"] = (
                f"{sure} certain; rate {_middle(diagnosis.rate[rows])}; residual at the end "
                f"{_middle(diagnosis.residual[-1, rows])}"
            )
    cycles = diagnosis.period[diagnosis.period > 0]
    if cycles.numel():
        parts["periods"] = ", ".join(map(str, cycles.unique().tolist()))
    parts["other starts"] = f"cosine similarity {_middle(diagnosis.cosine)} from {' and '.join(diagnosis.starts)}"
    parts["movement"] = (
        f"{_middle(diagnosis.movement)} from the start, {_middle(diagnosis.movement_after_one)} after one evaluation"
    )
    for name, values, meaning in (
        ("input", diagnosis.input_effect, "by which the end state moves with the inputs of another sample"),
        ("recall", diagnosis.recall, "by which one evaluation does"),
        ("skip", diagnosis.skip, "on the diagonal of the Jacobian; about 1 for a block that adds to its state"),
        ("growth", diagnosis.growth, "times the size of the state at the training depth, at most"),
        ("gain", diagnosis.gain, "times an error of each evaluation, in the end state"),
        ("leak", diagnosis.leak, "by which the earlier states move with other later tokens"),
    ):
        if values is not None:
            parts[name] = f"{_middle(values)} {meaning}"
    for num_bits, scores in (diagnosis.bits or {}).items():
        parts[f"{num_bits} bits"] = ", ".join(f"{_number(score)} at {depth}" for depth, score in scores.items())
    if diagnosis.radius_missing:
        parts["radius"] = diagnosis.radius_missing
    parts["cost"] = f"{diagnosis.num_evals} evaluations"
    return parts | ({"advice": last} if last else {})


def _settling(diagnosis: Diagnosis) -> str:
    num_evals, batch_size = diagnosis.residual.shape
    settles = diagnosis.verdict == Verdict.CONVERGES
    count = int(settles.sum())
    if count == batch_size:
        text = "yes, the only sample" if batch_size == 1 else f"yes, all {batch_size} samples"
    elif count:
        text = f"partly, {count} of {batch_size} samples; {counts(diagnosis, without=Verdict.CONVERGES)}"
    else:
        text = f"no; of {batch_size} samples {counts(diagnosis)}"
    cycles = diagnosis.period[diagnosis.period > 0]
    if cycles.numel():
        text += f" (period {', '.join(map(str, cycles.unique().tolist()[:4]))})"
    rates = diagnosis.rate[settles & diagnosis.rate.isfinite()]
    if rates.numel():
        text += f"; rate {_middle(rates)}"
    return f"{text}, in {num_evals} evaluations"


def _notes(diagnosis: Diagnosis) -> str:
    """Return what is special about how samples settle or do not."""
    settles = diagnosis.verdict == Verdict.CONVERGES
    is_slow = settles & (diagnosis.rate > SLOW) & ~diagnosis.is_transient & ~diagnosis.is_unstable
    notes = []
    if bool(is_slow.any()):
        notes.append(f"{int(is_slow.sum())} settle slowly but steadily")
    if bool(diagnosis.is_transient.any()):
        notes.append(f"{int(diagnosis.is_transient.sum())} grow long before they settle (J is far from normal)")
    if bool(diagnosis.is_unstable.any()):
        notes.append(f"{int(diagnosis.is_unstable.sum())} seem to rest, but a push of 1% drives them away")
    num_open = int((~diagnosis.is_certain).sum())
    if num_open:
        notes.append(f"{num_open} uncertain, as more evaluations might change the verdict")
    return "; ".join(notes)


def _helping(diagnosis: Diagnosis) -> str:
    best = diagnosis.best_depth
    if diagnosis.metric is None or best is None:
        return ""
    answer = {"helps": "yes", "keeps": "no clear change", "hurts": "no, it hurts"}[diagnosis.effect or "keeps"]
    depth = diagnosis.training_depth
    scores = list(diagnosis.scores.items())
    shown = [(at, score) for at, score in scores if at // (depth or 1) in (1, 2, 4, 16, 64)] or scores
    # The end is the answer that one gets.
    shown = [*shown, *(scores[-1:] if scores[-1] not in shown else [])]
    after = ", ".join(f"{_number(score)} at {at}" for at, score in shown)
    trained = f" (trained at {depth})" if depth else ""
    score = float(diagnosis.metric[best].mean())
    return f"{answer}; {diagnosis.metric_name} {after}{trained}; best {_number(score)} at {best}"


def _start(diagnosis: Diagnosis) -> str:
    share = float(diagnosis.is_path_independent.double().mean())
    if share == 1:
        answer = "does not matter"
    else:
        answer = "matters" if start_matters(diagnosis) else "not known, as states still move"
    return f"{answer}; from {' and '.join(diagnosis.starts)} {share:.0%} end in the same state"


def start_matters(diagnosis: Diagnosis) -> bool:
    """Return whether samples end in other states from other starts, and not only because all of them still move."""
    converges = diagnosis.verdict == Verdict.CONVERGES
    still_moves = converges & ~diagnosis.is_certain & ((diagnosis.rate > SLOW) | diagnosis.is_transient)
    return bool((~diagnosis.is_path_independent & ~still_moves).any())


def _radius(diagnosis: Diagnosis) -> str:
    radius = diagnosis.radius
    if radius is None:
        return diagnosis.radius_missing.partition(":")[0].removesuffix(".")
    is_known = radius.error.isfinite() & radius.value.isfinite()
    if not bool(is_known.any()):
        return f"unknown after {radius.num_products} products with the Jacobian"
    values, errors = radius.value[is_known], radius.error[is_known]
    worst, unknown = int(values.argmax()), int((~is_known).sum())
    return (
        f"{_middle(values)}, at most {_number(values[worst])} ± {errors[worst]:.1g}"
        f"{f' ({unknown} unknown)' if unknown else ''}, at the end states"
    )


def _residual(diagnosis: Diagnosis) -> str:
    end = f"{_number(diagnosis.residual[-1].median())} at the end"
    depth = diagnosis.training_depth
    return end if depth is None else f"{_number(diagnosis.residual[depth - 1].median())} at {depth}, {end}"


def _laziness(diagnosis: Diagnosis) -> str:
    num_samples = len(diagnosis.verdict)
    # What goes round comes back to its start, or near it, and has not been idle.
    converges, is_small = diagnosis.verdict == Verdict.CONVERGES, diagnosis.residual < NEGLIGIBLE
    returns = diagnosis.movement < NEGLIGIBLE
    is_still = returns & (converges | is_small.all(dim=0))
    is_quick = (diagnosis.movement_after_one < NEGLIGIBLE) & ~is_still & (converges | is_small[1:].all(dim=0))
    parts = []
    if bool(is_still.any()):
        parts.append(f"does nothing for {is_still.sum()} of {num_samples} samples: they end where they start")
    if bool(is_quick.any()):
        parts.append(f"one evaluation is enough for {is_quick.sum()} of {num_samples} samples")
    # Samples may well share their result with another one, and all do where a cycle is back at its start.
    is_told = ~returns | is_still
    effect = diagnosis.input_effect
    num_deaf = 0 if effect is None else int(((effect < NEGLIGIBLE) & is_told).sum())
    if 2 * num_deaf > num_samples:
        parts.append(f"the end states of {num_deaf} of {num_samples} samples do not depend on the inputs")
    if diagnosis.is_random:
        parts.append("f is random: it returns another result each time")
    return "; ".join(parts)


def _bits(diagnosis: Diagnosis) -> str:
    if diagnosis.bits is None or diagnosis.gain is None:
        return ""
    first, last = diagnosis.training_depth or 1, max(next(iter(diagnosis.bits.values())))
    scores = "; ".join(
        f"{num_bits} bits {_number(scores[first])}, {_number(scores[last])}"
        for num_bits, scores in diagnosis.bits.items()
    )
    return f"{diagnosis.metric_name} at {first}, {last}: {scores}; errors grow by {_number(diagnosis.gain.median())}"


def _confidence(diagnosis: Diagnosis) -> str:
    if diagnosis.metric is None or diagnosis.confidence is None:
        return ""
    depth = diagnosis.training_depth
    where = "the end" if depth is None else str(depth)
    num_right = int(diagnosis.metric[depth or len(diagnosis.residual)].sum())
    num_wrong = diagnosis.metric.shape[1] - num_right
    if min(num_right, num_wrong) < _ENOUGH:
        return f"unknown: {num_right} samples are right at {where} and {num_wrong} wrong, too few to compare"
    tells = "tells" if diagnosis.confidence >= TELLING else "does not tell"
    return f"AUC {diagnosis.confidence:.2f} (0.5 is chance): the residual at {where} {tells} right from wrong"


def _causality(diagnosis: Diagnosis) -> str:
    if diagnosis.leak is None:
        return ""
    largest = float(diagnosis.leak.max())
    if largest == 0:
        return "yes, later tokens do not change earlier states"
    return f"no, later tokens change earlier states by up to {_number(largest)}"


def advice(diagnosis: Diagnosis) -> str:
    """Return what to do, in one sentence; see `Diagnosis.advice`."""
    effect, depth = diagnosis.effect, diagnosis.best_depth
    stop = f", or stop at {depth} evaluations" if depth else ""
    if diagnosis.is_random:
        return "put dropout in eval mode, or pass its mask as an input"
    if COUPLED in diagnosis.radius_missing:
        return "pass batch_dims=0: the rows of the state depend on each other, so that they are no samples of a batch"
    if bool((diagnosis.movement < NEGLIGIBLE).all()) and diagnosis.settles:
        return "leave the loop out, or start elsewhere"
    if diagnosis.recall is not None and float(diagnosis.recall.max()) == 0 and not diagnosis.settles:
        return f"feed the input in at every step: one evaluation does not depend on it{stop}"
    if diagnosis.settles:
        return _advice_where_it_settles(diagnosis)
    if effect in ("keeps", "helps") and not _is_past_its_best(diagnosis):
        return f"watch the {diagnosis.metric_name}, not the residual: answers hold although not all states settle"
    if diagnosis.radius_missing.startswith(NO_DERIVATIVE):
        return f"nothing that needs a derivative can be had here{stop}, or damp the step, z + (f(z) - z) / 2"
    if is_adding(diagnosis):
        return f"tune steadeq.nn.Normalized(block) with {_PENALTY}, as the block adds to its state{stop}"
    return f"tune with {_PENALTY}{stop}"


def _is_past_its_best(diagnosis: Diagnosis) -> bool:
    """Return whether the score was clearly better before the training depth, and is not any more at the end."""
    depth, metric = diagnosis.best_depth, diagnosis.metric
    if depth is None or metric is None or diagnosis.effect_from(depth) != "hurts":
        return False
    best, last = float(metric[depth].mean()), float(metric[-1].mean())
    # The best of many scores is a little better than the others by chance.
    return not abs(best - last) <= 0.05 * abs(best)


def is_adding(diagnosis: Diagnosis) -> bool:
    """Return whether the block adds to a state that grows: no penalty alone makes such a block settle."""
    known = diagnosis.skip[diagnosis.skip.isfinite()]
    return known.numel() > 0 and float(known.median()) > 0.5 and float(diagnosis.growth.median()) > 1.5


def _advice_where_it_settles(diagnosis: Diagnosis) -> str:
    if diagnosis.effect == "hurts":
        return "tune with random depths (LogNormalDepth) and answers at several of them: it settles on worse answers"
    if start_matters(diagnosis):
        return "always start the same way, or tune from random starts: the result depends on the start"
    if float(diagnosis.rate.nan_to_num(0).max()) > SLOW:
        return f"solve with Anderson(), which takes fewer evaluations here, or tune with {_PENALTY}"
    median = diagnosis.residual.median(dim=1).values
    is_done = median < 1e-3
    enough = int(is_done.int().argmax()) + 1
    return f"nothing needs repair; {enough} evaluations bring the residual below 0.1%" if bool(is_done.any()) else ""


def _number(value: Any) -> str:
    return f"{float(value):.3g}"


def _middle(values: Tensor) -> str:
    """Return the median, and the range where there is one; what is not a number is left out."""
    values = values.double()
    values = values[~values.isnan()]
    if not values.numel():
        return "unknown"
    low, middle, high = (_number(value) for value in (values.min(), values.median(), values.max()))
    return middle if low == high else f"{middle} ({low} to {high})"
