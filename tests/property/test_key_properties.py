"""Equal keys have equal hashes, and a column hashes like its values, whatever the values."""

import datetime as dt
import math
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.record.key_columns import hash_array, hash_columns
from headgate.record.keys import channel_of_group, group_channels, hasher_of, key_group, stable_hash

pytestmark = pytest.mark.spec("W2")

numbers = st.one_of(
    st.integers(),
    st.floats(allow_nan=False),
    st.booleans(),
    st.fractions(),
    st.decimals(allow_nan=False),
)
times = st.datetimes(timezones=st.none() | st.timezones())
scalars = st.one_of(
    st.none(), st.text(), st.binary(), numbers, times, st.dates(), st.times(), st.timedeltas(), st.uuids()
)
keys = st.recursive(scalars, lambda parts: st.lists(parts, max_size=4).map(tuple), max_leaves=8)


@given(keys)
def test_a_hash_is_32_bits_and_repeatable(key: object) -> None:
    hashed = stable_hash(key)
    assert 0 <= hashed < 2**32
    assert stable_hash(key) == hashed
    assert hasher_of(type(key))(key) == hashed


@given(st.integers(-(2**70), 2**70), st.integers(0, 60))
def test_a_number_hashes_alike_in_every_type(mantissa: int, halvings: int) -> None:
    exact = Fraction(mantissa, 2**halvings)
    alike: list[object] = [exact, Decimal(mantissa) / Decimal(2**halvings)]
    alike += [float(exact)]
    alike += [exact.numerator] if exact.denominator == 1 else []
    for other in alike:
        if other == exact:  # the float may be rounded
            assert stable_hash(other) == stable_hash(exact)


@given(numbers, numbers)
def test_equal_numbers_have_equal_hashes(left: object, right: object) -> None:
    if left == right:
        assert stable_hash(left) == stable_hash(right)


@given(st.datetimes(timezones=st.timezones(), allow_imaginary=False), st.timezones())
def test_equal_times_have_equal_hashes(time: dt.datetime, zone: dt.tzinfo) -> None:
    try:
        other = time.astimezone(zone)
    except OverflowError:
        return
    if time == other:
        assert stable_hash(time) == stable_hash(other)
    assert stable_hash(time) == stable_hash(time.replace(fold=1 - time.fold))  # equal, within one zone


@given(keys, st.integers(1, 32_768), st.data())
def test_a_key_has_one_group_and_one_channel(key: object, groups: int, data: st.DataObject) -> None:
    parallelism = data.draw(st.integers(1, groups))
    group = key_group(key, groups)
    assert 0 <= group < groups
    assert group_channels(groups, parallelism)[group] == channel_of_group(group, groups, parallelism)


# -- Columns ---------------------------------------------------------------------------------------------


def ints(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


def whole(unit: str, low: int = -(2**40), high: int = 2**40) -> st.SearchStrategy[dt.timedelta]:
    """Spans that fit the unit."""
    scale = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
    return st.integers(low, high).map(lambda n: dt.timedelta(microseconds=n * scale))


def moments(unit: str) -> st.SearchStrategy[dt.datetime]:
    scale = {"s": 1, "ms": 1_000, "us": 1_000_000}[unit]
    seconds = st.integers(-60_000_000_000 * scale, 250_000_000_000 * scale)
    microseconds = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return seconds.map(lambda n: epoch + dt.timedelta(microseconds=n * microseconds))


texts = st.text() | st.text(min_size=40, max_size=140)
clock_changes = st.integers(1_729_900_000, 1_730_100_000).map(lambda s: dt.datetime.fromtimestamp(s, dt.UTC))
TYPES: list[tuple[pa.DataType, st.SearchStrategy[object]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), ints(8)),
    (pa.int16(), ints(16)),
    (pa.int32(), ints(32)),
    (pa.int64(), ints(64) | st.integers(-300, 300)),
    (pa.uint8(), ints(8, signed=False)),
    (pa.uint16(), ints(16, signed=False)),
    (pa.uint32(), ints(32, signed=False)),
    (pa.uint64(), ints(64, signed=False)),
    (pa.float16(), st.floats(width=16, allow_nan=False)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False) | st.integers(-1000, 1000).map(float)),
    (pa.string(), texts),
    (pa.large_string(), texts),
    (pa.string_view(), texts),
    (pa.binary(), st.binary(max_size=90)),
    (pa.large_binary(), st.binary(max_size=90)),
    (pa.binary(5), st.binary(min_size=5, max_size=5)),
    (pa.binary(70), st.binary(min_size=70, max_size=70)),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "b", "c" * 100])),
    (pa.dictionary(pa.int32(), pa.float64()), st.floats(allow_nan=False)),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates()),
    (pa.timestamp("s"), moments("s")),
    (pa.timestamp("ms", "UTC"), moments("ms")),
    (pa.timestamp("us"), moments("us")),
    (pa.timestamp("us", "+05:30"), moments("us")),
    (pa.timestamp("us", "Europe/Berlin"), moments("us") | clock_changes),
    (pa.timestamp("s", "America/New_York"), moments("s")),
    (pa.timestamp("ms", "Australia/Lord_Howe"), moments("ms")),
    (pa.time32("s"), st.times().map(lambda t: t.replace(microsecond=0))),
    (pa.time32("ms"), st.times().map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000))),
    (pa.time64("us"), st.times()),
    (pa.time64("ns"), st.times()),
    (pa.duration("s"), whole("s")),
    (pa.duration("ms"), whole("ms")),
    (pa.duration("us"), whole("us", -(2**62), 2**62)),
    (pa.decimal128(20, 4), st.decimals(-(10**9), 10**9, places=4)),
    (pa.null(), st.none()),
]


def columns(kind: pa.DataType, values: st.SearchStrategy[object], **size: int) -> st.SearchStrategy[list[object]]:
    return st.lists(st.none() | values, **{"max_size": 30, **size})


def in_python(array: pa.Array) -> list[object]:
    return array.to_pylist()


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=lambda value: str(value)[:40])
def test_a_column_hashes_like_its_values(kind: pa.DataType, values: st.SearchStrategy[object]) -> None:
    @given(columns(kind, values), st.integers(0, 30), st.integers(0, 30))
    def check(drawn: list[object], start: int, length: int) -> None:
        array = pa.array(drawn, kind)
        for part in (array, array.slice(min(start, len(array)), length)):
            expected = [stable_hash(value) for value in in_python(part)]
            assert hash_array(part).tolist() == expected
            assert hash_array(pa.chunked_array([part, array], kind)).tolist()[: len(part)] == expected

    check()


@given(
    st.lists(st.tuples(st.none() | texts, st.none() | ints(64), st.none() | st.floats(allow_nan=False)), max_size=30)
)
def test_columns_hash_like_tuples(rows: list[tuple[str | None, int | None, float | None]]) -> None:
    arrays = [
        pa.array([row[0] for row in rows], pa.string()),
        pa.array([row[1] for row in rows], pa.int64()),
        pa.array([row[2] for row in rows], pa.float64()),
    ]
    for take in (slice(0, 3), slice(0, 2), slice(1, 3)):
        expected = [stable_hash(row[take]) for row in rows]
        assert hash_columns(arrays[take]).tolist() == expected
        structs = pa.StructArray.from_arrays(arrays[take], ["a", "b", "c"][take])
        assert hash_array(structs).tolist() == expected
        assert hash_array(structs[1:]).tolist() == expected[1:]


@given(st.lists(st.floats(allow_nan=False), max_size=50))
def test_floats_hash_like_the_whole_numbers_they_are(values: list[float]) -> None:
    whole_numbers = [int(value) for value in values if math.isfinite(value) and value.is_integer()]
    array = pa.array([float(number) for number in whole_numbers], pa.float64())
    assert hash_array(array).tolist() == [stable_hash(number) for number in whole_numbers]
