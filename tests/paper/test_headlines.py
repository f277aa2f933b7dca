"""The paper's headline claims, its own numbers, and reasons for what does not hold here."""

from pathlib import Path

import pytest
from paper.made_up import row, summary

from steadeq.paper import RESULTS, ablations
from steadeq.paper.ablations import NOT_FOUND, Ablation, reason
from steadeq.paper.comparison import Comparison
from steadeq.paper.headlines import HEADLINES, claim_of, of_paper, read_verdict
from steadeq.paper.language import POST, POST_JR
from steadeq.paper.result import results_folder
from steadeq.paper.table1 import TABLE1
from steadeq.paper.table2 import TABLE2
from steadeq.paper.tables import BACKWARD_RESIDUAL, PERPLEXITY, RESIDUAL

NUMBERS = Path(__file__).parents[2] / "results"


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
    assert of_paper(*claim_of(TABLE1, "regularized post-LN with")) == "holds: 24.9 at 12 against 24.0 at 30"
    assert "93.1 ± 0.3% at 6 against 93.6 ± 0.2% at 17" in of_paper(*claim_of(TABLE2, "regularized with the small"))
    assert of_paper(*claim_of(TABLE1, "without regularization pre-LN diverges")) == "says so"
    assert of_paper(*claim_of(TABLE1, "it is ahead of its own cell")) == "-"


def test_what_is_the_same_at_every_scale_has_one_verdict(tmp_path):
    for name, result in RESULTS.items():
        claim = result.claims[0]
        cpu, day = (read_verdict(result, claim, NUMBERS, scale) for scale in ("cpu", "day"))
        if result.scales == ("cpu",):
            assert cpu is not None, name
            assert day == cpu
        assert read_verdict(result, claim, tmp_path, "day") is None


def test_a_reason_is_an_experiment_with_its_numbers_or_not_known(tmp_path, monkeypatch):
    result, claim = claim_of(TABLE1, "stopping the solves")
    assert reason(result, claim, "day", tmp_path) == NOT_FOUND
    found = summary(row(POST, score=24.0), row(POST_JR, score=25.0))
    folder = results_folder(tmp_path, "table1", "day")
    monkeypatch.setattr(type(TABLE1), "measure", lambda self, runs, folder, scale: found)
    TABLE1.produce({}, folder, "day")
    one = Ablation(
        claim="stopping the solves",
        of="table1",
        scale="day",
        reason="the next words do not depend on so little",
        comparison=TABLE1,
        shown_by=ablations.against(PERPLEXITY, POST, POST_JR),
    )
    monkeypatch.setattr(ablations, "ABLATIONS", (one,))
    said = reason(result, claim, "day", tmp_path)
    assert said.startswith("the next words do not depend on so little (perplexity: 24.0 ± 0.0 against 25.0 ± 0.0, ")
    assert reason(result, claim, "cpu", tmp_path) == NOT_FOUND
    assert reason(TABLE2, TABLE2.claims[0], "day", tmp_path) == NOT_FOUND


def test_growth_compares_the_ends_of_training():
    shown = ablations.growth(POST, RESIDUAL, BACKWARD_RESIDUAL)
    found = summary(
        row(POST, early_residual=0.002, train_residual=0.9, early_backward_residual=0.1, backward_residual=0.5)
    )
    assert shown(found) == (
        f"{POST}, first to last tenth: residual 0.002 ± 0 to 0.9 ± 0, backward residual 0.1 ± 0 to 0.5 ± 0"
    )


def test_every_ablation_is_about_a_claim_and_has_its_rows():
    for one in ablations.ABLATIONS:
        claim_of(RESULTS[one.of], one.claim)
        assert one.evidence(NUMBERS)
