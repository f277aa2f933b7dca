"""Arguments of commands: the fields of dataclasses as options, with one sentence for what is wrong with them.

A field `max_evals` is the option `--max-evals`, one of a dataclass in a field is `--solver.max-evals`, and where a
field may hold objects of several classes, the option of the field itself chooses one: `--solver Broyden`.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import shutil
import textwrap
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, TypeVar

from ...checks import suggestion
from ...codec import init_fields, is_section, join
from ..errors import HelpShown, InputError
from ..serialization import (
    build,
    class_name,
    default_of,
    flag_of,
    from_words,
    inherited_values,
    negated_flag_of,
    subclasses,
)
from ..terminal import MANNERS

T = TypeVar("T")
C = TypeVar("C")


def positional(**options: Any) -> Any:
    """Return a dataclass field that is given by its place and not by an option."""
    return field(metadata={"positional": True}, **options)


def parse(kind: type[T], arguments: Sequence[str], *, command: str, summary: str) -> T:
    """Return the arguments of a command, whose names and types are the fields of a dataclass."""
    return _Parser([_Node(kind, {})], command, summary).parse(arguments)[0]


def parse_with_config(kind: type[T], arguments: Sequence[str], *, config: C, command: str, summary: str) -> tuple[T, C]:
    """Return the arguments of a command, and a config with what was overridden in it."""
    parsed, changed = _Parser([_Node(kind, {}), _wrap(config)], command, summary).parse(arguments)
    return parsed, changed


@dataclass(eq=False)
class _Node:
    """A dataclass that is about to be built; values that are dataclasses themselves are nodes."""

    kind: type
    values: dict[str, Any]
    """The values of its fields so far."""

    def build(self, where: str = "") -> Any:
        """Return the object."""
        values = {
            name: value.build(join(where, name)) if isinstance(value, _Node) else value
            for name, value in self.values.items()
        }
        return build(self.kind, values, where)

    def options(self, where: str = "") -> Iterator[_Option]:
        """Yield all that can be given, in order."""
        hints, docs = typing.get_type_hints(self.kind), field_docs(self.kind)
        for f in init_fields(self.kind):
            if f.name == "recipe" and not where and "model" in self.values:
                continue
            name = join(where, f.name)
            value = self.values[f.name] if f.name in self.values else _wrap(default_of(f))
            if isinstance(value, _Node):
                # What is changed in it must be found again when the object is built.
                self.values[f.name] = value
            yield _Option(
                name=name,
                hint=hints[f.name],
                value=value,
                doc=docs.get(f.name, ""),
                owner=self,
                is_positional="positional" in f.metadata,
            )
            if isinstance(value, _Node):
                yield from value.options(name)


def _wrap(value: Any) -> Any:
    """Return the node that builds an equal object, for a dataclass."""
    if not dataclasses.is_dataclass(value):
        return value
    return _Node(type(value), {f.name: _wrap(getattr(value, f.name)) for f in init_fields(value)})


@dataclass(frozen=True, kw_only=True)
class _Option:
    """A field of a node."""

    name: str
    hint: Any
    value: Any
    doc: str
    owner: _Node
    is_positional: bool

    @property
    def base(self) -> type | None:
        """The class of the objects that it holds, if it holds dataclasses."""
        return next((hint for hint in (self.hint, *typing.get_args(self.hint)) if is_section(hint)), None)

    @property
    def can_be_none(self) -> bool:
        """Whether None may be given."""
        return type(None) in typing.get_args(self.hint)

    @property
    def flag(self) -> str:
        """The option as it is written."""
        return flag_of(self.name)

    def set(self, value: Any) -> None:
        """Put another value into the field."""
        self.owner.values[self.name.rpartition(".")[2]] = value


@dataclass(frozen=True)
class _Parser:
    """Reads arguments into nodes."""

    nodes: list[_Node]
    command: str
    summary: str

    def parse(self, arguments: Sequence[str]) -> list[Any]:
        """Return the objects."""
        given, options = self._split(arguments)
        if {"-h", "--help"} & set(arguments):
            self._switch_classes(options)
            print(self._help())
            raise HelpShown
        for option in self._options():
            if option.is_positional and given:
                is_many = typing.get_origin(option.hint) is tuple
                words, given = (given, []) if is_many else (given[:1], given[1:])
                option.set(from_words(words, option.hint, option.name.upper()))
        if given:
            raise InputError(f"{given[0]!r} is not expected here; see `steadeq {self.command} --help`.")
        self._switch_classes(options)
        self._set_values(options)
        for option in self._options():
            if option.is_positional and option.value is dataclasses.MISSING:
                raise InputError(f"{option.name.upper()} is missing: {option.doc[:1].lower()}{option.doc[1:]}")
        return [self._build(node) for node in self.nodes]

    def _build(self, node: _Node) -> Any:
        try:
            return node.build()
        except InputError as error:
            # Checks begin with the name of a field; the user has to find what was typed.
            name, _, problem = str(error).partition(" ")
            flags = {option.name: option.flag for option in node.options() if not option.is_positional}
            raise InputError(f"{flags.get(name, name)} {problem}") from error

    def _options(self) -> list[_Option]:
        return [option for node in self.nodes for option in node.options()]

    def _split(self, arguments: Sequence[str]) -> tuple[list[str], list[tuple[str, list[str]]]]:
        """Return what is given by its place, and each option with its words."""
        options = {option.flag: option for option in self._options()}
        has_places = any(option.is_positional for option in options.values())
        places: list[str] = []
        given: list[tuple[str, list[str]]] = []
        for argument in arguments:
            if argument.startswith("--"):
                flag, equals, word = argument.partition("=")
                given.append((flag.replace("_", "-"), [word] if equals else []))
                continue
            option = options.get(given[-1][0]) if given else None
            # Without places, what an option has no use for is best told with the option.
            if given and (option is None or not has_places or _takes(option.hint, given[-1][1], argument)):
                given[-1][1].append(argument)
            else:
                places.append(argument)
        return places, given

    def _switch_classes(self, given: list[tuple[str, list[str]]]) -> None:
        """Put other objects where a class is named, from the outside to the inside."""
        options = self._options()
        for flag, words in sorted(given, key=lambda pair: pair[0].count(".")):
            option = next((o for o in options if o.flag == flag), None)
            if option is None or option.base is None:
                continue
            if words == ["None"] and option.can_be_none:
                option.set(None)
                continue
            known = {class_name(kind): kind for kind in subclasses(option.base)}
            by_case = {name.lower(): kind for name, kind in known.items()}
            word = " ".join(words)
            if word.lower() not in by_case:
                raise InputError(f"{flag} is {word!r}; it must be one of {', '.join(known)}.{suggestion(word, known)}")
            old = option.value.build(option.name) if isinstance(option.value, _Node) else option.value
            kind = by_case[word.lower()]
            option.set(_Node(kind, {name: _wrap(value) for name, value in inherited_values(old, kind).items()}))
            options = self._options()

    def _set_values(self, given: list[tuple[str, list[str]]]) -> None:
        options = {option.flag: option for option in self._options() if not option.is_positional}
        negations = {negated_flag_of(option.name): option for option in options.values() if option.hint is bool}
        for flag, words in given:
            if flag in options and options[flag].base is None:
                options[flag].set(from_words(words, options[flag].hint, flag))
            elif flag in negations and not words:
                negations[flag].set(False)
            elif flag not in options:
                raise InputError(f"There is no option {flag}.{suggestion(flag, [*options, '--help', *MANNERS])}")

    # Help

    def _help(self) -> str:
        width = min(shutil.get_terminal_size().columns, 110)
        places = [option for option in self._options() if option.is_positional]
        usage = " ".join([f"usage: steadeq {self.command}", *(_place(option) for option in places), "[options]"])
        lines = [usage, "", *textwrap.wrap(self.summary, width), ""]
        for option in places:
            lines += _entry(option.name.upper(), option.doc, width)
        section = ""
        for option in self._options():
            if option.is_positional:
                continue
            name = option.name.partition(".")[0] if "." in option.name or option.base is not None else ""
            if name != section:
                lines.append("")
                section = name
            if option.base is not None and len(subclasses(option.base)) + option.can_be_none < 2:
                # There is no other class, or None, to choose.
                lines += textwrap.wrap(f"{option.name}: {option.doc}", width)
            else:
                lines += _entry(f"{option.flag} {_metavar(option.hint)}".rstrip(), _describe(option), width)
        lines.append("")
        for flag, text in MANNERS.items():
            lines += _entry(flag, text, width)
        return "\n".join(lines)


def _takes(hint: Any, words: Sequence[str], word: str) -> bool:
    """Return whether an option of a type that was given some words takes another one."""
    if hint is bool:
        return not words and word.lower() in ("true", "false")
    if typing.get_origin(hint) is tuple:
        arguments = typing.get_args(hint)
        return arguments[-1] is Ellipsis or len(words) < len(arguments)
    return not words


@functools.cache
def field_docs(kind: type) -> dict[str, str]:
    """Return the strings below the fields of a dataclass, and of its bases, by the names of the fields."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue  # a class without source, as from a notebook
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for statement, after in pairwise(body):
            is_field = isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            if is_field and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                docs[statement.target.id] = " ".join(str(after.value.value).split())  # pyright: ignore
    return docs


def _place(option: _Option) -> str:
    name = option.name.upper()
    if typing.get_origin(option.hint) is tuple:
        return f"[{name} ...]" if option.value == () else f"{name} [{name} ...]"
    return name if option.value is dataclasses.MISSING else f"[{name}]"


def _metavar(hint: Any) -> str:
    """Return what stands for the words of an option in the help."""
    origin, arguments = typing.get_origin(hint), [a for a in typing.get_args(hint) if a is not type(None)]
    if origin is Literal:
        return "{" + ",".join(map(str, arguments)) + "}"
    if origin is tuple:
        return f"[{_metavar(arguments[0])} ...]" if arguments[-1] is Ellipsis else " ".join(map(_metavar, arguments))
    if arguments:
        return _metavar(arguments[0])
    if is_section(hint):
        return "CLASS"
    return "" if hint is bool else getattr(hint, "__name__", str(hint)).upper()


def _describe(option: _Option) -> str:
    value = option.value
    if value is dataclasses.MISSING:
        return f"{option.doc} (required)"
    if option.base is not None:
        current = "" if value is None else f"default: {class_name(value.kind)}; "
        return f"{option.doc} ({current}one of {', '.join(class_name(kind) for kind in subclasses(option.base))})"
    if option.hint is bool and value:
        return f"{option.doc} (default: yes; {negated_flag_of(option.name)} switches it off)"
    shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return option.doc if value is None or value is False or not shown else f"{option.doc} (default: {shown})"


def _entry(head: str, text: str, width: int) -> list[str]:
    indent = 30
    # Names of options stay whole.
    lines = textwrap.wrap(text, max(width - indent, 30), break_on_hyphens=False)
    if len(head) + 4 > indent or not lines:
        return [f"  {head}", *(" " * indent + line for line in lines)]
    return [f"  {head:{indent - 2}}{lines[0]}", *(" " * indent + line for line in lines[1:])]
