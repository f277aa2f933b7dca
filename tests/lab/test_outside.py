"""Parts of one's own in one file: a solver, an adjoint, a penalty, a metric and a data set; and a result."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from steadeq.lab.cli.main import main
from steadeq.lab.recipes import load_recipe
from steadeq.lab.run import RunRecord
from steadeq.paper.result import Claim, PaperResult

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


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts.py").write_text(PARTS)
    return tmp_path


def test_they_are_trained_evaluated_and_shown(folder, capfd):
    run, named = folder / "run", ("--recipe", "parts.py:recipe")
    assert main(["train", "parts.py:recipe", "--out", "run"]) == 0
    assert f"validation agreement {RunRecord.read(run, named[1]).validations[-1].score:.2%}" in capfd.readouterr().out
    assert main(["evaluate", "run", "--budgets", "2", "4", *named]) == 0
    record = RunRecord.read(run, named[1])
    assert f"{record.evaluation.row(4).score:.2%}" in capfd.readouterr().out
    assert main(["report", "run", "--out", "report.html", *named]) == 0
    assert record.task.show(record.evaluation.row(4).score) in (folder / "report.html").read_text()
    last = record.training[-1]
    # What is no estimate of the norm of the Jacobian is not recorded as one.
    assert last.penalty > 0
    assert last.jacobian_norm is None
    assert last.backward_evals > 0


def test_another_budget_reaches_the_solver_of_an_adjoint(folder):
    config = load_recipe("parts.py:recipe").build().with_max_evals(5)
    assert (config.solver.max_evals, config.adjoint.linear.max_evals) == (5, 5)


@dataclass(frozen=True, kw_only=True)
class Point:
    x: float
    y: float | None = None


@dataclass(frozen=True, kw_only=True)
class Curve:
    name: str
    points: Sequence[Point]


@dataclass(frozen=True, kw_only=True)
class Study(PaperResult[Curve]):
    summary_type = Curve
    rows_key = "points"

    def measure(self, runs, folder, scale):
        return Curve(name="square", points=[Point(x=2.0, y=4.0), Point(x=3.0)])

    def table(self, summary):
        return summary.name


def test_a_result_is_written_read_and_judged(tmp_path):
    claim = Claim("it grows", id="grows", section="5", holds=lambda s: s.points[0].y > 2, evidence=lambda s: s.name)
    study = Study(name="study", title="Study", statement="", claims=(claim,))
    (verdict,) = study.produce({}, tmp_path, "cpu")
    assert (verdict.outcome, verdict.evidence) == ("holds", "square")
    assert study.read(tmp_path) == (study.measure({}, tmp_path, "cpu"), [verdict])
    assert study.claim("grows") is claim
    assert (tmp_path / "summary.csv").read_text() == "x,y\n2.0,4.0\n3.0,\n"
