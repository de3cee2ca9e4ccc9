"""A partition on disk: gathered, written together, read when finished, and its file gone with it."""

import collections
import errno
import os
from contextlib import contextmanager

import pytest
from tests.support.blocking_partition import SIZE, Gated, Reading, Rig, files_in
from tests.support.buffers import give, take_all
from tests.support.exchange import partition_id
from tests.support.threads import Thread
from tests.support.waiting import wait_until

from headgate.buffer import UNCHANNELLED
from headgate.config import Compression
from headgate.errors import (
    Cancelled,
    LocalProtocolError,
    PartitionNotFound,
    ProducerFailed,
    StorageError,
    StorageFull,
    UserCodeError,
)
from headgate.ids import SubpartitionIndex
from headgate.output import PartitionType, StepResult, SubpartitionState
from headgate.output.disk import unwritten as unwritten_module
from headgate.output.disk.file import ALL, PartitionFile
from headgate.record import EndOfPartition, UserEvent
from headgate.record.element import encode_event
from headgate.worker.storage import Quota

END = encode_event(EndOfPartition())


class Appends:
    """A writer that remembers how many chunks it was given at a time."""

    def __init__(self, under):
        self.under = under
        self.sizes = []
        self.channels = []

    def append(self, chunks):
        self.sizes.append(len(chunks))
        self.channels += [channel for channel, _, _ in chunks]
        self.under.append(chunks)

    def __getattr__(self, name):
        return getattr(self.under, name)


def test_broadcast_chunks_have_the_same_number_everywhere():
    assert UNCHANNELLED == ALL


@pytest.mark.spec("P1")
def test_a_blocking_partition_has_type_statistics_and_states(tmp_path):
    with Rig(tmp_path, 2) as rig:
        kind = rig.partition.type
        assert kind is PartitionType.BLOCKING
        assert (kind.pipelined, kind.bounded, kind.back_pressure) == (False, False, False)
        rig.put(0, b"data")
        found = rig.partition.statistics()
        assert (found.id, found.type, found.buffers_out, found.bytes_out) == (partition_id(), kind, 1, 4)
        assert [one.state for one in found.subpartitions] == [SubpartitionState.WRITING] * 2
        rig.partition.finish()
        assert [one.state for one in rig.partition.subpartitions] == [SubpartitionState.FINISHED] * 2


@pytest.mark.spec("P3", "P6")
def test_a_finished_partition_is_readable_and_reported_once(tmp_path):
    with Rig(tmp_path) as rig:
        told = []
        rig.partition.on_consumable = lambda: told.append(files_in(tmp_path))
        rig.put(0, b"first")
        rig.partition.flush()
        with pytest.raises(PartitionNotFound, match=r"partition job#1/v0\.0\[0\] is not finished yet"):
            Reading(rig, 0)
        assert told == []
        assert files_in(tmp_path) == [".v0.0-0.partition.part"]
        rig.partition.finish()
        assert told == [["v0.0-0.partition"]], "its file is whole and has its name when others are told"
        assert Reading(rig, 0).rest() == [b"first"]
        with pytest.raises(LocalProtocolError, match="after its end"):
            rig.partition.next_buffer(0, None, mid_record=False)
        with pytest.raises(LocalProtocolError, match="after its end"):
            rig.partition.finish()
        assert len(told) == 1


@pytest.mark.parametrize("compression", list(Compression))
def test_each_reader_receives_its_own_and_the_broadcast_buffers(tmp_path, compression):
    with Rig(tmp_path, 3, compression=compression) as rig:
        rig.put(0, b"a" * SIZE)
        rig.put(2, b"c")
        rig.put(UNCHANNELLED, b"all")
        rig.put(0, b"aa")
        rig.partition.add_event(UserEvent("note", b"between"))
        rig.put(2, b"cc" * 20)
        rig.partition.finish()
        note = encode_event(UserEvent("note", b"between"))
        assert Reading(rig, 0).rest() == [b"a" * SIZE, b"all", b"aa", note]
        assert Reading(rig, 1).rest() == [b"all", note]
        assert Reading(rig, 2).rest() == [b"c", b"all", note, b"cc" * 20]
        assert rig.partition.statistics().buffers_out == 5
        with pytest.raises(PartitionNotFound, match="3 subpartitions, not a number 3"):
            Reading(rig, 3)


def test_buffers_are_written_many_at_a_time_and_those_of_a_reader_together(tmp_path, monkeypatch):
    monkeypatch.setattr(unwritten_module, "_WRITE_BYTES", 8 * SIZE)
    with Rig(tmp_path, 2, around=Appends) as rig:
        for number in range(32):
            rig.put(number % 2, bytes([number]) * SIZE)
        rig.partition.finish()
        assert rig.writer.sizes == [8, 8, 8, 9]
        assert rig.writer.channels[:16] == [0] * 4 + [1] * 4 + [0] * 4 + [1] * 4
        assert Reading(rig, 1).rest() == [bytes([number]) * SIZE for number in range(1, 32, 2)]


def test_many_events_do_not_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(unwritten_module, "_WRITE_CHUNKS", 4)
    with Rig(tmp_path, around=Appends) as rig:
        for _ in range(10):
            rig.partition.add_event(UserEvent("note", b""))
        assert rig.writer.sizes == [4, 4]


@pytest.mark.spec("M4")
def test_a_full_pool_is_written_out_and_not_waited_for(tmp_path):
    """Whatever the pool can give: a segment for each open buffer and one more are enough."""
    with Rig(tmp_path, 2, segments=5, around=Appends) as rig:
        pool = rig.partition.pool
        assert (pool.required, pool.size) == (3, 3)
        opened = [rig.partition.next_buffer(channel, None, mid_record=False, wait=False) for channel in (0, 1)]
        for number in range(20):
            channel = number % 2
            opened[channel].append(bytes([number]) * SIZE)
            opened[channel] = rig.partition.next_buffer(channel, opened[channel], mid_record=True, wait=False)
            assert opened[channel] is not None
            assert pool.held <= pool.size
        for channel, buffer in enumerate(opened):
            rig.partition.end_buffer(channel, buffer)
        rig.partition.finish()
        assert max(rig.writer.sizes) <= 3
        assert Reading(rig, 0).rest() == [bytes([number]) * SIZE for number in range(0, 20, 2)]


def test_empty_buffers_are_not_written(tmp_path):
    with Rig(tmp_path) as rig:
        rig.partition.end_buffer(0, rig.partition.next_buffer(0, None, mid_record=False))
        assert rig.partition.statistics().buffers_out == 0
        rig.partition.finish()
        reading = Reading(rig, 0)
        assert reading.reader.backlog == 0
        assert reading.rest() == []


@pytest.mark.spec("M9")
def test_memory_is_for_others_once_it_is_finished(tmp_path):
    with Rig(tmp_path) as rig:
        rig.put(0, b"data")
        assert rig.used == 1
        rig.partition.finish()
        assert rig.used == 0
        assert rig.partition.pool.destroyed


@contextmanager
def all_taken(rig):
    """While the read-ahead has every segment there is, though its pool is not so large any more."""
    pool = rig.ahead.pool
    pool.size = rig.memory.total
    taken = take_all(pool)
    rig.memory.create_pool("another", required=0).destroy()  # shares out anew
    yield
    give(pool, *taken)


def test_a_writer_blocks_until_segments_are_recycled(tmp_path):
    """The pool may have shrunk: then its segments are still in use somewhere else."""
    with Rig(tmp_path, segments=6) as rig:
        with all_taken(rig):
            assert rig.partition.next_buffer(0, None, mid_record=False, wait=False) is None
            writer = Thread(lambda: rig.put(0, b"late"))
            wait_until(lambda: rig.partition.pool.statistics().waiting == 1, "it waits")
        writer.end()
        rig.partition.finish()
        assert Reading(rig, 0).rest() == [b"late"]


def test_a_release_wakes_a_blocked_writer(tmp_path):
    with Rig(tmp_path, segments=6) as rig, all_taken(rig):
        writer = Thread(lambda: rig.put(0, b"never"))
        rig.partition.release()
        with pytest.raises(Cancelled):
            writer.end()


# Several readers ------------------------------------------------------------------------------------------


@pytest.mark.spec("P3")
def test_readers_of_one_subpartition_are_independent(tmp_path):
    with Rig(tmp_path, segments=32) as rig:
        wanted = [bytes([number]) for number in range(20)]
        for one in wanted:
            rig.put(0, one)
        rig.partition.finish()
        first, second, third = Reading(rig, 0), Reading(rig, 0), Reading(rig, 0)
        rig.step_out()
        assert [first.take(), second.take(), second.take()] == [b"\0", b"\0", b"\1"]
        first.leave()
        assert second.rest() == wanted[2:]
        assert third.rest() == wanted
        assert rig.partition.state is SubpartitionState.FINISHED, "the partition stays after its readers have ended"
        assert Reading(rig, 0).rest() == wanted, "and can be read again"


def test_a_release_without_a_name_is_of_all_readers_of_the_subpartition(tmp_path):
    with Rig(tmp_path, 2) as rig:
        rig.partition.finish()
        here, there = [Reading(rig, 0), Reading(rig, 0)], Reading(rig, 1)
        with rig.lock:
            rig.registry.release_subpartition_locked(rig.partition.id, SubpartitionIndex(0))
        assert [one.reader.closed for one in here] == [True, True]
        assert there.rest() == []


def test_a_listener_attaches_once(tmp_path):
    with Rig(tmp_path) as rig:
        rig.partition.finish()
        reading = Reading(rig, 0)
        with rig.lock, pytest.raises(LocalProtocolError, match="attached twice"):
            rig.registry.attach_locked(rig.partition.id, SubpartitionIndex(0), reading)


# The end of a partition -----------------------------------------------------------------------------------


@pytest.mark.spec("P3", "M9")
@pytest.mark.parametrize("finished", [False, True])
def test_release_removes_the_file(tmp_path, finished):
    rig = Rig(tmp_path)
    rig.put(0, b"data")
    if finished:
        rig.partition.finish()
    assert len(files_in(tmp_path)) == 1
    rig.partition.release()
    rig.partition.release()
    assert files_in(tmp_path) == []
    with pytest.raises(Cancelled, match="was released"):
        rig.put(0, b"more")
    with pytest.raises(Cancelled, match="was released"):
        rig.partition.finish()
    rig.close()
    assert rig.used == 0


@pytest.mark.parametrize("finished", [False, True])
def test_only_a_finished_partition_is_kept(tmp_path, finished):
    rig = Rig(tmp_path)
    rig.put(0, b"data")
    if finished:
        rig.partition.finish()
    rig.registry.release(rig.partition.id, keep=True)
    assert files_in(tmp_path) == (["v0.0-0.partition"] if finished else [])
    if finished:
        file = PartitionFile.open(rig.path, segment_size=SIZE)
        assert file.data_chunks(0) == 1
        file.remove()
    rig.close()


def test_a_buffer_that_is_finished_after_the_release_goes_back(tmp_path):
    with Rig(tmp_path) as rig:
        buffer = rig.partition.next_buffer(0, None, mid_record=False)
        buffer.append(b"data")
        rig.partition.release()
        rig.partition.end_buffer(0, buffer)
        assert rig.used == 0


@pytest.mark.parametrize(("call", "error"), [("append", Cancelled), ("finish", Cancelled)])
def test_release_while_the_writer_writes(tmp_path, call, error):
    """The file is closed when the call is over, by the writer; nothing of it stays."""
    with Rig(tmp_path, around=lambda writer: Gated(writer, call)) as rig:
        rig.put(0, b"data")
        thread = Thread(rig.partition.finish)
        assert rig.writer.entered.wait(30)
        rig.partition.release(keep=True) if call == "append" else rig.partition.release()
        assert rig.used == 1, "it is being written from"
        rig.writer.go_on.set()
        with pytest.raises(error, match="was released"):
            thread.end()
        assert files_in(tmp_path) == []


def test_release_while_a_step_reads(tmp_path):
    """A descriptor that is closed under a reader may be another file's by then."""
    with Rig(tmp_path) as rig:
        rig.put(0, b"data")
        rig.partition.finish()
        reading = Reading(rig, 0)
        file = rig.partition._file
        rig.partition._file = gated = Gated(file, "read_many")
        step = Thread(rig.step)
        assert gated.entered.wait(30)
        rig.partition.release()
        assert file._fd >= 0
        with rig.lock, pytest.raises(PartitionNotFound):
            rig.partition.attach_locked(SubpartitionIndex(0), reading)
        gated.go_on.set()
        assert step.end() is StepResult.READ
        assert file._fd < 0
        assert files_in(tmp_path) == []
        with pytest.raises(Cancelled, match="was released"):
            reading.poll()


@pytest.mark.spec("G8")
def test_readers_receive_the_cause_of_the_release(tmp_path):
    with Rig(tmp_path) as rig:
        rig.put(0, b"data")
        rig.partition.finish()
        told, over = Reading(rig, 0), Reading(rig, 0)
        assert over.rest() == [b"data"]
        rig.step_out()
        before = told.told, over.told
        rig.partition.release(UserCodeError("division by zero", operator="map", subtask=0))
        assert (told.told - before[0], over.told - before[1]) == (1, 0), "a reader at the end is not notified"
        for _ in range(2):
            with pytest.raises(ProducerFailed, match="division by zero") as caught:
                told.poll()
        assert isinstance(caught.value.cause, UserCodeError)
        assert not told.reader.next_is_data


def test_a_file_that_cannot_be_removed_is_logged_and_release_succeeds(tmp_path, caplog, monkeypatch):
    with Rig(tmp_path) as rig:
        rig.partition.finish()
        monkeypatch.setattr(os, "unlink", refuse)
        rig.partition.release()
        assert "could not be closed or removed" in caplog.text
        assert rig.path in caplog.text


def test_a_removed_file_fails_its_readers(tmp_path):
    with Rig(tmp_path) as rig:
        rig.partition.finish()
        rig.partition._file.remove()
        with pytest.raises(ProducerFailed, match=r"v0\.0-0\.partition"):
            Reading(rig, 0)


# Disks that fail ------------------------------------------------------------------------------------------


def refuse(*_, **__):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def fail(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.spec("P3", "M9")
def test_a_full_disk_is_an_error_that_names_the_path(tmp_path, monkeypatch):
    with Rig(tmp_path) as rig:
        rig.put(0, b"data")
        monkeypatch.setattr(os, "writev", fail)
        with pytest.raises(StorageFull, match=r"v0\.0-0\.partition") as caught:
            rig.partition.finish()
        assert caught.value.path == rig.path
        monkeypatch.undo()
        with pytest.raises(StorageFull, match=r"v0\.0-0\.partition") as again:
            rig.put(0, b"more")
        assert again.value is not caught.value
        assert again.value.path == rig.path
        rig.partition.release(caught.value)
        assert files_in(tmp_path) == []
        assert rig.used == 0


@pytest.mark.spec("P3")
def test_a_quota_is_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(unwritten_module, "_WRITE_BYTES", 2 * SIZE)
    quota = Quota(10 * SIZE, str(tmp_path))
    with Rig(tmp_path, quota=quota) as rig:
        for _ in range(8):
            rig.put(0, b"x" * SIZE)
        with pytest.raises(StorageFull, match=r"disk_quota"):
            collections.deque(map(rig.put, [0] * 12, [b"x" * SIZE] * 12), maxlen=0)
        rig.partition.release()
        assert quota.used == 0
        assert files_in(tmp_path) == []


def test_an_interrupted_write_is_not_gone_on_with(tmp_path):
    class Interrupted(Appends):
        def append(self, chunks):
            raise KeyboardInterrupt

    with Rig(tmp_path, around=Interrupted) as rig:
        rig.put(0, b"data")
        with pytest.raises(KeyboardInterrupt):
            rig.partition.finish()
        with pytest.raises(Cancelled, match="KeyboardInterrupt"):
            rig.put(0, b"more")
        assert rig.partition.pool.in_use == 0


@pytest.mark.spec("P3")
def test_a_damaged_file_is_its_reader_s_error(tmp_path):
    """Readers of undamaged files continue."""
    with Rig(tmp_path, 2, compression=Compression.LZ4) as rig:
        for _ in range(6):
            rig.put(0, b"to be " * 10)
            rig.put(1, b"or not" * 10)
        rig.partition.finish()
        place = rig.partition._file.chunks(1).entry(5)[0]
        with open(rig.path, "r+b") as file:
            file.seek(place)
            file.write(bytes(8))
        good, bad = Reading(rig, 0), Reading(rig, 1)
        assert good.rest() == [b"to be " * 10] * 6
        with pytest.raises(ProducerFailed, match=r"subpartition 1.*v0\.0-0\.partition.*damaged") as caught:
            bad.rest()
        assert isinstance(caught.value.cause, StorageError)
        assert caught.value.cause.path == rig.path
        assert bad.reader.notified
        assert not bad.reader.next_is_data
        assert rig.step() is StepResult.BLOCK


def test_a_file_without_an_end_is_refused(tmp_path):
    with Rig(tmp_path) as rig:
        rig.writer.append([(0, memoryview(b"data"), False)])
        file = rig.writer.finish()
        with rig.lock:
            rig.partition._finished_locked(file)
        with pytest.raises(ProducerFailed, match="has no end"):
            Reading(rig, 0)
