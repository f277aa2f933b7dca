"""`steadeq repair`: a new run beside the old one, what was found before and after, and a word where it cannot help."""

import json

import pytest
import torch
from lab.train.runs import snapshot, train

from steadeq import JacobianRegularizer, Picard, Unrolled, diagnose
from steadeq.lab.cli import repair
from steadeq.lab.cli.main import main
from steadeq.lab.config import LogConfig, LoopConfig, TrainConfig
from steadeq.lab.data import PrefixSums
from steadeq.lab.optimizers import Adam
from steadeq.lab.run import RunRecord
from steadeq.models import LoopedConv
from steadeq.solvers import Loop


def make_run(folder, *, factor=1.0, learning_rate=1e-9, num_steps=8, num_bits=8, width=8):
    """Train from a model whose adapter is enlarged by a factor."""
    torch.manual_seed(0)
    model = LoopedConv(channels=width)
    with torch.no_grad():
        model.layer.cell.adapter.weight.mul_(factor)
    model.save_pretrained(folder / "model")
    config = TrainConfig(
        recipe="prefix-sums",
        model=LoopedConv.Config(channels=width),
        data=PrefixSums(num_train=6400, num_validation=64, num_test=64, num_bits=num_bits),
        optimizer=Adam(learning_rate=learning_rate, min_learning_rate=learning_rate, max_grad_norm=1.0),
        solver=Loop(num_steps=4),
        eval_solver=Picard(max_evals=32, tol=1e-3),
        adjoint=Unrolled(),
        regularizer=JacobianRegularizer(weight=0.0, estimator="difference"),
        loop=LoopConfig(num_steps=num_steps, batch_size=64, num_answers=2, init_from=folder / "model"),
        log=LogConfig(eval_every=num_steps, checkpoint_every=num_steps, spectrum_samples=0),
    )
    train(config, folder / "run")
    return folder / "run"


def test_where_iterating_does_no_harm_nothing_is_done(tmp_path, capfd):
    run = make_run(tmp_path, factor=0.3)
    before = snapshot(tmp_path)
    capfd.readouterr()
    assert main(["repair", str(run), "--num-samples", "4"]) == 0
    output = capfd.readouterr().out
    assert output.startswith("settles:  yes, all 4 samples")
    assert "was not repaired: iterating it does no harm" in output
    assert snapshot(tmp_path) == before


def test_what_is_not_repaired_is_said_and_the_old_run_is_untouched(tmp_path, capfd):
    run = make_run(tmp_path, factor=3.0)
    before = snapshot(run)
    capfd.readouterr()
    assert main(["repair", str(run), "--num-samples", "4"]) == 1
    output, errors = capfd.readouterr()
    assert "is not repaired: 0 of 4 samples settled before, 0 of 4 do" in output
    assert "was not repaired; try --num-steps" in errors
    assert snapshot(run) == before
    new = tmp_path / "run-repaired"
    record = RunRecord.read(new)
    assert record.is_finished
    assert record.config.loop.num_steps == 2
    assert record.config.loop.init_from == run
    assert record.config.regularizer == JacobianRegularizer(weight=0.3, estimator="difference")
    content = json.loads((new / "repair.json").read_text(), parse_constant=pytest.fail)
    assert content["after"] == json.loads((new / "diagnosis.json").read_text())
    assert "Before: Residual" in (new / "repair.html").read_text(encoding="utf-8")
    # Another weight is another run.
    assert main(["repair", str(run), "--num-samples", "4", "--weight", "1"]) == 2
    assert "holds another run: its regularizer.weight is 0.3, not 1.0" in capfd.readouterr().err


def test_a_cell_that_settles_but_is_wrong_at_its_training_depth_is_not_repaired():
    def found(factor, is_right):
        options = {"max_evals": 64, "training_depth": 4, "metric_name": "accuracy"}
        return diagnose(lambda z: factor * z, torch.ones(4, 2), metric=is_right, **options)

    def always(z):
        return torch.ones(len(z))

    before = found(1.1, always)
    assert repair._is_repaired(before, found(0.5, always))
    assert not repair._is_repaired(before, found(0.5, lambda z: z[:, 0] < 1e-3))
    assert not repair._is_repaired(before, found(0.5, lambda z: z[:, 0] > 1e-3))
    assert not repair._is_repaired(before, before)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--out", "run"), "must differ from the folder"),
        (("--weight", "0"), "weight"),
        (("--num-steps", "0"), "--num-steps is 0"),
    ],
)
def test_what_makes_no_sense_is_refused(options, problem, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["repair", "run", *options]) == 2
    assert problem in capfd.readouterr().err


@pytest.mark.slow
def test_a_loop_that_collapses_is_right_at_every_depth_after_a_quarter_of_the_steps(tmp_path, capfd):
    run = make_run(tmp_path, learning_rate=1e-3, num_steps=240, width=32)
    before = snapshot(run)
    capfd.readouterr()
    assert main(["repair", str(run), "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert answer["repaired"]
    last = {name: answer[name]["metric"][-1] for name in ("before", "after")}
    assert sum(last["before"]) < 0.5 * len(last["before"])
    assert sum(last["after"]) > 0.95 * len(last["after"])
    assert snapshot(run) == before
