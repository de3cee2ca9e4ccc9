"""The record writer: when it flushes, what the flusher may and may not do, events, markers and timestamps."""

import random

import pytest
from tests.support.exchange import Exchange
from tests.support.syncs import HookedSync

from headgate.errors import Cancelled, LocalProtocolError, RecordTooLarge, SelectorError, SerializationError
from headgate.output import Broadcast, Custom, Forward, Rescale
from headgate.record import (
    Batch,
    CheckpointBarrier,
    EndOfPartition,
    EndOfSuperstep,
    LatencyMarker,
    Record,
    RecordLimits,
    StreamStatus,
    StrSerializer,
    UserEvent,
    Watermark,
)

W4 = pytest.mark.spec("W4")
W5 = pytest.mark.spec("W5")


class Refusing(StrSerializer):
    """Cannot write what is marked as bad."""

    def encode_batch(self, values):
        if "bad" in values:
            raise SerializationError("cannot write 'bad'")
        return super().encode_batch(values)


# Flushing.


@W4
@pytest.mark.parametrize("timeout", ["auto", "10ms", "-1"])
def test_small_records_wait_until_they_are_flushed(timeout):
    with Exchange(buffer_timeout=timeout) as exchange:
        exchange.writer.emit(b"a")
        exchange.writer.emit_batch([b"b"])
        assert exchange.take() == []
        assert exchange.used == 0, "no memory is taken for what waits"
        exchange.writer.flush()
        assert exchange.take() == [b"a", b"b"]


@W4
@pytest.mark.parametrize("timeout", ["auto", "10ms"])
def test_a_tick_flushes(timeout):
    with Exchange(Rescale(), channels=2, buffer_timeout=timeout) as exchange:
        exchange.writer.emit_batch([b"a", b"b", b"c"])
        exchange.writer.tick()
        assert exchange.take(0) == [b"a", b"c"]
        assert exchange.take(1) == [b"b"]
        exchange.writer.tick()
        assert exchange.take(0) == exchange.take(1) == []


@W4
@pytest.mark.parametrize("selector", [Rescale, Broadcast])
def test_zero_flushes_after_every_record(selector):
    with Exchange(selector(), channels=2, buffer_timeout="0") as exchange:
        seen = []
        for write in (
            lambda: exchange.writer.emit(b"a"),
            lambda: exchange.writer.emit_at(b"b", 5),
            lambda: exchange.writer.emit_batch([b"c", b"d"]),
            lambda: exchange.writer.emit_element(Watermark(7)),
            lambda: exchange.writer.emit_element(Record(b"e")),
        ):
            write()
            seen.append(exchange.take(0) + exchange.take(1))
        if selector is Rescale:
            assert seen == [[b"a"], [Record(b"b", 5)], [b"c", b"d"], [Watermark(7)] * 2, [b"e"]]
        else:
            assert seen == [[b"a"] * 2, [Record(b"b", 5)] * 2, [b"c", b"d"] * 2, [Watermark(7)] * 2, [b"e"] * 2]


@W4
def test_minus_one_is_readable_when_a_buffer_is_full():
    with Exchange(segment_size=64, buffer_timeout="-1") as exchange:
        sent, seen = 0, []
        while not seen and sent < 1000:
            exchange.writer.emit(b"%04d" % sent)
            sent += 1
            seen = exchange.take()
        assert seen, "a full buffer is readable without a flush"
        assert sent >= 64 // 6, "but not before it is full"
        assert seen == [b"%04d" % i for i in range(len(seen))]
        exchange.writer.finish()
        assert seen + exchange.take() == [b"%04d" % i for i in range(sent)], "always at the end"


@W4
def test_the_end_flushes_everything_in_order():
    with Exchange(Rescale(), channels=3) as exchange:
        exchange.writer.emit_batch([b"%d" % i for i in range(10)])
        exchange.writer.finish()
        exchange.writer.tick()  # harmless now
        for channel in range(3):
            assert exchange.take(channel) == [b"%d" % i for i in range(channel, 10, 3)]
            assert exchange.readers[channel].finished


@W4
def test_a_tick_never_blocks_and_the_next_one_continues_with_the_rest():
    sync = HookedSync(lambda _: pytest.fail("the flusher waits for memory"))
    with Exchange(sync=sync, required=2, maximum=2, segment_size=32) as exchange:
        records = [bytes([i]) * 25 for i in range(10)]
        for record in records:
            exchange.writer.emit(record)
        exchange.writer.tick()  # 290 bytes into two buffers of 32
        exchange.writer.tick()
        assert exchange.used == 2
        got = []
        for _ in range(20):
            got += exchange.take()
            exchange.writer.tick()
        assert got == records
        exchange.writer.finish()
        assert exchange.take() == []
        assert exchange.reader.finished


@W4
def test_a_tick_that_ran_out_of_memory_in_one_channel_still_serves_the_others():
    sync = HookedSync(lambda _: pytest.fail("the flusher waits for memory"))
    with Exchange(Rescale(), sync=sync, channels=2, max_per_channel=1, segment_size=16) as exchange:
        exchange.writer.emit_batch([bytes(100), b"small"])
        exchange.writer.tick()
        assert exchange.take(1) == [b"small"]


@W4
def test_the_task_continues_with_the_bytes_a_tick_left():
    got = []
    sync = HookedSync(lambda _: got.extend(exchange.take()))
    with Exchange(sync=sync, required=2, maximum=2, segment_size=16) as exchange:
        first, second = bytes(range(60)), bytes(range(60, 120))
        exchange.writer.emit(first)
        exchange.writer.tick()
        exchange.writer.emit(second)
        exchange.writer.emit_element(Watermark(1))
        exchange.writer.emit_event(EndOfSuperstep())
        assert got + exchange.take() == [first, second, Watermark(1), EndOfSuperstep()]


@W4
def test_a_tick_does_nothing_while_the_task_writes():
    """The task sleeps for memory in the middle of a record: nothing may come between."""
    ticks = []

    def tick_then_drain(_):
        exchange.writer.tick()
        ticks.append(len(got))
        got.extend(exchange.take())

    sync = HookedSync(tick_then_drain)
    got = []
    with Exchange(sync=sync, required=2, maximum=2, segment_size=16) as exchange:
        records = [bytes([i]) * 100 for i in range(5)]
        exchange.writer.emit_batch(records)
        exchange.writer.finish()
        assert ticks
        assert got + exchange.take() == records


@W4
@pytest.mark.parametrize("timeout", ["auto", "10ms"])
def test_the_flusher_flushes_other_channels_while_the_task_blocks_for_memory(timeout):
    """One slow reader blocks the task; the flusher still lets the other channels have what was written."""
    seen = []

    def tick_and_look(_):
        exchange.writer.tick()
        seen.extend(exchange.take(1))
        exchange.take(0)

    sync = HookedSync(tick_and_look)
    selector = Custom(lambda value, channels: int(len(value) < 10))
    with Exchange(selector, sync=sync, channels=2, buffer_timeout=timeout) as exchange:
        exchange.writer.emit(b"small")
        exchange.writer.tick()
        assert exchange.take(1) == [b"small"]
        exchange.writer.emit_element(Watermark(1))  # in a buffer, not flushed yet
        exchange.writer.emit(bytes(2000))
        exchange.writer.flush()
        assert sync.waits, "the task had to wait"
        assert seen[:1] == [Watermark(1)], "the other reader need not wait with it"


WRITES = {
    "emit": lambda writer: writer.emit("x"),
    "emit_at": lambda writer: writer.emit_at("x", 1),
    "emit_batch": lambda writer: writer.emit_batch(["x"]),
    "emit_element": lambda writer: writer.emit_element(Watermark(1)),
    "emit_event": lambda writer: writer.emit_event(EndOfSuperstep()),
    "flush": lambda writer: writer.flush(),
    "finish": lambda writer: writer.finish(),
}


@W4
@pytest.mark.parametrize("write", WRITES)
def test_an_error_in_the_flusher_reaches_the_task_at_its_next_write(write):
    with Exchange(Forward(), Refusing(), buffer_timeout="10ms") as exchange:
        exchange.writer.emit("bad")
        exchange.writer.tick()
        exchange.writer.tick()  # not again, and not silently
        for _ in range(2):
            with pytest.raises(SerializationError, match="cannot write 'bad'"):
                WRITES[write](exchange.writer)


@W4
def test_a_release_found_by_the_flusher_reaches_the_task():
    with Exchange(buffer_timeout="10ms") as exchange:
        exchange.writer.emit(bytes(200))
        exchange.partition.release()
        exchange.writer.tick()
        with pytest.raises(Cancelled):
            exchange.writer.emit(b"x")


@W4
@pytest.mark.parametrize("write", WRITES)
def test_a_closed_writer_refuses_every_write(write):
    with Exchange(Forward(), StrSerializer()) as exchange:
        exchange.writer.emit("lost")
        exchange.writer.close()
        exchange.writer.close()
        exchange.writer.tick()
        with pytest.raises(LocalProtocolError, match="is closed"):
            WRITES[write](exchange.writer)
        assert exchange.take() == []
        assert exchange.used == 0


@W4
def test_close_is_reported_once():
    closed = []
    with Exchange() as exchange:
        exchange.writer.on_close = lambda: closed.append(1)
        exchange.writer.close()
        exchange.writer.close()
    assert closed == [1]


# Batches.


@pytest.mark.spec("R1", "W4")
def test_batches_fill_about_a_buffer():
    with Exchange(segment_size=1024, segments=64) as exchange:
        for _ in range(1000):
            exchange.writer.emit(bytes(50))
        exchange.writer.finish()
        batches = [element for element in exchange.reader if isinstance(element, Batch)]
        sizes = [len(batch.values) for batch in batches]
        assert sum(sizes) == 1000
        assert all(5 <= size <= 40 for size in sizes[1:-1]), "1024 / 52 = 19 records fill a buffer"


@pytest.mark.spec("W4")
@pytest.mark.parametrize("batch_size", [1, 7])
def test_no_more_records_wait_than_the_batch_size(batch_size):
    with Exchange(segment_size=4096, batch_size=batch_size) as exchange:
        for _ in range(70):
            exchange.writer.emit(b"x")
        exchange.writer.flush()
        batches = list(iter(exchange.reader.poll, None))
        assert {len(batch.values) for batch in batches} == {batch_size}


@pytest.mark.spec("W1", "T5")
def test_a_batch_goes_where_its_records_would_go():
    with Exchange(Rescale(), channels=2) as one, Exchange(Rescale(), channels=2) as other:
        values = [b"%d" % i for i in range(11)]
        one.writer.emit_batch(values)
        one.writer.emit_batch(values)
        for value in values + values:
            other.writer.emit(value)
        for exchange in (one, other):
            exchange.writer.flush()
        assert [one.take(0), one.take(1)] == [other.take(0), other.take(1)]


@pytest.mark.spec("W1")
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("batch", [False, True])
def test_a_bad_partitioner_is_named_whatever_the_parallelism(channels, batch):
    with Exchange(Custom(lambda value, n: n, name="my_partitioner"), channels=channels) as exchange:
        with pytest.raises(SelectorError, match="my_partitioner"):
            exchange.writer.emit_batch([b"a"]) if batch else exchange.writer.emit(b"a")
        exchange.writer.finish()
        assert exchange.take() == []


@pytest.mark.spec("W4")
def test_the_caller_s_list_is_its_own():
    with Exchange() as exchange:
        values = [b"a", b"b"]
        exchange.writer.emit_batch(values)
        values[0] = b"changed"
        values.append(b"c")
        exchange.writer.flush()
        assert exchange.take() == [b"a", b"b"]
        assert values == [b"changed", b"b", b"c"]


@pytest.mark.spec("R1")
def test_a_record_over_the_limit_is_refused_and_the_rest_goes_on():
    with Exchange(limits=RecordLimits(max_size_bytes=100)) as exchange:
        exchange.writer.emit(b"a")
        exchange.writer.flush()
        exchange.writer.emit(bytes(101))
        with pytest.raises(RecordTooLarge):
            exchange.writer.flush()
        exchange.writer.emit(b"b")
        exchange.writer.finish()
        assert exchange.take() == [b"a", b"b"]


# Timestamps.


@pytest.mark.spec("R3", "T5")
def test_records_with_and_without_timestamps_keep_their_order():
    with Exchange(Rescale(), channels=2, segments=64) as exchange:
        choices = random.Random(1)
        expected = [[], []]
        for i in range(100):
            value = b"%d" % i
            if choices.random() < 0.5:
                exchange.writer.emit_at(value, i)
                expected[i % 2].append(Record(value, i))
            else:
                exchange.writer.emit(value)
                expected[i % 2].append(value)
        exchange.writer.emit_batch([b"x", b"y"], [1000, 1001])
        exchange.writer.emit_batch([b"u", b"v"])
        exchange.writer.finish()
        assert exchange.take(0) == [*expected[0], Record(b"x", 1000), b"u"]
        assert exchange.take(1) == [*expected[1], Record(b"y", 1001), b"v"]


@pytest.mark.spec("R3")
def test_timestamps_are_one_for_each_record():
    with Exchange() as exchange:
        for times in ([], [1], [1, 2, 3]):
            with pytest.raises(ValueError, match="timestamps for 2 records"):
                exchange.writer.emit_batch([b"a", b"b"], times)


@pytest.mark.spec("R3")
def test_a_tick_between_value_and_timestamp_takes_neither():
    with Exchange(buffer_timeout="10ms") as exchange:
        exchange.writer.emit_at(b"a", 1)
        lane = exchange.writer._queues[0]
        lane.values.append(b"b")  # where `emit_at` may be interrupted
        exchange.writer.tick()
        assert exchange.take() == [Record(b"a", 1)]
        lane.times.append(2)
        exchange.writer.tick()
        assert exchange.take() == [Record(b"b", 2)]


# Events and elements.

EVENTS = [CheckpointBarrier(1, 2), EndOfSuperstep(), UserEvent("reload", b"x")]


@W5
@pytest.mark.parametrize("selector", [Rescale, Broadcast])
@pytest.mark.parametrize("event", EVENTS, ids=repr)
def test_an_event_closes_the_buffer_and_reaches_every_channel_in_order(selector, event):
    with Exchange(selector(), channels=3, segment_size=1024) as exchange:
        exchange.writer.emit_batch([b"a", b"b"])
        exchange.writer.emit_event(event)
        exchange.writer.emit_batch([b"c", b"d", b"e"])
        exchange.writer.flush()
        before, after = {
            Rescale: ([[b"a"], [b"b"], []], [[b"d"], [b"e"], [b"c"]]),
            Broadcast: ([[b"a", b"b"]] * 3, [[b"c", b"d", b"e"]] * 3),
        }[selector]
        for channel in range(3):
            assert exchange.take(channel) == [*before[channel], event, *after[channel]]
        assert exchange.partition.statistics().buffers_out == (2 if selector is Rescale else 1), "closed by the event"


@W5
def test_an_event_needs_no_flush_and_no_memory():
    sync = HookedSync(lambda _: pytest.fail("an event waits for memory"))
    with Exchange(sync=sync, required=1, maximum=1, segments=1, segment_size=16) as exchange:
        exchange.writer.emit(bytes(3))
        exchange.writer.flush()
        for event in EVENTS:
            exchange.writer.emit_event(event)
        assert exchange.take() == [bytes(3), *EVENTS]


@W5
@pytest.mark.parametrize("element", [Watermark(5), StreamStatus(active=False)], ids=repr)
@pytest.mark.parametrize("selector", [Rescale, Broadcast])
def test_elements_reach_every_channel_behind_its_records(selector, element):
    with Exchange(selector(), channels=2) as exchange:
        exchange.writer.emit_batch([b"a", b"b"])
        exchange.writer.emit_element(element)
        exchange.writer.emit_batch([b"c", b"d"])
        exchange.writer.flush()
        for channel, (first, last) in enumerate([(b"a", b"c"), (b"b", b"d")]):
            mine = [[first], [last]] if selector is Rescale else [[b"a", b"b"], [b"c", b"d"]]
            assert exchange.take(channel) == [*mine[0], element, *mine[1]]


@W5
@pytest.mark.parametrize("selector", [Rescale, Broadcast])
@pytest.mark.parametrize("chosen", [0, 1, 2])
def test_a_latency_marker_reaches_exactly_one_random_channel(selector, chosen):
    marker = LatencyMarker(5, 7, 0)
    asked = []

    def below(n):
        asked.append(n)
        return chosen

    with Exchange(selector(), channels=3, below=below) as exchange:
        exchange.writer.emit_batch([b"a", b"b", b"c"])
        exchange.writer.emit_element(marker)
        exchange.writer.emit_batch([b"d", b"e", b"f"])
        exchange.writer.flush()
        assert asked == [3]
        for channel in range(3):
            i = channel
            before, after = ([b"abc"[i : i + 1]], [b"def"[i : i + 1]])
            if selector is Broadcast:
                before, after = [b"a", b"b", b"c"], [b"d", b"e", b"f"]
            assert exchange.take(channel) == [*before, *([marker] if channel == chosen else []), *after]
        exchange.writer.finish()
        assert all(exchange.take(channel) == [] for channel in range(3))
        assert all(reader.finished for reader in exchange.readers)


@W5
def test_markers_go_to_all_channels_in_the_long_run():
    with Exchange(Broadcast(), channels=4, segments=64) as exchange:
        counts = [0] * 4
        for i in range(200):
            exchange.writer.emit_element(LatencyMarker(i, 0, 0))
            taken = [exchange.take(channel) for channel in range(4)]
            assert sum(map(len, taken)) == 1, "at once, for its own buffer is closed"
            counts = [count + len(one) for count, one in zip(counts, taken, strict=True)]
        assert min(counts) > 20


@W5
def test_records_as_elements_are_records():
    with Exchange(Rescale(), channels=2) as exchange:
        exchange.writer.emit_element(Record(b"a"))
        exchange.writer.emit_element(Record(b"b", 5))
        exchange.writer.emit_element(Batch([b"c", b"d"]))
        exchange.writer.emit_element(Batch([b"e", b"f"], [7, 8]))
        exchange.writer.finish()
        assert exchange.take(0) == [b"a", b"c", Record(b"e", 7)]
        assert exchange.take(1) == [Record(b"b", 5), b"d", Record(b"f", 8)]
        assert exchange.writer.statistics().records_out == 6


@W5
@pytest.mark.spec("P4")
def test_the_end_is_an_event_like_others():
    with Exchange() as exchange:
        exchange.writer.emit(b"a")
        exchange.writer.finish()
        assert list(exchange.reader) == [Batch([b"a"]), EndOfPartition()]
