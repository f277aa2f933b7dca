import numpy as np
import pytest
import torch
from lab.report.folders import append, diagnosis, iteration, read, write_evaluation, write_run

from steadeq.lab.report import (
    curve_sections,
    diagnosis_panels,
    group_runs,
    inline_svg,
    iteration_panel,
)
from steadeq.lab.report.curves import (
    evals_figure,
    memory_figure,
    residual_figure,
    score_by_evals_figure,
    score_by_time_figure,
)
from steadeq.lab.report.curves import spectral_radius_figure as radius_curves
from steadeq.lab.report.diagnosis import num_evals_figure, residual_curve_figure, spectral_radius_figure
from steadeq.lab.report.groups import MAX_POINTS, combine
from steadeq.lab.report.style import INK
from steadeq.lab.run.record import RunDiagnosis
from steadeq.models import ToyDEQ
from steadeq.paper.synthetic import equilibria, gamma_figure, picard_path


def test_long_curves_become_means_that_keep_the_total():
    steps = np.arange(1.0, 3601.0)
    band = combine([(steps, steps)])
    assert len(band) == MAX_POINTS
    assert band.mean.mean() == pytest.approx(steps.mean())
    assert not band.has_spread


def test_a_band_spans_the_seeds():
    x = np.arange(3.0)
    band = combine([(x, x), (x, x + 2), (x[:2], x[:2] + 4)])
    assert band.low.tolist() == [0, 1, 2]
    assert band.high.tolist() == [4, 5, 4]
    assert band.mean.tolist() == [2, 3, 3]


def test_residuals_have_a_logarithmic_axis_without_zeros_and_a_line_for_each_group(tmp_path):
    groups = group_runs(read(*(write_run(tmp_path / f"{w}{s}", weight=w, seed=s) for w in (0.0, 1.0) for s in (0, 1))))
    for direction in ("forward", "backward"):
        figure = residual_figure(groups, direction)
        assert figure.axes[0].get_yscale() == "log"
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["γ = 0", "γ = 1"]
        assert len(figure.axes[0].lines) == 2
        assert len(figure.axes[0].lines[0].get_xdata()) == 40
    folder = write_run(tmp_path / "a", residual=0.0)
    assert residual_figure(group_runs(read(folder))) is None
    append(folder, event="train", step=41, epoch=4.1, forward_residual=1e-3)
    assert residual_figure(group_runs(read(folder))).axes[0].lines[0].get_ydata().tolist() == [1e-3]


def test_scores_are_drawn_against_budget_and_time(tmp_path):
    folder = write_run(tmp_path / "a", seconds=0.5)
    write_evaluation(folder, {8: 0.9, 1: 0.2, 4: 0.8})
    groups = group_runs(read(folder))
    line = score_by_evals_figure(groups).axes[0].lines[0]
    assert line.get_xdata().tolist() == [1, 4, 8]
    assert line.get_ydata().tolist() == [0.2, 0.8, 0.9]
    assert score_by_time_figure(groups).axes[0].lines[0].get_xdata().tolist() == [5, 10, 15, 20]
    assert [bar.get_width() for bar in memory_figure(groups).axes[0].patches] == [340.0]
    # Evaluations that are one number throughout get no figure.
    assert evals_figure(groups) is None
    assert evals_figure(group_runs(read(folder, write_run(tmp_path / "b", seed=1)))) is not None


def test_the_spectral_radius_has_a_line_at_one_and_bars_where_its_error_was_recorded(tmp_path):
    folder = write_run(tmp_path / "a")
    axes = radius_curves(group_runs(read(folder))).axes[0]
    assert any(list(line.get_ydata()) == [1.0, 1.0] for line in axes.lines)
    low, high = axes.get_ylim()
    assert low < 0.8 < 1.0 < high
    assert not axes.containers
    append(folder, event="evaluation", step=41, spectral_radius=0.9, spectral_radius_error=0.05)
    append(folder, event="evaluation", step=42, spectral_radius=0.9, spectral_radius_error=None)
    (bars,) = radius_curves(group_runs(read(folder))).axes[0].containers
    (segment,) = bars[2][0].get_segments()
    assert segment.tolist() == [[41, pytest.approx(0.85)], [41, pytest.approx(0.95)]]


def test_without_numbers_there_are_no_figures(tmp_path):
    assert curve_sections(group_runs(read(write_run(tmp_path / "a", stop_at=0)))) == []
    names = ("spectral_radius", "jacobian_norm", "residual_mean", "residual_low", "residual_high")
    for unknown in ((), (None, None)):
        assert diagnosis_panels(diagnosis(num_evals=(), **dict.fromkeys(names, unknown))) == []


def test_a_diagnosis_shows_what_was_measured():
    content = RunDiagnosis.from_json(diagnosis().to_json())
    assert len(diagnosis_panels(content)) == 4
    curve = residual_curve_figure(content).axes[0]
    assert curve.get_yscale() == "log"
    assert curve.lines[0].get_xdata().tolist() == list(range(1, 15))
    assert [bar.get_height() for bar in num_evals_figure(content).axes[0].patches] == [3, 3, 2]
    arnoldi = next(line for line in spectral_radius_figure(content).axes[0].lines if len(line.get_xdata()) == 8)
    assert arnoldi.get_ydata().tolist() == sorted(content.spectral_radius)
    # A sample whose error is unknown has a hollow mark.
    content = diagnosis(spectral_radius_errors=(0.01, 0.01, None, *[0.01] * 5))
    lines = spectral_radius_figure(content).axes[0].lines
    (hollow,) = (line for line in lines if list(line.get_xdata()) == [3])
    assert hollow.get_fillstyle() == "none"
    assert hollow.get_ydata().tolist() == [content.spectral_radius[2]]


@pytest.mark.parametrize(("value", "is_better"), [(None, True), (0.0, False), (1e-320, True), (1e308, False)])
def test_whatever_the_numbers_of_an_iteration_are_there_is_a_figure(value, is_better):
    content = {**iteration(num_samples=3), "higher_is_better": is_better}
    for name in ("residual", "metric"):
        content[name] = [[value] * 3 for _ in content[name]]
    for name in ("rate", "cosine", "movement"):
        content[name] = [value] * 3
    panel = iteration_panel(diagnosis(num_samples=3, iteration=content))
    assert panel.title == "Residual and accuracy of plain iteration"
    assert inline_svg(panel.figure, prefix="a", label="b").startswith("<svg")


def test_the_figure_of_an_iteration_follows_the_page():
    figure = iteration_panel(diagnosis()).figure
    residual, metric = figure.axes
    assert metric.get_ylabel() == "accuracy"
    # The mean over all samples, next to those of each kind.
    assert [line.get_color() for line in metric.lines].count(INK) == 1
    assert not residual.get_title()
    assert "mathdefault" not in inline_svg(figure, prefix="a", label="b")


def test_equilibria_are_fixed_points_and_iteration_leads_there():
    model = ToyDEQ()
    x = np.linspace(-1, 1, 5)
    z = torch.from_numpy(equilibria(model, x))[:, None]
    image = model.double().layer.cell(z, torch.from_numpy(x)[:, None])
    torch.testing.assert_close(image, z, rtol=1e-5, atol=1e-6)
    path = picard_path(model, float(x[1]), start=1.0)
    assert path[0] == 1.0
    assert abs(path[-1] - float(z[1])) < 1e-3


def test_the_gamma_figure_counts_evaluations():
    flat = ToyDEQ()
    with torch.no_grad():
        flat.layer.cell.W1.zero_()
    # Without a slope, the second evaluation confirms the first.
    figure = gamma_figure({0.0: [ToyDEQ(), ToyDEQ()], 4.0: [flat]}, torch.linspace(-1, 1, 50)[:, None])
    for line in figure.axes[0].lines:
        assert list(line.get_xdata()) == [0.0, 4.0]
        before, after = line.get_ydata()
        assert after == 2
        assert before > after
