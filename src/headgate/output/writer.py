"""The end of a task's chain: choose a channel, collect, serialize, append, flush.

Records wait in one list per channel until they fill about a buffer, so that serializing and everything after
it happens per batch. `emit` takes no lock: it appends to a list. What turns a list into bytes holds the
writer's mutex: the task's thread when a list is full or on `flush`, and the flusher's `tick`, which never
waits for memory: what does not fit stays behind and goes first the next time.

Invariants: the bytes of a lane are written in the order of its list, under the mutex; `values[:n]` and `del values[:n]`
are each one step that no `emit` can come between; the mutex is taken before the exchange lock, never inside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Generic, TypeVar

from headgate.buffer import UNCHANNELLED
from headgate.config import BufferTimeout, FlushMode
from headgate.errors import LocalProtocolError, RecordTooLarge
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
    from headgate.output.blocking import AnyPartition
    from headgate.output.hot_keys import KeyShare
    from headgate.output.partition import PartitionStatistics
    from headgate.output.selector import Below, Selector
    from headgate.record.serializer import Encoded, Serializer
    from headgate.sync import Sync

__all__ = ["RecordWriter", "WriterStatistics"]

T = TypeVar("T")

_FIRST_BATCH = 16  # records, before anything is known about their size


def _nothing() -> None:
    """What `on_close` does until somebody says otherwise."""


class _Lane(Generic[T]):
    """One channel of the writer, or all of them at once when broadcasting."""

    __slots__ = ("buffer", "channel", "spanning", "timed", "times", "values")

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.values: list[T] = []  # not serialized yet
        self.times: list[int] = []  # their timestamps, appended after them, if `timed`
        self.timed = False
        self.spanning = SpanningWriter()  # serialized, but not all in buffers yet
        self.buffer: Buffer | None = None  # being filled


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """What a writer has done so far, from `RecordWriter.statistics`.

    >>> WriterStatistics.__match_args__
    ('records_out', 'partition')
    """

    records_out: int
    partition: PartitionStatistics


class RecordWriter(Generic[T]):
    """Writes one task's records into its partition.

    `emit`, `emit_at` and `emit_batch` are for records, `emit_element` for what travels between them,
    `emit_event` for what travels beside them. One task thread calls these; `tick` is for the flusher.

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
        self._mutex = sync.mutex()
        self._lanes: list[_Lane[T]] = (
            [_Lane(UNCHANNELLED)] if selector.broadcast else [_Lane(channel) for channel in range(channels)]
        )
        self._pick = selector.picker(self._lanes)
        self.emit: Callable[[T], None] = self._make_emit()
        """Write a record to the channel that the selector chooses."""
        self._always = timeout.mode is FlushMode.ALWAYS
        self._batch_size = 1 if self._always else batch_size
        self._full = min(_FIRST_BATCH, self._batch_size)  # how many waiting records make a batch; 0: see `tick`
        self._target_bytes = partition.pool.segment_size
        self._error: BaseException | None = None
        self._closed = False
        self.on_close: Callable[[], object] = _nothing
        """Called once by `close`: whoever has the flusher call `tick` stops it there."""

    # Records: no lock until a batch is full.

    def _make_emit(self) -> Callable[[T], None]:
        """`emit` as a closure: what it needs lies in its cells, not behind attributes."""
        pick, write, change_timing = self._pick, self._write, self._change_timing

        def emit(value: T) -> None:
            lane = pick(value)
            if lane.timed:
                change_timing(lane)
            values = lane.values
            values.append(value)
            if len(values) >= self._full:
                write(lane)

        return emit

    def emit_at(self, value: T, timestamp_ms: int) -> None:
        """Write a record with its event time."""
        lane = self._pick(value)
        if not lane.timed:
            self._change_timing(lane)
        lane.values.append(value)
        lane.times.append(timestamp_ms)
        if len(lane.values) >= self._full:
            self._write(lane)

    def emit_batch(self, values: list[T], timestamps_ms: list[int] | None = None) -> None:
        """Write several records, each to its own channel; timestamps, if any, are one for each."""
        selector = self._selector
        parts: Iterable[tuple[list[T], list[int] | None]]
        if timestamps_ms is None:
            parts = zip([values] if selector.broadcast else selector.split(values), repeat(None), strict=False)
        elif len(timestamps_ms) != len(values):
            raise ValueError(f"{len(timestamps_ms)} timestamps for {len(values)} records")
        else:
            parts = [(values, timestamps_ms)] if selector.broadcast else selector.split_timed(values, timestamps_ms)
        for lane, (part, times) in zip(self._lanes, parts, strict=True):
            if not part:
                continue
            if lane.timed is (times is None):
                self._change_timing(lane)
            if len(part) < self._full:
                lane.values.extend(part)
                if times is not None:
                    lane.times.extend(times)
                if len(lane.values) >= self._full:
                    self._write(lane)
            else:
                self._write_at_once(lane, part, times)

    # What travels between and beside the records.

    def emit_element(self, element: Element[T]) -> None:
        """Write any element: records as usual, latency markers to one random channel, all else to every channel."""
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
                for lane in self._lanes:
                    self._drain(lane, wait=True)
                    self._put(lane, pieces, wait=True)
        if self._always:
            self.partition.flush()

    def emit_event(self, event: Event) -> None:
        """Write an event to every channel, behind everything emitted so far."""
        with self._mutex:
            self._raise_earlier_error()
            self._end_buffers()
            self.partition.add_event(event)

    def flush(self) -> None:
        """Let the readers have everything emitted so far; called when the task is about to wait for input."""
        with self._mutex:
            self._raise_earlier_error()
            for lane in self._lanes:
                self._drain(lane, wait=True)
            self.partition.flush()

    def tick(self) -> None:
        """The flusher's turn, on its own thread: as `flush`, but without ever waiting.

        An error is kept for the task's next write. While the task itself is writing, or waits for memory in the
        middle of it, only what is in buffers is handed on.
        """
        if not self._mutex.acquire(blocking=False):
            self.partition.flush()
            return
        try:
            if not self._closed and self._error is None:
                for lane in self._lanes:
                    self._drain(lane, wait=False)
                self.partition.flush()
        except Exception as error:  # noqa: BLE001 - it is the task's to handle
            self._error = error
            self._full = 0  # so that the very next `emit` comes by and raises it
        finally:
            self._mutex.release()

    def finish(self) -> None:
        """Write what is left, and the end."""
        with self._mutex:
            self._raise_earlier_error()
            self._end_buffers()
            self.partition.finish()

    def close(self) -> None:
        """Give back what the writer holds, written or not. May be repeated."""
        with self._mutex:
            self._closed, on_close, self.on_close = True, self.on_close, _nothing
            self._full = 0  # so that the very next `emit` comes by and is refused
            for lane in self._lanes:
                lane.values, lane.times, lane.spanning = [], [], SpanningWriter()
                self._end_buffer(lane)
        on_close()

    def statistics(self) -> WriterStatistics:
        """What was written so far."""
        return WriterStatistics(records_out=self.records_out.value, partition=self.partition.statistics())

    def hot_keys(self) -> list[KeyShare]:
        """The keys that many records have, the hottest first; from any thread. Empty where there are no keys."""
        return self._selector.hot_keys()

    # Under the mutex.

    def _write(self, lane: _Lane[T]) -> None:
        """A lane has a batch."""
        with self._mutex:
            self._raise_earlier_error()
            self._drain(lane, wait=True)
        if self._always:
            self.partition.flush(lane.channel)

    def _write_at_once(self, lane: _Lane[T], values: list[T], times: list[int] | None) -> None:
        """A batch that need not wait in the lane's list, behind what does."""
        with self._mutex:
            self._raise_earlier_error()
            self._drain(lane, wait=True)
            start = 0
            while start < len(values):
                # A few buffers' worth at a time: a long list of small values must not become one huge record.
                stop = start + min(self._batch_size, 4 * self._full)
                self._put_batch(lane, values[start:stop], times and times[start:stop], wait=True)
                self._drain(lane, wait=True)
                start = stop
        if self._always:
            self.partition.flush(lane.channel)

    def _drain(self, lane: _Lane[T], *, wait: bool) -> bool:
        """Serialize and append all that waits in a lane. False: memory ran out first (and `wait` is off)."""
        if lane.spanning.unfinished and not self._copy(lane, wait=wait):
            return False
        while True:
            count = len(lane.times) if lane.timed else len(lane.values)
            if not count:
                return True
            values = lane.values[:count]
            del lane.values[:count]
            times = None
            if lane.timed:
                times = lane.times[:count]
                del lane.times[:count]
            if not self._put_batch(lane, values, times, wait=wait):
                return False

    def _put_batch(self, lane: _Lane[T], values: list[T], times: list[int] | None, *, wait: bool) -> bool:
        count = len(values)
        try:
            pieces = encode_batch(self._serializer, values, times, self._limits)
        except RecordTooLarge:
            if count == 1:
                raise
            half = count // 2  # each value may be within the limit: only one that is not, by itself, is too large
            lane.values[:0] = values[half:]
            if times is not None:
                lane.times[:0] = times[half:]
            return self._put_batch(lane, values[:half], times and times[:half], wait=wait)
        self.records_out.value += count
        self._adapt(count, sum(map(len, pieces)))
        return self._put(lane, pieces, wait=wait)

    def _put(self, lane: _Lane[T], pieces: Encoded, *, wait: bool) -> bool:
        lane.spanning.begin(pieces)
        return self._copy(lane, wait=wait)

    def _copy(self, lane: _Lane[T], *, wait: bool) -> bool:
        """Go on copying a lane's record into buffers until it is done; False: as `_drain`."""
        spanning, partition, channel = lane.spanning, self.partition, lane.channel
        buffer, mid_record = lane.buffer, spanning.begun
        while True:
            if buffer is None or not buffer.room:
                lane.buffer = None
                buffer = partition.next_buffer(channel, buffer, mid_record=mid_record, wait=False)
                if buffer is None:
                    if not wait:
                        return False
                    self._before_wait(lane)
                    buffer = partition.next_buffer(channel, None, mid_record=mid_record)
                    assert buffer is not None, "it was waited for"
                lane.buffer = buffer
            match spanning.copy_to(buffer):
                case Written.RECORD_DONE:
                    return True
                case Written.RECORD_DONE_BUFFER_FULL:
                    self._end_buffer(lane)
                    return True
                case Written.BUFFER_FULL:
                    mid_record = True

    def _before_wait(self, waiting: _Lane[T]) -> None:
        """The task is about to wait for memory with the mutex held: bring the other lanes to where `tick` can flush."""
        if self.buffer_timeout.mode is FlushMode.NEVER:
            return
        for lane in self._lanes:
            if lane is not waiting:
                self._drain(lane, wait=False)

    def _adapt(self, count: int, size_bytes: int) -> None:
        """Let the next batch fill about one buffer; grow in steps, for the next records may be larger."""
        fitting = count * self._target_bytes // max(size_bytes, 1)
        self._full = max(1, min(fitting, self._full * 2, self._batch_size))

    def _put_at_random(self, pieces: Encoded) -> None:
        channel = self._below(len(self.partition.subpartitions))
        if self._lanes[0].channel != UNCHANNELLED:
            lane = self._lanes[channel]
            self._drain(lane, wait=True)
            self._put(lane, pieces, wait=True)
            return
        self._end_buffers()  # of the shared buffer; then a buffer for one reader alone
        alone: _Lane[T] = _Lane(channel)
        self._put(alone, pieces, wait=True)
        self._end_buffer(alone)

    def _end_buffers(self) -> None:
        for lane in self._lanes:
            self._drain(lane, wait=True)
            self._end_buffer(lane)

    def _end_buffer(self, lane: _Lane[T]) -> None:
        buffer, lane.buffer = lane.buffer, None
        if buffer is not None:
            self.partition.end_buffer(lane.channel, buffer)

    def _change_timing(self, lane: _Lane[T]) -> None:
        """A batch has timestamps for all its records or for none."""
        with self._mutex:
            self._raise_earlier_error()
            self._drain(lane, wait=True)
            lane.timed = not lane.timed

    def _raise_earlier_error(self) -> None:
        if self._closed:
            raise LocalProtocolError(f"the writer of partition {self.partition.id} is closed")
        if self._error is not None:
            raise self._error
