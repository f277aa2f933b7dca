"""What is committed under results agrees with the claims, and the synthetic study is judged by its numbers."""

import csv
import json
import re
from pathlib import Path
from typing import get_args

import pytest
from paper.made_up import outcomes, spreads

from steadeq.lab.run.archive import FILES
from steadeq.lab.run.record import RunRecord, Spread, spread
from steadeq.paper.catalog import RESULTS
from steadeq.paper.figure5 import FIGURE5, GammaSummary
from steadeq.paper.result import Source, Threshold, Verdict, count, results_folder, tally
from steadeq.paper.variant import Averages

FOLDER = Path(__file__).parents[2] / "results"
PUBLISHED = [
    (name, scale)
    for name, result in RESULTS.items()
    for scale in result.scales
    if (results_folder(FOLDER, name, scale) / "summary.json").is_file()
]
"""All results that were made, with their scales."""
with (FOLDER / "claims.csv").open(newline="", encoding="utf-8") as file:
    LISTED = {(row["result"], row["claim"]) for row in csv.DictReader(file)}


def test_the_spread_is_that_of_the_seeds_and_read_as_it_was_written():
    several = spread([1.0, 2.0, 6.0])
    assert several == Spread(mean=3.0, std=pytest.approx(7**0.5), count=3)
    for num_seeds, found in ((3, several), (1, Spread(mean=1.5, std=None, count=1))):
        row = Averages(num_seeds=num_seeds, spreads={"a": found})
        assert Averages.from_json(row.to_json()) == row


def number(text):
    try:
        return float(text)
    except ValueError:
        return text


@pytest.mark.parametrize(("name", "scale"), PUBLISHED)
def test_what_is_published_follows_from_the_stored_numbers(name, scale, tmp_path):
    result, folder = RESULTS[name], results_folder(FOLDER, name, scale)
    summary, verdicts = result.read(folder)
    assert json.loads((folder / "summary.json").read_text())["verdicts"] == [vars(verdict) for verdict in verdicts]
    assert {(name, verdict.claim) for verdict in verdicts} <= LISTED
    assert result.from_json(json.loads(json.dumps(result.to_json(summary)))) == summary
    assert all(line.count(" | ") <= 6 for line in result.table(summary).splitlines()), "as wide as a page"
    result.write_csv(summary, tmp_path / "summary.csv")
    stored, again = (list(csv.reader((where / "summary.csv").read_text().splitlines())) for where in (folder, tmp_path))
    assert len(stored) > 1
    # Logarithms differ in their last digit from processor to processor.
    assert [[number(cell) for cell in row] for row in again] == [
        [cell if isinstance(cell := number(text), str) else pytest.approx(cell, rel=1e-12) for text in row]
        for row in stored
    ]


def test_every_claim_is_there_once_and_says_what_it_is_about():
    owners = {}
    for name, result in RESULTS.items():
        ids = [claim.id for claim in result.claims if claim.id]
        assert len(ids) == len(set(ids)), name
        for claim in result.claims:
            assert re.fullmatch(r"(\d(\.\d)?|B\.\d|Table \d|appendix).*", claim.section), claim.text
            assert claim.source in get_args(Source)
            assert claim.threshold in get_args(Threshold)
            assert owners.setdefault(claim.text, name) == name
    with pytest.raises(KeyError):
        FIGURE5.claim("no such claim")


def verdict(outcome, *, source="paper", threshold="none"):
    return Verdict(claim="", section="5", source=source, threshold=threshold, outcome=outcome, evidence="")


def test_claims_of_the_paper_and_our_own_are_counted_apart():
    after = "set after a look at numbers"
    verdicts = [
        verdict("holds", threshold="stated before"),
        verdict("does not hold", threshold=after),
        verdict("not tested"),
        verdict("holds", source="own", threshold=after),
    ]
    assert (count(verdicts, "paper"), count(verdicts, "own")) == ("1 of 2, 1 not tested", "1 of 1")
    assert count(verdicts[:2], "own") == "-"
    assert tally(verdicts) == (
        "Claims of the paper that hold: 1 of 2, 1 not tested. Claims of our own that hold: 1 of 1. Thresholds of ours "
        "that were set after a look at numbers: claims 2 and 4."
    )
    assert tally(verdicts[:2]).endswith("claim 2.")
    assert tally(verdicts[:1]).endswith("All thresholds of ours were stated before there were numbers.")
    assert tally([verdict("holds")]) == "Claims of the paper that hold: 1 of 1."


def test_claims_on_the_synthetic_study_are_judged_by_the_numbers():
    def row(gamma, mse, slope, picard, anderson):
        values = {"mse": mse, "slope": slope, "picard_evals": picard, "anderson_evals": anderson}
        return GammaSummary(gamma=gamma, num_seeds=3, spreads=spreads(values))

    good = [row(0, 0.003, 0.8, 20, 6), row(1, 0.004, 0.3, 7, 5)]
    bad = [row(0, 0.003, 0.3, 7, 5), row(1, 0.9, 0.8, 20, 6)]
    assert outcomes(FIGURE5, good) == [True] * 4
    assert outcomes(FIGURE5, bad) == [False] * 4


def test_archived_runs_are_small_and_say_nothing_about_the_machine():
    for path in (FOLDER / "runs").glob("*"):
        record = RunRecord.read(path)
        assert record.is_finished or record.has_diverged, path
        assert not record.problems
        assert not any(session.arguments for session in record.sessions)
        assert sum(file.stat().st_size for file in path.iterdir()) < 250_000, path
        assert {file.name for file in path.iterdir()} <= {*FILES, "environment.json"}
