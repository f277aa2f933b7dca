"""Fields of dataclasses as options: nested ones, classes, every type, help, and the way back from a config."""

import importlib
import re
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
from lab.test_serialization import CHANGES
from lab.train.runs import change

from steadeq import (
    GMRES,
    AbstractSolver,
    Anderson,
    Broyden,
    Implicit,
    Linear,
    OneStep,
    Phantom,
    Picard,
    Shine,
    StopAfter,
)
from steadeq._internal.validation import check_count
from steadeq.adjoints import AbstractAdjoint
from steadeq.codec import class_path
from steadeq.jacobian.schedules import AbstractSchedule
from steadeq.lab import recipes
from steadeq.lab.cli.arguments import field_docs, parse, parse_with_config, positional
from steadeq.lab.cli.main import commands
from steadeq.lab.cli.train import Arguments
from steadeq.lab.config import RandomBudget, TrainConfig
from steadeq.lab.errors import HelpShown, InputError
from steadeq.lab.optimizers import SGD, AbstractOptimizer
from steadeq.lab.serialization import command_line, subclasses

SYNTHETIC = recipes.get("synthetic-jr").build()
TEXT = recipes.get("wikitext2-deq-post-cpu").build()


def override(text: str, config: TrainConfig = SYNTHETIC) -> TrainConfig:
    """Return a config with what is overridden on the command line."""
    return from_words(text.split(), config)


def from_words(words: list[str], config: TrainConfig) -> TrainConfig:
    return parse_with_config(Arguments, words, config=config, command="train x", summary="Train.")[1]


def help_of(capsys, words: list[str], config: TrainConfig) -> str:
    with pytest.raises(HelpShown):
        from_words([*words, "--help"], config)
    return capsys.readouterr().out


# Fields


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        ("--loop.num-steps 7", {"loop": {"num_steps": 7}}),
        ("--loop.num_steps 7", {"loop": {"num_steps": 7}}),
        ("--loop.num-steps=7", {"loop": {"num_steps": 7}}),
        ("--loop.num-steps None", {"loop": {"num_steps": None}}),
        ("--optimizer.learning-rate 1e-2", {"optimizer": {"learning_rate": 0.01}}),
        ("--optimizer.learning-rate 1", {"optimizer": {"learning_rate": 1.0}}),
        ("--optimizer.betas 0.8 0.95", {"optimizer": {"betas": (0.8, 0.95)}}),
        ("--budget.low -1 --budget.high 2", {"budget": RandomBudget(low=-1, high=2)}),
        ("--loop.compile", {"loop": {"compile": True}}),
        ("--loop.compile True", {"loop": {"compile": True}}),
        ("--loop.compile --loop.compile False", {"loop": {"compile": False}}),
        ("--loop.compile --loop.no-compile", {"loop": {"compile": False}}),
        ("--adjoint.solver.max-evals 9", {"adjoint": Implicit(GMRES(max_evals=9, tol=1e-4))}),
        ("--data.variant appendix --model.hidden 3", {"data": {"variant": "appendix"}, "model": {"hidden": 3}}),
        (
            "--regularizer.num-probes 2 --regularizer.probe gaussian",
            {"regularizer": {"num_probes": 2, "probe": "gaussian"}},
        ),
        ("--resume --out runs/x", {}),
        # Classes
        # The budget stays, the memory is the class's own.
        ("--solver Broyden", {"solver": Broyden(max_evals=6, tol=1e-3)}),
        ("--solver Broyden --solver.memory 3", {"solver": Broyden(max_evals=6, tol=1e-3, memory=3)}),
        ("--solver.memory 3 --solver Broyden", {"solver": Broyden(max_evals=6, tol=1e-3, memory=3)}),
        ("--solver.max-evals 9 --solver Picard", {"solver": Picard(max_evals=9, tol=1e-3)}),
        ("--adjoint Phantom --adjoint.num-steps 3", {"adjoint": Phantom(num_steps=3)}),
        ("--adjoint Implicit --adjoint.solver Picard", {"adjoint": Implicit(Picard(max_evals=6, tol=1e-4))}),
        ("--adjoint Shine --solver Broyden", {"adjoint": Shine(), "solver": Broyden(max_evals=6, tol=1e-3)}),
        ("--optimizer SGD --optimizer.nesterov", {"optimizer": SGD(learning_rate=1e-3, nesterov=True)}),
        (
            "--regularizer.schedule StopAfter --regularizer.schedule.epoch 3 --regularizer.schedule.schedule Linear "
            "--regularizer.schedule.schedule.end 2",
            {"regularizer": {"schedule": StopAfter(epoch=3, schedule=Linear(end=2.0))}},
        ),
        ("--eval-solver Anderson --eval-solver.max-evals 9", {"eval_solver": Anderson(max_evals=9)}),
        ("--eval-solver None", {"eval_solver": None}),
    ],
)
def test_a_field_takes_what_is_written_and_a_class_the_place_of_another(text, sections):
    assert override(text) == change(SYNTHETIC, **sections)


OWN_EVAL_SOLVER, ONE_STEP = change(SYNTHETIC, eval_solver=Picard(max_evals=3)), change(SYNTHETIC, adjoint=OneStep())


@pytest.mark.parametrize(
    ("base", "text", "sections"),
    [
        *(
            (TEXT, f"--model.{word}", {"model": {"weight_norm": False}})
            for word in ("no-weight-norm", "weight-norm=false")
        ),
        *(
            (TEXT, f"--model.cutoffs {text}", {"model": {"cutoffs": found}})
            for text, found in (("1 9", (1, 9)), ("", ()))
        ),
        (OWN_EVAL_SOLVER, "--eval-solver None", {"eval_solver": None}),
        (OWN_EVAL_SOLVER, "--eval-solver Broyden", {"eval_solver": Broyden(max_evals=3, tol=1e-3)}),
        # What is inside of a class that was chosen.
        (
            ONE_STEP,
            "--adjoint Implicit --adjoint.solver.max-evals 9 --adjoint.solver.tol 0.5",
            {"adjoint": Implicit(GMRES(max_evals=9, tol=0.5))},
        ),
    ],
)
def test_what_is_on_is_switched_off_and_what_is_chosen_is_changed(base, text, sections):
    assert override(text, base) == change(base, **sections)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--regularizer.schedule Linear", "--regularizer.schedule.end is missing."),
        ("--regularizer.schedule StopAfter", "regularizer.schedule.step is None and epoch is None; one of them"),
        ("--model DEQTransformerLM", "--model.vocab-size is missing."),
        ("--solver", "--solver is ''; it must be one of Anderson, Broyden, Loop, NewtonKrylov, Picard"),
        ("--solver GMRES", "--solver is 'GMRES'; it must be one of Anderson, Broyden, Loop, NewtonKrylov, Picard"),
        ("--solver Andersen", "Did you mean 'Anderson'?"),
        ("--data AbstractTextConfig", "--data is 'AbstractTextConfig'"),
        ("--adjoint.solver _TimedSolver", "--adjoint.solver is '_TimedSolver'"),
        ("--solver Broyden --solver.mixing 0.5", "There is no option --solver.mixing."),
        ("--eval-solver.max-evals 3", "There is no option --eval-solver.max-evals."),
        ("--solver.max-eval 3", "Did you mean '--solver.max-evals'?"),
        ("--loop.no-seed", "There is no option --loop.no-seed."),
        ("--recipe other", "There is no option --recipe."),
        ("--loop.seed 1 2", "--loop.seed is '1 2'; it must be an integer."),
        ("--loop.seed 1.5", "--loop.seed is '1.5'; it must be an integer."),
        ("--loop.num-steps x", "--loop.num-steps is 'x'; it must be an integer or None."),
        ("--loop.compile maybe", "--loop.compile is 'maybe'; it must be True or False."),
        ("--loop.precision float16", "--loop.precision is 'float16'; it must be one of float32, bfloat16."),
        ("--optimizer.betas 0.9 0.9 0.9", "--optimizer.betas is '0.9 0.9 0.9'; it must be 2 values, each a number."),
        ("--solver.max-evals 0", "--solver.max-evals is 0"),
        ("--adjoint.solver.tol -1", "--adjoint.solver.tol is -1.0"),
        ("stray", "'stray' is not expected here; see `steadeq train x --help`."),
    ],
)
def test_what_does_not_fit_is_refused_by_name(text, message):
    with pytest.raises(InputError) as error:
        override(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


# Places


@dataclass(frozen=True, kw_only=True)
class Places:
    """Arguments of a command for these tests."""

    run: Path = positional()
    """Folder of the run."""
    others: tuple[Path, ...] = positional(default=())
    """More folders."""
    budgets: tuple[int, ...] = ()
    """Any number of numbers."""
    pair: tuple[int, float] = (1, 2.0)
    """Two numbers."""
    split: Literal["validation", "test"] = "test"
    """Which samples."""
    quick: bool = False
    """Whether to hurry."""
    most_evals: int = 1
    """A count."""

    def __post_init__(self) -> None:
        check_count("most_evals", self.most_evals)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", Places(run=Path("a"))),
        ("a b c", Places(run=Path("a"), others=(Path("b"), Path("c")))),
        ("a --budgets 1 2 3", Places(run=Path("a"), budgets=(1, 2, 3))),
        ("--split validation a b", Places(run=Path("a"), others=(Path("b"),), split="validation")),
        ("a --split validation b", Places(run=Path("a"), others=(Path("b"),), split="validation")),
        ("--split=validation a", Places(run=Path("a"), split="validation")),
        ("--pair 3 4.5 a", Places(run=Path("a"), pair=(3, 4.5))),
        ("--quick a", Places(run=Path("a"), quick=True)),
        ("--quick False a", Places(run=Path("a"), quick=False)),
        ("a --quick", Places(run=Path("a"), quick=True)),
    ],
)
def test_places_may_stand_before_and_after_options(text, expected):
    assert parse(Places, text.split(), command="x", summary="Test.") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "RUN is missing: folder of the run."),
        ("--budgets 1 2 a", "--budgets is '1 2 a'"),
        ("a --pair 3", "--pair is '3'"),
        ("a --split train", "--split is 'train'"),
        ("a --most-evals 0", "--most-evals is 0; it must be an integer >= 1."),
    ],
)
def test_places_that_are_missing_or_taken_are_refused(text, message):
    with pytest.raises(InputError) as error:
        parse(Places, text.split(), command="x", summary="Test.")
    assert message in str(error.value)


# Help

# A recipe for each network on each data set.
EACH_KIND = {(type(c.model), type(c.data)): c.recipe for c in (recipes.get(name).build() for name in recipes.names())}


def options_of(config, where: str = "") -> list[tuple[str, str, object]]:
    """Return option, description and value of all fields, from the sources of the classes."""
    docs = field_docs(type(config))
    found = []
    for field in fields(config):
        if not field.init or (not where and field.name == "recipe"):
            continue
        value = getattr(config, field.name)
        name = f"{where}{field.name}"
        if is_dataclass(value):
            found += options_of(value, f"{name}.")
        else:
            found.append((f"--{name.replace('_', '-')}", docs.get(field.name, ""), value))
    return found


@pytest.mark.parametrize("name", EACH_KIND.values())
def test_help_lists_every_field_with_description_and_value(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    config = recipes.get(name).build()
    output = " ".join(help_of(capsys, [], config).split())
    for option, doc, value in options_of(config):
        assert doc.endswith((".", "...")), f"{option} has no description"
        assert re.search(rf"{option} [^-]", output), option
        assert doc in output, option
        if value not in (None, False, True, ()):
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            assert f"{doc} (default: {shown})" in output, option
    for option in ("--solver", "--adjoint", "--optimizer", "--regularizer.schedule", "--model", "--data"):
        assert re.search(rf"{option} CLASS (?:(?! --).)+\(default: \w+; one of [\w, ]+\)", output), option


ARGUMENTS = [importlib.import_module(module).Arguments for module, _ in commands().values()]
CHOICES = [
    kind
    for base in (AbstractSolver, AbstractAdjoint, AbstractSchedule, AbstractOptimizer)
    for kind in subclasses(base)
    # Other tests have some of their own.
    if kind.__module__.startswith("steadeq.")
]


@pytest.mark.parametrize("kind", [*ARGUMENTS, *CHOICES], ids=class_path)
def test_every_option_of_every_command_and_of_what_can_be_chosen_is_described(kind):
    docs = field_docs(kind)
    for field in fields(kind):
        assert not field.init or docs[field.name].endswith((".", "...")), field.name


def test_help_is_about_what_is_chosen_and_says_how_to_switch_off_what_is_on(capsys):
    output = " ".join(help_of(capsys, ["--solver", "Picard", "--regularizer.schedule", "Linear"], TEXT).split())
    assert "--model.no-weight-norm switches it off" in output
    assert re.search(
        r"--eval-solver CLASS (?:(?! --).)+\(.*?one of Anderson, Broyden, Loop, NewtonKrylov, Picard", output
    )
    assert "--solver.mixing" not in output
    assert re.search(r"--regularizer.schedule.end FLOAT [^-]+\(required\)", output)


# The way back


@pytest.mark.parametrize("name", EACH_KIND.values())
def test_the_options_that_a_config_needs_give_it_back(name):
    base = recipes.get(name).build()
    assert command_line(base, base) == []
    for sections in CHANGES.values():
        changed = change(base, **sections)
        assert from_words(command_line(changed, base), base) == changed
        # And from there to the recipe.
        assert from_words(command_line(base, changed), changed) == base


def test_the_options_from_each_recipe_to_the_next_give_it_back():
    configs = [recipes.get(name).build() for name in EACH_KIND.values()]
    for base, other in zip(configs, [*configs[1:], configs[0]], strict=True):
        wanted = replace(other, recipe=base.recipe)
        assert from_words(command_line(wanted, base), base) == wanted
