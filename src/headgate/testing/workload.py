"""Simulated tasks: producers write records with a known content, consumers check every record.

A task runs in small steps. After a step it is scheduled again after a while, or when the exchange wakes it. It makes
the calls of a real task, except that it never blocks inside a call. The content of a record names its producer, its
subpartition and its number, so that a consumer detects lost, duplicated and reordered records.

Invariant: a task that is not done is scheduled, or waits for something that will wake it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from headgate.errors import Cancelled, HeadgateError, InvariantViolated
from headgate.input import RemoteChannel, RemoteState
from headgate.record import Batch, BytesSerializer, EndOfPartition, Record, UserEvent
from headgate.testing.waiting import SimWaiter

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.input import Gate, InputGate, RecordReader
    from headgate.input.channel import ChannelSource
    from headgate.record import Element, Event
    from headgate.testing.plan import SimPlan
    from headgate.testing.simulator import Scheduled, Simulator
    from headgate.testing.worker import SimWorker

__all__ = ["ConsumerTask", "Fed", "SimTask", "content"]

_MARK = "mark"
_ACK = "ack"


def content(producer: int, subpartition: int, number: int, length: int) -> bytes:
    """Return the content of a record: its producer, subpartition and number, repeated up to the length.

    >>> content(producer=1, subpartition=0, number=7, length=10)
    b'1/0#7;1/0#'
    """
    unit = b"%d/%d#%d;" % (producer, subpartition, number)
    return (unit * (length // len(unit) + 1))[:length]


class SimTask(ABC):
    """A task of a simulation: steps, pauses between them, wake-ups, and its end."""

    def __init__(self, name: str, worker: SimWorker, progress: Callable[[], object]) -> None:
        self.name = name
        self.worker = worker
        self.done = False
        self.error: HeadgateError | None = None
        self.think_ns = 1_000
        """The longest pause between two steps."""
        self.waits_for = ""
        """What the task waits for while no step is scheduled; shown in the wait-for graph."""
        self.progress = progress  # called after each record, and at the end
        self._simulator: Simulator = worker.simulator
        self._chance = worker.simulator.fork(f"task/{name}")
        self._scheduled: Scheduled | None = None
        self._held_up_until_ns = 0

    def __str__(self) -> str:
        return f"{self.name} on worker {self.worker.number}"

    def begin(self, delay_ns: int) -> None:
        """Schedule the first step."""
        self._schedule(delay_ns)

    def wake(self) -> None:
        """Schedule the next step, after the time that waking a thread takes."""
        self._schedule(int(self._chance.random() * self.worker.wake_delay_ns))

    def hold_up(self, duration_ns: int) -> None:
        """Take no step for this long."""
        self._held_up_until_ns = self._simulator.now_ns + duration_ns
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
            self._schedule(0)

    def _schedule(self, delay_ns: int) -> None:
        when_ns = max(self._simulator.now_ns + delay_ns, self._held_up_until_ns)
        if self.done:
            return
        if self._scheduled is not None:
            self._scheduled.cancel()
        self.waits_for = ""
        self._scheduled = self._simulator.at(when_ns, self._take_step, self.worker.actor, self.name)

    def _think(self) -> None:
        self._schedule(int(self._chance.random() * self.think_ns))

    def _take_step(self) -> None:
        self._scheduled = None
        if self.done:
            return
        try:
            self.step()
        except InvariantViolated:
            raise
        except HeadgateError as error:
            self.fail(error)

    @abstractmethod
    def nudge(self) -> None:
        """Run now what a timer of the task would run later. Called when no other action is scheduled."""

    @abstractmethod
    def step(self) -> None:
        """Run one step, then schedule the next one or wait for a wake-up."""

    @abstractmethod
    def let_go(self) -> None:
        """Give back all buffers of the task, and release its gate or partition."""

    @abstractmethod
    def clean_up(self) -> None:
        """Close the task's files. Called at the end of the simulation, also if the task failed."""

    def finish(self) -> None:
        """End the task without an error."""
        self.done = True
        self._simulator.note(self.name, "done")
        self.let_go()
        self.progress()

    def fail(self, error: HeadgateError) -> None:
        """End the task with an error."""
        self.done, self.error = True, error
        self._simulator.note(self.name, f"{type(error).__name__}: {error}")
        self.let_go()
        self.progress()


class Fed(Protocol):
    """The writing half of a task that reads and writes."""

    name: str

    @property
    def busy(self) -> bool:
        """True while records that were fed are not written yet."""
        ...

    def feed(self, records: int | None) -> None:
        """Allow so many more records to be written; None: all that are left."""
        ...


class ConsumerTask(SimTask):
    """Reads one gate through a `RecordReader`, and checks every record against the plan of its producer."""

    def __init__(self, number: int, worker: SimWorker, plan: SimPlan, progress: Callable[[], object]) -> None:
        super().__init__(f"consumer {number}", worker, progress)
        self.number = number
        self.plan = plan
        self._producers = plan.producers_of(number)
        channels = len(self._producers) * plan.channels
        sizes = plan.gate_sizes(number)
        self.gates = [worker.gate(f"consumer-{number}.{index}", channels=size) for index, size in enumerate(sizes)]
        self.gate: Gate = worker.union(f"consumer-{number}", self.gates) if len(sizes) > 1 else self.gates[0]
        self.reader: RecordReader[bytes] = worker.reader(self.gate, BytesSerializer())
        self.records = 0
        self.read = [0] * channels
        self.events = [0] * channels
        self.ended = [False] * channels
        self.sources: dict[int, ChannelSource] = {}
        self.asked: set[int] = set()
        """Remote channels that had requested their partition when the task ended: their producers must be notified."""
        self.feeds: Fed | None = None
        """The writing half of the same task, if there is one. While that is busy, this half reads nothing."""
        self._acks = [0] * channels
        self._asleep: SimWaiter | None = None

    def route(self, channel: int) -> tuple[int, int]:
        """Return the producer and the subpartition that a channel reads."""
        index, offset = divmod(channel, self.plan.channels)
        producer = self._producers[index]
        reader = self.plan.consumers_of(producer).index(self.number)
        return producer, reader * self.plan.channels + offset

    def inner(self, channel: int) -> tuple[InputGate, int]:
        """Return the gate that a channel belongs to, and its number there."""
        first = self.gates[0]
        return (first, channel) if channel < first.channel_count else (self.gates[1], channel - first.channel_count)

    def step(self) -> None:
        """Read a few elements."""
        self._wake_up()
        reader, feeds = self.reader, self.feeds
        for _ in range(self._chance.choice((1, 2, 8))):
            if feeds is not None and feeds.busy:
                self.waits_for = feeds.name
                return
            element = reader.poll()
            if element is None:
                if reader.finished:
                    self._check_all_read()
                    self.finish()
                    if feeds is not None:
                        feeds.feed(None)
                else:
                    self._sleep()
                return
            self.progress()
            self._check(reader.channel, element)
        self._think()

    def connect(self, channel: int, source: ChannelSource) -> None:
        """Connect a channel to its source."""
        self.sources[channel] = source
        gate, index = self.inner(channel)
        gate.connect(index, source)

    def note_asked(self) -> None:
        """Record in `asked` which channels have requested their partition, before the gate is released."""
        for channel, source in self.sources.items():
            if isinstance(source, RemoteChannel) and source.state in {RemoteState.RECEIVING, RemoteState.ENDED}:
                self.asked.add(channel)

    def let_go(self) -> None:
        """Release the gate."""
        self.note_asked()
        self.reader.close()

    def nudge(self) -> None:
        """Do nothing: only data wakes a reader."""

    def clean_up(self) -> None:
        """Close the files of large records that were not received completely."""
        for spanning in self.reader._spanning:
            spanning.close()

    # Blocking, as `Gate` does it, in two halves: this one returns, and `wake` schedules the other.

    def _sleep(self) -> None:
        gate = self.gate
        with gate.lock:
            if gate._has_data_locked() or gate.finished or gate.failure is not None:
                self._schedule(0)
                return
            gate._blocked_reader = self._asleep = SimWaiter(self.wake)
            retry_at_ns = gate._retry_at_locked()
            announced = gate._announce_all_locked()
        if announced is not None:
            announced()
        if retry_at_ns is not None:
            self._schedule(max(0, retry_at_ns - self.worker.transport.now_ns()))
        self.waits_for = f"gate {gate.name}"

    def _wake_up(self) -> None:
        if self._asleep is None:
            return
        self._asleep = None
        now_ns = self.worker.transport.now_ns()
        with self.gate.lock:
            self.gate._blocked_reader = None
            wake = self.gate._retry_locked(now_ns)
        if wake is not None:
            wake()

    # Checking.

    def _check(self, channel: int, element: Element[bytes] | Event) -> None:
        match element:
            case Record(value, _):
                self._check_record(channel, value)
            case Batch(values, _):
                for value in values:
                    self._check_record(channel, value)
            case UserEvent(_, payload):
                self._check_event(channel, payload)
            case EndOfPartition():
                self.ended[channel] = True
                self._simulator.note(self.name, f"channel {channel} ended after {self.read[channel]} records")
            case _:
                raise InvariantViolated(f"{self}, channel {channel}: an element that no producer wrote: {element!r}")
        if self.plan.task_events and self._chance.random() < self.plan.task_events:
            self._acknowledge(channel)

    def _check_record(self, channel: int, value: bytes) -> None:
        producer, subpartition = self.route(channel)
        lengths = self.plan.producers[producer].lengths[subpartition]
        number = self.read[channel]
        if number >= len(lengths):
            raise InvariantViolated(f"{self}, channel {channel}: a record past the {len(lengths)} that were written")
        whose = 0 if self.plan.producers[producer].broadcast else subpartition
        expected = content(producer, whose, number, lengths[number])
        if value != expected:
            raise InvariantViolated(
                f"{self}, channel {channel}: record {number} should have {len(expected)} bytes {expected[:24]!r}, "
                f"but has {len(value)}: {value[:24]!r}"
            )
        self.read[channel] = number + 1
        self.records += 1
        if self.feeds is not None:
            self.feeds.feed(1)

    def _check_event(self, channel: int, payload: bytes) -> None:
        """Check a mark: it contains its number, and the number of records before it in each subpartition."""
        number, *counts = map(int, payload.split(b","))
        before = counts[self.route(channel)[1]]
        if (number, before) != (self.events[channel], self.read[channel]):
            raise InvariantViolated(
                f"{self}, channel {channel}: mark {number} was written behind {before} records, but arrives as mark "
                f"{self.events[channel]} behind {self.read[channel]}"
            )
        self.events[channel] += 1

    def _check_all_read(self) -> None:
        for channel, count in enumerate(self.read):
            producer, subpartition = self.route(channel)
            written = len(self.plan.producers[producer].lengths[subpartition])
            if count != written:
                raise InvariantViolated(f"{self}, channel {channel}: {count} of {written} records came before the end")

    def _acknowledge(self, channel: int) -> None:
        """Send an event to the producer, which checks the order of these events."""
        number = self._acks[channel]
        gate, index = self.inner(channel)
        try:
            gate.send_task_event(index, UserEvent(_ACK, b"%d,%d" % (self.route(channel)[1], number)))
        except Cancelled:
            return  # the channel has ended
        self._acks[channel] += 1
