"""A remote channel: its own segments and the gate's, what it announces and when, and that all of them go back."""

import pytest
from tests.support.remote_channel import SIZE, Reader, Remote

from headgate.buffer import UNCHANNELLED, Answer
from headgate.clock import ManualClock
from headgate.errors import (
    Cancelled,
    HeadgateError,
    InvariantViolated,
    PartitionNotFound,
    ProducerFailed,
    TransportError,
)
from headgate.input import Backoff, InputGate, RemoteState
from headgate.record import EndOfPartition, UserEvent
from headgate.record.element import encode_event
from headgate.wire.frames import MAX_TASK_EVENT_BYTES

NEW, REQUESTING, RECEIVING, ENDED, FAILED, RELEASED = RemoteState


# Asking ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("G5")
@pytest.mark.parametrize("exclusive", [0, 1, 2, 5])
def test_exclusive_segments_are_the_initial_credit(exclusive):
    with Remote(exclusive, begin=False) as remote:
        assert remote.channel.credit == exclusive
        assert remote.now.state is NEW
        remote.connect()
        assert remote.now.state is REQUESTING
        assert remote.due == [True], "the producer is to be asked, at once"
        remote.request()
        assert remote.now.state is RECEIVING
        assert (remote.now.ready, remote.now.floating, remote.now.unannounced) == (exclusive, 0, 0)
        assert remote.announce() == 0, "the request has brought it"


def test_a_new_channel_has_nothing_to_read():
    with Remote() as remote:
        assert not remote.channel.notified
        assert remote.poll() is None
        assert remote.told == 0


# Data ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("T5")
def test_received_buffers_and_events_are_read_in_order():
    with Remote(exclusive=4) as remote:
        remote.arrive(b"a")
        remote.event(UserEvent("x"))
        remote.arrive(b"b")
        remote.arrive(b"c" * SIZE)
        assert remote.now.queued == 4
        assert [remote.read() for _ in range(5)] == [b"a", encode_event(UserEvent("x")), b"b", b"c" * SIZE, None]
        assert not remote.channel.notified


@pytest.mark.spec("P2", "T2")
def test_the_first_buffer_wakes_the_reader():
    with Remote(exclusive=4) as remote:
        remote.arrive()
        assert remote.told == 1
        remote.arrive()
        assert remote.told == 0, "it knows"
        assert remote.channel.notified
        remote.read()
        remote.read()
        remote.arrive()
        assert remote.told == 1, "it may have gone to sleep"


@pytest.mark.spec("N6")
@pytest.mark.parametrize(("skew", "size"), [(0, SIZE), (0, 5), (63, 5), (8, SIZE - 8), (0, 0), (5, 0)])
def test_a_payload_keeps_its_offset_in_the_segment(skew, size):
    with Remote() as remote:
        data = bytes(i % 251 for i in range(size))
        remote.arrive(data, skew=skew)
        taken = remote.poll()
        assert bytes(taken.memory) == data
        assert taken.offset == skew
        assert taken.buffer.finished
        assert taken.buffer.segment.memory[skew : skew + size] == data, "in the segment, not beside it"
        taken.release()


# Credit ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("G5")
def test_recycled_segments_are_announced_once_and_together_as_credit():
    with Remote(exclusive=3, floating=0) as remote:
        for _ in range(3):
            remote.arrive()
        assert remote.due == []
        for _ in range(3):
            remote.read()
        assert remote.due == [False], "once, and there is no hurry"
        assert remote.now.unannounced == 3
        assert remote.announce() == 3
        assert remote.announce() == 0
        assert remote.backed


@pytest.mark.spec("G5")
@pytest.mark.parametrize(("exclusive", "backlog"), [(2, 0), (2, 1), (2, 4), (0, 3), (1, 4)])
def test_a_channel_requests_floating_buffers_for_the_backlog(exclusive, backlog):
    """Wanted: backlog and initial credit. It has its own already; the rest is the gate's."""
    with Remote(exclusive, floating=4) as remote:
        remote.backlog(backlog)
        now = remote.now
        assert now.wanted(exclusive) == backlog + exclusive == now.ready
        assert now.floating == now.unannounced == backlog
        assert remote.due == [True] * (backlog > 0), "at once: its producer has none left"
        assert remote.announce() == backlog
        assert remote.backed


@pytest.mark.spec("G5")
def test_a_segment_in_use_is_replaced_by_a_floating_one():
    with Remote(exclusive=2, floating=4) as remote:
        remote.arrive(backlog=0)
        assert remote.now.ready == 2, "one of its own is in use, one of the gate's takes its place"
        assert remote.now.floating == 1
        assert remote.announce() == 1


@pytest.mark.spec("G5")
def test_a_channel_listens_once_for_missing_buffers():
    with Remote(exclusive=2, floating=2) as remote:
        remote.backlog(5)
        assert remote.now.floating == 2
        assert remote.pool.statistics().waiting == 1, "it listens"
        remote.backlog(6)
        assert remote.pool.statistics().waiting == 1, "once"


def taken_elsewhere(remote, count):
    """Another channel has these of the gate's segments."""
    with remote.memory.lock:
        return [remote.pool.try_request_locked() for _ in range(count)]


def come_back(remote, segments):
    for segment in segments:
        remote.locked(remote.pool.recycle_locked, segment, UNCHANNELLED)


@pytest.mark.spec("G5", "M6")
def test_a_recycled_segment_is_granted_to_the_listening_channel():
    with Remote(exclusive=2, floating=3) as remote:
        elsewhere = taken_elsewhere(remote, 3)
        remote.backlog(2)
        assert remote.now.floating == 0
        assert remote.due == []
        come_back(remote, elsewhere[:1])
        assert (remote.now.floating, remote.now.unannounced) == (1, 1)
        assert len(remote.due) == 1
        assert remote.pool.statistics().waiting == 1, "it wants one more"
        come_back(remote, elsewhere[1:])
        assert (remote.now.floating, remote.now.unannounced) == (2, 2)
        assert remote.pool.statistics().waiting == 0, "that is enough"
        assert remote.pool.statistics().available == 1
        assert remote.announce() == 2


@pytest.mark.spec("G5")
def test_credit_is_announced_at_once_to_a_producer_without_credit():
    with Remote(exclusive=2, floating=0) as remote:
        remote.arrive()
        remote.read()
        assert remote.due == [False], "it has a credit left"
        assert not remote.channel.out_of_credit
        remote.arrive()
        assert remote.channel.out_of_credit
        remote.backlog(1)
        assert remote.due == [True]
        assert remote.announce() == 1
        assert not remote.channel.out_of_credit


@pytest.mark.spec("G5")
def test_the_reader_is_woken_before_more_buffers_are_requested_and_announces_their_credit():
    with Remote(exclusive=2, floating=2) as remote:
        remote.reader = Sleeper()
        remote.channel._listener = remote.reader
        remote.arrive(backlog=3)
        assert remote.now.floating == 2
        assert not remote.reader.reader_blocked
        assert remote.due == [False], "it is not announced by whoever received it"


class Sleeper(Reader):
    """A reader that sleeps until it is told of data."""

    reader_blocked = True

    def available_locked(self):
        self.reader_blocked = False


@pytest.mark.spec("G5", "M6")
def test_an_offer_is_answered_by_the_buffers_still_missing():
    with Remote(exclusive=1, floating=4) as remote:
        segments = taken_elsewhere(remote, 4)
        remote.backlog(2)
        answers = [remote.locked(remote.channel.offer_locked, segment)[0] for segment in segments[:3]]
        assert answers == [Answer.USED_MORE_WANTED, Answer.USED_ENOUGH, Answer.NOT_USED]
        assert remote.now.floating == 2
        come_back(remote, segments[2:])


@pytest.mark.spec("G5", "M6")
@pytest.mark.parametrize("state", ["requesting", "ended", "failed", "released"])
def test_an_offer_after_the_end_is_declined(state):
    with Remote(exclusive=1, floating=1, backoff=Backoff()) as remote:
        segments = taken_elsewhere(remote, 1)
        remote.backlog(2)
        move(remote, state)
        answer, wake = remote.locked(remote.channel.offer_locked, segments[0])
        assert (answer, wake) == (Answer.NOT_USED, None)
        come_back(remote, segments)
        assert remote.pool.statistics().available == 1


def move(remote, state):
    """Into that state, from receiving."""
    match state:
        case "requesting":
            assert remote.locked(remote.channel.delay_request_locked) is not None
        case "ended":
            remote.event(last=True)
        case "failed":
            remote.locked(remote.channel.fail_locked, ProducerFailed("x"))
        case "released":
            remote.release()
    assert remote.now.state.value == state


@pytest.mark.spec("G5")
def test_after_it_was_declined_it_listens_again():
    with Remote(exclusive=1, floating=1) as remote:
        segments = taken_elsewhere(remote, 1)
        remote.backlog(2)
        remote.backlog(0)
        come_back(remote, segments)
        assert remote.now.floating == 0, "not wanted any more"
        segments = taken_elsewhere(remote, 1)
        remote.backlog(1)
        come_back(remote, segments)
        assert remote.now.floating == 1


@pytest.mark.spec("G5")
def test_floating_segments_are_filled_first():
    """They are scarce: what is filled is read and goes back, and its own stay for what comes next."""
    with Remote(exclusive=2, floating=2) as remote:
        remote.backlog(2)
        remote.announce()
        for left in (3, 2, 1, 0):
            remote.arrive(bytes([left]), backlog=left)
        taken = [remote.poll() for _ in range(4)]
        assert [one.buffer.owner for one in taken] == [remote.pool, remote.pool, remote.channel, remote.channel]
        for one in taken:
            one.release()
        remote.announce()
        assert remote.backed


@pytest.mark.spec("G5")
def test_a_surplus_floating_segment_is_recycled():
    with Remote(exclusive=1, floating=2) as remote:
        remote.arrive(backlog=2)  # its own is in use; two of the gate's are set aside
        assert (remote.now.ready, remote.now.floating, remote.now.unannounced) == (2, 2, 2)
        remote.announce()
        remote.backlog(0)  # somebody else has read them: it wants one
        assert remote.now.floating == 2, "what was announced stays"
        remote.read()
        now = remote.now
        assert (now.ready, now.floating, now.unannounced) == (2, 1, 0), "its own is back, one of the gate's goes"
        assert remote.pool.statistics().available == 1
        assert remote.announce() == 0
        assert remote.backed


@pytest.mark.spec("G5")
@pytest.mark.parametrize("destroyed", [False, True])
def test_without_a_surplus_no_segment_is_recycled(destroyed):
    with Remote(exclusive=1, floating=2) as remote:
        remote.arrive(backlog=2)
        remote.announce()
        if destroyed:
            remote.pool.destroy()  # so that none that goes can come back
        remote.read()
        now = remote.now
        assert (now.ready, now.floating, now.unannounced) == (3, 2, 1)


@pytest.mark.spec("G5")
def test_a_buffer_beyond_the_reserved_segments_is_an_error():
    with Remote(exclusive=1, floating=0) as remote:
        remote.arrive()
        with pytest.raises(InvariantViolated, match="no segment is set aside for a credit that was announced"):
            remote.arrive()
        remote.read()


@pytest.mark.spec("G5")
def test_without_a_pool_a_channel_uses_its_exclusive_segments():
    with Remote(exclusive=2, floating=2) as remote:
        remote.backlog(5)
        remote.pool.destroy()
        remote.backlog(9)
        assert remote.now.ready == 4
        remote.announce()
        for _ in range(4):
            remote.arrive(backlog=3)
        for _ in range(4):
            remote.read()
        assert remote.now.ready == 2, "its own came back to it, the gate's to the network pool"
        assert remote.memory.statistics().free == remote.memory.statistics().total - 2


# The end ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("G7")
def test_the_last_event_recycles_the_reserved_segments():
    with Remote(exclusive=2, floating=4) as remote:
        remote.arrive(b"a", backlog=2)
        remote.due  # noqa: B018 - forget it
        remote.event(last=True)
        assert remote.now.state is ENDED
        assert (remote.now.ready, remote.now.unannounced, remote.now.backlog) == (0, 0, 0)
        assert remote.memory.statistics().exclusive == 1, "the one that is being read"
        assert [remote.read(), remote.read(), remote.read()] == [b"a", encode_event(EndOfPartition()), None]
        assert remote.memory.statistics().exclusive == 0
        assert remote.announce() == 0
        assert remote.due == [], "there is nothing to say"


@pytest.mark.spec("G8")
def test_received_buffers_are_read_before_a_failure_is_raised():
    with Remote(exclusive=2) as remote:
        remote.arrive(b"a")
        assert remote.told == 1
        error = ProducerFailed("boom")
        remote.locked(remote.channel.fail_locked, error)
        assert remote.told == 1
        assert remote.channel.notified
        assert remote.now.ready == 0
        assert remote.read() == b"a"
        assert remote.channel.notified
        for _ in range(2):
            with pytest.raises(ProducerFailed) as caught:
                remote.poll()
            assert caught.value is error
        assert remote.memory.statistics().exclusive == 0


@pytest.mark.spec("G8")
def test_the_first_failure_counts_and_none_after_the_end():
    with Remote() as remote:
        remote.locked(remote.channel.fail_locked, ProducerFailed("first"))
        remote.locked(remote.channel.fail_locked, TransportError("second"))
        with pytest.raises(ProducerFailed, match="first"):
            remote.poll()
    with Remote() as remote:
        remote.event(last=True)
        remote.locked(remote.channel.fail_locked, TransportError("the connection is lost"))
        assert remote.now.state is ENDED
        assert remote.read() == encode_event(EndOfPartition())
        assert remote.poll() is None


@pytest.mark.spec("G7", "M9")
@pytest.mark.parametrize("exclusive", [0, 2, None])
@pytest.mark.parametrize(
    "state", ["new", "requesting", "receiving", "again", "arrived", "reading", "listening", "ended", "failed"]
)
def test_release_returns_every_segment_in_every_state(state, exclusive):
    remote = Remote(exclusive, floating=4, begin=False)
    held = None
    if state != "new":
        remote.connect()
    if state not in {"new", "requesting"}:
        remote.request()
        if exclusive is not None:
            remote.backlog(2)
            remote.announce()
        remote.arrive(b"a", backlog=2)
        remote.arrive(b"b", backlog=9 if state == "listening" else 1)
    if state == "again":
        remote.locked(remote.channel.delay_request_locked)
    if state == "reading":
        held = remote.poll()
    if state == "ended":
        remote.event(last=True)
    if state == "failed":
        remote.locked(remote.channel.fail_locked, ProducerFailed("x"))
    remote.channel.scheduled = False
    remote.due  # noqa: B018 - forget it
    remote.release()
    assert remote.due == [True], "the producer is to be told"
    assert remote.now.state is RELEASED
    assert (remote.now.ready, remote.now.queued, remote.now.unannounced) == (0, 0, 0)
    if held is not None:
        assert remote.memory.statistics().free < remote.memory.statistics().total
        held.release()
    remote.release()
    assert remote.due == [], "once"
    assert not remote.channel.notified
    assert remote.poll() is None
    remote.pool.destroy()
    statistics = remote.memory.statistics()
    assert (statistics.free, statistics.exclusive) == (statistics.total, 0)


@pytest.mark.spec("G7")
@pytest.mark.parametrize("state", ["ended", "failed", "released"])
def test_a_buffer_completed_after_the_end_is_recycled_to_its_owner(state):
    with Remote(exclusive=1, floating=1) as remote:
        remote.backlog(1)
        with remote.memory.lock:
            floating, own = remote.channel.take_buffer_locked(), remote.channel.take_buffer_locked()
        assert (floating.owner, own.owner) == (remote.pool, remote.channel)
        remote.told  # noqa: B018 - forget it
        move(remote, state)
        remote.told  # noqa: B018
        queued = remote.now.queued
        for buffer in (floating, own):
            remote.deliver(buffer, 3, backlog=5)
        remote.event()
        assert remote.now.queued == queued
        assert remote.now.ready == 0
        assert remote.told == 0
        assert remote.pool.statistics().available == 1
        assert remote.memory.statistics().exclusive == 0


@pytest.mark.spec("G7")
@pytest.mark.parametrize("state", ["ended", "failed", "released"])
def test_a_backlog_after_the_end_requests_nothing(state):
    with Remote() as remote:
        move(remote, state)
        remote.backlog(3)
        assert remote.now.ready == 0
        assert remote.announce() == 0


# Lending ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("G5", "M8")
def test_lending_swaps_an_exclusive_segment_for_one_of_the_gate():
    """What user code keeps must not cost the channel its credit."""
    with Remote(exclusive=1, floating=4) as remote:
        remote.arrive(b"kept")
        taken = remote.poll()
        assert taken.buffer.owner is remote.channel
        floating = remote.now.floating
        view = taken.lend()
        assert bytes(view) == b"kept"
        assert taken.buffer.owner is remote.pool
        assert remote.now.ready - remote.now.floating == 1, "it has one of its own again"
        assert remote.now.floating <= floating
        taken.release()
        assert bytes(view) == b"kept"
        assert remote.memory.statistics().exclusive == 1
        remote.announce()
        assert remote.backed
        remote.arrive(b"more")
        assert remote.read() == b"more"
        assert bytes(view) == b"kept"
        del view
        remote.memory.collect_returned()


@pytest.mark.spec("G5", "M8")
@pytest.mark.parametrize("floating", [0, 1])
def test_without_a_segment_to_give_for_it_nothing_is_lent(floating):
    with Remote(exclusive=1, floating=floating) as remote:
        remote.arrive(b"copy me")  # claims the floating one, if there is one
        taken = remote.poll()
        assert taken.lend() is None
        assert taken.buffer.owner is remote.channel
        taken.release()


@pytest.mark.spec("M8")
def test_with_its_pool_gone_nothing_is_lent():
    with Remote(exclusive=1, floating=4) as remote:
        remote.arrive(b"copy me")
        taken = remote.poll()
        remote.pool.destroy()
        assert taken.lend() is None
        taken.release()


@pytest.mark.spec("G7", "M8", "M9")
@pytest.mark.parametrize("first", ["release", "destroy"])
def test_a_lent_segment_outlives_the_channel(first):
    with Remote(exclusive=1, floating=4) as remote:
        remote.arrive(b"kept")
        taken = remote.poll()
        view = taken.lend()
        assert view is not None
        taken.release()
        for _ in range(2):
            if first == "release":
                remote.release()
            else:
                remote.pool.destroy()
            first = "destroy" if first == "release" else "release"
        assert bytes(view) == b"kept"
        assert remote.memory.statistics().free == remote.memory.statistics().total - 1
        del view
        remote.memory.collect_returned()
        assert remote.memory.statistics().free == remote.memory.statistics().total


@pytest.mark.spec("M8", "G7")
def test_a_released_channel_that_lends_keeps_nothing():
    with Remote(exclusive=1, floating=4) as remote:
        remote.arrive(b"kept")
        taken = remote.poll()
        remote.release()
        view = taken.lend()
        assert bytes(view) == b"kept"
        assert remote.memory.statistics().exclusive == 0
        taken.release()
        del view
        remote.memory.collect_returned()


# A partition that is missing -------------------------------------------------------------------------------


@pytest.mark.spec("G4")
def test_a_missing_partition_is_requested_again_with_growing_delays():
    with Remote(exclusive=2, backoff=Backoff(initial_ns=100, max_ns=350)) as remote:
        waits = []
        while (wait := remote.locked(remote.channel.delay_request_locked)) is not None:
            waits.append(wait)
            assert remote.now.state is REQUESTING
            assert (remote.now.ready, remote.now.unannounced) == (2, 0), "they are the credit of the next request"
            remote.locked(remote.channel.retry_locked)
            assert remote.due == [True]
            remote.request()
            assert remote.now.state is RECEIVING
        assert waits == [100, 200, 350]
        remote.locked(remote.channel.fail_locked, PartitionNotFound("no partition"))
        with pytest.raises(PartitionNotFound):
            remote.poll()


@pytest.mark.spec("G4", "G7")
@pytest.mark.parametrize("state", ["ended", "failed", "released"])
def test_a_partition_is_not_requested_again_after_the_end(state):
    with Remote(backoff=Backoff()) as remote:
        move(remote, state)
        remote.due  # noqa: B018 - forget it
        assert remote.locked(remote.channel.delay_request_locked) is None
        assert remote.locked(remote.channel.retry_locked) is None
        remote.locked(remote.channel.mark_requested_locked)
        assert remote.now.state.value == state
        assert remote.due == []


@pytest.mark.spec("G4")
def test_a_late_retry_requests_nothing():
    with Remote(backoff=Backoff()) as remote:
        remote.locked(remote.channel.delay_request_locked)
        remote.request()
        remote.locked(remote.channel.retry_locked)
        assert remote.due == []


@pytest.mark.spec("G4", "G5")
@pytest.mark.parametrize("what", ["data", "event"])
def test_a_partition_is_not_requested_again_once_something_was_received(what):
    """It was there: part of it is read, and its credit is with the producer."""
    with Remote(exclusive=2, floating=1, backoff=Backoff()) as remote:
        if what == "data":
            remote.arrive(b"a")
        else:
            remote.event(UserEvent("x"))
        assert remote.locked(remote.channel.delay_request_locked) is None
        assert remote.now.state is RECEIVING


# Events without end ----------------------------------------------------------------------------------------


@pytest.mark.spec("N2", "N8")
@pytest.mark.parametrize("size", [10, 5000])
def test_events_need_no_credit_but_have_a_limit(size):
    with Remote() as remote:
        event, came = UserEvent("x", bytes(size)), 0
        while remote.locked(remote.channel.has_room_for_event_locked):
            remote.event(event)
            came += 1
            assert came < 10_000, "there is a limit"
        assert came * size < 2 * 1024 * 1024
        remote.due  # noqa: B018 - forget it
        read = 0
        while not remote.due:
            assert remote.read() == encode_event(event)
            read += 1
        assert came // 4 < read < came, "reading goes on when there is a good deal of room, not at once"
        assert remote.locked(remote.channel.has_room_for_event_locked)
        while remote.read() is not None:
            read += 1
        assert read == came
        assert remote.due == [], "said once"


# Events back -----------------------------------------------------------------------------------------------


@pytest.mark.spec("K4")
@pytest.mark.parametrize("state", ["requesting", "receiving", "ended"])
def test_a_task_event_is_queued_for_the_network_thread(state):
    with Remote(begin=False) as remote:
        remote.connect()
        if state != "requesting":
            remote.request()
        if state == "ended":
            remote.event(last=True)
        remote.due  # noqa: B018 - forget it
        remote.locked(remote.channel.send_event_locked, b"one")
        remote.locked(remote.channel.send_event_locked, b"two")
        assert remote.due
        assert all(remote.due)
        assert list(remote.channel.task_events) == [b"one", b"two"]


@pytest.mark.spec("K4")
@pytest.mark.parametrize("state", ["failed", "released"])
def test_a_task_event_is_refused_after_the_end_of_the_channel(state):
    with Remote() as remote:
        move(remote, state)
        with pytest.raises(Cancelled, match=r"subpartition 3 of partition etl#1/.* is not read any more"):
            remote.locked(remote.channel.send_event_locked, b"one")
        assert not remote.channel.task_events


@pytest.mark.spec("K4")
def test_a_task_event_over_the_limit_is_refused_by_the_sender():
    """The network thread would find out too late, and have nobody to tell."""
    with Remote() as remote:
        with pytest.raises(HeadgateError):
            remote.locked(remote.channel.send_event_locked, bytes(MAX_TASK_EVENT_BYTES + 1))
        assert not remote.channel.task_events


# Without credit --------------------------------------------------------------------------------------------


@pytest.mark.spec("N5")
def test_without_flow_control_a_channel_requests_segments_from_the_gates_pool():
    with Remote(exclusive=None, floating=2, required=2) as remote:
        assert remote.channel.credit is None
        assert remote.now.ready == 0
        assert remote.arrive(b"a", backlog=5)
        assert remote.arrive(b"b", backlog=5)
        assert remote.now.ready == 0, "nothing is set aside"
        assert remote.announce() == 0
        assert not remote.arrive(b"c"), "reading must stop"
        assert remote.pool.statistics().waiting == 1
        assert not remote.arrive(b"c")
        assert remote.pool.statistics().waiting == 1, "it listens once"
        remote.due  # noqa: B018 - forget it
        assert remote.read() == b"a"
        assert remote.due == [True], "there is a place: go on"
        assert remote.announce() == 0
        assert remote.arrive(b"c")
        assert [remote.read(), remote.read(), remote.read()] == [b"b", b"c", None]
        assert remote.due == []


@pytest.mark.spec("N5", "G7")
def test_without_flow_control_release_returns_the_segment_it_was_offered():
    with Remote(exclusive=None, floating=1, required=1) as remote:
        remote.arrive(b"a")
        assert not remote.arrive(b"b")
        remote.read()
        assert (remote.now.ready, remote.now.floating) == (1, 1)
        remote.release()
        assert remote.pool.statistics().available == 1


@pytest.mark.spec("N5")
def test_without_flow_control_and_without_a_pool_no_buffer_is_received():
    with Remote(exclusive=None, floating=1, required=1) as remote:
        remote.pool.destroy()
        assert not remote.arrive(b"a")


# In a gate -------------------------------------------------------------------------------------------------


@pytest.mark.spec("G1", "G3", "G5")
def test_a_gate_reads_it_to_its_end_and_lets_go():
    with Remote(exclusive=2, begin=False) as remote:
        gate = InputGate("words", 1, sync=remote.memory.sync, clock=ManualClock())
        gate.connect(0, remote.channel)
        remote.request()
        remote.arrive(b"a")
        remote.event(last=True)
        taken = gate.read()
        assert (taken.channel, bytes(taken.memory)) == (0, b"a")
        remote.due  # noqa: B018 - forget it
        taken = gate.read(done=taken)
        assert taken.event == EndOfPartition()
        assert gate.finished
        assert remote.now.state is RELEASED
        assert remote.due == [True], "the producer is told that the end was read"
        assert remote.memory.statistics().exclusive == 0


@pytest.mark.spec("G8")
def test_a_gate_raises_the_failure_of_its_channel():
    with Remote(begin=False) as remote:
        gate = InputGate("words", 1, sync=remote.memory.sync, clock=ManualClock())
        gate.connect(0, remote.channel)
        remote.request()
        remote.locked(remote.channel.fail_locked, TransportError("connection reset", peer="10.0.0.1:7077"))
        with pytest.raises(TransportError, match=r"10\.0\.0\.1:7077"):
            gate.read()
        gate.release()
        assert remote.now.state is RELEASED


@pytest.mark.spec("G7")
def test_a_gate_that_is_released_releases_it():
    with Remote(begin=False) as remote:
        gate = InputGate("words", 2, sync=remote.memory.sync, clock=ManualClock())
        gate.connect(0, remote.channel)
        remote.request()
        remote.arrive(b"a")
        gate.release()
        assert remote.now.state is RELEASED
        assert remote.memory.statistics().exclusive == 0


@pytest.mark.spec("G5")
def test_the_backlog_behind_an_event_counts():
    with Remote(exclusive=1, floating=4) as remote:
        remote.event(UserEvent("reload"), backlog=2)
        assert remote.now.backlog == 2
        assert remote.now.floating == 2


@pytest.mark.spec("G5")
def test_channels_share_a_free_list_in_last_in_first_out_order():
    with Remote(floating=0) as first, Remote(beside=first) as second:
        first.arrive(b"hot")
        taken = first.poll()
        used = taken.buffer.segment
        taken.release()
        second.arrive(b"next")
        taken = second.poll()
        assert taken.buffer.segment is used
        second.arrive(b"last")
        with pytest.raises(InvariantViolated, match="no segment is set aside"):  # though the first has two there
            second.arrive()
        assert (first.now.ready, second.now.ready, len(first.memory.exclusive_free)) == (2, 0, 2)
        taken.release()
