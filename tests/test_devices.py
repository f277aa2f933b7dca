"""On a second device, and with a default device that is not the state's, everything is as on the CPU."""

import copy
import itertools
import json
import os
import subprocess
import sys

import pytest
import second_device
import torch
from lab.train.runs import tiny_config
from second_device import counted_waits, to_cpu, to_second
from torch import nn

from steadeq import (
    DEQ,
    Anderson,
    Broyden,
    Equilibrium,
    Implicit,
    JacobianRegularizer,
    Loop,
    NewtonKrylov,
    OneStep,
    Phantom,
    Picard,
    Reversible,
    Shine,
    Unrolled,
    diagnose,
    fixed_point,
    frobenius_norm,
    jacobian_penalty,
    models,
    operator_norm,
    operator_norm_penalty,
    residual_penalty,
    spectral_penalty,
    spectral_radius,
)
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.train import Process, Trainer

pytestmark = pytest.mark.filterwarnings("ignore::steadeq.ConvergenceWarning")

SOLVERS = [Picard(max_evals=60), Anderson(), Broyden(), NewtonKrylov(max_evals=60), Loop(num_steps=9)]
ADJOINTS = [Implicit(), Implicit(Broyden()), OneStep(), Phantom(), Unrolled(last=4)]
PAIRS = [
    pytest.param(solver, adjoint, marks=() if Anderson() == solver or Implicit() == adjoint else pytest.mark.slow)
    for solver, adjoint in itertools.product(SOLVERS, ADJOINTS)
]
PAIRS += [(Broyden(), Shine()), (Picard(max_evals=12, tol=0, damping=0.5), Reversible())]


# Autograd makes room for the devices that there are when it is first used: a second one needs a process of its own.
IS_CHILD = "STEADEQ_SECOND_DEVICE" in os.environ
on_the_second_device = pytest.mark.skipif(not IS_CHILD, reason="runs in a process of its own")


@pytest.mark.skipif(IS_CHILD, reason="this is the process")
@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_all_of_this_on_a_second_device(which):
    words = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=short", "-p", "no:xdist", "-m", which, __file__]
    done = subprocess.run(
        words,
        env={**os.environ, "STEADEQ_SECOND_DEVICE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


@pytest.fixture(params=["second" if IS_CHILD else "meta"])
def move(request):
    """Return how tensors come to the device, while torch's default is another one.

    With "meta" as the default, a tensor that is made without a device is one without numbers, and fails.
    """
    if request.param == "second":
        second_device.set_up()
        yield to_second
    else:
        torch.set_default_device("meta")
        yield lambda tree: tree
        torch.set_default_device(None)


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 6, dtype=torch.float64, device="cpu")

    def forward(self, z, x):
        return torch.tanh(0.7 * self.linear(z) + x)


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator("cpu").manual_seed(1), device="cpu")


def check_equal(found, expected, **tolerances):
    torch.testing.assert_close(to_cpu(found), to_cpu(expected), **tolerances)


@pytest.mark.parametrize(("solver", "adjoint"), PAIRS, ids=str)
def test_solves_and_gradients(solver, adjoint, move):
    cell, x = Cell(), draw(5, 6)
    results = []
    for where in (lambda tree: tree, move):
        module = copy.deepcopy(cell).to(second_device.NAME) if where is to_second else cell
        inputs = where(x).requires_grad_()
        eq = DEQ(module, solver=solver, adjoint=adjoint, compact=False).solve(inputs)
        assert eq.z.device == inputs.device
        gradients = torch.autograd.grad(eq.z.square().sum(), [inputs, *module.parameters()])
        results.append((eq, gradients))
    (eq, gradients), (found, found_gradients) = results
    check_equal(found.z, eq.z, rtol=1e-7, atol=1e-9)
    check_equal(found_gradients, gradients, rtol=1e-5, atol=1e-8)
    check_equal(found.stats.num_evals, eq.stats.num_evals)
    check_equal(found.stats.status, eq.stats.status)


MEASURES = {
    "jacobian": lambda eq, generator: jacobian_penalty(eq, generator=generator),
    "difference": lambda eq, generator: jacobian_penalty(eq, estimator="difference", generator=generator),
    "operator norm": lambda eq, generator: operator_norm_penalty(eq, generator=generator),
    "spectral": lambda eq, generator: spectral_penalty(eq, generator=generator),
    "residual": lambda eq, generator: residual_penalty(eq),
    "regularizer": lambda eq, generator: JacobianRegularizer(weight=0.5)(eq, step=0, generator=generator),
}
ESTIMATES = {
    "arnoldi": lambda eq, generator: spectral_radius(eq, generator=generator),
    "power": lambda eq, generator: spectral_radius(eq, method="power", generator=generator),
    "operator norm": lambda eq, generator: operator_norm(eq, generator=generator),
    "frobenius": lambda eq, generator: frobenius_norm(eq, generator=generator),
    "hutch++": lambda eq, generator: frobenius_norm(eq, method="hutch++", generator=generator),
}


def equilibria(move):
    cell, x = Cell(), draw(5, 6)
    with torch.no_grad():
        z = DEQ(cell)(x)
    here = Equilibrium.at(cell, z, x)
    module = copy.deepcopy(cell).to(second_device.NAME) if move is to_second else cell
    return here, Equilibrium.at(module, move(z), move(x))


@pytest.mark.parametrize("name", MEASURES)
def test_penalties_and_their_gradients(name, move):
    values = []
    for eq in equilibria(move):
        value = MEASURES[name](eq, torch.Generator("cpu").manual_seed(3))
        assert value.device == eq.z.device
        values.append((value, torch.autograd.grad(value, list(eq.f.parameters()))))
    check_equal(values[1], values[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ESTIMATES)
def test_estimates(name, move):
    estimates = [ESTIMATES[name](eq, torch.Generator("cpu").manual_seed(3)) for eq in equilibria(move)]
    check_equal(estimates[1].value, estimates[0].value, rtol=1e-6, atol=1e-9)
    assert estimates[0].num_products == estimates[1].num_products


def test_diagnosis(move):
    here, there = equilibria(move)
    found = [
        diagnose(eq.f, torch.zeros_like(eq.z), *eq.inputs, generator=torch.Generator("cpu").manual_seed(0))
        for eq in (here, there)
    ]
    assert str(found[0]) == str(found[1])


def test_a_nan_sample(move):
    x = draw(4, 6)
    x[1] = torch.nan
    here, there = Cell(), Cell()
    there = there.to(second_device.NAME) if move is to_second else there
    grads = []
    for cell, inputs in ((here, x), (there, move(x))):
        eq = DEQ(cell).solve(inputs)
        loss = eq.z[2:].square().sum() + jacobian_penalty(eq, generator=torch.Generator("cpu").manual_seed(0))
        grads.append(torch.autograd.grad(loss, list(cell.parameters())))
        assert eq.stats.status[1] == 2
    check_equal(grads[1], grads[0], rtol=1e-6, atol=1e-9)


MODELS = {
    "mdeq": (
        lambda: models.MDEQClassifier(channels=(8, 16), groups=4, expansion=2, final_channels=16),
        lambda: torch.randn(2, 3, 8, 8, device="cpu"),
    ),
    "transformer": (
        lambda: models.DEQTransformerLM(vocab_size=20, features=8, num_heads=2, hidden_features=12, memory_length=4),
        lambda: torch.randint(20, (2, 6), device="cpu"),
    ),
    "modern": (
        lambda: models.EquilibriumTransformer(kind="language", vocab_size=20, features=16, hidden_features=12),
        lambda: torch.randint(20, (2, 6), device="cpu"),
    ),
}


@on_the_second_device
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    second_device.set_up()
    make, sample = MODELS[name]
    torch.manual_seed(0)
    here, x = make().eval(), sample()
    there = copy.deepcopy(here).to(second_device.NAME)
    results = []
    for model, inputs in ((here, x), (there, to_second(x))):
        output, eq = model.solve(inputs, solver=Anderson(max_evals=12, tol=0))
        values = output if isinstance(output, torch.Tensor) else output.log_probabilities()
        gradients = torch.autograd.grad(values.square().mean(), list(model.parameters()), materialize_grads=True)
        results.append((values, eq.z, gradients))
    check_equal(results[1], results[0], rtol=1e-3, atol=1e-4)


@on_the_second_device
@torch.no_grad()
def test_a_fixed_budget_never_makes_the_host_wait_and_a_tolerance_rarely():
    second_device.set_up()
    cell, x = Cell().to(second_device.NAME), to_second(draw(5, 6))
    for solver in (Picard, Anderson, Broyden):
        with counted_waits() as waits:
            fixed_point(cell, torch.zeros_like(x), x, solver=solver(max_evals=12, tol=0))
            assert not waits
        # The first time that samples of a cell stop one after the other, the host looks whether they see each other.
        fixed_point(cell, torch.zeros_like(x), x, solver=solver(max_evals=40, tol=1e-8))
        with counted_waits() as waits:
            eq = fixed_point(cell, torch.zeros_like(x), x, solver=solver(max_evals=40, tol=1e-8))
            num_waits = len(waits)
        # One question in four evaluations, and one when samples leave the batch.
        assert num_waits <= int(eq.stats.num_evals.max()) / 4 + 3


@on_the_second_device
@pytest.mark.slow
def test_a_training_run(tmp_path):
    second_device.set_up()
    losses = []
    for device in ("cpu", second_device.NAME):
        config = tiny_config(log={"eval_every": 6, "spectrum_samples": 4, "checkpoint_every": 6})
        trainer = Trainer(
            config, RunFolder.create(tmp_path / device, config), process=Process(device=torch.device(device))
        )
        trainer.train()
        lines = (tmp_path / device / "metrics.jsonl").read_text().splitlines()
        losses.append([entry["loss"] for entry in map(json.loads, lines) if entry["event"] == "train"])
    assert len(losses[0]) == 12
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
