"""A worker's environment: settings wired through, the flusher, and an end that gives everything back."""

import contextlib
import threading

import pytest
from tests.support.exchange import partition_id
from tests.support.leaks import unnamed_files
from tests.support.threads import Thread
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.buffer import UNCHANNELLED
from headgate.clock import ManualClock
from headgate.config import BatchSettings, BufferTimeout, load_settings
from headgate.errors import (
    Cancelled,
    InsufficientBuffers,
    LocalProtocolError,
    PartitionNotFound,
    RecordTooLarge,
    RequestTimeout,
)
from headgate.ids import AttemptId, JobId, SubpartitionIndex
from headgate.net import Identity
from headgate.output import Broadcast, Forward, PartitionType, Rescale
from headgate.record import Batch, BytesSerializer, EndOfPartition, Serializer
from headgate.record.arrow import ArrowSerializer
from headgate.worker import Environment
from headgate.worker.storage import Storage


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
def test_pools_have_the_sizes_of_the_settings():
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
        assert readers[0].read(timeout_s=PATIENCE_S) == Batch([b"a"])
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
        assert called.wait(PATIENCE_S)
        assert [function for function in env.ticker._due if function == writer.tick] == []


@pytest.mark.spec("M6")
def test_the_request_timeout_is_the_setting_s():
    with environment(segments=2, network__buffers_request_timeout="20 ms", network__max_overdraft_buffers=0) as env:
        writer, _ = connect(env, partition_id())
        writer.emit(bytes(1000))
        with pytest.raises(RequestTimeout, match=r"0\.02 s"):
            writer.flush()
        writer.close()


@pytest.mark.spec("M4", "M6")
def test_the_request_timeout_bounds_the_set_up_of_a_remote_channel():
    """Its own buffers are promised, but another pool still uses them: that is waited for, and not for ever."""
    with environment(segments=8, network__buffers_request_timeout="20 ms") as env:
        env.join(Identity(JobId("job"), AttemptId(1), worker=0, secret=bytes(32)))
        pool = env.memory.create_pool("greedy", required=1)
        taken = [pool.request() for _ in range(8)]
        gate = env.gate("words", channels=1)
        with pytest.raises(RequestTimeout, match=r"gate words, a remote channel got 0 of 2 .* 0\.02 s") as caught:
            env.remote_source(gate, partition_id(), SubpartitionIndex(0), worker=1)
        assert "network.buffers_request_timeout" in str(caught.value)
        with env.sync.lock:
            for segment in taken:
                pool.recycle_locked(segment, UNCHANNELLED)
        channel = env.remote_source(gate, partition_id(), SubpartitionIndex(0), worker=1)
        gate.connect(0, channel)
        pool.destroy()


@pytest.mark.spec("G4")
def test_the_backoff_is_the_setting_s():
    values = {"network__partition_request_backoff__initial": "1 ms", "network__partition_request_backoff__max": "2 ms"}
    with environment(**values) as env:
        gate = env.gate("g", channels=1)
        gate.connect(0, env.local_source(partition_id(7), SubpartitionIndex(0)))
        with pytest.raises(PartitionNotFound):
            gate.read(timeout_s=PATIENCE_S)


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


@pytest.mark.spec("R2")
def test_by_default_no_record_has_more_than_one_gib():
    with environment() as env:
        env.record_limits.check(2**30)
        with pytest.raises(RecordTooLarge, match=r"the limit is 1073741824 \(record.max_size\)"):
            env.record_limits.check(2**30 + 1)


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


def all_back(env):
    statistics = env.statistics().memory
    return (statistics.free, statistics.pools, statistics.exclusive) == (statistics.total, 0, 0)


@pytest.mark.spec("M9")
@pytest.mark.parametrize("selector", [Forward, Broadcast])
def test_close_takes_the_memory_of_writers_that_are_open(selector):
    env = environment()
    readers, writers = [], []
    for number in range(3):
        writer, reading = connect(env, partition_id(number), selector=selector())
        writer.emit_batch([b"a" * 100])
        writer.flush()
        writers.append(writer)
        readers += reading
    assert not all_back(env)
    env.close()
    assert all_back(env), "though nobody has closed the writers"
    for writer in writers:
        for use in (writer.flush, writer.finish, lambda one=writer: one.emit(b"b")):
            with pytest.raises(Cancelled):
                use()
        writer.close()
    for reader in readers:
        reader.close()
    assert all_back(env)


@pytest.mark.spec("M9", "P3")
def test_close_takes_the_memory_of_writers_of_blocking_partitions(tmp_path):
    env = environment()
    job, attempt = partition_id().job, partition_id().attempt
    env.storage = Storage(BatchSettings(directories=str(tmp_path)), job, attempt, driver_here=True)
    partition = env.partition(partition_id(), subpartitions=1, kind=PartitionType.BLOCKING)
    writer = env.writer(partition, Forward(), BytesSerializer())
    writer.emit_batch([b"a" * 100])
    writer.flush()
    assert not all_back(env)
    env.close()
    assert all_back(env)
    with pytest.raises(Cancelled):
        writer.finish()
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == []


@pytest.mark.spec("M6", "M9")
def test_close_wakes_blocked_writers_and_recycles_their_segments():
    env = environment(network__max_overdraft_buffers=0)
    writers = [connect(env, partition_id(number))[0] for number in range(3)]  # their readers read nothing
    threads = [Thread(lambda one=one: one.emit_batch([bytes(50)] * 1000)) for one in writers]
    wait_until(lambda: all(one.partition.pool.statistics().waiting for one in writers), "all writers to wait")
    env.close()
    for thread in threads:
        with pytest.raises(Cancelled):
            thread.end()
    assert all_back(env), "nobody has closed the writers"


@pytest.mark.spec("M9")
def test_close_does_not_wait_for_ever_for_a_writer_in_user_code(monkeypatch, caplog):
    monkeypatch.setattr("headgate.worker.environment._WRITER_S", 0.01)
    inside, on = threading.Event(), threading.Event()

    class Slow(Serializer):
        name = "slow"

        def encode(self, value):
            inside.set()
            assert on.wait(PATIENCE_S)
            return value

        def decode(self, data):
            return bytes(data)

    env = environment(execution__buffer_timeout=-1)
    partition = env.partition(partition_id(), subpartitions=1)
    writer = env.writer(partition, Forward(), Slow())
    thread = Thread(lambda: (writer.emit(b"a"), writer.flush()))
    assert inside.wait(PATIENCE_S)
    env.close()
    assert "still in use while its worker closes" in caplog.text
    caplog.clear()
    on.set()
    with pytest.raises(Cancelled):
        thread.end()
    writer.close()
    assert all_back(env)


@pytest.mark.spec("M9")
def test_close_recycles_segments_reserved_for_channels_that_were_never_connected():
    with environment() as env:
        env.join(Identity(JobId("job"), AttemptId(1), worker=0, secret=bytes(32)))
        gate = env.gate("words", channels=2)
        channel = env.remote_source(gate, partition_id(), SubpartitionIndex(0), worker=1)
        assert env.statistics().memory.exclusive == 2
    assert all_back(env)
    del channel


@pytest.mark.spec("M9", "G7")
def test_closing_cancels_readers_and_writers_that_hold_data():
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
