"""Main statements of the paper's abstract and introduction, each with the claims that decide about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .comparison import Comparison
from .figure1 import FIGURE1, FIGURE1_CIFAR10
from .figure5 import FIGURE5
from .figure6 import FIGURE6
from .figure7 import FIGURE7
from .memory import MEMORY
from .result import Claim, PaperResult, Verdict
from .table1 import TABLE1
from .table2 import TABLE2

Judged = tuple[PaperResult[Any], Claim[Any]]
"""A claim, and the table or figure that it is made of."""


@dataclass(frozen=True, kw_only=True)
class Headline:
    """A main statement of the paper."""

    text: str
    section: str
    claims: Sequence[Judged]


HEADLINES = (
    Headline(
        text="Without the penalty, solves get harder in training",
        section="abstract, 3.1, 5.2",
        claims=(
            (FIGURE1, FIGURE1.claim("solves-get-harder")),
            (FIGURE1, FIGURE1.claim("solves-stay-stable")),
            (FIGURE1_CIFAR10, FIGURE1_CIFAR10.claim("residuals-get-worse")),
            (FIGURE1_CIFAR10, FIGURE1_CIFAR10.claim("solves-come-closer")),
        ),
    ),
    Headline(
        text="The penalty keeps the Jacobian small",
        section="4.1, 5.4",
        claims=(
            (FIGURE1_CIFAR10, FIGURE1_CIFAR10.claim("smaller-norm")),
            (FIGURE7, FIGURE7.claim("smaller-radius")),
        ),
    ),
    Headline(
        text="With it, half of the evaluations suffice",
        section="1, 5.2, 5.3",
        claims=(
            (TABLE1, TABLE1.claim("small-budget")),
            (TABLE2, TABLE2.claim("small-budget")),
        ),
    ),
    Headline(
        text="Without it, stopping early costs quality",
        section="3.2, 5.2, 5.3",
        claims=(
            (TABLE1, TABLE1.claim("stopped-early")),
            (TABLE2, TABLE2.claim("stopped-early")),
        ),
    ),
    Headline(
        text="Pre-LN diverges without it, and trains with it",
        section="abstract, 3.3, 5.2",
        claims=(
            (TABLE1, TABLE1.claim("pre-ln-diverges")),
            (TABLE1, TABLE1.claim("pre-ln-trains")),
        ),
    ),
    Headline(
        text="It makes training about twice as fast",
        section="1, 5.2, 5.3",
        claims=(
            (TABLE1, TABLE1.claim("faster")),
            (TABLE2, TABLE2.claim("faster")),
        ),
    ),
    Headline(
        text="On par with explicit networks",
        section="abstract, 4.3, 5.3",
        claims=(
            (TABLE1, TABLE1.claim("transformer-xl")),
            (FIGURE6, FIGURE6.claim("accuracy")),
            (FIGURE6, FIGURE6.claim("inference")),
            (FIGURE6, FIGURE6.claim("memory")),
            (MEMORY, MEMORY.claim("constant")),
        ),
    ),
    Headline(
        text="In one dimension, the penalty flattens f",
        section="5.1",
        claims=(
            (FIGURE5, FIGURE5.claim("picard")),
            (FIGURE5, FIGURE5.claim("flatter")),
            (FIGURE5, FIGURE5.claim("fit")),
        ),
    ),
)
"""The eight main statements that the results check."""


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
    """Return the verdicts of several claims in a few words; None stands for a claim that was not run.

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
