"""A worker's blocking partitions: made, adopted, read by the disk thread, and all gone with the worker."""

import threading

import pyarrow as pa
import pytest
from tests.support.blocking_partition import Reading, Rig, files_in, store
from tests.support.buffers import give, take_all
from tests.support.exchange import partition_id, values_of
from tests.support.threads import Thread
from tests.support.waiting import wait_until

from headgate.config import Compression, load_settings
from headgate.errors import (
    Cancelled,
    InsufficientBuffers,
    LocalProtocolError,
    ProducerFailed,
    StorageError,
    StorageFull,
)
from headgate.ids import SubpartitionIndex
from headgate.output import BlockingPartition, Broadcast, Forward, PartitionType, Rescale
from headgate.record import BytesSerializer, MsgpackSerializer, Record, Watermark
from headgate.record.arrow import ArrowSerializer
from headgate.worker import Environment

BLOCKING = PartitionType.BLOCKING


def environment(segments=64, **values):
    code = {"memory.segment_size": 64} | {key.replace("__", "."): value for key, value in values.items()}
    return Environment(load_settings(code=code), memory_bytes=segments * int(code["memory.segment_size"]), seed=0)


def write(env, values, subpartitions=1, selector=None, serializer=None, identity=None):
    """A finished partition."""
    partition = env.partition(identity or partition_id(), subpartitions=subpartitions, kind=BLOCKING)
    selector = selector or (Forward() if subpartitions == 1 else Rescale())
    writer = env.writer(partition, selector, serializer or BytesSerializer())
    writer.emit_batch(values)
    writer.finish()
    writer.close()
    return partition


def reader(env, index=0, serializer=None, identity=None):
    gate = env.gate("gate", channels=1)
    gate.connect(0, env.local_source(identity or partition_id(), SubpartitionIndex(index)))
    return env.reader(gate, serializer or BytesSerializer())


def read(env, index=0, **how):
    return values_of(list(reader(env, index, **how)))


def disk_threads():
    return [thread for thread in threading.enumerate() if thread.name == "headgate-disk"]


@pytest.mark.spec("P3", "T4", "M9")
@pytest.mark.parametrize("compression", list(Compression))
def test_written_read_and_read_again(tmp_path, compression):
    values = [b"%d" % number * (number % 50) for number in range(2000)]
    with environment() as env:
        store(env, tmp_path, compression=compression)
        partition = write(env, values, 3)
        assert isinstance(partition, BlockingPartition)
        assert disk_threads() == [], "it starts with the first reader"
        for _ in range(2):
            assert [read(env, index) for index in range(3)] == [values[index::3] for index in range(3)]
        assert len(disk_threads()) == 1
        used = env.memory.statistics()
        assert used.total - used.free == env.disk._thread.read_ahead.pool.held, "only what was read ahead into is held"
    assert disk_threads() == []
    assert files_in(tmp_path) == []


@pytest.mark.spec("P3")
def test_many_subpartitions_are_one_file_and_many_read_at_once(tmp_path):
    count = 200
    with environment(2 * count + 40) as env:
        store(env, tmp_path)
        write(env, [b"%d" % number for number in range(5 * count)], count)
        assert files_in(tmp_path) == ["v0.0-0.partition"]
        gate = env.gate("all", channels=count)
        for index in range(count):
            gate.connect(index, env.local_source(partition_id(), SubpartitionIndex(index)))
        found = values_of(list(env.reader(gate, BytesSerializer())))
        assert sorted(map(int, found)) == list(range(5 * count))


@pytest.mark.spec("P3")
def test_threads_that_read_at_once(tmp_path):
    values = [b"%d" % number * 9 for number in range(3000)]
    with environment(40, batch__read_ahead=3) as env:
        store(env, tmp_path)
        write(env, values, 2)
        threads = [Thread(lambda index=index: read(env, index % 2)) for index in range(6)]
        assert [thread.end() for thread in threads] == [values[index % 2 :: 2] for index in range(6)]
        pool = env.disk._thread.read_ahead.pool.statistics()
        assert (pool.held - pool.available, pool.held <= pool.size) == (0, True)


def test_broadcast_is_stored_once_and_read_by_all(tmp_path):
    values = [bytes([number]) * 50 for number in range(100)]
    with environment() as env:
        store(env, tmp_path, compression=Compression.NONE)
        partition = write(env, values, 4, Broadcast())
        assert [read(env, index) for index in range(4)] == [values] * 4
        assert partition._file.bytes_on_disk < 2 * 100 * 64


def test_elements_between_records_are_read_back(tmp_path):
    with environment() as env:
        store(env, tmp_path)
        partition = env.partition(partition_id(), subpartitions=2, kind=BLOCKING)
        writer = env.writer(partition, Rescale(), BytesSerializer())
        writer.emit_at(b"a", 5)
        writer.emit_element(Watermark(7))
        writer.finish()
        writer.close()
        assert [list(reader(env, index))[-2] for index in range(2)] == [Watermark(7)] * 2


@pytest.mark.spec("R2")
@pytest.mark.parametrize("size", [1000, 20_000])
def test_records_larger_than_a_buffer_and_than_memory_for_one(tmp_path, size):
    values = [b"small", b"x" * size, b"", b"y" * (size + 1)]
    with environment(16, record__spill_threshold=10_000) as env:
        store(env, tmp_path)
        write(env, values)
        assert read(env) == values


@pytest.mark.parametrize("timeout", ["0", "1ms", "auto"])
def test_a_blocking_partition_is_not_flushed_with_any_buffer_timeout(tmp_path, timeout):
    values = [b"%d" % number for number in range(1000)]
    with environment(execution__buffer_timeout=timeout, memory__segment_size=4096) as env:
        store(env, tmp_path)
        partition = env.partition(partition_id(), subpartitions=1, kind=BLOCKING)
        writer = env.writer(partition, Forward(), BytesSerializer())
        for one in values:
            writer.emit(one)
        writer.flush()
        writer.tick()
        writer.finish()
        writer.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "headgate-flusher"]
        assert partition.statistics().buffers_out <= 4
        assert read(env) == values


@pytest.mark.spec("R3", "M8")
def test_arrow_batches_are_read_where_they_lie(tmp_path):
    """Aligned as they were written, and lent: the segment comes back when the last of it is gone."""
    batches = [pa.record_batch({"n": list(range(start, start + 50))}) for start in range(0, 3000, 50)]
    with environment(64, memory__segment_size=8192) as env:
        store(env, tmp_path, compression=Compression.LZ4)
        write(env, batches, serializer=ArrowSerializer())
        source = reader(env, serializer=ArrowSerializer())
        kept, found = [], []
        for element in source:
            if isinstance(element, Record):
                assert element.value.column(0).buffers()[1].address % 8 == 0
                found += element.value.column(0).to_pylist()
                kept = [*kept, element.value][:5]
        assert found == list(range(3000))
        pool = env.disk._thread.read_ahead.pool
        assert pool.lent > 0
        assert kept[0].column(0).to_pylist() == list(range(50)), "what is kept does not change"
        del kept, element, source
        env.memory.collect_returned()
        assert pool.lent == 0


def test_a_reader_that_keeps_lent_batches_does_not_block_the_read_ahead(tmp_path):
    """All memory of the read-ahead is lent, and comes back while nobody takes the lock."""
    batches = [pa.record_batch({"n": list(range(700))}) for _ in range(40)]
    with environment(14, memory__segment_size=8192) as env:
        store(env, tmp_path)
        write(env, batches, serializer=ArrowSerializer())
        kept = []
        for element in reader(env, serializer=ArrowSerializer()):
            kept = (kept + ([element.value] if isinstance(element, Record) else []))[-3:]
        assert len(kept) == 3
        del kept, element
        env.memory.collect_returned()


def test_the_read_ahead_finds_lent_memory_that_returned_without_a_wake(tmp_path):
    """Whoever held the lock when it came back has not collected it: the thread looks by itself."""
    with Rig(tmp_path, segments=8, thread=True) as rig:
        for _ in range(12):
            rig.put(0, b"data")
        rig.partition.finish()
        reading = Reading(rig, 0)
        wait_until(lambda: reading.reader.readable == 4, "it is read ahead")
        reading.poll()
        lent = [reading.held[0].lend()]
        reading.drop()
        pool = rig.ahead.pool
        taken = take_all(pool)
        while reading.take() is not None:
            taken += take_all(pool)
        wait_until(lambda: pool.statistics().waiting, "the thread waits for memory")
        with rig.lock:
            lent.clear()
        wait_until(lambda: reading.reader.readable, "it goes on")
        give(pool, *taken)


# Adopting ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("P3")
def test_a_kept_partition_is_read_by_another_worker(tmp_path):
    values = [b"%d" % number for number in range(500)]
    first = environment()
    store(first, tmp_path)
    write(first, values, 2)
    first.close(keep=True)
    assert files_in(tmp_path) == ["v0.0-0.partition"]
    with environment() as second:
        store(second, tmp_path)
        partition = second.adopt(partition_id(), subpartitions=2)
        assert [read(second, index) for index in range(2)] == [values[::2], values[1::2]]
        assert partition.statistics().buffers_out == 0
        second.registry.release(partition.id)
        assert files_in(tmp_path) == []


def test_missing_or_mismatched_partitions_cannot_be_adopted(tmp_path):
    with environment() as env:
        store(env, tmp_path)
        with pytest.raises(StorageError, match=r"v0\.0-0\.partition"):
            env.adopt(partition_id())
        write(env, [b"data"], 2)
        env.registry.release(partition_id(), keep=True)
        with pytest.raises(StorageError, match="has 2 subpartitions; 3 are wanted"):
            env.adopt(partition_id(), subpartitions=3)
        env.adopt(partition_id())
        with pytest.raises(LocalProtocolError, match="registered already"):
            env.adopt(partition_id())
        assert read(env, 0) == [b"data"], "the first one is as it was"


def test_no_partition_without_a_storage_or_after_the_end(tmp_path):
    with environment() as env:
        with pytest.raises(LocalProtocolError, match="give the worker a storage"):
            env.partition(partition_id(), subpartitions=1, kind=BLOCKING)
        with pytest.raises(LocalProtocolError, match="give the worker a storage"):
            env.adopt(partition_id())
        store(env, tmp_path)
    assert env.storage is None
    with pytest.raises(Cancelled):
        env.partition(partition_id(), subpartitions=1, kind=BLOCKING)
    with pytest.raises(Cancelled):
        env.adopt(partition_id())


@pytest.mark.spec("M9")
def test_a_partition_that_cannot_be_made_leaves_nothing(tmp_path, monkeypatch):
    with environment(8) as env:
        store(env, tmp_path)
        with pytest.raises(InsufficientBuffers):
            env.partition(partition_id(), subpartitions=8, kind=BLOCKING)
        assert files_in(tmp_path) == []
        env.partition(partition_id(1), subpartitions=2, kind=BLOCKING)
        before = env.memory.statistics()
        with pytest.raises(LocalProtocolError, match="registered already"):
            env.partition(partition_id(1), subpartitions=2, kind=BLOCKING)
        assert env.memory.statistics() == before
        assert len(files_in(tmp_path)) == 1, "the first one is as it was"
        monkeypatch.setattr(env.registry, "register", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            env.partition(partition_id(2), subpartitions=2, kind=BLOCKING)
        assert env.memory.statistics() == before
        assert len(files_in(tmp_path)) == 1
    assert files_in(tmp_path) == []


@pytest.mark.spec("M5")
def test_too_little_memory_for_the_read_ahead(tmp_path):
    with environment(1) as env:
        store(env, tmp_path)
        with pytest.raises(InsufficientBuffers, match="read-ahead"):
            env.partition(partition_id(), subpartitions=1, kind=BLOCKING)


# Ends and failures --------------------------------------------------------------------------------------------


@pytest.mark.spec("P3", "M9")
def test_a_quota_stops_the_writer(tmp_path):
    with environment(memory__segment_size=4096) as env:
        store(env, tmp_path, compression=Compression.NONE, disk_quota=100_000)
        with pytest.raises(StorageFull, match=r"v0\.0-0\.partition.*disk_quota"):
            write(env, [b"x" * 1000] * 3000)
        env.registry.release(partition_id())
        assert files_in(tmp_path) == []
        assert env.storage.quota.used == 0
        write(env, [b"x" * 1000] * 50)
        assert len(read(env)) == 50


@pytest.mark.spec("P3")
def test_a_damaged_file_fails_its_reader(tmp_path):
    with environment() as env:
        store(env, tmp_path, compression=Compression.LZ4)
        partition = write(env, [b"to be or not to be " * 20] * 50)
        with open(partition._file.path, "r+b") as file:
            file.seek(3000)
            file.write(bytes(500))
        with pytest.raises(ProducerFailed, match=r"v0\.0-0\.partition.*damaged") as caught:
            read(env)
        assert isinstance(caught.value.cause, StorageError)


@pytest.mark.spec("M9")
@pytest.mark.parametrize("end", ["release", "release_job", "close"])
def test_an_end_while_readers_read(tmp_path, end):
    with environment(batch__read_ahead=2) as env:
        store(env, tmp_path)
        write(env, [b"x" * 60] * 5000)
        readers = [reader(env) for _ in range(3)]
        begun = threading.Barrier(4)

        def work(source):
            elements = iter(source)
            next(elements)
            begun.wait(30)
            for _ in elements:
                begun_once.wait(30)

        begun_once = threading.Event()
        threads = [Thread(lambda source=source: work(source)) for source in readers]
        begun.wait(30)
        if end == "release":
            env.registry.release(partition_id())
        elif end == "release_job":
            env.release_job(partition_id().job)
        else:
            env.close()
        begun_once.set()
        for thread in threads:
            with pytest.raises(Cancelled):
                thread.end()
        wait_until(lambda: files_in(tmp_path) == [], "the file to go, with the last read that was under way")


@pytest.mark.spec("P3", "M9")
def test_a_reader_that_stops_half_way_and_another_that_reads_again(tmp_path):
    values = [b"%d" % number for number in range(3000)]
    with environment() as env:
        store(env, tmp_path)
        write(env, values)
        stopped = reader(env)
        next(iter(stopped))
        stopped.close()
        assert read(env) == values
        wait_until(lambda: env.disk._thread.read_ahead.pool.in_use == 0, "all is given back")


def test_close_may_be_repeated(tmp_path):
    env = environment()
    store(env, tmp_path)
    write(env, [b"data"])
    read(env)
    env.close()
    env.close(keep=True)
    assert files_in(tmp_path) == []


def test_a_cancelled_writer_leaves_no_file(tmp_path):
    with environment() as env:
        store(env, tmp_path)
        partition = env.partition(partition_id(), subpartitions=2, kind=BLOCKING)
        writer = env.writer(partition, Rescale(), MsgpackSerializer())
        writer.emit_batch(list(range(10_000)))
        env.registry.release(partition.id, Cancelled("the job is cancelled"))
        with pytest.raises(Cancelled, match="the job is cancelled"):
            writer.emit_batch(list(range(10_000)))
        writer.close()
        assert files_in(tmp_path) == []
        free = env.memory.statistics()
        assert free.free == free.total
