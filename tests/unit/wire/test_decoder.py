"""The decoder: frames out of bytes, however they were cut, and no byte kept for a frame that is refused."""

import struct

import pytest
from tests.support.frames import CONTROL_FRAMES, Message, Said, assemble, feed, request, whole_decoder, write

from headgate.errors import RemoteProtocolError
from headgate.wire import (
    AddCredit,
    AnnounceBacklog,
    Close,
    Data,
    Decoder,
    KeepAlive,
    Payload,
    ReportError,
    encode_frame,
)
from headgate.wire.codec import PREFIX
from headgate.wire.decoder import MAX_CONTROL_BYTES
from headgate.wire.frames import SendTaskEvent

MAX_PAYLOAD = 32_768
PAYLOAD = bytes(range(40))

MESSAGES = [
    *((frame, b"") for frame in CONTROL_FRAMES),
    (Data(1, 0, 5, size=len(PAYLOAD)), PAYLOAD),
    (Data(1, 1, 4, size=len(PAYLOAD), compressed=True, checksum=7), PAYLOAD),
    (Data(1, 2, 3, size=0, event=True), b""),
    (Data(1, 4, 3, size=2, skew=63, event=True, last=True, checksum=9), b"xy"),
    (Data(1, 3, 3, size=1, checksum=7), b"x"),
]


def decoder(max_payload_bytes: int = MAX_PAYLOAD) -> Decoder:
    return Decoder(max_payload_bytes)


def refuse(one: Decoder, data: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        feed(one, data)
    return str(caught.value)


# Cuts ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("N1")
@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: repr(one[0])[:60])
def test_a_frame_cut_in_two_anywhere(message):
    wire = write(message)
    for cut in range(len(wire) + 1):
        one = decoder()
        first, second = feed(one, wire[:cut]), feed(one, wire[cut:])
        assert assemble(first + second) == [message], f"cut after {cut} bytes"
        assert one.idle


@pytest.mark.spec("N1")
@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: repr(one[0])[:60])
def test_a_frame_byte_by_byte(message):
    one, wire = decoder(), write(message)
    said = feed(one, *(wire[at : at + 1] for at in range(len(wire))))
    assert assemble(said) == [message]
    assert sum(isinstance(part, Payload) for part in said) == (
        max(1, len(message[1])) if isinstance(message[0], Data) else 0
    )


@pytest.mark.spec("N1")
def test_frames_in_one_piece():
    assert assemble(feed(decoder(), write(*MESSAGES))) == MESSAGES


@pytest.mark.spec("N1")
@pytest.mark.parametrize("step", [2, 3, 5, 7, 17, 64])
def test_frames_in_pieces_of_one_size(step):
    wire = write(*MESSAGES)
    said = feed(decoder(), *(wire[at : at + step] for at in range(0, len(wire), step)))
    assert assemble(said) == MESSAGES


def test_no_bytes_give_no_frame():
    one = decoder()
    assert feed(one, b"", b"") == []
    assert one.idle
    wire = write((request(), b""))
    assert feed(one, wire[:9], b"", wire[9:], b"") == [request()]


def test_a_frame_is_handed_on_with_its_last_byte():
    one, wire = decoder(), encode_frame(AddCredit(1, 2, 3))
    assert feed(one, wire[:-1]) == []
    assert feed(one, wire[-1:]) == [AddCredit(1, 2, 3)]


# Payloads --------------------------------------------------------------------------------------------------


@pytest.mark.spec("N6")
def test_a_payload_is_not_copied():
    one, frame = decoder(), Data(1, 2, 3, size=10)
    head = encode_frame(frame)
    chunks = [bytearray(head + b"abcd"), bytearray(b"efg"), bytearray(b"hij" + encode_frame(KeepAlive()))]
    said = [list(one.feed(memoryview(chunk))) for chunk in chunks]
    assert [[type(part) for part in parts] for parts in said] == [[Data, Payload], [Payload], [Payload, KeepAlive]]
    pieces = [said[0][1], said[1][0], said[2][0]]
    assert [bytes(piece.data) for piece in pieces] == [b"abcd", b"efg", b"hij"]
    assert [piece.last for piece in pieces] == [False, False, True]
    for piece, chunk in zip(pieces, chunks, strict=True):
        assert piece.data.obj is chunk
        for at in range(len(chunk)):
            chunk[at] = ord("z")
        assert bytes(piece.data) == b"z" * len(piece.data)


def test_data_is_known_before_its_payload_is_there():
    one, frame = decoder(), Data(1, 2, 3, size=MAX_PAYLOAD)
    assert feed(one, encode_frame(frame)) == [frame]
    assert not one.idle


@pytest.mark.parametrize("checksum", [None, 7])
def test_a_payload_of_no_bytes_is_one_piece(checksum):
    one, frame = decoder(), Data(1, 2, 3, size=0, checksum=checksum)
    fed = bytearray(encode_frame(frame))
    said = list(one.feed(memoryview(fed)))
    assert said[0] == frame
    assert (bytes(said[1].data), said[1].last) == (b"", True)
    assert len(said) == 2
    assert said[1].data.obj is fed
    assert one.idle


def test_the_largest_payload():
    frame = Data(1, 2, 3, size=MAX_PAYLOAD, checksum=7)
    assert assemble(feed(decoder(), write((frame, bytes(MAX_PAYLOAD))))) == [(frame, bytes(MAX_PAYLOAD))]


def test_nothing_of_a_payload_is_kept():
    one = decoder()
    feed(one, encode_frame(Data(1, 2, 3, size=MAX_PAYLOAD)), bytes(MAX_PAYLOAD - 1))
    assert not one._head
    assert not one.idle


def test_the_decoder_keeps_no_view_of_its_input():
    """The reader may use its memory again, or change its size, as soon as it has consumed the pieces."""
    one, wire = decoder(), write(*MESSAGES)
    for cut in range(len(wire)):
        fed = bytearray(wire[cut : cut + 1])
        feed(one, fed)
        fed += b"..."  # BufferError while there is a view of it


# Refusals --------------------------------------------------------------------------------------------------

CAP = 2 + 22 + MAX_PAYLOAD


@pytest.mark.spec("N8")
@pytest.mark.parametrize("length", [0, 1, CAP + 1, 2**31, 2**32 - 1])
def test_an_impossible_length_is_refused_from_its_four_bytes(length):
    wire = struct.pack("<I", length)
    alone = decoder()
    assert f"a frame of {length} bytes" in refuse(alone, wire)
    followed = decoder()
    assert f"a frame of {length} bytes" in refuse(followed, wire + encode_frame(KeepAlive()) + bytes(100_000))
    stepwise = decoder()
    assert feed(stepwise, wire[:1], wire[1:2], wire[2:3]) == []
    assert f"a frame of {length} bytes" in refuse(stepwise, wire[3:])
    for one in (alone, followed, stepwise):
        assert bytes(one._head) == wire, "nothing more is kept"
        assert not one.idle


@pytest.mark.spec("N8")
@pytest.mark.parametrize(("flags", "length"), [*((0, n) for n in range(2, 15)), *((4, n) for n in range(2, 19))])
def test_data_shorter_than_its_head_is_refused_from_its_prefix(flags, length):
    one = decoder()
    assert f"data in a frame of {length} bytes" in refuse(one, PREFIX.pack(length, Data.TYPE, flags) + bytes(100))
    assert len(one._head) == PREFIX.size


@pytest.mark.spec("N8")
def test_a_small_frame_is_refused_above_its_own_cap():
    one, length = decoder(), MAX_CONTROL_BYTES + 1
    assert length < CAP
    wire = PREFIX.pack(length, SendTaskEvent.TYPE, 0) + bytes(length)
    assert refuse(one, wire) == f"frame type 0x13 of {length} bytes: the limit is {MAX_CONTROL_BYTES}"
    assert len(one._head) == PREFIX.size


@pytest.mark.spec("N8")
def test_small_payloads_make_no_small_frames():
    """With buffers below the size of a small frame, each kind still has its own cap."""
    frame = SendTaskEvent(1, 2, bytes(4096))
    assert feed(decoder(16), encode_frame(frame)) == [frame]
    one = decoder(16)
    wire = encode_frame(Data(1, 2, 3, size=17, checksum=7))
    assert "data in a frame of 36 bytes: its payload's limit is 16" in refuse(one, wire)
    assert len(one._head) == PREFIX.size


@pytest.mark.spec("N8")
@pytest.mark.parametrize("checksum", [None, 7])
def test_a_payload_over_the_limit_is_refused(checksum):
    for size in (MAX_PAYLOAD + 1, MAX_PAYLOAD + 4):
        refuse(decoder(), encode_frame(Data(1, 2, 3, size=size, checksum=checksum)))


BAD = {
    "unknown type": PREFIX.pack(2, 0x99, 0),
    "reserved flags": PREFIX.pack(2, KeepAlive.TYPE, 1),
    "reserved flags of data": PREFIX.pack(15, Data.TYPE, 16) + bytes(13),
    "a place beyond the alignment": PREFIX.pack(15, Data.TYPE, 0) + bytes(12) + b"\x40",
    "an absurd backlog": PREFIX.pack(15, Data.TYPE, 0) + bytes(8) + struct.pack("<IB", 2**20 + 1, 0),
    "an absurd backlog of an event": PREFIX.pack(15, Data.TYPE, 1) + bytes(8) + struct.pack("<IB", 2**32 - 1, 0),
    "an uncredited request with credit": PREFIX.pack(33, 0x10, 1) + bytes(24) + b"\x01" + bytes(6),
    "bad body": PREFIX.pack(5, KeepAlive.TYPE, 0) + b"abc",
    "no credit": PREFIX.pack(14, AddCredit.TYPE, 0) + bytes(12),
    "over-long text": PREFIX.pack(2 + 6 + 1025, ReportError.TYPE, 0) + bytes(6) + b"x" * 1025,
    "not utf-8": PREFIX.pack(2 + 7, ReportError.TYPE, 0) + bytes(6) + b"\xff",
    "a web browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a tls hello": bytes.fromhex("16030100a5010000a10303") + bytes(160),
}


@pytest.mark.spec("N8")
@pytest.mark.parametrize("wire", BAD.values(), ids=BAD)
def test_invalid_frames_are_refused_however_they_are_cut(wire):
    text = refuse(decoder(), wire)
    stepwise = decoder()
    with pytest.raises(RemoteProtocolError) as caught:
        feed(stepwise, *(wire[at : at + 1] for at in range(len(wire))))
    assert str(caught.value) == text
    assert len(stepwise._head) <= MAX_CONTROL_BYTES + PREFIX.size


@pytest.mark.spec("N8")
@pytest.mark.parametrize("wire", BAD.values(), ids=BAD)
def test_after_an_error_nothing_is_read(wire):
    one = decoder()
    text = refuse(one, wire)
    kept = bytes(one._head)
    for more in (b"", b"\x00", encode_frame(KeepAlive()), wire):
        assert refuse(one, more) == text
    assert bytes(one._head) == kept
    assert not one.idle


@pytest.mark.spec("N8")
def test_frames_before_an_error_are_yielded():
    one, said = decoder(), []
    good = [(Close(), b""), (Data(1, 2, 3, size=2), b"hi")]
    with pytest.raises(RemoteProtocolError):
        said.extend(one.feed(memoryview(write(*good) + BAD["unknown type"])))
    assert assemble(said) == good


@pytest.mark.spec("N8")
def test_the_decoder_keeps_no_view_of_its_input_after_an_error():
    one, fed = decoder(), bytearray(BAD["unknown type"])
    for _ in range(3):
        try:
            feed(one, fed)
        except RemoteProtocolError as error:
            traceback, depth = error.__traceback__, 0
            while traceback is not None:
                traceback, depth = traceback.tb_next, depth + 1
    assert depth < 8, "it grows with every call"
    fed += b"..."


# Between frames --------------------------------------------------------------------------------------------


@pytest.mark.spec("N8")
@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: repr(one[0])[:60])
def test_idle_only_between_frames(message):
    one = decoder()
    assert one.idle
    for _ in range(2):
        wire = write(message)
        for at in range(len(wire)):
            feed(one, wire[at : at + 1])
            assert one.idle == (at == len(wire) - 1)


def test_data_that_was_handed_on_is_not_idle():
    one = decoder()
    assert next(one.feed(memoryview(encode_frame(Data(1, 2, 3, size=5))))) == Data(1, 2, 3, size=5)
    assert not one.idle
    assert assemble([Data(1, 2, 3, size=5), *feed(one, b"hello")]) == [(Data(1, 2, 3, size=5), b"hello")]


def test_decoders_are_independent():
    one, other = decoder(), decoder()
    refuse(one, BAD["unknown type"])
    wire = encode_frame(AnnounceBacklog(1, 2))
    assert feed(other, wire[:5]) == []
    assert feed(decoder(), encode_frame(KeepAlive())) == [KeepAlive()]
    assert feed(other, wire[5:]) == [AnnounceBacklog(1, 2)]


# Where it stands -------------------------------------------------------------------------------------------


@pytest.mark.spec("N5")
@pytest.mark.parametrize("stop_after", range(2 * len(MESSAGES) - len(CONTROL_FRAMES)))
def test_decoding_can_stop_and_continue_from_position(stop_after):
    """A receiver without a buffer stops reading; what it was fed and has not looked at is fed again, later."""
    wire = write(*MESSAGES)
    one, said, rest = decoder(), [], memoryview(wire)
    for at, part in enumerate(one.feed(rest)):
        said.append(part)
        if at == stop_after:
            break
    said += one.feed(rest[one.position :])
    assert assemble(said) == MESSAGES
    assert one.idle


def test_the_position_is_behind_the_last_yielded_part():
    head, wire = encode_frame(Data(1, 2, 3, size=5)), encode_frame(KeepAlive())
    one, whole = decoder(), head + b"hello" + wire
    assert [one.position for _ in one.feed(memoryview(whole))] == [len(head), len(head) + 5, len(whole)]
    assert [one.position for _ in one.feed(memoryview(head + b"he"))] == [len(head), len(head) + 2]
    assert [one.position for _ in one.feed(memoryview(b"llo" + wire))] == [3, 3 + len(wire)]


# Whole frames ----------------------------------------------------------------------------------------------


def feed_whole(*chunks: bytes) -> tuple[list[Said | Message], Decoder]:
    """What comes of these: messages that were taken whole, and the frames and pieces of all others."""
    said: list[Said | Message] = []
    one = whole_decoder(MAX_PAYLOAD, said)
    for chunk in chunks:
        for part in one.feed(memoryview(chunk)):
            said.append(part)  # noqa: PERF402 - runs put theirs in between
    return said, one


@pytest.mark.spec("N6")
def test_frames_that_lie_whole_are_taken_by_runs():
    credit, data = (AddCredit(1, 2, 3), b""), (Data(1, 2, 3, size=4), b"abcd")
    wire = write(data, data, credit, credit, (KeepAlive(), b""), credit, data, (Close(), b""))
    said, one = feed_whole(wire)
    assert said == [data, data, credit, credit, KeepAlive(), credit, data, Close()]
    assert one.idle
    assert one.position == len(wire)


@pytest.mark.spec("N6")
def test_a_run_is_asked_for_its_own_kind_where_a_frame_begins():
    asked = []
    payload = encode_frame(AddCredit(1, 2, 3)) + bytes(22)
    wire = write((KeepAlive(), b""), (Data(1, 2, 3, size=40), payload), (Close(), b""))
    runs = {AddCredit.TYPE: lambda data, position: asked.append("credit") or (position, 0)}
    runs[Data.TYPE] = lambda data, position: asked.append((len(data), position)) or (position, 0)
    one = Decoder(MAX_PAYLOAD, runs)
    assert [type(part) for part in one.feed(memoryview(wire))] == [KeepAlive, Data, Payload, Close]
    assert asked == [(len(wire), len(encode_frame(KeepAlive())))]


@pytest.mark.spec("N6")
def test_an_incomplete_payload_of_a_run_continues_as_pieces():
    wire = write((Data(1, 2, 3, size=4), b"abcd"), (Close(), b""))
    cut = len(encode_frame(Data(1, 2, 3, size=4))) + 1
    one = Decoder(MAX_PAYLOAD, {Data.TYPE: lambda data, position: (len(data), 3)})
    assert list(one.feed(memoryview(wire[:cut]))) == []
    assert (one.position, one.idle) == (cut, False)
    assert feed(one, wire[cut : cut + 1]) == [Payload(b"b", last=False)]
    assert feed(one, wire[cut + 1 :]) == [Payload(b"cd", last=True), Close()]
    assert one.idle


@pytest.mark.spec("N6", "N8")
def test_a_frame_refused_by_a_run_is_refused_for_good():
    def refuse_all(data, position):
        raise RemoteProtocolError("not this one")

    one = Decoder(MAX_PAYLOAD, {AddCredit.TYPE: refuse_all})
    for _ in range(2):
        assert refuse(one, encode_frame(AddCredit(1, 2, 3))) == "not this one"


@pytest.mark.spec("N1", "N6")
@pytest.mark.parametrize(
    "frame",
    [
        Data(1, 2, 3, size=4, event=True),
        Data(1, 2, 3, size=4, compressed=True),
        Data(1, 2, 3, size=4, event=True, last=True),
        Data(1, 2, 3, size=4, checksum=5),
    ],
    ids=repr,
)
def test_data_with_flags_comes_step_by_step(frame):
    said, _ = feed_whole(write((frame, b"abcd")))
    assert [type(part) for part in said] == [Data, Payload]
    assert assemble(said) == [(frame, b"abcd")]


@pytest.mark.spec("N1", "N6")
@pytest.mark.parametrize(
    "message", [*MESSAGES, (Data(1, 2, 3, size=4, skew=5), b"abcd")], ids=lambda one: repr(one)[:60]
)
def test_cut_anywhere_it_comes_all_the_same(message):
    wire = write(message, (KeepAlive(), b""), message)
    expected = [message, (KeepAlive(), b""), message]
    for cut in range(len(wire) + 1):
        said, one = feed_whole(wire[:cut], wire[cut:])
        assert assemble(said) == expected, f"cut after {cut} bytes"
        assert one.idle


@pytest.mark.spec("N5")
@pytest.mark.parametrize("stop_after", range(2 * len(MESSAGES) - len(CONTROL_FRAMES) - 1))
def test_the_position_is_behind_a_whole_frame(stop_after):
    wire = write(*MESSAGES)
    said, rest = [], memoryview(wire)
    one = whole_decoder(MAX_PAYLOAD, said)
    for at, part in enumerate(one.feed(rest)):
        said.append(part)
        if at == stop_after:
            break
    said += one.feed(rest[one.position :])
    assert assemble(said) == MESSAGES


@pytest.mark.spec("N8")
@pytest.mark.parametrize("wire", BAD.values(), ids=BAD)
def test_invalid_frames_in_a_run_are_refused_with_the_same_text(wire):
    for before in (b"", encode_frame(AddCredit(1, 2, 3)), write((Data(1, 2, 3, size=4), b"abcd"))):
        with pytest.raises(RemoteProtocolError) as caught:
            feed_whole(before + wire + bytes(100))
        assert str(caught.value) == refuse(decoder(), wire + bytes(100))


@pytest.mark.spec("N8")
@pytest.mark.parametrize(
    "wire",
    [
        encode_frame(Data(1, 2, 3, size=MAX_PAYLOAD + 1)) + bytes(MAX_PAYLOAD + 1),
        PREFIX.pack(14, Data.TYPE, 0) + bytes(30),
        PREFIX.pack(2, Data.TYPE, 0) + bytes(30),
        PREFIX.pack(2**32 - 1, Data.TYPE, 0) + bytes(30),
        PREFIX.pack(13, AddCredit.TYPE, 0) + struct.pack("<III", 1, 2, 3),
        PREFIX.pack(15, AddCredit.TYPE, 0) + struct.pack("<IIIB", 1, 2, 3, 0),
        PREFIX.pack(14, AddCredit.TYPE, 1) + struct.pack("<III", 1, 2, 3),
        PREFIX.pack(14, AddCredit.TYPE, 0) + struct.pack("<III", 1, 2, 0),
        PREFIX.pack(14, AddCredit.TYPE, 0) + struct.pack("<III", 1, 2, 2**17 + 1),
    ],
    ids=lambda wire: wire[:18].hex(" "),
)
def test_whole_or_not_the_limits_are_the_same(wire):
    with pytest.raises(RemoteProtocolError) as caught:
        feed_whole(wire)
    assert str(caught.value) == refuse(decoder(), wire)
