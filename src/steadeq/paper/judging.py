"""How the claims of a comparison are judged: against models that train, and given the spread over seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..lab.run.record import Spread
from .result import Claim, MissingNumber, Verdict
from .variant import Summary, VariantSummary


class _Watched(Summary):
    """A summary that remembers which of its rows were asked for."""

    def __init__(self, summary: Summary) -> None:
        super().__init__(summary.items(), missing=summary.missing, stand_ins=summary.stand_ins)
        self.seen: dict[str, VariantSummary] = {}

    def __getitem__(self, name: str) -> VariantSummary:
        row = super().__getitem__(name)
        self.seen[name] = row
        return row


def judge(claim: Claim[Summary], summary: Summary) -> Verdict:
    """Judge a claim by numbers over seeds.

    The claim is "not tested" where a model that it compares with has diverged, and "undecided" where a change of one of
    its numbers by a standard deviation over seeds would reverse the verdict.
    """
    watched = _Watched(summary)
    verdict = claim.judge(watched)
    seen = dict(watched.seen)
    if verdict.outcome == "not tested":
        return verdict
    verdict = replace(verdict, num_seeds=min((row.num_seeds for row in seen.values()), default=0))
    lost = [row.variant for name, row in seen.items() if has_diverged(row) and name not in claim.subjects]
    if lost:
        reason = f"diverged, so that nothing can be compared with it: {', '.join(dict.fromkeys(lost))}"
        return replace(verdict, outcome="not tested", evidence=f"{reason}. {verdict.evidence}")
    if any(_holds(claim, varied) != (verdict.outcome == "holds") for varied in _variations(summary, seen)):
        return replace(verdict, outcome="undecided")
    return verdict


def has_diverged(row: VariantSummary) -> bool:
    """Return whether some seed of a variant has diverged."""
    found = row.spreads.get("diverged")
    return found is not None and found.mean > 0


def _holds(claim: Claim[Summary], summary: Summary) -> bool | None:
    try:
        return claim.holds(summary)
    except MissingNumber:
        return None


def _variations(summary: Summary, seen: dict[str, VariantSummary]) -> Iterator[Summary]:
    """Return the summary with one number a standard deviation larger or smaller, for each number that has one."""
    for name, row in seen.items():
        for measure, found in row.spreads.items():
            for sign in (-1, 1) if found.std else ():
                assert found.std is not None
                moved = Spread(mean=found.mean + sign * found.std, std=found.std, count=found.count)
                rows = {**summary, summary.stand_ins.get(name, name): row.adding(**{measure: moved})}
                yield Summary(rows.items(), missing=summary.missing, stand_ins=summary.stand_ins)
