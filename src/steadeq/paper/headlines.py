"""What the paper says in its abstract and its introduction, each with the claims that decide on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..lab.recipes.registry import Scale
from .comparison import Comparison
from .figure1 import FIGURE1, FIGURE1_CIFAR10
from .figure5 import FIGURE5
from .figure6 import FIGURE6
from .figure7 import FIGURE7
from .memory import MEMORY
from .result import Claim, PaperResult, Verdict, results_folder
from .table1 import TABLE1
from .table2 import TABLE2

Judged = tuple[PaperResult[Any], Claim[Any]]
"""A claim, and the table or figure that it is made of."""


def claim_of(result: PaperResult[Any], beginning: str) -> Judged:
    """Return the one claim of a result whose text begins so."""
    (claim,) = (claim for claim in result.claims if claim.text.startswith(beginning))
    return result, claim


@dataclass(frozen=True, kw_only=True)
class Headline:
    """Something that the paper is known for."""

    text: str
    section: str
    claims: Sequence[Judged]


HEADLINES = (
    Headline(
        text="Without the penalty, a DEQ gets harder to solve as it trains; with it, solves stay stable.",
        section="abstract, 3.1, 5.2",
        claims=(
            claim_of(FIGURE1, "without regularization, solves need more and more"),
            claim_of(FIGURE1, "with regularization, they stay stable"),
            claim_of(FIGURE1_CIFAR10, "without regularization, the residuals of forward and backward"),
            claim_of(FIGURE1_CIFAR10, "with regularization, solves of both directions"),
        ),
    ),
    Headline(
        text="The penalty works through the Jacobian: it keeps its norm and its spectral radius small.",
        section="4.1, 5.4",
        claims=(
            claim_of(FIGURE1_CIFAR10, "with regularization, the norm of the Jacobian is smaller"),
            claim_of(FIGURE7, "regularization constrains the spectral radius"),
        ),
    ),
    Headline(
        text="With half of the evaluations or fewer, a DEQ with the penalty is about as good as one without.",
        section="1, 5.2, 5.3",
        claims=(
            claim_of(TABLE1, "regularized post-LN with the small budget stays competitive"),
            claim_of(TABLE2, "regularized with the small budget is at most 1 point below"),
        ),
    ),
    Headline(
        text="Stopping a DEQ without the penalty that early costs much quality.",
        section="3.2, 5.2, 5.3",
        claims=(
            claim_of(TABLE1, "stopping the solves of the unregularized model early hurts"),
            claim_of(TABLE2, "unregularized, but stopped early at the small budget"),
        ),
    ),
    Headline(
        text="DEQs are brittle: a pre-LN DEQ-Transformer diverges; with the penalty it trains.",
        section="abstract, 3.3, 5.2",
        claims=(
            claim_of(TABLE1, "without regularization pre-LN diverges"),
            claim_of(TABLE1, "with regularization pre-LN trains"),
        ),
    ),
    Headline(
        text="The penalty makes training about twice as fast.",
        section="1, 5.2, 5.3",
        claims=(
            claim_of(TABLE1, "a training step of the regularized model takes about half the time"),
            claim_of(TABLE2, "training is at least twice as fast an epoch"),
        ),
    ),
    Headline(
        text="A DEQ with the penalty is about as good and as fast as explicit networks, and trains with less memory.",
        section="abstract, 4.3, 5.3",
        claims=(
            claim_of(TABLE1, "regularized post-LN stays close to a Transformer-XL"),
            claim_of(FIGURE6, "the regularized MDEQ is as accurate as the explicit network"),
            claim_of(FIGURE6, "its inference is competitive with the explicit network"),
            claim_of(FIGURE6, "it trains with much less memory than the explicit network"),
            claim_of(MEMORY, "memory of a DEQ does not grow with the budget"),
        ),
    ),
    Headline(
        text="In one dimension one can see it: the penalty flattens f, so that a solve needs fewer evaluations.",
        section="5.1",
        claims=(
            claim_of(FIGURE5, "every gamma fits the target"),
            claim_of(FIGURE5, "a larger gamma gives a flatter surface"),
            claim_of(FIGURE5, "a larger gamma needs fewer evaluations of plain iteration"),
        ),
    ),
)
"""The eight that the results are about."""


def read_verdict(result: PaperResult[Any], claim: Claim[Any], numbers: Path, scale: Scale) -> Verdict | None:
    """Return what became of a claim at a scale; None where nothing was run, or where it is about nothing.

    Of results that are the same at every scale, there is one verdict.
    """
    folder = results_folder(numbers, result.name, "cpu" if result.scales == ("cpu",) else scale)
    if (scale not in result.scales and result.scales != ("cpu",)) or not (folder / "summary.json").is_file():
        return None
    _, verdicts = result.read(folder)
    return next((verdict for verdict in verdicts if verdict.claim == claim.text), None)


def of_paper(result: PaperResult[Any], claim: Claim[Any]) -> str:
    """Return what the paper's own numbers say on a claim, as far as its tables have them."""
    if claim.source == "own":
        return "-"
    if isinstance(result, Comparison):
        summary = result.of_paper()
        verdict = claim.judge(summary) if claim.applies(summary) else None
        # Of a model that diverged, there are no numbers to show.
        if verdict is not None and verdict.outcome != "not tested" and "-" not in verdict.evidence.split():
            return f"{verdict.outcome}: {verdict.evidence}"
    return "says so"


def sum_up(verdicts: Sequence[Verdict | None]) -> str:
    """Return what became of several claims, in a few words; None stands for one that was not run.

    Example:
        >>> claim = Claim("more is better", section="5.2", holds=lambda n: n > 1, evidence=str)
        >>> good, bad = claim.judge(2), claim.judge(1)
        >>> sum_up([good, good]), sum_up([good, bad]), sum_up([bad]), sum_up([None, None]), sum_up([good, None])
        ('holds', 'holds in part: 1 of 2', 'does not hold', 'not yet run', 'holds so far: 1 of 2 tested')
    """
    outcomes = [verdict.outcome for verdict in verdicts if verdict is not None and verdict.outcome != "not tested"]
    if not outcomes:
        return "not yet run"
    num_held, num_tested, num_claims = outcomes.count("holds"), len(outcomes), len(verdicts)
    if num_tested < num_claims:
        tested = f"{num_tested} of {num_claims} tested"
        if num_held in (0, num_tested):
            return f"{'holds' if num_held else 'does not hold'} so far: {tested}"
        return f"holds in part so far: {num_held} of {num_tested}, {tested}"
    if num_held in (0, num_tested):
        return "holds" if num_held else "does not hold"
    return f"holds in part: {num_held} of {num_tested}"
