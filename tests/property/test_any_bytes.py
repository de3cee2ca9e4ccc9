"""Any bytes, whole or in pieces, to a worker: frames, or the error of a peer that broke the protocol; nothing else.

Random bytes alone come no further than the first length, so most of what is said here is right and only then bent:
frames that fit the moment, among them some that do not, with bits flipped and cut off somewhere.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fuzz_target import (
    ATTEMPT,
    CHANNELS,
    EVENTS,
    FINISHED,
    MISSING,
    OTHERS,
    RECORDS,
    SEGMENT_BYTES,
    WRITTEN,
    Script,
    Victim,
    conversation,
)

from headgate.errors import ProducerFailed, RemoteProtocolError
from headgate.ids import AttemptId
from headgate.wire import (
    CONNECTION,
    AddCredit,
    AnnounceBacklog,
    CancelRequest,
    Close,
    Decoder,
    Frame,
    KeepAlive,
    ReportError,
    SendTaskEvent,
    encode_frame,
)
from headgate.wire.codec import PREFIX
from headgate.wire.decoder import MAX_CONTROL_BYTES
from headgate.wire.frames import MAX_BACKLOG, MAX_CREDIT

u32s = st.integers(0, 2**32 - 1)
receivers = st.sampled_from([0, 1, 2] * 5 + [CHANNELS, CONNECTION])
attempts = st.sampled_from([ATTEMPT] * 9 + [AttemptId(2)])
codes = st.sampled_from([4, 7, 8, 10, 12, 0xFFFF])
mostly_0 = st.sampled_from([0] * 20 + [1, -1])
backlogs = st.sampled_from([0, 0, 0, 1, 2, 100, MAX_BACKLOG] * 3 + [MAX_BACKLOG + 1])
data_flags = st.sampled_from([0] * 20 + [2, 4, 8, 0x10])
event_flags = st.sampled_from([1] * 10 + [9] * 3 + [3, 5])


class Line(NamedTuple):
    """What the peer says; it fits where it comes, for the script counts along."""

    write: Callable[[Script], bytes]


class Deed(NamedTuple):
    """What a task of the worker does."""

    do: Callable[[Victim], None]


def fixed(said: bytes | Frame) -> Line:
    data = said if isinstance(said, bytes) else encode_frame(said)
    return Line(lambda _: data)


say = st.one_of(
    # What a producer says.
    st.builds(
        lambda receiver, payload, flags, off, backlog, skew: Line(
            lambda script: script.data(receiver, payload, flags=flags, off=off, backlog=backlog, skew=skew)
        ),
        receivers,
        st.sampled_from(RECORDS) | st.binary(max_size=SEGMENT_BYTES) | st.just(bytes(SEGMENT_BYTES + 1)),
        data_flags,
        mostly_0,
        backlogs,
        st.sampled_from([0] * 10 + [8, 8, 63, 64]),
    ),
    st.builds(
        lambda receiver, payload, flags, off: Line(lambda script: script.data(receiver, payload, flags=flags, off=off)),
        receivers,
        st.sampled_from(EVENTS),
        event_flags,
        mostly_0,
    ),
    st.builds(AnnounceBacklog, receivers, st.sampled_from([0, 1, 3, MAX_BACKLOG])).map(fixed),
    st.builds(
        ReportError, st.integers(0, CHANNELS - 1) | receivers, codes, st.sampled_from(["", "no", "n" * 1024])
    ).map(fixed),
    # What a consumer says.
    st.builds(
        lambda which, subpartition, credit, off: Line(
            lambda script: script.request(which, subpartition, credit=credit, off=off)
        ),
        st.sampled_from([WRITTEN, FINISHED] * 5 + [MISSING] * 3 + [OTHERS]),
        st.integers(0, 2),
        st.sampled_from([0, 1, 2, 100, MAX_CREDIT]),
        mostly_0,
    ),
    st.builds(
        lambda number, attempt, credit: Line(
            lambda script: encode_frame(AddCredit(script.requested(number), attempt, credit))
        ),
        st.integers(0, 3),
        attempts,
        st.sampled_from([1, 1, 2, 2, 100, 1000, MAX_CREDIT]),
    ),
    st.builds(
        lambda number, attempt, again: Line(lambda script: script.cancel(number, attempt, again=again)),
        st.integers(0, 3),
        attempts,
        st.sampled_from([False] * 5 + [True]),
    ),
    st.builds(
        lambda number, attempt, event: Line(
            lambda script: encode_frame(SendTaskEvent(script.requested(number), attempt, event))
        ),
        st.integers(0, 3),
        attempts,
        st.sampled_from(EVENTS[:2] * 4 + EVENTS),
    ),
    st.sampled_from([KeepAlive(), KeepAlive(), Close()]).map(fixed),
)

nonsense = st.one_of(
    st.builds(PREFIX.pack, st.integers(0, 400) | u32s, st.integers(0, 255), st.integers(0, 255)),
    st.builds(
        lambda kind, flags, body: PREFIX.pack(2 + len(body), kind, flags) + body,
        st.sampled_from([0x10, 0x11, 0x12, 0x13, 0x20, 0x21, 0x30, 0x31, 0x32]),
        st.sampled_from([0, 0, 0, 1, 8, 0x80]),
        st.binary(max_size=40),
    ),
    st.binary(max_size=20),
).map(fixed)

channels = st.integers(0, CHANNELS - 1)
do = st.one_of(
    st.builds(lambda channel: Deed(lambda victim: victim.read(channel)), channels),
    st.builds(lambda channel: Deed(lambda victim: victim.release(channel)), channels),
    st.builds(lambda channel: Deed(lambda victim: victim.call_back(channel)), channels),
    st.sampled_from([Deed(Victim.write), Deed(Victim.finish), Deed(Victim.fail)]),
    st.builds(lambda time: Deed(lambda victim: victim.wait(time)), st.sampled_from([1, 5, 20_000, 60_000])),
)

# Not `one_of`, which would give each of their branches the same weight.
acts = st.sampled_from([say] * 12 + [do] * 6 + [nonsense]).flatmap(lambda chosen: chosen)


def bend(draw: st.DrawFn, said: bytes) -> bytes:
    """Leave it as it is; or flip a bit of it, cut it, or double a part."""
    how = draw(st.sampled_from(["as it is"] * 30 + ["flip", "cut", "double"]))
    if how == "as it is" or not said:
        return said
    at = draw(st.integers(0, len(said) - 1))
    match how:
        case "flip":
            return said[:at] + bytes([said[at] ^ 1 << draw(st.integers(0, 7))]) + said[at + 1 :]
        case "cut":
            return said[:at]
        case _:
            return said[:at] + said[at:] * 2


def pieces(draw: st.DrawFn, said: bytes) -> list[bytes]:
    """Whole, byte by byte, or cut somewhere."""
    how = draw(st.sampled_from(["whole", "whole", "bytes", "cut"]))
    if how == "bytes":
        return [said[at : at + 1] for at in range(len(said))]
    at = draw(st.integers(0, len(said))) if how == "cut" else 0
    return [piece for piece in (said[:at], said[at:]) if piece]


@st.composite
def plays(draw: st.DrawFn, *, credited: bool, checksum: bool) -> list[bytes | Deed]:
    """What happens, in order: pieces of bytes that arrive, and what the worker's tasks do."""
    script = Script(credited=credited, checksum=checksum)
    readable = [(WRITTEN, 0), (FINISHED, 0), (WRITTEN, 1), (FINISHED, 1)]
    play = [script.request(*which) for which in readable[: draw(st.integers(0, 4))]]
    fewest = draw(st.sampled_from([0, 12]))
    for act in draw(st.lists(acts, min_size=fewest, max_size=25)):
        if isinstance(act, Line):
            play += pieces(draw, bend(draw, act.write(script)))
        else:
            play.append(act)
    return play


@pytest.mark.spec("N8")
@settings(max_examples=300)
@given(st.lists(say | say | nonsense, max_size=8), st.data())
def test_a_decoder_gives_frames_or_a_remote_error(lines, data):
    script = Script()
    wire = bend(data.draw, b"".join(line.write(script) for line in lines))
    decoder = Decoder(SEGMENT_BYTES)
    for piece in pieces(data.draw, wire):
        try:
            for _ in decoder.feed(memoryview(piece)):
                pass
        except RemoteProtocolError:
            with pytest.raises(RemoteProtocolError):
                list(decoder.feed(memoryview(b"")))
            break
        assert len(decoder._head) <= MAX_CONTROL_BYTES + PREFIX.size


@pytest.mark.spec("N7", "N8")
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_stranger_is_proved_or_refused(data):
    """Anything before the handshake is done; also the right words, bent, in the wrong order, or followed by frames."""
    good = conversation()
    words = [good, good[:50], good[50:], good + encode_frame(KeepAlive()), bytes(10), b"GET / HTTP/1.1\r\n\r\n"]
    said = b"".join(
        bend(data.draw, word)
        for word in data.draw(st.lists(st.sampled_from(words) | st.binary(max_size=60), max_size=4))
    )
    said_in, hang_up, reset = pieces(data.draw, said), data.draw(st.booleans()), data.draw(st.booleans())
    with Victim(proved=False) as victim:
        for piece in said_in:
            victim.say(piece)
        if hang_up:
            victim.hang_up(reset=reset)
        else:
            victim.wait(6_000)
        if not said.startswith(good):
            assert victim.over
            assert len(victim.errors) == 1
            assert len(victim.heard) <= 43, "a challenge at most"


@pytest.mark.spec("N8")
@settings(max_examples=200, deadline=None)
@given(st.data())
@pytest.mark.parametrize("credited", [True, False], ids=["credit", "tcp"])
def test_any_bytes_of_an_authenticated_peer_are_handled(credited, data):
    """After a good handshake, while tasks read, write, fail and give up."""
    checksum = data.draw(st.booleans())
    play = data.draw(plays(credited=credited, checksum=checksum))
    how = data.draw(st.sampled_from(["stay", "hang up", "reset", "fall silent"]))
    with Victim(credited=credited, checksum=checksum) as victim:
        for act in play:
            if isinstance(act, bytes):
                victim.say(act)
            else:
                act.do(victim)
        if how == "fall silent":
            victim.wait(200_000)
        elif how != "stay":
            victim.hang_up(reset=how == "reset")
        assert how == "stay" or victim.over or victim.starved
        assert sum(error is not None for error in victim.errors) <= 1, "one error"


def test_the_script_is_understood():
    """What is not bent is right, so that deep states are reached."""
    with Victim() as victim:
        script = Script()
        victim.say(script.request(WRITTEN, 0) + script.request(FINISHED, 1))
        for receiver in range(CHANNELS):
            victim.say(script.data(receiver, RECORDS[0]) + script.data(receiver, EVENTS[1], flags=1))
        victim.say(encode_frame(AddCredit(0, ATTEMPT, 100)) + encode_frame(SendTaskEvent(0, ATTEMPT, EVENTS[1])))
        victim.say(script.data(0, EVENTS[0], flags=9) + encode_frame(ReportError(1, 8, "no")))
        victim.say(encode_frame(CancelRequest(0, ATTEMPT)))
        for receiver in range(CHANNELS):
            victim.read(receiver)
        assert victim.errors == []
        assert [type(error).__name__ for error in victim.read_errors] == ["ProducerFailed"]
        frames = list(Decoder(1 << 16).feed(memoryview(victim.heard[43 + 38 :])))
        assert {type(frame).__name__ for frame in frames} >= {"RequestPartition", "Data", "Payload", "CancelRequest"}


@pytest.mark.spec("G8")
def test_a_failed_producer_is_not_a_missing_one():
    """The cause of a failure may be that something was not found; the consumer must not ask again for that."""
    with Victim() as victim:
        victim.say(Script().request(WRITTEN, 0))
        victim.fail()
        frames = list(Decoder(1 << 16).feed(memoryview(victim.heard[43 + 38 :])))
        [told] = [frame for frame in frames if isinstance(frame, ReportError)]
        assert told.code == ProducerFailed.code
        assert "what it reads is gone" in told.text
