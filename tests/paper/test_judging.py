"""Claims are judged against models that train, and with an eye on the spread over seeds."""

from dataclasses import replace

import pytest
from paper.made_up import row, summary

from steadeq.lab.divergence import has_diverged
from steadeq.lab.run.record import RunRecord, Spread, TrainLine
from steadeq.paper.judging import judge
from steadeq.paper.language import POST, POST_BROYDEN, POST_FASTER, STOPPED, STOPPED_BROYDEN, choose_settings
from steadeq.paper.tables import PERPLEXITY

BETTER = PERPLEXITY.claim("a is better", "a", "b", lambda a, b: a < b, section="5")


def over_seeds(name, mean, std, count=3, **measures):
    found = replace(row(name, **measures), num_seeds=count)
    return found.adding(score=Spread(mean=mean, std=std, count=count))


@pytest.mark.parametrize(
    ("std", "outcome"), [(0.5, "holds"), (1.5, "undecided"), (None, "holds")], ids=["small", "large", "one seed"]
)
def test_a_difference_within_the_spread_over_seeds_decides_nothing(std, outcome):
    count = 1 if std is None else 3
    verdict = judge(BETTER, summary(over_seeds("a", 10.0, std, count), over_seeds("b", 11.0, std, count)))
    assert verdict.outcome == outcome
    assert verdict.num_seeds == count
    assert verdict.shown == ("holds, one seed" if std is None else outcome)


def test_nothing_is_compared_with_a_model_that_diverged():
    verdict = judge(BETTER, summary(row("a", score=10.0), row("b", score=2000.0, diverged=1.0)))
    assert verdict.outcome == "not tested"
    assert "diverged, so that nothing can be compared with it: b" in verdict.evidence
    about = replace(BETTER, subjects=("b",))
    assert judge(about, summary(row("a", score=10.0), row("b", score=2000.0, diverged=1.0))).outcome == "holds"


def test_a_model_stands_as_it_trained_best_on_validation_data():
    found = choose_settings(
        summary(
            row(POST, validation_score=200.0, score=1.0),
            row(POST_BROYDEN, validation_score=190.0, score=2.0),
            row(POST_FASTER, validation_score=100.0, diverged=1.0),
            row(STOPPED, score=3.0),
            row(STOPPED_BROYDEN, score=4.0),
        )
    )
    assert found[POST].variant == POST_BROYDEN
    assert found[STOPPED].variant == STOPPED_BROYDEN, "the same run at another budget"
    assert found.unused == {POST, POST_FASTER, STOPPED}


def test_runs_that_were_kept_before_there_was_a_rule_are_judged_by_it(request):
    runs = request.config.rootpath / "results" / "runs"
    assert has_diverged(RunRecord.read(runs / "wikitext2-deq-post-day-faster-seed0"))
    record = RunRecord.read(runs / "wikitext2-deq-post-day-broyden-seed0")
    assert not has_diverged(record)
    for off in ({"forward_residual": 0.6}, {"task_loss": 7.1}):
        lines = [replace(line, **off) if 1000 < line.step <= 1500 else line for line in record.training]
        assert has_diverged(replace(record, training=tuple(lines)))
        short = [replace(line, **off) if 1000 < line.step <= 1480 else line for line in record.training]
        assert not has_diverged(replace(record, training=tuple(short)))
    assert isinstance(record.training[0], TrainLine)
