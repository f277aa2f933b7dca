"""Puts the numbers of results/ into docs/reproduction.md, and the headline into README.md and docs/index.md.

    python docs/reproduction.py

Tables are never typed by hand; a test compares the pages with the numbers.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from steadeq.paper import ARTEFACTS
from steadeq.paper.variant import find
from steadeq.paper.results import tabulate, tabulate_verdicts
from steadeq.paper.table import show
from steadeq.paper.wikitext import POST, POST_JR, PRE, PRE_JR, STOPPED, TRANSFORMER_XL

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "index.md", ROOT / "docs" / "reproduction.md")
_HEADLINE = {
    "table1": (TRANSFORMER_XL, POST, STOPPED, POST_JR, PRE, PRE_JR),
    "table2": ("MDEQ", "MDEQ, hard-stopped", "MDEQ + JR"),
}
_PICTURES = {
    "fig1/forward_evaluations.png": "WikiText-2: evaluations of a solve over training",
    "table2/accuracy_by_evaluations.png": "CIFAR-10: accuracy against the evaluation budget",
}
_TASKS = {"table1": "WikiText-2, perplexity", "table2": "CIFAR-10, accuracy in %"}


def render(path: Path) -> str:
    """Return a page with all tables that have results, the overview of verdicts, and the headline."""
    page = path.read_text(encoding="utf-8")
    summaries = {name: summary for name in ARTEFACTS if (summary := _summary(name)) is not None}
    blocks = {
        name: f"{ARTEFACTS[name].tabulate(summary)}\n\n{tabulate_verdicts(summary)}"
        for name, summary in summaries.items()
    }
    blocks["overview"] = _overview(summaries)
    blocks["headline"] = _headline(summaries, "results" if path.parent == ROOT else "../results")
    for name, block in blocks.items():
        pattern = rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)"
        page = re.sub(pattern, lambda match, block=block: f"{match[1]}\n{block}\n\n{match[2]}", page, flags=re.DOTALL)
    return page


def _summary(name: str) -> dict[str, Any] | None:
    path = RESULTS / name / "summary.json"
    return json.loads(path.read_text()) if path.is_file() else None


def _overview(summaries: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, summary in summaries.items():
        outcomes = [verdict["outcome"] for verdict in summary["verdicts"]]
        counts = [outcomes.count(outcome) for outcome in ("holds", "does not hold", "not tested")]
        rows.append([f"[{name}](#{name})", ARTEFACTS[name].claim, *(str(count or "") for count in counts)])
    return tabulate(["", "the paper's claim", "holds", "does not hold", "not tested"], rows)


def _headline(summaries: dict[str, dict[str, Any]], folder: str) -> str:
    rows = []
    for name, entries in _HEADLINE.items():
        if name not in summaries:
            continue
        summary = summaries[name]["entries"]
        for entry in (find(summary, wanted) for wanted in entries):
            is_percent = name == "table2"
            score = show(entry, "score", factor=100 if is_percent else 1, digits=".1f")
            step = show(entry, "seconds_per_step", factor=1000, digits=".0f")
            rows.append([_TASKS[name], entry["entry"], str(entry["max_evals"] or "-"), score, step])
    table = tabulate(["", "model", "NFE", "score", "ms a training step"], rows)
    pictures = [f"![{text}]({folder}/{name})" for name, text in _PICTURES.items() if (RESULTS / name).is_file()]
    return "\n\n".join([table, *pictures])


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(render(page), encoding="utf-8")
