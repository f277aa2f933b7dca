"""Recipes of the package: what they are called, build and train with."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from steadeq import models, paper
from steadeq.lab import recipes
from steadeq.lab.config import TrainConfig
from steadeq.lab.data import Cityscapes, Shapes
from steadeq.lab.serialization import differences
from steadeq.lab.tasks import Segmentation
from steadeq.solvers import GMRES, Broyden


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_says_what_it_is_and_builds_the_same_each_time_and_its_model_too(name):
    recipe = recipes.get(name)
    assert recipe.scale in ("cpu", "day", "paper")
    assert recipe.summary.endswith(".")
    # Recipes of the scale day are those of the paper's tables.
    assert recipe.source.parent == Path((paper if recipe.scale == "day" else recipes).__file__).parent
    assert f'@recipe("{name}"' in recipe.source.read_text()
    config, again = recipe.build(), recipe.build()
    assert isinstance(config, TrainConfig)
    assert config == again
    assert recipe.name == config.recipe == name
    # Training changes it.
    assert config.regularizer is not again.regularizer
    with torch.device("meta"):
        model = config.model.build()
    assert sum(p.numel() for p in model.parameters()) > 0


def test_two_recipes_cannot_have_one_name():
    with pytest.raises(ValueError, match=r"name is 'digits'; a recipe with that name exists in .*digits\.py"):

        @recipes.recipe("digits", scale="cpu")
        def mine():
            """Mine."""

    assert recipes.get("digits").build().recipe == recipes.digits.digits().recipe == "digits"
    # Made from another one.
    assert recipes.digits.digits_jr().recipe == "digits-jr"


def test_the_recipes_for_segmentation_train_segmenters():
    for name, kind in (
        ("shapes-mdeq-cpu", Shapes),
        ("shapes-mdeq-cpu-jr", Shapes),
        ("cityscapes-mdeq-small", Cityscapes),
    ):
        config = recipes.get(name).build()
        assert isinstance(config.data, kind)
        assert isinstance(config.data.task, Segmentation)
        assert isinstance(config.model, models.MDEQSegmenter.Config)
    plain, regularized = (recipes.get(f"shapes-mdeq-cpu{suffix}").build() for suffix in ("", "-jr"))
    assert not plain.regularizer.is_active
    assert regularized.regularizer.is_active
    assert regularized.solver.max_evals * 2 == plain.solver.max_evals
    # A logit for each class of each pixel.
    x, y = dataclasses.replace(plain.data, num_train=2, num_validation=1, num_test=1).load().train.all()
    plain.data.task.check(plain.model.build()(x), y)


def test_cityscapes_is_trained_as_in_the_official_code():
    config = recipes.get("cityscapes-mdeq-small").build()
    assert (config.solver.max_evals, config.adjoint.solver.max_evals) == (27, 30)
    assert (config.warmup.num_steps, config.warmup.depth) == (60_000, 3)
    assert (config.loop.num_epochs, config.loop.batch_size) == (500, 12)
    assert (config.optimizer.learning_rate, config.optimizer.weight_decay) == (0.01, 2e-4)
    assert not config.regularizer.is_active


def test_densenet_is_trained_like_resnet():
    resnet, densenet = (recipes.get(f"cifar10-{name}").build() for name in ("resnet18", "densenet121"))
    assert {field.split(".")[0] for field, _, _ in differences(resnet, densenet)} == {"recipe", "model"}
    with torch.device("meta"):
        count = sum(p.numel() for p in densenet.model.build().parameters())
    # That of the usual one for ImageNet, with 10 classes of 1000 and a stem of 3 by 3 pixels instead of 7 by 7.
    assert count == 7_978_856 - 990 * (1024 + 1) - (7 * 7 - 3 * 3) * 3 * 64


# The values of recipes that results were published with, written down once.

CONTENT = json.loads((Path(__file__).parent / "values.json").read_text())
STEPS = (0, 1, 399, 400, 1000, 1799, 1800, 4399, 35_000, 600_000, 700_000)


def plain(value):
    """Return an object as what JSON holds, with the name of its class; a memory of the whole budget is "all"."""
    if not dataclasses.is_dataclass(value):
        return list(value) if isinstance(value, tuple) else value
    content = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (Broyden, GMRES)) and (value.memory is None or value.memory >= value.max_evals):
        content["memory"] = "all"
    return {"class": type(value).__qualname__.removesuffix(".Config"), **content}


def regularizer(config):
    of_run = config.regularizer.for_run(num_steps=4400, steps_per_epoch=20, seed=0)
    fields = {name: getattr(of_run, name) for name in ("weight", "probability", "num_probes", "probe", "seed")}
    # How gamma moves says all about a schedule.
    return fields | {"gammas": [of_run.gamma(step) for step in STEPS], "taus": [int(of_run.tau(s)) for s in range(16)]}


def flatten(content, prefix=""):
    values = {}
    for key, value in content.items():
        values |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return values


def values_of(name):
    recipe = recipes.get(name)
    config = recipe.build()
    with torch.device("meta"):
        model = config.model.build()
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    task = type(config.data.task).__name__
    return flatten(
        {
            "scale": recipe.scale,
            "model": plain(config.model) | {"num_parameters": num_parameters},
            "data": plain(config.data) | {"name": config.data.name, "task": task},
            "optimizer": plain(config.optimizer),
            "solver": plain(config.solver),
            "evaluation_solver": plain(config.evaluation_solver),
            "budget": plain(config.budget),
            "adjoint": plain(config.adjoint),
            "regularizer": regularizer(config),
            "warmup": plain(config.warmup),
            "loop": plain(config.loop),
            "log": plain(config.log),
        }
    )


@pytest.mark.parametrize("name", CONTENT["recipes"])
def test_a_recipe_has_the_values_that_results_were_published_with(name):
    values = values_of(name)
    expected = CONTENT["shared"] | CONTENT["recipes"][name]
    assert {key: values.get(key, "missing") for key in expected} == expected
