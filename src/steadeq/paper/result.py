"""A table or figure of the paper: which runs it needs, what is measured of them, and which claims are checked."""

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from ..codec import Reader, to_plain
from ..lab.config import TrainConfig
from ..lab.files import write_atomically
from ..lab.recipes.registry import Scale

S = TypeVar("S")
"""What a result measures."""
Outcome = Literal["holds", "does not hold", "undecided", "not tested"]
"""The verdict on a claim; "undecided" where the spread over seeds is larger than the difference."""
Source = Literal["paper", "own"]
"""Who says it: the paper, in words or by its numbers, or we, beside what it says."""
Threshold = Literal["none", "stated before", "set after a look at numbers"]
"""Whether a claim has a threshold that is not the paper's, and whether our history has it before the numbers.

A threshold that was committed together with the numbers counts as set after a look.
"""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Where the runs of a scale are trained."""

    num_jobs: int
    """Number of runs to train at the same time."""
    name: str = ""
    """What it takes, where that is more than a laptop: `steadeq reproduce` then prints the commands that train runs."""


HARDWARE: Mapping[Scale, Hardware] = {
    "cpu": Hardware(num_jobs=2),
    "day": Hardware(num_jobs=2),
    "paper": Hardware(num_jobs=1, name="4 GPUs"),
}
"""All scales. A new one needs an entry here, its name in `Scale`, and variants in language.py and vision.py."""


class MissingNumber(LookupError):
    """Raised by a claim that needs a number which was not measured; the message says which."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a claim, with the numbers that decide."""

    claim: str
    section: str
    source: Source
    threshold: Threshold
    outcome: Outcome
    evidence: str
    num_seeds: int = 0
    """The fewest seeds of a model that it compares; 0 where it does not compare trained models."""

    @property
    def shown(self) -> str:
        """The outcome as tables show it: with a note where one seed decides."""
        return f"{self.outcome}, one seed" if self.num_seeds == 1 and self.outcome != "not tested" else self.outcome


@dataclass(frozen=True)
class Claim(Generic[S]):
    """Something that numbers can confirm or refute: what the paper says, or what we add to it.

    Example:
        >>> claim = Claim("more is better", section="5.2", holds=lambda n: n > 1, evidence=lambda n: f"{n} against 1")
        >>> verdict = claim.judge(2)
        >>> verdict.section, verdict.source, verdict.outcome, verdict.evidence
        ('5.2', 'paper', 'holds', '2 against 1')
    """

    text: str
    _: KW_ONLY
    id: str = ""
    """What others refer to it by, within its result; needed by those that headlines or ablations are about."""
    section: str
    """The section of the paper that it is about, with its table or figure, as in "5.2, Table 1"."""
    source: Source = "paper"
    threshold: Threshold = "none"
    holds: Callable[[S], bool]
    evidence: Callable[[S], str]
    """Lists the numbers that decide."""
    applies: Callable[[S], bool] = lambda _: True
    """Whether it is about anything that was measured; other claims are left out."""
    subjects: Sequence[str] = ()
    """Names of the models that it says something about even if they diverge; the others must train."""

    def judge(self, summary: S) -> Verdict:
        """Judge the claim by the numbers."""
        try:
            outcome: Outcome = "holds" if self.holds(summary) else "does not hold"
            evidence = self.evidence(summary)
        except MissingNumber as error:
            outcome, evidence = "not tested", str(error)
        return Verdict(
            claim=self.text,
            section=self.section,
            source=self.source,
            threshold=self.threshold,
            outcome=outcome,
            evidence=evidence,
        )


def count(verdicts: Sequence[Verdict], source: Source) -> str:
    """Return how many of the claims of a source hold, of those that were tested; a dash where it claims nothing.

    Example:
        >>> claim = Claim("more is better", section="5.2", holds=lambda n: n > 1, evidence=str)
        >>> verdicts = [claim.judge(n) for n in (0, 1, 2)]
        >>> count(verdicts, "paper"), count(verdicts, "own")
        ('1 of 3', '-')
    """
    outcomes = [verdict.outcome for verdict in verdicts if verdict.source == source]
    if not outcomes:
        return "-"
    untested = outcomes.count("not tested")
    parts = [f"{outcomes.count('holds')} of {len(outcomes) - untested}"]
    parts += [f"{n} {name}" for name in ("undecided", "not tested") if (n := outcomes.count(name))]
    return ", ".join(parts)


def tally(verdicts: Sequence[Verdict]) -> str:
    """Return how many claims hold, the paper's and ours apart, and which thresholds were set after a look at numbers.

    Claims are told by their places, from 1 on.
    """
    sources: Mapping[Source, str] = {"paper": "the paper", "own": "our own"}
    counts = ((name, count(verdicts, source)) for source, name in sources.items())
    sentences = [f"Claims of {name} that hold: {number}." for name, number in counts if number != "-"]
    after = [str(n) for n, v in enumerate(verdicts, start=1) if v.threshold == "set after a look at numbers"]
    if after:
        which = f"claim {after[0]}" if len(after) == 1 else f"claims {', '.join(after[:-1])} and {after[-1]}"
        sentences.append(f"Thresholds of ours that were set after a look at numbers: {which}.")
    elif any(verdict.threshold == "stated before" for verdict in verdicts):
        sentences.append("All thresholds of ours were stated before there were numbers.")
    return " ".join(sentences)


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
    summary_type: ClassVar[Any]
    """The dataclass that it measures, where the fields of that are what summary.json has."""
    rows_key: ClassVar[str]
    """Name of the rows in summary.json, which are written to summary.csv too."""
    can_be_partial: ClassVar[bool] = False
    """Whether it can be made of a part of its runs."""

    def claim(self, id: str) -> Claim[S]:
        """Return the claim of an id."""
        return {claim.id: claim for claim in self.claims}[id]

    def quick(self) -> "PaperResult[Any] | None":
        """Return a small part of it under a name of its own, which takes minutes; None if there is none."""
        return None

    def runs(self, scale: Scale) -> Mapping[str, TrainConfig]:
        """Return the runs that it needs, by the names of their folders."""
        return {}

    def data(self, scale: Scale) -> str:
        """Return the names of the data sets that it needs."""
        return ", ".join(dict.fromkeys(config.data.name for config in self.runs(scale).values())) or self.needs

    def minutes(self, scale: Scale) -> Mapping[str, float]:
        """Return about how many minutes of one processor its runs take, by the names of their folders."""
        return {}

    def duration(self, scale: Scale) -> str:
        """Return how long all its runs take; many are shared with other results."""
        return self.takes

    def can_use(self, name: str, path: Path, scale: Scale) -> bool:
        """Return whether the small files of an archived run have all that is measured of it, without its weights."""
        return False

    @abstractmethod
    def measure(self, runs: Mapping[str, Path], folder: Path, scale: Scale) -> S:
        """Return what is reported of finished runs; write figures and tables of single runs to a folder.

        Args:
            runs: Folders of the runs that are finished, by name: all, or those of a partial result.
            folder: Where figures and tables go.
            scale: Scale of the runs.
        """

    def to_json(self, summary: S) -> dict[str, Any]:
        """Return what is written to summary.json."""
        return to_plain(summary)

    def from_json(self, content: Mapping[str, Any]) -> S:
        """Return what was read from summary.json."""
        return Reader(is_lenient=True).read(content, self.summary_type)

    @abstractmethod
    def table(self, summary: S) -> str:
        """Return the most important numbers as a table in Markdown, of at most seven columns."""

    def found(self, summary: S) -> str | None:
        """Return what was found in three sentences; None where its claims say it."""
        return None

    def judge(self, summary: S) -> list[Verdict]:
        """Judge the claims by the numbers."""
        return [claim.judge(summary) for claim in self.claims if claim.applies(summary)]

    def produce(self, runs: Mapping[str, Path], folder: Path, scale: Scale) -> list[Verdict]:
        """Measure, draw, judge, and write everything to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        summary = self.measure(runs, folder, scale)
        verdicts = self.judge(summary)
        content = {**self.to_json(summary), "verdicts": [vars(verdict) for verdict in verdicts]}
        write_atomically(folder / "summary.json", json.dumps(content, indent=1) + "\n")
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
        """Return the summary that `produce` wrote to a folder, and the verdicts that follow from it."""
        summary = self.from_json(json.loads((folder / "summary.json").read_text()))
        return summary, self.judge(summary)

    def judge_anew(self, folder: Path) -> list[Verdict]:
        """Judge the numbers that `produce` wrote to a folder, and write the verdicts beside them."""
        path = folder / "summary.json"
        _, verdicts = self.read(folder)
        content = json.loads(path.read_text()) | {"verdicts": [vars(verdict) for verdict in verdicts]}
        write_atomically(path, json.dumps(content, indent=1) + "\n")
        return verdicts


def results_folder(out: Path, name: str, scale: Scale) -> Path:
    """Return the folder of a result at a scale, in the folder of all of them."""
    return out / name if scale == "cpu" else out / scale / name


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV; a cell is empty where a row has no such column."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
