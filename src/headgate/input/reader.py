"""From buffers to elements: what a task's loop reads.

Runs on the task's thread. A record in one buffer is decoded where it lies; one that spans buffers is gathered
first. Where a serializer's values refer to the bytes themselves (Arrow), the buffer is lent to them and returns
to its pool when they are gone, unless the pool cannot spare it: then they get a copy.
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
    """What a reader has done so far.

    >>> from headgate.record.serializer import StrSerializer
    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     worker.reader(worker.gate("words", channels=1), StrSerializer()).statistics()
    ReaderStatistics(records_in=0, bytes_in=0, buffers_in=0)
    """

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
        """The channel of what was read last."""
        self.records_in = Counter()
        self.bytes_in = [0] * gate.channel_count
        """Of the buffers that were read, by channel."""
        self.buffers_in = Counter()
        self._serializers = list(serializer)
        self._where = [f"gate {gate.name}, channel {index}" for index in range(gate.channel_count)]
        self._spanning = [SpanningReader(limits, where) for where in self._where]
        self._data: BufferSlice | None = None  # not used up yet
        self._lent: memoryview | None = None
        self._failure: HeadgateError | None = None

    def poll(self) -> Element[T] | Event | None:
        """What is at hand; None if nothing is, or all has ended."""
        return self._next(None, wait=False, before_wait=None)

    def read(
        self, timeout_s: float | None = None, *, before_wait: Callable[[], object] | None = None
    ) -> Element[T] | Event | None:
        """What comes next, asleep until it does; None if all has ended, or after `timeout_s`."""
        return self._next(timeout_s, wait=True, before_wait=before_wait)

    @property
    def finished(self) -> bool:
        """Whether every channel has ended."""
        return self._data is None and self.gate.finished

    def __iter__(self) -> Iterator[Element[T] | Event]:
        """Everything until the end, asleep in between."""
        while (element := self.read()) is not None:
            yield element

    def close(self) -> None:
        """Give back what the reader holds, and release the gate. May be repeated."""
        self._let_go()
        for spanning in self._spanning:
            spanning.close()
        self.gate.release()

    def statistics(self) -> ReaderStatistics:
        """What was read so far."""
        return ReaderStatistics(self.records_in.value, sum(self.bytes_in), self.buffers_in.value)

    def _next(
        self, timeout_s: float | None, *, wait: bool, before_wait: Callable[[], object] | None
    ) -> Element[T] | Event | None:
        if self._failure is not None:
            raise self._failure
        try:
            return self._read_on(timeout_s, wait=wait, before_wait=before_wait)
        except (CorruptStream, SerializationError, SpillError) as error:
            self._failure = error  # what follows a record that cannot be read cannot be trusted
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
                self._let_go()
            if element is not None:
                return element

    def _let_go(self) -> None:
        """Give the buffer back as soon as it is used up: the producer may be waiting for it."""
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
        """The record in memory that its values may refer to for as long as they live."""
        assert self._data is not None, "a borrowed record lies in a buffer"
        if self._lent is None:
            self._lent = self._data.lend()
        if self._lent is None:
            return spanning.detached()
        return self._lent[spanning.end - len(spanning.record) : spanning.end]
