"""RecordWriter: the end of a task's chain. It chooses a channel, collects, serializes, appends and flushes.

Records wait in one list per channel until they fill about a buffer, so that serializing and everything after it
happens per batch. `emit` acquires no lock: it appends to a list. A thread that serializes a list holds the writer's
mutex: the task's thread when a list is full or on `flush`, and the flusher's thread in `tick`. `tick` never waits for
memory: bytes that do not fit stay in the queue, and are the first of the next call.

Invariants: the bytes of a queue are written in the order of its list, under the mutex. `values[:n]` and
`del values[:n]` are atomic, so no `emit` interferes. The mutex is acquired before the exchange lock, never inside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Generic, TypeVar

from headgate.buffer import UNCHANNELLED
from headgate.config import BufferTimeout, FlushMode
from headgate.errors import Cancelled, LocalProtocolError, RecordTooLarge
from headgate.forks import ChildEnds
from headgate.meters import Counter
from headgate.record.element import (
    Batch,
    Element,
    Event,
    LatencyMarker,
    Record,
    encode_batch,
    encode_element,
)
from headgate.record.spanning import RecordLimits, SpanningWriter, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.buffer import Buffer
    from headgate.output.disk.blocking import AnyPartition
    from headgate.output.hot_keys import KeyShare
    from headgate.output.partition import PartitionStatistics
    from headgate.output.selector import Below, Selector
    from headgate.record.serializer import Encoded, Serializer
    from headgate.sync import Lock, Sync

__all__ = ["RecordWriter", "WriterStatistics"]

T = TypeVar("T")

_FIRST_BATCH = 16  # records, while their size is unknown


def _nothing() -> None:
    """The default of `on_close`."""


class _ChannelQueue(Generic[T]):
    """The records of one channel, or of all channels of a broadcast, that are not in finished buffers."""

    __slots__ = ("buffer", "channel", "spanning", "timed", "times", "values")

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.values: list[T] = []  # not serialized yet
        self.times: list[int] = []  # timestamps of the values, appended after them, if `timed`
        self.timed = False
        self.spanning = SpanningWriter()  # serialized, but not completely copied to buffers
        self.buffer: Buffer | None = None  # the unfinished one


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """The figures of a writer."""

    records_out: int
    partition: PartitionStatistics


class RecordWriter(Generic[T]):
    """Writes one task's records into its partition.

    `emit`, `emit_at` and `emit_batch` write records, `emit_element` watermarks, statuses and markers, `emit_event`
    events. One task thread calls these; the flusher's thread calls `tick`.

    >>> from headgate import ids, output, record, worker
    >>> with worker.Environment(memory_bytes=2**20) as here:
    ...     partition = here.partition(ids.PartitionId(ids.JobId("etl"), ids.AttemptId(1), 0, 0, 0), subpartitions=1)
    ...     writer = here.writer(partition, output.Forward(), record.StrSerializer())
    ...     writer.emit_batch(["to", "be"]); writer.finish()
    """

    def __init__(
        self,
        partition: AnyPartition,
        selector: Selector[T],
        serializer: Serializer[T],
        *,
        sync: Sync,
        below: Below,
        limits: RecordLimits | None = None,
        buffer_timeout: BufferTimeout | None = None,
        batch_size: int = 1000,
    ) -> None:
        timeout = buffer_timeout if buffer_timeout is not None else BufferTimeout.parse("auto")
        channels = len(partition.subpartitions)
        selector.connect(channels)
        self.partition = partition
        self.buffer_timeout = timeout
        self.records_out = Counter()
        self._selector = selector
        self._serializer = serializer
        self._limits = limits if limits is not None else RecordLimits()
        self._below = below
        self._mutex: Lock = sync.mutex()
        self._queues: list[_ChannelQueue[T]] = (
            [_ChannelQueue(UNCHANNELLED)]
            if selector.broadcast
            else [_ChannelQueue(channel) for channel in range(channels)]
        )
        self._pick = selector.picker(self._queues)
        self.emit: Callable[[T], None] = self._make_emit()
        """Write a record to the channel that the selector returns."""
        self._always = timeout.mode is FlushMode.ALWAYS
        self._batch_size = 1 if self._always else batch_size
        self._full = min(_FIRST_BATCH, self._batch_size)  # the number of records in a batch; 0: see `tick`
        self._target_bytes = partition.pool.segment_size
        self._error: BaseException | None = None
        self._closed = False
        self.on_close: Callable[[], object] = _nothing
        """Called once by `close`: removes the writer from the flusher."""

    # Records: no lock is acquired until a batch is full.

    def _make_emit(self) -> Callable[[T], None]:
        """Return `emit` as a closure: reading its cells is faster than reading attributes."""
        pick, write, change_timing = self._pick, self._write, self._change_timing

        def emit(value: T) -> None:
            queue = pick(value)
            if queue.timed:
                change_timing(queue)
            values = queue.values
            values.append(value)
            if len(values) >= self._full:
                write(queue)

        return emit

    def emit_at(self, value: T, timestamp_ms: int) -> None:
        """Write a record with its event time."""
        queue = self._pick(value)
        if not queue.timed:
            self._change_timing(queue)
        queue.values.append(value)
        queue.times.append(timestamp_ms)
        if len(queue.values) >= self._full:
            self._write(queue)

    def emit_batch(self, values: list[T], timestamps_ms: list[int] | None = None) -> None:
        """Write several records, each to its channel; `timestamps_ms` has one for each record, or is None."""
        selector = self._selector
        parts: Iterable[tuple[list[T], list[int] | None]]
        if timestamps_ms is None:
            parts = zip([values] if selector.broadcast else selector.split(values), repeat(None), strict=False)
        elif len(timestamps_ms) != len(values):
            raise ValueError(f"{len(timestamps_ms)} timestamps for {len(values)} records")
        else:
            parts = [(values, timestamps_ms)] if selector.broadcast else selector.split_timed(values, timestamps_ms)
        for queue, (part, times) in zip(self._queues, parts, strict=True):
            if not part:
                continue
            if queue.timed is (times is None):
                self._change_timing(queue)
            if len(part) < self._full:
                queue.values.extend(part)
                if times is not None:
                    queue.times.extend(times)
                if len(queue.values) >= self._full:
                    self._write(queue)
            else:
                self._write_at_once(queue, part, times)

    # Elements and events in order with the records.

    def emit_element(self, element: Element[T]) -> None:
        """Write an element: records to their channel, a latency marker to a random channel, others to every channel."""
        match element:
            case Record(value, None):
                self.emit(value)
                return
            case Record(value, int(timestamp_ms)):
                self.emit_at(value, timestamp_ms)
                return
            case Batch(values, timestamps_ms):
                self.emit_batch(values, timestamps_ms)
                return
        pieces = encode_element(element, self._serializer, self._limits)
        with self._mutex:
            self._raise_earlier_error()
            if isinstance(element, LatencyMarker):
                self._put_at_random(pieces)
            else:
                for queue in self._queues:
                    self._drain(queue, wait=True)
                    self._put(queue, pieces, wait=True)
        if self._always:
            self.partition.flush()

    def emit_event(self, event: Event) -> None:
        """Write an event to every channel, after everything emitted so far."""
        with self._mutex:
            self._raise_earlier_error()
            self._end_buffers()
            self.partition.add_event(event)

    def flush(self) -> None:
        """Make everything emitted so far available to the readers; called before the task waits for input."""
        with self._mutex:
            self._raise_earlier_error()
            for queue in self._queues:
                self._drain(queue, wait=True)
            self.partition.flush()

    def tick(self) -> None:
        """Like `flush`, but never waits for memory. Called on the flusher's thread.

        An error is stored for the task's next write. While the task writes, or waits for memory in a write, only the
        bytes in buffers are flushed.
        """
        if not self._mutex.acquire(blocking=False):
            self.partition.flush()
            return
        try:
            if not self._closed and self._error is None:
                for queue in self._queues:
                    self._drain(queue, wait=False)
                self.partition.flush()
        except Exception as error:  # noqa: BLE001 - raised on the task's thread
            self._error = error
            self._full = 0  # so that the next `emit` calls `_write`, which raises it
        finally:
            self._mutex.release()

    def finish(self) -> None:
        """Write the remaining records and the end of the partition."""
        with self._mutex:
            self._raise_earlier_error()
            self._end_buffers()
            self.partition.finish()

    def close(self) -> None:
        """Release the writer's records and buffers, written or not. May be called more than once."""
        with self._mutex:
            self._closed, on_close, self.on_close = True, self.on_close, _nothing
            self._release()
        on_close()

    def abandon(self, timeout_s: float) -> bool:
        """Release the writer's records and buffers, like `close`, but from another thread than its task's.

        Each later call of the task raises `Cancelled`, except `close`. Return False, with nothing changed, if the task
        does not release the mutex within `timeout_s`: it may be in a user's serializer.
        """
        if not self._mutex.acquire(timeout=timeout_s):
            return False
        try:
            self._error = Cancelled(f"partition {self.partition.id}: its worker is closed")
            self._release()
        finally:
            self._mutex.release()
        return True

    def end_in_child(self) -> None:
        """Make a thread of a forked child that writes end the process (`forks`)."""
        self._mutex = ChildEnds()

    def statistics(self) -> WriterStatistics:
        """Return the figures of the writer."""
        return WriterStatistics(records_out=self.records_out.value, partition=self.partition.statistics())

    def hot_keys(self) -> list[KeyShare]:
        """Return the keys with many records, the hottest first; empty without keys. Called from any thread."""
        return self._selector.hot_keys()

    # Called with the mutex held.

    def _release(self) -> None:
        self._full = 0  # so that the next `emit` calls `_write`, which raises
        for queue in self._queues:
            queue.values, queue.times, queue.spanning = [], [], SpanningWriter()
            self._end_buffer(queue)

    def _write(self, queue: _ChannelQueue[T]) -> None:
        """Write the records of a queue. Acquires the mutex."""
        with self._mutex:
            self._raise_earlier_error()
            self._drain(queue, wait=True)
        if self._always:
            self.partition.flush(queue.channel)

    def _write_at_once(self, queue: _ChannelQueue[T], values: list[T], times: list[int] | None) -> None:
        """Write the records of a queue, then a whole batch, without adding it to the list. Acquires the mutex."""
        with self._mutex:
            self._raise_earlier_error()
            self._drain(queue, wait=True)
            start = 0
            while start < len(values):
                # At most about four buffers at a time: a long list of small values must not become one huge record.
                stop = start + min(self._batch_size, 4 * self._full)
                self._put_batch(queue, values[start:stop], times and times[start:stop], wait=True)
                self._drain(queue, wait=True)
                start = stop
        if self._always:
            self.partition.flush(queue.channel)

    def _drain(self, queue: _ChannelQueue[T], *, wait: bool) -> bool:
        """Serialize and append all records of a queue. Return False if `wait` is off and there is no buffer."""
        if queue.spanning.unfinished and not self._copy(queue, wait=wait):
            return False
        while True:
            count = len(queue.times) if queue.timed else len(queue.values)
            if not count:
                return True
            values = queue.values[:count]
            del queue.values[:count]
            times = None
            if queue.timed:
                times = queue.times[:count]
                del queue.times[:count]
            if not self._put_batch(queue, values, times, wait=wait):
                return False

    def _put_batch(self, queue: _ChannelQueue[T], values: list[T], times: list[int] | None, *, wait: bool) -> bool:
        count = len(values)
        try:
            pieces = encode_batch(self._serializer, values, times, self._limits)
        except RecordTooLarge:
            if count == 1:
                raise
            half = count // 2  # only a single value above the limit is an error, not a batch
            queue.values[:0] = values[half:]
            if times is not None:
                queue.times[:0] = times[half:]
            return self._put_batch(queue, values[:half], times and times[:half], wait=wait)
        self.records_out.value += count
        self._adapt(count, sum(map(len, pieces)))
        return self._put(queue, pieces, wait=wait)

    def _put(self, queue: _ChannelQueue[T], pieces: Encoded, *, wait: bool) -> bool:
        queue.spanning.begin(pieces)
        return self._copy(queue, wait=wait)

    def _copy(self, queue: _ChannelQueue[T], *, wait: bool) -> bool:
        """Copy the rest of a queue's serialized bytes to buffers. Return False like `_drain`."""
        spanning, partition, channel = queue.spanning, self.partition, queue.channel
        buffer, mid_record = queue.buffer, spanning.begun
        while True:
            if buffer is None or not buffer.room:
                queue.buffer = None
                buffer = partition.next_buffer(channel, buffer, mid_record=mid_record, wait=False)
                if buffer is None:
                    if not wait:
                        return False
                    self._before_wait(queue)
                    buffer = partition.next_buffer(channel, None, mid_record=mid_record)
                    assert buffer is not None, "no buffer after a wait"
                queue.buffer = buffer
            match spanning.copy_to(buffer):
                case Written.RECORD_DONE:
                    return True
                case Written.RECORD_DONE_BUFFER_FULL:
                    self._end_buffer(queue)
                    return True
                case Written.BUFFER_FULL:
                    mid_record = True

    def _before_wait(self, waiting: _ChannelQueue[T]) -> None:
        """Drain the other queues before the task waits for memory: `tick` flushes only buffers while it waits."""
        if self.buffer_timeout.mode is FlushMode.NEVER:
            return
        for queue in self._queues:
            if queue is not waiting:
                self._drain(queue, wait=False)

    def _adapt(self, count: int, size_bytes: int) -> None:
        """Set the size of the next batch to about one buffer; at most double it, as the next records may be larger."""
        fitting = count * self._target_bytes // max(size_bytes, 1)
        self._full = max(1, min(fitting, self._full * 2, self._batch_size))

    def _put_at_random(self, pieces: Encoded) -> None:
        channel = self._below(len(self.partition.subpartitions))
        if self._queues[0].channel != UNCHANNELLED:
            queue = self._queues[channel]
            self._drain(queue, wait=True)
            self._put(queue, pieces, wait=True)
            return
        self._end_buffers()  # end the shared buffer: the marker's buffer has only one reader
        single: _ChannelQueue[T] = _ChannelQueue(channel)
        self._put(single, pieces, wait=True)
        self._end_buffer(single)

    def _end_buffers(self) -> None:
        for queue in self._queues:
            self._drain(queue, wait=True)
            self._end_buffer(queue)

    def _end_buffer(self, queue: _ChannelQueue[T]) -> None:
        buffer, queue.buffer = queue.buffer, None
        if buffer is not None:
            self.partition.end_buffer(queue.channel, buffer)

    def _change_timing(self, queue: _ChannelQueue[T]) -> None:
        """Write the queue's records, then change `timed`: a batch has timestamps for all its records or for none."""
        with self._mutex:
            self._raise_earlier_error()
            self._drain(queue, wait=True)
            queue.timed = not queue.timed

    def _raise_earlier_error(self) -> None:
        if self._closed:
            raise LocalProtocolError(f"the writer of partition {self.partition.id} is closed")
        if self._error is not None:
            raise self._error
