"""Schedules of p and penalties on sigma, through config.json, the command line, and interrupted runs."""

import json

import pytest
from lab.train.runs import Crash, assert_same, events_of, final_state, tiny_config, train, train_until

from steadeq import (
    JacobianRegularizer,
    Linear,
    OperatorNormRegularizer,
    ResidualRegularizer,
    SpectralRegularizer,
)
from steadeq.lab.cli.main import main
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.run.record import RunRecord
from steadeq.lab.train import Trainer

SHORT = ("--loop.num-steps", "8", "--log.eval-every", "8", "--log.spectrum-samples", "0", "--log.every", "1")


def applied(path):
    """Return the steps, from 0, that had a penalty."""
    return [line["step"] - 1 for line in events_of(path, "train") if line["penalty"] > 0]


def test_penalties_and_schedules_of_p_are_options_of_the_command_and_part_of_the_config(tmp_path, capfd):
    path = tmp_path / "run"
    options = ("--regularizer.probability-schedule", "Linear", "--regularizer.probability-schedule.end", "0.5")
    options += ("--regularizer", "OperatorNormRegularizer", "--regularizer.num-steps", "2")
    assert main(["train", "digits-jr", *options, *SHORT, "--out", str(path)]) == 0
    stored = json.loads((path / "config.json").read_text())["regularizer"]["probability_schedule"]
    assert stored == {"class": "steadeq.jacobian.schedules:Linear", "end": 0.5, "num_steps": None, "begin": 0}
    regularizer = RunRecord.read(path).config.regularizer
    # What all regularizers have is taken over from the recipe's.
    assert regularizer == OperatorNormRegularizer(
        weight=2.0, probability=0.4, num_steps=2, probability_schedule=Linear(end=0.5)
    )
    of_run = regularizer.for_run(num_steps=8, steps_per_epoch=8)
    assert [of_run.probability_at(step) for step in (0, 4, 8)] == pytest.approx([0.4, 0.45, 0.5])
    assert applied(path) == [step for step in range(8) if of_run.tau(step)]


def test_a_closed_loop_on_p_is_refused_by_the_command_before_anything_is_written(tmp_path, capfd):
    options = ("--regularizer.probability-schedule", "ClosedLoop", "--out", str(tmp_path / "run"))
    assert main(["train", "digits-jr", *options]) == 2
    message = capfd.readouterr().err
    assert "--regularizer.probability-schedule is ClosedLoop(" in message
    assert "must not be a closed loop" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "regularizer",
    [
        # It has a state; the others have their number of the step alone.
        SpectralRegularizer(weight=0.1, probability=0.5, num_products=4, keep=True),
        JacobianRegularizer(weight=1.0, probability=0.0, probability_schedule=Linear(end=1.0)),
        *(
            pytest.param(regularizer, marks=pytest.mark.slow)
            for regularizer in (
                OperatorNormRegularizer(weight=0.1, probability=0.5, num_steps=2),
                JacobianRegularizer(weight=1.0, probability=0.5, estimator="difference"),
                ResidualRegularizer(weight=0.1, probability=0.5),
            )
        ),
    ],
    ids=repr,
)
def test_an_interrupted_run_ends_like_one_that_was_not(regularizer, tmp_path):
    config = tiny_config(regularizer=regularizer, log={"every": 1})
    train(config, tmp_path / "whole")
    for step in (3, 6, 10):
        with pytest.raises(Crash):
            train_until(config, tmp_path / "broken", crash_at=step)
    train(config, tmp_path / "broken")
    assert_same(final_state(tmp_path / "broken"), final_state(tmp_path / "whole"))
    assert RunFolder(tmp_path / "whole").checkpoints().steps()[-1] == 12
    assert applied(tmp_path / "whole")


# Cells without second derivatives

FUSED = ("--model.attention", "fused", *SHORT)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ((), "--regularizer.estimator difference"),
        *(
            (("--regularizer", name), "--regularizer JacobianRegularizer --regularizer.estimator difference")
            for name in ("SpectralRegularizer", "OperatorNormRegularizer")
        ),
        (
            ("--regularizer.weight", "0", "--warmup.num-steps", "2", "--warmup.regularizer-weight", "1"),
            "--regularizer.estimator difference",
        ),
    ],
)
def test_a_penalty_that_fused_attention_cannot_have_is_refused_with_the_option_that_helps(
    options, remedy, tmp_path, capfd
):
    assert main(["train", "digits-vit-jr", *FUSED, *options, "--out", str(tmp_path / "run")]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert 'JacobianRegularizer(estimator="difference")' in line
    assert f"({remedy})" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--regularizer.estimator", "difference"),
        ("--regularizer", "ResidualRegularizer"),
        ("--regularizer.weight", "0"),
    ],
)
def test_other_penalties_train_with_fused_attention(options, tmp_path, capfd):
    assert main(["train", "digits-vit-jr", *FUSED, *options, "--out", str(tmp_path / "run")]) == 0
    assert bool(applied(tmp_path / "run")) == (options[-1] != "0")


def test_a_penalty_that_cannot_be_computed_says_why(tmp_path, capfd, monkeypatch):
    def forward(cell, z, *inputs):
        return z.detach() * 0.5

    monkeypatch.setattr("steadeq.models.conv.ConvCell.forward", forward)
    assert main(["train", "digits-jr", *SHORT, "--out", str(tmp_path / "run")]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "The penalty of JacobianRegularizer cannot be computed: The graph between z and f(z) is cut" in line


def test_looking_at_the_penalty_beforehand_changes_nothing(tmp_path):
    config = tiny_config(regularizer=SpectralRegularizer(weight=0.1, keep=True))
    trainer = Trainer(config, RunFolder.create(tmp_path / "run", config))
    assert trainer.regularizer.state_dict()["vectors"] is None
    assert config.regularizer.state_dict()["vectors"] is None
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
