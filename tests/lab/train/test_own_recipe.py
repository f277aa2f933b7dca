"""A recipe of one's own: a file outside of the package, with parts of all kinds that the package never saw."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from lab.cli.commands import refuse, succeed
from lab.train.runs import assert_same, final_state, metrics_of, snapshot, start

import steadeq
from steadeq.lab.cli.main import main
from steadeq.lab.errors import InputError
from steadeq.lab.recipes import load_recipe
from steadeq.lab.run.record import RunRecord

DATA = '''
"""Rentals of bikes by weather; the neighbor of bikes.py."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch.utils.data import Dataset, TensorDataset

from steadeq.lab.data import AbstractDataConfig, Splits
from steadeq.lab.tasks import AbstractTask


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


class Noisy(Dataset):
    """Adds noise to inputs, and mirrors half of them, as a data set that knows nothing of steadeq would."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        x, y = self.samples[index]
        sign = -1.0 if random.random() < 0.5 else 1.0
        return sign * x + 0.1 * torch.randn_like(x), sign * y


@dataclass(frozen=True, kw_only=True)
class Bikes(AbstractDataConfig):
    """Rentals by weather."""

    name = "bikes"
    task = Sign()

    num_train: int = 40
    """How many days to train on."""
    split_at: tuple[int, ...] = (60, 80)
    """Where validation and test begin."""

    def load(self) -> Splits:
        x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
        y = torch.tanh(x[:, :1] - x[:, 1:2])
        first, second = self.split_at
        return Splits(
            train=Noisy(TensorDataset(x[: self.num_train], y[: self.num_train])),
            validation=TensorDataset(x[first:second], y[first:second]),
            test=TensorDataset(x[second:], y[second:]),
        )
'''

RECIPES = '''
"""Bikes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from bike_data import Bikes
from torch import nn

from steadeq import DEQ
from steadeq.adjoints import AbstractLinearAdjoint
from steadeq.jacobian import AbstractRegularizer
from steadeq.lab.config import LogConfig, LoopConfig, TrainConfig
from steadeq.lab.optimizers import AbstractOptimizer
from steadeq.models import AbstractEquilibriumModel, AbstractModelConfig
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

    linear: AbstractLinearSolver = GMRES(max_evals=6, tol=1e-3)
    """Its solver."""

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


class Plain(nn.Module):
    """Two layers."""

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractModelConfig):
        """Sizes of Plain."""

        width: int = 8
        """Number of hidden features."""
        dropout: float = 0.25
        """Probability that a feature is dropped."""

        def build(self) -> Plain:
            return Plain(self)

    def __init__(self, config: Plain.Config) -> None:
        super().__init__()
        # Called `layer` as that of equilibrium models, and yet none.
        self.layer = nn.Linear(3, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(config.width, 1)

    def forward(self, x):
        return self.head(self.dropout(torch.relu(self.layer(x))))


class Cell(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, z, x):
        return torch.tanh(self.linear(z) + x)


class Deep(AbstractEquilibriumModel):
    """An equilibrium."""

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractModelConfig):
        """Sizes of Deep."""

        width: int = 6
        """Number of features of the state."""

    def __init__(self, config: Deep.Config) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, config.width)
        self.layer = DEQ(Cell(config.width))
        self.decoder = nn.Linear(config.width, 1)

    def encode(self, x):
        x = self.encoder(x)
        return torch.zeros_like(x), (x,)

    def decode(self, z):
        return self.decoder(z)


@dataclass(frozen=True, kw_only=True)
class RMSprop(AbstractOptimizer):
    """RMSprop."""

    alpha: float = 0.9
    """Decay rate of the running mean of squares."""

    def build(self, parameters):
        return torch.optim.RMSprop(parameters, lr=self.learning_rate, alpha=self.alpha)


def recipe() -> TrainConfig:
    """Bikes with an equilibrium."""
    return TrainConfig(
        model=Deep.Config(),
        data=Bikes(),
        optimizer=RMSprop(learning_rate=1e-2),
        solver=Halved(max_evals=6, tol=1e-3),
        adjoint=Twofold(),
        regularizer=Small(weight=0.5, probability=0.5),
        loop=LoopConfig(num_steps=12, batch_size=8),
        log=LogConfig(eval_every=6, checkpoint_every=4, spectrum_samples=2, spectrum_products=4),
    )


def plain() -> TrainConfig:
    """Bikes with two layers."""
    return replace(recipe(), model=Plain.Config())
'''

RECIPE = ("--recipe", "bikes.py:recipe")
BOTH = pytest.mark.parametrize("function", ["recipe", "plain"])


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The folder of somebody's project, with a finished run of each recipe."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "bikes.py").write_text(RECIPES)
    (folder / "bike_data.py").write_text(DATA)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for function in ("recipe", "plain"):
            assert main(["train", f"bikes.py:{function}"]) == 0
    (folder / "broken.py").write_text("import torch\n\nraise ValueError('no bikes here')\n")
    return folder


@pytest.fixture
def folder(project, monkeypatch, tmp_path):
    """The same folder as the current one, with runs of its own."""
    monkeypatch.chdir(project)
    shutil.copytree(project / "runs", tmp_path / "runs")
    return tmp_path / "runs"


# Training


@BOTH
def test_a_recipe_of_a_file_is_trained(function, folder):
    path = folder / f"bikes-{function}"
    content = json.loads((path / "config.json").read_text())
    assert content["recipe"] == f"bikes.py:{function}"
    assert content["data"]["class"] == "bike_data:Bikes"
    assert content["model"]["class"] == ("bikes:Deep.Config" if function == "recipe" else "bikes:Plain.Config")
    assert content["optimizer"]["class"] == "bikes:RMSprop"
    record = RunRecord.read(path, f"bikes.py:{function}")
    assert record.is_finished
    assert record.metric == "agreement"
    last = record.training[-1]
    assert (last.forward_evals is None) == (last.backward_evals is None) == (function == "plain")
    # What is no estimate of the norm of the Jacobian is not recorded as one.
    assert any(line.penalty > 0 for line in record.training) == (function == "recipe")
    assert all(line.jacobian_norm is None for line in record.training)
    assert (record.validations[-1].spectral_radius is None) == (function == "plain")
    assert record.num_parameters > 0


@pytest.mark.parametrize(("function", "step"), [("recipe", 6), ("plain", 3)])
def test_it_resumes_bit_for_bit(function, step, folder, tmp_path, capfd):
    # As if it had been killed after a checkpoint: what came later is not there yet.
    path, recipe = tmp_path / "run", f"bikes.py:{function}"
    options = ("--log.checkpoint-every", "3", "--log.keep-checkpoints", "9")
    assert main(["train", recipe, "--out", str(path), *options]) == 0
    for late in (path / "checkpoints").iterdir():
        if late.name != f"step-{step:08}":
            shutil.rmtree(late)
    assert main(["train", recipe, "--resume", "--out", str(path)]) == 0
    output = capfd.readouterr().out
    assert f"Resuming at step {step} of 12." in output
    assert f"validation agreement {RunRecord.read(path, recipe).validations[-1].score:.2%}" in output
    assert_same(final_state(path)["weights"], final_state(folder / f"bikes-{function}")["weights"])
    assert_same(metrics_of(path), metrics_of(folder / f"bikes-{function}"))


def test_a_process_that_never_saw_the_file_evaluates_it(project, folder):
    path = folder / "bikes-recipe"
    process = start("evaluate", str(path), *RECIPE, "--budgets", "2", "6", cwd=project)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert errors == ""
    assert "evaluation.json" in output
    assert len(RunRecord.read(path, "bikes.py:recipe").evaluation.rows) == 2


def test_its_fields_and_classes_are_options_with_help(folder, tmp_path, capfd):
    assert main(["train", "bikes.py:recipe", "--model", "Plain", "--help"]) == 0
    output = " ".join(capfd.readouterr().out.split())
    assert "--model.width INT Number of hidden features. (default: 8)" in output
    assert "--data.num-train INT How many days to train on. (default: 40)" in output
    assert "--data.split-at [INT ...] Where validation and test begin. (default: 60 80)" in output
    assert "--optimizer.alpha FLOAT Decay rate of the running mean of squares. (default: 0.9)" in output
    path = tmp_path / "run"
    options = ("--model", "Plain", "--model.width", "5", "--data.num-train", "16", "--optimizer", "Adam")
    assert main(["train", "bikes.py:recipe", "--out", str(path), "--loop.num-steps", "2", *options]) == 0
    config = RunRecord.read(path, "bikes.py:recipe").config
    assert (type(config.model).__qualname__, config.model.width, config.data.num_train) == ("Plain.Config", 5, 16)


def test_a_resumed_run_may_name_the_file_by_another_path(folder, project, tmp_path, monkeypatch, capfd):
    before = snapshot(folder / "bikes-plain")
    monkeypatch.chdir(tmp_path)
    path = str(folder / "bikes-plain")
    assert main(["train", f"{project}/bikes.py:plain", "--resume", "--out", path]) == 0
    assert snapshot(folder / "bikes-plain") == before
    assert "bikes.py:plain" in refuse(capfd, "train", f"{project}/bikes.py:recipe", "--resume", "--out", path)


# Reading


def test_evaluate_and_report_take_the_recipe(folder, tmp_path, capfd):
    runs = {function: folder / f"bikes-{function}" for function in ("recipe", "plain")}
    for function, path in runs.items():
        output = succeed(capfd, "evaluate", path, "--recipe", f"bikes.py:{function}")
        rows = json.loads((path / "evaluation.json").read_text())["rows"]
        assert [row["max_evals"] for row in rows] == ([1, 2, 3, 4, 5, 6] if function == "recipe" else [0])
        assert all(f"{row['agreement']:.2%}" in output for row in rows)
    # One report of both, as they are of one file.
    page = tmp_path / "report.html"
    succeed(capfd, "report", *runs.values(), *RECIPE, "--out", page)
    for function, path in runs.items():
        record = RunRecord.read(path, f"bikes.py:{function}")
        assert path.name in page.read_text()
        assert record.task.show(record.evaluation.rows[-1].score) in page.read_text()


def test_diagnose_takes_the_recipe(folder, capfd):
    path, options = folder / "bikes-recipe", ("--num-samples", "3", "--max-products", "6")
    assert main(["diagnose", str(path), *RECIPE, *options]) == 0
    assert json.loads((path / "diagnosis.json").read_text())["dim"] == 6
    assert "explicit" in refuse(capfd, "diagnose", str(folder / "bikes-plain"), "--recipe", "bikes.py:plain")


@BOTH
def test_a_model_is_loaded_with_its_weights(function, folder):
    path, recipe = folder / f"bikes-{function}", f"bikes.py:{function}"
    model = steadeq.load_model(path, recipe=recipe)
    assert not model.training
    assert type(model).__name__ == ("Deep" if function == "recipe" else "Plain")
    weights = final_state(path)["weights"]
    assert_same(dict(model.state_dict()), weights)
    x = torch.ones(2, 3)
    assert torch.equal(model(x), steadeq.load_model(str(path), recipe=recipe)(x))
    if function == "recipe":
        assert model.layer.solver == load_recipe(recipe).build().solver


def test_without_the_recipe_one_sentence_says_how(folder, capfd):
    path = folder / "bikes-recipe"
    before = snapshot(path)
    for command in ("evaluate", "diagnose", "report", "generate", "train --resume --out"):
        line = refuse(capfd, *command.split(), path)
        for words in ("model.class is 'bikes:Deep.Config'", "--recipe path/to/file.py:function", "trust"):
            assert words in line
    assert snapshot(path) == before
    with pytest.raises(InputError, match="recipe="):
        steadeq.load_model(path)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("nowhere.py:recipe", "There is no file nowhere.py"),
        ("broken.py:recipe", "line 3: ValueError: no bikes here"),
        ("bikes.py:recip", "bikes.py has no function 'recip'. Did you mean 'recipe'?"),
    ],
)
def test_a_recipe_that_is_not_there_is_refused(recipe, words, folder, tmp_path, capfd):
    assert words in refuse(capfd, "train", recipe, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert words in refuse(capfd, "evaluate", folder / "bikes-recipe", "--recipe", recipe)


def test_a_config_of_a_script_needs_no_recipe_to_train(folder, tmp_path):
    # As in a notebook: the objects are there, nothing is looked up by name.
    from steadeq.lab.run.folder import RunFolder
    from steadeq.lab.train import Trainer

    config = load_recipe("bikes.py:plain").build()
    config = replace(config, recipe="", loop=replace(config.loop, num_steps=3))
    evaluation = Trainer(config, RunFolder.create(tmp_path / "run", config)).train()
    assert 0 <= evaluation["agreement"] <= 1


def test_another_budget_reaches_the_solver_of_an_own_adjoint(folder):
    config = load_recipe("bikes.py:recipe").build().with_max_evals(5)
    assert (config.solver.max_evals, config.adjoint.linear.max_evals) == (5, 5)
