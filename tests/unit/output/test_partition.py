"""A result partition: its types, its end, one buffer for all readers of a broadcast, and the effects of a release."""

import pytest
from tests.support.exchange import Exchange, partition_id
from tests.support.syncs import HookedSync

from headgate.buffer import UNCHANNELLED, Answer
from headgate.errors import Cancelled, LocalProtocolError, ProducerFailed, RequestTimeout
from headgate.meters import Activity, TaskTimer
from headgate.output import Broadcast, PartitionType, Rescale
from headgate.record import Batch, CheckpointBarrier, EndOfPartition, UserEvent, Watermark


@pytest.mark.spec("P1")
@pytest.mark.parametrize(
    ("kind", "label", "pipelined", "bounded", "back_pressure"),
    [
        (PartitionType.PIPELINED, "pipelined", True, False, True),
        (PartitionType.PIPELINED_BOUNDED, "pipelined-bounded", True, True, True),
        (PartitionType.BLOCKING, "blocking", False, False, False),
    ],
)
def test_each_partition_type_has_label_and_flags(kind, label, pipelined, bounded, back_pressure):
    assert (kind.label, kind.pipelined, kind.bounded, kind.back_pressure) == (label, pipelined, bounded, back_pressure)
    assert len(PartitionType) == 3


@pytest.mark.spec("P4")
@pytest.mark.parametrize("selector", [Rescale(), Broadcast()], ids=["rescale", "broadcast"])
def test_the_end_comes_to_each_subpartition_behind_its_data(selector):
    with Exchange(selector, channels=3) as exchange:
        exchange.writer.emit_batch([b"a", b"b"])
        exchange.writer.finish()
        for channel, reader in enumerate(exchange.readers):
            assert not reader.finished
            elements = list(reader)
            if selector.broadcast:
                assert elements == [Batch([b"a", b"b"]), EndOfPartition()]
            elif channel < 2:
                assert elements == [Batch([b"ab"[channel : channel + 1]]), EndOfPartition()]
            else:
                assert elements == [EndOfPartition()]
            assert reader.finished
            assert reader.poll() is None
            assert reader.read() is None


@pytest.mark.spec("P4")
def test_nothing_is_written_after_the_end():
    with Exchange() as exchange:
        exchange.writer.finish()
        for write in (
            exchange.partition.finish,
            lambda: exchange.partition.add_event(CheckpointBarrier(1, 0)),
            lambda: exchange.partition.next_buffer(0, None, mid_record=False),
            exchange.writer.finish,
        ):
            with pytest.raises(LocalProtocolError, match="after its end"):
                write()
        assert list(exchange.reader) == [EndOfPartition()]


@pytest.mark.spec("W3", "M8")
def test_broadcast_is_serialized_once_into_one_buffer_for_all_readers():
    with Exchange(Broadcast(), channels=5, segment_size=1024) as exchange:
        encoded = []
        encode = exchange.serializer.encode_batch
        exchange.serializer.encode_batch = lambda values: encoded.append(list(values)) or encode(values)
        exchange.writer.emit_batch([b"a", b"b"])
        exchange.writer.emit_element(Watermark(5))
        exchange.writer.finish()
        assert encoded == [[b"a", b"b"]]
        assert exchange.used == 1
        slices = [gate.poll() for gate in exchange.gates]
        assert len({id(one.buffer) for one in slices}) == 1, "the producer's buffer itself"
        for i, one in enumerate(slices):
            assert exchange.partition.statistics().pool.available == 0, f"{i} of 5 have released it"
            one.release()
        assert exchange.partition.statistics().pool.available == 1
        for reader in exchange.readers:
            assert reader.poll() == EndOfPartition()
        assert exchange.used == 0
        assert exchange.writer.statistics().records_out == 2
        assert exchange.partition.statistics().buffers_out == 1


@pytest.mark.spec("W3", "T5")
def test_broadcast_readers_read_at_their_own_pace():
    with Exchange(Broadcast(), channels=3, segment_size=16, segments=64) as exchange:
        records = [bytes([65 + i]) * i for i in range(26)]
        for record in records:
            exchange.writer.emit(record)
            exchange.writer.flush()
            got = exchange.take(0)
            assert got == [record]
        exchange.writer.finish()
        assert exchange.take(1) == records
        assert exchange.take(2) == records


@pytest.mark.spec("T2")
def test_the_reader_gets_the_producer_s_memory_itself():
    with Exchange() as exchange:
        exchange.writer.emit(b"hello")
        exchange.writer.flush()
        with exchange.sync.lock:
            (reader,) = exchange.partition.subpartitions[0]._queue
            buffer = reader.buffer
        taken = exchange.gates[0].poll()
        assert taken.memory.obj is buffer.memory.obj
        assert taken.buffer is buffer
        taken.memory[-1:] = b"!"
        assert b"hell!" in bytes(buffer.memory)
        taken.release()


@pytest.mark.spec("T2")
def test_of_full_buffers_too_the_reader_gets_the_memory_itself():
    """Under load buffers are full and others stand behind them: that is another path than a flushed one takes."""
    with Exchange(segment_size=16) as exchange:
        exchange.writer.emit(b"x" * 40)
        exchange.writer.flush()
        with exchange.sync.lock:
            buffers = [reader.buffer for reader in exchange.partition.subpartitions[0]._queue]
        assert len(buffers) >= 3
        for buffer in buffers:
            taken = exchange.gates[0].poll()
            assert taken.buffer is buffer
            taken.memory[-1:] = b"!"
            assert bytes(buffer.memory[: buffer.size]).endswith(b"!")
            taken.release()


@pytest.mark.spec("W6")
def test_counters():
    with Exchange(Rescale(), channels=2, segment_size=32) as exchange:
        for i in range(20):
            exchange.writer.emit(bytes([i]) * 10)
            exchange.writer.flush()
            exchange.take(i % 2)
        exchange.writer.emit_event(UserEvent("e"))
        exchange.writer.finish()
        assert exchange.take(0) == exchange.take(1) == [UserEvent("e")]
        statistics = exchange.writer.statistics()
        assert statistics.records_out == 20
        read = [reader.statistics() for reader in exchange.readers]
        assert [one.records_in for one in read] == [10, 10]
        assert statistics.partition.bytes_out == sum(one.bytes_in for one in read)
        # 20 x (4 length, 1 tag, 1 array, 2 + 10 bytes), each channel's 10 in buffers of 32, closed by the event
        assert statistics.partition.bytes_out == 20 * 18
        assert statistics.partition.buffers_out == 2 * 6
        assert statistics.partition.id == partition_id()
        assert statistics.partition.type is PartitionType.PIPELINED_BOUNDED


# Cancelling and failing.


def write(exchange, record):
    exchange.writer.emit(record)
    exchange.writer.flush()


WRITES = {
    "emit": lambda writer: [writer.emit(bytes(20)) for _ in range(100)],
    "emit_at": lambda writer: [writer.emit_at(bytes(20), 1) for _ in range(100)],
    "emit_batch": lambda writer: writer.emit_batch([bytes(20)] * 100),
    "emit_element": lambda writer: [writer.emit_element(Watermark(1)) for _ in range(100)],
    "emit_event": lambda writer: writer.emit_event(UserEvent("e")),
    "flush": lambda writer: [(writer.emit(b"x"), writer.flush()) for _ in range(100)],
    "finish": lambda writer: writer.finish(),
}


@pytest.mark.spec("G7", "M9")
@pytest.mark.parametrize("write", WRITES)
def test_when_no_reader_is_left_the_writer_is_stopped(write):
    with Exchange(Rescale(), channels=2) as exchange:
        exchange.writer.emit_batch([b"a", b"b"])
        exchange.writer.flush()
        exchange.gates[0].release()
        exchange.writer.emit_batch([b"c", b"d"])
        exchange.writer.flush()
        assert exchange.take(1) == [b"b", b"d"], "the other reader goes on"
        exchange.gates[1].release()
        with pytest.raises(Cancelled, match=r"no reader left|pool was destroyed"):
            WRITES[write](exchange.writer)
        exchange.writer.close()
        assert exchange.used == 0


@pytest.mark.spec("G7")
def test_data_for_a_released_channel_is_dropped():
    with Exchange(Rescale(), channels=2, required=3, maximum=3, segments=3) as exchange:
        exchange.gates[0].release()
        for i in range(200):  # far more than fits, and channel 0 is not read
            exchange.writer.emit(bytes([i]) * 20)
            if i % 2:
                exchange.writer.flush()
                assert exchange.take(1) == [bytes([i]) * 20]
        exchange.writer.finish()
        assert exchange.take(1) == []
        assert exchange.readers[1].finished
        assert exchange.used == 0


@pytest.mark.spec("G7", "M9")
@pytest.mark.parametrize("selector", [Rescale, Broadcast])
@pytest.mark.parametrize("write", WRITES)
def test_a_failure_reaches_readers_as_its_cause(write, selector):
    cause = ZeroDivisionError("division by zero")
    with Exchange(selector(), channels=2) as exchange:
        exchange.writer.emit_batch([b"a", b"b"])
        exchange.writer.flush()
        exchange.partition.release(cause)
        exchange.partition.release(KeyError("later"))
        for reader in exchange.readers:
            for _ in range(2):  # the same again at every further read
                with pytest.raises(ProducerFailed, match="division by zero") as caught:
                    reader.poll()
                assert caught.value.cause is cause
                assert caught.value.__cause__ is cause
        with pytest.raises(Cancelled):
            WRITES[write](exchange.writer)
        exchange.writer.close()
        assert exchange.used == 0


@pytest.mark.spec("M9")
def test_a_release_without_a_cause_is_a_cancellation():
    with Exchange() as exchange:
        exchange.partition.release()
        with pytest.raises(Cancelled):
            exchange.reader.poll()


@pytest.mark.spec("M9")
def test_a_release_wakes_a_writer_that_waits_for_memory():
    cause = ValueError("boom")
    sync = HookedSync(lambda _: exchange.partition.release(cause))
    with Exchange(sync=sync, required=2, maximum=2) as exchange:
        with pytest.raises(Cancelled, match="was released: boom"):  # and not only that its pool is gone
            write(exchange, bytes(1000))
        assert len(sync.waits) == 1
        exchange.writer.close()
        assert exchange.used == 0


@pytest.mark.spec("M6", "M9")
def test_a_memory_request_that_came_through_as_the_partition_went_is_given_back():
    def free_then_release(_):
        exchange.gates[0].poll().release()  # the writer has its segment, but has not run yet
        exchange.partition.release()

    sync = HookedSync(free_then_release)
    with Exchange(sync=sync, required=2, maximum=2) as exchange:
        with pytest.raises(Cancelled):
            write(exchange, bytes(1000))
        exchange.writer.close()
        assert exchange.used == 0


@pytest.mark.spec("M6")
def test_a_request_that_takes_too_long_is_an_error_and_the_task_may_go_on():
    sync = HookedSync(lambda _: None)
    timer = TaskTimer(iter(range(1000)).__next__)
    states = []
    sync.on_wait = lambda _: states.append(timer.state)
    with Exchange(sync=sync, required=2, maximum=2, request_timeout_s=1.5, timer=timer) as exchange:
        record = bytes(range(250))
        with pytest.raises(RequestTimeout, match=r"1\.5 s"):
            write(exchange, record)
        assert sync.waits == [1.5]
        assert states == [Activity.BACK_PRESSURED]
        assert timer.state is Activity.BUSY
        assert exchange.take() == [], "not all of the record was there"
        with pytest.raises(RequestTimeout):
            exchange.writer.flush()  # it takes five buffers
        assert exchange.take() == []
        exchange.writer.flush()
        assert exchange.take() == [record], "but nothing is lost"


class Offered:
    """A listener of another pool, which must be woken when a segment is free."""

    def __init__(self, pool):
        self.pool, self.segment, self.woken = pool, None, 0
        with pool.lock:
            pool.listen_locked(self)

    def offer_locked(self, segment):
        self.segment = segment
        return Answer.USED_ENOUGH, self.wake

    def cancel_locked(self):
        return None

    def wake(self):
        self.woken += 1

    def give_back(self, *others):
        for segment in (self.segment, *others):
            with self.pool.lock:
                self.pool.recycle_locked(segment, UNCHANNELLED)
        self.pool.destroy()


@pytest.mark.spec("M6", "M9")
def test_a_writer_of_a_released_partition_still_wakes_the_listener_that_is_granted_its_segment():
    """Its last segment goes to a task of another pool, which sleeps: the error must not swallow the wake-up."""
    with Exchange(segments=2, required=1, maximum=1) as exchange:
        other = exchange.memory.create_pool("other", required=1)
        held = other.request()
        buffer = exchange.partition.next_buffer(0, None, mid_record=False)
        buffer.append(bytes(64))
        exchange.partition.release()  # only the writer refers to the buffer now
        waiting = Offered(other)
        with pytest.raises(Cancelled):
            exchange.partition.next_buffer(0, buffer, mid_record=False)
        waiting.give_back(held)
        assert waiting.woken == 1


@pytest.mark.spec("W3")
def test_next_buffer_without_waiting_finishes_the_full_one():
    with Exchange(segments=2, required=2, maximum=2) as exchange:
        first = exchange.partition.next_buffer(0, None, mid_record=False, wait=False)
        first.append(b"\x02\0\0\0\x10")  # not a whole record
        second = exchange.partition.next_buffer(0, first, mid_record=False, wait=False)
        assert first.finished
        assert exchange.partition.next_buffer(0, second, mid_record=False, wait=False) is None
        assert second.finished
        assert exchange.partition.statistics().buffers_out == 2
