"""Tables in Markdown."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .result import Claim, Source, Threshold, Verdict
from .variant import Averages, Summary


@dataclass(frozen=True, kw_only=True)
class Column:
    """One measure in a table."""

    title: str
    measure: str
    factor: float = 1.0
    """Factor that turns the measure into the unit of the table."""
    digits: str = ".3g"
    """How it is written, as a format of Python."""
    beside_paper: str = ""
    """Title of the column with what the paper reports, if one follows."""

    def show(self, row: Averages) -> str:
        """Return a cell."""
        return row.show(self.measure, factor=self.factor, digits=self.digits)

    def against(self, *rows: Averages) -> str:
        """Return the cells of several rows, for comparison, as in "12.0 against 30.0"."""
        return " against ".join(map(self.show, rows))

    def claim(
        self,
        text: str,
        first: str,
        second: str,
        holds: Callable[[float, float], bool],
        *,
        section: str,
        id: str = "",
        source: Source = "paper",
        threshold: Threshold = "none",
        subjects: Sequence[str] = (),
    ) -> Claim[Summary]:
        """Return a claim that compares the means of two variants, which are given by name."""
        return Claim(
            text,
            id=id,
            section=section,
            source=source,
            threshold=threshold,
            subjects=subjects,
            holds=lambda s: holds(s[first].mean(self.measure), s[second].mean(self.measure)),
            evidence=lambda s: f"{self.title}: {self.against(s[first], s[second])}",
        )


ACCURACY = Column(title="test accuracy, %", measure="score", factor=100, digits=".1f")
PERPLEXITY = Column(title="perplexity", measure="score", digits=".1f")
EVALS = Column(title="evaluations, last tenth", measure="train_evals", digits=".1f")
RESIDUAL = Column(title="residual, last tenth", measure="train_residual", digits=".1g")
BACKWARD_RESIDUAL = Column(title="backward residual, last tenth", measure="backward_residual", digits=".1g")
NORM = Column(title="‖J‖²_F / d", measure="jacobian_norm", digits=".3f")
RADIUS = Column(title="spectral radius", measure="spectral_radius", digits=".2g")


CLAIM_TITLES = ("", "claim", "section", "source", "verdict", "numbers")


def claim_rows(verdicts: Iterable[Verdict]) -> list[list[str]]:
    """Return claims and what became of them as the rows of a table, numbered from 1."""
    return [
        [str(number), v.claim, v.section, v.source, v.shown, v.evidence] for number, v in enumerate(verdicts, start=1)
    ]


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
