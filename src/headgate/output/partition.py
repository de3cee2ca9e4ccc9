"""ResultPartition: the output of one task, with one subpartition per reader and a buffer pool.

The task's thread requests buffers from it and blocks here when there is none: that is back pressure. Readers find its
subpartitions through the registry.

Invariant: a buffer is in the queue of its subpartition as soon as the writer has it, so all written bytes can be read
in order. The writer finishes a buffer of a channel before it requests the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from headgate.buffer import UNCHANNELLED, Buffer, BufferReader
from headgate.errors import Cancelled, HeadgateError, LocalProtocolError
from headgate.ids import SubpartitionIndex
from headgate.output.pipelined import PipelinedSubpartition, SubpartitionState, SubpartitionStatistics
from headgate.record.element import EndOfPartition, Event, encode_event
from headgate.sync import together

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.buffer import LocalPool, LocalPoolStatistics, Segment
    from headgate.ids import PartitionId
    from headgate.meters import TaskTimer
    from headgate.output.pipelined import SubpartitionListener
    from headgate.sync import Lock, Wake

__all__ = ["PartitionStatistics", "PartitionType", "ResultPartition"]


class PartitionType(Enum):
    """The kind of a partition.

    >>> PartitionType.PIPELINED_BOUNDED.back_pressure, PartitionType.BLOCKING.pipelined
    (True, False)
    """

    PIPELINED = ("pipelined", True, False, True)
    PIPELINED_BOUNDED = ("pipelined-bounded", True, True, True)
    BLOCKING = ("blocking", False, False, False)

    def __init__(self, label: str, pipelined: bool, bounded: bool, back_pressure: bool) -> None:
        self.label = label
        self.pipelined = pipelined
        """Read while it is written."""
        self.bounded = bounded
        """Uses a few buffers per reader, not all that are free."""
        self.back_pressure = back_pressure
        """A slow reader slows the writer."""


@dataclass(frozen=True, slots=True)
class PartitionStatistics:
    """The figures of a partition at one time."""

    id: PartitionId
    type: PartitionType
    subpartitions: tuple[SubpartitionStatistics, ...]
    buffers_out: int
    bytes_out: int
    pool: LocalPoolStatistics


class ResultPartition:
    """The output of one task, in memory (pipelined types). One task thread writes to it.

    >>> from headgate.ids import AttemptId, JobId, PartitionId
    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     partition = worker.partition(PartitionId(JobId("etl"), AttemptId(1), 0, 0, 0), subpartitions=2)
    ...     partition.finish()
    ...     [one.state.value for one in partition.subpartitions]
    ['finished', 'finished']
    """

    def __init__(
        self,
        partition_id: PartitionId,
        kind: PartitionType,
        subpartitions: int,
        pool: LocalPool,
        *,
        request_timeout_s: float | None = None,
        timer: TaskTimer | None = None,
    ) -> None:
        assert kind.pipelined, "a blocking partition is a BlockingPartition"
        assert subpartitions >= 1, "a partition has at least one reader"
        self.id = partition_id
        self.type = kind
        self.pool = pool
        self.lock: Lock = pool.lock
        self.buffers_out = 0
        self.bytes_out = 0
        self._request_timeout_s = request_timeout_s
        self._timer = timer
        self._refusal: HeadgateError | None = None  # the reason why writes raise
        self.on_consumable: Callable[[], object] | None = None
        """Called once, on the writer's thread, before the first buffer."""
        self.subpartitions = tuple(
            PipelinedSubpartition(SubpartitionIndex(index), self.lock, f"partition {partition_id}")
            for index in range(subpartitions)
        )

    # Called by the writer.

    def next_buffer(self, channel: int, full: Buffer | None, *, mid_record: bool, wait: bool = True) -> Buffer | None:
        """Finish a buffer and return the next one; with `wait`, block until there is one, otherwise return None.

        `UNCHANNELLED` means all channels: one buffer with a reader in every subpartition. The rest of a record
        (`mid_record`) may use overdraft buffers.
        """
        if self.on_consumable is not None:
            self._call_on_consumable()
        wake = None
        self.lock.acquire()  # see the note on locks in `sync`
        try:
            if full is not None:
                wake = full.finish_locked()
                self.buffers_out += 1
                self.bytes_out += full.position
            if self._refusal is not None:
                raise self._new_refusal()
            buffer = self.pool.try_buffer_locked(channel, mid_record)
            if buffer is not None and channel >= 0:
                added = self.subpartitions[channel].add_locked(buffer.reader)
            else:
                added = self._announce_locked(channel) if buffer is None else self._broadcast_locked(buffer)
            if added is not None:
                wake = added if wake is None else together(wake, added)
        finally:
            self.lock.release()
            if wake is not None:
                wake()
        if buffer is not None or not wait:
            return buffer
        try:
            segment = self.pool.request(channel, mid_record, timeout_s=self._request_timeout_s, timer=self._timer)
        except Cancelled:
            if self._refusal is None:
                raise
            raise self._new_refusal() from None  # it contains the reason for the destroyed pool
        return self._add_segment(segment, channel)

    def _add_segment(self, segment: Segment, channel: int) -> Buffer:
        """Return a buffer of a requested segment; raise if the partition was released meanwhile."""
        with self.lock:
            if self._refusal is None:
                buffer = Buffer.over(segment, self.pool, channel)
                one = channel >= 0
                wake = self.subpartitions[channel].add_locked(buffer.reader) if one else self._broadcast_locked(buffer)
            else:
                buffer, wake = None, self.pool.recycle_locked(segment, channel)
        if wake is not None:
            wake()
        if buffer is None:
            raise self._new_refusal()
        return buffer

    def end_buffer(self, channel: int, buffer: Buffer) -> None:
        """Finish a buffer without requesting the next."""
        with self.lock:
            wake = together(buffer.finish_locked(), self._announce_locked(channel))
            self.buffers_out += 1
            self.bytes_out += buffer.position
        if wake is not None:
            wake()

    def flush(self, channel: int = UNCHANNELLED) -> None:
        """Make the unfinished buffer of a channel, or of all channels, available to readers."""
        with self.lock:
            wake = together(*[subpartition.flush_locked() for subpartition in self._of(channel)])
        if wake is not None:
            wake()

    def add_event(self, event: Event) -> None:
        """Add an event to every channel, after all bytes written so far. All buffers must be finished."""
        data = encode_event(event)
        self._call_on_consumable()
        with self.lock:
            if self._refusal is not None:
                raise self._new_refusal()
            wake = self._add_event_locked(data)
        if wake is not None:
            wake()

    def finish(self) -> None:
        """Add the end of the partition to every channel."""
        data = encode_event(EndOfPartition())
        self._call_on_consumable()
        with self.lock:
            if self._refusal is not None:
                raise self._new_refusal()
            wake = self._add_event_locked(data)
            self._refusal = LocalProtocolError(f"partition {self.id} is written to after its end")
            for subpartition in self.subpartitions:
                subpartition.finish_locked()
        if wake is not None:
            wake()

    # Called from any thread.

    def release(self, cause: BaseException | None = None) -> None:
        """Drop all buffers; later calls raise, with this cause. May be called more than once."""
        with self.lock:
            wake = self.release_locked(cause)
        if wake is not None:
            wake()

    def release_locked(self, cause: BaseException | None = None, *, keep: bool = False) -> Wake:  # noqa: ARG002 - no file
        """Like `release`, for callers that hold the lock."""
        if self.pool.destroyed:
            return None
        self._refusal = Cancelled(f"partition {self.id} was released" + (f": {cause}" if cause is not None else ""))
        wakes = [subpartition.release_locked(cause) for subpartition in self.subpartitions]
        return together(*wakes, self.pool.destroy_locked())

    def attach_locked(
        self,
        index: SubpartitionIndex,
        listener: SubpartitionListener,
        *,
        packed: bool = False,  # noqa: ARG002 - nothing is compressed in memory
    ) -> tuple[PipelinedSubpartition, Wake]:
        """Attach the only reader of a subpartition."""
        subpartition = self.subpartitions[index]
        return subpartition, subpartition.attach_locked(listener)

    def release_subpartition_locked(
        self,
        index: SubpartitionIndex,
        cause: BaseException | None = None,
        listener: SubpartitionListener | None = None,  # noqa: ARG002 - a subpartition has one reader
    ) -> Wake:
        """Release a subpartition whose reader has ended or is lost (`cause`); without readers, stop the writer."""
        wake = self.subpartitions[index].release_locked(cause)
        if all(subpartition.state is SubpartitionState.RELEASED for subpartition in self.subpartitions):
            why = "it has no reader left" + (f": {cause}" if cause is not None else "")
            wake = together(wake, self.release_locked(Cancelled(why)))
        return wake

    def statistics(self) -> PartitionStatistics:
        """Return the figures of the partition."""
        with self.lock:
            subpartitions = tuple(subpartition.statistics_locked() for subpartition in self.subpartitions)
        return PartitionStatistics(
            id=self.id,
            type=self.type,
            subpartitions=subpartitions,
            buffers_out=self.buffers_out,
            bytes_out=self.bytes_out,
            pool=self.pool.statistics(),
        )

    def _call_on_consumable(self) -> None:
        callback, self.on_consumable = self.on_consumable, None
        if callback is not None:
            callback()

    def _of(self, channel: int) -> tuple[PipelinedSubpartition, ...]:
        return self.subpartitions if channel == UNCHANNELLED else (self.subpartitions[channel],)

    def _broadcast_locked(self, buffer: Buffer) -> Wake:
        """Add a buffer to every queue, with a reader for each."""
        others = [one.add_locked(BufferReader(buffer)) for one in self.subpartitions[1:]]
        return together(self.subpartitions[0].add_locked(buffer.reader), *others)

    def _announce_locked(self, channel: int) -> Wake:
        return together(*[subpartition.notify_locked() for subpartition in self._of(channel)])

    def _add_event_locked(self, data: bytes) -> Wake:
        event = Buffer.event(data)
        return together(*[subpartition.add_locked(BufferReader(event)) for subpartition in self.subpartitions])

    def _new_refusal(self) -> HeadgateError:
        """Return a new exception for each raise: an exception that is raised again accumulates tracebacks."""
        assert self._refusal is not None, "called without a refusal"
        return type(self._refusal)(str(self._refusal))
