import importlib.util
import json
from pathlib import Path

import pytest

from steadeq.experiments import ARTEFACTS, figure5, table2
from steadeq.experiments.results import spread

ROOT = Path(__file__).parent.parent.parent


def load_script():
    spec = importlib.util.spec_from_file_location("results_page", ROOT / "docs" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_results_has_the_numbers_of_the_files():
    script = load_script()
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.render(page) == page


def test_every_artefact_with_results_is_on_the_page():
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for name in ARTEFACTS:
        if (ROOT / "results" / name).is_dir():
            assert f"<!-- {name} -->" in page


def test_the_spread_is_that_of_the_seeds():
    assert spread([{"x": 1.0}, {"x": 2.0}, {"x": 6.0}], ["x"]) == {
        "num_seeds": 3,
        "x": 3.0,
        "x_std": pytest.approx(7**0.5),
    }


def entry(**values):
    return {**dict.fromkeys(table2._MEASURES, 1.0), **{f"{m}_std": 0.0 for m in table2._MEASURES}, **values}


@pytest.mark.parametrize(
    ("accuracies", "seconds", "outcomes"),
    [
        ((0.45, 0.38, 0.46), (100, 100, 45), ["holds", "holds", "holds"]),
        ((0.45, 0.44, 0.43), (100, 100, 60), ["does not hold", "does not hold", "does not hold"]),
        ((0.45, 0.43, 0.44), (100, 100, 50), ["holds", "holds", "holds"]),
    ],
)
def test_claims_on_cifar_are_judged_by_the_numbers(accuracies, seconds, outcomes):
    rows = [entry(accuracy=a, seconds_per_epoch=s) for a, s in zip(accuracies, seconds, strict=True)]
    assert [verdict.outcome for verdict in table2.judge(rows)] == outcomes


def test_claims_on_the_synthetic_study_are_judged_by_the_numbers():
    def row(gamma, mse, slope, picard, anderson):
        values = {"mse": mse, "slope": slope, "picard_evals": picard, "anderson_evals": anderson}
        return {"gamma": gamma, **values, **{f"{name}_std": 0.0 for name in values}}

    good = [row(0, 0.003, 0.8, 20, 6), row(1, 0.004, 0.3, 7, 5)]
    bad = [row(0, 0.003, 0.3, 7, 5), row(1, 0.9, 0.8, 20, 6)]
    assert {verdict.outcome for verdict in figure5.judge(good)} == {"holds"}
    assert {verdict.outcome for verdict in figure5.judge(bad)} == {"does not hold"}


def test_runs_of_an_artefact_differ_in_what_they_are_about():
    configs = figure5.configs()
    assert len(configs) == 12
    assert {config.jacobian.weight for config in configs.values()} == {0, 1, 2, 4}
    assert len({json.dumps([c.jacobian.weight, c.loop.seed]) for c in configs.values()}) == 12
