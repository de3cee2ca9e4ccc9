"""The bytes of each serializer, written down: a change here breaks readers of another version."""

import dataclasses
import struct

import pyarrow as pa
import pytest

from headgate.record.arrow import ArrowSerializer
from headgate.record.fixed import StructSerializer
from headgate.record.peer import AuthenticatedPeer
from headgate.record.pickled import PickleSerializer
from headgate.record.serializer import BytesSerializer, MsgpackSerializer, Serializer, StrSerializer

pytestmark = pytest.mark.spec("R3")


class Upper(Serializer[str]):
    def encode(self, value):
        return value.upper().encode()

    def decode(self, data):
        return str(data, "utf-8").lower()


@dataclasses.dataclass
class Point:
    x: int
    y: int


VECTORS = [
    (Upper(), ["a", "", "bcd"], "41", "0300000001000000000000000300000041424344"),
    (Upper(), [], None, "00000000"),
    (StrSerializer(), ["tö", ""], "74c3b6", "92a374c3b6a0"),
    (BytesSerializer(), [b"\x00\xff", b""], "00ff", "92c40200ffc400"),
    (
        MsgpackSerializer(),
        [{"a": [1, -1, None, True]}, 0.5],
        "81a1619401ffc0c3",
        "9281a1619401ffc0c3cb3fe0000000000000",
    ),
    (MsgpackSerializer(tuple[str, int]), [("to", 1), ("be", 300)], "92a2746f01", "9292a2746f0192a26265cd012c"),
    (MsgpackSerializer(Point), [Point(1, 2)], "82a17801a17902", "9182a17801a17902"),
    (StructSerializer("<hB"), [(1, 2), (-1, 255)], "010002", "010002ffffff"),
    (StructSerializer(">h"), [1, -1], "0001", "0001ffff"),
    (
        PickleSerializer(AuthenticatedPeer.this_process()),
        [1, "a"],
        "80054b012e",
        "8005950b000000000000005d94284b018c016194652e",
    ),
]


@pytest.mark.parametrize(
    ("serializer", "values", "first", "batch"), VECTORS, ids=lambda one: getattr(one, "name", None)
)
def test_golden_bytes(serializer, values, first, batch):
    assert b"".join(serializer.encode_batch(values)).hex() == batch
    assert serializer.decode_batch(memoryview(bytes.fromhex(batch))) == values
    if first is not None:
        assert serializer.encode(values[0]).hex() == first
        assert serializer.decode(memoryview(bytes.fromhex(first))) == values[0]


BATCH = pa.record_batch({"n": [1, 2, 3]})


def test_arrow_layout_of_one_batch():
    schema, message = BATCH.schema.serialize().to_pybytes(), BATCH.serialize().to_pybytes()
    written = struct.pack("<II", len(schema), 0) + schema
    assert ArrowSerializer().encode(BATCH) == written + bytes(-len(written) % 64) + message
    assert schema[:4] == message[:4] == b"\xff\xff\xff\xff"


def test_arrow_layout_with_dictionaries():
    batch = pa.record_batch({"d": pa.array(["x", "y"]).dictionary_encode()})
    data = ArrowSerializer().encode(batch)
    assert data[:64].hex() == "0000000001000000" + "00" * 56
    assert pa.ipc.open_stream(data[64:]).read_all().to_batches()[0].equals(batch)


def test_arrow_layout_of_several_batches():
    one = ArrowSerializer().encode(BATCH)
    data = b"".join(ArrowSerializer().encode_batch([BATCH, BATCH]))
    head = struct.pack("<III", 2, len(one), len(one))
    assert data == head + bytes(52) + one + bytes(-len(one) % 64) + one
    assert b"".join(ArrowSerializer().encode_batch([])).hex() == "00000000"
