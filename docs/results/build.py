"""Puts the numbers of results/ into the pages beside this script, and the headline into docs/index.md.

    python docs/results/build.py

Numbers are never typed by hand: pages have the text, and marks between which this script writes tables. A test compares
the pages with the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steadeq.lab.recipes.registry import Scale
from steadeq.paper import RESULTS, PaperResult
from steadeq.paper.ablations import reason
from steadeq.paper.headlines import HEADLINES, of_paper, read_verdict, sum_up
from steadeq.paper.language import POST, POST_JR, POST_SLOWER, PRE, PRE_JR, TRANSFORMER_XL
from steadeq.paper.result import Verdict, count, results_folder, tally
from steadeq.paper.tables import CLAIM_TITLES, Column, claim_rows, markdown_table
from steadeq.paper.variant import Summary
from steadeq.paper.vision import MDEQ, MDEQ_JR, RESNET, SMALL_BUDGET

PAGES = Path(__file__).parent
ROOT = PAGES.parents[1]
NUMBERS = ROOT / "results"
INDEX = ROOT / "docs" / "index.md"

_HEADLINE = {
    "table1": ("WikiText-2, perplexity", 1, (TRANSFORMER_XL, POST, POST_SLOWER, POST_JR, PRE, PRE_JR)),
    "table2": ("CIFAR-10, accuracy in %", 100, (RESNET, MDEQ, SMALL_BUDGET, MDEQ_JR)),
}
"""What of the scale of a day is in the headline of docs/index.md: the task, the factor of the score, the variants."""
_SCALES: tuple[Scale, ...] = ("day", "cpu")
"""Those that were run."""
_NOT_RUN = "not yet run"
_PICTURES = {
    "day/fig3-4/forward_residual.png": "WikiText-2: residual of a solve over training",
    "day/table2/forward_residual.png": "CIFAR-10: residual of a solve over training",
}


def pages() -> dict[Path, str]:
    """Return all pages that hold numbers, with the tables as they must be."""
    overview = {
        "headlines": _headlines(),
        "overview": _overview(),
        "verdicts": _verdicts(),
        "reasons": _reasons(),
        "missing": _missing(),
    }
    found = {PAGES / "index.md": overview}
    for name, result in RESULTS.items():
        blocks = {}
        if "cpu" in result.scales:
            table, claims = _made(result, "cpu")
            blocks |= {"table": table, "claims": claims}
        if "day" in result.scales:
            blocks["day"] = "\n\n".join(filter(None, [*_made(result, "day"), _pictures(result, "day")]))
        found[PAGES / f"{name}.md"] = blocks
    found[INDEX] = {"headline": _headline()}
    return {path: _fill(path.read_text(encoding="utf-8"), blocks) for path, blocks in found.items()}


def _read(result: PaperResult[Any], scale: Scale) -> tuple[Any, list[Verdict]] | None:
    """Return the summary and the verdicts of a result at a scale; None where it was not run."""
    folder = results_folder(NUMBERS, result.name, scale)
    return result.read(folder) if (folder / "summary.json").is_file() else None


def _made(result: PaperResult[Any], scale: Scale) -> tuple[str, str]:
    """Return the table and the claims of a result at a scale."""
    found = _read(result, scale)
    if found is None:
        return f"{_NOT_RUN.capitalize()}.", ""
    summary, verdicts = found
    table = result.table(summary)
    if isinstance(summary, Summary) and summary.missing:
        runs = dict.fromkeys(f"`{name}`" for names in summary.missing.values() for name in names)
        table += f"\n\nNot finished yet: {', '.join(runs)}."
    return table, _claims(verdicts)


def _pictures(result: PaperResult[Any], scale: Scale) -> str:
    """Return the figures of a result at a scale, named as their files are."""
    folder = results_folder(NUMBERS, result.name, scale)
    place = Path("..", "..", folder.relative_to(ROOT))
    files = sorted(folder.glob("*.png"))
    return "\n".join(
        f"![{file.stem.replace('_', ' ').capitalize()}]({(place / file.name).as_posix()})" for file in files
    )


def _fill(page: str, blocks: dict[str, str]) -> str:
    for name, block in blocks.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        page = re.sub(pattern, lambda match, block=block: f"{match[1]}\n{block}\n\n{match[2]}", page, flags=re.DOTALL)
    return page


def _claims(verdicts: Sequence[Verdict]) -> str:
    return f"{markdown_table(CLAIM_TITLES, claim_rows(verdicts))}\n\n{tally(verdicts)}"


def _headlines() -> str:
    """Return what the paper is known for, and what became of it."""
    rows, details = [], []
    for number, headline in enumerate(HEADLINES, start=1):
        found = {scale: [read_verdict(*claim, NUMBERS, scale) for claim in headline.claims] for scale in _SCALES}
        rows.append([str(number), headline.text, headline.section, *(sum_up(found[scale]) for scale in _SCALES)])
        for (result, claim), verdict in zip(headline.claims, found["day"], strict=True):
            if verdict is not None:
                place, said = f"[{result.title.partition(':')[0]}]({result.name}.md)", verdict.outcome
                details.append(f"- {number}: {place}, {claim.text}: {said} ({verdict.evidence}).")
    table = markdown_table(["", "the paper says", "section", *_SCALES], rows)
    return "\n".join([table, "", "The numbers at the scale of a day that decide on them:", "", *details])


def _verdicts() -> str:
    """Return all claims, with what the paper's own numbers say, and ours at each scale."""
    rows = []
    for name, result in RESULTS.items():
        for claim in result.claims:
            ours = [_outcome(result, read_verdict(result, claim, NUMBERS, scale), scale) for scale in _SCALES]
            rows.append([f"[{name}]({name}.md)", claim.text, claim.section, of_paper(result, claim), *ours])
    return markdown_table(["", "claim", "section", "paper", *_SCALES], rows)


def _outcome(result: PaperResult[Any], verdict: Verdict | None, scale: Scale) -> str:
    if verdict is not None:
        return verdict.outcome
    return _NOT_RUN if scale in result.scales and _read(result, scale) is None else "-"


def _reasons() -> str:
    """Return why claims of the paper do not hold at the scale of a day, as far as experiments show it."""
    rows = []
    for name, result in RESULTS.items():
        for claim in result.claims if "day" in result.scales else ():
            verdict = read_verdict(result, claim, NUMBERS, "day")
            if verdict is not None and (verdict.source, verdict.outcome) == ("paper", "does not hold"):
                why = reason(result, claim, "day", NUMBERS)
                rows.append([f"[{name}]({name}.md)", claim.text, verdict.evidence, why])
    return (
        markdown_table(["", "claim that does not hold at day", "numbers", "reason"], rows) if rows else "None so far."
    )


def _missing() -> str:
    """Return which runs of a day are kept, and which nobody has trained yet."""
    minutes = {name: n for r in RESULTS.values() if "day" in r.scales for name, n in r.minutes("day").items()}
    missing = [name for name in minutes if not (NUMBERS / "runs" / name).is_dir()]
    if not missing:
        return f"All {len(minutes)} runs are finished."
    hours = sum(minutes[name] for name in missing) / 60
    listed = ", ".join(f"`{name}`" for name in missing)
    kept = f"{len(minutes) - len(missing)} of {len(minutes)} runs are finished"
    return f"{kept}. The others take about {hours:.0f} hours of one core: {listed}."


def _overview() -> str:
    rows, everything = [], []
    for name, result in RESULTS.items():
        scale: Scale = "cpu" if "cpu" in result.scales else result.scales[0]
        found = _read(result, scale)
        verdicts = [] if found is None else found[1]
        everything += verdicts
        option = "" if scale == "cpu" else f" --scale {scale}"
        command = f"`steadeq reproduce {name}{option}`, {result.duration(scale)}"
        counts = (count(verdicts, "paper"), count(verdicts, "own")) if found else (_NOT_RUN, _NOT_RUN)
        rows.append([f"[{result.title}]({name}.md)", result.statement, *counts, command])
    rows.append(["all", "", count(everything, "paper"), count(everything, "own"), "`steadeq reproduce all`"])
    return markdown_table(["", "what it is about", "the paper's claims that hold here", "our own", "rerun"], rows)


def _headline() -> str:
    rows = []
    for name, (task, factor, variants) in _HEADLINE.items():
        summary, _ = RESULTS[name].read(results_folder(NUMBERS, name, "day"))
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
