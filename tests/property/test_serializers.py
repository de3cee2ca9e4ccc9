"""For every serializer: what it accepts comes back the same, and any bytes are values or SerializationError."""

import contextlib
import dataclasses
import datetime as dt
import decimal
import math
import struct
import uuid

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import SerializationError
from headgate.record.arrow import ArrowSerializer
from headgate.record.fixed import StructSerializer
from headgate.record.peer import AuthenticatedPeer
from headgate.record.pickled import PickleSerializer
from headgate.record.serializer import BytesSerializer, MsgpackSerializer, Serializer, StrSerializer

pytestmark = pytest.mark.spec("R3")


class Word(msgspec.Struct):
    text: str
    count: int


@dataclasses.dataclass
class Point:
    x: float
    tags: list[str]


class Reversed(Serializer[bytes]):
    def encode(self, value):
        return value[::-1]

    def decode(self, data):
        return bytes(data)[::-1]


def strictly(value):
    """A value as something that is equal only to the same values of the same types."""
    if isinstance(value, list | tuple):
        return type(value), [strictly(one) for one in value]
    if isinstance(value, dict):
        return type(value), [(strictly(key), strictly(one)) for key, one in value.items()]
    if isinstance(value, set | frozenset):
        return type(value), sorted(map(repr, value))
    if isinstance(value, Word):
        return Word, strictly((value.text, value.count))
    if isinstance(value, Point):
        return Point, strictly((value.x, value.tags))
    if isinstance(value, float):
        return type(value), math.isnan(value) or struct.pack("<d", value)
    return type(value), repr(value)


ints = st.integers(-(2**63), 2**64 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]))
plain = st.recursive(
    st.none() | st.booleans() | ints | st.floats() | text | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(text | ints | st.booleans(), inner),
    max_leaves=20,
)
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.binary().map(bytearray)
    | st.uuids()
    | st.datetimes(timezones=st.none() | st.timezones())
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals()
    | st.complex_numbers()
    | st.builds(Word, text, ints),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(text | ints | st.tuples(ints), inner)
        | st.frozensets(st.integers() | st.text())
    ),
    max_leaves=10,
)
TYPED = {
    tuple[str, int]: st.tuples(text, ints),
    tuple[int, float, str, bool]: st.tuples(ints, st.floats(), text, st.booleans()),
    list[bytes]: st.lists(st.binary()),
    dict[str, list[int]]: st.dictionaries(text, st.lists(ints)),
    set[int]: st.sets(ints),
    Word: st.builds(Word, text, ints),
    Point: st.builds(Point, st.floats(), st.lists(text)),
    uuid.UUID: st.uuids(),
    dt.datetime: st.datetimes(timezones=st.just(dt.UTC) | st.none(), allow_imaginary=False).map(
        lambda one: one.replace(fold=0)
    ),
    decimal.Decimal: st.decimals(allow_nan=False),
    int | float | bytes | None: ints | st.floats() | st.binary() | st.none(),
}


def assert_same(serializer, values):
    data = b"".join(serializer.encode_batch(values))
    assert strictly(serializer.decode_batch(memoryview(data))) == strictly(values)
    for value in values[:3]:
        assert strictly(serializer.decode(memoryview(serializer.encode(value)))) == strictly(value)


@given(st.lists(plain))
def test_untyped_msgpack(values):
    assert_same(MsgpackSerializer(), values)


@given(st.lists(anything, max_size=3))
def test_untyped_msgpack_refuses_or_brings_back(values):
    serializer = MsgpackSerializer()
    try:
        data = serializer.encode_batch(values)
    except SerializationError:
        return
    assert strictly(serializer.decode_batch(memoryview(b"".join(data)))) == strictly(values)


@pytest.mark.parametrize("hint", TYPED, ids=str)
@settings(max_examples=40)
@given(data=st.data())
def test_typed_msgpack(hint, data):
    assert_same(MsgpackSerializer(hint), data.draw(st.lists(TYPED[hint])))


@pytest.mark.parametrize("hint", TYPED, ids=str)
@settings(max_examples=40)
@given(data=st.data())
def test_typed_msgpack_refuses_other_values(hint, data):
    values = data.draw(st.lists(anything, min_size=1, max_size=3))
    serializer = MsgpackSerializer(hint)
    try:
        encoded = serializer.encode_batch(values)
    except SerializationError:
        return
    got = serializer.decode_batch(memoryview(b"".join(encoded)))
    assert strictly(got) == strictly(values)


@given(st.lists(text))
def test_str(values):
    assert_same(StrSerializer(), values)


@given(st.lists(st.binary()))
def test_bytes_and_the_default_batch(values):
    assert_same(BytesSerializer(), values)
    assert_same(Reversed(), values)


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats(), st.binary(min_size=3, max_size=3))))
def test_struct(values):
    assert_same(StructSerializer("<qd3s"), values)


@given(st.lists(anything))
def test_pickle(values):
    assert_same(PickleSerializer(AuthenticatedPeer.this_process()), values)


columns = st.fixed_dictionaries(
    {},
    optional={
        "i": st.just((pa.int64(), st.none() | st.integers(-(2**63), 2**63 - 1))),
        "f": st.just((pa.float64(), st.none() | st.floats(allow_nan=False))),
        "s": st.just((pa.string(), st.none() | text)),
        "l": st.just((pa.list_(pa.int8()), st.none() | st.lists(st.integers(-128, 127)))),
        "d": st.just((pa.dictionary(pa.int8(), pa.string()), st.none() | st.sampled_from(["x", "y"]))),
        "v": st.just((pa.string_view(), st.none() | text)),
        "n": st.just((pa.null(), st.none())),
    },
)


@st.composite
def record_batches(draw):
    rows = draw(st.integers(0, 20))
    chosen = draw(columns)
    made = {
        name: pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind)
        for name, (kind, values) in chosen.items()
    }
    batch = pa.record_batch(list(made.values()), names=list(made))
    start = draw(st.integers(0, rows))
    return batch.slice(start, draw(st.integers(0, rows - start)))


@given(st.lists(record_batches(), max_size=4))
def test_arrow(batches):
    arrow = ArrowSerializer()
    got = arrow.decode_batch(memoryview(b"".join(arrow.encode_batch(batches))))
    assert all(one.equals(other, check_metadata=True) for one, other in zip(got, batches, strict=True))


# Any bytes

ALL = [
    Reversed(),
    MsgpackSerializer(),
    MsgpackSerializer(tuple[str, int]),
    MsgpackSerializer(list[Word | None]),
    MsgpackSerializer(dt.datetime),
    StrSerializer(),
    BytesSerializer(),
    StructSerializer("<qd3s"),
    ArrowSerializer(),
]
SAMPLES = {
    "Reversed": [b"abc", b""],
    "msgpack": [{"a": [1, 2.5, None, b"x"]}, "text"],
    "msgpack:tuple[str, int]": [("a", 1), ("b", 2**40)],
    "str": ["größer", ""],
    "bytes": [b"abc", b""],
    "struct:<qd3s": [(1, 0.5, b"abc")],
    "arrow": [
        pa.record_batch({"s": ["to", None, "be"], "n": [1, 2, 3], "l": [[1], [], None]}),
        pa.record_batch({"d": pa.array(["x", "y", "x"]).dictionary_encode()}),
        pa.record_batch({"v": pa.array(["short", "x" * 40, None], pa.string_view())}),
    ],
}


def decode_all(serializer, data):
    for act in (serializer.decode, serializer.decode_batch):
        try:
            got = act(memoryview(data))
        except SerializationError:
            continue
        if serializer.name == "arrow":  # touch everything: a wrong offset would crash here
            for batch in got if isinstance(got, list) else [got]:
                if batch.num_rows < 10_000:
                    # Arrow knows types that Python does not: a decimal of 99 digits, two columns of one name.
                    with contextlib.suppress(ValueError, ArithmeticError):
                        batch.to_pylist()


@pytest.mark.parametrize("serializer", ALL, ids=lambda one: one.name)
@given(data=st.binary(max_size=300))
def test_random_bytes(serializer, data):
    decode_all(serializer, data)


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=300)
@given(data=st.data())
def test_damaged_bytes(name, data):
    serializer = next(one for one in ALL if one.name == name)
    sample = data.draw(st.sampled_from([[one] for one in SAMPLES[name]] + [SAMPLES[name]]))
    encoded = bytearray(b"".join(type(serializer).encode_batch(serializer, sample)))
    if len(sample) == 1 and data.draw(st.booleans()):
        encoded = bytearray(serializer.encode(sample[0]))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, max(0, len(encoded) - 1)))
        if encoded:
            encoded[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    decode_all(serializer, bytes(encoded[:cut] if data.draw(st.booleans()) else encoded))
