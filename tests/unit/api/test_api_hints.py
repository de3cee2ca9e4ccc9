"""What type hints say about a stream."""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterable, Iterator  # noqa: TC003 - hints are looked up
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from headgate.api.user_functions import result_hint
from headgate.functions.basic import MapFunction, OutputTag
from headgate.functions.connected import CoMapFunction
from headgate.functions.process import ProcessFunction
from headgate.record.registry import is_record_batch

T = TypeVar("T")


def pair(word: str) -> tuple[str, int]: ...
def nothing(word: str) -> None: ...
def anything(word: str) -> Any: ...
def same(word: T) -> T: ...
def list_of_same(word: T) -> list[T]: ...
def unknown(word: str) -> Nonesuch: ...  # noqa: F821
def words(line: str) -> list[str]: ...
def more_words(line: str) -> Iterator[str] | None: ...
def generated(line: str) -> Generator[int, None, None]: ...
def some(line: str) -> tuple[int, ...]: ...
def two(line: str) -> tuple[int, int]: ...
def text(line: str) -> str: ...
async def looked_up(name: str) -> float: ...
def sided(value: int) -> Iterable[int | tuple[OutputTag, Any]]: ...
def sided_twice(value: int) -> Iterable[int | str | tuple[OutputTag[str], str]]: ...


class Length(MapFunction[str, int]):
    def map(self, value: str) -> int:
        return len(value)


class Counting:
    def __call__(self, value: str) -> int:
        return len(value)


class Split(ProcessFunction):
    def process_element(self, value: int, ctx) -> Iterable[int | tuple[OutputTag[str], str]]:
        yield value


class Same(CoMapFunction):
    def map1(self, value) -> str: ...
    def map2(self, value) -> str: ...


class Different(CoMapFunction):
    def map1(self, value) -> str: ...
    def map2(self, value) -> int: ...


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        (pair, tuple[str, int]),
        (nothing, None),
        (anything, None),
        (same, None),
        (list_of_same, None),
        (unknown, None),
        (looked_up, float),
        (functools.partial(pair, "to"), tuple[str, int]),
        (Length(), int),
        (Counting(), int),
        (str, str),
        (type, None),
        (len, None),
        (str.upper, None),
        (lambda word: word, None),
    ],
)
def test_of_one_record(function, hint):
    assert result_hint(function, "map") == hint


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        (words, str),
        (more_words, str),
        (generated, int),
        (some, int),
        (two, None),
        (text, None),
        (list, None),
        (str.split, None),
        (sided, int),
        (sided_twice, int | str),
        (list_of_same, None),
    ],
)
def test_of_the_elements(function, hint):
    assert result_hint(function, "flat_map", element=True) == hint


def test_side_outputs_do_not_count():
    assert result_hint(Split(), "process_element", element=True) is int


def test_two_methods_must_agree():
    assert result_hint(Same(), "map1", "map2") is str
    assert result_hint(Different(), "map1", "map2") is None


def test_an_explicit_type_takes_precedence_over_the_hint():
    assert result_hint(pair, "map", given="msgpack") == "msgpack"


def test_arrow_by_name_or_type():
    assert is_record_batch("arrow")
    assert is_record_batch(pa.RecordBatch)
    assert not is_record_batch(pa.Table)
    assert not is_record_batch(None)
