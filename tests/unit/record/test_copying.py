"""What is copied and what is not: a copy never shares anything that can be changed."""

import collections
import dataclasses
import enum
import threading
import uuid
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.record.copying import copied, copied_batch

atoms = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5) | st.floats()
trees = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


class Pair(NamedTuple):
    x: object
    y: object


class Point(Pair):
    """Derived: it may have anything."""


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: object


@dataclasses.dataclass
class Open:
    a: object


class Loose(Frozen):
    """Derived without the decorator: it may have anything."""


class FrozenStruct(msgspec.Struct, frozen=True):
    a: object


class OpenStruct(msgspec.Struct):
    a: object


class Colour(enum.Enum):
    RED = 1


def mutable_parts(value):
    """The ids of all lists and dicts in a tree."""
    if isinstance(value, list | tuple):
        inner = set().union(*map(mutable_parts, value))
        return inner | {id(value)} if isinstance(value, list) else inner
    if isinstance(value, dict):
        return {id(value)}.union(*map(mutable_parts, value.values()))
    return set()


@given(trees)
def test_a_copy_is_like_the_value_and_shares_nothing_that_can_change(value):
    copy = copied(value)
    assert repr(copy) == repr(value)
    assert not mutable_parts(copy) & mutable_parts(value)


@given(st.lists(trees, max_size=5))
def test_a_batch_is_copied_like_its_values(values):
    copy = copied_batch(values)
    assert repr(copy) == repr(values)
    for a, b in zip(copy, values, strict=True):
        assert not mutable_parts(a) & mutable_parts(b)


@pytest.mark.parametrize(
    "value",
    [
        7, "word", b"bytes", None, True, 1.5, ("a", 1), frozenset({1, 2}), Pair(1, 2), Frozen(1), FrozenStruct("x"),
        Colour.RED, int, uuid.UUID(int=1), np.int64(3), pa.record_batch({"a": [1]}), pa.array([1]),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_an_immutable_value_is_not_copied(value):
    assert copied(value) is value
    assert copied_batch([value])[0] is value


@pytest.mark.parametrize(
    "value",
    [
        [1], {"a": 1}, {1, 2}, ("a", [1]), Pair(1, [2]), Frozen([1]), Open(1), Loose(1), FrozenStruct([1]),
        OpenStruct(1), np.array([1]), bytearray(b"x"), {"a": [1]}, [[1]], collections.deque([1]), Point(1, 2),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_mutable_value_is_copied(value):
    assert copied(value) is not value
    assert repr(copied(value)) == repr(value)


@pytest.mark.parametrize("values", [[1, "a", None], [("a", 1), ("b", 2)], []])
def test_a_batch_of_immutable_values_is_the_same_list(values):
    assert copied_batch(values) is values


def test_a_dict_whose_keys_are_not_atomic_is_copied_deeply():
    value = {("a", 1): 2}
    assert copied(value) == value
    assert copied(value) is not value


def test_the_error_of_a_value_that_cannot_be_copied_names_object_reuse():
    with pytest.raises(TypeError, match=r"lock cannot be copied .* execution\.object_reuse"):
        copied(threading.Lock())
