"""Fields of configs: values that make no sense are refused by name, whatever the class."""

import dataclasses
import math

import pytest

from steadeq import GMRES, Anderson, Broyden, Phantom
from steadeq.jacobian import JacobianRegularizer
from steadeq.jacobian.schedules import ClosedLoop, Increments
from steadeq.lab import recipes
from steadeq.lab.config import LogConfig, LoopConfig, RandomBudget, WarmupConfig
from steadeq.lab.data import (
    Addition,
    Cifar10,
    Cityscapes,
    FashionMnist,
    ImageNet,
    Imagenette64,
    Mazes,
    PrefixSums,
    Shapes,
    Sudoku,
    Synthetic,
    WikiText2,
    WikiText103,
    Workers,
)
from steadeq.lab.optimizers import SGD, Adam

# The last field is the one that is refused.
REFUSED = {
    Adam: (
        *({"learning_rate": rate} for rate in (0.0, -1.0, math.inf, math.nan)),
        {"weight_decay": -1.0},
        {"max_grad_norm": 0.0},
        {"betas": (0.9, 1.0)},
        {"warmup_steps": -1},
    ),
    SGD: ({"momentum": 1.0}, {"momentum": 0.0, "nesterov": True}),
    Anderson: ({"max_evals": 0}, {"tol": math.nan}),
    Broyden: ({"max_evals": 0},),
    GMRES: ({"max_evals": 0},),
    Phantom: ({"num_steps": 0}, {"damping": 0.0}, {"damping": 1.5}),
    RandomBudget: ({"high": 1, "low": 2},),
    JacobianRegularizer: ({"weight": -1.0}, {"weight": math.inf}, {"probability": 1.1}, {"num_probes": 0}),
    Increments: ({"increment": 0.1, "every": 0}, {"every": 1, "increment": math.nan}),
    ClosedLoop: ({"target": 0.0},),
    WarmupConfig: ({"num_steps": -1}, {"depth": 0}, {"regularizer_weight": -1.0}),
    LoopConfig: (
        {"num_epochs": 0},
        {"num_steps": 0},
        {"batch_size": 0},
        {"accumulate": 0},
        {"ema_decay": 1.0},
        {"max_bad_steps": 0},
    ),
    LogConfig: ({"every": 0}, {"eval_every": -1}, {"keep_checkpoints": 0}),
    Synthetic: (
        {"variant": "other"},
        {"noise": -1.0},
        {"noise": 1e39},
        {"radius": 0.0},
        {"radius": 1e13},
        {"radius": math.nan},
        {"seed": -1},
        {"seed": 2**63},
    ),
    Cifar10: ({"num_train": 0}, {"num_validation": -1}, {"num_validation": 1, "num_train": 50_000}),
    FashionMnist: ({"num_train": 0}, {"num_validation": -1}, {"num_validation": 1, "num_train": 60_000}),
    ImageNet: (
        {"num_validation": -1},
        {"num_workers": -1},
        {"on_corrupt": "ignore"},
        {"interpolation": "nearest"},
        {"size": 300},
    ),
    WikiText2: ({"length": 0}, {"max_train": 1}, {"max_validation": 1}, {"max_test": 0}),
    Addition: ({"num_train": 0}, {"num_validation": 0}, {"num_test": 0}, {"num_digits": 0}, {"seed": -1}),
    PrefixSums: ({"num_bits": 0}, {"num_train": 0}),
    Shapes: ({"size": 7}, {"num_train": 0}),
    Mazes: ({"size": 3}, {"size": 8}, {"size": 1001}),
    Sudoku: ({"size": 5},),
}


@pytest.mark.parametrize(("kind", "fields"), [(kind, fields) for kind, cases in REFUSED.items() for fields in cases])
def test_values_that_make_no_sense_are_refused_by_name(kind, fields):
    with pytest.raises(ValueError, match=rf"^{next(reversed(fields))} (is|\()"):
        kind(**fields)


def test_budgets_that_may_be_empty_are_refused():
    config = recipes.get("synthetic").build()
    with pytest.raises(ValueError, match=r"^budget\.low is -6; solver\.max_evals \(6\)"):
        dataclasses.replace(config, budget=RandomBudget(low=-6, high=0))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ImageNet, {"num_workers": 1_000_000}),
        (Cityscapes, {"num_workers": 1_000_000}),
        (ImageNet, {"resize": 1_000_000}),
        (Cityscapes, {"crop": (1_000_000, 1000)}),
        (Cityscapes, {"evaluation_size": (1000, 1_000_000)}),
        (Cityscapes, {"scale": (1.0, 1e300)}),
        (Cityscapes, {"scale": (0.5, math.inf)}),
        (Shapes, {"size": 100_000}),
        (Shapes, {"num_train": 10_000_000}),
        # The workers of a user.
        (Workers, {"num_workers": 1_000_000}),
    ],
)
def test_slips_do_not_take_the_machine(kind, fields):
    ((name, _),) = fields.items()
    with pytest.raises(ValueError, match=rf"^{name} is .* at most "):
        kind(**fields)


HUGE = 99_999_999_999_999_999_999
COUNTS = [
    (kind, field.name)
    for kind in (Cifar10, Cityscapes, FashionMnist, ImageNet, Imagenette64, Shapes, Synthetic, WikiText2, WikiText103)
    for field in dataclasses.fields(kind)
    if type(field.default) is not bool and (isinstance(field.default, int) or field.default is None)
]


@pytest.mark.parametrize(("kind", "name"), COUNTS, ids=lambda value: getattr(value, "__name__", value))
def test_no_count_is_too_large_for_a_sentence(kind, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("STEADEQ_DATA", str(tmp_path))
    value = (HUGE, HUGE) if name == "evaluation_size" else HUGE
    with pytest.raises(ValueError, match=r"[^\n]+\.$") as refusal:
        kind(**{name: value}).load()
    # What only the files can tell is left to them, and here there are none.
    assert name in str(refusal.value) or "is missing: looked for" in str(refusal.value)
