"""Bad input from those who have proved themselves and then ask for what is not theirs, or do not listen.

They attack worker 0, which produces. What they ask for is the bait; the good transfer has another connection.
"""

import random
import struct
import time

import pytest
from tests.abuse.support_abuse import (
    ATTEMPT,
    JOB,
    SEGMENT_BYTES,
    Member,
    Site,
    data_frame,
    keeping_little,
    pid,
    raw_frame,
)
from tests.support.threads import Thread
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.errors import Cancelled, PartitionNotFound, RemoteProtocolError
from headgate.ids import AttemptId, JobId, SubpartitionIndex
from headgate.output.pipelined import SubpartitionState
from headgate.record import UserEvent
from headgate.record.element import encode_event
from headgate.wire import (
    CONNECTION,
    AddCredit,
    AnnounceBacklog,
    CancelRequest,
    Close,
    Data,
    KeepAlive,
    ReportError,
    RequestPartition,
    SendTaskEvent,
    encode_frame,
)
from headgate.wire.frames import MAX_CREDIT, MAX_ERROR_TEXT_BYTES, MAX_TASK_EVENT_BYTES

KINDS = [RequestPartition, AddCredit, CancelRequest, SendTaskEvent, AnnounceBacklog, ReportError, Close, KeepAlive]


def request(receiver: int = 0, *, which=None, subpartition: int = 0, credit: int | None = 2) -> RequestPartition:
    return RequestPartition(receiver, pid() if which is None else which, SubpartitionIndex(subpartition), credit)


def add_credit(credit: int, receiver: int = 0, attempt: int = ATTEMPT) -> bytes:
    return raw_frame(AddCredit.TYPE, 0, struct.pack("<III", receiver, attempt, credit))


def raw_request(receiver: int, credit: int, *, flags: int = 0, job: bytes = JOB.encode(), job_bytes=None) -> bytes:
    numbers = struct.pack("<IIIIIII", receiver, ATTEMPT, 1, 0, 0, 0, credit)
    return raw_frame(RequestPartition.TYPE, flags, numbers + bytes([job_bytes or len(job)]) + job)


def assert_cut_off(site: Site, member: Member, text: str) -> None:
    """The member is told why and loses its connection; the worker's log has it once, with the address."""
    error = member.last_words()
    assert error.code == RemoteProtocolError.code
    assert error.text
    site.assert_logged_once(member.name, text)
    wait_until(lambda: site.connections == 1, "the end of the bad connection")
    assert site.refused == 0, "it was no stranger"


# Bytes that are no frames.

NO_FRAMES = {
    "random bytes": (random.Random(3).randbytes(1000), "a frame of"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "a frame of"),
    "length 0": (raw_frame(0x32, 0, length=0), "a frame of 0 bytes"),
    "length 1": (raw_frame(0x32, 0, length=1), "a frame of 1 bytes"),
    "length below the header of data": (raw_frame(Data.TYPE, 0, bytes(12)), "data in a frame of 14 bytes"),
    "length above the cap": (raw_frame(Data.TYPE, 0, length=SEGMENT_BYTES + 10_000), "a frame of"),
    "length 2**31": (raw_frame(0x32, 0, length=2**31), "a frame of 2147483648 bytes"),
    "length 2**32 - 1": (raw_frame(Data.TYPE, 0, length=2**32 - 1), "a frame of 4294967295 bytes"),
    "a small frame that is large": (raw_frame(0x32, 0, bytes(8193)), "frame type 0x32 of 8195 bytes"),
    "unknown type": (raw_frame(0x99, 0, bytes(10)), "unknown frame type 0x99"),
    "type 0": (raw_frame(0, 0), "unknown frame type 0x00"),
    "hello again": (raw_frame(1, 0, bytes(42)), "unknown frame type 0x01"),
    "data with reserved flags": (data_frame(0, 0, b"abc", flags=0x10), "reserved flags"),
    **{
        f"{kind.__name__} with reserved flags": (raw_frame(kind.TYPE, 0x80, bytes(12)), "reserved flags 0x80")
        for kind in KINDS
    },
    **{f"{kind.__name__} too short": (raw_frame(kind.TYPE, 0, b"\1"), "bad body") for kind in KINDS},
    "close with a body": (raw_frame(Close.TYPE, 0, b"\1"), "bad body"),
    "credit with a tail": (raw_frame(AddCredit.TYPE, 0, bytes(13)), "bad body"),
    "a job's name that is longer than its frame": (raw_request(0, 2, job_bytes=200), "claims to have 200"),
    "a job's name that is no text": (raw_request(0, 2, job=b"\xff\xfe"), "bad body"),
    "an error text that is no text": (raw_frame(ReportError.TYPE, 0, bytes(6) + b"\xff"), "bad body"),
    "an error text that is too long": (
        raw_frame(ReportError.TYPE, 0, struct.pack("<IH", CONNECTION, 4) + b"x" * (MAX_ERROR_TEXT_BYTES + 1)),
        "an error text of 1025 bytes",
    ),
    "a task event that is too long": (
        raw_frame(SendTaskEvent.TYPE, 0, bytes(8 + MAX_TASK_EVENT_BYTES + 1)),
        "a task event of 4097 bytes",
    ),
}


@pytest.mark.spec("N8")
@pytest.mark.parametrize(("said", "text"), NO_FRAMES.values(), ids=NO_FRAMES.keys())
def test_bytes_that_are_no_frames(said, text, caplog):
    with Site(caplog) as site, Member(site.address) as member:
        member.say(said)
        assert_cut_off(site, member, text)


# Frames that make no sense.

NO_SENSE = {
    "credit 0": (add_credit(0), "a credit of 0"),
    "negative credit": (add_credit(0xFFFF_FFFF), "a credit of 4294967295"),
    "credit above the limit": (add_credit(MAX_CREDIT + 1), "a credit of 131073"),
    "credit that overflows": (add_credit(MAX_CREDIT - 1), "a credit of 131071 on top of 2"),
    "credit for an unknown channel": (add_credit(1, receiver=1), "AddCredit for receiver 1"),
    "credit for a closed channel": (
        encode_frame(CancelRequest(0, ATTEMPT)) + add_credit(1),
        "AddCredit for receiver 0",
    ),
    "credit of another attempt": (add_credit(1, attempt=ATTEMPT - 1), "AddCredit of attempt 2"),
    "cancelling twice": (2 * encode_frame(CancelRequest(0, ATTEMPT)), "CancelRequest for receiver 0"),
    "cancelling what never was": (encode_frame(CancelRequest(5, ATTEMPT)), "CancelRequest for receiver 5"),
    "cancelling for another attempt": (encode_frame(CancelRequest(0, AttemptId(4))), "CancelRequest of attempt 4"),
    "an event of another attempt": (encode_frame(SendTaskEvent(0, AttemptId(4), b"")), "SendTaskEvent of attempt 4"),
    "an event that is none": (encode_frame(SendTaskEvent(0, ATTEMPT, b"\x93" * 4000)), "not an event"),
    "the same request twice": (encode_frame(request()), "receiver 0, which was used before"),
    "the same subpartition as another receiver": (encode_frame(request(1)), "already has its reader"),
    "what another worker reads": (encode_frame(request(1, which=pid(0))), "already has its reader"),
    "a receiver that goes back": (
        encode_frame(request(9, subpartition=1)) + encode_frame(request(8)),
        "receiver 8, which was used before",
    ),
    "another job's partition": (encode_frame(request(1, which=pid(job=JobId("other")))), "another job or attempt"),
    "another attempt's partition": (
        encode_frame(request(1, which=pid(attempt=AttemptId(ATTEMPT - 1)))),
        "another job or attempt",
    ),
    "a request without credit": (encode_frame(request(1, credit=None)), "another flow control"),
    "a request with too much credit": (raw_request(1, MAX_CREDIT + 1), "an initial credit of 131073"),
    "a request as the whole connection": (raw_request(CONNECTION, 2), "bad body"),
    "data that nobody asked for": (data_frame(0, 0, b"abc"), "data for receiver 0, which was never requested"),
    "data for the whole connection": (data_frame(CONNECTION, 0, b"abc"), "data for receiver 4294967295"),
    "a backlog that nobody asked for": (encode_frame(AnnounceBacklog(0, 1)), "a backlog for receiver 0"),
    "an error of a channel that is not read": (encode_frame(ReportError(0, 4, "no")), "an error for receiver 0"),
    "closing twice": (2 * encode_frame(Close()), "they close while it is they closed"),
    "a request after closing": (encode_frame(Close()) + encode_frame(request(1, subpartition=1)), "request"),
}


@pytest.mark.spec("N8")
@pytest.mark.parametrize(("said", "text"), NO_SENSE.values(), ids=NO_SENSE.keys())
def test_frames_that_make_no_sense(said, text, caplog):
    with Site(caplog) as site, Member(site.address) as member:
        site.bait(subpartitions=2)
        site.producer.registry.subscribe(pid(), "reload", lambda event: None)
        member.say(encode_frame(request()), said)
        assert_cut_off(site, member, text)


@pytest.mark.spec("N8")
def test_the_writer_of_a_cut_off_reader_is_cancelled_with_the_name_of_the_peer(caplog):
    """The writer whose only reader has lost its connection: it is stopped, and told by whom."""
    with Site(caplog) as site, Member(site.address) as member:
        writer = site.bait()
        member.tell(request())
        member.say(add_credit(0))
        assert_cut_off(site, member, "a credit of 0")
        with pytest.raises(Cancelled, match="a credit of 0") as caught:
            writer.emit_batch([bytes(1000)] * 100)
        assert member.name in str(caught.value)
        writer.close()


@pytest.mark.spec("N8")
def test_a_request_behind_the_end_takes_nothing(caplog):
    """Both have closed, and the request stands in the same bytes: its partition stays as it was."""
    with Site(caplog) as site, Member(site.address) as member:
        writer = site.bait()
        member.tell(Close(), request())
        member.hear()
        wait_until(lambda: site.connections == 1, "the end of the bad connection")
        assert len(site.logged(member.name)) <= 1
        writer.emit(b"nobody has come")
        [queue] = writer.partition.statistics().subpartitions
        assert queue.state is SubpartitionState.WRITING


@pytest.mark.spec("N8")
def test_an_unknown_partition_is_not_found_and_no_reason_to_part(caplog):
    """A consumer may ask before its producer is there: that is no bad manners, so the connection stays."""
    with Site(caplog) as site, Member(site.address) as member:
        site.bait()
        for receiver, asked in enumerate([request(which=pid(99)), request(subpartition=7)]):
            member.tell(RequestPartition(receiver, asked.partition, asked.subpartition, 2))
            answer = member.next()
            assert (answer.receiver, answer.code) == (receiver, PartitionNotFound.code)
        assert site.connections == 2
        assert site.logged(member.name) == []


# Too much of everything.


@pytest.mark.spec("N8")
def test_a_storm_of_single_credits(caplog):
    """More credit than can ever be meant, one by one."""
    with Site(caplog) as site, Member(site.address) as member:
        site.bait()
        with keeping_little() as look:
            member.tell(request(credit=MAX_CREDIT - 20_000))
            for _ in range(50):
                if not member.say(add_credit(1) * 512):
                    break
                look()
            assert_cut_off(site, member, "a credit of 1 on top of 131072")


@pytest.mark.spec("N8")
def test_more_channels_than_allowed(caplog):
    with Site(caplog, network__max_channels_per_connection=50) as site, Member(site.address) as member:
        member.tell(*[request(i, which=pid(99)) for i in range(51)])
        assert_cut_off(site, member, "more than 50 channels on one connection")


@pytest.mark.spec("N8")
def test_a_flood_of_requests_and_cancellations(caplog, monkeypatch):
    """As with HTTP/2's rapid reset: each is fine, and costs the worker more than the peer."""
    monkeypatch.setattr("headgate.wire.producer._MAX_USELESS", 5000)
    with Site(caplog) as site, Member(site.address, receive_buffer=4096) as member:
        with keeping_little() as look:
            for start in range(0, 6000, 100):
                pairs = [
                    frame
                    for i in range(start, start + 100)
                    for frame in (request(i, which=pid(99)), CancelRequest(i, ATTEMPT))
                ]
                if not member.tell(*pairs):
                    break
                look()
            wait_until(lambda: site.connections == 1, "the end of the bad connection")
        site.assert_logged_once(member.name, "5001 requests were cancelled before anything was sent")
        member.hear()


@pytest.mark.spec("N8")
def test_a_flood_of_keep_alives_and_task_events(caplog):
    """Nothing is wrong with any of them; nothing is kept of them either."""
    heard = []
    with Site(caplog) as site, Member(site.address) as member:
        site.bait()
        site.producer.registry.subscribe(pid(), "reload", heard.append)
        member.tell(request())
        event = encode_frame(SendTaskEvent(0, ATTEMPT, encode_event(UserEvent("reload", bytes(4000)))))
        other = encode_frame(SendTaskEvent(0, ATTEMPT, encode_event(UserEvent("other", bytes(4000)))))
        with keeping_little() as look:
            for _ in range(40):
                member.say(encode_frame(KeepAlive()) * 1000, other * 100)
                look()
            member.say(event)
            wait_until(lambda: heard, "the last event")
        assert heard == [UserEvent("reload", bytes(4000))]


# Too slow, or not at all.


@pytest.mark.spec("N4", "N8")
def test_huge_credit_and_never_reading(caplog):
    """The bait's buffers are all that it holds, and after the idle time-out it is over, keep-alives or not."""
    with (
        Site(caplog, network__idle_timeout="1 s", network__send_buffer="8 KiB") as site,
        Member(site.address, receive_buffer=4096) as member,
    ):
        writer = site.bait()
        bound = writer.partition.pool.statistics().maximum + site.producer.limits.max_overdraft_buffers
        good = site.used(site.producer)
        member.tell(request(credit=MAX_CREDIT))

        def write() -> None:
            while True:
                writer.emit(bytes(1000))

        writing = Thread(write)
        worst = 0
        while writing.is_alive():
            member.tell(KeepAlive())
            worst = max(worst, site.used(site.producer) - good)
            time.sleep(0.05)
        assert isinstance(writing.error, Cancelled)
        assert "accepted no bytes for 1 s" in str(writing.error)
        assert member.name in str(writing.error)
        assert worst <= bound + good + 20, "its own pool, and what the good transfer may hold"
        writer.close()
        member.hear()
        site.assert_logged_once(member.name, "accepted no bytes for 1 s")


@pytest.mark.spec("N4", "N8")
@pytest.mark.parametrize("used", [False, True], ids=["unused", "with a channel"])
def test_silence_after_the_handshake(used, caplog):
    with Site(caplog, network__idle_timeout="1 s") as site, Member(site.address) as member:
        writer = site.bait()
        if used:
            member.tell(request())
        member.hear()
        site.assert_logged_once(member.name, r"nothing was received for 1 s \(network.idle_timeout\)")
        wait_until(lambda: site.connections == 1, "the end of the bad connection")
        if used:
            with pytest.raises(Cancelled, match="nothing was received for 1 s"):
                writer.emit_batch([bytes(1000)] * 100)
        writer.close()


SLOW = {
    "a request": encode_frame(request()),
    "a frame that takes for ever": encode_frame(SendTaskEvent(0, ATTEMPT, bytes(4000))),
}


@pytest.mark.spec("N4", "N8")
@pytest.mark.parametrize("said", SLOW.values(), ids=SLOW.keys())
def test_one_byte_at_a_time_after_the_handshake(said, caplog):
    """Bytes are no sign of life; frames are."""
    with Site(caplog, network__idle_timeout="1 s") as site, Member(site.address) as member:
        deadline = time.monotonic() + PATIENCE_S
        for byte in said:
            if site.logged(member.name) or not member.say(bytes([byte])):
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        member.hear()
        site.assert_logged_once(member.name, "nothing was received for 1 s")
