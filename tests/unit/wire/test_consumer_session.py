"""The consumer's session: what it asks and promises, what it takes and what it refuses, and how a channel ends."""

import struct

import pytest
from tests.support.frames import feed
from tests.support.producer_session import ATTEMPT, partition

from headgate.errors import Cancelled, InvariantViolated, LocalProtocolError, RemoteProtocolError, UnknownReceiver
from headgate.ids import SubpartitionIndex
from headgate.wire import (
    CONNECTION,
    AddCredit,
    AnnounceBacklog,
    CancelRequest,
    ConsumerSession,
    Data,
    Decoder,
    KeepAlive,
    ReportError,
    RequestPartition,
    SendTaskEvent,
    encode_frame,
)
from headgate.wire.frames import MAX_CREDIT, MAX_TASK_EVENT_BYTES
from headgate.wire.states import ConsumerState

RECEIVING, ENDED, CANCELLED, GONE = ConsumerState
THE_END = {"event": True, "last": True}


def request(session, credit=2, subtask=0, target="target"):
    return session.request(partition(subtask), SubpartitionIndex(3), credit, target)


def said(session):
    """What goes out now, as frames."""
    return feed(Decoder(max_payload_bytes=0), b"".join(session.data_to_send()))


@pytest.fixture
def session():
    return ConsumerSession()


@pytest.fixture
def stream(session):
    """Receiver 0, with a credit of 2, just asked for."""
    one = request(session)
    session.data_to_send()
    return one


def data(sequence, size=1, receiver=0, backlog=0, **flags):
    return Data(receiver, sequence, backlog, size, **flags)


# Asking ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("N1")
def test_a_request_carries_partition_subpartition_and_initial_credit(session):
    streams = [request(session, credit, subtask) for subtask, credit in enumerate((2, 0, None))]
    assert said(session) == [
        RequestPartition(0, partition(0), SubpartitionIndex(3), 2),
        RequestPartition(1, partition(1), SubpartitionIndex(3), 0),
        RequestPartition(2, partition(2), SubpartitionIndex(3), None),
    ]
    assert [one.receiver for one in streams] == [0, 1, 2]
    assert said(session) == [], "each byte once"
    assert list(session.streams.values()) == streams
    assert [one.state for one in streams] == [RECEIVING] * 3


@pytest.mark.spec("N1", "N8")
def test_a_receiver_is_never_used_again(session):
    for number in range(3):
        one = request(session)
        assert one.receiver == number
        session.on_data(data(0, receiver=number, **THE_END))
        session.cancel(one)
        assert not session.idle, "the peer has not been told"
        said(session)
        assert session.idle


def test_a_connection_runs_out_of_receivers_before_the_one_that_means_itself(session):
    session._next_receiver = CONNECTION - 1
    assert request(session).receiver == CONNECTION - 1
    with pytest.raises(LocalProtocolError, match="run out of receiver numbers"):
        request(session)
    assert len(session.streams) == 1


@pytest.mark.spec("G5")
def test_granted_credit_is_outstanding(session, stream):
    session.grant(stream, 3)
    assert said(session) == [AddCredit(0, ATTEMPT, 3)]
    assert stream.book.outstanding == 5


@pytest.mark.spec("G5")
@pytest.mark.parametrize("credit", [0, -1, MAX_CREDIT])
def test_invalid_credit_violates_an_invariant(session, stream, credit):
    with pytest.raises(InvariantViolated):
        session.grant(stream, credit)
    assert said(session) == []
    assert stream.book.outstanding == 2


@pytest.mark.spec("K4")
def test_a_task_event_is_sent_to_the_producer(session, stream):
    session.send_task_event(stream, b"reload")
    assert said(session) == [SendTaskEvent(0, ATTEMPT, b"reload")]
    session.on_data(data(0, **THE_END))
    session.send_task_event(stream, b"again")
    assert said(session) == [SendTaskEvent(0, ATTEMPT, b"again")], "the producer may want to know after its end, too"


def test_a_task_event_over_the_limit_is_a_local_protocol_error(session, stream):
    with pytest.raises(LocalProtocolError, match="a task event of 4097 bytes"):
        session.send_task_event(stream, bytes(MAX_TASK_EVENT_BYTES + 1))
    assert said(session) == []
    assert stream.state is RECEIVING


def test_frames_are_sent_in_the_order_of_calls(session):
    first, second = request(session), request(session)
    session.grant(second, 1)
    session.grant(first, 2)
    session.cancel(second)
    kinds = [(type(frame), frame.receiver) for frame in said(session)]
    assert kinds == [
        (RequestPartition, 0),
        (RequestPartition, 1),
        (AddCredit, 1),
        (AddCredit, 0),
        (CancelRequest, 1),
    ]


# Receiving -------------------------------------------------------------------------------------------------


@pytest.mark.spec("G6")
def test_received_data_belongs_to_its_stream_and_uses_a_credit(session, stream):
    other = request(session, target="other")
    assert session.on_data(data(0, receiver=1)) is other
    assert other.target == "other"
    assert session.on_data(data(0)) is stream
    assert session.on_data(data(1)) is stream
    assert [stream.book.outstanding, other.book.outstanding] == [0, 1]


@pytest.mark.spec("N2", "G6")
def test_an_event_uses_none(session, stream):
    for sequence in range(5):
        session.on_data(data(sequence, event=True))
    assert stream.book.outstanding == 2
    assert stream.expected == 5


@pytest.mark.spec("G6", "N8")
@pytest.mark.parametrize("received", [0, 1, 3, 2**32 - 1], ids=["first again", "repeat", "gap", "far"])
def test_a_gap_or_a_repeat_is_a_reordering(session, stream, received):
    for sequence in range(2):
        session.on_data(data(sequence))
    with pytest.raises(RemoteProtocolError) as caught:
        session.on_data(data(received, event=True))
    assert str(caught.value) == (
        f"receiver 0 of partition etl#1/v0.0[0]: buffer reordering: expected sequence number 2, received {received}"
    )
    session.on_data(data(2, event=True))


@pytest.mark.spec("G6")
def test_sequence_numbers_wrap(session):
    stream = request(session, credit=4)
    stream.expected = 2**32 - 2
    for sequence in (2**32 - 2, 2**32 - 1, 0, 1):
        session.on_data(data(sequence))
    with pytest.raises(RemoteProtocolError, match="expected sequence number 2, received 4294967295"):
        session.on_data(data(2**32 - 1, event=True))


@pytest.mark.spec("G6", "N8")
@pytest.mark.parametrize("credit", [0, 2])
def test_data_without_credit_is_refused(session, credit):
    stream = request(session, credit)
    for sequence in range(credit):
        session.on_data(data(sequence))
    with pytest.raises(RemoteProtocolError, match="data came without credit"):
        session.on_data(data(credit))
    assert stream.book.outstanding == 0


@pytest.mark.spec("G6")
def test_credit_counts_from_when_it_is_announced(session, stream):
    session.on_data(data(0))
    session.on_data(data(1))
    session.grant(stream, 1)
    session.on_data(data(2))
    with pytest.raises(RemoteProtocolError, match="data came without credit"):
        session.on_data(data(3))


@pytest.mark.spec("N8")
def test_only_an_event_can_be_the_last(session, stream):
    with pytest.raises(RemoteProtocolError, match=r"receiver 0 .*: data that claims to be the end"):
        session.on_data(data(0, last=True))
    assert stream.state is RECEIVING


@pytest.mark.spec("N8")
@pytest.mark.parametrize("event", [False, True])
def test_compressed_data_was_not_asked_for(session, stream, event):
    with pytest.raises(RemoteProtocolError, match=r"receiver 0 .*: compressed data"):
        session.on_data(data(0, compressed=1, unpacked=9, event=event))


@pytest.mark.spec("N1", "N8")
def test_compressed_data_comes_where_it_was_asked_for_and_events_are_not_compressed(session):
    stream = session.request(partition(), SubpartitionIndex(0), credit=2, target="packed", packed=True)
    number = stream.receiver
    assert session.on_data(Data(number, 0, 0, size=4, compressed=1, unpacked=9)) is stream
    assert stream.book.outstanding == 1, "it has used a credit, as any buffer"
    with pytest.raises(RemoteProtocolError, match="compressed data"):
        session.on_data(Data(number, 1, 0, size=4, compressed=1, unpacked=9, event=True))


@pytest.mark.spec("N2")
def test_a_backlog_finds_its_stream(session, stream):
    assert session.on_backlog(AnnounceBacklog(0, 5)) is stream
    assert stream.state is RECEIVING


@pytest.mark.spec("N5", "N8")
def test_without_flow_control_anything_comes_and_no_backlog(session):
    stream = request(session, credit=None)
    assert stream.book is None
    for sequence in range(1000):
        session.on_data(data(sequence))
    with pytest.raises(RemoteProtocolError, match="a backlog without flow control by credit"):
        session.on_backlog(AnnounceBacklog(0, 5))
    with pytest.raises(LocalProtocolError, match="credit, where there is none"):
        session.grant(stream, 1)


FROM_A_PRODUCER = {
    "data": lambda session, receiver: session.on_data(data(0, receiver=receiver)),
    "a backlog": lambda session, receiver: session.on_backlog(AnnounceBacklog(receiver, 1)),
    "an error": lambda session, receiver: session.on_error(ReportError(receiver, 4, "x")),
}


@pytest.mark.spec("N8")
@pytest.mark.parametrize("what", FROM_A_PRODUCER)
def test_frames_for_unknown_or_ended_receivers_are_refused(session, stream, what):
    with pytest.raises(RemoteProtocolError, match=f"{what} for receiver 7, which was never requested"):
        FROM_A_PRODUCER[what](session, 7)
    session.on_data(data(0, **THE_END))
    session.cancel(stream)
    with pytest.raises(RemoteProtocolError, match=f"{what} for receiver 0, which is over"):
        FROM_A_PRODUCER[what](session, 0)


def take(session, *frames, data=b"data", **fields):
    """The targets of what a run takes of these, and how many bytes it leaves."""
    wire = b"".join(
        encode_frame(Data(receiver, sequence, fields.get("backlog", 0), len(data), fields.get("skew", 0))) + data
        for receiver, sequence in frames
    )
    run, stop, missing = session.on_data_run(memoryview(b"..." + wire), 3, max_bytes=64)
    assert not missing
    assert all(bytes(payload) == data for _, _, _, payload, _ in run)
    return [target for target, *_ in run], 3 + len(wire) - stop


@pytest.mark.spec("G6", "N6")
def test_a_run_of_plain_data_counts_as_single_frames_do(session, stream):
    assert take(session, (0, 0)) == ([stream.target], 0)
    assert session.on_data(data(1)) is stream
    assert stream.book.outstanding == 0
    assert take(session, (0, 2)) == ([], 23), "then it is looked at more closely"
    with pytest.raises(RemoteProtocolError, match="data came without credit"):
        session.on_data(data(2))


@pytest.mark.spec("G6", "N6")
def test_a_run_ends_before_the_first_frame_that_is_not_plain(session, stream):
    other = request(session, credit=3, target="another")
    taken, left = take(session, (0, 0), (1, 0), (0, 1), (0, 2), (1, 1))
    assert taken == [stream.target, other.target, stream.target]
    assert left == 2 * 23
    assert (stream.expected, other.expected) == (2, 1)
    assert (stream.book.outstanding, other.book.outstanding) == (0, 2)


@pytest.mark.spec("N6")
def test_a_run_has_the_fields_of_its_frames_and_copies_nothing(session, stream):
    fed = bytearray(encode_frame(Data(0, 0, backlog=2**20, size=4, skew=60)) + b"abcd")
    [(target, backlog, skew, payload, _)], stop, missing = session.on_data_run(memoryview(fed), 0, max_bytes=64)
    assert (target, backlog, skew, stop, missing) == (stream.target, 2**20, 60, len(fed), 0)
    assert payload.obj is fed


@pytest.mark.spec("G6", "N6")
@pytest.mark.parametrize("come", range(5))
def test_the_last_payload_of_a_run_may_be_incomplete(session, stream, come):
    wire = memoryview(WHOLE + encode_frame(Data(0, 1, 0, size=4)) + b"data"[:come])
    run, stop, missing = session.on_data_run(wire, 0, max_bytes=64)
    assert [(target, bytes(payload)) for target, _, _, payload, _ in run] == [
        (stream.target, b"data"),
        (stream.target, b"data"[:come]),
    ]
    assert (stop, missing) == (len(wire), 4 - come)
    assert (stream.expected, stream.book.outstanding) == (2, 0), "it is counted with its head"


@pytest.mark.spec("G6")
def test_sequence_numbers_of_a_run_wrap(session, stream):
    stream.expected = 2**32 - 1
    assert len(take(session, (0, 2**32 - 1), (0, 0))[0]) == 2


@pytest.mark.spec("G6", "G7", "N5")
@pytest.mark.parametrize("state", ["unknown", "reordered", "ended", "cancelled", "uncredited"])
def test_data_that_is_not_plain_is_left_to_the_decoder(session, stream, state):
    receiver, sequence = 0, 0
    if state == "unknown":
        receiver = 7
    if state == "reordered":
        sequence = 1
    if state == "ended":
        session.on_error(ReportError(0, 8, "x"))
    if state == "cancelled":
        session.cancel(stream)
    if state == "uncredited":
        receiver = request(session, credit=None).receiver
    assert take(session, (receiver, sequence))[0] == []
    assert stream.expected == 0
    assert stream.book.outstanding == 2, "nothing is counted"


WHOLE = encode_frame(Data(0, 0, 0, size=4)) + b"data"


@pytest.mark.spec("N6", "N8")
@pytest.mark.parametrize(
    "wire",
    [
        WHOLE[:18],
        encode_frame(Data(0, 0, 0, size=4, event=True)) + b"data",
        encode_frame(Data(0, 0, 0, size=4, checksum=5)) + b"data",
        encode_frame(Data(0, 0, 0, size=4, skew=61)) + b"data",
        encode_frame(Data(0, 0, 0, size=65)) + bytes(65),
        struct.pack("<IHIIIB", 14, Data.TYPE, 0, 0, 0, 0) + bytes(30),
        struct.pack("<IHIIIB", 2**32 - 1, Data.TYPE, 0, 0, 0, 0) + bytes(30),
        struct.pack("<IHIIIB", 19, Data.TYPE, 0, 0, 0, 64) + b"data",
        struct.pack("<IHIIIB", 19, Data.TYPE, 0, 0, 2**20 + 1, 0) + b"data",
        encode_frame(KeepAlive()) + bytes(30),
    ],
    ids=lambda wire: wire[:20].hex(" "),
)
def test_frames_that_are_not_plain_data_are_no_part_of_a_run(session, stream, wire):
    assert session.on_data_run(memoryview(wire), 0, max_bytes=64) == ([], 0, 0)
    assert (stream.expected, stream.book.outstanding) == (0, 2)


# Ends ------------------------------------------------------------------------------------------------------


def peer_ends(session, stream, how):
    return (
        session.on_data(data(stream.expected, **THE_END)) if how == "last" else session.on_error(ReportError(0, 8, "x"))
    )


@pytest.mark.spec("N1")
@pytest.mark.parametrize("how", ["last", "error"])
def test_cancelling_an_ended_stream_sends_cancel_and_forgets_it(session, stream, how):
    session.on_data(data(0))
    assert peer_ends(session, stream, how) is stream
    assert stream.state is ENDED
    assert not session.idle
    session.cancel(stream)
    assert said(session) == [CancelRequest(0, ATTEMPT)]
    assert stream.state is GONE
    assert session.idle


@pytest.mark.spec("G7")
@pytest.mark.parametrize("how", ["last", "error"])
def test_a_cancelled_stream_drops_frames_until_the_producer_ends(session, stream, how):
    session.cancel(stream)
    assert said(session) == [CancelRequest(0, ATTEMPT)]
    assert stream.state is CANCELLED
    assert not session.idle, "something may be on its way"
    assert session.on_data(data(0)) is stream
    session.on_data(data(1, event=True))
    session.on_backlog(AnnounceBacklog(0, 5))
    assert stream.state is CANCELLED
    assert peer_ends(session, stream, how) is stream
    assert stream.state is GONE
    assert session.idle


@pytest.mark.spec("G7", "G6")
def test_dropped_frames_are_checked_too(session, stream):
    session.cancel(stream)
    session.on_data(data(0))
    with pytest.raises(RemoteProtocolError, match="reordering"):
        session.on_data(data(0))
    session.on_data(data(1))
    with pytest.raises(RemoteProtocolError, match="without credit"):
        session.on_data(data(2))


@pytest.mark.spec("N8")
@pytest.mark.parametrize("how", ["last", "error"])
@pytest.mark.parametrize(
    ("late", "text"),
    [
        (lambda session, at: session.on_data(data(at)), "data while it is ended"),
        (lambda session, at: session.on_data(data(at, event=True)), "data while it is ended"),
        (lambda session, at: session.on_data(data(at, **THE_END)), "last while it is ended"),
        (lambda session, at: session.on_backlog(AnnounceBacklog(0, 1)), "backlog while it is ended"),
        (lambda session, at: session.on_error(ReportError(0, 8, "x")), "error while it is ended"),
    ],
    ids=["data", "event", "last", "backlog", "error"],
)
def test_nothing_comes_after_the_last(session, stream, how, late, text):
    peer_ends(session, stream, how)
    with pytest.raises(RemoteProtocolError, match=text):
        late(session, stream.expected)


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (lambda session, stream: session.cancel(stream), "cancelled"),
        (lambda session, stream: (session.on_data(data(0, **THE_END)), session.cancel(stream)), "gone"),
    ],
    ids=["cancelled", "gone"],
)
@pytest.mark.parametrize(
    ("what", "say"),
    [
        ("credit", lambda session, stream: session.grant(stream, 1)),
        ("task event", lambda session, stream: session.send_task_event(stream, b"")),
        ("cancel", lambda session, stream: session.cancel(stream)),
    ],
)
def test_nothing_is_sent_after_cancel_or_end(session, stream, end, state, what, say):
    end(session, stream)
    session.data_to_send()
    with pytest.raises(LocalProtocolError, match=f"{what} while it is {state}"):
        say(session, stream)
    assert said(session) == []


def test_no_credit_is_granted_to_an_ended_stream(session, stream):
    session.on_data(data(0, **THE_END))
    with pytest.raises(LocalProtocolError, match="credit while it is ended"):
        session.grant(stream, 1)
    assert said(session) == []


@pytest.mark.spec("K4")
def test_the_answer_to_a_task_event_ends_no_channel():
    session = ConsumerSession()
    stream = session.request(partition(), SubpartitionIndex(0), credit=2, target="channel 0")
    answer = ReportError(0, UnknownReceiver.code, "no operator subscribes", ends=False)
    assert session.on_refused_event(answer) is stream
    assert stream.state is ConsumerState.RECEIVING
    session.cancel(stream)
    assert session.on_refused_event(answer) is stream, "it crossed the cancellation"
    session.on_error(ReportError(0, Cancelled.code, "as asked"))
    assert session.on_refused_event(answer) is None, "the channel is over"
    with pytest.raises(RemoteProtocolError, match="to a task event for receiver 1, which was never requested"):
        session.on_refused_event(ReportError(1, UnknownReceiver.code, "", ends=False))
