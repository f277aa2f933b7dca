import dataclasses
import json

import pytest
import torch

from steadeq import recipes
from steadeq.errors import InputError
from steadeq.train import (
    BackwardConfig,
    ForwardConfig,
    JacobianConfig,
    LogConfig,
    LoopConfig,
    OptimizerConfig,
    TrainConfig,
    WarmupConfig,
)
from steadeq.train.serialization import differences, from_dict, to_dict

each_recipe = pytest.mark.parametrize("name", recipes.names())


def unusual(section):
    """Return a section in which every field that can be is not at its default."""
    changes = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if isinstance(value, bool):
            changes[field.name] = not value
        elif isinstance(value, int):
            changes[field.name] = value + 1
        elif isinstance(value, float):
            changes[field.name] = value / 2 + 0.25
        elif value is None:
            changes[field.name] = 3
    return dataclasses.replace(section, **changes)


@each_recipe
def test_every_recipe_survives_json(name):
    config = recipes.get(name).build()
    again = from_dict(json.loads(json.dumps(to_dict(config))))
    assert again == config
    assert type(again.model) is type(config.model)
    assert type(again.data) is type(config.data)
    assert to_dict(again) == to_dict(config)


def test_a_config_survives_without_json_too():
    config = recipes.get("synthetic").build()
    assert from_dict(to_dict(config)) == config


@each_recipe
def test_every_field_survives_json(name):
    config = recipes.get(name).build()
    sections = ("optimizer", "forward", "backward", "jacobian", "warmup", "loop", "log")
    config = dataclasses.replace(config, **{section: unusual(getattr(config, section)) for section in sections})
    config = dataclasses.replace(config, forward=dataclasses.replace(config.forward, jitter=(-1, 2)))
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


@each_recipe
def test_a_recipe_knows_its_name_and_says_what_it_is(name):
    recipe = recipes.get(name)
    assert recipe.name == recipe.build().recipe == name
    assert recipe.scale in ("cpu", "paper")
    assert recipe.summary.endswith(".")


@each_recipe
def test_a_recipe_builds_the_same_each_time_and_its_model_too(name):
    config = recipes.get(name).build()
    assert recipes.get(name).build() == config
    with torch.device("meta"):
        model = config.model.build()
    assert sum(p.numel() for p in model.parameters()) > 0


def test_the_synthetic_recipes_are_those_of_the_paper():
    plain, regularized = recipes.get("synthetic").build(), recipes.get("synthetic-jr").build()
    assert plain.jacobian.weight == 0
    assert regularized.jacobian.weight == 4
    assert [field for field, _, _ in differences(plain, regularized)] == ["recipe", "jacobian.weight"]
    x = torch.tensor([[1.0]])
    for name, sign in (("synthetic", -1), ("synthetic-appendix", 1)):
        splits = dataclasses.replace(recipes.get(name).build().data, noise=0.0).load()
        assert (len(splits.train), len(splits.validation)) == (4096, 1000)
        x, y = splits.train.batch(torch.arange(4096))
        expected = 1.5 * x**3 + x**2 + sign * 5 * x + 2 * torch.sin(x) - 3
        torch.testing.assert_close(y, expected)


def test_an_unknown_recipe_is_refused_and_the_nearest_suggested():
    with pytest.raises(InputError, match="Did you mean 'synthetic-jr'"):
        recipes.get("syntetic-jr")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": 3}, "recipe is 3; it must be str"),
        ({"extra": 1}, "no field 'extra'"),
        ({"optimizer": {"learning_rat": 1}}, "no field 'optimizer.learning_rat'.*'learning_rate'"),
        ({"optimizer": {"learning_rate": "fast"}}, "optimizer.learning_rate is 'fast'; it must be float"),
        ({"optimizer": {"learning_rate": True}}, "optimizer.learning_rate is True"),
        ({"optimizer": {"learning_rate": None}}, "optimizer.learning_rate is None"),
        ({"optimizer": {"nesterov": 0}}, "optimizer.nesterov is 0; it must be bool"),
        ({"optimizer": {"betas": [0.9]}}, r"optimizer.betas is \[0.9\]"),
        ({"optimizer": {"betas": 0.9}}, "optimizer.betas is 0.9"),
        ({"optimizer": {"betas": ["a", "b"]}}, "optimizer.betas is 'a'"),
        ({"optimizer": {"method": "adamm"}}, "optimizer.method is 'adamm'"),
        ({"optimizer": {"method": ["adam"]}}, "optimizer.method is"),
        ({"optimizer": []}, r"optimizer is \[\]; it must be an object"),
        ({"loop": {"num_steps": 1.5}}, "loop.num_steps is 1.5"),
        ({"loop": {"num_steps": True}}, "loop.num_steps is True"),
        ({"loop": {"seed": "0"}}, "loop.seed is '0'; it must be int"),
        ({"model": {"kind": "ToyModell"}}, "model.kind is 'ToyModell'.*'ToyModel'"),
        ({"model": {"kind": None}}, "model.kind is None"),
        ({"model": {"kind": ["ToyModel"]}}, "model.kind is"),
        ({"model": None}, "model is None"),
    ],
)
def test_wrong_json_is_refused_by_name(change, message):
    content = json.loads(json.dumps(to_dict(recipes.get("synthetic").build())))
    for section, value in change.items():
        if isinstance(value, dict):
            content[section].update(value)
        else:
            content[section] = value
    with pytest.raises(InputError, match=message):
        from_dict(content)


@pytest.mark.parametrize("field", ["recipe", "model", "data"])
def test_a_missing_field_is_refused_by_name(field):
    content = json.loads(json.dumps(to_dict(recipes.get("synthetic").build())))
    del content[field]
    with pytest.raises(InputError, match=f"'?{field}'? is missing"):
        from_dict(content)


def test_fields_that_came_later_have_their_defaults():
    content = json.loads(json.dumps(to_dict(recipes.get("synthetic").build())))
    del content["warmup"], content["optimizer"]["momentum"]
    assert from_dict(content) == recipes.get("synthetic").build()


def test_whole_numbers_pass_for_real_ones():
    content = json.loads(json.dumps(to_dict(recipes.get("synthetic").build())))
    content["jacobian"]["weight"] = 4
    config = from_dict(content)
    assert isinstance(config.jacobian.weight, float)
    assert config.jacobian.weight == 4.0


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (OptimizerConfig, {"learning_rate": 0.0}),
        (OptimizerConfig, {"weight_decay": -1.0}),
        (OptimizerConfig, {"max_grad_norm": 0.0}),
        (OptimizerConfig, {"betas": (0.9, 1.0)}),
        (OptimizerConfig, {"warmup_steps": -1}),
        (ForwardConfig, {"max_evals": 0}),
        (ForwardConfig, {"eval_max_evals": 0}),
        (ForwardConfig, {"tol": float("nan")}),
        (ForwardConfig, {"jitter": (2, 1)}),
        (ForwardConfig, {"max_evals": 3, "jitter": (-3, 0)}),
        (BackwardConfig, {"max_evals": 0}),
        (BackwardConfig, {"num_steps": 0}),
        (BackwardConfig, {"damping": 0.0}),
        (BackwardConfig, {"damping": 1.5}),
        (JacobianConfig, {"weight": -1.0}),
        (JacobianConfig, {"weight": float("inf")}),
        (JacobianConfig, {"probability": 1.1}),
        (JacobianConfig, {"num_probes": 0}),
        (JacobianConfig, {"every": 0}),
        (JacobianConfig, {"target": 0.0}),
        (JacobianConfig, {"increment": float("nan")}),
        (WarmupConfig, {"num_steps": -1}),
        (WarmupConfig, {"depth": 0}),
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
    with pytest.raises(InputError, match=next(reversed(fields))):
        kind(**fields)


def test_configs_can_be_told_apart():
    a = recipes.get("synthetic").build()
    assert differences(a, a) == []
    b = dataclasses.replace(a, loop=dataclasses.replace(a.loop, seed=3), data=recipes.get("digits").build().data)
    assert differences(a, b) == [("data.kind", "SyntheticData", "DigitsData"), ("loop.seed", 0, 3)]
    assert isinstance(a, TrainConfig)
