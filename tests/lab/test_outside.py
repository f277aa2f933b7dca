"""Parts of one's own in one file: a solver, an adjoint, a penalty, a metric and a data set."""

from steadeq.lab.cli.main import main
from steadeq.lab.recipes import load_recipe
from steadeq.lab.run import RunRecord

PARTS = '''
"""Parts of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from steadeq.adjoints import AbstractLinearAdjoint
from steadeq.jacobian import AbstractRegularizer
from steadeq.lab.config import LogConfig, LoopConfig, TrainConfig
from steadeq.lab.data import AbstractDataConfig, Splits
from steadeq.lab.tasks import AbstractTask
from steadeq.models import ToyDEQ
from steadeq.solvers import GMRES, AbstractLinearSolver, AbstractSolver


@dataclass(frozen=True, kw_only=True)
class Halved(AbstractSolver):
    """Goes half of the way that f goes."""

    def init(self, z, *, eps, may_sync):
        return z

    def step(self, state, at):
        return at.z, at.z + 0.5 * at.g


@dataclass(frozen=True)
class Twofold(AbstractLinearAdjoint):
    """The exact gradient, doubled; its solver is in a field of its own name."""

    linear: AbstractLinearSolver = GMRES()

    def with_solver(self, change):
        return replace(self, linear=change(self.linear))

    def cotangent(self, vjp, g, state):
        u, stats = self.linear.solve_linear(vjp, g)
        return 2 * u, stats


@dataclass(kw_only=True)
class Small(AbstractRegularizer):
    """A penalty on the size of the image of the state."""

    def penalty(self, eq, *, generator=None):
        return eq.f(eq.z.detach(), *eq.inputs).square().mean()


@dataclass(frozen=True, kw_only=True)
class Sign(AbstractTask):
    """Squared error, and the share of outputs with the right sign."""

    metric = "agreement"
    higher_is_better = True
    is_share = True

    def check(self, output, target):
        pass

    def losses(self, output, target):
        return (output - target).square().flatten(1).mean(dim=1)

    def scores(self, output, target, losses):
        return (output.sign() == target.sign()).double().flatten(1).mean(dim=1)


@dataclass(frozen=True, kw_only=True)
class Waves(AbstractDataConfig):
    """A sine."""

    name = "waves"
    task = Sign()

    def load(self) -> Splits:
        x = torch.linspace(-3, 3, 48).unsqueeze(1)
        samples = TensorDataset(x, x.sin())
        return Splits(train=samples, validation=samples, test=samples)


def recipe() -> TrainConfig:
    """A sine."""
    return TrainConfig(
        model=ToyDEQ.Config(hidden=4),
        data=Waves(),
        solver=Halved(max_evals=8, tol=1e-3),
        adjoint=Twofold(),
        regularizer=Small(weight=0.1),
        loop=LoopConfig(batch_size=16, num_steps=3),
        log=LogConfig(spectrum_samples=2),
    )
'''


def test_they_are_trained_evaluated_and_shown(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts.py").write_text(PARTS)
    run, recipe = tmp_path / "run", "parts.py:recipe"
    assert main(["train", recipe, "--out", "run"]) == 0
    assert f"validation agreement {RunRecord.read(run, recipe).validations[-1].score:.2%}" in capfd.readouterr().out
    assert main(["evaluate", "run", "--budgets", "2", "4", "--recipe", recipe]) == 0
    record = RunRecord.read(run, recipe)
    assert f"{record.evaluation.row(4).score:.2%}" in capfd.readouterr().out
    assert main(["report", "run", "--out", "report.html", "--recipe", recipe]) == 0
    assert record.task.show(record.evaluation.row(4).score) in (tmp_path / "report.html").read_text()
    last = record.training[-1]
    # What is no estimate of the norm of the Jacobian is not recorded as one.
    assert last.penalty > 0
    assert last.jacobian_norm is None
    assert last.backward_evals > 0
    # Another budget reaches the solver of the adjoint.
    config = load_recipe(recipe).build().with_max_evals(5)
    assert (config.solver.max_evals, config.adjoint.linear.max_evals) == (5, 5)
