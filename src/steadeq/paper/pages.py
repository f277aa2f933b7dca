"""The pages of the results in a checkout, made of the numbers in its folder results, and results/claims.csv.

Numbers are never typed by hand: pages have the text, and marks between which this writes what follows from the numbers.
`steadeq reproduce` does so after it has made a result, and `make results` for all of them. A test compares the pages
with the numbers.
"""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..lab.files import write_atomically
from ..lab.recipes.registry import Scale
from .ablations import NOT_FOUND, reason
from .catalog import RESULTS
from .headlines import HEADLINES, of_paper, sum_up
from .numbers import Numbers
from .result import Outcome, PaperResult, Verdict, results_folder, tally
from .tables import Column, markdown_table
from .variant import NOT_FINISHED, Summary
from .vision import MDEQ, MDEQ_JR, SMALL_BUDGET

_HEADLINE = {
    "table2": ("CIFAR-10, accuracy in %", 100, (MDEQ, SMALL_BUDGET, MDEQ_JR)),
}
"""What of the scale of a day is in the headline of docs/index.md: the task, the factor of the score, the variants."""
_SCALES: tuple[Scale, ...] = ("day", "cpu")
"""Those that were run."""
_OUTCOMES: tuple[Outcome, ...] = ("holds", "does not hold", "undecided", "not tested")
_SEVERAL = {"holds": "hold", "does not hold": "do not hold"}


def write_pages(root: Path) -> bool:
    """Write all pages of a checkout, and remove the figures that none shows; False where there is no checkout."""
    site = Site(root)
    if not site.folder.is_dir():
        return False
    for path, text in site.pages().items():
        write_atomically(path, text)
    for figure in site.unshown_figures():
        figure.unlink()
    return True


class Site:
    """The pages of a checkout.

    Args:
        root: The folder of the checkout.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "docs" / "results"
        self.numbers = Numbers(root / "results")

    def pages(self) -> dict[Path, str]:
        """Return all files that are written, as they must be."""
        found = {
            self.folder / "index.md": {
                "headlines": self._headlines(),
                "overview": self._overview(),
                "missing": self._missing(),
            }
        }
        for name, result in RESULTS.items():
            blocks = {"found": self._found(result)}
            if "cpu" in result.scales:
                table, claims = self._made(result, "cpu")
                blocks |= {"table": table, "claims": claims, "pictures": self._pictures(result, "cpu")}
            if "day" in result.scales:
                blocks["day"] = "\n\n".join(filter(None, [*self._made(result, "day"), self._pictures(result, "day")]))
            found[self.folder / f"{name}.md"] = blocks
        found[self.root / "docs" / "index.md"] = {"headline": self._headline()}
        filled = {path: _fill(path.read_text(encoding="utf-8"), blocks) for path, blocks in found.items()}
        return filled | {self.numbers.folder / "claims.csv": self._all_claims()}

    def _main_scale(self, result: PaperResult[Any]) -> Scale:
        """Return the scale that the first sentences of a page are about."""
        return "day" if "day" in result.scales and self.numbers.read(result, "day") is not None else result.scales[0]

    def _found(self, result: PaperResult[Any]) -> str:
        """Return what was found, in three sentences."""
        scale = self._main_scale(result)
        made = self.numbers.read(result, scale)
        if made is None:
            return "None of its runs is finished. No claim is tested yet. See below for what is planned."
        summary, verdicts = made
        if (found := result.found(summary)) is not None:
            return found
        sources = {verdict.source for verdict in verdicts}
        chosen = [verdict for verdict in verdicts if verdict.source == ("paper" if "paper" in sources else "own")]
        whose = "the paper's claims" if "paper" in sources else "our claims, as the paper makes none"
        counts = ", ".join(
            f"{n} {_SEVERAL.get(name, name) if n > 1 else name}" for name, n in _counts(chosen).items() if n
        )
        where = f"At the scale `{scale}`, of {whose}" if result.scales != ("cpu",) else f"Of {whose}"
        sentences = [f"{where}: {counts}."]
        for outcome, words in (("holds", "Holds"), ("does not hold", "Does not hold")):
            one = next((verdict for verdict in chosen if verdict.outcome == outcome), None)
            if one is None and outcome == "does not hold":
                one = next((verdict for verdict in chosen if verdict.outcome not in ("holds", "does not hold")), None)
                words = "" if one is None else one.outcome.capitalize()
            if one is None:
                is_open = all(verdict.outcome in ("undecided", "not tested") for verdict in chosen)
                none = "None of them is decided." if is_open else "None of them holds."
                sentences.append(none if outcome == "holds" else "None of them fails.")
            else:
                seeds = ", one seed" if one.shown.endswith("one seed") else ""
                sentences.append(f"{words}{seeds}: {one.claim} ({_short(one.evidence)}).")
        return " ".join(sentences)

    def _made(self, result: PaperResult[Any], scale: Scale) -> tuple[str, str]:
        """Return the table and the claims of a result at a scale."""
        found = self.numbers.read(result, scale)
        if found is None:
            return "None of its runs is finished.", ""
        summary, verdicts = found
        table = result.table(summary)
        if "day" in result.scales:
            # What is quoted stands once on a page; of ImageNet, on which nothing was run, nowhere.
            left_out = ", quoted |" if scale == "cpu" else "| ImageNet"
            table = "\n".join(line for line in table.splitlines() if left_out not in line)
        if isinstance(summary, Summary):
            if summary.stand_ins:
                chosen = "; ".join(f"{name} by the row “{other}”" for name, other in summary.stand_ins.items())
                table += f"\n\nIn claims, each model stands as it trained best on validation data: {chosen}."
            runs = {name for names in summary.missing.values() for name in names}
            if runs:
                number = "1 run is" if len(runs) == 1 else f"{len(runs)} runs are"
                command = f"steadeq reproduce {result.name} --scale {scale} --dry-run"
                table += f"\n\n{number} not finished yet; `{command}` lists them."
        return table, self._claims(result, verdicts, scale)

    def _claims(self, result: PaperResult[Any], verdicts: Sequence[Verdict], scale: Scale) -> str:
        """Return the claims as a list, with what became of them, the first numbers of each, and why."""
        lines = []
        claims = {claim.text: claim for claim in result.claims}
        # What the page has at the scale of a day is not said again.
        above = None if scale == "day" or "day" not in result.scales else self.numbers.read(result, "day")
        said = {} if above is None else {verdict.claim: number for number, verdict in enumerate(above[1], start=1)}
        if verdicts and all(verdict.claim in said for verdict in verdicts):
            listed = (f"{said[verdict.claim]} {verdict.shown}" for verdict in verdicts)
            return f"The claims above: {'; '.join(listed)}. [claims.csv](../../results/claims.csv) has the numbers."
        for number, verdict in enumerate(verdicts, start=1):
            own = ", ours" if verdict.source == "own" else ""
            line = f"{number}. **{verdict.shown}** ({verdict.section}{own}): {verdict.claim}"
            # Which runs are missing is said above.
            line += "." if verdict.evidence.startswith(NOT_FINISHED) else f": {_short(verdict.evidence)}."
            if verdict.outcome == "does not hold":
                why = reason(claims[verdict.claim], scale, self.numbers)
                line += "" if why == NOT_FOUND else f" Why: {why}."
            lines.append(re.sub(r"\.+( Why|$)", r".\1", line))
        return "\n".join([*lines, "", tally(verdicts)])

    def _pictures(self, result: PaperResult[Any], scale: Scale) -> str:
        """Return the figures of a result at a scale, named as their files are."""
        folder = results_folder(self.numbers.folder, result.name, scale)
        place = Path("..", "..", folder.relative_to(self.root))
        files = sorted(folder.glob("*.png"))
        return "\n".join(
            f"![{file.stem.replace('_', ' ').capitalize()}]({(place / file.name).as_posix()})" for file in files
        )

    def unshown_figures(self) -> list[Path]:
        """Return the figures among the results that no page shows, as those of a scale that a larger one replaces."""
        pages = "".join(page.read_text(encoding="utf-8") for page in self.folder.rglob("*.md"))
        figures = self.numbers.folder.rglob("*.png")
        return [path for path in figures if path.relative_to(self.root).as_posix() not in pages]

    def _headlines(self) -> str:
        """Return what the paper is known for, and what became of it at the scale of a day."""
        rows = []
        for number, headline in enumerate(HEADLINES, start=1):
            found = [self.numbers.verdict(*claim, "day") for claim in headline.claims]
            decided = [verdict for verdict in found if verdict is not None and verdict.outcome != "not tested"]
            numbers = _pair(decided[0].evidence) if decided else "-"
            seeds = {verdict.num_seeds for verdict in decided if verdict.num_seeds}
            rows.append([str(number), headline.text, sum_up(found), numbers, str(min(seeds)) if seeds else "-"])
        return markdown_table(["", "the paper says", "here", "the numbers", "seeds"], rows)

    def _all_claims(self) -> str:
        """Return all claims as CSV: what the paper's own numbers say, and ours at each scale."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["result", "claim", "section", "source", "paper", "scale", "outcome", "seeds", "numbers", "reason"]
        )
        for name, result in RESULTS.items():
            for claim in result.claims:
                for scale in _SCALES if result.scales != ("cpu",) else ("cpu",):
                    verdict = self.numbers.verdict(result, claim, scale)
                    if verdict is not None:
                        why = reason(claim, scale, self.numbers) if verdict.outcome == "does not hold" else ""
                        said = [name, claim.text, claim.section, claim.source, of_paper(result, claim)]
                        writer.writerow([*said, scale, verdict.outcome, verdict.num_seeds or "", verdict.evidence, why])
        return file.getvalue()

    def _missing(self) -> str:
        """Return how many runs of a day are kept, and how many nobody has trained yet."""
        minutes = {name: n for r in RESULTS.values() if "day" in r.scales for name, n in r.minutes("day").items()}
        missing = [name for name in minutes if not (self.numbers.folder / "runs" / name).is_dir()]
        if not missing:
            return f"All {len(minutes)} runs are finished."
        hours = sum(minutes[name] for name in missing) / 60
        kept = f"{len(minutes) - len(missing)} of {len(minutes)} runs are finished"
        command = "`steadeq reproduce all --scale day --dry-run`"
        return f"{kept}. The others take about {hours:.0f} hours of one core; {command} lists them."

    def _overview(self) -> str:
        """Return how many claims of the paper hold, for each result at each scale."""
        rows, totals = [], {scale: dict.fromkeys(_OUTCOMES, 0) for scale in _SCALES}
        for name, result in RESULTS.items():
            cells = []
            for scale in _SCALES:
                is_planned = scale in result.scales and self.numbers.read(result, scale) is None
                found = [
                    self.numbers.verdict(result, claim, scale) for claim in result.claims if claim.source == "paper"
                ]
                # Of what is planned and not run yet, nothing is tested; other claims are about nothing at this scale.
                counts = _counts([verdict for verdict in found if is_planned or verdict is not None])
                for outcome, number in counts.items():
                    totals[scale][outcome] += number
                cells.append("/".join(map(str, counts.values())) if sum(counts.values()) else "-")
            rows.append([f"[{result.title}]({name}.md)", *cells])
        rows.append(["all", *("/".join(map(str, totals[scale].values())) for scale in _SCALES)])
        return markdown_table(["", *_SCALES], rows)

    def _headline(self) -> str:
        rows = []
        for name, (task, factor, variants) in _HEADLINE.items():
            made = self.numbers.read(RESULTS[name], "day")
            assert made is not None
            summary = made[0]
            assert isinstance(summary, Summary)
            score = Column(title="score", measure="score", factor=factor, digits=".1f")
            step = Column(title="ms a training step", measure="seconds_per_step", factor=1000, digits=".0f")
            for variant in variants:
                if summary.stand_ins.get(variant, variant) in summary:
                    row = summary[variant]
                    cells = [task, row.variant, str(row.max_evals or "-"), score.show(row), step.show(row)]
                    rows.append([*cells, str(row.num_seeds)])
        return markdown_table(["", "model", "evaluations", "score", "ms a training step", "seeds"], rows)


def _short(evidence: str) -> str:
    """Return the first numbers of some evidence."""
    return evidence.split("; ")[0].removesuffix(".")


def _pair(evidence: str) -> str:
    """Return two numbers of some evidence: of a list, the first and the last one."""
    series = _short(evidence).partition(": ")[2].split(", ")
    return f"{series[0]} to {series[-1]}" if len(series) > 2 else _short(evidence)


def _counts(verdicts: Sequence[Verdict | None]) -> dict[Outcome, int]:
    outcomes = ["not tested" if verdict is None else verdict.outcome for verdict in verdicts]
    return {name: outcomes.count(name) for name in _OUTCOMES}


def _fill(page: str, blocks: dict[str, str]) -> str:
    for name, block in blocks.items():
        # No spaces around the cells of tables: rows stay short, and the page looks the same.
        block = re.sub(r"^\|.*\|$", lambda match: re.sub(r" *(?<!\\)\| *", "|", match[0]), block, flags=re.MULTILINE)
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        page = re.sub(pattern, lambda match, block=block: f"{match[1]}\n{block}\n\n{match[2]}", page, flags=re.DOTALL)
    return page
