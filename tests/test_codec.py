"""Dataclasses as what JSON holds, and back."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from steadeq.codec import Reader, dump, to_plain


@dataclass(frozen=True, kw_only=True)
class Inner:
    n: int
    x: float | None = None


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    inners: tuple[Inner, ...] = ()
    path: Path = Path("a")
    names: Sequence[str] = ()
    by_name: Mapping[str, float] | None = None
    tol: float = math.inf


WHOLE = Outer(inner=Inner(n=1, x=0.5), inners=(Inner(n=2),), path=Path("b"), names=["c"], by_name={"d": 2.0})


def test_what_was_written_is_read():
    assert Reader().read(json.loads(json.dumps(to_plain(WHOLE))), Outer) == WHOLE


def test_json_has_no_number_that_is_not_finite():
    def refuse(constant):
        raise AssertionError(constant)

    values = {"a": math.nan, "b": [math.inf, 1.0]}
    assert json.loads(dump(values), parse_constant=refuse) == {"a": None, "b": [None, 1.0]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"inner": {"n": 1.5}}, r"inner\.n is 1\.5; it must be an integer\."),
        ({"inner": {"n": True}}, r"inner\.n is True; it must be an integer\."),
        ({"inner": {}}, r"inner\.n is missing\."),
        ({"inner": {"n": 1, "y": 2}}, r"there is no field 'inner\.y'\."),
        ({"inner": {"n": 1}, "inners": [{"n": "1"}]}, r"inners\.n is '1'; it must be an integer\."),
        ({"inner": {"n": 1}, "by_name": {"a": "b"}}, r"by_name\.a is 'b'; it must be a number\."),
        ({"inner": 3}, r"inner is 3; it must be an object\."),
    ],
)
def test_what_does_not_fit_is_named(content, message):
    with pytest.raises(ValueError, match=message):
        Reader().read(content, Outer)


def test_a_complete_file_has_fields_with_defaults_too():
    assert Reader().read({"n": 1}, Inner) == Inner(n=1)
    with pytest.raises(ValueError, match=r"^x is missing\.$"):
        Reader(is_complete=True).read({"n": 1}, Inner)


def test_a_lenient_reader_makes_the_best_of_what_is_there():
    lenient = Reader(is_lenient=True, keys={"x": "loss"})
    assert lenient.read({"n": 1, "loss": 1e300, "later": 3}, Inner) == Inner(n=1, x=1e300)
    assert lenient.read({"n": 1, "loss": "inf"}, Inner) == Inner(n=1)
    with pytest.raises(ValueError, match="n is '1'"):
        lenient.read({"n": "1"}, Inner)
