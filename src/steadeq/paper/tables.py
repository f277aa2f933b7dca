"""Tables in Markdown."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .result import Claim, Verdict
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
    beside_paper: bool = False
    """Whether a column with what the paper reports follows."""

    def show(self, row: Averages) -> str:
        """Return a cell."""
        return row.show(self.measure, factor=self.factor, digits=self.digits)

    def against(self, *rows: Averages) -> str:
        """Return the cells of several rows, for comparison, as in "12.0 against 30.0"."""
        return " against ".join(map(self.show, rows))

    def claim(self, text: str, first: str, second: str, holds: Callable[[float, float], bool]) -> Claim[Summary]:
        """Return a claim that compares the means of two variants, which are given by name."""
        return Claim(
            text,
            holds=lambda s: holds(s[first].mean(self.measure), s[second].mean(self.measure)),
            evidence=lambda s: f"{self.title}: {self.against(s[first], s[second])}",
        )

    def at_most(self, factor: float, first: str, second: str, text: str) -> Claim[Summary]:
        """Return a claim that the mean of a variant is at most a multiple of that of another one."""
        return self.claim(text, first, second, lambda a, b: a <= factor * b)


PERPLEXITY = Column(title="perplexity", measure="score", digits=".1f")
EVALS = Column(title="evaluations, last tenth", measure="train_evals", digits=".1f")
RESIDUAL = Column(title="residual, last tenth", measure="train_residual", digits=".1g")
BACKWARD_RESIDUAL = Column(title="backward residual, last tenth", measure="backward_residual", digits=".1g")
NORM = Column(title="‖J‖²_F / d", measure="jacobian_norm", digits=".3f")
RADIUS = Column(title="spectral radius", measure="spectral_radius", digits=".2g")


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
