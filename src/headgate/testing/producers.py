"""Producing tasks of a simulation: their base class, and the kind that writes record by record into buffers.

See `workload` for tasks in general, and `writers` for the other kind. `DirectProducer` fills buffers as a
`RecordWriter` does, but in single steps, so that it can stop where there is no buffer.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from headgate.buffer import UNCHANNELLED
from headgate.buffer.listener import Claim
from headgate.errors import InvariantViolated, RecordTooLarge
from headgate.record import BytesSerializer, Record, UserEvent
from headgate.record.element import encode_element
from headgate.record.spanning import SpanningWriter, Written
from headgate.testing.waiting import SimWaiter
from headgate.testing.workload import SimTask, content

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.buffer import Buffer
    from headgate.output import ResultPartition
    from headgate.record import Event
    from headgate.testing.plan import SimPlan
    from headgate.testing.worker import SimWorker

__all__ = ["DirectProducer", "ProducerTask"]

_SERIALIZER = BytesSerializer()


class ProducerTask(SimTask):
    """Writes the records of its plan, in the order of each subpartition, with events and flushes in between."""

    def __init__(self, number: int, worker: SimWorker, plan: SimPlan, progress: Callable[[], object]) -> None:
        super().__init__(f"producer {number}", worker, progress)
        self.number = number
        self.plan = plan
        self.mine = plan.producers[number]
        self.partition: ResultPartition = worker.partition_of(number, plan.subpartitions(number))
        self.written = [0] * len(self.mine.lengths)
        self.too_large = 0  # attempts left to write a record over the limit
        self._lanes = [0] if self.mine.broadcast else list(range(len(self.mine.lengths)))
        self._left = [lane for lane in self._lanes if self.mine.lengths[lane]]
        self._marks = 0
        self._acks = [0] * plan.subpartitions(number)
        self._may_write = None if self.mine.fed_by is None else 0  # None: all that are left
        self.fed = _ignore
        """Called when all fed records are written: the reading half may continue."""
        self._ticking = False  # a flush is scheduled
        worker.registry.subscribe(self.partition.id, "ack", self._on_ack)

    # Called by the reading half of the task, if there is one.

    @property
    def busy(self) -> bool:
        """True while records that were fed are not written yet."""
        return not self.done and bool(self._may_write)

    def feed(self, records: int | None) -> None:
        """Allow so many more records to be written; None: all that are left."""
        self._may_write = None if records is None or self._may_write is None else self._may_write + records
        if not self.done and self._scheduled is None and not self.waits_for.startswith("a buffer"):
            self.wake()

    def _needs_input(self) -> bool:
        """Return True if no record may be written; the reading half then continues."""
        if self._may_write == 0:
            self.waits_for = "its input"
            self.fed()
            return True
        if self._may_write is not None:
            self._may_write -= 1
        return False

    # Records and events.

    def _next_record(self) -> tuple[int, bytes] | None:
        """Return the next record and its subpartition; None if all are written."""
        if not self._left:
            return None
        lane = self._chance.choice(self._left)
        number, lengths = self.written[lane], self.mine.lengths[lane]
        self.written[lane] = number + 1
        if number + 1 == len(lengths):
            self._left.remove(lane)
        if self.too_large and self._chance.random() < 0.2:
            self.too_large -= 1
            self._refuse_too_large()
        return lane, content(self.number, lane, number, lengths[number])

    def _refuse_too_large(self) -> None:
        try:
            encode_element(Record(bytes(self.plan.max_record_bytes)), _SERIALIZER, self.worker.record_limits)
        except RecordTooLarge:
            return
        raise InvariantViolated(f"{self}: a record over the limit was not refused")

    def _mark(self) -> UserEvent:
        counts = self.written[:1] * len(self.written) if self.mine.broadcast else self.written
        event = UserEvent("mark", ",".join(map(str, (self._marks, *counts))).encode())
        self._marks += 1
        return event

    def _on_ack(self, event: Event) -> None:
        assert isinstance(event, UserEvent), "the only kind that is sent back"
        subpartition, number = map(int, event.payload.split(b","))
        if number != self._acks[subpartition]:
            raise InvariantViolated(
                f"{self}: task event {number} of subpartition {subpartition} is received as {self._acks[subpartition]}"
            )
        self._acks[subpartition] += 1

    # The flusher. It is scheduled only after a write: the simulation ends when no action is left.

    def _wrote(self) -> None:
        self.progress()
        if not self._ticking:
            self._ticking = True
            simulator, actor = self.worker.simulator, self.worker.actor
            simulator.after(self.plan.flush_every_ns, self._tick, actor, f"{self.name} flusher", work=False)

    def _tick(self) -> None:
        self._ticking = False
        if not self.done:
            self.flush_now()

    def nudge(self) -> None:
        """Flush now. Called when no other action is scheduled."""
        if not self.done:
            self.worker.simulator.after(0, self._tick, self.worker.actor, f"{self.name} last flush")

    @abstractmethod
    def flush_now(self) -> None:
        """Make all written bytes readable, as the flusher does."""

    def clean_up(self) -> None:
        """Do nothing: a producer has no files."""

    def let_go(self) -> None:
        """End the buffers; if the task failed, release its partition with the error, which its readers raise."""
        self._end_buffers()
        if self.error is not None:
            self.worker.registry.release(self.partition.id, self.error)
        self.fed()

    @abstractmethod
    def _end_buffers(self) -> None: ...


class _Target:
    """The unfinished record and buffer of one subpartition, or of all when broadcasting."""

    __slots__ = ("buffer", "channel", "spanning")

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.spanning = SpanningWriter()
        self.buffer: Buffer | None = None


class DirectProducer(ProducerTask):
    """Copies record by record into buffers of the partition."""

    def __init__(self, number: int, worker: SimWorker, plan: SimPlan, progress: Callable[[], object]) -> None:
        super().__init__(number, worker, plan, progress)
        channels = [UNCHANNELLED] if self.mine.broadcast else list(self._lanes)
        self._by_lane = [_Target(channel) for channel in channels]
        self._current: _Target | None = None  # its record is not written completely
        self._claim: Claim | None = None  # for its next buffer

    def step(self) -> None:
        """Write a few records, or continue with the one that waits for a buffer."""
        for _ in range(self._chance.choice((1, 1, 4))):
            if self._current is None and not self._begin():
                return
            copied = self._copy()
            self._wrote()
            if not copied:
                return
        self._think()

    def flush_now(self) -> None:
        """Make the bytes in unfinished buffers readable."""
        self.partition.flush()

    def _begin(self) -> bool:
        """Start the next record. Return False if there is none, or none may be written yet."""
        chance, plan = self._chance, self.plan
        if self._needs_input():
            return False
        if plan.events and chance.random() < plan.events:
            self._end_buffers()
            self.partition.add_event(self._mark())
        if plan.flushes and chance.random() < plan.flushes:
            self.partition.flush(chance.choice(self._by_lane).channel)
        found = self._next_record()
        if found is None:
            self._end_buffers()
            self.partition.finish()
            self.finish()
            return False
        lane, value = found
        self._current = self._by_lane[lane]
        self._current.spanning.begin(encode_element(Record(value), _SERIALIZER, self.worker.record_limits))
        return True

    def _copy(self) -> bool:
        """Copy the record into buffers. Return False if it waits for the next buffer."""
        lane = self._current
        assert lane is not None, "a record was begun"
        while lane.spanning.unfinished:
            if lane.buffer is None or not lane.buffer.room:
                buffer = self._next_buffer(lane)
                if buffer is None:
                    return False
                lane.buffer = buffer
            if lane.spanning.copy_to(lane.buffer) is Written.RECORD_DONE_BUFFER_FULL and self._chance.random() < 0.5:
                self._end_buffer(lane)
        self._current = None
        return True

    def _next_buffer(self, lane: _Target) -> Buffer | None:
        """Request a buffer as `ResultPartition.next_buffer` does; return None where that would block."""
        partition, claim = self.partition, self._claim
        if claim is not None:
            self._claim = None
            if claim.segment is not None:
                return partition._add_segment(claim.segment, lane.channel)
        full, lane.buffer = lane.buffer, None
        mid_record = lane.spanning.begun
        buffer = partition.next_buffer(lane.channel, full, mid_record=mid_record, wait=False)
        if buffer is not None:
            return buffer
        with partition.lock:
            self._claim = claim = Claim(self.worker.sync)
            claim.waiter = SimWaiter(self.wake)
            partition.pool.listen_locked(claim, lane.channel)
        self.waits_for = f"a buffer for subpartition {lane.channel} of partition {partition.id}"
        return None

    def _end_buffer(self, lane: _Target) -> None:
        buffer, lane.buffer = lane.buffer, None
        if buffer is not None:
            self.partition.end_buffer(lane.channel, buffer)

    def _end_buffers(self) -> None:
        for lane in self._by_lane:
            self._end_buffer(lane)

    def let_go(self) -> None:
        """Also withdraw the claim, as an interrupted thread does."""
        claim, self._claim = self._claim, None
        if claim is not None and self._current is not None:
            self.partition.pool._withdraw(claim, self._current.channel)
        super().let_go()


def _ignore() -> None:
    """Do nothing: the task has no reading half."""
