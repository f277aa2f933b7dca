"""A table or figure of the paper: which runs it needs, what is measured of them, and which claims are checked."""

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from ..lab.config import TrainConfig
from ..lab.recipes.registry import Scale

S = TypeVar("S")
"""What a result measures."""
Outcome = Literal["holds", "does not hold", "not tested"]


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Where the runs of a scale are trained."""

    num_jobs: int
    """Number of runs that are trained at a time."""
    name: str = ""
    """What it takes, where that is more than a laptop: `steadeq reproduce` then prints the commands that train runs."""


HARDWARE: Mapping[Scale, Hardware] = {
    "cpu": Hardware(num_jobs=2),
    "paper": Hardware(num_jobs=1, name="4 GPUs"),
}
"""All scales. A new one needs an entry here, its name in `Scale`, and variants in language.py and vision.py."""


class MissingNumber(LookupError):
    """Raised by a claim that needs a number which was not measured; the message says which."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a claim, with the numbers that decide."""

    claim: str
    outcome: Outcome
    evidence: str


@dataclass(frozen=True)
class Claim(Generic[S]):
    """Something that the paper says and that numbers can confirm or refute.

    Example:
        >>> claim = Claim("more is better", holds=lambda n: n > 1, evidence=lambda n: f"{n} against 1")
        >>> claim.judge(2)
        Verdict(claim='more is better', outcome='holds', evidence='2 against 1')
    """

    text: str
    _: KW_ONLY
    holds: Callable[[S], bool]
    evidence: Callable[[S], str]
    """Lists the numbers that decide."""
    applies: Callable[[S], bool] = lambda _: True
    """Whether it is about anything that was measured; other claims are left out."""

    def judge(self, summary: S) -> Verdict:
        """Hold the claim against the numbers."""
        try:
            outcome: Outcome = "holds" if self.holds(summary) else "does not hold"
            return Verdict(claim=self.text, outcome=outcome, evidence=self.evidence(summary))
        except MissingNumber as error:
            return Verdict(claim=self.text, outcome="not tested", evidence=str(error))


@dataclass(frozen=True, kw_only=True)
class PaperResult(ABC, Generic[S]):
    """A table or figure of the paper."""

    name: str
    """Name under which `steadeq reproduce` knows it, and of its folder under results."""
    title: str
    statement: str
    """What the paper says that it shows."""
    claims: Sequence[Claim[S]]
    scales: tuple[Scale, ...] = tuple(HARDWARE)
    """Scales at which it can be made; one that does not depend on the scale has only "cpu"."""
    needs: str = "-"
    """Names of the data sets, for one that needs no runs."""
    takes: str = ""
    """How long it takes, for one that does not depend on the scale."""
    rows_key: ClassVar[str]
    """Name of the rows in summary.json, which are written to summary.csv too."""

    def runs(self, scale: Scale) -> Mapping[str, TrainConfig]:
        """Return the runs that it needs, by the names of their folders."""
        return {}

    def data(self, scale: Scale) -> str:
        """Return the names of the data sets that it needs."""
        return ", ".join(dict.fromkeys(config.data.name for config in self.runs(scale).values())) or self.needs

    def duration(self, scale: Scale) -> str:
        """Return how long all its runs take; many are shared with other results."""
        return self.takes

    @abstractmethod
    def measure(self, runs: Path, folder: Path, scale: Scale) -> S:
        """Return what is reported of finished runs; write figures and tables of single runs to a folder.

        Args:
            runs: Folder of the folders of all runs.
            folder: Where figures and tables go.
            scale: Scale of the runs.
        """

    @abstractmethod
    def to_json(self, summary: S) -> dict[str, Any]:
        """Return what is written to summary.json."""

    @abstractmethod
    def from_json(self, content: Mapping[str, Any]) -> S:
        """Return what was read from summary.json."""

    @abstractmethod
    def table(self, summary: S) -> str:
        """Return the most important numbers as a table in Markdown, of at most seven columns."""

    def judge(self, summary: S) -> list[Verdict]:
        """Hold the claims against the numbers."""
        return [claim.judge(summary) for claim in self.claims if claim.applies(summary)]

    def produce(self, runs: Path, folder: Path, scale: Scale) -> list[Verdict]:
        """Measure, draw, judge, and write everything to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        summary = self.measure(runs, folder, scale)
        verdicts = self.judge(summary)
        content = {**self.to_json(summary), "verdicts": [vars(verdict) for verdict in verdicts]}
        (folder / "summary.json").write_text(json.dumps(content, indent=1) + "\n")
        self.write_csv(summary, folder / "summary.csv")
        return verdicts

    def write_csv(self, summary: S, path: Path) -> None:
        """Write the rows of the summary as CSV, with what the paper reports in columns of its own."""
        rows = []
        for row in self.to_json(summary)[self.rows_key]:
            paper = {f"paper_{name}": value for name, value in row.pop("paper", {}).items()}
            rows.append(row | paper)
        write_csv(path, rows)

    def read(self, folder: Path) -> tuple[S, list[Verdict]]:
        """Return the summary and the verdicts that `produce` wrote to a folder."""
        content = json.loads((folder / "summary.json").read_text())
        return self.from_json(content), [Verdict(**verdict) for verdict in content["verdicts"]]


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV; a cell is empty where a row has no such column."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
