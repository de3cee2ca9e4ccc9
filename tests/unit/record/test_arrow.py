"""Arrow record batches: without a copy, slices, dictionaries, and everything that may be wrong with them."""

import struct

import numpy as np
import pyarrow as pa
import pytest

from headgate.errors import SerializationError
from headgate.record.arrow import ArrowSerializer

pytestmark = pytest.mark.spec("R3")

WORDS = pa.record_batch({"word": ["to", None, "größer"], "count": [1, 2, None], "share": [0.5, 1.5, float("inf")]})
COLOURS = pa.record_batch({"colour": pa.array(["red", "blue", "red"]).dictionary_encode(), "n": [1, 2, 3]})
NESTED = pa.record_batch({"l": [[{"a": 1}], [], None], "m": [{"x": b"1"}, None, {"x": b"2"}]})


def aligned(size):
    """A writable view of `size` bytes at an address divisible by 64."""
    space = bytearray(size + 64)
    start = -pa.py_buffer(space).address % 64
    return memoryview(space)[start : start + size]


def received(pieces):
    data = b"".join(pieces)
    view = aligned(len(data))
    view[:] = data
    return view


@pytest.mark.parametrize("batch", [WORDS, COLOURS, NESTED, WORDS.slice(0, 0), WORDS.slice(1, 1), COLOURS.slice(1)])
def test_batches_come_back(batch):
    arrow = ArrowSerializer()
    (got,) = arrow.decode_batch(received(arrow.encode_batch([batch])))
    assert got.equals(batch, check_metadata=True)
    assert arrow.decode(received([arrow.encode(batch)])).equals(batch, check_metadata=True)


def test_many_batches_of_several_schemas_come_back():
    arrow = ArrowSerializer()
    batches = [WORDS, COLOURS, NESTED, WORDS.slice(1), pa.record_batch({"n": pa.array([], pa.int8())})]
    got = arrow.decode_batch(received(arrow.encode_batch(batches)))
    assert all(one.equals(other) for one, other in zip(got, batches, strict=True))
    assert arrow.decode_batch(memoryview(b"".join(arrow.encode_batch([])))) == []


def test_metadata_is_not_mixed_up():
    arrow = ArrowSerializer()
    batches = [WORDS.replace_schema_metadata({"v": str(i)}) for i in (1, 2)]
    got = arrow.decode_batch(received(arrow.encode_batch(batches)))
    assert [one.schema.metadata for one in got] == [{b"v": b"1"}, {b"v": b"2"}]


def buffers(batch):
    return [one for column in batch.columns for one in column.buffers() if one is not None and one.size]


@pytest.mark.parametrize("batch", [WORDS, NESTED, COLOURS])
def test_columns_lie_in_the_received_buffer(batch):
    arrow = ArrowSerializer()
    data = received(arrow.encode_batch([batch, batch]))
    start = pa.py_buffer(data).address
    for got in arrow.decode_batch(data):
        assert buffers(got)
        for one in buffers(got):
            assert start <= one.address
            assert one.address + one.size <= start + len(data)
            assert one.address % 8 == 0


def test_the_buffer_lives_as_long_as_the_batch():
    arrow = ArrowSerializer()
    data = received([arrow.encode(WORDS)])
    got = arrow.decode(data)
    with pytest.raises(BufferError):
        data.release()
    del got
    data.release()


def test_a_buffer_that_is_not_aligned_is_copied():
    arrow = ArrowSerializer()
    data = arrow.encode(WORDS)
    view = aligned(len(data) + 1)[1:]
    view[:] = data
    got = arrow.decode(view)
    view[:] = bytes(len(view))
    assert got.equals(WORDS)
    assert all(one.address % 8 == 0 for one in buffers(got))


def test_a_slice_is_sent_as_a_slice():
    whole = pa.record_batch({"n": np.arange(100_000), "s": pa.array(["x" * 50] * 100_000)})
    arrow = ArrowSerializer()
    assert len(arrow.encode(whole.slice(50_000, 10))) < 2_000
    assert arrow.decode(memoryview(arrow.encode(whole.slice(50_001, 10)))).equals(whole.slice(50_001, 10))


def test_each_message_begins_at_a_multiple_of_64():
    arrow = ArrowSerializer()
    for batch in (WORDS, NESTED, COLOURS):
        head, message = arrow.pieces(batch)
        assert len(head) % 64 == 0
        assert bytes(message[:4]) == b"\xff\xff\xff\xff"
    pieces = arrow.encode_batch([WORDS, NESTED])
    starts = [sum(map(len, pieces[:i])) for i, one in enumerate(pieces) if bytes(one[:4]) == b"\xff\xff\xff\xff"]
    assert len(starts) == 2
    assert all(start % 64 == 0 for start in starts)


@pytest.mark.parametrize("value", [None, [1], pa.table({"n": [1]}), {"n": [1]}])
def test_it_carries_record_batches_only(value):
    with pytest.raises(
        SerializationError, match=r"arrow cannot write a record of type .*: it carries pyarrow.RecordBatch"
    ):
        ArrowSerializer().encode_batch([value])


def good():
    return bytearray(ArrowSerializer().encode(WORDS))


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, 0xFFFFFFFF), (0, 0), (0, 7), (4, 2), (4, 0xFFFFFFFF), (4, 1)],
)
def test_a_bad_header_is_refused(at, value):
    data = good()
    struct.pack_into("<I", data, at, value)
    with pytest.raises(SerializationError, match="arrow"):
        ArrowSerializer().decode(memoryview(data))


@pytest.mark.parametrize("name", [b"outer", b"inner"])
def test_names_that_are_not_text_are_refused(name):
    batch = pa.record_batch({"outer": [{"inner": 1}]})
    data = ArrowSerializer().encode(batch)
    assert name in data
    with pytest.raises(SerializationError, match="utf-8"):
        ArrowSerializer().decode(memoryview(data.replace(name, b"\xff" * 5)))


def test_a_wild_offset_is_refused():
    batch = pa.record_batch({"s": ["aaaa", "bbbb", "cccc"]})
    data = ArrowSerializer().encode(batch)
    offsets = struct.pack("<4i", 0, 4, 8, 12)
    assert data.count(offsets) == 1
    wild = data.replace(offsets, struct.pack("<4i", 0, 4, 0x7FFFFFF0, 12))
    with pytest.raises(SerializationError, match="arrow"):
        ArrowSerializer().decode(memoryview(wild))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("batch", [pa.record_batch({"n": [7] * 1000}), COLOURS])
def test_compressed_batches_are_refused_before_memory_is_taken(codec, batch):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    as_stream = struct.pack("<II", 0, 1) + bytes(56) + stream.to_pybytes()
    with pytest.raises(SerializationError, match="compressed"):
        ArrowSerializer().decode(memoryview(as_stream))
    if batch is not COLOURS:
        message = list(pa.MessageReader.open_stream(stream))[1].serialize().to_pybytes()
        schema = batch.schema.serialize().to_pybytes()
        head = struct.pack("<II", len(schema), 0) + schema
        with pytest.raises(SerializationError, match="compressed"):
            ArrowSerializer().decode(memoryview(head + bytes(-len(head) % 64) + message))


@pytest.mark.parametrize("count", [0, 2])
def test_a_stream_holds_one_batch(count):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, COLOURS.schema) as writer:
        for _ in range(count):
            writer.write_batch(COLOURS)
    data = struct.pack("<II", 0, 1) + bytes(56) + sink.getvalue().to_pybytes()
    with pytest.raises(SerializationError, match=f"{count} batches"):
        ArrowSerializer().decode(memoryview(data))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: struct.pack("<I", 2) + data[4:],
        lambda data: struct.pack("<I", 0xFFFFFFFF) + data[4:],
        lambda data: data[:4] + struct.pack("<I", 0xFFFFFFFF) + data[8:],
        lambda data: data[:3],
        lambda data: b"",
    ],
)
def test_bad_lists_of_batches_are_refused(change):
    data = b"".join(ArrowSerializer().encode_batch([WORDS]))
    with pytest.raises(SerializationError, match="arrow"):
        ArrowSerializer().decode_batch(memoryview(change(data)))


def test_the_cache_of_schemas_is_bounded():
    arrow = ArrowSerializer()
    for i in range(200):
        batch = pa.record_batch({f"c{i}": [i]})
        assert arrow.decode(memoryview(arrow.encode(batch))).equals(batch)
    assert len(arrow._read) <= 64
