"""Arguments of all commands, made up: each is refused with a sentence, or means something."""

from functools import cache
from pathlib import Path
from random import Random

from torture import subjects
from torture.process import command
from torture.words import NUMBERS, hostile_value

LOOKING = {
    "evaluate": ("--budgets", "--split", "--solver", "--batch-size", "--step", "--recipe", "--device", "--data"),
    "diagnose": ("--split", "--step", "--num-samples", "--recipe", "--device", "--tol", "--max-evals"),
    "report": ("--out", "--title", "--recipe"),
    "generate": ("--prompt", "--num-tokens", "--temperature", "--top-k", "--top-p", "--seed", "--step", "--recipe"),
}
OTHERS = ("data", "recipes", "convert", "reproduce", "trian", "--version", "--help")
ENDLESS = {
    *("--loop.num-steps", "--loop.num-epochs", "--solver.max-evals", "--adjoint.solver.max-evals", "--warmup.depth"),
}
"""Options of which a large value is a legitimate wish."""


def attempt_parser(draw: Random, folder: Path) -> None:
    """Give strange arguments to a command; a run that would begin does not."""
    name = draw.choice(["train"] * 5 + [*LOOKING, *OTHERS])
    if name == "train":
        arguments = [draw.choice(("synthetic-jr", "digits", hostile_value(draw)))]
        for _ in range(draw.randint(1, 3)):
            arguments += _option(draw, _options("synthetic-jr", "digits-jr", "wikitext2-deq-post-cpu"))
    elif name in LOOKING:
        kind = "text" if name == "generate" else "plain"
        subjects.copy_of(subjects.stopped(kind), folder)
        arguments = ["run" if draw.random() < 0.7 else hostile_value(draw), *_option(draw, LOOKING[name])]
    else:
        arguments = [hostile_value(draw) for _ in range(draw.randint(1, 2))]
    outcome = command(
        name, *arguments, hook=(_refuse_to_train,), folder=folder, environment=subjects.environment(folder)
    )
    outcome.check(0, 1, 2)


def attempt_run(draw: Random, folder: Path) -> None:
    """Begin a run with one strange value: it is refused, or it ends, in bounded time and memory."""
    kind = draw.choice(("plain", "images", "text"))
    names = [name for name in _options(subjects.KINDS[kind][0]) if name not in ENDLESS]
    # Words do not get past the parser.
    option = (draw.choice(names), draw.choice(NUMBERS))
    subjects.train(kind, folder / "run", *option).check(0, 1, 2, max_seconds=90)


def _option(draw: Random, names) -> list[str]:
    name = draw.choice(list(names))
    if draw.random() < 0.1:
        place = draw.randrange(len(name) + 1)
        name = name[:place] + draw.choice("-.=x\u200b") + name[place:]
    value = hostile_value(draw)
    return draw.choice(([name, value], [f"{name}={value}"], [name, value, hostile_value(draw)], [name]))


@cache
def _options(*names: str) -> list[str]:
    from steadeq.codec import to_plain
    from steadeq.lab import recipes
    from steadeq.lab.serialization import flag_of

    def flags(content: dict, where: str = ""):
        for name, value in content.items():
            yield flag_of(where + name)
            if isinstance(value, dict):
                yield from flags(value, f"{where}{name}.")

    configs = (recipes.get(name).build() for name in names)
    found = {flag for config in configs for flag in flags(to_plain(config)) if not flag.endswith((".class", "recipe"))}
    return sorted({*found, "--out", "--resume", "--profile"})


def _refuse_to_train() -> None:
    from steadeq.lab.cli import train
    from steadeq.lab.errors import InputError

    class Trainer:
        def __init__(self, *_, **__) -> None:
            raise InputError("The parser let it pass.")

    train.Trainer = Trainer
