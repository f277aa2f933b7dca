"""Configs of recipes as JSON, and back."""

import dataclasses
import json

import pytest

from steadeq import GMRES, Anderson, Broyden, Implicit, Phantom
from steadeq.codec import to_plain
from steadeq.jacobian import JacobianRegularizer
from steadeq.jacobian.schedules import ClosedLoop, Increments
from steadeq.lab import recipes
from steadeq.lab.config import LogConfig, LoopConfig, RandomBudget, TrainConfig, WarmupConfig
from steadeq.lab.errors import InputError
from steadeq.lab.optimizers import SGD, Adam
from steadeq.lab.serialization import differences, from_dict

each_recipe = pytest.mark.parametrize("name", recipes.names())


def synthetic():
    """Return what the config.json of a run holds."""
    return json.loads(json.dumps(to_plain(recipes.get("synthetic").build())))


def unusual(section):
    """Return a section in which every field that can be is not at its default."""
    changes = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if not field.init:
            continue
        if isinstance(value, bool):
            changes[field.name] = not value
        elif isinstance(value, int):
            changes[field.name] = value + 1
        elif isinstance(value, float):
            changes[field.name] = value / 2 + 0.25
        elif dataclasses.is_dataclass(value):
            changes[field.name] = unusual(value)
        elif value is None and field.name in ("num_steps", "memory", "max_grad_norm"):
            changes[field.name] = 3
    return dataclasses.replace(section, **changes)


@each_recipe
def test_every_recipe_survives_json(name):
    config = recipes.get(name).build()
    again = from_dict(json.loads(json.dumps(to_plain(config))), TrainConfig)
    assert again == config
    for section in ("model", "data", "optimizer", "solver", "adjoint", "regularizer"):
        assert type(getattr(again, section)) is type(getattr(config, section))
    assert to_plain(again) == to_plain(config)


def test_a_config_survives_without_json_too():
    config = recipes.get("synthetic").build()
    assert from_dict(to_plain(config), TrainConfig) == config


@each_recipe
def test_every_field_survives_json(name):
    config = recipes.get(name).build()
    sections = ("optimizer", "solver", "adjoint", "regularizer", "warmup", "loop", "log")
    config = dataclasses.replace(config, **{section: unusual(getattr(config, section)) for section in sections})
    config = dataclasses.replace(config, budget=RandomBudget(low=-1, high=2, when="penalized"))
    again = from_dict(json.loads(json.dumps(to_plain(config))), TrainConfig)
    assert again == config
    assert again != recipes.get(name).build()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": 3}, "recipe is 3; it must be a text"),
        ({"extra": 1}, "no field 'extra'"),
        ({"optimizer": {"learning_rat": 1}}, "no field 'optimizer.learning_rat'.*'learning_rate'"),
        ({"optimizer": {"learning_rate": "fast"}}, "optimizer.learning_rate is 'fast'; it must be a number"),
        ({"optimizer": {"learning_rate": True}}, "optimizer.learning_rate is True"),
        ({"optimizer": {"learning_rate": None}}, "optimizer.learning_rate is None"),
        ({"loop": {"compile": 0}}, "loop.compile is 0; it must be True or False"),
        ({"optimizer": {"betas": [0.9]}}, r"optimizer.betas is \[0.9\]"),
        ({"optimizer": {"betas": 0.9}}, "optimizer.betas is 0.9"),
        ({"optimizer": {"betas": ["a", "b"]}}, "optimizer.betas is 'a'"),
        ({"optimizer": {"class": "steadeq.lab.optimizers:Adamm"}}, "optimizer.class is '.*:Adamm'.*'.*:Adam"),
        ({"optimizer": {"class": ["Adam"]}}, "optimizer.class is"),
        ({"optimizer": []}, r"optimizer is \[\]; it must be an object"),
        ({"loop": {"num_steps": 1.5}}, "loop.num_steps is 1.5"),
        ({"loop": {"num_steps": True}}, "loop.num_steps is True"),
        ({"loop": {"seed": "0"}}, "loop.seed is '0'; it must be an integer"),
        ({"model": {"class": "steadeq.models.toy:ToyDEC.Config"}}, "model.class is '.*ToyDEC.*'.*ToyDEQ"),
        ({"model": {"class": None}}, "model.class is"),
        ({"model": {"class": ["ToyDEQ"]}}, "model.class is"),
        ({"model": None}, "model is None"),
    ],
)
def test_wrong_json_is_refused_by_name(change, message):
    content = synthetic()
    for section, value in change.items():
        if isinstance(value, dict):
            content[section].update(value)
        else:
            content[section] = value
    with pytest.raises(InputError, match=message):
        from_dict(content, TrainConfig)


@pytest.mark.parametrize("field", ["model", "data"])
def test_a_missing_field_is_refused_by_name(field):
    content = synthetic()
    del content[field]
    with pytest.raises(InputError, match=f"'?{field}'? is missing"):
        from_dict(content, TrainConfig)


def test_fields_that_came_later_have_their_defaults():
    content = synthetic()
    del content["warmup"], content["optimizer"]["betas"]
    assert from_dict(content, TrainConfig) == recipes.get("synthetic").build()


def test_whole_numbers_pass_for_real_ones():
    content = synthetic()
    content["regularizer"]["weight"] = 4
    config = from_dict(content, TrainConfig)
    assert isinstance(config.regularizer.weight, float)
    assert config.regularizer.weight == 4.0


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Adam, {"learning_rate": 0.0}),
        (Adam, {"weight_decay": -1.0}),
        (Adam, {"max_grad_norm": 0.0}),
        (Adam, {"betas": (0.9, 1.0)}),
        (Adam, {"warmup_steps": -1}),
        (SGD, {"momentum": 1.0}),
        (SGD, {"momentum": 0.0, "nesterov": True}),
        (Anderson, {"max_evals": 0}),
        (Broyden, {"max_evals": 0}),
        (Anderson, {"tol": float("nan")}),
        (RandomBudget, {"high": 1, "low": 2}),
        (GMRES, {"max_evals": 0}),
        (Phantom, {"num_steps": 0}),
        (Phantom, {"damping": 0.0}),
        (Phantom, {"damping": 1.5}),
        (JacobianRegularizer, {"weight": -1.0}),
        (JacobianRegularizer, {"weight": float("inf")}),
        (JacobianRegularizer, {"probability": 1.1}),
        (JacobianRegularizer, {"num_probes": 0}),
        (Increments, {"increment": 0.1, "every": 0}),
        (Increments, {"every": 1, "increment": float("nan")}),
        (ClosedLoop, {"target": 0.0}),
        (WarmupConfig, {"num_steps": -1}),
        (WarmupConfig, {"depth": 0}),
        (WarmupConfig, {"regularizer_weight": -1.0}),
        (LoopConfig, {"num_epochs": 0}),
        (LoopConfig, {"num_steps": 0}),
        (LoopConfig, {"batch_size": 0}),
        (LoopConfig, {"accumulate": 0}),
        (LoopConfig, {"ema_decay": 1.0}),
        (LoopConfig, {"max_bad_steps": 0}),
        (LogConfig, {"every": 0}),
        (LogConfig, {"eval_every": -1}),
        (LogConfig, {"keep_checkpoints": 0}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "-".join(value),
)
def test_values_that_make_no_sense_are_refused_by_name(kind, fields):
    with pytest.raises(ValueError, match=rf"^{next(reversed(fields))} is "):
        kind(**fields)


def test_budgets_that_may_be_empty_are_refused():
    config = recipes.get("synthetic").build()
    with pytest.raises(ValueError, match=r"^budget\.low is -6; solver\.max_evals \(6\)"):
        dataclasses.replace(config, budget=RandomBudget(low=-6, high=0))


def test_configs_can_be_told_apart():
    a = recipes.get("synthetic").build()
    assert differences(a, a) == []
    b = dataclasses.replace(a, loop=dataclasses.replace(a.loop, seed=3), data=recipes.get("digits").build().data)
    told = differences(a, b)
    assert ("loop.seed", 0, 3) in told
    assert ("data.class", "Synthetic", "Digits") in told
    assert {field.split(".")[0] for field, _, _ in told} == {"data", "loop"}
    assert isinstance(a, TrainConfig)


def test_another_adjoint_survives_too():
    config = dataclasses.replace(recipes.get("synthetic").build(), adjoint=Implicit(Broyden(max_evals=5)))
    assert from_dict(to_plain(config), TrainConfig).adjoint == Implicit(Broyden(max_evals=5))
