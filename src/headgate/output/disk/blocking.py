"""BlockingPartition: the output of one task in one file on disk, which is read after it is finished.

The task's thread fills buffers as for any partition. Finished buffers are collected and written by one call, outside
the exchange lock, on that thread. So a full pool does not block the writer, and no reader slows it down. A finished
partition can be read by any number of readers, also more than once, each with its own `BlockingReader`. The file is
removed with the partition, unless `keep` is set.

Invariants: the chunks of a subpartition are in the file in the order of writing. Threads that do I/O are counted under
the lock, and the last one closes the file of a partition that was released meanwhile.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from headgate.buffer import UNCHANNELLED, Buffer
from headgate.errors import (
    Cancelled,
    HeadgateError,
    LocalProtocolError,
    PartitionNotFound,
    ProducerFailed,
    StorageError,
    error_from_wire,
)
from headgate.ids import SubpartitionIndex
from headgate.output.disk.reader import BlockingReader
from headgate.output.disk.unwritten import UnwrittenBuffers, chunks_of
from headgate.output.partition import PartitionStatistics, PartitionType, ResultPartition
from headgate.output.pipelined import SubpartitionState, SubpartitionStatistics
from headgate.record.element import EndOfPartition, Event, encode_event
from headgate.sync import together

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.buffer import LocalPool
    from headgate.ids import PartitionId
    from headgate.meters import TaskTimer
    from headgate.output.disk.file import Chunks, PartitionFile, PartitionFileWriter
    from headgate.output.disk.read_ahead import ReadAhead
    from headgate.output.pipelined import SubpartitionListener
    from headgate.sync import Lock, Wake

__all__ = ["AnyPartition", "BlockingPartition", "BlockingSubpartition"]

_log = logging.getLogger(__name__)


class BlockingSubpartition:
    """A subpartition of a blocking partition; all of them have the same state."""

    __slots__ = ("_partition", "index")

    def __init__(self, index: SubpartitionIndex, partition: BlockingPartition) -> None:
        self.index = index
        self._partition = partition

    @property
    def state(self) -> SubpartitionState:
        """The state of the partition."""
        return self._partition.state

    def statistics_locked(self) -> SubpartitionStatistics:
        """Return its figures: nothing is queued in memory."""
        return SubpartitionStatistics(self.state, 0, 0)


class BlockingPartition:
    """The output of one task, on disk. Made by `Environment.partition` and `Environment.adopt`.

    >>> import tempfile
    >>> from headgate.config import BatchSettings
    >>> from headgate.ids import AttemptId, JobId, PartitionId
    >>> from headgate.worker import Environment
    >>> from headgate.worker.storage import Storage
    >>> job, attempt = JobId("etl"), AttemptId(1)
    >>> with tempfile.TemporaryDirectory() as place, Environment(memory_bytes=2**20) as worker:
    ...     worker.storage = Storage(BatchSettings(directories=place), job, attempt, driver_here=True)
    ...     which = PartitionId(job, attempt, 0, 0, 0)
    ...     partition = worker.partition(which, subpartitions=1, kind=PartitionType.BLOCKING)
    ...     partition.finish()
    ...     for _ in range(2):  # any number of times
    ...         gate = worker.gate("words", channels=1)
    ...         gate.connect(0, worker.local_source(which, SubpartitionIndex(0)))
    ...         gate.read().event
    EndOfPartition()
    EndOfPartition()
    """

    type: Final = PartitionType.BLOCKING

    def __init__(
        self,
        partition_id: PartitionId,
        subpartitions: int,
        pool: LocalPool,
        writer: PartitionFileWriter | None,
        read_ahead: ReadAhead,
        *,
        request_timeout_s: float | None = None,
        timer: TaskTimer | None = None,
    ) -> None:
        assert subpartitions >= 1, "a partition has at least one reader"
        self.id = partition_id
        self.pool = pool
        self.lock: Lock = pool.lock
        self.state = SubpartitionState.WRITING
        self.buffers_out = 0
        self.bytes_out = 0
        self.on_consumable: Callable[[], object] | None = None
        """Called once, on the writer's thread, when the partition is finished."""
        self.on_unreadable: Callable[[HeadgateError], object] | None = None
        """Called once, on the thread that reads ahead, when the file cannot be read."""
        self.subpartitions = tuple(
            BlockingSubpartition(SubpartitionIndex(index), self) for index in range(subpartitions)
        )
        self._writer = writer  # until the partition is finished
        self._file: PartitionFile | None = None  # after that
        self._read_ahead = read_ahead
        self._request_timeout_s = request_timeout_s
        self._timer = timer
        self._refusal: HeadgateError | None = None  # the reason why writes raise
        self._unwritten = UnwrittenBuffers()
        self._readers: dict[SubpartitionListener, tuple[SubpartitionIndex, BlockingReader]] = {}
        self._busy = 0  # the number of threads that do I/O on the file
        self._keep = False  # the file stays when the partition is released

    @classmethod
    def adopted(
        cls, partition_id: PartitionId, file: PartitionFile, pool: LocalPool, read_ahead: ReadAhead
    ) -> BlockingPartition:
        """Return a partition of a file that was finished before, possibly by another process; the pool is not used."""
        partition = cls(partition_id, file.subpartitions, pool, None, read_ahead)
        with partition.lock:
            wake = partition._finished_locked(file)
        if wake is not None:
            wake()
        return partition

    # Called by the writer.

    def next_buffer(
        self,
        channel: int,
        full: Buffer | None,
        *,
        mid_record: bool,  # noqa: ARG002 - overdraft is not needed: the writer itself can free the memory
        wait: bool = True,
    ) -> Buffer | None:
        """See `ResultPartition`; collected buffers are written when there are enough of them, or no free buffer."""
        wake = None
        self.lock.acquire()  # see the note on locks in `sync`
        try:
            if full is not None:
                wake = self._collect_locked(channel, full)
            buffer = self._try_buffer_locked(channel)
        finally:
            self.lock.release()
            if wake is not None:
                wake()
        if buffer is None and self._unwritten:
            self._write()
            with self.lock:
                buffer = self._try_buffer_locked(channel)
        if buffer is not None or not wait:
            return buffer
        return self._wait(channel)

    def _try_buffer_locked(self, channel: int) -> Buffer | None:
        if self._refusal is not None:
            raise self._new_refusal()
        return None if self._unwritten.due else self.pool.try_buffer_locked(channel, False)

    def _wait(self, channel: int) -> Buffer:
        """Block for a segment: other pools still use the required segments of this one."""
        segment = self.pool.request(channel, timeout_s=self._request_timeout_s, timer=self._timer)
        with self.lock:
            if self._refusal is None:
                return Buffer.over(segment, self.pool, channel)
            wake = self.pool.recycle_locked(segment, channel)
        if wake is not None:
            wake()
        raise self._new_refusal()

    def end_buffer(self, channel: int, buffer: Buffer) -> None:
        """Finish a buffer without requesting the next."""
        with self.lock:
            wake = self._collect_locked(channel, buffer)
        if wake is not None:
            wake()

    def flush(self, channel: int = UNCHANNELLED) -> None:
        """Do nothing: readers start after the end."""

    def add_event(self, event: Event) -> None:
        """Add an event to every channel, after all bytes written so far. All buffers must be finished."""
        self._collect_event(event)
        if self._unwritten.due:
            self._write()

    def finish(self) -> None:
        """Add the end to every channel: the partition can then be read."""
        self._collect_event(EndOfPartition())
        self._write(last=True)
        with self.lock:
            if self.state is SubpartitionState.RELEASED:
                raise self._new_refusal()
            callback, self.on_consumable = self.on_consumable, None
        if callback is not None:
            callback()

    def _collect_event(self, event: Event) -> None:
        data = Buffer.event(encode_event(event))
        with self.lock:
            if self._refusal is not None:
                raise self._new_refusal()
            self._unwritten.add(UNCHANNELLED, data)

    def _collect_locked(self, channel: int, full: Buffer) -> Wake:
        """Collect a full buffer for the next write; release it if it is empty or writes raise."""
        wake = full.finish_locked()
        size = full.position
        if not size or self._refusal is not None:
            return together(wake, full.release_locked())
        self.buffers_out += 1
        self.bytes_out += size
        self._unwritten.add(channel, full)
        return wake

    def _write(self, *, last: bool = False) -> None:
        """Write all collected buffers; with `last`, finish the file."""
        with self.lock:
            if self._refusal is not None:
                raise self._new_refusal()
            writer, buffers = self._writer, self._unwritten.take()
            self._busy += 1
        assert writer is not None, "a partition without a refusal has a writer"
        file = refusal = None
        try:
            writer.append(chunks_of(buffers))
            if last and self._refusal is None:  # not released meanwhile
                file = writer.finish()
        except BaseException as error:
            refusal = error if isinstance(error, HeadgateError) else Cancelled(f"partition {self.id}: {error!r}")
            raise
        finally:
            self._end_write(buffers, file, refusal)

    def _end_write(
        self, buffers: list[tuple[int, Buffer]], file: PartitionFile | None, refusal: HeadgateError | None
    ) -> None:
        """Release the written buffers, and store the result of the write."""
        with self.lock:
            self._busy -= 1
            wakes = [buffer.release_locked() for _, buffer in buffers]
            if self._refusal is None:
                self._refusal = refusal
            if file is not None:
                wakes.append(self._finished_locked(file))
            wake = together(*wakes, self._dispose_locked())
        if wake is not None:
            wake()

    def _finished_locked(self, file: PartitionFile) -> Wake:
        """Make the file available to readers, and release the pool."""
        self._writer, self._file = None, file
        if self.state is not SubpartitionState.WRITING:
            return None
        self.state = SubpartitionState.FINISHED
        self._refusal = LocalProtocolError(f"partition {self.id} is written to after its end")
        return self.pool.destroy_locked()

    # Called by readers.

    def attach_locked(
        self, index: SubpartitionIndex, listener: SubpartitionListener, *, packed: bool = False
    ) -> tuple[BlockingReader, Wake]:
        """Return a new reader at the start; with `packed` it receives compressed buffers compressed (P3).

        Raises:
            PartitionNotFound: The partition is not finished yet.
            ProducerFailed: The file is damaged, or was removed by another process.
        """
        file = self._file
        if self.state is not SubpartitionState.FINISHED or file is None:
            raise PartitionNotFound(f"partition {self.id} is not finished yet")
        if listener in self._readers:
            raise LocalProtocolError(f"partition {self.id}, subpartition {index}: its reader is attached twice")
        where = f"partition {self.id}, subpartition {index}"
        try:
            chunks, backlog = _chunks_and_backlog(file, index)
        except StorageError as error:
            raise ProducerFailed(f"{where}: {error}", cause=error) from error
        reader = BlockingReader(self, chunks, self._read_ahead, listener, backlog=backlog, where=where, packed=packed)
        self._readers[listener] = index, reader
        return reader, self._read_ahead.add_reader_locked(reader)

    def release_subpartition_locked(
        self,
        index: SubpartitionIndex,
        cause: BaseException | None = None,
        listener: SubpartitionListener | None = None,
    ) -> Wake:
        """Close a reader that has ended or is lost; without `listener`, all of this subpartition. The file stays."""
        leaving = [
            one for one, (its, _) in self._readers.items() if its == index and (listener is None or one is listener)
        ]
        return together(*[self._readers.pop(one)[1].close_locked(cause) for one in leaving])

    def begin_reading_locked(self) -> PartitionFile:
        """Return the file, which stays open until `end_reading_locked`."""
        assert self._file is not None, "a partition that is not finished, or released"
        self._busy += 1
        return self._file

    def end_reading_locked(self) -> Wake:
        """End a read; the last one closes a released file."""
        self._busy -= 1
        return self._dispose_locked()

    def unreadable_locked(self, error: HeadgateError) -> Wake:
        """Report that the file cannot be read, once."""
        callback, self.on_unreadable = self.on_unreadable, None
        return None if callback is None else partial(callback, error)

    # Called from any thread.

    def release(self, cause: BaseException | None = None, *, keep: bool = False) -> None:
        """Drop all buffers and close all readers; later calls raise, with this cause. May be called more than once.

        A finished file is removed, unless `keep` is set.
        """
        with self.lock:
            wake = self.release_locked(cause, keep=keep)
        if wake is not None:
            wake()

    def release_locked(self, cause: BaseException | None = None, *, keep: bool = False) -> Wake:
        """Like `release`, for callers that hold the lock."""
        if self.state is SubpartitionState.RELEASED:
            return None
        self.state = SubpartitionState.RELEASED
        self._keep = keep
        self._refusal = Cancelled(f"partition {self.id} was released" + (f": {cause}" if cause is not None else ""))
        wakes = [reader.close_locked(cause, wake_listener=True) for _, reader in self._readers.values()]
        self._readers.clear()
        wakes += [buffer.release_locked() for _, buffer in self._unwritten.take()]
        return together(*wakes, self.pool.destroy_locked(), self._dispose_locked())

    def statistics(self) -> PartitionStatistics:
        """Return the figures of the partition."""
        with self.lock:
            subpartitions = tuple(one.statistics_locked() for one in self.subpartitions)
        return PartitionStatistics(
            id=self.id,
            type=self.type,
            subpartitions=subpartitions,
            buffers_out=self.buffers_out,
            bytes_out=self.bytes_out,
            pool=self.pool.statistics(),
        )

    def _dispose_locked(self) -> Wake:
        """Close, remove or discard the file, if the partition is released and no thread does I/O on it."""
        if self._busy or self.state is not SubpartitionState.RELEASED:
            return None
        writer, file, self._writer, self._file = self._writer, self._file, None, None
        if file is not None:
            return partial(_log_errors, file.close if self._keep else file.remove)
        return None if writer is None else partial(_log_errors, writer.discard)

    def _new_refusal(self) -> HeadgateError:
        """Return a new exception for each raise: an exception that is raised again accumulates tracebacks."""
        refusal = self._refusal
        assert refusal is not None, "called without a refusal"
        error = error_from_wire(refusal.code, str(refusal))
        if isinstance(error, StorageError) and isinstance(refusal, StorageError):
            error.path = refusal.path
        return error


AnyPartition = ResultPartition | BlockingPartition
"""A partition that a task writes to."""


def _chunks_and_backlog(file: PartitionFile, index: SubpartitionIndex) -> tuple[Chunks, int]:
    """Return the chunks of a subpartition, and the number of data chunks."""
    chunks = file.chunks(index)
    if not len(chunks) or not chunks.is_event(len(chunks) - 1):
        raise StorageError(f"subpartition {index} has no end", path=file.path)
    return chunks, file.data_chunks(index)


def _log_errors(function: Callable[[], object]) -> None:
    """Call a function and log its error: a release does not fail for a file that the next start removes."""
    try:
        function()
    except (HeadgateError, OSError) as error:
        _log.warning("a partition's file could not be closed or removed: %s", error)
