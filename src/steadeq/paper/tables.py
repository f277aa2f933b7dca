"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .result import Claim, Verdict
from .variant import Averages, Summary, VariantSummary


@dataclass(frozen=True, kw_only=True)
class Column:
    """One measure in a table."""

    title: str
    """Heading."""
    measure: str
    """Name of the measure."""
    factor: float = 1.0
    """Factor that turns the measure into the unit of the table."""
    digits: str = ".3g"
    """How it is written, as a format of Python."""
    beside_paper: bool = False
    """Whether a column with what the paper reports follows."""

    def show(self, row: Averages) -> str:
        """Return a cell."""
        return row.show(self.measure, factor=self.factor, digits=self.digits)

    def against(self, *rows: Averages) -> str:
        """Return the cells of several rows, for comparison, as in "12.0 against 30.0"."""
        return " against ".join(map(self.show, rows))

    def claim(self, text: str, first: str, second: str, holds: Callable[[float, float], bool]) -> Claim[Summary]:
        """Return a claim that compares the means of two variants.

        Args:
            text: What is claimed.
            first: Name of a variant.
            second: Name of another one.
            holds: Tells from both means whether it is so.
        """
        return Claim(
            text,
            holds=lambda s: holds(s[first].mean(self.measure), s[second].mean(self.measure)),
            evidence=lambda s: f"{self.title}: {self.against(s[first], s[second])}",
        )


PERPLEXITY = Column(title="perplexity", measure="score", digits=".1f")
EVALS = Column(title="evaluations, last tenth", measure="train_evals", digits=".1f")
RESIDUAL = Column(title="residual, last tenth", measure="train_residual", digits=".1g")
BACKWARD_RESIDUAL = Column(title="backward residual, last tenth", measure="backward_residual", digits=".1g")
NORM = Column(title="‖J‖²_F / d", measure="jacobian_norm", digits=".3f")
RADIUS = Column(title="spectral radius", measure="spectral_radius", digits=".2g")


def variant_table(rows: Iterable[VariantSummary], columns: Sequence[Column], *, nfe_beside_paper: bool = False) -> str:
    """Return variants as a table in Markdown, each number with its spread over seeds.

    Args:
        rows: The variants.
        columns: What to show, beside the name of the variant and the budget of evaluations (NFE).
        nfe_beside_paper: Whether the budget of the paper stands beside ours.
    """

    def cells(row: VariantSummary) -> list[str]:
        found = [row.variant, str(row.max_evals or "-")]
        if nfe_beside_paper:
            found.append(row.paper.get("max_evals", "-"))
        for column in columns:
            has_diverged = column.measure == "score" and row.mean("diverged") == 1
            found.append("diverged" if has_diverged else column.show(row))
            if column.beside_paper:
                found.append(row.paper.get(column.measure, "-"))
        return found

    titles = ["model", "NFE", *(["paper"] if nfe_beside_paper else [])]
    for column in columns:
        titles += [column.title, "paper"] if column.beside_paper else [column.title]
    return markdown_table(titles, [cells(row) for row in rows])


def claim_table(verdicts: Iterable[Verdict]) -> str:
    """Return claims and what became of them as a table in Markdown."""
    return markdown_table(["claim", "verdict", "numbers"], [[v.claim, v.outcome, v.evidence] for v in verdicts])


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown.

    Example:
        >>> print(markdown_table(["a", "b"], [["1", "2"]]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """

    def line(cells: Sequence[str]) -> str:
        return "".join(f"| {cell.replace('|', chr(92) + '|')} " for cell in cells) + "|"

    return "\n".join([line(titles), "|---" * len(titles) + "|", *map(line, rows)])
