"""A blocking partition: what one task gives out, in one file on disk, which is read when it is finished.

The task's thread fills buffers as for any partition. Finished ones are gathered and written by one call, outside the
exchange lock, on that thread; so a full pool is not waited for but written out, and no reader slows the writer. Once
finished it may be read by many, at once and again, each with a `BlockingReader` of its own; that one goes makes no
difference to the others. The file goes with the partition, or stays if `keep` says so.

Invariants: chunks of a subpartition lie in the file in the order in which they were written; whoever does I/O is
counted under the lock, and the last one closes a file whose partition was released meanwhile.
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
from headgate.output.blocking_reader import BlockingReader
from headgate.output.gathered import Gathered, chunks_of
from headgate.output.partition import PartitionStatistics, PartitionType, ResultPartition
from headgate.output.pipelined import SubpartitionState, SubpartitionStatistics
from headgate.record.element import EndOfPartition, Event, encode_event
from headgate.sync import together

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.buffer import LocalPool
    from headgate.ids import PartitionId
    from headgate.meters import TaskTimer
    from headgate.output.partition_file import Chunks, PartitionFile, PartitionFileWriter
    from headgate.output.pipelined import SubpartitionListener
    from headgate.output.read_ahead import ReadAhead
    from headgate.sync import Lock, Wake

__all__ = ["AnyPartition", "BlockingPartition", "BlockingSubpartition"]

_log = logging.getLogger(__name__)


class BlockingSubpartition:
    """One reader's share of a blocking partition; all of them are in the same state.

    >>> BlockingSubpartition.statistics_locked.__name__
    'statistics_locked'
    """

    __slots__ = ("_partition", "index")

    def __init__(self, index: SubpartitionIndex, partition: BlockingPartition) -> None:
        self.index = index
        self._partition = partition

    @property
    def state(self) -> SubpartitionState:
        """Where it is in its life."""
        return self._partition.state

    def statistics_locked(self) -> SubpartitionStatistics:
        """Nothing is queued in memory for it."""
        return SubpartitionStatistics(self.state, 0, 0)


class BlockingPartition:
    """What one task gives out, through disk. Made by `Environment.partition` and `Environment.adopt`.

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
    ...     for _ in range(2):  # as often as anybody likes
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
        """Called once, on the writer's thread, when it is finished."""
        self.on_unreadable: Callable[[HeadgateError], object] | None = None
        """Called once, on the thread that reads ahead, when the file cannot be read."""
        self.subpartitions = tuple(
            BlockingSubpartition(SubpartitionIndex(index), self) for index in range(subpartitions)
        )
        self._writer = writer  # until it is finished
        self._file: PartitionFile | None = None  # from then on
        self._read_ahead = read_ahead
        self._request_timeout_s = request_timeout_s
        self._timer = timer
        self._refusal: HeadgateError | None = None  # why nothing more can be written
        self._gathered = Gathered()
        self._readers: dict[SubpartitionListener, tuple[SubpartitionIndex, BlockingReader]] = {}
        self._busy = 0  # how many do I/O on the file
        self._keep = False  # the file, when the partition is released

    @classmethod
    def adopted(
        cls, partition_id: PartitionId, file: PartitionFile, pool: LocalPool, read_ahead: ReadAhead
    ) -> BlockingPartition:
        """One that was finished before, perhaps by another process; of the pool, nothing is used."""
        partition = cls(partition_id, file.subpartitions, pool, None, read_ahead)
        with partition.lock:
            wake = partition._finished_locked(file)
        if wake is not None:
            wake()
        return partition

    # The writer's side.

    def next_buffer(
        self,
        channel: int,
        full: Buffer | None,
        *,
        mid_record: bool,  # noqa: ARG002 - there is no need of overdraft: it is the writer itself that holds the memory
        wait: bool = True,
    ) -> Buffer | None:
        """As of any partition; what is gathered is written when there is enough of it, or no memory without."""
        wake = None
        self.lock.acquire()  # see the note on locks in `sync`
        try:
            if full is not None:
                wake = self._gather_locked(channel, full)
            buffer = self._try_buffer_locked(channel)
        finally:
            self.lock.release()
            if wake is not None:
                wake()
        if buffer is None and self._gathered:
            self._write()
            with self.lock:
                buffer = self._try_buffer_locked(channel)
        if buffer is not None or not wait:
            return buffer
        return self._wait(channel)

    def _try_buffer_locked(self, channel: int) -> Buffer | None:
        if self._refusal is not None:
            raise self._refusal_again()
        return None if self._gathered.due else self.pool.try_buffer_locked(channel, False)

    def _wait(self, channel: int) -> Buffer:
        """The segments that it is sure of are still in use elsewhere."""
        segment = self.pool.request(channel, timeout_s=self._request_timeout_s, timer=self._timer)
        with self.lock:
            if self._refusal is None:
                return Buffer.over(segment, self.pool, channel)
            wake = self.pool.recycle_locked(segment, channel)
        if wake is not None:
            wake()
        raise self._refusal_again()

    def end_buffer(self, channel: int, buffer: Buffer) -> None:
        """Finish a buffer without asking for the next."""
        with self.lock:
            wake = self._gather_locked(channel, buffer)
        if wake is not None:
            wake()

    def flush(self, channel: int = UNCHANNELLED) -> None:
        """Nothing: nobody reads before the end."""

    def add_event(self, event: Event) -> None:
        """An event behind everything written so far, in every channel. All buffers must be finished."""
        self._gather_event(event)
        if self._gathered.due:
            self._write()

    def finish(self) -> None:
        """The end, in every channel: from here on it can be read."""
        self._gather_event(EndOfPartition())
        self._write(last=True)
        with self.lock:
            if self.state is SubpartitionState.RELEASED:
                raise self._refusal_again()
            tell, self.on_consumable = self.on_consumable, None
        if tell is not None:
            tell()

    def _gather_event(self, event: Event) -> None:
        data = Buffer.event(encode_event(event))
        with self.lock:
            if self._refusal is not None:
                raise self._refusal_again()
            self._gathered.add(UNCHANNELLED, data)

    def _gather_locked(self, channel: int, full: Buffer) -> Wake:
        """A buffer is full: it waits to be written, unless there is nothing in it or nothing more is written."""
        wake = full.finish_locked()
        size = full.position
        if not size or self._refusal is not None:
            return together(wake, full.release_locked())
        self.buffers_out += 1
        self.bytes_out += size
        self._gathered.add(channel, full)
        return wake

    def _write(self, *, last: bool = False) -> None:
        """Write all that is gathered; with `last`, it is then finished."""
        with self.lock:
            if self._refusal is not None:
                raise self._refusal_again()
            writer, gathered = self._writer, self._gathered.take()
            self._busy += 1
        assert writer is not None, "what can be written to has a file"
        file = refusal = None
        try:
            writer.append(chunks_of(gathered))
            if last and self._refusal is None:  # else it was released meanwhile
                file = writer.finish()
        except BaseException as error:
            refusal = error if isinstance(error, HeadgateError) else Cancelled(f"partition {self.id}: {error!r}")
            raise
        finally:
            self._written(gathered, file, refusal)

    def _written(
        self, gathered: list[tuple[int, Buffer]], file: PartitionFile | None, refusal: HeadgateError | None
    ) -> None:
        """Give the memory back, and go on from what has come of it."""
        with self.lock:
            self._busy -= 1
            wakes = [buffer.release_locked() for _, buffer in gathered]
            if self._refusal is None:
                self._refusal = refusal
            if file is not None:
                wakes.append(self._finished_locked(file))
            wake = together(*wakes, self._dispose_locked())
        if wake is not None:
            wake()

    def _finished_locked(self, file: PartitionFile) -> Wake:
        """Whoever asks may read from now on; memory is for others to write with."""
        self._writer, self._file = None, file
        if self.state is not SubpartitionState.WRITING:
            return None
        self.state = SubpartitionState.FINISHED
        self._refusal = LocalProtocolError(f"partition {self.id} is written to after its end")
        return self.pool.destroy_locked()

    # The readers' side.

    def attach_locked(self, index: SubpartitionIndex, listener: SubpartitionListener) -> tuple[BlockingReader, Wake]:
        """A new reader, from the beginning.

        Raises:
            PartitionNotFound: it is not finished yet.
            ProducerFailed: the file is damaged, or was removed by somebody else.
        """
        file = self._file
        if self.state is not SubpartitionState.FINISHED or file is None:
            raise PartitionNotFound(f"partition {self.id} is not finished yet")
        if listener in self._readers:
            raise LocalProtocolError(f"partition {self.id}, subpartition {index}: its reader is attached twice")
        where = f"partition {self.id}, subpartition {index}"
        try:
            chunks, backlog = _contents(file, index)
        except StorageError as error:
            raise ProducerFailed(f"{where}: {error}", cause=error) from error
        reader = BlockingReader(self, chunks, self._read_ahead, listener, backlog=backlog, where=where)
        self._readers[listener] = index, reader
        return reader, self._read_ahead.joined_locked(reader)

    def release_subpartition_locked(
        self,
        index: SubpartitionIndex,
        cause: BaseException | None = None,
        listener: SubpartitionListener | None = None,
    ) -> Wake:
        """A reader wants no more, or is lost; without `listener`, all of this subpartition. The partition stays."""
        leaving = [
            one for one, (its, _) in self._readers.items() if its == index and (listener is None or one is listener)
        ]
        return together(*[self._readers.pop(one)[1].close_locked(cause) for one in leaving])

    def begin_reading_locked(self) -> PartitionFile:
        """The file, which stays open until `end_reading_locked`."""
        assert self._file is not None, "it is finished, and not released"
        self._busy += 1
        return self._file

    def end_reading_locked(self) -> Wake:
        """Whoever waits to close it may."""
        self._busy -= 1
        return self._dispose_locked()

    def unreadable_locked(self, error: HeadgateError) -> Wake:
        """Its file cannot be read."""
        tell, self.on_unreadable = self.on_unreadable, None
        return None if tell is None else partial(tell, error)

    # Everybody's side.

    def release(self, cause: BaseException | None = None, *, keep: bool = False) -> None:
        """Drop everything and refuse everything, for this cause or because it is over. May be repeated.

        A finished file is removed, unless `keep` says otherwise.
        """
        with self.lock:
            wake = self.release_locked(cause, keep=keep)
        if wake is not None:
            wake()

    def release_locked(self, cause: BaseException | None = None, *, keep: bool = False) -> Wake:
        """As `release`, for callers who hold the lock already."""
        if self.state is SubpartitionState.RELEASED:
            return None
        self.state = SubpartitionState.RELEASED
        self._keep = keep
        self._refusal = Cancelled(f"partition {self.id} was released" + (f": {cause}" if cause is not None else ""))
        wakes = [reader.close_locked(cause, tell=True) for _, reader in self._readers.values()]
        self._readers.clear()
        wakes += [buffer.release_locked() for _, buffer in self._gathered.take()]
        return together(*wakes, self.pool.destroy_locked(), self._dispose_locked())

    def statistics(self) -> PartitionStatistics:
        """The partition at this moment."""
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
        """Once it is released and nobody is at work on it: close the file, remove it, or drop what was begun."""
        if self._busy or self.state is not SubpartitionState.RELEASED:
            return None
        writer, file, self._writer, self._file = self._writer, self._file, None, None
        if file is not None:
            return partial(_quietly, file.close if self._keep else file.remove)
        return None if writer is None else partial(_quietly, writer.discard)

    def _refusal_again(self) -> HeadgateError:
        """A new exception each time: one that is raised twice collects tracebacks."""
        refusal = self._refusal
        assert refusal is not None, "there is a reason to refuse"
        again = error_from_wire(refusal.code, str(refusal))
        if isinstance(again, StorageError) and isinstance(refusal, StorageError):
            again.path = refusal.path
        return again


AnyPartition = ResultPartition | BlockingPartition
"""What a task writes into."""


def _contents(file: PartitionFile, index: SubpartitionIndex) -> tuple[Chunks, int]:
    """What a reader reads, and how many of it are data."""
    chunks = file.chunks(index)
    if not len(chunks) or not chunks.is_event(len(chunks) - 1):
        raise StorageError(f"subpartition {index} has no end", path=file.path)
    return chunks, file.data_chunks(index)


def _quietly(function: Callable[[], object]) -> None:
    """Whoever releases a partition has nothing to do with what becomes of its file; the next start removes it."""
    try:
        function()
    except (HeadgateError, OSError) as error:
        _log.warning("a partition's file could not be closed or removed: %s", error)
