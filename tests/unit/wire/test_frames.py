"""Frames: what may be made, what may be read, and whose error it is otherwise."""

import struct
import typing
from operator import methodcaller

import pytest
from tests.support.frames import CONTROL_FRAMES, request

from headgate.errors import LocalProtocolError, RemoteProtocolError
from headgate.wire import (
    CONNECTION,
    AddCredit,
    AnnounceBacklog,
    CancelRequest,
    Close,
    Data,
    Frame,
    KeepAlive,
    ReportError,
    RequestPartition,
    SendTaskEvent,
    decode_frame,
    encode_frame,
)
from headgate.wire.codec import PREFIX, data_head_bytes, decode_data, encode_credit, encode_data_head
from headgate.wire.frames import (
    ALIGNMENT,
    MAX_BACKLOG,
    MAX_CREDIT,
    MAX_ERROR_TEXT_BYTES,
    MAX_TASK_EVENT_BYTES,
)

U32 = 2**32 - 1
KINDS = typing.get_args(Frame)


def by_type(one):
    return one.__name__ if isinstance(one, type) else type(one).__name__


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def read(wire: bytes) -> Frame:
    """A frame from all its bytes, the prefix checked on the way."""
    length, kind, flags = PREFIX.unpack_from(wire)
    assert length == len(wire) - 4
    return decode_frame(kind, flags, wire[PREFIX.size :])


# Round trips -----------------------------------------------------------------------------------------------


@pytest.mark.spec("N1")
@pytest.mark.parametrize("frame", CONTROL_FRAMES, ids=by_type)
def test_a_frame_comes_back_equal_and_of_its_type(frame):
    again = read(encode_frame(frame))
    assert again == frame
    assert type(again) is type(frame)


@pytest.mark.spec("N1")
@pytest.mark.parametrize("checksum", [None, 0, U32])
@pytest.mark.parametrize(("compressed", "unpacked"), [(0, 0), (1, 5), (255, U32)])
@pytest.mark.parametrize("event", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_data_comes_back_with_its_flags(last, event, compressed, unpacked, checksum):
    frame = Data(1, 2, 3, 4, 5, event=event, compressed=compressed, last=last, checksum=checksum, unpacked=unpacked)
    wire = encode_frame(frame)
    length, kind, flags = PREFIX.unpack_from(wire)
    assert kind == Data.TYPE
    assert len(wire) == PREFIX.size + data_head_bytes(flags)
    assert length == len(wire) - 4 + 4, "the length counts the payload that follows"
    assert decode_data(flags, wire[PREFIX.size :], length) == frame


def test_a_body_may_be_a_view():
    wire = encode_frame(request())
    assert decode_frame(RequestPartition.TYPE, 0, memoryview(wire)[PREFIX.size :]) == request()
    wire = encode_frame(Data(1, 2, 3, size=4, skew=6, checksum=5))
    assert decode_data(4, memoryview(wire)[PREFIX.size :], 2 + 17 + 4) == Data(1, 2, 3, size=4, skew=6, checksum=5)


def test_every_kind_has_a_type_of_its_own():
    assert {type(frame) for frame in CONTROL_FRAMES} | {Data} == set(KINDS)
    assert len({kind.TYPE for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("frame", [*CONTROL_FRAMES[:6], Data(1, 2, 3, size=4)], ids=by_type)
def test_a_frame_does_not_change(frame):
    with pytest.raises(AttributeError):
        frame.receiver = 2


# Limits ----------------------------------------------------------------------------------------------------

AT_THE_LIMIT = [
    request(credit=0),
    request(credit=MAX_CREDIT),
    request(credit=None),
    request(U32 - 1, "x" * 255, U32, U32, U32, U32, U32),
    request(job=""),
    request(job="é" * 127),
    AddCredit(0, 0, 1),
    AddCredit(U32, U32, MAX_CREDIT),
    CancelRequest(U32, U32),
    SendTaskEvent(U32, U32, bytes(MAX_TASK_EVENT_BYTES)),
    AnnounceBacklog(U32, MAX_BACKLOG),
    AnnounceBacklog(0, 0),
    ReportError(CONNECTION, 0xFFFF, "x" * MAX_ERROR_TEXT_BYTES),
    ReportError(0, 0, "é" * (MAX_ERROR_TEXT_BYTES // 2)),
]


@pytest.mark.spec("N1")
@pytest.mark.parametrize("frame", AT_THE_LIMIT, ids=lambda one: repr(one)[:60])
def test_at_its_limit_a_frame_is_sent(frame):
    assert read(encode_frame(frame)) == frame


PARTITION = numbers(1, 2, 3, 4, 5, 6)

OVER_THE_LIMIT = [
    ("no credit", lambda: encode_frame(AddCredit(1, 2, 0)), "a credit of 0", 0x11, numbers(1, 2, 0)),
    (
        "negative credit",
        lambda: encode_frame(AddCredit(1, 2, -1)),
        "a credit of -1",
        0x11,
        struct.pack("<IIi", 1, 2, -1),
    ),
    (
        "too much credit",
        lambda: encode_frame(AddCredit(1, 2, MAX_CREDIT + 1)),
        "a credit of 131073",
        0x11,
        numbers(1, 2, MAX_CREDIT + 1),
    ),
    ("all the credit", lambda: encode_frame(AddCredit(1, 2, U32)), "a credit of 4294967295", 0x11, numbers(1, 2, U32)),
    (
        "negative initial credit",
        lambda: request(credit=-1),
        "an initial credit of -1",
        0x10,
        PARTITION + struct.pack("<i", -1) + b"\x03etl",
    ),
    (
        "too much initial credit",
        lambda: request(credit=MAX_CREDIT + 1),
        "an initial credit of 131073",
        0x10,
        PARTITION + numbers(MAX_CREDIT + 1) + b"\x03etl",
    ),
    (
        "job name",  # its length byte cannot say 256
        lambda: request(job="x" * 256),
        "a job's name of 256 bytes",
        0x10,
        PARTITION + numbers(7) + b"\xff" + b"x" * 256,
    ),
    (
        "job name, counted in bytes",
        lambda: request(job="é" * 128),
        "a job's name of 256 bytes",
        0x10,
        PARTITION + numbers(7) + b"\x00" + "é".encode() * 128,
    ),
    (
        "error text",
        lambda: ReportError(1, 4, "x" * 1025),
        "an error text of 1025 bytes",
        0x30,
        numbers(1) + b"\x04\x00" + b"x" * 1025,
    ),
    (
        "error text, counted in bytes",
        lambda: ReportError(1, 4, "é" * 513),
        "an error text of 1026 bytes",
        0x30,
        numbers(1) + b"\x04\x00" + "é".encode() * 513,
    ),
    (
        "task event",
        lambda: SendTaskEvent(1, 2, bytes(4097)),
        "a task event of 4097 bytes",
        0x13,
        numbers(1, 2) + bytes(4097),
    ),
    (
        "backlog",
        lambda: AnnounceBacklog(1, MAX_BACKLOG + 1),
        "a backlog of 1048577",
        0x21,
        numbers(1, MAX_BACKLOG + 1),
    ),
]


@pytest.mark.spec("N1")
@pytest.mark.parametrize(("make", "text"), [one[1:3] for one in OVER_THE_LIMIT], ids=[one[0] for one in OVER_THE_LIMIT])
def test_over_its_limit_a_frame_cannot_be_made_or_not_written(make, text):
    with pytest.raises(LocalProtocolError, match=text):
        make()


@pytest.mark.spec("N8")
@pytest.mark.parametrize(("kind", "body"), [one[3:] for one in OVER_THE_LIMIT], ids=[one[0] for one in OVER_THE_LIMIT])
def test_over_its_limit_a_frame_of_a_peer_is_refused(kind, body):
    with pytest.raises(RemoteProtocolError):
        decode_frame(kind, 0, body)


U32_FIELDS = [
    *((request, field) for field in ("receiver", "attempt", "vertex", "output", "subtask", "subpartition")),
    *((lambda **one: CancelRequest(**{"receiver": 1, "attempt": 2} | one), f) for f in ("receiver", "attempt")),
    *(
        (lambda **one: SendTaskEvent(**{"receiver": 1, "attempt": 2, "event": b""} | one), f)
        for f in ("receiver", "attempt")
    ),
    (lambda **one: AnnounceBacklog(**{"receiver": 1, "backlog": 2} | one), "receiver"),
    (lambda **one: ReportError(**{"receiver": 1, "code": 4, "text": ""} | one), "receiver"),
]


@pytest.mark.spec("N1")
@pytest.mark.parametrize("number", [-1, U32 + 1, 2**64])
@pytest.mark.parametrize(("make", "field"), U32_FIELDS)
def test_a_number_that_is_not_a_u32_cannot_be_sent(make, field, number):
    make(**{field: 0})
    with pytest.raises(LocalProtocolError, match="not a u32"):
        make(**{field: number})


@pytest.mark.parametrize("code", [-1, 0x1_0000])
def test_an_error_code_that_is_not_a_u16_cannot_be_sent(code):
    with pytest.raises(LocalProtocolError, match=f"an error code of {code}"):
        ReportError(1, code, "")


@pytest.mark.parametrize("make", [lambda: ReportError(1, 4, "\udcff"), lambda: request(job="\udcff")])
def test_a_text_that_has_no_utf8_cannot_be_made(make):
    """Such as the name of a file, in the text of an OSError, that is not UTF-8."""
    with pytest.raises(LocalProtocolError):
        make()


@pytest.mark.spec("N1")
@pytest.mark.parametrize("number", [-1, U32 + 1, 2**64])
@pytest.mark.parametrize("field", ["receiver", "sequence", "backlog", "size", "skew", "checksum"])
def test_a_number_that_does_not_fit_its_field_of_data_cannot_be_written(field, number):
    """`Data` and `AddCredit` are checked when they are written: there is one for every buffer."""
    right = {"receiver": 1, "sequence": 2, "backlog": 3, "size": 4, "skew": 5}
    encode_frame(Data(**right | {field: 0}))
    with pytest.raises(LocalProtocolError):
        encode_frame(Data(**right | {field: number}))


@pytest.mark.spec("N1")
@pytest.mark.parametrize("number", [-1, U32 + 1, 2**64])
@pytest.mark.parametrize("field", ["receiver", "attempt", "credit"])
def test_a_number_that_does_not_fit_its_field_of_credit_cannot_be_written(field, number):
    right = {"receiver": 1, "attempt": 2, "credit": 3}
    with pytest.raises(LocalProtocolError):
        encode_frame(AddCredit(**right | {field: number}))
    with pytest.raises(LocalProtocolError):
        encode_credit(**right | {field: number})


@pytest.mark.spec("N1")
@pytest.mark.parametrize("skew", [ALIGNMENT, 255])
def test_a_place_that_is_none_modulo_the_alignment_cannot_be_written(skew):
    encode_frame(Data(1, 2, 3, size=4, skew=ALIGNMENT - 1))
    with pytest.raises(LocalProtocolError, match=f"a payload of 4 bytes at {skew}"):
        encode_frame(Data(1, 2, 3, size=4, skew=skew))


@pytest.mark.parametrize("checksum", [None, 7])
@pytest.mark.parametrize("size", [0xFFFF_FF01, U32])
def test_a_payload_whose_frame_would_have_no_length_cannot_be_written(size, checksum):
    wire = encode_frame(Data(1, 2, 3, size=0xFFFF_FF00, checksum=checksum))
    assert PREFIX.unpack_from(wire)[0] == len(wire) - 4 + 0xFFFF_FF00
    with pytest.raises(LocalProtocolError, match=f"a payload of {size} bytes"):
        encode_frame(Data(1, 2, 3, size=size, checksum=checksum))


def test_the_head_of_data_may_be_written_from_plain_numbers():
    for flags in (0, 1, 8, 9):
        for checksum in (None, 0, 7):
            for codec, unpacked in ((0, 0), (2, 9)):
                frame = Data(1, 2, 3, 4, 5, bool(flags & 1), codec, bool(flags & 8), checksum, unpacked)
                head = encode_data_head(1, 2, 3, 4, 5, flags, checksum, codec=codec, unpacked=unpacked)
                assert head == encode_frame(frame)


@pytest.mark.spec("N8")
def test_compressed_data_names_its_codec():
    wire = encode_frame(Data(1, 2, 3, size=4, compressed=1, unpacked=9))
    length, _, flags = PREFIX.unpack_from(wire)
    head = bytearray(wire[PREFIX.size :])
    head[13] = 0
    with pytest.raises(RemoteProtocolError, match="compressed data without a codec"):
        decode_data(flags, head, length)
    with pytest.raises(RemoteProtocolError, match="too short for its head"):
        decode_data(flags, head[:17], length)


# What a peer sends wrong -----------------------------------------------------------------------------------

UNKNOWN = sorted(set(range(256)) - {kind.TYPE for kind in KINDS})


@pytest.mark.spec("N8")
@pytest.mark.parametrize(("flags", "body"), [(0, b""), (0, numbers(1, 2)), (1, b"")])
def test_an_unknown_type_is_refused(flags, body):
    for kind in UNKNOWN:
        with pytest.raises(RemoteProtocolError, match=f"unknown frame type {kind:#04x}$"):
            decode_frame(kind, flags, body)


@pytest.mark.spec("N8")
@pytest.mark.parametrize("frame", CONTROL_FRAMES, ids=by_type)
def test_every_flag_is_reserved_but_those_of_data_two_of_requests_and_one_of_errors(frame):
    body = encode_frame(frame)[PREFIX.size :]
    used = {RequestPartition.TYPE: 2, ReportError.TYPE: 1}.get(frame.TYPE, 0)
    for flags in range(1 << used, 256):
        with pytest.raises(RemoteProtocolError) as caught:
            decode_frame(frame.TYPE, flags, body)
        assert str(caught.value) == f"frame type {frame.TYPE:#04x} with reserved flags {flags:#04x}"


@pytest.mark.spec("N8")
def test_a_request_without_credit_names_none():
    """The flag says that there is no credit; a number beside it would be a second way to say something else."""
    body = encode_frame(request(credit=None))[PREFIX.size :]
    assert body[24:28] == bytes(4)
    assert decode_frame(RequestPartition.TYPE, 1, body) == request(credit=None)
    assert decode_frame(RequestPartition.TYPE, 0, body) == request(credit=0)
    with pytest.raises(RemoteProtocolError, match="a credit of 7 where there should be none"):
        decode_frame(RequestPartition.TYPE, 1, encode_frame(request(credit=7))[PREFIX.size :])
    for wrong in (b"", body[:-1], body + b"x"):
        with pytest.raises(RemoteProtocolError, match="bad body of frame type 0x10"):
            decode_frame(RequestPartition.TYPE, 1, wrong)


@pytest.mark.spec("N8")
def test_data_has_four_flags():
    for flags in range(16, 256):
        with pytest.raises(RemoteProtocolError, match=f"data with reserved flags {flags:#04x}$"):
            decode_data(flags, bytes(17), 2 + 17)


@pytest.mark.spec("N8")
@pytest.mark.parametrize(
    ("skew", "backlog"), [(ALIGNMENT, 0), (255, 0), (0, MAX_BACKLOG + 1), (0, U32), (ALIGNMENT, U32)]
)
def test_data_with_an_absurd_place_or_backlog_is_refused(skew, backlog):
    head = struct.pack("<IIIB", 1, 2, backlog, skew)
    with pytest.raises(RemoteProtocolError, match=f"a skew of {skew} and a backlog of {backlog}"):
        decode_data(0, head, 2 + 13)
    at_the_limit = struct.pack("<IIIB", 1, 2, MAX_BACKLOG, ALIGNMENT - 1)
    assert decode_data(0, at_the_limit, 2 + 13) == Data(1, 2, MAX_BACKLOG, 0, ALIGNMENT - 1)


EXACT = [frame for frame in CONTROL_FRAMES if not isinstance(frame, SendTaskEvent | ReportError)]


@pytest.mark.spec("N8")
@pytest.mark.parametrize("frame", EXACT, ids=by_type)
def test_a_body_of_another_size_is_refused(frame):
    body = encode_frame(frame)[PREFIX.size :]
    for wrong in [*(body[:size] for size in range(len(body))), body + b"\x00", body + body, body + bytes(5000)]:
        if wrong != body:
            with pytest.raises(RemoteProtocolError):
                decode_frame(frame.TYPE, 0, wrong)


@pytest.mark.spec("N8")
@pytest.mark.parametrize(("kind", "smallest"), [(SendTaskEvent.TYPE, 8), (ReportError.TYPE, 6)])
def test_a_body_that_ends_before_its_variable_part_is_refused(kind, smallest):
    for size in range(smallest):
        with pytest.raises(RemoteProtocolError, match=f"bad body of frame type {kind:#04x}: "):
            decode_frame(kind, 0, bytes(size))
    decode_frame(kind, 0, bytes(smallest))


@pytest.mark.spec("N8")
@pytest.mark.parametrize("claimed", [0, 2, 4, 255])
def test_a_job_name_must_be_as_long_as_it_claims(claimed):
    body = PARTITION + numbers(7) + bytes([claimed]) + b"etl"
    with pytest.raises(RemoteProtocolError, match=f"a job's name of 3 bytes claims to have {claimed}$"):
        decode_frame(RequestPartition.TYPE, 0, body)


@pytest.mark.spec("N8")
@pytest.mark.parametrize("kind", [Close, KeepAlive])
def test_a_body_of_a_frame_without_fields_is_refused(kind):
    with pytest.raises(RemoteProtocolError, match="3 bytes where there should be none"):
        decode_frame(kind.TYPE, 0, b"abc")


INVALID_UTF8 = [b"\xff", b"\xc3", b"a\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"]


@pytest.mark.spec("N8")
@pytest.mark.parametrize("text", INVALID_UTF8, ids=methodcaller("hex"))
def test_invalid_utf8_is_refused(text):
    with pytest.raises(RemoteProtocolError, match="bad body of frame type 0x30: 'utf-8' codec"):
        decode_frame(ReportError.TYPE, 0, numbers(1) + b"\x04\x00" + text)
    with pytest.raises(RemoteProtocolError, match="bad body of frame type 0x10: 'utf-8' codec"):
        decode_frame(RequestPartition.TYPE, 0, PARTITION + numbers(7) + bytes([len(text)]) + text)


@pytest.mark.spec("N8")
def test_the_refusal_names_frame_type_and_value():
    with pytest.raises(RemoteProtocolError, match="bad body of frame type 0x11: a credit of 0"):
        decode_frame(AddCredit.TYPE, 0, numbers(1, 2, 0))
    with pytest.raises(RemoteProtocolError, match="bad body of frame type 0x21: a backlog of 4294967295") as caught:
        decode_frame(AnnounceBacklog.TYPE, 0, numbers(1, U32))
    assert isinstance(caught.value.__cause__, LocalProtocolError)


def test_data_is_not_read_without_its_length():
    with pytest.raises(RemoteProtocolError, match="unknown frame type 0x20"):
        decode_frame(Data.TYPE, 0, bytes(13))


@pytest.mark.spec("N8")
@pytest.mark.parametrize(("flags", "head", "length"), [(0, 12, 15), (4, 13, 19), (0, 13, 14), (4, 17, 18), (4, 16, 19)])
def test_a_head_of_data_that_is_too_short_is_refused(flags, head, length):
    with pytest.raises(RemoteProtocolError):
        decode_data(flags, bytes(head), length)


def test_a_request_cannot_come_from_the_receiver_that_means_the_connection():
    with pytest.raises(LocalProtocolError, match="means the connection"):
        request(CONNECTION)
