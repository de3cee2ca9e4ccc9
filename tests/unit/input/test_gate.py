"""Gates: fair turns, sleeping and waking, unions, channels that come later, retries, and release."""

import contextlib
from itertools import pairwise

import pytest
from tests.support.exchange import partition_id, values_of
from tests.support.remote_channel import Remote
from tests.support.syncs import HookedSync
from tests.support.threads import Thread

from headgate.buffer import Answer, Arena, NetworkPool
from headgate.clock import ManualClock
from headgate.config import BufferTimeout
from headgate.errors import Cancelled, LocalProtocolError, PartitionNotFound, ProducerFailed
from headgate.ids import SubpartitionIndex
from headgate.input import Backoff, ChannelState, InputGate, LocalSource, RecordReader, UnionGate
from headgate.meters import Activity, TaskTimer
from headgate.output import Forward, PartitionRegistry, PartitionType, RecordWriter, ResultPartition
from headgate.record import BytesSerializer, EndOfPartition, UserEvent
from headgate.record.element import encode_event
from headgate.sync import ThreadSync

MS = 1_000_000


class Inputs:
    """Producers 0, 1, 2 ... of one partition each, all on one worker."""

    def __init__(self, producers, *, sync=None, backoff=None, segments=64, maximum=8):
        self.sync = sync if sync is not None else ThreadSync()
        self.clock = ManualClock()
        self.backoff = backoff
        self.maximum = maximum
        self.memory = NetworkPool(Arena(16, segments), self.sync)
        self.registry = PartitionRegistry(self.sync.lock)
        self.partitions, self.writers, self.gates = {}, {}, []
        for i in range(producers):
            self.produce(i)

    def produce(self, i):
        pool = self.memory.create_pool(f"producer {i}", required=2, maximum=self.maximum, channels=1)
        self.partitions[i] = ResultPartition(partition_id(i), PartitionType.PIPELINED_BOUNDED, 1, pool)
        self.registry.register(self.partitions[i])
        self.writers[i] = RecordWriter(
            self.partitions[i],
            Forward(),
            BytesSerializer(),
            sync=self.sync,
            below=lambda n: 0,
            buffer_timeout=BufferTimeout.parse("-1"),
        )

    def source(self, i):
        return LocalSource(self.registry, partition_id(i), SubpartitionIndex(0), self.backoff)

    def gate(self, *producers, connect=True, timer=None):
        gate = InputGate(f"gate-{len(self.gates)}", len(producers), sync=self.sync, clock=self.clock, timer=timer)
        self.gates.append(gate)
        if connect:
            for index, producer in enumerate(producers):
                gate.connect(index, self.source(producer))
        return gate

    def union(self, *gates):
        union = UnionGate("union", gates, sync=self.sync, clock=self.clock)
        self.gates.append(union)
        return union

    def write(self, i, *buffers):
        """Each in a buffer of its own."""
        for data in buffers:
            self.writers[i].emit(data)
            with self.writers[i]._mutex:
                self.writers[i]._end_buffers()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for i, partition in self.partitions.items():
            partition.release()
            self.writers[i].close()
        for gate in self.gates:
            gate.release()


def take(gate):
    """One buffer as (channel, bytes), or (channel, event), or None."""
    return seen(gate.poll())


def seen(taken):
    if taken is None:
        return None
    if taken.event is not None:
        return taken.channel, taken.event
    data = bytes(taken.memory)[-1:]  # a record of one byte ends its buffer
    taken.release()
    return taken.channel, data


# Turns.


@pytest.mark.spec("G1")
def test_channels_are_polled_round_robin():
    with Inputs(3) as inputs:
        gate = inputs.gate(0, 1, 2)
        inputs.write(0, b"a", b"b", b"c", b"d")
        inputs.write(2, b"x", b"y")
        inputs.write(1, b"p")
        assert gate.statistics().queued == 3
        got = [take(gate) for _ in range(8)]
        assert got == [(0, b"a"), (2, b"x"), (1, b"p"), (0, b"b"), (2, b"y"), (0, b"c"), (0, b"d"), None]


@pytest.mark.spec("G1")
def test_a_channel_is_queued_once():
    with Inputs(2) as inputs:
        gate = inputs.gate(0, 1)
        for _ in range(2):
            inputs.write(0, b"a", b"b", b"c")
            for _ in range(3):
                inputs.partitions[0].flush()
            assert gate.statistics().queued == 1
            assert take(gate) == (0, b"a")
            inputs.write(0, b"d")
            assert gate.statistics().queued == 1
            assert [take(gate) for _ in range(4)] == [(0, b"b"), (0, b"c"), (0, b"d"), None]
            assert gate.statistics().queued == 0


@pytest.mark.spec("G1")
def test_a_busy_channel_does_not_starve_the_others():
    with Inputs(3) as inputs:
        gate = inputs.gate(0, 1, 2)
        inputs.write(0, b"a", b"a", b"a")
        inputs.write(1, b"b", b"b", b"b")
        order = []
        for _ in range(30):
            channel, data = take(gate)
            order.append(channel)
            inputs.write(channel, data)  # always more
            if len(order) == 10:
                inputs.write(2, b"c")
        assert 2 in order[10:13], "a newcomer waits for the others once"
        assert all(one != other for one, other in pairwise(order[14:])), "nobody comes twice in a row"


@pytest.mark.spec("G1", "P4")
def test_a_gate_is_finished_when_every_channel_has_ended():
    with Inputs(2) as inputs:
        gate = inputs.gate(0, 1)
        inputs.writers[0].finish()
        assert take(gate) == (0, EndOfPartition())
        assert not gate.finished
        assert take(gate) is None
        inputs.write(1, b"a")
        inputs.writers[1].finish()
        assert not gate.finished
        assert take(gate) == (1, b"a")
        assert gate.read().event == EndOfPartition()
        assert gate.finished
        assert gate.poll() is None
        assert gate.read() is None
        assert gate.read(timeout_s=5) is None
        assert [one.state for one in gate.statistics().channels] == [ChannelState.ENDED] * 2


# Sleeping.


@pytest.mark.spec("G1", "T2")
def test_a_blocking_read_blocks_until_there_is_data():
    sync = HookedSync(lambda _: inputs.write(1, b"a"))
    with Inputs(2, sync=sync) as inputs:
        gate = inputs.gate(0, 1)
        assert seen(gate.read()) == (1, b"a")
        assert sync.waits == [None], "asleep once, without a time limit: no polling"


@pytest.mark.spec("G1", "T2")
def test_a_reader_in_another_thread_is_woken():
    with Inputs(1) as inputs:
        gate = inputs.gate(0)
        for i in range(50):
            thread = Thread(lambda: seen(gate.read()))
            inputs.write(0, bytes([i]))
            assert thread.end() == (0, bytes([i]))


@pytest.mark.spec("G1")
def test_a_read_with_queued_data_does_not_block():
    sync = HookedSync(lambda _: pytest.fail("asleep with data at hand"))
    with Inputs(1, sync=sync) as inputs:
        gate = inputs.gate(0)
        inputs.write(0, b"a")
        assert seen(gate.read(before_wait=lambda: pytest.fail("called with data at hand"))) == (0, b"a")


@pytest.mark.spec("G1")
def test_a_read_gives_up_after_its_time():
    sync = HookedSync(lambda timeout_s: inputs.clock.advance_ms(timeout_s * 1000))
    with Inputs(1, sync=sync) as inputs:
        gate = inputs.gate(0)
        assert gate.read(timeout_s=2.5) is None
        assert sync.waits == [2.5]
        assert inputs.clock.now_ns() == 2500 * MS


@pytest.mark.spec("G1")
def test_data_that_comes_with_the_deadline_is_delivered():
    def late(timeout_s):
        inputs.clock.advance_ms(timeout_s * 1000)
        inputs.write(0, b"a")

    sync = HookedSync(late)
    with Inputs(1, sync=sync) as inputs:
        assert seen(inputs.gate(0).read(timeout_s=1)) == (0, b"a")


@pytest.mark.spec("G1", "W4")
def test_before_wait_is_called_only_before_the_reader_blocks():
    called = []
    sync = HookedSync(lambda _: (called.append("asleep"), inputs.write(0, b"b", b"c")))
    with Inputs(1, sync=sync) as inputs:
        gate = inputs.gate(0)
        inputs.write(0, b"a")
        got = [seen(gate.read(before_wait=lambda: called.append("flush"))) for _ in range(3)]
        assert got == [(0, b"a"), (0, b"b"), (0, b"c")]
        assert called == ["flush", "asleep"]
        inputs.writers[0].finish()
        assert gate.read(before_wait=lambda: called.append("flush")).event == EndOfPartition()
        assert gate.read(before_wait=lambda: called.append("flush")) is None
        assert called == ["flush", "asleep"], "not at the end"


@pytest.mark.spec("G1")
def test_before_wait_may_bring_the_data():
    sync = HookedSync(lambda _: pytest.fail("asleep with data at hand"))
    with Inputs(1, sync=sync) as inputs:
        gate = inputs.gate(0)
        assert seen(gate.read(before_wait=lambda: inputs.write(0, b"a"))) == (0, b"a")


@pytest.mark.spec("G1")
def test_waiting_is_counted_as_idle():
    states = []

    def on_wait(_):
        states.append(timer.state)
        inputs.write(0, b"a")

    timer = TaskTimer(iter(range(100)).__next__)
    with Inputs(1, sync=HookedSync(on_wait)) as inputs:
        inputs.gate(0, timer=timer).read().release()
        assert states == [Activity.IDLE]
        assert timer.state is Activity.BUSY


@pytest.mark.spec("G1")
def test_a_read_without_data_polls_the_network_before_it_flushes_or_blocks():
    states = []

    class Helped(HookedSync):
        __slots__ = ()

        def poll_once(self):
            states.append(timer.state)
            inputs.write(0, b"a")
            return True

    timer = TaskTimer(iter(range(100)).__next__)
    with Inputs(1, sync=Helped(pytest.fail)) as inputs:
        gate = inputs.gate(0, timer=timer)
        gate.read(before_wait=lambda: pytest.fail("there is something at hand")).release()
        assert states == [Activity.IDLE]
        assert timer.state is Activity.BUSY
        assert gate.poll() is None, "who does not wait does not help"
        assert len(states) == 1


# Unions.


@pytest.mark.spec("G2")
def test_a_union_numbers_channels_behind_one_another():
    with Inputs(5) as inputs:
        first, second, third = inputs.gate(0, 1), inputs.gate(2), inputs.gate(3, 4)
        inputs.write(1, b"early")  # before the union is made
        union = inputs.union(first, second, third)
        assert union.channel_count == 5
        for i in (4, 0, 2, 3):
            inputs.write(i, b"%d" % i)
        assert sorted(take(union) for _ in range(5)) == [(0, b"0"), (1, b"y"), (2, b"2"), (3, b"3"), (4, b"4")]
        assert take(union) is None
        for i in range(5):
            assert not union.finished
            inputs.writers[i].finish()
            assert take(union) == (i, EndOfPartition())
        assert union.finished
        assert union.read() is None
        assert [one.queued for one in union.statistics()] == [0, 0, 0]


@pytest.mark.spec("G2", "G1")
def test_gates_of_a_union_and_their_channels_are_polled_round_robin():
    with Inputs(3) as inputs:
        union = inputs.union(inputs.gate(0, 1), inputs.gate(2))
        inputs.write(0, b"a", b"b", b"c")
        inputs.write(1, b"p", b"q")
        inputs.write(2, b"x", b"y", b"z")
        got = [take(union) for _ in range(9)]
        assert got == [
            (0, b"a"),
            (2, b"x"),
            (1, b"p"),
            (2, b"y"),
            (0, b"b"),
            (2, b"z"),
            (1, b"q"),
            (0, b"c"),
            None,
        ]


@pytest.mark.spec("G2", "T2")
def test_a_union_blocks_until_one_of_its_gates_has_data():
    sync = HookedSync(lambda _: inputs.write(2, b"a"))
    with Inputs(3, sync=sync) as inputs:
        union = inputs.union(inputs.gate(0, 1), inputs.gate(2))
        assert seen(union.read()) == (2, b"a")
        assert sync.waits == [None]


@pytest.mark.spec("G2")
def test_a_union_s_reader_reads_records():
    with Inputs(3) as inputs:
        reader = RecordReader(inputs.union(inputs.gate(0), inputs.gate(1, 2)), BytesSerializer())
        sent = {i: [bytes([65 + i]) * n for n in (1, 50, 0, 20)] for i in range(3)}
        got = {i: [] for i in range(3)}
        for n in range(4):
            for i in (2, 0, 1):
                inputs.writers[i].emit(sent[i][n])
                inputs.writers[i].flush()
                while (element := reader.poll()) is not None:
                    got[reader.channel] += values_of([element])
        assert got == sent


# Channels that come later.


@pytest.mark.spec("G3")
def test_a_channel_may_be_connected_later():
    with Inputs(2) as inputs:
        gate = inputs.gate(0, 1, connect=False)
        assert [one.state for one in gate.statistics().channels] == [ChannelState.UNKNOWN] * 2
        inputs.write(0, b"a")
        assert gate.poll() is None
        gate.connect(1, inputs.source(1))
        assert gate.poll() is None
        gate.connect(0, inputs.source(0))
        assert take(gate) == (0, b"a")
        with pytest.raises(LocalProtocolError, match="channel 0 is connected twice"):
            gate.connect(0, inputs.source(0))
        inputs.write(0, b"b")
        assert take(gate) == (0, b"b"), "it goes on with its first source"


@pytest.mark.spec("G3", "T2")
@pytest.mark.parametrize("united", [False, True])
def test_connecting_to_data_wakes_the_reader(united):
    sync = HookedSync(lambda _: gate.connect(0, inputs.source(0)))
    with Inputs(1, sync=sync) as inputs:
        gate = inputs.gate(0, connect=False)
        reads = inputs.union(gate) if united else gate
        inputs.write(0, b"a")
        assert seen(reads.read()) == (0, b"a")
        assert sync.waits == [None]


@pytest.mark.spec("G3", "G4")
@pytest.mark.parametrize("united", [False, True])
def test_connecting_to_a_missing_partition_wakes_the_reader_for_its_retries(united):
    steps = iter([lambda: gate.connect(0, inputs.source(0)), lambda: (inputs.produce(0), inputs.write(0, b"a"))])

    def on_wait(timeout_s):
        if timeout_s is not None:
            inputs.clock.advance_ms(timeout_s * 1000)
        next(steps)()

    sync = HookedSync(on_wait)
    with Inputs(0, sync=sync, backoff=Backoff(100 * MS, 400 * MS)) as inputs:
        gate = inputs.gate(0, connect=False)
        reads = inputs.union(gate) if united else gate
        assert seen(reads.read()) == (0, b"a")
        assert sync.waits == [None, 0.1]


@pytest.mark.spec("G3", "G4")
@pytest.mark.parametrize("cause", [None, ValueError("boom")])
def test_connecting_to_a_released_producer_fails_the_reader(cause):
    """Whoever connects may be told too, but it is the reader that would wait for ever."""
    with Inputs(1) as inputs:
        gate = inputs.gate(0, connect=False)
        inputs.partitions[0].release(cause)
        with contextlib.suppress(Cancelled, ProducerFailed):
            gate.connect(0, inputs.source(0))
        with pytest.raises(Cancelled if cause is None else ProducerFailed):
            gate.read(timeout_s=0)


# Retries.


class RetryingInputs(Inputs):
    """Time passes only while the reader sleeps."""

    def __init__(self, *, initial_ms=100, max_ms=1000, on_wait=lambda: None):
        self.asked_ms = []

        def pass_time(timeout_s):
            self.clock.advance_ms(timeout_s * 1000)
            on_wait()

        super().__init__(0, sync=HookedSync(pass_time), backoff=Backoff(initial_ms * MS, max_ms * MS))
        attach = self.registry.attach_locked

        def counting(*args):
            self.asked_ms.append(self.clock.now_ns() // MS)
            return attach(*args)

        self.registry.attach_locked = counting


@pytest.mark.spec("G4")
@pytest.mark.parametrize("united", [False, True])
def test_a_missing_partition_is_requested_again_with_growing_delays_and_then_not_found(united):
    with RetryingInputs() as inputs:
        gate = inputs.gate(7)
        reads = inputs.union(gate) if united else gate
        for _ in range(2):  # the same again
            with pytest.raises(PartitionNotFound, match="job#1/v0"):
                reads.read()
        assert inputs.asked_ms == [0, 100, 300, 700, 1500, 2500]
        assert inputs.sync.waits == [0.1, 0.2, 0.4, 0.8, 1.0]
        with pytest.raises(PartitionNotFound):
            reads.poll()


@pytest.mark.spec("G4")
def test_a_partition_that_appears_is_read():
    def appear():
        if inputs.clock.now_ns() >= 300 * MS and not inputs.partitions:
            inputs.produce(7)
            inputs.write(7, b"a")

    with RetryingInputs(on_wait=appear) as inputs:
        gate = inputs.gate(7)
        assert gate.poll() is None
        assert gate.statistics().channels[0].state is ChannelState.REQUESTING
        assert seen(gate.read()) == (0, b"a")
        assert inputs.asked_ms == [0, 100, 300]
        assert gate.statistics().channels[0].state is ChannelState.READING
        inputs.write(7, b"b")
        assert seen(gate.read()) == (0, b"b")


@pytest.mark.spec("G4")
def test_a_deadline_before_the_next_try_is_kept():
    with RetryingInputs() as inputs:
        gate = inputs.gate(7)
        assert gate.read(timeout_s=0.25) is None
        assert inputs.clock.now_ns() == 250 * MS
        assert inputs.asked_ms == [0, 100]
        inputs.produce(7)
        inputs.write(7, b"a")
        assert seen(gate.read()) == (0, b"a")
        assert inputs.asked_ms == [0, 100, 300]


@pytest.mark.spec("G4")
def test_one_missing_partition_does_not_hold_up_the_others():
    with RetryingInputs() as inputs:
        inputs.produce(0)
        gate = inputs.gate(7, 0)
        inputs.write(0, b"a")
        assert seen(gate.read()) == (1, b"a")
        inputs.produce(7)
        inputs.write(7, b"b")
        assert seen(gate.read()) == (0, b"b")


# Release and failure.


@pytest.mark.spec("G7", "M9")
@pytest.mark.parametrize("united", [False, True])
def test_release_recycles_all_buffers_and_cancels_the_producers(united):
    with Inputs(2) as inputs:
        gate = inputs.union(inputs.gate(0), inputs.gate(1)) if united else inputs.gate(0, 1)
        for i in range(2):
            inputs.write(i, b"a", b"b", b"c")
        taken = gate.poll()
        gate.release()
        gate.release()
        for read in (gate.poll, gate.read):
            with pytest.raises(Cancelled, match="released"):
                read()
        assert inputs.memory.statistics().free == 63, "all but the one in the reader's hands"
        taken.release()
        assert inputs.memory.statistics().free == 64
        for i in range(2):
            with pytest.raises(Cancelled):
                inputs.write(i, b"d")


@pytest.mark.spec("G7", "G4", "T2")
@pytest.mark.parametrize("united", [False, True])
def test_release_wakes_a_blocked_reader(united):
    sync = HookedSync(lambda _: reads.release())
    with Inputs(1, sync=sync) as inputs:
        gate = inputs.gate(0)
        reads = inputs.union(gate) if united else gate
        with pytest.raises(Cancelled):
            reads.read()


@pytest.mark.spec("G7", "G3")
def test_connecting_a_released_channel_cancels_the_producer():
    with Inputs(1) as inputs:
        gate = inputs.gate(0, connect=False)
        gate.release()
        gate.connect(0, inputs.source(0))
        with pytest.raises(Cancelled):
            inputs.write(0, b"a")


@pytest.mark.spec("G7")
def test_a_released_gate_requests_nothing_more():
    with RetryingInputs() as inputs:
        gate = inputs.gate(7)
        gate.release()
        inputs.clock.advance_ms(1000)
        with pytest.raises(Cancelled):
            gate.read()
        assert inputs.asked_ms == [0]


@pytest.mark.spec("G7")
def test_the_release_of_an_ended_partition_does_not_wake_its_channel():
    with Inputs(2) as inputs:
        gate = inputs.gate(0, 1)
        inputs.writers[0].finish()
        assert take(gate) == (0, EndOfPartition())
        inputs.write(1, b"a")
        assert take(gate) == (1, b"a")
        inputs.partitions[0].release()  # it is over: nobody minds
        assert gate.poll() is None
        gate.release()


@pytest.mark.spec("G4", "T2")
@pytest.mark.parametrize("united", [False, True])
def test_a_producer_s_failure_wakes_the_reader_and_stays(united):
    cause = ValueError("boom")
    sync = HookedSync(lambda _: inputs.partitions[1].release(cause))
    with Inputs(2, sync=sync) as inputs:
        gate = inputs.gate(0, 1)
        reads = inputs.union(gate) if united else gate
        for read in (reads.read, reads.poll, reads.read):
            with pytest.raises(ProducerFailed, match="boom") as caught:
                read()
            assert caught.value.cause is cause
        assert len(sync.waits) == 1


class Waiting:
    """Somebody who waits for memory of a pool."""

    def __init__(self, pool):
        self.woken = 0
        self.segment = None
        with pool.lock:
            pool.listen_locked(self, 0)

    def offer_locked(self, segment):
        self.segment = segment
        return Answer.USED_ENOUGH, self.wake

    def cancel_locked(self):
        return None

    def wake(self):
        self.woken += 1


@pytest.mark.spec("G4", "M6")
@pytest.mark.parametrize("united", [False, True])
def test_one_producer_s_failure_does_not_swallow_another_s_wake_up(united):
    """A poll frees a buffer that somebody waits for, then meets a failed channel: it must still wake him."""
    with Inputs(2, segments=4, maximum=2) as inputs:
        gates = [inputs.gate(0), inputs.gate(1)] if united else [inputs.gate(0, 1)]
        reads = inputs.union(*gates) if united else gates[0]
        writer, pool = inputs.writers[0], inputs.partitions[0].pool
        writer.emit(b"a")
        writer.flush()
        reads.poll().release()  # read to its end before it is finished
        with pool.lock:
            held = list(iter(lambda: pool.try_request_locked(0), None))
        waiting = Waiting(pool)
        with writer._mutex:
            writer._end_buffers()  # announced: there is a buffer to let go of
        inputs.partitions[1].release(ValueError("boom"))
        with pytest.raises(ProducerFailed):
            _ = reads.poll(), reads.poll()  # at the latest when there is nothing else to say
        got = waiting.segment is not None
        for segment in [*held, *([waiting.segment] if got else [])]:
            with pool.lock:
                pool.recycle_locked(segment, 0)
        assert got, "the buffer was freed"
        assert waiting.woken == 1


# Events against the stream, and the pool of remote channels.


@pytest.mark.spec("K4")
def test_a_task_event_is_sent_to_the_producer():
    with Inputs(2) as inputs:
        gate = inputs.gate(0, 1)
        heard = {0: [], 1: []}
        for i, events in heard.items():
            inputs.registry.subscribe(partition_id(i), "reload", events.append)
        gate.send_task_event(1, UserEvent("reload", b"rules"))
        gate.send_task_event(1, UserEvent("nobody listens"))
        assert heard == {0: [], 1: [UserEvent("reload", b"rules")]}


@pytest.mark.spec("K4")
def test_a_task_event_needs_a_connected_producer():
    with Inputs(1) as inputs:
        gate = inputs.gate(0, connect=False)
        with pytest.raises(LocalProtocolError, match="gate gate-0, channel 0: its producer is not known yet"):
            gate.send_task_event(0, UserEvent("reload"))
        gate.connect(0, inputs.source(0))
        gate.send_task_event(0, UserEvent("reload"))


@pytest.mark.spec("K4")
def test_an_event_to_another_worker_is_handed_to_its_channel():
    with Remote(begin=False) as remote:
        gate = InputGate("words", 1, sync=remote.memory.sync, clock=ManualClock())
        gate.connect(0, remote.channel)
        gate.send_task_event(0, UserEvent("reload"))
        assert list(remote.channel.task_events) == [encode_event(UserEvent("reload"))]
        assert remote.outlet.woken == 2, "for the request, and for the event"
        gate.release()
        with pytest.raises(Cancelled, match="is not read any more"):
            gate.send_task_event(0, UserEvent("reload"))


@pytest.mark.spec("G7", "M9")
def test_the_pool_of_a_gate_s_remote_channels_goes_with_it():
    with Inputs(1) as inputs:
        gate = inputs.gate(0)
        pool = inputs.memory.create_pool("gate", required=0)
        gate.use_pool(pool)
        assert gate.pool is pool
        assert not pool.destroyed
        gate.release()
        assert pool.destroyed
        gate.release()


@pytest.mark.spec("G7", "M9")
def test_a_released_gate_takes_no_pool():
    with Inputs(1) as inputs:
        gate = inputs.gate(0)
        gate.release()
        pool = inputs.memory.create_pool("gate", required=0)
        gate.use_pool(pool)
        assert pool.destroyed


@pytest.mark.spec("G7", "G8", "M9")
def test_a_gate_that_failed_keeps_its_pool_until_it_is_released():
    with Inputs(1) as inputs:
        gate = inputs.gate(0)
        inputs.partitions[0].release(ValueError("boom"))
        with pytest.raises(ProducerFailed):
            gate.poll()
        pool = inputs.memory.create_pool("gate", required=0)
        gate.use_pool(pool)
        assert not pool.destroyed
        gate.release()
        assert pool.destroyed


class Way:
    """An outlet that only counts how often it is asked to announce."""

    def __init__(self):
        self.announced = 0
        self.woken = 0

    def schedule_locked(self, channel, when, reader_blocked):
        return None

    def announce_to_starved_locked(self):
        self.announced += 1
        return self.wake

    announce_all_locked = announce_to_starved_locked

    def wake(self):
        self.woken += 1


@pytest.mark.spec("G5")
def test_scheduled_credit_is_announced_when_the_reader_polls_its_last_buffer():
    with Remote(begin=False, exclusive=4) as remote:
        way = remote.channel.outlet = Way()
        gate = InputGate("words", 1, sync=remote.memory.sync, clock=ManualClock())
        gate.connect(0, remote.channel)
        remote.request()
        remote.arrive(b"a")
        remote.arrive(b"b")
        taken = gate.poll()
        assert (way.announced, way.woken) == (0, 0), "there is more to read"
        taken = gate.poll(taken)
        assert (way.announced, way.woken) == (1, 1), "it may take its time with the last"
        assert gate.poll(taken) is None
        assert (way.announced, way.woken) == (2, 2)
        gate.release()


def test_a_gate_without_remote_channels_announces_nothing():
    with Inputs(1) as inputs:
        gate = inputs.gate(0)
        inputs.write(0, b"a")
        assert [take(gate), take(gate)] == [(0, b"a"), None]
