"""The paper's headline claims, its own numbers, and reasons for what does not hold here."""

from pathlib import Path

import pytest
from paper.made_up import row, summary

from steadeq.paper import ablations
from steadeq.paper.ablations import NOT_FOUND, Ablation, reason
from steadeq.paper.catalog import RESULTS
from steadeq.paper.comparison import Comparison
from steadeq.paper.headlines import HEADLINES, of_paper
from steadeq.paper.language import POST, POST_JR
from steadeq.paper.numbers import Numbers
from steadeq.paper.result import results_folder
from steadeq.paper.table1 import TABLE1
from steadeq.paper.table2 import TABLE2
from steadeq.paper.tables import BACKWARD_RESIDUAL, PERPLEXITY, RESIDUAL

NUMBERS = Numbers(Path(__file__).parents[2] / "results")


def test_there_are_eight_headlines_of_the_papers_own_claims():
    assert len(HEADLINES) == 8
    for headline in HEADLINES:
        assert headline.claims
        for result, claim in headline.claims:
            assert RESULTS[result.name] is result
            assert any(claim is one for one in result.claims)
            assert claim.source == "paper"


@pytest.mark.parametrize("name", [name for name, result in RESULTS.items() if isinstance(result, Comparison)])
def test_the_papers_numbers_confirm_what_it_claims(name):
    """No claim is stricter than the paper is with itself."""
    result = RESULTS[name]
    said = [of_paper(result, claim) for claim in result.claims if claim.source == "paper"]
    assert not [text for text in said if not text.startswith(("holds: ", "says so"))]


def test_the_papers_numbers_are_read_from_its_tables():
    assert of_paper(TABLE1, TABLE1.claim("small-budget")) == "holds: 24.9 at 12 against 24.0 at 30"
    assert "93.1 ± 0.3% at 6 against 93.6 ± 0.2% at 17" in of_paper(TABLE2, TABLE2.claim("small-budget"))
    assert of_paper(TABLE1, TABLE1.claim("pre-ln-diverges")) == "says so"
    assert of_paper(TABLE1, TABLE1.claim("own-cell")) == "-"


def test_what_is_the_same_at_every_scale_has_one_verdict(tmp_path):
    for name, result in RESULTS.items():
        claim = result.claims[0]
        cpu, day = (NUMBERS.verdict(result, claim, scale) for scale in ("cpu", "day"))
        if result.scales == ("cpu",):
            assert cpu is not None, name
            assert day == cpu
        assert Numbers(tmp_path).verdict(result, claim, "day") is None


def test_a_reason_is_an_experiment_with_its_numbers_or_not_known(tmp_path, monkeypatch):
    claim = TABLE1.claim("stopped-early")
    assert reason(claim, "day", Numbers(tmp_path)) == NOT_FOUND
    found = summary(row(POST, score=24.0), row(POST_JR, score=25.0))
    folder = results_folder(tmp_path, "table1", "day")
    monkeypatch.setattr(type(TABLE1), "measure", lambda self, runs, folder, scale: found)
    TABLE1.produce({}, folder, "day")
    one = Ablation(
        claim=claim,
        scale="day",
        reason="the next words do not depend on so little",
        comparison=TABLE1,
        shown_by=ablations.against(PERPLEXITY, POST, POST_JR),
    )
    monkeypatch.setattr(ablations, "ABLATIONS", (one,))
    said = reason(claim, "day", Numbers(tmp_path))
    assert said.startswith("the next words do not depend on so little (perplexity: 24.0 ± 0.0 against 25.0 ± 0.0, ")
    assert reason(claim, "cpu", Numbers(tmp_path)) == NOT_FOUND
    assert reason(TABLE2.claims[0], "day", Numbers(tmp_path)) == NOT_FOUND


def test_growth_compares_the_ends_of_training():
    shown = ablations.growth(POST, RESIDUAL, BACKWARD_RESIDUAL)
    found = summary(
        row(POST, early_residual=0.002, train_residual=0.9, early_backward_residual=0.1, backward_residual=0.5)
    )
    assert shown(found) == (
        f"{POST}, first to last tenth: residual 0.002 ± 0 to 0.9 ± 0, backward residual 0.1 ± 0 to 0.5 ± 0"
    )


def test_every_ablation_is_about_a_claim_and_has_its_rows():
    claims = [claim for result in RESULTS.values() for claim in result.claims]
    for one in ablations.ABLATIONS:
        assert any(claim is one.claim for claim in claims)
        assert one.evidence(NUMBERS)
