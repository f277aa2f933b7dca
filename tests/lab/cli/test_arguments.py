"""Fields of dataclasses as options: nested ones, classes, every type, help, and the way back from a config."""

import importlib
import re
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
from lab.train.runs import change

from steadeq import (
    GMRES,
    Anderson,
    Broyden,
    ClosedLoop,
    Implicit,
    Increments,
    JacobianRegularizer,
    Linear,
    NewtonKrylov,
    OneStep,
    Phantom,
    Picard,
    Shine,
    StopAfter,
    Unrolled,
)
from steadeq._internal.validation import check_count
from steadeq.lab import recipes
from steadeq.lab.cli.arguments import field_docs, parse, parse_with_config, positional
from steadeq.lab.cli.main import commands
from steadeq.lab.cli.train import Arguments
from steadeq.lab.config import RandomBudget, TrainConfig
from steadeq.lab.data import Cifar10, Digits
from steadeq.lab.errors import HelpShown, InputError
from steadeq.lab.optimizers import SGD, AdamW
from steadeq.lab.serialization import command_line
from steadeq.models import ConvDEQ, ResNet

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
        ("--loop.num-steps 3 --loop.num-steps 7", {"loop": {"num_steps": 7}}),
        ("--optimizer.learning-rate 1e-2", {"optimizer": {"learning_rate": 0.01}}),
        ("--optimizer.learning-rate 1", {"optimizer": {"learning_rate": 1.0}}),
        ("--optimizer.betas 0.8 0.95", {"optimizer": {"betas": (0.8, 0.95)}}),
        ("--optimizer.max-grad-norm 2", {"optimizer": {"max_grad_norm": 2.0}}),
        ("--budget.low -1 --budget.high 2", {"budget": RandomBudget(low=-1, high=2)}),
        ("--loop.compile", {"loop": {"compile": True}}),
        ("--loop.compile True", {"loop": {"compile": True}}),
        ("--loop.compile=true", {"loop": {"compile": True}}),
        ("--loop.compile --loop.compile False", {"loop": {"compile": False}}),
        ("--loop.compile --loop.no-compile", {"loop": {"compile": False}}),
        ("--adjoint.solver.max-evals 9", {"adjoint": Implicit(GMRES(max_evals=9, tol=1e-4))}),
        ("--data.variant appendix --model.hidden 3", {"data": {"variant": "appendix"}, "model": {"hidden": 3}}),
        (
            "--regularizer.num-probes 2 --regularizer.probe gaussian",
            {"regularizer": {"num_probes": 2, "probe": "gaussian"}},
        ),
        ("--loop.device cuda:1", {"loop": {"device": "cuda:1"}}),
        ("--resume --out runs/x", {}),
        # Classes
        # The budget stays, the memory is the class's own.
        ("--solver Broyden", {"solver": Broyden(max_evals=6, tol=1e-3)}),
        ("--solver broyden", {"solver": Broyden(max_evals=6, tol=1e-3)}),
        ("--solver Broyden --solver.memory 3", {"solver": Broyden(max_evals=6, tol=1e-3, memory=3)}),
        ("--solver.memory 3 --solver Broyden", {"solver": Broyden(max_evals=6, tol=1e-3, memory=3)}),
        ("--solver.max-evals 9 --solver Picard", {"solver": Picard(max_evals=9, tol=1e-3)}),
        ("--solver Anderson", {}),
        ("--adjoint Phantom --adjoint.num-steps 3", {"adjoint": Phantom(num_steps=3)}),
        ("--adjoint.solver Broyden", {"adjoint": Implicit(Broyden(max_evals=6, tol=1e-4))}),
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
        ("--data Digits", {"data": Digits()}),
        ("--model ConvDEQ --model.channels 8", {"model": ConvDEQ.Config(channels=8)}),
    ],
)
def test_a_field_takes_what_is_written_and_a_class_the_place_of_another(text, sections):
    assert override(text) == change(SYNTHETIC, **sections)


def test_a_truth_value_that_is_true_is_switched_off_three_ways():
    assert TEXT.model.weight_norm
    for text in ("--model.no-weight-norm", "--model.weight-norm False", "--model.weight-norm=false"):
        assert override(text, TEXT) == change(TEXT, model={"weight_norm": False})


def test_a_tuple_may_have_any_length():
    for text, cutoffs in (("10 100 1000", (10, 100, 1000)), ("10", (10,)), ("", ())):
        assert override(f"--model.cutoffs {text}", TEXT).model.cutoffs == cutoffs


def test_a_solver_of_evaluations_can_be_taken_away():
    config = change(SYNTHETIC, eval_solver=Picard(max_evals=3))
    assert override("--eval-solver None", config).eval_solver is None
    assert override("--eval-solver Broyden", config).eval_solver == Broyden(max_evals=3, tol=1e-3)


def test_what_is_inside_of_a_class_that_was_chosen_can_be_changed_too():
    config = change(SYNTHETIC, adjoint=OneStep())
    text = "--adjoint Implicit --adjoint.solver.max-evals 9 --adjoint.solver.tol 0.5"
    assert override(text, config).adjoint == Implicit(GMRES(max_evals=9, tol=0.5))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--regularizer.schedule Linear", "--regularizer.schedule.end is missing."),
        ("--regularizer.schedule StopAfter", "regularizer.schedule.step is None and epoch is None; one of them"),
        ("--model DEQTransformerLM", "--model.vocab-size is missing."),
        ("--solver", "--solver is ''; it must be one of Anderson, Broyden, Loop, NewtonKrylov, Picard"),
        ("--solver GMRES", "--solver is 'GMRES'; it must be one of Anderson, Broyden, Loop, NewtonKrylov, Picard"),
        ("--solver Andersen", "Did you mean 'Anderson'?"),
        ("--solver Broyden Picard", "--solver is 'Broyden Picard'"),
        ("--data AbstractTextConfig", "--data is 'AbstractTextConfig'"),
        ("--adjoint.solver _TimedSolver", "--adjoint.solver is '_TimedSolver'"),
        ("--solver Broyden --solver.mixing 0.5", "There is no option --solver.mixing."),
        ("--adjoint OneStep --adjoint.solver.max-evals 3", "There is no option --adjoint.solver.max-evals."),
        ("--eval-solver.max-evals 3", "There is no option --eval-solver.max-evals."),
        ("--solver.max-eval 3", "Did you mean '--solver.max-evals'?"),
        ("--loop.no-seed", "There is no option --loop.no-seed."),
        ("--recipe other", "There is no option --recipe."),
        ("--loop.seed", "--loop.seed is ''; it must be an integer."),
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


def test_every_class_that_can_be_chosen_describes_its_fields():
    choices = (
        *(Anderson(), Broyden(), NewtonKrylov(), Picard(), GMRES()),
        *(Implicit(), OneStep(), Phantom(), Shine(), Unrolled()),
        *(Linear(end=1.0), Increments(increment=1.0, every=1), StopAfter(step=1), ClosedLoop()),
        *(AdamW(), SGD()),
    )
    for choice in choices:
        for option, doc, _ in options_of(choice, "x."):
            assert doc.endswith("."), f"{type(choice).__name__} {option}"


@pytest.mark.parametrize(("command", "module"), [(command, module) for command, (module, _) in commands().items()])
def test_every_option_of_every_command_is_described(command, module):
    arguments = importlib.import_module(module).Arguments
    docs = field_docs(arguments)
    for field in fields(arguments):
        assert docs[field.name].endswith((".", "...")), field.name


def test_help_of_another_class_lists_its_fields(capsys):
    output = help_of(capsys, ["--solver", "Picard", "--regularizer.schedule", "Linear"], SYNTHETIC)
    assert "--solver.mixing" not in output
    assert "--regularizer.schedule.end FLOAT" in output
    assert "(required)" in output


def test_help_says_how_to_switch_off_what_is_on_and_what_a_solver_of_evaluations_can_be(capsys):
    output = " ".join(help_of(capsys, [], TEXT).split())
    assert "--model.no-weight-norm switches it off" in output
    assert re.search(
        r"--eval-solver CLASS (?:(?! --).)+\(.*?one of Anderson, Broyden, Loop, NewtonKrylov, Picard", output
    )


# The way back


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
