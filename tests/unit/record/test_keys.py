"""Stable hashes and key groups: what is a key, what is refused, and how evenly groups fill."""

import datetime as dt
import enum
import json
import os
import subprocess
import sys
import uuid
import zoneinfo
from collections import Counter, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from headgate.errors import ConfigError, UnstableKey
from headgate.record.key_columns import hash_array, hash_columns
from headgate.record.keys import (
    MAX_KEY_GROUPS,
    channel_of_group,
    group_channels,
    hasher_of,
    key_group,
    stable_hash,
)

pytestmark = pytest.mark.spec("W2")

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
Pair = namedtuple("Pair", "user day")  # noqa: PYI024 - the plain kind is what is tested


class Colour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


class Letter(enum.StrEnum):
    A = "a"


class Loose(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.lower() == other.lower()

    def __hash__(self) -> int:
        return hash(self.lower())


class Plain(float):
    __slots__ = ()


class Salted(int):
    __slots__ = ()

    def __hash__(self) -> int:
        return id(self)


class SaltedFloat(float):
    __slots__ = ()

    def __hash__(self) -> int:
        return id(self)


@dataclass(frozen=True)
class Point:
    x: int


EQUAL = [
    [1, 1.0, True, Decimal(1), Decimal("1.0"), Fraction(1), Number.ONE, Plain(1), Salted(1), SaltedFloat(1)],
    [1, np.int8(1), np.uint64(1), np.float16(1), np.float32(1), np.float64(1), np.bool_(True)],
    [0, 0.0, -0.0, False, Decimal("-0")],
    [0.5, Fraction(1, 2), Decimal("0.5"), np.float32(0.5)],
    [2**61, 2.0**61, Fraction(2**61)],
    [10**400, Decimal(10) ** 400],
    [float("inf"), Decimal("inf"), np.float32("inf")],
    ["a", Letter.A, np.str_("a")],
    [b"a", np.bytes_(b"a")],
    [("ann", 1), Pair("ann", 1), (Letter("a").replace("a", "ann"), True)],
    [
        dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC),
        dt.datetime(2024, 1, 1, 13, tzinfo=BERLIN),
        dt.datetime(2024, 1, 1, 7, tzinfo=dt.timezone(dt.timedelta(hours=-5))),
    ],
    # One zone, one clock time, before and after the clocks went back: equal in Python.
    [
        dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN),
        dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN),
    ],
    [dt.time(12, tzinfo=dt.UTC), dt.time(13, tzinfo=dt.timezone(dt.timedelta(hours=1)))],
]


@pytest.mark.parametrize("keys", EQUAL, ids=str)
def test_equal_keys_have_equal_hashes(keys: list[object]) -> None:
    assert all(key == keys[0] for key in keys), "the test compares equal keys"
    assert len({stable_hash(key) for key in keys}) == 1


NANS = [
    float("nan"), -float("nan"), Decimal("nan"), Decimal("snan"), np.float16("nan"), np.float32("nan"),
    np.float64("nan"), np.longdouble("nan"), Plain("nan"),
]  # fmt: skip


@pytest.mark.parametrize("nan", NANS, ids=lambda nan: type(nan).__name__)
def test_nan_is_refused_as_a_key(nan: object) -> None:
    with pytest.raises(UnstableKey, match=r"^NaN .*not equal to itself.* None"):
        stable_hash(nan)
    with pytest.raises(UnstableKey, match=r"^at position 1 of a tuple: at position 0 of a tuple: NaN"):
        stable_hash(("a", (nan,)))
    with pytest.raises(UnstableKey, match=r"^NaN"):
        hasher_of(type(nan))(nan)
    with pytest.raises(UnstableKey, match=r"^at position 0 of a tuple: NaN"):
        stable_hash(Pair(nan, 1))


def test_a_nan_of_a_column_goes_to_one_group_with_all_others() -> None:
    wide, narrow = (pa.array([float("nan"), None, -float("nan"), 0.1], kind) for kind in (pa.float64(), pa.float32()))
    hashes = [*hash_array(wide)[[0, 2]].tolist(), *hash_array(narrow)[[0, 2]].tolist()]
    assert len(set(hashes)) == 1
    assert hash_array(wide)[1] == stable_hash(None)


def test_the_order_and_nesting_of_a_tuple_count() -> None:
    keys = [(), (None,), (1, 2), (2, 1), ((1, 2),), ((1,), 2), (1, (2,)), (1, 2, 0), (0, 1, 2), (0,), (0, 0)]
    assert len({stable_hash(key) for key in keys}) == len(keys)


def test_small_numbers_have_hashes_of_their_own() -> None:
    hashes = {stable_hash(number) for number in range(-50_000, 50_000)}
    assert len(hashes) > 100_000 - 10  # hash(-1) == hash(-2), and by chance one pair or two


REFUSED = [
    ([1], "list .* use a tuple"),
    ({}, "dict .* use a tuple"),
    ({1}, "set .* use a sorted tuple"),
    (frozenset(), "frozenset .* use a sorted tuple"),
    (bytearray(b"a"), "bytearray .* use bytes"),
    (Colour.RED, r"test_keys\.Colour .* use its \.name or \.value"),
    (Point(1), r"test_keys\.Point .* use a tuple of its fields"),
    (Loose("a"), r"test_keys\.Loose compares by rules of its own.* use a plain str"),
    (object(), "object .* may depend on the process"),
    (1j, "complex .* real and imaginary"),
    (len, "builtin_function_or_method"),
    (np.datetime64("2024-01-01"), r"numpy\.datetime64"),
    (np.longdouble(1) / 3, r"numpy\.longdouble is wider than a float"),
]


@pytest.mark.parametrize(("key", "message"), REFUSED, ids=lambda value: repr(value).partition(" at 0x")[0][:40])
def test_a_key_without_a_stable_hash_is_refused(key: object, message: str) -> None:
    with pytest.raises(UnstableKey, match=message):
        stable_hash(key)
    with pytest.raises(UnstableKey, match=f"^at position 2 of a tuple: .*{message}"):
        stable_hash((1, "a", key))


def test_a_refusal_names_the_way_to_a_nested_part() -> None:
    with pytest.raises(UnstableKey, match=r"^at position 1 of a tuple: at position 0 of a tuple: list "):
        stable_hash(("a", ([],)))


def test_the_hasher_of_a_type_is_the_hash() -> None:
    for key in ["a", 1, 2.5, None, b"a", ("a", 1), Number.ONE, Pair(1, 2), np.int64(3), uuid.UUID(int=1)]:
        assert hasher_of(type(key))(key) == stable_hash(key)
    with pytest.raises(UnstableKey, match="list"):
        hasher_of(list)


def test_types_made_without_end_are_not_all_remembered() -> None:
    from headgate.record import keys  # noqa: PLC0415

    for _ in range(keys._HASHERS._MOST + 10):
        stable_hash(type("Text", (str,), {})("a"))
    assert len(keys._HASHERS) == keys._HASHERS._MOST
    assert stable_hash(type("Text", (str,), {})("a")) == stable_hash("a")
    for kind in [kind for kind in keys._HASHERS if kind.__name__ == "Text"]:
        del keys._HASHERS[kind]


IN_ANOTHER_PROCESS = """
import json, sys
from headgate.record.keys import stable_hash
hashes = [stable_hash(key) for key in eval(sys.argv[1])]
print(json.dumps([hashes, "numpy" in sys.modules or "pyarrow" in sys.modules]))
"""


@pytest.mark.parametrize("seed", ["0", "4711"])
def test_another_process_agrees_and_needs_no_numpy(seed: str) -> None:
    keys = ["user-1", b"x", 12, -3.5, None, True, ("a", (1, None)), float("1e99")]
    answer = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, repr(keys)],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(answer.stdout) == [[stable_hash(key) for key in keys], False]


# -- Groups and channels ---------------------------------------------------------------------------------


def test_channels_own_runs_of_groups_that_differ_by_one_at_most() -> None:
    for parallelism in (1, 2, 3, 7, 100, 127, 128):
        channels = group_channels(128, parallelism)
        assert channels == sorted(channels)
        sizes = Counter(channels)
        assert set(sizes) == set(range(parallelism))
        assert max(sizes.values()) - min(sizes.values()) <= 1
        assert channels == [channel_of_group(group, 128, parallelism) for group in range(128)]


@pytest.mark.parametrize(
    ("max_parallelism", "parallelism"), [(0, 1), (128, 0), (128, 129), (-1, -1), (MAX_KEY_GROUPS + 1, 1)]
)
def test_impossible_parallelisms_are_refused(max_parallelism: int, parallelism: int) -> None:
    with pytest.raises(ConfigError, match="must be between 1"):
        group_channels(max_parallelism, parallelism)


def test_the_largest_table() -> None:
    assert group_channels(MAX_KEY_GROUPS, MAX_KEY_GROUPS) == list(range(MAX_KEY_GROUPS))


COUNT = 20_000
IDS: dict[str, Callable[[int], object]] = {
    "user-%d": lambda i: f"user-{i}",
    "%06d": lambda i: f"{i:06}",
    "url": lambda i: f"https://example.org/items/{i}/view",
    "sequence": lambda i: i,
    "negative": lambda i: -i,
    "stride 1000": lambda i: 1000 * i,
    "milliseconds": lambda i: 1_700_000_000_000 + 1000 * i,
    "uuid": lambda i: uuid.UUID(bytes=np.random.default_rng(i).bytes(16), version=4),
    "n / 10": lambda i: i / 10,
    "n / 2": lambda i: i / 2,
    "n / 3": lambda i: i / 3,
    "day": lambda i: dt.date.fromordinal(700_000 + i),
    "hour": lambda i: dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=i),
    "(str, int)": lambda i: (f"user-{i // 24}", i % 24),
    "(int, int)": lambda i: (i // 128, i % 128),
    "(same, same)": lambda i: (i, i),
    "(x, (x,))": lambda i: (i, (i,)),
    "(str, str)": lambda i: (f"user-{i // 200}", f"item-{i % 200}"),
    "(str, same str)": lambda i: (f"user-{i}", f"user-{i}"),
    "(x, y, (x, y))": lambda i: (i // 99, i % 99, (i // 99, i % 99)),
    "(neighbours)": lambda i: (i, i + 1),
    "(float, str)": lambda i: (i / 100, f"s{i % 10}"),
    **{f"stride 2**{k}": lambda i, k=k: i << k for k in range(1, 57, 5)},
}


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("groups", [16, 100, 128])
def test_groups_fill_evenly(name: str, groups: int) -> None:
    """Chi-square over its degrees of freedom is about 1 for chance, and hundreds for a bad hash."""
    sizes = Counter(key_group(IDS[name](i), groups) for i in range(COUNT))
    expected = COUNT / groups
    chi_square = sum((sizes[group] - expected) ** 2 / expected for group in range(groups))
    assert chi_square / (groups - 1) < 5
    assert max(sizes.values()) < 1.5 * expected
    assert min(sizes[group] for group in range(groups)) > 0.5 * expected


# -- Columns: cases that a generator would rarely hit ------------------------------------------------------


def assert_same(array: pa.Array, values: list[object] | None = None) -> None:
    values = array.to_pylist() if values is None else values
    hashes = hash_array(array)
    assert hashes.dtype == np.uint32
    assert hashes.tolist() == [stable_hash(value) for value in values]


P = 2**61 - 1
COLUMNS = {
    "int64 around the modulus": pa.array([0, -1, -2, P, -P, P + 1, P - 1, -P - 1, 2**63 - 1, -(2**63), None, 3 * P]),
    "int64 up to the modulus": pa.array([P, 0]),
    "int64 down to the modulus": pa.array([-P, 0]),
    "uint64": pa.array([0, P, P - 1, 2 * P, 2**63, 2**64 - 1, None], pa.uint64()),
    "floats": pa.array([0.0, -0.0, -1.0, 5e-324, 1.7e308, 2.0**61, float("inf"), -float("inf"), None, 1 / 3]),
    "float32": pa.array([float("inf"), None, 0.1], pa.float32()),
    "float16": pa.array(np.array([0.1, -1.0, np.inf, 65504], np.float16)),
    "a long row among short ones": pa.array(["a", "", "x" * 500, None, "y" * 64, "z" * 65, *["b"] * 99]),
    "only empty rows": pa.array(["", "", None]),
    "only nulls": pa.array([None, None], pa.string()),
    "views": pa.array(["a", None, "b" * 30], pa.string_view()),
    "binary views": pa.array([b"a", None], pa.binary_view()),
    "fixed binary": pa.array([b"abcd", None, b"efgh"], pa.binary(4)),
    "fixed binary of nothing": pa.array([b"", None], pa.binary(0)),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([uuid.UUID(int=5).bytes, None], pa.binary(16))),
    "dictionary": pa.array(["a", "b", None, "a"]).dictionary_encode(),
    "dictionary of nulls": pa.array([None, None], pa.string()).dictionary_encode(),
    "dictionary with a null in it": pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), ["a", None]),
    "dictionary larger than the column": pa.array(["a", "b", "c"]).dictionary_encode()[2:],
    "dictionary of nothing": pa.array([], pa.dictionary(pa.int32(), pa.string())),
    "runs": pa.RunEndEncodedArray.from_arrays([2, 4], ["a", "b"]),
    "decimal": pa.array([Decimal("1.50"), None, Decimal("-3.00")]),
    "null": pa.nulls(3),
    "clocks go back": pa.array([1_729_980_000 + 900 * i for i in range(24)], pa.timestamp("s", "Europe/Berlin")),
    "fixed offset": pa.array([0, 1, None], pa.timestamp("ms", "+02:00")),
    "long durations": pa.array([10**13, -(10**13)], pa.duration("s")),
    "nothing": pa.array([], pa.int64()),
    "no text": pa.array([], pa.string()),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_hashes_like_its_values(name: str) -> None:
    array = COLUMNS[name]
    assert_same(array)
    assert_same(array[1:])
    assert_same(array[: len(array) // 2])
    assert_same(pa.chunked_array([array, array[1:]], array.type))


def test_chunks() -> None:
    assert_same(pa.chunked_array([], pa.string()))
    assert_same(pa.chunked_array([["a"]]))


def test_nanoseconds_are_cut_to_microseconds() -> None:
    before = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001
    assert_same(pa.array([1, 999, -1], pa.timestamp("ns")), [dt.datetime(1970, 1, 1)] * 2 + [before])  # noqa: DTZ001


def test_a_struct_is_a_tuple() -> None:
    structs = pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}])
    assert_same(structs, [(1, "x"), None, (None, "y")])
    assert_same(structs[1:], [None, (None, "y")])
    assert_same(pa.array([{"a": 1}]), [(1,)])
    assert_same(pa.array([{}, None], pa.struct([])), [(), None])
    assert_same(pa.array([{"a": {"b": 1}, "c": Decimal(2)}]), [((1,), Decimal(2))])


def test_one_column_is_the_value_and_several_are_the_tuple() -> None:
    users, days = pa.array(["ann", None, "bob"]), pa.chunked_array([[1.0], [2.0, None]])
    assert hash_columns([users]).tolist() == [stable_hash(user) for user in ("ann", None, "bob")]
    rows = [("ann", 1, "ann"), (None, 2, None), ("bob", None, "bob")]
    assert hash_columns([users, days, users]).tolist() == [stable_hash(row) for row in rows]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[1]]),
        pa.array([[1]], pa.large_list(pa.int8())),
        pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8())),
        pa.array([{"a": [1]}]),
    ],
    ids=lambda array: str(array.type),
)
def test_a_column_without_a_stable_hash_is_refused(array: pa.Array) -> None:
    with pytest.raises(UnstableKey, match=r"an Arrow column of type (list|large_list|map)<"):
        hash_array(array)


def test_the_array_is_not_changed() -> None:
    for array in (pa.array([1, -1, 2**62]), pa.array([-1.0, 2.0]), pa.array([1, -1], pa.timestamp("us"))):
        before = array.to_pylist()
        hash_array(array)
        assert array.to_pylist() == before
