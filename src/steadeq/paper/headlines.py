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
        text="Without the penalty, solves get harder in training",
        section="abstract, 3.1, 5.2",
        claims=(
            claim_of(FIGURE1, "without regularization, solves need more and more"),
            claim_of(FIGURE1, "with regularization, they stay stable"),
            claim_of(FIGURE1_CIFAR10, "without regularization, the residuals of forward and backward"),
            claim_of(FIGURE1_CIFAR10, "with regularization, a solve comes closer"),
        ),
    ),
    Headline(
        text="The penalty keeps the Jacobian small",
        section="4.1, 5.4",
        claims=(
            claim_of(FIGURE1_CIFAR10, "with regularization, the norm of the Jacobian is smaller"),
            claim_of(FIGURE7, "regularization constrains the spectral radius"),
        ),
    ),
    Headline(
        text="With it, half of the evaluations suffice",
        section="1, 5.2, 5.3",
        claims=(
            claim_of(TABLE1, "regularized post-LN with the small budget stays competitive"),
            claim_of(TABLE2, "regularized with the small budget is at most 1 point below"),
        ),
    ),
    Headline(
        text="Without it, stopping early costs quality",
        section="3.2, 5.2, 5.3",
        claims=(
            claim_of(TABLE1, "stopping the solves of the unregularized model early hurts"),
            claim_of(TABLE2, "unregularized, but stopped early at the small budget"),
        ),
    ),
    Headline(
        text="Pre-LN diverges without it, and trains with it",
        section="abstract, 3.3, 5.2",
        claims=(
            claim_of(TABLE1, "without regularization pre-LN diverges"),
            claim_of(TABLE1, "with regularization pre-LN trains"),
        ),
    ),
    Headline(
        text="It makes training about twice as fast",
        section="1, 5.2, 5.3",
        claims=(
            claim_of(TABLE1, "a training step of the regularized model takes about half the time"),
            claim_of(TABLE2, "training is at least twice as fast an epoch"),
        ),
    ),
    Headline(
        text="On par with explicit networks",
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
        text="In one dimension, the penalty flattens f",
        section="5.1",
        claims=(
            claim_of(FIGURE5, "a larger gamma needs fewer evaluations of plain iteration"),
            claim_of(FIGURE5, "a larger gamma gives a flatter surface"),
            claim_of(FIGURE5, "every gamma fits the target"),
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
        >>> sum_up([good, good]), sum_up([good, bad, None]), sum_up([bad]), sum_up([None, None])
        ('holds', '1 of 3 holds, 1 does not, 1 not tested', 'does not hold', 'not tested')
    """
    outcomes = ["not tested" if verdict is None else verdict.outcome for verdict in verdicts]
    if len(set(outcomes)) == 1:
        return outcomes[0]
    held = outcomes.count("holds")
    words = {"does not hold": "does not" if outcomes.count("does not hold") == 1 else "do not"}
    rest = [
        f"{outcomes.count(name)} {words.get(name, name)}"
        for name in ("does not hold", "undecided", "not tested")
        if name in outcomes
    ]
    return ", ".join([f"{held} of {len(outcomes)} {'holds' if held == 1 else 'hold'}", *rest])
