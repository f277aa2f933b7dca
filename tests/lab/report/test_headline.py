from statistics import mean, stdev

import pytest
from lab.report.folders import append, read, write_evaluation, write_run

from steadeq.lab.report import group_runs
from steadeq.lab.report.comparison import compare_groups
from steadeq.lab.report.headline import compared_split, headlines


def paragraphs(*folders):
    groups = group_runs(read(*folders))
    return headlines(groups, compared_split(groups))


def test_numbers_are_means_over_seeds(tmp_path):
    plain = [write_run(tmp_path / f"p{s}", seed=s, accuracy=a) for s, a in enumerate((0.96, 0.98))]
    regularized = [
        write_run(tmp_path / f"r{s}", recipe="digits-jr", seed=s, accuracy=a, seconds=0.041, residual=0.01 / 12)
        for s, a in enumerate((0.98, 0.99))
    ]
    (text,) = paragraphs(*plain, *regularized)
    assert f"{100 * mean([0.98, 0.99]):.1f}% (± {100 * stdev([0.98, 0.99]):.1f}%) accuracy" in text
    assert f"{100 * mean([0.96, 0.98]):.1f}% (± {100 * stdev([0.96, 0.98]):.1f}%) with" in text
    assert "0.41 times as long (41.0 ms against 100 ms)" in text
    assert "12 times smaller" in text
    assert "better: the accuracy is 1.5 percentage points higher, a difference within the spread" in text


def test_worse_is_called_worse(tmp_path):
    plain = [write_run(tmp_path / f"p{s}", seed=s, accuracy=a) for s, a in enumerate((0.97, 0.974))]
    worse = [
        write_run(tmp_path / f"r{s}", recipe="digits-jr", seed=s, accuracy=0.9, residual=0.04, seconds=0.2)
        for s in range(2)
    ]
    (text,) = paragraphs(*plain, *worse)
    assert "the regularized model is worse: the accuracy is 7.2 percentage points lower." in text
    assert "2.0 times as long" in text
    assert "4.0 times larger" in text


@pytest.mark.parametrize(
    ("error", "shown", "size"), [(0.002, "2.00e-3", "2.0 times smaller"), (0.0, "0 with", "smaller")]
)
def test_a_smaller_error_is_better_and_has_a_ratio_unless_it_is_zero(error, shown, size, tmp_path):
    plain = write_run(tmp_path / "a", recipe="synthetic", accuracy=0.004)
    (text,) = paragraphs(plain, write_run(tmp_path / "b", recipe="synthetic-jr", accuracy=error))
    assert f"a validation mse of {shown}" in text
    assert f"better: the mse is {size}, though with a single seed" in text


@pytest.mark.parametrize("recipes", [("digits",), ("digits-jr",), ("digits", "synthetic-jr")])
def test_nothing_is_said_without_a_pair(tmp_path, recipes):
    assert paragraphs(*(write_run(tmp_path / name, recipe=name) for name in recipes)) == []


def test_the_error_of_a_radius_is_said_where_it_was_recorded(tmp_path):
    folders = write_run(tmp_path / "a"), write_run(tmp_path / "b", recipe="digits-jr")
    (text,) = paragraphs(*folders)
    assert "radius of the Jacobian is 0.80 against 0.80: " in text
    for folder, error, unknown in zip(folders, (None, 0.02), (1.0, 0.25), strict=True):
        record = {"spectral_radius": 0.8, "spectral_radius_error": error, "spectral_radius_unknown": unknown}
        append(folder, event="evaluation", step=41, accuracy=0.9, **record)
    groups = group_runs(read(*folders))
    (text,) = headlines(groups, compared_split(groups))
    assert "is 0.80 (error 0.02, 25% unknown) against 0.80 (error unknown): " in text
    cells = [(cell.text, cell.error) for cell in compare_groups(groups, "validation")["ρ(J)"]]
    assert cells == [("0.800", "error unknown"), ("0.800", "error 0.02, 25% unknown")]


def test_unfinished_runs_make_it_preliminary(tmp_path):
    (text,) = paragraphs(write_run(tmp_path / "a"), write_run(tmp_path / "b", recipe="digits-jr", stop_at=25))
    assert "preliminary" in text


def test_test_data_count_only_when_every_run_has_them(tmp_path):
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", recipe="digits-jr")
    write_evaluation(a, {18: 0.77})
    assert "on validation data" in paragraphs(a, b)[0]
    write_evaluation(b, {6: 0.88})
    (text,) = paragraphs(a, b)
    assert "88.0% accuracy on test data with 6.0 evaluations" in text
    assert "77.0% with 18.0" in text
