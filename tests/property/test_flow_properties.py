"""The policy of flow control for any order of events: what it may never do, and what must always follow.

`FlowMachine` is a model of one connection with several channels: a producer with queues, a consumer with exclusive and
floating buffers, a reader that polls, recycles and blocks, and two slow wires. All decisions are those of `wire.flow`;
the model only counts.
"""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.wire import Book, Ledger, SendState, When
from headgate.wire.flow import (
    BACKLOG_GROWTH,
    CHANNEL_SHARE,
    ENOUGH_CHANNELS,
    ENOUGH_CREDIT,
    ENOUGH_STREAMS,
    STREAM_SHARE,
    answer_backlog,
    can_receive_events_again,
    can_send,
    enough_streams,
    has_room_for_event,
    has_surplus,
    is_backlog_announcement_due,
    is_out_of_credit,
    missing_buffers,
    should_announce,
    should_flush,
    should_send,
)
from headgate.wire.frames import MAX_BACKLOG

counts = st.integers(0, 40)
channel_counts = st.integers(1, 2000)


# Each decision by itself -----------------------------------------------------------------------------------


@pytest.mark.spec("G5")
@given(counts, counts, st.booleans())
def test_credit_is_announced_now_from_its_threshold_on_and_not_before(credit, unread, scheduled):
    assert (should_announce(credit, unread, scheduled) is When.NOW) is (credit >= ENOUGH_CREDIT)


@pytest.mark.spec("G5")
@given(st.integers(1, 40), counts, st.booleans(), st.data())
def test_credit_that_is_not_announced_is_asked_for_again(credit, unread, scheduled, data):
    """NO has a reason that ends: the channel is scheduled, or polling its unread buffers asks again, at last with 0."""
    when = should_announce(credit, unread, scheduled)
    if when is When.NO and not scheduled:
        assert unread > credit
        while unread and when is When.NO:
            unread -= 1
            credit += data.draw(st.booleans())  # the buffer was recycled already, or it was an event
            when = should_announce(credit, unread, scheduled)
        assert when is not When.NO


@pytest.mark.spec("G5")
@given(st.integers(1, 2000), channel_counts, st.booleans())
def test_scheduled_channels_are_flushed_for_a_blocked_reader_and_when_they_are_enough(scheduled, channels, blocked):
    scheduled = min(scheduled, channels)
    when = should_flush(scheduled, channels, blocked)
    assert when in {When.LATER, When.NOW}
    enough = max(ENOUGH_CHANNELS, -(-channels // CHANNEL_SHARE))
    assert (when is When.NOW) is (blocked or scheduled >= enough)


@pytest.mark.spec("G5")
@given(counts, counts, counts)
def test_a_channel_requests_missing_buffers_or_has_a_surplus_never_both(backlog, exclusive, ready):
    missing = missing_buffers(backlog, exclusive, ready)
    assert not (missing > 0 and has_surplus(backlog, exclusive, ready)), "it never does both"
    if missing > 0:
        assert missing_buffers(backlog, exclusive, ready + missing) == 0
        assert not has_surplus(backlog, exclusive, ready + missing), "what was claimed is not given back at once"


@pytest.mark.spec("N2")
@given(st.integers(1, 3 * MAX_BACKLOG))
def test_a_growing_backlog_is_announced_a_logarithmic_number_of_times(backlog):
    announced, frames, at = 0, 0, 1
    while at <= backlog:
        assert is_backlog_announcement_due(announced, at) or announced == MAX_BACKLOG
        assert not is_backlog_announcement_due(announced, at - 1) or at == 1
        if announced == MAX_BACKLOG:
            break
        announced, frames, at = min(at, MAX_BACKLOG), frames + 1, min(at, MAX_BACKLOG) * BACKLOG_GROWTH
    assert frames <= backlog.bit_length()
    assert BACKLOG_GROWTH * announced > min(backlog, MAX_BACKLOG), "the consumer knows of more than half"


@pytest.mark.spec("N2")
@given(st.booleans(), st.booleans(), channel_counts, st.integers(1, 500))
def test_a_queued_stream_relies_on_a_flush_that_was_asked_for(urgent, short, streams, queued):
    """Of any number of streams that are queued one by one the first asks; so does every urgent one."""
    enough = enough_streams(streams)
    assert enough >= max(ENOUGH_STREAMS, streams // STREAM_SHARE)
    when = should_send(urgent, short, queued, enough)
    if urgent:
        assert when is (When.POLL_FIRST if short else When.NOW)
    else:
        assert (when is When.NO) is (queued not in {1, enough})
    assert should_send(False, short, 0, enough) is When.NO, "it was queued before"


@given(counts, counts)
def test_events_are_received_again_only_with_room_for_some(unread, limit):
    if can_receive_events_again(unread, limit):
        assert has_room_for_event(unread, limit)


# All of them together --------------------------------------------------------------------------------------


class Sending:
    """One stream at its producer, and the supply it polls."""

    def __init__(self, credit: int) -> None:
        self.ledger = Ledger(credit)
        self.state = SendState.IDLE
        self.backlog = self.announced = 0

    @property
    def next_is_data(self) -> bool:
        return self.backlog > 0


class Receiving:
    """One channel at its consumer."""

    def __init__(self, exclusive: int) -> None:
        self.book = Book(exclusive)
        self.exclusive = self.own = exclusive
        self.floating = self.unread_floating = self.unread = self.unannounced = self.backlog = 0
        self.scheduled = self.listening = False

    @property
    def ready(self) -> int:
        return self.own + self.floating


class FlowMachine(RuleBasedStateMachine):
    """One connection: see the module."""

    @initialize(channels=st.integers(1, 12), exclusive=st.integers(0, 3), floating=st.integers(1, 8))
    def start(self, channels: int, exclusive: int, floating: int) -> None:
        self.sending = [Sending(exclusive) for _ in range(channels)]
        self.receiving = [Receiving(exclusive) for _ in range(channels)]
        self.free, self.total = floating, floating + channels * exclusive
        self.listeners: deque[int] = deque()
        self.queue: deque[int] = deque()
        self.held: list[tuple[int, bool]] = []  # polled and not recycled: the channel, and if the buffer is floating
        self.down: deque[tuple[str, int, int]] = deque()
        self.up: deque[tuple[int, int]] = deque()
        self.sender_flush = self.receiver_flush = When.NO
        self.blocked = False
        self.produced = self.consumed = 0

    # The producer.

    @rule(data=st.data(), buffers=st.integers(1, 6), urgent=st.booleans())
    def produce(self, data: st.DataObject, buffers: int, urgent: bool) -> None:
        which = data.draw(st.integers(0, len(self.sending) - 1))
        stream = self.sending[which]
        stream.backlog += buffers
        self.produced += buffers
        queued = 0
        if stream.state is not SendState.QUEUED:
            due = is_backlog_announcement_due(stream.announced, stream.backlog)
            if not can_send(stream.ledger, stream) and not due:
                stream.state = SendState.STARVED
                return
            stream.state = SendState.QUEUED
            self.queue.append(which)
            queued = len(self.queue)
        short = stream.ledger.available < stream.backlog
        self.sender_flush = later_of(self.sender_flush, should_send(urgent, short, queued, enough_streams(1)))

    @precondition(lambda self: self.sender_flush is not When.NO)
    @rule()
    def send(self) -> None:
        self.sender_flush = When.NO
        while self.queue:
            which = self.queue.popleft()
            stream = self.sending[which]
            if can_send(stream.ledger, stream) and stream.backlog:
                stream.ledger.spend()
                stream.backlog -= 1
                stream.announced = stream.backlog
                self.down.append(("data", which, stream.backlog))
            elif is_backlog_announcement_due(stream.announced, stream.backlog):
                stream.announced = stream.backlog
                self.down.append(("backlog", which, stream.backlog))
            if not stream.backlog:
                stream.state = SendState.IDLE
            elif can_send(stream.ledger, stream):
                stream.state = SendState.QUEUED
                self.queue.append(which)
            else:
                stream.state = SendState.STARVED

    @precondition(lambda self: self.up)
    @rule()
    def grant(self) -> None:
        which, credit = self.up.popleft()
        stream = self.sending[which]
        stream.ledger.grant(credit)
        if stream.state is SendState.STARVED:
            stream.state = SendState.QUEUED
            self.queue.append(which)
            self.sender_flush = When.NOW

    # The consumer's network thread.

    @precondition(lambda self: self.down)
    @rule()
    def receive(self) -> None:
        kind, which, backlog = self.down.popleft()
        channel = self.receiving[which]
        channel.backlog = backlog
        if kind == "data":
            channel.book.receive()
            if channel.floating:
                channel.floating -= 1
                channel.unread_floating += 1
            else:
                assert channel.own, "every credit has its segment"
                channel.own -= 1
            channel.unread += 1
            self.blocked = False  # the reader is notified before credit is claimed
            if self.claim(which):
                self.schedule(which, should_announce(channel.unannounced, 0, channel.scheduled))
        else:
            self.claim(which)
            self.schedule(which, answer_backlog(channel.unannounced))

    def claim(self, which: int) -> bool:
        channel = self.receiving[which]
        missing = missing_buffers(channel.backlog, channel.exclusive, channel.ready)
        if missing <= 0 or channel.listening:
            return False
        claimed = min(missing, self.free)
        self.free -= claimed
        channel.floating += claimed
        channel.unannounced += claimed
        if claimed < missing:
            channel.listening = True
            self.listeners.append(which)
        return claimed > 0

    def schedule(self, which: int, when: When) -> None:
        if when is When.NO:
            return
        self.receiving[which].scheduled = True
        if when is When.LATER:
            scheduled = sum(channel.scheduled for channel in self.receiving)
            when = should_flush(scheduled, len(self.receiving), self.blocked)
        if when is When.NOW:
            self.receiver_flush = When.NOW

    @precondition(lambda self: self.receiver_flush is not When.NO)
    @rule()
    def announce(self) -> None:
        self.receiver_flush = When.NO
        for which, channel in enumerate(self.receiving):
            if channel.scheduled:
                channel.scheduled = False
                if channel.unannounced:
                    channel.book.promise(channel.unannounced)
                    self.up.append((which, channel.unannounced))
                    channel.unannounced = 0

    # The reader.

    def readable(self) -> list[int]:
        return [which for which, channel in enumerate(self.receiving) if channel.unread]

    @precondition(lambda self: self.readable())
    @rule(data=st.data())
    def poll(self, data: st.DataObject) -> None:
        readable = self.readable()
        which = data.draw(st.sampled_from(readable))
        channel = self.receiving[which]
        channel.unread -= 1
        floating = channel.unread_floating > 0
        channel.unread_floating -= floating
        self.held.append((which, floating))
        self.consumed += 1
        if not channel.unread and channel.unannounced and not channel.scheduled:
            self.schedule(which, should_announce(channel.unannounced, 0, False))
        if not self.readable() and any(
            one.scheduled and is_out_of_credit(one.ready, one.unannounced) for one in self.receiving
        ):
            self.receiver_flush = When.NOW

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def recycle(self, data: st.DataObject) -> None:
        """Also while the reader is blocked: a buffer that was lent to the user's function is collected."""
        which, floating = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        channel = self.receiving[which]
        if floating:
            self.recycle_floating()
            return
        channel.own += 1
        if channel.floating and has_surplus(channel.backlog, channel.exclusive, channel.ready):
            channel.floating -= 1
            self.recycle_floating()
            return
        channel.unannounced += 1
        self.schedule(which, should_announce(channel.unannounced, channel.unread, channel.scheduled))

    def recycle_floating(self) -> None:
        while self.listeners:
            which = self.listeners.popleft()
            channel = self.receiving[which]
            missing = missing_buffers(channel.backlog, channel.exclusive, channel.ready)
            channel.listening = missing > 1
            if missing > 0:
                channel.floating += 1
                channel.unannounced += 1
                if missing > 1:
                    self.listeners.append(which)
                self.schedule(which, should_announce(channel.unannounced, channel.unread, channel.scheduled))
                return
        self.free += 1

    @precondition(lambda self: not self.readable())
    @rule()
    def block(self) -> None:
        self.blocked = True
        if any(channel.scheduled for channel in self.receiving):
            self.receiver_flush = later_of(self.receiver_flush, When.LATER)

    # Always.

    @invariant()
    def sent_is_at_most_granted_and_granted_at_most_promised(self) -> None:
        for which, (stream, channel) in enumerate(zip(self.sending, self.receiving, strict=True)):
            ledger, book = stream.ledger, channel.book
            assert book.received <= ledger.sent <= ledger.granted <= book.promised
            assert ledger.granted + sum(credit for to, credit in self.up if to == which) == book.promised

    @invariant()
    def every_credit_has_its_segment(self) -> None:
        used = sum(channel.ready + channel.unread for channel in self.receiving)
        assert self.free + used + len(self.held) == self.total
        for channel in self.receiving:
            assert channel.ready == channel.book.outstanding + channel.unannounced

    @invariant()
    def free_floating_buffers_follow_a_known_backlog(self) -> None:
        for channel in self.receiving:
            missing = missing_buffers(channel.backlog, channel.exclusive, channel.ready)
            assert not (self.free and channel.listening and missing > 0)
            assert missing <= 0 or channel.listening

    @invariant()
    def what_is_delayed_has_a_trigger(self) -> None:
        """With a blocked reader a flush is posted; else its next poll, or its block, is the trigger."""
        for channel in self.receiving:
            if channel.unannounced and self.blocked:
                assert self.receiver_flush is not When.NO, "credit that nothing will announce"
                assert channel.scheduled
            assert not channel.unannounced or channel.scheduled or channel.unread
        if self.queue:
            assert self.sender_flush is not When.NO, "a queued stream that nothing will flush"

    @invariant()
    def coalescing_is_bounded(self) -> None:
        if self.receiver_flush is not When.NOW:
            assert all(channel.unannounced < ENOUGH_CREDIT for channel in self.receiving)
            assert sum(channel.scheduled for channel in self.receiving) < ENOUGH_CHANNELS
        if self.sender_flush is When.LATER:
            assert len(self.queue) < ENOUGH_STREAMS

    @invariant()
    def a_starved_stream_has_told_more_than_half(self) -> None:
        for stream in self.sending:
            if stream.state is SendState.STARVED:
                assert not stream.ledger.available
                assert stream.backlog < BACKLOG_GROWTH * stream.announced

    def teardown(self) -> None:
        """Let every thread do its part: all that was produced is consumed. Anything else is a deadlock."""
        if not hasattr(self, "sending"):
            return
        moved = True
        while moved:
            moved = False
            for step, due in (
                (self.send, self.sender_flush is not When.NO),
                (self.receive, self.down),
                (self.announce, self.receiver_flush is not When.NO),
                (self.grant, self.up),
            ):
                if due:
                    step()
                    moved = True
            for which in self.readable():
                first = FirstChoice(which)
                self.poll(first)
                moved = True
            while self.held:
                self.recycle(FirstChoice(0))
                moved = True
            if not self.readable() and not self.blocked:
                self.block()
                moved = True
        assert self.consumed == self.produced
        assert not any(stream.backlog for stream in self.sending)


class FirstChoice:
    """Stands for drawn data where the choice is made already."""

    def __init__(self, choice: int) -> None:
        self.choice = choice

    def draw(self, _: object) -> int:
        return self.choice


def later_of(posted: When, asked: When) -> When:
    """What is posted after another request, as a connection keeps it."""
    if posted is When.NOW or asked is When.NO:
        return posted
    return When.LATER if asked is When.LATER else When.NOW


FlowMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


@pytest.mark.spec("N2", "G5", "G6")
class TestFlow(FlowMachine.TestCase):
    """The whole policy over a model of a connection."""
