"""Two sessions joined by slow pipes, and a gate's channels sharing their segments, in any order of events.

Nothing is lost, doubled or reordered; no more is sent than was granted, none granted that was not promised, none
promised that was not set aside; and whatever happened, everybody can finish.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.frames import Pipe
from tests.support.producer_session import PLENTY, Producer, partition
from tests.support.remote_channel import Remote

from headgate.buffer import Buffer, BufferSlice
from headgate.errors import Cancelled, PartitionNotFound, ProducerFailed, error_from_wire
from headgate.ids import SubpartitionIndex
from headgate.input import RemoteState
from headgate.record import EndOfPartition, UserEvent
from headgate.record.element import encode_event
from headgate.wire import (
    AddCredit,
    AnnounceBacklog,
    CancelRequest,
    ConsumerSession,
    ConsumerStream,
    Data,
    Frame,
    Payload,
    ReportError,
    RequestPartition,
    SendTaskEvent,
)
from headgate.wire.states import ConsumerState, ProducerState

EVERYTHING = 10**9
credits_ = st.sampled_from([0, 0, 1, 2, None])
END = encode_event(EndOfPartition())
choices = st.integers(0, 1000)  # which of those that are there, modulo how many
rarely = st.sampled_from([False] * 5 + [True])  # so that channels live long enough for something to happen to them

# Sessions --------------------------------------------------------------------------------------------------


@dataclass
class Channel:
    """What has happened to one channel, at both ends."""

    missing: bool  # the producer does not have it
    stream: ConsumerStream = None  # type: ignore[assignment]  # set when it is asked for
    produced: bytes = b""
    received: bytes = b""
    writing: Buffer | None = None  # not finished
    over: bool = False  # nothing more is produced
    failed: bool = False
    cancelled: bool = False  # by the consumer, before the end
    cause: Exception | None = None  # as the consumer learned it
    backlog: int = 0  # as the consumer knows it
    granted: int = 0
    events: list[bytes] = field(default_factory=list)  # sent back
    heard: list[bytes] = field(default_factory=list)  # of these, by the producer


class SessionMachine(RuleBasedStateMachine):
    """A `ProducerSession` over real subpartitions and a `ConsumerSession`, with bytes on their way both ways.

    This class does what a pump does, and remembers what should come of it.
    """

    @initialize(credit=st.tuples(credits_, credits_))
    def start(self, credit: tuple[int | None, int | None]) -> None:
        self.producer = Producer(segments=64, segment_size=64, max_streams=100)
        self.consumer: ConsumerSession[Channel] = ConsumerSession()
        self.down, self.up = Pipe(4096), Pipe(4096)  # to the consumer; to the producer
        self.channels: list[Channel] = []  # by receiver
        self.arriving: ConsumerStream[Channel] | None = None
        self.dropping = False
        self.counter = 0
        for one in credit:
            self.request(one, missing=False)

    def next_bytes(self) -> bytes:
        self.counter += 1
        return b"%d " % self.counter

    def pick(self, which: int, *, alive: bool = True) -> Channel | None:
        """One of the channels that produce, or else of those that the consumer has not forgotten."""
        those = [
            one
            for one in self.channels
            if (not one.over and not one.missing if alive else one.stream.receiver in self.consumer.streams)
        ]
        return those[which % len(those)] if those else None

    def receiver(self, channel: Channel) -> int:
        return channel.stream.receiver

    # The consumer asks.

    @precondition(lambda self: len(self.consumer.streams) < 2 and len(self.producer.session.streams) < 4)
    @rule(credit=credits_, missing=rarely)
    def request(self, credit: int | None, missing: bool) -> None:
        channel = Channel(missing)
        channel.stream = self.consumer.request(partition(len(self.channels)), SubpartitionIndex(0), credit, channel)
        channel.granted = credit or 0
        self.channels.append(channel)
        self.producer.queue(self.receiver(channel))

    @rule(which=choices, credit=st.integers(1, 2), really=rarely)
    def grant(self, which: int, credit: int, really: bool) -> None:
        """More than is wanted, perhaps."""
        channel = self.pick(which, alive=False)
        if channel is None or not really or channel.stream.book is None:
            return
        if channel.stream.state is ConsumerState.RECEIVING:
            self.consumer.grant(channel.stream, credit)
            channel.granted += credit

    @rule()
    def grant_what_is_wanted(self) -> None:
        """So much that the backlog, as far as it is known, can come."""
        for stream in self.consumer.streams.values():
            if stream.state is ConsumerState.RECEIVING and stream.book is not None:
                missing = stream.target.backlog - stream.book.outstanding
                if missing > 0:
                    self.consumer.grant(stream, missing)
                    stream.target.granted += missing

    @rule(which=choices)
    def send_back(self, which: int) -> None:
        channel = self.pick(which, alive=False)
        if channel is not None and channel.stream.state in {ConsumerState.RECEIVING, ConsumerState.ENDED}:
            event = self.next_bytes()
            self.consumer.send_task_event(channel.stream, event)
            channel.events.append(event)

    @rule(which=choices, really=rarely)
    def cancel(self, which: int, really: bool) -> None:
        """It wants no more, or has read the end."""
        channel = self.pick(which, alive=False)
        if channel is None or not really or channel.stream.state not in {ConsumerState.RECEIVING, ConsumerState.ENDED}:
            return
        if self.arriving is channel.stream:
            if channel.stream.state is ConsumerState.ENDED:
                return  # it has not read the end yet
            self.dropping = True
        channel.cancelled |= channel.stream.state is ConsumerState.RECEIVING
        self.consumer.cancel(channel.stream)

    # The tasks produce.

    def room(self) -> bool:
        return self.producer.in_use < 60

    @rule(which=choices, count=st.integers(1, 4))
    def produce(self, which: int, count: int) -> None:
        channel = self.pick(which)
        if channel is None or channel.writing is not None:
            return
        for _ in range(count):
            if self.room():
                data = self.next_bytes()
                self.producer.add(self.receiver(channel), data)
                channel.produced += data

    @rule(which=choices, end=st.booleans())
    def produce_part(self, which: int, end: bool) -> None:
        """A buffer that is flushed before it is full."""
        channel = self.pick(which)
        if channel is None or not self.room():
            return
        data, receiver = self.next_bytes(), self.receiver(channel)
        if channel.writing is not None and channel.writing.room < len(data):
            self.end_part(channel)
        if channel.writing is None:
            channel.writing = self.producer.begin(receiver, data)
        else:
            channel.writing.append(data)
        channel.produced += data
        self.producer.flush(receiver)
        if end:
            self.end_part(channel)

    def end_part(self, channel: Channel) -> None:
        if channel.writing is not None:
            self.producer.end(self.receiver(channel), channel.writing)
            channel.writing = None

    @rule(which=choices)
    def produce_event(self, which: int) -> None:
        channel = self.pick(which)
        if channel is not None:
            self.end_part(channel)
            event = UserEvent(self.next_bytes().decode())
            self.producer.event(self.receiver(channel), event)
            channel.produced += encode_event(event)

    @rule(which=choices, really=rarely)
    def finish(self, which: int, really: bool) -> None:
        channel = self.pick(which)
        if channel is not None and really:
            self.end_part(channel)
            self.producer.finish(self.receiver(channel))
            channel.over = True

    @rule(which=choices, really=rarely)
    def fail(self, which: int, really: bool) -> None:
        channel = self.pick(which)
        if channel is not None and really:
            self.producer.fail(self.receiver(channel), ValueError("boom"))
            self.end_part(channel)
            channel.over = channel.failed = True

    # The network threads.

    @rule(room=st.sampled_from([1, 10, 100, PLENTY]))
    def send(self, room: int) -> None:
        side = self.producer
        with side.sync.lock:
            sending, wake = side.session.data_to_send_locked(room)
        if wake is not None:
            wake()
        told, before = {}, b""
        for piece, taken in zip(*sending, strict=True):
            self.down.write(bytes(piece))
            if taken is not None:
                told[int.from_bytes(before[6:10], "little")] = int.from_bytes(before[14:18], "little")
                taken.release()
            before = bytes(piece)
        assert told == {receiver: side.queues[receiver].backlog for receiver in told}, "the backlog when it was sent"

    @rule()
    def exchange(self) -> None:
        """Everything gets through, both ways."""
        self.ask()
        self.up.deliver(EVERYTHING, self.hear_consumer)
        self.send(PLENTY)
        self.down.deliver(EVERYTHING, self.hear_producer)
        self.more_than_half_of_each_backlog_is_known()

    def more_than_half_of_each_backlog_is_known(self) -> None:
        """Of each channel that has data and no credit for it."""
        for stream in self.producer.session.streams.values():
            if stream.ledger is None or stream.ledger.available or stream.state is not ProducerState.SENDING:
                continue
            supply, channel = stream.supply, self.channels[stream.receiver]
            if supply is not None and supply.notified and supply.next_is_data and not channel.cancelled:
                assert 2 * channel.backlog > supply.backlog

    @rule()
    def ask(self) -> None:
        for piece in self.consumer.data_to_send():
            self.up.write(piece)

    @precondition(lambda self: self.up)
    @rule(count=st.integers(1, 60) | st.just(EVERYTHING))
    def deliver_up(self, count: int) -> None:
        self.up.deliver(count, self.hear_consumer)

    def hear_consumer(self, frame: Frame | Payload) -> None:
        side = self.producer
        match frame:
            case RequestPartition():
                stream = side.session.on_request(frame)
                if self.channels[frame.receiver].missing:
                    side.locked(side.session.fail_locked, stream, PartitionNotFound("it is not here"))
                    return
                queue = side.queues[frame.receiver]
                try:
                    side.locked(queue.attach_locked, stream)
                except (ProducerFailed, Cancelled) as error:
                    side.locked(side.session.fail_locked, stream, error)
                else:
                    side.locked(side.session.accept_locked, stream, queue)
            case AddCredit(receiver, attempt, credit):
                side.credit(receiver, credit, attempt)
            case CancelRequest():
                gone, _ = side.locked(side.session.on_cancel_locked, frame)
                if gone.supply is not None:
                    side.locked(side.queues[frame.receiver].release_locked)
            case SendTaskEvent():
                side.session.on_task_event(frame)
                self.channels[frame.receiver].heard.append(frame.event)
            case _:
                raise AssertionError(frame)

    @precondition(lambda self: self.down)
    @rule(count=st.integers(1, 60) | st.just(EVERYTHING))
    def deliver_down(self, count: int) -> None:
        self.down.deliver(count, self.hear_producer)

    def hear_producer(self, one: Frame | Payload) -> None:
        match one:
            case Payload():
                assert self.arriving is not None
                if not self.dropping:
                    self.arriving.target.received += one.data
                if one.last:
                    self.arriving = None
            case Data():
                self.arriving = stream = self.consumer.on_data(one)
                self.dropping = stream.state in {ConsumerState.CANCELLED, ConsumerState.GONE}
                stream.target.backlog = one.backlog
            case AnnounceBacklog():
                self.consumer.on_backlog(one).target.backlog = one.backlog
            case ReportError():
                stream = self.consumer.on_error(one)
                if stream.state is not ConsumerState.GONE:
                    stream.target.cause = error_from_wire(one.code, one.text)
                    self.consumer.cancel(stream)
            case _:
                raise AssertionError(one)

    # Always.

    @invariant()
    def nobody_sends_more_than_was_granted_nor_grants_more_than_was_promised(self) -> None:
        for stream in self.producer.session.streams.values():
            if stream.ledger is not None:
                channel = self.channels[stream.receiver]
                book = channel.stream.book
                assert book.received <= stream.ledger.sent <= stream.ledger.granted <= book.promised == channel.granted

    @invariant()
    def nothing_is_lost_doubled_or_reordered(self) -> None:
        for channel in self.channels:
            whole = channel.produced + END if channel.over and not channel.failed else channel.produced
            assert whole.startswith(channel.received)
            assert channel.events[: len(channel.heard)] == channel.heard

    def teardown(self) -> None:
        """Everybody finishes what is begun. Credit is given for the backlog that was made known, and for no other."""
        if not hasattr(self, "producer"):
            return
        while self.pick(0) is not None:
            self.finish(0, really=True)
        for _ in range(10 + 2 * self.counter):
            for stream in list(self.consumer.streams.values()):
                if stream.state is ConsumerState.ENDED:
                    self.consumer.cancel(stream)
            self.grant_what_is_wanted()
            self.exchange()
            self.nobody_sends_more_than_was_granted_nor_grants_more_than_was_promised()
            self.nothing_is_lost_doubled_or_reordered()
        self.check_the_end()

    def check_the_end(self) -> None:
        assert self.consumer.idle
        assert self.producer.session.idle
        assert not self.producer.session.has_work
        assert not self.up
        assert not self.down
        for channel in self.channels:
            if channel.cancelled:
                assert channel.cause is None, "an answer to what it wanted is no failure"
            elif channel.missing:
                assert isinstance(channel.cause, PartitionNotFound)
            elif channel.failed:
                assert isinstance(channel.cause, ProducerFailed)
                assert "boom" in str(channel.cause)
            else:
                assert channel.cause is None
                assert channel.received == channel.produced + END
            assert channel.heard == channel.events
        assert self.producer.in_use == 0
        self.producer.close()
        statistics = self.producer.memory.statistics()
        assert statistics.free == statistics.total


SessionMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


@pytest.mark.spec("T5", "N2", "G6", "G7", "G8")
class TestSessions(SessionMachine.TestCase):
    """A producer's and a consumer's session, over frames that are cut and late."""


# Segments --------------------------------------------------------------------------------------------------


class SegmentMachine(RuleBasedStateMachine):
    """Two channels of one gate: their own segments, and the gate's that they share; a producer behind each."""

    @initialize(exclusive=st.tuples(st.integers(0, 2), st.integers(0, 2)), floating=st.sampled_from([1, 1, 2, 3]))
    def start(self, exclusive: tuple[int, int], floating: int) -> None:
        first = Remote(exclusive[0], floating, segments=12)
        self.remotes = [first, Remote(exclusive[1], beside=first)]
        self.waiting = [0, 0]  # buffers at each producer
        self.told = [0, 0]  # as each channel knows
        self.sent, self.read_so_far = [0, 0], [0, 0]
        self.held: list[BufferSlice] = []
        self.views: list[memoryview] = []

    def alive(self, which: int) -> bool:
        return self.remotes[which].now.state is RemoteState.RECEIVING

    both = st.integers(0, 1)

    # The producers.

    @rule(which=both, count=st.integers(1, 4))
    def produce(self, which: int, count: int) -> None:
        self.waiting[which] += count

    @rule(which=both)
    def send(self, which: int) -> None:
        remote = self.remotes[which]
        if not (self.alive(which) and remote.at_producer and self.waiting[which]):
            return
        self.waiting[which] -= 1
        self.told[which] = self.waiting[which]
        assert remote.arrive(b"%d" % self.sent[which], backlog=self.waiting[which], skew=self.sent[which] % 64)
        self.sent[which] += 1

    @rule(which=both)
    def tell_backlog(self, which: int) -> None:
        """Without credit, and once: as a producer does."""
        if self.alive(which) and not self.remotes[which].at_producer and self.waiting[which] and not self.told[which]:
            self.told[which] = self.waiting[which]
            self.remotes[which].backlog(self.waiting[which])

    # The network thread.

    @rule(which=both)
    def announce(self, which: int) -> None:
        self.remotes[which].announce()

    # The reader.

    @rule(which=both)
    def read(self, which: int) -> None:
        taken = self.remotes[which].poll() if self.remotes[which].channel.notified else None
        if taken is not None:
            assert bytes(taken.memory) == b"%d" % self.read_so_far[which]
            assert taken.offset == self.read_so_far[which] % 64
            self.read_so_far[which] += 1
            self.held.append(taken)

    @precondition(lambda self: self.held)
    @rule(which=choices)
    def give_back(self, which: int) -> None:
        self.held.pop(which % len(self.held)).release()

    @precondition(lambda self: self.held)
    @rule(which=choices)
    def lend(self, which: int) -> None:
        taken = self.held.pop(which % len(self.held))
        data = bytes(taken.memory)
        view = taken.lend()
        taken.release()
        if view is not None:
            assert bytes(view) == data
            self.views.append(view)

    @precondition(lambda self: self.views)
    @rule()
    def let_go(self) -> None:
        self.views.pop()
        self.remotes[0].memory.collect_returned()

    @rule(which=both)
    def go_round(self, which: int) -> None:
        """One buffer, all the way."""
        self.produce(which, 1)
        self.tell_backlog(which)
        self.announce(which)
        self.send(which)
        while self.remotes[which].channel.notified:
            self.read(which)
            self.give_back(0)

    @rule(which=both, really=rarely)
    def release(self, which: int, really: bool) -> None:
        if really:
            self.remotes[which].release()

    # Always.

    @invariant()
    def every_credit_has_its_segment_and_every_segment_its_credit(self) -> None:
        for which, remote in enumerate(self.remotes):
            now = remote.now
            if self.alive(which):
                assert now.ready == remote.at_producer + now.unannounced
                assert now.ready - now.floating <= remote.channel.exclusive
                wanted, listeners = now.wanted(remote.channel.exclusive), remote.pool.statistics().waiting
                assert now.ready >= wanted or listeners, "it listens for what it wants"
            else:
                assert (now.ready, now.unannounced, now.queued) == (0, 0, 0)

    @invariant()
    def no_segment_is_in_two_places(self) -> None:
        memory, pool = self.remotes[0].memory.statistics(), self.remotes[0].pool.statistics()
        assert memory.free + pool.held + memory.exclusive == memory.total
        arrived = [taken for remote in self.remotes for taken in remote.channel._unread]
        taken = sum(one.buffer.owner is self.remotes[0].pool for one in [*arrived, *self.held])
        in_use = pool.held - pool.available
        assert sum(remote.now.floating for remote in self.remotes) + taken + pool.lent == in_use

    def teardown(self) -> None:
        """With a reader that reads, all that waits arrives; and when all is released, every segment is back."""
        if not hasattr(self, "remotes"):
            return
        self.views.clear()
        while self.held:
            self.give_back(0)
        self.remotes[0].memory.collect_returned()
        for _ in range(2 * (sum(self.waiting) + sum(self.sent)) + 4):
            for which in (0, 1):
                self.tell_backlog(which)
                self.announce(which)
                self.send(which)
                while self.remotes[which].channel.notified:
                    self.read(which)
                    while self.held:
                        self.give_back(0)
        for which in (0, 1):
            assert self.waiting[which] == 0 or not self.alive(which)
            assert self.sent[which] == self.read_so_far[which] or not self.alive(which)
            self.remotes[which].release()
        self.remotes[0].pool.destroy()
        statistics = self.remotes[0].memory.statistics()
        assert (statistics.free, statistics.exclusive) == (statistics.total, 0)


SegmentMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


@pytest.mark.spec("G5", "G7", "M9", "T5")
class TestSegments(SegmentMachine.TestCase):
    """Remote channels over real pools."""
