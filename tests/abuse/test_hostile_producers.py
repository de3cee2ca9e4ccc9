"""Bad input from producers: a good worker connects to a port that proves itself, or not, and then misbehaves.

Worker 1 is attacked; it reads the good transfer over another connection.
"""

import contextlib
import random
import secrets
import socket
import struct
import threading
import time

import pyarrow as pa
import pytest
from tests.abuse.support_abuse import (
    ATTEMPT,
    BAD_WORKER,
    JOB,
    SECRET,
    SEGMENT_BYTES,
    BadProducer,
    Member,
    Site,
    Stranger,
    data_frame,
    error_of,
    keeping_little,
    packed_frame,
    raw_frame,
    record_bytes,
)
from tests.support.exchange import values_of
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.errors import (
    AuthError,
    Cancelled,
    ChecksumMismatch,
    CorruptStream,
    PartitionNotFound,
    ProducerFailed,
    RemoteProtocolError,
    TransportError,
)
from headgate.net import Address
from headgate.record import EndOfPartition, UserEvent
from headgate.record.element import encode_event
from headgate.wire import (
    CONNECTION,
    AddCredit,
    AnnounceBacklog,
    CancelRequest,
    Close,
    KeepAlive,
    ReportError,
    RequestPartition,
    encode_frame,
)
from headgate.wire.frames import MAX_BACKLOG, MAX_ERROR_TEXT_BYTES
from headgate.wire.handshake import ClientHandshake, ServerHandshake

EVENT, CHECKSUM, LAST = 1, 4, 8
RECORD = record_bytes(b"sheaf")
END = data_frame(0, 0, encode_event(EndOfPartition()), flags=EVENT | LAST)


def answering(*said: bytes):
    """A producer that is asked, says this, and waits for the end."""

    def script(member: Member) -> None:
        assert isinstance(member.next(), RequestPartition)
        member.say(*said)
        member.part()

    return script


def breaking(*said: bytes):
    """The same, with something wrong in it: the worker must say so and hang up."""

    def script(member: Member) -> None:
        assert isinstance(member.next(), RequestPartition)
        member.say(*said)
        assert member.last_words().code == RemoteProtocolError.code

    return script


def read_into(seen: list[bytes], reader) -> None:
    """Read for ever."""
    while True:
        element = reader.read(timeout_s=PATIENCE_S)
        assert element is not None, "the reader waits for ever"
        seen += values_of([element])


def error(code: int, text: str, receiver: int = 0) -> bytes:
    return encode_frame(ReportError(receiver, code, text))


BREACHES = {
    "data without credit": (b"".join(data_frame(0, i, RECORD) for i in range(50)), "data came without credit"),
    "a gap": (data_frame(0, 0, RECORD) + data_frame(0, 2, RECORD), "expected sequence number 1, received 2"),
    "a repeat": (data_frame(0, 0, RECORD) * 2, "expected sequence number 1, received 0"),
    "a start in the middle": (data_frame(0, 5, RECORD), "expected sequence number 0, received 5"),
    "an event out of turn": (data_frame(0, 1, b"", flags=EVENT), "expected sequence number 0, received 1"),
    "wrong receiver": (data_frame(1, 0, RECORD), "data for receiver 1, which was never requested"),
    "the connection as receiver": (data_frame(CONNECTION, 0, RECORD), "data for receiver 4294967295"),
    "absurd backlog": (data_frame(0, 0, RECORD, backlog=MAX_BACKLOG + 1), "a backlog of 1048577"),
    "the most absurd backlog": (data_frame(0, 0, RECORD, backlog=2**32 - 1), "a backlog of 4294967295"),
    "absurd backlog without data": (raw_frame(0x21, 0, struct.pack("<II", 0, MAX_BACKLOG + 1)), "backlog of 1048577"),
    "backlog for another receiver": (encode_frame(AnnounceBacklog(9, 1)), "a backlog for receiver 9"),
    "compressed data": (packed_frame(0, 0, bytes(100), 200), "compressed data, which was not asked for"),
    "a compressed event": (packed_frame(0, 0, bytes(9), 200, flags=EVENT), "compressed data"),
    "compressed data without a codec": (packed_frame(0, 0, bytes(100), 200, codec=0), "without a codec"),
    "data beyond a segment": (data_frame(0, 0, bytes(SEGMENT_BYTES + 1)), "4097 bytes at 0 for buffers of 4096"),
    "data that begins too late": (
        data_frame(0, 0, bytes(SEGMENT_BYTES), skew=1),
        "4096 bytes at 1 for buffers of 4096",
    ),
    "data at an odd place": (data_frame(0, 0, RECORD, skew=64), "a skew of 64"),
    "data that claims to be the end": (data_frame(0, 0, RECORD, flags=LAST), "data that claims to be the end"),
    "data after the end": (END + data_frame(0, 1, RECORD), "data while it is ended"),
    "an error after the end": (END + error(8, "no"), "error while it is ended"),
    "the end twice": (END + data_frame(0, 1, b"", flags=EVENT | LAST), "last while it is ended"),
    "a checksum that nobody wants": (data_frame(0, 0, struct.pack("<I", 1) + RECORD, flags=CHECKSUM), "checksum"),
    "over-long error text": (
        raw_frame(0x30, 0, struct.pack("<IH", 0, 8) + b"x" * (MAX_ERROR_TEXT_BYTES + 1)),
        "an error text of 1025 bytes",
    ),
    "an error for another receiver": (error(8, "no", receiver=3), "an error for receiver 3"),
    "an unknown frame": (raw_frame(0x99, 0), "unknown frame type 0x99"),
    "reserved flags": (data_frame(0, 0, RECORD, flags=0x40), "reserved flags"),
    "length 2**32 - 1": (raw_frame(0x20, 0, length=2**32 - 1), "a frame of 4294967295 bytes"),
    "length 0": (bytes(4), "a frame of 0 bytes"),
    "credit, which is for producers": (encode_frame(AddCredit(0, ATTEMPT, 1)), "AddCredit for receiver 0"),
    "a cancellation": (encode_frame(CancelRequest(0, ATTEMPT)), "CancelRequest for receiver 0"),
}


@pytest.mark.spec("N8", "G6", "G8")
@pytest.mark.parametrize(("said", "text"), BREACHES.values(), ids=BREACHES.keys())
def test_breaches_of_the_protocol(said, text, caplog):
    with BadProducer(breaking(said)) as bad, Site(caplog) as site:
        reader = site.read_from(bad.address)
        if said.startswith(END):  # what has arrived whole is not taken back
            assert values_of(reader) == []
        else:
            found = error_of(reader)
            assert isinstance(found, RemoteProtocolError)
            assert text in str(found)
            assert str(bad.address) in str(found)
            assert len(site.logged(str(bad.address))) <= 1
        wait_until(lambda: len(site.consumer.statistics().network.connections) == 1, "the end of the bad connection")


def packed(data: bytes, codec: str = "lz4_raw") -> bytes:
    return pa.Codec(codec).compress(data, asbytes=True)


GOOD = b"".join(record_bytes(b"sheaf") for _ in range(100))  # 1,000 bytes
UNDER_PRESSURE = {
    "a bomb, lz4": packed_frame(0, 0, packed(bytes(900_000))[: SEGMENT_BYTES - 1], SEGMENT_BYTES),
    "a bomb, zstd": packed_frame(0, 0, packed(bytes(100 * 2**20), "zstd")[:4000], SEGMENT_BYTES, codec=2),
    "a bomb, said to be one": packed_frame(0, 0, packed(bytes(10**6), "zstd"), 10**6, codec=2),
    "the largest there can be": packed_frame(0, 0, packed(GOOD), 2**32 - 1),
    "one byte over a segment": packed_frame(0, 0, packed(bytes(SEGMENT_BYTES + 1)), SEGMENT_BYTES + 1),
    "more than was said, lz4": packed_frame(0, 0, packed(GOOD), len(GOOD) - 1),
    "more than was said, zstd": packed_frame(0, 0, packed(GOOD, "zstd"), len(GOOD) - 1, codec=2),
    "less than was said, lz4": packed_frame(0, 0, packed(GOOD), len(GOOD) + 1000),
    "a byte less than was said, lz4": packed_frame(0, 0, packed(GOOD), len(GOOD) + 1),
    "less than was said, zstd": packed_frame(0, 0, packed(GOOD, "zstd"), len(GOOD) + 1000, codec=2),
    "no smaller than before": packed_frame(0, 0, packed(GOOD), len(packed(GOOD))),
    "nothing": packed_frame(0, 0, b"", 0),
    "something from nothing": packed_frame(0, 0, b"", 1),
    "random bytes, lz4": packed_frame(0, 0, random.Random(1).randbytes(500), 1000),
    "random bytes, zstd": packed_frame(0, 0, random.Random(1).randbytes(500), 1000, codec=2),
    "of another codec": packed_frame(0, 0, packed(GOOD, "zstd"), len(GOOD)),
    "of a codec that there is not": packed_frame(0, 0, packed(GOOD), len(GOOD), codec=3),
    "at another place than the first": packed_frame(0, 0, packed(GOOD), len(GOOD), skew=1),
    "an event": packed_frame(0, 0, packed(GOOD), len(GOOD), flags=EVENT),
    "without a codec": packed_frame(0, 0, packed(GOOD), len(GOOD), codec=0),
    "cut short": packed_frame(0, 0, packed(GOOD)[:-3], len(GOOD)),
}


@pytest.mark.spec("N1", "N8", "P3")
@pytest.mark.parametrize("said", UNDER_PRESSURE.values(), ids=UNDER_PRESSURE.keys())
def test_compressed_data_that_is_none_costs_its_connection(said, caplog):
    """Where compressed data was asked for: no more than a segment is ever taken for it."""
    with BadProducer(breaking(said)) as bad, Site(caplog) as site:
        reader = site.read_from(bad.address, packed=True)
        assert isinstance(error_of(reader), RemoteProtocolError)
        wait_until(lambda: len(site.consumer.statistics().network.connections) == 1, "the end of the bad connection")


@pytest.mark.spec("N1", "P3")
@pytest.mark.parametrize(("name", "codec"), [("lz4_raw", 1), ("zstd", 2)])
def test_compressed_data_that_is_good_is_read(name, codec, caplog):
    """What the others are compared with: as large as a segment, and cut by the network at every byte."""
    whole = record_bytes(bytes(SEGMENT_BYTES - 5))
    frames = packed_frame(0, 0, packed(GOOD, name), len(GOOD), codec=codec)
    frames += packed_frame(0, 1, packed(whole, name), len(whole), codec=codec)
    end = data_frame(0, 2, encode_event(EndOfPartition()), flags=EVENT | LAST)
    with BadProducer(answering(*[bytes([one]) for one in frames], end)) as bad, Site(caplog) as site:
        reader = site.read_from(bad.address, packed=True)
        assert values_of(reader) == [b"sheaf"] * 100 + [bytes(SEGMENT_BYTES - 5)]


@pytest.mark.spec("N8", "G8")
def test_all_channels_of_the_connection_learn_of_it(caplog):
    def script(member: Member) -> None:
        requests = [member.next(RequestPartition) for _ in range(2)]
        assert [one.receiver for one in requests] == [0, 1]
        member.say(data_frame(1, 7, RECORD))
        member.part()

    with BadProducer(script) as bad, Site(caplog) as site:
        readers = [site.read_from(bad.address) for _ in range(2)]
        for reader in readers:
            found = error_of(reader)
            assert isinstance(found, RemoteProtocolError)
            assert str(bad.address) in str(found)


# Channels that fail, rightly or not.


@pytest.mark.spec("G8")
def test_the_longest_error_text_arrives_and_is_no_longer(caplog):
    with BadProducer(answering(error(8, "x" * MAX_ERROR_TEXT_BYTES))) as bad, Site(caplog) as site:
        found = error_of(site.read_from(bad.address))
        assert isinstance(found, ProducerFailed)
        assert str(found) == "x" * MAX_ERROR_TEXT_BYTES


@pytest.mark.spec("N8")
@pytest.mark.parametrize("code", [code for code in [*range(22), 0xFFFF] if code != PartitionNotFound.code])
def test_an_error_of_any_code_is_a_typed_error(code, caplog):
    """Also one of a class that this version does not know, or that peers should never send."""
    with BadProducer(answering(error(code, "so it is"))) as bad, Site(caplog) as site:
        found = error_of(site.read_from(bad.address))
        assert isinstance(found, ProducerFailed | Cancelled)
        assert "so it is" in str(found)


@pytest.mark.spec("N8")
def test_a_partition_that_is_never_found(caplog):
    def script(member: Member) -> None:
        while not isinstance(frame := member.next(), Close):
            if isinstance(frame, RequestPartition):
                member.say(error(PartitionNotFound.code, "no such thing", receiver=frame.receiver))

    with BadProducer(script) as bad, Site(caplog) as site:
        assert isinstance(error_of(site.read_from(bad.address)), PartitionNotFound)


@pytest.mark.spec("N8", "T5")
@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
def test_a_partition_that_is_lost_after_it_was_found(read, caplog):
    """It cannot be asked for again: its first records would come twice, into buffers that are not free."""
    again = threading.Event()

    def script(member: Member) -> None:
        member.next(RequestPartition)
        member.say(data_frame(0, 0, RECORD), data_frame(0, 1, RECORD), error(PartitionNotFound.code, "lost"))
        while not isinstance(frame := member.next(), CancelRequest | Close | ReportError):
            if isinstance(frame, RequestPartition):
                again.set()
                member.say(*[data_frame(frame.receiver, i, RECORD) for i in range(2)])

    with BadProducer(script) as bad, Site(caplog) as site:
        reader = site.read_from(bad.address)
        if not read:
            wait_until(lambda: again.is_set() or reader.gate.channels[0].source._failure is not None, "either")
        seen: list[bytes] = []
        with pytest.raises((PartitionNotFound, ProducerFailed, RemoteProtocolError)):
            read_into(seen, reader)
        assert seen == [b"sheaf"] * 2
        assert not again.is_set()


# Events.


@pytest.mark.spec("N8")
@pytest.mark.parametrize("last", [False, True], ids=["amid", "last"])
def test_an_event_that_is_none(last, caplog):
    said = data_frame(0, 0, b"\x93" * 5000, flags=EVENT | (LAST if last else 0))
    with BadProducer(answering(said)) as bad, Site(caplog) as site:
        found = error_of(site.read_from(bad.address))
        assert isinstance(found, CorruptStream | RemoteProtocolError)


@pytest.mark.spec("N8")
def test_a_last_event_that_is_not_the_end(caplog):
    """Nothing can follow it, so the reader would wait for ever."""
    said = data_frame(0, 0, encode_event(UserEvent("reload")), flags=EVENT | LAST)
    with BadProducer(answering(said)) as bad, Site(caplog) as site:
        reader = site.read_from(bad.address)
        found = error_of(reader)
        assert isinstance(found, CorruptStream | RemoteProtocolError)


@pytest.mark.spec("N8")
def test_an_end_that_is_not_the_last(caplog):
    """The reader has all; the producer is told to stop, and not listened to."""
    said = data_frame(0, 0, encode_event(EndOfPartition()), flags=EVENT)

    def script(member: Member) -> None:
        member.next(RequestPartition)
        member.say(said)
        assert isinstance(member.next(CancelRequest), CancelRequest)
        member.say(data_frame(0, 1, RECORD), error(Cancelled.code, "as asked"))
        member.part()

    with BadProducer(script) as bad, Site(caplog) as site:
        assert values_of(site.read_from(bad.address)) == []
        wait_until(lambda: len(site.consumer.statistics().network.connections) == 1, "the end of the bad connection")


@pytest.mark.spec("N8")
def test_a_flood_of_events(caplog):
    """They need no credit, so something else must bound them while nobody reads."""
    event = encode_event(UserEvent("reload", bytes(4000)))

    def script(member: Member) -> None:
        member.next(RequestPartition)
        member.socket.settimeout(1)
        try:
            for i in range(10_000):
                if not member.say(data_frame(0, i, event, flags=EVENT)):
                    break
        except TimeoutError:
            pass  # the worker has stopped reading: as good as cutting it off
        over.set()

    over = threading.Event()
    with Site(caplog) as site, BadProducer(script) as bad, keeping_little() as look:
        reader = site.read_from(bad.address)
        wait_until(over.is_set, "the end of the flood")
        look()
        reader.close()


@pytest.mark.spec("N8")
def test_a_backlog_of_everything_takes_no_more_than_the_gate_has(caplog):
    def script(member: Member) -> None:
        member.next(RequestPartition)
        member.say(encode_frame(AnnounceBacklog(0, MAX_BACKLOG)) * 1000)
        granted = 2
        while granted < 10:
            granted += member.next(AddCredit).credit
        assert granted == 2 + 8, "its own buffers and the gate's"
        member.say(data_frame(0, 0, RECORD, backlog=MAX_BACKLOG) + data_frame(0, 1, b"", flags=EVENT))
        member.part()

    with BadProducer(script) as bad, Site(caplog) as site:
        reader = site.read_from(bad.address)
        assert isinstance(error_of(reader), CorruptStream), "the event is none"


@pytest.mark.spec("N8")
@pytest.mark.parametrize("right", [False, True], ids=["wrong", "missing"])
def test_checksums(right, caplog):
    pytest.importorskip("crc32c")
    said = data_frame(0, 0, RECORD) if right else data_frame(0, 0, struct.pack("<I", 1) + RECORD, flags=CHECKSUM)
    with BadProducer(answering(said)) as bad, Site(caplog, network__checksum=True) as site:
        found = error_of(site.read_from(bad.address))
        assert isinstance(found, RemoteProtocolError if right else ChecksumMismatch)
        assert str(bad.address) in str(found)


# The end of a connection.


@pytest.mark.spec("N8", "G8")
def test_a_conversation_cut_off_anywhere(caplog):
    """Two buffers and an event, up to every byte of it: an error with the address, whole records before it."""
    said = data_frame(0, 0, RECORD) + data_frame(0, 1, RECORD) + data_frame(0, 2, b"", flags=EVENT)
    lengths = iter(range(len(said)))

    def script(member: Member) -> None:
        member.next(RequestPartition)
        member.say(said[: next(lengths)])

    with BadProducer(script) as bad, Site(caplog) as site:
        whole = len(data_frame(0, 0, RECORD))
        for length in range(len(said)):
            reader = site.read_from(bad.address)
            seen: list[bytes] = []
            with pytest.raises(TransportError) as caught:
                read_into(seen, reader)
            assert str(bad.address) in str(caught.value)
            assert seen == [b"sheaf"] * min(2, length // whole), f"after {length} bytes"
            reader.close()


@pytest.mark.spec("N4", "N8")
def test_silence_in_the_middle(caplog):
    with BadProducer(answering(data_frame(0, 0, RECORD))) as bad, Site(caplog, network__idle_timeout="1 s") as site:
        found = error_of(site.read_from(bad.address))
        assert isinstance(found, TransportError)
        assert "nothing was received for 1 s" in str(found)
        assert found.peer == str(bad.address)


@pytest.mark.spec("N4", "N8")
def test_a_payload_one_byte_at_a_time(caplog):
    """Each byte is a sign of life, but a buffer that takes many time-outs is none."""

    def script(member: Member) -> None:
        member.next(RequestPartition)
        for byte in data_frame(0, 0, bytes(4000)):
            if over.is_set() or not member.say(bytes([byte])):
                break
            time.sleep(0.01)
        member.part()

    over = threading.Event()
    with BadProducer(script) as bad, Site(caplog, network__idle_timeout="200 ms") as site:
        found = error_of(site.read_from(bad.address))
        over.set()
        assert isinstance(found, TransportError)
        assert found.peer == str(bad.address)


@pytest.mark.spec("N4", "N8")
def test_sending_without_ever_reading(caplog):
    """It knows by heart what credit it gets. The credit that it does not take piles up to a mark, and no further."""

    def script(member: Member) -> None:
        member.next(RequestPartition)
        for i in range(20_000):
            if over.is_set() or not member.say(data_frame(0, i, RECORD)):
                break
            time.sleep(0.002)

    over = threading.Event()
    with (
        BadProducer(script, receive_buffer=4096) as bad,
        Site(caplog, network__idle_timeout="1 s", network__send_buffer="8 KiB") as site,
    ):
        found = error_of(site.read_from(bad.address))
        over.set()
        assert isinstance(found, TransportError | RemoteProtocolError)
        assert "accepted no bytes for 1 s" in str(found) or "data came without credit" in str(found)
        assert str(bad.address) in str(found)


@pytest.mark.spec("N8")
def test_closing_in_the_middle(caplog):
    with BadProducer(answering(data_frame(0, 0, RECORD), encode_frame(Close()) * 2)) as bad, Site(caplog) as site:
        found = error_of(site.read_from(bad.address))
        assert isinstance(found, RemoteProtocolError)
        assert str(bad.address) in str(found)


@pytest.mark.spec("N8")
def test_giving_the_connection_up(caplog):
    text = "we are\nclosed\x1b[2J for today"
    with BadProducer(answering(error(4, text, receiver=CONNECTION))) as bad, Site(caplog) as site:
        found = error_of(site.read_from(bad.address))
        assert isinstance(found, TransportError)
        assert "the peer gave the connection up: we are" in str(found)
        assert found.peer == str(bad.address)


@pytest.mark.spec("N8")
def test_a_flood_of_keep_alives_is_not_kept(caplog):
    def script(member: Member) -> None:
        member.next(RequestPartition)
        for _ in range(50):
            member.say(encode_frame(KeepAlive()) * 1000)
        member.say(END)
        member.part()

    with BadProducer(script) as bad, Site(caplog) as site:
        assert values_of(site.read_from(bad.address)) == []


# Handshakes.


@pytest.mark.spec("N7", "N8")
@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(100), raw_frame(0x32, 0)], ids=["HTTP", "zeros", "a frame"]
)
def test_an_answer_that_is_no_handshake_is_an_auth_error(said, caplog):
    def script(stranger: Stranger) -> None:
        stranger.say(said)
        stranger.hear()

    with BadProducer(script, proves=False) as bad, Site(caplog) as site:
        found = error_of(site.read_from(bad.address))
        assert isinstance(found, AuthError)
        assert str(bad.address) in str(found)


@pytest.mark.spec("N7")
def test_a_reflected_proof(caplog):
    """Without the secret: a challenge of one's own, and the client's proof sent back to it."""

    def script(stranger: Stranger) -> None:
        stranger.socket.recv(50, socket.MSG_WAITALL)
        stranger.say(raw_frame(2, 0, struct.pack("<BI", 1, BAD_WORKER) + secrets.token_bytes(32)))
        proof = stranger.socket.recv(38, socket.MSG_WAITALL)
        stranger.say(raw_frame(4, 0, proof[-32:]))
        stranger.hear()

    with BadProducer(script, proves=False) as bad, Site(caplog) as site:
        found = error_of(site.read_from(bad.address))
        assert isinstance(found, AuthError)
        assert str(bad.address) in str(found)


@pytest.mark.spec("N7")
def test_an_echo(caplog):
    def script(stranger: Stranger) -> None:
        with contextlib.suppress(ConnectionResetError):
            while data := stranger.socket.recv(1 << 16):
                stranger.say(data)

    with BadProducer(script, proves=False) as bad, Site(caplog) as site:
        assert isinstance(error_of(site.read_from(bad.address)), AuthError)


@pytest.mark.spec("N7")
def test_a_worker_that_is_led_to_itself(caplog):
    """A port that hands everything on to the very worker that connects: it must not take itself for another."""

    def script(stranger: Stranger) -> None:
        with Stranger(site.consumer_address) as itself:
            for one in (stranger.socket, itself.socket):
                one.settimeout(0.02)
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                for one, other in ((stranger, itself), (itself, stranger)):
                    try:
                        data = one.socket.recv(1 << 16)
                    except TimeoutError:
                        continue
                    except ConnectionResetError:
                        return
                    if not data or not other.say(data):
                        return

    with Site(caplog) as site, BadProducer(script, proves=False) as bad:
        found = error_of(site.read_from(bad.address))
        assert isinstance(found, TransportError | AuthError)
        assert str(bad.address) in str(found)


@pytest.mark.spec("N7")
@pytest.mark.parametrize("who", [0, 1, 8], ids=["the good one", "itself", "a third"])
def test_another_worker_than_expected(who, caplog):
    with BadProducer(Member.part, worker=who) as bad, Site(caplog) as site:
        found = error_of(site.read_from(bad.address))
        assert isinstance(found, TransportError)
        assert f"worker {who} answers there, not worker 7" in str(found)
        assert str(bad.address) in str(found)


@pytest.mark.spec("N7", "N8")
def test_a_server_of_another_version(caplog):
    def script(stranger: Stranger) -> None:
        stranger.say(raw_frame(5, 0, bytes([200, 201])))
        stranger.hear()

    with BadProducer(script, proves=False) as bad, Site(caplog) as site:
        found = error_of(site.read_from(bad.address))
        assert isinstance(found, RemoteProtocolError)
        assert "versions 200 to 201" in str(found)
        assert str(bad.address) in str(found)


@pytest.mark.spec("N4", "N8")
@pytest.mark.parametrize("how", ["silence", "drip", "challenge"])
def test_a_handshake_that_takes_too_long(how, caplog):
    def script(stranger: Stranger) -> None:
        challenge = raw_frame(2, 0, struct.pack("<BI", 1, BAD_WORKER) + secrets.token_bytes(32))
        if how == "drip":
            for byte in challenge:
                if not stranger.say(bytes([byte])):
                    break
                time.sleep(0.05)
        elif how == "challenge":
            stranger.say(challenge)
        stranger.hear()

    with BadProducer(script, proves=False) as bad, Site(caplog, network__handshake_timeout="1 s") as site:
        found = error_of(site.read_from(bad.address))
        assert isinstance(found, TransportError)
        assert "the handshake took more than 1 s" in str(found)
        assert found.peer == str(bad.address)


@pytest.mark.spec("N4", "N8")
def test_never_accepting(caplog):
    """The port is open, and that is all."""
    with socket.create_server(("127.0.0.1", 0)) as server, Site(caplog, network__handshake_timeout="1 s") as site:
        address = Address(*server.getsockname()[:2])
        found = error_of(site.read_from(address))
        assert isinstance(found, TransportError)
        assert found.peer == str(address)


@pytest.mark.spec("N4", "N8")
def test_the_promise_of_a_connection_that_never_comes(caplog):
    """'I have a connection to you': asked again and again until the connect time-out, not for ever."""
    with (
        BadProducer(Member.part, duplicate=True) as bad,
        Site(caplog, network__connect_timeout="500 ms") as site,
    ):
        found = error_of(site.read_from(bad.address))
        assert isinstance(found, TransportError)
        assert "its own connection did not come" in str(found)
        assert 1 <= bad.served < 60


def test_the_tools_are_right(caplog):
    """What the bad do here is understood when it is not bad: so each test above fails for its own reason."""
    said = data_frame(0, 0, RECORD) + data_frame(0, 1, encode_event(EndOfPartition()), flags=EVENT | LAST)
    with BadProducer(answering(said)) as bad, Site(caplog) as site:
        assert values_of(site.read_from(bad.address)) == [b"sheaf"]
    client = ClientHandshake(SECRET, JOB, ATTEMPT, worker=BAD_WORKER, nonce=bytes(32))
    server = ServerHandshake(SECRET, JOB, ATTEMPT, worker=0, nonce=bytes(32))
    for _ in range(2):
        server.receive(client.data_to_send())
        client.receive(server.data_to_send())
    assert client.done
    assert server.done
