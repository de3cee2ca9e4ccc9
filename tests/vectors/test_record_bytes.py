"""The bytes of elements, events and the length before each record, written down.

A change here breaks readers of another version: it needs a new tag, not a new meaning.
"""

import pytest

from headgate.buffer import Buffer
from headgate.record import (
    Batch,
    BytesSerializer,
    CheckpointBarrier,
    EndOfPartition,
    EndOfSuperstep,
    LatencyMarker,
    Record,
    RecordLimits,
    StreamStatus,
    StrSerializer,
    UserEvent,
    Watermark,
)
from headgate.record.element import decode_element, decode_event, encode_aligned, encode_element, encode_event
from headgate.record.spanning import LENGTH, Read, SpanningReader, SpanningWriter

ELEMENTS = [
    (Record("to"), "03000000 01 746f"),
    (Record(""), "01000000 01"),
    (Record("to", 1000), "0b000000 02 e803000000000000 746f"),
    (Record("to", -1), "0b000000 02 ffffffffffffffff 746f"),
    (Batch(["to", "be"]), "08000000 03 92a2746fa26265"),
    (Batch([]), "02000000 03 90"),
    (Batch(["to"], [258]), "11000000 04 01000000 0201000000000000 91a2746f"),
    (Batch(["a", "b"], [1, -2]), "1a000000 04 02000000 0100000000000000 feffffffffffffff 92a161a162"),
    (Watermark(1_700_000_000_000), "09000000 10 0068e5cf8b010000"),
    (StreamStatus(active=True), "02000000 11 01"),
    (StreamStatus(active=False), "02000000 11 00"),
    (LatencyMarker(5, 7, 3), "15000000 12 0500000000000000 0700000000000000 03000000"),
]


@pytest.mark.spec("R1", "R3")
@pytest.mark.parametrize(("element", "written"), ELEMENTS, ids=lambda one: repr(one)[:40])
def test_elements(element, written):
    assert b"".join(encode_element(element, StrSerializer(), RecordLimits())).hex() == written.replace(" ", "")
    assert decode_element(memoryview(bytes.fromhex(written))[4:], StrSerializer(), "channel 0") == element


ALIGNED = [
    (1, 0, "05000000 05 00 61726f"),
    (8, 0, "07000000 05 02 0000 61726f"),
    (8, 2, "05000000 05 00 61726f"),
    (8, 7, "08000000 05 03 000000 61726f"),
    (64, 58, "05000000 05 00 61726f"),
]


@pytest.mark.spec("R3")
@pytest.mark.parametrize(("alignment", "position", "written"), ALIGNED)
def test_aligned_values(alignment, position, written):
    pieces = encode_aligned((b"ar", b"o"), alignment, position, RecordLimits())
    assert b"".join(pieces).hex() == written.replace(" ", "")
    assert decode_element(memoryview(bytes.fromhex(written))[4:], BytesSerializer(), "channel 0") == Record(b"aro")


EVENTS = [
    (EndOfPartition(), "81 a5 6576656e74 b0 656e642d6f662d706172746974696f6e"),
    (EndOfSuperstep(), "81 a5 6576656e74 b0 656e642d6f662d737570657273746570"),
    (
        CheckpointBarrier(checkpoint=300, timestamp_ms=-1),
        (
            "83 a5 6576656e74 b2 636865636b706f696e742d62617272696572 "
            "aa 636865636b706f696e74 cd012c ac 74696d657374616d705f6d73 ff"
        ),
    ),
    (
        UserEvent("reload", b"\x00\xff"),
        "83 a5 6576656e74 a4 75736572 a4 6e616d65 a6 72656c6f6164 a7 7061796c6f6164 c402 00ff",
    ),
]


@pytest.mark.spec("R3", "W5")
@pytest.mark.parametrize(("event", "written"), EVENTS, ids=lambda one: repr(one)[:40])
def test_events(event, written):
    assert encode_event(event).hex() == written.replace(" ", "")
    assert decode_event(bytes.fromhex(written), "channel 0") == event


@pytest.mark.spec("R1", "R2")
def test_records_are_cut_wherever_a_buffer_ends():
    """Three records of 3, 0 and 5 bytes in buffers of 6: u32 length, little-endian, then the bytes."""
    buffers, writer = [Buffer(memoryview(bytearray(6)))], SpanningWriter()
    for record in (b"abc", b"", b"defgh"):
        writer.begin((LENGTH.pack(len(record)), record))
        while True:
            writer.copy_to(buffers[-1])
            if not writer.unfinished:
                break
            buffers.append(Buffer(memoryview(bytearray(6))))
    written = [bytes(one.memory[: one.position]).hex() for one in buffers]
    assert written == ["030000006162", "630000000005", "000000646566", "6768"]
    reader, records = SpanningReader(RecordLimits(), "channel 0"), []
    for one in written:
        reader.feed(memoryview(bytes.fromhex(one)))
        while True:
            said = reader.next()
            if said is not Read.INCOMPLETE:
                records.append(bytes(reader.record))
            if said is not Read.RECORD_MORE:
                break
    assert records == [b"abc", b"", b"defgh"]
