"""A worker's environment: settings wired through, the flusher, and an end that gives everything back."""

import contextlib
import threading

import pytest
from tests.support import JOIN_S, Thread, partition_id, unnamed_files

from headgate.clock import ManualClock
from headgate.config import BufferTimeout, load_settings
from headgate.errors import Cancelled, InsufficientBuffers, LocalProtocolError, PartitionNotFound, RequestTimeout
from headgate.ids import JobId, SubpartitionIndex
from headgate.output import Broadcast, Forward, PartitionType, Rescale
from headgate.record import Batch, BytesSerializer, EndOfPartition
from headgate.record.arrow import ArrowSerializer
from headgate.worker import Environment


def settings(**values):
    return load_settings(code={key.replace("__", "."): value for key, value in values.items()})


def environment(segments=64, **values):
    values.setdefault("memory__segment_size", 64)
    return Environment(settings(**values), memory_bytes=segments * int(values["memory__segment_size"]), seed=0)


def connect(env, identity, channels=1, selector=None):
    """A partition, its writer, and a reader for each subpartition."""
    partition = env.partition(identity, subpartitions=channels)
    readers = []
    for i in range(channels):
        gate = env.gate(f"gate-{i}", channels=1)
        gate.connect(0, env.local_source(identity, SubpartitionIndex(i)))
        readers.append(env.reader(gate, BytesSerializer()))
    return env.writer(partition, selector or (Forward() if channels == 1 else Rescale()), BytesSerializer()), readers


@pytest.mark.spec("M1", "M9", "T2")
def test_records_travel_and_all_memory_is_back():
    with environment() as env:
        writer, readers = connect(env, partition_id(), channels=2)
        writer.emit_batch([b"a", b"b", b"c"])
        writer.finish()
        writer.close()
        assert [list(reader) for reader in readers] == [
            [Batch([b"a", b"c"]), EndOfPartition()],
            [Batch([b"b"]), EndOfPartition()],
        ]
        statistics = env.statistics()
        assert statistics.memory.free == statistics.memory.total == 64
        assert [one.id for one in statistics.partitions] == [partition_id()]


@pytest.mark.spec("M1")
def test_memory_is_cut_into_segments():
    with Environment(settings(memory__segment_size=100), memory_bytes=1099) as env:
        assert env.statistics().memory.total == 10
        assert env.statistics().memory.segment_size == 100
    with pytest.raises(InsufficientBuffers):
        Environment(settings(memory__segment_size=100), memory_bytes=99)


@pytest.mark.spec("M4")
def test_pools_are_as_large_as_the_settings_say():
    values = {
        "network__buffers_per_channel": 3,
        "network__floating_buffers_per_gate": 4,
        "network__max_buffers_per_channel": 5,
        "network__max_overdraft_buffers": 2,
    }
    with environment(**values) as env:
        bounded = env.partition(partition_id(0), subpartitions=4).pool
        assert (bounded.required, bounded.maximum) == (5, 4 * 3 + 4)
        assert (bounded.max_per_channel, bounded.overdraft) == (5, 2)
        unbounded = env.partition(partition_id(1), subpartitions=4, kind=PartitionType.PIPELINED).pool
        assert (unbounded.required, unbounded.maximum) == (5, 64)


@pytest.mark.spec("P5", "M9")
def test_a_partition_that_exists_leaves_nothing_behind():
    with environment() as env:
        env.partition(partition_id(), subpartitions=4)
        before = env.statistics().memory
        with pytest.raises(LocalProtocolError, match="registered already"):
            env.partition(partition_id(), subpartitions=4)
        assert env.statistics().memory == before


@pytest.mark.spec("M5")
def test_too_many_partitions_are_refused():
    with environment(segments=8) as env:
        env.partition(partition_id(0), subpartitions=4)
        with pytest.raises(InsufficientBuffers):
            env.partition(partition_id(1), subpartitions=4)
        assert len(env.statistics().partitions) == 1


@pytest.mark.spec("W4")
@pytest.mark.parametrize("timeout", ["auto", "5 ms"])
@pytest.mark.parametrize("selector", [Rescale, Broadcast])
def test_the_flusher_flushes(timeout, selector):
    with environment(execution__buffer_timeout=timeout) as env:
        writer, readers = connect(env, partition_id(), channels=2, selector=selector())
        writer.emit(b"a")
        assert readers[0].read(timeout_s=JOIN_S) == Batch([b"a"])
        writer.close()


@pytest.mark.spec("W4")
def test_without_a_flusher_nothing_runs():
    for timeout in ("0", "-1"):
        with environment(execution__buffer_timeout=timeout) as env:
            before = threading.active_count()
            writer, _ = connect(env, partition_id())
            writer.emit(b"a")
            assert threading.active_count() == before
            assert writer.buffer_timeout == BufferTimeout.parse(timeout)
            writer.close()


@pytest.mark.spec("W4")
def test_a_closed_writer_is_not_flushed():
    with environment(execution__buffer_timeout="1 ms") as env:
        writer, _ = connect(env, partition_id())
        writer.close()
        called = threading.Event()
        env.ticker.every(0.001, called.set)
        assert called.wait(JOIN_S)
        assert [function for function in env.ticker._due if function == writer.tick] == []


@pytest.mark.spec("M6")
def test_the_request_timeout_is_the_setting_s():
    with environment(segments=2, network__buffers_request_timeout="20 ms", network__max_overdraft_buffers=0) as env:
        writer, _ = connect(env, partition_id())
        writer.emit(bytes(1000))
        with pytest.raises(RequestTimeout, match=r"0\.02 s"):
            writer.flush()
        writer.close()


@pytest.mark.spec("G4")
def test_the_backoff_is_the_setting_s():
    values = {"network__partition_request_backoff__initial": "1 ms", "network__partition_request_backoff__max": "2 ms"}
    with environment(**values) as env:
        gate = env.gate("g", channels=1)
        gate.connect(0, env.local_source(partition_id(7), SubpartitionIndex(0)))
        with pytest.raises(PartitionNotFound):
            gate.read(timeout_s=JOIN_S)


@pytest.mark.spec("R2")
def test_record_limits_are_the_settings(tmp_path):
    values = {
        "record__max_size": "2 KiB",
        "record__spill_threshold": "100 B",
        "record__spill_directory": str(tmp_path),
        "record__batch_size": 3,
    }
    with environment(memory__segment_size=4096, segments=8, **values) as env:
        assert (env.record_limits.max_size_bytes, env.record_limits.spill_threshold_bytes) == (2048, 100)
        assert env.record_limits.spill_directory == str(tmp_path)
        writer, (reader,) = connect(env, partition_id())
        for i in range(6):
            writer.emit(bytes([i]))
        writer.flush()
        assert [len(reader.poll().values) for _ in range(2)] == [3, 3]
        writer.close()
    with environment() as env:
        assert env.record_limits.spill_directory is None


@pytest.mark.spec("R3")
def test_record_batches_get_their_own_writer():
    from headgate.output.columns import ColumnWriter  # noqa: PLC0415

    with environment() as env:
        partition = env.partition(partition_id(), subpartitions=1)
        writer = env.writer(partition, Forward(), ArrowSerializer())
        assert type(writer) is ColumnWriter
        writer.close()


@pytest.mark.spec("P5")
def test_a_job_is_released_and_the_others_go_on():
    with environment() as env:
        mine, (my_reader,) = connect(env, partition_id(0, "mine"))
        other, (other_reader,) = connect(env, partition_id(0, "other"))
        env.release_job(JobId("mine"))
        with pytest.raises(Cancelled):
            my_reader.read()
        with pytest.raises(Cancelled):
            mine.finish()
        other.emit(b"a")
        other.finish()
        assert list(other_reader) == [Batch([b"a"]), EndOfPartition()]
        mine.close()
        other.close()


@pytest.mark.spec("M9")
def test_close_ends_everything():
    before = set(threading.enumerate())
    files = unnamed_files()
    env = environment(execution__buffer_timeout="1 ms")
    writer, (reader,) = connect(env, partition_id())
    thread = Thread(reader.read)
    env.close()
    env.close()
    with pytest.raises(Cancelled):
        thread.end()
    with pytest.raises(Cancelled):
        writer.finish()
    writer.close()
    reader.close()
    statistics = env.statistics()
    assert statistics.memory.free == statistics.memory.total
    assert statistics.partitions == ()
    assert set(threading.enumerate()) <= before
    assert unnamed_files() <= files


@pytest.mark.spec("M9", "G7")
def test_closing_while_data_is_held_is_a_cancellation_for_those_who_hold_it():
    """A task may be anywhere when its worker is closed: it must meet Cancelled, not released memory."""
    env = environment()
    writer, (reader,) = connect(env, partition_id())
    writer.emit_batch([b"a" * 20] * 4)
    writer.flush()
    writer.emit_batch([b"b"])
    assert reader.poll() is not None
    env.close()
    try:
        for use in (writer.flush, lambda: [writer.emit(bytes(20)) for _ in range(50)]):
            with contextlib.suppress(Cancelled):
                use()
        with pytest.raises(Cancelled):
            list(iter(reader.poll, None))
    finally:
        writer.close()
        reader.close()
    assert env.statistics().memory.free == env.statistics().memory.total


@pytest.mark.spec("W1")
def test_randomness_comes_from_the_seed():
    drawn = []
    for _ in range(2):
        with Environment(memory_bytes=1 << 20, seed=5, clock=ManualClock()) as env:
            drawn.append([env.random.randrange(1000) for _ in range(5)])
    assert drawn[0] == drawn[1]
