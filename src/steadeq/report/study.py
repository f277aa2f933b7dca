"""The synthetic study of the paper, from runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from .. import data
from ..errors import InputError, RunError
from ..models import ToyDEQ
from ..recipes.synthetic import SyntheticData
from ..train.loading import build_model, load_weights
from .group import RunGroup
from .section import Panel, Section
from .summary import RunSummary
from .synthetic import MAX_EVALS, Frame, gamma_figure, synthetic_figure

X_SLICE = -0.5


def load_toy(run: RunSummary) -> ToyDEQ | None:
    """Return the trained model of a run of the synthetic study; None for other models and without a checkpoint."""
    if not isinstance(run.config.data, SyntheticData):
        return None
    try:
        model = build_model(run.config)
        checkpoint = run.run.checkpoints().load_latest()
        if not isinstance(model, ToyDEQ) or checkpoint is None:
            return None
        load_weights(model, checkpoint.weights if checkpoint.average is None else checkpoint.average)
    except (InputError, RunError) as error:
        run.problems.append(str(error))
        return None
    return model.eval()


def study_sections(groups: Sequence[RunGroup]) -> list[Section]:
    """Return the figures of the synthetic study for groups of one dataset: a column for each, by rising gamma."""
    loaded = [(group, [model for run in group.runs if (model := load_toy(run)) is not None]) for group in groups]
    found = sorted(((g, m) for g, m in loaded if m), key=lambda pair: pair[0].first.config.jacobian.weight)
    if not found:
        return []
    config = found[0][0].first.config.data
    assert isinstance(config, SyntheticData)
    splits, target = config.load(), partial(data.synthetic.target, variant=config.variant)
    frame = Frame.around([models[0] for _, models in found], target, radius=config.radius)
    columns = [
        Panel(
            figure=synthetic_figure(
                {group.label: models[0]},
                target,
                data=splits.train.everything(),
                x_slice=X_SLICE * config.radius,
                frame=frame,
            ),
            title=group.label,
            caption=_caption(group),
        )
        for group, models in found
    ]
    sections = [
        Section(
            title="The learned map",
            intro="From the top: the surface f(z; x) with the learned equilibria z*(x) in red and one slice in blue; "
            "plain fixed-point iteration on that slice, which needs more steps the closer the slope at the equilibrium "
            "is to 1; and the fit. A larger weight of the penalty should flatten the surface along z and leave the red "
            "line where it is.",
            panels=columns,
        )
    ]
    weights = {group.first.config.jacobian.weight: models for group, models in found}
    # With other differences beside the weight there is no single curve to draw.
    if len(weights) == len(found) > 1:
        figure = gamma_figure(weights, splits.validation.everything()[0])
        caption = (
            "Mean over validation inputs; the band spans the seeds. "
            f"Inputs whose solve does not converge count as {MAX_EVALS} evaluations."
        )
        sections.append(
            Section(
                title="Evaluations by weight of the penalty",
                panels=[Panel(figure=figure, title="Evaluations to a residual of 0.001", caption=caption)],
            )
        )
    return sections


def _caption(group: RunGroup) -> str:
    seed = f"Seed {group.first.config.loop.seed}" if len(group.runs) > 1 else "The run's latest checkpoint"
    return f"{seed}; the iteration starts at the end of the range that is further from the equilibrium."
