"""The serializers one by one: what they accept, what they refuse, and in which words."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import pickle
import struct
import subprocess
import sys
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
import pytest

from headgate.errors import ConfigError, SerializationError
from headgate.record.arrow import ArrowSerializer
from headgate.record.fixed import StructSerializer
from headgate.record.peer import AuthenticatedPeer
from headgate.record.pickled import PickleSerializer
from headgate.record.registry import SerializerRegistry
from headgate.record.serializer import BytesSerializer, MsgpackSerializer, Serializer, StrSerializer

pytestmark = pytest.mark.spec("R3")


class Word(msgspec.Struct):
    text: str
    count: int


class Loose(msgspec.Struct, eq=False):
    text: str


@dataclasses.dataclass
class Point:
    x: float
    y: float


@dataclasses.dataclass
class Point3(Point):
    z: float = 0.0


class Row(TypedDict):
    a: int


class Pair(NamedTuple):
    left: str
    right: int


class Colour(enum.IntEnum):
    RED = 1


class MyStr(str):
    __slots__ = ()


def there_and_back(serializer, values):
    data = b"".join(serializer.encode_batch(values))
    return serializer.decode_batch(memoryview(data))


# The default batch of a user's serializer


class Digits(Serializer[int]):
    def encode(self, value):
        return str(value).encode()

    def decode(self, data):
        return int(bytes(data))


@pytest.mark.parametrize("values", [[], [1], [0, 22, -333], list(range(1000))])
def test_two_methods_are_enough(values):
    assert there_and_back(Digits(), values) == values


def test_a_serializer_is_called_by_its_class_unless_it_has_a_name():
    class Named(Digits):
        name = "digits"

    assert (Digits().name, Named().name) == ("Digits", "digits")


def test_large_bodies_are_not_joined():
    class Blob(Serializer[bytes]):
        def encode(self, value):
            return value

        def decode(self, data):
            return bytes(data)

    values = [bytes(5000), bytes(6000)]
    _head, *bodies = Blob().encode_batch(values)
    assert all(one is other for one, other in zip(bodies, values, strict=True))
    assert there_and_back(Blob(), values) == values


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\0\0\0\0\0",
        struct.pack("<I", 1),
        struct.pack("<I", 0xFFFFFFFF),
        struct.pack("<II", 1, 0xFFFFFFFF) + b"7",
        struct.pack("<II", 1, 2) + b"7",
        struct.pack("<II", 1, 1) + b"77",
        struct.pack("<III", 2, 0xFFFFFFFF, 1) + b"7",
        struct.pack("<II", 1, 1) + b"x",  # well framed, but not a number
    ],
)
def test_every_count_and_length_is_checked(data):
    with pytest.raises(SerializationError, match="Digits"):
        Digits().decode_batch(memoryview(data))


def test_an_error_of_a_users_encode_names_serializer_and_type():
    class Broken(Digits):
        def encode(self, value):
            raise ZeroDivisionError("oops")

    with pytest.raises(SerializationError, match=r"Broken cannot write .* decimal.Decimal: ZeroDivisionError: oops"):
        Broken().encode_batch([decimal.Decimal(1)])


def test_encode_must_return_bytes():
    class Wrong(Digits):
        def encode(self, value):
            return "text"

    with pytest.raises(SerializationError, match="returned a str instead of bytes"):
        Wrong().encode_batch([1])


def test_a_decoder_that_keeps_its_data_cannot_read_it_later():
    kept = []

    class Keeper(Digits):
        def decode(self, data):
            kept.append(data)
            return 0

    there_and_back(Keeper(), [1, 2])
    with pytest.raises(ValueError, match="released"):
        bytes(kept[0])


def test_a_decoder_that_exports_its_data_is_an_error_that_names_lends():
    class Exporter(Digits):
        def decode(self, data):
            return pa.py_buffer(data)

    with pytest.raises(SerializationError, match="set `lends`"):
        there_and_back(Exporter(), [1])


def test_a_lending_decoder_may_keep_its_data():
    class Lender(Digits):
        lends = True

        def decode(self, data):
            return data

    assert [bytes(one) for one in there_and_back(Lender(), [1, 22])] == [b"1", b"22"]


# msgpack


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (tuple[str, int], ("a", 1)),
        (tuple[int, ...], (1, 2, 3)),
        (list[tuple[str, int]], [("a", 1)]),
        (Word, Word("a", 1)),
        (Loose, Loose("a")),
        (Point, Point(1.5, float("nan"))),
        (Row, {"a": 1}),
        (Pair, Pair("a", 1)),
        (Colour, Colour.RED),
        (uuid.UUID, uuid.UUID(int=7)),
        (decimal.Decimal, decimal.Decimal("1.10")),
        (dt.datetime, dt.datetime(2024, 2, 29, 12, 30, 0, 7)),  # noqa: DTZ001
        (dt.datetime, dt.datetime(2024, 2, 29, tzinfo=dt.UTC)),
        (dt.date, dt.date(2024, 2, 29)),
        (dt.timedelta, dt.timedelta(days=-3, microseconds=1)),
        (set[int], {1, 2}),
        (set[float], {float("nan")}),
        (frozenset[str], frozenset("a")),
        (int | None, None),
        (int | bytes | None, b"x"),
        (int | float, 1),
        (dict[int, list[str]], {1: ["a"]}),
        (bytearray, bytearray(b"x")),
    ],
)
def test_typed_values_come_back_as_they_were(hint, value):
    serializer = MsgpackSerializer(hint)
    for got in (serializer.decode(memoryview(serializer.encode(value))), *there_and_back(serializer, [value])):
        assert type(got) is type(value)
        assert repr(got) == repr(value) or isinstance(value, Loose)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ((1, 2), "tuple"),
        ({1}, "set"),
        (Word("a", 1), "test_serializer.Word"),
        (Point(1, 2), "test_serializer.Point"),
        (Colour.RED, "test_serializer.Colour"),
        (MyStr("a"), "test_serializer.MyStr"),
        (bytearray(b"x"), "bytearray"),
        (collections.OrderedDict(a=1), "collections.OrderedDict"),
        (uuid.UUID(int=7), "uuid.UUID"),
        (dt.datetime(2024, 2, 29), "datetime.datetime"),  # noqa: DTZ001
        (decimal.Decimal(1), "decimal.Decimal"),
        (2**64, "int"),
        (-(2**63) - 1, "int"),
        ("\ud800", "str"),
        (1j, "complex"),
        (msgspec.msgpack.Ext(5, b"x"), "msgspec.msgpack.Ext"),
        ([[["deep", (1,)]]], "list"),
        ({"a": {1}}, "dict"),
    ],
)
@pytest.mark.parametrize("batch", [False, True])
def test_untyped_msgpack_refuses_values_it_would_change(value, named, batch):
    serializer = MsgpackSerializer()
    with pytest.raises(SerializationError) as caught:
        serializer.encode_batch([1, value]) if batch else serializer.encode(value)
    assert f"msgpack cannot write a record of type {named}:" in str(caught.value)
    assert "declare the type" in str(caught.value)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (tuple[str, int], ["a", 1]),
        (tuple[str, int], ("a", 1, 2)),
        (tuple[str, int], ("a", "b")),
        (int, True),
        (str, Colour.RED),
        (str, uuid.UUID(int=7)),
        (float, 2**63 + 1),
        (Point, Point3(1.0, 2.0)),
        (Row, {"a": 1, "b": 2}),
        (bytes, bytearray(b"x")),
        (dt.datetime, dt.datetime(2024, 2, 29, tzinfo=dt.timezone(dt.timedelta(hours=2)))),
    ],
)
def test_typed_msgpack_refuses_other_types_when_encoding(hint, value):
    with pytest.raises(SerializationError, match="cannot write a record of type"):
        MsgpackSerializer(hint).encode_batch([value])
    with pytest.raises(SerializationError, match="cannot write a record of type"):
        MsgpackSerializer(hint).encode(value)


def test_an_int_may_stand_for_a_float():
    (got,) = there_and_back(MsgpackSerializer(float), [1])
    assert (type(got), got) == (float, 1.0)


def test_samples_are_the_powers_of_two():
    serializer = MsgpackSerializer()
    refused = []
    for call in range(1, 20):
        try:
            serializer.encode_batch([(1,)])
        except SerializationError:
            refused.append(call)
    assert refused == [1, 2, 4, 8, 16]


def test_a_value_that_contains_itself_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(SerializationError, match="msgpack cannot write"):
        MsgpackSerializer().encode(loop)


def test_a_batch_need_not_be_a_list():
    assert there_and_back(MsgpackSerializer(int), range(3)) == [0, 1, 2]
    assert there_and_back(StrSerializer(), collections.deque(["a"])) == ["a"]


@pytest.mark.parametrize(
    "hint", [complex, object, msgspec.Raw, memoryview, msgspec.msgpack.Ext, list[int] | tuple[int]]
)
def test_types_that_msgpack_cannot_carry_are_refused_at_once(hint):
    with pytest.raises(ConfigError, match="msgpack:"):
        MsgpackSerializer(hint)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x91", b"\x91" * 100_000, b"\xa1\xff", b"\x81\x80\x01", b"\xd6\x05abcd"],
)
@pytest.mark.parametrize("serializer", [MsgpackSerializer(), MsgpackSerializer(tuple[str, int]), StrSerializer()])
def test_bad_msgpack_is_one_kind_of_error(serializer, data):
    with pytest.raises(SerializationError, match=f"{serializer.name.partition('[')[0]}.* cannot read these bytes"):
        serializer.decode_batch(memoryview(data))


# str and bytes


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (StrSerializer(), b"x"),
        (StrSerializer(), MyStr("a")),
        (StrSerializer(), "\ud800"),
        (StrSerializer(), None),
        (BytesSerializer(), "x"),
        (BytesSerializer(), bytearray(b"x")),
        (BytesSerializer(), memoryview(b"x")),
    ],
)
def test_str_and_bytes_take_nothing_else(serializer, value):
    name = type(serializer)().name
    with pytest.raises(SerializationError, match=f"{name} cannot write a record of type"):
        type(serializer)().encode(value)
    with pytest.raises(SerializationError, match=f"{name} cannot write a record of type"):
        type(serializer)().encode_batch([value])


def test_a_decoded_value_does_not_change_with_its_buffer():
    for serializer, value in ((BytesSerializer(), b"abc"), (StrSerializer(), "abc"), (MsgpackSerializer(), [b"abc"])):
        buffer = bytearray(serializer.encode(value))
        got = serializer.decode(memoryview(buffer))
        buffer[:] = bytes(len(buffer))
        assert got == value


# struct


@pytest.mark.parametrize(
    ("format_", "values"),
    [
        ("<q", [1, -2]),
        ("<qd", [(1, 0.5), (2, -1.5)]),
        (">I?", [(7, True)]),
        ("!4s", [b"abcd"]),
        ("<2sxq3s", [(b"ab", 1, b"abc")]),
        ("<2H", [(1, 2)]),
        ("<c", [b"x", b"y"]),
        ("<s", [b"x", b"y"]),
        ("<d", [0.5] * 1000),
        ("<q", []),
        ("<qd", []),
    ],
)
def test_structs_come_back(format_, values):
    assert there_and_back(StructSerializer(format_), values) == values


def test_f_rounds_as_its_user_chose():
    (got,) = there_and_back(StructSerializer("<qf"), [(1, 0.1)])
    assert got == (1, struct.unpack("<f", struct.pack("<f", 0.1))[0])
    assert there_and_back(StructSerializer("<e"), [1]) == [1.0]


@pytest.mark.parametrize(
    ("format_", "value"),
    [
        ("<q", 2**63),
        ("<q", "1"),
        ("<q", True),
        ("<qd", (1,)),
        ("<qd", 1),
        ("<qd", [1, 0.5]),
        ("<qd", (True, 0.5)),
        ("<qf", (True, 0.5)),
        ("<d", 2**53 + 1),
        ("<?", 1),
        ("<4s", b"abc"),
        ("<4s", b"abcde"),
        ("<q4s", (1, b"abc")),
        ("<4s", bytearray(b"abcd")),
        ("<f", 1e300),
    ],
)
def test_a_struct_refuses_values_it_would_change(format_, value):
    with pytest.raises(SerializationError, match=f"struct:{format_[0]}.* cannot write a record of type"):
        StructSerializer(format_).encode_batch([value])


@pytest.mark.parametrize("format_", ["qd", "@q", "=q", "", "<", "<4x", "<z", "<3p", "<0q", "<P"])
def test_formats_that_mean_nothing_or_not_the_same_everywhere(format_):
    with pytest.raises(ConfigError, match="struct:"):
        StructSerializer(format_)


def test_a_struct_reads_whole_records_only():
    serializer = StructSerializer("<q")
    with pytest.raises(SerializationError, match="whole records"):
        serializer.decode_batch(memoryview(bytes(9)))
    with pytest.raises(SerializationError, match="not one record"):
        serializer.decode(memoryview(bytes(16)))


# Travelling inside a closure


@pytest.mark.parametrize(
    "serializer",
    [
        MsgpackSerializer(),
        MsgpackSerializer(tuple[str, int]),
        StrSerializer(),
        BytesSerializer(),
        StructSerializer("<qd"),
        ArrowSerializer(),
        ArrowSerializer(validate_fully=False),
        Digits(),
    ],
)
def test_serializers_can_be_sent_with_a_plan(serializer):
    copy = pickle.loads(pickle.dumps(serializer))
    assert type(copy) is type(serializer)
    assert copy.name == serializer.name
    assert getattr(copy, "_validate_fully", None) == getattr(serializer, "_validate_fully", None)


# The registry

ME = AuthenticatedPeer.this_process()


@pytest.mark.parametrize(
    ("hint", "kind", "name"),
    [
        (str, StrSerializer, "str"),
        ("str", StrSerializer, "str"),
        (bytes, BytesSerializer, "bytes"),
        ("bytes", BytesSerializer, "bytes"),
        (int, MsgpackSerializer, "msgpack:int"),
        (tuple[str, int], MsgpackSerializer, "msgpack:tuple[str, int]"),
        (int | None, MsgpackSerializer, "msgpack:int | None"),
        (Word, MsgpackSerializer, "msgpack:Word"),
        (Point, MsgpackSerializer, "msgpack:Point"),
        (Row, MsgpackSerializer, "msgpack:Row"),
        (Annotated[int, []], MsgpackSerializer, "msgpack:Annotated[int, []]"),
        ("msgpack", MsgpackSerializer, "msgpack"),
        (pa.RecordBatch, ArrowSerializer, "arrow"),
        ("arrow", ArrowSerializer, "arrow"),
        ("struct:<qd", StructSerializer, "struct:<qd"),
        ("pickle", PickleSerializer, "pickle"),
        (complex, PickleSerializer, "pickle"),
        (None, PickleSerializer, "pickle"),
        (object, PickleSerializer, "pickle"),
        (Any, PickleSerializer, "pickle"),
        (list, PickleSerializer, "pickle"),
        (tuple[Any, ...], PickleSerializer, "pickle"),
        (Sequence[int], PickleSerializer, "pickle"),
        (list[Sequence[int]], PickleSerializer, "pickle"),
    ],
)
def test_the_registry_chooses(hint, kind, name):
    found = SerializerRegistry().serializer_for(hint, peer=ME)
    assert (type(found), found.name) == (kind, name)


@pytest.mark.parametrize(
    "hint", ["pickle", complex, None, object, Any, list, Sequence[int], "nonsense", "struct:", "struct"]
)
def test_without_an_authenticated_peer_there_is_no_pickle(hint):
    with pytest.raises(ConfigError):
        SerializerRegistry().serializer_for(hint)


def test_an_unknown_name_lists_the_known_ones():
    registry = SerializerRegistry()
    registry.register("digits", Digits())
    with pytest.raises(ConfigError, match=r"no serializer is called 'json': there are arrow, bytes, digits, msgpack"):
        registry.serializer_for("json", peer=ME)


def test_a_serializer_is_its_own_answer():
    serializer = Digits()
    assert SerializerRegistry().serializer_for(serializer) is serializer


@pytest.mark.parametrize("key", [int, str, tuple[str, int], Word, "digits", pa.RecordBatch, "msgpack", "struct:<q"])
def test_users_register_types_and_names(key):
    registry, first, second = SerializerRegistry(), Digits(), Digits()
    registry.register(key, first, replace=True)
    assert registry.serializer_for(key) is first
    with pytest.raises(ConfigError, match="already"):
        registry.register(key, second)
    assert registry.serializer_for(key) is first
    registry.register(key, second, replace=True)
    assert registry.serializer_for(key) is second


@pytest.mark.parametrize("key", [str, bytes, pa.RecordBatch, "msgpack", "pickle", "struct:<q"])
def test_built_ins_are_not_replaced_by_accident(key):
    with pytest.raises(ConfigError, match="already"):
        SerializerRegistry().register(key, Digits())


def test_only_instances_are_registered():
    with pytest.raises(ConfigError, match="make an instance"):
        SerializerRegistry().register(int, Digits)


def test_unused_serializers_are_not_imported():
    code = """
import sys
import headgate.record.serializer, headgate.record.registry
registry = headgate.record.registry.SerializerRegistry()
registry.serializer_for(tuple[str, int])
print(sorted({'pyarrow', 'numpy', 'pickle'} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
