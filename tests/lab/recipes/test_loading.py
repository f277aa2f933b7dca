"""Recipes in files of users."""

import sys
from pathlib import Path

import pytest

from steadeq.lab import recipes
from steadeq.lab.config import TrainConfig
from steadeq.lab.errors import InputError
from steadeq.lab.recipes import load_recipe

FILE = '''
from dataclasses import dataclass, replace

import torch
from steadeq.lab.data import AbstractDataConfig, InMemory, Splits
from steadeq.lab.recipes.digits import digits
from steadeq.lab.tasks import Classification

print("imported")


@dataclass(frozen=True, kw_only=True)
class Mine(AbstractDataConfig):
    """Random images."""

    name = "mine"
    task = Classification()

    num_samples: int = 8

    def load(self):
        part = InMemory(inputs=torch.randn(self.num_samples, 1, 8, 8), targets=torch.zeros(self.num_samples).long())
        return Splits(train=part, validation=part, test=part)


def quick():
    """Mine, quickly.

    More words.
    """
    print("called")
    return replace(digits(), data=Mine())


def nothing():
    pass


def number():
    return 3


def broken():
    return replace(digits(), data=Mine(num_sample=3))


constant = 5
'''


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file, of which nothing is left in this process afterwards."""
    monkeypatch.chdir(tmp_path)
    modules, path, loaded = dict(sys.modules), list(sys.path), dict(recipes.registry._LOADED)

    def write(content=FILE, name="my_recipes.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
        return name

    yield write
    assert sys.path == path
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]
    recipes.registry._LOADED.clear()
    recipes.registry._LOADED.update(loaded)


def test_a_name_is_a_recipe_of_the_package():
    assert load_recipe("digits-jr") is recipes.get("digits-jr")
    with pytest.raises(InputError, match="Did you mean 'digits'"):
        load_recipe("digit")


def test_a_function_of_a_file_is_a_recipe(write, capsys):
    text = f"{write()}:quick"
    recipe = load_recipe(text)
    assert capsys.readouterr().out == "imported\n"
    assert (recipe.name, recipe.summary, recipe.scale) == (text, "Mine, quickly.", None)
    assert recipe.source == Path("my_recipes.py")
    config = recipe.build()
    assert capsys.readouterr().out == "called\n"
    assert isinstance(config, TrainConfig)
    assert config.recipe == text
    assert type(config.data).__module__ == "my_recipes"
    assert len(config.data.load().train) == 8
    assert text not in recipes.names()


def test_a_file_is_imported_once_so_that_its_classes_stay_the_same(write, capsys):
    write()
    first, second = load_recipe("my_recipes.py:quick").build(), load_recipe("./my_recipes.py:quick").build()
    assert capsys.readouterr().out.count("imported") == 1
    assert first.data == second.data
    assert second.recipe == "./my_recipes.py:quick"


def test_files_of_the_same_name_in_two_folders_are_two_modules(write):
    other = FILE.replace("num_samples: int = 8", "num_samples: int = 9")
    # Names of files need not be those of modules.
    first = load_recipe(f"{write(FILE, 'a/my-recipes.v2.py')}:quick")
    second = load_recipe(f"{write(other, 'b/my-recipes.v2.py')}:quick")
    assert (first.build().data.num_samples, second.build().data.num_samples) == (8, 9)


def test_a_decorated_function_has_the_name_by_which_it_was_asked_for(write, monkeypatch):
    monkeypatch.setattr(recipes.registry, "_RECIPES", dict(recipes.registry._RECIPES))
    content = FILE.replace("def quick", '@recipe("mine", scale="cpu")\ndef quick')
    text = f"{write('from steadeq.lab.recipes import recipe' + content)}:quick"
    assert load_recipe(text).build().recipe == text
    assert load_recipe("mine").build().recipe == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere.py:quick", r"There is no file nowhere\.py\.$"),
        ("folder.py:quick", r"There is no file folder\.py\.$"),
        ("my_recipes.py:quik", r"my_recipes\.py has no function 'quik'\. Did you mean 'quick'\?$"),
        ("my_recipes.py:constant", r"my_recipes\.py has no function 'constant'\."),
        ("my_recipes.py:", r"my_recipes\.py has no function ''\."),
        ("my_recipes.py", r"my_recipes\.py is a file; .*my_recipes\.py:function\.$"),
        ("my_recipes:quick", r"There is no recipe 'my_recipes:quick'\."),
    ],
)
def test_what_is_not_there_is_refused_in_one_sentence(text, message, write, tmp_path):
    write()
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(InputError, match=message):
        load_recipe(text)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nothing", r"^my_recipes\.py:nothing returns None; it must return a TrainConfig\.$"),
        ("number", r"^my_recipes\.py:number returns an object of type int; it must return a TrainConfig\.$"),
        ("broken", r"^my_recipes\.py:broken cannot be built: line 44: TypeError: .*'num_sample'\.$"),
        ("Mine", r"^my_recipes\.py:Mine returns an object of type Mine; it must"),
    ],
)
def test_functions_that_return_no_config_are_refused_in_one_sentence(function, message, write):
    recipe = load_recipe(f"{write()}:{function}")
    with pytest.raises(InputError, match=message):
        recipe.build()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("import math\n\nmath.sqrt(-1)\n", r"my_recipes\.py cannot be imported: line 3: ValueError: .*"),
        ("x = 1\nif x\n", r"my_recipes\.py cannot be imported: line 2: SyntaxError: .*"),
        ("import steadeq_test_no_module\n", r"cannot be imported: line 1: ModuleNotFoundError: No module named .*"),
        ("raise SystemExit\n", r"cannot be imported: line 1: SystemExit\.$"),
        ("raise ValueError('one\\ntwo.')\n", r"line 1: ValueError: one two\.$"),
    ],
)
def test_files_that_cannot_be_imported_are_refused_with_error_and_line(content, message, write):
    with pytest.raises(InputError, match=message) as caught:
        load_recipe(f"{write(content)}:quick")
    assert "\n" not in str(caught.value)
    assert "my_recipes" not in sys.modules
    # Once it is mended, it can be loaded.
    assert load_recipe(f"{write()}:quick").build().data.num_samples == 8


@pytest.mark.parametrize("name", ["json", "torch", "steadeq", "this", "colorsys"])
def test_a_file_never_takes_the_place_of_another_module(name, write):
    before = sys.modules.get(name)
    with pytest.raises(InputError, match=rf"{name}\.py has the name of another module, '{name}'"):
        load_recipe(f"{write(FILE, f'{name}.py')}:quick")
    assert sys.modules.get(name) is before


def test_a_file_in_the_folder_of_the_program_can_be_loaded(write, monkeypatch):
    """Where the working folder is on the search path, as with `python -m steadeq`."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", ["", *sys.path])
        assert load_recipe(f"{write()}:quick").build().recipe == "my_recipes.py:quick"
