"""Arrow: rows go where their keys would go, and batches are read where they were written."""

import datetime as dt
import decimal
import gc
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.exchange import Exchange
from tests.support.syncs import HookedSync
from tests.support.threads import Thread

from headgate.errors import SelectorError
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.output import Broadcast, Custom, Forward, Global, Hash, Rescale
from headgate.output.columns import ColumnWriter, HashColumns
from headgate.record import CheckpointBarrier, Watermark
from headgate.record.arrow import ArrowSerializer
from headgate.worker import Environment


def columns(*args, **kwargs):
    kwargs.setdefault("segment_size", 4096)
    return Exchange(*args, serializer=ArrowSerializer(), writer=ColumnWriter, **kwargs)


def batch_of(n, start=0):
    return pa.record_batch(
        {"n": pa.array(range(start, start + n), pa.int64()), "s": [f"word-{i}" for i in range(start, start + n)]}
    )


# Which channel.

KEYS = [
    pa.array(range(-50, 50), pa.int64()),
    pa.array(range(100), pa.int8()),
    pa.array(range(100), pa.uint64()),
    pa.array([f"größer-{i}" for i in range(100)]),
    pa.array([f"large-{i}" for i in range(100)], pa.large_string()),
    pa.array([b"%d" % i for i in range(100)]),
    pa.array([i / 7 for i in range(100)]),
    pa.array([None if i % 3 else i for i in range(100)]),
    pa.array([bool(i % 2) for i in range(100)]),
    pa.array([dt.date.fromordinal(700_000 + i) for i in range(100)]),
    pa.array([f"colour-{i % 5}" for i in range(100)]).dictionary_encode(),
]


@pytest.mark.spec("W1", "W2")
@pytest.mark.parametrize("keys", KEYS, ids=lambda keys: str(keys.type).split("<")[0])
@pytest.mark.parametrize(("channels", "groups"), [(1, 128), (3, 128), (8, 128), (300, 1000)])
def test_a_row_goes_where_its_key_goes(keys, channels, groups):
    batch = pa.record_batch({"before": pa.array(range(100)), "key": keys})
    by_column, by_key = HashColumns(["key"], groups), Hash(lambda row: row["key"], groups)
    by_column.connect(channels)
    by_key.connect(channels)
    expected = by_key.split(batch.to_pylist())
    got = [[] for _ in range(channels)]
    for channel, part in by_column.scatter(batch):
        assert part.num_rows
        got[channel] += part.to_pylist()
    assert got == expected, "the same channel, and the order kept"


@pytest.mark.spec("W1", "W2")
@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text(max_size=5)), min_size=1, max_size=50))
def test_several_columns_are_a_tuple(rows):
    batch = pa.record_batch({"a": pa.array([a for a, _ in rows], pa.int64()), "b": pa.array([b for _, b in rows])})
    by_column, by_key = HashColumns(["a", "b"]), Hash(lambda row: row)
    by_column.connect(5)
    by_key.connect(5)
    got = [[] for _ in range(5)]
    for channel, part in by_column.scatter(batch):
        got[channel] += list(zip(part["a"].to_pylist(), part["b"].to_pylist(), strict=True))
    assert got == by_key.split(rows)


@pytest.mark.spec("W1")
def test_a_missing_column_and_no_column_are_named():
    with pytest.raises(SelectorError, match="at least one column"):
        HashColumns([])
    selector = HashColumns(["wrod"])
    selector.connect(2)
    with pytest.raises(SelectorError, match=r"wrod.*'n', 's'"):
        selector.scatter(batch_of(3))


@pytest.mark.spec("W1")
def test_choose_answers_only_for_a_batch_of_one_channel():
    selector = HashColumns(["n"])
    selector.connect(4)
    one = batch_of(1)
    assert selector.choose(one) == selector.scatter(one)[0][0]
    with pytest.raises(SelectorError, match="belongs to 4 channels"):
        selector.choose(batch_of(100))


@pytest.mark.spec("W1")
def test_a_batch_without_rows_goes_nowhere():
    selector = HashColumns(["n"])
    selector.connect(4)
    assert selector.scatter(batch_of(0)) == []


@pytest.mark.spec("W1", "T5")
@pytest.mark.parametrize(
    "make",
    [Global, Rescale, Broadcast, lambda: Custom(lambda batch, n: batch.num_rows % n), lambda: HashColumns(["n"])],
    ids=["global", "rescale", "broadcast", "custom", "hash"],
)
def test_every_selector_serves_record_batches(make):
    batches = [batch_of(n, n * 100) for n in (3, 0, 50, 1, 7)]
    with columns(make(), channels=3, segments=64) as exchange:
        reference = make()
        reference.connect(3)
        expected = [[], [], []]
        for batch in batches:
            if isinstance(reference, HashColumns):
                parts = reference.scatter(batch)
            elif reference.broadcast:
                parts = [(channel, batch) for channel in range(3)]
            else:
                parts = [(reference.choose(batch), batch)]
            for channel, part in parts:
                expected[channel].append(part)
        exchange.writer.emit(batches[0])
        exchange.writer.emit_batch(batches[1:])
        exchange.writer.finish()
        for channel in range(3):
            got = exchange.take(channel)
            assert len(got) == len(expected[channel])
            assert all(one.equals(other) for one, other in zip(got, expected[channel], strict=True))
        assert exchange.writer.statistics().records_out == sum(batch.num_rows for batch in batches), "rows, once"
        del got


@pytest.mark.spec("W4", "W5")
def test_watermarks_and_events_keep_their_place_among_batches():
    with columns(Rescale(), channels=2) as exchange:
        exchange.writer.emit_batch([batch_of(2), batch_of(3)])
        exchange.writer.emit_element(Watermark(5))
        exchange.writer.emit_event(CheckpointBarrier(1, 0))
        exchange.writer.emit_batch([batch_of(4), batch_of(5)])
        exchange.writer.flush()
        for channel, sizes in enumerate([(2, 4), (3, 5)]):
            first, mark, barrier, last = exchange.take(channel)
            assert (first.num_rows, last.num_rows) == sizes
            assert (mark, barrier) == (Watermark(5), CheckpointBarrier(1, 0))
            del first, last


@pytest.mark.spec("W4")
def test_event_times_are_columns():
    with columns() as exchange:
        with pytest.raises(SelectorError, match="in a column"):
            exchange.writer.emit_at(batch_of(1), 5)
        with pytest.raises(SelectorError, match="in a column"):
            exchange.writer.emit_batch([batch_of(1)], [5])


@pytest.mark.spec("W4")
def test_zero_flushes_after_every_batch():
    with columns(buffer_timeout="0") as exchange:
        exchange.writer.emit(batch_of(3))
        (got,) = exchange.take()
        assert got.equals(batch_of(3))
        del got


@pytest.mark.spec("W4")
def test_a_tick_flushes_batches():
    with columns(buffer_timeout="10ms") as exchange:
        exchange.writer.emit(batch_of(3))
        assert exchange.take() == []
        exchange.writer.tick()
        assert len(exchange.take()) == 1


# Where the bytes lie.


def arena_range(exchange):
    whole = np.frombuffer(exchange.memory.arena._mapping, np.uint8)
    start = whole.__array_interface__["data"][0]
    del whole
    return range(start, start + exchange.memory.arena.size_bytes)


def addresses(batch):
    return [one.address for column in batch.columns for one in column.buffers() if one is not None and one.size]


@pytest.mark.spec("T2", "M8", "R3")
def test_a_batch_that_fits_a_buffer_is_read_where_it_was_written():
    with columns(segment_size=4096, segments=32) as exchange:
        inside = arena_range(exchange)
        for i in range(5):  # several in one buffer, then the next
            exchange.writer.emit(batch_of(30, i))
            exchange.writer.flush()
            (got,) = exchange.take()
            assert got.equals(batch_of(30, i))
            assert addresses(got)
            for address in addresses(got):
                assert address in inside, "not copied"
                assert address % 8 == 0, "as Arrow wants it"
            del got


@pytest.mark.spec("R3")
def test_the_serialized_bytes_begin_at_a_multiple_of_64():
    with columns(segment_size=4096) as exchange:
        for i in range(6):
            exchange.writer.emit(batch_of(i, i))
            exchange.writer.emit_element(Watermark(i))  # at odd places between
        exchange.writer.flush()
        taken = exchange.gates[0].poll()
        data, at, found = bytes(taken.memory), 0, 0
        start = np.frombuffer(taken.memory, np.uint8).__array_interface__["data"][0]
        while at < len(data):
            if data[at + 4] == 0x05:
                assert (start + at + 6 + data[at + 5]) % 64 == 0
                found += 1
            at += 4 + int.from_bytes(data[at : at + 4], "little")
        assert found == 6
        taken.release()


@pytest.mark.spec("R3")
def test_a_batch_that_would_not_fit_begins_a_new_buffer():
    with columns(segment_size=4096, segments=32) as exchange:
        inside = arena_range(exchange)
        for i in range(8):
            exchange.writer.emit(batch_of(100, i * 100))  # about 2.7 KB: two do not fit in one
        exchange.writer.finish()
        got = exchange.take()
        assert [one.column("n")[0].as_py() for one in got] == [i * 100 for i in range(8)]
        assert all(address in inside for one in got for address in addresses(one))
        assert exchange.reader.statistics().buffers_in == 8
        del got


@pytest.mark.spec("R3", "T5")
def test_a_batch_larger_than_a_buffer_is_gathered():
    with columns(segment_size=1024, segments=64) as exchange:
        inside = arena_range(exchange)
        big = batch_of(1000)
        exchange.writer.emit_batch([batch_of(3), big, batch_of(4)])
        exchange.writer.finish()
        got = exchange.take()
        assert [one.num_rows for one in got] == [3, 1000, 4]
        assert got[1].equals(big)
        assert not any(address in inside for address in addresses(got[1]))
        assert all(address % 8 == 0 for one in got for address in addresses(one))
        del got


@pytest.mark.spec("M7", "M9")
def test_the_memory_comes_back_when_the_batch_is_dropped():
    with columns(segments=32) as exchange:
        exchange.writer.emit(batch_of(30))
        exchange.writer.finish()
        (got,) = exchange.take()
        assert exchange.used == 1
        part = got.slice(5, 2).column("s")
        del got
        gc.collect()
        assert exchange.used == 1, "a part of it is enough"
        assert part.to_pylist() == ["word-5", "word-6"]
        del part
        assert exchange.used == 0


@pytest.mark.spec("M7", "M9", "T5")
def test_where_the_pool_cannot_spare_its_memory_batches_are_copied():
    kept = []
    with columns(segments=16, required=2, maximum=8) as exchange:
        inside = arena_range(exchange)
        for i in range(40):  # kept, all of them
            exchange.writer.emit(batch_of(100, i))
            exchange.writer.flush()
            kept += exchange.take()
        in_arena = [all(address in inside for address in addresses(one)) for one in kept]
        assert len(kept) == 40
        assert any(in_arena)
        assert not all(in_arena)
        assert exchange.pool.statistics().lent <= 3, "half of what it may have past its need"
        assert all(address % 8 == 0 for one in kept for address in addresses(one))
        assert [one.column("n")[0].as_py() for one in kept] == list(range(40))
        assert all(one.equals(batch_of(100, i)) for i, one in enumerate(kept)), "nothing was written over"
        kept.clear()
        assert exchange.pool.statistics().lent == 0


@pytest.mark.spec("M7")
def test_no_memory_is_lent_by_a_pool_that_has_none_to_spare():
    with columns(segments=2, required=2, maximum=2) as exchange:
        inside = arena_range(exchange)
        exchange.writer.emit(batch_of(30))
        exchange.writer.flush()
        (got,) = exchange.take()
        assert not any(address in inside for address in addresses(got))


@pytest.mark.spec("M7", "M9")
def test_batches_outlive_the_exchange():
    with columns() as exchange:
        exchange.writer.emit(batch_of(30))
        exchange.writer.flush()
        (got,) = exchange.take()
    assert got.equals(batch_of(30))
    assert exchange.used == 1
    del got
    assert exchange.used == 0


@pytest.mark.spec("M6", "M7")
def test_a_batch_that_is_dropped_while_the_lock_is_taken_still_wakes_a_waiting_writer():
    """The garbage collector may run anywhere, also while another thread holds the exchange lock."""
    with columns(segments=4, required=2, maximum=4, segment_size=1024) as exchange:
        kept = []
        exchange.writer.emit(batch_of(20))
        exchange.writer.flush()
        kept += exchange.take()
        assert exchange.pool.statistics().lent == 1
        with exchange.sync.lock:
            held = list(iter(exchange.pool.try_request_locked, None))
        with exchange.writer._mutex:
            exchange.writer._end_buffers()
        waiting = Thread(lambda: exchange.pool.request(timeout_s=3))
        while not exchange.pool.statistics().waiting:
            pass
        with exchange.sync.lock:
            kept.clear()
        exchange.reader.poll()  # later calls raise, too
        try:
            held.append(waiting.end())
        finally:
            for segment in held:
                with exchange.sync.lock:
                    exchange.pool.recycle_locked(segment, -1)


@pytest.mark.spec("T5", "M9")
def test_batches_of_many_sizes_through_a_small_pool():
    """Kept for a while, then dropped: whatever is lent or copied, nothing changes and nothing hangs."""
    sizes = random.Random(5)
    batches = [batch_of(sizes.choice([0, 1, 5, 40, 200]), i) for i in range(300)]
    with columns(HashColumns(["n"]), channels=2, segments=8, segment_size=1024) as exchange:

        def write():
            for batch in batches:
                exchange.writer.emit(batch)
            exchange.writer.finish()

        def read(reader):
            kept, rows = [], []
            for element in reader:
                if hasattr(element, "value"):
                    kept.append(element.value)
                    if len(kept) > 5:
                        rows += kept.pop(0).to_pylist()
            for batch in kept:
                rows += batch.to_pylist()
            return rows

        threads = [Thread(write), *(Thread(lambda reader=reader: read(reader)) for reader in exchange.readers)]
        _, first, second = [thread.end() for thread in threads]
        by_key = HashColumns(["n"])
        by_key.connect(2)
        expected = [[], []]
        for batch in batches:
            for channel, part in by_key.scatter(batch):
                expected[channel] += part.to_pylist()
        assert [first, second] == expected


@pytest.mark.spec("W1")
def test_a_decimal_key_goes_one_way_only_if_both_ways_agree():
    batch = pa.record_batch({"d": pa.array([decimal.Decimal("1.10"), decimal.Decimal("2.5")])})
    by_column, by_key = HashColumns(["d"]), Hash(lambda row: row["d"])
    by_column.connect(7)
    by_key.connect(7)
    answers = []
    for ask in (lambda: by_column.scatter(batch), lambda: by_key.split(batch.to_pylist())):
        try:
            answers.append(ask())
        except Exception as error:  # noqa: BLE001 - refused by both, or by none
            answers.append(type(error))
    if isinstance(answers[0], list):
        got = [[] for _ in range(7)]
        for channel, part in answers[0]:
            got[channel] += part.to_pylist()
        answers[0] = got
    assert answers[0] == answers[1]


@pytest.mark.spec("W4")
def test_forward_needs_no_columns():
    sync = HookedSync(lambda _: pytest.fail("it waits"))
    with columns(Forward(), sync=sync) as exchange:
        exchange.writer.emit(pa.record_batch({}))
        exchange.writer.flush()
        assert [one.num_columns for one in exchange.take()] == [0]


@pytest.mark.spec("W6")
def test_both_ends_count_rows():
    with Environment(memory_bytes=1 << 20) as worker:
        partition = worker.partition(PartitionId(JobId("rows"), AttemptId(1), 0, 0, 0), subpartitions=1)
        gate = worker.gate("rows", channels=1)
        gate.connect(0, worker.local_source(partition.id, SubpartitionIndex(0)))
        writer = worker.writer(partition, Forward(), ArrowSerializer())
        reader = worker.reader(gate, ArrowSerializer())
        writer.emit(pa.record_batch({"n": [1, 2, 3]}))
        writer.emit(pa.record_batch({"n": [4]}))
        writer.finish()
        for _ in reader:
            pass
        assert writer.statistics().records_out == reader.statistics().records_in == 4
        writer.close()
