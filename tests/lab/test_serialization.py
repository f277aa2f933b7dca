"""Configs as JSON and back, and that reading one never imports or executes anything."""

import json
import math
import sys
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import cycle
from pathlib import Path

import pytest
from lab.cli import commands
from lab.train.runs import LineData, change, tiny_config, train

from steadeq import (
    Anderson,
    Broyden,
    ClosedLoop,
    Implicit,
    Increments,
    JacobianRegularizer,
    Linear,
    NewtonKrylov,
    Shine,
    StopAfter,
    Unrolled,
)
from steadeq.codec import class_path, to_plain
from steadeq.lab import recipes
from steadeq.lab.cli.main import main
from steadeq.lab.config import RandomBudget, TrainConfig
from steadeq.lab.data import Cifar10
from steadeq.lab.errors import InputError
from steadeq.lab.optimizers import SGD, AdamW
from steadeq.lab.serialization import (
    config_from_json,
    config_to_json,
    differences,
    flatten,
    from_dict,
    subclasses,
)
from steadeq.models import ResNet
from steadeq.solvers import AbstractLinearSolver

CONFIG = recipes.get("synthetic-jr").build()


def through_json(config):
    return config_from_json(config_to_json(config))


def unusual(section):
    """Return a section in which every field that can be is not at its default."""
    changes = {}
    for field in fields(section):
        value = getattr(section, field.name)
        if not field.init:
            continue
        if isinstance(value, bool):
            changes[field.name] = not value
        elif isinstance(value, int):
            changes[field.name] = value + 1
        elif isinstance(value, float):
            changes[field.name] = value / 2 + 0.25
        elif is_dataclass(value):
            changes[field.name] = unusual(value)
        elif value is None and field.name in ("num_steps", "memory", "max_grad_norm"):
            changes[field.name] = 3
    return replace(section, **changes)


def edited(changes):
    """Return what config.json holds, with other fields in its sections; ... stands for a field that is left out."""
    content = json.loads(config_to_json(CONFIG))
    for name, value in changes.items():
        if isinstance(value, dict):
            content[name] = {field: item for field, item in {**content[name], **value}.items() if item is not ...}
        else:
            content[name] = value
    return {name: value for name, value in content.items() if value is not ...}


# There and back

CHANGES = {
    "classes": {
        "solver": Broyden(max_evals=33, tol=0.0, memory=4),
        "eval_solver": NewtonKrylov(max_evals=9),
        "adjoint": Implicit(Anderson(max_evals=4, tol=1e-9, mixing=0.25)),
        "optimizer": SGD(learning_rate=0.25, nesterov=True, max_grad_norm=1e-30),
        "regularizer": {"schedule": StopAfter(epoch=2, schedule=Linear(end=0.1, begin=3)), "weight": 1 / 3},
        "budget": RandomBudget(low=-2, high=5, when="penalized"),
    },
    "more classes": {
        "solver": Broyden(max_evals=3),
        "eval_solver": None,
        "adjoint": Shine(max_stretch=1.7),
        "optimizer": AdamW(betas=(0.5, 0.25), schedule="constant"),
        "regularizer": JacobianRegularizer(
            weight=0.3, schedule=Increments(increment=-0.5, every=7, maximum=12.0), probe="sphere"
        ),
        "model": ResNet.Config(num_classes=7),
        "data": Cifar10(num_validation=17, augment=False),
    },
    "fields": {
        "solver": {"check_every": 3},
        "adjoint": Unrolled(),
        "regularizer": {"schedule": ClosedLoop(target=2e-3, maximum=float("inf")), "seed": 5},
        "warmup": {"num_steps": 3, "depth": 2, "regularizer_weight": 0.125},
        "loop": {"num_steps": 5, "compile": True, "precision": "bfloat16", "ema_decay": 0.999, "device": "cuda:3"},
        "log": {"every": 3, "tensorboard": True, "spectrum_samples": 0},
    },
}
"""Sections with other classes and other values than recipes have; for the options in cli/test_arguments.py, too."""


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_and_every_field_survives(name):
    config = recipes.get(name).build()
    sections = ("optimizer", "solver", "adjoint", "regularizer", "warmup", "loop", "log")
    changed = replace(config, **{section: unusual(getattr(config, section)) for section in sections})
    changed = replace(changed, budget=RandomBudget(low=-1, high=2, when="penalized"))
    assert changed != config
    for each in (config, changed):
        assert through_json(each) == each
        assert from_dict(to_plain(each), TrainConfig) == each
        # What is written is plain JSON.
        assert json.loads(config_to_json(each), parse_constant=pytest.fail) == to_plain(each)


@pytest.mark.parametrize("sections", CHANGES.values(), ids=CHANGES)
def test_every_class_survives(sections):
    config = change(CONFIG, **sections)
    assert through_json(config) == config
    assert differences(through_json(config), config) == []


def test_an_infinity_is_text_as_json_has_none():
    config = change(CONFIG, regularizer={"schedule": Increments(increment=1.0, every=2)})
    assert json.loads(config_to_json(config))["regularizer"]["schedule"]["maximum"] == "inf"
    assert through_json(config).regularizer.schedule.maximum == math.inf


def test_classes_are_named_where_others_could_stand():
    content = to_plain(CONFIG)
    assert content["solver"]["class"] == "steadeq.solvers.anderson:Anderson"
    assert content["model"]["class"] == "steadeq.models.toy:ToyDEQ.Config"
    assert content["adjoint"]["solver"]["class"] == "steadeq.solvers.gmres:GMRES"
    assert "class" not in content["loop"]


def test_fields_that_a_file_leaves_out_have_their_defaults():
    content = {name: value for name, value in to_plain(CONFIG).items() if name in ("model", "data")}
    config = from_dict(content, TrainConfig)
    assert config == type(config)(model=CONFIG.model, data=CONFIG.data)
    assert from_dict(edited({"warmup": ..., "optimizer": {"betas": ...}}), TrainConfig) == CONFIG


def test_whole_numbers_pass_for_real_ones():
    weight = from_dict(edited({"regularizer": {"weight": 4}}), TrainConfig).regularizer.weight
    assert isinstance(weight, float)
    assert weight == 4.0


def test_differences_name_fields_classes_and_what_only_one_has():
    other = change(CONFIG, solver=Broyden(max_evals=6, tol=1e-3), loop={"seed": 3})
    assert differences(CONFIG, other) == [
        ("solver.class", "Anderson", "Broyden"),
        ("solver.memory", 6, None),
        ("solver.mixing", 1.0, None),
        ("solver.ridge", 0.0, None),
        ("solver.handover", False, None),
        ("loop.seed", 0, 3),
    ]
    assert flatten(other)["solver.class"] == "Broyden"


def test_what_can_be_chosen_is_public_and_concrete():
    names = {class_path(kind) for kind in subclasses(AbstractLinearSolver)}
    assert "steadeq.solvers.gmres:GMRES" in names
    assert not any("Abstract" in name or ":_" in name for name in names)


# What does not fit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ...}, "model is missing"),
        ({"data": ...}, "data is missing"),
        ({"recipe": 3}, "recipe is 3; it must be a text"),
        ({"solver": None}, "solver is None; it must be an object."),
        ({"solver": 3}, "solver is 3; it must be an object."),
        ({"eval_solver": []}, "eval_solver is []; it must be an object."),
        ({"extra": 1}, "there is no field 'extra'"),
        ({"lop": 1}, "there is no field 'lop'. Did you mean 'loop'?"),
        ({"loop": {"sed": 3}}, "there is no field 'loop.sed'. Did you mean 'seed'?"),
        ({"loop": {"seed": True}}, "loop.seed is True; it must be an integer."),
        ({"loop": {"seed": "0"}}, "loop.seed is '0'; it must be an integer."),
        ({"loop": {"num_steps": 1.5}}, "loop.num_steps is 1.5"),
        ({"loop": {"num_steps": True}}, "loop.num_steps is True"),
        ({"loop": {"compile": 0}}, "loop.compile is 0; it must be True or False."),
        ({"loop": {"precision": ["float32"]}}, "loop.precision is ['float32']; it must be one of float32, bfloat16."),
        ({"solver": {"memory": "six"}}, "solver.memory is 'six'"),
        ({"solver": {"class": ...}}, "solver.class is missing."),
        ({"solver": {"class": ["a:B"]}}, "solver.class is ['a:B']; it must be a text."),
        ({"solver": {"class": "a:" + "b" * 10**5}}, "bbb', which is not part of steadeq"),
        ({"adjoint": {"solver": {"class": "os:system"}}}, "adjoint.solver.class is 'os:system', which is not part of"),
        ({"model": {"class": "steadeq.models.toy:ToyDEC.Config"}}, "Did you mean 'steadeq.models.toy:ToyDEQ.Config'?"),
        ({"optimizer": {"learning_rate": "fast"}}, "optimizer.learning_rate is 'fast'; it must be a number"),
        ({"optimizer": {"learning_rate": True}}, "optimizer.learning_rate is True"),
        ({"optimizer": {"learning_rate": None}}, "optimizer.learning_rate is None"),
        ({"optimizer": {"learning_rate": 0}}, "optimizer.learning_rate is 0"),
        ({"optimizer": {"betas": [0.9]}}, "optimizer.betas is [0.9]"),
        ({"optimizer": {"betas": 0.9}}, "optimizer.betas is 0.9"),
        ({"optimizer": {"betas": ["a", "b"]}}, "optimizer.betas is 'a'"),
        ({"regularizer": {"weight": "-inf"}}, "regularizer.weight is -inf"),
        (
            {"regularizer": {"schedule": {"class": "steadeq.jacobian.schedules:Linear"}}},
            "regularizer.schedule.end is missing.",
        ),
    ],
)
def test_a_wrong_field_is_refused_by_name(changes, message):
    with pytest.raises(InputError) as error:
        from_dict(edited(changes), TrainConfig)
    assert message in str(error.value).replace("'model'", "model").replace("'data'", "data")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_a_config_or_a_schedule_that_is_nested_without_end_is_refused():
    for text in ("[" * 100_000, '{"solver": ' * 100_000 + "{}" + "}" * 100_000):
        with pytest.raises(InputError, match=r"^it is (nested too deeply|not JSON)"):
            config_from_json(text)
    opening = '{"class": "steadeq.jacobian.schedules:StopAfter", "step": 1, "schedule": '
    inner = '{"class": "steadeq.jacobian.schedules:Constant"}'
    text = json.dumps(edited({"regularizer": {"schedule": "here"}}))
    assert config_from_json(text.replace('"here"', opening + inner + "}")) != CONFIG
    with pytest.raises(InputError, match=r"^it is nested too deeply"):
        config_from_json(text.replace('"here"', opening * 2_000 + inner + "}" * 2_000))


# Hostile files

COMMANDS = ("evaluate run", "diagnose run", "report run", "generate run", "train --resume --out run")
SECTIONS = ("model", "data", "solver", "eval_solver", "adjoint", "optimizer", "regularizer")

STRANGERS = (
    *("os:system", "subprocess:Popen", "builtins:eval", "pathlib:Path", "antigravity:x", "marker_module:Config"),
    *("marker_module", "lab.train.runs:LineData", "__main__:x"),
)
OURS = tuple(
    f"steadeq{name}"
    for name in (
        *(".lab.cli.main:main", ".__main__:main", ".lab.train.loop:Trainer", ".lab.serialization:sys.modules"),
        *(".lab.config:LoopConfig", ".lab.config:TrainConfig", ".lab.run.record:RunRecord", ".models.toy:ToyDEQ"),
        *(".models.toy:ToyDEQ.Config.build", ".models.toy:ToyDEQ.Config.__init__", ".nowhere:Config", "", ":"),
        *(".models.base:AbstractModelConfig", ".lab.data.text:AbstractTextConfig", ".lab.train.profile:_TimedSolver"),
    )
)
NO_NAMES = ("", ":", "::", 3, None, ["os:system"], {"class": "os:system"})


@pytest.fixture(scope="module")
def _loaded():
    """All that the commands themselves need is imported."""
    for command in COMMANDS:
        main(command.replace("run", "nowhere").split())


@pytest.fixture
def run(_loaded, tmp_path, monkeypatch):
    """The folder of a run in the current one, beside modules that leave a marker when they are executed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    touch = f"import pathlib; pathlib.Path({str(tmp_path / 'marker')!r}).touch()\n"
    (tmp_path / "marker_module.py").write_text(touch + "class Config: pass\ndef recipe(): pass\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "marker_module.py").write_text(touch)
    (tmp_path / "run" / "config.json").write_text(config_to_json(CONFIG))
    return tmp_path / "run"


def refuse(capfd, *arguments: str) -> str:
    """Check that a command says one sentence, and that nothing was imported, executed or written."""
    modules = set(sys.modules)
    line = commands.refuse(capfd, *arguments)
    assert set(sys.modules) == modules
    return line


def write(run: Path, section: str, name) -> None:
    content = to_plain(CONFIG)
    content[section] = {"class": name}
    (run / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize("name", [*STRANGERS, *OURS, *NO_NAMES], ids=str)
def test_a_class_that_does_not_belong_is_refused_and_nothing_is_executed(name, run, capfd):
    for command, section in zip(cycle(COMMANDS), SECTIONS, strict=False):
        write(run, section, name)
        line = refuse(capfd, *command.split())
        assert "run/config.json cannot be used: " in line
        assert f"{section}.class is " in line
        # How to trust a file that may be somebody's own.
        assert name not in STRANGERS or "--recipe path/to/file.py:function" in line


def test_a_recipe_of_the_package_does_not_vouch_for_strangers(run, capfd):
    for name in (name for name in STRANGERS if not name.startswith("lab.")):
        write(run, "model", name)
        assert f"model.class is {name!r}" in refuse(capfd, "evaluate", "run", "--recipe", "synthetic-jr")


def test_the_recipe_that_a_config_names_is_not_executed(tmp_path, run, capfd):
    # A whole run, whose classes are all ours: everything works, and the file is left alone.
    path = tmp_path / "whole"
    train(replace(tiny_config(loop={"num_steps": 2}), recipe="run/marker_module.py:recipe"), path)
    modules = set(sys.modules)
    for command in ("train --resume --out whole", "evaluate whole --budgets 1", "report whole"):
        assert main(command.split()) == 0, capfd.readouterr().err
    assert not (tmp_path / "marker").exists()
    assert not any("marker_module" in name for name in set(sys.modules) - modules)


def test_a_recipe_that_is_named_is_imported_and_its_classes_are_found(run):
    config = replace(CONFIG, data=LineData(num_train=7))
    with pytest.raises(InputError, match="not part of steadeq"):
        config_from_json(config_to_json(config))
    (run.parent / "named.py").write_text("import lab.train.runs\ndef recipe(): pass\n")
    assert config_from_json(config_to_json(config), recipe=f"{run.parent}/named.py:recipe") == config


def test_a_class_of_the_wrong_kind_is_refused_even_if_its_recipe_is_named(run):
    content = to_plain(CONFIG)
    content["model"] = {"class": class_path(Foreign)}
    with pytest.raises(InputError, match="which is not a known AbstractModelConfig"):
        from_dict(content, TrainConfig, recipe="synthetic-jr")


@dataclass(frozen=True)
class Foreign:
    """A dataclass that is no config of a model."""

    def __post_init__(self) -> None:
        raise AssertionError("It was built.")
