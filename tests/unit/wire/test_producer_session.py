"""The producer's session: who may send, in which order, what is said about the rest, and how a channel ends."""

import gc
import zlib

import pytest
from tests.support.producer_session import ATTEMPT, PLENTY, Producer, partition, short

from headgate.errors import (
    Cancelled,
    HeadgateError,
    InvariantViolated,
    LocalProtocolError,
    PartitionNotFound,
    ProducerFailed,
    RemoteProtocolError,
    TransportError,
    UnknownReceiver,
    UserCodeError,
    error_from_wire,
)
from headgate.ids import AttemptId, SubpartitionIndex
from headgate.record import CheckpointBarrier
from headgate.record.element import encode_event
from headgate.wire import (
    AddCredit,
    AnnounceBacklog,
    CancelRequest,
    Data,
    ReportError,
    RequestPartition,
    SendTaskEvent,
    When,
    encode_frame,
    producer,
)
from headgate.wire.codec import CREDIT_FRAME
from headgate.wire.flow import ENOUGH_STREAMS
from headgate.wire.frames import ALIGNMENT, MAX_BACKLOG, MAX_CREDIT, MAX_ERROR_TEXT_BYTES
from headgate.wire.producer import error_frame
from headgate.wire.states import ProducerState

BARRIER = CheckpointBarrier(1, 0)


def frames(messages):
    return [frame for frame, _ in messages]


# Credit ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("N2")
def test_a_buffer_is_sent_against_a_credit_and_uses_it_up():
    with Producer(5, credit=2) as side:
        side.add(5, b"a", b"b", b"c", b"d")
        assert short(side.send()) == [(5, b"a"), (5, b"b")]
        assert short(side.send()) == []
        side.credit(5, 1)
        assert short(side.send()) == [(5, b"c")]
        side.credit(5, 7)
        assert short(side.send()) == [(5, b"d")]
        assert side.session.streams[5].ledger.available == 6


@pytest.mark.spec("N2")
def test_an_event_needs_no_credit_and_uses_none():
    with Producer(5, credit=0) as side:
        side.event(5, BARRIER)
        side.event(5, BARRIER)
        assert short(side.send()) == [(5, "event"), (5, "event")]
        side.credit(5, 1)
        side.event(5, BARRIER)
        side.add(5, b"a")
        assert short(side.send()) == [(5, "event"), (5, b"a")]


@pytest.mark.spec("N2", "T5")
def test_an_event_does_not_overtake_the_data_before_it():
    with Producer(5, credit=1) as side:
        side.add(5, b"a", b"b")
        side.event(5, BARRIER)
        side.add(5, b"c")
        assert short(side.send()) == [(5, b"a")]
        side.credit(5, 1)
        assert short(side.send()) == [(5, b"b"), (5, "event")]
        side.credit(5, 1)
        assert short(side.send()) == [(5, b"c")]


@pytest.mark.spec("N2")
def test_without_credit_the_backlog_is_announced_and_again_each_time_it_has_doubled():
    with Producer(5, credit=0) as side:
        assert side.send() == []
        announced = []
        for number in range(1, 20):
            side.add(5, b"%d" % number)
            announced.append([frame.backlog for frame in frames(side.send())])
        said = {number: backlog for number, (backlog,) in enumerate(filter(None, announced))}
        assert list(said.values()) == [1, 2, 4, 8, 16]
        assert [number for number, one in enumerate(announced, start=1) if one] == [1, 2, 4, 8, 16]


@pytest.mark.spec("N2")
def test_a_backlog_that_has_doubled_wakes_the_network_thread():
    with Producer(5, credit=0) as side:
        side.add(5, b"a")
        side.send()
        side.woken  # noqa: B018 - forget it
        side.add(5, b"b")
        assert side.woken
        assert frames(side.send()) == [AnnounceBacklog(5, 2)]
        side.add(5, b"c")
        assert not side.woken, "three are not twice as many as two"
        assert side.send() == []


@pytest.mark.spec("N2")
def test_a_backlog_that_went_with_the_last_buffer_is_announced_when_it_has_doubled():
    with Producer(5, credit=1) as side:
        side.add(5, b"a", b"b", b"c")
        assert [frame.backlog for frame in frames(side.send())] == [2]
        side.add(5, b"d")
        assert side.send() == []
        side.add(5, b"e")
        assert frames(side.send()) == [AnnounceBacklog(5, 4)]
        side.credit(5, 4)
        assert [frame.backlog for frame in frames(side.send())] == [3, 2, 1, 0]
        side.add(5, b"f")
        assert frames(side.send()) == [AnnounceBacklog(5, 1)], "it counts from what was known last"


@pytest.mark.spec("N2")
def test_a_backlog_that_doubled_while_its_first_buffer_was_not_finished_is_announced():
    """The backlog that goes with a buffer counts the one behind it that is still written."""
    with Producer(5, credit=1) as side:
        side.add(5, b"a")
        buffer = side.begin(5, b"b")
        assert [frame.backlog for frame in frames(side.send())] == [1]
        side.end(5, buffer)
        assert side.send() == []
        side.add(5, b"c")
        assert frames(side.send()) == [AnnounceBacklog(5, 2)]


@pytest.mark.spec("N2")
def test_a_flush_without_credit_announces_nothing_that_is_known():
    with Producer(5, credit=0) as side:
        side.add(5, b"a", b"b", b"c")
        assert frames(side.send()) == [AnnounceBacklog(5, 3)]
        side.add(5, b"d")
        side.flush(5)
        side.locked(side.session.streams[5].available_locked)
        assert side.send() == [], "four are not twice as many as three; the next buffer tells how many"
        side.credit(5, 1)
        assert side.send() == [(Data(5, 0, backlog=3, size=1), b"a")]
        assert side.send() == [], "it went with the buffer"


@pytest.mark.spec("N2")
def test_each_buffer_carries_the_backlog_behind_it():
    with Producer(5, credit=10) as side:
        side.add(5, b"a", b"b")
        side.event(5, BARRIER)
        side.add(5, b"c")
        assert [(frame.sequence, frame.backlog) for frame in frames(side.send())] == [(0, 2), (1, 1), (2, 1), (3, 0)]


@pytest.mark.spec("N2")
def test_the_backlog_is_announced_again_after_a_backlog_of_zero_was_sent():
    with Producer(5, credit=1) as side:
        side.add(5, b"a")
        assert frames(side.send()) == [Data(5, 0, backlog=0, size=1)]
        side.add(5, b"b", b"c")
        assert frames(side.send()) == [AnnounceBacklog(5, 2)]
        side.credit(5, 2)
        assert [frame.backlog for frame in frames(side.send())] == [1, 0]
        side.add(5, b"d")
        assert frames(side.send()) == [AnnounceBacklog(5, 1)]


@pytest.mark.spec("N2")
def test_a_backlog_of_events_alone_is_none():
    with Producer(5, credit=0) as side:
        side.event(5, BARRIER)
        assert [frame.backlog for frame in frames(side.send())] == [0]
        assert side.send() == []


class Endless:
    """A supply that claims to have whatever it is told to."""

    notified, next_is_data, drained, urgent = True, True, False, False

    def __init__(self, backlog):
        self.backlog = backlog

    def notify_at_backlog_locked(self, backlog):
        """It never grows."""

    def poll_locked(self):
        raise AssertionError("there is no credit")


@pytest.mark.spec("N2")
@pytest.mark.parametrize("backlog", [MAX_BACKLOG, MAX_BACKLOG + 1, 2**40])
def test_the_announced_backlog_is_limited(backlog):
    with Producer() as side:
        stream = side.request(5, 0, accept=False)
        side.locked(side.session.accept_locked, stream, Endless(backlog))
        assert frames(side.send()) == [AnnounceBacklog(5, MAX_BACKLOG)]


@pytest.mark.spec("N2")
def test_credit_for_a_channel_without_data_is_kept():
    with Producer(5, credit=0) as side:
        side.credit(5, 3)
        assert not side.woken
        assert not side.session.has_work
        assert side.send() == []
        side.add(5, b"a")
        assert short(side.send()) == [(5, b"a")]


@pytest.mark.spec("N2")
def test_credit_may_come_before_the_subpartition_is_there():
    with Producer() as side:
        stream = side.request(5, 0, accept=False)
        side.credit(5, 1)
        assert side.send() == []
        side.queue(5)
        side.add(5, b"a")
        side.accept(stream)
        assert side.woken
        assert short(side.send()) == [(5, b"a")]


@pytest.mark.spec("N2")
def test_a_reply_is_expected_if_a_flushed_buffer_has_no_credit():
    with Producer(5, credit=1) as side:
        buffer = side.begin(5, b"to ")
        side.flush(5)
        assert len(side.send()) == 1
        assert not side.attended, "it had credit"
        buffer.append(b"be ")
        side.flush(5)
        assert side.attended == 1, "the consumer knows of it, and will answer"
        side.credit(5, 1)
        assert len(side.send()) == 1
        assert side.attended == 1
        side.end(5, buffer)


@pytest.mark.spec("N2")
def test_a_reply_is_expected_after_a_flushed_backlog_was_announced():
    with Producer(5, credit=0) as side:
        buffer = side.begin(5, b"to ")
        side.flush(5)
        assert not side.attended, "the consumer does not know of it yet"
        assert frames(side.send()) == [AnnounceBacklog(5, 1)]
        assert side.attended == 1
        side.end(5, buffer)


@pytest.mark.spec("N2")
def test_a_reply_is_expected_if_a_flush_continues_in_a_buffer_without_credit():
    with Producer(5, credit=1) as side:
        side.add(5, b"to ")
        buffer = side.begin(5, b"be ")
        side.flush(5)
        assert short(side.send()) == [(5, b"to ")]
        assert side.attended == 1
        side.credit(5, 1)
        assert short(side.send()) == [(5, b"be ")]
        assert side.attended == 1
        side.end(5, buffer)


@pytest.mark.spec("N2")
@pytest.mark.parametrize(("credit", "short_of_it"), [(0, True), (1, True), (2, False), (None, False)])
def test_a_flush_without_enough_credit_is_scheduled_to_poll_first(credit, short_of_it):
    with Producer(5, credit=credit) as side:
        side.add(5, b"to ")
        buffer = side.begin(5, b"be ")
        assert When.POLL_FIRST not in side.scheduled, "full buffers wait, and so does what is not flushed"
        side.flush(5)
        assert (When.POLL_FIRST in side.scheduled) is short_of_it
        side.end(5, buffer)


def test_credit_is_polled_before_a_flush_of_many_streams():
    with Producer(*range(ENOUGH_STREAMS)) as side:
        for receiver in range(ENOUGH_STREAMS):
            assert When.POLL_FIRST not in side.scheduled
            side.add(receiver, b"a")
        assert When.POLL_FIRST in side.scheduled
        side.send()


@pytest.mark.spec("N2")
def test_full_buffers_wait_for_credit_as_long_as_it_takes():
    with Producer(5, credit=0) as side:
        side.add(5, b"a")
        side.add(5, b"b")
        assert frames(side.send()) == [AnnounceBacklog(5, 2)]
        side.credit(5, 1)
        assert short(side.send()) == [(5, b"a")]
        assert not side.attended


@pytest.mark.parametrize(("channels", "enough"), [(10, 8), (287, 8), (320, 10)])
def test_buffers_of_many_channels_are_sent_before_the_writer_runs_out(channels, enough):
    with Producer(*range(channels), max_streams=channels, segments=2 * channels) as side:
        for number in range(1, enough + 1):
            assert not side.urgent
            side.add(number, b"a")
        assert side.urgent == 1
        side.add(enough + 1, b"a")
        assert side.urgent == 1, "it was said"


# Pieces of buffers -----------------------------------------------------------------------------------------


@pytest.mark.spec("N2", "T5")
def test_each_piece_of_a_buffer_that_is_flushed_early_is_a_buffer_of_its_own():
    with Producer(5, credit=2) as side:
        buffer = side.begin(5, b"to ")
        assert side.send() == [], "not flushed"
        side.flush(5)
        assert side.send() == [(Data(5, 0, backlog=1, size=3), b"to ")]
        buffer.append(b"be ")
        side.flush(5)
        assert side.send() == [(Data(5, 1, backlog=1, size=3, skew=3), b"be ")]
        buffer.append(b"or")
        side.flush(5)
        assert side.send() == []
        side.credit(5, 1)
        assert side.send() == [(Data(5, 2, backlog=1, size=2, skew=6), b"or")]
        side.end(5, buffer)
        assert side.send() == [], "all of it is sent"


@pytest.mark.spec("N2")
def test_an_event_comes_through_behind_a_buffer_that_was_passed_over_before():
    with Producer(5, credit=1) as side:
        buffer = side.begin(5, b"a")
        side.flush(5)
        assert short(side.send()) == [(5, b"a")]
        side.end(5, buffer)
        assert side.send() == [], "there is nothing left in it"
        side.event(5, BARRIER)
        assert [frame.event for frame in frames(side.send())] == [True]


@pytest.mark.spec("N2")
def test_a_stream_without_credit_and_with_an_announced_backlog_has_no_work():
    with Producer(5, credit=1) as side:
        side.add(5, b"a", b"b", b"c")
        assert short(side.send()) == [(5, b"a")]
        assert not side.session.has_work, "its backlog was said with the buffer"
        side.add(5, b"d")
        assert not side.session.has_work
        side.credit(5, 2)
        assert short(side.send()) == [(5, b"b"), (5, b"c")]


@pytest.mark.spec("N2")
def test_a_buffer_that_was_sent_up_to_its_end_needs_no_credit_to_be_passed_over():
    """An event behind it must get through: there is nothing before it that could use a credit."""
    with Producer(5, credit=1) as side:
        buffer = side.begin(5, b"a")
        side.flush(5)
        assert short(side.send()) == [(5, b"a")]
        side.end(5, buffer)
        side.event(5, BARRIER)
        data = encode_event(BARRIER)
        assert side.send() == [(Data(5, 1, backlog=0, size=len(data), event=True), data)]


@pytest.mark.spec("N1")
def test_a_payload_keeps_its_place_modulo_the_alignment():
    with Producer(5, credit=10) as side:
        buffer = side.begin(5)
        skews = []
        for size in (1, ALIGNMENT - 1, ALIGNMENT, 5, 1):
            buffer.append(bytes(size))
            side.flush(5)
            skews += [frame.skew for frame in frames(side.send())]
        side.end(5, buffer)
        assert skews == [0, 1, 0, 0, 5]


@pytest.mark.spec("N1")
def test_a_checksum_is_of_the_payload():
    with Producer(5, credit=10, checksum=zlib.crc32) as side:
        side.add(5, b"abc")
        side.finish(5)
        sent = side.send()
        assert [frame.checksum for frame, _ in sent] == [zlib.crc32(payload) for _, payload in sent]
        assert len(sent) == 2, "of events, too"


@pytest.mark.spec("N1")
def test_sequence_numbers_wrap():
    with Producer(5, credit=10) as side:
        side.session.streams[5].sequence = 2**32 - 2
        side.add(5, b"a", b"b")
        side.event(5, BARRIER)
        side.add(5, b"c")
        assert [frame.sequence for frame in frames(side.send())] == [2**32 - 2, 2**32 - 1, 0, 1]


def test_the_buffer_itself_is_sent_and_the_sender_releases_it():
    with Producer(5) as side:
        side.add(5, b"abc")
        with side.sync.lock:
            sending, wake = side.session.data_to_send_locked(PLENTY)
        assert wake is None
        (head, payload), (none, taken) = sending
        assert isinstance(head, bytes)
        assert none is None
        assert payload is taken.memory
        assert taken.buffer.segment is not None
        assert side.in_use == 1
        taken.release()
        assert side.in_use == 0


# Turns -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("N3")
def test_streams_alternate_one_buffer_each():
    with Producer(1, 2, 3, credit=10) as side:
        side.add(1, b"a", b"b", b"c", b"d")
        side.add(3, b"x", b"y")
        side.add(2, b"p")
        assert short(side.send()) == [
            *[(1, b"a"), (3, b"x"), (2, b"p")],
            *[(1, b"b"), (3, b"y")],
            *[(1, b"c"), (1, b"d")],
        ]


@pytest.mark.spec("N3")
def test_the_next_send_continues_with_the_next_stream():
    with Producer(1, 2, 3, credit=10) as side:
        for receiver in (1, 2, 3):
            side.add(receiver, b"aa", b"bb", b"cc")
        assert short(side.send(1)) == [(1, b"aa")], "at least one, while there is room"
        assert short(side.send(22)) == [(2, b"aa"), (3, b"aa")], "until the room is used up, or more"
        assert side.session.has_work
        assert short(side.send(22)) == [(1, b"bb"), (2, b"bb")]
        assert short(side.send(PLENTY)) == [(3, b"bb"), (1, b"cc"), (2, b"cc"), (3, b"cc")]
        assert not side.session.has_work


@pytest.mark.spec("N3")
@pytest.mark.parametrize("room", [0, -1])
def test_without_room_only_answers_are_sent(room):
    with Producer(1, 2, credit=10) as side:
        side.add(1, b"a")
        side.cancel(2)
        assert short(side.send(room)) == [ReportError(2, Cancelled.code, "as asked")]
        assert side.session.has_work
        assert short(side.send()) == [(1, b"a")]


@pytest.mark.spec("N3")
def test_a_stream_is_queued_once():
    with Producer(1, 2, credit=1) as side:
        for _ in range(3):
            side.add(1, b"a")
            side.credit(1, 1)
            side.locked(side.session.streams[1].available_locked)
        side.add(2, b"x")
        assert short(side.send()) == [(1, b"a"), (2, b"x"), (1, b"a"), (1, b"a")]


@pytest.mark.spec("N3")
def test_a_channel_without_credit_does_not_hold_up_the_others():
    with Producer(1, 2, credit=0) as side:
        side.credit(2, 2)
        side.add(1, b"a")
        side.add(2, b"x", b"y")
        assert short(side.send()) == [AnnounceBacklog(1, 1), (2, b"x"), (2, b"y")]
        side.credit(1, 1)
        assert side.woken, "it takes its place again"
        assert short(side.send()) == [(1, b"a")]


@pytest.mark.spec("N3")
def test_a_flush_makes_queued_buffers_urgent():
    with Producer(0) as side:
        side.add(0, b"full")
        assert side.urgent == 0, "there may be more soon"
        buffer = side.begin(0, b"rest")
        side.flush(0)
        assert side.urgent == 1, "also what it was told of before"
        assert short(side.send()) == [(0, b"full"), (0, b"rest")]
        side.end(0, buffer)


def test_an_event_makes_queued_buffers_urgent():
    with Producer(0) as side:
        side.add(0, b"full")
        side.event(0, BARRIER)
        assert side.urgent == 1


def test_the_network_thread_is_woken_for_data_backlog_credit_and_answers():
    with Producer(1, credit=1) as side:
        assert not side.woken, "nothing is there yet"
        side.add(1, b"a")
        assert side.woken
        side.send()
        side.add(1, b"b")
        assert side.woken, "the backlog is to be said"
        side.send()
        side.credit(1, 1)
        assert side.woken
        side.send()
        side.cancel(1)
        assert side.woken, "the answer"


# The end of a channel --------------------------------------------------------------------------------------


@pytest.mark.spec("N1", "P4")
def test_only_the_end_is_the_last():
    with Producer(5, credit=0) as side:
        side.event(5, BARRIER)
        side.finish(5)
        assert [(frame.event, frame.last) for frame in frames(side.send())] == [(True, False), (True, True)]
        assert side.session.streams[5].state is ProducerState.ENDED
        assert not side.session.idle, "the consumer has not said its last"
        side.cancel(5)
        assert side.session.streams == {}
        assert side.send() == [], "an end that both have said is not answered"
        assert side.session.idle


@pytest.mark.spec("N1")
def test_an_event_that_goes_before_the_end_is_there_is_not_the_last():
    with Producer(5, credit=0) as side:
        side.event(5, BARRIER)
        assert [frame.last for frame in frames(side.send())] == [False]
        side.finish(5)
        assert [frame.last for frame in frames(side.send())] == [True]


@pytest.mark.spec("N1")
def test_credit_and_task_events_that_cross_the_end_are_accepted():
    with Producer(5, credit=1) as side:
        side.finish(5)
        side.send()
        side.woken  # noqa: B018 - forget it
        side.credit(5, 3)
        side.credit(5, 3)
        assert not side.woken
        assert side.session.on_task_event(SendTaskEvent(5, ATTEMPT, b"...")) is side.session.streams[5]
        assert side.send() == []
        side.cancel(5)


def in_state(side, state):
    """A channel, receiver 5, in that state."""
    side.request(5, 1)
    side.add(5, b"a")
    if state != "untouched":
        side.send()
    if state in {"waiting", "turn"}:
        side.add(5, b"b", b"c")
    if state == "waiting":
        assert frames(side.send()) == [AnnounceBacklog(5, 2)]
    if state in {"ended", "crossed"}:
        side.finish(5)
        side.send()
    if state == "crossed":
        side.credit(5, 1)
    if state == "failed":
        side.fail(5, ValueError("boom"))
        side.send()


@pytest.mark.spec("G7", "N1")
@pytest.mark.parametrize("state", ["untouched", "sent", "waiting", "turn", "ended", "crossed", "failed"])
def test_a_channel_may_be_cancelled_in_every_state(state):
    with Producer() as side:
        in_state(side, state)
        side.cancel(5)
        answered = state not in {"ended", "crossed", "failed"}
        assert frames(side.send()) == ([ReportError(5, Cancelled.code, "as asked")] if answered else [])
        assert side.session.streams == {}
        assert side.session.idle
        assert not side.session.has_work
        assert side.in_use == 0, "all its buffers are back"
        for late in (AddCredit(5, ATTEMPT, 1), CancelRequest(5, ATTEMPT)):
            with pytest.raises(RemoteProtocolError, match="receiver 5, which is over or was never requested"):
                hear(side, late)
        with pytest.raises(UnknownReceiver):
            hear(side, SendTaskEvent(5, ATTEMPT, b""))


def hear(side, frame):
    if isinstance(frame, AddCredit):
        side.credit(frame.receiver, frame.credit, frame.attempt)
    elif isinstance(frame, CancelRequest):
        side.locked(side.session.on_cancel_locked, frame)
    else:
        side.session.on_task_event(frame)


@pytest.mark.spec("G7")
def test_a_request_may_be_cancelled_before_its_subpartition_is_found():
    with Producer() as side:
        stream = side.request(5, 1, accept=False)
        side.cancel(5)
        assert stream.state is ProducerState.GONE
        assert frames(side.send()) == [ReportError(5, Cancelled.code, "as asked")]


@pytest.mark.spec("G7")
def test_answers_are_sent_before_data():
    with Producer(1, 2, credit=10) as side:
        side.add(1, b"a")
        side.cancel(2)
        assert not side.session.idle
        assert short(side.send()) == [ReportError(2, Cancelled.code, "as asked"), (1, b"a")]


@pytest.mark.spec("G7")
def test_a_cancelled_stream_sends_no_more_buffers():
    with Producer(1, 2, credit=10) as side:
        side.add(1, b"a", b"b")
        side.add(2, b"x")
        side.send(1)
        side.cancel(1)
        assert short(side.send()) == [ReportError(1, Cancelled.code, "as asked"), (2, b"x")]


# Errors ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("G8")
def test_a_missing_partition_is_reported_with_its_name():
    with Producer() as side:
        stream = side.request(5, 2, accept=False)
        side.locked(side.session.fail_locked, stream, PartitionNotFound("no partition etl#1/v0.0[5]"))
        assert side.woken
        assert frames(side.send()) == [ReportError(5, 7, "no partition etl#1/v0.0[5]")]
        assert stream.state is ProducerState.ENDED
        side.credit(5, 1)
        side.cancel(5)
        assert side.session.idle


@pytest.mark.spec("G8")
@pytest.mark.parametrize(
    ("cause", "code", "text"),
    [
        (UserCodeError("division by zero", operator="map", subtask=3), 10, "map, subtask 3: division by zero"),
        (TransportError("connection reset", peer="10.0.0.1:7077"), 6, "connection reset (10.0.0.1:7077)"),
        (OSError("disk full"), 8, "disk full"),
        (ProducerFailed("the one before failed"), 8, "the one before failed"),
        (Cancelled("the job was stopped"), 12, "the job was stopped"),
        (None, 12, "was released"),
    ],
    ids=["user code", "transport", "not ours", "its producer", "cancelled", "released"],
)
def test_the_failure_of_a_producer_is_reported_with_its_cause(cause, code, text):
    with Producer(5, credit=1) as side:
        side.add(5, b"a")
        assert short(side.send()) == [(5, b"a")]
        side.fail(5, cause)
        assert side.woken
        (frame,) = frames(side.send())
        assert (frame.receiver, frame.code) == (5, code)
        assert text in frame.text
        again = error_from_wire(frame.code, frame.text)
        assert text in str(again)
        assert side.session.streams[5].state is ProducerState.ENDED
        assert side.send() == [], "once"
        side.cancel(5)


@pytest.mark.spec("G8")
def test_a_failure_needs_no_credit():
    """A slow consumer may give none for a long time."""
    with Producer(5, credit=0) as side:
        side.add(5, b"a")
        assert frames(side.send()) == [AnnounceBacklog(5, 1)]
        side.fail(5, ValueError("boom"))
        assert [type(frame) for frame in frames(side.send())] == [ReportError]


@pytest.mark.spec("G8")
def test_a_producer_that_failed_for_want_of_its_own_input_is_not_itself_missing():
    """Else its consumer would ask again, and again, for what it has half read."""
    with Producer(5, credit=1) as side:
        side.add(5, b"a")
        side.send()
        side.fail(5, PartitionNotFound("no partition etl#1/v9.0[0]"))
        (frame,) = frames(side.send())
        assert frame.code == ProducerFailed.code
        assert "no partition etl#1/v9.0[0]" in frame.text


@pytest.mark.spec("G8")
def test_buffers_that_were_not_sent_are_not_sent_after_a_failure():
    with Producer(5, credit=10) as side:
        side.add(5, b"a", b"b")
        assert short(side.send(1)) == [(5, b"a")]
        side.fail(5, ValueError("boom"))
        assert [type(frame) for frame in frames(side.send())] == [ReportError]


def test_only_a_channel_that_is_sending_can_fail():
    with Producer(5) as side:
        stream = side.session.streams[5]
        side.finish(5)
        side.send()
        with pytest.raises(
            LocalProtocolError, match=r"receiver 5 of partition etl#1/v0\.0\[5\]: error while it is ended"
        ):
            side.locked(side.session.fail_locked, stream, Cancelled("too late"))
        side.cancel(5)
        with pytest.raises(LocalProtocolError, match="error while it is gone"):
            side.locked(side.session.fail_locked, stream, Cancelled("too late"))


@pytest.mark.spec("G8")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HeadgateError("x"), 1),
        (InvariantViolated("x"), 11),
        (ProducerFailed("x"), 8),
        (ProducerFailed("x", cause=UserCodeError("x", operator="map", subtask=0)), 10),
        (ProducerFailed("x", cause=ValueError("x")), 8),
        (ProducerFailed("x", cause=Cancelled("x")), 8),
        (ProducerFailed("x", cause=PartitionNotFound("x")), 8),
        (PartitionNotFound("x"), 7),
        (Cancelled("x"), 12),
        (ValueError("x"), 8),
        (KeyboardInterrupt("x"), 8),
    ],
    ids=repr,
)
def test_an_error_travels_as_the_code_of_its_class_or_of_its_cause(error, code):
    wire = error_frame(5, error)
    assert wire[4] == ReportError.TYPE
    assert int.from_bytes(wire[10:12], "little") == code
    assert wire[12:] == b"x"


@pytest.mark.spec("G8", "N8")
@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("x" * 5000, "x" * MAX_ERROR_TEXT_BYTES),
        ("x" + "é" * 5000, "x" + "é" * ((MAX_ERROR_TEXT_BYTES - 1) // 2)),
        ("😀" * 5000, "😀" * (MAX_ERROR_TEXT_BYTES // 4)),
        ("a file \udcff that is not text", "a file ? that is not text"),
        ("", ""),
    ],
    ids=["long", "cut between characters", "wide", "not text", "empty"],
)
def test_an_error_text_is_cut_to_size(text, sent):
    assert error_frame(5, HeadgateError(text))[12:].decode() == sent


# What a peer does wrong ------------------------------------------------------------------------------------


def request(receiver, credit=2):
    return RequestPartition(receiver, partition(), SubpartitionIndex(0), credit)


@pytest.mark.spec("N8")
@pytest.mark.parametrize("receiver", [0, 4, 5])
def test_a_receiver_is_used_once(receiver):
    with Producer(5) as side:
        with pytest.raises(RemoteProtocolError, match=f"a request as receiver {receiver}, which was used before"):
            side.session.on_request(request(receiver))
        side.cancel(5)
        with pytest.raises(RemoteProtocolError, match="which was used before"):
            side.session.on_request(request(receiver))
        assert side.session.streams == {}, "a refusal leaves nothing behind"


@pytest.mark.spec("N8")
def test_a_connection_has_so_many_channels():
    with Producer(0, 1, max_streams=2) as side:
        with pytest.raises(RemoteProtocolError, match=r"more than 2 channels .*network\.max_channels_per_connection"):
            side.session.on_request(request(2))
        side.cancel(0)
        side.request(2)
        assert sorted(side.session.streams) == [1, 2]
        side.finish(1)
        side.send()
        with pytest.raises(RemoteProtocolError, match="more than 2 channels"):
            side.session.on_request(request(3))  # an ended one counts until the consumer has said its last


@pytest.mark.spec("N8")
@pytest.mark.parametrize(
    "frame",
    [AddCredit(5, AttemptId(2), 1), CancelRequest(5, AttemptId(2)), SendTaskEvent(5, AttemptId(2), b"")],
    ids=lambda frame: type(frame).__name__,
)
def test_a_frame_of_another_attempt_touches_nothing(frame):
    with Producer(5, credit=1) as side:
        name = type(frame).__name__
        with pytest.raises(RemoteProtocolError, match=f"receiver 5 of partition etl#1/.*: {name} of attempt 2"):
            hear(side, frame)
        assert side.session.streams[5].ledger.granted == 1
        assert side.session.streams[5].state is ProducerState.SENDING


@pytest.mark.spec("N8")
@pytest.mark.parametrize(
    "frame",
    [AddCredit(6, ATTEMPT, 1), CancelRequest(6, ATTEMPT)],
    ids=lambda frame: type(frame).__name__,
)
def test_a_frame_for_a_receiver_that_never_was_is_refused(frame):
    with Producer(5) as side:
        name = type(frame).__name__
        with pytest.raises(RemoteProtocolError, match=f"{name} for receiver 6, which is over or was never requested"):
            hear(side, frame)


@pytest.mark.spec("N8")
@pytest.mark.parametrize("state", ["sending", "ended"])
def test_credit_does_not_overflow(state):
    with Producer(5, credit=1) as side:
        if state == "ended":
            side.finish(5)
            side.send()
        side.credit(5, MAX_CREDIT - 1)
        with pytest.raises(RemoteProtocolError, match=f"a credit of 1 on top of {MAX_CREDIT}"):
            side.credit(5, 1)


def grant(side, wire, position=0):
    """Take a run of credit from these bytes; where it stopped."""
    with side.sync.lock:
        stop, wake = side.session.on_credit_locked(memoryview(wire), position)
    if wake is not None:
        wake()
    return stop


@pytest.mark.spec("G5", "N6")
def test_a_run_of_credit_counts_as_single_frames_do():
    credit = [
        encode_frame(AddCredit(receiver, AttemptId(ATTEMPT), number)) for receiver, number in ((5, 1), (6, 2), (5, 1))
    ]
    with Producer(5, 6, credit=0) as side:
        for receiver in (5, 6):
            side.add(receiver, b"a", b"b", b"c")
        side.send()
        side.woken  # noqa: B018 - forget it
        wire = b"..." + b"".join(credit) + credit[0][:7]
        assert grant(side, wire, position=3) == len(wire) - 7, "what is cut off is left"
        assert side.woken
        assert short(side.send()) == [(5, b"a"), (6, b"a"), (5, b"b"), (6, b"b")]


@pytest.mark.spec("N6", "N8")
def test_credit_that_is_refused_leaves_nothing_behind_that_looks_into_memory():
    """Such an iterator, collected with the frames of an error, crashes CPython 3.11 (gh-77894)."""
    known, unknown = (encode_frame(AddCredit(receiver, AttemptId(ATTEMPT), 1)) for receiver in (5, 9))
    with Producer(5, credit=0) as side:
        with pytest.raises(RemoteProtocolError, match="receiver 9") as refused:
            grant(side, known + unknown + known)
        looking = [one for one in gc.get_objects() if type(one).__name__ == "unpack_iterator"]
        assert not [one for one in looking if any(type(seen) is memoryview for seen in gc.get_referents(one))]
        assert refused.value.__traceback__ is not None, "and its frames"


@pytest.mark.spec("G5", "N6")
def test_a_run_of_credit_may_be_long():
    credit = encode_frame(AddCredit(5, AttemptId(ATTEMPT), 1))
    with Producer(5, credit=0) as side:
        wire, position = credit * 1_000, 0
        while (stop := grant(side, wire, position)) > position:
            position = stop
        assert position == len(wire)
        assert side.session.streams[5].ledger.available == 1_000


@pytest.mark.spec("N6", "N8")
@pytest.mark.parametrize(
    "wire",
    [
        CREDIT_FRAME.pack(13, AddCredit.TYPE, 5, ATTEMPT, 1),
        CREDIT_FRAME.pack(15, AddCredit.TYPE, 5, ATTEMPT, 1),
        CREDIT_FRAME.pack(14, AddCredit.TYPE | 1 << 8, 5, ATTEMPT, 1),
        CREDIT_FRAME.pack(14, AddCredit.TYPE, 5, ATTEMPT, 0),
        CREDIT_FRAME.pack(14, AddCredit.TYPE, 5, ATTEMPT, MAX_CREDIT + 1),
        encode_frame(CancelRequest(5, AttemptId(ATTEMPT))) + bytes(8),
    ],
    ids=lambda wire: wire.hex(" "),
)
def test_frames_that_are_not_plain_credit_end_a_run(wire):
    good = encode_frame(AddCredit(5, AttemptId(ATTEMPT), 1))
    with Producer(5, credit=0) as side:
        assert grant(side, wire) == 0
        assert side.session.streams[5].ledger.granted == 0
        assert grant(side, good + wire + good) == len(good), "the decoder looks at it more closely"
        assert side.session.streams[5].ledger.granted == 1


@pytest.mark.spec("N8")
@pytest.mark.parametrize(
    ("receiver", "attempt", "number", "words"),
    [
        (7, ATTEMPT, 1, "AddCredit for receiver 7, which is over or was never requested"),
        (5, ATTEMPT + 1, 1, f"AddCredit of attempt {ATTEMPT + 1}"),
        (5, ATTEMPT, MAX_CREDIT, "on top of 1: the limit is"),
    ],
)
def test_a_run_of_credit_is_refused_with_the_same_text(receiver, attempt, number, words):
    with Producer(5, credit=1) as side:
        with pytest.raises(RemoteProtocolError, match=words):
            grant(side, encode_frame(AddCredit(receiver, AttemptId(attempt), number)))
        with pytest.raises(RemoteProtocolError, match=words):
            side.credit(receiver, number, attempt)


@pytest.mark.spec("N8")
def test_a_storm_of_credit_costs_nothing_that_stays():
    with Producer(5, credit=0) as side:
        side.add(5, b"a", b"b")
        for _ in range(10_000):
            side.credit(5, 1)
        assert len(side.session.queue) == 1
        assert side.session._control == []
        assert short(side.send()) == [(5, b"a"), (5, b"b")]
        for _ in range(10_000):
            side.credit(5, 1)
        assert len(side.session.queue) == 0


@pytest.mark.spec("N8")
def test_a_flood_of_requests_that_are_cancelled_at_once_ends(monkeypatch):
    monkeypatch.setattr(producer, "_MAX_USELESS", 3)
    with Producer() as side:
        for receiver in range(3):
            side.request(receiver)
            side.cancel(receiver)
        side.request(3)
        side.add(3, b"a")
        side.send()
        side.cancel(3)  # not in vain: something was sent
        side.request(4)
        with pytest.raises(RemoteProtocolError, match="4 requests were cancelled before anything was sent"):
            side.cancel(4)


@pytest.mark.spec("K4")
def test_an_event_for_the_task_leads_to_its_partition():
    with Producer(4, 5) as side:
        stream = side.session.on_task_event(SendTaskEvent(5, ATTEMPT, b"..."))
        assert stream.request.partition == partition(5)
        assert not side.woken
        assert side.send() == []


@pytest.mark.spec("K4")
@pytest.mark.parametrize("receiver", [5, 9], ids=["over", "never requested"])
def test_a_task_event_without_a_receiver_is_answered_and_the_channels_go_on(receiver):
    with Producer(4, 5, credit=1) as side:
        side.cancel(5)
        side.send()
        with pytest.raises(UnknownReceiver, match=f"receiver {receiver} of a task event is over or was never") as error:
            side.session.on_task_event(SendTaskEvent(receiver, ATTEMPT, b"..."))
        side.locked(side.session.refuse_event_locked, receiver, error.value)
        assert side.woken
        assert frames(side.send()) == [ReportError(receiver, UnknownReceiver.code, str(error.value), ends=False)]
        side.add(4, b"a")
        assert short(side.send()) == [(4, b"a")]


@pytest.mark.spec("K4", "N8")
def test_answers_to_task_events_do_not_pile_up_while_the_peer_reads_nothing():
    with Producer(5) as side:
        for _ in range(3000):
            side.locked(side.session.refuse_event_locked, 5, UnknownReceiver("none"))
        assert len(side.send()) == 1000


@pytest.mark.spec("N8")
def test_a_flood_of_task_events_without_a_receiver_ends(monkeypatch):
    monkeypatch.setattr(producer, "_MAX_USELESS", 3)
    with Producer() as side:
        for _ in range(3):
            with pytest.raises(UnknownReceiver):
                side.session.on_task_event(SendTaskEvent(5, ATTEMPT, b""))
        with pytest.raises(RemoteProtocolError, match="4 requests and task events came to nothing"):
            side.session.on_task_event(SendTaskEvent(5, ATTEMPT, b""))


# Without credit --------------------------------------------------------------------------------------------


@pytest.mark.spec("N5")
def test_without_flow_control_everything_is_sent_and_no_backlog_announced():
    with Producer(1, 2, credit=None) as side:
        side.add(1, *(bytes([i]) for i in range(20)))
        side.add(2, b"x")
        side.finish(2)
        sent = side.send()
        assert [payload for frame, payload in sent if frame.receiver == 1] == [bytes([i]) for i in range(20)]
        assert {type(frame) for frame in frames(sent)} == {Data}
        assert [one for one in short(sent) if one[0] == 2] == [(2, b"x"), (2, "event")]
        assert short(sent)[:4] == [(1, b"\x00"), (2, b"x"), (1, b"\x01"), (2, "event")], "in turns all the same"


@pytest.mark.spec("N5", "N8")
def test_credit_where_there_is_none_is_refused():
    with Producer(5, credit=None) as side, pytest.raises(RemoteProtocolError, match="credit, where there is none"):
        side.credit(5, 1)
