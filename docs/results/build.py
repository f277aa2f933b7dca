"""Puts the numbers of results/ into the pages beside this script, and the headline into docs/index.md.

    python docs/results/build.py

Numbers are never typed by hand: pages have the text, and marks between which this script writes tables. A test compares
the pages with the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from steadeq.paper import RESULTS
from steadeq.paper.language import POST, POST_JR, PRE, PRE_JR, STOPPED, TRANSFORMER_XL
from steadeq.paper.result import Verdict, count, tally
from steadeq.paper.tables import CLAIM_TITLES, Column, claim_rows, markdown_table
from steadeq.paper.variant import Summary
from steadeq.paper.vision import MDEQ, MDEQ_JR
from steadeq.paper.vision import STOPPED as MDEQ_STOPPED

PAGES = Path(__file__).parent
ROOT = PAGES.parents[1]
NUMBERS = ROOT / "results"
INDEX = ROOT / "docs" / "index.md"

_HEADLINE = {
    "table1": ("WikiText-2, perplexity", 1, (TRANSFORMER_XL, POST, STOPPED, POST_JR, PRE, PRE_JR)),
    "table2": ("CIFAR-10, accuracy in %", 100, (MDEQ, MDEQ_STOPPED, MDEQ_JR)),
}
"""What is in the headline: the task, the factor of the score, and the variants."""
_PICTURES = {
    "fig1/forward_evaluations.png": "WikiText-2: evaluations of a solve over training",
    "table2/accuracy_by_evaluations.png": "CIFAR-10: accuracy against the evaluation budget",
}


def pages() -> dict[Path, str]:
    """Return all pages that hold numbers, with the tables as they must be."""
    found = {PAGES / "index.md": {"overview": _overview()}}
    for name, result in RESULTS.items():
        summary, verdicts = result.read(NUMBERS / name)
        found[PAGES / f"{name}.md"] = {"table": result.table(summary), "claims": _claims(verdicts)}
    found[INDEX] = {"headline": _headline()}
    return {path: _fill(path.read_text(encoding="utf-8"), blocks) for path, blocks in found.items()}


def _fill(page: str, blocks: dict[str, str]) -> str:
    for name, block in blocks.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        page = re.sub(pattern, lambda match, block=block: f"{match[1]}\n{block}\n\n{match[2]}", page, flags=re.DOTALL)
    return page


def _claims(verdicts: Sequence[Verdict]) -> str:
    return f"{markdown_table(CLAIM_TITLES, claim_rows(verdicts))}\n\n{tally(verdicts)}"


def _overview() -> str:
    rows, everything = [], []
    for name, result in RESULTS.items():
        _, verdicts = result.read(NUMBERS / name)
        everything += verdicts
        command = f"`steadeq reproduce {name}`, {result.duration('cpu')}"
        counts = (count(verdicts, "paper"), count(verdicts, "own"))
        rows.append([f"[{result.title}]({name}.md)", result.statement, *counts, command])
    rows.append(["all", "", count(everything, "paper"), count(everything, "own"), "`steadeq reproduce all`"])
    return markdown_table(["", "what it is about", "the paper's claims that hold here", "our own", "rerun"], rows)


def _headline() -> str:
    rows = []
    for name, (task, factor, variants) in _HEADLINE.items():
        summary, _ = RESULTS[name].read(NUMBERS / name)
        assert isinstance(summary, Summary)
        score = Column(title="score", measure="score", factor=factor, digits=".1f")
        step = Column(title="ms a training step", measure="seconds_per_step", factor=1000, digits=".0f")
        for row in (summary[variant] for variant in variants):
            rows.append([task, row.variant, str(row.max_evals or "-"), score.show(row), step.show(row)])
    table = markdown_table(["", "model", "NFE", "score", "ms a training step"], rows)
    return "\n\n".join([table, *(f"![{text}](../results/{name})" for name, text in _PICTURES.items())])


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
