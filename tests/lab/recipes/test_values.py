"""The values of all recipes, written down once: published results were made with them."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from steadeq.lab import recipes
from steadeq.solvers import GMRES, Broyden

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
