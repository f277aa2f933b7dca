"""`steadeq completion`: a script for a shell that completes commands, options and names at the TAB key.

The words are written into the script, so that a TAB starts no Python. They are read from the files of the commands
without importing them, as importing torch takes seconds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..extension import file_of
from ..terminal import MANNERS, answer
from .arguments import parse, positional
from .main import commands
from .recipes import listed

_BASH = """_steadeq() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words=
    if ((COMP_CWORD == 1)); then
        words="{commands}"
    else
        case ${{COMP_WORDS[1]}} in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _steadeq steadeq
"""

_ZSH = """#compdef steadeq
_steadeq() {{
    local -a names
    if ((CURRENT == 2)); then
        names=({commands})
    else
        case $words[2] in
{cases}
        esac
    fi
    compadd -a names
    [[ $PREFIX == -* ]] || ((CURRENT == 2)) || _files
}}
compdef _steadeq steadeq
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `completion`."""

    shell: Literal["bash", "zsh", "fish"] = positional()
    """The shell: bash, zsh or fish."""


def run(arguments: Sequence[str]) -> int:
    """Print the script of a shell."""
    summary = (
        "Print a script that completes commands, options, and the names of recipes, data sets and results at the TAB "
        "key. "
        'bash: add `eval "$(steadeq completion bash)"` to ~/.bashrc. '
        'zsh: add `eval "$(steadeq completion zsh)"` to ~/.zshrc, after compinit. '
        "fish: `steadeq completion fish > ~/.config/fish/completions/steadeq.fish`."
    )
    args = parse(Arguments, arguments, command="completion", summary=summary)
    words = {name: words_of(name) for name in commands()}
    if args.shell == "fish":
        script = _fish(words)
    else:
        case = '            {}) words="{}" ;;' if args.shell == "bash" else "            {}) names=({}) ;;"
        cases = "\n".join(case.format(name, " ".join(found)) for name, found in words.items())
        script = (_BASH if args.shell == "bash" else _ZSH).format(commands=" ".join(words), cases=cases)
    answer({"script": script})
    print(script, end="")
    return 0


def words_of(name: str) -> list[str]:
    """Return what may follow a command: options, and the names and choices of a first argument."""
    tree = ast.parse(Path(file_of(commands()[name][0])).read_text(encoding="utf-8"))
    (kind,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Arguments"]
    found = []
    for field in kind.body:
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(field.value, ast.Call) and ast.unparse(field.value.func) == "positional":
            choices = [node for node in ast.walk(field.annotation) if isinstance(node, ast.Constant)]
            found += [choice.value for choice in choices if isinstance(choice.value, str)]
        else:
            found.append(f"--{field.target.id.replace('_', '-')}")
    return [*_names(name), *found, *MANNERS, "--help"]


def _names(command: str) -> list[str]:
    """Return what a command can be asked for by name."""
    file = Path(file_of(commands()[command][0]))
    if command == "train":
        return sorted(recipe for recipe, _, _ in listed())
    if command == "data":
        return sorted(_named([file.parents[1] / "data" / "catalog.py"], beside="summary"))
    if command == "reproduce":
        return ["all", *sorted(_named(file.parent.glob("*.py"), beside="claims"))]
    return []


def _named(files: Iterable[Path], *, beside: str) -> Iterator[str]:
    """Yield the names of what files make by calls with a `name` and another keyword."""
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            given = {word.arg: word.value for word in node.keywords} if isinstance(node, ast.Call) else {}
            if beside in given and isinstance(name := given.get("name"), ast.Constant):
                yield str(name.value)


def _fish(words: dict[str, list[str]]) -> str:
    lines = [
        f"complete -c steadeq -n __fish_use_subcommand -f -a {name} -d {_quoted(text)}"
        for name, (_, text) in commands().items()
    ]
    for name, found in words.items():
        lines.append(f"complete -c steadeq -n '__fish_seen_subcommand_from {name}' -a '{' '.join(found)}'")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"
