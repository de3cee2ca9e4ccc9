"""From buffers to elements: what a task's loop reads.

Runs on the task's thread. A record in one buffer is decoded in place; a record that spans buffers is gathered first.
If a serializer's values refer to the bytes themselves (Arrow), the buffer is lent to them and returns to its pool when
they are collected; if the pool cannot lend it, they get a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from headgate.errors import CorruptStream, HeadgateError, SerializationError, SpillError
from headgate.meters import Counter
from headgate.record.element import Batch, Element, EndOfPartition, Event, Record, decode_element
from headgate.record.serializer import Serializer
from headgate.record.spanning import Read, RecordLimits, SpanningReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headgate.buffer import BufferSlice
    from headgate.input.waiting import Gate

__all__ = ["ReaderStatistics", "RecordReader"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReaderStatistics:
    """The counters of a reader."""

    records_in: int
    bytes_in: int
    buffers_in: int


class RecordReader(Generic[T]):
    """Reads the elements and events of a gate, in the order of each channel; channels may differ in their serializers.

    >>> from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
    >>> from headgate.output import Forward
    >>> from headgate.record.serializer import StrSerializer
    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     partition = worker.partition(PartitionId(JobId("etl"), AttemptId(1), 0, 0, 0), subpartitions=1)
    ...     gate = worker.gate("words", channels=1)
    ...     gate.connect(0, worker.local_source(partition.id, SubpartitionIndex(0)))
    ...     writer = worker.writer(partition, Forward(), StrSerializer())
    ...     writer.emit_batch(["to", "be"]); writer.finish()
    ...     worker.reader(gate, StrSerializer()).read()
    Batch(values=['to', 'be'], timestamps_ms=None)
    """

    def __init__(
        self, gate: Gate, serializer: Serializer[T] | Sequence[Serializer[T]], *, limits: RecordLimits | None = None
    ) -> None:
        limits = limits if limits is not None else RecordLimits()
        if isinstance(serializer, Serializer):
            serializer = [serializer] * gate.channel_count
        assert len(serializer) == gate.channel_count, "one serializer for each channel"
        self.gate = gate
        self.channel = -1
        """The channel of the latest element."""
        self.records_in = Counter()
        self.bytes_in = [0] * gate.channel_count
        """Bytes of the buffers that were read, by channel."""
        self.buffers_in = Counter()
        self._serializers = list(serializer)
        self._where = [f"gate {gate.name}, channel {index}" for index in range(gate.channel_count)]
        self._spanning = [SpanningReader(limits, where) for where in self._where]
        self._data: BufferSlice | None = None  # not read to its end
        self._lent: memoryview | None = None
        self._failure: HeadgateError | None = None

    def poll(self) -> Element[T] | Event | None:
        """Return the next element or event without blocking; None if there is none now."""
        return self._next(None, wait=False, before_wait=None)

    def read(
        self, timeout_s: float | None = None, *, before_wait: Callable[[], object] | None = None
    ) -> Element[T] | Event | None:
        """Block until there is an element or event, and return it; None at the end, or after `timeout_s`."""
        return self._next(timeout_s, wait=True, before_wait=before_wait)

    @property
    def finished(self) -> bool:
        """True once every channel has ended."""
        return self._data is None and self.gate.finished

    def __iter__(self) -> Iterator[Element[T] | Event]:
        """Yield every element and event until the end, blocking in between."""
        while (element := self.read()) is not None:
            yield element

    def close(self) -> None:
        """Release the buffer that is being read, and the gate. Idempotent."""
        self._release_buffer()
        for spanning in self._spanning:
            spanning.close()
        self.gate.release()

    def statistics(self) -> ReaderStatistics:
        """Return the counters."""
        return ReaderStatistics(self.records_in.value, sum(self.bytes_in), self.buffers_in.value)

    def _next(
        self, timeout_s: float | None, *, wait: bool, before_wait: Callable[[], object] | None
    ) -> Element[T] | Event | None:
        if self._failure is not None:
            raise self._failure
        try:
            return self._read_on(timeout_s, wait=wait, before_wait=before_wait)
        except (CorruptStream, SerializationError, SpillError) as error:
            self._failure = error  # the bytes behind a corrupt record cannot be trusted
            raise

    def _read_on(
        self, timeout_s: float | None, *, wait: bool, before_wait: Callable[[], object] | None
    ) -> Element[T] | Event | None:
        while True:
            if self._data is None:
                data = self.gate.read(timeout_s, before_wait=before_wait) if wait else self.gate.poll()
                if data is None:
                    return None
                self.channel = data.channel
                if data.event is not None:
                    return self._on_event(data.event)
                self._data = data
                self.buffers_in.value += 1
                self.bytes_in[data.channel] += len(data.memory)
                self._spanning[data.channel].feed(data.memory, data.offset)
            spanning = self._spanning[self.channel]
            found = spanning.next()
            element = None if found is Read.INCOMPLETE else self._decode(spanning)
            if found is not Read.RECORD_MORE:
                self._release_buffer()
            if element is not None:
                return element

    def _release_buffer(self) -> None:
        # As soon as it is read to its end: the producer may be out of credit.
        data, self._data, self._lent = self._data, None, None
        if data is not None:
            data.release()

    def _on_event(self, event: Event) -> Event:
        if isinstance(event, EndOfPartition) and self._spanning[self.channel].unfinished:
            raise CorruptStream(f"{self._where[self.channel]}: the partition ends in the middle of a record")
        return event

    def _decode(self, spanning: SpanningReader) -> Element[T]:
        serializer = self._serializers[self.channel]
        record = self._keepable(spanning) if serializer.lends and spanning.borrowed else spanning.record
        if not spanning.borrowed:
            spanning.let_go()
        element = decode_element(record, serializer, self._where[self.channel])
        if isinstance(element, Batch):
            self.records_in.value += len(element.values)
        elif isinstance(element, Record):
            self.records_in.value += serializer.records_in(element.value)
        return element

    def _keepable(self, spanning: SpanningReader) -> memoryview:
        """Return the record in memory to which its values may refer for as long as they live."""
        assert self._data is not None, "a borrowed record is in a buffer"
        if self._lent is None:
            self._lent = self._data.lend()
        if self._lent is None:
            return spanning.detached()
        return self._lent[spanning.end - len(spanning.record) : spanning.end]
