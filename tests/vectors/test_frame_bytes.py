"""The bytes of every frame, written down.

A change here breaks peers of another version: it needs a new type or a new protocol version, not a new meaning.
"""

import pytest
from msgspec.structs import replace
from tests.support.frames import assemble, feed, request

from headgate.wire import (
    CONNECTION,
    AddCredit,
    AnnounceBacklog,
    CancelRequest,
    Close,
    Data,
    Decoder,
    KeepAlive,
    ReportError,
    RequestPartition,
    SendTaskEvent,
    decode_frame,
    encode_frame,
)
from headgate.wire.codec import decode_data

CONTROL = [
    (
        request(0x01020304, "etl", 1, vertex=3, output=0, subtask=7, subpartition=2, credit=258),
        "22000000 10 00 04030201 01000000 03000000 00000000 07000000 02000000 02010000 03 65746c",
    ),
    (
        request(0, "", 0, vertex=0, output=0, subtask=0, subpartition=0, credit=0),
        "1f000000 10 00 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00",
    ),
    (
        request(1, "é", 2, vertex=3, output=4, subtask=5, subpartition=6, credit=1 << 17),
        "21000000 10 00 01000000 02000000 03000000 04000000 05000000 06000000 00000200 02 c3a9",
    ),
    (
        request(1, "etl", 2, vertex=3, output=4, subtask=5, subpartition=6, credit=None),
        "22000000 10 01 01000000 02000000 03000000 04000000 05000000 06000000 00000000 03 65746c",
    ),
    (
        replace(request(1, "etl", 2, vertex=3, output=4, subtask=5, subpartition=6, credit=7), compressed=True),
        "22000000 10 02 01000000 02000000 03000000 04000000 05000000 06000000 07000000 03 65746c",
    ),
    (
        replace(request(1, "etl", 2, vertex=3, output=4, subtask=5, subpartition=6, credit=None), compressed=True),
        "22000000 10 03 01000000 02000000 03000000 04000000 05000000 06000000 00000000 03 65746c",
    ),
    (AddCredit(receiver=5, attempt=1, credit=3), "0e000000 11 00 05000000 01000000 03000000"),
    (AddCredit(receiver=0xFFFFFFFE, attempt=258, credit=1 << 17), "0e000000 11 00 feffffff 02010000 00000200"),
    (CancelRequest(receiver=5, attempt=258), "0a000000 12 00 05000000 02010000"),
    (SendTaskEvent(receiver=5, attempt=1, event=b"\x00\xff"), "0c000000 13 00 05000000 01000000 00ff"),
    (SendTaskEvent(receiver=5, attempt=1, event=b""), "0a000000 13 00 05000000 01000000"),
    (AnnounceBacklog(receiver=5, backlog=258), "0a000000 21 00 05000000 02010000"),
    (AnnounceBacklog(receiver=5, backlog=1 << 20), "0a000000 21 00 05000000 00001000"),
    (ReportError(receiver=5, code=258, text="é!"), "0b000000 30 00 05000000 0201 c3a921"),
    (ReportError(receiver=CONNECTION, code=4, text=""), "08000000 30 00 ffffffff 0400"),
    (ReportError(receiver=5, code=23, text="no", ends=False), "0a000000 30 01 05000000 1700 6e6f"),
    (Close(), "02000000 31 00"),
    (KeepAlive(), "02000000 32 00"),
]


@pytest.mark.spec("N1")
@pytest.mark.parametrize(("frame", "written"), CONTROL, ids=lambda one: repr(one)[:40])
def test_control_frames(frame, written):
    wire = bytes.fromhex(written)
    assert encode_frame(frame).hex() == wire.hex()
    assert decode_frame(wire[4], wire[5], wire[6:]) == frame
    assert feed(Decoder(max_payload_bytes=32), wire) == [frame]


DATA = [
    (Data(receiver=5, sequence=258, backlog=3, size=2), "11000000 20 00 05000000 02010000 03000000 00", "6869"),
    (Data(receiver=5, sequence=0, backlog=0, size=0), "0f000000 20 00 05000000 00000000 00000000 00", ""),
    (
        Data(receiver=5, sequence=1, backlog=2, size=1, skew=16),
        "10000000 20 00 05000000 01000000 02000000 10",
        "28",
    ),
    (
        Data(receiver=5, sequence=1, backlog=2, size=1, event=True),
        "10000000 20 01 05000000 01000000 02000000 00",
        "80",
    ),
    (
        Data(receiver=5, sequence=1, backlog=2, size=1, compressed=1, unpacked=0x04030201),
        "15000000 20 02 05000000 01000000 02000000 00 01 01020304",
        "28",
    ),
    (
        Data(receiver=5, sequence=1, backlog=2, size=2, checksum=0x04030201),
        "15000000 20 04 05000000 01000000 02000000 00 01020304",
        "6869",
    ),
    (
        Data(receiver=5, sequence=1, backlog=2, size=0, checksum=0),
        "13000000 20 04 05000000 01000000 02000000 00 00000000",
        "",
    ),
    (
        Data(receiver=5, sequence=1, backlog=2, size=1, event=True, last=True),
        "10000000 20 09 05000000 01000000 02000000 00",
        "80",
    ),
    (
        Data(5, 1, 2, size=1, skew=63, event=True, compressed=2, last=True, checksum=0xFFFFFFFF, unpacked=9),
        "19000000 20 0f 05000000 01000000 02000000 3f ffffffff 02 09000000",
        "28",
    ),
    (
        Data(receiver=0xFFFFFFFE, sequence=0xFFFFFFFF, backlog=1 << 20, size=1),
        "10000000 20 00 feffffff ffffffff 00001000 00",
        "00",
    ),
]


@pytest.mark.spec("N1")
@pytest.mark.parametrize(("frame", "written", "payload"), DATA, ids=lambda one: repr(one)[:40])
def test_data(frame, written, payload):
    wire = bytes.fromhex(written)
    assert encode_frame(frame).hex() == wire.hex()
    assert decode_data(wire[5], wire[6:], int.from_bytes(wire[:4], "little")) == frame
    said = feed(Decoder(max_payload_bytes=32), wire + bytes.fromhex(payload))
    assert assemble(said) == [(frame, bytes.fromhex(payload))]


def test_no_kind_is_left_out():
    written = {type(frame) for frame, *_ in CONTROL + DATA}
    assert written == {
        RequestPartition,
        AddCredit,
        CancelRequest,
        SendTaskEvent,
        Data,
        AnnounceBacklog,
        ReportError,
        Close,
        KeepAlive,
    }
