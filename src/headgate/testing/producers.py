"""Producing tasks of a simulation: what they share, and the kind that writes record by record into buffers.

See `workload` for what tasks are, and `writers` for the other kind. `DirectProducer` does what a writer does, with
every decision in the open, so that it can stop wherever there is no buffer.
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
from headgate.testing.workload import Task, content

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.buffer import Buffer
    from headgate.output import ResultPartition
    from headgate.record import Event
    from headgate.testing.plan import Plan
    from headgate.testing.worker import SimWorker

__all__ = ["DirectProducer", "ProducerTask"]

_SERIALIZER = BytesSerializer()


class ProducerTask(Task):
    """Writes the records of its plan, in the order of each subpartition, with events and flushes in between.

    >>> from headgate.testing import Simulation
    >>> simulation = Simulation(seed=3, faults=[]); simulation.run()
    >>> all(sum(task.written) == task.mine.records for task in simulation.job.producers.values())
    True
    """

    def __init__(self, number: int, worker: SimWorker, plan: Plan, progress: Callable[[], object]) -> None:
        super().__init__(f"producer {number}", worker, progress)
        self.number = number
        self.plan = plan
        self.mine = plan.producers[number]
        self.partition: ResultPartition = worker.partition(number, plan.subpartitions(number))
        self.written = [0] * len(self.mine.lengths)
        self.too_large = 0  # records over the limit to try to write
        self._lanes = [0] if self.mine.broadcast else list(range(len(self.mine.lengths)))
        self._left = [lane for lane in self._lanes if self.mine.lengths[lane]]
        self._marks = 0
        self._acks = [0] * plan.subpartitions(number)
        self._may_write = None if self.mine.fed_by is None else 0  # None: as many as there are
        self.fed = _nobody
        """Called when there is nothing left to pass on: the reading half may go on."""
        self._ticking = False  # the flusher will come
        worker.registry.subscribe(self.partition.id, "ack", self._on_ack)

    # The reading half, if there is one.

    @property
    def busy(self) -> bool:
        """Whether it still has something to pass on."""
        return not self.done and bool(self._may_write)

    def feed(self, records: int | None) -> None:
        """So many more records may be written."""
        self._may_write = None if records is None or self._may_write is None else self._may_write + records
        if not self.done and self._scheduled is None and not self.waits_for.startswith("a buffer"):
            self.wake()

    def _hungry(self) -> bool:
        """Whether there is nothing to pass on; then the reading half goes on."""
        if self._may_write == 0:
            self.waits_for = "its input"
            self.fed()
            return True
        if self._may_write is not None:
            self._may_write -= 1
        return False

    # Between the records.

    def _next_record(self) -> tuple[int, bytes] | None:
        """The next record and its subpartition; None if all are written."""
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
                f"{self}: task event {number} of subpartition {subpartition} comes as number {self._acks[subpartition]}"
            )
        self._acks[subpartition] += 1

    # The flusher: it comes while there is something new to flush, for otherwise it would do nothing.

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
        """Let the flusher come now."""
        if not self.done:
            self.worker.simulator.after(0, self._tick, self.worker.actor, f"{self.name} last flush")

    @abstractmethod
    def flush_now(self) -> None:
        """Let readers have what is written: the flusher's turn."""

    def clean_up(self) -> None:
        """No files."""

    def let_go(self) -> None:
        """End what is half written; if it failed, its readers learn why."""
        self._end_buffers()
        if self.error is not None:
            self.worker.registry.release(self.partition.id, self.error)
        self.fed()

    @abstractmethod
    def _end_buffers(self) -> None: ...


class _Lane:
    """One subpartition, or all of them when broadcasting."""

    __slots__ = ("buffer", "channel", "spanning")

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.spanning = SpanningWriter()
        self.buffer: Buffer | None = None


class DirectProducer(ProducerTask):
    """Copies record by record into buffers of the partition.

    >>> issubclass(DirectProducer, ProducerTask)
    True
    """

    def __init__(self, number: int, worker: SimWorker, plan: Plan, progress: Callable[[], object]) -> None:
        super().__init__(number, worker, plan, progress)
        channels = [UNCHANNELLED] if self.mine.broadcast else list(self._lanes)
        self._by_lane = [_Lane(channel) for channel in channels]
        self._current: _Lane | None = None  # has a record that is not all in buffers
        self._claim: Claim | None = None  # for the current one's next buffer

    def step(self) -> None:
        """Write a few records, or go on with the one that had to wait."""
        for _ in range(self._chance.choice((1, 1, 4))):
            if self._current is None and not self._begin():
                return
            copied = self._copy()
            self._wrote()
            if not copied:
                return
        self._think()

    def flush_now(self) -> None:
        """Let readers have what is in unfinished buffers."""
        self.partition.flush()

    def _begin(self) -> bool:
        """Take up the next record; False at the end."""
        chance, plan = self._chance, self.plan
        if self._hungry():
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
        """Copy the record into as many buffers as it takes; False: it waits for the next."""
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

    def _next_buffer(self, lane: _Lane) -> Buffer | None:
        """As `ResultPartition.next_buffer` and `LocalPool.request`, but where these sleep, None."""
        partition, claim = self.partition, self._claim
        if claim is not None:
            self._claim = None
            if claim.segment is not None:
                return partition._begin(claim.segment, lane.channel)
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

    def _end_buffer(self, lane: _Lane) -> None:
        buffer, lane.buffer = lane.buffer, None
        if buffer is not None:
            self.partition.end_buffer(lane.channel, buffer)

    def _end_buffers(self) -> None:
        for lane in self._by_lane:
            self._end_buffer(lane)

    def let_go(self) -> None:
        """Also give up the claim, as a thread that is interrupted does."""
        claim, self._claim = self._claim, None
        if claim is not None and self._current is not None:
            self.partition.pool._withdraw(claim, self._current.channel)
        super().let_go()


def _nobody() -> None:
    """Nobody waits."""
